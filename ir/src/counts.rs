//! Counts: which kernels a unit's pass runs, with their FLOPs and bytes. Shapes only, never time.
//!
//! A cost model prices [`Kernel`]s; a report counts their [`Flops`]. The kernels are those that the executor runs and
//! that GPU frameworks run for the same operation.

use crate::program::{Layout, Pass, Program, Unit};
use crate::{AttentionKernel, Bytes, Flops, Model, Recompute, Workload};

/// What an operation's size depends on.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// How.
    pub workload: &'a Workload,
    /// Divided how.
    pub layout: &'a Layout,
}

impl Program {
    /// The shape that this program's ops refer to.
    #[must_use]
    pub const fn shape(&self) -> Shape<'_> {
        Shape { model: &self.model, workload: &self.workload, layout: &self.layout }
    }
}

/// A streaming kernel; each kind has its own effective bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Streaming {
    /// Gathering or scattering embedding rows.
    Embedding,
    /// RMSNorm or LayerNorm.
    Norm,
    /// Rotary embedding.
    Rope,
    /// SwiGLU or GELU.
    Activation,
    /// Additions and copies of activations, biases.
    Add,
    /// Softmax statistics and gradient over logits.
    CrossEntropy,
    /// Sum of squares of gradients.
    GradientNorm,
    /// The AdamW step.
    Optimizer,
}

/// One kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kernel {
    /// `[m,k] x [k,n]`.
    MatrixProduct {
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// The contracted size.
        k: u64,
    },
    /// The causal attention core over `sequences` sequences.
    Attention {
        /// Sequences.
        sequences: u64,
        /// Tokens of each.
        sequence_length: u64,
        /// Query heads of this rank.
        heads: u64,
        /// Key and value heads of this rank.
        kv_heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// Which implementation.
        kernel: AttentionKernel,
        /// Whether it is the backward pass.
        backward: bool,
    },
    /// A kernel bound by memory.
    Streaming {
        /// Which.
        kind: Streaming,
        /// Bytes read and written.
        bytes: Bytes,
        /// Kernel launches that frameworks need for it.
        launches: u32,
    },
}

/// Pushes the kernels of one unit's pass on one rank onto `out`.
///
/// `Backward` is `BackwardInput` then `BackwardWeight`; `Recompute` is `Forward`. With selective recomputation the
/// backward (input) pass of attention begins with the forward attention core.
pub fn unit_kernels(shape: Shape<'_>, unit: Unit, pass: Pass, recompute: Recompute, out: &mut Vec<Kernel>) {
    let _ = (shape, unit, pass, recompute, out);
}

/// FLOPs of a kernel: `2mnk` for a matrix product; causal attention counts the half of the scores that is used.
#[must_use]
pub fn flops(kernel: Kernel) -> Flops {
    let _ = kernel;
    Flops::ZERO
}

/// Parameters that one rank of the tensor group holds of a unit (padded vocabulary).
#[must_use]
pub fn unit_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    let _ = (shape, unit);
    0
}

/// Bytes of a full activation `[microbatch tokens, hidden]`, before any division.
#[must_use]
pub fn activation_bytes(shape: Shape<'_>) -> Bytes {
    let _ = shape;
    Bytes::ZERO
}

//! Counts: which kernels a unit's pass runs, with their FLOPs and bytes. Shapes only, never time.
//!
//! A cost model prices [`Kernel`]s; a report counts their [`Flops`]. The kernels are those that the executor runs and
//! that GPU frameworks run for the same operation. [`payload_bytes`] and [`message_bytes`] size what ranks exchange;
//! [`program_flops`] and [`model_flops_per_token`] are totals, each with its convention named.

use crate::program::{Layout, Program};
use crate::{AttentionKernel, Bytes, Flops, Model, Workload};

mod kernels;
mod sizes;
#[cfg(test)]
mod tests;
mod totals;

pub use kernels::unit_kernels;
pub use sizes::{
    activation_bytes, chunk_parameters, gradient_bytes, gradient_norm_bytes, message_bytes, optimizer_bytes,
    parameter_bytes, partial_gradient_parameters, payload_bytes, replicated_parameters, unit_parameters,
};
pub use totals::{CountedParameters, CountedScores, model_flops_per_token, program_flops};

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

impl Shape<'_> {
    /// Tokens of one microbatch on one replica.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.layout.microbatch_size as u64 * self.workload.sequence_length as u64
    }
    /// Tokens of the residual stream on one rank: the sequence shard (rounded up) under sequence parallelism, else all.
    #[must_use]
    pub const fn residual_tokens(&self) -> u64 {
        if self.layout.sequence_parallel { self.tokens().div_ceil(self.tensor()) } else { self.tokens() }
    }
    /// The tensor degree.
    #[must_use]
    pub const fn tensor(&self) -> u64 {
        self.layout.tensor as u64
    }
    /// Rows of the embedding that one rank of the tensor group holds, padding included.
    #[must_use]
    pub const fn rank_vocabulary(&self) -> u64 {
        self.model.padded_vocabulary(self.workload.vocabulary_divisor, self.layout.tensor) / self.tensor()
    }
    /// Width of this rank's query heads.
    #[must_use]
    pub const fn rank_query_width(&self) -> u64 {
        self.model.query_width().div_ceil(self.tensor())
    }
    /// Width of this rank's key (or value) heads.
    #[must_use]
    pub const fn rank_kv_width(&self) -> u64 {
        self.model.kv_width().div_ceil(self.tensor())
    }
    /// This rank's part of the feed-forward width.
    #[must_use]
    pub const fn rank_ffn(&self) -> u64 {
        (self.model.ffn as u64).div_ceil(self.tensor())
    }
}

/// The largest size that a count gives: a PiB. Whatever a person writes (a microbatch of 10^9), sums of counts then stay
/// inside 64 bits, and no device holds so much.
pub const LARGEST: Bytes = Bytes::new(1 << 50);

/// The product of `factors` in bytes, at most [`LARGEST`].
#[must_use]
pub fn bytes_of<const N: usize>(factors: [u64; N]) -> Bytes {
    Bytes::new(factors.into_iter().fold(1, u64::saturating_mul).min(LARGEST.get()))
}

/// A streaming kernel; each kind has its own effective bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Streaming {
    /// Gathering embedding rows, positions added.
    Embedding,
    /// Adding gradients to embedding rows.
    EmbeddingBackward,
    /// RMSNorm.
    RmsNorm,
    /// Its input gradient (with the residual's added) or weight gradient.
    RmsNormBackward,
    /// LayerNorm.
    LayerNorm,
    /// Its input gradient (with the residual's added) or weight gradient.
    LayerNormBackward,
    /// Rotary embedding, forward or backward.
    Rope,
    /// SwiGLU.
    SwiGlu,
    /// Its gradient.
    SwiGluBackward,
    /// GELU.
    Gelu,
    /// Its gradient.
    GeluBackward,
    /// Additions and copies of activations, biases.
    Add,
    /// Softmax statistics over logits.
    CrossEntropy,
    /// The gradient of the logits.
    CrossEntropyBackward,
    /// Sum of squares of gradients.
    GradientNorm,
    /// The AdamW step.
    Optimizer,
}

impl Streaming {
    /// All of them, in order.
    pub const ALL: [Self; 16] = [
        Self::Embedding,
        Self::EmbeddingBackward,
        Self::RmsNorm,
        Self::RmsNormBackward,
        Self::LayerNorm,
        Self::LayerNormBackward,
        Self::Rope,
        Self::SwiGlu,
        Self::SwiGluBackward,
        Self::Gelu,
        Self::GeluBackward,
        Self::Add,
        Self::CrossEntropy,
        Self::CrossEntropyBackward,
        Self::GradientNorm,
        Self::Optimizer,
    ];
    /// Its name in measurements and calibrations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::EmbeddingBackward => "embedding-backward",
            Self::RmsNorm => "rms-norm",
            Self::RmsNormBackward => "rms-norm-backward",
            Self::LayerNorm => "layer-norm",
            Self::LayerNormBackward => "layer-norm-backward",
            Self::Rope => "rope",
            Self::SwiGlu => "swi-glu",
            Self::SwiGluBackward => "swi-glu-backward",
            Self::Gelu => "gelu",
            Self::GeluBackward => "gelu-backward",
            Self::Add => "add",
            Self::CrossEntropy => "cross-entropy",
            Self::CrossEntropyBackward => "cross-entropy-backward",
            Self::GradientNorm => "gradient-norm",
            Self::Optimizer => "optimizer",
        }
    }
    /// The kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
    /// The kind whose rate stands in where this one was not measured: the forward kernel of a backward one, and the kernel
    /// that does the same for Llama-like models.
    #[must_use]
    pub const fn stand_in(self) -> Option<Self> {
        match self {
            Self::EmbeddingBackward => Some(Self::Embedding),
            Self::RmsNormBackward | Self::LayerNorm => Some(Self::RmsNorm),
            Self::LayerNormBackward => Some(Self::RmsNormBackward),
            Self::SwiGluBackward | Self::Gelu => Some(Self::SwiGlu),
            Self::GeluBackward => Some(Self::SwiGluBackward),
            Self::CrossEntropyBackward => Some(Self::CrossEntropy),
            Self::Embedding
            | Self::RmsNorm
            | Self::Rope
            | Self::SwiGlu
            | Self::Add
            | Self::CrossEntropy
            | Self::GradientNorm
            | Self::Optimizer => None,
        }
    }
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

/// FLOPs of a kernel, exactly: `2mnk` for a matrix product. Causal attention counts the scores that are used,
/// `s(s+1)/2` of each head: two products of `2 head_dim` each forward; backward four, and the fused kernel computes
/// the scores once more (five). Streaming kernels count none.
#[must_use]
pub fn flops(kernel: Kernel) -> Flops {
    let wide = u128::from;
    match kernel {
        Kernel::MatrixProduct { m, n, k } => Flops::new(2 * wide(m) * wide(n) * wide(k)),
        Kernel::Attention { sequences, sequence_length, heads, head_dim, kernel, backward, .. } => {
            let scores = wide(sequences) * wide(heads) * (wide(sequence_length) * (wide(sequence_length) + 1) / 2);
            let products = match (backward, kernel) {
                (false, _) => 2,
                (true, AttentionKernel::Plain) => 4,
                (true, AttentionKernel::Fused) => 5,
            };
            Flops::new(scores * 2 * wide(head_dim) * products)
        }
        Kernel::Streaming { .. } => Flops::ZERO,
    }
}

//! What a cost model prices: one kernel, with its FLOPs and launches.

use super::Streaming;
use crate::{AttentionKernel, Bytes, Flops};

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
    /// `groups` products `[m,k] x [k,n]` in one kernel: one for each local expert.
    GroupedProduct {
        /// How many.
        groups: u64,
        /// Rows of each result (of a forward product: the tokens of one expert).
        m: u64,
        /// Columns of each result.
        n: u64,
        /// The contracted size of each.
        k: u64,
    },
    /// The causal attention core over `sequences` sequences.
    Attention {
        /// Sequences (documents, where attention stays inside them).
        sequences: u64,
        /// Tokens of each, over all ranks that share it.
        sequence_length: u64,
        /// Query heads of this rank.
        heads: u64,
        /// Key and value heads of this rank.
        kv_heads: u64,
        /// Width of a query or key head.
        head_dim: u64,
        /// Width of a value head.
        value_dim: u64,
        /// Positions that a query sees, itself included; at least the sequence length where it sees all before it.
        window: u64,
        /// Ranks over which the scores are divided equally.
        context: u64,
        /// Parts in which this rank computes them, one after the other (the steps of a ring).
        pieces: u32,
        /// Which implementation.
        kernel: AttentionKernel,
        /// Of a plain core: whether the softmax (mask and scale with it) is one kernel.
        fused_softmax: bool,
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

/// Scores of one causal head over one sequence: `s(s+1)/2`, or with a window `w < s` the first `w` queries see all before
/// them and the others `w` positions: `w(w+1)/2 + (s-w) w`.
#[must_use]
pub const fn causal_scores(sequence_length: u64, window: u64) -> u128 {
    let (s, w) = (sequence_length as u128, if window < sequence_length { window } else { sequence_length } as u128);
    w * (w + 1) / 2 + (s - w) * w
}

/// FLOPs of a kernel, exactly: `2mnk` for a matrix product. Causal attention counts the scores that are used (see
/// [`causal_scores`]), of each head and divided over `context` ranks (rounded up): products of `2 head_dim` (queries with
/// keys) and `2 value_dim` (scores with values) forward; backward twice each, and the fused kernel computes the scores
/// once more. Streaming kernels count none.
#[must_use]
pub fn flops(kernel: Kernel) -> Flops {
    let wide = u128::from;
    match kernel {
        Kernel::MatrixProduct { m, n, k } => Flops::new(2 * wide(m) * wide(n) * wide(k)),
        Kernel::GroupedProduct { groups, m, n, k } => Flops::new(2 * wide(groups) * wide(m) * wide(n) * wide(k)),
        Kernel::Attention {
            sequences,
            sequence_length,
            heads,
            head_dim,
            value_dim,
            window,
            context,
            kernel,
            backward,
            ..
        } => {
            let scores = wide(sequences) * wide(heads) * causal_scores(sequence_length, window);
            let (with_keys, with_values) = match (backward, kernel) {
                (false, _) => (1, 1),
                (true, AttentionKernel::Plain) => (2, 2),
                (true, AttentionKernel::Fused) => (3, 2),
            };
            let each = 2 * (wide(head_dim) * with_keys + wide(value_dim) * with_values);
            Flops::new(scores.div_ceil(wide(context.max(1))) * each)
        }
        Kernel::Streaming { .. } => Flops::ZERO,
    }
}

impl Kernel {
    /// Launches that a framework makes for it.
    ///
    /// Of an attention core, each piece: fused one kernel, backward two (a preparing one first); plain two products with
    /// softmax and dropout between, and the output's layout (backward four products, the gradients of both and two
    /// layouts). A softmax of elementary kernels scales, masks, converts to FP32, normalises and converts back: five for
    /// one. Merging a piece of a ring with those before takes two.
    #[must_use]
    pub const fn launches(self) -> u32 {
        match self {
            Self::MatrixProduct { .. } | Self::GroupedProduct { .. } => 1,
            Self::Attention { kernel, backward, fused_softmax, pieces, .. } => {
                let softmax = if fused_softmax { 1 } else { 5 };
                let each = match (kernel, backward) {
                    (AttentionKernel::Fused, false) => 1,
                    (AttentionKernel::Fused, true) => 2,
                    (AttentionKernel::Plain, false) => 4 + softmax,
                    (AttentionKernel::Plain, true) => 7 + softmax,
                };
                pieces.saturating_mul(each).saturating_add(2 * pieces.saturating_sub(1))
            }
            Self::Streaming { launches, .. } => launches,
        }
    }
}

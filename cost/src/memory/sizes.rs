//! Sizes that the tables of memory share.

use ir::counts::{Shape, UnitKind, bytes_of};
use ir::{AttentionKernel, MlpKind, NormKind, ParallelBranches, Precision, QueryKeyNorm};

/// Sizes of one shape on one rank.
pub(super) struct Sizes<'a> {
    pub(super) shape: Shape<'a>,
    pub(super) tokens: u64,
    pub(super) rows: u64,
    pub(super) hidden: u64,
    pub(super) element: u64,
}

/// A mixer's widths on one rank, each of `[T, width]` in the format of activations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixing {
    /// What it keeps inside: queries, keys and values, or what it has instead; by what lies between.
    pub(super) inside: u64,
    /// Its last matrix's input, which is kept.
    pub(super) output: u64,
    /// Of `inside`, what is the output of a matrix, whose gradient gives that of its weights.
    pub(super) products: u64,
    /// What it keeps on the residual stream's tokens: low-rank vectors.
    pub(super) low_rank: u64,
}

impl<'a> Sizes<'a> {
    pub(super) fn of(shape: Shape<'a>) -> Self {
        Self {
            shape,
            tokens: shape.tokens(),
            rows: shape.residual_tokens(),
            hidden: u64::from(shape.model.hidden),
            element: shape.workload.precision.bytes(),
        }
    }
    /// `[T, width]`.
    pub(super) fn wide(&self, width: u64) -> u64 {
        bytes_of([self.tokens, width, self.element]).get()
    }
    /// The residual stream on this rank, `[R, h]`.
    pub(super) fn residual(&self) -> u64 {
        bytes_of([self.rows, self.hidden, self.element]).get()
    }
    /// A matrix's input that is kept for its weight gradient: in FP8 as converted.
    pub(super) fn saved(&self, tokens: u64, width: u64) -> u64 {
        let each = if self.shape.workload.precision == Precision::Fp8 { 1 } else { self.element };
        bytes_of([tokens, width, each]).get()
    }
    /// A unit's input gathered from sequence-parallel ranks; nothing without them.
    pub(super) fn gathered(&self, kind: UnitKind) -> u64 {
        let divided = self.shape.layout.sequence_parallel && self.shape.layout.tensor > 1;
        let only_routed = kind == UnitKind::Experts && self.shape.experts().shared_ffn == 0;
        if !divided || only_routed {
            return 0;
        }
        ir::counts::unit_tensor_bytes(self.shape, kind, ir::program::UnitTensor::Input).get()
    }
    /// FP32 statistics of a norm.
    pub(super) const fn statistics(&self) -> u64 {
        match self.shape.model.norm {
            NormKind::RmsNorm => 4,
            NormKind::LayerNorm => 8,
        }
    }
    /// Bytes of each element that a norm of elementary kernels keeps beyond its input and output: FP32 copies of the input
    /// and of what it normalised. PyTorch's LayerNorm is one kernel.
    pub(super) const fn norm_copies(&self) -> u64 {
        match (self.shape.workload.recipe.fused_normalisation, self.shape.model.norm) {
            (true, _) | (false, NormKind::LayerNorm) => 0,
            (false, NormKind::RmsNorm) => 8,
        }
    }
    /// Whether the two branches of a layer read one and the same tensor of the residual stream, or of the norm.
    pub(super) const fn shares(&self) -> (bool, bool) {
        match self.shape.model.variants.parallel_branches {
            ParallelBranches::No => (false, false),
            ParallelBranches::OwnNorms => (true, false),
            ParallelBranches::OneNorm => (true, true),
        }
    }
    /// What a core of attention keeps. Fused: the logarithm of each query's sum. Plain: of each score the softmax and its
    /// dropped copy, and the mask (Korthikanti et al. 2022: 5 in half precision); of elementary kernels the FP32 softmax too
    /// (9, between the 8 and 9 that zero-bubble runs show).
    pub(super) fn core(&self) -> u64 {
        let heads = self.shape.rank_heads();
        match self.shape.workload.attention {
            AttentionKernel::Fused => bytes_of([self.tokens, heads, 4]).get(),
            AttentionKernel::Plain => {
                let copies = u64::from(!self.shape.fused_softmax() && self.element < 4);
                self.scores(2 * self.element + 1 + 4 * copies)
            }
        }
    }
    /// All scores of a plain core, at so many bytes.
    pub(super) fn scores(&self, each: u64) -> u64 {
        let (length, _) = self.shape.documents();
        bytes_of([self.tokens, length, self.shape.rank_heads(), each]).get()
    }
    pub(super) fn mixing(&self, kind: UnitKind) -> Mixing {
        let (tensor, model) = (self.shape.tensor(), self.shape.model);
        let variants = &model.variants;
        match (kind, variants.latent, variants.mamba, variants.delta) {
            (UnitKind::Latent, Some(latent), _, _) => {
                let heads = self.shape.rank_heads();
                let (plain, value) = (u64::from(latent.plain_head_dim), u64::from(latent.value_head_dim));
                let key = plain + u64::from(latent.rotary_head_dim);
                let query_rank = u64::from(latent.query_rank.unwrap_or(0));
                // Each vector before and after its norm; the shared rotated key.
                let low_rank = 2 * (query_rank + u64::from(latent.kv_rank)) + u64::from(latent.rotary_head_dim);
                let products = heads * (key + plain + value);
                Mixing { inside: heads * (2 * key + value), output: heads * value, products, low_rank }
            }
            (UnitKind::Mamba, _, Some(mamba), _) => {
                let inner = u64::from(mamba.inner).div_ceil(tensor);
                let vectors = u64::from(mamba.step_rank) + 2 * u64::from(mamba.state);
                let normed = if mamba.normalised { vectors } else { 0 };
                // Input and gate, what the convolution gives, time steps, the scan's output before its gate.
                let inside = 5 * inner + vectors + normed;
                Mixing { inside, output: inner, products: 3 * inner + vectors, low_rank: 0 }
            }
            (UnitKind::GatedDelta, _, _, Some(delta)) => {
                let keys = u64::from(delta.key_heads).div_ceil(tensor) * u64::from(delta.key_head_dim);
                let heads = u64::from(delta.value_heads).div_ceil(tensor);
                let values = heads * u64::from(delta.value_head_dim);
                let mixed = 2 * keys + values;
                let repeated = heads * u64::from(delta.key_head_dim);
                // Before and after the convolution, gate, normalised queries and keys of each value head, the inverse of
                // each chunk of 64, decays and rates in FP32, output before its norm.
                let inside = 2 * mixed + values + 2 * repeated + 64 * heads + 4 * heads + values;
                Mixing { inside, output: values, products: mixed + values + 2 * heads, low_rank: 0 }
            }
            _ => {
                let (query, kv) = (self.shape.rank_query_width(), self.shape.rank_kv_width());
                // The gate, and the gated output beside the core's.
                let gate = if variants.gated_attention { query } else { 0 };
                let normed = if variants.query_key_norm == QueryKeyNorm::None { 0 } else { query + kv };
                let qkv = query + gate + 2 * kv;
                Mixing { inside: qkv + normed + gate, output: query, products: qkv, low_rank: 0 }
            }
        }
    }
    /// Widths of a feed-forward part: inputs and output of its activation.
    pub(super) const fn activation(mlp: MlpKind, ffn: u64) -> (u64, u64) {
        (mlp.inputs() * ffn, ffn)
    }
}

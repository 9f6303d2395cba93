//! Counts: which kernels a unit's pass runs, with their FLOPs and bytes. Shapes only, never time.
//!
//! A cost model prices [`Kernel`]s; a report counts their [`crate::Flops`]. The kernels are those that the executor runs and
//! that GPU frameworks run for the same operation. [`payload_bytes`] and [`message_bytes`] size what ranks exchange;
//! [`program_flops`] and [`model_flops_per_token`] are totals, each with its convention named.

use crate::program::{Layout, Program};
use crate::{Bytes, ContextMethod, Experts, Model, Workload};

mod kernel;
mod kernels;
mod kinds;
mod parameters;
mod sizes;
mod streaming;
#[cfg(test)]
mod tests;
mod totals;

pub use kernel::{Kernel, causal_scores, flops};
pub use kernels::unit_kernels;
pub use kinds::{UnitCounts, UnitKind, product_precision, unit_counts};
pub use parameters::{
    HeldParameters, chunk_expert_parameters, chunk_parameters, chunk_partial_gradient_parameters, held_parameters,
    kind_expert_parameters, kind_parameters, partial_gradient_parameters, replicated_parameters, unit_parameters,
};
pub use sizes::{
    accumulated_gradient_bytes, activation_bytes, gradient_bytes, gradient_norm_bytes, host_optimizer_bytes,
    message_bytes, optimizer_bytes, parameter_bytes, payload_bytes, unit_tensor_bytes,
};
pub use streaming::Streaming;
pub use totals::{CountedParameters, CountedScores, hardware_flops_per_token, model_flops_per_token, program_flops};

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
    /// The shape that this program's ops refer to; where positions differ in their tensor degree, see
    /// [`Self::shape_in`].
    #[must_use]
    pub const fn shape(&self) -> Shape<'_> {
        Shape { model: &self.model, workload: &self.workload, layout: &self.layout }
    }
    /// The shape that ops refer to on a position whose [layout](Layout::at) this is.
    #[must_use]
    pub const fn shape_in<'a>(&'a self, layout: &'a Layout) -> Shape<'a> {
        Shape { model: &self.model, workload: &self.workload, layout }
    }
}

impl Shape<'_> {
    /// Tokens of one microbatch on one rank: of ranks that share sequences, its part (rounded up).
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        let all = self.layout.microbatch_size as u64 * self.workload.sequence_length as u64;
        all.div_ceil(self.context())
    }
    /// Ranks that share each sequence.
    #[must_use]
    pub const fn context(&self) -> u64 {
        if self.layout.mesh.context == 0 { 1 } else { self.layout.mesh.context as u64 }
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
    /// Ranks over which the rows of the vocabulary are divided.
    #[must_use]
    pub const fn vocabulary_parts(&self) -> u64 {
        self.layout.vocabulary_parts() as u64
    }
    /// Rows of the embedding that one rank holds, padding included.
    #[must_use]
    pub const fn rank_vocabulary(&self) -> u64 {
        let parts = self.layout.vocabulary_parts();
        self.model.padded_vocabulary(self.workload.vocabulary_divisor, parts) / parts as u64
    }
    /// This rank's query heads (rounded up).
    #[must_use]
    pub const fn rank_heads(&self) -> u64 {
        (self.model.heads as u64).div_ceil(self.tensor())
    }
    /// This rank's key and value heads: of fewer heads than ranks, each rank holds a copy of one.
    #[must_use]
    pub const fn rank_kv_heads(&self) -> u64 {
        (self.model.kv_heads as u64).div_ceil(self.tensor())
    }
    /// Width of this rank's query heads.
    #[must_use]
    pub const fn rank_query_width(&self) -> u64 {
        self.rank_heads() * self.model.head_dim as u64
    }
    /// Width of this rank's key (or value) heads.
    #[must_use]
    pub const fn rank_kv_width(&self) -> u64 {
        self.rank_kv_heads() * self.model.head_dim as u64
    }
    /// This rank's part of the dense feed-forward width.
    #[must_use]
    pub const fn rank_ffn(&self) -> u64 {
        (self.model.ffn as u64).div_ceil(self.tensor())
    }
    /// Vocabulary over which one rank computes the loss: its part, or all of it where the recipe gathers the logits.
    #[must_use]
    pub const fn loss_vocabulary(&self) -> u64 {
        if self.workload.recipe.sharded_loss { self.rank_vocabulary() } else { self.rank_vocabulary() * self.tensor() }
    }
    /// Whether a plain core's softmax is one kernel: where the recipe has it and Megatron-LM's kernel takes the shape (heads
    /// of all sequences, and queries, in fours).
    #[must_use]
    pub const fn fused_softmax(&self) -> bool {
        let heads = self.layout.microbatch_size as u64 * self.rank_heads();
        self.workload.recipe.fused_softmax && heads.is_multiple_of(4) && self.workload.sequence_length.is_multiple_of(4)
    }
    /// Tokens of one document over all ranks that share it, and documents of one microbatch: whole sequences, unless
    /// attention stays inside packed documents.
    #[must_use]
    pub const fn documents(&self) -> (u64, u64) {
        let (sequences, length) = (self.layout.microbatch_size as u64, self.workload.sequence_length as u64);
        match self.workload.recipe.document_length {
            Some(document) if (document as u64) < length && document > 0 => {
                (document as u64, sequences * length.div_ceil(document as u64))
            }
            Some(_) | None => (length, sequences),
        }
    }
    /// Parts of a head's tokens that ranks exchange heads for: the context degree with [`ContextMethod::AllToAll`].
    #[must_use]
    pub const fn head_exchange(&self) -> u64 {
        match self.layout.mesh.context_method {
            ContextMethod::AllToAll => self.context(),
            ContextMethod::Ring | ContextMethod::AllGather => 1,
        }
    }
    /// The experts' sizes.
    ///
    /// # Panics
    /// If the model has none.
    #[must_use]
    pub fn experts(&self) -> &Experts {
        self.model.variants.experts.as_ref().expect("a model with expert layers has their sizes")
    }
    /// Ranks over which a layer's experts are divided.
    #[must_use]
    pub const fn expert(&self) -> u64 {
        if self.layout.mesh.expert == 0 { 1 } else { self.layout.mesh.expert as u64 }
    }
    /// Ranks that share each expert's matrices.
    #[must_use]
    pub const fn expert_tensor(&self) -> u64 {
        if self.layout.mesh.expert_tensor == 0 { 1 } else { self.layout.mesh.expert_tensor as u64 }
    }
    /// Experts on one rank (rounded up).
    #[must_use]
    pub fn local_experts(&self) -> u64 {
        u64::from(self.experts().count).div_ceil(self.expert())
    }
    /// Tokens that one rank sends to experts: the tensor group's are divided over it, whether or not its residual stream is.
    #[must_use]
    pub const fn routed_tokens(&self) -> u64 {
        self.tokens().div_ceil(self.tensor())
    }
    /// Copies of tokens that one rank sends to experts: each token to its active ones.
    #[must_use]
    pub fn routed_copies(&self) -> u64 {
        self.routed_tokens() * u64::from(self.experts().active)
    }
    /// Tokens of each expert on the busiest rank: what `expert x expert_tensor` ranks send, evenly over all experts, times
    /// the recipe's imbalance (rounded up).
    #[must_use]
    pub fn tokens_per_expert(&self) -> u64 {
        let copies = self.routed_copies() * self.expert_tensor() * self.expert();
        let busiest =
            copies as f64 * self.workload.recipe.expert_imbalance.max(1.0) / f64::from(self.experts().count.max(1));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; a cast saturates")]
        let whole = busiest.ceil() as u64;
        whole
    }
    /// Copies of tokens that reach the experts of the busiest rank, its expert-tensor group's together.
    #[must_use]
    pub fn received_copies(&self) -> u64 {
        self.tokens_per_expert().saturating_mul(self.local_experts())
    }
    /// This rank's part of the width of one routed expert.
    #[must_use]
    pub fn rank_expert_ffn(&self) -> u64 {
        u64::from(self.experts().ffn).div_ceil(self.expert_tensor())
    }
    /// This rank's part of the width of the shared experts, which are divided as dense parts are.
    #[must_use]
    pub fn rank_shared_ffn(&self) -> u64 {
        u64::from(self.experts().shared_ffn).div_ceil(self.tensor())
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

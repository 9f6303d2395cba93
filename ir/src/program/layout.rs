//! How a program divides its model.

use crate::{CollectiveAlgorithm, Mesh, Shares, Sharing, SimDuration, Workload, ZeroStage};

/// Sizes and switches of the division that ops refer to.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Replicas.
    pub data: u32,
    /// Tensor degree; where positions differ, the most.
    pub tensor: u32,
    /// Of each position, where they differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<u32>,
    /// Pipeline positions.
    pub pipeline: u32,
    /// Whether activations between tensor-parallel parts are divided along the sequence.
    pub sequence_parallel: bool,
    /// Sequences of one microbatch on one replica.
    pub microbatch_size: u32,
    /// Microbatches of one iteration on each replica; where replicas take unequal shares, the most that one takes.
    pub microbatches: u32,
    /// Microbatches of each replica, where they are not equally many.
    #[serde(default, skip_serializing_if = "Shares::are_equal")]
    pub shares: Shares,
    /// Sharding over replicas.
    pub zero: ZeroStage,
    /// Algorithm of the gradient collectives.
    pub collective: CollectiveAlgorithm,
    /// Degrees beyond data, tensor and pipeline.
    #[serde(default, skip_serializing_if = "Mesh::is_default")]
    pub mesh: Mesh,
    /// Division and overlap beyond `zero`.
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
}

impl Layout {
    /// Ranks of one pipeline position that hold the same parameters before any sharding: data x context.
    #[must_use]
    pub const fn replicas(&self) -> u32 {
        self.data.saturating_mul(self.mesh.context)
    }
    /// The shortest that an iteration can be for its input: tokens of one replica over the rate at which they are delivered.
    /// `None` where as many come as are asked for; never zero.
    ///
    /// Over many iterations what comes early is used later: only the rate counts.
    #[must_use]
    pub fn input_time(&self, workload: &Workload) -> Option<SimDuration> {
        let rate = workload.recipe.input_tokens_per_second?;
        let sequences = f64::from(self.microbatch_size) * f64::from(self.microbatches);
        let seconds = sequences * f64::from(workload.sequence_length) / rate;
        let longest = SimDuration::from_nanoseconds(u64::MAX >> 2);
        let shortest = SimDuration::from_nanoseconds(1);
        Some(SimDuration::from_seconds(seconds).map_or(longest, |time| time.clamp(shortest, longest)))
    }
    /// Ranks of one pipeline position; where they differ in their tensor degree, ask what [one has](Self::at()).
    #[must_use]
    pub const fn per_position(&self) -> u32 {
        self.replicas().saturating_mul(self.tensor)
    }
    /// Ranks over which the rows of the vocabulary are divided: the tensor group, and all positions where the plan says so.
    #[must_use]
    pub const fn vocabulary_parts(&self) -> u32 {
        if self.sharing.vocabulary.is_ends() { self.tensor } else { self.tensor.saturating_mul(self.pipeline) }
    }
    /// Replicas over which training state is divided; 1 under ZeRO-0.
    #[must_use]
    pub fn shard(&self) -> u32 {
        match self.zero {
            ZeroStage::Zero0 => 1,
            ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => {
                self.sharing.shard.unwrap_or_else(|| self.replicas()).max(1)
            }
        }
    }
    /// Ranks that hold the same experts.
    #[must_use]
    pub const fn expert_replicas(&self) -> u32 {
        let sharing = self.mesh.expert.saturating_mul(self.mesh.expert_tensor);
        match self.per_position().checked_div(sharing) {
            Some(copies) if copies > 0 => copies,
            Some(_) | None => 1,
        }
    }
    /// Whether the ranks of one replica (context x tensor) of a pipeline position do not hold every expert equally often: the
    /// experts are divided over ranks of several replicas.
    #[must_use]
    pub const fn experts_span_replicas(&self) -> bool {
        let sharing = self.mesh.expert.saturating_mul(self.mesh.expert_tensor);
        sharing > 0 && !self.mesh.context.saturating_mul(self.tensor).is_multiple_of(sharing)
    }
    /// Ranks over which the optimizer state of experts is divided; 1 under ZeRO-0.
    #[must_use]
    pub const fn expert_shard(&self) -> u32 {
        match self.zero {
            ZeroStage::Zero0 => 1,
            ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => self.expert_replicas(),
        }
    }
}

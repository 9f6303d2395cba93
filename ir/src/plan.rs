//! What a policy decides: how a model is divided over devices and in what order it runs.

use serde::{Deserialize, Serialize};

use crate::grid::Grid;
use crate::{DeviceId, Rank};

/// A parallel dimension.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Replicas over different data.
    Data,
    /// Matrices split over ranks.
    Tensor,
    /// Layers split over stages.
    Pipeline,
    /// First and last stage, which share a tied embedding.
    Embedding,
    /// Every rank of one replica (tensor x pipeline).
    Model,
}

impl Axis {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Data, Self::Tensor, Self::Pipeline, Self::Embedding, Self::Model];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Tensor => "tensor",
            Self::Pipeline => "pipeline",
            Self::Embedding => "embedding",
            Self::Model => "model",
        }
    }
}

/// The order of passes over a pipeline.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All forward passes, then all backward passes (Huang et al. 2019).
    GPipe,
    /// One forward, one backward (Narayanan et al. 2019); with several chunks per position, interleaved (2021).
    OneForwardOneBackward,
    /// Zero bubble H1: backward split into input and weight gradients, memory of 1F1B (Qi et al. 2024).
    ZeroBubbleH1,
    /// An order written out.
    Explicit(Grid),
}

/// What of the activations is thrown away after the forward pass and computed again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Everything is kept.
    None,
    /// The attention core is computed again (Korthikanti et al. 2022).
    Selective,
    /// Only each layer's input is kept.
    Full,
}

/// What of the training state is divided over data-parallel ranks (Rajbhandari et al. 2020).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroStage {
    /// Nothing: gradients are all-reduced, every replica steps all parameters.
    Zero0,
    /// Optimizer state: gradients are reduce-scattered, parameters all-gathered.
    Zero1,
}

/// How the members of a group carry out a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveAlgorithm {
    /// The cheapest that the cost model knows for the group and size.
    Automatic,
    /// A ring over all members.
    Ring,
    /// A double binary tree.
    Tree,
    /// Inside each node first, then between nodes.
    Hierarchical,
}

/// What one pipeline position holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlan {
    /// Layers of each of its chunks, first chunk first; all stages have equally many chunks.
    pub layers: Vec<u32>,
    /// Its recomputation.
    pub recompute: Recompute,
}

/// A plan: a small value that prints, parses and compares.
///
/// Rank numbering is that of Megatron-LM: tensor fastest, then data, then pipeline:
/// `rank = (pipeline_position * data + data_index) * tensor + tensor_index`.
/// Chunk `c` of the whole model sits on position `c % pipeline`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Replicas.
    pub data: u32,
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Whether activations between tensor-parallel parts are divided along the sequence (Korthikanti et al. 2022).
    pub sequence_parallel: bool,
    /// One entry per pipeline position.
    pub stages: Vec<StagePlan>,
    /// Sequences of one microbatch on one replica.
    pub microbatch_size: u32,
    /// Microbatches of one iteration on each replica.
    pub microbatches: u32,
    /// Order of passes.
    pub schedule: Schedule,
    /// Sharding of training state over replicas.
    pub zero: ZeroStage,
    /// Whether each chunk's gradient reduction starts as soon as its last backward pass ends, beside other passes.
    pub overlap_gradients: bool,
    /// Algorithm of the gradient collectives.
    pub collective: CollectiveAlgorithm,
    /// The device of each rank; empty means rank `r` on device `r`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<DeviceId>,
}

impl Plan {
    /// Pipeline degree.
    #[must_use]
    pub fn pipeline(&self) -> u32 {
        u32::try_from(self.stages.len()).expect("more stages than u32")
    }
    /// Chunks per pipeline position (1 unless interleaved).
    #[must_use]
    pub fn chunks_per_stage(&self) -> u32 {
        self.stages.first().map_or(0, |s| u32::try_from(s.layers.len()).expect("more chunks than u32"))
    }
    /// Ranks in all.
    #[must_use]
    pub fn world(&self) -> u64 {
        u64::from(self.data) * u64::from(self.tensor) * u64::from(self.pipeline())
    }
    /// The rank at a pipeline position, replica and tensor index.
    #[must_use]
    pub fn rank(&self, position: u32, replica: u32, tensor_index: u32) -> Rank {
        Rank::new((position * self.data + replica) * self.tensor + tensor_index)
    }
    /// The device of a rank.
    #[must_use]
    pub fn device(&self, rank: Rank) -> DeviceId {
        if self.placement.is_empty() { DeviceId::new(rank.raw()) } else { self.placement[rank.index()] }
    }
}

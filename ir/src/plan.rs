//! What a policy decides: how a model is divided over devices and in what order it runs.

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::{DeviceId, Schedule, Shares};

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
    /// Every rank of one replica (tensor x context x pipeline).
    Model,
    /// Sequences split over ranks.
    Context,
    /// Ranks that hold the same parameters and see different tokens (data x context); with hybrid sharding, those that
    /// hold the same shard.
    Replica,
    /// Ranks over which a replica's parameters are divided (data x context, or the part inside a domain).
    Shard,
    /// Experts divided over ranks.
    Expert,
    /// An expert's matrices split over ranks.
    ExpertTensor,
    /// Ranks that hold the same experts.
    ExpertReplica,
}

impl Axis {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Data,
        Self::Tensor,
        Self::Pipeline,
        Self::Embedding,
        Self::Model,
        Self::Context,
        Self::Replica,
        Self::Shard,
        Self::Expert,
        Self::ExpertTensor,
        Self::ExpertReplica,
    ];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Tensor => "tensor",
            Self::Pipeline => "pipeline",
            Self::Embedding => "embedding",
            Self::Model => "model",
            Self::Context => "context",
            Self::Replica => "replica",
            Self::Shard => "shard",
            Self::Expert => "expert",
            Self::ExpertTensor => "expert-tensor",
            Self::ExpertReplica => "expert-replica",
        }
    }
}

/// What of the activations is thrown away after the forward pass and computed again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Everything is kept.
    None,
    /// The attention core is computed again (Korthikanti et al. 2022).
    Selective,
    /// What is cheap (norms, rotations, activations) and every second matrix product: only the other products' outputs are
    /// kept, and what the core of attention needs (torchtitan's selection by operation).
    Operations,
    /// Only each layer's input is kept.
    Full,
}

named!(Recompute { None = "none", Selective = "selective", Operations = "operations", Full = "full" });

/// What of the training state is divided over data-parallel ranks (Rajbhandari et al. 2020).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroStage {
    /// Nothing: gradients are all-reduced, every replica steps all parameters.
    Zero0,
    /// Optimizer state: gradients are reduce-scattered, parameters all-gathered.
    Zero1,
    /// Gradients too: each microbatch's are reduce-scattered as they arise, and only a shard is held.
    Zero2,
    /// Parameters too: each layer's are gathered before each pass (FSDP).
    Zero3,
}

impl ZeroStage {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Zero0, Self::Zero1, Self::Zero2, Self::Zero3];
    /// The one of a number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.number() == number)
    }
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Zero0 => 0,
            Self::Zero1 => 1,
            Self::Zero2 => 2,
            Self::Zero3 => 3,
        }
    }
}

/// How ranks that share a sequence exchange keys and values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextMethod {
    /// Keys and values go round while each rank attends with what it has (Liu et al. 2023), tokens dealt in a zig-zag so
    /// that causal work is equal.
    #[default]
    Ring,
    /// Heads are exchanged for tokens before and after the core (Jacobs et al. 2023).
    AllToAll,
    /// Keys and values of all ranks are gathered before the core (Llama 3).
    AllGather,
}

named!(ContextMethod { Ring = "ring", AllToAll = "all-to-all", AllGather = "all-gather" });

/// Degrees beyond data, tensor and pipeline. All are 1 by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mesh {
    /// Ranks that share each sequence.
    pub context: u32,
    /// How they do.
    pub context_method: ContextMethod,
    /// Ranks over which a layer's experts are divided.
    pub expert: u32,
    /// Ranks that share each expert's matrices.
    pub expert_tensor: u32,
}

impl Default for Mesh {
    fn default() -> Self {
        Self { context: 1, context_method: ContextMethod::Ring, expert: 1, expert_tensor: 1 }
    }
}

impl Mesh {
    /// Whether all degrees are 1.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the vocabulary's layers (embedding, final norm, head and loss) stand in a pipeline (Yeung et al. 2024).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VocabularyDivision {
    /// The embedding on the first chunk, the rest on the last.
    #[default]
    Ends,
    /// Rows divided over all positions. Of each microbatch every position computes its logits and their statistics, and
    /// after all have (a first barrier) its gradients, which are summed (a second) before the last chunk's backward pass.
    TwoBarriers,
    /// The same with the input's gradient computed before the statistics of the others are known, and scaled as it is
    /// summed: one barrier. Gradients of weights follow at leisure.
    OneBarrier,
    /// Rows divided over all positions, which compute them together and wait for each other's results, as a tensor
    /// group would (Lin et al. 2024, nnScaler's interlaced pipeline).
    Interlaced,
}

named!(VocabularyDivision {
    Ends = "ends",
    TwoBarriers = "two-barriers",
    OneBarrier = "one-barrier",
    Interlaced = "interlaced"
});

impl VocabularyDivision {
    /// Whether nothing is divided.
    #[must_use]
    pub const fn is_ends(&self) -> bool {
        matches!(self, Self::Ends)
    }
}

/// How training state is divided and what runs beside what, beyond [`ZeroStage`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sharing {
    /// Replicas (data x context ranks) over which state is divided; more hold copies (hybrid sharding). `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// ZeRO-3: whether the next layer's parameters are gathered beside a layer's pass.
    pub prefetch: bool,
    /// ZeRO-1: whether a chunk's parameters are gathered beside the next iteration's forward passes of chunks before it.
    pub overlap_parameters: bool,
    /// Whether tensor-parallel collectives run in pieces beside the matrix products that make or use them.
    pub overlap_tensor: bool,
    /// Whether dispatch and combination of experts run beside the other work of a layer.
    pub overlap_experts: bool,
    /// Whether what layers keep waits in host memory between forward and backward pass.
    pub offload_activations: bool,
    /// Whether optimizer state lives in host memory and is stepped there.
    pub offload_optimizer: bool,
    /// Whether this rank's part of parameters lives in host memory, from where it comes before each gather (ZeRO-Infinity,
    /// Rajbhandari et al. 2021).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offload_parameters: bool,
    /// Where the vocabulary's layers stand.
    #[serde(skip_serializing_if = "VocabularyDivision::is_ends")]
    pub vocabulary: VocabularyDivision,
    /// ZeRO-0 and 1: parameters of a rank whose gradients are reduced together beside the last backward pass, at least.
    /// `None`: [as Megatron-LM has them](Self::bucket()).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
}

impl Sharing {
    /// Parameters of a bucket of gradients that `replicas` reduce: by default 40 million, or a million for each of more than
    /// 40 replicas, so that what each of them adds is worth sending (`bucket_size` of Megatron-Core's
    /// `DistributedDataParallelConfig`).
    #[must_use]
    pub fn bucket(&self, replicas: u32) -> u64 {
        self.bucket.unwrap_or_else(|| u64::from(replicas.max(40)) * 1_000_000)
    }
    /// Whether everything is at its default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
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

named!(CollectiveAlgorithm { Automatic = "automatic", Ring = "ring", Tree = "tree", Hierarchical = "hierarchical" });

/// What one pipeline position holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagePlan {
    /// Layers of each of its chunks, first chunk first; all stages have equally many chunks.
    pub layers: Vec<u32>,
    /// Its recomputation.
    pub recompute: Recompute,
    /// Layers of each chunk, the first ones, that it concerns; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute_layers: Option<u32>,
    /// Ranks that share each matrix here, where they are not as many as [`Plan::tensor`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<u32>,
}

/// A plan: a small value that prints, parses and compares.
///
/// Rank numbering is that of Megatron-LM: tensor fastest, then context, then data, then pipeline:
/// `rank = ((pipeline_position * data + data_index) * context + context_index) * tensor + tensor_index`.
/// Where stages differ in their tensor degree, ranks are numbered replica by replica ([`Plan::rank`]).
/// In the experts' layers the ranks of one pipeline position are numbered anew: expert-tensor fastest, then expert, then
/// copies of the experts.
/// Chunk `c` of the whole model sits on position `c % pipeline`, or where its schedule places it ([`Schedule`]).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Replicas.
    pub data: u32,
    /// Ranks that share each matrix; where stages differ ([`StagePlan::tensor`]), the most.
    pub tensor: u32,
    /// Whether activations between tensor-parallel parts are divided along the sequence (Korthikanti et al. 2022).
    pub sequence_parallel: bool,
    /// One entry per pipeline position.
    pub stages: Vec<StagePlan>,
    /// Sequences of one microbatch on one replica.
    pub microbatch_size: u32,
    /// Microbatches of one iteration on each replica; where replicas take unequal shares, the most that one takes.
    pub microbatches: u32,
    /// Microbatches of each replica, where they are not equally many.
    #[serde(default, skip_serializing_if = "Shares::are_equal")]
    pub shares: Shares,
    /// Order of passes.
    pub schedule: Schedule,
    /// Sharding of training state over replicas.
    pub zero: ZeroStage,
    /// Whether each chunk's gradient reduction starts as soon as its last backward pass ends, beside other passes; of a
    /// chunk whose last pass is the last of its position, and that nobody waits for, [bucket](Sharing::bucket()) by bucket
    /// beside that pass, as Megatron-LM does. Where replicas take unequal shares of the batch, or the vocabulary is divided
    /// over positions, the reduction of such a chunk begins when the pass has ended.
    pub overlap_gradients: bool,
    /// Algorithm of the gradient collectives.
    pub collective: CollectiveAlgorithm,
    /// Degrees beyond data, tensor and pipeline.
    #[serde(default, skip_serializing_if = "Mesh::is_default")]
    pub mesh: Mesh,
    /// Division and overlap beyond `zero` and `overlap_gradients`.
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
    /// The device of each rank; empty means in order ([`Plan::device`]).
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
    /// Ranks of one pipeline position that hold the same parameters before any sharding: data x context.
    #[must_use]
    pub const fn replicas(&self) -> u32 {
        self.data.saturating_mul(self.mesh.context)
    }
    /// Microbatches of a replica in an iteration.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    pub fn share(&self, replica: u32) -> u32 {
        self.shares.share(replica, self.microbatches)
    }
    /// The same plan with so many microbatches on each replica.
    ///
    /// # Panics
    /// If there is no replica.
    #[must_use]
    pub fn with_shares(self, counts: Vec<u32>) -> Self {
        let (microbatches, shares) = Shares::of(counts);
        Self { microbatches, shares, ..self }
    }
    /// The same plan with so many times the microbatches on each replica.
    #[must_use]
    pub fn times_microbatches(self, factor: u32) -> Self {
        let counts = match self.shares.counts() {
            [] => vec![self.microbatches],
            counts => counts.to_vec(),
        };
        self.with_shares(counts.into_iter().map(|count| count.saturating_mul(factor)).collect())
    }
    /// The same plan with half the microbatches on each replica; `None` if one has an odd number.
    #[must_use]
    pub fn half_microbatches(self) -> Option<Self> {
        let counts = match self.shares.counts() {
            [] => vec![self.microbatches],
            counts => counts.to_vec(),
        };
        let even = counts.iter().all(|count| count.is_multiple_of(2));
        even.then(|| self.with_shares(counts.into_iter().map(|count| count / 2).collect()))
    }
    /// The same plan with twice the replicas, each beside its like.
    #[must_use]
    pub fn twice_replicas(self) -> Self {
        let data = self.data * 2;
        let counts = self.shares.counts().iter().flat_map(|count| [*count; 2]).collect::<Vec<_>>();
        let plan = Self { data, ..self };
        if counts.is_empty() { plan } else { plan.with_shares(counts) }
    }
}

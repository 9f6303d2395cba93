//! A measured run as values: what the row says, and nothing that it leaves open.

/// One measured run.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredRun {
    /// The row's name, unique in its table.
    pub row_id: String,
    /// Its line in the file, counted from 1; the heading is line 1.
    pub line: u64,
    /// Where the figures were published.
    pub source: RunSource,
    /// What it ran on.
    pub hardware: Hardware,
    /// What was trained.
    pub model: ModelShape,
    /// Which kind of training.
    pub task: Task,
    /// Number format of matrix products.
    pub format: NumberFormat,
    /// Tokens of one sequence.
    pub sequence_length: u32,
    /// How the batch was cut.
    pub batch: Batch,
    /// How the job was divided.
    pub layout: Layout,
    /// Which software, with what switched on.
    pub software: Software,
    /// What was measured.
    pub measured: MeasuredFigures,
    /// Numbers that arithmetic gave, and words that were read in one of two ways.
    pub resolved: Vec<String>,
    /// The table's own warnings about the row.
    pub quality: Vec<String>,
}

/// Where figures were published.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RunSource {
    /// A short name of the source, shared by all its rows.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The place in it: a file and line, a table.
    pub reference: String,
    /// The commit of its repository.
    pub commit: String,
}

/// Devices and the links between them, as the row names them.
#[derive(Clone, PartialEq, Debug)]
pub struct Hardware {
    /// The device in the table's words.
    pub device: String,
    /// Its memory in gigabytes, as its maker counts them.
    pub device_memory_gb: Option<f64>,
    /// Dense peak in TFLOP/s in the run's number format, if the table gives one.
    pub peak_tflops: Option<f64>,
    /// Devices in a node, used or not.
    pub devices_per_node: u32,
    /// Nodes used.
    pub nodes: u32,
    /// Devices used. Less than `nodes * devices_per_node` only on a part of a single node.
    pub devices: u32,
    /// The link inside a node in the table's words.
    pub intra_link: Option<String>,
    /// Both directions of one device's link inside a node, together, in GB/s.
    pub intra_gbyte_per_s: Option<f64>,
    /// The network in the table's words.
    pub inter_link: Option<String>,
    /// One direction of one device's share of its node's NICs, in Gb/s.
    pub inter_gbit_per_s: Option<f64>,
}

/// Sizes of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelShape {
    /// Its name in the table.
    pub name: String,
    /// Parameters in 10^9, as its authors count them.
    pub parameters_billion: Option<f64>,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner width of a dense feed-forward part; `None` if every layer has experts and it is not stated.
    pub feed_forward: Option<u32>,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub key_value_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Size of the vocabulary.
    pub vocabulary: Option<u32>,
    /// Feed-forward activation.
    pub activation: Activation,
    /// Form of attention.
    pub attention: AttentionForm,
    /// Experts.
    pub experts: Option<ExpertShape>,
}

/// Activation of the feed-forward part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// Two matrices, GELU between them.
    Gelu,
    /// Two matrices, ReLU between them.
    Relu,
    /// Two matrices, the square of ReLU between them.
    SquaredRelu,
    /// Three matrices, SiLU on the gate.
    SwiGlu,
    /// Three matrices, GELU on the gate.
    GeGlu,
}

impl Activation {
    /// Matrices of the feed-forward part.
    #[must_use]
    pub const fn matrices(self) -> u32 {
        match self {
            Self::Gelu | Self::Relu | Self::SquaredRelu => 2,
            Self::SwiGlu | Self::GeGlu => 3,
        }
    }
}

/// What attention is beyond grouped queries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttentionForm {
    /// Nothing.
    Plain,
    /// Linear biases instead of positions (ALiBi).
    LinearBias,
    /// Queries and keys through a narrow latent (DeepSeek-V2).
    Latent {
        /// Width of the queries' latent; `None` if they have none.
        query_rank: Option<u32>,
        /// Width of the keys' and values' latent.
        key_value_rank: u32,
        /// Width of a head without positions.
        plain_head_dim: u32,
        /// Width of a head's rotary part.
        rotary_head_dim: u32,
        /// Width of a head's values.
        value_head_dim: u32,
    },
    /// Every second layer sees a window only.
    AlternatingWindow {
        /// Tokens of the window.
        window: u32,
    },
    /// Gated delta networks, and attention in one of every `delta_layers + 1` layers.
    GatedDelta {
        /// Gated delta layers before each layer of attention.
        delta_layers: u32,
    },
}

/// Experts of a model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExpertShape {
    /// Routed experts of a layer.
    pub count: u32,
    /// Of those, how many see a token.
    pub active: u32,
    /// Inner width of one.
    pub feed_forward: u32,
    /// Experts that see every token.
    pub shared: u32,
    /// Layers that have experts.
    pub layers: u32,
}

/// Which kind of training.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Task {
    /// Training from the start, on whole sequences.
    Pretraining,
    /// Training of all parameters on examples: the same work a token.
    FullFineTuning,
}

/// Number format of matrix products.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NumberFormat {
    /// FP32 without tensor cores.
    Fp32,
    /// TF32.
    Tf32,
    /// FP16 with FP32 master weights.
    Fp16,
    /// BF16 with FP32 master weights.
    Bf16,
    /// FP8 matrix products, the rest in BF16.
    Fp8(Fp8Scaling),
}

/// How FP8 operands are scaled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fp8Scaling {
    /// Not stated.
    NotStated,
    /// One factor a tensor, from earlier steps.
    Delayed,
    /// One factor a tensor, from the tensor itself.
    Tensor,
    /// One factor a row.
    Row,
    /// One factor a block of tens of elements on a side.
    Block,
    /// One factor for 32 elements (MXFP8).
    Microscaling,
}

/// How the batch was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Sequences of one step of the whole job.
    pub global: u64,
    /// Sequences of one microbatch.
    pub microbatch: Option<u32>,
    /// Microbatches of one replica in one step.
    pub microbatches: Option<u32>,
}

/// How a job was divided.
#[derive(Clone, PartialEq, Debug)]
pub struct Layout {
    /// Tensor degree.
    pub tensor: u32,
    /// Pipeline degree.
    pub pipeline: u32,
    /// Chunks of a position; `None` if not stated.
    pub chunks: Option<u32>,
    /// Context degree.
    pub context: u32,
    /// Expert degree.
    pub expert: u32,
    /// Tensor degree of experts, if stated.
    pub expert_tensor: Option<u32>,
    /// Data-parallel replicas.
    pub data: u32,
    /// Devices over which parameters are sharded, where that is not all replicas.
    pub shard_group: Option<u32>,
    /// Sharding of optimizer state (1), gradients (2) and parameters (3); 0 is none.
    pub zero: Option<u8>,
    /// Whether norms and residuals are divided over the tensor group.
    pub sequence_parallel: Option<bool>,
    /// What was recomputed.
    pub recomputation: Option<Recomputation>,
    /// What was moved to the host.
    pub offload: Option<Offload>,
    /// The pipeline schedule.
    pub schedule: Option<ScheduleName>,
    /// Where the vocabulary's layers stood.
    pub vocabulary: Option<VocabularyPlacement>,
    /// How layers were cut into stages.
    pub split: Option<SplitRule>,
}

/// What was recomputed in the backward pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recomputation {
    /// Nothing.
    None,
    /// The core of attention.
    AttentionCore,
    /// Cheap operations between matrix products, chosen one by one.
    PerOperation,
    /// Named modules.
    Modules(Vec<String>),
    /// Whole layers, of each position the first `layers` if that is given, else all.
    Full {
        /// Layers of a position that are recomputed.
        layers: Option<u32>,
    },
}

/// What was moved to the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offload {
    /// Nothing.
    None,
    /// Activations of this many layers, or of all.
    Activations {
        /// Layers of a position.
        layers: Option<u32>,
    },
    /// The inputs of recomputed layers.
    Checkpoints,
    /// Optimizer state.
    Optimizer,
    /// Optimizer state and parameters.
    OptimizerAndParameters,
}

/// A pipeline schedule by its published name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScheduleName {
    /// All forwards, then all backwards.
    GPipe,
    /// 1F1B, interleaved where a position has several chunks.
    OneForwardOneBackward,
    /// ZB-1p (the memory of 1F1B).
    ZeroBubble1p,
    /// ZB-2p (twice the activations).
    ZeroBubble2p,
    /// ZB-H1.
    ZeroBubbleH1,
    /// ZB-H2.
    ZeroBubbleH2,
    /// ZB-V.
    ZeroBubbleV,
    /// V-Half.
    VHalf,
    /// V-Min.
    VMin,
    /// DualPipe.
    DualPipe,
    /// DualPipe-V.
    DualPipeV,
}

/// Where embedding and head stood in a pipeline (Yeung et al. 2024).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VocabularyPlacement {
    /// Embedding on the first stage, head on the last, layers divided equally.
    Ends,
    /// The same, layers moved so that the longest stage is shortest.
    Redistributed,
    /// Vocabulary divided over all stages, two barriers a microbatch (their algorithm 1).
    ShardedTwoBarriers,
    /// Vocabulary divided over all stages, one barrier a microbatch (their algorithm 2).
    ShardedOneBarrier,
    /// Vocabulary divided over all stages, computed by all at once between the others.
    Interlaced,
}

/// How layers were cut into stages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SplitRule {
    /// First element of each stage and the end of the last, of a list of `elements` in which layers stand between
    /// elements of the embedding and of the head.
    Bounds(Vec<u32>),
    /// The first and the last stage have one layer less.
    EndsOneLess,
    /// Embedding and head each count as a layer.
    EndsCountAsLayers,
    /// In words that are not understood.
    Words(String),
}

/// Which software ran it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Software {
    /// The framework in the table's words; empty if not stated.
    pub framework: String,
    /// Its version in the table's words.
    pub version: Option<String>,
    /// Attention kernel.
    pub attention: Option<AttentionKernel>,
    /// Whether norms were fused kernels.
    pub fused_norms: Option<bool>,
    /// Switches of the run.
    pub flags: Flags,
}

/// Attention kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttentionKernel {
    /// FlashAttention of a version, or a kernel of its kind.
    Flash {
        /// Major version.
        version: u8,
    },
    /// Two batched products, scale, mask and softmax fused in between.
    FusedSoftmax,
    /// Operations one by one.
    Plain,
}

/// Switches that the row names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Which part of a step ran as recorded graphs.
    pub graphs: Option<Graphs>,
    /// Compiled by `torch.compile`.
    pub compiled: Option<bool>,
    /// Tensor-parallel communication overlapped with products.
    pub tensor_overlap: Option<bool>,
    /// Any communication overlapped with computation.
    pub overlap: Option<bool>,
    /// Loss and its softmax in one kernel.
    pub fused_loss: Option<bool>,
    /// Several documents packed into one sequence.
    pub packed: Option<bool>,
    /// Full sharding by Megatron's FSDP.
    pub megatron_fsdp: Option<bool>,
    /// Routing that leaves no token out.
    pub dropless: Option<bool>,
    /// Routing forced to be even.
    pub balanced: Option<bool>,
    /// How tokens reach experts.
    pub dispatcher: Option<Dispatcher>,
    /// Exchange of tokens overlapped with computation.
    pub expert_overlap: Option<bool>,
    /// With a layer of multi-token prediction.
    pub multi_token_prediction: Option<bool>,
    /// What else is said.
    pub other: Vec<String>,
}

/// Which part of a step is a recorded graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Graphs {
    /// None.
    None,
    /// Some modules.
    Modules,
    /// All of a step.
    FullIteration,
}

/// How tokens reach experts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dispatcher {
    /// All-to-all.
    AllToAll,
    /// DeepEP: a token travels once to a node.
    DeepEp,
    /// Hybrid-EP: the same over NVLink domains.
    HybridEp,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeasuredFigures {
    /// Time of one step.
    pub step: Option<MeasuredStep>,
    /// Peak memory of one device.
    pub memory: Option<MeasuredMemory>,
    /// Whether it ran out of memory instead.
    pub out_of_memory: bool,
    /// Idle share of the pipeline, as published.
    pub bubble_rate: Option<f64>,
    /// Durations of one microbatch on one stage, as published.
    pub profile: Option<StageProfile>,
    /// What another tool predicted for this run.
    pub peer: Option<PeerFigures>,
}

/// Time of one step and where it comes from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MeasuredStep {
    /// Seconds.
    pub seconds: f64,
    /// Which figure it is.
    pub basis: StepBasis,
}

/// Which figure gave a step's time, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepBasis {
    /// Printed as such.
    Printed,
    /// From tokens per second.
    Tokens,
    /// From sequences per second.
    Samples,
    /// Computed by the table from a printed rate of floating-point operations; inherits its formula.
    FlopRate,
}

impl StepBasis {
    /// Its column.
    #[must_use]
    pub const fn column(self) -> &'static str {
        match self {
            Self::Printed => "iteration_time_s",
            Self::Tokens => "tokens_per_s_per_gpu",
            Self::Samples => "samples_per_s",
            Self::FlopRate => "derived_iteration_time_s",
        }
    }
}

/// Peak memory of the fullest device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MeasuredMemory {
    /// As printed.
    pub value: f64,
    /// Unit of the printed value, if stated.
    pub unit: Option<MemoryUnit>,
    /// Which memory.
    pub kind: Option<MemoryKind>,
}

/// A unit of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryUnit {
    /// 10^9 bytes.
    Gigabyte,
    /// 2^30 bytes.
    Gibibyte,
}

impl MemoryUnit {
    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Gigabyte => 1e9,
            Self::Gibibyte => 1_073_741_824.0,
        }
    }
}

/// Three different figures that are all called peak memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// What tensors held (`max_memory_allocated`).
    Allocated,
    /// What the allocator had taken (`max_memory_reserved`).
    Reserved,
    /// What the driver counts: allocator, context and communication buffers (`nvidia-smi`).
    Driver,
}

/// Durations of one microbatch on one stage, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StageProfile {
    /// Forward.
    pub forward_ms: f64,
    /// Gradient of inputs.
    pub backward_input_ms: f64,
    /// Gradient of weights.
    pub backward_weight_ms: f64,
    /// Message to a neighbour.
    pub message_ms: f64,
}

/// Another tool's prediction.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerFigures {
    /// The tool.
    pub tool: String,
    /// Its step time in seconds, if it gives one.
    pub step_s: Option<f64>,
    /// Its cost of the plan in units of its own, which ranks only.
    pub cost: Option<f64>,
}

impl MeasuredRun {
    /// Tokens of one step of the whole job.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        self.batch.global as f64 * f64::from(self.sequence_length)
    }
}

//! What a backend carries out: instruction lists of roles, with the groups and messages that join them.
//!
//! A program is *folded*: a [`Role`] is an instruction list with the set of ranks that carry it out, so that a
//! 16,384-rank program is as large as its distinct roles. [`unfold`] gives the flat program.
//!
//! Durations are never stored here: the same program runs on a slower device.
//!
//! # Meaning
//!
//! * Each rank has one instruction queue per [`Stream`]; a stream carries out its instructions in list order.
//! * An instruction begins when its stream is free and all its waits (ids in the same role) have ended.
//! * A collective begins when all members of the group instance have reached it, and ends for all at once.
//! * A send and its receive begin when both have been reached, and end together.
//!   They match by (source, destination, edge, microbatch, direction), never by peer alone.
//! * `Allocate` happens when the instruction starts, `Free` when it ends.
use crate::named::named;

use crate::{
    BufferId, Bytes, ChunkId, DeviceId, GroupId, InstructionId, MicrobatchId, Model, Rank, Recompute, RoleId, StageId,
    Workload,
};

mod buffer;
mod digest;
mod follows;
mod group;
mod layout;
mod rank_set;
mod ranks;
pub mod text;
pub mod unfold;

pub use buffer::{Access, Buffer, BufferKind};
pub use digest::Digest;
pub use group::Group;
pub use layout::Layout;
pub use rank_set::{RankSet, Run};
pub use ranks::{RankPlace, ranks_across};

/// Where an instruction queues. Streams of one rank run beside each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Collectives of the tensor group (and other collectives of the model's ranks).
    Tensor,
    /// Sends to the next chunk.
    ForwardSend,
    /// Receives from the previous chunk.
    ForwardReceive,
    /// Sends to the previous chunk.
    BackwardSend,
    /// Receives from the next chunk.
    BackwardReceive,
    /// Collectives over replicas.
    Data,
    /// Exchange of keys and values between ranks that share a sequence.
    Context,
    /// Dispatch to experts and combination of what they give.
    Expert,
    /// Gathering of parameters and reduction of gradients layer by layer (ZeRO-3).
    Shard,
    /// Copies to and from host memory.
    Host,
}

impl Stream {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Compute,
        Self::Tensor,
        Self::ForwardSend,
        Self::ForwardReceive,
        Self::BackwardSend,
        Self::BackwardReceive,
        Self::Data,
        Self::Context,
        Self::Expert,
        Self::Shard,
        Self::Host,
    ];
    /// Its name in text and on timelines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Tensor => "tensor",
            Self::ForwardSend => "forward-send",
            Self::ForwardReceive => "forward-receive",
            Self::BackwardSend => "backward-send",
            Self::BackwardReceive => "backward-receive",
            Self::Data => "data",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Shard => "shard",
            Self::Host => "host",
        }
    }
}

/// What a compute instruction does with its units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pass {
    /// Forward, keeping what the chunk's recomputation says.
    Forward,
    /// Forward again from what was kept, right before the backward pass.
    Recompute,
    /// Gradients of inputs and weights.
    Backward,
    /// Gradients of inputs only.
    BackwardInput,
    /// Gradients of weights only, from what the input pass left.
    BackwardWeight,
}

impl Pass {
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::BackwardInput => "backward-input",
            Self::BackwardWeight => "backward-weight",
        }
    }
}

/// The smallest part of a model that an instruction can name. Layers are numbered through the whole model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// Token (and learned position) embedding; vocabulary-parallel, so its output is partial over the tensor group.
    Embedding,
    /// The norm before attention.
    AttentionNorm(u32),
    /// What mixes positions: attention with its projections, or what the layer has instead; its output is partial over the tensor group.
    Attention(u32),
    /// The norm before the feed-forward part; in a layer of experts, the router too.
    MlpNorm(u32),
    /// The feed-forward part, its output partial over the tensor group; in a layer of experts, those of this rank with
    /// the shared part.
    Mlp(u32),
    /// The norm before the head.
    FinalNorm,
    /// Logits of this rank's part of the vocabulary, and their per-token statistics (maximum, sum of exponentials,
    /// target logit).
    Head,
    /// Cross-entropy from the statistics of all ranks of the tensor group.
    Loss,
}

/// Consecutive units of a chunk, by position in the chunk: `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnitRange {
    /// First.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// One virtual stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The pipeline position that holds it.
    pub stage: StageId,
    /// Its first layer, numbered through the model.
    pub first_layer: u32,
    /// Its layers.
    pub layers: u32,
    /// Whether it holds the embedding.
    pub embedding: bool,
    /// Whether it holds the final norm, the head and the loss.
    pub head: bool,
    /// What it computes again.
    pub recompute: Recompute,
    /// Of its layers, how many of the first ones that concerns.
    pub recomputed_layers: u32,
}

impl Chunk {
    /// What is computed again in one of its layers, numbered through the model.
    #[must_use]
    pub const fn recompute_of(&self, layer: u32) -> Recompute {
        if layer < self.first_layer + self.recomputed_layers { self.recompute } else { Recompute::None }
    }
    /// Units in the chunk.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.embedding as u32 + 4 * self.layers + 3 * self.head as u32
    }
    /// All of them.
    #[must_use]
    pub const fn all_units(&self) -> UnitRange {
        UnitRange { start: 0, end: self.units() }
    }
    /// The unit at a position.
    ///
    /// # Panics
    /// If the chunk has no such position.
    #[must_use]
    pub fn unit(&self, position: u32) -> Unit {
        let Some(inner) = position.checked_sub(u32::from(self.embedding)) else { return Unit::Embedding };
        let layer = self.first_layer + inner / 4;
        match (inner.checked_sub(4 * self.layers), inner % 4) {
            (None, 0) => Unit::AttentionNorm(layer),
            (None, 1) => Unit::Attention(layer),
            (None, 2) => Unit::MlpNorm(layer),
            (None, _) => Unit::Mlp(layer),
            (Some(0), _) if self.head => Unit::FinalNorm,
            (Some(1), _) if self.head => Unit::Head,
            (Some(2), _) if self.head => Unit::Loss,
            (Some(_), _) => panic!("no unit {position} in a chunk of {}", self.units()),
        }
    }
}

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CollectiveKind {
    /// Every member gets the sum of all.
    AllReduce,
    /// Every member gets the concatenation of all.
    AllGather,
    /// Every member gets its part of the sum of all.
    ReduceScatter,
    /// Every member gets its part of what each has: the whole buffer is what one member sends in all, its own part
    /// included.
    AllToAll,
}

named!(CollectiveKind {
    AllReduce = "all-reduce",
    AllGather = "all-gather",
    ReduceScatter = "reduce-scatter",
    AllToAll = "all-to-all",
});

/// What a collective moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Payload {
    /// An activation or its gradient at a unit of a chunk, for one microbatch, in one pass.
    Activation {
        /// Which of the unit's tensors.
        tensor: UnitTensor,
        /// The chunk.
        chunk: ChunkId,
        /// The unit's position in the chunk.
        unit: u32,
        /// The microbatch.
        microbatch: MicrobatchId,
        /// The pass that needs it.
        pass: Pass,
    },
    /// Weight gradients of a chunk, over replicas.
    Gradients {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Updated parameters of a chunk, over replicas (ZeRO-1 and 2).
    Parameters {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Gradients of the experts of a chunk, over the ranks that hold the same experts.
    ExpertGradients {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Updated parameters of the experts of a chunk.
    ExpertParameters {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Parameters of consecutive units of a chunk, before a pass (ZeRO-3).
    UnitParameters {
        /// The chunk.
        chunk: ChunkId,
        /// The first of the units.
        unit: u32,
        /// Whether those of the experts in them, else all others.
        experts: bool,
        /// The microbatch.
        microbatch: MicrobatchId,
        /// The pass that needs them.
        pass: Pass,
    },
    /// Gradients of consecutive units of a chunk, after a backward pass (ZeRO-2 and 3), or of a bucket of them, after the
    /// last one (ZeRO-0 and 1).
    UnitGradients {
        /// The chunk.
        chunk: ChunkId,
        /// The first of the units.
        unit: u32,
        /// Whether those of the experts in them, else all others.
        experts: bool,
        /// The microbatch.
        microbatch: MicrobatchId,
    },
    /// Gradients of parameters that every tensor rank holds but sees only its part of the sequence for.
    ReplicatedGradients,
    /// Gradients of a tied embedding, between the first and the last stage.
    TiedGradients,
    /// The squared norm of the gradients: one FP64 number.
    GradientNorm,
}

/// A tensor of a unit, `[tokens, hidden]` unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UnitTensor {
    /// The unit's forward input, divided along the sequence (sequence parallelism).
    Input,
    /// The unit's forward output, a partial sum on each rank.
    Output,
    /// The gradient of the unit's output, divided along the sequence (sequence parallelism).
    OutputGradient,
    /// The gradient of the unit's input, a partial sum on each rank.
    InputGradient,
    /// Three FP32 numbers per token: maximum, sum of exponentials, target logit.
    LossStatistics,
    /// Logits of the whole vocabulary, where the loss is not sharded.
    Logits,
    /// Keys and values of the ranks that share a sequence, or their gradients.
    KeysAndValues,
    /// Queries, keys and values with heads exchanged for tokens, or the core's output on its way back.
    Heads,
    /// Tokens on their way to experts, or gradients of what experts gave.
    Dispatched,
    /// What experts gave on its way back, or gradients of what they got.
    Combined,
    /// Tokens gathered for an expert that several ranks share, or its partial output.
    ExpertInput,
    /// Of each sequence and expert the tokens that chose it, in FP32: what the gradient of the loss that balances experts
    /// needs of ranks that share sequences.
    RouterStatistics,
}

/// The other end of a message: rank `r` of this role talks to rank `r + shift` of role `role`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// The other role.
    pub role: RoleId,
    /// Added to this rank's number.
    pub shift: i64,
}

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// An activation, to the next chunk.
    Forward,
    /// A gradient, to the previous chunk.
    Backward,
}

/// What a message is: with its two ranks, its identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Message {
    /// The boundary after this chunk.
    pub edge: ChunkId,
    /// Which way.
    pub direction: Direction,
    /// The microbatch.
    pub microbatch: MicrobatchId,
}

/// What an instruction does. Matches are exhaustive everywhere: a new operation must be thought about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// One pass of consecutive units of a chunk.
    Compute {
        /// The pass.
        pass: Pass,
        /// The chunk.
        chunk: ChunkId,
        /// Which of its units (a backward pass goes through them from the end).
        units: UnitRange,
        /// The microbatch.
        microbatch: MicrobatchId,
    },
    /// A collective over this rank's instance of a group.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Over whom.
        group: GroupId,
        /// Of what.
        payload: Payload,
        /// Bytes of the whole buffer: what every member holds before (reductions) or after (gathers).
        bytes: Bytes,
    },
    /// The sending end of a message.
    Send {
        /// To whom.
        peer: Peer,
        /// What.
        message: Message,
        /// How much.
        bytes: Bytes,
    },
    /// The receiving end.
    Receive {
        /// From whom.
        peer: Peer,
        /// What.
        message: Message,
        /// How much.
        bytes: Bytes,
    },
    /// The sum of squares of the gradients that this rank answers for.
    GradientNorm,
    /// Clipping and the AdamW step of the parameters that this rank answers for; clears gradients.
    Optimizer,
    /// A copy between the device and host memory.
    HostCopy {
        /// Of what.
        what: HostCopy,
        /// Whether it leaves the device.
        out: bool,
        /// How much.
        bytes: Bytes,
    },
}

/// What is copied to or from host memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HostCopy {
    /// What a chunk keeps of a microbatch.
    Activations {
        /// The chunk.
        chunk: ChunkId,
        /// The microbatch.
        microbatch: MicrobatchId,
    },
    /// This rank's part of parameters of a chunk, before they are gathered for a microbatch's pass.
    Parameters {
        /// The chunk.
        chunk: ChunkId,
        /// The microbatch.
        microbatch: MicrobatchId,
    },
    /// Gradients on their way to the optimizer in host memory, and stepped parameters on their way back.
    OptimizerState,
}

/// One instruction of a role. Its waits and accesses are kept in the role's pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// Where it queues.
    pub stream: Stream,
    waits: (u32, u32),
    accesses: (u32, u32),
}

/// An instruction list and the ranks that carry it out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Role {
    /// The pipeline position.
    pub stage: StageId,
    /// Its ranks.
    pub ranks: RankSet,
    /// Its buffers.
    pub buffers: Vec<Buffer>,
    instructions: Vec<Instruction>,
    waits: Vec<InstructionId>,
    accesses: Vec<(BufferId, Access)>,
}

impl Role {
    /// A role with no instructions yet.
    #[must_use]
    pub fn new(stage: StageId, ranks: RankSet) -> Self {
        Self { stage, ranks, buffers: Vec::new(), instructions: Vec::new(), waits: Vec::new(), accesses: Vec::new() }
    }
    /// Adds a buffer.
    pub fn buffer(&mut self, kind: BufferKind, bytes: Bytes, resident: bool) -> BufferId {
        self.buffers.push(Buffer { kind, bytes, resident });
        BufferId::at(self.buffers.len() - 1)
    }
    /// Adds an instruction at the end of the list.
    pub fn push(
        &mut self,
        op: Op,
        stream: Stream,
        waits: &[InstructionId],
        accesses: &[(BufferId, Access)],
    ) -> InstructionId {
        let range = |start: usize, end: usize| {
            let number = |n: usize| u32::try_from(n).expect("a role with more than 2^32 waits or accesses");
            (number(start), number(end))
        };
        let (first_wait, first_access) = (self.waits.len(), self.accesses.len());
        self.waits.extend_from_slice(waits);
        self.accesses.extend_from_slice(accesses);
        self.instructions.push(Instruction {
            op,
            stream,
            waits: range(first_wait, self.waits.len()),
            accesses: range(first_access, self.accesses.len()),
        });
        InstructionId::at(self.instructions.len() - 1)
    }
    /// The list.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
    /// One instruction.
    #[must_use]
    pub fn instruction(&self, id: InstructionId) -> &Instruction {
        &self.instructions[id.index()]
    }
    /// What an instruction waits for, beside its stream.
    #[must_use]
    pub fn waits(&self, instruction: &Instruction) -> &[InstructionId] {
        &self.waits[instruction.waits.0 as usize..instruction.waits.1 as usize]
    }
    /// What an instruction does with which buffers.
    #[must_use]
    pub fn accesses(&self, instruction: &Instruction) -> &[(BufferId, Access)] {
        &self.accesses[instruction.accesses.0 as usize..instruction.accesses.1 as usize]
    }
    /// The same list for other ranks, with every op passed through `map`.
    #[must_use]
    pub fn relabelled(&self, ranks: RankSet, mut map: impl FnMut(Op) -> Op) -> Self {
        let mut role = self.clone();
        role.ranks = ranks;
        for instruction in &mut role.instructions {
            instruction.op = map(instruction.op);
        }
        role
    }
}

/// A program. Ops are meaningful together with its model, workload, layout and chunks, so it needs nothing else to run.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// Divided how.
    pub layout: Layout,
    /// Virtual stages, in the order of the model.
    pub chunks: Vec<Chunk>,
    /// Families of groups.
    pub groups: Vec<Group>,
    /// Roles; every rank `0..world` has exactly one.
    pub roles: Vec<Role>,
    /// Device of each rank; empty means rank `r` on device `r`.
    pub placement: Vec<DeviceId>,
}

impl Program {
    /// Ranks in all.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.layout.world()
    }
    /// The device of a rank.
    #[must_use]
    pub fn device(&self, rank: Rank) -> DeviceId {
        if self.placement.is_empty() { DeviceId::new(rank.raw()) } else { self.placement[rank.index()] }
    }
    /// The role of a rank.
    #[must_use]
    pub fn role_of(&self, rank: Rank) -> Option<RoleId> {
        self.roles.iter().position(|role| role.ranks.contains(rank)).map(RoleId::at)
    }
    /// A chunk.
    #[must_use]
    pub fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.index()]
    }
    /// Tokens of one microbatch on one rank (of ranks that share sequences, its part).
    #[must_use]
    pub fn microbatch_tokens(&self) -> u64 {
        self.shape().tokens()
    }
    /// Instructions of all roles (of one rank each).
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.roles.iter().map(|role| role.instructions().len()).sum()
    }
    /// A digest of all that the text form says: equal programs have equal digests on any machine.
    #[must_use]
    pub fn digest(&self) -> u64 {
        digest::of_program(self)
    }
}

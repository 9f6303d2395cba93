//! Programs written out by hand for small divisions: what lowering must emit, told again.

use std::sync::Arc;

use ir::program::{
    Chunk, CollectiveKind, Direction, Group, Layout, Message, Op, Pass, Payload, Peer, Program, RankSet, Role, Stream,
    UnitRange, UnitTensor,
};
use ir::{
    Axis, Bytes, ChunkId, CollectiveAlgorithm, GroupId, InstructionId, MicrobatchId, Model, Rank, Recompute, RoleId,
    StageId, VerifiedProgram, Workload, ZeroStage,
};

/// How a model is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    pub(crate) tensor: u32,
    pub(crate) sequence_parallel: bool,
    pub(crate) data: u32,
    pub(crate) positions: u32,
    pub(crate) chunks_per_position: u32,
    pub(crate) microbatches: u32,
    /// Input and weight gradients apart, all weight passes at the end.
    pub(crate) split: bool,
    pub(crate) recompute: Recompute,
    pub(crate) zero: ZeroStage,
    /// Gradients of a chunk are reduced as soon as they are whole, beside what is left of the backward passes.
    pub(crate) overlap: bool,
}

impl Division {
    /// One rank.
    pub(crate) const ONE: Self = Self {
        tensor: 1,
        sequence_parallel: false,
        data: 1,
        positions: 1,
        chunks_per_position: 1,
        microbatches: 4,
        split: false,
        recompute: Recompute::None,
        zero: ZeroStage::Zero0,
        overlap: false,
    };
}

const TENSOR: GroupId = GroupId::new(0);
const DATA: GroupId = GroupId::new(1);
const MODEL: GroupId = GroupId::new(2);
const ENDS: GroupId = GroupId::new(3);

/// The program of a division.
pub(crate) fn program(model: &Model, workload: &Workload, division: &Division) -> Arc<VerifiedProgram> {
    let Division { tensor, data, positions, .. } = *division;
    let chunks = chunks(model, division);
    let layout = Layout {
        data,
        tensor,
        pipeline: positions,
        tensors: Vec::new(),
        sequence_parallel: division.sequence_parallel,
        microbatch_size: workload.global_batch / data / division.microbatches,
        microbatches: division.microbatches,
        shares: ir::Shares::EQUAL,
        zero: division.zero,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
    };
    let position = tensor * data;
    let across =
        |first: u32, count: u32| (0..positions).flat_map(move |p| (0..count).map(move |i| p * position + first + i));
    let group = |axis, members, shifts| Group { axis, members, shifts };
    let groups = vec![
        group(Axis::Tensor, RankSet::run(0, tensor, 1), RankSet::run(0, data * positions, tensor)),
        group(Axis::Data, RankSet::run(0, data, tensor), RankSet::from_ascending(across(0, tensor))),
        group(Axis::Model, RankSet::from_ascending(across(0, tensor)), RankSet::run(0, data, tensor)),
        group(
            Axis::Embedding,
            RankSet::from_ascending([0, (positions - 1) * position].into_iter().take(positions.min(2) as usize)),
            RankSet::run(0, position, 1),
        ),
    ];
    let mut program = Program {
        model: model.clone(),
        workload: workload.clone(),
        layout,
        chunks,
        groups,
        roles: Vec::new(),
        placement: Vec::new(),
    };
    program.roles = (0..program.world()).map(|rank| Builder::new(&program, division, rank).role()).collect();
    Arc::new(VerifiedProgram::new(program).unwrap())
}

/// Layers as evenly as they go, the first chunks taking what is left over.
fn chunks(model: &Model, division: &Division) -> Vec<Chunk> {
    let count = division.positions * division.chunks_per_position;
    let mut first_layer = 0;
    let chunk = |index: u32| {
        let layers = model.layers / count + u32::from(index < model.layers % count);
        first_layer += layers;
        Chunk {
            stage: StageId::new(index % division.positions),
            first_layer: first_layer - layers,
            layers,
            embedding: index == 0,
            head: index == count - 1,
            recompute: division.recompute,
            recomputed_layers: layers,
        }
    };
    (0..count).map(chunk).collect()
}

struct Builder<'a> {
    program: &'a Program,
    division: &'a Division,
    position: u32,
    role: Role,
    /// What the next instruction of the chain waits for.
    before: Vec<InstructionId>,
    /// Reductions that run beside the chain until the gradient norm.
    beside: Vec<InstructionId>,
}

impl<'a> Builder<'a> {
    fn new(program: &'a Program, division: &'a Division, rank: u32) -> Self {
        let position = rank / (division.tensor * division.data);
        let role = Role::new(StageId::new(position), RankSet::run(rank, 1, 1));
        Self { program, division, position, role, before: Vec::new(), beside: Vec::new() }
    }

    fn role(mut self) -> Role {
        let Division { positions, chunks_per_position: v, microbatches, split, .. } = *self.division;
        let held: Vec<ChunkId> = (0..v).map(|i| ChunkId::new(i * positions + self.position)).collect();
        let microbatches: Vec<MicrobatchId> = (0..microbatches).map(MicrobatchId::new).collect();
        for chunk in &held {
            microbatches.iter().for_each(|m| self.forward(*chunk, *m));
        }
        let pass = if split { Pass::BackwardInput } else { Pass::Backward };
        for chunk in held.iter().rev() {
            microbatches.iter().for_each(|m| self.backward(*chunk, *m, pass));
            if !split {
                self.gradients_whole(*chunk, held[0]);
            }
        }
        if split {
            for chunk in held.iter().rev() {
                let units = self.program.chunk(*chunk).all_units();
                microbatches.iter().for_each(|m| self.compute(Pass::BackwardWeight, *chunk, units, *m));
                self.gradients_whole(*chunk, held[0]);
            }
        }
        self.end_of_iteration(&held);
        self.role
    }

    fn chain(&mut self, op: Op, stream: Stream) {
        let id = self.role.push(op, stream, &self.before, &[]);
        self.before = vec![id];
    }

    fn compute(&mut self, pass: Pass, chunk: ChunkId, units: UnitRange, microbatch: MicrobatchId) {
        self.chain(Op::Compute { pass, chunk, units, microbatch }, Stream::Compute);
    }

    fn message(&mut self, edge: u32, direction: Direction, microbatch: MicrobatchId, to: ChunkId, sends: bool) {
        let other = self.program.chunk(to).stage.raw();
        if other == self.position {
            return; // the rank hands it to itself
        }
        let shift =
            (i64::from(other) - i64::from(self.position)) * i64::from(self.division.tensor * self.division.data);
        let peer_rank = u32::try_from(i64::from(self.role.ranks.first().raw()) + shift).unwrap();
        let peer = Peer { role: RoleId::new(peer_rank), shift };
        let message = Message { edge: ChunkId::new(edge), direction, microbatch };
        let bytes =
            Bytes::new(self.activation() / if self.sequence_parallel() { u64::from(self.division.tensor) } else { 1 });
        match (sends, direction) {
            (true, Direction::Forward) => self.send(Op::Send { peer, message, bytes }, Stream::ForwardSend),
            (true, Direction::Backward) => self.send(Op::Send { peer, message, bytes }, Stream::BackwardSend),
            (false, Direction::Forward) => self.receive(Op::Receive { peer, message, bytes }, Stream::ForwardReceive),
            (false, Direction::Backward) => self.receive(Op::Receive { peer, message, bytes }, Stream::BackwardReceive),
        }
    }

    fn send(&mut self, op: Op, stream: Stream) {
        self.role.push(op, stream, &self.before, &[]);
    }

    fn receive(&mut self, op: Op, stream: Stream) {
        let id = self.role.push(op, stream, &[], &[]);
        self.before.push(id);
    }

    fn sequence_parallel(&self) -> bool {
        self.division.sequence_parallel && self.division.tensor > 1
    }

    fn activation(&self) -> u64 {
        4 * self.program.microbatch_tokens() * u64::from(self.program.model.hidden)
    }

    /// A tensor-group collective of an activation; nothing where a rank is alone.
    fn tensor(&mut self, kind: CollectiveKind, tensor: UnitTensor, at: (ChunkId, u32, MicrobatchId), pass: Pass) {
        if self.division.tensor == 1 {
            return;
        }
        let (chunk, unit, microbatch) = at;
        let bytes = match tensor {
            UnitTensor::LossStatistics => 12 * self.program.microbatch_tokens() * u64::from(self.division.tensor),
            _ => self.activation(),
        };
        let payload = Payload::Activation { tensor, chunk, unit, microbatch, pass };
        self.chain(Op::Collective { kind, group: TENSOR, payload, bytes: Bytes::new(bytes) }, Stream::Tensor);
    }

    /// All-reduce, or with sequence parallelism reduce-scatter.
    fn reduce(&mut self, tensor: UnitTensor, at: (ChunkId, u32, MicrobatchId), pass: Pass) {
        let kind = if self.sequence_parallel() { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        self.tensor(kind, tensor, at, pass);
    }

    /// With sequence parallelism, an all-gather.
    fn gather(&mut self, tensor: UnitTensor, at: (ChunkId, u32, MicrobatchId), pass: Pass) {
        if self.sequence_parallel() {
            self.tensor(CollectiveKind::AllGather, tensor, at, pass);
        }
    }

    fn range(&mut self, pass: Pass, chunk: ChunkId, microbatch: MicrobatchId, start: u32, end: u32) {
        self.compute(pass, chunk, UnitRange { start, end }, microbatch);
    }

    fn forward(&mut self, id: ChunkId, m: MicrobatchId) {
        let chunk = self.program.chunk(id).clone();
        if !chunk.embedding {
            self.message(id.raw() - 1, Direction::Forward, m, ChunkId::new(id.raw() - 1), false);
        }
        if self.division.tensor == 1 {
            self.compute(Pass::Forward, id, chunk.all_units(), m);
        } else {
            let first = u32::from(chunk.embedding);
            if chunk.embedding {
                self.range(Pass::Forward, id, m, 0, 1);
                self.reduce(UnitTensor::Output, (id, 0, m), Pass::Forward);
            }
            (0..chunk.layers).for_each(|layer| self.layer(Pass::Forward, id, m, first + 4 * layer));
            if chunk.head {
                let norm = first + 4 * chunk.layers;
                self.norm_and_body(Pass::Forward, id, m, norm);
                self.tensor(CollectiveKind::AllGather, UnitTensor::LossStatistics, (id, norm + 1, m), Pass::Forward);
                self.range(Pass::Forward, id, m, norm + 2, norm + 3);
            }
        }
        if !chunk.head {
            self.message(id.raw(), Direction::Forward, m, ChunkId::new(id.raw() + 1), true);
        }
    }

    /// A layer's forward pass or recomputation, with the collectives after its parts.
    fn layer(&mut self, pass: Pass, id: ChunkId, m: MicrobatchId, first: u32) {
        self.norm_and_body(pass, id, m, first);
        self.reduce(UnitTensor::Output, (id, first + 1, m), pass);
        self.norm_and_body(pass, id, m, first + 2);
        // Nobody reads the output of a recomputed layer.
        if pass == Pass::Forward {
            self.reduce(UnitTensor::Output, (id, first + 3, m), pass);
        }
    }

    fn norm_and_body(&mut self, pass: Pass, id: ChunkId, m: MicrobatchId, norm: u32) {
        if self.sequence_parallel() {
            self.range(pass, id, m, norm, norm + 1);
            self.gather(UnitTensor::Input, (id, norm + 1, m), pass);
            self.range(pass, id, m, norm + 1, norm + 2);
        } else {
            self.range(pass, id, m, norm, norm + 2);
        }
    }

    fn backward(&mut self, id: ChunkId, m: MicrobatchId, pass: Pass) {
        let chunk = self.program.chunk(id).clone();
        if !chunk.head {
            self.message(id.raw(), Direction::Backward, m, ChunkId::new(id.raw() + 1), false);
        }
        let first = u32::from(chunk.embedding);
        let full = self.division.recompute == Recompute::Full;
        if self.division.tensor > 1 {
            self.divided_backward(id, m, pass);
        } else if full {
            if chunk.head {
                self.range(pass, id, m, first + 4 * chunk.layers, chunk.units());
            }
            for layer in (0..chunk.layers).rev() {
                let start = first + 4 * layer;
                self.range(Pass::Recompute, id, m, start, start + 4);
                self.range(pass, id, m, if layer == 0 { 0 } else { start }, start + 4);
            }
        } else {
            self.compute(pass, id, chunk.all_units(), m);
        }
        if !chunk.embedding {
            self.message(id.raw() - 1, Direction::Backward, m, ChunkId::new(id.raw() - 1), true);
        }
    }

    /// The backward pass of a chunk over several tensor ranks: norm by norm from the end, each with the body before it.
    fn divided_backward(&mut self, id: ChunkId, m: MicrobatchId, pass: Pass) {
        let chunk = self.program.chunk(id).clone();
        let first = u32::from(chunk.embedding);
        let layers_end = first + 4 * chunk.layers;
        let sp = self.sequence_parallel();
        // The end of units whose backward pass is still to come together with the body before them.
        let mut open = layers_end;
        if chunk.head {
            self.gather(UnitTensor::Input, (id, layers_end + 1, m), pass);
            self.range(pass, id, m, layers_end + 1, layers_end + 3);
            self.reduce(UnitTensor::InputGradient, (id, layers_end + 1, m), pass);
            open = layers_end + 1;
        }
        for body in (first..layers_end).rev().filter(|unit| (unit - first) % 2 == 1) {
            if sp && open > body + 1 {
                self.range(pass, id, m, body + 1, open);
                open = body + 1;
            }
            if self.division.recompute == Recompute::Full && (body - first) % 4 == 3 {
                self.layer(Pass::Recompute, id, m, body - 3);
            }
            self.gather(UnitTensor::OutputGradient, (id, body, m), pass);
            self.gather(UnitTensor::Input, (id, body, m), pass);
            self.range(pass, id, m, body, open);
            self.reduce(UnitTensor::InputGradient, (id, body, m), pass);
            open = body;
        }
        if sp {
            self.range(pass, id, m, first, open);
            if chunk.embedding {
                self.gather(UnitTensor::OutputGradient, (id, 0, m), pass);
                self.range(pass, id, m, 0, 1);
            }
        } else {
            self.range(pass, id, m, 0, open);
        }
    }

    fn reduction(&mut self, kind: CollectiveKind, group: GroupId, payload: Payload, stream: Stream) {
        self.chain(Op::Collective { kind, group, payload, bytes: Bytes::new(8) }, stream);
    }

    /// After the last pass over `chunk`, of which `last` is the last that is held. A reduction over ranks of one replica
    /// may concern all chunks and comes first.
    fn gradients_whole(&mut self, chunk: ChunkId, last: ChunkId) {
        if !self.division.overlap {
            return;
        }
        if !self.sequence_parallel() && !self.reduces_tied() {
            self.reduce_over_replicas(chunk);
        } else if chunk == last {
            self.reduce_replicated();
            let Division { chunks_per_position, positions, .. } = *self.division;
            for i in (0..chunks_per_position).rev() {
                self.reduce_over_replicas(ChunkId::new(last.raw() + i * positions));
            }
        }
    }

    fn reduces_tied(&self) -> bool {
        let end = |chunk: &Chunk| chunk.stage.raw() == self.position && (chunk.embedding || chunk.head);
        self.program.model.tied_head && self.division.positions > 1 && self.program.chunks.iter().any(end)
    }

    fn reduce_replicated(&mut self) {
        if self.sequence_parallel() {
            self.reduction(CollectiveKind::AllReduce, TENSOR, Payload::ReplicatedGradients, Stream::Tensor);
        }
        if self.reduces_tied() {
            self.reduction(CollectiveKind::AllReduce, ENDS, Payload::TiedGradients, Stream::Tensor);
        }
    }

    fn zero1(&self) -> bool {
        self.division.zero == ZeroStage::Zero1 && self.division.data > 1
    }

    fn reduce_over_replicas(&mut self, chunk: ChunkId) {
        if self.division.data > 1 {
            let kind = if self.zero1() { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
            let payload = Payload::Gradients { chunk };
            let op = Op::Collective { kind, group: DATA, payload, bytes: Bytes::new(8) };
            self.beside.push(self.role.push(op, Stream::Data, &self.before, &[]));
        }
    }

    fn end_of_iteration(&mut self, held: &[ChunkId]) {
        if !self.division.overlap {
            self.reduce_replicated();
            held.iter().for_each(|chunk| self.reduce_over_replicas(*chunk));
        }
        self.before.append(&mut self.beside);
        self.chain(Op::GradientNorm, Stream::Compute);
        if self.division.tensor * self.division.positions > 1 {
            self.reduction(CollectiveKind::AllReduce, MODEL, Payload::GradientNorm, Stream::Tensor);
        }
        if self.zero1() {
            self.reduction(CollectiveKind::AllReduce, DATA, Payload::GradientNorm, Stream::Tensor);
        }
        self.chain(Op::Optimizer, Stream::Compute);
        if self.zero1() {
            let kind = CollectiveKind::AllGather;
            held.iter().for_each(|&chunk| self.reduction(kind, DATA, Payload::Parameters { chunk }, Stream::Data));
        }
    }
}

/// The rank that holds a division's first chunk.
pub(crate) const FIRST: Rank = Rank::new(0);

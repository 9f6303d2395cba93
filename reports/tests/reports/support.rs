//! Programs and timelines made by hand: a 1F1B pipeline with data replicas and tensor collectives, and the times that
//! a machine without surprises would take, so that every number of a report can be known beforehand.

#![allow(dead_code, reason = "each test uses a part")]

use ir::program::{
    Access, BufferKind, Chunk, CollectiveKind, Direction, Group, Layout, Message, Pass, Payload, Peer, RankSet, Stream,
    UnitTensor,
};
use ir::{
    AdamW, AttentionKernel, Axis, BufferId, Bytes, ChunkId, Clock, CollectiveAlgorithm, GroupId, InstructionId, Lane,
    MicrobatchId, MlpKind, Model, NormKind, Op, Positions, Precision, Program, Rank, Recompute, Role, RoleId, SimTime,
    Span, StageId, Timeline, Workload, ZeroStage,
};

/// A pipeline to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    pub(crate) stages: u32,
    pub(crate) microbatches: u32,
    /// Replicas; their gradients are all-reduced at the end if there are several.
    pub(crate) data: u32,
    /// All-reduces over a tensor group of 2 inside each pass.
    pub(crate) tensor: bool,
    /// Backward passes split into input and weight gradients.
    pub(crate) split: bool,
}

/// Nanoseconds of each kind of instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) forward: u64,
    pub(crate) backward: u64,
    pub(crate) weight: u64,
    pub(crate) tensor: u64,
    pub(crate) message: u64,
    pub(crate) gradients: u64,
    pub(crate) optimizer: u64,
}

pub(crate) const EXACT: Times =
    Times { forward: 1000, backward: 2000, weight: 700, tensor: 0, message: 0, gradients: 0, optimizer: 500 };

/// A model of few layers.
pub(crate) fn model(layers: u32) -> Model {
    Model {
        name: "tiny".to_owned(),
        hidden: 64,
        layers,
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        ffn: 256,
        vocabulary: 256,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 1e4 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    }
}

/// The folded program: one role for each stage.
pub(crate) fn program(p: Pipeline) -> Program {
    let tensor = if p.tensor { 2 } else { 1 };
    let layout = Layout {
        data: p.data,
        tensor,
        tensors: Vec::new(),
        pipeline: p.stages,
        sequence_parallel: false,
        microbatch_size: 1,
        microbatches: p.microbatches,
        shares: ir::Shares::EQUAL,
        zero: ZeroStage::Zero0,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
    };
    let chunk = |c: u32| Chunk {
        stage: StageId::new(c),
        first_layer: 2 * c,
        layers: 2,
        embedding: c == 0,
        head: c == p.stages - 1,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    let workload = Workload {
        sequence_length: 128,
        global_batch: p.data * p.microbatches,
        iterations: 5,
        precision: Precision::Fp32,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 1,
        optimizer: AdamW::default(),
        seed: 1,
        recipe: ir::Recipe::default(),
    };
    let per_stage = p.data * tensor;
    let groups = vec![
        Group {
            axis: Axis::Data,
            members: RankSet::run(0, p.data, tensor),
            shifts: RankSet::from_ascending((0..p.stages).flat_map(|s| (0..tensor).map(move |t| s * per_stage + t))),
        },
        Group {
            axis: Axis::Tensor,
            members: RankSet::run(0, tensor, 1),
            shifts: RankSet::run(0, p.stages * p.data, tensor),
        },
    ];
    let chunks: Vec<Chunk> = (0..p.stages).map(chunk).collect();
    let roles = (0..p.stages).map(|stage| role(p, stage, per_stage, &chunks[stage as usize])).collect();
    Program { model: model(2 * p.stages), workload, layout, chunks, groups, roles, placement: Vec::new() }
}

/// The order of a stage's passes in 1F1B: `(forward, microbatch)`.
fn order(p: Pipeline, stage: u32) -> Vec<(bool, u32)> {
    let warm_up = (p.stages - 1 - stage).min(p.microbatches);
    let mut order: Vec<(bool, u32)> = (0..warm_up).map(|m| (true, m)).collect();
    for m in 0..p.microbatches - warm_up {
        order.push((true, warm_up + m));
        order.push((false, m));
    }
    order.extend((p.microbatches - warm_up..p.microbatches).map(|m| (false, m)));
    order
}

struct Builder {
    p: Pipeline,
    stage: u32,
    per_stage: u32,
    chunk: Chunk,
    role: Role,
    /// Of each microbatch: what its forward pass keeps.
    activations: Vec<BufferId>,
    /// Of each microbatch: what its input pass waits for.
    last_pass: Option<InstructionId>,
}

fn role(p: Pipeline, stage: u32, per_stage: u32, chunk: &Chunk) -> Role {
    let mut role = Role::new(StageId::new(stage), RankSet::run(stage * per_stage, per_stage, 1));
    role.buffer(BufferKind::Weights, Bytes::new(400 << 20), true);
    role.buffer(BufferKind::Gradients, Bytes::new(400 << 20), true);
    role.buffer(BufferKind::OptimizerState, Bytes::new(800 << 20), true);
    let mut builder =
        Builder { p, stage, per_stage, chunk: chunk.clone(), role, activations: Vec::new(), last_pass: None };
    for _ in 0..p.microbatches {
        let id = builder.role.buffer(BufferKind::Activations, Bytes::new(100 << 20), false);
        builder.activations.push(id);
    }
    for (forward, microbatch) in order(p, stage) {
        builder.pass(forward, MicrobatchId::new(microbatch));
    }
    builder.end();
    builder.role
}

impl Builder {
    fn message(
        &mut self,
        forward: bool,
        sends: bool,
        microbatch: MicrobatchId,
        waits: &[InstructionId],
    ) -> Option<InstructionId> {
        // Forward messages go up, backward ones down; a send of one direction meets a receive of the same.
        let up = forward == sends;
        let neighbour = if up { self.stage + 1 } else { self.stage.checked_sub(1)? };
        if neighbour >= self.p.stages {
            return None;
        }
        let shift = i64::from(self.per_stage) * if up { 1 } else { -1 };
        let peer = Peer { role: RoleId::new(neighbour), shift };
        let edge = ChunkId::new(self.stage.min(neighbour));
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        let message = Message { edge, direction, microbatch };
        let bytes = Bytes::new(32_768);
        let (op, stream) = match (sends, forward) {
            (true, true) => (Op::Send { peer, message, bytes }, Stream::ForwardSend),
            (true, false) => (Op::Send { peer, message, bytes }, Stream::BackwardSend),
            (false, true) => (Op::Receive { peer, message, bytes }, Stream::ForwardReceive),
            (false, false) => (Op::Receive { peer, message, bytes }, Stream::BackwardReceive),
        };
        Some(self.role.push(op, stream, waits, &[]))
    }

    fn compute(
        &mut self,
        pass: Pass,
        microbatch: MicrobatchId,
        waits: &[InstructionId],
        accesses: &[(BufferId, Access)],
    ) -> InstructionId {
        let (chunk, units) = (ChunkId::new(self.stage), self.chunk.all_units());
        self.role.push(Op::Compute { pass, chunk, units, microbatch }, Stream::Compute, waits, accesses)
    }

    fn pass(&mut self, forward: bool, microbatch: MicrobatchId) {
        let mut waits: Vec<InstructionId> = self.message(forward, false, microbatch, &[]).into_iter().collect();
        let buffer = self.activations[microbatch.index()];
        let pass = match (forward, self.p.split) {
            (true, _) => Pass::Forward,
            (false, false) => Pass::Backward,
            (false, true) => Pass::BackwardInput,
        };
        if self.p.tensor {
            let unit = self.chunk.units() - 1;
            let tensor = if forward { UnitTensor::Output } else { UnitTensor::InputGradient };
            let payload = Payload::Activation { tensor, chunk: ChunkId::new(self.stage), unit, microbatch, pass };
            let (kind, group, bytes) = (CollectiveKind::AllReduce, GroupId::new(1), Bytes::new(32_768));
            let op = Op::Collective { kind, group, payload, bytes };
            // The collective sits before the pass, after the one before: its time is exposed.
            waits.extend(self.last_pass);
            waits = vec![self.role.push(op, Stream::Tensor, &waits, &[])];
        }
        let accesses = match (forward, self.p.split) {
            (true, _) => vec![(buffer, Access::Allocate)],
            (false, false) => vec![(buffer, Access::Free)],
            (false, true) => vec![(buffer, Access::Use)],
        };
        let mut last = self.compute(pass, microbatch, &waits, &accesses);
        self.message(forward, true, microbatch, &[last]);
        if !forward && self.p.split {
            last = self.compute(Pass::BackwardWeight, microbatch, &[], &[(buffer, Access::Free)]);
        }
        self.last_pass = Some(last);
    }

    fn end(&mut self) {
        let mut waits: Vec<InstructionId> = self.last_pass.into_iter().collect();
        if self.p.data > 1 {
            let payload = Payload::Gradients { chunk: ChunkId::new(self.stage) };
            let (kind, group, bytes) = (CollectiveKind::AllReduce, GroupId::new(0), Bytes::new(400 << 20));
            waits = vec![self.role.push(Op::Collective { kind, group, payload, bytes }, Stream::Data, &waits, &[])];
        }
        self.role.push(Op::Optimizer, Stream::Compute, &waits, &[]);
    }
}

/// The times that the program takes on a machine where nothing contends: the plain meaning of a program, computed by
/// relaxation. `vary` changes each duration.
pub(crate) fn timeline(program: &Program, clock: Clock, times: Times, vary: &mut dyn FnMut(u64) -> u64) -> Timeline {
    let mut durations: Vec<Vec<u64>> = program
        .roles
        .iter()
        .map(|role| role.instructions().iter().map(|i| vary(duration(&i.op, times))).collect())
        .collect();
    share_message_durations(program, &mut durations);
    let mut spans: Vec<Vec<Option<Span>>> = program.roles.iter().map(|r| vec![None; r.instructions().len()]).collect();
    let mut left: usize = program.instructions();
    let mut first = vec![0; program.roles.len()];
    let receives: Vec<[bool; 2]> = program.roles.iter().map(receives).collect();
    while left > 0 {
        let before = left;
        for role in 0..program.roles.len() {
            while spans[role].get(first[role]).is_some_and(Option::is_some) {
                first[role] += 1;
            }
            left -= advance(program, role, first[role], receives[role], &durations, &mut spans);
        }
        assert!(left < before, "a hand-made program that waits for itself");
    }
    let lane = |(index, role): (usize, &Role)| Lane {
        role: RoleId::at(index),
        rank: role.ranks.first(),
        multiplicity: role.ranks.len(),
        spans: spans[index].iter().map(|span| span.expect("all ran")).collect(),
        memory: Vec::new(),
    };
    let lanes = program.roles.iter().enumerate().map(lane).collect();
    let mut timeline = Timeline { clock, program: 7, iteration: 0, input_wait: ir::SimDuration::ZERO, lanes };
    for index in 0..timeline.lanes.len() {
        let curve = counted(program, &timeline.lanes[index]);
        timeline.lanes[index].memory = curve;
    }
    timeline
}

fn duration(op: &Op, times: Times) -> u64 {
    match op {
        Op::Compute { pass: Pass::Forward | Pass::Recompute, .. } => times.forward,
        Op::Compute { pass: Pass::Backward | Pass::BackwardInput, .. } => times.backward,
        Op::Compute { pass: Pass::BackwardWeight, .. } => times.weight,
        Op::Collective { payload: Payload::Gradients { .. }, .. } => times.gradients,
        Op::Collective { .. } => times.tensor,
        Op::Send { .. } | Op::Receive { .. } | Op::HostCopy { .. } => times.message,
        Op::GradientNorm | Op::Optimizer => times.optimizer,
    }
}

/// Both ends of a message take equally long.
fn share_message_durations(program: &Program, durations: &mut [Vec<u64>]) {
    for role in 0..program.roles.len() {
        for id in 0..durations[role].len() {
            if let Some((other, end)) = other_end(program, role, id) {
                durations[role][id] = durations[role][id].max(durations[other][end]);
                durations[other][end] = durations[role][id];
            }
        }
    }
}

fn other_end(program: &Program, role: usize, id: usize) -> Option<(usize, usize)> {
    let (peer, message, sends) = match program.roles[role].instructions()[id].op {
        Op::Send { peer, message, .. } => (peer, message, true),
        Op::Receive { peer, message, .. } => (peer, message, false),
        _ => return None,
    };
    // Messages of one microbatch are near the same place of both lists; a plain search would be quadratic.
    let instructions = program.roles[peer.role.index()].instructions();
    let matches = |index: &usize| match instructions[*index].op {
        Op::Send { message: other, .. } => !sends && other == message,
        Op::Receive { message: other, .. } => sends && other == message,
        _ => false,
    };
    let near = id.min(instructions.len() - 1);
    let index = (0..instructions.len())
        .flat_map(|distance| [near.checked_sub(distance), Some(near + distance)])
        .flatten()
        .filter(|index| *index < instructions.len())
        .find(matches);
    Some((peer.role.index(), index.expect("a message with one end")))
}

/// Whether a role receives forward and backward.
fn receives(role: &Role) -> [bool; 2] {
    [Stream::ForwardReceive, Stream::BackwardReceive]
        .map(|stream| role.instructions().iter().any(|i| i.stream == stream))
}

/// When each stream of a role is free before its instruction `first`; all before that ran.
fn free_before(
    program: &Program,
    role: usize,
    first: usize,
    spans: &[Vec<Option<Span>>],
) -> [Option<u64>; Stream::ALL.len()] {
    let instructions = program.roles[role].instructions();
    Stream::ALL.map(|stream| {
        let last = (0..first).rev().take(64).find(|id| instructions[*id].stream == stream);
        Some(last.map_or(0, |id| spans[role][id].expect("it ran").end.nanoseconds()))
    })
}

/// Lets a role go on until something it needs has not happened; returns how many instructions ran.
fn advance(
    program: &Program,
    role: usize,
    first: usize,
    receives: [bool; 2],
    durations: &[Vec<u64>],
    spans: &mut [Vec<Option<Span>>],
) -> usize {
    let list = &program.roles[role];
    let mut ran = 0;
    let mut free = free_before(program, role, first, spans);
    for (id, instruction) in list.instructions().iter().enumerate().skip(first) {
        // Whatever comes later waits for a pass or a receive.
        let blocked = |stream: Stream| free[stream as usize].is_none();
        if blocked(Stream::Compute)
            && (blocked(Stream::ForwardReceive) || !receives[0])
            && (blocked(Stream::BackwardReceive) || !receives[1])
        {
            break;
        }
        let stream = instruction.stream as usize;
        if let Some(span) = spans[role][id] {
            free[stream] = Some(span.end.nanoseconds());
            continue;
        }
        let waits = list.waits(instruction).iter().map(|wait| spans[role][wait.index()].map(|s| s.end.nanoseconds()));
        let issued = waits.chain([free[stream]]).try_fold(0, |latest, time| time.map(|t| latest.max(t)));
        let Some(issued) = issued else {
            free[stream] = None;
            continue;
        };
        let Some(start) = both_there(program, role, id, issued, spans) else {
            free[stream] = None;
            continue;
        };
        let end = start + durations[role][id];
        let span = Span {
            instruction: InstructionId::at(id),
            issued: SimTime::from_nanoseconds(issued),
            start: SimTime::from_nanoseconds(start),
            end: SimTime::from_nanoseconds(end),
        };
        spans[role][id] = Some(span);
        free[stream] = Some(end);
        ran += 1;
    }
    ran
}

/// When both ends of a message are there. Receives are posted at once; a send waits for nobody but itself, so the
/// receive starts with it.
fn both_there(program: &Program, role: usize, id: usize, issued: u64, spans: &[Vec<Option<Span>>]) -> Option<u64> {
    match program.roles[role].instructions()[id].op {
        Op::Receive { .. } => {
            let (other, end) = other_end(program, role, id).expect("a receive");
            spans[other][end].map(|send| send.start.nanoseconds())
        }
        _ => Some(issued),
    }
}

/// What a backend would count.
fn counted(program: &Program, lane: &Lane) -> Vec<(SimTime, Bytes)> {
    let resident = program.roles[lane.role.index()].buffers.iter().filter(|b| b.resident).map(|b| b.bytes).sum();
    let mut held: Bytes = resident;
    let mut curve = vec![(SimTime::ZERO, held)];
    for change in trainyard_reports::metrics::memory_changes(program, lane) {
        held = if change.taken { held + change.bytes } else { held - change.bytes };
        curve.push((SimTime::from_nanoseconds(change.time_ns), held));
    }
    curve
}

/// The same run followed rank by rank, each duration varied.
pub(crate) fn unfolded(program: &Program, clock: Clock, times: Times, vary: &mut dyn FnMut(u64) -> u64) -> Timeline {
    let mut all = timeline(program, clock, times, vary);
    let mut lanes = Vec::new();
    let replicas = program.layout.data * program.layout.tensor;
    for _ in 0..replicas {
        lanes.push(timeline(program, clock, times, vary).lanes);
    }
    let mut result = Vec::new();
    for (index, role) in program.roles.iter().enumerate() {
        for (replica, rank) in role.ranks.iter().enumerate() {
            let mut lane = lanes[replica][index].clone();
            lane.rank = Rank::new(rank.raw());
            lane.multiplicity = 1;
            result.push(lane);
        }
    }
    all.lanes = result;
    all
}

/// splitmix64 (Steele, Lea, Flood 2014): a factor around 1 for durations.
pub(crate) fn noise(seed: u64, percent: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |duration| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        duration * (100 + z % (percent + 1)) / 100
    }
}

/// A report's input with everything that need not be stated left out.
pub(crate) fn input<'a>(program: &'a Program, timelines: Vec<&'a Timeline>) -> trainyard_reports::ReportInput<'a> {
    trainyard_reports::ReportInput {
        title: "a report".to_owned(),
        description: String::new(),
        command: String::new(),
        program,
        timelines,
        rate: None,
        capacity: Vec::new(),
        losses: Vec::new(),
        provenance: Vec::new(),
        warnings: Vec::new(),
        resolved_scenario: String::new(),
        long_run: None,
    }
}

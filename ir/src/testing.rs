//! For tests of this crate: a seeded source of numbers, and a small sound program with a way to break it.

use crate::model::{MlpKind, NormKind, Positions};
use crate::plan::{Axis, CollectiveAlgorithm, Recompute, ZeroStage};
use crate::program::{
    Access, BufferKind, Chunk, CollectiveKind, Direction, Group, Layout, Message, Op, Pass, Payload, Peer, Program,
    RankSet, Role, Stream, UnitRange, UnitTensor,
};
use crate::workload::{AdamW, AttentionKernel, Precision, Workload};
use crate::{BufferId, Bytes, ChunkId, GroupId, InstructionId, MicrobatchId, Model, RoleId, StageId};

/// splitmix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number under `limit`, which is at least 1.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("under a usize")
    }
}

/// One instruction with what its role keeps of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    pub(crate) op: Op,
    pub(crate) stream: Stream,
    pub(crate) waits: Vec<InstructionId>,
    pub(crate) accesses: Vec<(BufferId, Access)>,
}

/// Changes the instruction list of a role.
pub(crate) fn edit(role: &mut Role, change: impl FnOnce(&mut Vec<Line>)) {
    let mut lines: Vec<Line> = role
        .instructions()
        .iter()
        .map(|i| Line {
            op: i.op,
            stream: i.stream,
            waits: role.waits(i).to_vec(),
            accesses: role.accesses(i).to_vec(),
        })
        .collect();
    change(&mut lines);
    let mut edited = Role::new(role.stage, role.ranks.clone());
    edited.buffers.clone_from(&role.buffers);
    for line in lines {
        edited.push(line.op, line.stream, &line.waits, &line.accesses);
    }
    *role = edited;
}

/// A small model of four layers.
pub(crate) fn model() -> Model {
    Model {
        name: "small \"quoted\" \u{e9}".to_owned(),
        hidden: 64,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 128,
        vocabulary: 300,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 10_000.0 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: crate::Variants::default(),
    }
}

/// A GPipe program over two pipeline positions: the role of each has `data * tensor` ranks.
pub(crate) fn program(data: u32, tensor: u32, microbatches: u32) -> Program {
    let pipeline = 2;
    let per_stage = data * tensor;
    let group = |axis, members, shifts| Group { axis, members, shifts };
    let starts = |count: u32| (0..pipeline).flat_map(move |s| (0..count).map(move |i| s * per_stage + i));
    let chunk = |stage: u32| Chunk {
        stage: StageId::new(stage),
        first_layer: 2 * stage,
        layers: 2,
        embedding: stage == 0,
        head: stage == 1,
        recompute: Recompute::None,
        recomputed_layers: 2,
    };
    let mut program = Program {
        model: model(),
        workload: Workload {
            sequence_length: 32,
            global_batch: data * microbatches,
            iterations: 2,
            precision: Precision::Fp32,
            attention: AttentionKernel::Plain,
            vocabulary_divisor: 1,
            optimizer: AdamW::default(),
            seed: 7,
            recipe: crate::Recipe::default(),
        },
        layout: Layout {
            data,
            tensor,
            pipeline,
            tensors: Vec::new(),
            sequence_parallel: false,
            microbatch_size: 1,
            microbatches,
            shares: crate::Shares::EQUAL,
            zero: ZeroStage::Zero0,
            collective: CollectiveAlgorithm::Automatic,
            mesh: crate::Mesh::default(),
            sharing: crate::Sharing::default(),
        },
        chunks: vec![chunk(0), chunk(1)],
        groups: vec![
            group(Axis::Tensor, RankSet::run(0, tensor, 1), RankSet::run(0, data * pipeline, tensor)),
            group(Axis::Data, RankSet::run(0, data, tensor), RankSet::from_ascending(starts(tensor))),
            group(Axis::Model, RankSet::from_ascending(starts(tensor)), RankSet::run(0, data, tensor)),
        ],
        roles: Vec::new(),
        placement: Vec::new(),
    };
    program.roles = (0..pipeline).map(|stage| role(&program, stage)).collect();
    program
}

fn role(program: &Program, stage: u32) -> Role {
    let per_stage = program.layout.data * program.layout.tensor;
    let mut role = Role::new(StageId::new(stage), RankSet::run(stage * per_stage, per_stage, 1));
    let weights = role.buffer(BufferKind::Weights, Bytes::new(1_000), true);
    let mut kept = Vec::new();
    for microbatch in 0..program.layout.microbatches {
        let buffer = role.buffer(BufferKind::Activations, Bytes::new(500), false);
        kept.push(buffer);
        pass(program, &mut role, stage, MicrobatchId::new(microbatch), Pass::Forward, &[(buffer, Access::Allocate)]);
    }
    for microbatch in 0..program.layout.microbatches {
        let free = [(kept[microbatch as usize], Access::Free)];
        pass(program, &mut role, stage, MicrobatchId::new(microbatch), Pass::Backward, &free);
    }
    let last = InstructionId::at(role.instructions().len() - 1);
    let reduce = |group, payload| Op::Collective {
        kind: CollectiveKind::AllReduce,
        group: GroupId::new(group),
        payload,
        bytes: Bytes::new(1_000),
    };
    let gradients = role.push(reduce(1, Payload::Gradients { chunk: ChunkId::new(stage) }), Stream::Data, &[last], &[]);
    let norm = role.push(Op::GradientNorm, Stream::Compute, &[gradients], &[]);
    let norm = role.push(reduce(2, Payload::GradientNorm), Stream::Tensor, &[norm], &[]);
    role.push(Op::Optimizer, Stream::Compute, &[norm], &[(weights, Access::Use)]);
    role
}

/// Receive, first half, collective of the tensor group, second half, send.
fn pass(
    program: &Program,
    role: &mut Role,
    stage: u32,
    microbatch: MicrobatchId,
    pass: Pass,
    access: &[(BufferId, Access)],
) {
    let forward = pass == Pass::Forward;
    let shift = i64::from(program.layout.data * program.layout.tensor) * if stage == 0 { 1 } else { -1 };
    let peer = Peer { role: RoleId::new(1 - stage), shift };
    let (edge, bytes) = (ChunkId::new(0), Bytes::new(8_192));
    let direction = if forward { Direction::Forward } else { Direction::Backward };
    let message = Message { edge, direction, microbatch };
    let mut waits = Vec::new();
    if forward == (stage == 1) {
        let stream = if forward { Stream::ForwardReceive } else { Stream::BackwardReceive };
        waits.push(role.push(Op::Receive { peer, message, bytes }, stream, &[], &[]));
    }
    let chunk = ChunkId::new(stage);
    let all = program.chunk(chunk).units();
    let halves = if forward { [(0, 3), (3, all)] } else { [(3, all), (0, 3)] };
    let compute = |(start, end)| Op::Compute { pass, chunk, units: UnitRange { start, end }, microbatch };
    let on = |moment| if forward == (moment == 0) { access } else { &[] };
    let first = role.push(compute(halves[0]), Stream::Compute, &waits, on(0));
    let tensor = if forward { UnitTensor::Output } else { UnitTensor::InputGradient };
    let payload = Payload::Activation { tensor, chunk, unit: 2, microbatch, pass };
    let reduce = Op::Collective { kind: CollectiveKind::AllReduce, group: GroupId::new(0), payload, bytes };
    let reduced = role.push(reduce, Stream::Tensor, &[first], &[]);
    let second = role.push(compute(halves[1]), Stream::Compute, &[reduced], on(1));
    if forward == (stage == 0) {
        let stream = if forward { Stream::ForwardSend } else { Stream::BackwardSend };
        role.push(Op::Send { peer, message, bytes }, stream, &[second], &[]);
    }
}

//! Copies, collectives and dispatch, as the runtime carries them out.

use ir::program::{
    Chunk, CollectiveKind, Direction, Group, Layout, Message, Op, Pass, Payload, Peer, RankSet, Role, Stream,
    UnitRange, UnitTensor,
};
use ir::{
    AdamW, AttentionKernel, Axis, Bytes, ChunkId, CollectiveAlgorithm, GroupId, InstructionId, MeasuredOp, Measurement,
    MicrobatchId, MlpKind, Model, NormKind, Positions, Precision, Program, Recompute, RoleId, StageId, Workload,
    ZeroStage,
};

use super::sampling::summary;
use super::{Job, MeasureOptions};
use crate::runtime::bench::durations;

/// Iterations, of which the first warms up.
const ITERATIONS: u64 = 4;

/// Adds a job for every size of copies and collectives, and one for dispatch.
pub(super) fn jobs(options: &MeasureOptions, jobs: &mut Vec<Job>) {
    let sizes: &[u64] = if options.quick {
        &[4 << 10, 1 << 20]
    } else {
        &[96, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
    };
    for &size in sizes {
        jobs.push(Job { what: "copies between ranks", run: Box::new(move || copy(size)) });
    }
    for kind in CollectiveKind::ALL {
        for ranks in 2..=4 {
            for &size in sizes {
                // Whole FP32 parts for every member.
                let size = size.next_multiple_of(4 * u64::from(ranks));
                jobs.push(Job { what: "collectives", run: Box::new(move || collective(kind, ranks, size)) });
            }
        }
    }
    jobs.push(Job { what: "dispatch", run: Box::new(dispatch) });
}

/// Repetitions in one iteration: fewer of what takes long.
const fn repetitions(bytes: u64) -> u32 {
    match bytes {
        0..=65_536 => 40,
        65_537..=1_048_576 => 16,
        _ => 6,
    }
}

/// A message there and one back, in turn: each from the sender's arrival to the end of the receiver's copy.
fn copy(bytes: u64) -> Measurement {
    let mut program = program(2);
    let mut roles = [0u32, 1].map(|rank| Role::new(StageId::new(0), RankSet::run(rank, 1, 1)));
    let mut before: [Option<InstructionId>; 2] = [None; 2];
    let mut receives = [Vec::new(), Vec::new()];
    for number in 0..repetitions(bytes) {
        let (from, to) = if number.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        let message =
            Message { edge: ChunkId::new(0), direction: Direction::Forward, microbatch: MicrobatchId::new(number) };
        let peer = |to: usize, shift| Peer { role: RoleId::at(to), shift };
        let shift = if from == 0 { 1 } else { -1 };
        let send = Op::Send { peer: peer(to, shift), message, bytes: Bytes::new(bytes) };
        roles[from].push(send, Stream::ForwardSend, before[from].as_slice(), &[]);
        let receive = Op::Receive { peer: peer(from, -shift), message, bytes: Bytes::new(bytes) };
        let received = roles[to].push(receive, Stream::ForwardReceive, before[to].as_slice(), &[]);
        before[to] = Some(received);
        receives[to].push(received);
    }
    program.roles = roles.into();
    let measured = |rank: usize, id| receives[rank].contains(&id);
    let times = durations(program, elements(bytes), ITERATIONS, measured);
    summary(MeasuredOp::Copy { bytes: Bytes::new(bytes) }, times.into_iter().flatten().collect())
}

/// Collectives one after the other: each from the last arrival to the end of the last member.
fn collective(kind: CollectiveKind, ranks: u32, bytes: u64) -> Measurement {
    let mut program = program(ranks);
    let mut role = Role::new(StageId::new(0), RankSet::run(0, ranks, 1));
    let payload = match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => Payload::Gradients { chunk: ChunkId::new(0) },
        CollectiveKind::AllGather => Payload::Parameters { chunk: ChunkId::new(0) },
        CollectiveKind::AllToAll => Payload::Activation {
            tensor: UnitTensor::Heads,
            chunk: ChunkId::new(0),
            unit: 0,
            microbatch: MicrobatchId::new(0),
            pass: Pass::Forward,
        },
    };
    let mut before = None;
    for _ in 0..repetitions(bytes) {
        let op = Op::Collective { kind, group: GroupId::new(0), payload, bytes: Bytes::new(bytes) };
        before = Some(role.push(op, Stream::Tensor, before.as_slice(), &[]));
    }
    program.roles = vec![role];
    let of_ranks = durations(program, elements(bytes), ITERATIONS, |_, _| true);
    let slowest = (0..of_ranks[0].len()).filter_map(|i| of_ranks.iter().map(|times| times[i]).max());
    let op = MeasuredOp::Collective { kind: kind.name().to_owned(), ranks, bytes: Bytes::new(bytes) };
    summary(op, slowest.collect())
}

/// What one compute instruction takes beside its work: the distance of the starts of instructions that do nothing.
fn dispatch() -> Measurement {
    let mut program = program(1);
    let mut role = Role::new(StageId::new(0), RankSet::run(0, 1, 1));
    for _ in 0..500 {
        let (chunk, microbatch) = (ChunkId::new(0), MicrobatchId::new(0));
        let op = Op::Compute { pass: Pass::Forward, chunk, units: UnitRange { start: 0, end: 0 }, microbatch };
        role.push(op, Stream::Compute, &[], &[]);
    }
    program.roles = vec![role];
    summary(MeasuredOp::Dispatch, crate::runtime::bench::distances(program, ITERATIONS))
}

fn elements(bytes: u64) -> usize {
    usize::try_from(bytes / 4).expect("a few megabytes")
}

/// A program of `ranks` replicas with one group and no roles; of its model nothing is used.
fn program(ranks: u32) -> Program {
    let model = Model {
        name: "none".to_owned(),
        hidden: 1,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        ffn: 1,
        vocabulary: 1,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Learned { maximum: 1 },
        mlp: MlpKind::Gelu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    };
    let workload = Workload {
        sequence_length: 1,
        global_batch: ranks,
        iterations: 1,
        precision: Precision::Fp32,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 1,
        optimizer: AdamW::default(),
        seed: 0,
        recipe: ir::Recipe::default(),
    };
    let layout = Layout {
        data: ranks,
        tensor: 1,
        pipeline: 1,
        tensors: Vec::new(),
        sequence_parallel: false,
        microbatch_size: 1,
        microbatches: 1,
        shares: ir::Shares::EQUAL,
        zero: ZeroStage::Zero0,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
    };
    let chunk = Chunk {
        stage: StageId::new(0),
        first_layer: 0,
        layers: 1,
        embedding: true,
        head: true,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    let group = Group { axis: Axis::Data, members: RankSet::run(0, ranks, 1), shifts: RankSet::run(0, 1, 1) };
    Program {
        model,
        workload,
        layout,
        chunks: vec![chunk],
        groups: vec![group],
        roles: Vec::new(),
        placement: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_takes_little_beside_its_work() {
        // The best of a few: other load on the machine makes some later, and nothing makes one earlier.
        let best = (0..5).map(|_| dispatch().median.nanoseconds()).min().expect("five medians");
        let most = if cfg!(debug_assertions) { 20_000 } else { 2_000 };
        assert!(best < most, "{best} ns from the start of one instruction to that of the next");
    }
}

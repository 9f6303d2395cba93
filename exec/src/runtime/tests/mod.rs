//! The runtime with fake workers: order, rendezvous, emulation, failures.

mod beside;
pub(crate) mod documents;
mod swarm;
pub(crate) mod training;
mod transports;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ir::program::{
    Chunk, CollectiveKind, Direction, Group, HostCopy, Layout, Message, Op, Pass, Payload, Peer, RankSet, Role, Stream,
    UnitRange,
};
use ir::{
    AdamW, AttentionKernel, Axis, Bytes, BytesPerSecond, ChunkId, Cluster, CollectiveAlgorithm, DeviceKind,
    DeviceKindId, Fabric, GroupId, InstructionId, Link, MicrobatchId, MlpKind, Model, NodeGroup, NodeKind, NodeKindId,
    NormKind, Positions, Precision, Program, Rank, Recompute, RoleId, SimDuration, StageId, Workload, ZeroStage,
};

use super::clock::thread_cpu;
use super::crew::{Crew, Plan};
use super::emulation::wires;
use super::options::CpuOptions;
use super::script::Script;
use super::shared::Report;
use super::snapshot::Kept;
use super::worker::{NotFinite, Worker};
use super::{oversubscribed, slowdowns};
use crate::data::{Batch, Dataset};
use crate::device::Device;
use crate::state::{Got, Offered, Part, Progress};

/// Values of a message or collective.
const ELEMENTS: usize = 1000;

/// A worker that burns CPU time in compute instructions and passes numbers on.
///
/// Its tensor starts as its rank; a forward pass adds 1, a message replaces it, a collective delivers into `got`.
struct Fake {
    rank: Rank,
    burn: Duration,
    tensor: Vec<f32>,
    got: Vec<f32>,
    bundle: Vec<f32>,
    poisoned: bool,
    /// Pieces done of an instruction over the second unit, which pauses after each of the first two.
    pieces: u8,
    log: Log,
    /// Whose streams carry its exchanges.
    device: Option<Arc<dyn Device>>,
}

/// A backend whose ranks are processes as far as they know, joined by Unix sockets.
pub(crate) fn of_processes(cluster: Cluster, text: Vec<u8>, options: CpuOptions) -> super::CpuBackend {
    let world = u32::try_from(cluster.devices()).unwrap();
    let processes =
        super::processes::tests::over_unix(world, super::processes::Watchfulness::default(), super::processes::train);
    super::CpuBackend::over(cluster, text, options, processes)
}

/// The same, where what ranks tell each other comes this much later.
#[cfg(feature = "cuda")]
pub(crate) fn of_slow_processes(
    cluster: Cluster,
    text: Vec<u8>,
    options: CpuOptions,
    delay: Duration,
) -> super::CpuBackend {
    let world = u32::try_from(cluster.devices()).unwrap();
    let processes = super::processes::tests::over_slow_unix(world, delay, super::processes::train);
    super::CpuBackend::over(cluster, text, options, processes)
}

/// A microbatch of seven tokens, and a target more.
fn seven() -> Batch {
    Batch { tokens: vec![0; 7], targets: vec![0; 8], ..Batch::default() }
}

/// What workers did and got, across threads.
type Log = Arc<Mutex<Vec<(Rank, String, Vec<f32>)>>>;

impl Fake {
    fn new(rank: Rank, burn: Duration, log: Log) -> Self {
        let start = rank.raw() as f32;
        // Sums of these depend on their order.
        let tensor = (0..ELEMENTS).map(|i| start + 0.1 * i as f32 + 1e-3 / (1.0 + start)).collect();
        Self { rank, burn, tensor, got: Vec::new(), bundle: Vec::new(), poisoned: false, pieces: 0, log, device: None }
    }
    fn note(&self, what: impl Into<String>, values: &[f32]) {
        self.log.lock().unwrap().push((self.rank, what.into(), values.to_vec()));
    }
}

/// Parts of unequal lengths for so many members: to member `j` of rank `i` the first `3 i + j` numbers.
fn bundle(tensor: &[f32], rank: Rank, members: u32) -> Vec<f32> {
    let lengths = || (0..members as usize).map(|member| 3 * rank.index() + member);
    let mut out = Vec::new();
    crate::parcels::begin(&mut out, lengths());
    lengths().for_each(|length| out.extend_from_slice(&tensor[..length]));
    out
}

impl Worker for Fake {
    fn begin_iteration(&mut self, iteration: u64) {
        self.note(format!("begin {iteration}"), &[]);
        self.got.clear();
        self.pieces = 0;
    }
    fn feed(&mut self, microbatch: MicrobatchId, batch: &Batch) {
        assert_eq!(batch.tokens.len() + 1, batch.targets.len());
        self.note(format!("feed {microbatch}"), &[]);
    }
    fn compute(
        &mut self,
        pass: Pass,
        chunk: ChunkId,
        units: UnitRange,
        microbatch: MicrobatchId,
    ) -> Result<Progress, NotFinite> {
        let end = thread_cpu() + super::clock::nanoseconds(self.burn);
        while thread_cpu() < end {}
        if self.poisoned {
            return Err(NotFinite("weights of layer 3 hold NaN".to_owned()));
        }
        if units.start == 1 && self.pieces < 2 {
            self.pieces += 1;
            self.note(format!("piece {}", self.pieces), &[]);
            return Ok(Progress::Paused);
        }
        self.tensor.iter_mut().for_each(|x| *x += 1.0);
        self.note(format!("{} {chunk} {microbatch}", pass.name()), &[]);
        Ok(Progress::Ended)
    }
    fn continues(&self, _: ChunkId, _: UnitRange, _: MicrobatchId, under_way: bool) -> bool {
        self.pieces < 2 || !under_way && !self.got.is_empty()
    }
    fn offers(&self, _: CollectiveKind, payload: Payload) -> bool {
        self.pieces > 0 || !matches!(payload, Payload::Activation { .. })
    }
    fn contribution(&mut self, kind: CollectiveKind, payload: Payload) -> Offered<'_> {
        if payload == Payload::GradientNorm {
            self.tensor = super::reduce::split(f64::from(self.rank.raw()) + 1e-12).to_vec();
        }
        Offered::Host(match kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => &self.tensor,
            CollectiveKind::AllGather => &self.tensor[..10],
            CollectiveKind::AllToAll => {
                let Payload::UnitGradients { unit: members, .. } = payload else {
                    panic!("{payload:?} is not exchanged")
                };
                self.bundle = bundle(&self.tensor, self.rank, members);
                &self.bundle
            }
        })
    }
    fn deliver(&mut self, kind: CollectiveKind, _: Payload, values: Got<'_>) {
        let values = values.host();
        self.note(kind.name(), values);
        self.got = values.to_vec();
    }
    fn outgoing(&mut self, message: Message, _: Rank) -> Offered<'_> {
        self.note(format!("send {}", message.microbatch), &[]);
        Offered::Host(&self.tensor)
    }
    fn incoming(&mut self, message: Message, _: Rank, values: Got<'_>) {
        let values = values.host();
        self.note(format!("receive {}", message.microbatch), values);
        self.got = values.to_vec();
    }
    fn host_copy(&mut self, _: HostCopy, _: bool) {}
    fn gradient_norm(&mut self) -> Result<(), NotFinite> {
        Ok(())
    }
    fn optimizer(&mut self) -> Result<(), NotFinite> {
        Ok(())
    }
    fn loss(&self) -> Option<f64> {
        Some(f64::from(self.rank.raw()))
    }
    fn total_gradient_norm(&self) -> f64 {
        0.0
    }
    fn save(&self, put: &mut dyn FnMut(Kept, &Part<'_>)) {
        let name = format!("rank{}", self.rank.raw());
        let slice = std::slice::from_ref(&(0..1));
        put(Kept::Weight, &Part { name: &name, shape: &[1], slice, first: 0, data: (&self.tensor[..1]).into() });
    }
    fn bytes_held(&self) -> Bytes {
        Bytes::new(4 * (self.tensor.len() + self.got.len()) as u64)
    }
    fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.clone()
    }
    fn poison(&mut self) {
        self.poisoned = true;
    }
}

fn model() -> Model {
    Model {
        name: "fake".to_owned(),
        hidden: 8,
        layers: 2,
        heads: 1,
        kv_heads: 1,
        head_dim: 8,
        ffn: 8,
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

/// A program over `data x pipeline` ranks with no roles or groups yet.
fn program(data: u32, pipeline: u32, microbatches: u32) -> Program {
    let chunk = |stage: u32| Chunk {
        stage: StageId::new(stage),
        first_layer: stage,
        layers: 1,
        embedding: stage == 0,
        head: stage + 1 == pipeline,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    Program {
        model: model(),
        workload: Workload {
            sequence_length: 8,
            global_batch: data * microbatches,
            iterations: 2,
            precision: Precision::Fp32,
            attention: AttentionKernel::Fused,
            vocabulary_divisor: 1,
            optimizer: AdamW::default(),
            seed: 0,
            recipe: ir::Recipe::default(),
        },
        layout: Layout {
            data,
            tensor: 1,
            pipeline,
            tensors: Vec::new(),
            sequence_parallel: false,
            microbatch_size: 1,
            microbatches,
            shares: ir::Shares::EQUAL,
            zero: ZeroStage::Zero0,
            collective: CollectiveAlgorithm::Automatic,
            mesh: ir::Mesh::default(),
            sharing: ir::Sharing::default(),
        },
        chunks: (0..pipeline).map(chunk).collect(),
        groups: Vec::new(),
        roles: Vec::new(),
        placement: Vec::new(),
    }
}

fn forward(chunk: u32, microbatch: u32) -> Op {
    Op::Compute {
        pass: Pass::Forward,
        chunk: ChunkId::new(chunk),
        units: UnitRange { start: 0, end: 1 },
        microbatch: MicrobatchId::new(microbatch),
    }
}

fn message(microbatch: u32) -> Message {
    Message { edge: ChunkId::new(0), direction: Direction::Forward, microbatch: MicrobatchId::new(microbatch) }
}

const BYTES: Bytes = Bytes::new(4 * ELEMENTS as u64);

/// Two stages: the first computes and sends every microbatch, the second receives and computes it. Even instruction
/// ids of the first compute and odd ones send; even ones of the second receive and odd ones compute.
fn relay(microbatches: u32) -> Program {
    let mut program = program(1, 2, microbatches);
    let mut first = Role::new(StageId::new(0), RankSet::run(0, 1, 1));
    let mut second = Role::new(StageId::new(1), RankSet::run(1, 1, 1));
    for m in 0..microbatches {
        let done = first.push(forward(0, m), Stream::Compute, &[], &[]);
        let peer = Peer { role: RoleId::new(1), shift: 1 };
        first.push(Op::Send { peer, message: message(m), bytes: BYTES }, Stream::ForwardSend, &[done], &[]);
        let peer = Peer { role: RoleId::new(0), shift: -1 };
        let receive = Op::Receive { peer, message: message(m), bytes: BYTES };
        let there = second.push(receive, Stream::ForwardReceive, &[], &[]);
        second.push(forward(1, m), Stream::Compute, &[there], &[]);
    }
    program.roles = vec![first, second];
    program
}

/// `ranks` replicas that compute and then carry out one collective.
fn collective(ranks: u32, kind: CollectiveKind, payload: Payload) -> Program {
    let mut program = program(ranks, 1, 1);
    program.groups =
        vec![Group { axis: Axis::Data, members: RankSet::run(0, ranks, 1), shifts: RankSet::run(0, 1, 1) }];
    let mut role = Role::new(StageId::new(0), RankSet::run(0, ranks, 1));
    let done = role.push(forward(0, 0), Stream::Compute, &[], &[]);
    let op = Op::Collective { kind, group: GroupId::new(0), payload, bytes: BYTES };
    role.push(op, Stream::Data, &[done], &[]);
    program.roles = vec![role];
    program
}

/// Nodes of one device each, joined by a network of the given rate and latency.
fn cluster(slowdowns: &[f64], bandwidth: f64, latency_us: u64) -> Cluster {
    let rate = |rate| BytesPerSecond::new(rate).unwrap();
    let link = |name: &str, bandwidth| Link {
        name: name.to_owned(),
        bandwidth: rate(bandwidth),
        latency: SimDuration::from_nanoseconds(1000 * latency_us),
        efficiency: None,
    };
    let device = |slowdown: &f64| DeviceKind {
        name: "cpu-core".to_owned(),
        calibration: "cpu".to_owned(),
        peak: Vec::new(),
        memory: Bytes::from_gib(1),
        memory_bandwidth: rate(1e10),
        multiprocessors: 1,
        slowdown: *slowdown,
        tdp_watts: None,
        usd_per_hour: None,
        price_source: None,
        source: String::new(),
    };
    let node = |index: usize| NodeKind {
        name: format!("node{index}"),
        devices: vec![DeviceKindId::at(index)],
        domain_size: 1,
        domain_link: link("memory", 1e10),
        host_link: link("host", 1e10),
        nics: 1,
        nic: link("nic", bandwidth),
    };
    Cluster {
        device_kinds: slowdowns.iter().map(device).collect(),
        node_kinds: (0..slowdowns.len()).map(node).collect(),
        groups: (0..slowdowns.len()).map(|i| NodeGroup { kind: NodeKindId::at(i), count: 1 }).collect(),
        fabric: Fabric::one_switch(),
    }
}

/// Nodes of `size` devices each, one domain a node.
fn nodes(slowdowns: &[f64], size: usize, bandwidth: f64, latency_us: u64) -> Cluster {
    let mut cluster = cluster(slowdowns, bandwidth, latency_us);
    cluster.node_kinds.truncate(slowdowns.len() / size);
    cluster.groups.truncate(slowdowns.len() / size);
    for (index, kind) in cluster.node_kinds.iter_mut().enumerate() {
        kind.devices = (index * size..(index + 1) * size).map(DeviceKindId::at).collect();
        kind.domain_size = u32::try_from(size).unwrap();
    }
    cluster
}

/// The same devices in one domain of one node.
pub(crate) fn domain(slowdowns: &[f64]) -> Cluster {
    nodes(slowdowns, slowdowns.len(), 1e9, 1)
}

fn crew(program: Program, cluster: &Cluster, burn: Duration, options: CpuOptions) -> (Crew, Log) {
    let program = Arc::new(program);
    let script = Arc::new(Script::new(&program));
    let (wires, capacities) = wires(&program, cluster, &script);
    let slowdowns = slowdowns(&program, cluster);
    let log = Log::default();
    let of_workers = Arc::clone(&log);
    let plan = Plan { program, script, wires, capacities, slowdowns };
    let build = move |rank| Ok(Fake::new(rank, burn, Arc::clone(&of_workers)));
    let crew = Crew::start(plan, options, build, |_, _, _| seven()).unwrap();
    (crew, log)
}

fn milliseconds(report: &Report, instruction: u32) -> (f64, f64) {
    let span = report.lane.spans[InstructionId::new(instruction).index()];
    (span.start.seconds() * 1e3, span.end.seconds() * 1e3)
}

fn taken(log: &Log, what: &str) -> Vec<(Rank, Vec<f32>)> {
    let log = log.lock().unwrap();
    let mut taken: Vec<_> =
        log.iter().filter(|(_, which, _)| which == what).map(|(rank, _, values)| (*rank, values.clone())).collect();
    taken.sort_by_key(|(rank, _)| *rank);
    taken
}

/// How far the best of several iterations may be from what is emulated, in milliseconds: other load on the machine makes
/// single ones later, and nothing may make one earlier.
const TOLERANCE: f64 = 0.5;

/// Tries until `good` holds of an iteration's reports; a busy machine may take a few.
fn until_undisturbed(crew: &Crew, mut good: impl FnMut(&[Report]) -> bool) {
    assert!((0..100).any(|iteration| good(&crew.iterate(iteration).unwrap())), "no iteration out of 100 was on time");
}

#[test]
fn a_slower_device_takes_its_factor() {
    let (crew, _) = crew(relay(4), &domain(&[1.0, 3.0]), Duration::from_millis(1), CpuOptions::default());
    until_undisturbed(&crew, |reports| {
        let spans = (0..4).map(|m| milliseconds(&reports[1], 2 * m + 1));
        let lengths: Vec<f64> = spans.map(|(start, end)| end - start).collect();
        assert!(lengths.iter().all(|length| *length >= 3.0), "{lengths:?} ms, not 3 x 1 or more");
        lengths.iter().all(|length| *length < 3.0 + TOLERANCE)
    });
}

#[test]
fn an_emulated_link_delays_and_overlaps_with_compute() {
    // 4,000 bytes at 1 MB/s are 4 ms, and 2 ms of latency: 6 ms a message, one after the other on the stream.
    let (crew, _) = crew(relay(4), &cluster(&[1.0, 1.0], 1e6, 2000), Duration::from_micros(500), CpuOptions::default());
    until_undisturbed(&crew, |reports| {
        let sends: Vec<_> = (0..4).map(|m| milliseconds(&reports[0], 2 * m + 1)).collect();
        let receives: Vec<_> = (0..4).map(|m| milliseconds(&reports[1], 2 * m)).collect();
        assert_eq!(sends, receives);
        for (start, end) in &sends {
            assert!((end - start - 6.0).abs() < 1e-3, "{start} to {end} ms");
        }
        let uses: Vec<f64> = (0..4).map(|m| milliseconds(&reports[1], 2 * m + 1).0).collect();
        let late = |(got, used): (&(f64, f64), &f64)| used - got.1;
        let late: Vec<f64> = receives.iter().zip(&uses).map(late).collect();
        assert!(late.iter().all(|late| *late >= 0.0), "used {late:?} ms after it came");
        // The sender has all four made while the first is on its way, and each follows the one before at once.
        let back_to_back = sends.windows(2).all(|pair| (pair[1].0 - pair[0].1).abs() < 1e-6);
        milliseconds(&reports[0], 6).1 < sends[0].1 && back_to_back && late.iter().all(|late| *late < TOLERANCE)
    });
}

#[test]
fn an_emulated_ring_takes_its_wire_time() {
    let gradients = Payload::Gradients { chunk: ChunkId::new(0) };
    // Rings of 4: all-reduce moves 2 x 3/4 x 4,000 bytes in 6 steps, the others half of that.
    for (kind, expect) in [(CollectiveKind::AllReduce, 6.0 + 0.6), (CollectiveKind::ReduceScatter, 3.0 + 0.3)] {
        let cluster = cluster(&[1.0; 4], 1e6, 100);
        let (crew, _) = crew(collective(4, kind, gradients), &cluster, Duration::ZERO, CpuOptions::default());
        for report in crew.iterate(0).unwrap() {
            let (start, end) = milliseconds(&report, 1);
            assert!((end - start - expect).abs() < 1e-3, "{} took {} ms", kind.name(), end - start);
        }
    }
}

#[test]
fn collectives_follow_one_another_over_an_emulated_link() {
    // Nothing is computed between them: what lets each begin is only that the one before has ended on the network.
    let mut program = collective(2, CollectiveKind::AllReduce, Payload::GradientNorm);
    let mut before = InstructionId::new(1);
    for stream in [Stream::Data, Stream::Tensor, Stream::Tensor, Stream::Data] {
        let op = *program.roles[0].instruction(InstructionId::new(1));
        before = program.roles[0].push(op.op, stream, &[before], &[]);
    }
    let options = CpuOptions { stall_timeout: Duration::from_millis(500), ..CpuOptions::default() };
    let (crew, _) = crew(program, &cluster(&[1.0; 2], 1e6, 100), Duration::ZERO, options);
    for iteration in 0..5 {
        for report in crew.iterate(iteration).unwrap() {
            // Each takes 4 ms for its 4,000 bytes and twice the latency.
            let spans: Vec<_> = (1..6).map(|instruction| milliseconds(&report, instruction)).collect();
            assert!(spans.iter().all(|(start, end)| (end - start - 4.2).abs() < 1e-3), "{spans:?}");
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
        }
    }
}

#[test]
fn oversubscription_counts_emulated_devices_by_their_share() {
    let program = program(4, 1, 1);
    let check = |slowdowns: [f64; 4], cores, expect| {
        assert_eq!(oversubscribed(&program, &cluster(&slowdowns, 1e9, 1), cores), expect, "{slowdowns:?}");
    };
    check([1.0; 4], 4, false);
    check([1.0; 4], 3, true);
    check([4.0; 4], 2, false);
    check([4.0; 4], 1, true);
    check([1.0, 2.0, 4.0, 4.0], 2, true);
    check([1.0, 4.0, 8.0, 8.0], 2, false);
}

/// Each sequence of the global batch is one replica's, once, in order, whatever the shares are.
#[test]
fn every_sequence_is_somebodys() {
    let data = Dataset::new(crate::data::generate(5, 4_000), 8, 3).unwrap();
    for (counts, size) in [(vec![2, 2, 2], 1), (vec![3, 1, 2], 2), (vec![1, 7], 3), (vec![4], 1)] {
        let mut program = program(u32::try_from(counts.len()).unwrap(), 2, 0);
        (program.layout.microbatches, program.layout.shares) = ir::Shares::of(counts.clone());
        program.layout.microbatch_size = size;
        program.workload.global_batch = size * counts.iter().sum::<u32>();
        let all = program.workload.global_batch;
        program.workload.sequence_length = data.sequence_length();
        let batch = data.batch(u64::from(all), all);
        for position in 0..2 {
            let mut found = Batch { counted: batch.counted, ..Batch::default() };
            for (replica, count) in (0u32..).zip(&counts) {
                let rank = Rank::new(position * program.layout.per_position() + replica);
                for microbatch in (0..*count).map(ir::MicrobatchId::new) {
                    let part = super::backend::part(&program, &batch, rank, microbatch);
                    found.tokens.extend(part.tokens);
                    found.targets.extend(part.targets);
                }
            }
            assert!(found == batch, "{counts:?} of {size}");
        }
    }
}

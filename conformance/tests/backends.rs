//! One suite over every backend: what [`ir::Backend`] promises, on random cases.
//!
//! A machine is instantiated with one line at the end of this file.

use std::sync::Arc;

use exec::runtime::{CpuBackend, CpuOptions};
use ir::{
    AttentionKernel, Backend, BackendError, Bytes, Clock, Cluster, IterationOutcome, Lane, Precision, Program,
    SimDuration, Timeline, VerifiedProgram,
};
use sched::Folding;
use sim::Simulator;
use trainyard_conformance::clusters;
use trainyard_conformance::dice::for_each_seed;
use trainyard_conformance::swarm::{Case, sentences};

/// A backend under test.
trait Machine {
    type Backend: Backend;
    const CLOCK: Clock;
    /// How far clocks of ranks may be apart.
    const SLACK: SimDuration;
    /// Seeds of each swarm.
    const SEEDS: u64;
    fn of(cluster: &Cluster) -> Self::Backend;
    /// A case that it supports.
    fn case(seed: u64) -> Case;
    /// A case that it does not support, for at least two reasons, and the subjects of these.
    fn unsupported() -> (Case, Cluster, Vec<&'static str>);
    /// Whether the machine is there at all.
    fn is_there() -> bool {
        true
    }
    /// Whether two outcomes are equal as far as the machine's promise goes.
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool;
    /// Whether a timeline stands for all ranks of its program.
    fn covers(timeline: &Timeline, program: &Program) -> bool;
}

struct Simulated;

impl Machine for Simulated {
    type Backend = Simulator;
    const CLOCK: Clock = Clock::Simulated;
    const SLACK: SimDuration = SimDuration::ZERO;
    const SEEDS: u64 = 400;
    fn of(cluster: &Cluster) -> Simulator {
        Simulator::new(clusters::priced(cluster.clone()))
    }
    fn case(seed: u64) -> Case {
        Case::spread(seed, 32)
    }
    fn unsupported() -> (Case, Cluster, Vec<&'static str>) {
        let case =
            (0..).map(|seed| Case::tiny(seed, 8)).find(|case| case.plan.world() > 1).expect("some case of ranks");
        let mut cluster = clusters::dgx_a100(2);
        let mut old = cluster.device_kinds[0].clone();
        cluster.device_kinds[0].peak.retain(|(precision, _)| *precision != Precision::Fp32);
        old.peak.clone_from(&cluster.device_kinds[0].peak);
        old.name = "another".into();
        cluster.device_kinds.push(old);
        cluster.node_kinds[0].devices[1] = ir::DeviceKindId::new(1);
        (case, cluster, vec!["training.precision", "training.precision"])
    }
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool {
        a.timeline.digest() == b.timeline.digest() && a.timeline.lanes == b.timeline.lanes
    }
    fn covers(timeline: &Timeline, program: &Program) -> bool {
        let shown = |lane: &Lane| lane.multiplicity == program.roles[lane.role.index()].ranks.len();
        timeline.lanes.len() == program.roles.len() && timeline.lanes.iter().all(shown)
    }
}

struct Trained;

impl Machine for Trained {
    type Backend = CpuBackend;
    const CLOCK: Clock = Clock::Measured;
    // Ranks are threads of one process and read one clock.
    const SLACK: SimDuration = SimDuration::ZERO;
    const SEEDS: u64 = 60;
    fn of(cluster: &Cluster) -> CpuBackend {
        CpuBackend::new(cluster.clone(), exec::data::generate(1, 20_000), CpuOptions::default())
    }
    fn case(seed: u64) -> Case {
        if seed.is_multiple_of(2) { Case::tiny(seed, 8) } else { Case::tiny_wide(seed, 8) }
    }
    fn unsupported() -> (Case, Cluster, Vec<&'static str>) {
        let mut case = Case::tiny(3, 8);
        case.workload.precision = Precision::Fp16;
        case.workload.attention = AttentionKernel::Plain;
        case.model.vocabulary = 100;
        case.cluster = clusters::dgx_a100(1);
        let cluster = case.cluster.clone();
        (case, cluster, vec!["training.precision", "training.attention", "model.vocabulary", "cluster"])
    }
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool {
        let bits =
            |outcome: &IterationOutcome| (outcome.loss.map(f64::to_bits), outcome.gradient_norm.map(f64::to_bits));
        a.loss.is_some() && bits(a) == bits(b)
    }
    fn covers(timeline: &Timeline, program: &Program) -> bool {
        let rank = |(index, lane): (usize, &Lane)| lane.rank.index() == index && lane.multiplicity == 1;
        timeline.lanes.len() == program.world() as usize && timeline.lanes.iter().enumerate().all(rank)
    }
}

/// A case of a swarm that a backend of ranks on devices supports: without experts and the like.
fn on_devices(seed: u64, backend: impl Fn(&Cluster) -> CpuBackend) -> Case {
    let of = |number| Trained::case(1000 * seed + number);
    let supported = |case: &Case| backend(&case.cluster).unsupported(&case.program(Folding::Folded)).is_empty();
    (0..1000).map(of).find(supported).expect("one of a thousand cases that devices carry out")
}

fn unsupported_on_devices() -> (Case, Cluster, Vec<&'static str>) {
    let with_experts = |case: &Case| case.model.variants.experts.is_some();
    let mut case = (0..).map(|seed| Case::tiny_wide(seed, 8)).find(with_experts).expect("one with experts");
    case.workload.attention = AttentionKernel::Plain;
    case.model.vocabulary = 100;
    let cluster = case.cluster.clone();
    (case, cluster, vec!["training.attention", "model.vocabulary", "model.experts"])
}

/// Ranks that compute on devices, of which there are as many as ranks: the CPU as a device.
struct OnDevices;

impl Machine for OnDevices {
    type Backend = CpuBackend;
    const CLOCK: Clock = Clock::Measured;
    const SLACK: SimDuration = SimDuration::ZERO;
    const SEEDS: u64 = 24;
    fn of(cluster: &Cluster) -> CpuBackend {
        let options = CpuOptions { devices: Some(Arc::new(exec::device::CpuDevices)), ..CpuOptions::default() };
        CpuBackend::new(cluster.clone(), exec::data::generate(1, 20_000), options)
    }
    fn case(seed: u64) -> Case {
        on_devices(seed, Self::of)
    }
    fn unsupported() -> (Case, Cluster, Vec<&'static str>) {
        unsupported_on_devices()
    }
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool {
        Trained::same(a, b)
    }
    fn covers(timeline: &Timeline, program: &Program) -> bool {
        Trained::covers(timeline, program)
    }
}

/// Ranks on this machine's GPUs, eight to each; where there are none, nothing is tested. `exec/device-check.sh emulated`
/// has one that is emulated.
struct OnGpus;

impl Machine for OnGpus {
    type Backend = CpuBackend;
    const CLOCK: Clock = Clock::Measured;
    const SLACK: SimDuration = SimDuration::ZERO;
    const SEEDS: u64 = 4;
    fn of(cluster: &Cluster) -> CpuBackend {
        let devices = exec::cuda::Gpus { ranks_per_gpu: 8, cache: std::env::var_os("CACHE").map(Into::into) };
        let options = CpuOptions { devices: Some(Arc::new(devices)), ..CpuOptions::default() };
        CpuBackend::new(cluster.clone(), exec::data::generate(1, 20_000), options)
    }
    fn case(seed: u64) -> Case {
        on_devices(seed, Self::of)
    }
    fn unsupported() -> (Case, Cluster, Vec<&'static str>) {
        unsupported_on_devices()
    }
    #[expect(clippy::print_stderr, reason = "how a test says that it did not run")]
    fn is_there() -> bool {
        let usable = exec::cuda::probe().usable();
        if let Err(why) = &usable {
            eprintln!("SKIP the suite on a GPU: {why}");
        }
        usable.is_ok()
    }
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool {
        Trained::same(a, b)
    }
    fn covers(timeline: &Timeline, program: &Program) -> bool {
        Trained::covers(timeline, program)
    }
}

/// Ranks with a GPU of this machine each, which exchange through NCCL; where there are fewer than eight, nothing is tested.
struct OnJoinedGpus;

impl Machine for OnJoinedGpus {
    type Backend = CpuBackend;
    const CLOCK: Clock = Clock::Measured;
    /// Clocks of emulated GPUs are known as well as their threads are woken in time.
    const SLACK: SimDuration = SimDuration::from_nanoseconds(100_000_000);
    const SEEDS: u64 = 8;
    fn of(cluster: &Cluster) -> CpuBackend {
        let devices = exec::cuda::Gpus { ranks_per_gpu: 1, cache: std::env::var_os("CACHE").map(Into::into) };
        let options = CpuOptions { devices: Some(Arc::new(devices)), ..CpuOptions::default() };
        CpuBackend::new(cluster.clone(), exec::data::generate(1, 20_000), options)
    }
    fn case(seed: u64) -> Case {
        on_devices(seed + 100, Self::of)
    }
    fn unsupported() -> (Case, Cluster, Vec<&'static str>) {
        unsupported_on_devices()
    }
    #[expect(clippy::print_stderr, reason = "how a test says that it did not run")]
    fn is_there() -> bool {
        let probe = exec::cuda::probe();
        let there = probe.usable().is_ok() && probe.gpus.len() >= 8 && probe.collectives.is_ready();
        if !there {
            eprintln!("SKIP the suite on GPUs that NCCL joins: there are {}", probe.gpus.len());
        }
        there
    }
    fn same(a: &IterationOutcome, b: &IterationOutcome) -> bool {
        Trained::same(a, b)
    }
    fn covers(timeline: &Timeline, program: &Program) -> bool {
        Trained::covers(timeline, program)
    }
}

/// The same losses and norms as the CPU's: FP32 sums in another order, and in BF16 what is rounded where.
fn trains_as_the_cpu<M: Machine>() {
    for_each_seed(M::SEEDS, |seed| {
        let case = M::case(seed);
        let program = case.program(Folding::Folded);
        let (mut backend, mut cpu) = (loaded::<M>(&case, &program), loaded::<Trained>(&case, &program));
        let tolerance = if case.workload.precision == Precision::Fp32 { 1e-4 } else { 1e-2 };
        for iteration in 0..4 {
            let (found, expected) = (iterate(&mut backend, iteration), iterate(&mut cpu, iteration));
            for (found, expected) in [(found.loss, expected.loss), (found.gradient_norm, expected.gradient_norm)] {
                let (found, expected) = (found.expect("a number"), expected.expect("a number"));
                let error = ((found - expected) / expected).abs();
                assert!(error <= tolerance, "iteration {iteration}: {found}, not {expected}\n{:#?}", case.plan);
            }
        }
    });
}

#[test]
fn ranks_on_devices_train_as_on_the_cpu() {
    trains_as_the_cpu::<OnDevices>();
}

#[test]
fn ranks_on_gpus_train_as_on_the_cpu() {
    if OnGpus::is_there() {
        trains_as_the_cpu::<OnGpus>();
    }
}

#[test]
fn ranks_on_gpus_that_nccl_joins_train_as_on_the_cpu() {
    if OnJoinedGpus::is_there() {
        trains_as_the_cpu::<OnJoinedGpus>();
    }
}

fn loaded<M: Machine>(case: &Case, program: &Arc<VerifiedProgram>) -> M::Backend {
    let mut backend = M::of(&case.cluster);
    let reasons = backend.unsupported(program);
    assert!(reasons.is_empty(), "{}", sentences(&reasons));
    backend.load(Arc::clone(program)).unwrap_or_else(|error| panic!("supported, but not loaded: {error}"));
    backend
}

fn iterate(backend: &mut impl Backend, iteration: u64) -> IterationOutcome {
    backend.iterate(iteration).unwrap_or_else(|error| panic!("iteration {iteration}: {error}"))
}

/// A source of tokens slower than any iteration sets the pace of both machines, and their timelines call it the same.
#[test]
fn slow_input_stalls_a_run_as_it_stalls_its_simulation() {
    for_each_seed(6, |seed| {
        let mut case = Case::tiny(seed, 4);
        let program = case.program(Folding::Folded);
        // As many tokens of the replica with the most as take 50 ms, far longer than an iteration of a tiny case.
        let sequences = f64::from(program.layout.microbatch_size) * f64::from(program.layout.microbatches);
        let tokens = sequences * f64::from(program.workload.sequence_length);
        case.workload.recipe.input_tokens_per_second = Some(tokens / 0.05);
        let program = case.program(Folding::Folded);
        let predicted = iterate(&mut loaded::<Simulated>(&case, &program), 0).timeline;
        assert_eq!(predicted.end(), ir::SimTime::from_nanoseconds(50_000_000));
        let mut trained = loaded::<Trained>(&case, &program);
        let measured: Vec<Timeline> = (0..4).map(|iteration| iterate(&mut trained, iteration).timeline).collect();
        let measured: Vec<&Timeline> = measured.iter().skip(1).collect();
        let comparison =
            reports::compare::compare(&program, &predicted, &measured).unwrap_or_else(|found| panic!("{found:?}"));
        let stall = comparison.input_stall;
        assert!(stall.predicted_ns > 0 && stall.measured_ns > 0, "{stall:?}");
        let (_, end) = reports::metrics::bounds(measured[0]);
        let metrics = reports::Metrics::of(&program, measured[0], None, &[]);
        assert_eq!(metrics.time.get(reports::Activity::InputStall), measured[0].input_wait.nanoseconds());
        assert!(metrics.iteration_ns >= end - measured[0].input_wait.nanoseconds());
    });
}

fn carries_out_what_it_supports<M: Machine>() {
    for_each_seed(M::SEEDS, |seed| {
        let case = M::case(seed);
        let program = case.program(Folding::Folded);
        let mut backend = loaded::<M>(&case, &program);
        assert_eq!(backend.clock(), M::CLOCK);
        let mut settled: Vec<Bytes> = Vec::new();
        for iteration in 0..3 {
            let timeline = iterate(&mut backend, iteration).timeline;
            let faults = timeline.faults(&program, M::SLACK);
            assert!(faults.is_empty(), "{}\n{:#?}", sentences(&faults), case.plan);
            assert_eq!((timeline.clock, timeline.iteration), (M::CLOCK, iteration));
            assert_eq!(timeline.program, program.digest(), "the timeline is of another program");
            assert!(M::covers(&timeline, &program), "not every rank is on the timeline");
            let ends = timeline.lanes.iter().map(|lane| memory_after::<M>(&program, lane)).collect();
            if iteration > 1 {
                assert_eq!(ends, settled, "memory grows from iteration to iteration");
            }
            settled = ends;
        }
    });
}

/// Memory at the end of an iteration. Simulated, it is what is resident, and never less in between; measured, it is what
/// the process really holds, which settles with the first iteration.
fn memory_after<M: Machine>(program: &Program, lane: &Lane) -> Bytes {
    let buffers = &program.roles[lane.role.index()].buffers;
    let resident: Bytes = buffers.iter().filter(|buffer| buffer.resident).map(|buffer| buffer.bytes).sum();
    let memory = &lane.memory;
    assert!(memory.is_sorted_by_key(|(time, _)| *time), "memory of {} runs backwards", lane.role);
    let last = memory[memory.len() - 1].1;
    match M::CLOCK {
        Clock::Simulated => {
            assert_eq!(
                (memory[0].1, last),
                (resident, resident),
                "{} starts or ends with more than is resident",
                lane.role
            );
            assert!(memory.iter().all(|(_, bytes)| *bytes >= resident), "{} falls below what is resident", lane.role);
        }
        Clock::Measured => {
            assert!(memory.iter().any(|(_, bytes)| *bytes > last), "{} never held an activation", lane.role)
        }
    }
    last
}

fn does_the_same_twice<M: Machine>() {
    for_each_seed(M::SEEDS / 4, |seed| {
        let case = M::case(seed);
        let program = case.program(Folding::Folded);
        let [mut one, mut other] = [(); 2].map(|()| loaded::<M>(&case, &program));
        for iteration in 0..3 {
            let (a, b) = (iterate(&mut one, iteration), iterate(&mut other, iteration));
            assert!(M::same(&a, &b), "iteration {iteration} of two equal runs differs: {:?} and {:?}", a.loss, b.loss);
        }
    });
}

/// A program that is replaced between iterations goes on as the new one would have, with the state of the old.
fn takes_another_program_between_iterations<M: Machine>() {
    for_each_seed(M::SEEDS / 4, |seed| {
        let case = M::case(seed);
        let (program, other) = (case.program(Folding::Folded), case.on_one_rank().program(Folding::Folded));
        let mut replaced = loaded::<M>(&case, &program);
        iterate(&mut replaced, 0);
        replaced.load(Arc::clone(&other)).unwrap_or_else(|error| panic!("{error}"));
        let mut fresh = loaded::<M>(&case, &other);
        iterate(&mut fresh, 0);
        let (after, expected) = (iterate(&mut replaced, 1), iterate(&mut fresh, 1));
        assert_eq!(after.timeline.program, other.digest());
        let faults = after.timeline.faults(&other, M::SLACK);
        assert!(faults.is_empty(), "{}", sentences(&faults));
        match (after.loss, expected.loss) {
            (Some(loss), Some(expected)) => {
                assert!((loss - expected).abs() <= 1e-4 * expected, "{loss} after {expected}: the state was not kept");
            }
            _ => assert!(M::same(&after, &expected)),
        }
    });
}

fn refuses_with_every_reason<M: Machine>() {
    let (case, cluster, subjects) = M::unsupported();
    let mut backend = M::of(&cluster);
    let program = case.program(Folding::Folded);
    let reasons = backend.unsupported(&program);
    let mut found: Vec<&str> = reasons.iter().map(|reason| reason.subject.as_str()).collect();
    found.sort_unstable();
    let mut expected = subjects;
    expected.sort_unstable();
    assert_eq!(found, expected, "{}", sentences(&reasons));
    match backend.load(program) {
        Err(BackendError::Unsupported(given)) => assert_eq!(given, reasons),
        other => panic!("loaded what it does not support: {other:?}"),
    }
}

fn refuses_a_program_that_is_larger_than_the_cluster<M: Machine>() {
    let mut case = M::case(0);
    let program =
        (0..).map(|seed| M::case(seed).program(Folding::Folded)).find(|p| p.world() > 4).expect("some large case");
    case.cluster.groups.truncate(1);
    case.cluster.groups[0].count = 1;
    let kind = case.cluster.groups[0].kind.index();
    case.cluster.node_kinds[kind].devices.truncate(1);
    case.cluster.node_kinds[kind].domain_size = 1;
    let backend = M::of(&case.cluster);
    assert!(!backend.unsupported(&program).is_empty(), "{} ranks on one device", program.world());
}

macro_rules! suite {
    ($($name:ident: $machine:ty;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn carries_out_what_it_supports() {
                if <$machine>::is_there() {
                    super::carries_out_what_it_supports::<$machine>();
                }
            }
            #[test]
            fn does_the_same_twice() {
                if <$machine>::is_there() {
                    super::does_the_same_twice::<$machine>();
                }
            }
            #[test]
            fn takes_another_program_between_iterations() {
                if <$machine>::is_there() {
                    super::takes_another_program_between_iterations::<$machine>();
                }
            }
            #[test]
            fn refuses_with_every_reason() {
                if <$machine>::is_there() {
                    super::refuses_with_every_reason::<$machine>();
                }
            }
            #[test]
            fn refuses_a_program_that_is_larger_than_the_cluster() {
                if <$machine>::is_there() {
                    super::refuses_a_program_that_is_larger_than_the_cluster::<$machine>();
                }
            }
        }
    )*};
}

suite! {
    simulator: Simulated;
    cpu: Trained;
    devices: OnDevices;
    cuda: OnGpus;
    cuda_joined: OnJoinedGpus;
}

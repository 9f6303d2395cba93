//! What holds of every carrier of messages and collectives: order, bits, spans, failures and who is named.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ir::program::{CollectiveKind, Op, Payload, Peer, RankSet, Role, Stream};
use ir::{BackendError, ChunkId, MicrobatchId, Program, Rank, RoleId, StageId, ZeroStage};

use super::training::{model, train, workload};
use super::{BYTES, ELEMENTS, Fake, Log, collective, domain, message, milliseconds, program, relay, seven, taken};
use crate::data::generate;
use crate::device::{CpuDevices, Devices};
use crate::runtime::crew::{Crew, Plan};
use crate::runtime::options::{CpuOptions, Fault, FaultKind};
use crate::runtime::processes::tests::{over_tcp, over_unix};
use crate::runtime::processes::{Job, Processes, Watchfulness};
use crate::runtime::script::Script;
use crate::runtime::shared::Report;
use crate::runtime::{CpuBackend, Snapshot};
use crate::state::tests::programs::{self, Division};

/// What carries messages and collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    Threads,
    Unix,
    Tcp,
    /// Streams of GPUs, joined by NCCL.
    #[cfg(feature = "cuda")]
    Nccl,
    /// The same of ranks that are processes.
    #[cfg(feature = "cuda")]
    NcclOfProcesses,
}

/// Those of this machine; on the emulated one, where a test of `cuda` lets these tests run again, that of its GPUs.
fn carriers() -> Vec<Carrier> {
    #[cfg(feature = "cuda")]
    if std::env::var_os("TRAINYARD_CARRIER").is_some_and(|carrier| carrier == "nccl") {
        return vec![Carrier::Nccl, Carrier::NcclOfProcesses];
    }
    vec![Carrier::Threads, Carrier::Unix, Carrier::Tcp]
}

/// Ranks with fake workers.
enum Ranks {
    Threads(Crew),
    Processes(Processes, Duration),
}

impl Ranks {
    fn iterate(&mut self, iteration: u64) -> Result<Vec<Report>, BackendError> {
        match self {
            Self::Threads(crew) => crew.iterate(iteration),
            Self::Processes(processes, stall) => processes.iterate(iteration, *stall, |_, _| seven()),
        }
    }
}

fn try_start(
    carrier: Carrier,
    program: Program,
    options: CpuOptions,
    build: impl Fn(Rank) -> Fake + Clone + Send + Sync + 'static,
) -> Result<Ranks, BackendError> {
    let program = Arc::new(program);
    let script = Arc::new(Script::new(&program));
    let world = program.world();
    let watchfulness = Watchfulness { interrupt: Arc::clone(&options.interrupt), ..Watchfulness::default() };
    let of_job = {
        let build = build.clone();
        move |rank, _: &Arc<Program>, _: Job| Ok(build(rank))
    };
    let mut processes = match carrier {
        Carrier::Threads => {
            let (wires, slowdowns) = (vec![None; script.transactions.len()], vec![1.0; world as usize]);
            let plan = Plan { program, script, wires, capacities: Vec::new(), slowdowns };
            let build = move |rank| Ok(build(rank));
            return Crew::start(plan, options, build, |_, _, _| seven()).map(Ranks::Threads);
        }
        #[cfg(feature = "cuda")]
        Carrier::Nccl => {
            let (wires, slowdowns) = (vec![None; script.transactions.len()], vec![1.0; world as usize]);
            let plan = Plan { program, script, wires, capacities: Vec::new(), slowdowns };
            let gpus = Arc::new(crate::cuda::Gpus::default());
            let options = CpuOptions { devices: Some(Arc::clone(&gpus) as Arc<dyn Devices>), ..options };
            let build = move |rank: Rank| {
                let device = gpus.open(rank.raw()).map_err(|error| error.to_string())?;
                Ok(Fake { device: Some(device), ..build(rank) })
            };
            return Crew::start(plan, options, build, |_, _, _| seven()).map(Ranks::Threads);
        }
        #[cfg(feature = "cuda")]
        Carrier::NcclOfProcesses => over_unix(world, watchfulness, move |rank: Rank, _: &Arc<Program>, _: Job| {
            let device = crate::cuda::Gpus::default().open(rank.raw()).map_err(|error| error.to_string())?;
            Ok(Fake { device: Some(device), ..build(rank) })
        }),
        Carrier::Unix => over_unix(world, watchfulness, of_job),
        Carrier::Tcp => over_tcp(world, watchfulness, of_job),
    };
    let (mut devices, mut ticket) = (None, None);
    #[cfg(feature = "cuda")]
    if carrier == Carrier::NcclOfProcesses {
        let gpus = crate::cuda::Gpus::default();
        (devices, ticket) = (Some(gpus.elsewhere()), gpus.links(world).unwrap().map(|links| links.ticket()));
    }
    let text = ir::program::text::print(&program);
    let job = |_| Job {
        program: text.clone(),
        slowdown: 1.0,
        faults: options.faults.clone(),
        devices: devices.clone(),
        ticket: ticket.clone(),
        weights: None,
        moments: None,
        checkpoint: None,
    };
    processes.load(&program, &script, job)?;
    Ok(Ranks::Processes(processes, options.stall_timeout))
}

fn start(carrier: Carrier, program: Program, burn: Duration, options: CpuOptions) -> (Ranks, Log) {
    let log = Log::default();
    let of_workers = Arc::clone(&log);
    let build = move |rank| Fake::new(rank, burn, Arc::clone(&of_workers));
    (try_start(carrier, program, options, build).unwrap(), log)
}

#[test]
fn messages_arrive_in_order_and_spans_keep_to_the_program() {
    for carrier in carriers() {
        let (mut ranks, log) = start(carrier, relay(6), Duration::ZERO, CpuOptions::default());
        for iteration in 0..3 {
            let reports = ranks.iterate(iteration).unwrap();
            assert_eq!(reports.iter().map(|r| r.loss).collect::<Vec<_>>(), [Some(0.0), Some(1.0)]);
            assert_relayed(carrier, &reports);
        }
        drop(ranks);
        let log = log.lock().unwrap();
        let of = |number, word: &str| -> Vec<String> {
            let own = log.iter().filter(|(rank, what, _)| rank.raw() == number && what.starts_with(word));
            own.map(|(_, what, _)| what.clone()).take(6).collect()
        };
        let all = |word: &str| -> Vec<String> { (0..6).map(|m| format!("{word} m{m}")).collect() };
        assert_eq!(of(1, "receive"), all("receive"), "{carrier:?}");
        assert_eq!(of(0, "begin"), ["begin 0", "begin 1", "begin 2"], "{carrier:?}");
        assert_eq!(of(1, "feed"), all("feed"), "{carrier:?}");
    }
}

/// The spans of a relay of six microbatches.
fn assert_relayed(carrier: Carrier, reports: &[Report]) {
    let [first, second] = reports else { panic!("two ranks") };
    for m in 0..6 {
        let (made, (sent_start, sent)) = (milliseconds(first, 2 * m).1, milliseconds(first, 2 * m + 1));
        let ((_, got), used) = (milliseconds(second, 2 * m), milliseconds(second, 2 * m + 1).0);
        assert!(made <= sent_start && sent_start <= sent && got <= used);
        // Devices say when their own end was over.
        let devices = !matches!(carrier, Carrier::Threads | Carrier::Unix | Carrier::Tcp);
        assert!(devices || (sent - got).abs() < 1e-9);
    }
    for report in reports {
        for stream in [0, 1] {
            let spans: Vec<_> = report.lane.spans.iter().skip(stream).step_by(2).collect();
            assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start), "{spans:?}");
        }
        assert!(report.lane.spans.iter().all(|span| span.issued <= span.start && span.start <= span.end));
        assert!(report.lane.memory.len() <= 3, "memory changes twice: {:?}", report.lane.memory);
    }
}

#[test]
fn collectives_give_all_members_the_sum_in_group_order() {
    let gradients = Payload::Gradients { chunk: ChunkId::new(0) };
    let kinds = [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];
    for carrier in carriers() {
        for ranks in [1u32, 2, 3, 4] {
            let divides = ELEMENTS.is_multiple_of(ranks as usize);
            for kind in kinds.into_iter().filter(|kind| *kind != CollectiveKind::ReduceScatter || divides) {
                let (mut running, log) =
                    start(carrier, collective(ranks, kind, gradients), Duration::ZERO, CpuOptions::default());
                running.iterate(0).unwrap();
                let got = taken(&log, kind.name());
                assert_eq!(got.len(), ranks as usize);
                for (rank, values) in got {
                    // Bit for bit.
                    let expect = combined(ranks, kind, rank.index());
                    assert_eq!(values, expect, "{} over {ranks} on rank {rank}, {carrier:?}", kind.name());
                }
            }
        }
        for ranks in [1u32, 2, 4] {
            // The unit says how many take part.
            let (chunk, microbatch) = (ChunkId::new(0), MicrobatchId::new(0));
            let payload = Payload::UnitGradients { chunk, unit: ranks, experts: true, microbatch };
            let exchange = collective(ranks, CollectiveKind::AllToAll, payload);
            let (mut running, log) = start(carrier, exchange, Duration::ZERO, CpuOptions::default());
            running.iterate(0).unwrap();
            let got = taken(&log, "all-to-all");
            assert_eq!(got.len(), ranks as usize);
            for (rank, values) in got {
                let expect = combined(ranks, CollectiveKind::AllToAll, rank.index());
                assert_eq!(values, expect, "all-to-all over {ranks} on rank {rank}, {carrier:?}");
            }
        }
        let norm = collective(3, CollectiveKind::AllReduce, Payload::GradientNorm);
        let (mut running, log) = start(carrier, norm, Duration::ZERO, CpuOptions::default());
        running.iterate(0).unwrap();
        for (_, values) in taken(&log, "all-reduce") {
            assert!((crate::runtime::reduce::join(&values) - (3.0 + 3e-12)).abs() < 1e-15);
        }
    }
}

/// What a member gets out of a collective of fake workers.
fn combined(ranks: u32, kind: CollectiveKind, member: usize) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..ranks)
        .map(|rank| Fake::new(Rank::new(rank), Duration::ZERO, Log::default()).tensor)
        .map(|tensor| tensor.iter().map(|x| x + 1.0).collect())
        .collect();
    let mut sum = parts[0].clone();
    for part in &parts[1..] {
        sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
    }
    let size = ELEMENTS / ranks as usize;
    match kind {
        CollectiveKind::AllReduce => sum,
        CollectiveKind::AllGather => parts.iter().flat_map(|part| part[..10].to_vec()).collect(),
        CollectiveKind::ReduceScatter => sum[member * size..(member + 1) * size].to_vec(),
        CollectiveKind::AllToAll => {
            let lengths = (0..parts.len()).map(|rank| 3 * rank + member);
            let mine = parts.iter().zip(lengths.clone()).flat_map(|(part, length)| &part[..length]);
            lengths.map(crate::parcels::number).chain(mine.copied()).collect()
        }
    }
}

/// Runs a relay with a fault and returns the error and how long it took to come and to end all ranks.
fn fault(carrier: Carrier, kind: FaultKind, rank: u32) -> (BackendError, Duration) {
    let fault = Fault { rank: Rank::new(rank), iteration: 1, instruction: None, kind };
    let options =
        CpuOptions { stall_timeout: Duration::from_millis(200), faults: vec![fault], ..CpuOptions::default() };
    let (mut ranks, _) = start(carrier, relay(3), Duration::ZERO, options);
    ranks.iterate(0).unwrap();
    let begin = Instant::now();
    let error = ranks.iterate(1).unwrap_err();
    drop(ranks);
    (error, begin.elapsed())
}

#[test]
fn failures_name_the_rank_and_stop_everyone() {
    for (carrier, rank) in carriers().into_iter().flat_map(|carrier| [(carrier, 0), (carrier, 1)]) {
        let (error, time) = fault(carrier, FaultKind::Stall, rank);
        let what = error.to_string();
        assert!(matches!(error, BackendError::Stalled { rank: r, iteration: 1, .. } if r.raw() == rank), "{error:?}");
        assert!(what.contains(&format!("forward of microbatch 0 through chunk {rank}")), "{what}");
        assert!(time < Duration::from_secs(2), "a stall of 0.2 s was found after {time:?}, {carrier:?}");

        let (error, time) = fault(carrier, FaultKind::Poison, rank);
        let expect = "weights of layer 3 hold NaN".to_owned();
        assert_eq!(error, BackendError::NotFinite { rank: Rank::new(rank), iteration: 1, what: expect });
        assert!(time < Duration::from_secs(1), "found after {time:?}, {carrier:?}");

        let (error, time) = fault(carrier, FaultKind::Panic, rank);
        assert!(
            matches!(error, BackendError::RankFailed { rank: r, iteration: 1, .. } if r.raw() == rank),
            "{error:?}"
        );
        assert!(time < Duration::from_secs(1), "found after {time:?}, {carrier:?}");
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_found() {
    let mut program = program(1, 2, 1);
    program.roles = [(0u32, 1i64), (1, -1)]
        .map(|(rank, shift)| {
            let mut role = Role::new(StageId::new(rank), RankSet::run(rank, 1, 1));
            let peer = Peer { role: RoleId::new(1 - rank), shift };
            let receive = Op::Receive { peer, message: message(0), bytes: BYTES };
            let got = role.push(receive, Stream::ForwardReceive, &[], &[]);
            role.push(Op::Send { peer, message: message(0), bytes: BYTES }, Stream::ForwardSend, &[got], &[]);
            role
        })
        .into();
    for carrier in carriers() {
        let options = CpuOptions { stall_timeout: Duration::from_millis(200), ..CpuOptions::default() };
        let (mut ranks, _) = start(carrier, program.clone(), Duration::ZERO, options);
        let begin = Instant::now();
        let error = ranks.iterate(0).unwrap_err();
        drop(ranks);
        assert!(begin.elapsed() < Duration::from_secs(2), "{carrier:?}");
        assert!(error.to_string().contains("never came to instruction 1 (sending the activation"), "{error}");
    }
}

#[test]
fn a_panic_while_building_is_a_failure() {
    for carrier in carriers() {
        let build = |rank: Rank| -> Fake {
            if rank.raw() == 1 {
                std::panic::resume_unwind(Box::new("no memory"));
            }
            Fake::new(rank, Duration::ZERO, Log::default())
        };
        let started = try_start(carrier, relay(1), CpuOptions::default(), build);
        let error = started.err().expect("a worker cannot be built").to_string();
        assert!(error.contains("rank 1 failed") && error.contains("no memory"), "{error}, {carrier:?}");
    }
}

#[test]
fn an_interrupt_ends_the_iteration() {
    for carrier in carriers() {
        let options = CpuOptions::default();
        let flag = Arc::clone(&options.interrupt);
        let (mut ranks, _) = start(carrier, relay(1000), Duration::from_millis(5), options);
        let begin = Instant::now();
        let interrupter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            flag.store(true, Ordering::Relaxed);
        });
        assert_eq!(ranks.iterate(0).unwrap_err(), BackendError::Interrupted);
        drop(ranks);
        assert!(begin.elapsed() < Duration::from_secs(2), "{carrier:?}");
        interrupter.join().unwrap();
    }
}

/// Trains under `division`, and after a change under another one, over a carrier.
fn trained(
    carrier: Carrier,
    division: &Division,
    then: &Division,
    devices: Option<Arc<dyn Devices>>,
) -> (Vec<f64>, Snapshot) {
    let program = |division| programs::program(&model(), &workload(), division);
    let (first, second) = (program(division), program(then));
    let (world, watchfulness) = (first.world(), Watchfulness::default());
    let (cluster, text) = (domain(&vec![1.0; world as usize]), generate(1, 30_000));
    let build = crate::runtime::processes::train;
    let options = CpuOptions { devices, ..CpuOptions::default() };
    let mut backend = match carrier {
        Carrier::Threads => CpuBackend::new(cluster, text, options),
        Carrier::Unix => CpuBackend::over(cluster, text, options, over_unix(world, watchfulness, build)),
        Carrier::Tcp => CpuBackend::over(cluster, text, options, over_tcp(world, watchfulness, build)),
        #[cfg(feature = "cuda")]
        Carrier::Nccl | Carrier::NcclOfProcesses => unreachable!("trainings over NCCL are among the tests of `cuda`"),
    };
    let mut losses = train(&mut backend, first, 0..3);
    losses.extend(train(&mut backend, second, 3..5));
    (losses, backend.snapshot().unwrap().unwrap())
}

#[test]
fn every_carrier_trains_the_same_bits() {
    let base = Division { microbatches: 2, ..Division::ONE };
    let data = Division { data: 4, overlap: true, ..base };
    let pipeline = Division { positions: 2, chunks_per_position: 2, data: 2, zero: ZeroStage::Zero1, ..base };
    let split = Division { positions: 4, split: true, ..base };
    let tensor = Division { tensor: 2, sequence_parallel: true, data: 2, zero: ZeroStage::Zero1, ..base };
    let both = Division { tensor: 2, positions: 2, overlap: true, ..base };
    for (division, then) in [(data, pipeline), (pipeline, tensor), (tensor, split), (split, both), (both, data)] {
        let expect = trained(Carrier::Threads, &division, &then, None);
        for carrier in [Carrier::Unix, Carrier::Tcp] {
            let got = trained(carrier, &division, &then, None);
            assert_eq!(got.0, expect.0, "losses of {division:?} and {then:?} over {carrier:?}");
            assert!(got.1 == expect.1, "weights or moments of {division:?} and {then:?} over {carrier:?} differ");
        }
    }
}

#[test]
fn ranks_on_devices_train_the_same_bits_over_every_carrier() {
    let division = Division { data: 2, positions: 2, zero: ZeroStage::Zero1, microbatches: 2, ..Division::ONE };
    let then = Division { tensor: 2, data: 2, overlap: true, microbatches: 2, ..Division::ONE };
    let on = |carrier| trained(carrier, &division, &then, Some(Arc::new(CpuDevices)));
    let expect = on(Carrier::Threads);
    for carrier in [Carrier::Unix, Carrier::Tcp] {
        assert!(on(carrier) == expect, "over {carrier:?}");
    }
    let host = trained(Carrier::Threads, &division, &then, None);
    super::training::assert_close(&expect.0, &host.0, "on devices");
}

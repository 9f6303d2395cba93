//! Ranks that exchange through NCCL, on the emulated machine: the suite of every carrier, and whole trainings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ir::{Backend, BackendError, Model, Precision, Problem, SimDuration, ZeroStage};

use super::machine::{self, answer};
use super::skip;
use super::training::{gpt2, llama, workload};
use crate::cuda::Gpus;
use crate::data::generate;
use crate::device::{Device, DeviceError, Devices, Elsewhere, Links, Operation};
use crate::kernels::testing::long_tests;
use crate::runtime::tests::{domain, of_processes, of_slow_processes};
use crate::runtime::{CpuBackend, CpuOptions, Snapshot};
use crate::state::tests::programs::{Division, program};

fn whole(test: &str) -> Option<&'static Path> {
    let built = machine::build();
    if built.is_none() {
        skip(test, "there is no compiler for C++ (c++)");
    }
    built.map(|[whole, _]| whole.as_path())
}

/// The same order, bits, failures and names of ranks as over threads' memory and sockets.
#[test]
fn streams_of_gpus_carry_what_every_carrier_does() {
    let Some(whole) = whole("streams_of_gpus_carry_what_every_carrier_does") else { return };
    let suite = ("runtime::tests::transports::", &["every_carrier_trains", "ranks_on_devices_train"][..]);
    for order in [&[][..], &[("MACHINE_DELAYS", "5")], &[("MACHINE_LAST", "exchanges")]] {
        let settings = [&[("TRAINYARD_CARRIER", "nccl"), ("MACHINE_DEVICES", "4")], order].concat();
        let passed = machine::run_suite(whole, suite, &settings).unwrap_or_else(|words| panic!("{order:?}\n{words}"));
        assert_eq!(passed, 6, "tests of every carrier, {order:?}");
    }
}

/// GPUs whose ranks exchange through host memory.
#[derive(Debug)]
struct Apart(Gpus);

impl Devices for Apart {
    fn problems(&self, ranks: u32) -> Vec<Problem> {
        self.0.problems(ranks)
    }
    fn unsupported(&self, operation: &Operation) -> Option<String> {
        self.0.unsupported(operation)
    }
    fn words(&self, ranks: u32) -> String {
        self.0.words(ranks)
    }
    fn shared(&self, ranks: u32) -> bool {
        self.0.shared(ranks)
    }
    fn links(&self, _: u32) -> Result<Option<Arc<dyn Links>>, DeviceError> {
        Ok(None)
    }
    fn elsewhere(&self) -> Elsewhere {
        self.0.elsewhere()
    }
    fn open(&self, index: u32) -> Result<Arc<dyn Device>, DeviceError> {
        self.0.open(index)
    }
}

/// What ranks are.
#[derive(Clone, Copy, Debug)]
enum Ranks {
    Threads,
    Processes,
    /// Processes that hear of each other so late.
    Slow(Duration),
}

/// Losses, and the state after.
fn trained(
    (model, precision): (&Model, Precision),
    division: &Division,
    devices: Arc<dyn Devices>,
    ranks: Ranks,
) -> Result<(Vec<f64>, Snapshot), BackendError> {
    let program = program(model, &workload(precision), division);
    let options = CpuOptions { devices: Some(devices), ..CpuOptions::default() };
    let cluster = domain(&vec![1.0; program.world() as usize]);
    let text = generate(1, 30_000);
    let mut backend = match ranks {
        Ranks::Threads => CpuBackend::new(cluster, text, options),
        Ranks::Processes => of_processes(cluster, text, options),
        Ranks::Slow(delay) => of_slow_processes(cluster, text, options, delay),
    };
    backend.load(Arc::clone(&program))?;
    let mut losses = Vec::new();
    for iteration in 0..3 {
        let outcome = backend.iterate(iteration)?;
        losses.push(outcome.loss.expect("a loss"));
        let slack = backend.clocks_within();
        assert!(slack < SimDuration::from_nanoseconds(1_000_000_000), "clocks are known to {slack:?}");
        let faults = outcome.timeline.faults(&program, slack);
        assert!(faults.is_empty(), "{division:?}: {faults:?}");
    }
    Ok((losses, backend.snapshot()?.expect("a program is loaded")))
}

/// Divisions with exchanges of every axis; `conformance` has those that only lowering makes.
fn divisions() -> Vec<Division> {
    let two = Division { microbatches: 2, ..Division::ONE };
    vec![
        Division { data: 2, ..two },
        Division { data: 2, zero: ZeroStage::Zero1, overlap: true, ..two },
        Division { tensor: 2, sequence_parallel: true, ..two },
        Division { tensor: 2, ..two },
        Division { positions: 2, chunks_per_position: 2, ..two },
        Division { positions: 2, split: true, ..two },
        Division { positions: 2, data: 2, zero: ZeroStage::Zero1, ..two },
    ]
}

/// Sums go in the order of the ranks on the emulated machine, as they do in host memory: the bits are the same.
#[test]
#[ignore = "run by ranks_joined_by_nccl_train_the_bits_of_ranks_apart"]
fn bits() {
    let part = std::env::var("PART").map_or(0, |part| part.parse().expect("a number"));
    let deep = |model| Model { layers: 4, ..model };
    let of = [(deep(llama()), Precision::Bf16), (deep(gpt2()), Precision::Fp32)];
    for (at, division) in divisions().iter().enumerate().filter(|(at, _)| at % 2 == part) {
        for (model, precision) in of.iter().skip(at / 2 % 2).take(if long_tests() { 2 } else { 1 }) {
            let train = |devices, ranks| trained((model, *precision), division, devices, ranks).expect("a training");
            let apart = train(Arc::new(Apart(Gpus::default())), Ranks::Threads);
            for ranks in [Ranks::Threads, Ranks::Processes] {
                let joined = train(Arc::new(Gpus::default()), ranks);
                let what = format!("{division:?}, {}, of {ranks:?}", precision.name());
                assert_eq!(joined.0, apart.0, "losses of {what}");
                assert!(joined.1 == apart.1, "weights or moments of {what}");
            }
        }
    }
    answer("done");
}

#[test]
fn ranks_joined_by_nccl_train_the_bits_of_ranks_apart() {
    let Some(whole) = whole("ranks_joined_by_nccl_train_the_bits_of_ranks_apart") else { return };
    for (part, order) in [("0", ("MACHINE_LAST", "exchanges")), ("1", ("MACHINE_DELAYS", "3"))] {
        let settings = [("MACHINE_DEVICES", "4"), ("PART", part), order];
        let answer = machine::run(whole, "joined::bits", &settings);
        assert!(answer.ok, "{order:?}\n{}", answer.words);
    }
}

/// Devices exchange without the words of ranks, which may therefore come when the iteration is over.
#[test]
#[ignore = "run by what_ranks_say_may_come_late"]
fn late() {
    let two = Division { microbatches: 2, ..Division::ONE };
    for division in [Division { data: 2, ..two }, Division { positions: 2, ..two }, Division { tensor: 2, ..two }] {
        let train = |ranks| {
            let outcome = trained((&llama(), Precision::Fp32), &division, Arc::new(Gpus::default()), ranks);
            outcome.unwrap_or_else(|error| panic!("{division:?}, {ranks:?}: {error}"))
        };
        let (prompt, slow) = (train(Ranks::Threads), train(Ranks::Slow(Duration::from_millis(100))));
        assert!(slow == prompt, "losses, weights or moments of {division:?}");
    }
    answer("done");
}

#[test]
fn what_ranks_say_may_come_late() {
    let Some(whole) = whole("what_ranks_say_may_come_late") else { return };
    let answer = machine::run(whole, "joined::late", &[]);
    assert!(answer.ok, "{}", answer.words);
}

/// Losses of a training over two ranks, or why it ended.
#[test]
#[ignore = "run by every_wait_of_an_exchange_is_needed"]
fn losses() {
    let division = Division { data: 2, microbatches: 2, ..Division::ONE };
    let words = match trained((&llama(), Precision::Fp32), &division, Arc::new(Gpus::default()), Ranks::Threads) {
        Ok((losses, _)) => format!("{losses:?}"),
        Err(error) => error.to_string(),
    };
    answer(&words);
}

/// An exchange waits for what it carries, and what follows waits for it: without either wait another thing comes out.
#[test]
fn every_wait_of_an_exchange_is_needed() {
    let Some(whole) = whole("every_wait_of_an_exchange_is_needed") else { return };
    let run = |last: &str, forget: &str| {
        let answer = machine::run(whole, "joined::losses", &[("MACHINE_LAST", last), ("MACHINE_FORGET", forget)]);
        assert!(answer.ok, "{}", answer.words);
        answer.words
    };
    let right = run("exchanges", "0");
    assert_eq!(run("passes", "0"), right, "the order of streams does not matter");
    // The first exchange of each iteration sums gradients: its stream waits for them, then the compute stream for the sum.
    assert_ne!(run("passes", "1"), right, "gradients are sent before they are there");
    assert_ne!(run("exchanges", "2"), right, "the optimizer does not wait for the sum");
}

/// A rank that hangs or whose group fails ends all of them, and is named.
#[test]
#[ignore = "run by groups_that_fail_end_all_ranks"]
fn failing() {
    use crate::runtime::{Fault, FaultKind};
    let division = Division { data: 2, positions: 2, microbatches: 2, ..Division::ONE };
    let program = program(&llama(), &workload(Precision::Fp32), &division);
    let kind = match std::env::var("FAULT").as_deref() {
        Ok("stall") => Some(FaultKind::Stall),
        Ok("panic") => Some(FaultKind::Panic),
        _ => None,
    };
    let fault = |kind| Fault { rank: ir::Rank::new(2), iteration: 1, instruction: None, kind };
    let options = CpuOptions {
        devices: Some(Arc::new(Gpus::default())),
        stall_timeout: Duration::from_secs(2),
        faults: kind.map(fault).into_iter().collect(),
        ..CpuOptions::default()
    };
    let mut backend = CpuBackend::new(domain(&[1.0; 4]), generate(1, 30_000), options);
    let run = |backend: &mut CpuBackend| {
        backend.load(Arc::clone(&program))?;
        (0..3).try_for_each(|iteration| backend.iterate(iteration).map(drop))
    };
    let begin = std::time::Instant::now();
    let error = run(&mut backend).expect_err("a failure");
    drop(backend);
    assert!(begin.elapsed() < Duration::from_secs(50), "all ranks end: {:?}", begin.elapsed());
    answer(&error.to_string());
}

#[test]
fn groups_that_fail_end_all_ranks() {
    let Some(whole) = whole("groups_that_fail_end_all_ranks") else { return };
    let cases: &[((&str, &str), &[&str])] = &[
        (
            ("FAULT", "stall"),
            &["rank 2 ", "iteration 1", "forward of microbatch 0 through chunk 1", "while others waited"],
        ),
        (("FAULT", "panic"), &["rank 2 ", "iteration 1", "injected"]),
        (("MACHINE_FAIL", "ncclCommSplit:2:3"), &["rank ", "splitting a group of 4 GPUs"]),
        (("MACHINE_FAIL", "ncclCommInitRankConfig:3:2"), &["rank ", "joining a group of 4 GPUs"]),
        (("MACHINE_FAIL", "ncclSend:12:3"), &["rank ", "iteration ", "an exchange of 2 GPUs", "the emulated network"]),
        (
            ("MACHINE_FAIL", "ncclCommGetAsyncError:300:6"),
            &["rank ", "remote process exited", "another rank has ended"],
        ),
    ];
    for (setting, expected) in cases {
        let answer = machine::run(whole, "joined::failing", &[("MACHINE_DEVICES", "4"), *setting]);
        assert!(answer.ok, "{setting:?}\n{}", answer.words);
        for words in *expected {
            assert!(answer.words.contains(words), "{setting:?}: `{words}` is not in `{}`", answer.words);
        }
    }
}

//! What one plan writes, any other goes on from.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use exec::checkpoint::{Checkpoints, Found};
use exec::data::{Dataset, generate};
use exec::runtime::{CheckpointOptions, Checkpointing, CpuBackend, CpuOptions, OnFailure};
use exec::state::{RecordedRouting, Routing};
use ir::{Backend as _, Plan, Precision};
use sched::Folding;
use trainyard_conformance::dice::for_each_long_seed;
use trainyard_conformance::swarm::Case;

const ITERATIONS: u64 = 10;

fn text() -> Arc<[u8]> {
    static TEXT: std::sync::OnceLock<Arc<[u8]>> = std::sync::OnceLock::new();
    Arc::clone(TEXT.get_or_init(|| generate(5, 60_000).into()))
}

fn backend(case: &Case, routing: Routing) -> CpuBackend {
    CpuBackend::new(case.cluster.clone(), text(), CpuOptions { routing, ..CpuOptions::default() })
}

fn train(mut backend: CpuBackend, case: &Case, iterations: Range<u64>) -> (Vec<f64>, CpuBackend) {
    backend.load(case.program(Folding::Folded)).unwrap_or_else(|error| panic!("{error}\n{case:#?}"));
    let one = |iteration| backend.iterate(iteration).unwrap_or_else(|error| panic!("{error}\n{case:#?}"));
    let losses = iterations.map(one).map(|outcome| outcome.loss.expect("a loss")).collect();
    (losses, backend)
}

/// Trains `first` for half of the iterations, with a checkpoint at their end, and gives that and the losses.
fn kept(first: &Case, folder: &Path, routing: Routing) -> (Vec<f64>, Found) {
    let store = Checkpoints::new(folder);
    store.prepare().expect("a folder");
    let options = CheckpointOptions { every: ITERATIONS / 2, keep: 1, asynchronous: true, on_failure: OnFailure::Stop };
    let backend = backend(first, routing).with_checkpoints(Checkpointing::new(store.clone(), options));
    let (losses, mut backend) = train(backend, first, 0..ITERATIONS / 2);
    backend.finish_checkpoints().unwrap_or_else(|error| panic!("{error}\n{first:#?}"));
    let state = backend.snapshot().expect("ranks").expect("a program");
    let data = Dataset::new(text(), first.workload.sequence_length, first.workload.seed).expect("samples");
    let search = store.newest(&first.model, &data).expect("a folder");
    let found = search.found.unwrap_or_else(|| panic!("{:?}\n{first:#?}", search.refused));
    // What is written is what training has, to the bit, in whatever plan it is read.
    let mut whole = self::backend(&first.on_one_rank(), Routing::Free).from_checkpoint(found.clone());
    whole.load(first.on_one_rank().program(Folding::Folded)).expect("one rank");
    let read = whole.snapshot().expect("ranks").expect("a program");
    assert!(read == state, "other numbers were read than written\n{first:#?}");
    (losses, found)
}

/// Trains one plan, goes on with the other, and holds the losses against those of `alone`, which has never stopped.
fn check(first: &Case, then: &Case, alone: &[f64], routing: &Routing) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut losses, found) = kept(first, folder.path(), routing.clone());
    let backend = backend(then, routing.clone()).from_checkpoint(found);
    losses.extend(train(backend, then, ITERATIONS / 2..ITERATIONS).0);
    let same = first.plan == then.plan;
    let bound = if same {
        0.0
    } else if first.workload.precision == Precision::Bf16 {
        1e-2
    } else {
        1e-4
    };
    let apart = losses.iter().zip(alone).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    assert_eq!(losses.len(), alone.len());
    assert!(apart <= bound, "losses are {apart:.1e} apart\n{:#?}\nthen\n{:#?}", first.plan, then.plan);
}

/// A plan of another model and batch, for those of a case: layers as evenly as they go, and as many microbatches as it takes.
fn fitted(mut plan: Plan, case: &Case) -> Case {
    plan.microbatch_size = 1;
    plan.microbatches = case.workload.global_batch / plan.data;
    let chunks: u32 = plan.stages.iter().map(|stage| u32::try_from(stage.layers.len()).expect("few chunks")).sum();
    let (each, mut over) = (case.model.layers / chunks, case.model.layers % chunks);
    for stage in &mut plan.stages {
        stage.recompute_layers = None;
        for layers in &mut stage.layers {
            *layers = each + u32::from(over > 0);
            over = over.saturating_sub(1);
        }
    }
    Case { plan, ..case.clone() }
}

/// Another plan for what a case trains: that of another seed, if it is legal; else one rank.
fn another(case: &Case, seed: u64, draw: fn(u64, u32) -> Case) -> Case {
    let from = |seed| fitted(draw(seed, 8).plan, case);
    let fits = |other: &Case| {
        let lowered = sched::lower(&other.plan, &other.model, &other.workload, &other.cluster);
        let verified = lowered.ok().and_then(|program| ir::VerifiedProgram::new(program).ok());
        other.plan != case.plan
            && verified.is_some_and(|program| backend(other, Routing::Free).unsupported(&program).is_empty())
    };
    let seeds = (1..60).map(|offset| 1000 * (seed + 1) + offset);
    seeds.map(from).find(fits).unwrap_or_else(|| case.on_one_rank())
}

/// Both ways, and on to itself: every sharing, recomputation, offload, precision and stage of the swarm of dense models.
#[test]
fn any_plan_goes_on_from_what_another_wrote() {
    let (mut all, mut others) = (0, 0);
    for_each_long_seed(30, |seed| {
        all += 1;
        let case = Case::trained(seed, 8);
        let other = another(&case, seed, Case::trained);
        others += u32::from(other.plan.world() > 1);
        let (alone, _) = train(backend(&case, Routing::Free), &case, 0..ITERATIONS);
        check(&case, &case, &alone, &Routing::Free);
        check(&case, &other, &alone, &Routing::Free);
        check(&other, &case, &alone, &Routing::Free);
    });
    assert!(3 * others >= all, "only {others} of {all} other plans have several ranks");
}

/// The same of stages with unlike tensor degrees, whose other plans have one or others.
#[test]
fn stages_of_unlike_tensor_degrees_go_on_from_what_others_wrote() {
    for_each_long_seed(10, |seed| {
        let case = Case::unlike(seed, 10);
        let other = another(&case, seed, if seed % 2 == 0 { Case::unlike } else { Case::trained });
        let (alone, _) = train(backend(&case, Routing::Free), &case, 0..ITERATIONS);
        check(&case, &case, &alone, &Routing::Free);
        check(&case, &other, &alone, &Routing::Free);
        check(&other, &case, &alone, &Routing::Free);
    });
}

/// The same of experts and of sequences that ranks share, with the routing of one run.
#[test]
fn experts_and_shared_sequences_go_on_from_what_another_plan_wrote() {
    for_each_long_seed(20, |seed| {
        let case = Case::trained_wide(seed, 8);
        let other = another(&case, seed, Case::trained_wide);
        let recorded = Arc::new(std::sync::Mutex::new(RecordedRouting::default()));
        let whole = case.on_one_rank();
        let recording = backend(&whole, Routing::Record(Arc::clone(&recorded)));
        let (alone, recording) = train(recording, &whole, 0..ITERATIONS);
        drop(recording);
        let recorded = std::mem::take(&mut *recorded.lock().expect("no rank panicked"));
        let routing = Routing::Replay(Arc::new(recorded));
        check(&case, &whole, &alone, &routing);
        check(&case, &other, &alone, &routing);
        check(&whole, &case, &alone, &routing);
    });
}

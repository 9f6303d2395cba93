//! One training iteration on CPU ranks.

use criterion::{Criterion, criterion_group, criterion_main};
use exec::runtime::{CpuBackend, CpuOptions};
use ir::Backend;
use sched::Folding;
use trainyard_conformance::clusters;
use trainyard_conformance::swarm::Case;

fn training(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("training iteration");
    group.sample_size(20);
    for (name, split) in [("one rank", false), ("two stages", true)] {
        let mut case = Case::tiny(0, 1);
        (case.model.hidden, case.model.ffn, case.model.layers) = (64, 176, 8);
        (case.workload.sequence_length, case.workload.global_batch) = (64, 8);
        case.cluster = clusters::cpu(2);
        case = case.on_one_rank();
        (case.plan.microbatch_size, case.plan.microbatches) = (1, 8);
        if split {
            case.plan.stages = vec![ir::StagePlan { layers: vec![4], ..case.plan.stages[0].clone() }; 2];
            case.plan.schedule = ir::Schedule::OneForwardOneBackward;
        }
        let mut backend =
            CpuBackend::new(case.cluster.clone(), exec::data::generate(1, 100_000), CpuOptions::default());
        backend.load(case.program(Folding::Folded)).unwrap_or_else(|error| panic!("{error}"));
        let mut iteration = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                let outcome = backend.iterate(iteration).unwrap_or_else(|error| panic!("{error}"));
                iteration += 1;
                outcome.loss
            });
        });
    }
    group.finish();
}

criterion_group!(benches, training);
criterion_main!(benches);

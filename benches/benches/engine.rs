//! One iteration of published jobs, event by event, folded.

use criterion::{Criterion, criterion_group, criterion_main};
use ir::Backend;
use sim::Simulator;
use sim::machine::End;
use sim::queue::{IndexedQueue, RadixQueue};
use trainyard_benches::jobs::{Job, gpt3_175b, llama_405b};

fn iterations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("iteration");
    group.sample_size(10);
    let jobs: [(&str, Job); 2] = [("gpt3-175b on 1024 a100", gpt3_175b()), ("llama-405b on 16384 h100", llama_405b())];
    for (name, job) in &jobs {
        let simulator = job.simulator::<RadixQueue<End>>();
        group.bench_function(*name, |b| b.iter(|| simulator.iterate_afresh(0)));
    }
    let simulator = jobs[0].1.simulator::<IndexedQueue<End>>();
    group.bench_function("gpt3-175b on 1024 a100, priority-queue", |b| b.iter(|| simulator.iterate_afresh(0)));
    group.finish();
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    for (name, job) in &jobs {
        let program = job.program();
        let mut simulator = Simulator::new(job.cost());
        group.bench_function(*name, |b| b.iter(|| simulator.load(program.clone())));
    }
    group.finish();
}

criterion_group!(benches, iterations);
criterion_main!(benches);

//! From a plan to a program, and from a plan to an estimate.

use criterion::{Criterion, criterion_group, criterion_main};
use ir::VerifiedProgram;
use sched::{ClosedForm, Evaluator};
use trainyard_benches::jobs::{gpt3_175b, llama_405b};

fn plans(criterion: &mut Criterion) {
    for (name, job) in [("gpt3-175b on 1024 a100", gpt3_175b()), ("llama-405b on 16384 h100", llama_405b())] {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        group.bench_function("lower", |b| b.iter(|| job.lowered()));
        let program = job.lowered();
        group.bench_function("verify", |b| b.iter(|| VerifiedProgram::new(program.clone())));
        let cost = job.cost();
        let mut estimator = ClosedForm::new(&job.model, &job.workload, &cost);
        group.sample_size(100);
        group.bench_function("estimate", |b| b.iter(|| estimator.evaluate(&job.plan)));
        group.finish();
    }
}

criterion_group!(benches, plans);
criterion_main!(benches);

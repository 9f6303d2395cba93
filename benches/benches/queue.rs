//! The event queue, side by side with `priority-queue`, as the engine uses it.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sim::machine::End;
use sim::queue::{IndexedQueue, RadixQueue};
use trainyard_benches::churn::Hold;

fn hold(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(10_000));
    for pending in [1_000, 100_000] {
        let mut radix = Hold::<RadixQueue<End>>::new(pending);
        group.bench_function(BenchmarkId::new("radix", pending), |b| b.iter(|| radix.step(10_000)));
        let mut indexed = Hold::<IndexedQueue<End>>::new(pending);
        group.bench_function(BenchmarkId::new("priority-queue", pending), |b| b.iter(|| indexed.step(10_000)));
    }
    group.finish();
}

criterion_group!(benches, hold);
criterion_main!(benches);

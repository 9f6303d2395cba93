//! The fabric solver under flows that come and go.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trainyard_benches::churn::Traffic;

fn churn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fabric");
    group.throughput(Throughput::Elements(100)).sample_size(20);
    for nics in [64, 1024] {
        let mut traffic = Traffic::new(nics);
        group.bench_function(BenchmarkId::new("one flow for another", nics), |b| b.iter(|| traffic.step(100)));
    }
    group.finish();
}

criterion_group!(benches, churn);
criterion_main!(benches);

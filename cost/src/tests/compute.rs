//! Compute prices: additive, equal by every way of asking, and exact where given.

use ir::counts::{Kernel, UnitKind, unit_kernels};
use ir::program::{Pass, UnitRange};
use ir::{AttentionKernel, DeviceId, DeviceKindId, Precision, Recompute, SimDuration};

use super::fixtures::*;
use crate::compute::{Prepared, Software};
use crate::prices::PASSES;
use crate::{CostModel, PassTable, StagePasses};

const KIND: DeviceKindId = DeviceKindId::new(0);

#[test]
fn a_range_costs_its_units_plus_one_dispatch_by_every_way_of_asking() {
    let mut cpu = catalog("cpu");
    cpu.dispatch.instruction_us = 2.5;
    let cluster =
        cluster(device("core", "cpu", 0.1, 1e10, 1), 1, 2, 1, link("shared-memory", 1e10, 1000), link("n", 1e9, 1));
    let model = CostModel::new(cluster, vec![cpu]).unwrap();
    let owned = Owned(gpt(256, 6, 4), workload(Precision::Fp32, AttentionKernel::Fused), layout(2, false, 2));
    let prices = model.prepare(owned.shape());
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let chunk = chunk(3, true, true, recompute);
        for pass in PASSES {
            let ask = |start, end| model.compute(owned.shape(), &chunk, pass, UnitRange { start, end }, KIND);
            for (start, end) in [(0, chunk.units()), (1, 3), (2, 9), (13, 16)] {
                let dispatch = 2500;
                let parts: u64 = (start..end).map(|at| ask(at, at + 1).duration.nanoseconds() - dispatch).sum();
                assert_eq!(ask(start, end).duration.nanoseconds(), parts + dispatch);
                assert_eq!(prices.compute(&chunk, pass, UnitRange { start, end }, KIND), ask(start, end));
            }
        }
        let of = |pass| model.compute(owned.shape(), &chunk, pass, chunk.all_units(), KIND).duration.nanoseconds();
        assert_eq!(of(Pass::Backward) + 2500, of(Pass::BackwardInput) + of(Pass::BackwardWeight));
        assert_eq!(of(Pass::Forward), of(Pass::Recompute));
    }
}

#[test]
fn a_matrix_product_follows_its_formula() {
    let prepared = Prepared::new(catalog("a100"));
    // 4096 x 4096 in tiles of 128 x 256: 512 tiles over 108 multiprocessors, 5 waves, w = 512/540.
    let kernel = Kernel::MatrixProduct { m: 4096, n: 4096, k: 4096 };
    let w: f64 = 512.0 / 540.0;
    let expect = 6e-6 + 2.0 * 4096f64.powi(3) / (312e12 * 0.72 * w.powf(0.41));
    let (seconds, _) = prepared.kernel(&a100(), Precision::Bf16, kernel);
    assert!((seconds / expect - 1.0).abs() < 1e-12);
    // One row: the weights must be read, whatever the arithmetic.
    let (thin, _) = prepared.kernel(&a100(), Precision::Bf16, Kernel::MatrixProduct { m: 1, n: 8192, k: 8192 });
    let memory = 6e-6 + 2.0 * (8192.0 * 8192.0 + 2.0 * 8192.0) / (2.039e12 * 0.8);
    assert!((thin / memory - 1.0).abs() < 1e-12);
}

#[test]
fn no_kernel_beats_the_peak() {
    let prepared = Prepared::new(catalog("a100"));
    let mut draw = Draw(7);
    for _ in 0..2000 {
        let (m, n, k) = (1 + draw.below(20_000), 1 + draw.below(20_000), 1 + draw.below(20_000));
        let (seconds, _) = prepared.kernel(&a100(), Precision::Bf16, Kernel::MatrixProduct { m, n, k });
        assert!(seconds * 312e12 >= 2.0 * m as f64 * n as f64 * k as f64, "{m} {n} {k}");
    }
}

#[test]
fn an_emulated_slower_device_takes_its_factor() {
    let mut slow = a100();
    slow.slowdown = 2.0;
    let model = |kind| {
        let cluster = cluster(kind, 1, 8, 8, link("nvlink3", 300e9, 1500), link("ib-hdr", 25e9, 1750));
        CostModel::new(cluster, vec![catalog("a100")]).unwrap()
    };
    let owned = Owned(gpt(1024, 2, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let chunk = chunk(2, true, true, Recompute::None);
    let of = |model: &CostModel| {
        model.compute(owned.shape(), &chunk, Pass::Forward, chunk.all_units(), KIND).duration.nanoseconds()
    };
    let (fast, slow) = (of(&model(a100())), of(&model(slow)));
    // Each of the 12 units is rounded up by itself.
    assert!(slow <= 2 * fast && slow + 24 >= 2 * fast, "{slow} against {fast}");
}

#[test]
fn a_host_that_launches_slowly_bounds_small_units() {
    let owned = Owned(gpt(64, 1, 4), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let mut calibration = catalog("a100");
    calibration.dispatch.launch_us = 1000.0;
    let prepared = Prepared::new(calibration);
    let software =
        Software { compute: 1.0, attention: 1.0, launch_us: None, slow_launch_us: 600.0, expert_sync_us: 0.0 };
    let mut kernels = Vec::new();
    unit_kernels(owned.shape(), UnitKind::Attention, Pass::Forward, Recompute::None, &mut kernels);
    let launches: u64 = kernels.iter().map(|kernel| u64::from(kernel.launches())).sum();
    let price = |software: &Software, owned: &Owned| {
        prepared.unit(&a100(), software, owned.shape(), UnitKind::Attention, (Pass::Forward, Recompute::None))
    };
    let slow = price(&software, &owned);
    assert_eq!(slow.nanoseconds, launches * 1_000_000);
    // A stack's own launches count instead; graphs need none, and what is left is the kernels'.
    let quick = price(&Software { launch_us: Some(500.0), ..software }, &owned);
    assert_eq!(quick.nanoseconds, launches * 500_000);
    // What a slower host would add is told beside it; one that is not slower adds nothing.
    assert_eq!((quick.slower, slow.slower), (launches * 100_000, 0));
    let mut graphs = owned;
    graphs.1.recipe.cuda_graphs = true;
    let kernels_alone = price(&software, &graphs);
    assert!(kernels_alone.nanoseconds < 500_000 && kernels_alone.idle == 0, "{kernels_alone:?}");
    assert!((slow.idle + kernels_alone.nanoseconds).abs_diff(slow.nanoseconds) <= 1, "the device waits for the rest");
}

#[test]
fn a_pass_table_holds_exactly() {
    let ns = SimDuration::from_nanoseconds;
    let passes = |f, b, w| StagePasses { forward: ns(f), backward_input: ns(b), backward_weight: ns(w) };
    let table = PassTable {
        stages: vec![passes(7_500_001, 8_000_003, 6_000_007), passes(11, 13, 17)],
        chunks_per_stage: 1,
        transfer: ns(601),
        optimizer: ns(0),
        gradient_norm: ns(5),
    };
    let devices = cluster(a100(), 1, 2, 1, link("l", 1e9, 1), link("n", 1e9, 1));
    let model = CostModel::with_pass_table(devices.clone(), table.clone()).unwrap();
    let owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let prices = model.prepare(owned.shape());
    let mut chunk = chunk(2, true, false, Recompute::None);
    for (stage, [f, b, w]) in [(0, [7_500_001, 8_000_003, 6_000_007]), (1, [11, 13, 17])] {
        chunk.stage = ir::StageId::new(stage);
        for (pass, expect) in [
            (Pass::Forward, f),
            (Pass::Recompute, f),
            (Pass::BackwardInput, b),
            (Pass::BackwardWeight, w),
            (Pass::Backward, b + w),
        ] {
            let priced = model.compute(owned.shape(), &chunk, pass, chunk.all_units(), KIND);
            assert_eq!(priced.duration, ns(expect), "{pass:?} of stage {stage}");
            assert_eq!(prices.compute(&chunk, pass, chunk.all_units(), KIND), priced);
        }
    }
    let (from, to) = (DeviceId::new(0), DeviceId::new(1));
    assert_eq!(model.message(ir::Bytes::new(1 << 30), from, to).duration, ns(601));
    assert_eq!(model.optimizer(1 << 30, Precision::Bf16, 1, KIND).duration, ns(1), "never nothing");
    assert_eq!(model.gradient_norm(1 << 30, KIND).duration, ns(5));
    // Three chunks to a stage: a third each, rounded up.
    let interleaved = PassTable { chunks_per_stage: 3, ..table.clone() };
    let third = CostModel::with_pass_table(devices.clone(), interleaved).unwrap();
    assert_eq!(third.compute(owned.shape(), &chunk, Pass::Backward, chunk.all_units(), KIND).duration, ns(10));
    let endless = PassTable { stages: vec![passes(1, 1, u64::MAX)], transfer: ns(u64::MAX), ..table.clone() };
    let problems = CostModel::with_pass_table(devices.clone(), endless).unwrap_err();
    let subjects: Vec<&str> = problems.iter().map(|problem| problem.subject.as_str()).collect();
    assert_eq!(subjects, ["cost.stages[0].backward_weight", "cost.transfer"]);
    let empty = PassTable { stages: vec![], chunks_per_stage: 0, ..table };
    assert_eq!(CostModel::with_pass_table(devices, empty).unwrap_err().len(), 2);
}

/// `cargo test --release` only: what the simulator and the estimator may spend per look-up.
#[test]
#[cfg(not(debug_assertions))]
fn prices_are_cheap_to_ask() {
    let model = dgx_a100(128);
    let owned = Owned(gpt(12_288, 96, 96), workload(Precision::Bf16, AttentionKernel::Plain), layout(8, true, 1));
    let chunk = chunk(12, true, true, Recompute::Selective);
    let best = |rounds: u32, mut work: Box<dyn FnMut() + '_>| {
        (0..7)
            .map(|_| {
                let start = std::time::Instant::now();
                (0..rounds).for_each(|_| work());
                start.elapsed().as_secs_f64() / f64::from(rounds) * 1e6
            })
            .fold(f64::INFINITY, f64::min)
    };
    let prices = model.prepare(owned.shape());
    let ask = best(
        10_000,
        Box::new(|| {
            std::hint::black_box(prices.compute(std::hint::black_box(&chunk), Pass::Backward, chunk.all_units(), KIND));
        }),
    );
    let prepare = best(
        200,
        Box::new(|| {
            std::hint::black_box(model.prepare(std::hint::black_box(owned.shape())));
        }),
    );
    let direct = best(
        2000,
        Box::new(|| {
            std::hint::black_box(model.compute(
                std::hint::black_box(owned.shape()),
                &chunk,
                Pass::Forward,
                chunk.all_units(),
                KIND,
            ));
        }),
    );
    // A model for a new cluster, out of all calibrations of the catalog.
    let folder = format!("{}/../catalog/calibration", env!("CARGO_MANIFEST_DIR"));
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<_> = names
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .filter(|name| name != "stacks" && name != "memory")
        .map(|name| catalog(&name))
        .collect();
    let make = best(
        20,
        Box::new(|| {
            std::hint::black_box(CostModel::new(model.cluster().clone(), all.clone()).unwrap());
        }),
    );
    eprint_times(&[("look-up", ask), ("prepare", prepare), ("direct", direct), ("model", make)]);
    assert!(make < 1000.0, "a model took {make:.1} us");
    assert!(ask < 1.0, "a look-up took {ask:.3} us");
    assert!(prepare < 300.0, "preparing took {prepare:.1} us");
    assert!(direct < 50.0, "a direct price took {direct:.1} us");
}

#[cfg(not(debug_assertions))]
#[expect(clippy::print_stderr, reason = "times are worth a look where they are measured")]
fn eprint_times(times: &[(&str, f64)]) {
    times.iter().for_each(|(what, us)| eprintln!("{what}: {us:.3} us"));
}

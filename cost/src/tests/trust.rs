//! What nothing was measured for is named, and what a device cannot do is refused.

use ir::counts::{Kernel, Streaming};
use ir::{AttentionKernel, Bytes, DeviceId, DeviceKindId, FlopsPerSecond, Precision};

use super::fixtures::*;
use crate::compute::Prepared;
use crate::{Basis, Calibration, CostModel, Host, SpreadCause, SpreadTerms, Stack};

const KIND: DeviceKindId = DeviceKindId::new(0);

fn program(precision: Precision) -> ir::program::Program {
    ir::program::Program {
        model: gpt(1024, 2, 16),
        workload: workload(precision, AttentionKernel::Fused),
        layout: layout(1, false, 1),
        chunks: vec![],
        groups: vec![],
        roles: vec![],
        placement: vec![],
    }
}

fn model(peaks: &[Precision], calibration: Calibration) -> CostModel {
    let mut kind = a100();
    kind.peak = peaks.iter().map(|format| (*format, FlopsPerSecond::new(300e12).unwrap())).collect();
    let cluster = cluster(kind, 1, 8, 8, link("nvlink3", 300e9, 1500), link("ib-hdr", 25e9, 1750));
    CostModel::new(cluster, vec![calibration]).unwrap()
}

fn problems(peaks: &[Precision], precision: Precision) -> Vec<String> {
    model(peaks, catalog("a100")).problems(&program(precision)).iter().map(ToString::to_string).collect()
}

#[test]
fn a_format_that_a_device_lacks_is_a_problem() {
    use Precision::{Bf16, Fp8, Fp16, Fp32, Tf32};
    for precision in Precision::ALL {
        assert_eq!(problems(&Precision::ALL, precision), Vec::<String>::new(), "{precision:?}");
    }
    let fp8 = problems(&[Fp32, Tf32, Fp16, Bf16], Fp8);
    assert_eq!(fp8.len(), 1);
    assert!(fp8[0].contains("does not support fp8") && fp8[0].contains("fp32, tf32, fp16, bf16"), "{fp8:?}");
    // Heads and attention cores of an FP8 job run in bfloat16.
    let outside = problems(&[Fp32, Fp8], Fp8);
    assert!(outside.len() == 1 && outside[0].contains("does not support bf16"), "{outside:?}");
    assert_eq!(problems(&[Fp32], Fp8).len(), 2, "both at once");
    assert!(problems(&[Fp32, Fp16], Tf32)[0].contains("does not support tf32"));
}

#[test]
fn what_rests_on_nothing_is_named() {
    let mut measured = catalog("a100");
    measured.spread = Some(0.1);
    measured.matrix_product.iter_mut().for_each(|row| row.rows = 9);
    measured.attention.iter_mut().for_each(|row| row.rows = 9);
    measured.streaming.iter_mut().for_each(|row| row.rows = 9);
    let notes = |calibration: &Calibration, precision| {
        model(&Precision::ALL, calibration.clone()).assumptions(&program(precision))
    };
    assert_eq!(notes(&measured, Precision::Bf16), Vec::<String>::new());
    let mut partly = measured.clone();
    partly.spread = None;
    partly.matrix_product.retain(|row| matches!(row.precision, Precision::Bf16 | Precision::Fp16));
    let fp8 = notes(&partly, Precision::Fp8);
    assert_eq!(fp8.len(), 2, "{fp8:?}");
    assert!(fp8[0].contains("declares no spread") && fp8[1].contains("matrix products in fp8"), "{fp8:?}");
    assert!(!fp8[1].contains("bf16") && !fp8[1].contains("attention"), "those were measured: {fp8:?}");
    partly.streaming.iter_mut().for_each(|row| row.rows = 0);
    partly.attention.iter_mut().for_each(|row| row.rows = 0);
    let bf16 = notes(&partly, Precision::Bf16);
    assert!(bf16[1].contains("attention in bf16, kernels bound by memory"), "{bf16:?}");
}

#[test]
fn an_interval_is_as_wide_as_its_causes_and_longer_on_slow_hosts() {
    let mut calibration = catalog("a100");
    calibration.spread = Some(0.06);
    let stack = Stack {
        spread: 0.08,
        terms: SpreadTerms { exchanges: 0.4, expert_waits: 0.5, assumed: 0.2, ..SpreadTerms::default() },
        ..Stack::default()
    };
    let model = model(&Precision::ALL, calibration).with_stack(stack);
    let seconds = |value: f64| ir::SimDuration::from_seconds(value).unwrap();
    let mut breakdown = ir::Breakdown::default();
    breakdown.add(ir::Activity::Compute, seconds(1.5));
    breakdown.add(ir::Activity::Data, seconds(0.3));
    breakdown.add(ir::Activity::Tensor, seconds(0.2));
    let mut prediction = ir::Prediction { breakdown, ..bare(ir::prediction::BasisShare::default()) };
    let of = |prediction: &ir::Prediction| model.spread(&[KIND], prediction);
    // A quarter of the time is exchanges: 0.4 of it.
    let plain = of(&prediction);
    let expect = (0.08f64 * 0.08 + 0.06 * 0.06 + 0.1 * 0.1).sqrt();
    assert!((plain.above() - expect).abs() < 1e-9 && (plain.below() - expect).abs() < 1e-9, "{plain:?}");
    let (low, high) = plain.interval(2.0);
    assert!((low * high - 4.0).abs() < 1e-9 && (high / 2.0 - (1.645 * expect).exp()).abs() < 1e-9);
    assert_eq!(
        plain.causes().iter().map(|(cause, _)| cause.name()).collect::<Vec<_>>(),
        ["link efficiency", "software stack", "device"]
    );
    // Two more seconds on one host in twenty: the upper end alone reaches them.
    prediction.at_risk.slow_launches = seconds(2.0);
    let slow = of(&prediction);
    assert!((slow.below() - expect).abs() < 1e-9 && slow.interval(2.0).1 > 4.0, "{slow:?}");
    assert!((slow.of(SpreadCause::SlowLaunches) - 2.0f64.ln() / 1.645).abs() < 1e-9);
    prediction.at_risk.expert_waits = seconds(0.5);
    assert!((of(&prediction).of(SpreadCause::ExpertWaits) - 0.125).abs() < 1e-9);
    prediction.basis.assumed = 0.5;
    assert!((of(&prediction).of(SpreadCause::Assumed) - 0.1).abs() < 1e-9);
}

#[test]
fn a_dispatch_rests_on_what_it_was_taken_from() {
    let owned = Owned(gpt(256, 2, 4), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let chunk = chunk(2, false, false, ir::Recompute::None);
    let none = ir::program::UnitRange { start: 0, end: 0 };
    let basis = |instruction_us, change: fn(&mut Calibration)| {
        let mut calibration = catalog("a100");
        calibration.dispatch.instruction_us = instruction_us;
        change(&mut calibration);
        let model = model(&Precision::ALL, calibration);
        model.compute(owned.shape(), &chunk, ir::program::Pass::Forward, none, KIND).basis
    };
    assert_eq!(basis(0.0, |_| {}), Basis::Measured, "nothing rests on it");
    assert_eq!(basis(2.0, |_| {}), Basis::Analytic, "a constant");
    assert_eq!(basis(2.0, |calibration| calibration.threads = true), Basis::Measured, "of an executor's measurements");
}

#[test]
fn copies_to_the_host_and_optimizers_there_say_what_they_rest_on() {
    let mut calibration = plain_links();
    calibration.host = None;
    let with = |calibration: &Calibration| model(&Precision::ALL, calibration.clone());
    let copy = with(&calibration).host_copy(Bytes::new(300_000_000), DeviceId::new(1));
    assert_eq!((copy.duration.nanoseconds(), copy.basis), (1_000_000 + 1500, Basis::Assumed), "taken at its word");
    let step = with(&calibration).host_optimizer(1_000_000, Precision::Bf16, KIND);
    assert_eq!(step.basis, Basis::Assumed);
    calibration.host = Some(Host { optimizer_gb_per_s: 1.0, rows: 4, source: "a test".to_owned() });
    let measured = with(&calibration).host_optimizer(1_000_000, Precision::Bf16, KIND);
    let bytes = ir::counts::optimizer_bytes(1_000_000, Precision::Bf16).get();
    assert_eq!((measured.duration.nanoseconds(), measured.basis), (bytes, Basis::Interpolated));
    assert!(measured.duration > with(&calibration).optimizer(1_000_000, Precision::Bf16, 1, KIND).duration);
}

#[test]
fn every_catalog_prices_every_kernel_of_every_format() {
    let folder = format!("{}/../catalog/calibration", env!("CARGO_MANIFEST_DIR"));
    let mut device = a100();
    device.peak = Precision::ALL.iter().map(|format| (*format, FlopsPerSecond::new(300e12).unwrap())).collect();
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let stem = entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        if ["stacks", "memory"].contains(&stem.as_str()) {
            continue;
        }
        let prepared = Prepared::new(catalog(&stem));
        for precision in Precision::ALL {
            let mut kernels = vec![
                Kernel::MatrixProduct { m: 4096, n: 4096, k: 4096 },
                Kernel::GroupedProduct { groups: 8, m: 512, n: 4096, k: 4096 },
            ];
            let bytes = Bytes::new(1 << 20);
            kernels.extend(Streaming::ALL.map(|kind| Kernel::Streaming { kind, bytes, launches: 1 }));
            for kernel in kernels {
                let (seconds, _) = prepared.kernel(&device, precision, kernel);
                assert!(seconds > 0.0 && seconds < 10.0, "{stem}, {precision:?}, {kernel:?}: {seconds}");
            }
        }
        read += 1;
    }
    assert!(read >= 4, "{read}");
}

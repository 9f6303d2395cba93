//! Fitting measurements of a machine whose truth is known.

use ir::counts::{Kernel, Streaming};
use ir::{Bytes, MeasuredOp, Measurement, Precision, SimDuration};

use super::fixtures::*;
use crate::compute::Prepared;
use crate::{Calibration, fit};

/// A core that the formulas of nobody describe: efficiency rises with each size and cache misses set in.
fn truth(m: f64, n: f64, k: f64) -> f64 {
    let efficiency = 0.8 * (m / (m + 12.0)) * (n / (n + 24.0)) * (k / (k + 40.0));
    let misses = if m * k + k * n + m * n > 2e6 { 1.15 } else { 1.0 };
    0.4e-6 + 2.0 * m * n * k / (60e9 * efficiency) * misses
}

fn measurement(op: MeasuredOp, seconds: f64) -> Measurement {
    Measurement { op, median: SimDuration::from_seconds(seconds).unwrap(), dispersion: 0.01, repetitions: 9 }
}

fn measurements() -> Vec<Measurement> {
    let mut all = Vec::new();
    for m in [32u64, 128, 512, 1024] {
        for n in [32u64, 128, 512, 1024] {
            for k in [32u64, 128, 512, 1024] {
                all.push(measurement(MeasuredOp::MatrixProduct { m, n, k }, truth(m as f64, n as f64, k as f64)));
            }
        }
    }
    for kind in [Streaming::Add, Streaming::RmsNorm, Streaming::RmsNormBackward, Streaming::Optimizer] {
        for power in 10..24 {
            let bytes = 1u64 << power;
            let rate = if bytes > 1 << 20 { 8e9 } else { 20e9 };
            let op = MeasuredOp::ElementWise { bytes: Bytes::new(bytes), kernel: kind.name().to_owned() };
            all.push(measurement(op, 0.3e-6 + bytes as f64 / rate));
        }
    }
    for (sequences, heads, sequence_length) in [(1, 2, 64), (1, 4, 128), (2, 4, 256), (4, 8, 256), (1, 8, 512)] {
        for backward in [false, true] {
            let work = (sequences * heads * sequence_length * sequence_length * 64) as f64;
            let op = MeasuredOp::Attention { sequences, sequence_length, heads, head_dim: 64, backward };
            all.push(measurement(op, 2e-6 + work * if backward { 5.0 } else { 2.0 } / 15e9));
        }
    }
    for power in 8..22 {
        let bytes = Bytes::new(1 << power);
        all.push(measurement(MeasuredOp::Copy { bytes }, 1e-6 + bytes.get() as f64 / 6e9));
        let op = MeasuredOp::Collective { kind: "all-reduce".to_owned(), ranks: 2, bytes };
        all.push(measurement(op, 5e-6 + bytes.get() as f64 / 3e9));
    }
    all.push(measurement(MeasuredOp::Dispatch, 1.5e-6));
    all
}

#[test]
fn a_fit_predicts_what_it_did_not_see() {
    let (calibration, report) = fit(&measurements(), "this-cpu").unwrap();
    let core = device("core", "this-cpu", 0.1, 1e10, 1);
    let prepared = Prepared::new(calibration.clone());
    let (mut worst, mut sum, mut count) = (0.0f64, 0.0, 0);
    let mut draw = Draw(11);
    for _ in 0..300 {
        let (m, n, k) = (32 + draw.below(992), 32 + draw.below(992), 32 + draw.below(992));
        let (seconds, _) = prepared.kernel(&core, Precision::Fp32, Kernel::MatrixProduct { m, n, k });
        let error = (seconds / truth(m as f64, n as f64, k as f64) - 1.0).abs();
        (worst, sum, count) = (worst.max(error), sum + error, count + 1);
    }
    let mean = sum / f64::from(count);
    assert!(mean < 0.03 && worst < 0.2, "mean {mean:.3}, worst {worst:.3}");
    // Points come back.
    let (seconds, basis) = prepared.kernel(&core, Precision::Fp32, Kernel::MatrixProduct { m: 128, n: 512, k: 32 });
    assert!((seconds / truth(128.0, 512.0, 32.0) - 1.0).abs() < 1e-3);
    assert_eq!(basis, crate::Basis::Measured);
    // The report is of points left out, so it is no better than that, and it names every class.
    let class = |name: &str| report.classes.iter().find(|class| class.class == name).unwrap();
    assert!(class("matrix-product").median_error.unwrap() < 0.03, "{report:?}");
    assert!(class("rms-norm").median_error.unwrap() < 0.05, "{report:?}");
    assert!(class("all-reduce of 2").worst_error.unwrap() < 0.2, "{report:?}");
    assert_eq!(class("attention-forward").points, 5);
    assert!((calibration.dispatch.instruction_us - 1.5).abs() < 1e-9);
    // What was fitted is written and read back.
    assert_eq!(Calibration::from_toml(&calibration.to_toml(), "x").unwrap(), calibration);
}

#[test]
fn measurements_that_cannot_be_are_all_named() {
    let bad = [
        measurement(MeasuredOp::ElementWise { bytes: Bytes::new(8), kernel: "softmax".to_owned() }, 1e-6),
        measurement(MeasuredOp::Copy { bytes: Bytes::ZERO }, 1e-6),
        measurement(MeasuredOp::Dispatch, 0.0),
        measurement(MeasuredOp::Collective { kind: "broadcast".to_owned(), ranks: 2, bytes: Bytes::new(8) }, 1e-6),
    ];
    let problems = fit(&bad, "x").unwrap_err();
    assert_eq!(problems.len(), 6, "four rows, no matrix product, no addition: {problems:?}");
}

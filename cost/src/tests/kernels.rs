//! Kernels on one device: formats, groups, alignment, attention.

use ir::counts::Kernel;
use ir::{AttentionKernel, FlopsPerSecond, Precision};

use super::fixtures::*;
use crate::compute::Prepared;
use crate::{Alignment, Basis, Calibration, MatrixProduct};

/// A calibration in which nothing but arithmetic takes time.
fn arithmetic() -> Calibration {
    let mut calibration = catalog("a100");
    let row = |precision| MatrixProduct {
        precision,
        overhead_us: 0.0,
        utilisation: 0.5,
        wave_exponent: 1.0,
        memory_efficiency: 1.0,
        tile_m: 128,
        tile_n: 256,
        grouped_utilisation: None,
        alignment: vec![],
        rows: 10,
        source: "a test".to_owned(),
    };
    calibration.matrix_product = Precision::ALL.map(row).into();
    calibration.measured = None;
    for attention in &mut calibration.attention {
        attention.overhead_us = 0.0;
        attention.alignment.clear();
    }
    calibration
}

/// Peaks of all formats: 100, 200, 400, 400 and 800 TFLOP/s.
fn every_format() -> ir::DeviceKind {
    let mut device = a100();
    let rates = [100e12, 200e12, 400e12, 400e12, 800e12];
    device.peak = Precision::ALL.into_iter().zip(rates.map(|rate| FlopsPerSecond::new(rate).unwrap())).collect();
    device
}

fn seconds(calibration: &Calibration, precision: Precision, kernel: Kernel) -> f64 {
    Prepared::new(calibration.clone()).kernel(&every_format(), precision, kernel).0
}

#[test]
fn each_format_has_its_peak_and_its_bytes() {
    let calibration = arithmetic();
    // 27 x 4 x 4 tiles of 128 x 256 fill 108 multiprocessors four times over.
    let square = Kernel::MatrixProduct { m: 27 * 128, n: 16 * 256, k: 4096 };
    let work = 2.0 * f64::from(27 * 128) * f64::from(16 * 256) * 4096.0;
    for (precision, peak) in Precision::ALL.into_iter().zip([100e12, 200e12, 400e12, 400e12, 800e12]) {
        let time = seconds(&calibration, precision, square);
        assert!((time / (work / (0.5 * peak)) - 1.0).abs() < 1e-12, "{precision:?}: {time}");
    }
    // One row: bytes of the operands and of the result.
    let thin = Kernel::MatrixProduct { m: 1, n: 8192, k: 8192 };
    for (precision, operand, result) in
        [(Precision::Tf32, 4.0, 4.0), (Precision::Bf16, 2.0, 2.0), (Precision::Fp8, 1.0, 2.0)]
    {
        let bytes = operand * (8192.0 + 8192.0 * 8192.0) + result * 8192.0;
        let time = seconds(&calibration, precision, thin);
        assert!(time >= bytes / 2.039e12 * (1.0 - 1e-12), "{precision:?}: {time} of {bytes} bytes");
    }
}

#[test]
fn a_format_without_constants_or_peak_is_assumed() {
    let mut calibration = arithmetic();
    let kernel = Kernel::MatrixProduct { m: 4096, n: 4096, k: 4096 };
    let basis = |calibration: &Calibration, device: &ir::DeviceKind, precision| {
        Prepared::new(calibration.clone()).kernel(device, precision, kernel).1
    };
    assert_eq!(basis(&calibration, &every_format(), Precision::Fp8), Basis::Interpolated);
    assert_eq!(basis(&calibration, &a100(), Precision::Fp8), Basis::Assumed, "no such peak");
    calibration.matrix_product.retain(|row| row.precision == Precision::Bf16);
    assert_eq!(basis(&calibration, &every_format(), Precision::Fp16), Basis::Interpolated, "the other 16-bit format");
    assert_eq!(basis(&calibration, &every_format(), Precision::Fp8), Basis::Assumed, "another format's constants");
    calibration.matrix_product[0].rows = 0;
    assert_eq!(basis(&calibration, &every_format(), Precision::Bf16), Basis::Assumed, "nothing measured");
}

/// Groups share waves: never dearer than one after the other, never cheaper than the same work without any partial wave.
#[test]
fn grouped_products_share_waves() {
    let mut calibration = arithmetic();
    let one = |m, n, k| Kernel::MatrixProduct { m, n, k };
    let group = |groups, m, n, k| Kernel::GroupedProduct { groups, m, n, k };
    let mut draw = Draw(11);
    for _ in 0..2000 {
        let (groups, m) = (1 + draw.below(64), 1 + draw.below(4096));
        let (n, k) = (1 + draw.below(8192), 1 + draw.below(8192));
        let together = seconds(&calibration, Precision::Bf16, group(groups, m, n, k));
        let apart = groups as f64 * seconds(&calibration, Precision::Bf16, one(m, n, k));
        assert!(together <= apart * (1.0 + 1e-12), "{groups} of {m} {n} {k}: {together} against {apart}");
        let bound = groups as f64 * 2.0 * (m * n) as f64 * k as f64 / (0.5 * 400e12);
        assert!(together >= bound * (1.0 - 1e-12), "{groups} of {m} {n} {k}");
        let alone = seconds(&calibration, Precision::Bf16, group(1, m, n, k));
        assert!((alone / seconds(&calibration, Precision::Bf16, one(m, n, k)) - 1.0).abs() < 1e-12);
    }
    // 54 tiles each: two fill a wave that one leaves half empty.
    let half = seconds(&calibration, Precision::Bf16, one(54 * 128, 256, 4096));
    assert!((seconds(&calibration, Precision::Bf16, group(2, 54 * 128, 256, 4096)) / half - 1.0).abs() < 1e-12);
    calibration.matrix_product.iter_mut().for_each(|row| row.grouped_utilisation = Some(0.25));
    let slower = seconds(&calibration, Precision::Bf16, group(2, 54 * 128, 256, 4096));
    assert!((slower / (2.0 * half) - 1.0).abs() < 1e-12, "its own share of the peak");
}

#[test]
fn sizes_that_do_not_fit_the_hardware_pay_what_is_declared() {
    let mut calibration = arithmetic();
    let time = |calibration: &Calibration, k| {
        seconds(calibration, Precision::Bf16, Kernel::MatrixProduct { m: 4096, n: 4096, k })
    };
    let plain = [4096, 4096 + 8, 4096 + 4].map(|k| time(&calibration, k));
    let penalties = vec![Alignment { multiple: 64, time_factor: 1.1 }, Alignment { multiple: 8, time_factor: 3.0 }];
    calibration.matrix_product.iter_mut().for_each(|row| row.alignment.clone_from(&penalties));
    for ((k, plain), factor) in [4096, 4096 + 8, 4096 + 4].into_iter().zip(plain).zip([1.0, 1.1, 3.0]) {
        assert!((time(&calibration, k) / plain - factor).abs() < 1e-12, "k = {k}");
    }
    // A head of 108 (a model of 13,824 on 128 heads), of 112 and of 128.
    let core = |calibration: &Calibration, head_dim| seconds(calibration, Precision::Bf16, attention(2048, head_dim));
    let widths = [108, 112, 128];
    let before = widths.map(|width| core(&calibration, width));
    calibration.attention.iter_mut().for_each(|row| row.alignment.clone_from(&penalties));
    for ((width, before), factor) in widths.into_iter().zip(before).zip([3.0, 1.1, 1.0]) {
        assert!((core(&calibration, width) / before - factor).abs() < 1e-12, "a head of {width}: {factor}");
    }
}

fn attention(sequence_length: u64, head_dim: u64) -> Kernel {
    Kernel::Attention {
        sequences: 2,
        sequence_length,
        heads: 4,
        kv_heads: 4,
        head_dim,
        value_dim: head_dim,
        window: sequence_length,
        context: 1,
        pieces: 1,
        kernel: AttentionKernel::Fused,
        fused_softmax: true,
        backward: false,
    }
}

/// Scores that a tiled kernel computes: whole blocks that hold at least one used score.
fn naive_scores(tokens: u64, window: u64, block: u64) -> f64 {
    let mut scores = 0;
    for row in 0..tokens / block {
        for column in 0..=row {
            // The nearest query and key of the two blocks: the first query with the last key.
            let apart = (row * block).saturating_sub(column * block + block - 1);
            scores += if apart < window { block * block } else { 0 };
        }
    }
    scores as f64
}

#[test]
fn a_tiled_core_computes_the_blocks_that_a_walk_over_them_does() {
    let calibration = arithmetic();
    let row = calibration.attention.iter().find(|row| row.kernel == AttentionKernel::Fused).unwrap();
    let (block, share) = (u64::from(row.block), row.forward_utilisation);
    for (tokens, window) in [(2048, 2048), (8192, 8192), (32_768, 4096), (131_072, 1024), (16_384, 512)] {
        let Kernel::Attention { sequences, heads, .. } = attention(tokens, 128) else { unreachable!() };
        let mut kernel = attention(tokens, 128);
        if let Kernel::Attention { window: of, .. } = &mut kernel {
            *of = window;
        }
        let time = seconds(&calibration, Precision::Bf16, kernel);
        let computed = time * 400e12 * share / (2.0 * 256.0) / (sequences * heads) as f64;
        let naive = naive_scores(tokens, window, block);
        let tolerance = if window == tokens { 1e-9 } else { 0.03 };
        assert!((computed / naive - 1.0).abs() < tolerance, "{tokens}, {window}: {computed} against {naive}");
    }
}

#[test]
fn windows_context_and_value_widths_divide_the_work() {
    let calibration = arithmetic();
    let time = |change: &dyn Fn(&mut Kernel)| {
        let mut kernel = attention(16_384, 128);
        change(&mut kernel);
        seconds(&calibration, Precision::Bf16, kernel)
    };
    let whole = time(&|_| {});
    let of = |change: fn(&mut u64, &mut u64, &mut u64)| {
        time(&move |kernel| {
            if let Kernel::Attention { window, context, value_dim, .. } = kernel {
                change(window, context, value_dim);
            }
        })
    };
    assert!((of(|_, context, _| *context = 4) / whole - 0.25).abs() < 1e-12);
    assert!((of(|_, _, value| *value = 64) / whole - 0.75).abs() < 1e-12, "half of the products with values");
    assert!((of(|window, _, _| *window = 1 << 40) / whole - 1.0).abs() < 1e-12, "a window beyond the sequence");
    let mut last = 0.0;
    for window in [128, 512, 1024, 4096, 8192, 16_383, 16_384] {
        let next = time(&|kernel| {
            if let Kernel::Attention { window: of, .. } = kernel {
                *of = window;
            }
        });
        // Near the whole sequence a second partial block may cost more than the scores it saves.
        assert!(next >= last * 0.999 && next <= whole * 1.001, "{window}: {next} after {last}, all {whole}");
        last = next;
    }
}

#[test]
fn an_elementary_softmax_moves_what_is_declared() {
    let mut calibration = arithmetic();
    let plain = |calibration: &Calibration, fused: bool, backward: bool| {
        let mut kernel = attention(2048, 128);
        if let Kernel::Attention { kernel, fused_softmax, backward: pass, .. } = &mut kernel {
            (*kernel, *fused_softmax, *pass) = (AttentionKernel::Plain, fused, backward);
        }
        seconds(calibration, Precision::Bf16, kernel)
    };
    let scores = 2.0 * 4.0 * 2048.0 * 2048.0;
    let share = calibration.streaming[0].bandwidth_fraction;
    let row = calibration.attention.iter().find(|row| row.kernel == AttentionKernel::Plain).unwrap().clone();
    let more = scores * row.elementary_score_bytes.map_or(row.score_bytes * 1.6, |bytes| bytes - row.score_bytes);
    let difference = plain(&calibration, false, false) - plain(&calibration, true, false);
    assert!((difference / (more / (2.039e12 * share)) - 1.0).abs() < 1e-9);
    for row in &mut calibration.attention {
        row.elementary_score_bytes_backward = Some(row.score_bytes_backward);
    }
    assert!((plain(&calibration, false, true) / plain(&calibration, true, true) - 1.0).abs() < 1e-12);
}

#[test]
fn measured_shapes_serve_their_own_format_only() {
    let mut calibration = arithmetic();
    calibration.measured = Some(crate::Measured {
        precision: Precision::Fp16,
        matrix_products: vec![[512.0, 512.0, 512.0, 7700.0], [1024.0, 512.0, 512.0, 12_000.0]],
        ..crate::Measured::default()
    });
    let kernel = Kernel::MatrixProduct { m: 512, n: 512, k: 512 };
    for precision in [Precision::Fp16, Precision::Bf16] {
        assert!((seconds(&calibration, precision, kernel) / 7.7e-3 - 1.0).abs() < 1e-9);
    }
    for precision in [Precision::Fp32, Precision::Fp8] {
        assert!(seconds(&calibration, precision, kernel) < 1e-3, "{precision:?} by its constants");
    }
}

/// The peak of a core is assumed: one whose products were measured at more can that.
#[test]
fn what_products_were_measured_at_a_device_can() {
    let mut calibration = arithmetic();
    let cluster = dgx_a100(1).cluster().clone();
    let fastest = |calibration: &Calibration| {
        let model = crate::CostModel::new(cluster.clone(), vec![calibration.clone()]).unwrap();
        model.fastest_product(ir::DeviceKindId::new(0)).map(FlopsPerSecond::get)
    };
    assert_eq!(fastest(&calibration), None);
    calibration.measured = Some(crate::Measured {
        matrix_products: vec![[64.0, 64.0, 64.0, 100.0], [512.0, 256.0, 128.0, 50.0]],
        ..crate::Measured::default()
    });
    let found = fastest(&calibration).unwrap();
    assert!((found / (2.0 * 512.0 * 256.0 * 128.0 / 50e-6) - 1.0).abs() < 1e-12, "{found}");
}

//! What a rank does on a device is what it does in host memory: on the CPU as a device, whose kernels are the same.

use std::sync::Arc;

use ir::{
    BranchNorms, FeedForward, LayerRun, Mixer, MlpKind, Model, NormKind, ParallelBranches, Precision, QueryKeyNorm,
    Recompute, Workload, ZeroStage,
};

use super::lockstep::Lockstep;
use super::programs::{Division, program};
use super::{gpt2, lively, llama, workload};
use crate::device::{CpuDevice, Device};

/// Past the warm-up.
const ITERATIONS: u64 = 8;

fn devices(count: u32) -> Vec<Arc<dyn Device>> {
    (0..count).map(|_| Arc::new(CpuDevice::new()) as Arc<dyn Device>).collect()
}

/// Losses and, at the end, weights in host memory and on devices differ by at most a relative `tolerance`.
fn check(model: &Model, workload: &Workload, division: &Division, tolerance: f64) {
    let program = program(model, workload, division);
    let devices = devices(program.world());
    let initial = lively(model);
    let mut ranks = Lockstep::on(&program, Some(&initial), &devices);
    let mut wanted = Lockstep::new(&program, Some(&initial));
    for iteration in 0..ITERATIONS {
        let (loss, want) = (ranks.iterate(iteration).unwrap(), wanted.iterate(iteration).unwrap());
        let error = ((loss - want) / want).abs();
        assert!(error <= tolerance, "{division:?}: iteration {iteration} has a loss of {loss}, not {want}: {error:e}");
        for (rank, want) in ranks.ranks.iter().zip(&wanted.ranks) {
            let (norm, want) = (rank.global_gradient_norm(), want.global_gradient_norm());
            assert!((norm - want).abs() <= 30.0 * tolerance * want, "{division:?}: a norm of {norm}, not {want}");
        }
    }
    let (weights, wanted) = (ranks.weights(), wanted.weights());
    for ((name, tensor), (_, want)) in weights.iter().zip(wanted.iter()) {
        let of = |data: &[f32]| data.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        let apart: Vec<f32> = tensor.data.iter().zip(&want.data).map(|(a, b)| a - b).collect();
        let (apart, whole) = (of(&apart), of(&want.data));
        assert!(apart <= 100.0 * tolerance * whole, "{division:?}: {name} differs by {:e}", apart / whole);
    }
    drop(ranks);
    for device in devices {
        assert_eq!(device.memory().in_use, 0, "{division:?}: not all of a device's memory was given back");
        assert!(device.memory().peak > 0, "{division:?}: a rank that never used its device");
    }
}

/// Rounding of sums in another order.
const SINGLE: f64 = 1e-5;
/// Rounding to half precision in other places: a bias is added to a rounded product, and the like.
const HALF: f64 = 1e-2;

fn check_both(model: &Model, division: &Division) {
    check(model, &workload(), division, SINGLE);
    check(model, &Workload { precision: Precision::Bf16, ..workload() }, division, HALF);
}

#[test]
fn one_rank_trains_on_a_device_as_in_host_memory() {
    for model in [llama(), gpt2()] {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Operations, Recompute::Full] {
            check_both(&model, &Division { recompute, ..Division::ONE });
            check_both(&model, &Division { recompute, split: true, ..Division::ONE });
        }
    }
}

#[test]
fn divided_models_train_on_devices_as_in_host_memory() {
    let two = Division { microbatches: 2, ..Division::ONE };
    let divisions = [
        Division { data: 2, ..two },
        Division { data: 2, zero: ZeroStage::Zero1, overlap: true, ..two },
        Division { positions: 2, recompute: Recompute::Full, ..two },
        Division { chunks_per_position: 2, ..two },
        Division { positions: 2, chunks_per_position: 2, split: true, ..two },
        Division { tensor: 2, ..two },
        Division { tensor: 2, sequence_parallel: true, positions: 2, data: 2, zero: ZeroStage::Zero1, ..two },
    ];
    for division in divisions {
        for model in [llama(), gpt2()] {
            check_both(&model, &division);
        }
    }
}

#[test]
fn variants_train_on_a_device_as_in_host_memory() {
    let with = |change: fn(&mut Model)| {
        let mut model = llama();
        change(&mut model);
        model
    };
    let models = [
        with(|model| model.variants.query_key_norm = QueryKeyNorm::Head),
        with(|model| model.variants.query_key_norm = QueryKeyNorm::Width),
        with(|model| model.variants.branch_norms = BranchNorms::Both),
        with(|model| model.variants.parallel_branches = ParallelBranches::OneNorm),
        with(|model| model.variants.parallel_branches = ParallelBranches::OwnNorms),
        with(|model| (model.mlp, model.variants.exact_gelu) = (MlpKind::Gelu, true)),
        with(|model| model.mlp = MlpKind::GeGlu),
        with(|model| model.variants.plain_norms = true),
        with(|model| (model.norm, model.variants.plain_norms) = (NormKind::LayerNorm, true)),
        with(|model| {
            let run = |mixer| LayerRun { layers: 2, mixer, feed_forward: FeedForward::Dense };
            (model.variants.pattern, model.variants.window) =
                (vec![run(Mixer::Window), run(Mixer::Attention)], Some(3));
        }),
    ];
    for model in models {
        check_both(&model, &Division::ONE);
    }
}

/// What is not finite is found when the instruction ends, and named as in host memory.
#[test]
fn what_is_not_finite_on_a_device_is_named() {
    let division = Division { positions: 2, ..Division::ONE };
    for model in [llama(), gpt2()] {
        let program = program(&model, &workload(), &division);
        for poisoned in [0, 1] {
            let mut ranks = [Lockstep::on(&program, None, &devices(program.world())), Lockstep::new(&program, None)];
            let found = ranks.each_mut().map(|ranks| {
                ranks.iterate(0).unwrap();
                ranks.ranks[poisoned].poison();
                ranks.iterate(1).unwrap_err()
            });
            assert_eq!(found[0], found[1]);
        }
    }
}

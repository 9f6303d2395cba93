//! Whole trainings on the emulated machine, through the same backend as everybody's.

use std::sync::Arc;

use ir::{Backend, BackendError, MlpKind, Model, NormKind, Positions, Precision, Recompute, Workload, ZeroStage};

use super::machine::{self, answer};
use super::skip;
use crate::cuda::Gpus;
use crate::data::{Packing, Text, generate};
use crate::device::Devices;
use crate::kernels::testing::long_tests;
use crate::runtime::tests::{documents, domain, training};
use crate::runtime::{CpuBackend, CpuOptions};
use crate::state::tests::programs::{Division, program};

pub(super) fn workload(precision: Precision) -> Workload {
    Workload { sequence_length: 16, global_batch: 4, iterations: 20, precision, ..training::workload() }
}

pub(super) fn llama() -> Model {
    Model { hidden: 16, layers: 2, ffn: 24, ..training::model() }
}

/// GPT-2's family.
pub(super) fn gpt2() -> Model {
    Model {
        kv_heads: 4,
        norm: NormKind::LayerNorm,
        positions: Positions::Learned { maximum: 16 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        ..llama()
    }
}

/// The losses of a training, on devices or on the processor.
fn losses(
    of: (&Model, Precision),
    division: &Division,
    iterations: u64,
    devices: Option<Arc<dyn Devices>>,
) -> Result<Vec<f64>, BackendError> {
    losses_on(generate(1, 30_000), of, division, iterations, devices)
}

fn losses_on(
    text: impl Into<Text>,
    (model, precision): (&Model, Precision),
    division: &Division,
    iterations: u64,
    devices: Option<Arc<dyn Devices>>,
) -> Result<Vec<f64>, BackendError> {
    let program = program(model, &workload(precision), division);
    let options = CpuOptions { devices, ..CpuOptions::default() };
    let cluster = domain(&vec![1.0; program.world() as usize]);
    let mut backend = CpuBackend::new(cluster, text, options);
    backend.load(Arc::clone(&program))?;
    (0..iterations).map(|iteration| backend.iterate(iteration).map(|outcome| outcome.loss.expect("a loss"))).collect()
}

fn gpus(ranks_per_gpu: u32) -> Arc<dyn Devices> {
    Arc::new(Gpus { ranks_per_gpu, cache: std::env::var_os("CACHE").map(Into::into) })
}

/// The largest relative difference of the losses of a training on GPUs from those on the processor, which must fall.
fn difference(of: (&Model, Precision), division: &Division, iterations: u64, ranks_per_gpu: u32) -> f64 {
    let wanted = losses(of, division, iterations, None).expect("a training on the CPU");
    let least = if iterations >= 20 { 0.9 } else { 0.99 };
    assert!(wanted[wanted.len() - 1] < least * wanted[0], "the model does not learn: {wanted:?}");
    let got = losses(of, division, iterations, Some(gpus(ranks_per_gpu))).expect("a training on GPUs");
    got.iter().zip(&wanted).map(|(got, want)| ((got - want) / want).abs()).fold(0.0, f64::max)
}

/// The bounds of the project: FP32 differs in the order of sums, BF16 in places of rounding too.
fn assert_close(of: (&Model, Precision), division: &Division, iterations: u64, ranks_per_gpu: u32) {
    let difference = difference(of, division, iterations, ranks_per_gpu);
    let most = if of.1 == Precision::Fp32 { 1e-4 } else { 1e-2 };
    assert!(difference <= most, "{} in {}, {division:?}: {difference:e}", of.0.name, of.1.name());
}

#[test]
#[ignore = "run by models_train_on_a_gpu_as_on_the_cpu"]
fn one_rank() {
    let of =
        [(llama(), Precision::Bf16), (gpt2(), Precision::Fp32), (llama(), Precision::Fp32), (gpt2(), Precision::Bf16)];
    for (model, precision) in of.into_iter().take(if long_tests() { 4 } else { 2 }) {
        assert_close((&model, precision), &Division { microbatches: 2, ..Division::ONE }, 20, 1);
    }
    answer("done");
}

#[test]
#[ignore = "run by models_train_on_a_gpu_as_on_the_cpu"]
fn several_ranks() {
    let two = Division { microbatches: 2, ..Division::ONE };
    for (division, ranks_per_gpu) in [
        (Division { data: 2, zero: ZeroStage::Zero1, ..two }, 1),
        (Division { positions: 2, recompute: Recompute::Full, ..two }, 2),
        (Division { tensor: 2, sequence_parallel: true, ..two }, 1),
    ] {
        let iterations = if long_tests() { 20 } else { 8 };
        assert_close((&llama(), Precision::Bf16), &division, iterations, ranks_per_gpu);
        if long_tests() {
            assert_close((&gpt2(), Precision::Fp32), &division, iterations, ranks_per_gpu);
        }
    }
    answer("done");
}

/// Documents of unequal lengths in each sequence, with both kinds of positions.
#[test]
#[ignore = "run by models_train_on_a_gpu_as_on_the_cpu"]
fn packed() {
    let lengths: Vec<usize> = (0..200).map(|i| 1 + i * 7 % 23).collect();
    let text = documents::text(&lengths, Packing::Documents);
    let two = Division { microbatches: 2, ..Division::ONE };
    let divisions = [two, Division { tensor: 2, sequence_parallel: true, ..two }];
    for (of, division) in [(gpt2(), Precision::Fp32), (llama(), Precision::Bf16)].iter().zip(&divisions) {
        let train = |devices| losses_on(text.clone(), (&of.0, of.1), division, 6, devices).expect("a training");
        let (want, got) = (train(None), train(Some(gpus(1))));
        let apart = got.iter().zip(&want).map(|(got, want)| ((got - want) / want).abs()).fold(0.0, f64::max);
        let most = if of.1 == Precision::Fp32 { 1e-4 } else { 1e-2 };
        assert!(apart <= most, "{} in {}: {apart:e}", of.0.name, of.1.name());
        let plain = losses((&of.0, of.1), division, 6, None).expect("a training");
        assert_ne!(plain, want, "documents make a difference");
    }
    answer("done");
}

/// Why a training does not begin, or stopped, is the answer.
#[test]
#[ignore = "run by what_keeps_a_training_from_its_gpus_is_told"]
fn stopped() {
    let division = Division { data: 2, microbatches: 2, ..Division::ONE };
    let model = match std::env::var("HEAD_DIM").ok() {
        Some(head_dim) => Model { head_dim: head_dim.parse().expect("a number"), ..llama() },
        None => llama(),
    };
    let ranks_per_gpu = std::env::var("RANKS_PER_GPU").map_or(1, |ranks| ranks.parse().expect("a number"));
    answer(&match losses((&model, Precision::Fp32), &division, 2, Some(gpus(ranks_per_gpu))) {
        Ok(losses) => format!("trained {} iterations", losses.len()),
        Err(BackendError::Unsupported(problems)) => {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        Err(error) => error.to_string(),
    });
}

fn whole(test: &str) -> Option<&'static std::path::Path> {
    let built = machine::build();
    if built.is_none() {
        skip(test, "there is no compiler for C++ (c++)");
    }
    built.map(|[whole, _]| whole.as_path())
}

#[test]
fn models_train_on_a_gpu_as_on_the_cpu() {
    let Some(whole) = whole("models_train_on_a_gpu_as_on_the_cpu") else { return };
    for (test, settings) in [
        ("one_rank", &[][..]),
        ("several_ranks", &[("MACHINE_DEVICES", "2")][..]),
        ("packed", &[("MACHINE_DEVICES", "2")][..]),
    ] {
        let answer = machine::run(whole, &format!("training::{test}"), settings);
        assert!(answer.ok, "{test}\n{}", answer.words);
    }
}

#[test]
fn what_keeps_a_training_from_its_gpus_is_told() {
    let Some(whole) = whole("what_keeps_a_training_from_its_gpus_is_told") else { return };
    let nowhere = std::path::Path::new("/");
    /// Libraries, settings, and what is said.
    type Stop<'a> = (&'a std::path::Path, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Stop<'_>] = &[
        (nowhere, &[], &["run.device", "NVIDIA driver for CUDA is not there", "device = \"cpu\""]),
        (
            whole,
            &[("MACHINE_DEVICES", "1")],
            &["run.ranks_per_gpu", "2 ranks are to compute here, a GPU each", "shows 1 GPU", "ranks_per_gpu = 2"],
        ),
        (whole, &[("MACHINE_DEVICES", "1"), ("RANKS_PER_GPU", "2")], &["trained 2 iterations"]),
        (whole, &[("MACHINE_DEVICES", "2"), ("MACHINE_CAPABILITY", "7")], &["GPU 0", "7.0", "8.0 (A100) or newer"]),
        (whole, &[("MACHINE_DEVICES", "2"), ("HEAD_DIM", "192")], &["model.head_dim", "192", "at most 128"]),
        (
            whole,
            &[("MACHINE_DEVICES", "2"), ("MACHINE_MEMORY", "30000")],
            &["rank ", "iteration 0", "allocating", "out of memory", "recomputation"],
        ),
        (
            whole,
            &[("MACHINE_DEVICES", "2"), ("MACHINE_FAIL", "cuLaunchKernel:300:719")],
            &["rank ", "iteration ", "launching ", "emulated machine"],
        ),
    ];
    for (machine, settings, expected) in cases {
        let answer = machine::run(machine, "training::stopped", settings);
        assert!(answer.ok, "{settings:?}\n{}", answer.words);
        for words in *expected {
            assert!(answer.words.contains(words), "{settings:?}: `{words}` is not in `{}`", answer.words);
        }
    }
}

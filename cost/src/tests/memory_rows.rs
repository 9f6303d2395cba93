//! Peaks of published runs whose peak needs no schedule: a pipeline's first stage under 1F1B holds as many microbatches as
//! there are stages, a single stage one.

use ir::counts::Shape;
use ir::program::{Chunk, Pass, UnitRange};
use ir::{AttentionKernel, Bytes, GradientFormat, Model, Positions, Precision, Recompute, StageId, ZeroStage};

use super::fixtures::*;
use super::memory_models::{deepseek, llama};
use crate::memory::{
    Figures, MemoryKind, kept, kept_until_inputs, left_for_weights, logits, parameters, recomputed, state,
    stepped_parameters, workspace,
};

/// GiB while `in_flight` microbatches are kept: at the loss, or in a layer's pass with what it brings back.
fn peak(shape: Shape<'_>, chunk: &Chunk, in_flight: u64, kind: MemoryKind) -> f64 {
    let (weights, gradients, optimizer) = state(shape, parameters(shape, chunk), stepped_parameters(shape, chunk));
    let first = u32::from(chunk.embedding);
    let layer = UnitRange { start: first, end: first + 4 };
    let most = |pass| workspace(shape, chunk, pass, chunk.all_units());
    let inside = most(Pass::Forward).max(most(Pass::Backward)) + recomputed(shape, chunk, layer);
    let passing = kept(shape, chunk, chunk.all_units()) * in_flight + logits(shape, chunk).max(inside);
    Figures::of(&a100(), &shape.workload.recipe).shown(kind, weights + gradients + optimizer, passing).gib()
}

fn stage(model: &Model, stages: u32, position: u32) -> Chunk {
    let layers = model.layers / stages;
    Chunk {
        stage: StageId::new(position),
        first_layer: position * layers,
        layers,
        embedding: position == 0,
        head: position + 1 == stages,
        recompute: Recompute::None,
        recomputed_layers: layers,
    }
}

fn check(name: &str, predicted: f64, measured: f64, most: f64) {
    let error = predicted / measured - 1.0;
    assert!(error.abs() <= most, "{name}: {predicted:.2} against {measured:.2} GiB ({:+.1} %)", 100.0 * error);
}

/// Yeung et al. 2024, baseline 1F1B of GPT over 8 stages of 4 layers: expected output of their artifact (gradients in FP32)
/// and Table 5 (the same runs on another machine, two bytes per parameter less).
#[test]
fn first_stages_of_vocabulary_runs() {
    for (vocabulary, length, artifact, table) in [
        (32_768, 2048, 16.01, 14.86),
        (65_536, 2048, 17.74, 16.32),
        (131_072, 2048, 21.0, 19.25),
        (32_768, 4096, 22.23, 21.39),
        (65_536, 4096, 23.98, 22.85),
        (131_072, 4096, 27.22, 25.78),
        (262_144, 4096, 33.86, 31.64),
    ] {
        for (gradients, measured, most) in
            [(GradientFormat::Fp32, artifact, 0.01), (GradientFormat::Half, table, 0.015)]
        {
            let mut owned =
                Owned(gpt(3072, 32, 24), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
            (owned.0.vocabulary, owned.0.tied_head) = (vocabulary, false);
            owned.0.positions = Positions::Learned { maximum: length };
            (owned.1.sequence_length, owned.1.recipe.gradients) = (length, gradients);
            (owned.2.pipeline, owned.2.microbatches) = (8, 128);
            let predicted = peak(owned.shape(), &stage(&owned.0, 8, 0), 8, MemoryKind::Allocated);
            check(&format!("vocabulary {vocabulary}, sequence {length}, {gradients:?}"), predicted, measured, most);
        }
    }
}

/// SimuMax's measured runs on B200 (Megatron-LM, distributed optimizer): Llama-3-70B with 12 layers, DeepSeek-V2 with 4.
#[test]
fn runs_of_simumax() {
    for (tensor, stages, data, measured) in [(1, 2, 4, 66.55), (2, 1, 4, 60.68), (4, 1, 2, 39.07), (8, 1, 1, 28.29)] {
        let mut owned =
            Owned(llama(12), workload(Precision::Bf16, AttentionKernel::Fused), layout(tensor, tensor > 1, 1));
        (owned.1.sequence_length, owned.1.vocabulary_divisor) = (4096, 1);
        (owned.2.data, owned.2.pipeline, owned.2.zero) = (data, stages, ZeroStage::Zero1);
        let of = |position| {
            peak(owned.shape(), &stage(&owned.0, stages, position), u64::from(stages - position), MemoryKind::Allocated)
        };
        let predicted = (0..stages).map(of).fold(0.0, f64::max);
        check(&format!("llama tensor {tensor}"), predicted, measured, 0.025);
    }
    for (expert, stages, measured) in [(8, 1, 45.63), (4, 2, 44.7)] {
        let mut owned = Owned(deepseek(), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
        (owned.1.sequence_length, owned.1.vocabulary_divisor) = (4096, 1);
        (owned.2.data, owned.2.pipeline, owned.2.zero, owned.2.mesh.expert) =
            (expert, stages, ZeroStage::Zero1, expert);
        let of = |position| {
            peak(owned.shape(), &stage(&owned.0, stages, position), u64::from(stages - position), MemoryKind::Allocated)
        };
        let predicted = (0..stages).map(of).fold(0.0, f64::max);
        check(&format!("deepseek expert {expert}"), predicted, measured, 0.05);
    }
}

/// Qi et al. 2024, Table 4: GPT under 1F1B and ZB-1p, in 10^9 bytes. The second position has a layer more than the first;
/// under ZB-1p it holds the seven (fifteen) microbatches of 1F1B and one that waits for its weights.
#[test]
fn positions_of_zero_bubble_runs() {
    for (hidden, heads, stages, microbatch_size, one_forward, zero_bubble) in
        [(2304, 24, 8, 6, 30.0, 32.0), (5120, 40, 16, 1, 32.0, 33.0)]
    {
        let mut owned = Owned(
            gpt(hidden, 3 * stages, heads),
            workload(Precision::Fp16, AttentionKernel::Plain),
            layout(1, false, microbatch_size),
        );
        (owned.1.sequence_length, owned.1.recipe.gradients) = (1024, GradientFormat::Half);
        (owned.2.pipeline, owned.2.microbatches) = (stages, 3 * stages);
        let second = stage(&owned.0, stages, 1);
        let gigabytes = |gib: f64| gib * 1.073_741_824;
        let plain = peak(owned.shape(), &second, u64::from(stages - 1), MemoryKind::Allocated);
        check(&format!("1F1B, {hidden}"), gigabytes(plain), one_forward, 0.04);
        let waiting = kept(owned.shape(), &second, second.all_units())
            - kept_until_inputs(owned.shape(), &second, second.all_units())
            + left_for_weights(owned.shape(), &second, second.all_units());
        check(&format!("ZB-1p, {hidden}"), gigabytes(plain + waiting.gib()), zero_bubble, 0.04);
    }
}

/// Four layers of width 1,024 on one rank, 4,096 tokens, by hand. Of each token: a layer keeps 32 h, 16 bytes of the norms'
/// statistics and 4 of each of its 16 heads; the ends keep 4 of its number, 2 h + 8 before the final norm, 2 h behind it and
/// 4 of the loss; the loss has 10 of each of 51,200 logits.
#[test]
fn a_model_by_hand() {
    let owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 2));
    let whole = stage(&owned.0, 1, 0);
    let layer = 32_768 + 16 + 64;
    let ends = 4 + 2_056 + 2_048 + 4;
    assert_eq!(4 * layer + ends, 135_504);
    assert_eq!(kept(owned.shape(), &whole, whole.all_units()).get(), 135_504 * 4096);
    assert_eq!(logits(owned.shape(), &whole).get(), 512_000 * 4096);
    // 555,024,384 kept and 2,097,152,000 of the loss, 12 % of them out of use, half a GiB and one and a half.
    let needed = Figures::of(&a100(), &owned.1.recipe).needed(Bytes::ZERO, Bytes::new(555_024_384 + 2_097_152_000));
    assert_eq!(needed.get(), 2_652_176_384 + 318_261_166 + 2_147_483_648);
}

/// BLOOM's trials (BigScience 2022): 181 billion parameters in 72 layers, full recomputation, ZeRO-1, as the driver showed
/// them.
#[test]
fn trials_of_bloom() {
    let mut errors = Vec::new();
    for (stages, data, microbatch_size, measured) in [
        (12, 4, 1, 29.0),
        (12, 4, 2, 37.0),
        (12, 4, 4, 49.0),
        (12, 4, 8, 69.0),
        (6, 8, 1, 38.0),
        (6, 8, 2, 44.0),
        (6, 8, 4, 56.0),
        (4, 12, 2, 53.0),
        (2, 24, 1, 65.0),
        (2, 24, 2, 76.0),
    ] {
        let mut owned = Owned(
            gpt(14_336, 72, 64),
            workload(Precision::Fp16, AttentionKernel::Plain),
            layout(8, false, microbatch_size),
        );
        (owned.0.vocabulary, owned.1.recipe.gradients) = (250_880, GradientFormat::Half);
        (owned.2.data, owned.2.pipeline, owned.2.zero) = (data, stages, ZeroStage::Zero1);
        let first = Chunk { recompute: Recompute::Full, ..stage(&owned.0, stages, 0) };
        let predicted = peak(owned.shape(), &first, u64::from(stages), MemoryKind::Driver);
        check(&format!("{stages} stages, microbatches of {microbatch_size}"), predicted, measured, 0.09);
        errors.push((predicted / measured - 1.0).abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean < 0.045, "{mean}");
}

/// Korthikanti et al. 2022, Table 2: bytes per layer with sequence parallelism and selective recomputation over those
/// without either, of a plain core; 22B model, 8 ranks. Their dropout masks are not among ours.
#[test]
fn sequence_parallelism_and_selective_recomputation_divide_what_is_kept() {
    let of = |tensor, recompute| {
        let owned =
            Owned(gpt(6144, 48, 64), workload(Precision::Bf16, AttentionKernel::Plain), layout(tensor, tensor > 1, 4));
        let layer = stage(&owned.0, 48, 1);
        let chunk = Chunk { recompute, ..layer };
        kept(owned.shape(), &chunk, chunk.all_units()).get() as f64
    };
    // sbh (34 + 5 as/h) over 1, and sbh 34/t.
    let (s, a, h) = (2048.0, 64.0, 6144.0);
    let scores = 5.0 * a * s / h;
    let ratio = of(8, Recompute::Selective) / of(1, Recompute::None);
    let published = (34.0 / 8.0) / (34.0 + scores);
    assert!((ratio / published - 1.0).abs() < 0.05, "{ratio} against {published}");
}

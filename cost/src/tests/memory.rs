//! Memory against published formulas.

use ir::program::Pass;
use ir::{AttentionKernel, Bytes, Precision, Recompute, ZeroStage};

use super::fixtures::*;
use crate::memory::{kept, left_for_weights, logits, parameters, recomputed, state, stepped_parameters, workspace};

/// Bytes per token and layer beyond a multiple of the hidden width: statistics, which are small.
fn per_token_layer(owned: &Owned, recompute: Recompute) -> u64 {
    let chunk = chunk(1, false, false, recompute);
    kept(owned.shape(), &chunk, chunk.all_units()).get() / owned.shape().tokens()
}

#[test]
fn a_gpt_layer_keeps_the_published_bytes() {
    let h = 6144;
    for (tensor, sequence_parallel, multiple) in [(1, false, 32 * h), (8, false, 8 * h + 3 * h), (8, true, h + 3 * h)] {
        let owned = Owned(
            gpt(6144, 48, 64),
            workload(Precision::Bf16, AttentionKernel::Fused),
            layout(tensor, sequence_parallel, 4),
        );
        // 34 h with two dropout masks of 1 h each, which nothing here has.
        let bytes = per_token_layer(&owned, Recompute::None);
        let statistics = 16 + 4 * 64;
        assert!(bytes >= multiple && bytes <= multiple + statistics, "{bytes} against {multiple}");
        // Full recomputation: the input, 2 h (over the tensor group under sequence parallelism).
        let input = if sequence_parallel { 2 * h / 8 } else { 2 * h };
        assert_eq!(per_token_layer(&owned, Recompute::Full), input);
        // What is thrown away comes back.
        let full = chunk(2, true, true, Recompute::Full);
        let none = chunk(2, true, true, Recompute::None);
        assert_eq!(
            kept(owned.shape(), &full, full.all_units()) + recomputed(owned.shape(), &full, full.all_units()),
            kept(owned.shape(), &none, none.all_units())
        );
        assert_eq!(recomputed(owned.shape(), &none, none.all_units()), Bytes::ZERO);
    }
}

#[test]
fn plain_attention_keeps_its_scores_unless_recomputed() {
    let owned = Owned(gpt(6144, 48, 64), workload(Precision::Bf16, AttentionKernel::Plain), layout(8, true, 4));
    let scores = 2 * 2048 * 64 / 8;
    let difference = per_token_layer(&owned, Recompute::None) - per_token_layer(&owned, Recompute::Selective);
    assert_eq!(difference, scores);
}

#[test]
fn state_is_that_of_the_distributed_optimizer() {
    let mut owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(2, false, 1));
    owned.2.data = 8;
    let chunk = chunk(4, true, true, Recompute::None);
    let held = parameters(owned.shape(), &chunk);
    assert_eq!(stepped_parameters(owned.shape(), &chunk), held);
    let total = |owned: &Owned| {
        let (w, g, o) = state(owned.shape(), held, stepped_parameters(owned.shape(), &chunk));
        (w + g + o).get()
    };
    assert_eq!(total(&owned), 18 * held);
    owned.2.zero = ZeroStage::Zero1;
    assert_eq!(total(&owned), 6 * held + 12 * held.div_ceil(8));
    owned.1.precision = Precision::Fp32;
    assert_eq!(total(&owned), 8 * held + 8 * held.div_ceil(8));
}

#[test]
fn logits_are_sharded_over_the_tensor_group() {
    let owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(4, false, 2));
    let head = chunk(1, false, true, Recompute::None);
    assert_eq!(logits(owned.shape(), &head).get(), 2 * 2048 * 51_200 / 4 * 10);
    assert_eq!(logits(owned.shape(), &chunk(1, true, false, Recompute::None)), Bytes::ZERO);
}

#[test]
fn a_split_backward_leaves_what_the_weights_need() {
    let owned = Owned(gpt(1024, 4, 16), workload(Precision::Fp32, AttentionKernel::Fused), layout(1, false, 1));
    let layer = chunk(1, false, false, Recompute::None);
    // Gradients of two norms (h each), of both branches (h each), of q, k, v (3 h) and of the feed-forward input (4 h).
    assert_eq!(left_for_weights(owned.shape(), &layer, layer.all_units()).get(), 4 * 2048 * 1024 * (2 + 2 + 3 + 4));
    let space = |pass| workspace(owned.shape(), &layer, pass, layer.all_units()).get();
    assert_eq!(space(Pass::BackwardWeight), 0);
    assert!(space(Pass::Backward) > space(Pass::BackwardInput), "one pass holds what two would hand over");
    assert!(space(Pass::Forward) >= 4 * 2048 * 1024, "at least a branch's output");
}

#[test]
fn whole_ranges_are_the_sum_of_their_parts() {
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let owned = Owned(gpt(1024, 4, 16), workload(Precision::Fp32, AttentionKernel::Plain), layout(2, true, 3));
        let chunk = chunk(3, true, true, recompute);
        for of in [kept, recomputed, left_for_weights] {
            let parts: Bytes = (0..chunk.units())
                .map(|at| of(owned.shape(), &chunk, ir::program::UnitRange { start: at, end: at + 1 }))
                .sum();
            assert_eq!(of(owned.shape(), &chunk, chunk.all_units()), parts);
        }
    }
}

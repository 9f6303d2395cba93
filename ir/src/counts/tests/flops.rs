//! FLOPs against a naive count, matrix by matrix and score by score.

use super::models::{deepseek, families, llama_8b, mixtral, olmo, qwen3_30b};
use super::*;
use crate::{ContextMethod, FeedForward, Mixer};

/// `[from, to]` of every matrix that one token meets in a layer, written out from the papers.
fn matrices(model: &Model, mixer: Mixer, part: FeedForward) -> Vec<[u64; 2]> {
    let h = u64::from(model.hidden);
    let n = u64::from(model.heads);
    let d = u64::from(model.head_dim);
    let mut list = match mixer {
        Mixer::Attention | Mixer::Window => {
            let kv = u64::from(model.kv_heads) * d;
            let mut list = vec![[h, n * d], [h, kv], [h, kv], [n * d, h]];
            if model.variants.gated_attention {
                list.push([h, n * d]);
            }
            list
        }
        Mixer::Latent => {
            let l = model.variants.latent.unwrap();
            let [c, r, p, v] = [l.kv_rank, l.rotary_head_dim, l.plain_head_dim, l.value_head_dim].map(u64::from);
            let q = u64::from(l.query_rank.unwrap());
            vec![[h, q], [q, n * (p + r)], [h, c], [h, r], [c, n * p], [c, n * v], [n * v, h]]
        }
        Mixer::Mamba => {
            let m = model.variants.mamba.unwrap();
            let [i, s, r] = [m.inner, m.state, m.step_rank].map(u64::from);
            vec![[h, i], [h, i], [i, r], [i, s], [i, s], [r, i], [i, h]]
        }
        Mixer::GatedDelta => {
            let g = model.variants.delta.unwrap();
            let [kh, kd, vh, vd] = [g.key_heads, g.key_head_dim, g.value_heads, g.value_head_dim].map(u64::from);
            vec![[h, kh * kd], [h, kh * kd], [h, vh * vd], [h, vh * vd], [h, vh], [h, vh], [vh * vd, h]]
        }
    };
    let gated = |width: u64| vec![[h, width], [h, width], [width, h]];
    match part {
        FeedForward::Dense if model.mlp_inputs() == 2 => list.extend(gated(u64::from(model.ffn))),
        FeedForward::Dense => list.extend([[h, u64::from(model.ffn)], [u64::from(model.ffn), h]]),
        FeedForward::Experts => {
            let e = model.variants.experts.unwrap();
            list.push([h, u64::from(e.count)]);
            for _ in 0..e.active {
                list.extend(gated(u64::from(e.ffn)));
            }
            if e.shared_ffn > 0 {
                list.extend(gated(u64::from(e.shared_ffn)));
            }
            if e.shared_gate {
                list.push([h, 1]);
            }
        }
    }
    list
}

/// Products of one score: with a key and with a value.
fn score_width(model: &Model, mixer: Mixer) -> u128 {
    match mixer {
        Mixer::Attention | Mixer::Window => 2 * u128::from(model.head_dim),
        Mixer::Latent => {
            let l = model.variants.latent.unwrap();
            u128::from(l.plain_head_dim + l.rotary_head_dim + l.value_head_dim)
        }
        Mixer::Mamba | Mixer::GatedDelta => 0,
    }
}

/// Forward FLOPs of `sequences` sequences: of all matrices with the head's; and of the scores that are used, pair by pair.
fn naive(model: &Model, sequences: u128, length: u64) -> (u128, u128) {
    let (mut products, mut scores) = (u128::from(model.hidden) * u128::from(model.vocabulary), 0);
    for layer in 0..model.layers {
        let kind = model.layer(layer);
        products += matrices(model, kind.mixer, kind.feed_forward).iter().map(|[a, b]| u128::from(a * b)).sum::<u128>();
        let window = if kind.mixer == Mixer::Window { u64::from(model.variants.window.unwrap()) } else { length };
        let pairs: u64 = (0..length).map(|query| (query + 1).min(window)).sum();
        scores += u128::from(pairs) * u128::from(model.heads) * 2 * score_width(model, kind.mixer);
    }
    (2 * products * sequences * u128::from(length), scores * sequences)
}

#[test]
fn one_rank_does_what_a_naive_count_says() {
    for model in families() {
        let (workload, layout) = (workload(), layout(1, false));
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        let (products, scores) = naive(&model, 2, 1024);
        assert_eq!(total_flops(shape, Pass::Forward), products + scores, "{}", model.name);
        assert_eq!(total_flops(shape, Pass::Recompute), products + scores, "{}", model.name);
        // Every matrix twice; of five products of the core's backward pass, three are as wide as keys.
        let backward = total_flops(shape, Pass::Backward);
        let latent = model.variants.latent.map_or(0, |_| scores * 192 / 320);
        let again = if latent > 0 { latent } else { scores / 2 };
        assert_eq!(backward, 2 * (products + scores) + again, "{}", model.name);
        let halves = total_flops(shape, Pass::BackwardInput) + total_flops(shape, Pass::BackwardWeight);
        assert_eq!(backward, halves);
        // The model's convention, times the microbatch's tokens, is forward plus backward without the recomputed scores.
        let of = |scores| model_flops_per_token(&model, 1024, CountedParameters::Multiplied, scores).get();
        assert_eq!(of(CountedScores::CausalHalf), 3 * (products + scores) / 2048, "{}", model.name);
        assert!(of(CountedScores::Whole) > of(CountedScores::CausalHalf));
        let all = hardware_flops_per_token(&model, 1024, model.layers, CountedScores::CausalHalf).get();
        let head = 2 * u128::from(model.hidden) * u128::from(model.vocabulary) * 2048;
        assert_eq!(all, (3 * (products + scores) / 2048) + (products + scores - head) / 2048, "{}", model.name);
    }
}

#[test]
fn conventions_are_those_of_their_papers() {
    let model = llama_8b();
    let of = |parameters, scores| model_flops_per_token(&model, 4096, parameters, scores).get();
    let all = 6 * u128::from(model.parameters());
    assert_eq!(of(CountedParameters::All, CountedScores::Whole), all + 12 * 32 * 4096 * 4096);
    assert_eq!(of(CountedParameters::All, CountedScores::CausalHalf), all + 6 * 32 * 4096 * 4097);
    // A window counts what it leaves.
    let windowed = olmo();
    let of = |sequence| {
        let whole = model_flops_per_token(&windowed, sequence, CountedParameters::All, CountedScores::Whole).get();
        whole - 6 * u128::from(windowed.parameters())
    };
    assert_eq!(of(4096), 12 * 64 * 5120 * 4096);
    assert_eq!(of(32_768), 12 * 5120 * (16 * 32_768 + 48 * 4096));
}

/// The FLOPs of all ranks of a division, and of one rank that does everything.
fn divided(model: &Model, length: u32, change: impl FnOnce(&mut Layout, &mut Workload)) -> (u128, u128) {
    let (mut workload, mut layout) = (workload(), layout(1, false));
    workload.sequence_length = length;
    let alone = layout.clone();
    let one = Shape { model, workload: &workload.clone(), layout: &alone };
    let one = total_flops(one, Pass::Forward) + total_flops(one, Pass::Backward);
    change(&mut layout, &mut workload);
    let shape = Shape { model, workload: &workload, layout: &layout };
    let ranks = u128::from(layout.tensor) * u128::from(layout.replicas());
    let each = total_flops(shape, Pass::Forward) + total_flops(shape, Pass::Backward);
    (each * ranks, one * u128::from(layout.data))
}

#[test]
fn ranks_share_the_flops_evenly() {
    for model in families() {
        // Key and value heads are not copied, and whatever is routed divides.
        let tensors = [1, 2, 4].into_iter().filter(|tensor| model.kv_heads.is_multiple_of(*tensor));
        for tensor in tensors.filter(|tensor| model.padded_vocabulary(1, *tensor) == u64::from(model.vocabulary)) {
            for (expert, expert_tensor, data) in [(1, 1, 2), (4, 1, 4), (2, 2, 4), (8, 1, 8)] {
                let (all, one) = divided(&model, 1024, |layout, _| {
                    (layout.tensor, layout.sequence_parallel, layout.data) = (tensor, true, data);
                    if model.variants.experts.is_some() {
                        (layout.mesh.expert, layout.mesh.expert_tensor) = (expert, expert_tensor);
                    }
                });
                assert_eq!(all, one, "{} tensor {tensor} expert {expert} x {expert_tensor}", model.name);
            }
        }
    }
}

#[test]
fn context_ranks_share_scores_and_tokens() {
    for model in [llama_8b(), qwen3_30b(), deepseek(), olmo()] {
        for method in ContextMethod::ALL {
            for context in [2, 4] {
                let (all, one) = divided(&model, 8192, |layout, _| {
                    (layout.mesh.context, layout.mesh.context_method) = (context, method);
                });
                // Scores divide up to a rounding; one FLOP more would be a product more.
                let excess = all.abs_diff(one) as f64 / one as f64;
                assert!(excess < 1e-6, "{} {method:?} over {context}: {all} against {one}", model.name);
            }
        }
    }
    let model = mixtral();
    let (all, one) = divided(&model, 4096, |layout, _| {
        (layout.mesh.context, layout.mesh.expert, layout.tensor, layout.sequence_parallel) = (2, 8, 2, true);
        layout.data = 2;
    });
    assert!(all.abs_diff(one) * 1_000_000 < one, "{all} against {one}");
}

#[test]
fn documents_attend_to_themselves() {
    let model = llama_8b();
    let packed = |length: u32, document| {
        let (mut workload, layout) = (workload(), layout(1, false));
        (workload.sequence_length, workload.recipe.document_length) = (length, document);
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        total_flops(shape, Pass::Forward)
    };
    let (products, scores) = naive(&model, 8, 2048);
    assert_eq!(packed(8192, Some(2048)), products + scores);
    assert_eq!(packed(8192, None), packed(8192, Some(8192)));
    assert!(packed(8192, None) > packed(8192, Some(2048)));
}

#[test]
fn imbalance_loads_the_busiest_rank() {
    let model = qwen3_30b();
    let of = |imbalance| {
        let (mut workload, mut layout) = (workload(), layout(2, true));
        workload.recipe.expert_imbalance = imbalance;
        (layout.mesh.expert, layout.data) = (8, 4);
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        (shape.tokens_per_expert(), total_flops(shape, Pass::Forward))
    };
    // 1,024 tokens of each of eight ranks, eight copies each, over 128 experts.
    assert_eq!(of(1.0).0, 512);
    assert_eq!(of(1.25).0, 640);
    assert_eq!(of(1.001).0, 513);
    let more = of(1.25).1 - of(1.0).1;
    // Three matrices of 16 local experts in 48 layers, 128 tokens more.
    assert_eq!(more, 2 * 48 * 16 * 3 * 2048 * 768 * 128);
}

#[test]
fn windows_are_counted_pair_by_pair() {
    for (length, window) in [(1, 1), (7, 3), (8, 8), (9, 100), (1000, 1), (4096, 512)] {
        let naive: u64 = (0..length).map(|query| (query + 1).min(window)).sum();
        assert_eq!(causal_scores(length, window), u128::from(naive), "{length} {window}");
    }
}

#[test]
fn a_program_does_what_its_passes_do() {
    let mut program = crate::testing::program(2, 1, 3);
    let one = |pass| total_flops(program.shape(), pass);
    let passes = 2 * 3 * (one(Pass::Forward) + one(Pass::Backward));
    assert_eq!(program_flops(&program).get(), passes);
    // One of four layers computes its core again.
    (program.chunks[1].recompute, program.chunks[1].recomputed_layers) = (Recompute::Selective, 1);
    let core = kernels_of(program.shape(), UnitKind::Attention, Pass::BackwardInput, Recompute::Selective)[0];
    assert!(matches!(core, Kernel::Attention { backward: false, .. }));
    assert_eq!(program_flops(&program).get(), passes + 2 * 3 * flops(core).get());
}

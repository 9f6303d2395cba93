//! Counts against golden figures and naive sums.

use super::*;
use crate::program::{Chunk, Layout, Pass, Payload, Unit, UnitTensor};
use crate::{
    AdamW, ChunkId, CollectiveAlgorithm, MicrobatchId, MlpKind, Model, NormKind, Positions, Precision, Recompute,
    StageId, Workload, ZeroStage,
};

fn llama(name: &str, hidden: u32, layers: u32, heads: u32, ffn: u32) -> Model {
    Model {
        name: name.to_owned(),
        hidden,
        layers,
        heads,
        kv_heads: 8,
        head_dim: 128,
        ffn,
        vocabulary: 128_256,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 500_000.0 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
    }
}

fn gpt2() -> Model {
    Model {
        name: "gpt2".to_owned(),
        hidden: 768,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        ffn: 3072,
        vocabulary: 50_257,
        norm: NormKind::LayerNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Learned { maximum: 1024 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
    }
}

fn workload(vocabulary_divisor: u32) -> Workload {
    Workload {
        sequence_length: 1024,
        global_batch: 8,
        iterations: 1,
        precision: Precision::Bf16,
        attention: AttentionKernel::Fused,
        vocabulary_divisor,
        optimizer: AdamW::default(),
        seed: 0,
    }
}

fn layout(tensor: u32, sequence_parallel: bool) -> Layout {
    Layout {
        data: 1,
        tensor,
        pipeline: 1,
        sequence_parallel,
        microbatch_size: 2,
        microbatches: 1,
        zero: ZeroStage::Zero0,
        collective: CollectiveAlgorithm::Automatic,
    }
}

fn whole(model: &Model) -> Chunk {
    Chunk {
        stage: StageId::new(0),
        first_layer: 0,
        layers: model.layers,
        embedding: true,
        head: true,
        recompute: Recompute::None,
    }
}

#[test]
fn parameters_of_known_models() {
    for (model, expect) in [
        (llama("Llama-3.1-8B", 4096, 32, 32, 14_336), 8_030_261_248),
        (llama("Llama-3.1-70B", 8192, 80, 64, 28_672), 70_553_706_496),
        (gpt2(), 124_439_808),
    ] {
        assert_eq!(model.parameters(), expect, "{}", model.name);
        for tensor in [1, 2, 4, 8] {
            // The only degrees that pad nothing.
            if model.padded_vocabulary(1, tensor) != u64::from(model.vocabulary) {
                continue;
            }
            if model.heads % tensor != 0 {
                continue;
            }
            let (workload, layout) = (workload(1), layout(tensor, false));
            let shape = Shape { model: &model, workload: &workload, layout: &layout };
            let chunk = whole(&model);
            // Over ranks: what is split adds up, what every rank holds counts once.
            let replicated: u64 = (0..chunk.units()).map(|at| replicated_parameters(shape, chunk.unit(at))).sum();
            let of_rank = chunk_parameters(shape, &chunk);
            assert_eq!((of_rank - replicated) * u64::from(tensor) + replicated, expect, "{} over {tensor}", model.name);
            let by_unit: u64 = (0..chunk.units()).map(|at| unit_parameters(shape, chunk.unit(at))).sum();
            let tied = if model.tied_head { unit_parameters(shape, Unit::Head) } else { 0 };
            assert_eq!(by_unit - tied, of_rank, "{} over {tensor}", model.name);
        }
    }
}

fn total_flops(model: &Model, tensor: u32, sequence_parallel: bool, pass: Pass) -> u128 {
    let (workload, layout) = (workload(1), layout(tensor, sequence_parallel));
    let shape = Shape { model, workload: &workload, layout: &layout };
    let chunk = whole(model);
    let mut kernels = Vec::new();
    for at in 0..chunk.units() {
        unit_kernels(shape, chunk.unit(at), pass, chunk.recompute, &mut kernels);
    }
    kernels.into_iter().map(|kernel| flops(kernel).get()).sum()
}

/// FLOPs of the forward matrices, one by one, and of the scores that causal attention uses, pair by pair.
fn naive_forward(model: &Model, tokens: u128, sequences: u128, length: u128) -> u128 {
    let (h, q, kv) = (u128::from(model.hidden), u128::from(model.query_width()), u128::from(model.kv_width()));
    let (f, v) = (u128::from(model.ffn), u128::from(model.vocabulary));
    let matrices = [(h, q), (h, kv), (h, kv), (q, h), (f, h)];
    let inputs = (0..model.mlp_inputs()).map(|_| (h, f));
    let layer: u128 = matrices.into_iter().chain(inputs).map(|(from, to)| 2 * tokens * from * to).sum();
    let scores: u128 = (1..=length).sum::<u128>() * sequences * u128::from(model.heads);
    let attention = scores * 2 * u128::from(model.head_dim) * 2;
    u128::from(model.layers) * (layer + attention) + 2 * tokens * h * v
}

#[test]
fn forward_flops_equal_a_naive_sum() {
    for model in [gpt2(), llama("Llama-3.1-8B", 4096, 32, 32, 14_336)] {
        let naive = naive_forward(&model, 2 * 1024, 2, 1024);
        assert_eq!(total_flops(&model, 1, false, Pass::Forward), naive, "{}", model.name);
        assert_eq!(total_flops(&model, 1, false, Pass::Recompute), naive, "{}", model.name);
        // Backward multiplies each matrix twice; the fused core does five products instead of two.
        let scores = 512 * 1025 * 2 * u128::from(model.heads) * u128::from(model.layers);
        let core = scores * 2 * u128::from(model.head_dim);
        assert_eq!(total_flops(&model, 1, false, Pass::Backward), 2 * (naive - 2 * core) + 5 * core, "{}", model.name);
        // The model's convention, times the microbatch's tokens, is forward plus backward without the recomputed scores.
        let model_flops =
            model_flops_per_token(&model, 1024, CountedParameters::Multiplied, CountedScores::CausalHalf).get() * 2048;
        assert_eq!(model_flops, 3 * naive, "{}", model.name);
    }
}

#[test]
fn tensor_ranks_share_the_flops_evenly() {
    let model = llama("Llama-3.1-8B", 4096, 32, 32, 14_336);
    for pass in [Pass::Forward, Pass::Backward, Pass::BackwardInput, Pass::BackwardWeight] {
        let one = total_flops(&model, 1, false, pass);
        for tensor in [2, 4, 8] {
            for sequence_parallel in [false, true] {
                assert_eq!(total_flops(&model, tensor, sequence_parallel, pass) * u128::from(tensor), one, "{pass:?}");
            }
        }
    }
}

#[test]
fn backward_is_its_two_halves_in_order() {
    let model = gpt2();
    let (workload, layout) = (workload(128), layout(2, true));
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let chunk = whole(&model);
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        for at in 0..chunk.units() {
            let list = |passes: &[Pass]| {
                let mut kernels = Vec::new();
                for pass in passes {
                    unit_kernels(shape, chunk.unit(at), *pass, recompute, &mut kernels);
                }
                kernels
            };
            assert_eq!(list(&[Pass::Backward]), list(&[Pass::BackwardInput, Pass::BackwardWeight]));
            assert_eq!(list(&[Pass::Forward]), list(&[Pass::Recompute]));
        }
    }
}

#[test]
fn selective_recomputation_adds_one_forward_core() {
    let model = gpt2();
    let (workload, layout) = (workload(128), layout(1, false));
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let kernels = |recompute| {
        let mut kernels = Vec::new();
        unit_kernels(shape, Unit::Attention(3), Pass::BackwardInput, recompute, &mut kernels);
        kernels
    };
    let (none, selective) = (kernels(Recompute::None), kernels(Recompute::Selective));
    assert!(matches!(selective[0], Kernel::Attention { backward: false, .. }));
    assert_eq!(&selective[1..], &none[..]);
}

#[test]
fn sequence_parallelism_divides_norms_and_messages() {
    let model = gpt2();
    let workload = workload(128);
    let (split, plain) = (layout(4, true), layout(4, false));
    let with = Shape { model: &model, workload: &workload, layout: &split };
    let without = Shape { model: &model, workload: &workload, layout: &plain };
    let norm = |shape| {
        let mut kernels = Vec::new();
        unit_kernels(shape, Unit::MlpNorm(0), Pass::Forward, Recompute::None, &mut kernels);
        match kernels[..] {
            [Kernel::Streaming { bytes, .. }] => bytes.get(),
            _ => panic!("a norm is one kernel"),
        }
    };
    assert_eq!(norm(with) * 4, norm(without));
    assert_eq!(message_bytes(with).get() * 4, message_bytes(without).get());
    assert_eq!(message_bytes(without), activation_bytes(without));
    assert_eq!(partial_gradient_parameters(without, Unit::FinalNorm), 0);
    assert_eq!(partial_gradient_parameters(with, Unit::FinalNorm), 2 * 768);
    let payload = |tensor| Payload::Activation {
        tensor,
        chunk: ChunkId::new(0),
        unit: 0,
        microbatch: MicrobatchId::new(0),
        pass: Pass::Forward,
    };
    assert_eq!(payload_bytes(with, payload(UnitTensor::Output)), activation_bytes(with));
    assert_eq!(payload_bytes(with, payload(UnitTensor::LossStatistics)).get(), 2048 * 12 * 4);
    assert_eq!(payload_bytes(with, Payload::GradientNorm).get(), 8);
}

#[test]
fn streaming_kinds_have_names() {
    for kind in Streaming::ALL {
        assert_eq!(Streaming::from_name(kind.name()), Some(kind));
        assert_eq!(Streaming::ALL[kind as usize], kind);
    }
    assert_eq!(Streaming::from_name("softmax"), None);
}

//! Known models, written out from their public configurations.

use crate::{
    Experts, FeedForward, GatedDelta, LatentAttention, LayerRun, Mamba, Mixer, MlpKind, Model, NormKind, Positions,
    QueryKeyNorm, Variants,
};

/// A Llama-like model: widths `[hidden, layers, heads, kv heads, ffn, vocabulary]`, heads of 128.
fn llama(name: &str, [hidden, layers, heads, kv_heads, ffn, vocabulary]: [u32; 6]) -> Model {
    Model {
        name: name.to_owned(),
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim: 128,
        ffn,
        vocabulary,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 500_000.0 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: Variants::default(),
    }
}

pub(super) fn llama_8b() -> Model {
    llama("Llama-3.1-8B", [4096, 32, 32, 8, 14_336, 128_256])
}

pub(super) fn gpt2() -> Model {
    Model {
        norm: NormKind::LayerNorm,
        positions: Positions::Learned { maximum: 1024 },
        mlp: MlpKind::Gelu,
        head_dim: 64,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        ..llama("gpt2", [768, 12, 12, 12, 3072, 50_257])
    }
}

const fn run(layers: u32, mixer: Mixer, feed_forward: FeedForward) -> LayerRun {
    LayerRun { layers, mixer, feed_forward }
}

/// `count` experts of `ffn`, `active` for each token, in all layers but the first `dense`.
fn routed(mut model: Model, mixer: Mixer, dense: u32, [count, active, ffn, shared_ffn]: [u32; 4]) -> Model {
    model.variants.experts = Some(Experts {
        count,
        active,
        ffn,
        shared_ffn,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: crate::Router::default(),
    });
    let runs = [run(dense, mixer, FeedForward::Dense), run(model.layers - dense, mixer, FeedForward::Experts)];
    model.variants.pattern = runs.into_iter().filter(|run| run.layers > 0).collect();
    model
}

pub(super) fn qwen3_30b() -> Model {
    let mut model = llama("Qwen3-30B-A3B", [2048, 48, 32, 4, 6144, 151_936]);
    model.variants.query_key_norm = QueryKeyNorm::Head;
    routed(model, Mixer::Attention, 0, [128, 8, 768, 0])
}

pub(super) fn mixtral() -> Model {
    routed(llama("Mixtral-8x7B", [4096, 32, 32, 8, 14_336, 32_000]), Mixer::Attention, 0, [8, 2, 14_336, 0])
}

pub(super) fn deepseek() -> Model {
    let mut model = llama("DeepSeek-V3", [7168, 61, 128, 128, 18_432, 129_280]);
    model.variants.latent = Some(LatentAttention {
        query_rank: Some(1536),
        kv_rank: 512,
        plain_head_dim: 128,
        rotary_head_dim: 64,
        value_head_dim: 128,
    });
    model = routed(model, Mixer::Latent, 3, [256, 8, 2048, 2048]);
    // The bias that balances its experts is counted.
    model.variants.experts.as_mut().expect("just given").router_bias = true;
    model
}

pub(super) fn olmo() -> Model {
    let mut model = llama("Olmo-3.1-32B", [5120, 64, 40, 8, 27_648, 100_278]);
    model.variants.query_key_norm = QueryKeyNorm::Width;
    model.variants.branch_norms = crate::BranchNorms::After;
    model.variants.window = Some(4096);
    let four = [run(3, Mixer::Window, FeedForward::Dense), run(1, Mixer::Attention, FeedForward::Dense)];
    model.variants.pattern = four.repeat(16);
    model
}

/// Mamba to attention 7:1, experts in every second layer.
pub(super) fn jamba() -> Model {
    let mut model = routed(llama("Jamba-v0.1", [4096, 32, 32, 8, 14_336, 65_536]), Mixer::Mamba, 0, [16, 2, 14_336, 0]);
    model.variants.mamba = Some(Mamba { inner: 8192, state: 16, convolution: 4, step_rank: 256, normalised: true });
    model.variants.pattern = (0..32)
        .map(|layer| {
            let mixer = if layer % 8 == 4 { Mixer::Attention } else { Mixer::Mamba };
            run(1, mixer, if layer % 2 == 1 { FeedForward::Experts } else { FeedForward::Dense })
        })
        .collect();
    model
}

/// Three delta rules to one gated attention, 512 experts and a shared one with a gate.
pub(super) fn qwen3_next() -> Model {
    let mut model = llama("Qwen3-Next-80B-A3B", [2048, 48, 16, 2, 5120, 151_936]);
    model.head_dim = 256;
    model = routed(model, Mixer::Attention, 0, [512, 10, 512, 512]);
    model.variants.experts.as_mut().expect("just given").shared_gate = true;
    model.variants.gated_attention = true;
    model.variants.query_key_norm = QueryKeyNorm::Head;
    model.variants.delta =
        Some(GatedDelta { key_heads: 16, key_head_dim: 128, value_heads: 32, value_head_dim: 128, convolution: 4 });
    let four = [run(3, Mixer::GatedDelta, FeedForward::Experts), run(1, Mixer::Attention, FeedForward::Experts)];
    model.variants.pattern = four.repeat(12);
    model
}

/// Sinks, windows in every second layer, biases everywhere.
pub(super) fn gpt_oss() -> Model {
    let mut model = llama("gpt-oss-20b", [2880, 24, 64, 8, 2880, 201_088]);
    (model.head_dim, model.qkv_bias, model.projection_bias) = (64, true, true);
    model = routed(model, Mixer::Attention, 0, [32, 4, 2880, 0]);
    let experts = model.variants.experts.as_mut().expect("just given");
    (experts.bias, experts.router_bias) = (true, true);
    model.variants.attention_sinks = true;
    model.variants.window = Some(128);
    let two = [run(1, Mixer::Window, FeedForward::Experts), run(1, Mixer::Attention, FeedForward::Experts)];
    model.variants.pattern = two.repeat(12);
    model
}

/// With their published parameters, and those of one token.
pub(super) fn known() -> Vec<(Model, u64, u64)> {
    let biased = |mut model: Model| {
        model.qkv_bias = true;
        model
    };
    let normed = |mut model: Model| {
        model.variants.query_key_norm = QueryKeyNorm::Head;
        model
    };
    let dense = |model: Model, parameters| (model, parameters, parameters);
    vec![
        dense(llama_8b(), 8_030_261_248),
        dense(llama("Llama-3.1-70B", [8192, 80, 64, 8, 28_672, 128_256]), 70_553_706_496),
        dense(llama("Llama-3.1-405B", [16_384, 126, 128, 8, 53_248, 128_256]), 405_853_388_800),
        dense(gpt2(), 124_439_808),
        dense(biased(llama("Qwen2.5-32B", [5120, 64, 40, 8, 27_648, 152_064])), 32_763_876_352),
        dense(normed(llama("Qwen3-8B", [4096, 36, 32, 8, 12_288, 151_936])), 8_190_735_360),
        // 72,284,635,136 is that of its matrices alone: 401 vectors of 8,192 are norms and biases.
        dense(biased(llama("Qwen1.5-72B", [8192, 80, 64, 64, 24_576, 152_064])), 72_284_635_136 + 401 * 8192),
        dense(llama("phi-4", [5120, 40, 40, 10, 17_920, 100_352]), 14_659_507_200),
        dense(olmo(), 32_233_522_176),
        (qwen3_30b(), 30_532_122_624, 3_353_032_704),
        (mixtral(), 46_702_792_704, 12_879_925_248),
        (deepseek(), 671_026_419_200, 37_552_297_472),
    ]
}

/// One of every family.
pub(super) fn families() -> Vec<Model> {
    vec![gpt2(), llama_8b(), mixtral(), qwen3_30b(), deepseek(), olmo(), jamba(), qwen3_next(), gpt_oss()]
}

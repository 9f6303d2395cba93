//! Models for tests of memory.

use ir::{
    Experts, FeedForward, LatentAttention, LayerRun, Mamba, Mixer, MlpKind, Model, NormKind, Positions, Variants,
};

/// Llama-3-70B with as many layers.
pub(crate) fn llama(layers: u32) -> Model {
    Model {
        name: "llama".to_owned(),
        hidden: 8192,
        layers,
        heads: 64,
        kv_heads: 8,
        head_dim: 128,
        ffn: 28_672,
        vocabulary: 128_256,
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

fn experts([count, active, ffn, shared_ffn]: [u32; 4]) -> Experts {
    Experts {
        count,
        active,
        ffn,
        shared_ffn,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: ir::Router::default(),
    }
}

const fn run(layers: u32, mixer: Mixer, feed_forward: FeedForward) -> LayerRun {
    LayerRun { layers, mixer, feed_forward }
}

/// Mixtral-8x7B.
pub(crate) fn mixtral() -> Model {
    let mut model = llama(32);
    (model.hidden, model.heads, model.ffn, model.vocabulary) = (4096, 32, 14_336, 32_000);
    model.variants.experts = Some(experts([8, 2, 14_336, 0]));
    model.variants.pattern = vec![run(32, Mixer::Attention, FeedForward::Experts)];
    model
}

/// DeepSeek-V2 with four layers, of which the first is dense.
pub(crate) fn deepseek() -> Model {
    let mut model = llama(4);
    (model.hidden, model.heads, model.kv_heads, model.ffn, model.vocabulary) = (5120, 128, 128, 12_288, 102_400);
    model.variants.latent = Some(LatentAttention {
        query_rank: Some(1536),
        kv_rank: 512,
        plain_head_dim: 128,
        rotary_head_dim: 64,
        value_head_dim: 128,
    });
    model.variants.experts = Some(experts([160, 6, 1536, 3072]));
    model.variants.pattern =
        vec![run(1, Mixer::Latent, FeedForward::Dense), run(3, Mixer::Latent, FeedForward::Experts)];
    model
}

/// The same without experts.
pub(crate) fn latent() -> Model {
    let mut model = deepseek();
    model.variants.experts = None;
    model.variants.pattern = vec![run(4, Mixer::Latent, FeedForward::Dense)];
    model
}

/// A state space, attention and a state space, experts in the second.
pub(crate) fn jamba() -> Model {
    let mut model = llama(3);
    (model.hidden, model.heads, model.ffn, model.vocabulary) = (4096, 32, 14_336, 65_536);
    model.variants.mamba = Some(Mamba { inner: 8192, state: 16, convolution: 4, step_rank: 256, normalised: true });
    model.variants.experts = Some(experts([16, 2, 14_336, 0]));
    model.variants.pattern = vec![
        run(1, Mixer::Mamba, FeedForward::Dense),
        run(1, Mixer::Attention, FeedForward::Experts),
        run(1, Mixer::Mamba, FeedForward::Dense),
    ];
    model
}

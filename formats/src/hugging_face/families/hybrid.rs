//! Models that mix attention with layers that keep a state: Jamba, Qwen3-Next.

use ir::{Experts, FeedForward, GatedDelta, Mamba, Mixer, MlpKind, Model};

use super::super::tree::Tree;
use super::experts::qwen_experts;
use super::llama::{self, LLAMA, LlamaLike, QWEN3};
use super::{MOST_LAYERS, runs_of, types};

pub(super) fn jamba(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&["router_aux_loss_coef", "output_router_logits", "num_logits_to_keep", "use_mamba_kernels"]);
    tree.ignore(&["max_position_embeddings", "sliding_window", "mamba_conv_bias", "calc_logits_for_entire_prompt"]);
    let like = LlamaLike { bias_keys: [false; 2], kv_heads_default: false, ..LLAMA };
    let mut model = llama::model(tree, name, &like);
    if tree.flag("mamba_proj_bias", false) {
        tree.fault("mamba_proj_bias", "gives projections biases", "models with it are not supported yet");
    }
    let expand = tree.optional_size("mamba_expand").unwrap_or(2);
    let mamba = Mamba {
        inner: model.hidden.saturating_mul(expand),
        state: tree.optional_size("mamba_d_state").unwrap_or(16),
        convolution: tree.optional_size("mamba_d_conv").unwrap_or(4),
        step_rank: step_rank(tree, model.hidden),
        normalised: true,
    };
    let attention = every(tree, ["attn_layer_period", "attn_layer_offset"], [8, 4]);
    let expert = every(tree, ["expert_layer_period", "expert_layer_offset"], [2, 1]);
    let experts = Experts {
        count: tree.optional_size("num_experts").unwrap_or(16),
        active: tree.optional_size("num_experts_per_tok").unwrap_or(2),
        ffn: model.ffn,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: super::experts::PLAIN,
    };
    let routed = experts.count > 1;
    let kind = |layer: u32| {
        let mixer = if attention(layer) { Mixer::Attention } else { Mixer::Mamba };
        (mixer, if routed && expert(layer) { FeedForward::Experts } else { FeedForward::Dense })
    };
    model.variants.pattern = runs_of((0..model.layers.min(MOST_LAYERS)).map(kind));
    let has = |part: fn(&ir::LayerRun) -> bool| model.variants.pattern.iter().any(part);
    let (has_mamba, has_experts) =
        (has(|run| run.mixer == Mixer::Mamba), has(|run| run.feed_forward == FeedForward::Experts));
    model.variants.mamba = has_mamba.then_some(mamba);
    model.variants.experts = has_experts.then_some(experts);
    model
}

/// Layers `offset, offset + period, …`.
fn every(tree: &mut Tree<'_>, keys: [&str; 2], defaults: [u32; 2]) -> impl Fn(u32) -> bool + use<> {
    let period = tree.optional_size(keys[0]).unwrap_or(defaults[0]);
    let offset = tree.optional_count(keys[1]).unwrap_or(defaults[1]);
    move |layer| layer % period == offset
}

/// A number, or "auto" for a sixteenth of the hidden width, rounded up.
fn step_rank(tree: &mut Tree<'_>, hidden: u32) -> u32 {
    let automatic = hidden.div_ceil(16);
    match tree.take("mamba_dt_rank") {
        None => automatic,
        Some(serde_json::Value::String(word)) if word == "auto" => automatic,
        Some(value) => {
            let size = value.as_u64().and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0);
            size.unwrap_or_else(|| {
                tree.fault("mamba_dt_rank", "is neither a positive whole number nor \"auto\"", "");
                automatic
            })
        }
    }
}

pub(super) fn qwen3_next(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&["output_router_logits", "router_aux_loss_coef", "partial_rotary_factor"]);
    let like = LlamaLike { head_dim: Some(256), bias_keys: [true, false], ..QWEN3 };
    let mut model = llama::model(tree, name, &like);
    model.variants.gated_attention = true;
    let delta = GatedDelta {
        key_heads: tree.size("linear_num_key_heads"),
        key_head_dim: tree.size("linear_key_head_dim"),
        value_heads: tree.size("linear_num_value_heads"),
        value_head_dim: tree.size("linear_value_head_dim"),
        convolution: tree.optional_size("linear_conv_kernel_dim").unwrap_or(4),
    };
    let interval = tree.optional_size("full_attention_interval").unwrap_or(4);
    let words = [("full_attention", Mixer::Attention), ("linear_attention", Mixer::GatedDelta)];
    let alternate =
        |layer: u32| if (layer + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::GatedDelta };
    let mixers = types(tree, model.layers, &words)
        .unwrap_or_else(|| (0..model.layers.min(MOST_LAYERS)).map(alternate).collect());
    let linear = mixers.contains(&Mixer::GatedDelta);
    qwen_experts(tree, &mut model, mixers, true);
    model.variants.delta = linear.then_some(delta);
    model
}

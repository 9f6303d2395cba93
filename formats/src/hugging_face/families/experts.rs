//! Mixtures of experts: Mixtral, Qwen, OLMoE, GPT-OSS, and DeepSeek with its latent attention.

use ir::{
    Experts, FeedForward, LatentAttention, LayerRun, Mixer, MlpKind, Model, QueryKeyNorm, Router, Scoring, Variants,
};

use super::super::tree::Tree;
use super::llama::{self, LLAMA, LlamaLike, MISTRAL, QWEN2, QWEN3, WINDOWED};
use super::{MOST_LAYERS, activation, runs_of, theta, types};

/// Keys of routing that change neither sizes nor work, nor what is computed but for a constant factor.
const ROUTING: [&str; 7] = [
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
    "aux_loss_alpha",
    "routed_scaling_factor",
    "topk_method",
];

/// How weights come from logits; `otherwise` where the file does not say.
pub(super) fn router(tree: &mut Tree<'_>, otherwise: Router) -> Router {
    let normalised = tree.flag("norm_topk_prob", otherwise.normalised);
    let scoring = tree.word("scoring_func").map(|word| match Scoring::from_name(&word) {
        Some(scoring) => scoring,
        None => {
            tree.fault("scoring_func", "is neither softmax nor sigmoid", "models with it are not supported yet");
            otherwise.scoring
        }
    });
    Router { scoring: scoring.unwrap_or(otherwise.scoring), normalised }
}

/// The softmax over all experts, its best as they are.
pub(super) const PLAIN: Router = Router { scoring: Scoring::Softmax, normalised: false };

pub(super) fn mixtral(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&ROUTING);
    let like = LlamaLike { window: llama::Window::IfGiven, ..MISTRAL };
    let mut model = llama::model(tree, name, &like);
    let experts = Experts {
        count: tree.size("num_local_experts"),
        active: tree.size("num_experts_per_tok"),
        ffn: model.ffn,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: Router::default(),
    };
    everywhere(&mut model, experts);
    model
}

/// Gives every layer experts and keeps its mixer.
fn everywhere(model: &mut Model, experts: Experts) {
    let runs = model.runs().map(|run| LayerRun { feed_forward: FeedForward::Experts, ..run }).collect();
    (model.variants.pattern, model.variants.experts) = (runs, Some(experts));
}

/// Which of two kinds of Qwen with experts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Qwen {
    Two,
    Three,
}

pub(super) fn qwen(tree: &mut Tree<'_>, name: String, which: Qwen) -> Model {
    tree.ignore(&ROUTING);
    let mut model = llama::model(tree, name, if which == Qwen::Two { &QWEN2 } else { &QWEN3 });
    let mixers = model.runs().flat_map(|run| vec![run.mixer; run.layers.min(MOST_LAYERS) as usize]).collect::<Vec<_>>();
    qwen_experts(tree, &mut model, mixers, which == Qwen::Two);
    model
}

/// Experts of Qwen's models: in each `decoder_sparse_step`-th layer that is not of `mlp_only_layers`.
pub(super) fn qwen_experts(tree: &mut Tree<'_>, model: &mut Model, mixers: Vec<Mixer>, shared: bool) {
    let step = tree.optional_size("decoder_sparse_step").unwrap_or(1);
    let dense = tree.numbers("mlp_only_layers");
    let experts = Experts {
        count: tree.size("num_experts"),
        active: tree.size("num_experts_per_tok"),
        ffn: tree.size("moe_intermediate_size"),
        shared_ffn: if shared { tree.size("shared_expert_intermediate_size") } else { 0 },
        shared_gate: shared,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: router(tree, PLAIN),
    };
    let part = |layer: u32| {
        if (layer + 1).is_multiple_of(step) && !dense.contains(&layer) {
            FeedForward::Experts
        } else {
            FeedForward::Dense
        }
    };
    model.variants.pattern = runs_of((0..).zip(mixers).map(|(layer, mixer)| (mixer, part(layer))));
    model.variants.experts =
        model.variants.pattern.iter().any(|run| run.feed_forward == FeedForward::Experts).then_some(experts);
}

pub(super) fn olmoe(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&ROUTING);
    tree.ignore(&["clip_qkv"]);
    let like = LlamaLike { query_key_norm: QueryKeyNorm::Width, bias_keys: [true, false], ..LLAMA };
    let mut model = llama::model(tree, name, &like);
    let experts = Experts {
        count: tree.size("num_experts"),
        active: tree.size("num_experts_per_tok"),
        ffn: model.ffn,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: router(tree, PLAIN),
    };
    everywhere(&mut model, experts);
    model
}

pub(super) fn gpt_oss(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&ROUTING);
    tree.ignore(&["swiglu_limit", "initial_context_length", "experts_per_token", "quantization_config"]);
    let like = LlamaLike { head_dim: Some(64), kv_heads_default: false, ..LLAMA };
    let mut model = llama::model(tree, name, &like);
    // Without `attention_bias` the class has it.
    (model.qkv_bias, model.projection_bias) =
        if tree.was("attention_bias") { (model.qkv_bias, model.projection_bias) } else { (true, true) };
    let window = tree.optional_size("sliding_window");
    let alternate = |layer: u32| if layer.is_multiple_of(2) { Mixer::Window } else { Mixer::Attention };
    let mixers = types(tree, model.layers, &WINDOWED)
        .unwrap_or_else(|| (0..model.layers.min(MOST_LAYERS)).map(alternate).collect());
    let windowed = window.is_some() && mixers.contains(&Mixer::Window);
    let mixer = |mixer| if windowed { mixer } else { Mixer::Attention };
    model.variants.pattern = runs_of(mixers.into_iter().map(|one| (mixer(one), FeedForward::Experts)));
    model.variants.window = window.filter(|_| windowed);
    model.variants.attention_sinks = true;
    model.variants.experts = Some(Experts {
        count: tree.size("num_local_experts"),
        active: tree.size("num_experts_per_tok"),
        ffn: model.ffn,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: true,
        router_bias: true,
        router: Router::default(),
    });
    model
}

/// DeepSeek V3's.
const V3: Router = Router { scoring: Scoring::Sigmoid, normalised: true };

/// DeepSeek V2 and V3, and Kimi K2. Layers that predict further tokens are not counted. Routing balanced by a bias of
/// each expert ("noaux_tc", what V3 does where the file does not say) has that bias as parameters.
pub(super) fn deepseek(tree: &mut Tree<'_>, name: String, balanced_by_bias: bool) -> Model {
    let router_bias = tree.word("topk_method").map_or(balanced_by_bias, |method| method == "noaux_tc");
    tree.ignore(&ROUTING);
    tree.ignore(&[
        "n_group",
        "topk_group",
        "ep_size",
        "num_nextn_predict_layers",
        "quantization_config",
        "max_position_embeddings",
        "num_key_value_heads",
    ]);
    if tree.optional_count("moe_layer_freq").is_some_and(|every| every != 1) {
        tree.fault("moe_layer_freq", "is not 1", "models with it are not supported yet");
    }
    activation(tree, "hidden_act", "silu", &["silu", "swish"]);
    let (hidden, layers, heads) =
        (tree.size("hidden_size"), tree.size("num_hidden_layers"), tree.size("num_attention_heads"));
    let latent = LatentAttention {
        query_rank: tree.optional_size("q_lora_rank"),
        kv_rank: tree.size("kv_lora_rank"),
        plain_head_dim: tree.size("qk_nope_head_dim"),
        rotary_head_dim: tree.size("qk_rope_head_dim"),
        value_head_dim: tree.size("v_head_dim"),
    };
    let moe_ffn = tree.size("moe_intermediate_size");
    let shared = tree.optional_count("n_shared_experts").unwrap_or(0);
    let experts = Experts {
        count: tree.size("n_routed_experts"),
        active: tree.size("num_experts_per_tok"),
        ffn: moe_ffn,
        shared_ffn: shared.saturating_mul(moe_ffn),
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias,
        router: router(tree, if balanced_by_bias { V3 } else { PLAIN }),
    };
    let dense = tree.optional_count("first_k_dense_replace").unwrap_or(0).min(layers);
    let run = |layers, feed_forward| LayerRun { layers, mixer: Mixer::Latent, feed_forward };
    let pattern = vec![run(dense, FeedForward::Dense), run(layers - dense, FeedForward::Experts)];
    Model {
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: latent.value_head_dim.max(2) / 2 * 2,
        ffn: tree.size("intermediate_size"),
        vocabulary: tree.size("vocab_size"),
        norm_epsilon: tree.number("rms_norm_eps", 1e-6),
        positions: ir::Positions::Rope { theta: theta(tree) },
        projection_bias: tree.flag("attention_bias", false),
        tied_head: tree.flag("tie_word_embeddings", false),
        variants: Variants {
            latent: Some(latent),
            experts: Some(experts).filter(|_| dense < layers),
            pattern: pattern.into_iter().filter(|run| run.layers > 0).collect(),
            ..Variants::default()
        },
        ..super::stand_in(name)
    }
}

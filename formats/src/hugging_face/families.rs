//! The families that are read, and why others are not.

use ir::{MlpKind, Model, NormKind, Positions};
use serde_json::Value;

use super::keys;
use super::tree::{Tree, excerpt};

const SUPPORTED: [&str; 4] = ["llama", "mistral", "qwen2", "gpt2"];

/// Types that people bring and that are not supported, with the part that is missing.
const UNSUPPORTED: [(&str, &str); 40] = [
    ("mixtral", "its feed-forward part is a mixture of experts"),
    ("qwen2_moe", "its feed-forward part is a mixture of experts"),
    ("qwen3", "it normalises queries and keys"),
    ("qwen3_moe", "it is a mixture of experts and normalises queries and keys"),
    ("qwen3_next", "it mixes linear attention with a mixture of experts"),
    ("deepseek", "it is a mixture of experts"),
    ("deepseek_v2", "it has latent attention and a mixture of experts"),
    ("deepseek_v3", "it has latent attention and a mixture of experts"),
    ("kimi_k2", "it has latent attention and a mixture of experts"),
    ("llama4", "it is a mixture of experts"),
    ("gpt_oss", "it is a mixture of experts with windows and attention sinks"),
    ("dbrx", "it is a mixture of experts"),
    ("granitemoe", "it is a mixture of experts"),
    ("phimoe", "it is a mixture of experts"),
    ("olmoe", "it is a mixture of experts"),
    ("jamba", "it mixes state-space layers, attention and experts"),
    ("mamba", "it has state-space layers"),
    ("mamba2", "it has state-space layers"),
    ("rwkv", "it has recurrent layers"),
    ("gemma", "it scales the embedding and its gate is GELU"),
    ("gemma2", "it has windows, capped logits and more norms"),
    ("gemma3", "it has windows and more norms"),
    ("gemma3_text", "it has windows and more norms"),
    ("olmo", "its norms have no weights"),
    ("olmo2", "it normalises after the branches, and queries and keys"),
    ("olmo3", "it has windows and normalises after the branches"),
    ("phi", "attention and the feed-forward part run side by side"),
    ("phi3", "its projections are fused and its rotation may be partial"),
    ("gpt_neox", "its rotation is partial and its branches may run side by side"),
    ("gptj", "attention and the feed-forward part run side by side"),
    ("gpt_neo", "it has local attention"),
    ("falcon", "attention and the feed-forward part run side by side"),
    ("bloom", "its positions are biases on scores"),
    ("mpt", "its positions are biases on scores"),
    ("opt", "its activation is ReLU and its positions are offset"),
    ("starcoder2", "it has a window, biases and an ungated feed-forward part with rotation"),
    ("cohere", "attention and the feed-forward part run side by side"),
    ("granite", "it scales embedding, branches and logits"),
    ("bert", "it is an encoder"),
    ("t5", "it is an encoder and a decoder"),
];

/// The model that a file describes. After a fault (kept in the tree) sizes may be stand-ins.
pub(super) fn model(tree: &mut Tree<'_>, name: String) -> Model {
    let model_type = tree.word("model_type").unwrap_or_default();
    architecture(tree);
    match model_type.as_str() {
        "llama" => llama(tree, name, &LLAMA),
        "mistral" => llama(tree, name, &MISTRAL),
        "qwen2" => llama(tree, name, &QWEN2),
        "gpt2" => gpt2(tree, name),
        other => {
            unknown_type(tree, other);
            tree.unknown_family();
            stand_in(name)
        }
    }
}

/// A model in place of one that was not read.
fn stand_in(name: String) -> Model {
    Model {
        name,
        hidden: 1,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        ffn: 1,
        vocabulary: 1,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 10_000.0 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
    }
}

fn unknown_type(tree: &mut Tree<'_>, found: &str) {
    let supported = format!("supported are {}", SUPPORTED.join(", "));
    if let Some((_, reason)) = UNSUPPORTED.iter().find(|(name, _)| *name == found) {
        tree.fault("model_type", format!("\"{found}\" is not supported: {reason}"), supported);
        return;
    }
    let names = SUPPORTED.iter().copied().chain(UNSUPPORTED.iter().map(|(name, _)| *name));
    let hint = keys::nearest_of(&found.to_ascii_lowercase(), names)
        .map_or_else(|| supported.clone(), |name| format!("did you mean \"{name}\"? {supported}"));
    let shown: String = found.chars().take(40).flat_map(char::escape_default).collect();
    tree.fault("model_type", format!("\"{shown}\" is not known"), hint);
}

/// Only language models: another head has other sizes.
fn architecture(tree: &mut Tree<'_>) {
    let Some(Value::Array(list)) = tree.take("architectures") else { return };
    let good = |name: &str| ["ForCausalLM", "LMHeadModel", "Model"].iter().any(|ending| name.ends_with(ending));
    for one in &list {
        if !one.as_str().is_some_and(good) {
            tree.fault(
                "architectures",
                format!("{} is not a language model", excerpt(one)),
                "give a model that ends in ForCausalLM",
            );
        }
    }
}

/// In what the configuration classes of Llama-like models differ.
struct LlamaLike {
    /// Whether `num_key_value_heads` may be left out and then equals the heads. Other classes have a number of their own.
    kv_heads_default: bool,
    /// Whether biases can be switched on by `attention_bias` and `mlp_bias`.
    bias_keys: bool,
    /// Whether the query, key and value projections have biases by the type alone.
    qkv_bias: bool,
    window: Window,
}

/// What a file means by its window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Window {
    /// The class has none.
    Never,
    /// On unless `sliding_window` is null; left out it is 4,096.
    UnlessNull,
    /// On if `use_sliding_window` is true.
    IfUsed,
}

const LLAMA: LlamaLike = LlamaLike { kv_heads_default: true, bias_keys: true, qkv_bias: false, window: Window::Never };
const MISTRAL: LlamaLike =
    LlamaLike { kv_heads_default: false, bias_keys: false, qkv_bias: false, window: Window::UnlessNull };
const QWEN2: LlamaLike =
    LlamaLike { kv_heads_default: false, bias_keys: false, qkv_bias: true, window: Window::IfUsed };

fn llama(tree: &mut Tree<'_>, name: String, like: &LlamaLike) -> Model {
    let hidden = tree.size("hidden_size");
    let heads = tree.size("num_attention_heads");
    let kv_heads = if like.kv_heads_default {
        tree.optional_size("num_key_value_heads").unwrap_or(heads)
    } else {
        tree.size("num_key_value_heads")
    };
    let head_dim = tree
        .optional_size("head_dim")
        .unwrap_or_else(|| divided(tree, ["hidden_size", "num_attention_heads"], hidden, heads));
    activation(tree, "hidden_act", "silu", &["silu", "swish"]);
    window(tree, like.window);
    let (attention_bias, mlp_bias) = if like.bias_keys {
        (tree.flag("attention_bias", false), tree.flag("mlp_bias", false))
    } else {
        (false, false)
    };
    Model {
        name,
        hidden,
        layers: tree.size("num_hidden_layers"),
        heads,
        kv_heads,
        head_dim,
        ffn: tree.size("intermediate_size"),
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::RmsNorm,
        norm_epsilon: tree.number("rms_norm_eps", 1e-6),
        positions: Positions::Rope { theta: theta(tree) },
        mlp: MlpKind::SwiGlu,
        qkv_bias: like.qkv_bias || attention_bias,
        projection_bias: attention_bias,
        mlp_bias,
        tied_head: tree.flag("tie_word_embeddings", false),
    }
}

/// The base of the wavelengths, which newer files keep inside `rope_parameters`.
fn theta(tree: &mut Tree<'_>) -> f64 {
    let inside = match tree.take("rope_parameters") {
        None => None,
        Some(Value::Object(object)) => match object.get("rope_theta") {
            None | Some(Value::Null) => None,
            Some(value) if value.is_number() => value.as_f64(),
            Some(value) => {
                tree.fault("rope_parameters", format!("its rope_theta is {}, not a number", excerpt(value)), "");
                None
            }
        },
        Some(other) => {
            tree.fault("rope_parameters", format!("is {}, not an object", excerpt(&other)), "");
            None
        }
    };
    tree.number("rope_theta", inside.unwrap_or(10_000.0))
}

/// `hidden / heads`, the values of two keys; 1 with a fault if they do not divide.
fn divided(tree: &mut Tree<'_>, keys: [&str; 2], hidden: u32, heads: u32) -> u32 {
    if hidden.is_multiple_of(heads) {
        return hidden / heads;
    }
    if !keys.iter().any(|key| tree.is_faulty(key)) {
        tree.fault(keys[1], format!("a width of {hidden} does not divide over {heads} heads"), "");
    }
    1
}

fn activation(tree: &mut Tree<'_>, key: &str, default: &str, good: &[&str]) {
    let found = tree.word(key).unwrap_or_else(|| default.to_owned());
    if !good.contains(&found.as_str()) {
        let shown: String = found.chars().take(40).flat_map(char::escape_default).collect();
        let hint = format!("supported in this family: {}", good.join(", "));
        tree.fault(key, format!("the activation \"{shown}\" is not supported"), hint);
    }
}

/// Refuses a window that is on and shorter than the longest sequence.
fn window(tree: &mut Tree<'_>, window: Window) {
    match window {
        // Left for the judge of keys.
        Window::Never => return,
        Window::UnlessNull => {
            if !tree.has("sliding_window") {
                tree.fault(
                    "sliding_window",
                    "is missing, which means a window of 4096 in this family",
                    "write null for no window",
                );
                return;
            }
        }
        Window::IfUsed => {
            if !tree.flag("use_sliding_window", false) {
                let _ = tree.take("sliding_window");
                return;
            }
        }
    }
    let longest = tree.optional_size("max_position_embeddings");
    if let Some(size) = tree.optional_size("sliding_window")
        && longest.is_none_or(|longest| size < longest)
    {
        tree.fault(
            "sliding_window",
            format!("limits attention to a window of {size}"),
            "models with it are not supported yet",
        );
    }
}

fn gpt2(tree: &mut Tree<'_>, name: String) -> Model {
    let hidden = tree.size("n_embd");
    let heads = tree.size("n_head");
    // GELU in its tanh form, which is what the model kind means.
    activation(tree, "activation_function", "gelu_new", &["gelu_new", "gelu_pytorch_tanh"]);
    if !tree.flag("scale_attn_weights", true) {
        tree.fault(
            "scale_attn_weights",
            "leaves the scores of attention unscaled",
            "models with it are not supported yet",
        );
    }
    if tree.flag("scale_attn_by_inverse_layer_idx", false) {
        tree.fault("scale_attn_by_inverse_layer_idx", "scales scores by layer", "models with it are not supported yet");
    }
    let inner = tree.optional_size("n_inner").unwrap_or_else(|| {
        hidden.checked_mul(4).unwrap_or_else(|| {
            tree.fault("n_embd", "is out of reach", "");
            1
        })
    });
    Model {
        name,
        hidden,
        layers: tree.size("n_layer"),
        heads,
        kv_heads: heads,
        head_dim: divided(tree, ["n_embd", "n_head"], hidden, heads),
        ffn: inner,
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::LayerNorm,
        norm_epsilon: tree.number("layer_norm_epsilon", 1e-5),
        positions: Positions::Learned { maximum: tree.size("n_positions") },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: tree.flag("tie_word_embeddings", true),
    }
}

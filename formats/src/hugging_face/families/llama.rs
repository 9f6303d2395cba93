//! Dense models in the manner of Llama: gated feed-forward part, RMSNorm, rotary positions.

use ir::{BranchNorms, FeedForward, LayerRun, Mixer, MlpKind, Model, NormKind, Positions, QueryKeyNorm, Variants};

use super::super::tree::Tree;
use super::{activation, divided, runs_of, theta, types};

/// In what the configuration classes of Llama-like models differ.
#[derive(Clone, Copy)]
pub(super) struct LlamaLike {
    /// Whether `num_key_value_heads` may be left out and then equals the heads. Other classes have a number of their own.
    pub(super) kv_heads_default: bool,
    /// Whether biases can be switched on by `attention_bias`; whether that of the feed-forward part by `mlp_bias`.
    pub(super) bias_keys: [bool; 2],
    /// Whether the query, key and value projections have biases by the type alone.
    pub(super) qkv_bias: bool,
    /// The width of a head that is left out; `None`: hidden over heads.
    pub(super) head_dim: Option<u32>,
    /// Names of the activation, the default first.
    pub(super) activations: &'static [&'static str],
    /// The key of the activation.
    pub(super) activation_key: &'static str,
    /// Kind of the feed-forward part.
    pub(super) mlp: MlpKind,
    /// Whether the head is tied where the file does not say.
    pub(super) tied: bool,
    /// How queries and keys are normalised.
    pub(super) query_key_norm: QueryKeyNorm,
    /// Norms around branches.
    pub(super) branch_norms: BranchNorms,
    pub(super) window: Window,
}

/// What a file means by its window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// The class has none.
    Never,
    /// On in every layer unless `sliding_window` is null; left out it is 4,096.
    UnlessNull,
    /// On in every layer if `sliding_window` is given.
    IfGiven,
    /// On from layer `max_window_layers` if `use_sliding_window` is true.
    IfUsed,
    /// In every layer but each `n`-th, or as `layer_types` says; `(n, size where the file has none)`.
    AllBut(u32, Option<u32>),
}

pub(super) const LLAMA: LlamaLike = LlamaLike {
    kv_heads_default: true,
    bias_keys: [true, true],
    qkv_bias: false,
    head_dim: None,
    activations: &["silu", "swish"],
    activation_key: "hidden_act",
    mlp: MlpKind::SwiGlu,
    tied: false,
    query_key_norm: QueryKeyNorm::None,
    branch_norms: BranchNorms::Before,
    window: Window::Never,
};
pub(super) const MISTRAL: LlamaLike =
    LlamaLike { kv_heads_default: false, bias_keys: [false; 2], window: Window::UnlessNull, ..LLAMA };
pub(super) const QWEN2: LlamaLike =
    LlamaLike { kv_heads_default: false, bias_keys: [false; 2], qkv_bias: true, window: Window::IfUsed, ..LLAMA };
pub(super) const QWEN3: LlamaLike = LlamaLike {
    kv_heads_default: false,
    bias_keys: [true, false],
    head_dim: Some(128),
    query_key_norm: QueryKeyNorm::Head,
    window: Window::IfUsed,
    ..LLAMA
};
pub(super) const PHI3: LlamaLike = LlamaLike { bias_keys: [false; 2], window: Window::IfGiven, ..LLAMA };
pub(super) const GEMMA: LlamaLike = LlamaLike {
    bias_keys: [true, false],
    head_dim: Some(256),
    activations: &["gelu_pytorch_tanh", "gelu"],
    activation_key: "hidden_activation",
    mlp: MlpKind::GeGlu,
    tied: true,
    ..LLAMA
};
pub(super) const GEMMA2: LlamaLike =
    LlamaLike { branch_norms: BranchNorms::Both, window: Window::AllBut(2, Some(4096)), ..GEMMA };
pub(super) const GEMMA3: LlamaLike =
    LlamaLike { query_key_norm: QueryKeyNorm::Head, window: Window::AllBut(6, Some(4096)), ..GEMMA2 };
pub(super) const OLMO: LlamaLike = LlamaLike { bias_keys: [true, false], ..LLAMA };
pub(super) const OLMO2: LlamaLike =
    LlamaLike { query_key_norm: QueryKeyNorm::Width, branch_norms: BranchNorms::After, ..OLMO };
pub(super) const OLMO3: LlamaLike = LlamaLike { window: Window::AllBut(4, Some(4096)), ..OLMO2 };

/// A Llama-like model.
pub(super) fn model(tree: &mut Tree<'_>, name: String, like: &LlamaLike) -> Model {
    let hidden = tree.size("hidden_size");
    let heads = tree.size("num_attention_heads");
    let kv_heads = if like.kv_heads_default {
        tree.optional_size("num_key_value_heads").unwrap_or(heads)
    } else {
        tree.size("num_key_value_heads")
    };
    let head_dim = tree
        .optional_size("head_dim")
        .or(like.head_dim)
        .unwrap_or_else(|| divided(tree, ["hidden_size", "num_attention_heads"], hidden, heads));
    activation(tree, like.activation_key, like.activations[0], like.activations);
    let layers = tree.size("num_hidden_layers");
    let (window, pattern) = window(tree, like.window, layers);
    let attention_bias = like.bias_keys[0] && tree.flag("attention_bias", false);
    let mlp_bias = like.bias_keys[1] && tree.flag("mlp_bias", false);
    Model {
        name,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn: tree.size("intermediate_size"),
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::RmsNorm,
        norm_epsilon: tree.number("rms_norm_eps", 1e-6),
        positions: Positions::Rope { theta: theta(tree) },
        mlp: like.mlp,
        qkv_bias: like.qkv_bias || attention_bias,
        projection_bias: attention_bias,
        mlp_bias,
        tied_head: tree.flag("tie_word_embeddings", like.tied),
        variants: Variants {
            query_key_norm: like.query_key_norm,
            branch_norms: like.branch_norms,
            window,
            pattern,
            ..Variants::default()
        },
    }
}

/// Gemma 1 names its activation under either key; its old files say "gelu" and mean the tanh form.
pub(super) fn gemma(tree: &mut Tree<'_>, name: String, like: &LlamaLike) -> Model {
    let old = tree.word("hidden_act");
    if old.as_deref().is_some_and(|word| !like.activations.contains(&word)) {
        tree.fault("hidden_act", "is not the activation of this family", "gelu_pytorch_tanh is");
    }
    tree.ignore(&[
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "cache_implementation",
        "rope_local_base_freq",
        "use_bidirectional_attention",
    ]);
    model(tree, name, like)
}

/// OLMo's norms have no parameters.
pub(super) fn olmo(tree: &mut Tree<'_>, name: String) -> Model {
    tree.ignore(&["clip_qkv"]);
    let mut model = model(tree, name, &OLMO);
    (model.norm, model.variants.plain_norms) = (NormKind::LayerNorm, true);
    model
}

/// The window and which layers have it; none where it is as long as the longest sequence.
pub(super) fn window(tree: &mut Tree<'_>, window: Window, layers: u32) -> (Option<u32>, Vec<LayerRun>) {
    let longest = tree.optional_size("max_position_embeddings");
    let everywhere = |layers: u32| vec![Mixer::Window; layers.min(super::MOST_LAYERS) as usize];
    let (size, mixers) = match window {
        // Left for the judge of keys.
        Window::Never => return (None, Vec::new()),
        Window::UnlessNull => {
            if !tree.has("sliding_window") {
                tree.fault(
                    "sliding_window",
                    "is missing, which means a window of 4096 in this family",
                    "write null for no window, or 4096",
                );
            }
            (tree.optional_size("sliding_window"), everywhere(layers))
        }
        Window::IfGiven => (tree.optional_size("sliding_window"), everywhere(layers)),
        Window::IfUsed => {
            let first = tree.optional_count("max_window_layers").unwrap_or(0).min(layers);
            let size = tree.optional_size("sliding_window");
            let used = tree.flag("use_sliding_window", false);
            let named = types(tree, layers, &WINDOWED);
            let mixers = named.unwrap_or_else(|| {
                let mixer = |layer| if layer < first { Mixer::Attention } else { Mixer::Window };
                (0..layers.min(super::MOST_LAYERS)).map(mixer).collect()
            });
            (size.filter(|_| used), mixers)
        }
        Window::AllBut(default, default_size) => {
            let every = tree.optional_size("sliding_window_pattern").unwrap_or(default);
            let size = if tree.has("sliding_window") { tree.optional_size("sliding_window") } else { default_size };
            let mixer = |layer: u32| if (layer + 1).is_multiple_of(every) { Mixer::Attention } else { Mixer::Window };
            let mixers = types(tree, layers, &WINDOWED)
                .unwrap_or_else(|| (0..layers.min(super::MOST_LAYERS)).map(mixer).collect());
            (size, mixers)
        }
    };
    let shorter = size.filter(|size| longest.is_none_or(|longest| *size < longest));
    match shorter {
        Some(size) if mixers.contains(&Mixer::Window) => {
            (Some(size), runs_of(mixers.into_iter().map(|mixer| (mixer, FeedForward::Dense))))
        }
        Some(_) | None => (None, Vec::new()),
    }
}

/// Words of `layer_types`.
pub(super) const WINDOWED: [(&str, Mixer); 2] =
    [("full_attention", Mixer::Attention), ("sliding_attention", Mixer::Window)];

//! Dense models with LayerNorm and an ungated feed-forward part: GPT-2, GPT-NeoX, Phi, Falcon.

use ir::{MlpKind, Model, NormKind, ParallelBranches, Positions, Variants};

use super::super::tree::Tree;
use super::{activation, divided, theta};

pub(super) fn gpt2(tree: &mut Tree<'_>, name: String) -> Model {
    let hidden = tree.size("n_embd");
    let heads = tree.size("n_head");
    let exact_gelu = gelu(tree, "activation_function", "gelu_new");
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
    let inner = tree.optional_size("n_inner").unwrap_or_else(|| four_times(tree, "n_embd", hidden));
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
        variants: Variants { exact_gelu, ..Variants::default() },
    }
}

/// GELU in its tanh form, or (`true`) the exact one.
fn gelu(tree: &mut Tree<'_>, key: &str, default: &str) -> bool {
    let found = activation(tree, key, default, &["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"]);
    found == "gelu"
}

fn four_times(tree: &mut Tree<'_>, key: &str, hidden: u32) -> u32 {
    hidden.checked_mul(4).unwrap_or_else(|| {
        tree.fault(key, "is out of reach", "");
        1
    })
}

pub(super) fn gpt_neox(tree: &mut Tree<'_>, name: String) -> Model {
    let (hidden, heads) = (tree.size("hidden_size"), tree.size("num_attention_heads"));
    let exact_gelu = gelu(tree, "hidden_act", "gelu");
    let parallel = tree.flag("use_parallel_residual", true);
    let biases = tree.flag("attention_bias", true);
    tree.ignore(&["rotary_pct", "rotary_emb_base", "partial_rotary_factor", "max_position_embeddings"]);
    tree.ignore(&["classifier_dropout", "hidden_dropout", "attention_dropout"]);
    Model {
        name,
        hidden,
        layers: tree.size("num_hidden_layers"),
        heads,
        kv_heads: heads,
        head_dim: divided(tree, ["hidden_size", "num_attention_heads"], hidden, heads),
        ffn: tree.size("intermediate_size"),
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::LayerNorm,
        norm_epsilon: tree.number("layer_norm_eps", 1e-5),
        positions: Positions::Rope { theta: theta(tree) },
        mlp: MlpKind::Gelu,
        qkv_bias: biases,
        projection_bias: biases,
        mlp_bias: true,
        tied_head: tree.flag("tie_word_embeddings", false),
        variants: Variants {
            exact_gelu,
            parallel_branches: if parallel { ParallelBranches::OwnNorms } else { ParallelBranches::No },
            ..Variants::default()
        },
    }
}

pub(super) fn phi(tree: &mut Tree<'_>, name: String) -> Model {
    let (hidden, heads) = (tree.size("hidden_size"), tree.size("num_attention_heads"));
    let exact_gelu = gelu(tree, "hidden_act", "gelu_new");
    tree.ignore(&["partial_rotary_factor", "max_position_embeddings"]);
    Model {
        name,
        hidden,
        layers: tree.size("num_hidden_layers"),
        heads,
        kv_heads: tree.optional_size("num_key_value_heads").unwrap_or(heads),
        head_dim: divided(tree, ["hidden_size", "num_attention_heads"], hidden, heads),
        ffn: tree.size("intermediate_size"),
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::LayerNorm,
        norm_epsilon: tree.number("layer_norm_eps", 1e-5),
        positions: Positions::Rope { theta: theta(tree) },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: tree.flag("tie_word_embeddings", false),
        variants: Variants {
            exact_gelu,
            head_bias: true,
            parallel_branches: ParallelBranches::OneNorm,
            ..Variants::default()
        },
    }
}

pub(super) fn falcon(tree: &mut Tree<'_>, name: String) -> Model {
    let (hidden, heads) = (tree.size("hidden_size"), tree.size("num_attention_heads"));
    let exact_gelu = gelu(tree, "activation", "gelu");
    let new = tree.flag("new_decoder_architecture", false);
    let multi_query = tree.flag("multi_query", true);
    let parallel = tree.flag("parallel_attn", true);
    let bias = tree.flag("bias", false);
    if tree.flag("alibi", false) {
        tree.fault("alibi", "replaces rotary embedding by biases on scores", "models with it are not supported yet");
    }
    let given = tree.optional_size("num_kv_heads");
    let kv_heads = match (new, multi_query) {
        (true, _) => given.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    // The new form has a norm for each branch unless it says one.
    let norms = tree.optional_size("num_ln_in_parallel_attn").unwrap_or(if new { 2 } else { 1 });
    tree.ignore(&["ffn_hidden_size_multiplier", "max_position_embeddings", "apply_residual_connection_post_layernorm"]);
    let ffn = tree.optional_size("ffn_hidden_size").unwrap_or_else(|| four_times(tree, "hidden_size", hidden));
    Model {
        name,
        hidden,
        layers: tree.size("num_hidden_layers"),
        heads,
        kv_heads,
        head_dim: divided(tree, ["hidden_size", "num_attention_heads"], hidden, heads),
        ffn,
        vocabulary: tree.size("vocab_size"),
        norm: NormKind::LayerNorm,
        norm_epsilon: tree.number("layer_norm_epsilon", 1e-5),
        positions: Positions::Rope { theta: theta(tree) },
        mlp: MlpKind::Gelu,
        qkv_bias: bias,
        projection_bias: bias,
        mlp_bias: bias,
        tied_head: tree.flag("tie_word_embeddings", true),
        variants: Variants {
            exact_gelu,
            parallel_branches: match (new || parallel, norms) {
                (false, _) => ParallelBranches::No,
                (true, 1) => ParallelBranches::OneNorm,
                (true, _) => ParallelBranches::OwnNorms,
            },
            ..Variants::default()
        },
    }
}

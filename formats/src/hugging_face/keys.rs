//! What a key means that the reader of a family did not take.

use serde_json::Value;

/// What to do about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It changes neither sizes nor work nor the training's result.
    Harmless,
    /// It changes what is computed in a way that is not supported.
    Refused(&'static str),
    /// Read in other families, and here it would switch something on.
    Foreign,
    /// Not on any list.
    Unknown,
}

/// Keys that change nothing that is trained or priced.
const HARMLESS: [&str; 47] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "label2id",
    "license",
    "max_length",
    "max_position_embeddings",
    "max_window_layers",
    "model_max_length",
    "model_type",
    "n_ctx",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "predict_special_tokens",
    "pretraining_tp",
    "problem_type",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "return_dict",
    "rope_scaling",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_cache",
];

/// Keys that change what is computed unless their value is null, false, 0, an empty list or as noted.
const REFUSED: [(&str, &str); 52] = [
    ("num_local_experts", EXPERTS),
    ("num_experts", EXPERTS),
    ("n_routed_experts", EXPERTS),
    ("num_routed_experts", EXPERTS),
    ("n_shared_experts", EXPERTS),
    ("num_experts_per_tok", EXPERTS),
    ("num_experts_per_token", EXPERTS),
    ("moe_intermediate_size", EXPERTS),
    ("moe_layer_freq", EXPERTS),
    ("shared_expert_intermediate_size", EXPERTS),
    ("decoder_sparse_step", EXPERTS),
    ("first_k_dense_replace", EXPERTS),
    ("expert_layer_period", EXPERTS),
    ("router_aux_loss_coef", EXPERTS),
    ("mlp_only_layers", EXPERTS),
    ("kv_lora_rank", LATENT),
    ("q_lora_rank", LATENT),
    ("qk_nope_head_dim", LATENT),
    ("qk_rope_head_dim", LATENT),
    ("v_head_dim", LATENT),
    ("sliding_window", WINDOW),
    ("use_sliding_window", WINDOW),
    ("sliding_window_pattern", WINDOW),
    ("attention_window", WINDOW),
    ("attention_chunk_size", WINDOW),
    ("layer_types", "makes layers that differ in their attention"),
    ("full_attention_interval", "makes layers that differ in their attention"),
    ("mamba_d_state", "makes state-space layers"),
    ("mamba_expand", "makes state-space layers"),
    ("attn_layer_period", "makes layers without attention"),
    ("linear_num_key_heads", "makes layers of linear attention"),
    ("linear_num_value_heads", "makes layers of linear attention"),
    ("use_qk_norm", QUERY_NORM),
    ("qk_norm", QUERY_NORM),
    ("qk_layernorm", QUERY_NORM),
    ("attn_logit_softcapping", "caps the scores of attention"),
    ("final_logit_softcapping", "caps the logits"),
    ("query_pre_attn_scalar", "scales the scores of attention in its own way"),
    ("clip_qkv", "clips queries, keys and values"),
    ("alibi", "replaces rotary embedding by biases on scores"),
    ("parallel_attn", PARALLEL),
    ("use_parallel_residual", PARALLEL),
    ("embedding_multiplier", "scales the embedding"),
    ("residual_multiplier", "scales the branches of the residual stream"),
    ("attention_multiplier", "scales the scores of attention in its own way"),
    ("logits_scaling", "scales the logits"),
    ("partial_rotary_factor", "rotates only a part of each head"),
    ("rotary_pct", "rotates only a part of each head"),
    ("num_nextn_predict_layers", "adds layers that predict further tokens"),
    ("quantization_config", "stores the weights in a quantised form"),
    ("add_cross_attention", "adds attention to an encoder"),
    ("is_encoder_decoder", "makes an encoder and a decoder"),
];
const EXPERTS: &str = "makes a mixture of experts";
const LATENT: &str = "makes latent attention, whose keys and values are compressed";
const WINDOW: &str = "limits attention to a window";
const QUERY_NORM: &str = "normalises queries and keys";
const PARALLEL: &str = "runs attention and the feed-forward part side by side";

/// Parts of a model that hold a language model inside.
const NESTED: [&str; 5] = ["text_config", "llm_config", "language_config", "vision_config", "audio_config"];

/// Keys that readers of families take.
const READ: [&str; 31] = [
    "activation_function",
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_norm_epsilon",
    "mlp_bias",
    "n_embd",
    "n_head",
    "n_inner",
    "n_layer",
    "n_positions",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "tie_word_embeddings",
    "vocab_size",
    "sliding_window",
    "use_sliding_window",
    "max_position_embeddings",
    "layer_types",
    "model_type",
    "architectures",
    "rope_scaling",
    "torch_dtype",
];

/// Judges a key that no reader took.
pub(super) fn judge(key: &str, value: &Value) -> Verdict {
    if HARMLESS.contains(&key) {
        return Verdict::Harmless;
    }
    if NESTED.contains(&key) {
        return Verdict::Refused("holds a part of a model of several kinds of input");
    }
    let reason = REFUSED.iter().find(|(refused, _)| *refused == key).map(|(_, reason)| *reason);
    match reason {
        None if !READ.contains(&key) => Verdict::Unknown,
        Some(_) | None if is_off(key, value) => Verdict::Harmless,
        None => Verdict::Foreign,
        Some(reason) => Verdict::Refused(reason),
    }
}

/// Whether a value leaves the computation as it is without the key.
fn is_off(key: &str, value: &Value) -> bool {
    // Factors that are off at one.
    const FACTORS: [&str; 6] = [
        "embedding_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "partial_rotary_factor",
        "rotary_pct",
        "decoder_sparse_step",
    ];
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) if FACTORS.contains(&key) => number.as_f64().is_some_and(|n| (n - 1.0).abs() < 1e-12),
        Value::Number(number) => number.as_f64().is_some_and(|n| n.abs() < f64::MIN_POSITIVE),
        Value::Array(list) => list.iter().all(|one| key == "layer_types" && one == "full_attention"),
        Value::Bool(true) | Value::String(_) | Value::Object(_) => false,
    }
}

/// The known key that an unknown one resembles.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
    let known = READ.iter().chain(&HARMLESS).chain(REFUSED.iter().map(|(key, _)| key));
    nearest_of(key, known.copied())
}

/// The name most like `text`, if any is alike enough (Jaro-Winkler similarity of at least 0.88; the first of equals).
pub(super) fn nearest_of(text: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let mut best = (0.88, None);
    for name in names {
        let likeness = strsim::jaro_winkler(text, name);
        if likeness > best.0 {
            best = (likeness, Some(name));
        }
    }
    best.1
}

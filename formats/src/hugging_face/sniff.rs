//! Files that are not a model's configuration, each told apart by name.

use ir::Problem;
use serde_json::Value;

use super::tree::Entry;

const SUBJECT: &str = "model file";

/// What a text is that cannot be JSON at all.
pub(super) fn not_json(text: &str) -> Option<Problem> {
    let start = text.trim_start();
    let problem = if start.is_empty() {
        Problem::new(SUBJECT, "is empty").hint("download the model's config.json again")
    } else if start.starts_with("version https://git-lfs") || start.starts_with("version http://git-lfs") {
        Problem::new(SUBJECT, "is a Git LFS pointer, not the file it points to")
            .hint("run `git lfs pull` where it was cloned")
    } else if start.starts_with('<') {
        Problem::new(SUBJECT, "is a web page, not JSON").hint("download the raw file, not the page that shows it")
    } else if text.contains('\0') {
        Problem::new(SUBJECT, "is binary, not JSON").hint("the configuration is beside the weights, in config.json")
    } else {
        return None;
    };
    Some(problem)
}

/// What a JSON object is that describes no model.
pub(super) fn another_file(entries: &[Entry]) -> Option<Problem> {
    let has = |key: &str| entries.iter().any(|entry| entry.key == key);
    let is_object = |key: &str| entries.iter().any(|entry| entry.key == key && entry.value.is_object());
    // The name of an architecture tells the family too.
    if has("model_type") || has("architectures") {
        return None;
    }
    let what = if is_object("model") && (has("added_tokens") || has("pre_tokenizer") || has("normalizer")) {
        "a tokenizer (tokenizer.json)"
    } else if has("tokenizer_class") && !has("hidden_size") && !has("n_embd") {
        "the settings of a tokenizer (tokenizer_config.json)"
    } else if has("weight_map") {
        "an index of weight files (model.safetensors.index.json)"
    } else if has("peft_type") {
        "the configuration of an adapter (adapter_config.json)"
    } else if has("zero_optimization") || has("train_micro_batch_size_per_gpu") {
        "a DeepSpeed configuration"
    } else if has("do_sample") || has("max_new_tokens") || has("temperature") {
        "the settings of text generation (generation_config.json)"
    } else if has("cells") && has("nbformat") {
        "a notebook"
    } else if has("hidden_size") || has("n_embd") {
        return Some(
            Problem::new("model_type", "is missing, so the model's structure is not known")
                .hint("add it, as in \"model_type\": \"llama\""),
        );
    } else {
        let keys: Vec<String> = entries.iter().take(3).map(|entry| format!("\"{}\"", entry.shown())).collect();
        let found = if keys.is_empty() {
            "it has no keys".to_owned()
        } else {
            format!("its first keys are {}", keys.join(", "))
        };
        return Some(
            Problem::new(SUBJECT, format!("is JSON of something else: it has no \"model_type\", and {found}"))
                .hint("give the config.json of the model"),
        );
    };
    Some(
        Problem::new(SUBJECT, format!("is {what}, not the model's config.json")).hint("give the config.json beside it"),
    )
}

/// What a JSON value is called.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

//! The families that are read, and why others are not.

use ir::{FeedForward, LayerRun, Mixer, MlpKind, Model, NormKind, Positions};
use serde_json::Value;

use super::keys;
use super::tree::{Tree, excerpt};

mod experts;
mod gpt;
mod hybrid;
mod llama;

/// Layers that lists of layers are written out for; a model with more is refused by its size.
const MOST_LAYERS: u32 = 1 << 17;

/// How the models of a family are read.
type Read = fn(&mut Tree<'_>, String) -> Model;

/// Families that are read: model type, the beginning of its architectures' names, reader.
const FAMILIES: [(&str, &str, Read); 27] = [
    ("llama", "Llama", |tree, name| llama::model(tree, name, &llama::LLAMA)),
    ("mistral", "Mistral", |tree, name| llama::model(tree, name, &llama::MISTRAL)),
    ("qwen2", "Qwen2", |tree, name| llama::model(tree, name, &llama::QWEN2)),
    ("qwen3", "Qwen3", |tree, name| llama::model(tree, name, &llama::QWEN3)),
    ("phi3", "Phi3", |tree, name| {
        tree.ignore(&["partial_rotary_factor", "original_max_position_embeddings"]);
        llama::model(tree, name, &llama::PHI3)
    }),
    ("gemma", "Gemma", |tree, name| llama::gemma(tree, name, &llama::GEMMA)),
    ("gemma2", "Gemma2", |tree, name| llama::gemma(tree, name, &llama::GEMMA2)),
    ("gemma3_text", "Gemma3", |tree, name| llama::gemma(tree, name, &llama::GEMMA3)),
    ("olmo", "Olmo", llama::olmo),
    ("olmo2", "Olmo2", |tree, name| llama::model(tree, name, &llama::OLMO2)),
    ("olmo3", "Olmo3", |tree, name| llama::model(tree, name, &llama::OLMO3)),
    ("gpt2", "GPT2", gpt::gpt2),
    ("gpt_neox", "GPTNeoX", gpt::gpt_neox),
    ("phi", "Phi", gpt::phi),
    ("falcon", "Falcon", gpt::falcon),
    ("mixtral", "Mixtral", experts::mixtral),
    ("qwen2_moe", "Qwen2Moe", |tree, name| experts::qwen(tree, name, experts::Qwen::Two)),
    ("qwen3_moe", "Qwen3Moe", |tree, name| experts::qwen(tree, name, experts::Qwen::Three)),
    ("olmoe", "Olmoe", experts::olmoe),
    ("deepseek_v2", "DeepseekV2", |tree, name| experts::deepseek(tree, name, false)),
    ("deepseek_v3", "DeepseekV3", |tree, name| experts::deepseek(tree, name, true)),
    ("kimi_k2", "KimiK2", |tree, name| experts::deepseek(tree, name, true)),
    ("gpt_oss", "GptOss", experts::gpt_oss),
    ("jamba", "Jamba", hybrid::jamba),
    ("qwen3_next", "Qwen3Next", hybrid::qwen3_next),
    ("RefinedWeb", "RW", gpt::falcon),
    ("RefinedWebModel", "RW", gpt::falcon),
];

/// Types that people bring and that are not supported, with the part that is missing.
const UNSUPPORTED: [(&str, &str); 20] = [
    ("deepseek", "its experts and attention differ from those of the later versions"),
    ("llama4", "it reads images beside text; its language part is a mixture of experts in chunks"),
    ("llama4_text", "it attends in chunks"),
    ("gemma3", "it reads images beside text"),
    ("mllama", "it reads images beside text"),
    ("dbrx", "its attention and experts are written in a form of their own"),
    ("granitemoe", "it scales embedding, branches and logits"),
    ("phimoe", "its router is a sparse mixer"),
    ("mamba", "its layers have no feed-forward part"),
    ("mamba2", "its layers have no feed-forward part"),
    ("rwkv", "it has recurrent layers"),
    ("gptj", "its positions are interleaved and its branches run side by side"),
    ("gpt_neo", "it has local attention"),
    ("bloom", "its positions are biases on scores"),
    ("mpt", "its positions are biases on scores"),
    ("opt", "its activation is ReLU and its positions are offset"),
    ("starcoder2", "it has a window, biases and an ungated feed-forward part with rotation"),
    ("cohere", "it scales logits and normalises without a mean"),
    ("granite", "it scales embedding, branches and logits"),
    ("bert", "it is an encoder"),
];

/// The model that a file describes. After a fault (kept in the tree) sizes may be stand-ins.
pub(super) fn model(tree: &mut Tree<'_>, name: String) -> Model {
    let of_architecture = architecture(tree);
    let model_type = if tree.has("model_type") { tree.word("model_type") } else { of_architecture };
    let Some(model_type) = model_type else {
        tree.fault(
            "model_type",
            "is missing, so the model's structure is not known",
            "add it, as in \"model_type\": \"llama\"",
        );
        tree.unknown_family();
        return stand_in(name);
    };
    if let Some((_, _, read)) = FAMILIES.iter().find(|(family, _, _)| *family == model_type) {
        return read(tree, name);
    }
    unknown_type(tree, &model_type);
    tree.unknown_family();
    stand_in(name)
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
        variants: ir::Variants::default(),
    }
}

fn unknown_type(tree: &mut Tree<'_>, found: &str) {
    let supported: Vec<&str> = FAMILIES.iter().map(|(family, _, _)| *family).collect();
    let supported = format!("supported are {}", supported.join(", "));
    if let Some((_, reason)) = UNSUPPORTED.iter().find(|(name, _)| *name == found) {
        tree.fault("model_type", format!("\"{found}\" is not supported: {reason}"), supported);
        return;
    }
    let names = FAMILIES.iter().map(|(family, _, _)| *family).chain(UNSUPPORTED.iter().map(|(name, _)| *name));
    let hint = keys::nearest_of(&found.to_ascii_lowercase(), names)
        .map_or_else(|| supported.clone(), |name| format!("did you mean \"{name}\"? {supported}"));
    let shown: String = found.chars().take(40).flat_map(char::escape_default).collect();
    tree.fault("model_type", format!("\"{shown}\" is not known"), hint);
}

/// Only language models: another head has other sizes. Gives the family that the name tells.
fn architecture(tree: &mut Tree<'_>) -> Option<String> {
    let Some(Value::Array(list)) = tree.take("architectures") else { return None };
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
    let stem = |name: &str| FAMILIES.iter().find(|(_, stem, _)| name == format!("{stem}ForCausalLM"));
    list.iter().filter_map(Value::as_str).find_map(stem).map(|(family, _, _)| (*family).to_owned())
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

/// The activation, which is one of `good`.
fn activation(tree: &mut Tree<'_>, key: &str, default: &str, good: &[&str]) -> String {
    let found = tree.word(key).unwrap_or_else(|| default.to_owned());
    if !good.contains(&found.as_str()) {
        let shown: String = found.chars().take(40).flat_map(char::escape_default).collect();
        let hint = format!("supported in this family: {}", good.join(", "));
        tree.fault(key, format!("the activation \"{shown}\" is not supported"), hint);
    }
    found
}

/// What `layer_types` says of each layer, if it is there; words as in `known`.
fn types(tree: &mut Tree<'_>, layers: u32, known: &[(&str, Mixer)]) -> Option<Vec<Mixer>> {
    let value = tree.take("layer_types")?;
    let Value::Array(list) = &value else {
        tree.fault("layer_types", format!("is {}, not a list", excerpt(&value)), "");
        return None;
    };
    if list.len() != layers as usize {
        let message = format!("names {} layers, but num_hidden_layers is {layers}", list.len());
        tree.fault("layer_types", message, "");
        return None;
    }
    let mixer = |word: &Value| known.iter().find(|(name, _)| word.as_str() == Some(name)).map(|(_, mixer)| *mixer);
    if let Some(other) = list.iter().find(|word| mixer(word).is_none()) {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let hint = format!("supported in this family: {}", names.join(", "));
        tree.fault("layer_types", format!("has a layer of {}", excerpt(other)), hint);
        return None;
    }
    list.iter().map(mixer).collect()
}

/// Layers written out, as runs of equal ones; none where all are attention and dense.
fn runs_of(layers: impl Iterator<Item = (Mixer, FeedForward)>) -> Vec<LayerRun> {
    let mut runs: Vec<LayerRun> = Vec::new();
    for (mixer, feed_forward) in layers {
        match runs.last_mut() {
            Some(run) if (run.mixer, run.feed_forward) == (mixer, feed_forward) => run.layers += 1,
            Some(_) | None => runs.push(LayerRun { layers: 1, mixer, feed_forward }),
        }
    }
    let plain = |run: &LayerRun| run.mixer == Mixer::Attention && run.feed_forward == FeedForward::Dense;
    if runs.iter().all(plain) { Vec::new() } else { runs }
}

//! `[training]`: batch, sequence, precision, optimizer, and what the software that trains leaves open.

use ir::{AdamW, AttentionKernel, Cluster, GradientFormat, LogitCopies, Precision, Recipe, Workload};

use crate::read::{Table, Value};

/// The software that trains, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StackChoice {
    /// Its class, such as `nvidia-te`.
    pub name: Option<String>,
    /// Its release line.
    pub release: Option<String>,
    /// Name and text of a catalog of stacks that `trainyard calibrate --rows` wrote; its rows come before the project's own.
    pub catalog: Option<(String, String)>,
}

/// The word for gradients that are not clipped.
pub(super) const NO_CLIPPING: &str = "none";
/// The multiple to which Megatron-LM pads vocabularies.
const VOCABULARY_DIVISOR: u32 = 128;
/// Longer sequences than any trained on; the bound keeps tokens inside 64 bits with room.
const LONGEST: u64 = 1 << 27;
/// More sequences in an iteration than any published run has by three orders.
const LARGEST_BATCH: u64 = 1 << 24;

/// Reads `[training]`. Without `precision`, BF16 or else FP16 where every device has it and is
/// faster in it than in FP32; otherwise FP32.
pub(super) fn read(root: &Table<'_>, cluster: Option<&Cluster>, seed: u64) -> Option<(Workload, StackChoice)> {
    let table = root.require("training", "{ sequence_length = 4096, global_batch = 512 }")?.table()?;
    let bounded = |v: Value<'_>, most| v.integer(1..=most).and_then(|n| u32::try_from(n).ok());
    let sequence_length = table.require("sequence_length", "4096").and_then(|v| bounded(v, LONGEST));
    let global_batch = table.require("global_batch", "512").and_then(|v| bounded(v, LARGEST_BATCH));
    let iterations = table.get("iterations").map_or(Some(10), |v| v.count());
    let written = table.get("precision");
    let precision = match &written {
        Some(value) => value.one_of(Precision::ALL, Precision::name),
        None => Some(cluster.map_or(Precision::Bf16, fastest_supported)),
    };
    if let (Some(value), Some(precision), Some(cluster)) = (&written, precision, cluster) {
        check_support(value, precision, cluster);
    }
    let attention = table
        .get("attention")
        .map_or(Some(AttentionKernel::Fused), |v| v.one_of(AttentionKernel::ALL, AttentionKernel::name));
    let vocabulary_divisor = table.get("vocabulary_divisor").map_or(Some(VOCABULARY_DIVISOR), |v| bounded(v, 1 << 20));
    let optimizer = table.table("optimizer").map_or(Some(AdamW::default()), |t| optimizer(&t));
    let recipe = recipe(&table);
    let text = |key| table.get(key).map_or(Some(None), |v| v.text().map(|text| Some(text.to_owned())));
    let (name, release) = (text("stack"), text("release"));
    table.finish();
    let workload = Workload {
        sequence_length: sequence_length?,
        global_batch: global_batch?,
        iterations: iterations?,
        precision: precision?,
        attention: attention?,
        vocabulary_divisor: vocabulary_divisor?,
        optimizer: optimizer?,
        seed,
        recipe: recipe?,
    };
    Some((workload, StackChoice { name: name?, release: release?, catalog: None }))
}

/// The switches of the training software.
fn recipe(table: &Table<'_>) -> Option<Recipe> {
    let default = Recipe::default();
    let flag = |key, otherwise| table.get(key).map_or(Some(otherwise), |v| v.boolean());
    let format = |key, otherwise| {
        table.get(key).map_or(Some(otherwise), |v| v.one_of(GradientFormat::ALL, GradientFormat::name))
    };
    let fused_normalisation = flag("fused_normalisation", default.fused_normalisation);
    let fused_softmax = flag("fused_softmax", default.fused_softmax);
    let (sharded_loss, fused_loss) =
        (flag("sharded_loss", default.sharded_loss), flag("fused_loss", default.fused_loss));
    let fused_activation = flag("fused_activation", default.fused_activation);
    let expandable_segments = flag("expandable_segments", default.expandable_segments);
    let logits = table.get("logits").map_or(Some(default.logits), |v| v.one_of(LogitCopies::ALL, LogitCopies::name));
    let gradients = format("gradients", default.gradients);
    let reduced_gradients = format("reduced_gradients", default.reduced_gradients);
    let early_stop_recompute = flag("early_stop_recompute", default.early_stop_recompute);
    let scattered_messages = flag("scattered_messages", default.scattered_messages);
    let blocking_messages = flag("blocking_messages", default.blocking_messages);
    let deduplicated_dispatch = flag("deduplicated_dispatch", default.deduplicated_dispatch);
    let cuda_graphs = flag("cuda_graphs", default.cuda_graphs);
    let document_length = table.get("document_length").map_or(Some(None), |v| v.count().map(Some));
    let expert_imbalance =
        table.get("expert_imbalance").map_or(Some(default.expert_imbalance), |v| v.number(1.0..=1e6));
    let balance_loss = table.get("balance_loss").map_or(Some(default.balance_loss), |v| v.number(0.0..=1e6));
    let input = table.get("input_tokens_per_second").map_or(Some(None), |v| v.number(1e-9..=1e18).map(Some));
    Some(Recipe {
        fused_normalisation: fused_normalisation?,
        fused_softmax: fused_softmax?,
        sharded_loss: sharded_loss?,
        fused_loss: fused_loss?,
        logits: logits?,
        fused_activation: fused_activation?,
        expandable_segments: expandable_segments?,
        gradients: gradients?,
        reduced_gradients: reduced_gradients?,
        early_stop_recompute: early_stop_recompute?,
        scattered_messages: scattered_messages?,
        blocking_messages: blocking_messages?,
        deduplicated_dispatch: deduplicated_dispatch?,
        cuda_graphs: cuda_graphs?,
        document_length: document_length?,
        expert_imbalance: expert_imbalance?,
        balance_loss: balance_loss?,
        input_tokens_per_second: input?,
    })
}

fn supports(cluster: &Cluster, precision: Precision) -> bool {
    cluster.device_kinds.iter().all(|kind| kind.peak(precision).is_some())
}

/// A 16-bit format that every device supports and that is faster than FP32 on each: where it is emulated it is not.
fn fastest_supported(cluster: &Cluster) -> Precision {
    let faster = |precision| {
        cluster.device_kinds.iter().all(|kind| match (kind.peak(precision), kind.peak(Precision::Fp32)) {
            (Some(rate), Some(single)) => rate > single,
            (rate, _) => rate.is_some(),
        })
    };
    [Precision::Bf16, Precision::Fp16].into_iter().find(|precision| faster(*precision)).unwrap_or(Precision::Fp32)
}

fn check_support(value: &Value<'_>, precision: Precision, cluster: &Cluster) {
    let lacking: Vec<&str> = cluster
        .device_kinds
        .iter()
        .filter(|kind| kind.peak(precision).is_none())
        .map(|kind| kind.name.as_str())
        .collect();
    if lacking.is_empty() {
        return;
    }
    let common = Precision::ALL.into_iter().filter(|precision| supports(cluster, *precision));
    let common: Vec<&str> = common.map(Precision::name).collect();
    let hint = if common.is_empty() { None } else { Some(format!("all devices support: {}", common.join(", "))) };
    value.problem(format!("{} does not compute in {}", lacking.join(", "), precision.name()), hint);
}

fn optimizer(table: &Table<'_>) -> Option<AdamW> {
    let default = AdamW::default();
    let number = |key, range, otherwise| table.get(key).map_or(Some(otherwise), |v| v.number(range));
    let learning_rate = number("learning_rate", 0.0..=1e3, default.learning_rate);
    let beta1 = number("beta1", 0.0..=0.999_999_9, default.beta1);
    let beta2 = number("beta2", 0.0..=0.999_999_9, default.beta2);
    let epsilon = number("epsilon", 0.0..=1.0, default.epsilon);
    let weight_decay = number("weight_decay", 0.0..=1e3, default.weight_decay);
    let warmup_iterations = table.get("warmup_iterations").map_or(Some(0), |v| v.count_from(0));
    let clip_norm = match table.get("clip_norm") {
        None => Some(default.clip_norm),
        Some(value) if value.is_text() => value.choice(&[(NO_CLIPPING, None)]),
        Some(value) => value.number(1e-12..=1e12).map(Some),
    };
    table.finish();
    Some(AdamW {
        learning_rate: learning_rate?,
        beta1: beta1?,
        beta2: beta2?,
        epsilon: epsilon?,
        weight_decay: weight_decay?,
        warmup_iterations: warmup_iterations?,
        clip_norm: clip_norm?,
    })
}

//! `[training]`: batch, sequence, precision, optimizer.

use ir::{AdamW, AttentionKernel, Cluster, Precision, Workload};

use crate::catalog::PRECISIONS;
use crate::read::{Table, Value};

/// Attention kernels by name.
pub(super) const KERNELS: [(&str, AttentionKernel); 2] =
    [("fused", AttentionKernel::Fused), ("plain", AttentionKernel::Plain)];
/// The multiple to which Megatron-LM pads vocabularies.
const VOCABULARY_DIVISOR: u32 = 128;
/// Longer sequences than any trained on; the bound keeps tokens inside 64 bits with room.
const LONGEST: u64 = 1 << 27;
/// More sequences in an iteration than any published run has by three orders.
const LARGEST_BATCH: u64 = 1 << 24;

/// Reads `[training]`. Without `precision`, the fastest 16-bit format that every device supports, else FP32.
pub(super) fn read(root: &Table<'_>, cluster: Option<&Cluster>, seed: u64) -> Option<Workload> {
    let table = root.require("training", "{ sequence_length = 4096, global_batch = 512 }")?.table()?;
    let bounded = |v: Value<'_>, most| v.integer(1..=most).and_then(|n| u32::try_from(n).ok());
    let sequence_length = table.require("sequence_length", "4096").and_then(|v| bounded(v, LONGEST));
    let global_batch = table.require("global_batch", "512").and_then(|v| bounded(v, LARGEST_BATCH));
    let iterations = table.get("iterations").map_or(Some(10), |v| v.count());
    let written = table.get("precision");
    let precision = match &written {
        Some(value) => value.choice(&PRECISIONS),
        None => Some(cluster.map_or(Precision::Bf16, widest_supported)),
    };
    if let (Some(value), Some(precision), Some(cluster)) = (&written, precision, cluster) {
        check_support(value, precision, cluster);
    }
    let attention = table.get("attention").map_or(Some(AttentionKernel::Fused), |v| v.choice(&KERNELS));
    let vocabulary_divisor = table.get("vocabulary_divisor").map_or(Some(VOCABULARY_DIVISOR), |v| bounded(v, 1 << 20));
    let optimizer = table.table("optimizer").map_or(Some(AdamW::default()), |t| optimizer(&t));
    table.finish();
    Some(Workload {
        sequence_length: sequence_length?,
        global_batch: global_batch?,
        iterations: iterations?,
        precision: precision?,
        attention: attention?,
        vocabulary_divisor: vocabulary_divisor?,
        optimizer: optimizer?,
        seed,
    })
}

fn supports(cluster: &Cluster, precision: Precision) -> bool {
    cluster.device_kinds.iter().all(|kind| kind.peak(precision).is_some())
}

fn widest_supported(cluster: &Cluster) -> Precision {
    [Precision::Bf16, Precision::Fp16].into_iter().find(|p| supports(cluster, *p)).unwrap_or(Precision::Fp32)
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
    let common: Vec<&str> = PRECISIONS.iter().filter(|(_, p)| supports(cluster, *p)).map(|(name, _)| *name).collect();
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
        Some(value) if value.as_text() == Some("none") => Some(None),
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

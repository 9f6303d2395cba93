//! The keys of `[plan]`, whether they are a plan or what a policy must keep to.

use std::path::Path;
use std::sync::Arc;

use ir::{CollectiveAlgorithm, ContextMethod, DeviceId, Problem, Recompute, Schedule, VocabularyDivision, ZeroStage};

use sched::learned::Weights;

use super::super::{Sight, cluster};
use super::schedule::{INTERLEAVED, schedule};
use super::{DEEPEST, MOST_MICROBATCHES};
use crate::read::{Table, Value};

/// The keys of `[plan]` that were written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PlanKeys {
    /// Replicas.
    pub data: Option<u32>,
    /// Tensor degree: one for all positions, or one per position.
    pub tensor: Option<Vec<u32>>,
    /// Sequence parallelism.
    pub sequence_parallel: Option<bool>,
    /// Ranks that share each sequence.
    pub context: Option<u32>,
    /// How they do.
    pub context_method: Option<ContextMethod>,
    /// Ranks over which experts are divided.
    pub expert: Option<u32>,
    /// Ranks that share each expert's matrices.
    pub expert_tensor: Option<u32>,
    /// Pipeline degree.
    pub pipeline: Option<u32>,
    /// Chunks per pipeline position.
    pub chunks_per_stage: Option<u32>,
    /// Layers of each chunk of each position.
    pub layers_per_stage: Option<Vec<Vec<u32>>>,
    /// Recomputation: one for all positions, or one per position.
    pub recompute: Option<Vec<Recompute>>,
    /// Layers of each chunk that recomputation concerns: one for all positions, or one per position; `None` means all.
    pub recompute_layers: Option<Vec<Option<u32>>>,
    /// Sequences of a microbatch.
    pub microbatch_size: Option<u32>,
    /// Microbatches of an iteration: one number for all replicas, or one for each.
    pub microbatches: Option<Vec<u32>>,
    /// Order of passes.
    pub schedule: Option<Schedule>,
    /// Division of training state.
    pub zero: Option<ZeroStage>,
    /// Replicas over which it is divided; `None` inside: all of them.
    pub shard: Option<Option<u32>>,
    /// Overlap of gradient reduction.
    pub overlap_gradients: Option<bool>,
    /// Parameters whose gradients are reduced together beside the last backward pass.
    pub bucket: Option<u64>,
    /// Whether parameters are gathered ahead (ZeRO-3).
    pub prefetch: Option<bool>,
    /// Whether stepped parameters are gathered beside the next iteration.
    pub overlap_parameters: Option<bool>,
    /// Whether tensor collectives run beside their products.
    pub overlap_tensor: Option<bool>,
    /// Whether the exchange of experts runs beside other work.
    pub overlap_experts: Option<bool>,
    /// What waits in host memory.
    pub offload: Option<Offload>,
    /// Where the vocabulary's layers stand.
    pub vocabulary: Option<VocabularyDivision>,
    /// Algorithm of the gradient collectives.
    pub collective: Option<CollectiveAlgorithm>,
    /// Device of each rank.
    pub placement: Option<Vec<DeviceId>>,
    /// Evaluations that a policy may take.
    pub budget: Option<u64>,
    /// The file of weights of the policy `learned`, by its whole path, and what it holds; without it, those of the catalog.
    pub weights: Option<(String, Arc<Weights>)>,
}

/// What waits in host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// What layers keep between forward and backward pass.
    pub activations: bool,
    /// Optimizer state.
    pub optimizer: bool,
    /// Parameters.
    pub parameters: bool,
}

/// Reads a file of weights; what is wrong with it is noted at its place in that file.
fn weights(value: &Value<'_>, sight: &Sight<'_>) -> Option<(String, Arc<Weights>)> {
    let name = value.text()?;
    let (file, text) = sight.read(Path::new(&name), value)?;
    match Weights::parse(&text, &file) {
        // The resolved scenario may lie anywhere.
        Ok(weights) => {
            let whole = std::path::absolute(&file).map_or(file, |path| path.display().to_string());
            Some((whole, Arc::new(weights)))
        }
        Err(problems) => {
            problems.into_iter().for_each(|problem| sight.report(problem));
            None
        }
    }
}

/// More parameters than any rank holds.
const LARGEST_BUCKET: u64 = 1 << 48;
/// More evaluations than any space has plans.
const MOST_EVALUATIONS: u64 = 1_000_000_000;
/// The word for all: of layers, of replicas.
pub(in crate::scenario) const ALL: &str = "all";
/// What can be offloaded, by name.
pub(in crate::scenario) const OFFLOADED: [&str; 3] = ["activations", "optimizer", "parameters"];

/// Reads a key that may be absent. An outer `None` is a wrong value.
fn optional<'d, T>(
    table: &Table<'d>,
    key: &'static str,
    read: impl FnOnce(&Value<'d>) -> Option<T>,
) -> Option<Option<T>> {
    table.get(key).map_or(Some(None), |value| read(&value).map(Some))
}

fn degree(table: &Table<'_>, key: &'static str, most: u64) -> Option<Option<u32>> {
    optional(table, key, |value| value.integer(1..=most).and_then(|n| u32::try_from(n).ok()))
}

/// One degree for all stages, or one for each.
fn tensor(value: &Value<'_>) -> Option<Vec<u32>> {
    let one = |value: &Value<'_>| value.integer(1..=cluster::MOST_DEVICES).and_then(|n| u32::try_from(n).ok());
    if !value.is_list() {
        return one(value).map(|n| vec![n]);
    }
    let read: Vec<Option<u32>> = value.list()?.iter().map(one).collect();
    if read.is_empty() {
        value.problem("no stage has any", Some("one degree for each stage, or one number for all".to_owned()));
        return None;
    }
    read.into_iter().collect()
}

/// What every replica has.
fn size(value: &Value<'_>) -> Option<u32> {
    if value.is_list() {
        let hint = "one number for all replicas; what they take of a batch is said in microbatches = [15, 10]";
        value.problem("microbatches are of one size", Some(hint.to_owned()));
        return None;
    }
    value.integer(1..=MOST_MICROBATCHES).and_then(|n| u32::try_from(n).ok())
}

/// One number for all replicas, or one for each.
fn microbatches(value: &Value<'_>) -> Option<Vec<u32>> {
    let one = |value: &Value<'_>| value.integer(1..=MOST_MICROBATCHES).and_then(|n| u32::try_from(n).ok());
    if !value.is_list() {
        return one(value).map(|n| vec![n]);
    }
    let read: Vec<Option<u32>> = value.list()?.iter().map(one).collect();
    if read.is_empty() {
        value.problem("no replica takes any", Some("one number for each replica".to_owned()));
        return None;
    }
    read.into_iter().collect()
}

fn flag(table: &Table<'_>, key: &'static str) -> Option<Option<bool>> {
    optional(table, key, |value| value.boolean())
}

/// Reads every key; the caller asks for `policy` and finishes the table.
pub(super) fn keys(table: &Table<'_>, sight: &Sight<'_>) -> Option<PlanKeys> {
    const MOST: u64 = cluster::MOST_DEVICES;
    let (data, context) = (degree(table, "data", MOST), degree(table, "context", MOST));
    let tensor = optional(table, "tensor", tensor);
    let (expert, expert_tensor) = (degree(table, "expert", MOST), degree(table, "expert_tensor", MOST));
    let context_method = optional(table, "context_method", |v| v.one_of(ContextMethod::ALL, ContextMethod::name));
    let sequence_parallel = flag(table, "sequence_parallel");
    let (pipeline, chunks) = (degree(table, "pipeline", DEEPEST), degree(table, "chunks_per_stage", DEEPEST));
    let layers = optional(table, "layers_per_stage", layers);
    let recompute = optional(table, "recompute", recompute);
    let recompute_layers = optional(table, "recompute_layers", recompute_layers);
    let size = optional(table, "microbatch_size", size);
    let microbatches = optional(table, "microbatches", microbatches);
    let schedule = optional(table, "schedule", |v| schedule(v, sight));
    interleaved(table, &layers, chunks.flatten());
    let zero =
        optional(table, "zero", |v| v.integer(0..=3).and_then(|n| ZeroStage::from_number(u32::try_from(n).ok()?)));
    let shard = optional(table, "shard", |v| all_or_count(v, 1));
    let (overlap_gradients, prefetch) = (flag(table, "overlap_gradients"), flag(table, "prefetch"));
    let bucket = optional(table, "bucket", |value| value.integer(1..=LARGEST_BUCKET));
    let overlap_parameters = flag(table, "overlap_parameters");
    let (overlap_tensor, overlap_experts) = (flag(table, "overlap_tensor"), flag(table, "overlap_experts"));
    let offload = optional(table, "offload", offload);
    let vocabulary = optional(table, "vocabulary", |v| v.one_of(VocabularyDivision::ALL, VocabularyDivision::name));
    let collective = optional(table, "collective", |v| v.one_of(CollectiveAlgorithm::ALL, CollectiveAlgorithm::name));
    let placement = optional(table, "placement", placement);
    let budget = optional(table, "budget", |v| v.integer(1..=MOST_EVALUATIONS));
    let weights = optional(table, "weights", |v| weights(v, sight));
    Some(PlanKeys {
        data: data?,
        tensor: tensor?,
        sequence_parallel: sequence_parallel?,
        context: context?,
        context_method: context_method?,
        expert: expert?,
        expert_tensor: expert_tensor?,
        pipeline: pipeline?,
        chunks_per_stage: chunks?,
        layers_per_stage: layers?,
        recompute: recompute?,
        recompute_layers: recompute_layers?,
        microbatch_size: size?,
        microbatches: microbatches?,
        schedule: schedule?,
        zero: zero?,
        shard: shard?,
        overlap_gradients: overlap_gradients?,
        bucket: bucket?,
        prefetch: prefetch?,
        overlap_parameters: overlap_parameters?,
        overlap_tensor: overlap_tensor?,
        overlap_experts: overlap_experts?,
        offload: offload?,
        vocabulary: vocabulary?,
        collective: collective?,
        placement: placement?,
        budget: budget?,
        weights: weights?,
    })
}

/// Notes an interleaved schedule that nothing gives chunks.
fn interleaved(table: &Table<'_>, layers: &Option<Option<Vec<Vec<u32>>>>, chunks: Option<u32>) {
    let listed = layers.iter().flatten().flat_map(|stages| stages.first()).map(Vec::len).next();
    let few = listed.map_or_else(|| chunks.is_none_or(|n| n < 2), |listed| listed < 2);
    if few && table.get("schedule").is_some_and(|v| v.is_word(INTERLEAVED)) {
        let problem = Problem::new(table.path_of("chunks_per_stage"), "an interleaved schedule needs at least 2");
        table.report(problem.hint("such as `chunks_per_stage = 2`"));
    }
}

/// `[12, 12]`, or `[[6, 6], [6, 6]]` with several chunks per position.
fn layers(value: &Value<'_>) -> Option<Vec<Vec<u32>>> {
    let stages = value.list()?;
    if stages.is_empty() {
        value.problem("a pipeline needs a stage", None);
        return None;
    }
    let read: Vec<Option<Vec<u32>>> = stages
        .iter()
        .map(|stage| {
            if !stage.is_list() {
                return stage.count_from(0).map(|n| vec![n]);
            }
            let chunks: Vec<Option<u32>> = stage.list()?.iter().map(|chunk| chunk.count_from(0)).collect();
            chunks.into_iter().collect()
        })
        .collect();
    let read: Vec<Vec<u32>> = read.into_iter().collect::<Option<_>>()?;
    if let Some(odd) = read.iter().position(|chunks| chunks.len() != read[0].len() || chunks.is_empty()) {
        stages[odd]
            .problem(format!("has {} chunks where the first stage has {}", read[odd].len(), read[0].len()), None);
        return None;
    }
    Some(read)
}

fn recompute(value: &Value<'_>) -> Option<Vec<Recompute>> {
    let one = |value: &Value<'_>| value.one_of(Recompute::ALL, Recompute::name);
    if !value.is_list() {
        return one(value).map(|r| vec![r]);
    }
    let read: Vec<Option<Recompute>> = value.list()?.iter().map(one).collect();
    read.into_iter().collect()
}

fn recompute_layers(value: &Value<'_>) -> Option<Vec<Option<u32>>> {
    if !value.is_list() {
        return all_or_count(value, 0).map(|n| vec![n]);
    }
    let read: Vec<Option<Option<u32>>> = value.list()?.iter().map(|item| all_or_count(item, 0)).collect();
    read.into_iter().collect()
}

/// A count, or `"all"`, which is `None` inside.
fn all_or_count(value: &Value<'_>, least: u32) -> Option<Option<u32>> {
    if value.is_text() { value.choice(&[(ALL, None)]) } else { value.count_from(least).map(Some) }
}

fn offload(value: &Value<'_>) -> Option<Offload> {
    let words = OFFLOADED.map(|word| (word, word));
    let read: Vec<Option<&str>> = value.list()?.iter().map(|item| item.choice(&words)).collect();
    let read: Vec<&str> = read.into_iter().collect::<Option<_>>()?;
    let [activations, optimizer, parameters] = OFFLOADED.map(|word| read.contains(&word));
    Some(Offload { activations, optimizer, parameters })
}

fn placement(value: &Value<'_>) -> Option<Vec<DeviceId>> {
    let read: Vec<Option<u32>> = value.list()?.iter().map(|item| item.count_from(0)).collect();
    read.into_iter().map(|n| n.map(DeviceId::new)).collect()
}

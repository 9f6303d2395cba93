//! Plans, and what was measured of them.

use ir::{CollectiveAlgorithm, Mesh, Model, Plan, Problem, Recompute, Schedule, Shares, Sharing, StagePlan, ZeroStage};

use super::reader::{At, Reader};

/// Nodes of one kind that a replica of a stage is on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Nodes {
    /// Kind of device, such as `A100-40`.
    pub device: String,
    /// Devices of one node.
    pub per_node: u32,
    /// Zone, such as `us-central1-a`.
    pub zone: String,
}

/// One replica of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Its nodes.
    pub nodes: Vec<Nodes>,
    /// Ranks that share each matrix.
    pub tensor: u32,
}

/// Stages that follow each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline {
    /// Layers of each stage, 0 the embedding.
    pub layers: Vec<Vec<u32>>,
    /// Replicas of each stage.
    pub replicas: Vec<Vec<Replica>>,
}

/// What a run of a plan showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Seconds of an iteration.
    pub iteration: f64,
    /// Seconds of the reduction of gradients in it, if that was noted.
    pub reduction: Option<f64>,
    /// The most memory that a device had in use, in bytes, if that was noted.
    pub memory: Option<u64>,
    /// How many nodes it ran on, if that was noted.
    pub nodes: Option<u32>,
}

/// A plan.
#[derive(Clone, PartialEq, Debug)]
pub struct SailorPlan {
    /// Pipelines beside each other, one unless they are unlike.
    pub pipelines: Vec<Pipeline>,
    /// Sequences of a microbatch.
    pub microbatch: u32,
    /// Sequences of an iteration, if the plan says it.
    pub batch: Option<u32>,
    /// What was measured, if it was run.
    pub measured: Option<Measured>,
}

/// Keys of a plan. What planners estimate is no part of it.
const KEYS: [&str; 14] = [
    "pipeline_list",
    "mbs",
    "gbs",
    "zone",
    "real",
    "red_grads",
    "max_mem",
    "N",
    "estimated_throughput",
    "estimated_cost",
    "iter_time",
    "iteration_time",
    "used_gpus",
    "original",
];
const PIPELINE_KEYS: [&str; 6] =
    ["num_stages", "layers_per_stage", "tmp_per_stage", "dp", "sender_zone", "receiver_zone"];
/// The longest iteration: a day.
const LONGEST: f64 = 86_400.0;

/// Reads a plan.
///
/// # Errors
/// Everything that is wrong, each with its key and place: keys that are not known, counts that contradict each other,
/// layers that are there twice or missing, times that are no times.
pub fn plan(text: &str, file: &str) -> Result<SailorPlan, Vec<Problem>> {
    let mut reader = Reader::new(file);
    let Some(root) = reader.tree(text) else { return Err(reader.problems) };
    let root = At { path: String::new(), node: &root };
    let keys = reader.object(&root, "a plan");
    let get = |key: &str| keys.iter().find(|(there, _)| there == key).map(|(_, at)| at);
    for (key, at) in keys.iter().filter(|(key, _)| !KEYS.contains(&key.as_str())) {
        reader.unknown(key, at, &KEYS);
    }
    for key in ["pipeline_list", "mbs"] {
        if get(key).is_none() && reader.problems.is_empty() {
            reader.fault(&root, format!("has no `{key}`"), "a plan as Sailor writes it");
        }
    }
    let pipelines: Vec<Option<Pipeline>> = get("pipeline_list").map_or_else(Vec::new, |at| {
        let items = reader.list(at, "pipelines");
        if items.is_empty() {
            reader.fault(at, "has no pipeline", "one or more");
        }
        items.iter().map(|item| pipeline(&mut reader, item)).collect()
    });
    let microbatch = get("mbs").and_then(|at| reader.count(at, 1.0, "sequences of a microbatch"));
    let batch = get("gbs").map(|at| reader.count(at, 1.0, "sequences of an iteration"));
    let seconds = |reader: &mut Reader<'_>, key: &str, least: f64| {
        get(key).map(|at| reader.number(at, least, LONGEST, "seconds"))
    };
    let iteration = seconds(&mut reader, "real", 1e-6);
    let reduction = seconds(&mut reader, "red_grads", 0.0);
    let memory = get("max_mem").map(|at| reader.whole(at, 1.0, "bytes"));
    let nodes = get("N").map(|at| reader.count(at, 1.0, "nodes"));
    if let (None, Some(at)) = (&iteration, get("red_grads").or_else(|| get("max_mem"))) {
        reader.fault(at, "was measured, and `real` is not there", "\"real\": the seconds of an iteration");
    }
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    let measured = iteration.flatten().map(|iteration| Measured {
        iteration,
        reduction: reduction.flatten(),
        memory: memory.flatten(),
        nodes: nodes.flatten(),
    });
    let pipelines = pipelines.into_iter().map(|of| of.expect("nothing is wrong")).collect();
    Ok(SailorPlan { pipelines, microbatch: microbatch.expect("nothing is wrong"), batch: batch.flatten(), measured })
}

fn pipeline(reader: &mut Reader<'_>, at: &At<'_>) -> Option<Pipeline> {
    let keys = reader.object(at, "a pipeline");
    let get = |key: &str| keys.iter().find(|(there, _)| there == key).map(|(_, at)| at);
    for (key, at) in keys.iter().filter(|(key, _)| !PIPELINE_KEYS.contains(&key.as_str())) {
        reader.unknown(key, at, &PIPELINE_KEYS);
    }
    let mut needed = |key: &str| {
        if get(key).is_none() {
            reader.fault(at, format!("has no `{key}`"), "num_stages, layers_per_stage, tmp_per_stage and dp");
        }
        get(key)
    };
    let (stages, layers, devices, data) =
        (needed("num_stages"), needed("layers_per_stage"), needed("tmp_per_stage"), needed("dp"));
    let (stages, layers_at, devices_at, data) = (stages?, layers?, devices?, data?);
    let count = reader.count(stages, 1.0, "stages");
    let layers: Vec<Option<Vec<u32>>> = reader
        .list(layers_at, "layers of each stage")
        .iter()
        .map(|stage| reader.list(stage, "layers").iter().map(|at| reader.count(at, 0.0, "a layer")).collect())
        .collect();
    let layers: Option<Vec<Vec<u32>>> = layers.into_iter().collect();
    let replicas: Option<Vec<Vec<Replica>>> = {
        let stages = reader.list(devices_at, "replicas of each stage");
        let found: Vec<Option<Vec<Replica>>> = stages
            .iter()
            .map(|stage| reader.list(stage, "replicas").iter().map(|at| replica(reader, at)).collect())
            .collect();
        found.into_iter().collect()
    };
    let degrees: Vec<Option<u32>> =
        reader.list(data, "replicas of each stage").iter().map(|at| reader.count(at, 1.0, "replicas")).collect();
    let (count, layers, replicas) = (count?, layers?, replicas?);
    let degrees: Vec<u32> = degrees.into_iter().collect::<Option<_>>()?;
    for (what, at, length) in [
        ("layers_per_stage", layers_at, layers.len()),
        ("tmp_per_stage", devices_at, replicas.len()),
        ("dp", data, degrees.len()),
    ] {
        if length as u64 != u64::from(count) {
            reader.fault(
                at,
                format!("has {length} stages, and num_stages is {count}"),
                format!("{what} of each stage"),
            );
        }
    }
    for (stage, (there, said)) in replicas.iter().zip(&degrees).enumerate() {
        if there.len() as u64 != u64::from(*said) {
            let message = format!("stage {stage} has {} replicas, and dp says {said}", there.len());
            reader.fault(devices_at, message, "as many as dp says");
        }
    }
    let flat: Vec<u32> = layers.iter().flatten().copied().collect();
    if flat.iter().enumerate().any(|(place, layer)| u32::try_from(place).ok() != Some(*layer)) {
        reader.fault(layers_at, "are not all layers in order, each once", "0, 1, ... to the head");
    }
    Some(Pipeline { layers, replicas })
}

fn replica(reader: &mut Reader<'_>, at: &At<'_>) -> Option<Replica> {
    let parts = reader.list(at, "[[[device, devices of a node, zone], ...], tensor degree]");
    let [nodes, tensor] = parts.as_slice() else {
        if !parts.is_empty() {
            reader.fault(
                at,
                format!("has {} parts", parts.len()),
                "[[[device, devices of a node, zone]], tensor degree]",
            );
        }
        return None;
    };
    let tensor = reader.count(tensor, 1.0, "a tensor degree");
    let items = reader.list(nodes, "nodes");
    if items.is_empty() {
        reader.fault(nodes, "has no node", "[device, devices of a node, zone]");
    }
    let mut found = Vec::new();
    for item in &items {
        let parts = reader.list(item, "[device, devices of a node, zone]");
        let [device, per_node, zone] = parts.as_slice() else {
            reader.fault(item, format!("has {} parts", parts.len()), "[device, devices of a node, zone]");
            continue;
        };
        let (device, zone) = (reader.text(device, "a device"), reader.text(zone, "a zone"));
        let per_node = reader.count(per_node, 1.0, "devices of a node");
        if let (Some(device), Some(per_node), Some(zone)) = (device, per_node, zone) {
            found.push(Nodes { device, per_node, zone });
        }
    }
    let tensor = tensor?;
    if found.len() != items.len() || found.is_empty() {
        return None;
    }
    let there: u64 = found.iter().map(|nodes| u64::from(nodes.per_node)).sum();
    if there < u64::from(tensor) {
        reader.fault(at, format!("has {there} devices for tensor degree {tensor}"), "nodes with enough devices");
        return None;
    }
    Some(Replica { nodes: found, tensor })
}

impl SailorPlan {
    /// The plan for a model and a batch, ranks in order: tensor fastest, then replicas, then stages. Where each rank is
    /// says [`Replica::nodes`].
    ///
    /// # Errors
    /// What a plan of ours cannot say, by name: several pipelines, degrees that differ from stage to stage, tensor groups
    /// over several nodes, ends that are cut from the first and last layers, and a batch that does not divide.
    pub fn divide(&self, model: &Model, batch: Option<u32>) -> Result<Plan, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut refuse = |subject: &str, message: String, hint: &str| {
            problems.push(Problem::new(subject, message).hint(hint));
        };
        let Some(pipeline) = self.pipelines.first().filter(|_| self.pipelines.len() == 1) else {
            refuse("pipeline_list", format!("{} pipelines beside each other", self.pipelines.len()), "one pipeline");
            return Err(problems);
        };
        let data = pipeline.replicas[0].len();
        let tensor = pipeline.replicas[0][0].tensor;
        if pipeline.replicas.iter().any(|stage| stage.len() != data) {
            let degrees: Vec<usize> = pipeline.replicas.iter().map(Vec::len).collect();
            refuse("dp", format!("stages of unlike numbers of replicas ({degrees:?})"), "one number for all stages");
        }
        let mut replicas = pipeline.replicas.iter().flatten();
        if replicas.clone().any(|replica| replica.tensor != tensor) {
            refuse("tmp_per_stage", "tensor degrees that differ".to_owned(), "one degree for all stages and replicas");
        }
        if replicas.any(|replica| replica.nodes.len() > 1) {
            refuse("tmp_per_stage", "a tensor group on several nodes".to_owned(), "tensor groups inside nodes");
        }
        let ends =
            ends(pipeline, model.layers).map_err(|(message, hint)| refuse("layers_per_stage", message, hint)).ok();
        let batch = batch.or(self.batch);
        let per_step = self.microbatch.saturating_mul(u32::try_from(data).unwrap_or(u32::MAX));
        let microbatches = match batch {
            None => {
                refuse("gbs", "the plan does not say how many sequences an iteration has".to_owned(), "--global-batch");
                None
            }
            Some(batch) if batch % per_step != 0 => {
                let message = format!("{batch} sequences are no multiple of {data} replicas of {}", self.microbatch);
                refuse("gbs", message, "a multiple");
                None
            }
            Some(batch) => Some(batch / per_step),
        };
        match (ends, microbatches) {
            (Some(stages), Some(microbatches)) if problems.is_empty() => Ok(Plan {
                data: u32::try_from(data).unwrap_or(u32::MAX),
                tensor,
                sequence_parallel: false,
                stages,
                microbatch_size: self.microbatch,
                microbatches,
                shares: Shares::default(),
                schedule: Schedule::OneForwardOneBackward,
                zero: ZeroStage::Zero0,
                overlap_gradients: false,
                collective: CollectiveAlgorithm::Automatic,
                mesh: Mesh::default(),
                sharing: Sharing::default(),
                placement: Vec::new(),
            }),
            _ => Err(problems),
        }
    }

    /// The nodes of each tensor group, in the order of ranks.
    pub fn places(&self) -> impl Iterator<Item = &Replica> {
        self.pipelines.iter().flat_map(|pipeline| pipeline.replicas.iter().flatten())
    }
}

/// Transformer layers of each stage: without the embedding, which is in the first, and without what comes after the last
/// layer, which is in the last.
fn ends(pipeline: &Pipeline, layers: u32) -> Result<Vec<StagePlan>, (String, &'static str)> {
    let all: usize = pipeline.layers.iter().map(Vec::len).sum();
    let behind = all.checked_sub(layers as usize + 1).filter(|behind| (1..=2).contains(behind));
    let Some(behind) = behind else {
        let message = format!("{all} layers, and the model has {layers} beside the embedding, the norm and the head");
        return Err((message, "the plan of this model"));
    };
    let last = pipeline.layers.len() - 1;
    let mut stages = Vec::new();
    for (place, stage) in pipeline.layers.iter().enumerate() {
        let ends = usize::from(place == 0) + if place == last { behind } else { 0 };
        let inner = stage.len().checked_sub(ends).filter(|inner| *inner > 0);
        let inner = inner.and_then(|inner| u32::try_from(inner).ok());
        let Some(inner) = inner else {
            let message = format!("stage {place} has no transformer layer of its own");
            return Err((message, "a layer at least, beside the embedding or the head"));
        };
        stages.push(StagePlan {
            layers: vec![inner],
            recompute: Recompute::None,
            recompute_layers: None,
            tensor: None,
        });
    }
    Ok(stages)
}

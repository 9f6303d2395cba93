//! The plan that keys say, with defaults for the rest.

use ir::grid::Grid;
use ir::{
    Cluster, CollectiveAlgorithm, Mesh, Model, Plan, Problem, Recompute, Schedule, Shares, Sharing, StagePlan,
    Workload, ZeroStage,
};

use super::MOST_MICROBATCHES;
use super::keys::{Offload, PlanKeys};
use crate::read::Table;

/// The plan that the keys say, with defaults for the others. Whether it is legal is the scheduler's to say.
pub(super) fn written(
    table: &Table<'_>,
    keys: &PlanKeys,
    cluster: &Cluster,
    model: &Model,
    workload: &Workload,
) -> Option<Plan> {
    let schedule = keys.schedule.clone().unwrap_or(Schedule::OneForwardOneBackward);
    let mesh = keys.mesh(Mesh::default());
    let grid_rows = match &keys.schedule {
        Some(Schedule::Explicit(Grid { rows })) => u32::try_from(rows.len()).ok(),
        _ => None,
    };
    let listed = keys.layers_per_stage.as_ref().and_then(|l| u32::try_from(l.len()).ok());
    let pipeline = keys.pipeline.or(listed).or(grid_rows).unwrap_or(1);
    let layers = match &keys.layers_per_stage {
        Some(layers) => layers.clone(),
        None => even(table, model.layers, pipeline, keys.chunks_per_stage.unwrap_or(schedule.usual_chunks()))?,
    };
    let tensors = per_stage(table, "tensor", keys.tensor.as_deref(), layers.len(), 1)?;
    let data = match keys.data {
        Some(data) => data,
        None => replicas(table, cluster.devices(), mesh.context, &tensors)?,
    };
    let microbatch_size = keys.microbatch_size.unwrap_or(1);
    let per_replica = workload.global_batch / data;
    let (microbatches, shares) = match keys.microbatches.as_deref() {
        None => ((per_replica / microbatch_size).max(1), Shares::EQUAL),
        Some([one]) => (*one, Shares::EQUAL),
        Some(many) if many.len() == data as usize => Shares::of(many.to_vec()),
        Some(many) => {
            let message = format!("lists {} replicas, and there are {data}", many.len());
            let hint = format!("one number for each of {data}, or one for all of them");
            table.report_at("microbatches", Problem::new(table.path_of("microbatches"), message).hint(hint));
            return None;
        }
    };
    if u64::from(microbatches) > MOST_MICROBATCHES {
        let message = format!(
            "{microbatches} microbatches on a replica are more than the {MOST_MICROBATCHES} that a program holds"
        );
        table.report(
            Problem::new(table.path_of("microbatch_size"), message).hint("a larger microbatch or more replicas"),
        );
        return None;
    }
    let recompute = per_stage(table, "recompute", keys.recompute.as_deref(), layers.len(), Recompute::None)?;
    let recompute_layers = per_stage(table, "recompute_layers", keys.recompute_layers.as_deref(), layers.len(), None)?;
    let stages = layers.into_iter().zip(recompute).zip(recompute_layers);
    let plan = Plan {
        data,
        tensor: 1,
        sequence_parallel: keys.sequence_parallel.unwrap_or(false),
        stages: stages
            .map(|((layers, recompute), recompute_layers)| StagePlan {
                layers,
                recompute,
                recompute_layers,
                tensor: None,
            })
            .collect(),
        microbatch_size,
        microbatches,
        shares,
        schedule,
        zero: keys.zero.unwrap_or(ZeroStage::Zero0),
        overlap_gradients: keys.overlap_gradients.unwrap_or(true),
        collective: keys.collective.unwrap_or(CollectiveAlgorithm::Automatic),
        mesh,
        sharing: keys.sharing(Sharing::default()),
        placement: keys.placement.clone().unwrap_or_default(),
    };
    Some(plan.with_tensors(&tensors))
}

/// Equal shares for every chunk; which layers go where is not guessed if they do not divide.
fn even(table: &Table<'_>, layers: u32, pipeline: u32, chunks: u32) -> Option<Vec<Vec<u32>>> {
    let parts = u64::from(pipeline) * u64::from(chunks);
    if u64::from(layers).is_multiple_of(parts) {
        let share = u32::try_from(u64::from(layers) / parts).expect("a share is at most the whole");
        return Some(vec![vec![share; chunks as usize]; pipeline as usize]);
    }
    let fits = |p: u32| layers.is_multiple_of(p.saturating_mul(chunks).max(1));
    let mut near: Vec<u32> = (1..pipeline).rev().find(|p| fits(*p)).into_iter().collect();
    near.extend((pipeline + 1..=layers.min(4 * pipeline)).find(|p| fits(*p)));
    let near = near.iter().map(|p| format!("pipeline = {p}")).collect::<Vec<_>>().join(" or ");
    let mut hint = if near.is_empty() { String::new() } else { format!("{near} would; ") };
    if chunks == 1 && pipeline <= layers && pipeline <= 16 {
        let (share, extra) = (layers / pipeline, layers % pipeline);
        // The first and the last stage also hold the embedding and the head, so the ones between take what is left over.
        let larger = |stage: u32| (1..=extra).any(|i| stage == (i % pipeline));
        let list: Vec<String> = (0..pipeline).map(|s| (share + u32::from(larger(s))).to_string()).collect();
        let or = if near.is_empty() { "" } else { "or " };
        hint.push_str(&format!("{or}say which stage takes more: layers_per_stage = [{}]", list.join(", ")));
    } else {
        hint.push_str(if near.is_empty() { "write layers_per_stage" } else { "or write layers_per_stage" });
    }
    let message = format!("{layers} layers do not divide into {parts} equal chunks");
    table.report_at("pipeline", Problem::new(table.path_of("pipeline"), message).hint(hint));
    None
}

/// A value for each stage: one for all of them, one written for each, or `otherwise`.
fn per_stage<T: Copy>(
    table: &Table<'_>,
    key: &str,
    written: Option<&[T]>,
    stages: usize,
    otherwise: T,
) -> Option<Vec<T>> {
    match written {
        None => Some(vec![otherwise; stages]),
        Some([one]) => Some(vec![*one; stages]),
        Some(many) if many.len() == stages => Some(many.to_vec()),
        Some(many) => {
            let message = format!("lists {} stages, and there are {stages}", many.len());
            table.report_at(key, Problem::new(table.path_of(key), message));
            None
        }
    }
}

/// The replicas that use every device, with these degrees beside them; tensor degrees of each stage.
fn replicas(table: &Table<'_>, devices: u64, context: u32, tensors: &[u32]) -> Option<u32> {
    let ranks = u64::from(context) * tensors.iter().map(|tensor| u64::from(*tensor)).sum::<u64>();
    if ranks <= devices && devices.is_multiple_of(ranks) {
        return u32::try_from(devices / ranks).ok();
    }
    let alike = tensors.iter().all(|tensor| *tensor == tensors[0]);
    let degrees = match (alike, context == 1) {
        (true, true) => "tensor x pipeline",
        (true, false) => "tensor x context x pipeline",
        (false, true) => "the sum of all stages' tensor degrees",
        (false, false) => "context x the sum of all stages' tensor degrees",
    };
    let message = format!("{degrees} = {ranks} does not divide the {devices} devices");
    table.report(Problem::new(table.path_of("data"), message).hint("write data, or degrees whose product divides"));
    None
}

impl PlanKeys {
    /// The degrees of `mesh`, those that were written replaced.
    pub(crate) fn mesh(&self, mesh: Mesh) -> Mesh {
        Mesh {
            context: self.context.unwrap_or(mesh.context),
            context_method: self.context_method.unwrap_or(mesh.context_method),
            expert: self.expert.unwrap_or(mesh.expert),
            expert_tensor: self.expert_tensor.unwrap_or(mesh.expert_tensor),
        }
    }
    /// The division and overlap of `sharing`, what was written replaced.
    pub(crate) fn sharing(&self, sharing: Sharing) -> Sharing {
        let Offload { activations, optimizer, parameters } = self.offload.unwrap_or(Offload {
            activations: sharing.offload_activations,
            optimizer: sharing.offload_optimizer,
            parameters: sharing.offload_parameters,
        });
        Sharing {
            shard: self.shard.unwrap_or(sharing.shard),
            prefetch: self.prefetch.unwrap_or(sharing.prefetch),
            overlap_parameters: self.overlap_parameters.unwrap_or(sharing.overlap_parameters),
            overlap_tensor: self.overlap_tensor.unwrap_or(sharing.overlap_tensor),
            overlap_experts: self.overlap_experts.unwrap_or(sharing.overlap_experts),
            offload_activations: activations,
            offload_optimizer: optimizer,
            offload_parameters: parameters,
            vocabulary: self.vocabulary.unwrap_or(sharing.vocabulary),
            bucket: self.bucket.or(sharing.bucket),
        }
    }
}

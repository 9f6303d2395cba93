//! A plan in Sailor's words.

use std::collections::BTreeMap;

use ir::{Cluster, Mesh, Model, Plan, Problem, Rank, Recompute, Schedule, ZeroStage};
use serde_json::{Value, json};

/// Zones that Sailor's own files of bandwidths and prices know, in their order.
const ZONES: [&str; 5] = ["us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b"];

/// Our name of a device and Sailor's.
const DEVICES: [(&str, &str); 9] = [
    ("a100-sxm4-40gb", "A100-40"),
    ("a100-pcie-40gb", "A100-40"),
    ("a100-sxm4-80gb", "A100-80"),
    ("a100-pcie-80gb", "A100-80"),
    ("v100-sxm2-16gb", "V100-16"),
    ("gh200-96gb", "GH-96"),
    ("rtx-3090", "RTX-3090"),
    ("rtx-2080-ti", "RTX-2080"),
    ("titan-rtx", "Titan-RTX"),
];

/// Sailor's name of a device; ours where it has none.
#[must_use]
pub fn device(name: &str) -> &str {
    DEVICES.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| theirs)
}

/// The names of zones: one for each leaf of the fabric, if a link of its own joins leaves, else one.
#[must_use]
pub fn zones(cluster: &Cluster) -> usize {
    match (cluster.fabric.up_link.is_some(), cluster.fabric.leaf_nodes) {
        (false, _) | (true, 0) => 1,
        (true, nodes) => usize::try_from(cluster.nodes().div_ceil(u64::from(nodes))).unwrap_or(usize::MAX),
    }
}

/// The plan as Sailor's simulator reads it: `behind` layers after the transformer's (1 where the final norm and the head
/// are one of its layers, 2 where they are two), with an iteration of so many seconds.
///
/// # Errors
/// Everything that it cannot be told, by name.
pub fn of_plan(
    model: &Model,
    (batch, plan): (u32, &Plan),
    cluster: &Cluster,
    behind: u32,
    seconds: Option<f64>,
) -> Result<String, Vec<Problem>> {
    let mut problems = refusals(plan);
    let there = zones(cluster);
    if there > ZONES.len() {
        let message = format!("{there} zones, and Sailor's bandwidths are of {}", ZONES.len());
        problems.push(Problem::new("cluster.fabric", message).hint("at most five leaves"));
    }
    if plan.world() > cluster.devices() {
        let message = format!("{} ranks on {} devices", plan.world(), cluster.devices());
        problems.push(Problem::new("plan", message).hint("a device for each rank"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    let mut stages = Vec::new();
    for position in 0..plan.pipeline() {
        let mut replicas = Vec::new();
        for replica in 0..plan.data {
            match group(plan, cluster, position * plan.data + replica) {
                Ok((device, per_node, zone)) => {
                    *used.entry(device).or_default() += u64::from(plan.tensor);
                    replicas.push(json!([[[device, per_node, zone]], plan.tensor]));
                }
                Err(problem) if problems.is_empty() => problems.push(problem),
                Err(_) => {}
            }
        }
        stages.push(Value::Array(replicas));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let layers = layers(model, plan, behind);
    let mut written = json!({
        "zone": ZONES[0],
        "pipeline_list": [{
            "num_stages": plan.pipeline(),
            "layers_per_stage": layers,
            "tmp_per_stage": stages,
            "dp": vec![plan.data; plan.stages.len()],
        }],
        "mbs": plan.microbatch_size,
        "gbs": batch,
        "used_gpus": used,
    });
    if let (Some(seconds), Some(keys)) = (seconds.filter(|s| s.is_finite() && *s > 0.0), written.as_object_mut()) {
        keys.insert("iter_time".to_owned(), json!(seconds));
        keys.insert("estimated_throughput".to_owned(), json!(1.0 / seconds));
    }
    let text = serde_json::to_string_pretty(&written).expect("keys are texts and numbers finite");
    Ok(text + "\n")
}

/// The layers of each stage in Sailor's numbers: 0 the embedding, those behind the transformer's last.
fn layers(model: &Model, plan: &Plan, behind: u32) -> Vec<Vec<u32>> {
    let mut next = 0;
    let last = plan.stages.len() - 1;
    let counts = plan.stages.iter().enumerate().map(|(place, stage)| {
        stage.layers.iter().sum::<u32>() + u32::from(place == 0) + if place == last { behind } else { 0 }
    });
    let stages: Vec<Vec<u32>> = counts
        .map(|count| {
            let stage = (next..next + count).collect();
            next += count;
            stage
        })
        .collect();
    debug_assert_eq!(next, model.layers + 1 + behind, "a legal plan has every layer");
    stages
}

/// Device, devices of a node and zone of a tensor group.
fn group<'c>(plan: &Plan, cluster: &'c Cluster, number: u32) -> Result<(&'c str, usize, &'static str), Problem> {
    let places: Vec<_> =
        (0..plan.tensor).map(|lane| cluster.place(plan.device(Rank::new(number * plan.tensor + lane)))).collect();
    let first = places[0];
    if places.iter().any(|place| place.node != first.node) {
        let message = format!("the tensor group of ranks from {} is on several nodes", number * plan.tensor);
        return Err(Problem::new("plan.tensor", message).hint("at most the devices of a node, a divisor of them"));
    }
    if places.iter().any(|place| place.device_kind != first.device_kind) {
        let message = format!("the tensor group of ranks from {} has devices of several kinds", number * plan.tensor);
        return Err(Problem::new("plan.placement", message).hint("devices of one kind in each group"));
    }
    let zone = if zones(cluster) > 1 { cluster.leaf(first.node) as usize } else { 0 };
    let per_node = cluster.node_kind(first.node_kind).devices.len();
    Ok((device(&cluster.device_kind(first.device_kind).name), per_node, ZONES[zone]))
}

/// What Sailor has no key for.
fn refusals(plan: &Plan) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse_if = |is_so: bool, subject: &str, message: String, hint: &str| {
        if is_so {
            let message = format!("Sailor has no key for it: {message}");
            problems.push(Problem::new(subject, message).hint(hint));
        }
    };
    let recomputes = plan.stages.iter().any(|stage| stage.recompute != Recompute::None);
    refuse_if(plan.mesh != Mesh::default(), "plan.mesh", "context or expert groups".to_owned(), "degrees of 1");
    refuse_if(plan.sequence_parallel, "plan.sequence_parallel", "divided sequences".to_owned(), "false");
    refuse_if(plan.zero != ZeroStage::Zero0, "plan.zero", format!("ZeRO-{}", plan.zero as u8), "0");
    refuse_if(recomputes, "plan.recompute", "passes that are computed again".to_owned(), "none");
    refuse_if(!plan.shares.are_equal(), "plan.microbatches", "replicas that take unlike shares".to_owned(), "equal");
    refuse_if(plan.chunks_per_stage() > 1, "plan.chunks_per_stage", "several chunks a stage".to_owned(), "1");
    let order = plan.pipeline() > 1 && plan.schedule != Schedule::OneForwardOneBackward;
    refuse_if(order, "plan.schedule", "another order of passes than 1F1B".to_owned(), "1f1b");
    let offloads = &plan.sharing;
    let moved = offloads.offload_activations || offloads.offload_optimizer || offloads.offload_parameters;
    refuse_if(moved, "plan.offload", "tensors in host memory".to_owned(), "nothing offloaded");
    refuse_if(!offloads.vocabulary.is_ends(), "plan.vocabulary", "a divided vocabulary".to_owned(), "ends");
    problems
}

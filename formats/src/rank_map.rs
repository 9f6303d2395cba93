//! Which rank is where: its node, its device there, and its index on every axis of a plan.

use std::fmt::Write as _;

use ir::{Cluster, Plan, Problem, Rank};

/// The columns, in order.
pub const COLUMNS: [&str; 12] = [
    "rank",
    "node",
    "local_device",
    "device",
    "data",
    "tensor",
    "context",
    "pipeline",
    "expert",
    "expert_tensor",
    "expert_replica",
    "device_kind",
];

/// A table of comma-separated values with a line for each rank, below lines of comment that say how ranks are numbered.
///
/// # Errors
/// Devices that the cluster does not have, and stages of unlike tensor degrees.
pub fn rank_map(plan: &Plan, cluster: &Cluster) -> Result<String, Vec<Problem>> {
    let (world, devices) = (plan.world(), cluster.devices());
    let placed = plan.placement.iter().map(|device| u64::from(device.raw()) + 1).max().unwrap_or(world);
    if world > devices || placed > devices {
        let message =
            format!("{world} ranks on devices up to number {}, and there are {devices}", placed.max(world) - 1);
        return Err(vec![Problem::new("plan.placement", message).hint("a device of its own for each rank")]);
    }
    if !plan.placement.is_empty() && plan.placement.len() as u64 != world {
        let message = format!("places {} ranks, and there are {world}", plan.placement.len());
        return Err(vec![Problem::new("plan.placement", message).hint("one device for each rank")]);
    }
    if plan.has_unlike_tensors() {
        let message = "stages of unlike tensor degrees are not in Megatron-LM's order of ranks";
        return Err(vec![Problem::new("plan.tensor", message).hint("one degree for all stages")]);
    }
    let mut out = String::from(
        "# Ranks in Megatron-LM's order: tensor fastest, then context, data and pipeline:\n\
         # rank = ((pipeline * data_degree + data) * context_degree + context) * tensor_degree + tensor\n\
         # In layers of experts the ranks of a pipeline position are numbered anew: expert_tensor fastest, then expert, then copies.\n",
    );
    let (data, tensor, context) = (plan.data, plan.tensor, plan.mesh.context);
    let _ = writeln!(
        out,
        "# data_degree {data}, context_degree {context}, tensor_degree {tensor}, pipeline_degree {}, expert_degree {}, expert_tensor_degree {}",
        plan.pipeline(),
        plan.mesh.expert,
        plan.mesh.expert_tensor
    );
    out.push_str(&COLUMNS.join(","));
    out.push('\n');
    let stage = plan.replicas() * tensor;
    let (etp, ep) = (plan.mesh.expert_tensor, plan.mesh.expert);
    for rank in 0..u32::try_from(world).unwrap_or(u32::MAX) {
        let device = plan.device(Rank::new(rank));
        let place = cluster.place(device);
        let inside = rank % stage;
        let kind = &cluster.device_kind(place.device_kind).name;
        let _ = writeln!(
            out,
            "{rank},{},{},{},{},{},{},{},{},{},{},{kind}",
            place.node.raw(),
            place.local,
            device.raw(),
            inside / (tensor * context),
            inside % tensor,
            inside / tensor % context,
            rank / stage,
            inside / etp % ep,
            inside % etp,
            inside / (etp * ep),
        );
    }
    Ok(out)
}

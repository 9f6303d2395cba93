//! Where the groups of a plan lie: how many are inside a domain, a node, a leaf.

use ir::{Cluster, DeviceId, Path, Plan};

use crate::results::{GroupPlaces, PlacedAxis};

/// Groups of each axis before and after.
pub(super) fn axes(before: &Plan, after: &Plan, cluster: &Cluster) -> Vec<PlacedAxis> {
    let groups = groups(before);
    groups
        .into_iter()
        .map(|(axis, groups)| {
            let places = |plan: &Plan| {
                let mut places = GroupPlaces::default();
                for group in &groups {
                    let devices = group.iter().map(|rank| plan.placement[*rank as usize]);
                    match farthest(cluster, &devices.collect::<Vec<_>>()) {
                        Path::Local | Path::Domain => places.domain += 1,
                        Path::Host => places.node += 1,
                        Path::Leaf | Path::Rail => places.leaf += 1,
                        Path::Spine => places.beyond += 1,
                    }
                }
                places
            };
            PlacedAxis { axis, groups: groups.len() as u64, before: places(before), after: places(after) }
        })
        .collect()
}

/// The worst path between members; on rails those of like places count, which is what rings over nodes use.
fn farthest(cluster: &Cluster, devices: &[DeviceId]) -> Path {
    let to = |device: &DeviceId| cluster.path(devices[0], *device);
    devices.iter().map(to).max().unwrap_or(Path::Local)
}

/// Ranks of the groups of each axis of more than one rank: of pipelines, those that hand messages on.
fn groups(plan: &Plan) -> Vec<(&'static str, Vec<Vec<u32>>)> {
    let (tensor, context, pipeline) = (plan.tensor, plan.mesh.context, plan.pipeline());
    let wide = plan.replicas() * tensor;
    let world = wide * pipeline;
    let (etp, expert) = (plan.mesh.expert_tensor, plan.mesh.expert);
    let line = |count: u32, stride: u32| -> Vec<Vec<u32>> {
        let firsts = (0..world).filter(|rank| (rank % wide / stride).is_multiple_of(count));
        firsts.map(|first| (0..count).map(|at| first + at * stride).collect()).collect()
    };
    let mut all = Vec::new();
    if tensor > 1 {
        all.push(("tensor", line(tensor, 1)));
    }
    if context > 1 {
        all.push(("context", line(context, tensor)));
    }
    if expert > 1 {
        all.push(("expert", line(expert, etp)));
    }
    if plan.data > 1 {
        all.push(("data", line(plan.data, tensor * context)));
    }
    if pipeline > 1 {
        let hands_on = (0..world - wide).map(|rank| vec![rank, rank + wide]);
        all.push(("pipeline", hands_on.collect()));
    }
    all
}

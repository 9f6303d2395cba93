//! Which devices the ranks of one of Sailor's plans are on.

use std::collections::BTreeMap;

use formats::sailor::{self, SailorPlan};
use ir::{Cluster, DeviceId, Problem};

/// The device of each rank, on the first nodes of the cluster that the plan's devices and zones fit: replicas of one node
/// fill it. Empty if rank `r` is on device `r`. Zones are leaves of the fabric, by name and number; of a fabric without a
/// link between leaves they are one.
///
/// # Errors
/// Kinds of device that the cluster does not have, or not enough of, and zones that it has no leaves for.
pub(crate) fn placement(plan: &SailorPlan, cluster: &Cluster) -> Result<Vec<DeviceId>, Vec<Problem>> {
    let mut zones: Vec<&str> = plan.places().map(|replica| replica.nodes[0].zone.as_str()).collect();
    zones.sort_unstable();
    zones.dedup();
    let leaves = sailor::zones(cluster);
    if leaves > 1 && zones.len() > leaves {
        let message = format!("{} zones ({}), and the cluster has {leaves}", zones.len(), zones.join(", "));
        return Err(vec![Problem::new("tmp_per_stage", message).hint("a leaf of the fabric for each zone")]);
    }
    let mut free = free(cluster, leaves > 1);
    let mut devices = Vec::new();
    let mut missing: BTreeMap<(String, String), u32> = BTreeMap::new();
    for replica in plan.places() {
        let nodes = &replica.nodes[0];
        let zone = zones.iter().position(|zone| *zone == nodes.zone).filter(|_| leaves > 1).unwrap_or(0);
        let wanted = |node: &&mut Node| {
            (node.device == nodes.device || node.name == nodes.device)
                && node.zone == zone
                && node.free.len() >= replica.tensor as usize
        };
        match free.iter_mut().find(wanted) {
            Some(node) => devices.extend(node.free.drain(..replica.tensor as usize)),
            None => *missing.entry((nodes.device.clone(), nodes.zone.clone())).or_default() += 1,
        }
    }
    if !missing.is_empty() {
        let mut there: Vec<&str> = cluster.device_kinds.iter().map(|kind| kind.name.as_str()).collect();
        there.dedup();
        let each = missing.into_iter().map(|((device, zone), count)| {
            let message = format!("{count} tensor groups on {device} in {zone} find no free node");
            let hint = format!("a cluster with nodes enough, of {} or other devices", there.join(", "));
            Problem::new("tmp_per_stage", message).hint(hint)
        });
        return Err(each.collect());
    }
    let plain = devices.iter().enumerate().all(|(rank, device)| u32::try_from(rank).ok() == Some(device.raw()));
    Ok(if plain { Vec::new() } else { devices })
}

/// A node and its devices that no rank is on.
struct Node {
    device: String,
    name: String,
    zone: usize,
    free: Vec<DeviceId>,
}

fn free(cluster: &Cluster, zoned: bool) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut last = None;
    for device in (0..u32::try_from(cluster.devices()).unwrap_or(u32::MAX)).map(DeviceId::new) {
        let place = cluster.place(device);
        let name = &cluster.device_kind(place.device_kind).name;
        if last != Some(place.node) {
            let zone = if zoned { cluster.leaf(place.node) as usize } else { 0 };
            let (device, name) = (sailor::device(name).to_owned(), name.clone());
            nodes.push(Node { device, name, zone, free: Vec::new() });
            last = Some(place.node);
        }
        nodes.last_mut().expect("just there").free.push(device);
    }
    nodes
}

//! `[emulate]`: devices that are slower than the ones at hand, and links between nodes that are not there.
//!
//! Resolving applies it to the cluster: each device gets a kind with its slowdown, each node the stated links.
//! The resolved form therefore has no `[emulate]` of its own.

use ir::{Cluster, DeviceKindId, Link, NodeGroup, NodeKind, NodeKindId};

use crate::read::{Table, Value};

/// Slower than this is not emulated: an iteration would take hours.
const SLOWEST: f64 = 1000.0;
/// Emulation is for what one host can carry.
const MOST_DEVICES: u64 = 1024;

/// Reads `[emulate]`, if there is one, and applies it.
pub(super) fn apply(root: &Table<'_>, cluster: Option<Cluster>) -> Option<Cluster> {
    let Some(table) = root.table("emulate") else { return cluster };
    let factors = table.get("factors");
    let between = table.table("between_nodes").map(|t| link(&t, "emulated-between-nodes"));
    table.finish();
    let mut cluster = cluster?;
    // An outer `None` is a key that is not there, an inner one a key that is wrong.
    if let Some(between) = between {
        let link = between?;
        for kind in &mut cluster.node_kinds {
            kind.nic = link.clone();
        }
    }
    match factors {
        None => Some(cluster),
        Some(value) => {
            let factors = self::factors(&value, cluster.devices())?;
            Some(slow_down(&cluster, &factors))
        }
    }
}

fn link(table: &Table<'_>, name: &str) -> Option<Link> {
    let bandwidth = table.require("bandwidth", "\"1Gbps\"").and_then(|v| v.quantity());
    let latency = table.require("latency", "\"100us\"").and_then(|v| v.quantity());
    table.finish();
    Some(Link { name: name.to_owned(), bandwidth: bandwidth?, latency: latency?, efficiency: None })
}

/// One factor for all devices, or one per device in the order of the cluster.
fn factors(value: &Value<'_>, devices: u64) -> Option<Vec<f64>> {
    if devices > MOST_DEVICES {
        value.problem(format!("{devices} devices are more than the {MOST_DEVICES} that can be emulated"), None);
        return None;
    }
    let count = usize::try_from(devices).expect("bounded above");
    if !value.is_list() {
        return value.number(1.0..=SLOWEST).map(|factor| vec![factor; count]);
    }
    let items = value.list()?;
    let read: Vec<Option<f64>> = items.iter().map(|item| item.number(1.0..=SLOWEST)).collect();
    if items.len() != count {
        let hint = "one factor per device, in the order of the nodes; 1 is the device as it is".to_owned();
        value.problem(format!("has {} factors for {count} devices", items.len()), Some(hint));
        return None;
    }
    read.into_iter().collect()
}

/// The cluster with device `i` slower by `factors[i]`; equal neighbours stay one group.
fn slow_down(cluster: &Cluster, factors: &[f64]) -> Cluster {
    let mut result =
        Cluster { groups: Vec::new(), node_kinds: Vec::new(), device_kinds: Vec::new(), ..cluster.clone() };
    let mut first = 0;
    for group in &cluster.groups {
        let kind = cluster.node_kind(group.kind);
        for _ in 0..group.count {
            let devices = kind
                .devices
                .iter()
                .zip(&factors[first..])
                .map(|(device, factor)| slower_device(cluster, *device, *factor, &mut result));
            let devices: Vec<DeviceKindId> = devices.collect();
            first += devices.len();
            let id = node_with(kind, devices, &mut result);
            match result.groups.last_mut() {
                Some(last) if last.kind == id => last.count += 1,
                _ => result.groups.push(NodeGroup { kind: id, count: 1 }),
            }
        }
    }
    result
}

fn slower_device(cluster: &Cluster, id: DeviceKindId, factor: f64, result: &mut Cluster) -> DeviceKindId {
    let mut kind = cluster.device_kind(id).clone();
    kind.slowdown *= factor;
    if factor > 1.0 {
        kind.name = format!("{}-{factor}x-slower", kind.name);
    }
    let known = result.device_kinds.iter().position(|k| *k == kind);
    DeviceKindId::at(known.unwrap_or_else(|| {
        result.device_kinds.push(kind);
        result.device_kinds.len() - 1
    }))
}

fn node_with(base: &NodeKind, devices: Vec<DeviceKindId>, result: &mut Cluster) -> NodeKindId {
    let same = |k: &NodeKind| {
        k.devices == devices && (k.name == base.name || k.name.starts_with(&format!("{}-emulated-", base.name)))
    };
    if let Some(index) = result.node_kinds.iter().position(same) {
        return NodeKindId::at(index);
    }
    let name = format!("{}-emulated-{}", base.name, result.node_kinds.len());
    result.node_kinds.push(NodeKind { name, devices, ..base.clone() });
    NodeKindId::at(result.node_kinds.len() - 1)
}

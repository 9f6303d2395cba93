//! `[cluster]`: nodes by name and count, and what joins them. The names come from the catalog, the scenario's own
//! tables included.

use ir::{Cluster, DeviceKindId, Fabric, Link, NodeGroup, NodeKind, NodeKindId, Problem};

use crate::catalog::{Catalog, counted, fabric_entry};
use crate::read::{Table, Value, suggest};
use crate::scenario::Sight;

/// The most devices that a cluster may have. Larger ones have never been built, and ranks are numbered in 32 bits.
pub(super) const MOST_DEVICES: u64 = 1 << 20;

const EXAMPLE: &str = "\"32 x dgx-h100\"";

/// Reads `[cluster]`.
pub(super) fn read(root: &Table<'_>, catalog: &Catalog, sight: &Sight<'_>) -> Option<Cluster> {
    let value = root.require("cluster", EXAMPLE)?;
    if value.as_text().is_some() || value.is_list() {
        return assemble(&value, catalog, Fabric::one_switch());
    }
    let table = value.table()?;
    let nodes = table.require("nodes", EXAMPLE);
    let cluster = nodes.and_then(|nodes| assemble(&nodes, catalog, Fabric::one_switch()));
    let nodes = cluster.as_ref().map(Cluster::nodes);
    let fabric = match table.get("fabric") {
        None => Some(Fabric::one_switch()),
        Some(value) => fabric(&value, catalog, nodes, sight),
    };
    table.finish();
    Some(Cluster { fabric: fabric?, ..cluster? })
}

/// A fabric of the catalog by its name, or one written out, under so many nodes.
fn fabric(value: &Value<'_>, catalog: &Catalog, nodes: Option<u64>, sight: &Sight<'_>) -> Option<Fabric> {
    let entry = match value.as_text() {
        None => fabric_entry(String::new(), value, Some(sight))?,
        Some(name) => {
            let found = catalog.fabric(name).cloned();
            if found.is_none() && !catalog.is_wrong(name) {
                let hint = suggest(name, catalog.fabrics.iter().map(|f| f.name.as_str()));
                value.problem(format!("there is no fabric `{name}`"), Some(hint));
            }
            found?
        }
    };
    let up_link = match &entry.up_link {
        None => None,
        Some(wanted) => {
            let found = catalog.link(wanted).cloned();
            if found.is_none() && !catalog.is_wrong(wanted) {
                let hint = suggest(wanted, catalog.links.iter().map(|l| l.name.as_str()));
                missing(value, &format!("{}.up_link", value.path()), "link", wanted, hint);
            }
            Some(found?)
        }
    };
    let leaf_nodes = match (&entry.topology, nodes) {
        (Some(topology), Some(nodes)) => topology.leaf_size(nodes).map_err(|why| unlike(value, topology, &why)).ok()?,
        (Some(_), None) => return None,
        (None, _) => entry.leaf_nodes,
    };
    Some(Fabric { leaf_nodes, oversubscription: entry.oversubscription, up_link, rails: entry.rails })
}

/// Slurm's topology is not of these nodes, or no fabric of one size of leaf.
fn unlike(value: &Value<'_>, topology: &formats::topology::slurm::Topology, why: &str) {
    let largest = topology.leaves.iter().map(|leaf| leaf.nodes.len()).max().unwrap_or_default();
    let whole: Vec<&str> = topology.hold(largest).iter().map(|leaf| leaf.name.as_str()).collect();
    let hint = format!(
        "simulate nodes of one leaf, {largest} under {}; or in place of the topology write the leaf_nodes that stand for it",
        whole.join(" or ")
    );
    value.report(Problem::new(format!("{}.topology", value.path()), why).hint(hint));
}

/// The cluster of a list of nodes, or of one.
pub(super) fn assemble(nodes: &Value<'_>, catalog: &Catalog, fabric: Fabric) -> Option<Cluster> {
    let items = if nodes.is_list() { nodes.list()? } else { vec![nodes.clone()] };
    let mut cluster = Cluster { device_kinds: Vec::new(), node_kinds: Vec::new(), groups: Vec::new(), fabric };
    let mut sound = true;
    for item in &items {
        let group = group(item, catalog, &mut cluster);
        sound &= group.is_some();
        cluster.groups.extend(group);
    }
    if cluster.groups.is_empty() && sound {
        nodes.problem("a cluster needs a node", Some(format!("such as {EXAMPLE}")));
        return None;
    }
    let devices = cluster.devices();
    if devices > MOST_DEVICES {
        nodes.problem(format!("{devices} devices are more than the {MOST_DEVICES} that a cluster may have"), None);
        return None;
    }
    sound.then_some(cluster)
}

fn group(item: &Value<'_>, catalog: &Catalog, cluster: &mut Cluster) -> Option<NodeGroup> {
    let (count, name, place) = if item.is_table() {
        let table = item.table()?;
        let kind = table.require("kind", "\"dgx-h100\"");
        let count = table.get("count").map_or(Some(1), |v| v.count());
        table.finish();
        let kind = kind?;
        (count?, kind.text()?, kind)
    } else {
        let (count, name) = counted(item)?;
        (count, name, item.clone())
    };
    let kind = match cluster.node_kinds.iter().position(|kind| kind.name == name) {
        Some(index) => NodeKindId::at(index),
        None => node_kind(name, &place, catalog, cluster)?,
    };
    Some(NodeGroup { kind, count })
}

/// Resolves a node's names and adds it, with its devices, to the cluster.
fn node_kind(name: &str, place: &Value<'_>, catalog: &Catalog, cluster: &mut Cluster) -> Option<NodeKindId> {
    let Some(entry) = catalog.node(name) else {
        if catalog.is_wrong(name) {
            return None;
        }
        let hint = suggest(name, catalog.nodes.iter().map(|n| n.name.as_str()));
        place.problem(format!("there is no node `{name}`"), Some(hint));
        return None;
    };
    let link = |key: &str, wanted: &str| -> Option<Link> {
        let found = catalog.link(wanted).cloned();
        if found.is_none() && !catalog.is_wrong(wanted) {
            let hint = suggest(wanted, catalog.links.iter().map(|l| l.name.as_str()));
            missing(place, &format!("nodes.{name}.{key}"), "link", wanted, hint);
        }
        found
    };
    let (domain, host, nic) =
        (link("domain_link", &entry.domain_link), link("host_link", &entry.host_link), link("nic", &entry.nic));
    let mut devices = Vec::with_capacity(entry.devices.len());
    for device in &entry.devices {
        let Some(id) = device_kind(device, catalog, cluster) else {
            if catalog.is_wrong(device) {
                return None;
            }
            let hint = suggest(device, catalog.devices.iter().map(|d| d.name.as_str()));
            missing(place, &format!("nodes.{name}.devices"), "device", device, hint);
            return None;
        };
        devices.push(id);
    }
    cluster.node_kinds.push(NodeKind {
        name: name.to_owned(),
        devices,
        domain_size: entry.domain_size,
        domain_link: domain?,
        host_link: host?,
        nics: entry.nics,
        nic: nic?,
    });
    Some(NodeKindId::at(cluster.node_kinds.len() - 1))
}

fn missing(place: &Value<'_>, subject: &str, what: &str, name: &str, hint: String) {
    place.report(Problem::new(subject, format!("there is no {what} `{name}`")).hint(hint));
}

fn device_kind(name: &str, catalog: &Catalog, cluster: &mut Cluster) -> Option<DeviceKindId> {
    if let Some(index) = cluster.device_kinds.iter().position(|kind| kind.name == name) {
        return Some(DeviceKindId::at(index));
    }
    cluster.device_kinds.push(catalog.device(name)?.clone());
    Some(DeviceKindId::at(cluster.device_kinds.len() - 1))
}

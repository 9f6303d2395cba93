//! Families of clusters and models for the training of policies.

use std::sync::{Arc, OnceLock};

use ir::{Cluster, DeviceKindId, Fabric, NodeGroup, NodeKind, NodeKindId};
use learn::Families;
use sched::learned::Weights;
use serde::Deserialize;

use super::{Catalog, calibrations};

/// The file that names them.
const FAMILIES: (&str, &str) =
    ("catalog/policies/families.toml", include_str!("../../../catalog/policies/families.toml"));

/// The weights of the policy `learned` that come with the program.
const WEIGHTS: (&str, &str) =
    ("catalog/policies/learned.weights", include_str!("../../../catalog/policies/learned.weights"));

/// The weights of the policy `learned` that come with the program.
///
/// # Panics
/// If the embedded file is wrong, which a test excludes.
#[must_use]
pub(crate) fn weights() -> Arc<Weights> {
    static READ: OnceLock<Arc<Weights>> = OnceLock::new();
    let read = || {
        let (file, text) = WEIGHTS;
        Arc::new(Weights::parse(text, file).unwrap_or_else(|problems| panic!("{file} is wrong: {problems:?}")))
    };
    Arc::clone(READ.get_or_init(read))
}

/// Names of kinds of node and of models.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    nodes: Vec<String>,
    models: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    taught: Names,
    held_out: Names,
}

/// What policies are trained on, and what they are scored on. No device and no model is in both.
///
/// # Panics
/// If the embedded file is wrong, which a test excludes.
#[must_use]
pub(crate) fn families() -> (Families, Families) {
    let (file, text) = FAMILIES;
    let read: File = toml::from_str(text).unwrap_or_else(|error| panic!("{file} is wrong: {error}"));
    let catalog = Catalog::embedded();
    let families = |names: &Names| Families {
        nodes: names.nodes.iter().map(|name| of_one_node(&catalog, name)).collect(),
        models: names.models.iter().map(|name| known(catalog.model(name), name).clone()).collect(),
        calibrations: calibrations(),
    };
    (families(&read.taught), families(&read.held_out))
}

fn known<'c, T>(found: Option<&'c T>, name: &str) -> &'c T {
    found.unwrap_or_else(|| panic!("{} is wrong: the catalog has no `{name}`", FAMILIES.0))
}

/// A cluster of one node of the catalog.
fn of_one_node(catalog: &Catalog, name: &str) -> Cluster {
    let entry = known(catalog.node(name), name);
    let mut device_kinds: Vec<ir::DeviceKind> = Vec::new();
    let mut devices = Vec::new();
    for device in &entry.devices {
        let at = device_kinds.iter().position(|known| known.name == *device).unwrap_or_else(|| {
            device_kinds.push(known(catalog.device(device), device).clone());
            device_kinds.len() - 1
        });
        devices.push(DeviceKindId::at(at));
    }
    let link = |name: &str| known(catalog.link(name), name).clone();
    let node = NodeKind {
        name: name.to_owned(),
        devices,
        domain_size: entry.domain_size,
        domain_link: link(&entry.domain_link),
        host_link: link(&entry.host_link),
        nics: entry.nics,
        nic: link(&entry.nic),
    };
    Cluster {
        device_kinds,
        node_kinds: vec![node],
        groups: vec![NodeGroup { kind: NodeKindId::at(0), count: 1 }],
        fabric: Fabric::one_switch(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_held_out_is_not_taught() {
        let (taught, held_out) = families();
        let devices = |families: &Families| -> BTreeSet<String> {
            families.nodes.iter().flat_map(|node| node.device_kinds.iter().map(|kind| kind.name.clone())).collect()
        };
        let both: Vec<String> = devices(&taught).intersection(&devices(&held_out)).cloned().collect();
        assert!(both.is_empty(), "devices in both: {both:?}");
        // The word before the first digit names a line of models.
        let lines = |families: &Families| -> BTreeSet<String> {
            let line = |name: String| name.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned();
            families.model_names().into_iter().map(line).collect()
        };
        let both: Vec<String> = lines(&taught).intersection(&lines(&held_out)).cloned().collect();
        assert!(both.is_empty(), "lines of models in both: {both:?}");
        assert!(taught.nodes.len() >= 20 && held_out.nodes.len() >= 10);
    }
}

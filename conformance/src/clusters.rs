//! Clusters and cost models for tests: of the machine at hand, of the catalog, and at random.

use cost::{Calibration, CostModel};
use ir::{
    Bytes, BytesPerSecond, Cluster, DeviceKind, DeviceKindId, Fabric, FlopsPerSecond, Link, NodeGroup, NodeKind,
    NodeKindId, Precision, SimDuration,
};

use crate::dice::Dice;
use crate::workspace::root;

/// The calibrations of the catalog.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn calibrations() -> Vec<Calibration> {
    let folder = root().join("catalog/calibration");
    let files = crate::workspace::files(&folder, "toml");
    assert!(!files.is_empty(), "no calibration in {}", folder.display());
    // Software stacks are beside them, in a schema of their own.
    let files = files.iter().filter(|path| path.file_stem().is_some_and(|stem| stem != "stacks" && stem != "memory"));
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).expect("a readable calibration");
        toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files.map(read).collect()
}

/// Prices on a cluster by the calibrations of the catalog.
///
/// # Panics
/// If the cluster names a calibration that the catalog lacks.
#[must_use]
pub fn priced(cluster: Cluster) -> CostModel {
    CostModel::new(cluster, calibrations()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// A link of `gigabytes` per second and a latency in nanoseconds.
///
/// # Panics
/// If the rate is not positive.
#[must_use]
pub fn link(name: &str, gigabytes: f64, nanoseconds: u64) -> Link {
    Link {
        name: name.into(),
        bandwidth: BytesPerSecond::new(gigabytes * 1e9).expect("a positive rate"),
        latency: SimDuration::from_nanoseconds(nanoseconds),
        efficiency: None,
    }
}

/// A device with the half-precision and FP32 peaks, memory bandwidth and multiprocessors given.
fn device(name: &str, calibration: &str, [half, single, bandwidth]: [f64; 3], multiprocessors: u32) -> DeviceKind {
    let rate = |teraflops: f64| FlopsPerSecond::new(teraflops * 1e12).expect("a positive rate");
    let precisions = [(Precision::Fp16, rate(half)), (Precision::Bf16, rate(half)), (Precision::Fp32, rate(single))];
    DeviceKind {
        name: name.into(),
        calibration: calibration.into(),
        peak: precisions
            .into_iter()
            .filter(|(precision, _)| calibration != "v100" || *precision != Precision::Bf16)
            .collect(),
        memory: Bytes::from_gib(80),
        memory_bandwidth: BytesPerSecond::new(bandwidth * 1e9).expect("a positive rate"),
        multiprocessors,
        slowdown: 1.0,
        tdp_watts: None,
        usd_per_hour: None,
        price_source: None,
        source: "vendor's data sheet, rounded".into(),
    }
}

fn a100() -> DeviceKind {
    device("a100", "a100", [312.0, 19.5, 2039.0], 108)
}

fn h100() -> DeviceKind {
    device("h100", "h100", [989.0, 67.0, 3350.0], 132)
}

fn v100() -> DeviceKind {
    device("v100", "v100", [125.0, 15.7, 900.0], 80)
}

fn one_kind(device_kind: DeviceKind, node: NodeKind, count: u32, fabric: Fabric) -> Cluster {
    Cluster {
        device_kinds: vec![device_kind],
        node_kinds: vec![node],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count }],
        fabric,
    }
}

const ONE_SWITCH: Fabric = Fabric::one_switch();

/// `nodes` servers of eight A100 with eight 200 Gb/s NICs under one switch.
#[must_use]
pub fn dgx_a100(nodes: u32) -> Cluster {
    one_kind(
        a100(),
        eight(link("nvlink3", 300.0, 1500), link("pcie4x16", 31.5, 1500), link("ib-hdr", 25.0, 1750)),
        nodes,
        ONE_SWITCH,
    )
}

/// `nodes` servers of eight H100 with eight 400 Gb/s NICs under one switch.
#[must_use]
pub fn dgx_h100(nodes: u32) -> Cluster {
    one_kind(
        h100(),
        eight(link("nvlink4", 450.0, 1200), link("pcie5x16", 63.0, 1500), link("ib-ndr", 50.0, 1650)),
        nodes,
        ONE_SWITCH,
    )
}

fn eight(domain_link: Link, host_link: Link, nic: Link) -> NodeKind {
    NodeKind {
        name: "eight".into(),
        devices: vec![DeviceKindId::new(0); 8],
        domain_size: 8,
        domain_link,
        host_link,
        nics: 8,
        nic,
    }
}

/// As many A100 as ranks, all in one domain: transfers never share a link with others of another direction or rank.
#[must_use]
pub fn one_domain(devices: u32) -> Cluster {
    let node = NodeKind {
        devices: vec![DeviceKindId::new(0); devices as usize],
        domain_size: devices,
        ..eight(link("nvlink3", 300.0, 1500), link("pcie4x16", 31.5, 1500), link("ib-hdr", 25.0, 1750))
    };
    one_kind(a100(), node, 1, ONE_SWITCH)
}

/// One host with `cores` cores, each a worker in one domain.
#[must_use]
pub fn cpu(cores: u32) -> Cluster {
    // Half precision is emulated, so it is no faster.
    let peak = FlopsPerSecond::new(1e11).expect("positive");
    let kind = DeviceKind {
        memory: Bytes::from_gib(8),
        peak: vec![(Precision::Fp32, peak), (Precision::Bf16, peak)],
        ..device("cpu-core", "cpu", [0.1, 0.1, 10.0], 1)
    };
    let shared = || link("shared-memory", 10.0, 500);
    let node = NodeKind {
        name: "cpu".into(),
        devices: vec![DeviceKindId::new(0); cores as usize],
        domain_size: cores,
        domain_link: shared(),
        host_link: shared(),
        nics: 1,
        nic: link("eth-10g", 1.25, 20_000),
    };
    one_kind(kind, node, 1, ONE_SWITCH)
}

/// A random cluster with at least `devices` devices: one to three groups of unlike nodes, several domains in a node,
/// NICs that devices share, leaf switches that are oversubscribed.
pub fn random(dice: &mut Dice, devices: u32) -> Cluster {
    let kinds = [a100(), h100(), v100()];
    let device_kinds: Vec<DeviceKind> = (0..dice.within(1, 3)).map(|_| dice.pick(&kinds)).collect();
    let node_kinds: Vec<NodeKind> = (0..dice.within(1, 3)).map(|_| node(dice, device_kinds.len())).collect();
    let mut groups: Vec<NodeGroup> = Vec::new();
    let mut total = 0;
    while total < devices {
        let kind = dice.index(node_kinds.len());
        let wide = u32::try_from(node_kinds[kind].devices.len()).expect("a small node");
        let count = dice.within(1, (devices - total).div_ceil(wide));
        groups.push(NodeGroup { kind: NodeKindId::at(kind), count });
        total += count * wide;
    }
    let (leaf_nodes, oversubscription) = (dice.pick(&[0, 1, 2, 3, 4]), dice.pick(&[1.0, 1.5, 2.0, 4.0]));
    let fabric = Fabric { leaf_nodes, oversubscription, up_link: None, rails: false };
    Cluster { device_kinds, node_kinds, groups, fabric }
}

fn node(dice: &mut Dice, device_kinds: usize) -> NodeKind {
    let size = dice.pick(&[1u32, 2, 4, 4, 8, 8]);
    let first = dice.index(device_kinds);
    let mixed = dice.chance(15);
    let domain_size = dice.pick(&[size, size, (size / 2).max(1)]);
    // A domain, and so a tensor group inside it, is of one kind.
    let kind = |place: u32| if mixed && place / domain_size > 0 { device_kinds - 1 } else { first };
    NodeKind {
        name: format!("{size} of k{first}"),
        devices: (0..size).map(|place| DeviceKindId::at(kind(place))).collect(),
        domain_size,
        domain_link: dice.pick(&[
            link("nvlink3", 300.0, 1500),
            link("nvlink2", 150.0, 1500),
            link("pcie3x16", 15.75, 1500),
        ]),
        host_link: dice.pick(&[link("pcie4x16", 31.5, 1500), link("pcie3x16", 15.75, 1500)]),
        nics: dice.within(1, size),
        nic: dice.pick(&[link("ib-hdr", 25.0, 1750), link("roce-100g", 12.5, 3000), link("eth-10g", 1.25, 20_000)]),
    }
}

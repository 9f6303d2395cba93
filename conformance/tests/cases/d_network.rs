//! D: what joins devices and nodes decides.

use ir::program::CollectiveKind;
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId};

use super::{Case, dense};

fn cluster(nodes: &str) -> Cluster {
    let case = Case { nodes, model: &dense(8), training: "sequence_length = 512\nglobal_batch = 64", plan: "" };
    trainyard::scenario::parse("s.toml", &case.text(), std::path::Path::new(""))
        .unwrap_or_else(|e| panic!("{e}"))
        .scenario
        .cluster
}

/// Seconds of an all-reduce over these devices.
fn all_reduce(cluster: &Cluster, devices: impl Iterator<Item = u32>, bytes: u64) -> f64 {
    let model = cost::CostModel::new(cluster.clone(), trainyard::calibrations()).expect("calibrations");
    let devices: Vec<DeviceId> = devices.map(DeviceId::new).collect();
    let place = cost::GroupPlace::of(cluster, &devices);
    let priced = model.collective(CollectiveKind::AllReduce, Bytes::new(bytes), place, CollectiveAlgorithm::Automatic);
    priced.duration.nanoseconds() as f64 * 1e-9
}

/// U37: one link decides the ring. Cards bridged in pairs: two reach 208 GB/s, three 20; tensor pairs are the only
/// tensor groups that make sense.
#[test]
fn one_link_decides_the_ring() {
    for (node, devices) in [("a100-pcie-8", 8), ("h100-pcie-8", 8), ("a100-pcie-4", 4)] {
        let of = cluster(&format!("1 x {node}"));
        let bus = |count: u32| {
            2.0 * f64::from(count - 1) / f64::from(count) * 1e9 / all_reduce(&of, 0..count, 1_000_000_000) * 1e-9
        };
        let (pair, four) = (bus(2), bus(4));
        assert!(pair > 150.0 && (8.0..50.0).contains(&four), "{node}: {pair} GB/s of a pair, {four} of four");
        let time = |tensor: u32| {
            let plan = format!(
                "tensor = {tensor}\ndata = {}\nsequence_parallel = true\nmicrobatch_size = 1\nzero = 1",
                devices / tensor
            );
            let training = "sequence_length = 2048\nglobal_batch = 64";
            Case { nodes: &format!("1 x {node}"), model: "llama-3.2-3b", training, plan: &plan }
                .planned()
                .prediction
                .iteration_ms
        };
        assert!(time(4) > 1.3 * time(2), "{node}: {} and {} ms", time(2), time(4));
    }
}

/// U39: 4 GiB over 4 x 8 B200 took 22.05 ms, 10.15 ms in one node; a flat ring over the adapters would take 166 ms.
#[test]
fn hierarchy_matters() {
    let bytes = 4 << 30;
    let of = cluster("4 x p6-b200");
    let (all, one) = (all_reduce(&of, 0..32, bytes), all_reduce(&of, 0..8, bytes));
    assert!((all / 22.05e-3 - 1.0).abs() < 0.2, "{} ms over four nodes", all * 1e3);
    assert!((one / 10.15e-3 - 1.0).abs() < 0.2, "{} ms in a node", one * 1e3);
    // The same holds where nothing of the kind was measured: one adapter's share for each device is not the whole buffer.
    for nodes in ["4 x dgx-a100", "4 x dgx-h100"] {
        let of = cluster(nodes);
        let nic = of.node_kinds[0].nic.bandwidth.get();
        let flat = 2.0 * 31.0 / 32.0 * bytes as f64 / nic;
        let all = all_reduce(&of, 0..32, bytes);
        assert!(all < flat / 3.0 && all > all_reduce(&of, 0..8, bytes), "{nodes}: {} ms", all * 1e3);
    }
}

/// U41: leaf groups of unlike size are no fabric of one size of leaf, and the groups that hold a gang are named.
#[test]
fn leaves_of_unlike_size() {
    for (sizes, nodes, needles) in [
        (vec![1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11], 64, ["2 x 1, 3 x 2, 3 x 3", "11 under leaf15"]),
        (vec![4, 4, 2], 10, ["", ""]),
        (vec![4, 2, 4], 10, ["1 x 2, 2 x 4", "4 under leaf1 or leaf3"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = format!("SwitchName=root Switches=leaf[1-{}]\n", sizes.len());
        for (index, size) in sizes.iter().enumerate() {
            text.push_str(&format!("SwitchName=leaf{0} Nodes=group{0}n[1-{size}]\n", index + 1));
        }
        std::fs::write(folder.path().join("topology.conf"), text).expect("written");
        let cluster = format!("[cluster]\nnodes = \"{nodes} x dgx-h100\"\nfabric = {{ topology = \"topology.conf\" }}");
        let case =
            Case { nodes: &cluster, model: &dense(8), training: "sequence_length = 512\nglobal_batch = 640", plan: "" };
        let found = trainyard::scenario::parse("s.toml", &case.text(), folder.path());
        // The last leaf may be smaller: it is one that is not filled.
        if needles[0].is_empty() {
            assert_eq!(found.unwrap_or_else(|e| panic!("{e}")).scenario.cluster.fabric.leaf_nodes, 4);
        } else {
            let words = found.expect_err("unlike").to_string();
            assert!(needles.iter().all(|needle| words.contains(needle)), "{words}");
        }
    }
}

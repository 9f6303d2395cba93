//! Files of users that say how a cluster is joined: what a scenario takes from them, and what it refuses.

use std::path::PathBuf;

use ir::{DeviceId, Path as Way};

use super::*;

const PAIRS: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity
GPU0\t X \tNV12\tSYS\tSYS\tPIX\tSYS\t0-15
GPU1\tNV12\t X \tSYS\tSYS\tPIX\tSYS\t0-15
GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPIX\t16-31
GPU3\tSYS\tSYS\tNV12\t X \tSYS\tPIX\t16-31
NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tPIX\tSYS\t X
";
const P2P: &str = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2      3
     0 1500.00 240.00  20.00  20.00
     1 240.00 1500.00  20.00  20.00
     2  20.00  20.00 1500.00 240.00
     3  20.00  20.00 240.00 1500.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2      3
     0   2.00   2.50  14.00  14.00
     1   2.50   2.00  14.00  14.00
     2  14.00  14.00   2.00   2.50
     3  14.00  14.00   2.50   2.00
";
const TREE: &str = "SwitchName=core Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\n";
const NCCL: &str = "$ all_reduce_perf -g 2\nsize time algbw busbw\n(B) (us) (GB/s) (GB/s)\n\
                    1048576 104.9 10.00 10.00\n67108864 6711 10.00 10.00\n";

const SCENARIO: &str = r#"
[cluster]
nodes = "4 x mine"
fabric = { topology = "topology.conf" }
[nodes.mine]
devices = "4 x a100-pcie-80gb"
topology = "topo.txt"
measured_bandwidth = "p2p.txt"
domain_link = "nvlink3-bridge"
host_link = "pcie4x16"
nic = "ib-hdr"
[model]
name = "gpt2-124m"
[training]
sequence_length = 1024
global_batch = 64
[plan]
tensor = 2
[cost]
collectives = [{ file = "nccl.txt" }]
"#;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("topo.txt", PAIRS), ("p2p.txt", P2P), ("topology.conf", TREE), ("nccl.txt", NCCL)] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let path = folder.path().to_owned();
    (folder, path)
}

#[test]
fn a_cluster_is_what_its_files_say() {
    let (_kept, path) = folder();
    let loaded = parse("s.toml", SCENARIO, &path).unwrap_or_else(|e| panic!("{e}"));
    let cluster = &loaded.scenario.cluster;
    let kind = &cluster.node_kinds[0];
    assert_eq!((kind.domain_size, kind.nics, cluster.fabric.leaf_nodes), (2, 2, 2));
    assert_eq!((kind.domain_link.bandwidth.get(), kind.host_link.bandwidth.get()), (240e9, 20e9));
    assert_eq!(
        (kind.domain_link.latency.to_string(), kind.host_link.latency.to_string()),
        ("2.5 us".into(), "14 us".into())
    );
    let way = |from: u32, to: u32| cluster.path(DeviceId::new(from), DeviceId::new(to));
    assert_eq!([way(0, 1), way(1, 2), way(0, 4), way(0, 8)], [Way::Domain, Way::Host, Way::Leaf, Way::Spine]);
    let CostChoice::Calibration { collectives, .. } = &loaded.scenario.cost else { panic!("a calibration") };
    let of = &collectives[0];
    assert_eq!((of.kind.as_str(), of.ranks, of.nodes, of.link.as_str()), ("all-reduce", 2, 1, "domain of mine"));
    // The resolved form needs the files no more.
    let resolved = loaded.scenario.to_toml();
    let again = read(&resolved).unwrap_or_else(|e| panic!("{e}\n{resolved}"));
    assert_eq!(again.scenario, loaded.scenario);
}

/// What was measured counts before what the catalog says, and to the nanosecond at a measured size.
#[test]
fn a_measured_collective_prices_its_group() {
    let (_kept, path) = folder();
    let loaded = parse("s.toml", SCENARIO, &path).unwrap_or_else(|e| panic!("{e}"));
    let price = |loaded: &Loaded| {
        let cost = crate::job::cost_model(loaded, None).unwrap_or_else(|e| panic!("{e}"));
        let place = ::cost::GroupPlace::of(&loaded.scenario.cluster, &[DeviceId::new(0), DeviceId::new(1)]);
        let (kind, algorithm) = (ir::program::CollectiveKind::AllReduce, ir::CollectiveAlgorithm::Automatic);
        cost.collective(kind, ir::Bytes::new(67_108_864), place, algorithm)
    };
    let measured = price(&loaded);
    assert_eq!(measured.duration.nanoseconds(), 6_711_000);
    let without = SCENARIO.replace("collectives = [{ file = \"nccl.txt\" }]", "");
    let formula = price(&parse("s.toml", &without, &path).unwrap_or_else(|e| panic!("{e}")));
    assert!(formula.duration < measured.duration, "{} and {}", formula.duration, measured.duration);
}

#[test]
fn what_does_not_agree_with_its_files_is_refused() {
    let (_kept, path) = folder();
    let check = |from: &str, to: &str, needles: &[&str]| {
        assert!(SCENARIO.contains(from), "{from:?}");
        let found = match parse("s.toml", &SCENARIO.replacen(from, to, 1), &path) {
            Ok(_) => Vec::new(),
            Err(Error::Input(error)) => error.problems.iter().map(|p| error.sources.render(p)).collect(),
            Err(other) => panic!("{other}"),
        };
        let told = |one: &String| needles.iter().all(|needle| one.contains(needle));
        assert!(found.len() <= 2 && found.iter().any(told), "{to:?} gave, without {needles:?},\n{}", found.join("\n"));
    };
    check("4 x a100", "8 x a100", &["s.toml:7:12", "nodes.mine.topology: is of 4 devices, and the node has 8"]);
    check("nic = \"ib", "domain_size = 4\nnic = \"ib", &["4, and the file says 2", "leave one out"]);
    check(
        "4 x mine",
        "5 x mine",
        &["cluster.fabric.topology: joins 4 nodes, and the cluster has 5", "2 under leaf1 or leaf2"],
    );
    check("{ topology =", "{ leaf_nodes = 2, topology =", &["a topology and leaf_nodes say the same thing"]);
    check("\"topo.txt\"", "\"nccl.txt\"", &["nccl.txt", "has no heading with GPU0"]);
    check("\"topology.conf\"", "\"topo.txt\"", &["topo.txt", "is no Key=Value"]);
    check("\"p2p.txt\"", "\"nowhere.txt\"", &["cannot read", "nowhere.txt"]);
    check(
        "{ file = \"nccl.txt\" }",
        "{ file = \"nccl.txt\", ranks = 4 }",
        &["no all-reduce of 4 ranks has", "1.0000 is that of 2"],
    );
    check(
        "{ file = \"nccl.txt\" }",
        "{ file = \"nccl.txt\", link = \"nvlink3\" }",
        &["the cluster has no link `nvlink3`"],
    );
    check("{ file = \"nccl.txt\" }", "{ file = \"nccl.txt\", nodes = 3 }", &["2 ranks are not equal parts of 3 nodes"]);
    check(
        "{ file = \"nccl.txt\" }",
        "{ file = \"nccl.txt\" }, { file = \"nccl.txt\" }",
        &["a second all-reduce of 2 ranks"],
    );
    check("{ file = \"nccl.txt\" }", "{ ranks = 2 }", &["names a file or has points"]);
    check(
        "\"nvlink3-bridge\"",
        "\"nvlink3-bridg\"",
        &["there is no link `nvlink3-bridg`", "did you mean `nvlink3-bridge`?"],
    );
}

//! `place` over files: domains, gains, and everything that can be wrong with what is measured.

use std::path::Path as FilePath;

use super::*;
use crate::scenario;

/// Nodes of four devices in two domains of two: `domain_size` as a person writes it.
fn text(nodes: &str, plan: &str, fabric: &str) -> String {
    format!(
        "name = \"s\"\nmodel = \"gpt2-124m\"\n[cluster]\nnodes = [{nodes}]\n{fabric}\n[nodes.ours]\ndevices = \"4 x a100-pcie-80gb\"\n\
         domain_size = 2\ndomain_link = \"nvlink3-bridge\"\nhost_link = \"pcie4x16\"\nnic = \"ib-hdr\"\nnics = 1\n\
         [nodes.theirs]\ndevices = \"4 x mi210\"\ndomain_size = 4\ndomain_link = \"pcie4x16\"\nhost_link = \"pcie4x16\"\n\
         nic = \"ib-hdr\"\nnics = 1\n[training]\nsequence_length = 1024\nglobal_batch = 32\n[plan]\n{plan}\n"
    )
}

fn loaded(nodes: &str, plan: &str, fabric: &str) -> Loaded {
    scenario::parse("s.toml", &text(nodes, plan, fabric), FilePath::new("")).unwrap_or_else(|e| panic!("{e}"))
}

/// A file of a folder that stays while it is used.
struct Given {
    folder: tempfile::TempDir,
}

impl Given {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("given.txt"), text).expect("a file");
        Self { folder }
    }
    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("given.txt")
    }
}

fn asked(loaded: &Loaded, matrix: Option<&str>, topology: Option<&str>) -> Result<PlaceReport, Error> {
    let (matrix, topology) = (matrix.map(Given::new), topology.map(Given::new));
    let (matrix, topology) = (matrix.as_ref().map(Given::path), topology.as_ref().map(Given::path));
    let request = PlaceRequest { matrix: matrix.as_deref(), topology: topology.as_deref(), budget: 2000 };
    place(loaded, &request, &Context::default())
}

fn must(result: Result<PlaceReport, Error>) -> PlaceReport {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn refused(result: Result<PlaceReport, Error>, words: &[&str]) {
    let error = result.expect_err("refused").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{words:?} in {error}");
}

/// The node's bridges join devices 0 and 2, and 1 and 3.
const CROSSED: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tSYS\tNV12\tSYS\nGPU1\tSYS\tX\tSYS\tNV12\nGPU2\tNV12\tSYS\tX\tSYS\nGPU3\tSYS\tNV12\tSYS\tX\n";

/// Eight devices of two nodes, as someone listed them: bridged pairs are 0 and 5, 1 and 4, 2 and 7, 3 and 6; the first
/// and the third pair share a node.
fn rates() -> String {
    let pairs = [[0, 5], [2, 7], [1, 4], [3, 6]];
    let place = |device: usize| pairs.iter().position(|pair| pair.contains(&device)).expect("one of them");
    let mut text = String::from("GB/s, d0, d1, d2, d3, d4, d5, d6, d7\n");
    for a in 0..8 {
        let cells = (0..8).map(|b| match (place(a), place(b)) {
            _ if a == b => "-".to_owned(),
            (x, y) if x == y => "240".to_owned(),
            (x, y) if x / 2 == y / 2 => "22.5".to_owned(),
            _ => "9.5".to_owned(),
        });
        text += &format!("d{a}, {}\n", cells.collect::<Vec<_>>().join(", "));
    }
    text
}

const TWO: &str = "\"2 x ours\"";

#[test]
fn crossed_bridges_are_found_and_tensor_groups_follow_them() {
    let loaded = loaded(TWO, "tensor = 2\ndata = 4", "");
    let own = must(asked(&loaded, None, None));
    assert_eq!(own.order, (0..8).collect::<Vec<u32>>(), "the usual order is good where devices are numbered in it");
    let crossed = must(asked(&loaded, None, Some(CROSSED)));
    assert_eq!(crossed.found, ["each node: 2 domains of 2"]);
    assert!(crossed.gain > Some(0.02) && crossed.settled, "{crossed:?}");
    assert!((crossed.after_ms / own.after_ms - 1.0).abs() < 1e-9, "{} {}", crossed.after_ms, own.after_ms);
    for pair in crossed.order.chunks(2) {
        assert_eq!((pair[0] / 4, pair[0] % 2), (pair[1] / 4, pair[1] % 2), "{:?}", crossed.order);
    }
    let tensor = &crossed.axes[0];
    assert_eq!((tensor.axis, tensor.groups, tensor.before.domain, tensor.after.domain), ("tensor", 4, 0, 4));
    assert!(crossed.ranks.lines().any(|line| line.ends_with(",known_as")), "{}", crossed.ranks);
    assert!(crossed.ranks.lines().any(|line| line.ends_with("node 1 GPU3")), "{}", crossed.ranks);
    // What is written is a scenario, and placing it again changes nothing.
    let again =
        scenario::parse("p.toml", &crossed.placed_scenario, FilePath::new("")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(must(asked(&again, None, None)).gain, Some(0.0));
}

#[test]
fn a_measured_table_numbers_the_devices() {
    let loaded = loaded(TWO, "tensor = 2\ndata = 4", "");
    let placed = must(asked(&loaded, Some(&rates()), None));
    assert_eq!(
        placed.found,
        ["4 domains of 2 from 240.0 GB/s on", "2 domains of 4 from 22.5 GB/s on", "one domain of 8 from 9.5 GB/s on"]
    );
    assert!(placed.gain > Some(0.02), "{placed:?}");
    for pair in placed.order.chunks(2) {
        assert!(
            [[0, 5], [2, 7], [1, 4], [3, 6]].iter().any(|known| known.iter().all(|d| pair.contains(d))),
            "{:?}",
            placed.order
        );
    }
    let best = must(asked(&loaded, None, None));
    assert!((placed.after_ms / best.after_ms - 1.0).abs() < 1e-9, "{} {}", placed.after_ms, best.after_ms);
    // One after the other with the same answer.
    assert_eq!(must(asked(&loaded, Some(&rates()), None)), placed);
}

#[test]
fn nodes_of_a_leaf_come_together() {
    let fabric = "fabric = { leaf_nodes = 2, oversubscription = 8.0 }";
    let loaded = loaded("\"4 x ours\"", "tensor = 2\ndata = 4\npipeline = 2", fabric);
    let topology = "SwitchName=core Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n10\n";
    let placed = must(asked(&loaded, None, Some(topology)));
    assert_eq!(placed.found, ["2 leaves of 2 nodes"]);
    let own = must(asked(&loaded, None, None));
    assert!(
        placed.gain > Some(0.0) && (placed.after_ms / own.after_ms - 1.0).abs() < 1e-9,
        "{placed:?} {}",
        own.after_ms
    );
    // By name: n1, n2, n3, n10.
    assert!(placed.ranks.contains(",n10:3"), "{}", placed.ranks);
    let blocks = "BlockName=a Nodes=n1,n3\nBlockName=b Nodes=n2,n10\nBlockSizes=2\n";
    assert_eq!(must(asked(&loaded, None, Some(blocks))).order, placed.order);
}

/// Ranks that a launcher dealt out to two hosts in turn.
#[test]
fn ranks_of_nccl_tests_say_their_hosts() {
    let loaded = loaded(TWO, "tensor = 2\ndata = 4", "");
    let mut text = String::from("# nThread 1 nGpus 1\n# Using devices\n");
    for rank in 0..8 {
        text += &format!(
            "#  Rank  {rank} Group  0 Pid  1 on   h{} device  {} [0x0f] NVIDIA A100\n",
            9 + rank % 2,
            rank / 2
        );
    }
    let placed = must(asked(&loaded, None, Some(&text)));
    assert_eq!(placed.found, ["2 hosts"]);
    let best = must(asked(&loaded, None, None));
    assert!(placed.gain > Some(0.02) && (placed.after_ms / best.after_ms - 1.0).abs() < 1e-9, "{placed:?}");
    assert!(placed.ranks.contains(",h10:3"), "{}", placed.ranks);
    let words = ["lists 7 ranks, and the cluster has 8 devices"];
    refused(asked(&loaded, None, Some(&text[..text.trim_end().rfind('#').expect("lines")])), &words);
    refused(
        asked(&loaded, None, Some(&text.replace("h9 device  3", "h10 device  7"))),
        &["has 3 ranks on h9, and node 0 has 4"],
    );
    refused(asked(&loaded, None, Some(&text.replacen("Rank  3", "Rank  9", 1))), &["rank 3 is not listed"]);
}

#[test]
fn groups_across_vendors_are_refused_and_stages_are_told() {
    let nodes = "\"1 x ours\", \"1 x theirs\"";
    let mixed = loaded(nodes, "data = 8", "");
    refused(
        asked(&mixed, None, None),
        &["a100-pcie-80gb (NVIDIA) and mi210 (AMD)", "no library of collectives", "pipeline"],
    );
    let stages = loaded(nodes, "tensor = 2\ndata = 2\npipeline = 2", "");
    let placed = must(asked(&stages, None, None));
    assert!(placed.notes.iter().any(|note| note.contains("stage 0 hands on to another vendor")), "{:?}", placed.notes);
    // An order that begins with groups across vendors, or is not legal, ends with neither.
    let dealt = "placement = [0, 4, 1, 5, 2, 6, 3, 7]";
    for (degrees, words, before) in [
        ("data = 4\npipeline = 2", "could not run", true),
        ("tensor = 2\ndata = 2\npipeline = 2", "not legal in the order that the search began with", false),
    ] {
        let placed = must(asked(&loaded(nodes, &format!("{degrees}\n{dealt}"), ""), None, None));
        assert!(placed.order[..4].iter().all(|device| device / 4 == placed.order[0] / 4), "{:?}", placed.order);
        assert!(placed.notes.iter().any(|note| note.contains(words)), "{:?}", placed.notes);
        assert_eq!((placed.before_ms.is_some(), placed.gain.is_some()), (before, before));
    }
}

#[test]
fn no_order_uses_what_is_to_be_avoided_or_breaks_a_constraint() {
    // Ranks that begin apart on the second node meet there, though the first one is idle.
    let kept = "tensor = 2\ndata = 2\nplacement = [4, 6, 5, 7]\n[constraints]\navoid = { nodes = [0] }";
    let placed = must(asked(&loaded("\"2 x ours\"", kept, ""), None, None));
    assert!(placed.order.iter().all(|device| *device >= 4), "{:?}", placed.order);
    assert!(placed.gain.is_some_and(|gain| gain > 0.0), "{:?}", placed.gain);
    let late = "data = 4\n[constraints]\ntokens = \"1T\"\ndeadline = \"1h\"";
    refused(asked(&loaded("\"2 x ours\"", late, ""), None, None), &["constraints.deadline: 3600.0 s is not enough"]);
}

#[test]
fn files_that_are_wrong_or_of_another_cluster_are_refused() {
    let loaded = loaded(TWO, "tensor = 2\ndata = 4", "");
    let matrix = |from: &str, to: &str| {
        assert!(rates().contains(from), "{from:?}");
        asked(&loaded, Some(&rates().replacen(from, to, 1)), None)
    };
    refused(matrix("d3, 9.5", "d3, -9.5"), &["given.txt:5:", "`-9.5` from d3 to d0 is no positive number"]);
    refused(matrix("d3, 9.5", "d3, 95"), &["is not symmetric: d3 to d0 is 95 GB/s and back it is 9.5"]);
    refused(matrix("d3, 9.5", "d3, 0"), &["d3 does not reach d0"]);
    refused(matrix("d3, 9.5,", "d3,"), &["is not square: d3 has 7 of 8 cells"]);
    refused(matrix("GB/s", "fast"), &["`fast` is no unit of bandwidth"]);
    let cut: String = rates().lines().take(6).map(|line| format!("{line}\n")).collect();
    refused(asked(&loaded, Some(&cut), None), &["is not square: 8 columns and 5 rows"]);
    let small = "GB/s 0 1\n0 - 20\n1 20 -\n";
    refused(asked(&loaded, Some(small), None), &["is of 2 devices, and the cluster has 8"]);
    let wide = self::loaded("\"2 x theirs\"", "data = 8", "");
    let words = ["joins 2 devices at most", "domains of 4: d0 and d7 are apart", "domain_size = 2"];
    refused(asked(&wide, Some(&rates()), None), &words);

    refused(asked(&loaded, None, Some(&CROSSED.replacen("GPU3\tSYS\tNV12\tSYS\tX\n", "", 1))), &["is truncated"]);
    refused(
        asked(&loaded, None, Some(&CROSSED.replacen("NV12\tSYS\tX\tSYS", "SYS\tSYS\tX\tSYS", 1))),
        &["GPU2 to GPU0 is SYS and back"],
    );
    let all = CROSSED.replace("SYS", "NV4");
    refused(asked(&loaded, None, Some(&all)), &["is of 4 devices in domains of 4, and ours has 4 in domains of 2"]);
    // A node that no switch reaches, and a fabric that the scenario does not have.
    refused(asked(&loaded, None, Some("SwitchName=a Nodes=n1\n")), &["joins 1 nodes, and the cluster has 2"]);
    let leaves = "SwitchName=c Switches=a,b\nSwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n";
    refused(
        asked(&loaded, None, Some(leaves)),
        &["has 1 nodes under a leaf, and the scenario's fabric 0", "leaf_nodes = 1"],
    );
    refused(
        asked(&loaded, None, Some("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n")),
        &["several roots, whose nodes do not reach"],
    );
    refused(asked(&loaded, None, Some("hello\n")), &["given.txt:1:1", "is no Key=Value"]);
}

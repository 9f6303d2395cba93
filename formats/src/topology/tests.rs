//! Descriptions as people have them, and those that went wrong.

use ir::Problem;

use super::*;

fn file(name: &str) -> Option<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles").join(name);
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        crate::testing::skipped(&path);
    }
    text
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Vec<Problem>>, needles: &[&str]) {
    let found: Vec<String> = result.expect_err("faults").iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), needles.len(), "{found:#?}");
    for (found, needle) in found.iter().zip(needles) {
        assert!(found.contains(needle), "no {needle:?} in {found:?}");
    }
}

const PAIRS: &str = "\u{1b}[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m
GPU0\t X \tNV4\tSYS\tSYS\tPIX\tSYS\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\tPIX\tSYS\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV4\tSYS\tNODE\t16-31\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \tSYS\tNODE\t16-31\t1\t\tN/A
NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tNODE\tNODE\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
";

#[test]
fn a_matrix_says_domains_rings_and_adapters() {
    use matrix::Connection::{Node, NvLink, System};
    let found = matrix::read(PAIRS, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!(found.domains().groups, [vec![0, 1], vec![2, 3]]);
    assert_eq!(found.domains().uniform(), Ok(2));
    assert_eq!((found.ring(&[2, 3]), found.ring(&[1, 2, 3])), (NvLink(4), System));
    assert_eq!((found.near_adapters(), found.adapters_in_use()), (vec![vec![0], vec![0], vec![1], vec![1]], 2));
    assert_eq!(found.to_adapters[3][1], Node);
}

/// A ring passes a slow connection only if it must: a cube of links has rings of links alone.
#[test]
fn the_best_ring_is_found() {
    use matrix::Connection::{Bridge, NvLink};
    let row = |cells: [&str; 4]| cells.join(" ");
    let ring = ["X NV2 SYS NV1", "NV2 X NV1 SYS", "SYS NV1 X NV2", "NV1 SYS NV2 X"];
    let text = format!("GPU0 GPU1 GPU2 GPU3\nGPU0 {}\nGPU1 {}\nGPU2 {}\nGPU3 {}\n", ring[0], ring[1], ring[2], ring[3]);
    assert_eq!(matrix::read(&text, "t").expect("sound").ring(&[0, 1, 2, 3]), NvLink(1));
    let line = ["X NV2 PIX PIX", "NV2 X NV1 PIX", "PIX NV1 X NV2", "PIX PIX NV2 X"]
        .map(|cells| row(cells.split(' ').collect::<Vec<_>>().try_into().expect("four")));
    let text = format!("GPU0 GPU1 GPU2 GPU3\nGPU0 {}\nGPU1 {}\nGPU2 {}\nGPU3 {}\n", line[0], line[1], line[2], line[3]);
    assert_eq!(matrix::read(&text, "t").expect("sound").ring(&[0, 1, 2, 3]), Bridge);
}

/// One link decides the ring (NVIDIA/nccl-tests#178): of eight cards bridged in pairs, two reach 208 GB/s, three 20.
#[test]
fn matrices_of_users_are_read() {
    use matrix::Connection::{Node, NvLink, System};
    let read = |name: &str| Some(matrix::read(&file(name)?, name).unwrap_or_else(|p| panic!("{p:#?}")));
    let (Some(pairs), Some(switched), Some(t4)) = (
        read("topo/a100_pcie_nvlink_pairs.topo.txt"),
        read("topo/a100_8gpu_nvswitch.topo.txt"),
        read("topo/t4_4gpu_asymmetric.topo.txt"),
    ) else {
        return;
    };
    assert_eq!(pairs.domains().uniform(), Ok(2));
    assert_eq!((pairs.ring(&[0, 1]), pairs.ring(&[0, 1, 2]), pairs.ring(&[0, 4])), (NvLink(12), Node, System));
    assert_eq!(switched.domains().uniform(), Ok(8));
    assert_eq!(switched.ring(&[0, 1, 2, 3, 4, 5, 6, 7]), NvLink(12));
    assert_eq!(t4.domains().uniform(), Ok(4));
    assert_eq!((t4.ring(&[1, 2, 3]), t4.ring(&[0, 1])), (Node, System));
}

#[test]
fn wrong_matrices_are_refused() {
    let with = |from: &str, to: &str| {
        assert!(PAIRS.contains(from), "{from:?}");
        matrix::read(&PAIRS.replacen(from, to, 1), "t")
    };
    let cut = |rows: usize| matrix::read(&PAIRS.lines().take(rows).collect::<Vec<_>>().join("\n"), "t");
    refused(cut(4), &["is truncated: 4 devices in the heading and 3 rows of devices"]);
    refused(matrix::read("", "t"), &["has no heading with GPU0"]);
    refused(with("GPU2\tSYS", "GPU3\tSYS"), &["`GPU3` is out of order (the next row is GPU2)", "is truncated"]);
    refused(with("GPU1\tGPU2", "GPU2\tGPU1"), &["`GPU2` is out of order (the next device is GPU1)", "is truncated"]);
    refused(with("X \tNV4\tSYS", "X \tNV3\tSYS"), &["GPU1 to GPU0 is NV4 and back it is NV3"]);
    refused(with("NV4\t X ", "NV4\tSYS"), &["X stands where a device meets itself"]);
    refused(with("\tSYS\tSYS\tPIX", "\tSYZ\tSYS\tPIX"), &["`SYZ` is no connection (one of NV1 and more"]);
    refused(with("CPU Affinity", "CPU Affinty"), &["unknown column `CPU` (did you mean `CPU Affinity`?)"]);
    let unlike = "GPU0 GPU1 GPU2\nGPU0 X NV1 SYS\nGPU1 NV1 X SYS\nGPU2 SYS SYS X\n";
    let found = matrix::read(unlike, "t").expect("sound").domains().uniform().expect_err("unlike");
    assert!(found.contains("unlike size: {0,1} {2}"), "{found}");
    let crossed =
        "GPU0 GPU1 GPU2 GPU3\nGPU0 X SYS NV1 SYS\nGPU1 SYS X SYS NV1\nGPU2 NV1 SYS X SYS\nGPU3 SYS NV1 SYS X\n";
    let found = matrix::read(crossed, "t").expect("sound").domains().uniform().expect_err("crossed");
    assert!(found.contains("CUDA_VISIBLE_DEVICES=0,2,1,3"), "{found}");
}

const TREE: &str = "# two leaves
SwitchName=core Switches=leaf[1-2] LinkSpeed=100
switchname=leaf1 nodes=n[1-3]
SwitchName=leaf2 Nodes=n[4-6] # the other rack
";

#[test]
fn trees_and_blocks_are_read() {
    let tree = slurm::read(TREE, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!((tree.nodes(), tree.levels, tree.leaves.len()), (6, 2, 2));
    assert_eq!(tree.leaves[1].nodes, ["n4", "n5", "n6"]);
    let sizes = [(0, 3), (3, 3), (4, 3), (6, 3)];
    sizes.iter().for_each(|(nodes, expect)| assert_eq!(tree.leaf_size(*nodes), Ok(*expect), "{nodes}"));
    assert!(tree.leaf_size(7).expect_err("too many").contains("joins 6 nodes, and the cluster has 7"));
    let printed = "SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-6] Switches=leaf[1-2]\nSwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-3]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[4-6]\n";
    assert_eq!(slurm::read(printed, "t"), Ok(tree));
    let blocks = slurm::read("BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18,36\n", "t");
    assert_eq!(blocks.expect("sound").leaf_size(36), Ok(18));
}

#[test]
fn the_tree_of_a_cloud_is_read() {
    let Some(text) = file("slurm/topology_tree_oci_sim.conf") else { return };
    let tree = slurm::read(&text, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!((tree.nodes(), tree.levels, tree.leaves.len()), (96, 3, 12));
    assert_eq!(tree.leaf_size(96), Ok(8));
    assert_eq!(tree.leaves[0].nodes[0], "srv1101");
}

/// Leaf groups of unlike size (marin#6950): two of fifteen can hold eight nodes, and no one size of leaf is true.
#[test]
fn unlike_leaves_are_named() {
    let sizes = [1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11];
    let mut text = "SwitchName=root Switches=l[1-15]\n".to_owned();
    for (index, size) in sizes.iter().enumerate() {
        text.push_str(&format!("SwitchName=l{} Nodes=g{}n[1-{size}]\n", index + 1, index + 1));
    }
    let tree = slurm::read(&text, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!(tree.nodes(), 64);
    let hold: Vec<&str> = tree.hold(8).iter().map(|leaf| leaf.name.as_str()).collect();
    assert_eq!(hold, ["l14", "l15"]);
    assert!(tree.leaf_size(64).expect_err("unlike").contains("2 x 1, 3 x 2, 3 x 3, 2 x 5, 3 x 6, 1 x 8, 1 x 11"));
}

#[test]
fn wrong_trees_are_refused() {
    let with = |from: &str, to: &str| {
        assert!(TREE.contains(from), "{from:?}");
        slurm::read(&TREE.replacen(from, to, 1), "t")
    };
    refused(with("leaf[1-2]", "leaf[1-3]"), &["line 2: there is no switch `leaf3` (did you mean `leaf"]);
    refused(with("n[4-6]", "n[3-6]"), &["line 4: n3 is under leaf1 and under leaf2"]);
    refused(with("n[4-6]", "n[6-4]"), &["line 4: Nodes: `6-4` in `n[6-4]` runs backwards"]);
    refused(with("Nodes=n[4-6]", "Switches=core"), &["is a loop"]);
    refused(with("LinkSpeed", "LinkSped"), &["unknown key `LinkSped` (did you mean `LinkSpeed`?)"]);
    refused(with("nodes=n[1-3]", ""), &["line 3: leaf1 has neither nodes nor switches below it"]);
    refused(with("LinkSpeed=100", "Nodes=n9"), &["core has both nodes and switches below it"]);
    refused(
        with("SwitchName=leaf2", "SwitchName=leaf1"),
        &["line 4: leaf1 is described twice", "there is no switch `leaf2`"],
    );
    refused(with("leaf[1-2]", "leaf1"), &["has several roots, whose nodes do not reach each other: core, leaf2"]);
    refused(with("LinkSpeed=100", "BlockName=b"), &["BlockName belongs to no switch"]);
    refused(slurm::read("", "t"), &["names no switch and no block"]);
    refused(slurm::read("---\n- topology: topo\n  cluster_default: true\n", "t"), &["is topology.yaml"]);
    refused(
        slurm::read("BlockName=b Nodes=n1\nBlockSizes=4\n", "t"),
        &["b has 1 nodes, fewer than the block size of 4"],
    );
    refused(slurm::read(&format!("{TREE}BlockName=b Nodes=n9\n"), "t"), &["has both switches and blocks"]);
    let printed = "SwitchName=c Level=1 Nodes=n[1-2] Switches=a\nSwitchName=a Level=0 Nodes=n1\n";
    refused(slurm::read(printed, "t"), &["line 1: c says 2 nodes, and 1 are below it"]);
}

/// As `p2pBandwidthLatencyTest` prints it, shortened, of two bridged pairs.
const P2P: &str = "P2P Connectivity Matrix
     D\\D     0     1     2     3
     0       1     1     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2      3
     0 1500.00  10.00  10.00  10.00
     1  10.00 1500.00  10.00  10.00
     2  10.00  10.00 1500.00  10.00
     3  10.00  10.00  10.00 1500.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2      3
     0 1500.00 240.00  21.00  20.00
     1 242.00 1500.00  21.00  22.00
     2  21.00  21.00 1500.00 241.00
     3  20.50  21.00 239.00 1500.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2      3
     0   2.10   2.50  14.00  14.50
     1   2.55   2.10  14.00  14.00
     2  14.00  14.00   2.10   2.60
     3  14.00  14.00   2.50   2.10
";

#[test]
fn measured_bandwidths_say_domains_and_rates() {
    let found = bandwidth::read(P2P, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    let domains = found.domains();
    assert_eq!(domains.uniform(), Ok(2));
    let inside = found.inside(&domains).expect("pairs");
    assert_eq!((inside.bytes_per_second, inside.latency_seconds), (239e9, Some(2.6e-6)));
    let across = found.across(&domains).expect("two domains");
    assert_eq!((across.bytes_per_second, across.latency_seconds), (20e9, Some(14.5e-6)));
    let switched = "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1\n 0     55.00     55.00\n\n\
                    memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0       N/A    276.07\n 1    276.36       N/A\n";
    let found = bandwidth::read(switched, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!((found.domains().uniform(), found.across(&found.domains())), (Ok(2), None));
    assert_eq!(found.latency_seconds, None);
}

#[test]
fn wrong_bandwidths_are_refused() {
    let with = |from: &str, to: &str| {
        assert!(P2P.contains(from), "{from:?}");
        bandwidth::read(&P2P.replacen(from, to, 1), "t")
    };
    refused(with("P2P=Enabled Bandwidth", "P2P=Unknown Bandwidth"), &["has no such matrix"]);
    refused(with(" 242.00", "   0.00"), &["line 13: `0.00` to device 0 is no positive number"]);
    refused(with(" 241.00", "    N/A"), &["line 14: `N/A` to device 3 is no positive number"]);
    refused(with("  21.00  22.00", "  21.00"), &["line 13: has 3 of 4 cells"]);
    let cut = P2P.lines().take(14).collect::<Vec<_>>().join("\n");
    refused(bandwidth::read(&cut, "t"), &["is truncated: 4 devices in the heading and 3 rows"]);
    refused(bandwidth::read("", "t"), &["has no such matrix"]);
}

/// Two nodes of two pairs each, whose numbers are not one after the other; of one leaf.
const RATES: &str = "# nodes a and b, measured one pair after the other
GB/s, a:0, b:0, a:1, b:1, a:2, b:2, a:3, b:3
a:0,    -,  24,  60,  24, 230,  24,  60,  24
b:0,   24,   -,  24,  60,  24, 231,  24,  60
a:1,   61,  24,   -,  24,  60,  24, 229,  24
b:1,   24,  60,  24,   -,  24,  60,  24, 230
a:2,  230,  24,  60,  23,   -,  24,  60,  24
b:2,   24, 230,  24,  60,  24,   -,  24,  60
a:3,   60,  24, 230,  24,  60,  24,   -,  24
b:3,   24,  60,  24, 230,  24,  60,  25,   -
";

#[test]
fn tables_of_rates_say_domains_at_every_level() {
    let found = rates::read(RATES, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    let levels = found.levels();
    let groups: Vec<&Vec<Vec<usize>>> = levels.iter().map(|level| &level.domains.groups).collect();
    let (pairs, nodes) =
        (vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]], vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
    assert_eq!(groups, [&pairs, &nodes, &vec![(0..8).collect::<Vec<usize>>()]]);
    let slowest: Vec<f64> = levels.iter().map(|level| level.bytes_per_second).collect();
    assert_eq!(slowest, [229e9, 60e9, 23e9]);
    assert_eq!(found.order(), [0, 4, 2, 6, 1, 5, 3, 7]);
    assert_eq!(found.slow_pairs(), []);
    // Other separators and units say the same.
    let tabs = RATES.replace(", ", "\t");
    assert_eq!(rates::read(&tabs, "t"), Ok(found.clone()));
    let bits = rates::read(&RATES.replace("GB/s", "Gbps"), "t").expect("bits");
    assert!((bits.levels()[0].bytes_per_second - 229e9 / 8.0).abs() < 1.0);
    // What CUDA's own program prints, by the slower direction.
    let printed = rates::read(P2P, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!(printed.levels()[0].domains.groups, [vec![0, 1], vec![2, 3]]);
}

/// Of four devices behind one switch, one pair's own link is down: they are one domain still, and the pair is named.
#[test]
fn a_link_that_is_down_is_named_and_divides_nothing() {
    let text = "GB/s 0 1 2 3\n0 - 230 20 231\n1 230 - 229 230\n2 20 229 - 230\n3 231 230 230 -\n";
    let found = rates::read(text, "t").unwrap_or_else(|p| panic!("{p:#?}"));
    let levels = found.levels();
    assert_eq!((levels.len(), levels[0].domains.groups.len()), (1, 1));
    assert_eq!(found.slow_pairs(), [(0, 2, 20e9)]);
}

/// Rates drawn around three speeds, with noise that stays below the gap between them: the domains that were built are
/// found, whatever the devices' numbers.
#[test]
fn domains_that_were_built_are_found() {
    let mut state = 5u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % below as u64).expect("below")
    };
    for round in 0..200 {
        let (inner, nodes, leaves) = (1 + draw(4), 1 + draw(3), 1 + draw(3));
        let count = inner * nodes * leaves;
        if count < 2 {
            continue;
        }
        let mut numbers: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|at| numbers.swap(at, draw(at + 1)));
        let mut table = vec![vec![0.0; count]; count];
        for a in 0..count {
            for b in 0..a {
                let speed = if a / inner == b / inner {
                    400.0
                } else if a / (inner * nodes) == b / (inner * nodes) {
                    50.0
                } else {
                    12.5
                };
                let rate = speed * (1.0 + 0.01 * draw(20) as f64);
                table[numbers[a]][numbers[b]] = rate;
                table[numbers[b]][numbers[a]] = rate * (1.0 + 0.001 * draw(9) as f64);
            }
        }
        let mut text = format!("GB/s {}\n", (0..count).map(|d| d.to_string()).collect::<Vec<_>>().join(" "));
        for (device, row) in table.iter().enumerate() {
            let cell = |(at, rate): (usize, &f64)| if at == device { "-".to_owned() } else { rate.to_string() };
            text += &format!("{device} {}\n", row.iter().enumerate().map(cell).collect::<Vec<_>>().join(" "));
        }
        let found = rates::read(&text, "t").unwrap_or_else(|p| panic!("{round}: {p:#?}"));
        for (size, level) in [(inner, 400.0), (inner * nodes, 50.0), (count, 12.5)] {
            let mut expect: Vec<Vec<usize>> = numbers.chunks(size).map(<[usize]>::to_vec).collect();
            expect.iter_mut().for_each(|group| group.sort_unstable());
            expect.sort();
            let known = found.levels().into_iter().any(|known| known.domains.groups == expect);
            assert!(known || size == 1, "{round}: {size} of {level}: {:?}", found.levels());
        }
        let order = found.order();
        let together = order.chunks(inner).all(|group| {
            let built =
                |device: &usize| numbers.iter().position(|number| number == device).expect("one of them") / inner;
            group.iter().all(|device| built(device) == built(&group[0]))
        });
        assert!(together, "{round}: {order:?}");
    }
}

#[test]
fn wrong_tables_of_rates_are_refused() {
    let with = |from: &str, to: &str| {
        assert!(RATES.contains(from), "{from:?}");
        rates::read(&RATES.replacen(from, to, 1), "t")
    };
    refused(with("GB/s", "GB"), &["line 2: `GB` is no unit of bandwidth"]);
    refused(with("GB/s, a:0", "GB/s, b:0"), &["line 2: names device `b:0` twice, again in column 2"]);
    refused(with("b:0,   24,   -,", "b:0,   24,   -, 3,"), &["line 4: is not square: b:0 has 9 of 8 cells"]);
    let cut = RATES.lines().take(9).collect::<Vec<_>>().join("\n");
    refused(rates::read(&cut, "t"), &["rates: is not square: 8 columns and 7 rows"]);
    refused(
        with("a:1,   61", "b:3,   61"),
        &["line 5: `b:3` is out of order (rows are in the order of the columns: a:1"],
    );
    refused(with("a:1,   61", "a:1,  -61"), &["line 5: `-61` from a:1 to a:0 is no positive number"]);
    refused(with("a:1,   61", "a:1,  inf"), &["line 5: `inf` from a:1 to a:0 is no positive number"]);
    refused(with("a:1,   61", "a:1,    0"), &["line 5: a:1 does not reach a:0"]);
    refused(
        with("b:2,   24, 230,  24,  60,  24,   -,  24,  60", "b:2, 0, 0, 0, 0, 0, -, 0, 0"),
        &["line 8: b:2 reaches no other device (leave it out of the table and of the cluster"],
    );
    refused(with("a:1,   61", "a:1,   91"), &["line 5: is not symmetric: a:1 to a:0 is 91 GB/s and back it is 60"]);
    refused(rates::read("# nothing\n", "t"), &["rates: is empty"]);
    refused(rates::read("GB/s 0\n0 -\n", "t"), &["line 1: names 1 devices, and 2 to 4096 can be"]);
    let bent = P2P.replacen(" 242.00", "  42.00", 1);
    refused(bandwidth::read(&bent, "t"), &["is not symmetric: 42.00 GB/s from device 1 to device 0, and 240.00 back"]);
}

#[test]
fn mutated_descriptions_never_panic() {
    let mut good = [0, 0, 0, 0];
    let tried = crate::text::testing::mutate(11, 30_000, &[PAIRS, TREE, P2P, RATES], |text| {
        if let Ok(found) = matrix::read(text, "m") {
            let _ = (found.domains().uniform(), found.near_adapters());
            if found.devices.len() >= 2 {
                let _ = found.ring(&[0, 1]);
            }
            good[0] += 1;
        }
        if let Ok(found) = slurm::read(text, "m") {
            assert_eq!(found.leaves.iter().map(|leaf| leaf.nodes.len()).sum::<usize>(), found.nodes());
            let _ = found.leaf_size(4);
            good[1] += 1;
        }
        if let Ok(found) = bandwidth::read(text, "m") {
            let domains = found.domains();
            let _ = (domains.uniform(), found.inside(&domains), found.across(&domains));
            good[2] += 1;
        }
        if let Ok(found) = rates::read(text, "m") {
            assert_eq!((found.order().len(), found.levels().is_empty()), (found.names.len(), false));
            let _ = found.slow_pairs();
            good[3] += 1;
        }
    });
    assert!(tried > 20_000 && good.iter().all(|count| *count > 100), "{tried} {good:?}");
}

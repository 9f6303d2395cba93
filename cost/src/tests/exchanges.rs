//! All-to-alls, groups that share links, curves over nodes, copies to the host.

use ir::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, ReduceScatter};
use ir::{Bytes, CollectiveAlgorithm, DeviceId, Fabric, Path};

use super::fixtures::*;
use crate::{
    Basis, Calibration, CollectivePoints, CostModel, GroupPlace, LinkEfficiency, Measured, Steps, deduplicated,
};

use CollectiveAlgorithm::{Automatic, Hierarchical, Ring};

fn devices(ids: impl IntoIterator<Item = u32>) -> Vec<DeviceId> {
    ids.into_iter().map(DeviceId::new).collect()
}

fn plain(nodes: u32, per_node: u32, nics: u32) -> CostModel {
    plain_in(nodes, per_node, nics, Fabric::one_switch(), plain_links())
}

fn plain_in(nodes: u32, per_node: u32, nics: u32, fabric: Fabric, calibration: Calibration) -> CostModel {
    let mut cluster = cluster(a100(), nodes, per_node, nics, link("wire", 100e9, 1000), link("net", 10e9, 5000));
    cluster.fabric = fabric;
    CostModel::new(cluster, vec![calibration]).unwrap()
}

/// What each member sends to each other one, by walking over the pairs: (inside the node, to other nodes).
fn naive_all_to_all(ranks: u32, per_node: u32, bytes: f64) -> (f64, f64) {
    let (mut inside, mut between) = (0.0, 0.0);
    for to in 1..ranks {
        if to / per_node == 0 { inside += bytes / f64::from(ranks) } else { between += bytes / f64::from(ranks) }
    }
    (inside, between)
}

#[test]
fn an_all_to_all_moves_what_a_walk_over_its_pairs_does() {
    for (nodes, per_node) in [(1u32, 8u32), (2, 1), (2, 4), (4, 8), (3, 2)] {
        let model = plain(nodes, per_node, per_node);
        let ranks = nodes * per_node;
        let place = GroupPlace::of(model.cluster(), &devices(0..ranks));
        let bytes = Bytes::new(48 << 20);
        let (inside, between) = naive_all_to_all(ranks, per_node, bytes.get() as f64);
        let wire = model.wire_bytes(AllToAll, bytes, place, Ring).get() as f64;
        assert!((wire - if nodes > 1 { between } else { inside }).abs() <= 1.0, "{nodes} x {per_node}: {wire}");
        // Both kinds of link at once, each with its bytes; each peer's step.
        let (local, remote) = (per_node - 1, ranks - per_node);
        let steps = model.steps(AllToAll, bytes, place, Ring);
        assert_eq!(steps, Steps { inside: local, between: remote }, "{nodes} x {per_node}");
        let expect = (inside / 100e9).max(between * f64::from(per_node) / (10e9 * f64::from(per_node)))
            + f64::from(local) * 1e-6
            + f64::from(remote) * 5e-6;
        let priced = model.collective(AllToAll, bytes, place, Ring).duration.seconds();
        assert!((priced / expect - 1.0).abs() < 1e-6, "{nodes} x {per_node}: {priced} against {expect}");
    }
    let model = plain(4, 8, 8);
    let place = GroupPlace::of(model.cluster(), &devices(0..32));
    let bytes = Bytes::new(1 << 30);
    let hierarchical = model.collective(AllToAll, bytes, place, Hierarchical).duration.seconds();
    let expect = bytes.get() as f64 * (0.875 / 100e9 + 0.75 / 10e9) + 7.0 * 1e-6 + 3.0 * 5e-6;
    assert!((hierarchical / expect - 1.0).abs() < 1e-6, "{hierarchical} against {expect}");
}

/// A library has the messages of an all-to-all under way together: a step and a little for each further peer.
#[test]
fn a_library_pays_one_step_of_an_all_to_all() {
    let calibration = Calibration { protocol: catalog("a100").protocol, ..plain_links() };
    let model = plain_in(8, 8, 8, Fabric::one_switch(), calibration);
    let of = |ids: std::ops::Range<u32>| {
        let place = GroupPlace::of(model.cluster(), &devices(ids));
        model.collective(AllToAll, Bytes::new(1), place, Automatic).duration.seconds()
    };
    assert!(of(0..64) < 150e-6, "{}", of(0..64));
    assert!(of(0..64) > of(0..32) && of(0..32) > of(0..8));
}

/// All ways to choose `active` of `experts`, and the nodes that hold them.
fn naive_nodes(experts: u32, active: u32, nodes: u32) -> f64 {
    let of_node = experts / nodes;
    let (mut choices, mut hit) = (0u64, 0u64);
    for set in 0u32..1 << experts {
        if set.count_ones() == active {
            choices += 1;
            hit += (0..nodes).filter(|node| set >> (node * of_node) & ((1 << of_node) - 1) != 0).count() as u64;
        }
    }
    hit as f64 / choices as f64 / f64::from(active)
}

#[test]
fn tokens_that_go_to_a_node_once_are_counted_like_all_choices_of_experts() {
    for (experts, active, nodes) in [(8, 2, 2), (16, 4, 4), (16, 6, 2), (12, 3, 3), (8, 8, 4)] {
        let (closed, naive) = (deduplicated(experts, active, nodes, None), naive_nodes(experts, active, nodes));
        assert!((closed / naive - 1.0).abs() < 1e-12, "{experts} {active} {nodes}: {closed} against {naive}");
    }
    assert!((deduplicated(256, 8, 1, None) - 1.0).abs() < 1e-12 && (deduplicated(8, 1, 8, None) - 1.0).abs() < 1e-12);
    assert!((deduplicated(256, 8, 32, Some(4)) - 0.5).abs() < 1e-12, "8 experts on at most 4 nodes");
    let model = plain(4, 8, 8);
    let place = GroupPlace::of(model.cluster(), &devices(0..32));
    let bytes = Bytes::new(1 << 30);
    let all = model.collective(AllToAll, bytes, place, Automatic);
    assert_eq!(model.expert_exchange(bytes, place, 1.0), all);
    let once = model.expert_exchange(bytes, place, deduplicated(256, 8, 4, None)).duration;
    assert!(once.seconds() < 0.6 * all.duration.seconds(), "8 experts lie on 3.6 of 4 nodes at most: {once:?}");
}

#[test]
fn groups_that_run_together_divide_nics() {
    let model = plain(4, 8, 4);
    let bytes = Bytes::new(1 << 30);
    let strided = devices([0, 8, 16, 24]);
    let alone = GroupPlace::of(model.cluster(), &strided);
    let together = GroupPlace::with_siblings(model.cluster(), &strided);
    assert_eq!((together.nic_groups, together.node_groups, alone.nic_groups), (2, 8, 1), "8 devices on 4 NICs");
    let seconds = |place| model.collective(AllReduce, bytes, place, Ring).duration.seconds();
    let expect = 1.5 * (1u64 << 30) as f64 / 5e9 + 6.0 * 5e-6;
    assert!((seconds(together) / expect - 1.0).abs() < 1e-6, "half a NIC: {}", seconds(together));
    assert!(seconds(alone) < seconds(together));
    // A group of all devices has all NICs for itself; one NIC for each device is shared by nobody.
    let whole = GroupPlace::with_siblings(model.cluster(), &devices(0..32));
    assert_eq!((whole.nic_groups, whole.node_groups), (1, 1));
    let rails = plain(4, 8, 8);
    assert_eq!(GroupPlace::with_siblings(rails.cluster(), &strided).nic_groups, 1);
    // Pairs of a node reduce over their two NICs: bus = min(the link inside, members in the node x NIC).
    let pairs = GroupPlace::with_siblings(rails.cluster(), &devices([0, 1, 8, 9, 16, 17, 24, 25]));
    assert_eq!((pairs.nics, pairs.nic_groups, pairs.node_groups), (2, 1, 4));
    let time = rails.collective(AllReduce, bytes, pairs, Ring).duration.seconds();
    let expect = 1.75 * (1u64 << 30) as f64 / 20e9 + 6.0 * 5e-6 + 8.0 * 1e-6;
    assert!((time / expect - 1.0).abs() < 1e-6, "{time} against {expect}");
}

#[test]
fn an_oversubscribed_leaf_is_divided_by_what_leaves_it() {
    let fabric = |leaf_nodes, oversubscription| Fabric { leaf_nodes, oversubscription, up_link: None, rails: false };
    let of = |leaf_nodes, oversubscription| plain_in(8, 1, 1, fabric(leaf_nodes, oversubscription), plain_links());
    let bytes = Bytes::new(1 << 30);
    let whole = devices(0..8);
    let seconds = |model: &CostModel, kind, place| model.collective(kind, bytes, place, Ring).duration.seconds();
    let free = of(4, 1.0);
    let place = GroupPlace::with_siblings(free.cluster(), &whole);
    assert_eq!((place.path, place.leaf_nodes, place.leaf_groups), (Path::Spine, 4, 1));
    // A ring over all leaves a leaf once: up to an oversubscription of 4 nothing is lost, at 8 half.
    for (oversubscription, factor) in [(1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (8.0, 2.0)] {
        let model = of(4, oversubscription);
        let ratio = seconds(&model, AllReduce, place) / seconds(&free, AllReduce, place);
        assert!((ratio - factor).abs() < 0.01, "{oversubscription}: {ratio}");
    }
    // An all-to-all crosses with 4/7 of what it sends elsewhere: 2 would do, 4 does not.
    let exchange = |oversubscription| seconds(&of(4, oversubscription), AllToAll, place);
    assert!((exchange(4.0) / exchange(1.0) - 16.0 / 7.0).abs() < 0.01, "{}", exchange(4.0) / exchange(1.0));
    // Pairs across leaves, four at once: each has its part of the up-link.
    let pair = GroupPlace::with_siblings(free.cluster(), &devices([0, 4]));
    assert_eq!((pair.leaf_nodes, pair.leaf_groups), (1, 4));
    let ratio = seconds(&of(4, 4.0), AllReduce, pair) / seconds(&of(4, 1.0), AllReduce, pair);
    assert!((ratio - 4.0).abs() < 0.01, "{ratio}");
    let alone = GroupPlace::of(free.cluster(), &devices([0, 4]));
    assert!((seconds(&of(4, 4.0), AllReduce, alone) / seconds(&free, AllReduce, alone) - 1.0).abs() < 0.01);
}

#[test]
fn devices_behind_one_host_link_share_it() {
    let mut calibration = plain_links();
    let row = |devices_share| LinkEfficiency {
        link: "wire".to_owned(),
        efficiency: 0.5,
        devices_share,
        source: "a test".to_owned(),
    };
    let seconds = |calibration: &Calibration, ids: &[DeviceId]| {
        let model = plain_in(1, 8, 1, Fabric::one_switch(), calibration.clone());
        let place = GroupPlace::with_siblings(model.cluster(), ids);
        model.collective(AllReduce, Bytes::new(1 << 30), place, Ring).duration.seconds()
    };
    let of = |ranks: u32, bandwidth: f64| {
        let n = f64::from(ranks);
        2.0 * (n - 1.0) / n * (1u64 << 30) as f64 / bandwidth + 2.0 * (n - 1.0) * 1e-6
    };
    for (devices_share, bandwidth) in [(1, 50e9), (4, 12.5e9), (16, 50e9 / 8.0)] {
        calibration.link = vec![row(devices_share)];
        for ranks in [8u32, 2] {
            let time = seconds(&calibration, &devices(0..ranks));
            assert!((time / of(ranks, bandwidth) - 1.0).abs() < 1e-6, "{devices_share} share, {ranks} members: {time}");
        }
    }
    // Copies to the host share it too.
    let model = plain_in(1, 8, 1, Fabric::one_switch(), calibration);
    let copy = model.host_copy(Bytes::new(1 << 30), DeviceId::new(3)).duration.seconds();
    assert!((copy / (8.0 * (1u64 << 30) as f64 / 50e9 + 1e-6) - 1.0).abs() < 1e-6, "{copy}");
}

#[test]
fn a_curve_over_nodes_holds_for_its_group_and_scales_the_rest() {
    let mut calibration = Calibration { protocol: catalog("a100").protocol, ..plain_links() };
    let points = vec![[1e6, 500.0], [1e9, 60_000.0]];
    let curve = CollectivePoints { link: "net".to_owned(), kind: "all-reduce".to_owned(), ranks: 32, nodes: 4, points };
    calibration.measured = Some(Measured { collectives: vec![curve], ..Measured::default() });
    let formula = plain_in(16, 8, 8, Fabric::one_switch(), Calibration { measured: None, ..calibration.clone() });
    let model = plain_in(16, 8, 8, Fabric::one_switch(), calibration);
    let of = |model: &CostModel, kind: CollectiveKind, count: u32, bytes: u64| {
        let place = GroupPlace::of(model.cluster(), &devices(0..count));
        model.collective(kind, Bytes::new(bytes), place, Automatic)
    };
    let measured = of(&model, AllReduce, 32, 1_000_000_000);
    assert_eq!((measured.duration.nanoseconds(), measured.basis), (60_000_000, Basis::Measured));
    assert_eq!(of(&model, AllReduce, 32, 30_000_000).basis, Basis::Interpolated);
    // What the group takes over its formula is what others do.
    for bytes in [1_000_000, 1_000_000_000] {
        let ratio =
            of(&model, AllReduce, 32, bytes).duration.seconds() / of(&formula, AllReduce, 32, bytes).duration.seconds();
        for (kind, count) in [(AllReduce, 64), (AllReduce, 16), (AllGather, 32), (ReduceScatter, 128)] {
            let (there, plain) = (of(&model, kind, count, bytes), of(&formula, kind, count, bytes));
            let scaled = there.duration.seconds() / plain.duration.seconds();
            assert!((scaled / ratio - 1.0).abs() < 1e-4, "{kind:?} of {count}, {bytes}: {scaled} against {ratio}");
            assert_eq!(there.basis, Basis::Interpolated);
        }
    }
    assert_eq!(of(&model, AllToAll, 32, 1_000_000), of(&formula, AllToAll, 32, 1_000_000), "no part of an all-reduce");
    assert_eq!(of(&model, AllReduce, 8, 1_000_000), of(&formula, AllReduce, 8, 1_000_000), "another link");
}

/// Theorem: a formula is a least of sums and maxima of terms that grow with the bytes and shrink with the bandwidth.
#[test]
fn more_bytes_never_take_less_and_more_bandwidth_never_more() {
    let of = |nic: f64| {
        let cluster = cluster(a100(), 4, 8, 8, link("wire", 100e9, 1000), link("net", nic, 5000));
        CostModel::new(cluster, vec![Calibration { protocol: catalog("a100").protocol, ..plain_links() }]).unwrap()
    };
    let models = [1e9, 10e9, 25e9, 100e9].map(of);
    for kind in CollectiveKind::ALL {
        for count in [2, 8, 9, 16, 32] {
            let mut last = [0; 4];
            for bytes in [0, 1, 2, 100, 4096, 1 << 16, 1 << 20, 1 << 24, 1 << 30, 1 << 40] {
                let times = [0, 1, 2, 3].map(|at: usize| {
                    let place = GroupPlace::of(models[at].cluster(), &devices(0..count));
                    models[at].collective(kind, Bytes::new(bytes), place, Automatic).duration.nanoseconds()
                });
                assert!(times.windows(2).all(|pair| pair[0] >= pair[1]), "{kind:?} of {count}, {bytes}: {times:?}");
                assert!(times.iter().zip(last).all(|(now, last)| *now >= last), "{kind:?} of {count}, {bytes}");
                last = times;
            }
        }
    }
}

/// From one rail to another: by a neighbour in the domain, which takes a step and no bandwidth; without a domain over the
/// spine, whose up-links then bound an all-to-all. What stays on its rail is as it was.
#[test]
fn between_rails_a_neighbour_hands_on_or_the_spine_does() {
    let with = |rails: bool, domain: u32, oversubscription: f64| {
        let mut cluster = plain(4, 8, 8).cluster().clone();
        cluster.node_kinds[0].domain_size = domain;
        cluster.fabric = Fabric { leaf_nodes: 2, oversubscription, up_link: None, rails };
        CostModel::new(cluster, vec![plain_links()]).unwrap()
    };
    let (flat, rails) = (with(false, 8, 4.0), with(true, 8, 4.0));
    let (cables, spine) = (with(false, 1, 4.0), with(true, 1, 4.0));
    let (bytes, id) = (Bytes::new(64 << 20), DeviceId::new);
    let message = |model: &CostModel, from, to| model.message(bytes, id(from), id(to)).duration;
    for (plain, rails) in [(&flat, &rails), (&cables, &spine)] {
        assert_eq!(message(plain, 3, 11), message(rails, 3, 11), "one rail, one leaf");
        assert_eq!(message(plain, 3, 19), message(rails, 3, 19), "one rail, two leaves");
        assert_eq!(message(plain, 3, 4), message(rails, 3, 4), "one node");
        let ring = GroupPlace::with_siblings(rails.cluster(), &devices([0, 1, 2, 3, 8, 9, 10, 11]));
        let price = |model: &CostModel| model.collective(AllReduce, bytes, ring, Ring).duration;
        assert_eq!(price(plain), price(rails), "a ring stays on its rails");
    }
    use ir::PhysicalLink::{DomainIn, DomainOut, LeafDown, LeafUp, NicIn, NicOut};
    let node = ir::NodeId::new;
    assert_eq!(rails.cluster().path(id(3), id(12)), ir::Path::Rail);
    let by = [DomainOut(id(3)), DomainIn(id(4)), NicOut(node(0), 4), NicIn(node(1), 4)];
    assert_eq!(rails.cluster().links(id(3), id(12)), by);
    let more = message(&rails, 3, 12).seconds() - message(&flat, 3, 12).seconds();
    assert!(more > 0.0 && more < 10e-6, "a step of the domain: {more} s");
    assert_eq!(spine.cluster().path(id(3), id(12)), ir::Path::Spine);
    let by = [NicOut(node(0), 3), LeafUp(0), LeafDown(0), NicIn(node(1), 4)];
    assert_eq!(spine.cluster().links(id(3), id(12)), by);
    // Two whole nodes under one leaf, and a quarter of the NICs' rate up: 7/8 of what is exchanged crosses it.
    let place = GroupPlace::with_siblings(rails.cluster(), &(0..16).map(id).collect::<Vec<_>>());
    let large = Bytes::new(4 << 30);
    let exchange = |model: &CostModel| model.collective(AllToAll, large, place, Ring).duration.seconds();
    assert!((exchange(&rails) / exchange(&flat) - 1.0).abs() < 0.01, "{} {}", exchange(&rails), exchange(&flat));
    let slower = exchange(&spine) / exchange(&cables);
    assert!((3.3..3.6).contains(&slower), "{slower}");
}

//! Collectives and messages against closed forms and each other.

use ir::program::CollectiveKind::{self, AllGather, AllReduce, ReduceScatter};
use ir::{Bytes, CollectiveAlgorithm, DeviceId, Path};

use super::fixtures::*;
use crate::{Basis, CollectivePoints, CostModel, GroupPlace, Measured, Steps};

use CollectiveAlgorithm::{Automatic, Hierarchical, Ring, Tree};

const KINDS: [CollectiveKind; 4] = CollectiveKind::ALL;

fn devices(ids: impl IntoIterator<Item = u32>) -> Vec<DeviceId> {
    ids.into_iter().map(DeviceId::new).collect()
}

fn plain(nodes: u32, per_node: u32, nics: u32) -> CostModel {
    let cluster = cluster(a100(), nodes, per_node, nics, link("wire", 100e9, 1000), link("net", 10e9, 5000));
    CostModel::new(cluster, vec![plain_links()]).unwrap()
}

#[test]
fn a_ring_on_a_plain_link_has_its_closed_form() {
    for ranks in [2u32, 3, 4, 7, 8, 16] {
        let model = plain(1, ranks, 1);
        let place = GroupPlace::of(model.cluster(), &devices(0..ranks));
        for bytes in [1u64, 1000, 1 << 20, 1 << 30, 123_456_789] {
            let n = f64::from(ranks);
            for (kind, rounds) in [(AllReduce, 2.0), (AllGather, 1.0), (ReduceScatter, 1.0)] {
                let exact = rounds * (n - 1.0) / n * bytes as f64 / 100e9 * 1e9 + 1000.0 * rounds * (n - 1.0);
                let priced = model.collective(kind, Bytes::new(bytes), place, Ring).duration.nanoseconds() as f64;
                assert!(
                    priced >= exact - 1e-3 && priced < exact + 1.0,
                    "{kind:?} of {ranks}, {bytes}: {priced}, {exact}"
                );
                let wire = model.wire_bytes(kind, Bytes::new(bytes), place, Ring).get() as f64;
                let moved = rounds * (n - 1.0) / n * bytes as f64;
                assert!(wire >= moved - 1e-3 && wire < moved + 1.0);
            }
        }
    }
}

/// A ring carried out hop by hop: every step, each member passes a part of the buffer to the next.
fn naive_ring(nodes_of: &[u32], bytes: f64, rounds: usize) -> (f64, f64) {
    let n = nodes_of.len();
    let part = bytes / n as f64;
    let (mut inside, mut between) = (0.0, 0.0);
    for _ in 0..rounds * (n - 1) {
        for member in 0..n {
            if nodes_of[member] == nodes_of[(member + 1) % n] { inside += part } else { between += part }
        }
    }
    (inside, between)
}

#[test]
fn wire_bytes_of_a_ring_over_nodes_are_those_of_its_hops() {
    for (nodes, per_node) in [(2u32, 1u32), (2, 4), (4, 8), (3, 2)] {
        let model = plain(nodes, per_node, per_node);
        let ranks = nodes * per_node;
        let place = GroupPlace::of(model.cluster(), &devices(0..ranks));
        let nodes_of: Vec<u32> = (0..ranks).map(|rank| rank / per_node).collect();
        let bytes = 48u64 << 20;
        let (_, between) = naive_ring(&nodes_of, bytes as f64, 2);
        let all = model.wire_bytes(AllReduce, Bytes::new(bytes), place, Ring).get() as f64 * f64::from(ranks);
        assert!((all - between).abs() <= f64::from(ranks), "{nodes} x {per_node}: {all} against {between}");
    }
}

#[test]
fn places_say_where_members_are() {
    let model = plain(4, 8, 4);
    let of = |ids: Vec<DeviceId>| GroupPlace::of(model.cluster(), &ids);
    let inside = of(devices(8..16));
    assert_eq!((inside.ranks, inside.nodes, inside.per_node, inside.path, inside.nics), (8, 1, 8, Path::Domain, 0));
    let strided = of(devices([0, 8, 16, 24]));
    assert_eq!((strided.ranks, strided.nodes, strided.per_node, strided.path, strided.nics), (4, 4, 1, Path::Leaf, 1));
    let pairs = of(devices([0, 1, 8, 9]));
    assert_eq!(pairs.nics, 1, "devices 0 and 1 share a NIC");
    let apart = of(devices([0, 2, 8, 10]));
    assert_eq!(apart.nics, 2);
    assert_eq!(of(devices([5])).path, Path::Local);
}

#[test]
fn between_nodes_every_nic_counts_and_the_network_is_the_bound() {
    let model = plain(4, 8, 8);
    let all = GroupPlace::of(model.cluster(), &devices(0..32));
    let one = GroupPlace::of(model.cluster(), &devices([0, 8, 16, 24]));
    let bytes = Bytes::new(1 << 30);
    let seconds = |place, algorithm| model.collective(AllReduce, bytes, place, algorithm).duration.seconds();
    // 32 members over 8 NICs of 10 GB/s against 4 members over one.
    let ring = 2.0 * 31.0 / 32.0 * (1u64 << 30) as f64 / 80e9 + 6.0 * 5e-6 + 56.0 * 1e-6;
    assert!((seconds(all, Ring) / ring - 1.0).abs() < 1e-6);
    let single = 1.5 * (1u64 << 30) as f64 / 10e9 + 6.0 * 5e-6;
    assert!((seconds(one, Ring) / single - 1.0).abs() < 1e-6);
    // Inside 7/8 twice at 100 GB/s, between 3/4 twice at 80 GB/s.
    let hierarchical = (1u64 << 30) as f64 * (1.75 / 100e9 + 1.5 / 80e9) + 14.0 * 1e-6 + 6.0 * 5e-6;
    assert!((seconds(all, Hierarchical) / hierarchical - 1.0).abs() < 1e-6);
    assert_eq!(
        model.steps(AllReduce, bytes, all, Ring),
        Steps { inside: 56, between: 6 },
        "2(n-1) in all, 2(k-1) of them between nodes"
    );
    assert_eq!(model.steps(AllGather, bytes, all, Hierarchical), Steps { inside: 7, between: 3 });
}

#[test]
fn automatic_is_the_cheapest_and_depends_on_the_size() {
    let model = plain(16, 8, 8);
    let place = GroupPlace::of(model.cluster(), &devices(0..128));
    let of = |bytes, algorithm| model.collective(AllReduce, Bytes::new(bytes), place, algorithm).duration;
    for bytes in [1u64, 1 << 10, 1 << 20, 1 << 30] {
        let cheapest = [Ring, Tree, Hierarchical].into_iter().map(|algorithm| of(bytes, algorithm)).min().unwrap();
        assert_eq!(of(bytes, Automatic), cheapest, "{bytes}");
    }
    assert!(of(64, Tree) < of(64, Ring), "few steps for small buffers");
    assert!(of(1 << 32, Ring) < of(1 << 32, Tree), "few bytes for large ones");
}

#[test]
fn measured_curves_come_back_and_fits_carry_the_rest() {
    let model = dgx_a100(2);
    let eight = GroupPlace::of(model.cluster(), &devices(0..8));
    // nccl-tests on 8 x A100: 17,179,869,184 bytes took 127,997 us.
    let priced = model.collective(AllReduce, Bytes::new(17_179_869_184), eight, Automatic);
    assert_eq!(priced.basis, Basis::Measured);
    assert!((priced.duration.seconds() / 0.127_997 - 1.0).abs() < 1e-6);
    // Four members: 5.5 us each, 1.5 S over 245 GB/s, slow start.
    let four = GroupPlace::of(model.cluster(), &devices(0..4));
    let priced = model.collective(AllReduce, Bytes::new(64 << 20), four, Automatic);
    let expect = 4.0 * 5.5e-6 + 28e-6 * 8.0 + 1.5 * (64u64 << 20) as f64 / 245e9;
    assert_eq!(priced.basis, Basis::Interpolated);
    assert!((priced.duration.seconds() / expect - 1.0).abs() < 1e-6);
    // A gather and a scatter are the halves of the fitted all-reduce.
    let half = |kind| model.collective(kind, Bytes::new(64 << 20), four, Automatic).duration.nanoseconds();
    assert!((half(AllGather) + half(ReduceScatter)).abs_diff(priced.duration.nanoseconds()) <= 2);
    // Another algorithm than the library's is not cheaper than what was measured.
    for algorithm in [Ring, Tree, Hierarchical] {
        assert!(model.collective(AllReduce, Bytes::new(64 << 20), four, algorithm).duration >= priced.duration);
    }
    let over = GroupPlace::of(model.cluster(), &devices(0..16));
    assert_eq!(model.collective(AllReduce, Bytes::new(64 << 20), over, Automatic).basis, Basis::Analytic);
}

#[test]
fn threads_pay_the_measured_copy_or_the_emulated_link_if_that_takes_longer() {
    let mut cpu = catalog("cpu");
    let curve = |ranks, us| CollectivePoints {
        link: crate::SHARED_MEMORY.to_owned(),
        kind: "all-reduce".to_owned(),
        ranks,
        nodes: 1,
        points: vec![[1000.0, us], [1_000_000.0, 100.0 * us]],
    };
    cpu.measured = Some(Measured {
        copies: vec![[1000.0, 1.0], [1_000_000.0, 200.0]],
        collectives: vec![curve(2, 10.0), curve(4, 30.0)],
        ..Measured::default()
    });
    let cluster = cluster(
        device("core", "cpu", 0.1, 1e10, 1),
        2,
        4,
        1,
        link("shared-memory", 1e10, 1000),
        link("slow", 1e8, 50_000),
    );
    let model = CostModel::new(cluster, vec![cpu]).unwrap();
    let at = |ids: Vec<DeviceId>, bytes, algorithm| {
        model.collective(AllReduce, Bytes::new(bytes), GroupPlace::of(model.cluster(), &ids), algorithm)
    };
    let near = at(devices([0, 1]), 1000, Automatic);
    assert_eq!((near.duration.nanoseconds(), near.basis), (10_000, Basis::Measured));
    assert_eq!(at(devices([0, 1, 2]), 1000, Automatic).duration.nanoseconds(), 20_000, "between two and four");
    // Two nodes: a ring, all of S over the NIC and two steps of 50 us; the copies (1 ms) happen behind it.
    let far = at(devices([0, 4]), 1_000_000, Automatic);
    assert_eq!(far.duration.nanoseconds(), 10_000_000 + 100_000);
    let message =
        |from, to| model.message(Bytes::new(1_000_000), DeviceId::new(from), DeviceId::new(to)).duration.nanoseconds();
    assert_eq!(message(0, 1), 200_000);
    assert_eq!(message(0, 4), 10_000_000 + 50_000);
}

#[test]
fn messages_pay_latency_and_the_line() {
    let model = plain(2, 2, 1);
    let message = |from, to, bytes| {
        model.message(Bytes::new(bytes), DeviceId::new(from), DeviceId::new(to)).duration.nanoseconds()
    };
    assert_eq!(message(0, 1, 1_000_000), 1000 + 10_000);
    assert_eq!(message(0, 2, 1_000_000), 5000 + 100_000);
    assert_eq!(message(0, 1, 0), 1000);
    assert!(message(1, 1, 1_000_000) > 0);
}

#[test]
fn one_member_has_nothing_to_do() {
    let model = plain(1, 2, 1);
    let place = GroupPlace::of(model.cluster(), &devices([1]));
    for kind in KINDS {
        for algorithm in [Automatic, Ring, Tree, Hierarchical] {
            assert_eq!(model.collective(kind, Bytes::new(1 << 30), place, algorithm).duration.nanoseconds(), 1);
            assert_eq!(model.wire_bytes(kind, Bytes::new(1 << 30), place, algorithm), Bytes::ZERO);
        }
    }
}

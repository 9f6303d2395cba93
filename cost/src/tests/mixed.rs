//! Groups over nodes of several kinds.

use ir::program::CollectiveKind::{self, AllGather, AllReduce, AllToAll, ReduceScatter};
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId, DeviceKind, DeviceKindId, Fabric, NodeGroup, NodeKindId};

use super::fixtures::*;
use crate::{Calibration, CostModel, GroupPlace};

const KINDS: [CollectiveKind; 4] = [AllReduce, AllGather, ReduceScatter, AllToAll];
const ALGORITHMS: [CollectiveAlgorithm; 4] = [
    CollectiveAlgorithm::Automatic,
    CollectiveAlgorithm::Ring,
    CollectiveAlgorithm::Tree,
    CollectiveAlgorithm::Hierarchical,
];

/// A node kind: device, its links, and how many NICs of which rate.
struct Kind {
    device: DeviceKind,
    domain: ir::Link,
    nics: u32,
    nic: ir::Link,
}

/// Groups of nodes of eight devices, of each kind so many, in this order.
fn nodes(kinds: &[(&Kind, u32)], fabric: Fabric, calibrations: &[Calibration]) -> CostModel {
    let mut all: Option<Cluster> = None;
    for (Kind { device, domain, nics, nic }, count) in kinds {
        let one = cluster(device.clone(), *count, 8, *nics, domain.clone(), nic.clone());
        let Some(all) = &mut all else {
            all = Some(one);
            continue;
        };
        let mut node = one.node_kinds[0].clone();
        node.devices = vec![DeviceKindId::at(all.device_kinds.len()); 8];
        all.device_kinds.push(device.clone());
        all.groups.push(NodeGroup { kind: NodeKindId::at(all.node_kinds.len()), count: *count });
        all.node_kinds.push(node);
    }
    CostModel::new(Cluster { fabric, ..all.unwrap() }, calibrations.to_vec()).unwrap()
}

fn shuffled(draw: &mut Draw, mut members: Vec<DeviceId>) -> Vec<DeviceId> {
    for at in (1..members.len()).rev() {
        members.swap(at, usize::try_from(draw.below(at as u64 + 1)).unwrap());
    }
    members
}

/// The first `per_node` devices of each of so many nodes.
fn members(count: u32, per_node: u32) -> Vec<DeviceId> {
    (0..count).flat_map(|node| (0..per_node).map(move |at| DeviceId::new(8 * node + at))).collect()
}

/// In any order of members the same price; never faster than on nodes of the fastest kind alone, and where one kind is the
/// slowest in all, never slower than on nodes of that alone.
#[test]
fn a_group_goes_at_the_pace_of_its_slowest_member_whatever_their_order() {
    let (mut slowed, mut as_slow) = (0, 0);
    for seed in 0..600 {
        let mut draw = Draw(seed);
        let slower = |draw: &mut Draw| 1.0 + f64::from(draw.small(30)) / 10.0;
        let (a, b, c) = (slower(&mut draw), slower(&mut draw), draw.below(4000));
        let cataloged = seed % 3 == 0;
        let calibrations = if cataloged {
            vec![catalog("a100"), catalog("h100")]
        } else {
            let named = |name: &str| Calibration { name: name.to_owned(), ..plain_links() };
            vec![named("a100"), named("h100")]
        };
        let nics = draw.of(&[2u32, 4, 8]);
        let fast = Kind {
            device: device("h100", "h100", 989.0, 3.35e12, 132),
            domain: link("nvlink4", 450e9, 1200),
            nics,
            nic: link("ib-ndr", 50e9, 1650),
        };
        let slow = Kind {
            device: a100(),
            domain: link("nvlink3", 450e9 / a, 1200 + u64::from(draw.small(2000))),
            nics: if draw.below(3) == 0 { nics / 2 } else { nics },
            nic: link("ib-hdr", 50e9 / b, 1650 + c),
        };
        let fabric = match draw.below(3) {
            0 => Fabric { leaf_nodes: 2, oversubscription: 2.0, up_link: None, rails: draw.below(2) == 0 },
            1 => Fabric { rails: true, ..Fabric::one_switch() },
            _ => Fabric::one_switch(),
        };
        let (many, few) = (1 + draw.small(3), 1 + draw.small(3));
        let of = |kinds: &[(&Kind, u32)]| nodes(kinds, fabric.clone(), &calibrations);
        let model = of(&[(&fast, many), (&slow, few)]);
        let turned = of(&[(&slow, few), (&fast, many)]);
        let (all_fast, all_slow) = (of(&[(&fast, many + few)]), of(&[(&slow, many + few)]));
        let group = members(many + few, draw.of(&[1, 2, 4, 8]));
        for kind in KINDS {
            let algorithm = draw.of(&ALGORITHMS);
            let bytes = Bytes::new(1 << draw.small(34));
            let siblings = draw.below(2) == 0;
            let price = |model: &CostModel, members: &[DeviceId]| {
                let place = match siblings {
                    true => GroupPlace::with_siblings(model.cluster(), members),
                    false => GroupPlace::of(model.cluster(), members),
                };
                let priced = model.collective(kind, bytes, place, algorithm);
                (priced, model.wire_bytes(kind, bytes, place, algorithm), model.steps(kind, bytes, place, algorithm))
            };
            let say = format!("seed {seed}: {kind:?} {algorithm:?} of {bytes} over {many} + {few} nodes, {fabric:?}");
            let known = price(&model, &group);
            assert_eq!(price(&model, &shuffled(&mut draw, group.clone())), known, "{say}");
            if fabric.leaf_nodes == 0 {
                // Under leaf switches another order of nodes is another network.
                assert_eq!(price(&turned, &group).0, known.0, "{say}: slow nodes first");
            }
            let [mixed, fast, slow] =
                [known.0, price(&all_fast, &group).0, price(&all_slow, &group).0].map(|priced| priced.duration);
            assert!(mixed >= fast, "{say}: {mixed}, and {fast} among the fast");
            if !cataloged {
                assert!(mixed <= slow, "{say}: {mixed}, and {slow} among the slow");
            }
            (slowed, as_slow) = (slowed + u32::from(mixed > fast), as_slow + u32::from(mixed == slow));
        }
    }
    assert!(slowed > 1500 && as_slow > 1000, "{slowed} slower than the fast, {as_slow} as the slow, of 2400");
}

/// Eight adapters of 400 Gb/s beside eight of 200: a ring goes at 200, whoever is named first.
#[test]
fn a_ring_over_hgx_h100_and_dgx_a100_goes_at_the_rate_of_the_a100() {
    let plain = |name: &str| Calibration { name: name.to_owned(), ..plain_links() };
    let calibrations = [plain("a100"), plain("h100")];
    let h100 = Kind {
        device: device("h100", "h100", 989.0, 3.35e12, 132),
        domain: link("nvlink4", 450e9, 1000),
        nics: 8,
        nic: link("ib-ndr", 50e9, 1000),
    };
    let a100 = Kind { device: a100(), domain: link("nvlink3", 300e9, 1000), nics: 8, nic: link("ib-hdr", 25e9, 1000) };
    for kinds in [[(&h100, 1), (&a100, 1)], [(&a100, 1), (&h100, 1)]] {
        let model = nodes(&kinds, Fabric::one_switch(), &calibrations);
        let group = members(2, 8);
        let place = GroupPlace::of(model.cluster(), &group);
        let bytes = Bytes::new(8 << 30);
        let took = model.collective(AllReduce, bytes, place, CollectiveAlgorithm::Ring).duration.seconds();
        // Each byte crosses 2 (n-1)/n times, over eight adapters; and 30 steps of a microsecond.
        let expect = 2.0 * 15.0 / 16.0 * bytes.get() as f64 / (8.0 * 25e9) + 30e-6;
        assert!((took / expect - 1.0).abs() < 1e-6, "{took} s, not {expect} s");
    }
}

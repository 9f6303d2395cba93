//! Money and energy in closed form.

use ir::{Bytes, Cluster, DeviceId, DeviceKindId, Expense, NodeGroup, NodeKind, NodeKindId, SimDuration};

use super::fixtures;
use crate::{CostModel, Headroom, Paid, PassTable, StagePasses, Terms};

/// Two nodes of four devices at $3 and 500 W, then one of two at $1 and 300 W.
fn cluster() -> Cluster {
    let link = || fixtures::link("link", 1e9, 1000);
    let mut cluster = fixtures::cluster(fixtures::a100(), 1, 4, 1, link(), link());
    let node = |devices: Vec<u32>, of: &NodeKind| NodeKind {
        devices: devices.into_iter().map(DeviceKindId::new).collect(),
        domain_size: 1,
        ..of.clone()
    };
    let (kind, of) = (cluster.device_kinds[0].clone(), cluster.node_kinds[0].clone());
    let of_price = |usd, watts| ir::DeviceKind { usd_per_hour: Some(usd), tdp_watts: Some(watts), ..kind.clone() };
    cluster.device_kinds = vec![of_price(3.0, 500.0), of_price(1.0, 300.0)];
    cluster.node_kinds = vec![node(vec![0; 4], &of), node(vec![1; 2], &of)];
    cluster.groups = [(0, 2), (1, 1)].map(|(kind, count)| NodeGroup { kind: NodeKindId::new(kind), count }).to_vec();
    cluster
}

fn model(terms: Terms) -> CostModel {
    let passes = StagePasses {
        forward: SimDuration::from_nanoseconds(1),
        backward_input: SimDuration::from_nanoseconds(1),
        backward_weight: SimDuration::from_nanoseconds(1),
    };
    let table = PassTable {
        stages: vec![passes],
        chunks_per_stage: 1,
        transfer: SimDuration::from_nanoseconds(1),
        optimizer: SimDuration::from_nanoseconds(1),
        gradient_norm: SimDuration::from_nanoseconds(1),
    };
    CostModel::with_pass_table(cluster(), table).expect("a table").with_terms(terms)
}

fn near(found: Expense, usd: f64, joules: f64) {
    let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a / b - 1.0).abs() < 1e-12);
    assert!(close(found.usd, usd) && close(found.joules, joules), "{found:?}, not {usd} {joules}");
}

#[test]
fn money_is_the_rent_of_what_is_paid() {
    let (half_hour, work) = (SimDuration::from_seconds(1800.0).unwrap(), [(1, 1_000_000_000_000); 3]);
    // Three positions of one device, the first three of the first node: 1000 of 1800 seconds busy.
    let terms = |paid| Terms { paid, ..Terms::default() };
    let watts = |devices: f64, limit: f64| limit * 0.5 * 1800.0 * devices;
    let busy = 3.0 * 500.0 * 0.5 * 1000.0;
    let on = |paid| model(terms(paid)).expense(&[], half_hour, &work);
    near(on(Paid::Devices), 4.5, watts(3.0, 500.0) + busy);
    near(on(Paid::Nodes), 6.0, watts(4.0, 500.0) + busy);
    near(on(Paid::Cluster), 13.0, watts(8.0, 500.0) + watts(2.0, 300.0) + busy);
    // The same by their devices, and three that lie on all nodes.
    let placed = |devices: [u32; 3]| model(terms(Paid::Nodes)).expense(&devices.map(DeviceId::new), half_hour, &work);
    near(placed([2, 0, 1]), 6.0, watts(4.0, 500.0) + busy);
    near(placed([3, 4, 9]), 13.0, watts(8.0, 500.0) + watts(2.0, 300.0) + (2.0 * 500.0 + 300.0) * 0.5 * 1000.0);
    // So do three of unlike width: two of four, and one of two.
    let unlike = [(4, 0), (4, 0), (2, 1_000_000_000_000)];
    let found = model(terms(Paid::Devices)).expense(&[], half_hour, &unlike);
    near(found, 13.0, watts(8.0, 500.0) + watts(2.0, 300.0) + 2.0 * 300.0 * 0.5 * 1000.0);
    // Five positions of two reach into the last node.
    near(model(terms(Paid::Nodes)).expense(&[], half_hour, &[(2, 0); 5]), 13.0, watts(8.0, 500.0) + watts(2.0, 300.0));
}

#[test]
fn energy_is_power_by_utilisation() {
    let second = SimDuration::from_seconds(1.0).unwrap();
    let terms =
        Terms { busy_power: 0.9, waiting_power: 0.2, site_factor: 1.5, paid: Paid::Devices, ..Terms::default() };
    let of = |work: u64| model(terms).expense(&[], second, &[(1, work)]).joules.unwrap();
    assert!((of(0) - 500.0 * 0.2 * 1.5).abs() < 1e-9);
    assert!((of(1_000_000_000) - 500.0 * 0.9 * 1.5).abs() < 1e-9);
    // Passes that take longer than the iteration are no more than all of it.
    assert!((of(3_000_000_000) - 500.0 * 0.9 * 1.5).abs() < 1e-9);
    let rate = model(terms).least_rate(DeviceId::new(9));
    near(rate, 1.0 / 3600.0, 300.0 * 0.2 * 1.5);
}

#[test]
fn headroom_is_rounded_up() {
    let check = |headroom: Headroom, memory: u64, left: u64| {
        assert_eq!(headroom.of(Bytes::new(memory)).get(), left, "{headroom:?} of {memory}");
    };
    check(Headroom::Share(0.1), 1000, 900);
    check(Headroom::Share(0.1), 999, 899);
    check(Headroom::Share(0.0), 999, 999);
    check(Headroom::Bytes(Bytes::new(1)), 999, 998);
    check(Headroom::Bytes(Bytes::new(1000)), 999, 0);
}

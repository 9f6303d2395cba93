//! What crosses nodes of an exchange among experts whose tokens go to each node once.

use ir::program::CollectiveKind;
use ir::{Axis, Model, Workload};

use crate::GroupPlace;

/// The share that crosses of what tokens send to experts on other nodes, where each goes to a node once.
pub(super) fn crossing(
    model: &Model,
    workload: &Workload,
    axis: Axis,
    kind: CollectiveKind,
    place: GroupPlace,
) -> Option<f64> {
    let experts = model.variants.experts?;
    let once = workload.recipe.deduplicated_dispatch
        && axis == Axis::Expert
        && kind == CollectiveKind::AllToAll
        && place.nodes > 1;
    once.then(|| deduplicated(experts.count, experts.active, place.nodes, None))
}

/// Of the parts of tokens that go to other nodes in an exchange among experts, the share that crosses if each token goes to
/// a node once: tokens choose `active` of `experts` at random, which lie in equal parts on `nodes` nodes. The expected
/// number of distinct nodes over the choices, `k (1 - C(E - E/k, a) / C(E, a)) / a`, of at most `most_nodes` where the
/// router limits them (DeepSeek-V3: 4); 1 on one node.
#[must_use]
pub fn deduplicated(experts: u32, active: u32, nodes: u32, most_nodes: Option<u32>) -> f64 {
    if nodes <= 1 || active == 0 || experts < nodes {
        return 1.0;
    }
    let (all, elsewhere) = (f64::from(experts), f64::from(experts) * (1.0 - 1.0 / f64::from(nodes)));
    let missed: f64 = (0..active.min(experts))
        .map(|chosen| ((elsewhere - f64::from(chosen)) / (all - f64::from(chosen))).max(0.0))
        .product();
    let reached = (f64::from(nodes) * (1.0 - missed)).min(most_nodes.map_or(f64::INFINITY, f64::from));
    (reached / f64::from(active)).min(1.0)
}

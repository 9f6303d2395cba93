//! What follows from a scenario and a plan without simulating: capacity, operations, rent.

use ir::counts::{CountedParameters, CountedScores, model_flops_per_token};
use ir::{Bytes, DeviceKind, Flops, FlopsPerSecond, Plan, Rank};
use reports::ModelRate;

use crate::scenario::Scenario;

fn device<'a>(scenario: &'a Scenario, plan: &Plan, rank: Rank) -> &'a DeviceKind {
    let cluster = &scenario.cluster;
    cluster.device_kind(cluster.place(plan.device(rank)).device_kind)
}

/// Every rank of a plan; legal plans have far fewer than 2^32.
fn ranks(plan: &Plan) -> impl Iterator<Item = Rank> {
    (0..u32::try_from(plan.world()).unwrap_or(u32::MAX)).map(Rank::new)
}

/// Memory of the smallest device of each pipeline position.
pub(crate) fn capacity(scenario: &Scenario, plan: &Plan) -> Vec<Bytes> {
    let memory = |position: u32| {
        let ranks = (0..plan.replicas()).flat_map(|d| (0..plan.tensor).map(move |t| (d, t)));
        ranks.map(|(d, t)| device(scenario, plan, plan.rank(position, d, t)).memory).min().unwrap_or(Bytes::ZERO)
    };
    (0..plan.pipeline()).map(memory).collect()
}

/// Operations per token, and the peak of the plan's devices; an emulated device's peak is divided by its slowdown.
pub(crate) fn rate(scenario: &Scenario, plan: &Plan) -> ModelRate {
    let precision = scenario.workload.precision;
    let peak = ranks(plan).try_fold(0.0, |sum, rank| {
        let kind = device(scenario, plan, rank);
        Some(sum + kind.peak(precision)?.get() / kind.slowdown)
    });
    ModelRate { flops_per_token: flops_per_token(scenario), peak: peak.and_then(FlopsPerSecond::new) }
}

/// 6 per parameter of a matrix product, 12 per layer, query width and token of context. The head counts as a product, the
/// embedding's look-up does not.
fn flops_per_token(scenario: &Scenario) -> Flops {
    let sequence = u64::from(scenario.workload.sequence_length);
    model_flops_per_token(&scenario.model, sequence, CountedParameters::Multiplied, CountedScores::Whole)
}

/// The rent of the plan's devices for an hour, where every price is known.
pub(crate) fn usd_per_hour(scenario: &Scenario, plan: &Plan) -> Option<f64> {
    ranks(plan).map(|rank| device(scenario, plan, rank).usd_per_hour).sum()
}

//! What follows from a scenario and a plan without simulating: capacity, operations, rent.

use ir::counts::{CountedParameters, CountedScores, hardware_flops_per_token, model_flops_per_token};
use ir::{Bytes, DeviceKind, Flops, FlopsPerSecond, Plan, Problem, Rank, Recompute};
use reports::ModelRate;

use crate::job::Job;
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
        let ranks = (0..plan.replicas()).flat_map(|d| (0..plan.tensor_at(position)).map(move |t| (d, t)));
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

/// Operations per second that matrix products of the plan's devices reach together, by their calibrations; emulated devices
/// as slow as they are.
pub(crate) fn reachable(job: &Job<'_>, plan: &Plan) -> Option<f64> {
    let (cluster, precision) = (job.cost.cluster(), job.loaded.scenario.workload.precision);
    let of = |rank| job.cost.reachable(cluster.place(plan.device(rank)).device_kind, precision);
    ranks(plan).map(|rank| of(rank).map(FlopsPerSecond::get)).sum()
}

/// 6 per parameter of a matrix product, 12 per layer, query width and token of context. The head counts as a product, the
/// embedding's look-up does not.
fn flops_per_token(scenario: &Scenario) -> Flops {
    let sequence = u64::from(scenario.workload.sequence_length);
    model_flops_per_token(&scenario.model, sequence, CountedParameters::Multiplied, CountedScores::Whole)
}

/// Layers whose whole forward pass is done again.
pub(crate) fn recomputed(plan: &Plan) -> u32 {
    let full = plan.stages.iter().filter(|stage| stage.recompute == Recompute::Full);
    let of_chunk = |stage: &ir::StagePlan, layers: u32| stage.recompute_layers.map_or(layers, |most| most.min(layers));
    full.flat_map(|stage| stage.layers.iter().map(move |layers| of_chunk(stage, *layers))).sum()
}

/// Operations, those done again included, over the peak of the plan's devices: the model's (MFU) and whole layers that are
/// recomputed.
pub(crate) fn hardware_flops_utilization(
    scenario: &Scenario,
    plan: &Plan,
    seconds: f64,
    scores: CountedScores,
) -> Option<f64> {
    let peak = rate(scenario, plan).peak?.get();
    let sequence = u64::from(scenario.workload.sequence_length);
    let tokens = f64::from(scenario.workload.global_batch) * sequence as f64;
    let flops = hardware_flops_per_token(&scenario.model, sequence, recomputed(plan), scores).get() as f64;
    Some(flops * tokens / seconds / peak)
}

/// A step that computes more than its devices can: whatever it rests on is wrong. Of scores the causal half counts, which
/// is the least that any kernel computes. A device can what its products were measured at, where that is more than its peak.
pub(crate) fn faster_than_peak(job: &Job<'_>, plan: &Plan, seconds: f64) -> Option<Problem> {
    let scenario = &job.loaded.scenario;
    let share = hardware_flops_utilization(scenario, plan, seconds, CountedScores::CausalHalf)?;
    let (cluster, peak) = (job.cost.cluster(), rate(scenario, plan).peak?.get());
    let of = |rank| job.cost.fastest_product(cluster.place(plan.device(rank)).device_kind);
    let measured = ranks(plan).map(|rank| of(rank).map(FlopsPerSecond::get)).sum::<Option<f64>>();
    let most = measured.map_or(1.0, |measured| (measured / peak).max(1.0));
    (share > most).then(|| {
        let message =
            format!("a step of {seconds:.3e} s computes at {:.0} % of its devices' dense peak", share * 100.0);
        Problem::new("cost", message).hint("its durations are in other units, of other devices or of another model")
    })
}

/// The rent of the plan's devices for an hour, where every price is known.
pub(crate) fn usd_per_hour(scenario: &Scenario, plan: &Plan) -> Option<f64> {
    ranks(plan).map(|rank| device(scenario, plan, rank).usd_per_hour).sum()
}

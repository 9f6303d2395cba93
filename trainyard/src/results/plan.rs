//! Plans and predictions, as results show them.

use std::collections::BTreeMap;

use ir::{Candidate, CollectiveAlgorithm, DeviceId, Mesh, Plan, Prediction, Recompute, Shares, Sharing, SimDuration};
use serde::Serialize;

use crate::words;

/// A plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanSummary {
    /// In a line.
    pub words: String,
    /// Replicas.
    pub data: u32,
    /// Tensor degree.
    pub tensor: u32,
    /// Of each stage, where they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<u32>,
    /// Pipeline positions.
    pub pipeline: u32,
    /// Ranks in all.
    pub ranks: u64,
    /// Sequence parallelism.
    pub sequence_parallel: bool,
    /// The order of passes.
    pub schedule: String,
    /// Layers of each chunk of each position.
    pub layers_per_stage: Vec<Vec<u32>>,
    /// Recomputation of each position.
    pub recompute: Vec<Recompute>,
    /// Layers of each chunk that it concerns, by position; `null` means all.
    pub recompute_layers: Vec<Option<u32>>,
    /// Sequences of a microbatch.
    pub microbatch_size: u32,
    /// Microbatches on a replica; where replicas take unequal shares, the most that one takes.
    pub microbatches: u32,
    /// Microbatches of each replica, where they are not equally many.
    #[serde(skip_serializing_if = "Shares::are_equal")]
    pub shares: Shares,
    /// ZeRO stage.
    pub zero: u32,
    /// Overlap of gradient reduction.
    pub overlap_gradients: bool,
    /// Algorithm of the gradient collectives.
    pub collective: CollectiveAlgorithm,
    /// Degrees beyond data, tensor and pipeline.
    #[serde(flatten)]
    pub mesh: Mesh,
    /// Division and overlap beyond `zero` and `overlap_gradients`.
    #[serde(flatten)]
    pub sharing: Sharing,
    /// The device of each rank, where its number is another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<DeviceId>,
}

impl PlanSummary {
    /// Of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            words: words::plan(plan),
            data: plan.data,
            tensor: plan.tensor,
            tensors: if plan.has_unlike_tensors() { plan.tensors().collect() } else { Vec::new() },
            pipeline: plan.pipeline(),
            ranks: plan.world(),
            sequence_parallel: plan.sequence_parallel,
            schedule: words::schedule(plan),
            layers_per_stage: plan.stages.iter().map(|stage| stage.layers.clone()).collect(),
            recompute: plan.stages.iter().map(|stage| stage.recompute).collect(),
            recompute_layers: plan.stages.iter().map(|stage| stage.recompute_layers).collect(),
            microbatch_size: plan.microbatch_size,
            microbatches: plan.microbatches,
            shares: plan.shares.clone(),
            zero: plan.zero.number(),
            overlap_gradients: plan.overlap_gradients,
            collective: plan.collective,
            mesh: plan.mesh,
            sharing: plan.sharing,
            placement: plan.placement.clone(),
        }
    }
}

/// Time and memory of one iteration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PredictionSummary {
    /// One iteration.
    pub iteration_ms: f64,
    /// Where nine of ten measured iterations should lie, least and most; `null` where the cost model does not know how far
    /// it is off.
    pub interval_ms: Option<[f64; 2]>,
    /// Where the iteration's time goes, along the position that decides when it ends; adds up to it.
    pub breakdown_ms: BTreeMap<&'static str, f64>,
    /// `1 - work / longest stage span`, optimizer excluded.
    pub bubble_rate: Option<f64>,
    /// Per pipeline position.
    pub memory: Vec<MemorySummary>,
    /// On what the durations rest.
    pub basis: BasisSummary,
    /// Rent of one iteration, US dollars, where every price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_usd: Option<f64>,
    /// Energy of one iteration, joules, where every power limit is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration_joules: Option<f64>,
}

/// Peak memory of one pipeline position.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MemorySummary {
    /// The position.
    pub stage: u32,
    /// Peak of a device.
    pub peak_gib: f64,
    /// What the device has.
    pub capacity_gib: f64,
    /// Each part at the moment of the peak.
    pub parts_gib: BTreeMap<&'static str, f64>,
    /// The moment of the peak.
    pub moment: String,
}

/// Shares of the busy time by what their durations rest on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct BasisSummary {
    /// Measured for just this.
    pub measured: f64,
    /// Between measured points, or from a fit.
    pub interpolated: f64,
    /// From a formula over known constants.
    pub analytic: f64,
    /// From constants that nothing was measured for.
    pub assumed: f64,
}

fn milliseconds(duration: SimDuration) -> f64 {
    duration.seconds() * 1e3
}

impl PredictionSummary {
    /// Of a prediction.
    #[must_use]
    pub fn of(prediction: &Prediction) -> Self {
        let memory = |memory: &ir::StageMemory| MemorySummary {
            stage: memory.stage.raw(),
            peak_gib: memory.peak.gib(),
            capacity_gib: memory.capacity.gib(),
            parts_gib: memory.parts.iter().map(|(name, bytes)| (*name, bytes.gib())).collect(),
            moment: memory.moment.clone(),
        };
        Self {
            iteration_ms: milliseconds(prediction.iteration),
            interval_ms: prediction.interval.map(|(least, most)| [milliseconds(least), milliseconds(most)]),
            breakdown_ms: prediction
                .breakdown
                .parts()
                .into_iter()
                .map(|(activity, time)| (activity.name(), milliseconds(time)))
                .collect(),
            bubble_rate: prediction.bubble_rate,
            memory: prediction.memory.iter().map(memory).collect(),
            basis: BasisSummary {
                measured: prediction.basis.measured,
                interpolated: prediction.basis.interpolated,
                analytic: prediction.basis.analytic,
                assumed: prediction.basis.assumed,
            },
            iteration_usd: prediction.expense.usd,
            iteration_joules: prediction.expense.joules,
        }
    }
}

/// A plan that was looked at and not chosen.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Alternative {
    /// The plan.
    pub plan: PlanSummary,
    /// What is predicted of it, if it is feasible.
    pub prediction: Option<PredictionSummary>,
    /// Why it lost.
    pub reasons: Vec<String>,
}

impl Alternative {
    /// Of a candidate.
    #[must_use]
    pub fn of(candidate: &Candidate) -> Self {
        let mut reasons = candidate.reasons.clone();
        if let Err(infeasible) = &candidate.evaluation {
            reasons.extend(infeasible.reasons.iter().map(ToString::to_string));
        }
        Self {
            plan: PlanSummary::of(&candidate.plan),
            prediction: candidate.evaluation.as_ref().ok().map(PredictionSummary::of),
            reasons,
        }
    }
}

/// Plans that no other beats in all that is weighed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ParetoSummary {
    /// What is weighed, the first of it in order.
    pub measures: Vec<&'static str>,
    /// The plans.
    pub points: Vec<ParetoPoint>,
    /// What was searched, in sentences.
    pub notes: Vec<String>,
    /// Each plan as a scenario of its own, in order.
    #[serde(skip)]
    pub scenarios: Vec<String>,
    /// The page.
    #[serde(skip)]
    pub page: reports::pareto::ParetoFront,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ParetoPoint {
    /// The plan.
    pub plan: PlanSummary,
    /// Time of one iteration.
    pub iteration_ms: f64,
    /// Rent, where every price is known.
    pub usd_per_million_tokens: Option<f64>,
    /// Energy, where every power limit is known.
    pub joules_per_token: Option<f64>,
    /// Peak memory of the fullest device.
    pub peak_gib: f64,
    /// Whether it is the one that was chosen.
    pub chosen: bool,
}

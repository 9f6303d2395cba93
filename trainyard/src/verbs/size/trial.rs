//! One cluster tried: the plan that the scenario's policy chooses there, and its step.

use ir::counts::{CountedParameters, CountedScores, hardware_flops_per_token, model_flops_per_token};
use ir::{Cluster, Model, Plan, Prediction};
use reports::sizing::Interval;

use crate::job::Job;
use crate::scenario::{ConstraintChoice, Loaded, PlanChoice, PolicyName, Scenario};
use crate::verbs::whatif;
use crate::{Context, Error};

/// A plan that fits, and what it takes.
pub(super) struct Trial {
    pub(super) plan: Plan,
    pub(super) prediction: Prediction,
    /// One step, seconds.
    pub(super) step_s: Interval,
    pub(super) model_flops_utilization: Option<f64>,
    pub(super) hardware_flops_utilization: Option<f64>,
    /// What the prices rest on.
    pub(super) basis: Vec<(String, String)>,
}

/// What a cluster or a model is tried with: the scenario's policy; a plan that is written holds for one cluster, so the
/// rules of thumb take its place.
pub(super) fn policy(scenario: &Scenario) -> PlanChoice {
    match &scenario.plan {
        PlanChoice::Policy(..) => scenario.plan.clone(),
        PlanChoice::Written(_) => PlanChoice::Policy(PolicyName::Megatron, Box::default()),
    }
}

/// The scenario's policy on a cluster. The inner error is why there is no plan.
///
/// # Errors
/// What prevents any answer: [`Error::Interrupted`], and prices that a cluster lacks.
pub(super) fn on_cluster(
    loaded: &Loaded,
    cluster: Cluster,
    context: &Context<'_>,
) -> Result<Result<Trial, String>, Error> {
    let there = whatif::changed(loaded, |scenario| {
        scenario.plan = policy(scenario);
        scenario.cluster = cluster;
        // What is asked of the scenario's own cluster is asked of no other: all devices train, as fast as they can.
        scenario.objective.minimise = sched::Objective::Time;
        scenario.constraints =
            ConstraintChoice { memory_headroom: scenario.constraints.memory_headroom, ..ConstraintChoice::default() };
    });
    decide(&there, context)
}

/// The scenario's policy for a model on the scenario's cluster.
///
/// # Errors
/// As [`on_cluster`].
pub(super) fn of_model(loaded: &Loaded, model: Model, context: &Context<'_>) -> Result<Result<Trial, String>, Error> {
    let there = whatif::changed(loaded, |scenario| {
        scenario.plan = policy(scenario);
        scenario.model = model;
    });
    decide(&there, context)
}

/// The scenario as it is, its written plan included.
///
/// # Errors
/// As [`on_cluster`]; [`Error::Infeasible`] if there is no plan, or it does not fit.
pub(super) fn as_it_is(loaded: &Loaded, context: &Context<'_>) -> Result<Trial, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(&whatif::quiet(context))?;
    if let Some(error) = crate::policy::misfit(&job, &decision.prediction, &whatif::quiet(context)) {
        return Err(error);
    }
    Ok(trial(&job, decision.plan, decision.prediction))
}

fn decide(there: &Loaded, context: &Context<'_>) -> Result<Result<Trial, String>, Error> {
    let scenario = &there.scenario;
    let faults: Vec<String> =
        scenario.workload.problems_with(&scenario.model).iter().map(ToString::to_string).collect();
    if !faults.is_empty() {
        return Ok(Err(faults.join("; ")));
    }
    let job = Job::new(there, None)?;
    match job.decide(&whatif::quiet(context)) {
        Ok(decision) if whatif::fits(&decision.prediction) => Ok(Ok(trial(&job, decision.plan, decision.prediction))),
        Ok(decision) => {
            let problems = sched::memory_problems(&decision.prediction);
            Ok(Err(problems.first().map_or_else(|| "it does not fit".to_owned(), ToString::to_string)))
        }
        Err(Error::Infeasible { infeasible, .. }) => {
            let first = infeasible.reasons.first();
            Ok(Err(first.map_or_else(|| "there is no legal plan".to_owned(), |reason| reason.message.clone())))
        }
        Err(other) => Err(other),
    }
}

fn trial(job: &Job<'_>, plan: Plan, prediction: Prediction) -> Trial {
    let scenario = &job.loaded.scenario;
    let step_s = whatif::seconds(&job.cost, &plan, &prediction);
    let sequence = u64::from(scenario.workload.sequence_length);
    let tokens = f64::from(scenario.workload.global_batch) * sequence as f64;
    let peak = crate::facts::rate(scenario, &plan).peak;
    let share = |flops: ir::Flops| peak.map(|peak| flops.get() as f64 * tokens / step_s.expected / peak.get());
    let model = model_flops_per_token(&scenario.model, sequence, CountedParameters::Multiplied, CountedScores::Whole);
    let again =
        hardware_flops_per_token(&scenario.model, sequence, crate::facts::recomputed(&plan), CountedScores::Whole);
    Trial {
        model_flops_utilization: share(model),
        hardware_flops_utilization: share(again),
        basis: whatif::basis(job.loaded, &job.cost, &plan, &prediction),
        plan,
        prediction,
        step_s,
    }
}

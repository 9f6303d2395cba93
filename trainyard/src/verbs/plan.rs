//! `plan`: how a scenario is divided, and why.

use std::collections::BTreeMap;

use sched::{Runtime, refused_by};

use crate::job::Job;
use crate::results::{Alternative, Header, PlanReport, PlanSummary, PredictionSummary};
use crate::scenario::{Loaded, PlanChoice, Scenario};
use crate::{Context, Error, policy};

/// Decides how a scenario is divided.
///
/// # Errors
/// [`Error::Infeasible`] with every reason and the nearest legal plans.
pub fn plan(loaded: &Loaded, context: &Context<'_>) -> Result<PlanReport, Error> {
    let job = Job::new(loaded, None)?;
    report(&job, context)
}

pub(crate) fn report(job: &Job<'_>, context: &Context<'_>) -> Result<PlanReport, Error> {
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(job, &decision.prediction, context) {
        return Err(error);
    }
    let scenario = &job.loaded.scenario;
    let planned = Scenario { plan: PlanChoice::Written(decision.plan.clone()), ..scenario.clone() };
    Ok(PlanReport {
        header: Header::new("plan", &scenario.name),
        policy: decision.policy,
        plan: PlanSummary::of(&decision.plan),
        prediction: PredictionSummary::of(&decision.prediction),
        stack_notes: job.cost.stack().notes.clone(),
        reasons: decision.reasons,
        runtimes: runtimes(scenario, &decision.plan),
        alternatives: decision.others.iter().map(Alternative::of).collect(),
        planned_scenario: planned.to_toml(),
    })
}

/// What each runtime would refuse of a plan.
fn runtimes(scenario: &Scenario, plan: &ir::Plan) -> BTreeMap<&'static str, Vec<String>> {
    let refused = |runtime: Runtime| {
        let problems = refused_by(runtime, plan, &scenario.model, &scenario.workload);
        (runtime.name(), problems.iter().map(ToString::to_string).collect())
    };
    Runtime::ALL.into_iter().map(refused).collect()
}

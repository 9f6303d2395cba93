//! `simulate`: one iteration in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::counts::CountedScores;

use crate::job::{Decision, Job};
use crate::results::{Header, PlanSummary, PredictionSummary, SimulateReport};
use crate::scenario::Loaded;
use crate::{Context, Error, facts, long_run, policy};

/// Simulates one iteration of a scenario's plan.
///
/// # Errors
/// [`Error::Infeasible`] if there is no plan, or the plan does not fit: which stage, which part, at which moment.
/// [`Error::Input`] if it would compute faster than its devices' peak.
pub fn simulate(loaded: &Loaded, context: &Context<'_>) -> Result<SimulateReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    report(&job, &decision, context)
}

pub(crate) fn report(job: &Job<'_>, decision: &Decision, context: &Context<'_>) -> Result<SimulateReport, Error> {
    let plan = &decision.plan;
    context.step("lower", 0, 0, "")?;
    let program = job.program(plan)?;
    context.step("simulate", 0, 0, "")?;
    let timeline = job.simulate(&program)?;
    let metrics = job.metrics(plan, &program, &timeline);
    let prediction = sched::summarise(&program, &timeline, &job.cost);
    if let Some(error) = policy::misfit(job, &prediction, context) {
        return Err(error);
    }
    let scenario = &job.loaded.scenario;
    let seconds = prediction.iteration.seconds();
    if let Some(problem) = facts::faster_than_peak(job, plan, seconds) {
        return Err(job.loaded.error(vec![problem]));
    }
    let time_ms: BTreeMap<&'static str, f64> = metrics
        .time
        .iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(activity, ns)| (activity.name(), milliseconds(ns)))
        .collect();
    let long_run =
        long_run::summary(scenario, plan, prediction.iteration).map_err(|problem| job.loaded.error(vec![problem]))?;
    Ok(SimulateReport {
        header: Header::new("simulate", &scenario.name),
        plan: PlanSummary::of(plan),
        prediction: PredictionSummary::of(&prediction),
        stack_notes: job.cost.stack().notes.clone(),
        tokens_per_second: metrics.tokens_per_second,
        tokens_per_second_per_device: metrics.tokens_per_second / plan.world() as f64,
        model_flops_utilization: metrics.model_flops_utilization,
        hardware_flops_utilization: facts::hardware_flops_utilization(scenario, plan, seconds, CountedScores::Whole),
        time_ms,
        devices: plan.world(),
        usd_per_hour: facts::usd_per_hour(scenario, plan),
        roles: program.roles.len(),
        instructions: program.instructions(),
        long_run,
        program_digest: format!("{:016x}", timeline.program),
        timeline_digest: format!("{:016x}", timeline.digest()),
        decided: plan.clone(),
        program: Arc::clone(&program),
        timeline,
    })
}

pub(crate) fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-6
}

//! `explain`: where a step goes, what each part would give back, why a plan does not fit and what would make it.
//!
//! Everything is priced in the closed form. What a part *gives back* is never its own share: the plan is priced again with
//! the part costing nothing, and whatever takes its place counts.

mod page;
mod parts;
mod remedies;
mod sensitivity;
#[cfg(test)]
mod tests;

use ir::{Infeasible, Plan, Prediction, RunPart};

use crate::job::Job;
use crate::long_run::Setting;
use crate::results::{ExplainReport, Header, Misfit, PlanSummary, PredictionSummary};
use crate::scenario::{Loaded, PlanChoice};
use crate::verbs::whatif::{self, World};
use crate::{Context, Error};

/// What is explained.
struct Subject<'a> {
    job: &'a Job<'a>,
    policy: &'static str,
    plan: Plan,
    prediction: Prediction,
}

impl Subject<'_> {
    fn world(&self) -> World<'_> {
        let scenario = &self.job.loaded.scenario;
        World { model: &scenario.model, workload: &scenario.workload, cost: &self.job.cost }
    }
}

/// Explains the step of a scenario's plan, the written one or the one that its policy chooses.
///
/// A plan that is legal and does not fit is explained all the same: stage, part and moment, and the fastest single change
/// that fits.
///
/// # Errors
/// [`Error::Infeasible`] if the plan is not legal, or the policy finds none; [`Error::Interrupted`].
pub fn explain(loaded: &Loaded, context: &Context<'_>) -> Result<ExplainReport, Error> {
    let job = Job::new(loaded, None)?;
    let subject = decide(&job, context)?;
    context.step("explain", 1, 4, "what each part would give back")?;
    let parts = parts::parts(&subject)?;
    context.step("explain", 2, 4, "what would fit")?;
    let fits = whatif::fits(&subject.prediction);
    let remedies = if fits { Vec::new() } else { remedies::remedies(&subject, context)? };
    context.step("explain", 3, 4, "what it depends on")?;
    let sensitivity = sensitivity::sensitivity(&subject, context)?;
    let (plan, prediction) = (&subject.plan, &subject.prediction);
    let setting = Setting::of(&loaded.scenario, plan, prediction.iteration);
    let setting = setting.map_err(|problem| loaded.error(vec![problem]))?;
    let elapsed_shares = setting.map(|setting| {
        let shares = setting.expected();
        RunPart::ALL.map(|part| (part.name(), shares.of(part))).to_vec()
    });
    let mut report = ExplainReport {
        header: Header::new("explain", &loaded.scenario.name),
        policy: subject.policy,
        plan: PlanSummary::of(plan),
        prediction: PredictionSummary::of(prediction),
        step_s: whatif::seconds(&job.cost, plan, prediction),
        parts,
        fits,
        misfits: misfits(prediction),
        smallest_change: remedies::fastest(&remedies),
        changes: remedies,
        sensitivity,
        elapsed_shares,
        basis: whatif::basis(loaded, &job.cost, plan, prediction),
        warnings: whatif::unnamed_stack(loaded).into_iter().collect(),
        document: reports::Document {
            title: String::new(),
            description: String::new(),
            warnings: Vec::new(),
            figures: Vec::new(),
            sections: Vec::new(),
            assumptions: Vec::new(),
            command: String::new(),
        },
    };
    report.document = page::document(&report, prediction).map_err(|problems| loaded.error(problems))?;
    Ok(report)
}

/// The plan, and its prediction in the closed form.
fn decide<'a>(job: &'a Job<'a>, context: &Context<'_>) -> Result<Subject<'a>, Error> {
    let scenario = &job.loaded.scenario;
    let (policy, plan) = match &scenario.plan {
        PlanChoice::Written(plan) => {
            ("manual", sched::ClosedForm::new(&scenario.model, &scenario.workload, &job.cost).profiled(plan))
        }
        PlanChoice::Policy(..) => {
            let decision = job.decide(context)?;
            (decision.policy, decision.plan)
        }
    };
    let world = World { model: &scenario.model, workload: &scenario.workload, cost: &job.cost };
    let prediction = world.evaluate(&plan).map_err(|infeasible| {
        let nearest = sched::nearest(&plan, &scenario.model, &scenario.workload, &scenario.cluster);
        job.infeasible(Infeasible { nearest, ..infeasible })
    })?;
    Ok(Subject { job, policy, plan, prediction })
}

/// Stages over their device's memory.
fn misfits(prediction: &Prediction) -> Vec<Misfit> {
    let over = prediction.memory.iter().filter(|stage| stage.peak > stage.capacity);
    over.map(|stage| Misfit {
        stage: stage.stage.raw(),
        needs_gib: stage.peak.gib(),
        of_gib: stage.capacity.gib(),
        largest_part: stage.parts.first().map_or_else(String::new, |(name, _)| (*name).to_owned()),
        parts_gib: stage.parts.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.gib())).collect(),
        moment: stage.moment.clone(),
    })
    .collect()
}

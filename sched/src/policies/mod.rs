//! Planners: what decides before a run.

mod exhaustive;
mod manual;
mod megatron;

#[cfg(test)]
mod tests;

pub use exhaustive::{Exhaustive, Space};
pub use manual::Manual;
pub use megatron::Megatron;

use ir::{Candidate, Cluster, Infeasible, Model, Plan, Prediction, Workload};

use crate::evaluate::{Evaluator, memory_problems};
use crate::schedules;

/// What is asked of a planner.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// How.
    pub workload: &'a Workload,
    /// On what.
    pub cluster: &'a Cluster,
}

/// What a search says while it runs: evaluations so far, and the fastest plan that fits so far.
pub type Progress<'a> = &'a mut dyn FnMut(u64, Option<(&Plan, &Prediction)>);

/// Decides on a plan.
pub trait Planner {
    /// The chosen plan first, then the best runners-up, each with why it stands where it does.
    ///
    /// `budget` bounds evaluations. The first candidate fits into memory unless the planner has no choice ([`Manual`]).
    ///
    /// # Errors
    /// Every reason why there is no plan, with the nearest plans that are legal.
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible>;
}

/// Whether every stage's peak is within its device's memory.
fn fits(prediction: &Prediction) -> bool {
    prediction.memory.iter().all(|stage| stage.peak <= stage.capacity)
}

/// The same plan with unequal shares of the batch, where its replicas are unlike and it gains what is worth saying: one in a
/// hundred.
fn faster_shares(plan: &Plan, equal: &Prediction, evaluator: &mut dyn Evaluator) -> Option<Candidate> {
    if !plan.shares.are_equal() {
        return None;
    }
    let shared = evaluator.share_out(plan)?;
    let prediction = evaluator.evaluate(&shared).ok().filter(fits)?;
    let gain = equal.iteration.seconds() / prediction.iteration.seconds().max(1e-12);
    let reason = format!(
        "unlike replicas: with {} microbatches of {} in place of equal shares, {:.3} s and not {:.3} s ({:.2} times as fast)",
        shared.shares,
        shared.microbatch_size,
        prediction.iteration.seconds(),
        equal.iteration.seconds(),
        gain
    );
    (gain >= 1.01).then(|| Candidate { plan: shared, evaluation: Ok(prediction), reasons: vec![reason] })
}

/// How far over its memory the worst stage is, as a share of the capacity; under 0 if all fit.
fn worst_excess(prediction: &Prediction) -> f64 {
    let excess = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64 - 1.0;
    prediction.memory.iter().map(excess).fold(f64::NEG_INFINITY, f64::max)
}

/// "does not fit: stage 0 needs 91.0 GiB of 80.0 …".
fn misfit(prediction: &Prediction) -> Option<String> {
    let problems = memory_problems(prediction);
    let worst = problems.first()?;
    let more = match problems.len() {
        1 => String::new(),
        2 => "; 1 more stage does not fit either".to_owned(),
        n => format!("; {} more stages do not fit either", n - 1),
    };
    Some(format!("does not fit: {} {}{more}", worst.subject, worst.message))
}

/// A plan in a few words.
fn words(plan: &Plan) -> String {
    let chunks = plan.chunks_per_stage();
    let interleaved = if chunks > 1 { format!(" x {chunks} chunks") } else { String::new() };
    let equal = plan.shares.are_equal();
    format!(
        "data {}, tensor {}, pipeline {}{interleaved}, {} microbatches of {}, {}",
        plan.data,
        plan.tensor,
        plan.pipeline(),
        if equal { plan.microbatches.to_string() } else { plan.shares.to_string() },
        plan.microbatch_size,
        schedules::name(&plan.schedule, chunks)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

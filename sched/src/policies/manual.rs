//! The plan that the user wrote.

use ir::{Candidate, Infeasible, Plan};

use super::{Planner, Progress, Question, faster_shares, misfit};
use crate::evaluate::Evaluator;

/// Decides for the plan that it was given.
#[derive(Clone, PartialEq, Debug)]
pub struct Manual {
    plan: Plan,
}

impl Manual {
    /// The plan.
    #[must_use]
    pub const fn new(plan: Plan) -> Self {
        Self { plan }
    }
}

impl Planner for Manual {
    /// One candidate, whether it fits into memory or not: what was asked for was a prediction.
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        _budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        let evaluation = evaluator.evaluate(&self.plan);
        let evaluation = evaluation.map_err(|mut no| {
            if no.nearest.is_empty() {
                // Where only the batch does not divide, shares that make it are nearest.
                no.nearest = evaluator.share_out(&self.plan).into_iter().collect();
                no.nearest.extend(crate::nearest(&self.plan, ask.model, ask.workload, ask.cluster));
            }
            no
        })?;
        progress(1, Some((&self.plan, &evaluation)));
        let mut reasons = vec!["what was written".to_owned()];
        reasons.extend(misfit(&evaluation));
        let faster = faster_shares(ask, &self.plan, &evaluation, evaluator);
        reasons.extend(faster.iter().flat_map(|other| other.reasons.clone()));
        let chosen = Candidate { plan: self.plan.clone(), evaluation: Ok(evaluation), reasons };
        Ok(std::iter::once(chosen).chain(faster).collect())
    }
}

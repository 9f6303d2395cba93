//! Plans that no other beats in all that is weighed: the front of time, money, energy and memory.
//!
//! The search goes over every uniform plan of a [`Space`], on any number of devices, with every recomputation; what is not
//! legal, does not fit or breaks a limit is left out. A plan is on the front if no other is at least as good in everything
//! that is weighed and better in something; of plans that are alike in all of it the first counts. Where memory is not weighed,
//! plans whose bounds the front beats are not evaluated, and a plan that fits is not tried with more recomputation.

use ir::{Candidate, Infeasible, Plan, Prediction, Problem};

use super::exhaustive::{Spaces, is_best_of_its_recomputations};
use super::{Progress, Question, Space};
use crate::aim::{Aim, Misses, Objective, fits};
use crate::evaluate::Evaluator;

/// What is weighed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Measure {
    /// Time of an iteration.
    Time,
    /// Money of an iteration.
    Money,
    /// Energy of an iteration.
    Energy,
    /// Peak memory of the fullest device.
    Memory,
}

impl Measure {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Time, Self::Money, Self::Energy, Self::Memory];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Money => "money",
            Self::Energy => "energy",
            Self::Memory => "memory",
        }
    }
    /// Of a prediction: seconds, dollars, joules or bytes; infinite where it is not known.
    #[must_use]
    pub fn of(self, prediction: &Prediction) -> f64 {
        match self {
            Self::Time => prediction.iteration.nanoseconds() as f64 * 1e-9,
            Self::Money => prediction.expense.usd.unwrap_or(f64::INFINITY),
            Self::Energy => prediction.expense.joules.unwrap_or(f64::INFINITY),
            Self::Memory => prediction.memory.iter().map(|stage| stage.peak.get()).max().unwrap_or(0) as f64,
        }
    }
}

/// A search for the front; see the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Pareto {
    /// Values of the keys that are searched.
    pub space: Space,
    /// What is weighed.
    pub measures: Vec<Measure>,
}

/// The front.
#[derive(Clone, PartialEq, Debug)]
pub struct Front {
    /// Plans, by the first of what is weighed.
    pub points: Vec<(Plan, Prediction)>,
    /// What became of the others, in sentences.
    pub notes: Vec<String>,
}

/// Points with what is weighed of them.
struct Found<'m> {
    measures: &'m [Measure],
    points: Vec<(Vec<f64>, Plan, Prediction)>,
}

/// Whether one is at least as good in everything.
fn beats(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
}

impl Found<'_> {
    fn is_beaten(&self, values: &[f64]) -> bool {
        self.points.iter().any(|(known, ..)| beats(known, values))
    }

    fn add(&mut self, plan: &Plan, prediction: &Prediction) {
        let values = self.measures.iter().map(|measure| measure.of(prediction)).collect::<Vec<_>>();
        if !self.is_beaten(&values) {
            self.points.retain(|(known, ..)| !beats(&values, known));
            self.points.push((values, plan.clone(), prediction.clone()));
        }
    }
}

impl Pareto {
    /// The front of all plans of the space and of `others`, such as what a policy chose.
    ///
    /// # Errors
    /// Why no plan is allowed.
    pub fn front(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        others: &[Candidate],
        progress: Progress<'_>,
    ) -> Result<Front, Infeasible> {
        // On any number of devices, as though money were what is made small.
        let aim = Aim { objective: Objective::Money, ..ask.aim.clone() };
        let ask = &Question { aim: &aim, ..*ask };
        let mut found = Found { measures: &self.measures, points: Vec::new() };
        for other in others {
            if let Some(prediction) = other.evaluation.as_ref().ok().filter(|prediction| aim.allows(prediction)) {
                found.add(&other.plan, prediction);
            }
        }
        let (mut used, mut fitting, mut misses, mut open) = (0, 0, Misses::default(), false);
        'all: for mut plan in Spaces::new(&self.space, ask) {
            for recompute in &self.space.recompute {
                if used >= budget {
                    open = true;
                    break 'all;
                }
                plan.stages.iter_mut().for_each(|stage| stage.recompute = *recompute);
                if self.least(&plan, evaluator).is_some_and(|least| found.is_beaten(&least)) {
                    continue;
                }
                used += 1;
                if used.is_multiple_of(64) {
                    progress(used, found.points.first().map(|(_, plan, prediction)| (plan, prediction)));
                }
                let Ok(prediction) = evaluator.evaluate(&plan) else { continue };
                if aim.allows(&prediction) {
                    fitting += 1;
                    found.add(&plan, &prediction);
                } else if fits(&prediction) {
                    misses.note(&aim, &plan, &prediction);
                }
                let weighed = self.measures.contains(&Measure::Memory);
                if fits(&prediction) && !weighed && is_best_of_its_recomputations(&plan) {
                    break;
                }
            }
        }
        let mut notes =
            vec![format!("{} of {used} plans evaluated, of which {fitting} are allowed", found.points.len())];
        if open {
            notes.push(format!("the budget of {budget} evaluations ended the search: the rest of the space is open"));
        }
        if found.points.is_empty() {
            let mut reasons = misses.problems(&aim, "uniform plan");
            if reasons.is_empty() {
                let hint = "policy = \"exhaustive\" says what is nearest";
                reasons
                    .push(Problem::new("plan", format!("no uniform plan fits into memory: {}", notes[0])).hint(hint));
            }
            return Err(Infeasible { reasons, nearest: Vec::new() });
        }
        found.points.sort_by(|(a, ..), (b, ..)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        Ok(Front { points: found.points.into_iter().map(|(_, plan, prediction)| (plan, prediction)).collect(), notes })
    }

    /// What is weighed of a plan at least; `None` where something is not known.
    fn least(&self, plan: &Plan, evaluator: &mut dyn Evaluator) -> Option<Vec<f64>> {
        if self.measures.contains(&Measure::Memory) {
            return None;
        }
        let (time, least) = (evaluator.floor(plan)?, evaluator.least(plan));
        let of = |measure: &Measure| match measure {
            Measure::Time => Some(time.nanoseconds() as f64 * 1e-9),
            Measure::Money => least.usd,
            Measure::Energy => least.joules,
            Measure::Memory => None,
        };
        self.measures.iter().map(of).collect()
    }
}

//! Plans drawn at random: the control, which every other policy must beat with as many evaluations.
//!
//! Each draw is uniform over the legal plans of a [`Space`] that were not drawn before: numbers of all its plans are shuffled
//! as far as they are needed (Fisher and Yates), and what is not legal is passed over. A budget of the whole space finds what
//! [`Exhaustive`](super::Exhaustive) finds.

use ir::{Candidate, Infeasible, Plan, Prediction, Problem};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::exhaustive::{Numbered, Space};
use super::{Planner, Progress, Question, left_idle, misfit, no_room, why_worse, worst_excess};
use crate::aim::{Misses, fits};
use crate::evaluate::Evaluator;

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Random {
    /// The seed of the draws.
    pub seed: u64,
    /// What is drawn from.
    pub space: Space,
    /// Candidates that are reported, the chosen one included.
    pub shown: usize,
}

impl Random {
    /// Draws from all uniform plans.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, space: Space::default(), shown: 10 }
    }
}

/// The numbers below `count` in a random order, each once.
struct Shuffled {
    rng: ChaCha8Rng,
    count: u64,
    drawn: u64,
    /// What stands at a place, where that is not its number. Looked up only.
    moved: FxHashMap<u64, u64>,
}

impl Iterator for Shuffled {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        if self.drawn >= self.count {
            return None;
        }
        let (here, there) = (self.drawn, self.rng.random_range(self.drawn..self.count));
        let value = |moved: &FxHashMap<u64, u64>, at: u64| moved.get(&at).copied().unwrap_or(at);
        let found = value(&self.moved, there);
        let other = value(&self.moved, here);
        self.moved.insert(there, other);
        self.moved.remove(&here);
        self.drawn += 1;
        Some(found)
    }
}

impl Planner for Random {
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        let numbered = Numbered::new(&self.space, ask);
        let count = numbered.count();
        let rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut found = Found { shown: self.shown.max(1), ..Found::default() };
        let mut used = 0;
        for number in (Shuffled { rng, count, drawn: 0, moved: FxHashMap::default() }) {
            if used >= budget {
                found.open = true;
                break;
            }
            let plan = numbered.plan(number);
            match evaluator.evaluate(&plan) {
                Ok(prediction) => {
                    used += 1;
                    found.take(ask, plan, prediction);
                    progress(used, found.best.first().map(|(plan, prediction)| (plan, prediction)));
                }
                Err(no) => found.refuse(no.reasons),
            }
        }
        let drawn = format!(
            "{used} legal plans drawn of {count} in the space with seed {} ({} draws were not legal), {} of them {}",
            self.seed,
            found.illegal,
            found.fitting,
            ask.aim.who_fit().trim_start_matches("that ")
        );
        found.finish(ask, drawn)
    }
}

/// What was drawn.
#[derive(Default)]
struct Found {
    shown: usize,
    /// The best that are allowed, best first.
    best: Vec<(Plan, Prediction)>,
    /// The plan nearest to fitting.
    closest: Option<(Plan, Prediction)>,
    fitting: u64,
    /// Plans that break a limit.
    misses: Misses,
    illegal: u64,
    /// Reasons of illegal plans, the first of each kind.
    refused: Vec<Problem>,
    /// Whether there is more to draw.
    open: bool,
}

impl Found {
    fn take(&mut self, ask: &Question<'_>, plan: Plan, prediction: Prediction) {
        if ask.aim.allows(&prediction) {
            self.fitting += 1;
            let score = ask.aim.score(&prediction);
            let at = self.best.partition_point(|(_, kept)| ask.aim.score(kept) <= score);
            self.best.insert(at, (plan, prediction));
            self.best.truncate(self.shown);
        } else if fits(&prediction) {
            self.misses.note(ask.aim, &plan, &prediction);
        } else if self.closest.as_ref().is_none_or(|(_, least)| worst_excess(&prediction) < worst_excess(least)) {
            self.closest = Some((plan, prediction));
        }
    }

    fn refuse(&mut self, reasons: Vec<Problem>) {
        self.illegal += 1;
        for reason in reasons {
            if self.refused.len() < 8 && !self.refused.iter().any(|known| known.subject == reason.subject) {
                self.refused.push(reason);
            }
        }
    }

    fn finish(self, ask: &Question<'_>, drawn: String) -> Result<Vec<Candidate>, Infeasible> {
        let Some((best, winner)) = self.best.first().cloned() else {
            let mut reasons = self.misses.problems(ask.aim, "plan drawn");
            let closest = self.closest.as_ref().filter(|_| reasons.is_empty());
            if let Some((text, prediction)) = closest.and_then(|(_, found)| Some((misfit(found)?, found))) {
                let message = format!("{drawn}; the closest {text}");
                reasons.push(no_room(ask, message, prediction, "a larger budget, or more devices"));
            } else {
                reasons.push(Problem::new("plan", drawn).hint("a batch with more divisors, or a larger budget"));
            }
            reasons.extend(self.refused);
            return Err(Infeasible { reasons, nearest: Vec::new() });
        };
        let mut reasons = vec![format!("{} of those drawn: {}", ask.aim.best(), ask.figure(&winner)), drawn];
        reasons.extend(left_idle(ask, &best));
        if self.open {
            reasons.push("the budget ended the draws: the rest of the space is open".to_owned());
        }
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_worse(ask, (&plan, &prediction), (&best, &winner));
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        Ok(std::iter::once(chosen).chain(losers).collect())
    }
}

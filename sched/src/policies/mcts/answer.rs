//! What a search says in the end.

use ir::{Candidate, Infeasible, Plan, Prediction, Problem};

use super::super::{left_idle, misfit, no_room, why_worse, words};
use super::{Answer, Search};
use crate::aim::Objective;

impl Search<'_, '_> {
    /// A score that no plan of the space goes under; that of the best, if there is no better one.
    fn bound(&self, best: f64) -> f64 {
        let open = self.tree.open_floor().filter(|floor| *floor < self.limit());
        let open = open.map_or(best, |floor| self.decisions.ask.aim.of_units(floor).min(best));
        open.max(self.begun.and_then(|begun| begun.bound).unwrap_or(0.0).min(best))
    }

    pub(super) fn finish(self) -> Result<Answer, Infeasible> {
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
        let Some((best, winner)) = self.best.first().cloned() else { return Err(self.nothing()) };
        let ask = self.decisions.ask;
        let (bound, used) = (self.bound(ask.aim.score(&winner).get()), self.used);
        let reasons = self.reasons((&best, &winner), bound);
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_worse(ask, (&plan, &prediction), (&best, &winner));
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        Ok(Answer { candidates: std::iter::once(chosen).chain(losers).collect(), bound, used })
    }

    fn reasons(&self, (plan, winner): (&Plan, &Prediction), bound: f64) -> Vec<String> {
        let (ask, aim) = (self.decisions.ask, self.decisions.ask.aim);
        let score = aim.score(winner);
        let mut reasons = vec![format!(
            "{} of {} evaluated with seed {}, of which {} {}: {}",
            aim.best(),
            self.used,
            self.planner.seed,
            self.fitting,
            aim.who_fit().trim_start_matches("that "),
            ask.figure(winner)
        )];
        reasons.push(self.what_is_left(score.get(), bound));
        if let Some(begun) = self.begun {
            let gain = begun.score.map_or_else(String::new, |found| {
                format!(", found {:.3} s; the tree gained {:.2} %", begun.seconds, (1.0 - score.over(found)) * 100.0)
            });
            reasons.push(format!("begun from dynprog, which took {} of them{gain}", begun.used));
        }
        if !self.tree.is_closed() {
            reasons.push(format!("the budget of {} ended the search: the bound counts what is open", self.budget));
        }
        reasons.extend(left_idle(ask, plan));
        reasons
    }

    fn what_is_left(&self, score: f64, bound: f64) -> String {
        const SPACE: &str = "no plan of the space (uniform plans, stages of unequal layers, replicas of one kind) is";
        let (aim, left) = (self.decisions.ask.aim, (1.0 - bound / score) * 100.0);
        let better = aim.better();
        if bound >= score {
            format!("{SPACE} {better}")
        } else if bound <= 0.0 {
            "nothing bounds what was not tried".to_owned()
        } else if aim.objective == Objective::Time {
            format!("{SPACE} faster than {:.3} s, so at most {left:.1} % are left", bound * 1e-9)
        } else {
            format!("{SPACE} {better} by more than {left:.1} %")
        }
    }

    fn nothing(mut self) -> Infeasible {
        if self.closest.is_none()
            && let Some((plan, _)) = self.decisions.closest.take()
        {
            self.closest = self.evaluator.evaluate(&plan).ok().map(|prediction| (plan, prediction));
        }
        let ask = self.decisions.ask;
        let mut reasons = self.misses.problems(ask.aim, "plan looked at");
        let open = !self.tree.is_closed();
        if !reasons.is_empty() {
            // Something fits.
        } else if let Some((plan, prediction)) = &self.closest
            && let Some(text) = misfit(prediction)
        {
            let message = format!("no plan that was looked at fits into memory; the closest, {}, {text}", words(plan));
            let hint = "more devices, devices with more memory, or shorter sequences";
            reasons.push(no_room(ask, message, prediction, hint));
        } else if !open {
            let message = "no plan that is legal fits into memory, with stages of whatever layers";
            reasons.push(Problem::new("plan", message).hint("more devices, or devices with more memory"));
        }
        if open {
            let message = format!("the budget of {} evaluations ended the search", self.budget);
            reasons.push(Problem::new("plan.budget", message).hint("a larger budget"));
        }
        reasons.extend(self.refused);
        Infeasible { reasons, nearest: Vec::new() }
    }
}

//! What a search says in the end.

use ir::{Candidate, Infeasible, Problem};

use super::super::megatron::why_slower;
use super::super::{misfit, words};
use super::{Answer, Search};

impl Search<'_, '_> {
    /// Nanoseconds that no plan of the space goes under.
    fn bound(&self) -> u64 {
        let open = self.tree.open_floor().unwrap_or(u64::MAX).min(self.limit());
        let begun = self.begun.and_then(|begun| begun.bound).unwrap_or(0);
        open.max(begun.min(self.limit()))
    }

    pub(super) fn finish(self) -> Result<Answer, Infeasible> {
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
        let Some((best, winner)) = self.best.first().cloned() else { return Err(self.nothing()) };
        let (bound, used) = (self.bound(), self.used);
        let reasons = self.reasons(winner.iteration.nanoseconds(), bound);
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_slower(&plan, &prediction, &best, &winner);
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        Ok(Answer { candidates: std::iter::once(chosen).chain(losers).collect(), bound, used })
    }

    fn reasons(&self, time: u64, bound: u64) -> Vec<String> {
        let seconds = |nanoseconds: u64| nanoseconds as f64 * 1e-9;
        let mut reasons = vec![format!(
            "fastest of {} evaluated with seed {}, of which {} fit: {:.3} s",
            self.used,
            self.planner.seed,
            self.fitting,
            seconds(time)
        )];
        reasons.push(if bound >= time {
            "no plan of the space (uniform plans, stages of unequal layers, replicas of one kind) is faster".to_owned()
        } else if bound == 0 {
            "nothing bounds what was not tried".to_owned()
        } else {
            format!(
                "no plan of the space (uniform plans, stages of unequal layers, replicas of one kind) is faster than \
                 {:.3} s, so at most {:.1} % are left",
                seconds(bound),
                (1.0 - bound as f64 / time as f64) * 100.0
            )
        });
        if let Some(begun) = self.begun {
            let gain = begun.time.map_or_else(String::new, |found| {
                format!(
                    ", found {:.3} s; the tree gained {:.2} %",
                    seconds(found),
                    (1.0 - time as f64 / found as f64) * 100.0
                )
            });
            reasons.push(format!("begun from dynprog, which took {} of them{gain}", begun.used));
        }
        if !self.tree.is_closed() {
            reasons.push(format!("the budget of {} ended the search: the bound counts what is open", self.budget));
        }
        reasons
    }

    fn nothing(mut self) -> Infeasible {
        if self.closest.is_none()
            && let Some((plan, _)) = self.decisions.closest.take()
        {
            self.closest = self.evaluator.evaluate(&plan).ok().map(|prediction| (plan, prediction));
        }
        let mut reasons = Vec::new();
        let open = !self.tree.is_closed();
        if let Some((plan, prediction)) = &self.closest
            && let Some(text) = misfit(prediction)
        {
            let message = format!("no plan that was looked at fits into memory; the closest, {}, {text}", words(plan));
            reasons.push(
                Problem::new("plan", message).hint("more devices, devices with more memory, or shorter sequences"),
            );
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

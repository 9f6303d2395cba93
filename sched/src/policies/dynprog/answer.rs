//! What was found, in words: the best plan with the bound, why the others lost, or what stood in the way.

use ir::{Candidate, Infeasible, Plan, Problem};

use super::super::{left_idle, misfit, percent, why_worse};
use super::kinds::{kinds, wide};
use super::{Answer, Search};
use crate::aim::{Objective, Score};

impl Search<'_, '_> {
    pub(super) fn finish(self, complete: bool, nothing: Option<Infeasible>) -> Result<Answer, Infeasible> {
        let aim = self.ask.aim;
        let Some((best, winner)) = self.best.first().cloned() else {
            return Err(self.nothing(nothing));
        };
        let (score, used) = (aim.score(&winner).get(), self.used);
        let bound = complete.then(|| self.bound.min(score));
        let mut reasons = vec![format!("{} of {} looked at: {}", aim.best(), self.used, self.ask.figure(&winner))];
        let better = aim.better();
        reasons.push(match bound {
            Some(bound) if bound >= score => format!("no plan of the space is {better}"),
            Some(bound) if bound <= 0.0 => "the budget ended the search: nothing bounds what is left".to_owned(),
            Some(bound) => {
                let left = (1.0 - bound / score) * 100.0;
                match aim.objective {
                    Objective::Time => {
                        format!(
                            "no plan of the space is faster than {:.3} s, so at most {left:.1} % are left",
                            bound * 1e-9
                        )
                    }
                    Objective::Money | Objective::Energy => {
                        format!("no plan of the space is {better} by more than {left:.1} %")
                    }
                }
            }
            None => "the budget ended the search of uniform plans: nothing bounds what is left".to_owned(),
        });
        reasons.push(format!("{} sets of degrees cut, {} cannot win by their bound", self.cut, self.bounded));
        if self.open {
            reasons.push(format!("the budget of {} ended the search: the bound counts what is open", self.budget));
        }
        if self.uniform > aim.score(&winner) && self.uniform < Score::WORST {
            let gain = self.uniform.over(aim.score(&winner));
            reasons.push(format!("{} {better} than the best uniform plan", percent(gain - 1.0)));
        }
        reasons.extend(left_idle(self.ask, &best));
        reasons.extend(self.held(&best));
        reasons.extend(misfit(&winner));
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_worse(self.ask, (&plan, &prediction), (&best, &winner));
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        Ok(Answer { candidates: std::iter::once(chosen).chain(losers).collect(), bound, used })
    }

    /// Why there is no plan: limits with the nearest of all that was looked at, or what the search of uniform plans said.
    fn nothing(&self, uniform: Option<Infeasible>) -> Infeasible {
        let missed = self.misses.problems(self.ask.aim, "plan");
        if !missed.is_empty() {
            return Infeasible { reasons: missed, nearest: Vec::new() };
        }
        uniform.unwrap_or_else(|| {
            let message = "no plan fits into memory, with stages of whatever layers";
            let reasons = vec![Problem::new("plan", message).hint("more devices, or devices with more memory")];
            Infeasible { reasons, nearest: Vec::new() }
        })
    }

    /// What kinds hold what, in words.
    fn held(&self, plan: &Plan) -> Option<String> {
        let kinds = kinds(self.ask);
        if kinds.len() < 2 {
            return None;
        }
        let kind =
            |device| kinds.iter().find(|kind| kind.devices.contains(&device)).map_or("?", |kind| kind.name.as_str());
        let names = (0..plan.pipeline()).map(|position| {
            let mut names = Vec::new();
            for rank in 0..wide(plan) {
                let name = kind(plan.device(ir::Rank::new(position * wide(plan) + rank)));
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            let layers = plan.stages[position as usize].layers.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
            format!("{layers} on {}", names.join(" and "))
        });
        Some(format!("layers by stage: {}", names.collect::<Vec<_>>().join(", ")))
    }
}

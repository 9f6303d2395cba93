//! Every legal uniform plan, or proof that what was left out cannot win: the oracle of other planners.
//!
//! A *uniform* plan gives all stages equal shares and equal switches; [`Space`] says over which values of each key the
//! search goes. Nothing is tried twice, and three things are left out, each by an argument and not by a guess:
//!
//! * *bound*: [`Evaluator::floor`] gives a time that the plan's iteration cannot go under; over the best time so far,
//!   the plan cannot win;
//! * *recomputation*: a plan that fits is never slower than the same plan with more recomputation, which has every
//!   operation of it and more (an iteration is a maximum of sums of durations, so it grows with each of them). Not so
//!   where parameters or gradients are exchanged in halves of a layer (ZeRO-2 and 3 with tensor or context groups): full
//!   recomputation joins the halves, and exchanges that are fewer may save more than it costs;
//! * *memory*: a plan that does not fit ([`Evaluator::excess`]) need not be timed.
//!
//! So the candidates are the fastest plans there are, of those that differ in recomputation alone the fastest one.
//!
//! Replicas have equal shares of the batch while the search goes on. Of the plans that it shows, those with unlike replicas are
//! then tried with the shares by which these end together.
//!
//! With a budget too small for the space the planner says so; its first candidate is then the best of those tried.

mod space;
#[cfg(test)]
mod tests;

pub use space::Space;
pub(super) use space::{Degrees, Numbered, Values};

use std::collections::BTreeMap;

use ir::{Candidate, Infeasible, Plan, Prediction, Problem, Recompute, SimDuration, ZeroStage};

use super::megatron::why_slower;
use super::{Planner, Progress, Question, fits, misfit, words, worst_excess};
use crate::evaluate::Evaluator;
use space::Spaces;

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Exhaustive {
    /// What is searched.
    pub space: Space,
    /// Candidates that are reported, the chosen one included.
    pub shown: usize,
    /// Whether what cannot win is left out. Only a test of the arguments above switches it off.
    pub prune: bool,
}

impl Default for Exhaustive {
    fn default() -> Self {
        Self { space: Space::default(), shown: 10, prune: true }
    }
}

impl Planner for Exhaustive {
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        self.search(ask, evaluator, (budget, None), progress).answer
    }
}

/// What a search found, with how many evaluations, and whether it went through the whole space.
pub(super) struct Searched {
    pub(super) answer: Result<Vec<Candidate>, Infeasible>,
    pub(super) used: u64,
    pub(super) complete: bool,
}

/// Plans that may be looked at without an evaluation for each evaluation of a budget.
pub(super) const LOOKS: u64 = 32;

impl Exhaustive {
    /// Within a budget of evaluations, and of plans that are as fast as somebody else's if a time is given.
    pub(super) fn search(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        (budget, limit): (u64, Option<SimDuration>),
        progress: Progress<'_>,
    ) -> Searched {
        let mut search = Search::new(self, ask, evaluator, budget, progress);
        search.limit = limit;
        let looks = budget.saturating_mul(LOOKS);
        for (looked, shape) in (0..).zip(Spaces::new(&self.space, ask)) {
            if search.used >= budget || looked >= looks {
                search.cut_short = true;
                break;
            }
            search.ladder(shape);
        }
        search.share_out();
        let (used, complete) = (search.used, !search.cut_short);
        Searched { answer: search.finish(), used, complete }
    }
}

/// What became of the plans that were not evaluated or not legal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Tally {
    /// Plans that the rules of a runtime or of arithmetic forbid, by the first reason's subject.
    illegal: BTreeMap<String, u64>,
    /// Plans that cannot win by their floor.
    bounded: u64,
    /// Plans with more recomputation than one that fits.
    dominated: u64,
    /// Evaluated plans over a device's memory.
    over: u64,
    /// Evaluated plans that fit.
    fitting: u64,
}

struct Search<'a, 'b> {
    planner: &'a Exhaustive,
    ask: &'a Question<'b>,
    evaluator: &'a mut dyn Evaluator,
    budget: u64,
    progress: Progress<'a>,
    used: u64,
    cut_short: bool,
    /// What is to be beaten from the start.
    limit: Option<SimDuration>,
    tally: Tally,
    /// The best that fit, fastest first, at most as many as are shown.
    best: Vec<(Plan, Prediction)>,
    /// The plan nearest to fitting, and how far it is over its memory.
    closest: Option<(Plan, f64)>,
    /// Reasons of illegal plans, the first of each kind.
    refused: Vec<Problem>,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        planner: &'a Exhaustive,
        ask: &'a Question<'b>,
        evaluator: &'a mut dyn Evaluator,
        budget: u64,
        progress: Progress<'a>,
    ) -> Self {
        Self {
            planner,
            ask,
            evaluator,
            budget,
            progress,
            used: 0,
            cut_short: false,
            limit: None,
            tally: Tally::default(),
            best: Vec::new(),
            closest: None,
            refused: Vec::new(),
        }
    }

    /// One plan with growing recomputation, until it fits.
    fn ladder(&mut self, mut plan: Plan) {
        let steps = &self.planner.space.recompute;
        let mut fastest: Option<(Plan, Prediction)> = None;
        for (done, recompute) in steps.iter().enumerate() {
            plan.stages.iter_mut().for_each(|stage| stage.recompute = *recompute);
            let rest = (steps.len() - done) as u64;
            if self.planner.prune && self.cannot_win(&plan) {
                self.tally.bounded += rest;
                break;
            }
            match self.step(&plan) {
                Step::Fits(prediction) => {
                    if fastest.as_ref().is_none_or(|(_, best)| prediction.iteration < best.iteration) {
                        fastest = Some((plan.clone(), *prediction));
                    }
                    if self.planner.prune && is_fastest_of_its_recomputations(&plan) {
                        self.tally.dominated += rest - 1;
                        break;
                    }
                }
                Step::Illegal | Step::Over => {}
            }
        }
        if let Some((plan, prediction)) = fastest {
            self.keep(plan, prediction);
        }
    }

    /// Whether as many plans as are shown are at least as fast as this one can be.
    fn cannot_win(&mut self, plan: &Plan) -> bool {
        let slowest = self.best.get(self.planner.shown.saturating_sub(1)).map(|(_, slowest)| slowest.iteration);
        let Some(limit) = slowest.into_iter().chain(self.limit).min() else { return false };
        self.evaluator.floor(plan).is_some_and(|floor| floor >= limit)
    }

    fn step(&mut self, plan: &Plan) -> Step {
        if self.planner.prune
            && let Some(excess) = self.evaluator.excess(plan)
        {
            return self.over(plan, excess);
        }
        self.used += 1;
        if self.used.is_multiple_of(64) {
            (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
        }
        match self.evaluator.evaluate(plan) {
            Ok(prediction) if fits(&prediction) => {
                self.tally.fitting += 1;
                Step::Fits(Box::new(prediction))
            }
            Ok(prediction) => self.over(plan, worst_excess(&prediction)),
            Err(no) => {
                let first = no.reasons.first().map_or_else(String::new, |reason| reason.subject.clone());
                *self.tally.illegal.entry(first).or_default() += 1;
                for reason in no.reasons {
                    if self.refused.len() < MOST_REASONS && !self.refused.iter().any(|r| r.subject == reason.subject) {
                        self.refused.push(reason);
                    }
                }
                Step::Illegal
            }
        }
    }

    fn over(&mut self, plan: &Plan, excess: f64) -> Step {
        self.tally.over += 1;
        if self.closest.as_ref().is_none_or(|(_, least)| excess < *least) {
            self.closest = Some((plan.clone(), excess));
        }
        Step::Over
    }

    /// Ties keep the order of the search, which is fixed.
    fn keep(&mut self, plan: Plan, prediction: Prediction) {
        let at = self.best.partition_point(|(_, kept)| kept.iteration <= prediction.iteration);
        if at < self.planner.shown {
            self.best.insert(at, (plan, prediction));
            self.best.truncate(self.planner.shown);
        }
    }

    /// Unlike replicas take unequal shares where that is faster: of the plans that are shown.
    fn share_out(&mut self) {
        for (plan, _) in self.best.clone() {
            let Some(shared) = self.evaluator.share_out(&plan) else { continue };
            self.used += 1;
            if let Ok(prediction) = self.evaluator.evaluate(&shared)
                && fits(&prediction)
            {
                self.tally.fitting += 1;
                self.keep(shared, prediction);
            }
        }
    }

    fn finish(mut self) -> Result<Vec<Candidate>, Infeasible> {
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
        let closest = self.closest.take().and_then(|(plan, _)| {
            let prediction = self.evaluator.evaluate(&plan).ok()?;
            Some((plan, prediction))
        });
        let Some((best, winner)) = self.best.first().cloned() else { return Err(self.nothing(closest)) };
        let mut reasons =
            vec![format!("fastest of {} that fit: {:.3} s", self.tally.fitting, winner.iteration.seconds())];
        reasons.push(self.tally.words(self.used));
        if self.cut_short {
            reasons.push(format!(
                "the budget of {} evaluations ended the search: the rest of the space is open",
                self.budget
            ));
        }
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_slower(&plan, &prediction, &best, &winner);
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        let closest = closest.map(|(plan, prediction)| {
            let reasons = misfit(&prediction).into_iter().collect();
            Candidate { plan, evaluation: Ok(prediction), reasons }
        });
        Ok(std::iter::once(chosen).chain(losers).chain(closest).collect())
    }

    fn nothing(self, closest: Option<(Plan, Prediction)>) -> Infeasible {
        let mut reasons = Vec::new();
        if let Some((plan, prediction)) = &closest {
            let text = misfit(prediction).expect("it is over its memory");
            let message = format!("no uniform plan fits into memory; the closest, {}, {text}", words(plan));
            reasons.push(
                Problem::new("plan", message).hint("more devices, devices with more memory, or shorter sequences"),
            );
        }
        if self.cut_short {
            let message = format!("the budget of {} evaluations ended the search", self.budget);
            reasons.push(Problem::new("plan.budget", message).hint("a larger budget"));
        }
        if reasons.is_empty() {
            let message = format!(
                "no uniform plan divides {} layers and a batch of {} over {} devices",
                self.ask.model.layers,
                self.ask.workload.global_batch,
                self.ask.cluster.devices()
            );
            reasons.push(Problem::new("plan", message).hint("a batch with more divisors, or policy = \"manual\""));
        }
        reasons.extend(self.refused);
        Infeasible { reasons, nearest: Vec::new() }
    }
}

/// Whether no plan that differs from this one in more recomputation alone is faster; see the module.
pub(super) const fn is_fastest_of_its_recomputations(plan: &Plan) -> bool {
    let mesh = plan.mesh;
    match plan.zero {
        ZeroStage::Zero0 | ZeroStage::Zero1 => true,
        ZeroStage::Zero2 | ZeroStage::Zero3 => plan.tensor * mesh.context * mesh.expert * mesh.expert_tensor == 1,
    }
}

/// Kinds of reasons that are kept.
const MOST_REASONS: usize = 8;

enum Step {
    Fits(Box<Prediction>),
    Over,
    Illegal,
}

impl Tally {
    /// What became of all plans, in a sentence.
    fn words(&self, used: u64) -> String {
        let illegal = self.illegal.values().sum::<u64>();
        let mut text = format!(
            "{used} evaluated, of which {} fit and {illegal} are not legal; {} do not fit, {} cannot win by their floor, \
             {} recompute more than a plan that fits",
            self.fitting, self.over, self.bounded, self.dominated
        );
        if let Some((subject, count)) = self.illegal.iter().max_by_key(|(_, count)| **count) {
            text.push_str(&format!("; most often {subject} forbids ({count})"));
        }
        text
    }
}

/// The recomputation of a space, from least to most.
const LADDER: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

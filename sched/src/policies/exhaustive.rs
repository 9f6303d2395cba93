//! Every legal uniform plan, or proof that what was left out cannot win: the oracle of other planners.
//!
//! A *uniform* plan gives all stages equal shares and equal switches; [`Space`] says over which values of each key the
//! search goes. Nothing is tried twice, and three things are left out, each by an argument and not by a guess:
//!
//! * *bound*: [`Evaluator::floor`] gives a time that the plan's iteration cannot go under, and [`Evaluator::least`] money and
//!   energy; over the best so far of what is made small, the plan cannot win;
//! * *recomputation*: a plan that fits is never slower than the same plan with more recomputation, which has every
//!   operation of it and more (an iteration is a maximum of sums of durations, so it grows with each of them), nor does it take
//!   more money or energy. Not so
//!   where parameters or gradients are exchanged in halves of a layer (ZeRO-2 and 3 with tensor or context groups): full
//!   recomputation joins the halves, and exchanges that are fewer may save more than it costs;
//! * *memory*: a plan that does not fit ([`Evaluator::excess`]) need not be timed.
//!
//! So the candidates are the best plans there are, of those that differ in recomputation alone the best one.
//!
//! Plans that fit and break a limit of the question's aim are left out; where none keeps to all limits, the nearest to each is
//! said.
//!
//! Replicas have equal shares of the batch while the search goes on. Of the plans that it shows, those with unlike replicas are
//! then tried with the shares by which these end together; so are those that are nearest to a limit,
//! and where plans on fewer devices compete, the best on devices of several kinds.
//!
//! With a budget too small for the space the planner says so; its first candidate is then the best of those tried.

mod space;
#[cfg(test)]
mod tests;

pub use space::Space;
pub(super) use space::{Degrees, Numbered, Spaces, Values};

use std::collections::BTreeMap;

use ir::{Candidate, Infeasible, Plan, Prediction, Problem, Rank, Recompute, ZeroStage};

use super::{Planner, Progress, Question, left_idle, misfit, no_room, why_worse, words, worst_excess};
use crate::aim::{Misses, Score, fits};
use crate::evaluate::Evaluator;

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
    pub(super) misses: Misses,
}

/// Plans that may be looked at without an evaluation for each evaluation of a budget.
pub(super) const LOOKS: u64 = 32;

impl Exhaustive {
    /// Within a budget of evaluations, and of plans that may be better than somebody else's if a score is given.
    pub(super) fn search(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        (budget, limit): (u64, Option<Score>),
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
        let (used, complete, misses) = (search.used, !search.cut_short, search.misses.clone());
        Searched { answer: search.finish(), used, complete, misses }
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
    /// Those of them that break a limit.
    breaking: u64,
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
    limit: Option<Score>,
    tally: Tally,
    /// The best that are allowed, best first, at most as many as are shown.
    best: Vec<(Plan, Prediction)>,
    /// The plan nearest to fitting, and how far it is over its memory.
    closest: Option<(Plan, f64)>,
    /// Plans that break a limit.
    misses: Misses,
    /// Where plans on fewer devices compete: the best of those on devices of several kinds, which unequal shares may help.
    mixed: Vec<(Plan, Score)>,
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
            misses: Misses::default(),
            mixed: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// One plan with growing recomputation, until it fits.
    fn ladder(&mut self, mut plan: Plan) {
        let steps = &self.planner.space.recompute;
        let (aim, mut best) = (self.ask.aim, None::<(Plan, Prediction)>);
        for (done, recompute) in steps.iter().enumerate() {
            plan.stages.iter_mut().for_each(|stage| stage.recompute = *recompute);
            let rest = (steps.len() - done) as u64;
            if self.planner.prune && self.cannot_win(&plan) {
                self.tally.bounded += rest;
                break;
            }
            match self.step(&plan) {
                Step::Fits(prediction) => {
                    self.note_mixed(&plan, &prediction);
                    if !aim.allows(&prediction) {
                        self.tally.breaking += 1;
                        self.misses.note(aim, &plan, &prediction);
                    } else if best.as_ref().is_none_or(|(_, best)| aim.score(&prediction) < aim.score(best)) {
                        best = Some((plan.clone(), *prediction));
                    }
                    if self.planner.prune && is_best_of_its_recomputations(&plan) {
                        self.tally.dominated += rest - 1;
                        break;
                    }
                }
                Step::Illegal | Step::Over => {}
            }
        }
        if let Some((plan, prediction)) = best {
            self.keep(plan, prediction);
        }
    }

    /// Whether as many plans as are shown are at least as good as this one can be.
    fn cannot_win(&mut self, plan: &Plan) -> bool {
        let worst = self.best.get(self.planner.shown.saturating_sub(1)).map(|(_, worst)| self.ask.aim.score(worst));
        let Some(limit) = worst.into_iter().chain(self.limit).min() else { return false };
        self.ask.aim.floor(plan, self.evaluator).is_some_and(|floor| floor >= limit)
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
        let score = self.ask.aim.score(&prediction);
        let at = self.best.partition_point(|(_, kept)| self.ask.aim.score(kept) <= score);
        // Devices of one kind may come first among all.
        let known = self.ask.aim.may_leave_idle() && self.best.iter().any(|(known, _)| *known == plan);
        if at < self.planner.shown && !known {
            self.best.insert(at, (plan, prediction));
            self.best.truncate(self.planner.shown);
        }
    }

    /// Remembers a plan on devices of several kinds.
    fn note_mixed(&mut self, plan: &Plan, prediction: &Prediction) {
        let (aim, cluster) = (self.ask.aim, self.ask.cluster);
        if !aim.may_leave_idle() || cluster.device_kinds.len() < 2 || plan.data < 2 {
            return;
        }
        let kind = |rank: u32| cluster.place(plan.device(Rank::new(rank))).device_kind;
        let first = kind(0);
        let score = aim.score(prediction);
        let at = self.mixed.partition_point(|(_, known)| *known <= score);
        if at < self.planner.shown && (1..u32::try_from(plan.world()).unwrap_or(0)).any(|rank| kind(rank) != first) {
            self.mixed.insert(at, (plan.clone(), score));
            self.mixed.truncate(self.planner.shown);
        }
    }

    /// Unlike replicas take unequal shares where that is faster: of the plans that are shown, of those nearest to a limit, and
    /// of the best on devices of several kinds.
    fn share_out(&mut self) {
        let shown = self.best.iter().map(|(plan, _)| plan.clone());
        let mixed = std::mem::take(&mut self.mixed).into_iter().map(|(plan, _)| plan);
        for plan in shown.chain(self.misses.plans()).chain(mixed).collect::<Vec<_>>() {
            let Some(shared) = self.evaluator.share_out(&plan) else { continue };
            self.used += 1;
            let Ok(prediction) = self.evaluator.evaluate(&shared) else { continue };
            if self.ask.aim.allows(&prediction) {
                self.tally.fitting += 1;
                self.keep(shared, prediction);
            } else if fits(&prediction) {
                self.tally.fitting += 1;
                self.tally.breaking += 1;
                self.misses.note(self.ask.aim, &shared, &prediction);
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
        let aim = self.ask.aim;
        let allowed = self.tally.fitting - self.tally.breaking;
        let figure = self.ask.figure(&winner);
        let mut reasons = vec![format!("{} of {allowed} {}: {figure}", aim.best(), aim.who_fit())];
        reasons.push(self.tally.words(self.used));
        reasons.extend(left_idle(self.ask, &best));
        if self.cut_short {
            reasons.push(format!(
                "the budget of {} evaluations ended the search: the rest of the space is open",
                self.budget
            ));
        }
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_worse(self.ask, (&plan, &prediction), (&best, &winner));
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        let closest = closest.map(|(plan, prediction)| {
            let reasons = misfit(&prediction).into_iter().collect();
            Candidate { plan, evaluation: Ok(prediction), reasons }
        });
        Ok(std::iter::once(chosen).chain(losers).chain(closest).collect())
    }

    fn nothing(self, closest: Option<(Plan, Prediction)>) -> Infeasible {
        let mut reasons = self.misses.problems(self.ask.aim, "uniform plan");
        if let Some((plan, prediction)) = closest.as_ref().filter(|_| reasons.is_empty()) {
            let text = misfit(prediction).expect("it is over its memory");
            let message = format!("no uniform plan fits into memory; the closest, {}, {text}", words(plan));
            reasons.push(no_room(
                self.ask,
                message,
                prediction,
                "more devices, devices with more memory, or shorter sequences",
            ));
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
                self.ask.devices()
            );
            reasons.push(Problem::new("plan", message).hint("a batch with more divisors, or policy = \"manual\""));
        }
        reasons.extend(self.refused);
        Infeasible { reasons, nearest: Vec::new() }
    }
}

/// Whether no plan that differs from this one in more recomputation alone is better; see the module.
pub(super) const fn is_best_of_its_recomputations(plan: &Plan) -> bool {
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
        if self.breaking > 0 {
            text.push_str(&format!("; {} break a constraint", self.breaking));
        }
        if let Some((subject, count)) = self.illegal.iter().max_by_key(|(_, count)| **count) {
            text.push_str(&format!("; most often {subject} forbids ({count})"));
        }
        text
    }
}

/// The recomputation of a space, from least to most.
const LADDER: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

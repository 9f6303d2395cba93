//! Stages of unequal layers on unlike devices, by dynamic programming, with a bound on what is left.
//!
//! The search goes over three families of plans, with every value of the keys of a [`Space`]:
//!
//! 1. *Uniform plans*, ranks on devices as they come: those of [`Exhaustive`], which is asked first.
//! 2. *Stages*: plans with one chunk a position (1F1B, ZB-H1, `GPipe`) and ZeRO-0 or 1. Layers are cut anywhere, each position has
//!    a layer at least and devices of one kind, and recomputation of a mode for the first so many of its layers: the fewest
//!    with which it fits, in the mode that is fastest. On a cluster of one kind ranks stay where they are; else the rows of
//!    each kind follow each other in its nodes, if a position's devices are whole nodes or equal parts of one, with any number
//!    of replicas that uses more than half of all devices; where fewer devices may do, on those of some kinds alone too, and
//!    with any number of replicas.
//! 3. *Replicas*: the same with the same cuts for all replicas, each of devices of one kind, and unequal shares of the batch;
//!    without context groups and divided experts.
//!
//! Of each set of degrees of the second family the `pipeline` module finds the cuts whose bound is least; of the third, no
//! replica is faster than its slowest stage, whatever the cut. What is shown was evaluated: the bounds only say where to look,
//! and that nothing else can be faster than the least of them. That is said with the answer, as the gap that may be left.
//!
//! With money or energy as the objective the bounds are those times, at what devices cost in each second at least: of a plan of so
//! many ranks, the cheapest devices of the kinds that it may use. Cuts are still made for time, which on given devices is made
//! for money too; the gap counts what energy would have liked better.
//!
//! Not in the space: several chunks a position with unequal layers, tensor or context degrees that differ from stage to stage
//! (a plan has one of each), positions or replicas that mix kinds in other ways than uniform plans do, and schedules that are
//! searched for or written out.

mod answer;
pub(super) mod bare;
pub(super) mod kinds;
mod moves;
pub(super) mod pipeline;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ir::{Candidate, Infeasible, Plan, Prediction, Recompute, Schedule, StagePlan, ZeroStage};

use super::exhaustive::{Exhaustive, LOOKS, Numbered, Searched, Space};
use super::{Planner, Progress, Question};
use crate::aim::{Misses, Objective, Pool, Score, fits};
use crate::evaluate::Evaluator;
use crate::legality::{balanced_stages, legal};
use bare::{BareTimes, Times};
use kinds::{Kind, Priced, kinds, of_kinds, placed, rows, subsets, wide};
use moves::moves;
use pipeline::{Cut, Held, Least, Order, Pipeline};

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct DynProg {
    /// Values of the keys that are searched.
    pub space: Space,
    /// Candidates that are reported, the chosen one included.
    pub shown: usize,
}

impl Default for DynProg {
    fn default() -> Self {
        Self { space: Space::default(), shown: 10 }
    }
}

impl Planner for DynProg {
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        self.search(ask, evaluator, budget, progress).map(|found| found.candidates)
    }
}

/// What a search found.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) candidates: Vec<Candidate>,
    /// A score that no plan of the space goes under; `None` if the budget ended the search of uniform plans.
    pub(super) bound: Option<f64>,
    /// Evaluations.
    pub(super) used: u64,
}

impl DynProg {
    pub(super) fn search(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Answer, Infeasible> {
        self.search_noting(ask, evaluator, budget, progress, &mut Misses::default())
    }

    /// The same, with what was found that breaks a limit.
    pub(super) fn search_noting(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
        noted: &mut Misses,
    ) -> Result<Answer, Infeasible> {
        let uniform = Exhaustive { space: self.space.clone(), shown: self.shown, prune: true };
        // Of a small budget a part, and what is left in the end: with a good plan to beat most of them need no look.
        let part = (budget.div_ceil(4), None);
        let Searched { answer, used, mut complete, misses } = uniform.search(ask, evaluator, part, progress);
        let mut search = Search::new(self, ask, evaluator, (budget, used), progress);
        search.misses = misses;
        let nothing = match answer {
            Ok(candidates) => {
                for candidate in candidates {
                    if let Ok(prediction) = candidate.evaluation
                        && ask.aim.allows(&prediction)
                    {
                        search.keep(candidate.plan, prediction);
                    }
                }
                None
            }
            Err(no) => Some(no),
        };
        search.uniform = search.limit();
        for kinds in subsets(kinds(ask), ask.aim.may_leave_idle()) {
            search.on(kinds);
            search.stages();
            search.replicas();
        }
        search.refine();
        if !complete {
            complete = search.rest(&uniform);
        }
        noted.merge(&search.misses);
        search.finish(complete, nothing)
    }
}

struct Search<'a, 'b> {
    planner: &'a DynProg,
    ask: &'a Question<'b>,
    evaluator: &'a mut dyn Evaluator,
    budget: u64,
    progress: Progress<'a>,
    used: u64,
    /// Kinds of devices that are looked at, and what each nanosecond of a rank costs there, ascending.
    kinds: Vec<Kind>,
    rates: Vec<f64>,
    /// The best that are allowed, best first.
    best: Vec<(Plan, Prediction)>,
    /// Plans that break a limit.
    misses: Misses,
    /// The best uniform plan.
    uniform: Score,
    /// What no plan of the second and third family goes under, as far as it is under the best.
    bound: f64,
    /// Sets of degrees that were cut, and those that cannot win.
    cut: u64,
    bounded: u64,
    open: bool,
    known: BareTimes,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        planner: &'a DynProg,
        ask: &'a Question<'b>,
        evaluator: &'a mut dyn Evaluator,
        (budget, used): (u64, u64),
        progress: Progress<'a>,
    ) -> Self {
        Self {
            planner,
            ask,
            evaluator,
            budget,
            progress,
            used,
            kinds: Vec::new(),
            rates: Vec::new(),
            best: Vec::new(),
            misses: Misses::default(),
            uniform: Score::WORST,
            bound: f64::INFINITY,
            cut: 0,
            bounded: 0,
            open: false,
            known: BareTimes::default(),
        }
    }

    /// Looks at devices of some kinds alone.
    fn on(&mut self, kinds: Vec<Kind>) {
        let devices = kinds.iter().flat_map(|kind| &kind.devices);
        self.rates = devices.map(|device| self.ask.aim.rate(self.evaluator.rate(*device))).collect();
        self.rates.sort_by(f64::total_cmp);
        self.kinds = kinds;
        self.known.clear();
    }

    /// What is to be beaten.
    fn limit(&self) -> Score {
        self.best.first().map_or(Score::WORST, |(_, prediction)| self.ask.aim.score(prediction))
    }

    /// What each nanosecond of so many ranks adds to a score at least. Time is the same for all of them.
    fn rate(&self, ranks: u64) -> f64 {
        if self.ask.aim.objective == Objective::Time {
            return 1.0;
        }
        self.rates.iter().take(usize::try_from(ranks).unwrap_or(usize::MAX)).sum()
    }

    /// Nanoseconds from which on a plan cannot win, at a rate.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and past all times")]
    fn time_limit(&self, rate: f64) -> u64 {
        let limit = self.limit().get() / rate;
        if rate > 0.0 && limit.is_finite() { limit.ceil() as u64 } else { u64::MAX }
    }

    /// The score of a time that no plan of a kind goes under; rounded down, where that is not exact.
    fn bounded(&self, time: u64, rate: f64) -> f64 {
        let exact = self.ask.aim.objective == Objective::Time;
        time as f64 * rate * if exact { 1.0 } else { 1.0 - 1e-12 }
    }

    fn keep(&mut self, plan: Plan, prediction: Prediction) {
        if self.best.iter().any(|(known, _)| *known == plan) {
            return;
        }
        let score = self.ask.aim.score(&prediction);
        let at = self.best.partition_point(|(_, kept)| self.ask.aim.score(kept) <= score);
        self.best.insert(at, (plan, prediction));
        self.best.truncate(self.planner.shown.max(1));
    }

    fn count(&mut self) {
        self.used += 1;
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
    }

    /// Evaluates a plan, and keeps it if it is allowed; whether it is the best now.
    fn evaluate(&mut self, plan: Plan) -> bool {
        let (aim, limit) = (self.ask.aim, self.limit());
        let found = self.evaluator.evaluate(&plan).ok().filter(fits);
        let better = found.as_ref().is_some_and(|found| aim.allows(found) && aim.score(found) < limit);
        match found {
            Some(prediction) if aim.allows(&prediction) => self.keep(plan, prediction),
            Some(prediction) => self.misses.note(aim, &plan, &prediction),
            None => {}
        }
        self.count();
        better
    }

    /// The plans of the second and third family, laid on the devices that are looked at where these are of one kind.
    fn numbered(&self) -> Numbered {
        let devices = self.kinds.iter().flat_map(|kind| kind.devices.iter().copied()).collect();
        Numbered::on(&self.space(), self.ask, Pool::of(devices))
    }

    /// How many devices are looked at.
    fn devices(&self) -> u64 {
        self.rates.len() as u64
    }

    /// Numbers of the degrees that the second family has plans of.
    fn numbers(&self, numbered: &Numbered) -> Vec<u64> {
        let (devices, several) = (self.devices(), self.kinds.len() > 1 && !self.ask.aim.may_leave_idle());
        let mut found = Vec::new();
        numbered.each(|number, ranks, zero, (schedule, chunks)| {
            let shallow = matches!(zero, ZeroStage::Zero0 | ZeroStage::Zero1);
            let used = ranks <= devices && (!several || 2 * ranks > devices);
            if used && shallow && chunks == 1 && order(schedule).is_some() {
                found.push(number);
            }
        });
        found
    }

    /// The space of the second family: where kinds differ, any number of replicas may suit them.
    fn space(&self) -> Space {
        let mut space = self.planner.space.clone();
        if self.kinds.len() > 1 && space.data.is_empty() {
            let (batch, devices) = (self.ask.workload.global_batch, self.devices());
            let most = u32::try_from(devices).unwrap_or(u32::MAX).min(batch);
            space.data = (1..=most).filter(|data| batch.is_multiple_of(*data)).collect();
        }
        space
    }

    /// Uniform plans again, of those that may still be the best; whether none is left.
    fn rest(&mut self, uniform: &Exhaustive) -> bool {
        let (aim, left) = (self.ask.aim, self.budget.saturating_sub(self.used));
        let limit = self.best.first().map(|(_, prediction)| aim.score(prediction));
        let found = uniform.search(self.ask, &mut *self.evaluator, (left, limit), &mut |_, _| {});
        self.used += found.used;
        self.misses.merge(&found.misses);
        for candidate in found.answer.into_iter().flatten() {
            if let Ok(prediction) = candidate.evaluation
                && aim.allows(&prediction)
            {
                self.uniform = self.uniform.min(aim.score(&prediction));
                self.keep(candidate.plan, prediction);
            }
        }
        found.complete
    }

    /// The second family: degrees by growing bound, until none can win.
    fn stages(&mut self) {
        let numbered = self.numbered();
        let mut open = Vec::new();
        let looks = self.budget.saturating_mul(LOOKS);
        for (looked, number) in (0..).zip(self.numbers(&numbered)) {
            if looked >= looks {
                (self.open, self.bound) = (true, 0.0);
                break;
            }
            let plan = numbered.plan(number);
            if !self.is_legal(&plan) {
                continue;
            }
            let rate = self.rate(plan.world());
            let time = self.least(&plan);
            let least = self.bounded(time, rate);
            if least < self.limit().get() {
                open.push((least, number));
            } else {
                self.bounded += 1;
            }
        }
        open.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (done, (least, number)) in open.iter().enumerate() {
            if *least >= self.limit().get() {
                self.bounded += (open.len() - done) as u64;
                break;
            }
            if self.used >= self.budget {
                self.open = true;
                self.bound = self.bound.min(*least);
                break;
            }
            self.cut(&numbered.plan(*number));
        }
    }

    /// Whether degrees are legal, on rows of kinds in order.
    fn is_legal(&self, plan: &Plan) -> bool {
        let mut plan = plan.clone();
        if self.kinds.len() == 1 && plan.world() > self.devices() {
            return false;
        }
        if self.kinds.len() > 1 {
            let wide = wide(&plan);
            let rows = self.kinds.iter().flat_map(|kind| {
                let rows = kind.rows(wide) as usize * wide as usize;
                kind.devices.iter().take(rows).copied()
            });
            plan.placement = rows.take((wide * plan.pipeline()) as usize).collect();
        }
        legal(&plan, self.ask.model, self.ask.workload, self.ask.cluster).is_empty()
    }

    fn priced<'c>(&'c mut self, plan: &Plan) -> Priced<'c> {
        let model = self.ask.model;
        let of = (model.layers, !model.variants.pattern.is_empty());
        Priced::new(&mut *self.evaluator, (plan, &self.planner.space.recompute), &self.kinds, of)
    }

    fn pipeline(&self, plan: &Plan) -> Option<Pipeline> {
        let order = order(&plan.schedule)?;
        let (positions, layers) = (plan.pipeline(), self.ask.model.layers);
        Some(Pipeline { order, positions, layers, microbatches: plan.microbatches })
    }

    /// What no cut of some degrees goes under, without cutting.
    fn least(&mut self, plan: &Plan) -> u64 {
        let Some(pipeline) = self.pipeline(plan) else { return 0 };
        let times = self.bare(plan);
        let rows = rows(&self.kinds, plan);
        pipeline.least(&Least::new(&times, &rows, pipeline.positions, pipeline.layers), &rows)
    }

    /// By kind, what the passes of one microbatch take at least through each number of layers.
    fn bare(&mut self, plan: &Plan) -> Times {
        let of = (self.ask, &self.kinds[..], &self.planner.space.recompute[..]);
        self.known.of(&mut *self.evaluator, of, plan)
    }

    /// One set of degrees of the second family.
    fn cut(&mut self, plan: &Plan) {
        let Some(pipeline) = self.pipeline(plan) else { return };
        let rate = self.rate(plan.world());
        let limit = self.time_limit(rate);
        let (times, rows) = (self.bare(plan), rows(&self.kinds, plan));
        let least = Least::new(&times, &rows, pipeline.positions, pipeline.layers);
        let found = pipeline.cut(&mut self.priced(plan), &least, limit);
        self.cut += 1;
        self.count();
        self.bound = self.bound.min(self.bounded(found.bound, rate));
        for cut in found.cuts {
            if pipeline.bound(&cut) < self.time_limit(rate) {
                let plan = placed(plan, &cut, &self.kinds);
                self.evaluate(plan);
            }
        }
    }

    /// The third family, where there are several kinds.
    fn replicas(&mut self) {
        if self.kinds.len() < 2 {
            return;
        }
        let numbered = self.numbered();
        let mut seen = BTreeSet::new();
        for number in self.numbers(&numbered) {
            let plan = numbered.plan(number);
            let plain = plan.mesh.context * plan.mesh.expert * plan.mesh.expert_tensor == 1;
            let key = (plan.tensor, plan.pipeline(), plan.microbatch_size, plan.sequence_parallel, plan.zero);
            if !plain || !seen.insert((key, plan.schedule.name())) {
                continue;
            }
            if self.used >= self.budget {
                self.open = true;
                self.bound = 0.0;
                return;
            }
            if let Some((plan, counts)) = of_kinds(&self.kinds, &plan, self.ask.workload.global_batch) {
                self.shared(&plan, &counts);
            }
        }
    }

    /// Cuts of one plan of the third family, with the shares by which its replicas end together.
    fn shared(&mut self, plan: &Plan, counts: &[u32]) {
        let Some(order) = order(&plan.schedule) else { return };
        let layers = self.ask.model.layers;
        let microbatches = self.ask.workload.global_batch / plan.microbatch_size;
        let of = (layers, !self.ask.model.variants.pattern.is_empty());
        let of_kinds = counts.iter().enumerate().filter(|(_, count)| **count > 0).collect::<Vec<_>>();
        // One replica alone, and its slowest position at least.
        let alone = Plan { data: 1, placement: Vec::new(), ..plan.clone() };
        let recompute = &self.planner.space.recompute;
        let (positions, rows) = (plan.pipeline(), [plan.pipeline()]);
        let (mut rate, mut bounds) = (0.0, Vec::new());
        for (kind, count) in &of_kinds {
            let kinds = (self.ask, &self.kinds[..], &recompute[..]);
            let times = self.known.alone(&mut *self.evaluator, kinds, (&alone, *kind));
            let least = Least::new(&times, &rows, positions, layers);
            let slowest = Pipeline { order: Order::Slowest, positions, layers, microbatches: 1 }.least(&least, &rows);
            let each = 1.0 / slowest.max(1) as f64;
            rate += f64::from(**count) * each;
            bounds.push((least, each));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down, and not negative")]
        let whole = |number: f64| (number * (1.0 - 1e-9)) as u64;
        let cost = if self.ask.aim.objective == Objective::Time {
            1.0
        } else {
            plan.placement.iter().map(|device| self.ask.aim.rate(self.evaluator.rate(*device))).sum()
        };
        let (bound, limit) = (whole(f64::from(microbatches) / rate), self.time_limit(cost));
        if bound >= limit {
            self.bounded += 1;
            return;
        }
        self.bound = self.bound.min(self.bounded(bound, cost));
        let mut cuts = Vec::<Cut>::new();
        for ((kind, _), (least, each)) in of_kinds.into_iter().zip(&bounds) {
            let mut priced = Priced::of_one(&mut *self.evaluator, (&alone, recompute), &self.kinds[kind], of);
            // With its part of the batch.
            let share = u32::try_from(whole(f64::from(microbatches) / rate * each)).unwrap_or(u32::MAX).max(1);
            let pipeline = Pipeline { order, positions, layers, microbatches: share };
            cuts.extend(pipeline.cut(&mut priced, least, limit).cuts.into_iter().take(1));
            self.used += 1;
        }
        self.cut += 1;
        let mut tries = cuts.iter().map(stages_of).collect::<Vec<_>>();
        for recompute in self.planner.space.recompute.clone() {
            tries.push(balanced_stages(layers, plan.pipeline(), 1, recompute));
        }
        tries.dedup();
        for stages in tries {
            let plan = Plan { stages, ..plan.clone() };
            if let Some(shared) = self.evaluator.share_out(&plan) {
                self.evaluate(shared);
            }
        }
    }

    /// Moves single layers, and swaps rows of unlike kinds, as long as that is faster.
    fn refine(&mut self) {
        let mut left = MOVES;
        while let Some((plan, _)) = self.best.first().cloned() {
            if plan.chunks_per_stage() != 1 || matches!(plan.schedule, Schedule::Explicit(_)) {
                return;
            }
            let mut faster = false;
            for moved in moves(&plan) {
                if left == 0 || self.used >= self.budget {
                    return;
                }
                left -= 1;
                faster |= self.evaluate(moved);
                if faster {
                    break;
                }
            }
            if !faster {
                return;
            }
        }
    }
}

/// Evaluations that moves of single layers may take.
const MOVES: u32 = 200;

/// What the bound counts on; `None` for schedules that it does not know.
pub(super) const fn order(schedule: &Schedule) -> Option<Order> {
    match schedule {
        Schedule::OneForwardOneBackward => Some(Order::OneForwardOneBackward),
        Schedule::GPipe => Some(Order::GPipe),
        Schedule::ZeroBubbleH1 => Some(Order::Split),
        _ => None,
    }
}

pub(super) fn stages_of(cut: &Cut) -> Vec<StagePlan> {
    let stage = |(held, stage): &(Held, pipeline::Stage)| StagePlan {
        layers: vec![held.layers],
        recompute: stage.recompute,
        recompute_layers: stage.recomputed.filter(|_| stage.recompute != Recompute::None),
        tensor: None,
    };
    cut.iter().map(stage).collect()
}

//! Stages of unequal layers on unlike devices, by dynamic programming, with a bound on what is left.
//!
//! The search goes over three families of plans, with every value of the keys of a [`Space`]:
//!
//! 1. *Uniform plans*, ranks on devices as they come: those of [`Exhaustive`], which is asked first.
//! 2. *Stages*: plans with one chunk a position (1F1B, ZB-H1, `GPipe`) and ZeRO-0 or 1. Layers are cut anywhere, each position has
//!    a layer at least and devices of one kind, and recomputation of a mode for the first so many of its layers: the fewest
//!    with which it fits, in the mode that is fastest. On a cluster of one kind ranks stay where they are; else the rows of
//!    each kind follow each other in its nodes, if a position's devices are whole nodes or equal parts of one, with any number
//!    of replicas that uses more than half of all devices.
//! 3. *Replicas*: the same with the same cuts for all replicas, each of devices of one kind, and unequal shares of the batch;
//!    without context groups and divided experts.
//!
//! Of each set of degrees of the second family the `pipeline` module finds the cuts whose bound is least; of the third, no
//! replica is faster than its slowest stage, whatever the cut. What is shown was evaluated: the bounds only say where to look,
//! and that nothing else can be faster than the least of them. That is said with the answer, as the gap that may be left.
//!
//! Not in the space: several chunks a position with unequal layers, tensor or context degrees that differ from stage to stage
//! (a plan has one of each), positions or replicas that mix kinds in other ways than uniform plans do, and schedules that are
//! searched for or written out.

pub(super) mod bare;
pub(super) mod kinds;
pub(super) mod pipeline;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ir::{Candidate, Infeasible, Plan, Prediction, Problem, Recompute, Schedule, StagePlan, ZeroStage};

use super::exhaustive::{Exhaustive, LOOKS, Numbered, Searched, Space};
use super::megatron::why_slower;
use super::{Planner, Progress, Question, fits, misfit, percent};
use crate::evaluate::Evaluator;
use crate::legality::{balanced_stages, legal};
use bare::{BareTimes, Times};
use kinds::{Kind, Priced, kinds, of_kinds, placed, rows, wide};
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
    /// Nanoseconds that no plan of the space goes under; `None` if the budget ended the search of uniform plans.
    pub(super) bound: Option<u64>,
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
        let uniform = Exhaustive { space: self.space.clone(), shown: self.shown, prune: true };
        // Of a small budget a part, and what is left in the end: with a fast plan to beat most of them need no look.
        let part = (budget.div_ceil(4), None);
        let Searched { answer, used, mut complete } = uniform.search(ask, evaluator, part, progress);
        let mut search = Search::new(self, ask, evaluator, (budget, used), progress);
        let nothing = match answer {
            Ok(candidates) => {
                for candidate in candidates {
                    if let Ok(prediction) = candidate.evaluation
                        && fits(&prediction)
                    {
                        search.keep(candidate.plan, prediction);
                    }
                }
                None
            }
            Err(no) => Some(no),
        };
        search.uniform = search.limit();
        search.stages();
        search.replicas();
        search.refine();
        if !complete {
            complete = search.rest(&uniform);
        }
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
    kinds: Vec<Kind>,
    /// The best that fit, fastest first.
    best: Vec<(Plan, Prediction)>,
    /// The fastest uniform plan, in nanoseconds.
    uniform: u64,
    /// What no plan of the second and third family goes under, as far as it is under the fastest.
    bound: u64,
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
        let kinds = kinds(ask.cluster);
        let (best, uniform, bound) = (Vec::new(), u64::MAX, u64::MAX);
        let (cut, bounded, open) = (0, 0, false);
        let known = BareTimes::default();
        Self { planner, ask, evaluator, budget, progress, used, kinds, best, uniform, bound, cut, bounded, open, known }
    }

    /// What is to be beaten, in nanoseconds.
    fn limit(&self) -> u64 {
        self.best.first().map_or(u64::MAX, |(_, prediction)| prediction.iteration.nanoseconds())
    }

    fn keep(&mut self, plan: Plan, prediction: Prediction) {
        if self.best.iter().any(|(known, _)| *known == plan) {
            return;
        }
        let at = self.best.partition_point(|(_, kept)| kept.iteration <= prediction.iteration);
        self.best.insert(at, (plan, prediction));
        self.best.truncate(self.planner.shown.max(1));
    }

    fn count(&mut self) {
        self.used += 1;
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
    }

    /// Evaluates a plan, and keeps it if it fits; whether it is the fastest now.
    fn evaluate(&mut self, plan: Plan) -> bool {
        let limit = self.limit();
        let found = self.evaluator.evaluate(&plan).ok().filter(fits);
        let faster = found.as_ref().is_some_and(|found| found.iteration.nanoseconds() < limit);
        if let Some(prediction) = found {
            self.keep(plan, prediction);
        }
        self.count();
        faster
    }

    /// Numbers of the degrees that the second family has plans of.
    fn numbers(&self, numbered: &Numbered) -> Vec<u64> {
        let (devices, several) = (self.ask.cluster.devices(), self.kinds.len() > 1);
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
            let (batch, devices) = (self.ask.workload.global_batch, self.ask.cluster.devices());
            let most = u32::try_from(devices).unwrap_or(u32::MAX).min(batch);
            space.data = (1..=most).filter(|data| batch.is_multiple_of(*data)).collect();
        }
        space
    }

    /// Uniform plans again, of those that may still be the fastest; whether none is left.
    fn rest(&mut self, uniform: &Exhaustive) -> bool {
        let left = self.budget.saturating_sub(self.used);
        let limit = self.best.first().map(|(_, prediction)| prediction.iteration);
        let found = uniform.search(self.ask, &mut *self.evaluator, (left, limit), &mut |_, _| {});
        self.used += found.used;
        for candidate in found.answer.into_iter().flatten() {
            if let Ok(prediction) = candidate.evaluation
                && fits(&prediction)
            {
                self.uniform = self.uniform.min(prediction.iteration.nanoseconds());
                self.keep(candidate.plan, prediction);
            }
        }
        found.complete
    }

    /// The second family: degrees by growing bound, until none can win.
    fn stages(&mut self) {
        let numbered = Numbered::new(&self.space(), self.ask);
        let mut open = Vec::new();
        let looks = self.budget.saturating_mul(LOOKS);
        for (looked, number) in (0..).zip(self.numbers(&numbered)) {
            if looked >= looks {
                (self.open, self.bound) = (true, 0);
                break;
            }
            let plan = numbered.plan(number);
            if !self.is_legal(&plan) {
                continue;
            }
            let least = self.least(&plan);
            if least < self.limit() {
                open.push((least, number));
            } else {
                self.bounded += 1;
            }
        }
        open.sort_unstable();
        for (done, (least, number)) in open.iter().enumerate() {
            if *least >= self.limit() {
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
        let limit = self.limit();
        let (times, rows) = (self.bare(plan), rows(&self.kinds, plan));
        let least = Least::new(&times, &rows, pipeline.positions, pipeline.layers);
        let found = pipeline.cut(&mut self.priced(plan), &least, limit);
        self.cut += 1;
        self.count();
        self.bound = self.bound.min(found.bound);
        for cut in found.cuts {
            if pipeline.bound(&cut) < self.limit() {
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
        let numbered = Numbered::new(&self.space(), self.ask);
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
                self.bound = 0;
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
        let (bound, limit) = (whole(f64::from(microbatches) / rate), self.limit());
        if bound >= limit {
            self.bounded += 1;
            return;
        }
        self.bound = self.bound.min(bound);
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

    fn finish(self, complete: bool, nothing: Option<Infeasible>) -> Result<Answer, Infeasible> {
        let Some((best, winner)) = self.best.first().cloned() else {
            return Err(nothing.unwrap_or_else(|| {
                let message = "no plan fits into memory, with stages of whatever layers";
                let reasons = vec![Problem::new("plan", message).hint("more devices, or devices with more memory")];
                Infeasible { reasons, nearest: Vec::new() }
            }));
        };
        let (time, used) = (winner.iteration.nanoseconds(), self.used);
        let bound = complete.then(|| self.bound.min(time));
        let mut reasons = vec![format!("fastest of {} looked at: {:.3} s", self.used, winner.iteration.seconds())];
        reasons.push(match bound {
            Some(bound) if bound == time => "no plan of the space is faster".to_owned(),
            Some(0) => "the budget ended the search: nothing bounds what is left".to_owned(),
            Some(bound) => format!(
                "no plan of the space is faster than {:.3} s, so at most {:.1} % are left",
                bound as f64 * 1e-9,
                (1.0 - bound as f64 / time as f64) * 100.0
            ),
            None => "the budget ended the search of uniform plans: nothing bounds what is left".to_owned(),
        });
        reasons.push(format!("{} sets of degrees cut, {} cannot win by their bound", self.cut, self.bounded));
        if self.open {
            reasons.push(format!("the budget of {} ended the search: the bound counts what is open", self.budget));
        }
        if self.uniform > time && self.uniform < u64::MAX {
            let gain = self.uniform as f64 / time as f64;
            reasons.push(format!("{} faster than the best uniform plan", percent(gain - 1.0)));
        }
        reasons.extend(self.held(&best));
        reasons.extend(misfit(&winner));
        let chosen = Candidate { plan: best.clone(), evaluation: Ok(winner.clone()), reasons };
        let losers = self.best.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_slower(&plan, &prediction, &best, &winner);
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        Ok(Answer { candidates: std::iter::once(chosen).chain(losers).collect(), bound, used })
    }

    /// What kinds hold what, in words.
    fn held(&self, plan: &Plan) -> Option<String> {
        if self.kinds.len() < 2 {
            return None;
        }
        let kind = |device| {
            self.kinds.iter().find(|kind| kind.devices.contains(&device)).map_or("?", |kind| kind.name.as_str())
        };
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
    };
    cut.iter().map(stage).collect()
}

/// A plan with one layer moved to a neighbour, or with the devices of two neighbours swapped.
pub(super) fn moves(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let pairs = || (1..plan.stages.len()).flat_map(|at| [(at - 1, at), (at, at - 1)]);
    for (from, to) in pairs() {
        if plan.stages[from].layers[0] > 1 {
            let mut moved = plan.clone();
            moved.stages[from].layers[0] -= 1;
            moved.stages[to].layers[0] += 1;
            for stage in [from, to] {
                let most = moved.stages[stage].layers[0];
                let layers = &mut moved.stages[stage].recompute_layers;
                *layers = layers.map(|layers| layers.min(most));
            }
            found.push(moved);
        }
    }
    if !plan.placement.is_empty() {
        let wide = wide(plan) as usize;
        for at in 1..plan.stages.len() {
            let mut swapped = plan.clone();
            let (before, after) = swapped.placement.split_at_mut(at * wide);
            before[(at - 1) * wide..].swap_with_slice(&mut after[..wide]);
            found.push(swapped.clone());
            swapped.stages.swap(at - 1, at);
            found.push(swapped);
        }
    }
    found
}

//! Layers cut from the first position on, with what no completion of a cut goes under.
//!
//! The bounds are those of `dynprog`: of what is not cut yet, all layers together and the slowest position count.

use ir::{Plan, Recompute};
use rustc_hash::FxHashMap;

use super::super::Question;
use super::super::dynprog::bare::{BareTimes, Times};
use super::super::dynprog::kinds::{Kind, Priced, placed, rows};
use super::super::dynprog::pipeline::{Cut, Held, Least, Order, Pipeline, Rows, Stage};
use super::super::dynprog::{order, stages_of};
use super::steps::{Action, Choice, Layout, State, Step};
use crate::evaluate::Evaluator;

/// What chunks take, by cutting. Looked up only.
pub(super) type Known = FxHashMap<(usize, Held), Option<Stage>>;

/// A question with its kinds and recomputation.
type Of<'a, 'b> = (&'a Question<'b>, &'a [Kind], &'a [Recompute]);

/// A plan to be cut.
#[derive(Debug)]
pub(super) struct Cutting {
    /// Its number among all of them.
    number: usize,
    plan: Plan,
    layout: Layout,
    pipeline: Pipeline,
    rows: Vec<u32>,
    /// Of stages one; of replicas one for each kind that has some.
    least: Vec<Least>,
    /// Of replicas: what passes take at least by number of layers, and how many replicas a kind has.
    replicas: Vec<(Times, u32)>,
    /// Microbatches of all replicas.
    microbatches: u32,
}

impl Cutting {
    /// Positions on rows of kinds.
    pub(super) fn of_stages(
        (number, plan): (usize, Plan),
        (ask, kinds, recompute): Of<'_, '_>,
        bare: &mut BareTimes,
        evaluator: &mut dyn Evaluator,
    ) -> Option<Self> {
        let (positions, layers) = (plan.pipeline(), ask.model.layers);
        let pipeline = Pipeline { order: order(&plan.schedule)?, positions, layers, microbatches: plan.microbatches };
        let rows = rows(kinds, &plan);
        if rows.iter().sum::<u32>() < positions || layers < positions {
            return None;
        }
        let times = bare.of(evaluator, (ask, kinds, recompute), &plan);
        let least = vec![Least::new(&times, &rows, positions, layers)];
        let microbatches = ask.workload.global_batch / plan.microbatch_size.max(1);
        let (layout, replicas) = (Layout::Stages, Vec::new());
        Some(Self { number, plan, layout, pipeline, rows, least, replicas, microbatches })
    }

    /// Replicas of one kind each, so many of every kind.
    pub(super) fn of_replicas(
        (number, plan, counts): (usize, Plan, Vec<u32>),
        (ask, kinds, recompute): Of<'_, '_>,
        bare: &mut BareTimes,
        evaluator: &mut dyn Evaluator,
    ) -> Option<Self> {
        let (positions, layers) = (plan.pipeline(), ask.model.layers);
        let pipeline = Pipeline { order: order(&plan.schedule)?, positions, layers, microbatches: plan.microbatches };
        if layers < positions {
            return None;
        }
        let alone = Plan { data: 1, placement: Vec::new(), ..plan.clone() };
        let (mut least, mut replicas) = (Vec::new(), Vec::new());
        for (kind, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let times = bare.alone(evaluator, (ask, kinds, recompute), (&alone, kind));
            least.push(Least::new(&times, &[positions], positions, layers));
            replicas.push((times, count));
        }
        let microbatches = ask.workload.global_batch / plan.microbatch_size.max(1);
        let (layout, rows) = (Layout::Replicas, vec![positions]);
        Some(Self { number, plan, layout, pipeline, rows, least, replicas, microbatches })
    }

    /// Rows of each kind that no position has yet.
    pub(super) fn left(&self, state: &State) -> Vec<u32> {
        let used = |kind: usize| state.cut.iter().filter(|(other, _)| *other == kind).count();
        let left = |(kind, rows): (usize, &u32)| rows.saturating_sub(u32::try_from(used(kind)).unwrap_or(u32::MAX));
        self.rows.iter().enumerate().map(left).collect()
    }

    /// What no cut goes under that begins as a state's does not yet say.
    pub(super) fn floor(&self, state: &State) -> u64 {
        match self.layout {
            Layout::Replicas => self.of_rates(&[], self.pipeline.layers),
            Layout::Uniform | Layout::Stages => self.bound(&Vec::new(), &self.left(state)),
        }
    }

    /// What no completion of a cut goes under, with rows that are left.
    fn bound(&self, cut: &Cut, left: &[u32]) -> u64 {
        let done = cut.last().map_or(0, |(held, _)| held.first + held.layers);
        let positions = self.pipeline.positions - u32::try_from(cut.len()).unwrap_or(u32::MAX);
        let layers = self.pipeline.layers - done;
        if positions == 0 {
            return self.pipeline.bound(cut);
        }
        let behind = Pipeline { positions, layers, ..self.pipeline };
        let sum = match self.pipeline.order {
            Order::OneForwardOneBackward | Order::GPipe => self.least[0].of_layers(layers),
            Order::Split | Order::Slowest => 0,
        };
        self.pipeline.bound_before(cut, (behind.least(&self.least[0], left), sum))
    }

    /// What no cut goes under whose next position holds so many layers on a kind, by what its passes take at least.
    fn at_least(&self, cut: &Cut, (kind, layers): (usize, u32), left: &[u32]) -> u64 {
        if self.layout == Layout::Replicas {
            return 0;
        }
        let done = cut.last().map_or(0, |(held, _)| held.first + held.layers) + layers;
        let positions = self.pipeline.positions - u32::try_from(cut.len()).unwrap_or(u32::MAX) - 1;
        let rest = Pipeline { positions, layers: self.pipeline.layers - done, ..self.pipeline };
        let (own, least) = (self.least[0].on(kind, layers), &self.least[0]);
        let behind = if positions == 0 { 0 } else { rest.least(least, left) };
        let all = u64::from(self.pipeline.microbatches).saturating_mul(own);
        let (value, sum) = match self.pipeline.order {
            Order::OneForwardOneBackward | Order::GPipe => {
                (own.saturating_add(behind), own.saturating_add(least.of_layers(rest.layers)))
            }
            Order::Split | Order::Slowest => (behind, 0),
        };
        self.pipeline.bound_before(cut, (value.max(all), sum))
    }

    /// No replica gets through microbatches faster than its slowest position.
    fn of_rates(&self, held: &[u32], rest: u32) -> u64 {
        let positions = self.pipeline.positions - u32::try_from(held.len()).unwrap_or(u32::MAX);
        let mut rate = 0.0;
        for (least, (times, count)) in self.least.iter().zip(&self.replicas) {
            let of = |layers: &u32| times[0].get((*layers as usize).wrapping_sub(1)).copied().unwrap_or(0);
            let mut slowest = held.iter().map(of).max().unwrap_or(0);
            if positions > 0 {
                let behind = Pipeline { order: Order::Slowest, positions, layers: rest, microbatches: 1 };
                slowest = slowest.max(behind.least(least, &[positions]));
            }
            rate += f64::from(*count) / slowest.max(1) as f64;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down, and not negative")]
        let whole = (f64::from(self.microbatches) / rate * (1.0 - 1e-9)) as u64;
        whole
    }

    /// Where the next position can end, as far as it may lead under a limit.
    pub(super) fn ends(
        &self,
        known: &mut Known,
        of: Of<'_, '_>,
        evaluator: &mut dyn Evaluator,
        (state, limit): (&State, u64),
    ) -> Vec<Action> {
        let Some(mut cut) = self.cut(known, of, evaluator, state) else { return Vec::new() };
        let (position, first) = (u32::try_from(state.cut.len()).unwrap_or(u32::MAX), state.first());
        let kind = state.kind.unwrap_or(0);
        let behind = self.pipeline.positions - 1 - position;
        let rest = self.pipeline.layers - first;
        let fewest = if behind == 0 { rest } else { 1 };
        let mut left = self.left(state);
        left[kind] = left[kind].saturating_sub(1);
        let mut lengths = state.cut.iter().scan(0, |from, (_, end)| Some(end - std::mem::replace(from, *end)));
        let lengths: Vec<u32> = lengths.by_ref().collect();
        let mut found = Vec::new();
        for layers in fewest..=rest - behind {
            let held = Held { position, kind, first, layers };
            // What is too slow by its passes alone need not be priced.
            if self.at_least(&cut, (kind, layers), &left) >= limit {
                continue;
            }
            // With more layers it neither fits nor is faster.
            let Some(stage) = self.stage(known, of, evaluator, held) else { break };
            let floor = match self.layout {
                Layout::Replicas => self.of_rates(&[&lengths[..], &[layers]].concat(), rest - layers),
                Layout::Uniform | Layout::Stages => {
                    if self.pipeline.local(position, &stage, 0) >= limit {
                        break;
                    }
                    cut.push((held, stage));
                    let floor = self.bound(&cut, &left);
                    cut.pop();
                    floor
                }
            };
            found.push(Action { choice: Choice::Number(Step::End, first + layers), floor });
        }
        found
    }

    /// What the positions of a state take; `None` if one does not fit.
    fn cut(&self, known: &mut Known, of: Of<'_, '_>, evaluator: &mut dyn Evaluator, state: &State) -> Option<Cut> {
        let mut first = 0;
        let mut cut = Cut::with_capacity(state.cut.len() + 1);
        for (position, (kind, end)) in (0u32..).zip(&state.cut) {
            let held = Held { position, kind: *kind, first, layers: end - first };
            cut.push((held, self.stage(known, of, evaluator, held)?));
            first = *end;
        }
        Some(cut)
    }

    /// What a chunk takes with the recomputation by which it fits and is fastest; `None` if it does not fit.
    fn stage(
        &self,
        known: &mut Known,
        (ask, kinds, recompute): Of<'_, '_>,
        evaluator: &mut dyn Evaluator,
        held: Held,
    ) -> Option<Stage> {
        let patterned = !ask.model.variants.pattern.is_empty();
        let ends = held.position == 0 || held.first + held.layers == self.pipeline.layers;
        // Like layers are alike wherever they are.
        let key = (self.number, if patterned || ends { held } else { Held { first: 1, ..held } });
        if let Some(found) = known.get(&key) {
            return *found;
        }
        let of = (self.pipeline.layers, patterned);
        let mut priced = match self.layout {
            Layout::Replicas => Priced::of_placed(evaluator, (&self.plan, recompute), of),
            Layout::Uniform | Layout::Stages => Priced::new(evaluator, (&self.plan, recompute), kinds, of),
        };
        let found = priced.stage(held);
        known.insert(key, found);
        found
    }

    /// The plan of a state that is cut to the end.
    pub(super) fn plan(
        &self,
        known: &mut Known,
        of: Of<'_, '_>,
        evaluator: &mut dyn Evaluator,
        state: &State,
    ) -> Option<Plan> {
        let cut = self.cut(known, of, evaluator, state)?;
        Some(match self.layout {
            Layout::Replicas => Plan { stages: stages_of(&cut), ..self.plan.clone() },
            Layout::Uniform | Layout::Stages => placed(&self.plan, &cut, of.1),
        })
    }
}

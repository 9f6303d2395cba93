//! Monte Carlo tree search over the layer graph: degrees, schedule, placement and cuts, decided one after the other.
//!
//! A plan is a way through a tree. Each node is a *state*, what was decided so far ([`State`]); its children are the values of
//! the next decision ([`Step`], in the order in which they stand there) that may lead to a legal plan: degrees of each axis, the
//! layout of ranks, microbatch size, schedule and chunks, sharding, recomputation, and for each pipeline position the kind of
//! its devices and the layer before which it ends. So a position holds a subgraph of consecutive layers, of any size. What
//! depends on nothing else follows from the rest: the recomputation by which a position fits and is fastest, and the shares by
//! which unlike replicas end together.
//!
//! Each round goes down to a complete plan, which is evaluated once and then closed; what was found goes back up. Half of the
//! rounds choose by what is known of each child and by priors (PUCT: Rosin 2011; Silver et al. 2017), a quarter follow one of
//! the best ways with one decision changed, and a quarter go where floors are least, which lifts the bound. Priors and values come
//! from a [`Guide`], the one place where a search asks for advice. Every child has a floor, a time that no plan behind it goes
//! under: of the compute of an iteration on all devices (the `work` module), of a uniform plan ([`Evaluator::floor`]), or of the
//! cut so far (as `dynprog` has it). With money or energy as the objective floors are what those times cost at least (the
//! `worth` module). What cannot win by its floor is closed too, and the least floor of what stays open bounds the optimum.
//!
//! What fits and breaks a limit is no answer. As long as nothing keeps to all limits, a plan counts as the worse the more it
//! breaks one, so that the search goes to where they can be kept.
//!
//! The space is that of [`DynProg`]: uniform plans, stages of unequal layers on rows of each kind, and replicas
//! of one kind each with unequal shares (on all kinds, also where fewer devices may do). Begun from the answer of `dynprog`
//! ([`Start::DynProg`]), the search enters its plans with what they take first, and its bound counts where it is better. The
//! budget covers both.

mod answer;
mod cuts;
mod guide;
mod steps;
mod study;
#[cfg(test)]
mod tests;
mod tree;
mod work;
mod worth;

pub use guide::{ACTION, FEATURES, Facts, Guide, Judgement, View, weights};
pub use steps::{Action, Choice, Layout, State, Step};
pub use study::{Note, Study};

use ir::{Candidate, Infeasible, Plan, Prediction, Problem, Recompute, ZeroStage};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::dynprog::kinds::{Kind, wide};
use super::dynprog::{DynProg, order};
use super::exhaustive::Space;
use super::{Planner, Progress, Question, worst_excess};
use crate::aim::{Misses, Pool, Score, fits};
use crate::evaluate::Evaluator;
use crate::legality::balanced_stages;
use steps::Decisions;
use study::Reached;
use tree::{Tree, Walk, Way};

/// Where a search begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// With nothing.
    #[default]
    Nothing,
    /// With the answer of `dynprog`, which has half of the budget.
    DynProg,
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Mcts {
    /// The seed of what is drawn.
    pub seed: u64,
    /// Values of the keys that are searched.
    pub space: Space,
    /// Candidates that are reported, the chosen one included.
    pub shown: usize,
    /// Where it begins.
    pub start: Start,
    /// Who gives advice.
    pub guide: Guide,
}

impl Mcts {
    /// Searches everything, guided by rules.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, space: Space::default(), shown: 10, start: Start::Nothing, guide: Guide::Rules }
    }
}

impl Planner for Mcts {
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
    /// A score that no plan of the space goes under.
    pub(super) bound: f64,
    /// Evaluations, those of `dynprog` included.
    pub(super) used: u64,
}

impl Mcts {
    pub(super) fn search(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Answer, Infeasible> {
        let mut misses = Misses::default();
        let begun = match self.start {
            Start::Nothing => None,
            Start::DynProg => {
                let planner = DynProg { space: self.space.clone(), shown: self.shown };
                Some(planner.search_noting(ask, evaluator, budget.div_ceil(2), progress, &mut misses))
            }
        };
        let mut search = Search::new(self, ask, evaluator, (budget, None), progress);
        search.misses = misses;
        if let Some(begun) = begun {
            search.begin(begun);
        }
        while search.goes_on() && search.round() {}
        search.finish()
    }
}

/// Rounds that look for a uniform plan that fits: they are cheap to look at, and what is to be beaten spares cuts work.
const FIRST: u64 = 256;
/// Ways that are looked at for each evaluation of a budget, at most.
const LOOKS: u64 = 32;
/// Ways that are varied.
const ELITE: usize = 8;
/// Of them with the same keys.
const ALIKE: usize = 2;

struct Search<'a, 'b> {
    planner: &'a Mcts,
    evaluator: &'a mut dyn Evaluator,
    budget: u64,
    progress: Progress<'a>,
    used: u64,
    rounds: u64,
    rng: ChaCha8Rng,
    decisions: Decisions<'a, 'b>,
    facts: Facts,
    tree: Tree,
    floor: u64,
    /// What the plans take that were evaluated and fit, in units of the aim. Looked up only.
    seen: FxHashMap<Plan, Option<u64>>,
    /// The best that are allowed, best first.
    best: Vec<(Plan, Prediction)>,
    /// The best ways, best first.
    elite: Vec<(u64, Vec<Choice>)>,
    /// The plan nearest to fitting.
    closest: Option<(Plan, Prediction)>,
    /// Plans that break a limit.
    misses: Misses,
    fitting: u64,
    refused: Vec<Problem>,
    /// Of `dynprog`: evaluations, its best score, and its bound.
    begun: Option<Begun>,
    /// What is noted of every node, for whoever learns from it.
    study: Option<Reached>,
}

/// What `dynprog` gave.
#[derive(Clone, Copy, Debug)]
struct Begun {
    used: u64,
    score: Option<Score>,
    /// The time of that plan in seconds.
    seconds: f64,
    bound: Option<f64>,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        planner: &'a Mcts,
        ask: &'a Question<'b>,
        evaluator: &'a mut dyn Evaluator,
        (budget, study): (u64, Option<Reached>),
        progress: Progress<'a>,
    ) -> Self {
        let decisions = Decisions::new(ask, &planner.space, evaluator);
        let floor = decisions.floor();
        let facts = Facts::new(ask, &decisions.kinds, &decisions.orders);
        let mut search = Self {
            planner,
            evaluator,
            budget,
            progress,
            used: 0,
            rounds: 0,
            rng: ChaCha8Rng::seed_from_u64(planner.seed),
            decisions,
            facts,
            tree: Tree::new(floor),
            floor,
            seen: FxHashMap::default(),
            best: Vec::new(),
            elite: Vec::new(),
            closest: None,
            misses: Misses::default(),
            fitting: 0,
            refused: Vec::new(),
            begun: None,
            study,
        };
        let start = search.decisions.start();
        search.expand(&start, floor);
        search
    }

    /// Whether the budget leaves something: evaluations, and ways to look at, for where hardly anything fits most ways end
    /// before a plan.
    fn goes_on(&self) -> bool {
        self.used < self.budget && self.rounds < self.budget.saturating_mul(LOOKS).saturating_add(FIRST)
    }

    /// What is to be beaten, in units of the aim.
    fn limit(&self) -> u64 {
        self.best.first().map_or(u64::MAX, |(_, prediction)| self.decisions.ask.aim.units_of(prediction))
    }

    /// What others are measured by: the best, or what came nearest to the limits.
    fn measure(&self) -> u64 {
        let nearest = self.elite.first().filter(|_| self.best.is_empty() && self.decisions.ask.aim.is_limited());
        nearest.map_or_else(|| self.limit(), |(least, _)| *least)
    }

    /// A node for a state; `None` if nothing behind it can win.
    fn expand(&mut self, state: &State, floor: u64) -> Option<usize> {
        let limit = self.limit();
        let actions = self.decisions.actions(&mut *self.evaluator, state, (floor, limit));
        if actions.is_empty() {
            return None;
        }
        let view = View { facts: &self.facts, state, actions: &actions, floor: self.floor, best: limit };
        let mut judgement = self.planner.guide.judge(&view);
        if let Some(study) = &mut self.study {
            study.note(self.tree.nodes.len(), &view, &mut judgement);
        }
        Some(self.tree.add(&actions, &judgement))
    }

    /// One way to a plan that was not tried, or to where nothing can win; whether there was one.
    fn round(&mut self) -> bool {
        if self.tree.is_closed() {
            return false;
        }
        self.rounds += 1;
        if self.best.is_empty() && self.rounds < FIRST {
            self.walk(Walk::Uniform);
        } else if self.rounds.is_multiple_of(4) {
            self.walk(Walk::Floor);
        } else if self.rounds.is_multiple_of(2) && !self.elite.is_empty() {
            // The best ways more often.
            let most = self.elite.len();
            let which = self.rng.random_range(0..most).min(self.rng.random_range(0..most));
            let way = self.elite[which].1.clone();
            let at = self.rng.random_range(0..way.len());
            self.walk(Walk::Beside(&way, at));
        } else {
            self.walk(Walk::Tree);
        }
        true
    }

    fn walk(&mut self, walk: Walk<'_>) {
        let (mut state, mut node, mut way) = (self.decisions.start(), 0, Way::new());
        let mut choices = Vec::new();
        loop {
            let limits = (self.limit(), self.measure());
            let Some(child) = self.tree.next(node, (walk, &choices), limits, &mut self.rng) else {
                self.tree.close(&way);
                return;
            };
            way.push((node, child));
            let open = self.tree.nodes[node].children[child];
            state.decide(open.action.choice);
            choices.push(open.action.choice);
            if state.next().is_none() {
                self.leaf(&state, &way, choices);
                return;
            }
            let next = open.node.or_else(|| {
                let made = self.expand(&state, open.action.floor);
                self.tree.nodes[node].children[child].node = made;
                made
            });
            let Some(next) = next else {
                self.tree.close(&way);
                return;
            };
            node = next;
        }
    }

    /// Evaluates the plan at the end of a way.
    fn leaf(&mut self, state: &State, way: &Way, choices: Vec<Choice>) {
        if let Some(plan) = self.decisions.plan(&mut *self.evaluator, state) {
            let taken = match self.seen.get(&plan) {
                Some(taken) => *taken,
                None => self.evaluate(plan.clone()),
            };
            self.tree.enter(way, taken);
            if let Some(taken) = taken {
                self.rank(taken, choices);
                if state.layout == Some(Layout::Uniform) && super::exhaustive::is_best_of_its_recomputations(&plan) {
                    self.close_more_recomputation(way);
                }
            }
        }
        self.tree.close(way);
    }

    /// What fits is never slower, nor dearer, than with more recomputation (see `exhaustive`).
    fn close_more_recomputation(&mut self, way: &Way) {
        let Some((node, child)) = way.last() else { return };
        let children = &mut self.tree.nodes[*node].children;
        let own = children[*child].action.choice.number();
        children.iter_mut().for_each(|other| other.closed |= other.action.choice.number() > own);
    }

    /// What it takes, if it fits: more, where it breaks a limit.
    fn evaluate(&mut self, plan: Plan) -> Option<u64> {
        self.used += 1;
        let (aim, found) = (self.decisions.ask.aim, self.evaluator.evaluate(&plan));
        let taken = match found {
            Ok(prediction) if aim.allows(&prediction) => {
                self.fitting += 1;
                let taken = aim.units_of(&prediction);
                self.keep(plan.clone(), prediction);
                Some(taken)
            }
            Ok(prediction) if fits(&prediction) => {
                self.misses.note(aim, &plan, &prediction);
                let over = aim.excess(&prediction);
                Some(times(aim.units_of(&prediction), over * over))
            }
            Ok(prediction) => {
                let nearer = |(_, least): &(Plan, Prediction)| worst_excess(&prediction) < worst_excess(least);
                if self.closest.as_ref().is_none_or(nearer) {
                    self.closest = Some((plan.clone(), prediction));
                }
                None
            }
            Err(no) => {
                for reason in no.reasons {
                    if self.refused.len() < 8 && !self.refused.iter().any(|known| known.subject == reason.subject) {
                        self.refused.push(reason);
                    }
                }
                None
            }
        };
        self.seen.insert(plan, taken);
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
        taken
    }

    fn keep(&mut self, plan: Plan, prediction: Prediction) {
        let aim = self.decisions.ask.aim;
        let score = aim.score(&prediction);
        let at = self.best.partition_point(|(_, kept)| aim.score(kept) <= score);
        self.best.insert(at, (plan, prediction));
        self.best.truncate(self.planner.shown.max(1));
    }

    /// Keeps a way that is to be varied, few of the same keys: those that differ in cuts alone lead to the same places.
    fn rank(&mut self, taken: u64, way: Vec<Choice>) {
        let keys = |way: &[Choice]| {
            let key = |choice: &&Choice| !matches!(choice.step(), Step::Kind | Step::End);
            way.iter().filter(key).copied().collect::<Vec<_>>()
        };
        let own = keys(&way);
        let at = self.elite.partition_point(|(kept, _)| *kept <= taken);
        self.elite.insert(at, (taken, way));
        let alike = self.elite.iter().enumerate().filter(|(_, (_, way))| keys(way) == own).map(|(at, _)| at);
        if let Some(last) = alike.skip(ALIKE).last() {
            self.elite.remove(last);
        }
        self.elite.truncate(ELITE);
    }

    /// Enters what `dynprog` found: its plans with what they take, as ways and as what is to be beaten.
    fn begin(&mut self, begun: Result<super::dynprog::Answer, Infeasible>) {
        let found = match begun {
            Ok(found) => found,
            Err(no) => {
                // Limits that stand in the way are said with all plans that were looked at.
                let own = |reason: &Problem| !reason.subject.starts_with("constraints.");
                self.refused.extend(no.reasons.into_iter().filter(own));
                return;
            }
        };
        self.used = found.used;
        let (aim, mut plans) = (self.decisions.ask.aim, Vec::new());
        for candidate in found.candidates {
            if let Ok(prediction) = candidate.evaluation
                && aim.allows(&prediction)
                && !self.seen.contains_key(&candidate.plan)
            {
                self.seen.insert(candidate.plan.clone(), Some(aim.units_of(&prediction)));
                plans.push((candidate.plan, prediction));
            }
        }
        let ways = plans.iter().map(|(plan, _)| self.way_of(plan)).collect::<Vec<_>>();
        self.fitting = plans.len() as u64;
        let score = plans.first().map(|(_, prediction)| aim.score(prediction));
        let seconds = plans.first().map_or(0.0, |(_, prediction)| prediction.iteration.seconds());
        self.begun = Some(Begun { used: found.used, score, seconds, bound: found.bound });
        // Ways first: with the limit known, those that are no better would be closed before they can be varied.
        for way in ways.into_iter().flatten() {
            if self.used < self.budget {
                self.walk(Walk::Along(&way));
            }
        }
        plans.into_iter().for_each(|(plan, prediction)| self.keep(plan, prediction));
    }

    /// The decisions that lead to a plan, as far as the tree has them.
    fn way_of(&self, plan: &Plan) -> Option<Vec<Choice>> {
        let number = |step, number| Choice::Number(step, number);
        let key = (plan.schedule.clone(), plan.chunks_per_stage());
        let place = self.decisions.orders.iter().position(|known| *known == key)?;
        let kind = |device| self.decisions.kinds.iter().position(|kind| kind.devices.contains(&device));
        let kinds_at = |position: u32| {
            let ranks = position * wide(plan)..(position + 1) * wide(plan);
            ranks.map(|rank| kind(plan.device(ir::Rank::new(rank)))).collect::<Option<Vec<_>>>()
        };
        let recompute = plan.stages.first().map_or(Recompute::None, |stage| stage.recompute);
        let (layers, pipeline) = (self.decisions.ask.model.layers, plan.pipeline());
        let balanced = plan.stages == balanced_stages(layers, pipeline, plan.chunks_per_stage(), recompute);
        let laid = |pool: &Pool| pool.placement(plan.world()) == plan.placement;
        let pools = self.decisions.values.pools();
        let pool = pools.iter().position(laid).filter(|_| plan.shares.are_equal());
        let pool = pool.filter(|_| balanced || order(&plan.schedule).is_none());
        let mut mixed = !plan.shares.are_equal();
        for position in 0..if plan.placement.is_empty() { 0 } else { pipeline } {
            mixed |= kinds_at(position)?.windows(2).any(|pair| pair[0] != pair[1]);
        }
        let layout = match pool {
            Some(_) => Layout::Uniform,
            None if mixed => Layout::Replicas,
            None => Layout::Stages,
        };
        let mut way = vec![
            number(Step::Tensor, plan.tensor),
            number(Step::Pipeline, pipeline),
            number(Step::Context, plan.mesh.context),
            Choice::Layout(layout),
            number(Step::Data, plan.data),
            number(Step::Expert, plan.mesh.expert),
            number(Step::Size, plan.microbatch_size),
            Choice::Sequence(plan.sequence_parallel),
            number(Step::Order, u32::try_from(place).ok()?),
            Choice::Zero(if plan.data * plan.mesh.context > 1 { plan.zero } else { ZeroStage::Zero0 }),
        ];
        if let Some(pool) = pool {
            if pools.len() > 1 {
                way.insert(4, number(Step::Kind, u32::try_from(pool).ok()?));
            }
            way.push(Choice::Recompute(recompute));
            return Some(way);
        }
        let mut end = 0;
        for (position, stage) in (0..pipeline).zip(&plan.stages) {
            let of = if layout == Layout::Stages { *kinds_at(position)?.first()? } else { 0 };
            end += stage.layers.first()?;
            way.push(number(Step::Kind, u32::try_from(of).ok()?));
            way.push(number(Step::End, end));
        }
        Some(way)
    }
}

/// So many times a number of units, which stays one that something was.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and past all that is")]
const fn times(units: u64, factor: f64) -> u64 {
    if units == u64::MAX { u64::MAX } else { (units as f64 * factor) as u64 }
}

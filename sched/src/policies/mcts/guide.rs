//! What guides the tree: priors of actions and the value of a node, from rules or from what was learned.
//!
//! This is the one place where a search asks for advice. At a node it hands over a [`View`]: the question, what was decided
//! (a [`State`]), and the actions that are left (each a [`Choice`] with a floor). What a network sees of it has a fixed length,
//! whatever the cluster and the model: [`View::features`] of the state, and [`View::of_action`] of each action, to be scored
//! one by one. Sizes come as logarithms to base 2 over 16, shares and ratios as they are; of what is not decided yet all is 0.
//!
//! The answer is a [`Judgement`]. Priors weigh actions, also those that were not tried: the first way through a node is drawn
//! by them, afterwards an action of prior `P` that was tried `n` of `N` times competes with `P sqrt(N) / (1 + n)` beside what
//! is known of it. A value stands for what is not known of a node yet: the share of its iteration that the floor of the
//! whole search is (in 0 to 1, more is faster), for the fastest plan that is expected behind it.

use std::sync::Arc;

use ir::{Recompute, Schedule, ZeroStage};

use super::super::exhaustive::Degrees;
use super::super::learned::{self, Weights};
use super::super::{Question, smallest_domain};
use super::steps::{Action, Choice, Layout, State, Step};

/// Who gives advice.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Guide {
    /// Floors and a few rules of thumb.
    #[default]
    Rules,
    /// The same, and what was learned.
    Learned(Arc<Weights>),
}

/// Advice on a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement {
    /// Of each action, in order; positive, and 1 together.
    pub priors: Vec<f32>,
    /// What the best plan behind the node is expected to be worth; `None` if nothing is expected.
    pub value: Option<f32>,
}

/// What a question looks like: the same at every node.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// The first of [`View::features`].
    features: [f32; QUESTION],
    /// Of each kind: speed and memory against the fastest and the largest, and its share of all devices.
    kinds: Vec<[f32; 3]>,
    layers: u32,
    domain: u32,
    /// Schedules by number, with chunks a position.
    orders: Vec<(Schedule, u32)>,
    /// What a learned guide knows of it.
    pub(super) job: learned::Job,
}

/// Numbers that describe the question.
const QUESTION: usize = 24;
/// Numbers that describe a state.
pub const FEATURES: usize = QUESTION + 36;
/// Numbers that describe an action.
pub const ACTION: usize = 36;

/// A node as advisers see it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The question.
    pub facts: &'a Facts,
    /// What was decided.
    pub state: &'a State,
    /// What is left to choose; of one step.
    pub actions: &'a [Action],
    /// What no plan of the search goes under, counted as [floors](Action::floor) are; 0 if nothing is known.
    pub floor: u64,
    /// The best plan so far that is allowed; `u64::MAX` if there is none.
    pub best: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "features are rough")]
fn log(number: f64) -> f32 {
    (libm::log2(number.max(1.0)) / 16.0) as f32
}

#[expect(clippy::cast_possible_truncation, reason = "features are rough")]
fn share(part: f64, whole: f64) -> f32 {
    (part / whole.max(1e-9)) as f32
}

const fn flag(on: bool) -> f32 {
    if on { 1.0 } else { 0.0 }
}

impl Facts {
    pub(super) fn new(ask: &Question<'_>, kinds: &[super::Kind], orders: &[(Schedule, u32)]) -> Self {
        let (model, work, cluster) = (ask.model, ask.workload, ask.cluster);
        let of = |kind: &super::Kind| cluster.device_kind(cluster.place(kind.devices[0]).device_kind);
        let speed = |kind: &super::Kind| {
            let kind = of(kind);
            kind.peak(work.precision).map_or(0.0, |peak| peak.get()) / kind.slowdown
        };
        let memory = |kind: &super::Kind| of(kind).memory.gib();
        let (fastest, largest) = kinds.iter().fold((0.0f64, 0.0f64), |(s, m), k| (s.max(speed(k)), m.max(memory(k))));
        let all = ask.devices() as f64;
        let kind =
            |k: &super::Kind| [share(speed(k), fastest), share(memory(k), largest), share(k.devices.len() as f64, all)];
        let described: Vec<[f32; 3]> = kinds.iter().map(kind).collect();
        let slowest = described.iter().map(|kind| kind[0]).fold(1.0, f32::min);
        let smallest = described.iter().map(|kind| kind[1]).fold(1.0, f32::min);
        let experts = model.variants.experts.as_ref();
        let (domain, layers) = (smallest_domain(ask), f64::from(model.layers));
        let (hidden, ffn) = (f64::from(model.hidden), f64::from(model.ffn));
        let features = [
            log(all),
            log(f64::from(domain)),
            share(kinds.len() as f64, 4.0),
            slowest,
            smallest,
            log(fastest / 1e9),
            log(largest),
            log(layers),
            log(hidden),
            log(ffn),
            log(f64::from(model.heads)),
            log(f64::from(model.kv_heads)),
            log(f64::from(model.vocabulary)),
            log(experts.map_or(1.0, |experts| f64::from(experts.count))),
            log(experts.map_or(1.0, |experts| f64::from(experts.active))),
            flag(experts.is_some()),
            log(f64::from(work.global_batch)),
            log(f64::from(work.sequence_length)),
            flag(model.tied_head),
            flag(!model.variants.pattern.is_empty()),
            // State of training beside the memory that there is, and tokens and compute of a device, roughly.
            share(16.0 * layers * hidden * (4.0 * hidden + 3.0 * ffn), all * largest * f64::from(1u32 << 30)).min(8.0),
            log(f64::from(work.global_batch) * f64::from(work.sequence_length) / all),
            log(layers * hidden * (4.0 * hidden + 3.0 * ffn) / 1e6),
            1.0,
        ];
        Self {
            features,
            kinds: described,
            layers: model.layers,
            domain,
            orders: orders.to_vec(),
            job: learned::Job::of(ask),
        }
    }

    fn order(&self, number: u32) -> (f32, f32) {
        self.orders.get(number as usize).map_or((0.0, 0.0), |(schedule, chunks)| {
            let kind = match schedule {
                Schedule::OneForwardOneBackward => 0.0,
                Schedule::GPipe => 1.0,
                _ => 0.5,
            };
            (kind, log(f64::from(*chunks)))
        })
    }
}

impl View<'_> {
    /// Schedules by number, with chunks a position.
    pub(in crate::policies) fn orders(&self) -> &[(Schedule, u32)] {
        &self.facts.orders
    }

    /// What the state looks like.
    #[must_use]
    pub fn features(&self) -> [f32; FEATURES] {
        let (state, facts) = (self.state, self.facts);
        let mut found = [0.0; FEATURES];
        found[..QUESTION].copy_from_slice(&facts.features);
        let Degrees { data, tensor, context, pipeline, expert, .. } = state.degrees;
        let (kind, chunks) = state.order.map_or((0.0, 0.0), |order| facts.order(order));
        let decided = state.cut.len() as f64;
        let known = [
            log(f64::from(tensor)),
            log(f64::from(pipeline)),
            log(f64::from(context)),
            log(f64::from(data)),
            log(f64::from(expert)),
            log(f64::from(state.size)),
            flag(state.layout == Some(Layout::Uniform)),
            flag(state.layout == Some(Layout::Stages)),
            flag(state.layout == Some(Layout::Replicas)),
            flag(state.sequence == Some(true)),
            kind,
            chunks,
            flag(state.zero == Some(ZeroStage::Zero0)),
            flag(state.zero == Some(ZeroStage::Zero1)),
            flag(state.zero == Some(ZeroStage::Zero3)),
            share(decided, f64::from(pipeline.max(1))),
            share(f64::from(state.first()), f64::from(facts.layers.max(1))),
            share(f64::from(tensor), f64::from(facts.domain)).min(8.0),
            self.close(self.actions.iter().map(|action| action.floor).min().unwrap_or(0)),
            if self.best == u64::MAX { 0.0 } else { self.close(self.best) },
            log(self.actions.len() as f64),
            flag(tensor > 0),
            flag(data > 0),
        ];
        found[QUESTION..QUESTION + known.len()].copy_from_slice(&known);
        if let Some(at) = state.next().and_then(|next| Step::ALL.iter().position(|step| *step == next)) {
            found[FEATURES - Step::ALL.len() + at] = 1.0;
        }
        found
    }

    /// What the floor of the whole search is of a time.
    fn close(&self, time: u64) -> f32 {
        if self.floor == 0 || time == 0 { 0.0 } else { share(self.floor as f64, time as f64).min(1.0) }
    }

    /// What an action of a number looks like.
    #[must_use]
    pub fn of_action(&self, at: usize) -> [f32; ACTION] {
        let (action, facts) = (&self.actions[at], self.facts);
        let mut found = [0.0; ACTION];
        let number = action.choice.number();
        let least = self.actions.iter().map(|action| action.floor).min().unwrap_or(0);
        let ratio = if action.floor == 0 { 1.0 } else { share(least as f64, action.floor as f64) };
        let rest = f64::from(facts.layers - self.state.first().min(facts.layers));
        let positions = f64::from(self.state.degrees.pipeline) - self.state.cut.len() as f64;
        found[..5].copy_from_slice(&[
            log(f64::from(number)),
            share(at as f64, (self.actions.len() as f64 - 1.0).max(1.0)),
            ratio,
            self.close(action.floor),
            #[expect(clippy::cast_possible_truncation, reason = "features are rough")]
            {
                rule(self, action) as f32
            },
        ]);
        let own: [f32; 4] = match action.choice {
            Choice::Number(Step::Tensor, degree) => {
                let fits = facts.domain.is_multiple_of(degree.max(1));
                [share(f64::from(degree), f64::from(facts.domain)).min(8.0), flag(fits), 0.0, 0.0]
            }
            Choice::Number(Step::Pipeline, degree) => {
                [share(f64::from(degree), f64::from(facts.layers)), flag(facts.layers.is_multiple_of(degree)), 0.0, 0.0]
            }
            Choice::Number(Step::Order, order) => {
                let (kind, chunks) = facts.order(order);
                [kind, chunks, 0.0, 0.0]
            }
            Choice::Number(Step::Kind, kind) => {
                let [speed, memory, devices] = facts.kinds.get(kind as usize).copied().unwrap_or([1.0; 3]);
                [speed, memory, devices, 0.0]
            }
            Choice::Number(Step::End, end) => {
                let layers = f64::from(end - self.state.first().min(end));
                let kind = self.state.kind.and_then(|kind| facts.kinds.get(kind)).copied().unwrap_or([1.0; 3]);
                [share(layers, rest), share(layers * positions, rest).min(8.0), kind[0], kind[1]]
            }
            Choice::Number(..) => [0.0; 4],
            Choice::Sequence(on) => [flag(on), 0.0, 0.0, 0.0],
            Choice::Layout(layout) => {
                let is = |other| flag(layout == other);
                [is(Layout::Uniform), is(Layout::Stages), is(Layout::Replicas), 0.0]
            }
            Choice::Zero(zero) => {
                let is = |other| flag(zero == other);
                [is(ZeroStage::Zero0), is(ZeroStage::Zero1), is(ZeroStage::Zero2), is(ZeroStage::Zero3)]
            }
            Choice::Recompute(recompute) => {
                let is = |other| flag(recompute == other);
                [is(Recompute::None), is(Recompute::Selective), is(Recompute::Full), 0.0]
            }
        };
        found[5..9].copy_from_slice(&own);
        // The step says what the four mean: they stand at its place as well.
        if let Some(step) = Step::ALL.iter().position(|step| *step == action.choice.step()) {
            found[9 + step] = 1.0;
            found[9 + Step::ALL.len() + step] = ratio;
        }
        found
    }
}

/// How much more a floor that is by its own size over the least counts, before cuts and in them.
const STEEP: [f64; 2] = [8.0, 20.0];

/// The logarithm of an action's weight by rule.
pub(super) fn rule(view: &View<'_>, action: &Action) -> f64 {
    let facts = view.facts;
    let twice = |number: u32| libm::log2(f64::from(number.max(1)));
    let least = view.actions.iter().map(|action| action.floor).min().unwrap_or(0).max(1);
    let steep = STEEP[usize::from(action.choice.step() == Step::End)];
    let over = -steep * (action.floor.max(1) as f64 / least as f64 - 1.0).min(4.0);
    let own = match action.choice {
        Choice::Number(Step::Tensor, degree) if degree > facts.domain => -4.0,
        Choice::Number(Step::Tensor, degree) => -0.15 * twice(degree),
        Choice::Number(Step::Pipeline, degree) => -0.1 * twice(degree),
        Choice::Number(Step::Context, degree) => -0.5 * twice(degree),
        Choice::Number(Step::Size, size) => -0.3 * twice(size),
        Choice::Number(Step::Order, order) => {
            // The control, which fills and empties a pipeline in every step, is tried last.
            let (kind, chunks) = facts.order(order);
            -2.0 * f64::from(flag(kind > 0.9)) - f64::from(chunks)
        }
        // Positions of one kind stand together mostly, whichever comes first.
        Choice::Number(Step::Kind, kind) => {
            let same = view.state.cut.last().is_some_and(|(last, _)| *last == kind as usize);
            2.0 * f64::from(flag(same))
        }
        Choice::Number(..) => 0.0,
        Choice::Sequence(on) => 1.5 * f64::from(flag(on)),
        Choice::Layout(Layout::Uniform) => 0.0,
        Choice::Layout(Layout::Stages | Layout::Replicas) => 1.0,
        Choice::Zero(ZeroStage::Zero1) => 1.0,
        Choice::Zero(ZeroStage::Zero0 | ZeroStage::Zero2 | ZeroStage::Zero3) => 0.0,
        Choice::Recompute(recompute) => -1.5 * f64::from(recompute as u32),
    };
    over + own
}

impl Guide {
    /// Advice on a node that has an action at least.
    #[must_use]
    pub fn judge(&self, view: &View<'_>) -> Judgement {
        let scores = view.actions.iter().map(|action| rule(view, action)).collect::<Vec<_>>();
        match self {
            Self::Rules => Judgement { priors: weights(&scores), value: None },
            Self::Learned(learned) => learned::judge(learned.network(), &view.facts.job, view, &scores),
        }
    }
}

/// Priors of scores: their exponentials, as shares of their sum.
#[must_use]
pub fn weights(scores: &[f64]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let each = scores.iter().map(|score| libm::exp(score - most).max(1e-6)).collect::<Vec<_>>();
    let sum = each.iter().sum::<f64>();
    each.into_iter().map(|weight| share(weight, sum)).collect()
}

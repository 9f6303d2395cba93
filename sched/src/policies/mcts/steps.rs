//! What is decided step by step, and what there is to choose at each.

use std::rc::Rc;

use ir::{Plan, Recompute, Schedule, ZeroStage};
use rustc_hash::FxHashMap;

use super::super::Question;
use super::super::dynprog::bare::BareTimes;
use super::super::dynprog::kinds::{Kind, kinds, of_kinds, wide};
use super::super::dynprog::order;
use super::super::exhaustive::{Degrees, Space, Values};
use super::cuts::{Cutting, Known};
use super::work::Work;
use super::worth::Worth;
use crate::evaluate::Evaluator;
use crate::legality::legal;

/// Where a plan's ranks are, and how its layers are divided.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layout {
    /// Ranks on devices as they come (on all, or those of one kind of node), balanced stages, one recomputation.
    Uniform,
    /// Layers cut anywhere, each position on devices of one kind.
    Stages,
    /// Each replica on devices of one kind, with its own share of the batch.
    Replicas,
}

/// What is decided at a node of the tree, in this order; kind and end again for every position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// Tensor degree.
    Tensor,
    /// Pipeline degree.
    Pipeline,
    /// Context degree.
    Context,
    /// How ranks and layers are laid out.
    Layout,
    /// Data degree.
    Data,
    /// Expert degree.
    Expert,
    /// Microbatch size.
    Size,
    /// Sequence parallelism.
    Sequence,
    /// Schedule and chunks a position.
    Order,
    /// Sharding of training state.
    Zero,
    /// Recomputation of all stages.
    Recompute,
    /// Kind of the devices of the next position; of a uniform plan, which devices it is laid on, where fewer may do.
    Kind,
    /// The layer before which the next position ends.
    End,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 13] = [
        Self::Tensor,
        Self::Pipeline,
        Self::Context,
        Self::Layout,
        Self::Data,
        Self::Expert,
        Self::Size,
        Self::Sequence,
        Self::Order,
        Self::Zero,
        Self::Recompute,
        Self::Kind,
        Self::End,
    ];
}

/// One value of what a step decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// A degree, a size, the number of a schedule or of a kind, or a layer.
    Number(Step, u32),
    /// Sequence parallelism or not.
    Sequence(bool),
    /// A layout.
    Layout(Layout),
    /// A sharding.
    Zero(ZeroStage),
    /// A recomputation.
    Recompute(Recompute),
}

impl Choice {
    /// What it decides.
    #[must_use]
    pub const fn step(&self) -> Step {
        match self {
            Self::Number(step, _) => *step,
            Self::Sequence(_) => Step::Sequence,
            Self::Layout(_) => Step::Layout,
            Self::Zero(_) => Step::Zero,
            Self::Recompute(_) => Step::Recompute,
        }
    }
    /// Its value as a number: degrees and sizes as they are, others by their place in the list.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Number(_, number) => *number,
            Self::Sequence(on) => *on as u32,
            Self::Layout(layout) => *layout as u32,
            Self::Zero(zero) => zero.number(),
            Self::Recompute(recompute) => *recompute as u32,
        }
    }
}

/// What was decided on the way to a node. Numbers are 0 where nothing was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    pub(in crate::policies) degrees: Degrees,
    pub(in crate::policies) size: u32,
    pub(in crate::policies) layout: Option<Layout>,
    pub(in crate::policies) sequence: Option<bool>,
    /// By number of [`Decisions::orders`].
    pub(in crate::policies) order: Option<u32>,
    pub(in crate::policies) zero: Option<ZeroStage>,
    pub(in crate::policies) recompute: Option<Recompute>,
    /// The kind of the position that is cut next; of a uniform plan, what it is laid on.
    pub(in crate::policies) kind: Option<usize>,
    /// Whether uniform plans may be laid on some devices alone.
    apart: bool,
    /// Kind and end of each position that was cut.
    pub(in crate::policies) cut: Vec<(usize, u32)>,
}

impl State {
    /// Nothing decided; whether uniform plans may be laid on some devices alone.
    pub(in crate::policies) const fn new(apart: bool) -> Self {
        let degrees = Degrees { pool: 0, data: 0, tensor: 0, context: 0, pipeline: 0, expert: 0 };
        Self {
            degrees,
            size: 0,
            layout: None,
            sequence: None,
            order: None,
            zero: None,
            recompute: None,
            kind: None,
            apart,
            cut: Vec::new(),
        }
    }

    /// What is decided next; `None` if the plan is complete.
    #[must_use]
    pub fn next(&self) -> Option<Step> {
        let Degrees { data, tensor, context, pipeline, expert, .. } = self.degrees;
        let laid = !self.apart || self.layout != Some(Layout::Uniform) || self.kind.is_some();
        let keys = [
            (tensor > 0, Step::Tensor),
            (pipeline > 0, Step::Pipeline),
            (context > 0, Step::Context),
            (self.layout.is_some(), Step::Layout),
            (laid, Step::Kind),
            (data > 0, Step::Data),
            (expert > 0, Step::Expert),
            (self.size > 0, Step::Size),
            (self.sequence.is_some(), Step::Sequence),
            (self.order.is_some(), Step::Order),
            (self.zero.is_some(), Step::Zero),
        ];
        if let Some((_, open)) = keys.into_iter().find(|(decided, _)| !decided) {
            return Some(open);
        }
        match self.layout {
            Some(Layout::Uniform) | None => self.recompute.is_none().then_some(Step::Recompute),
            Some(Layout::Stages | Layout::Replicas) if self.cut.len() == pipeline as usize => None,
            Some(Layout::Stages | Layout::Replicas) if self.kind.is_some() => Some(Step::End),
            Some(Layout::Stages | Layout::Replicas) => Some(Step::Kind),
        }
    }

    /// With one more decision.
    pub(in crate::policies) fn decide(&mut self, choice: Choice) {
        match choice {
            Choice::Number(step, number) => match step {
                Step::Tensor => self.degrees.tensor = number,
                Step::Pipeline => self.degrees.pipeline = number,
                Step::Context => self.degrees.context = number,
                Step::Data => self.degrees.data = number,
                Step::Expert => self.degrees.expert = number,
                Step::Size => self.size = number,
                Step::Order => self.order = Some(number),
                Step::Kind => {
                    self.kind = Some(number as usize);
                    if self.layout == Some(Layout::Uniform) {
                        self.degrees.pool = number as usize;
                    }
                }
                Step::End => self.cut.push((self.kind.take().unwrap_or(0), number)),
                Step::Layout | Step::Sequence | Step::Zero | Step::Recompute => unreachable!("not a number"),
            },
            Choice::Sequence(on) => self.sequence = Some(on),
            Choice::Layout(layout) => self.layout = Some(layout),
            Choice::Zero(zero) => self.zero = Some(zero),
            Choice::Recompute(recompute) => self.recompute = Some(recompute),
        }
    }

    /// Layers that positions before the next one hold.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.cut.last().map_or(0, |(_, end)| *end)
    }
}

/// An action at a node: a choice, and what no plan behind it goes under, in nanoseconds; where money or energy is made small, in
/// femtodollars or nanojoules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// What is chosen.
    pub choice: Choice,
    /// The floor.
    pub floor: u64,
}

/// Everything but cuts of a plan: what is cut alike.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct CutKey {
    degrees: [u32; 6],
    layout: Layout,
    keys: (Option<bool>, Option<u32>, Option<ZeroStage>),
}

/// What there is to decide on a question.
pub(in crate::policies) struct Decisions<'a, 'b> {
    pub(super) ask: &'a Question<'b>,
    pub(super) values: Values,
    pub(super) kinds: Vec<Kind>,
    /// Schedules with chunks a position, by number.
    pub(super) orders: Vec<(Schedule, u32)>,
    recompute: Vec<Recompute>,
    /// Whether data degrees are open.
    open: bool,
    work: Work,
    worth: Worth<'b>,
    bare: BareTimes,
    /// Looked up only.
    cuttings: FxHashMap<CutKey, Option<Rc<Cutting>>>,
    known: Known,
    /// Of uniform plans that do not fit by their sizes alone, the one nearest to fitting.
    pub(super) closest: Option<(Plan, f64)>,
}

impl<'a, 'b> Decisions<'a, 'b> {
    pub(super) fn new(ask: &'a Question<'b>, space: &Space, evaluator: &mut dyn Evaluator) -> Self {
        let values = Values::new(space, ask);
        let kinds = kinds(ask);
        let mut orders: Vec<(Schedule, u32)> = Vec::new();
        for order in values.pipelines.iter().flat_map(|pipeline| values.orders(*pipeline)) {
            if !orders.contains(&order) {
                orders.push(order);
            }
        }
        let worth = Worth::new(ask, &kinds, evaluator);
        let work = Work::new(evaluator, ask, (&values, &orders), (&kinds, space));
        let (bare, cuttings, known) = (BareTimes::default(), FxHashMap::default(), Known::default());
        let (recompute, open) = (space.recompute.clone(), space.data.is_empty());
        Self { ask, values, kinds, orders, recompute, open, work, worth, bare, cuttings, known, closest: None }
    }

    /// Nothing decided.
    pub(super) fn start(&self) -> State {
        State::new(self.values.pools().len() > 1)
    }

    /// What no plan at all goes under.
    pub(super) fn floor(&self) -> u64 {
        self.work.floor(&self.start(), &self.orders, &self.worth)
    }

    /// What there is to choose at a node that no plan behind goes under `floor`, as far as it may lead under a limit. Each
    /// is legal as far as can be known here.
    pub(super) fn actions(
        &mut self,
        evaluator: &mut dyn Evaluator,
        state: &State,
        (floor, limit): (u64, u64),
    ) -> Vec<Action> {
        let Some(step) = state.next() else { return Vec::new() };
        let mut found = match step {
            Step::Kind if state.layout == Some(Layout::Uniform) => self.keys(evaluator, state, step),
            Step::Kind => self.kinds_of_next(evaluator, state, floor),
            Step::End => self.ends(evaluator, state, limit),
            Step::Recompute => self.recomputations(evaluator, state, limit),
            _ => self.keys(evaluator, state, step),
        };
        for action in &mut found {
            action.floor = action.floor.max(floor);
        }
        found.retain(|action| action.floor < limit);
        found
    }

    /// Choices of the steps before layers are cut.
    fn keys(&mut self, evaluator: &mut dyn Evaluator, state: &State, step: Step) -> Vec<Action> {
        let choices = self.choices(state, step);
        let mut found = Vec::with_capacity(choices.len());
        for choice in choices {
            let mut next = state.clone();
            next.decide(choice);
            let mut floor = self.work.floor(&next, &self.orders, &self.worth);
            if step == Step::Zero && next.layout != Some(Layout::Uniform) {
                let Some(cutting) = self.cutting(evaluator, &next) else { continue };
                floor = floor.max(self.worth.of_time(cutting.floor(&next), &next));
            }
            found.push(Action { choice, floor });
        }
        found
    }

    fn choices(&self, state: &State, step: Step) -> Vec<Choice> {
        let degrees = state.degrees;
        let Degrees { data, tensor, context, pipeline, .. } = degrees;
        let devices = self.values.pools()[degrees.pool].count();
        let taken = u64::from(tensor) * u64::from(context.max(1)) * u64::from(pipeline.max(1));
        let numbers = |list: Vec<u32>| list.into_iter().map(|number| Choice::Number(step, number)).collect::<Vec<_>>();
        let within = |list: &[u32]| {
            let fits = list.iter().copied().filter(|degree| taken.max(1) * u64::from(*degree) <= devices);
            numbers(fits.collect())
        };
        match step {
            Step::Tensor => within(&self.values.tensors),
            Step::Pipeline => within(&self.values.pipelines),
            Step::Context => within(&self.values.contexts),
            Step::Layout => self.layouts(context, pipeline).into_iter().map(Choice::Layout).collect(),
            Step::Data => {
                let datas = self.datas(state);
                numbers(datas.into_iter().filter(|data| taken * u64::from(*data) <= devices).collect())
            }
            Step::Expert if state.layout == Some(Layout::Replicas) => numbers(vec![1]),
            Step::Expert => numbers(self.values.experts(data, tensor, context).collect()),
            Step::Size if state.layout == Some(Layout::Replicas) => {
                let batch = self.ask.workload.global_batch;
                numbers(self.values.sizes(1).into_iter().filter(|size| batch / size >= data).collect())
            }
            Step::Size => numbers(self.values.sizes(data)),
            Step::Sequence => self.values.sequences(tensor, context).into_iter().map(Choice::Sequence).collect(),
            Step::Order => {
                let here = self.values.orders(pipeline);
                let cut = state.layout != Some(Layout::Uniform);
                let fits = |known: &(Schedule, u32)| {
                    here.contains(known) && (!cut || (known.1 == 1 && order(&known.0).is_some()))
                };
                let all = (0..).zip(&self.orders).filter(|(_, known)| fits(known));
                numbers(all.map(|(number, _)| number).collect())
            }
            Step::Zero => {
                let cut = state.layout != Some(Layout::Uniform);
                let shallow = |zero: &ZeroStage| !cut || matches!(zero, ZeroStage::Zero0 | ZeroStage::Zero1);
                self.values.zeros(degrees).into_iter().filter(shallow).map(Choice::Zero).collect()
            }
            Step::Kind => {
                let pools = (0u32..).zip(self.values.pools()).filter(|(_, pool)| taken <= pool.count());
                numbers(pools.map(|(number, _)| number).collect())
            }
            Step::Recompute | Step::End => Vec::new(),
        }
    }

    fn layouts(&self, context: u32, pipeline: u32) -> Vec<Layout> {
        let mut found = vec![Layout::Uniform];
        if self.values.orders(pipeline).iter().any(|(schedule, chunks)| *chunks == 1 && order(schedule).is_some()) {
            found.push(Layout::Stages);
            if self.kinds.len() > 1 && context == 1 && self.values.experts.contains(&1) {
                found.push(Layout::Replicas);
            }
        }
        found
    }

    /// Data degrees of a layout.
    fn datas(&self, state: &State) -> Vec<u32> {
        let Degrees { pool, tensor, context, pipeline, .. } = state.degrees;
        let all = || self.values.datas(pool, [tensor, context, pipeline]);
        let batch = self.ask.workload.global_batch;
        match state.layout {
            Some(Layout::Replicas) => {
                let whole = |kind: &Kind| kind.rows(tensor) / pipeline;
                let counts = self.kinds.iter().map(whole).collect::<Vec<_>>();
                let several = counts.iter().filter(|count| **count > 0).count() > 1;
                if several { vec![counts.iter().sum()] } else { Vec::new() }
            }
            // Where kinds differ, any number of replicas that uses most devices may suit them, or any at all where fewer may do.
            Some(Layout::Stages) if self.kinds.len() > 1 => {
                let ranks = |data: u32| u64::from(data) * u64::from(tensor * context * pipeline);
                let fewer = self.ask.aim.may_leave_idle();
                let enough = |data: &u32| fewer || 2 * ranks(*data) > self.ask.devices();
                let any = (1..=batch).filter(|data| batch.is_multiple_of(*data));
                let datas = if self.open { any.collect() } else { all() };
                datas.into_iter().filter(enough).collect()
            }
            _ => all(),
        }
    }

    /// The plan of a state whose keys are decided, with balanced stages.
    pub(super) fn template(&self, state: &State) -> Plan {
        let order = &self.orders[state.order.map_or(0, |order| order as usize)];
        let zero = state.zero.unwrap_or(ZeroStage::Zero0);
        self.values.plan(state.degrees, (state.size, state.sequence.unwrap_or(false), zero), order)
    }

    /// What cuts of a state whose keys are decided are made with; `None` if no plan is legal.
    pub(super) fn cutting(&mut self, evaluator: &mut dyn Evaluator, state: &State) -> Option<Rc<Cutting>> {
        let Degrees { data, tensor, context, pipeline, expert, .. } = state.degrees;
        let key = CutKey {
            degrees: [data, tensor, context, pipeline, expert, state.size],
            layout: state.layout?,
            keys: (state.sequence, state.order, state.zero),
        };
        if let Some(known) = self.cuttings.get(&key) {
            return known.clone();
        }
        let found = self.cutting_of(evaluator, state).map(Rc::new);
        self.cuttings.insert(key, found.clone());
        found
    }

    fn cutting_of(&mut self, evaluator: &mut dyn Evaluator, state: &State) -> Option<Cutting> {
        let (ask, number) = (self.ask, self.cuttings.len());
        let mut plan = self.template(state);
        let is_legal = |plan: &Plan, but: Option<&str>| {
            let problems = legal(plan, ask.model, ask.workload, ask.cluster);
            problems.iter().all(|problem| Some(problem.subject.as_str()) == but)
        };
        let of = (ask, &self.kinds[..], &self.recompute[..]);
        if state.layout == Some(Layout::Replicas) {
            let (plan, counts) = of_kinds(&self.kinds, &plan, ask.workload.global_batch)?;
            let there = is_legal(&plan, Some("training.global_batch"));
            return there.then(|| Cutting::of_replicas((number, plan, counts), of, &mut self.bare, evaluator))?;
        }
        if self.kinds.len() > 1 {
            let wide = wide(&plan);
            let rows = self.kinds.iter().flat_map(|kind| {
                let rows = kind.rows(wide) as usize * wide as usize;
                kind.devices.iter().take(rows).copied()
            });
            plan.placement = rows.take((wide * plan.pipeline()) as usize).collect();
        }
        let there = is_legal(&plan, None);
        if self.kinds.len() > 1 {
            plan.placement.clear();
        }
        there.then(|| Cutting::of_stages((number, plan), of, &mut self.bare, evaluator))?
    }

    fn kinds_of_next(&mut self, evaluator: &mut dyn Evaluator, state: &State, floor: u64) -> Vec<Action> {
        let Some(cutting) = self.cutting(evaluator, state) else { return Vec::new() };
        let left = cutting.left(state);
        let there = (0u32..).zip(left).filter(|(_, rows)| *rows > 0);
        there.map(|(kind, _)| Action { choice: Choice::Number(Step::Kind, kind), floor }).collect()
    }

    fn ends(&mut self, evaluator: &mut dyn Evaluator, state: &State, limit: u64) -> Vec<Action> {
        let Some(cutting) = self.cutting(evaluator, state) else { return Vec::new() };
        let (kinds, recompute) = (&self.kinds[..], &self.recompute[..]);
        let limit = self.worth.limit(limit, state);
        let mut found = cutting.ends(&mut self.known, (self.ask, kinds, recompute), evaluator, (state, limit));
        for action in &mut found {
            action.floor = self.worth.of_time(action.floor, state);
        }
        found
    }

    /// Recomputations of a uniform plan that is legal, and does not show by its sizes alone that it does not fit.
    fn recomputations(&mut self, evaluator: &mut dyn Evaluator, state: &State, limit: u64) -> Vec<Action> {
        let mut plan = self.template(state);
        if !legal(&plan, self.ask.model, self.ask.workload, self.ask.cluster).is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for recompute in &self.recompute {
            plan.stages.iter_mut().for_each(|stage| stage.recompute = *recompute);
            let aim = self.ask.aim;
            let floor = aim.floor(&plan, evaluator).map_or(0, |floor| aim.units(floor));
            if floor >= limit {
                continue;
            }
            match evaluator.excess(&plan) {
                None => found.push(Action { choice: Choice::Recompute(*recompute), floor }),
                Some(excess) if self.closest.as_ref().is_none_or(|(_, least)| excess < *least) => {
                    self.closest = Some((plan.clone(), excess));
                }
                Some(_) => {}
            }
        }
        found
    }

    /// The plan of a complete state; `None` if its replicas have no shares by which they end together.
    pub(super) fn plan(&mut self, evaluator: &mut dyn Evaluator, state: &State) -> Option<Plan> {
        if state.layout == Some(Layout::Uniform) {
            let mut plan = self.template(state);
            let recompute = state.recompute.unwrap_or(Recompute::None);
            plan.stages.iter_mut().for_each(|stage| stage.recompute = recompute);
            return Some(plan);
        }
        let cutting = self.cutting(evaluator, state)?;
        let (kinds, recompute) = (&self.kinds[..], &self.recompute[..]);
        let plan = cutting.plan(&mut self.known, (self.ask, kinds, recompute), evaluator, state)?;
        if state.layout == Some(Layout::Replicas) { evaluator.share_out(&plan) } else { Some(plan) }
    }
}

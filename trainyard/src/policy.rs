//! Who decides: the seam between scenarios and the scheduler's policies.

use std::sync::Arc;

use ir::program::Chunk;
use ir::{Candidate, DeviceId, DeviceKindId, Evaluation, Expense, Infeasible, Plan, Schedule, StagePlan};
use sched::{
    ClosedForm, DynProg, Evaluator, Exhaustive, Front, Guide, Held, Manual, Mcts, Measure, Megatron, OnBackend, Pareto,
    Planner, Question, Random, Space, StageCost, Start, Switched,
};
use sim::Simulator;

use crate::Error;
use crate::catalog;
use crate::job::{Decision, Job};
use crate::progress::Context;
use crate::scenario::{ConstraintChoice, PlanKeys, PolicyName};

/// Evaluations of one decision. The rules of thumb try some hundreds; of the hundred thousand uniform plans of a thousand
/// devices a few thousand are evaluated.
const BUDGET: u64 = 10_000_000;
/// The same of searches that end with their budget: draws at random, and trees.
const DRAWS: u64 = 1000;
const TREE: u64 = 2000;
/// The same of the search for a front, which leaves out nothing by a bound where memory is weighed: some twenty seconds.
const FRONT: u64 = 300_000;

/// The plan that was written, if it is legal, whether it fits or not.
pub(crate) fn manual(job: &Job<'_>, plan: &Plan, context: &Context<'_>) -> Result<Decision, Error> {
    let scenario = &job.loaded.scenario;
    let plan = ClosedForm::new(&scenario.model, &scenario.workload, &job.cost).profiled(plan);
    let simulator = Simulator::new(job.cost.clone());
    let simulated = OnBackend::new(&scenario.model, &scenario.workload, &job.cost, simulator);
    let closed = ClosedForm::new(&scenario.model, &scenario.workload, &job.cost);
    let mut evaluator = Carried { simulated, closed };
    decide(job, ("manual", BUDGET), &Manual::new(plan), &mut evaluator, context, |plan| plan)
}

/// The plan of the rules of thumb, with the keys that were written held fast.
pub(crate) fn megatron(job: &Job<'_>, keys: &PlanKeys, context: &Context<'_>) -> Result<Decision, Error> {
    let planner = Megatron { held: held(keys), ..Megatron::default() };
    keeping(job, keys, PolicyName::Megatron, &planner, context)
}

/// The fastest of all uniform plans with the keys that were written.
pub(crate) fn exhaustive(job: &Job<'_>, keys: &PlanKeys, context: &Context<'_>) -> Result<Decision, Error> {
    let planner = Exhaustive { space: space(keys), ..Exhaustive::default() };
    keeping(job, keys, PolicyName::Exhaustive, &planner, context)
}

/// The fastest plan with stages of unequal layers on unlike devices, with the keys that were written held fast.
pub(crate) fn dynprog(job: &Job<'_>, keys: &PlanKeys, context: &Context<'_>) -> Result<Decision, Error> {
    let planner = DynProg { space: space(keys), ..DynProg::default() };
    keeping(job, keys, PolicyName::DynProg, &switched(&planner, keys), context)
}

/// The fastest plan that a tree search finds, by the scenario's seed, with the keys that were written held fast.
pub(crate) fn mcts(
    job: &Job<'_>,
    (keys, policy, start): (&PlanKeys, PolicyName, Start),
    context: &Context<'_>,
) -> Result<Decision, Error> {
    let planner = Mcts { space: space(keys), start, ..Mcts::new(job.loaded.scenario.workload.seed) };
    keeping(job, keys, policy, &switched(&planner, keys), context)
}

/// A policy that goes on to what no space holds, but for orders of passes where keys say them.
fn switched<'p>(inner: &'p dyn Planner, keys: &PlanKeys) -> Switched<'p> {
    let said = keys.schedule.is_some() || keys.chunks_per_stage.is_some() || keys.layers_per_stage.is_some();
    Switched { inner, orders: !said }
}

/// The fastest plan that a tree search finds whose guide was trained.
pub(crate) fn learned(job: &Job<'_>, keys: &PlanKeys, context: &Context<'_>) -> Result<Decision, Error> {
    let weights = match &keys.weights {
        Some((_, weights)) => Arc::clone(weights),
        None => catalog::weights(),
    };
    let guide = Guide::Learned(weights);
    let planner = Mcts { space: space(keys), guide, ..Mcts::new(job.loaded.scenario.workload.seed) };
    keeping(job, keys, PolicyName::Learned, &switched(&planner, keys), context)
}

/// The fastest of plans drawn at random, by the scenario's seed, with the keys that were written held fast.
pub(crate) fn random(job: &Job<'_>, keys: &PlanKeys, context: &Context<'_>) -> Result<Decision, Error> {
    let planner = Random { space: space(keys), ..Random::new(job.loaded.scenario.workload.seed) };
    keeping(job, keys, PolicyName::Random, &planner, context)
}

/// What a policy decides by the closed form, with the keys that were written held fast.
fn keeping(
    job: &Job<'_>,
    keys: &PlanKeys,
    policy: PolicyName,
    planner: &dyn Planner,
    context: &Context<'_>,
) -> Result<Decision, Error> {
    let scenario = &job.loaded.scenario;
    let inner = ClosedForm::new(&scenario.model, &scenario.workload, &job.cost);
    let batch = scenario.workload.global_batch;
    let mut evaluator = Holding { keys, global_batch: batch, inner };
    let open = match policy {
        PolicyName::Megatron | PolicyName::Exhaustive | PolicyName::DynProg => BUDGET,
        PolicyName::Mcts | PolicyName::MctsSeeded | PolicyName::Learned => TREE,
        PolicyName::Random => DRAWS,
    };
    let budget = keys.budget.unwrap_or(open);
    decide(job, (policy.name(), budget), planner, &mut evaluator, context, |plan| hold(keys, &plan, batch))
}

/// Stages and chunks of each, as far as keys say how many.
fn stages(keys: &PlanKeys) -> (Option<u32>, Option<u32>) {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let listed = keys.layers_per_stage.as_ref();
    let rows = match &keys.schedule {
        Some(Schedule::Explicit(grid)) => Some(count(grid.rows.len())),
        _ => None,
    };
    // A schedule that says nothing of chunks means as many as it usually has.
    let chunks = listed.and_then(|stages| stages.first()).map(|chunks| count(chunks.len()));
    let chunks = keys.chunks_per_stage.or(chunks).or(keys.schedule.as_ref().map(Schedule::usual_chunks));
    (keys.pipeline.or(listed.map(|stages| count(stages.len()))).or(rows), chunks)
}

/// The tensor degree that is written for all stages.
fn one_tensor(keys: &PlanKeys) -> Option<u32> {
    keys.tensor.as_ref().and_then(|tensors| tensors.first().copied())
}

/// What the keys leave to no rule of thumb.
fn held(keys: &PlanKeys) -> Held {
    let (pipeline, chunks) = stages(keys);
    Held {
        data: keys.data,
        tensor: one_tensor(keys),
        context: keys.context,
        pipeline,
        expert: keys.expert,
        microbatch_size: keys.microbatch_size,
        chunks,
        zero: keys.zero,
    }
}

/// All that the keys leave open.
fn space(keys: &PlanKeys) -> Space {
    let open = Space::default();
    let only = |value: Option<u32>, open: Vec<u32>| value.map_or(open, |value| vec![value]);
    let (pipeline, chunks) = stages(keys);
    Space {
        data: only(keys.data, open.data),
        tensor: only(one_tensor(keys), open.tensor),
        sequence_parallel: keys.sequence_parallel.into_iter().collect(),
        pipeline: only(pipeline, open.pipeline),
        context: only(keys.context, open.context),
        expert: only(keys.expert, open.expert),
        microbatch_size: only(keys.microbatch_size, open.microbatch_size),
        chunks: only(chunks, open.chunks),
        schedules: keys.schedule.clone().map_or(open.schedules, |schedule| vec![schedule]),
        recompute: match keys.recompute.as_deref() {
            Some([one]) => vec![*one],
            // Each stage has its own: `hold` writes them.
            Some(_) => vec![ir::Recompute::None],
            None => open.recompute,
        },
        zero: keys.zero.map_or(open.zero, |zero| vec![zero]),
    }
}

fn decide(
    job: &Job<'_>,
    (policy, budget): (&'static str, u64),
    planner: &dyn Planner,
    evaluator: &mut dyn Evaluator,
    context: &Context<'_>,
    held: impl Fn(Plan) -> Plan,
) -> Result<Decision, Error> {
    let scenario = &job.loaded.scenario;
    let aim = scenario.aim();
    let ask = Question { aim: &aim, ..Question::new(&scenario.model, &scenario.workload, &scenario.cluster) };
    let mut stopped = Ok(());
    let mut evaluator = Watched { inner: evaluator, search: SearchLog::default() };
    let candidates = planner.plan(&ask, &mut evaluator, budget, &mut |done, best| {
        let note = best.map_or_else(String::new, |(_, p)| format!("best {:.1} ms", p.iteration.seconds() * 1e3));
        if stopped.is_ok() {
            stopped = context.step("plan", done, 0, note);
        }
    });
    stopped?;
    let candidates = candidates.map_err(|infeasible| job.infeasible(infeasible))?;
    // Plans that differ only in what is held fast are one plan.
    let mut distinct: Vec<Candidate> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let plan = held(candidate.plan);
        if distinct.iter().all(|known| known.plan != plan) {
            distinct.push(Candidate { plan, ..candidate });
        }
    }
    let mut distinct = distinct.into_iter();
    let chosen = distinct.next().expect("a planner that finds nothing says why");
    let prediction = chosen.evaluation.map_err(|infeasible| job.infeasible(infeasible))?;
    let (reasons, search) = (chosen.reasons, evaluator.search);
    Ok(Decision { policy, plan: chosen.plan, prediction, reasons, others: distinct.collect(), search })
}

/// Plans that no other beats in what is weighed: all uniform ones with the keys that were written held fast, and those that
/// the policy chose among.
pub(crate) fn front(
    job: &Job<'_>,
    keys: &PlanKeys,
    measures: &[Measure],
    decision: &Decision,
    context: &Context<'_>,
) -> Result<Front, Error> {
    let scenario = &job.loaded.scenario;
    let aim = scenario.aim();
    let ask = Question { aim: &aim, ..Question::new(&scenario.model, &scenario.workload, &scenario.cluster) };
    let (global_batch, inner) =
        (scenario.workload.global_batch, ClosedForm::new(&scenario.model, &scenario.workload, &job.cost));
    let mut evaluator = Holding { keys, global_batch, inner };
    let chosen = Candidate {
        plan: decision.plan.clone(),
        evaluation: Ok(decision.prediction.clone()),
        reasons: decision.reasons.clone(),
    };
    let others = std::iter::once(chosen).chain(decision.others.iter().cloned()).collect::<Vec<_>>();
    let search = Pareto { space: space(keys), measures: measures.to_vec() };
    let mut stopped = Ok(());
    let budget = keys.budget.unwrap_or(FRONT);
    let found = search.front(&ask, &mut evaluator, budget, &others, &mut |done, _| {
        if stopped.is_ok() {
            stopped = context.step("front", done, 0, "");
        }
    });
    stopped?;
    let found = found.map_err(|infeasible| job.infeasible(infeasible))?;
    let points = found.points.into_iter().map(|(plan, prediction)| (hold(keys, &plan, global_batch), prediction));
    Ok(Front { points: points.collect(), notes: found.notes })
}

/// Which limits the plan that was chosen breaks: one that was written may.
pub(crate) fn broken(job: &Job<'_>, prediction: &ir::Prediction) -> Option<Error> {
    let reasons = job.loaded.scenario.aim().broken(prediction);
    (!reasons.is_empty()).then(|| job.infeasible(Infeasible { reasons, nearest: Vec::new() }))
}

/// Why a prediction's plan does not fit, with one that does, or why the rules of thumb find none; `None` if it fits.
pub(crate) fn misfit(job: &Job<'_>, prediction: &ir::Prediction, context: &Context<'_>) -> Option<Error> {
    let mut reasons = sched::memory_problems(prediction);
    if reasons.is_empty() {
        return None;
    }
    for reason in &mut reasons {
        let headroom = job.loaded.scenario.constraints.memory_headroom;
        if headroom != ConstraintChoice::default().memory_headroom {
            reason.message.push_str(", less what constraints.memory_headroom leaves free");
        }
        // In the words of a scenario, so that the reason stands where the plan is written.
        if let Some(stage) = reason.subject.strip_prefix("stage ") {
            reason.message = format!("stage {stage} {}", reason.message);
            reason.subject = format!("plan.stages[{stage}]");
        }
    }
    let nearest = match megatron(job, &PlanKeys::default(), context) {
        Ok(decision) => vec![decision.plan],
        Err(Error::Infeasible { infeasible, .. }) => {
            reasons.extend(infeasible.reasons.into_iter().take(1));
            Vec::new()
        }
        Err(other) => return Some(other),
    };
    Some(job.infeasible(Infeasible { reasons, nearest }))
}

/// How a search went, by what its evaluator was asked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SearchLog {
    /// Legal plans that were timed. Bounds and memory alone are not counted.
    pub(crate) evaluations: u64,
    /// Where the best time of a plan that fits went down: evaluations so far, and nanoseconds.
    pub(crate) best: Vec<(u64, u64)>,
}

/// Keeps a log of what is evaluated.
struct Watched<'a> {
    inner: &'a mut dyn Evaluator,
    search: SearchLog,
}

impl Evaluator for Watched<'_> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        let evaluation = self.inner.evaluate(plan);
        if let Ok(prediction) = &evaluation {
            self.search.evaluations += 1;
            let nanoseconds = prediction.iteration.nanoseconds();
            let better = self.search.best.last().is_none_or(|(_, best)| nanoseconds < *best);
            if better && prediction.memory.iter().all(|stage| stage.peak <= stage.capacity) {
                self.search.best.push((self.search.evaluations, nanoseconds));
            }
        }
        evaluation
    }
    fn floor(&mut self, plan: &Plan) -> Option<ir::SimDuration> {
        self.inner.floor(plan)
    }
    fn least(&mut self, plan: &Plan) -> Expense {
        self.inner.least(plan)
    }
    fn rate(&self, device: DeviceId) -> Expense {
        self.inner.rate(device)
    }
    fn share_out(&mut self, plan: &Plan) -> Option<Plan> {
        self.inner.share_out(plan)
    }
    fn stage(&mut self, plan: &Plan, chunk: &Chunk) -> Option<StageCost> {
        self.inner.stage(plan, chunk)
    }
    fn compute(&mut self, plan: &Plan, chunk: &Chunk, kind: DeviceKindId) -> Option<u64> {
        self.inner.compute(plan, chunk, kind)
    }
    fn excess(&mut self, plan: &Plan) -> Option<f64> {
        self.inner.excess(plan)
    }
}

/// Evaluates what is asked with the written keys held fast, whatever it says of them.
struct Holding<'a, E> {
    keys: &'a PlanKeys,
    global_batch: u32,
    inner: E,
}

impl<E: Evaluator> Evaluator for Holding<'_, E> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        self.inner.evaluate(&hold(self.keys, plan, self.global_batch))
    }
    fn floor(&mut self, plan: &Plan) -> Option<ir::SimDuration> {
        self.inner.floor(&hold(self.keys, plan, self.global_batch))
    }
    fn least(&mut self, plan: &Plan) -> Expense {
        self.inner.least(&hold(self.keys, plan, self.global_batch))
    }
    fn rate(&self, device: DeviceId) -> Expense {
        self.inner.rate(device)
    }
    fn excess(&mut self, plan: &Plan) -> Option<f64> {
        self.inner.excess(&hold(self.keys, plan, self.global_batch))
    }
    fn stage(&mut self, plan: &Plan, chunk: &Chunk) -> Option<StageCost> {
        self.inner.stage(&hold(self.keys, plan, self.global_batch), chunk)
    }
    fn compute(&mut self, plan: &Plan, chunk: &Chunk, kind: DeviceKindId) -> Option<u64> {
        self.inner.compute(&hold(self.keys, plan, self.global_batch), chunk, kind)
    }
    fn share_out(&mut self, plan: &Plan) -> Option<Plan> {
        // How many microbatches there are was written.
        let open = self.keys.microbatches.is_none();
        open.then(|| self.inner.share_out(&hold(self.keys, plan, self.global_batch)))?
    }
}

/// A program carried out once, and shares of unlike replicas by the closed form.
struct Carried<'a> {
    simulated: OnBackend<'a, Simulator>,
    closed: ClosedForm<'a>,
}

impl Evaluator for Carried<'_> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        self.simulated.evaluate(plan)
    }
    fn share_out(&mut self, plan: &Plan) -> Option<Plan> {
        self.closed.share_out(plan)
    }
}

/// The plan with every written key held fast.
fn hold(keys: &PlanKeys, plan: &Plan, global_batch: u32) -> Plan {
    let mut plan = plan.clone();
    if let Some(layers) = &keys.layers_per_stage {
        let first = plan.stages.first();
        let recompute = first.map_or(ir::Recompute::None, |stage| stage.recompute);
        let recompute_layers = first.and_then(|stage| stage.recompute_layers);
        let stage = |layers: &Vec<u32>| StagePlan { layers: layers.clone(), recompute, recompute_layers, tensor: None };
        plan.stages = layers.iter().map(stage).collect();
    }
    match keys.recompute.as_deref() {
        Some([one]) => plan.stages.iter_mut().for_each(|stage| stage.recompute = *one),
        Some(many) => plan.stages.iter_mut().zip(many).for_each(|(stage, recompute)| stage.recompute = *recompute),
        None => {}
    }
    match keys.recompute_layers.as_deref() {
        Some([one]) => plan.stages.iter_mut().for_each(|stage| stage.recompute_layers = *one),
        Some(many) => plan.stages.iter_mut().zip(many).for_each(|(stage, layers)| stage.recompute_layers = *layers),
        None => {}
    }
    let mesh = keys.mesh(plan.mesh);
    // Ranks that share sequences come out of the replicas; where they do not divide, the plan is refused as it stands.
    let shared = plan.replicas();
    plan.data =
        keys.data.unwrap_or(if shared.is_multiple_of(mesh.context) { shared / mesh.context } else { plan.data });
    plan.mesh = mesh;
    plan.sharing = keys.sharing(plan.sharing);
    plan.microbatch_size = keys.microbatch_size.unwrap_or(plan.microbatch_size);
    let step = u64::from(plan.data) * u64::from(plan.microbatch_size);
    let microbatches = u32::try_from(u64::from(global_batch) / step.max(1)).unwrap_or(1).max(1);
    plan = match keys.microbatches.as_deref() {
        // Shares that the policy found are of its own degrees and batch.
        None if !plan.shares.are_equal() && plan.shares.counts().len() == plan.data as usize => plan,
        None => plan.with_shares(vec![microbatches]),
        // How many there should be, legality says.
        Some(counts) => plan.with_shares(counts.to_vec()),
    };
    plan.sequence_parallel = keys.sequence_parallel.unwrap_or(plan.sequence_parallel);
    if let Some(schedule) = &keys.schedule {
        plan.schedule = Schedule::clone(schedule);
    }
    plan.zero = keys.zero.unwrap_or(plan.zero);
    plan.overlap_gradients = keys.overlap_gradients.unwrap_or(plan.overlap_gradients);
    plan.collective = keys.collective.unwrap_or(plan.collective);
    if let Some(placement) = &keys.placement {
        plan.placement.clone_from(placement);
    }
    plan
}

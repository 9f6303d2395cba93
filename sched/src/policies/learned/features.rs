//! What the network is told of a job, and of a plan that is decided step by step.
//!
//! All of it is without dimension: logarithms of sizes, and proportions of work, bytes and memory, so that what was learned on
//! one generation of devices means something on the next. Proportions come from counts and data sheets alone. They are no
//! prices: nothing is decided by them but what the search looks at first, and what that is worth an evaluator says.
//!
//! What is open stands at a guess (all devices in replicas, one microbatch at a time, 1F1B, nothing recomputed); which step is
//! next is part of the state.

use ir::counts::{CountedParameters, CountedScores, model_flops_per_token};
use ir::{Cluster, FeedForward, Mixer, Recompute, Schedule, ZeroStage};

use super::super::Question;
use super::super::dynprog::kinds as search;
use super::super::mcts::{Choice, Layout, State, Step, View};

/// The version of what follows: weights of another one are refused.
pub const VERSION: u32 = 1;
/// Numbers that describe a job.
const JOB: usize = 26;
/// Numbers that describe what was decided.
const DRAFT: usize = 33;
/// Numbers that describe a state beside that.
const OF_STATE: usize = 4;
/// Numbers that describe a choice beside what it decides.
const OF_CHOICE: usize = 9;
/// Numbers of a state.
pub const STATE: usize = JOB + Step::ALL.len() + DRAFT + OF_STATE;
/// Numbers of a choice.
pub const CHOICE: usize = DRAFT + OF_CHOICE;

/// Devices of one kind in nodes of one kind.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    count: f64,
    speed: f64,
    memory: f64,
}

/// A schedule with its chunks a position.
type Order = (Schedule, u32);

/// A job: what stays as it is while a plan is decided.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    numbers: [f64; JOB],
    /// In the order of the search's kinds.
    kinds: Vec<Kind>,
    devices: f64,
    /// Least and mean FLOP/s and bytes of memory of a device.
    least: (f64, f64),
    mean: (f64, f64),
    /// Devices of the smallest domain.
    domain: f64,
    /// Bytes per second of one device inside its domain, and beyond its node.
    inside: f64,
    outside: f64,
    layers: f64,
    hidden: f64,
    sequence: f64,
    batch: f64,
    /// Forward and backward FLOPs of a token in one layer, and outside of all layers.
    layer_flops: f64,
    end_flops: f64,
    /// Parameters of a layer beside its routed experts, of those, and outside of all layers.
    layer_parameters: f64,
    expert_parameters: f64,
    end_parameters: f64,
    /// Experts that a token goes to.
    active: f64,
    kv_share: f64,
}

fn log2(number: f64) -> f64 {
    libm::log2(number.max(1e-30))
}

/// How far a floor is over another, as a logarithm.
fn over(floor: u64, of: u64) -> f64 {
    log2(floor.max(1) as f64 / of.max(1) as f64).clamp(0.0, 6.0)
}

const fn one_if(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

/// The share of a peak that large products reach, roughly: beside exchanges it says how much work weighs.
const REACHED: f64 = 0.5;

impl Job {
    /// Of a question.
    #[must_use]
    pub fn of(ask: &Question<'_>) -> Self {
        let (model, work, cluster) = (ask.model, ask.workload, ask.cluster);
        let kinds = kinds(ask);
        let devices = kinds.iter().map(|kind| kind.count).sum::<f64>().max(1.0);
        let sum = |of: fn(&Kind) -> f64| kinds.iter().map(|kind| kind.count * of(kind)).sum::<f64>() / devices;
        let least = |of: fn(&Kind) -> f64| kinds.iter().map(of).fold(f64::INFINITY, f64::min);
        let (speed, memory) = (|kind: &Kind| kind.speed, |kind: &Kind| kind.memory);
        let (inside, outside) = bandwidths(cluster);
        let layers = f64::from(model.layers.max(1));
        let token = model_flops_per_token(
            model,
            u64::from(work.sequence_length),
            CountedParameters::Multiplied,
            CountedScores::CausalHalf,
        );
        let rows = f64::from(model.vocabulary) * f64::from(model.hidden);
        let end_parameters = rows * if model.tied_head { 1.0 } else { 2.0 };
        let end_flops = 6.0 * rows;
        let routed = model.runs().filter(|run| run.feed_forward == FeedForward::Experts).map(|run| run.layers);
        let experts = model.variants.experts;
        let expert_parameters = experts.map_or(0.0, |experts| {
            model.expert_parameters() as f64 * f64::from(experts.count) * f64::from(routed.sum::<u32>()) / layers
        });
        let in_layers = (model.parameters() as f64 - end_parameters).max(1.0) / layers;
        let mut job = Self {
            numbers: [0.0; JOB],
            devices,
            least: (least(speed), least(memory)),
            mean: (sum(speed), sum(memory)),
            domain: f64::from(super::super::smallest_domain(ask)),
            inside,
            outside,
            layers,
            hidden: f64::from(model.hidden),
            sequence: f64::from(work.sequence_length.max(1)),
            batch: f64::from(work.global_batch.max(1)),
            layer_flops: ((token.get() as f64 - end_flops) / layers).max(1.0),
            end_flops,
            layer_parameters: (in_layers - expert_parameters).max(1.0),
            expert_parameters,
            end_parameters,
            active: experts.map_or(0.0, |experts| f64::from(experts.active)),
            kv_share: model.kv_width() as f64 / f64::from(model.hidden.max(1)),
            kinds,
        };
        job.numbers = job.describe(ask);
        job
    }

    /// The numbers of a job.
    fn describe(&self, ask: &Question<'_>) -> [f64; JOB] {
        let model = ask.model;
        let most = |of: fn(&Kind) -> f64| self.kinds.iter().map(of).fold(0.0, f64::max);
        let (speed, memory) = self.least;
        let all = self.layers * (self.layer_parameters + self.expert_parameters) + self.end_parameters;
        let stateful = model.runs().any(|run| matches!(run.mixer, Mixer::Mamba | Mixer::GatedDelta));
        let experts = model.variants.experts.map_or(0.0, |experts| f64::from(experts.count));
        let nodes = ask.cluster.nodes().max(1) as f64;
        let intensity = |bandwidth: f64| (log2(speed / bandwidth) - 11.0) / 4.0;
        let of_experts = |number: f64| if experts > 0.0 { log2(number) / 4.0 } else { 0.0 };
        [
            log2(self.devices) / 6.0 - 1.0,
            log2(self.domain) / 3.0 - 0.7,
            log2(nodes) / 5.0 - 0.5,
            log2(memory / 64e9),
            intensity(self.inside),
            intensity(self.outside) - 1.0,
            log2(speed / 3e14) / 2.0,
            one_if(self.kinds.len() > 1),
            log2(most(|kind| kind.speed) / speed),
            log2(most(|kind| kind.memory) / memory),
            log2(self.mean.0 / speed),
            log2(all / 1e10) / 3.0,
            log2(self.layers / 40.0),
            log2(self.hidden / 4096.0),
            log2(f64::from(model.heads) / 32.0),
            log2(self.kv_share),
            log2(self.end_parameters / all),
            log2(self.sequence / 4096.0) / 2.0,
            log2(self.batch / self.devices) / 3.0,
            log2(self.batch) / 5.0 - 1.5,
            // What the state of training takes of all memory.
            log2(18.0 * all / (memory * self.devices)) / 3.0,
            one_if(experts > 0.0),
            of_experts(experts),
            of_experts(self.active),
            self.expert_parameters / (self.expert_parameters + self.layer_parameters),
            one_if(stateful),
        ]
    }

    /// The numbers of a state.
    #[must_use]
    pub fn state(&self, view: &View<'_>) -> Vec<f64> {
        let (state, next) = (view.state, view.state.next());
        let mut numbers = self.numbers.to_vec();
        numbers.extend(Step::ALL.iter().map(|step| one_if(next == Some(*step))));
        numbers.extend(self.draft(state, view.orders()));
        let lowest = view.actions.iter().map(|action| action.floor).min().unwrap_or(view.floor);
        numbers.extend([
            over(lowest, view.floor),
            log2(view.actions.len() as f64) / 3.0,
            state.cut.len() as f64 / f64::from(state.degrees.pipeline.max(1)),
            f64::from(state.first()) / self.layers,
        ]);
        numbers
    }

    /// The numbers of a choice: what is decided with it, and how it stands among the others.
    #[must_use]
    pub fn choice(&self, view: &View<'_>, at: usize) -> Vec<f64> {
        let action = view.actions[at];
        let mut next = view.state.clone();
        next.decide(action.choice);
        let mut numbers = self.draft(&next, view.orders()).to_vec();
        let lowest = view.actions.iter().map(|action| action.floor).min().unwrap_or(view.floor);
        let place = at as f64 / (view.actions.len() as f64 - 1.0).max(1.0);
        let (speed, share) = self.cut(view.state, action.choice);
        numbers.extend([
            over(action.floor, lowest),
            over(action.floor, view.floor),
            one_if(action.floor == lowest),
            place,
            log2(f64::from(action.choice.number()) + 1.0) / 3.0,
            one_if(view.actions.len() == 1),
            speed,
            share,
            share.abs(),
        ]);
        numbers
    }

    /// Of a position that is cut: how fast its devices are beside the mean, and how much work it has beside its share.
    fn cut(&self, state: &State, choice: Choice) -> (f64, f64) {
        let kind = |number: usize| self.kinds.get(number).map_or(self.mean.0, |kind| kind.speed);
        match choice {
            Choice::Number(Step::Kind, number) => (log2(kind(number as usize) / self.mean.0), 0.0),
            Choice::Number(Step::End, end) => {
                let speed = kind(state.kind.unwrap_or(0)) / self.mean.0;
                let first = f64::from(state.first());
                let positions = (f64::from(state.degrees.pipeline) - state.cut.len() as f64).max(1.0);
                let mean = ((self.layers - first) / positions).max(0.25);
                let held = (f64::from(end) - first).max(0.25);
                (log2(speed), log2(held / (mean * speed)).clamp(-4.0, 4.0))
            }
            Choice::Number(..) | Choice::Sequence(_) | Choice::Layout(_) | Choice::Zero(_) | Choice::Recompute(_) => {
                (0.0, 0.0)
            }
        }
    }

    /// The numbers of what is decided so far.
    fn draft(&self, state: &State, orders: &[Order]) -> [f64; DRAFT] {
        let draft = Draft::of(self, state, orders);
        let stages = self.stages(&draft);
        let parts = self.parts(&draft, stages.slowest);
        let zero = |zero: ZeroStage| one_if(state.zero == Some(zero));
        let recompute = |recompute: Recompute| one_if(state.recompute == Some(recompute));
        let layout = |layout: Layout| one_if(state.layout == Some(layout));
        let ranks = draft.tensor * draft.context * draft.pipeline * draft.data;
        [
            log2(draft.data) / 4.0,
            log2(draft.tensor) / 2.0,
            log2(draft.pipeline) / 3.0,
            log2(draft.context) / 2.0,
            log2(draft.expert) / 3.0,
            log2(draft.size) / 2.0,
            log2(draft.microbatches) / 5.0,
            log2(draft.chunks) / 2.0,
            one_if(state.order.is_some() && draft.schedule == Schedule::ZeroBubbleH1),
            one_if(draft.schedule == Schedule::GPipe),
            layout(Layout::Uniform),
            layout(Layout::Stages),
            layout(Layout::Replicas),
            recompute(Recompute::None),
            recompute(Recompute::Selective),
            recompute(Recompute::Full),
            zero(ZeroStage::Zero0),
            zero(ZeroStage::Zero1),
            zero(ZeroStage::Zero3),
            one_if(state.sequence == Some(true)),
            log2(ranks / self.devices).clamp(-8.0, 8.0) / 2.0,
            log2(draft.tensor / self.domain).max(0.0),
            log2(draft.tensor * draft.context * draft.data / self.domain).clamp(-4.0, 4.0) / 2.0,
            parts.bubble,
            parts.tensor,
            parts.data,
            parts.expert,
            parts.message,
            parts.context,
            parts.total,
            stages.state,
            stages.memory,
            stages.memory.max(0.0),
        ]
    }

    /// The first and the last position, of which one holds the most and the other has the most to do.
    fn stages(&self, draft: &Draft) -> Stages {
        let (speed, capacity) = if draft.uniform { self.least } else { self.mean };
        let tokens = draft.size * self.sequence / draft.context;
        let layers = libm::ceil(self.layers / draft.pipeline);
        let again = match draft.recompute {
            Recompute::None => 1.0,
            Recompute::Selective => 1.03,
            Recompute::Operations => 1.15,
            Recompute::Full => 1.0 + 1.0 / 3.0,
        };
        let work = tokens * (layers * self.layer_flops * again + self.end_flops) / draft.tensor;
        let ends = if draft.pipeline > 1.0 { 0.5 } else { 1.0 };
        let held = self.held(draft, layers) + self.end_parameters * ends / draft.tensor;
        let replicas = draft.data * draft.context;
        let bytes = match draft.zero {
            ZeroStage::Zero0 => 18.0,
            ZeroStage::Zero1 => 6.0 + 12.0 / replicas,
            ZeroStage::Zero2 => 2.0 + 16.0 / replicas,
            ZeroStage::Zero3 => 18.0 / replicas,
        };
        let activations = tokens * layers * self.kept(draft) * draft.in_flight();
        Stages {
            slowest: work / (speed * REACHED),
            state: log2(held * bytes / capacity).clamp(-8.0, 8.0) / 2.0,
            memory: log2((held * bytes + activations) / capacity).clamp(-8.0, 8.0) / 2.0,
        }
    }

    /// Parameters of so many layers on one rank.
    fn held(&self, draft: &Draft, layers: f64) -> f64 {
        layers * (self.layer_parameters / draft.tensor + self.expert_parameters / draft.expert)
    }

    /// Bytes of a token that one layer keeps on one rank (Korthikanti et al. 2022, with a fused core of attention).
    fn kept(&self, draft: &Draft) -> f64 {
        let of_all = if draft.sequence { 1.0 / draft.tensor } else { 1.0 };
        let divided = (24.0 + 2.0 * self.active) / draft.tensor;
        self.hidden
            * match draft.recompute {
                Recompute::None => 10.0 * of_all + divided,
                Recompute::Selective => 10.0 * of_all + 0.9 * divided,
                Recompute::Operations => 6.0 * of_all + 0.5 * divided,
                Recompute::Full => 2.0 * of_all,
            }
    }

    /// What exchanges and waiting are to the slowest position's work, and all of it to the least that there can be.
    fn parts(&self, draft: &Draft, slowest: f64) -> Parts {
        let tokens = draft.size * self.sequence / draft.context;
        let layers = self.layers / draft.pipeline;
        let activations = tokens * self.hidden * 2.0;
        let reach = |ranks: f64| if ranks <= self.domain { self.inside } else { self.outside.min(self.inside) };
        let ring = |ranks: f64| (ranks - 1.0) / ranks;
        let tensor = layers * 8.0 * ring(draft.tensor) * activations / reach(draft.tensor);
        let context = layers * 4.0 * self.kv_share * (draft.context - 1.0) * activations
            / draft.tensor
            / reach(draft.tensor * draft.context);
        let expert = layers * 4.0 * self.active * ring(draft.expert) * activations / draft.tensor / reach(draft.expert);
        let message = if draft.pipeline > 1.0 {
            2.0 * draft.chunks * activations / draft.tensor / self.outside.min(self.inside)
        } else {
            0.0
        };
        let replicas = draft.data * draft.context;
        let held = self.held(draft, layers) + self.end_parameters / draft.tensor / draft.pipeline;
        let gathered = match draft.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => 6.0,
            ZeroStage::Zero2 => 2.0 + 4.0 * draft.microbatches,
            ZeroStage::Zero3 => 6.0 * draft.microbatches,
        };
        let data = held * gathered * ring(replicas) / reach(draft.tensor * replicas);
        let waiting = match draft.schedule {
            Schedule::ZeroBubbleH1 => 1.0 / 3.0,
            Schedule::ZeroBubbleH2 | Schedule::ZeroBubble(_) | Schedule::Vee(_) | Schedule::DualPipeV => 0.2,
            Schedule::GPipe | Schedule::OneForwardOneBackward | Schedule::Explicit(_) => 1.0,
        };
        let bubble = waiting * (draft.pipeline - 1.0) / draft.chunks / draft.microbatches;
        let pass = slowest.max(1e-30);
        let share = |time: f64| (time / pass).min(16.0);
        let (tensor, context, expert) = (share(tensor), share(context), share(expert));
        let message = share(0.5 * message);
        let data = (data / (pass * draft.microbatches)).min(16.0);
        let one = 1.0 + tensor + 0.5 * (context + expert) + expert * 0.5 + message;
        let total = draft.microbatches * pass * (one * (1.0 + bubble) + 0.7 * data);
        let least = self.batch * self.sequence * (self.layers * self.layer_flops + self.end_flops)
            / (self.mean.0 * self.devices * REACHED);
        let squeezed = |share: f64| log2(1.0 + 4.0 * share) / 2.0;
        Parts {
            bubble: squeezed(bubble.min(64.0)),
            tensor: squeezed(tensor),
            data: squeezed(data),
            expert: squeezed(expert),
            message: squeezed(message),
            context: squeezed(context),
            total: log2(total / least.max(1e-30)).clamp(-4.0, 8.0),
        }
    }
}

/// What is decided, with guesses for what is not.
struct Draft {
    data: f64,
    tensor: f64,
    pipeline: f64,
    context: f64,
    expert: f64,
    size: f64,
    microbatches: f64,
    chunks: f64,
    schedule: Schedule,
    zero: ZeroStage,
    recompute: Recompute,
    sequence: bool,
    uniform: bool,
}

impl Draft {
    fn of(job: &Job, state: &State, orders: &[Order]) -> Self {
        let degrees = state.degrees;
        let or_one = |degree: u32| f64::from(degree.max(1));
        let [tensor, pipeline, context] = [degrees.tensor, degrees.pipeline, degrees.context].map(or_one);
        let most = libm::floor(job.devices / (tensor * pipeline * context)).clamp(1.0, job.batch);
        let data = if degrees.data == 0 { most } else { f64::from(degrees.data) };
        let size = or_one(state.size);
        let (schedule, chunks) = match state.order.and_then(|number| orders.get(number as usize)) {
            Some((schedule, chunks)) => (schedule.clone(), or_one(*chunks)),
            None => (Schedule::OneForwardOneBackward, 1.0),
        };
        let usual = if data * context > 1.0 { ZeroStage::Zero1 } else { ZeroStage::Zero0 };
        Self {
            data,
            tensor,
            pipeline,
            context,
            expert: or_one(degrees.expert),
            size,
            microbatches: (job.batch / (data * size)).max(1.0),
            chunks,
            schedule,
            zero: state.zero.unwrap_or(usual),
            recompute: state.recompute.unwrap_or(Recompute::None),
            sequence: state.sequence.unwrap_or(tensor > 1.0),
            uniform: matches!(state.layout, Some(Layout::Uniform) | None),
        }
    }
    /// Microbatches whose activations the first position holds at a time.
    fn in_flight(&self) -> f64 {
        let held = match self.schedule {
            Schedule::GPipe => self.microbatches,
            Schedule::ZeroBubbleH2 => 2.0 * self.pipeline,
            Schedule::OneForwardOneBackward
            | Schedule::ZeroBubbleH1
            | Schedule::ZeroBubble(_)
            | Schedule::Vee(_)
            | Schedule::DualPipeV
            | Schedule::Explicit(_) => self.pipeline + (self.pipeline - 1.0) * (1.0 - 1.0 / self.chunks),
        };
        held.min(self.microbatches)
    }
}

struct Stages {
    slowest: f64,
    state: f64,
    memory: f64,
}

struct Parts {
    bubble: f64,
    tensor: f64,
    data: f64,
    expert: f64,
    message: f64,
    context: f64,
    total: f64,
}

/// The kinds of the devices that may be used.
fn kinds(ask: &Question<'_>) -> Vec<Kind> {
    let of = |kind: search::Kind| {
        let cluster = ask.cluster;
        let device = cluster.device_kind(cluster.place(kind.devices[0]).device_kind);
        let peak = device.peak(ask.workload.precision).or(device.peak.first().map(|(_, peak)| *peak));
        let speed = peak.map_or(1e12, ir::FlopsPerSecond::get) / device.slowdown;
        Kind { count: kind.devices.len() as f64, speed, memory: (device.memory.get() as f64).max(1.0) }
    };
    search::kinds(ask).into_iter().map(of).collect()
}

/// Bytes per second of one device inside its domain, and its share of its node's NICs: those of the slowest kind of node.
fn bandwidths(cluster: &Cluster) -> (f64, f64) {
    let (mut inside, mut outside) = (f64::INFINITY, f64::INFINITY);
    for group in &cluster.groups {
        let node = cluster.node_kind(group.kind);
        inside = inside.min(node.domain_link.bandwidth.get());
        let share = f64::from(node.nics.max(1)) / node.devices.len().max(1) as f64;
        outside = outside.min(node.nic.bandwidth.get() * share);
    }
    if let Some(link) = &cluster.fabric.up_link {
        outside = outside.min(link.bandwidth.get());
    } else {
        outside /= cluster.fabric.oversubscription.max(1.0);
    }
    (inside.clamp(1.0, 1e15), outside.clamp(1.0, 1e15))
}

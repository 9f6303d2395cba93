//! Planners: what decides before a run.

mod dynprog;
mod exhaustive;
pub mod learned;
mod manual;
pub mod mcts;
mod megatron;
mod pareto;
mod random;
mod switches;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

pub use dynprog::DynProg;
pub use exhaustive::{Exhaustive, Space};
pub use manual::Manual;
pub use mcts::{Guide, Mcts, Start};
pub use megatron::{Held, Megatron};
pub use pareto::{Front, Measure, Pareto};
pub use random::Random;
pub use switches::Switched;

use ir::{Candidate, Cluster, ContextMethod, Infeasible, Mixer, Model, Plan, Prediction, Problem, Workload};

use crate::aim::{Aim, FASTEST, Objective, Pool, pools, usable};
use crate::evaluate::{Evaluator, memory_problems};
use crate::schedules;
use megatron::why_slower;

/// What is asked of a planner.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// How.
    pub workload: &'a Workload,
    /// On what.
    pub cluster: &'a Cluster,
    /// What is made small, and what must be kept to.
    pub aim: &'a Aim,
}

impl<'a> Question<'a> {
    /// For the fastest plan on all devices.
    #[must_use]
    pub const fn new(model: &'a Model, workload: &'a Workload, cluster: &'a Cluster) -> Self {
        Self { model, workload, cluster, aim: &FASTEST }
    }

    /// Devices that plans are laid on: first all that may be used.
    fn pools(&self) -> Vec<Pool> {
        pools(self.cluster, self.aim)
    }

    /// How many devices may be used.
    fn devices(&self) -> u64 {
        self.cluster.devices() - self.aim.avoid.len() as u64
    }

    /// What is made small of a prediction, in words.
    fn figure(&self, prediction: &Prediction) -> String {
        self.aim.figure(prediction, self.workload)
    }
}

/// What a search says while it runs: evaluations so far, and the best plan that is allowed so far.
pub type Progress<'a> = &'a mut dyn FnMut(u64, Option<(&Plan, &Prediction)>);

/// Decides on a plan.
pub trait Planner {
    /// The chosen plan first, then the best runners-up, each with why it stands where it does.
    ///
    /// `budget` bounds evaluations. The first candidate is what the question's aim [allows](Aim::allows) unless the planner has
    /// no choice ([`Manual`]).
    ///
    /// # Errors
    /// Every reason why there is no plan, with the nearest plans that are legal.
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible>;
}

/// The same plan with unequal shares of the batch, where its replicas are unlike and it gains what is worth saying: one in a
/// hundred.
fn faster_shares(
    ask: &Question<'_>,
    plan: &Plan,
    equal: &Prediction,
    evaluator: &mut dyn Evaluator,
) -> Option<Candidate> {
    if !plan.shares.are_equal() {
        return None;
    }
    let shared = evaluator.share_out(plan)?;
    let prediction = evaluator.evaluate(&shared).ok().filter(|found| ask.aim.allows(found))?;
    let gain = equal.iteration.seconds() / prediction.iteration.seconds().max(1e-12);
    let reason = format!(
        "unlike replicas: with {} microbatches of {} in place of equal shares, {:.3} s and not {:.3} s ({:.2} times as fast)",
        shared.shares,
        shared.microbatch_size,
        prediction.iteration.seconds(),
        equal.iteration.seconds(),
        gain
    );
    (gain >= 1.01).then(|| Candidate { plan: shared, evaluation: Ok(prediction), reasons: vec![reason] })
}

/// How far over its memory the worst stage is, as a share of the capacity; under 0 if all fit.
fn worst_excess(prediction: &Prediction) -> f64 {
    let excess = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64 - 1.0;
    prediction.memory.iter().map(excess).fold(f64::NEG_INFINITY, f64::max)
}

/// "does not fit: stage 0 needs 91.0 GiB of 80.0 …".
fn misfit(prediction: &Prediction) -> Option<String> {
    let problems = memory_problems(prediction);
    let worst = problems.first()?;
    let more = match problems.len() {
        1 => String::new(),
        2 => "; 1 more stage does not fit either".to_owned(),
        n => format!("; {} more stages do not fit either", n - 1),
    };
    Some(format!("does not fit: {} {}{more}", worst.subject, worst.message))
}

/// Why a plan loses to the best, by what is made small.
fn why_worse(ask: &Question<'_>, plan: (&Plan, &Prediction), best: (&Plan, &Prediction)) -> String {
    let ((plan, prediction), (best, winner)) = (plan, best);
    let time = why_slower(plan, prediction, best, winner);
    if ask.aim.objective == Objective::Time {
        return time;
    }
    let more = ask.aim.worse(ask.aim.score(prediction), ask.aim.score(winner));
    let used = (plan.world() != best.world()).then(|| format!(" on {} devices and not {}", plan.world(), best.world()));
    let took = format!(": {}{}", ask.figure(prediction), used.unwrap_or_default());
    if prediction.iteration > winner.iteration { format!("{more}{took}; {time}") } else { format!("{more}{took}") }
}

/// That fewer devices than there are is best, where it is.
fn left_idle(ask: &Question<'_>, plan: &Plan) -> Option<String> {
    let (used, there) = (plan.world(), ask.devices());
    (ask.aim.may_leave_idle() && used < there).then(|| format!("{used} of {there} devices: more would not be better"))
}

/// What stands in the way of a plan that memory alone, or memory and headroom, keep out: where the memory would do, the headroom
/// that could be kept is said.
fn no_room(ask: &Question<'_>, message: String, prediction: &Prediction, hint: &str) -> Problem {
    let device = |stage: &ir::StageMemory| ask.cluster.device_kind(ask.cluster.place(stage.device).device_kind).memory;
    let whole = prediction.memory.iter().all(|stage| stage.peak <= device(stage));
    let kept = prediction.memory.iter().any(|stage| stage.capacity < device(stage));
    if !(whole && kept) {
        return Problem::new("plan", message).hint(hint);
    }
    let least = |of: &dyn Fn(&ir::StageMemory) -> f64| prediction.memory.iter().map(of).fold(f64::INFINITY, f64::min);
    let free = least(&|stage| device(stage).gib() - stage.peak.gib());
    let share = least(&|stage| 1.0 - stage.peak.get() as f64 / device(stage).get().max(1) as f64);
    // Rounded down, so that what is said can be kept.
    let (free, share) = ((free * 100.0).floor() / 100.0, (share * 1000.0).floor() / 1000.0);
    let message = format!("{message}; it leaves {free:.2} GiB of each device free, {:.1} %", share * 100.0);
    Problem::new("constraints.memory_headroom", message).hint(format!("memory_headroom = \"{free}GiB\" or {share}"))
}

/// A plan in a few words.
pub(crate) fn words(plan: &Plan) -> String {
    let chunks = plan.chunks_per_stage();
    let interleaved = if chunks > 1 { format!(" x {chunks} chunks") } else { String::new() };
    let equal = plan.shares.are_equal();
    let more = |name: &str, degree: u32| if degree > 1 { format!(", {name} {degree}") } else { String::new() };
    format!(
        "data {}, tensor {}{}, pipeline {}{interleaved}{}{}, {} microbatches of {}, {}",
        plan.data,
        plan.tensor,
        more("context", plan.mesh.context),
        plan.pipeline(),
        more("expert", plan.mesh.expert),
        more("expert tensor", plan.mesh.expert_tensor),
        if equal { plan.microbatches.to_string() } else { plan.shares.to_string() },
        plan.microbatch_size,
        schedules::name(&plan.schedule, chunks)
    )
}

/// Sequences from this length on are shared among ranks, and each of those has as many tokens of one as this at least
/// (Megatron-Core's guide: context parallelism for sequences of 8 thousand tokens or more).
const LONG: u32 = 8192;
const PART: u32 = 4096;

/// Context degrees that are worth a look for a sequence length.
fn contexts(sequence: u32) -> Vec<u32> {
    let longer = (1..32).map(|power| 1 << power).take_while(|degree| sequence / degree >= PART);
    let parts = longer.filter(|degree| sequence >= LONG && sequence.is_multiple_of(2 * degree));
    std::iter::once(1).chain(parts).collect()
}

/// How ranks share sequences: layers that carry a state along it have nothing else to exchange than heads.
fn context_method(model: &Model) -> ContextMethod {
    let stateful = model.runs().any(|run| run.layers > 0 && matches!(run.mixer, Mixer::Mamba | Mixer::GatedDelta));
    if stateful { ContextMethod::AllToAll } else { ContextMethod::Ring }
}

/// Devices of the smallest domain of the nodes that may be used.
fn smallest_domain(ask: &Question<'_>) -> u32 {
    let cluster = ask.cluster;
    let mut kinds = match ask.aim.avoid[..] {
        [] => cluster.groups.iter().filter(|group| group.count > 0).map(|group| group.kind).collect::<Vec<_>>(),
        _ => usable(cluster, &ask.aim.avoid).into_iter().map(|(_, kind, _)| kind).collect(),
    };
    kinds.sort_unstable();
    kinds.dedup();
    let used = kinds.into_iter().map(|kind| cluster.node_kind(kind));
    let size = |node: &ir::NodeKind| {
        let devices = u32::try_from(node.devices.len()).unwrap_or(u32::MAX);
        if node.domain_size == 0 { devices } else { node.domain_size.min(devices) }
    };
    used.map(size).min().unwrap_or(1).max(1)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

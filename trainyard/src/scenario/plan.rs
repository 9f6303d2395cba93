//! `[plan]`: a policy with what it must keep to, or the plan itself.
//!
//! Both are written with the same keys. Under `policy = "manual"` (the default as soon as a key of the plan is there)
//! they are the plan, with defaults for the rest; under another policy they are constraints.

mod keys;
mod schedule;
mod written;

use ir::{Cluster, Model, Plan, Problem, Workload};

pub(super) use self::keys::{ALL, OFFLOADED};
pub use self::keys::{Offload, PlanKeys};
#[cfg(test)]
pub(super) use self::schedule::wrong_cells;
pub(super) use self::schedule::{Written, written};

use super::Sight;
use crate::read::Table;

/// What is asked of the scheduler.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanChoice {
    /// The plan itself.
    Written(Plan),
    /// A policy, and what it must keep to.
    Policy(PolicyName, Box<PlanKeys>),
}

/// A policy by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyName {
    /// The rules of thumb of an expert who tunes by hand.
    Megatron,
    /// All uniform plans, or proof that what is left out cannot win.
    Exhaustive,
    /// Stages of unequal layers on unlike devices, with a bound on what is left.
    DynProg,
    /// The same by tree search, with a bound too.
    Mcts,
    /// Tree search begun from the answer of `dynprog`.
    MctsSeeded,
    /// Tree search that a trained network guides.
    Learned,
    /// Uniform plans drawn at random: the control.
    Random,
}

impl PolicyName {
    /// As in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Exhaustive => "exhaustive",
            Self::DynProg => "dynprog",
            Self::Mcts => "mcts",
            Self::MctsSeeded => "mcts-seeded",
            Self::Learned => "learned",
            Self::Random => "random",
        }
    }
    /// Whether it draws: its plan then depends on the scenario's seed.
    #[must_use]
    pub const fn draws(self) -> bool {
        match self {
            Self::Random | Self::Mcts | Self::MctsSeeded | Self::Learned => true,
            Self::Megatron | Self::Exhaustive | Self::DynProg => false,
        }
    }
}

impl PolicyName {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::Megatron, Self::Exhaustive, Self::DynProg, Self::Mcts, Self::MctsSeeded, Self::Learned, Self::Random];
    /// The one of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The name under which the plan itself is written.
pub(super) const MANUAL: &str = "manual";
/// More positions than layers of any model.
const DEEPEST: u64 = 4096;
/// A pass of each microbatch is an instruction: this many are the most that a program holds with comfort.
const MOST_MICROBATCHES: u64 = 1 << 16;

/// Reads `[plan]`; without one, the megatron policy decides everything.
pub(super) fn read(
    root: &Table<'_>,
    cluster: Option<&Cluster>,
    model: Option<&Model>,
    workload: Option<&Workload>,
    sight: &Sight<'_>,
) -> Option<PlanChoice> {
    let Some(table) = root.table("plan") else {
        return Some(PlanChoice::Policy(PolicyName::Megatron, Box::default()));
    };
    let policy = table.get("policy").map(|v| v.choice(&policies()));
    let keys = keys::keys(&table, sight);
    table.finish();
    let policy = match policy {
        None if keys.as_ref().is_some_and(|k| *k == PlanKeys::default()) => Some(PolicyName::Megatron),
        None => None,
        Some(read) => read?,
    };
    let keys = keys?;
    agree(&table, &keys)?;
    match policy {
        Some(policy) => constrained(&table, policy, &keys).map(|()| PlanChoice::Policy(policy, Box::new(keys))),
        None if keys.weights.is_some() => {
            let problem = Problem::new(table.path_of("weights"), "guides a search, and the plan is written");
            table.report_at("weights", problem.hint("leave it out, or policy = \"learned\""));
            None
        }
        None if keys.budget.is_some() => {
            let problem = Problem::new(table.path_of("budget"), "bounds a search, and the plan is written");
            table.report_at("budget", problem.hint("leave it out, or name a policy"));
            None
        }
        None => written::written(&table, &keys, cluster?, model?, workload?).map(PlanChoice::Written),
    }
}

/// Policies by name; `manual` is none.
fn policies() -> Vec<(&'static str, Option<PolicyName>)> {
    let named = PolicyName::ALL.into_iter().map(|policy| (policy.name(), Some(policy)));
    std::iter::once((MANUAL, None)).chain(named).collect()
}

/// Whether what `layers_per_stage` lists is what the other keys say of the pipeline; notes where it is not.
fn agree(table: &Table<'_>, keys: &PlanKeys) -> Option<()> {
    let Some(listed) = &keys.layers_per_stage else { return Some(()) };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (stages, chunks) = (count(listed.len()), count(listed[0].len()));
    let message = if let Some(pipeline) = keys.pipeline.filter(|pipeline| *pipeline != stages) {
        format!("lists {stages} stages, and pipeline says {pipeline}")
    } else if let Some(wanted) = keys.chunks_per_stage.filter(|wanted| *wanted != chunks) {
        format!("lists {chunks} chunks per stage, and chunks_per_stage says {wanted}")
    } else {
        return Some(());
    };
    table.report_at("layers_per_stage", Problem::new(table.path_of("layers_per_stage"), message));
    None
}

/// Whether a policy can keep to what is written: what is written for each stage needs the number of stages to be written too,
/// and what a policy is there to decide is not written.
fn constrained(table: &Table<'_>, policy: PolicyName, keys: &PlanKeys) -> Option<()> {
    let decided = [
        ("layers_per_stage", keys.layers_per_stage.is_some()),
        ("recompute_layers", keys.recompute_layers.is_some()),
        ("placement", keys.placement.is_some()),
    ];
    let cuts = match policy {
        PolicyName::DynProg | PolicyName::Mcts | PolicyName::MctsSeeded | PolicyName::Learned => true,
        PolicyName::Megatron | PolicyName::Exhaustive | PolicyName::Random => false,
    };
    let refused = decided.into_iter().filter(|(_, written)| *written && cuts);
    let refused = refused.map(|(key, _)| key).collect::<Vec<_>>();
    for key in &refused {
        let problem = Problem::new(table.path_of(key), format!("is what {} decides", policy.name()));
        table.report_at(key, problem.hint("leave it out, or policy = \"exhaustive\", which keeps to it"));
    }
    let tensors = keys.tensor.as_ref().filter(|tensors| tensors.len() > 1);
    if let Some(tensors) = tensors {
        let message = format!("{tensors:?} is a degree for each stage, and {} has one for all", policy.name());
        let hint = "one number, or policy = \"manual\"";
        table.report_at("tensor", Problem::new(table.path_of("tensor"), message).hint(hint));
    }
    if !refused.is_empty() || tensors.is_some() {
        return None;
    }
    if keys.weights.is_some() && policy != PolicyName::Learned {
        let message = format!("is of the policy learned, and {} decides", policy.name());
        let problem = Problem::new(table.path_of("weights"), message);
        table.report_at("weights", problem.hint("leave it out, or policy = \"learned\""));
        return None;
    }
    let stages = keys.pipeline.map_or_else(|| keys.layers_per_stage.as_ref().map(Vec::len), |p| Some(p as usize));
    let written = [
        ("recompute", keys.recompute.as_ref().map(Vec::len)),
        ("recompute_layers", keys.recompute_layers.as_ref().map(Vec::len)),
    ];
    for (key, listed) in written.into_iter().filter_map(|(key, listed)| Some((key, listed.filter(|n| *n != 1)?))) {
        let message = match stages {
            Some(stages) if stages == listed => continue,
            Some(stages) => format!("lists {listed} stages, and there are {stages}"),
            None => format!("lists {listed} stages, and nothing says how many there are"),
        };
        let hint = "write pipeline too, or one value for all stages";
        table.report_at(key, Problem::new(table.path_of(key), message).hint(hint));
        return None;
    }
    Some(())
}

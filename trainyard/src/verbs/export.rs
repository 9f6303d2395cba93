//! `export`: a plan in another tool's words.

use formats::training::{self, Asked, Divided, ModelGiven, ModelSource, Tool};
use formats::{deepspeed, megatron, rank_map, sailor, torchtitan};
use ir::{Cluster, ContextMethod, Model, Plan, Problem, Schedule, ZeroStage};

use super::import::runtime;
use crate::catalog::Catalog;
use crate::job::Job;
use crate::results::{ExportReport, Header, PlanSummary};
use crate::scenario::{self, CostChoice, Loaded, Scenario};
use crate::{Context, Error};

/// For whom a plan is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportTarget {
    /// Software that trains.
    Tool(Tool),
    /// Whoever places ranks: a table of them.
    RankMap,
    /// Sailor: a plan that its simulator judges.
    Sailor,
}

impl ExportTarget {
    /// Its name on a command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tool(tool) => tool.word(),
            Self::RankMap => "rank-map",
            Self::Sailor => "sailor",
        }
    }
}

/// The scenario's plan, written or chosen by its policy, as a file of the target.
///
/// What is written for a tool has been read back, and means the same model and plan. Where the tool trains in a way of its
/// own that no key changes, a note says so.
///
/// # Errors
/// [`Error::Input`] with everything that the target cannot be told, by name; [`Error::Infeasible`] where there is no plan.
pub fn export(loaded: &Loaded, target: ExportTarget, context: &Context<'_>) -> Result<ExportReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    let scenario = &loaded.scenario;
    let plan = &decision.plan;
    let mut notes = Vec::new();
    let unfit = sched::memory_problems(&decision.prediction);
    notes.extend(unfit.iter().map(|problem| format!("the plan does not fit: {problem}")));
    let of = scenario::Training { model: &scenario.model, workload: &scenario.workload, plan };
    let written = match target {
        ExportTarget::Tool(tool) => of_tool(tool, of, &scenario.cluster, &mut notes),
        ExportTarget::RankMap => rank_map::rank_map(plan, &scenario.cluster),
        ExportTarget::Sailor => of_sailor(loaded, plan, decision.prediction.iteration.seconds()),
    };
    let text = written.map_err(|problems| loaded.error(problems))?;
    // JSON has no comments.
    let is_json = matches!(target, ExportTarget::Sailor | ExportTarget::Tool(Tool::DeepSpeed));
    Ok(ExportReport {
        header: Header::new("export", &scenario.name),
        target: target.word(),
        plan: PlanSummary::of(plan),
        text: if is_json { text } else { with_notes(&text, &notes) },
        notes,
    })
}

/// Notes as comments, below the first line if that says who reads the file.
fn with_notes(text: &str, notes: &[String]) -> String {
    let comments: String = notes.iter().map(|note| format!("# {}\n", note.replace('\n', " "))).collect();
    match text.split_once('\n') {
        Some((first, rest)) if first.starts_with("#!") => format!("{first}\n{comments}{rest}"),
        _ => comments + text,
    }
}

/// The plan as Sailor has it, which reads back to the same degrees, cuts and kinds of device.
fn of_sailor(loaded: &Loaded, plan: &Plan, seconds: f64) -> Result<String, Vec<Problem>> {
    let Scenario { model, workload, cluster, .. } = &loaded.scenario;
    let text = sailor::of_plan(model, (workload.global_batch, plan), cluster, behind(loaded), Some(seconds))?;
    let read = sailor::plan(&text, "sailor")?;
    let again = crate::plans::of_ours(&read, loaded)?;
    let kinds = |of: &Plan| -> Vec<_> {
        let ranks = 0..u32::try_from(of.world()).unwrap_or(u32::MAX);
        ranks.map(|rank| cluster.place(of.device(ir::Rank::new(rank))).device_kind).collect()
    };
    let degrees = |of: &Plan| (of.data, of.tensor, of.microbatch_size, of.microbatches, of.stages.clone());
    if degrees(&again) == degrees(plan) && kinds(&again) == kinds(plan) {
        return Ok(text);
    }
    let message = "Sailor would read another plan: its nodes are filled in the order of ranks";
    Err(vec![Problem::new("plan.placement", message).hint("ranks on devices in order, or export --to rank-map")])
}

/// How many of Sailor's layers follow the transformer's: as many as the scenario's profiles have, else the one that the
/// final norm and the head are together.
fn behind(loaded: &Loaded) -> u32 {
    let CostChoice::Calibration { profiles, .. } = &loaded.scenario.cost else { return 1 };
    let layers = profiles.first().and_then(|choice| choice.profile.points.first()).map(|point| point.layers.len());
    let behind = layers.and_then(|layers| u32::try_from(layers).ok()?.checked_sub(loaded.scenario.model.layers + 1));
    behind.filter(|behind| (1..=2).contains(behind)).unwrap_or(1)
}

fn of_tool(
    tool: Tool,
    of: scenario::Training<'_>,
    cluster: &Cluster,
    notes: &mut Vec<String>,
) -> Result<String, Vec<Problem>> {
    let scenario::Training { model, workload, plan } = of;
    let text = match tool {
        Tool::Megatron => per_node(cluster, plan).and_then(|devices| megatron::script(model, workload, plan, devices)),
        Tool::Torchtitan => torchtitan::overrides(model, flavour(model), workload, plan),
        Tool::DeepSpeed => deepspeed::config(model, workload, plan),
    };
    let text = with_rules(tool, of, text)?;
    let (again, divided) = back(tool, &text, model, plan, workload.sequence_length)?;
    let mine = meaning(plan, model);
    let theirs =
        scenario::Training { model: &again, workload: &divided.workload, plan: &meaning(&divided.plan, &again) };
    let mut refused = Vec::new();
    for (key, wanted, told) in scenario::differences(scenario::Training { plan: &mine, ..of }, theirs) {
        if key.starts_with("training.") || key == "seed" {
            if !outside(tool, &key) {
                notes.push(format!("{key} = {told} in {}, where the scenario has {wanted}", tool.name()));
            }
        } else {
            let message = format!("{} has no key for it: {wanted} would be {told}", tool.name());
            refused.push(Problem::new(key, message).hint(format!("{told}, if that will do")));
        }
    }
    if refused.is_empty() { Ok(text) } else { Err(refused) }
}

/// The text, or why there is none: what has no key, and what the tool itself refuses.
fn with_rules(
    tool: Tool,
    of: scenario::Training<'_>,
    text: Result<String, Vec<Problem>>,
) -> Result<String, Vec<Problem>> {
    let last = |problem: &Problem| problem.subject.rsplit('.').next().unwrap_or_default().to_owned();
    let (text, mut problems) = match text {
        Ok(text) => (text, Vec::new()),
        Err(problems) => (String::new(), problems),
    };
    let named: Vec<String> = problems.iter().map(last).collect();
    let rules = sched::refused_by(runtime(tool), of.plan, of.model, of.workload);
    // Megatron-LM's wrapper for ZeRO-2 and 3 is what the script names.
    let wrapped = |problem: &Problem| tool == Tool::Megatron && problem.subject == "plan.zero";
    problems.extend(rules.into_iter().filter(|problem| !wrapped(problem) && !named.contains(&last(problem))));
    if problems.is_empty() { Ok(text) } else { Err(problems) }
}

/// What a file of that tool leaves to the program around it.
fn outside(tool: Tool, key: &str) -> bool {
    let program =
        ["sequence_length", "iterations", "vocabulary_divisor", "attention"].map(|key| format!("training.{key}"));
    tool == Tool::DeepSpeed && (key == "seed" || program.iter().any(|of| of == key))
}

/// What the tool's reader says of a text.
fn back(tool: Tool, text: &str, model: &Model, plan: &Plan, length: u32) -> Result<(Model, Divided), Vec<Problem>> {
    let given = if tool == Tool::DeepSpeed { ModelGiven::Yes } else { ModelGiven::No };
    let training = training::read(text, tool.word(), Some(tool), given)?;
    let theirs = match &training.model {
        ModelSource::File(model) => (**model).clone(),
        ModelSource::Catalog(name) => Catalog::embedded().model(name).cloned().unwrap_or_else(|| model.clone()),
        ModelSource::Given => model.clone(),
    };
    let asked = Asked { devices: plan.world(), sequence_length: Some(length), global_batch: None };
    let divided = training.divide(&theirs, asked)?;
    Ok((theirs, divided))
}

/// The family and the flavour of a model of torchtitan with these sizes, whatever its name.
fn flavour(model: &Model) -> Option<(&'static str, &'static str)> {
    let catalog = Catalog::embedded();
    let is_it = |name: &&str| {
        catalog.model(name).is_some_and(|known| Model { name: model.name.clone(), ..known.clone() } == *model)
    };
    torchtitan::known_models().find(is_it).and_then(torchtitan::flavour)
}

/// Devices of each node that ranks are on.
fn per_node(cluster: &Cluster, plan: &Plan) -> Result<u32, Vec<Problem>> {
    let sizes = cluster.groups.iter().map(|group| cluster.node_kind(group.kind).devices.len());
    let sizes: Vec<usize> = sizes.collect();
    let first = sizes.first().copied().unwrap_or(1);
    let alone = cluster.groups.first().map_or(0, |group| u64::from(group.count) * first as u64) >= plan.world();
    if alone || sizes.iter().all(|size| *size == first) {
        return Ok(u32::try_from(first).unwrap_or(u32::MAX));
    }
    let message =
        format!("nodes of unlike numbers of devices ({sizes:?}), and torchrun starts equally many ranks on each");
    Err(vec![Problem::new("cluster.nodes", message).hint("nodes of one size, or export --to rank-map")])
}

/// The plan with what does not matter to it at one value.
fn meaning(plan: &Plan, model: &Model) -> Plan {
    let mut plan = plan.clone();
    let replicas = plan.replicas();
    if plan.zero == ZeroStage::Zero0 || plan.sharing.shard.is_some_and(|shard| shard >= replicas) {
        plan.sharing.shard = None;
    }
    if replicas == 1 {
        // Nothing is reduced or gathered.
        plan.overlap_gradients = true;
    }
    if plan.mesh.context == 1 {
        plan.mesh.context_method = ContextMethod::Ring;
    }
    if model.variants.experts.is_none() {
        (plan.mesh.expert, plan.mesh.expert_tensor) = (1, 1);
    }
    if plan.pipeline() == 1 && plan.microbatches == 1 && plan.chunks_per_stage() == 1 {
        plan.schedule = Schedule::OneForwardOneBackward;
    }
    for stage in &mut plan.stages {
        let most = stage.layers.iter().copied().max().unwrap_or(0);
        if stage.recompute_layers.is_some_and(|layers| layers >= most) {
            stage.recompute_layers = None;
        }
        if stage.recompute_layers == Some(0) {
            (stage.recompute, stage.recompute_layers) = (ir::Recompute::None, None);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::with_notes;

    #[test]
    fn notes_stand_below_the_line_that_names_the_interpreter() {
        let notes = ["one".to_owned(), "two\nlines".to_owned()];
        assert_eq!(with_notes("#!/bin/bash\nx\n", &notes), "#!/bin/bash\n# one\n# two lines\nx\n");
        assert_eq!(with_notes("a = 1\n", &notes), "# one\n# two lines\na = 1\n");
        assert_eq!(with_notes("a = 1\n", &[]), "a = 1\n");
    }
}

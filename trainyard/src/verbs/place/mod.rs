//! `place`: which rank is on which device, and what another order gains.

mod groups;
mod numbering;
#[cfg(test)]
mod tests;
mod vendors;

use std::path::Path;

use formats::rank_map::rank_map;
use ir::{Infeasible, Plan, Prediction, Problem};
use sched::{ClosedForm, Placed, memory_problems};

use self::numbering::Numbering;
use crate::job::Job;
use crate::policy;
use crate::results::{Header, PlaceReport, PlaceStep, PlanSummary};
use crate::scenario::{Loaded, PlanChoice, Scenario};
use crate::{Context, Error};

/// What `place` is asked beyond a scenario.
#[derive(Clone, Copy, Debug)]
pub struct PlaceRequest<'a> {
    /// A table of measured rates between all devices.
    pub matrix: Option<&'a Path>,
    /// What `nvidia-smi topo -m` prints of a node, Slurm's `topology.conf`, or what nccl-tests prints with its list of
    /// ranks.
    pub topology: Option<&'a Path>,
    /// Plans that may be evaluated.
    pub budget: u64,
}

/// Searches for the order of devices that is fastest for a scenario's plan, its degrees as they are.
///
/// The search begins with rank r on the person's device r, or with the plan's own placement, which is in the scenario's
/// numbers.
///
/// # Errors
/// [`Error::Input`] if a file cannot be read or contradicts the scenario; [`Error::Infeasible`] if there is no plan, or
/// every order found has a group across vendors, a device that is to be avoided, or breaks a constraint.
pub fn place(loaded: &Loaded, request: &PlaceRequest<'_>, context: &Context<'_>) -> Result<PlaceReport, Error> {
    let scenario = &loaded.scenario;
    let lacks = scenario.unanswerable();
    if !lacks.is_empty() {
        return Err(loaded.error(lacks));
    }
    let cluster = &scenario.cluster;
    let numbering = Numbering::read(cluster, request.matrix, request.topology)?;
    let job = Job::new(loaded, None)?;
    let mut closed = ClosedForm::new(&scenario.model, &scenario.workload, &job.cost);
    let mut start = match &scenario.plan {
        // It need not be legal in the order that it has.
        PlanChoice::Written(plan) => closed.profiled(plan),
        PlanChoice::Policy(..) => job.decide(context)?.plan,
    };
    context.step("place", 0, 0, "")?;
    if start.placement.is_empty() {
        let world = usize::try_from(start.world()).unwrap_or(usize::MAX);
        start.placement = numbering.back().into_iter().take(world).collect();
    }
    let aim = scenario.aim();
    let refused = |plan: &Plan, found: &Prediction| {
        vendors::mixed(plan, cluster).is_some() || aim.avoided(plan).is_some() || !aim.broken(found).is_empty()
    };
    let placed = sched::place(&start, cluster, &mut closed, &refused, request.budget)
        .map_err(|infeasible| job.infeasible(infeasible))?;
    if let Some(error) = refusal(&job, &placed) {
        return Err(error);
    }
    let unfit = memory_problems(&placed.prediction);
    let ranks =
        named(&rank_map(&placed.plan, cluster).map_err(|problems| loaded.error(problems))?, &placed.plan, &numbering);
    let milliseconds = |prediction: &ir::Prediction| prediction.iteration.seconds() * 1e3;
    let (before, after) = (placed.before.as_ref().map(milliseconds), milliseconds(&placed.prediction));
    let staged = vendors::staged(&placed.plan, cluster);
    let mut notes: Vec<String> = unfit.iter().map(|problem| format!("the plan does not fit: {problem}")).collect();
    notes.extend(staged.iter().map(|position| {
        format!(
            "stage {position} hands on to another vendor's devices: messages pass through host memory, and are priced as the \
             NICs alone"
        )
    }));
    if before.is_none() {
        notes.push("the plan is not legal in the order that the search began with".to_owned());
    } else if vendors::mixed(&start, cluster).is_some() {
        notes.push("the order that the search began with has groups across vendors, and could not run".to_owned());
    }
    let planned = Scenario { plan: PlanChoice::Written(placed.plan.clone()), ..scenario.clone() };
    Ok(PlaceReport {
        header: Header::new("place", &scenario.name),
        plan: PlanSummary::of(&placed.plan),
        domains: described(cluster),
        found: numbering.found.clone(),
        before_ms: before,
        after_ms: after,
        gain: before.map(|before| before / after - 1.0),
        evaluations: placed.evaluations,
        settled: placed.settled,
        axes: groups::axes(&start, &placed.plan, cluster),
        steps: placed
            .steps
            .iter()
            .map(|(step, p)| PlaceStep { step: step.clone(), iteration_ms: milliseconds(p) })
            .collect(),
        order: placed.plan.placement.iter().map(|device| numbering.given[device.index()]).collect(),
        notes,
        ranks,
        placed_scenario: planned.to_toml(),
    })
}

/// Why the best order that was found cannot be: a group across vendors, a device that is to be avoided, or a constraint.
fn refusal(job: &Job<'_>, placed: &Placed) -> Option<Error> {
    let scenario = &job.loaded.scenario;
    let infeasible = |problem| Some(job.infeasible(Infeasible { reasons: vec![problem], nearest: Vec::new() }));
    if let Some(problem) = vendors::mixed(&placed.plan, &scenario.cluster) {
        return infeasible(problem);
    }
    if let Some(device) = scenario.aim().avoided(&placed.plan) {
        let message = format!("no order that was found does without device {}", device.raw());
        return infeasible(Problem::new("constraints.avoid", message).hint("a plan of fewer ranks"));
    }
    policy::broken(job, &placed.prediction)
}

/// The domains of a cluster's description: `4 nodes dgx-a100: one domain of 8, nvlink3; 2 leaves of 2 nodes`.
fn described(cluster: &ir::Cluster) -> Vec<String> {
    let mut lines: Vec<String> = cluster
        .groups
        .iter()
        .filter(|group| group.count > 0)
        .map(|group| {
            let kind = cluster.node_kind(group.kind);
            let size = kind.domain_size.max(1) as usize;
            let domains = kind.devices.len().div_ceil(size);
            format!("{} x {}: {domains} x {size} devices over {}", group.count, kind.name, kind.domain_link.name)
        })
        .collect();
    let fabric = &cluster.fabric;
    if fabric.leaf_nodes > 0 {
        let rails = if fabric.rails { ", rail by rail" } else { "" };
        lines.push(format!("{} nodes under a leaf{rails}, {} : 1 above", fabric.leaf_nodes, fabric.oversubscription));
    }
    lines
}

/// The map of ranks, with what the person calls each device as its last column where a file says it.
fn named(map: &str, plan: &Plan, numbering: &Numbering) -> String {
    if numbering.names.is_empty() {
        return map.to_owned();
    }
    let mut devices = plan.placement.iter();
    let mut out = String::new();
    for line in map.lines() {
        out.push_str(line);
        if line.starts_with("rank,") {
            out.push_str(",known_as");
        } else if !line.starts_with('#') {
            let device = devices.next().expect("a line for each rank");
            let name = &numbering.names[device.index()];
            let plain = !name.contains([',', '"']);
            out.push_str(&if plain { format!(",{name}") } else { format!(",\"{}\"", name.replace('"', "\"\"")) });
        }
        out.push('\n');
    }
    out
}

//! Rules of tensor degrees that differ from stage to stage ([`ir::StagePlan::tensor`]).

use ir::program::ranks_across;
use ir::{Cluster, DeviceKindId, Model, Plan, Problem, Schedule, Workload};

use super::Joined;
use crate::layout::chunk_positions;

/// Whether any stage says a degree of its own.
fn are_written(plan: &Plan) -> bool {
    plan.stages.iter().any(|stage| stage.tensor.is_some())
}

/// A plan says the most of its stages' degrees, each at least 1.
pub(super) fn sizes(plan: &Plan) -> Vec<Problem> {
    if !are_written(plan) {
        return Vec::new();
    }
    let zero = |(position, tensor): (usize, u32)| {
        (tensor == 0).then(|| Problem::new(format!("plan.stages[{position}].tensor"), "is zero").hint("at least 1"))
    };
    let mut problems = plan.tensors().enumerate().filter_map(zero).collect::<Vec<_>>();
    let most = plan.tensors().max().unwrap_or(plan.tensor);
    if most != plan.tensor {
        let message = format!("is {}, and the most of the stages' is {most}", plan.tensor);
        problems.push(Problem::new("plan.tensor", message).hint(format!("tensor = {most}: the most of the stages'")));
    }
    problems
}

/// What goes with unlike degrees, and what does not yet.
pub(super) fn problems(plan: &Plan, model: &Model, workload: &Workload) -> Vec<Problem> {
    if !plan.has_unlike_tensors() {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut refuse = |wrong: bool, subject: &str, message: &str, hint: &str| {
        if wrong {
            let message = format!("stages have unlike tensor degrees ({}), {message}", shown(plan));
            problems.push(Problem::new(subject, message).hint(format!("{hint}, or one tensor degree for all stages")));
        }
    };
    refuse(plan.mesh.context > 1, "plan.mesh.context", "and none of them shares sequences yet", "context = 1");
    let experts = model.variants.experts.is_some();
    refuse(experts, "model.experts", "and none of them divides experts yet", "a dense model");
    let divided = !plan.sharing.vocabulary.is_ends();
    refuse(
        divided,
        "plan.sharing.vocabulary",
        "which would divide the vocabulary unlike ways",
        "vocabulary = \"ends\"",
    );
    let folded_back = matches!(plan.schedule, Schedule::Vee(_) | Schedule::DualPipeV);
    let message = "and none of them goes down the pipeline and up again yet";
    refuse(folded_back, "plan.schedule", message, "1f1b, interleaved or a zero-bubble order down the pipeline");
    let scattered = workload.recipe.scattered_messages;
    let message = "whose messages are not scattered and gathered again";
    refuse(scattered, "training.scattered_messages", message, "scattered_messages = false");
    let positions = chunk_positions(plan);
    let ends = positions.first().zip(positions.last());
    let unlike_ends = ends.is_some_and(|(first, last)| plan.tensor_at(*first) != plan.tensor_at(*last));
    let message = "and the tied embedding would be divided one way on the first and another on the last";
    refuse(model.tied_head && unlike_ends, "plan.tensor", message, "the same degree on the first and the last stage");
    problems.extend(boundaries(plan, &positions));
    problems
}

/// Degrees beside a boundary divide one another, so that each rank has to do with whole parts of the other side's.
fn boundaries(plan: &Plan, positions: &[u32]) -> Vec<Problem> {
    let mut found = Vec::new();
    for pair in positions.windows(2) {
        let (from, to) = (plan.tensor_at(pair[0]), plan.tensor_at(pair[1]));
        if ranks_across(from, to).is_some() || found.contains(&(pair[0], pair[1])) {
            continue;
        }
        found.push((pair[0], pair[1]));
    }
    let problem = |(a, b): (u32, u32)| {
        let (from, to) = (plan.tensor_at(a), plan.tensor_at(b));
        let message =
            format!("stage {a} with {from} tensor ranks hands over to stage {b} with {to}: neither divides the other");
        let fits = (1..=2 * from).filter(|to| ranks_across(from, *to).is_some()).map(|to| to.to_string());
        let hint = format!("beside {from} it can be {}", fits.collect::<Vec<_>>().join(", "));
        Problem::new("plan.tensor", message).hint(hint)
    };
    found.into_iter().map(problem).collect()
}

/// The degrees of stages as they are written.
pub(super) fn shown(plan: &Plan) -> String {
    plan.tensors().map(|tensor| tensor.to_string()).collect::<Vec<_>>().join(", ")
}

/// Distinct degrees, and the first stage that has each.
pub(super) fn degrees(plan: &Plan) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for (position, tensor) in (0u32..).zip(plan.tensors()) {
        if found.iter().all(|(known, _)| *known != tensor) {
            found.push((tensor, position));
        }
    }
    found
}

/// Kinds of the devices of all ranks, and the first tensor group that joins devices that `unlike` tells apart.
pub(super) fn kinds(
    plan: &Plan,
    cluster: &Cluster,
    unlike: impl Fn(DeviceKindId, DeviceKindId) -> bool,
) -> (Vec<DeviceKindId>, Option<Joined>) {
    let (mut used, mut joined) = (Vec::new(), None);
    for (position, tensor) in (0u32..).zip(plan.tensors()) {
        for replica in 0..plan.replicas() {
            let kind = |index: u32| cluster.place(plan.device(plan.rank(position, replica, index))).device_kind;
            let first = kind(0);
            for index in 0..tensor {
                let other = kind(index);
                if !used.contains(&other) {
                    used.push(other);
                }
                if joined.is_none() && unlike(first, other) {
                    let rank = u64::from(plan.rank(position, replica, index).raw());
                    let (stage, replica) = (u64::from(position), u64::from(replica));
                    joined = Some(Joined { stage, replica, rank, kinds: [first, other] });
                }
            }
        }
    }
    (used, joined)
}

//! Values in a line of words, for messages and tables.

use ir::{Plan, Recompute, Schedule, StagePlan, ZeroStage};

/// A plan in one line: `data 2 x tensor 2 x pipeline 4, 1f1b, 8 microbatches of 1, full recomputation, zero 1`.
#[must_use]
pub fn plan(plan: &Plan) -> String {
    let degrees = plan.tensors().map(|tensor| tensor.to_string()).collect::<Vec<_>>().join("/");
    let tensor = if plan.has_unlike_tensors() { degrees } else { plan.tensor.to_string() };
    let mut parts = vec![format!("data {} x tensor {tensor} x pipeline {}", plan.data, plan.pipeline())];
    let mesh = plan.mesh;
    for (axis, degree) in [("context", mesh.context), ("expert", mesh.expert), ("expert tensor", mesh.expert_tensor)] {
        if degree > 1 {
            parts[0].push_str(&format!(" x {axis} {degree}"));
        }
    }
    if plan.sequence_parallel {
        parts.push("sequence parallel".to_owned());
    }
    parts.push(schedule(plan));
    parts.push(if plan.shares.are_equal() {
        format!("{} microbatches of {}", plan.microbatches, plan.microbatch_size)
    } else {
        format!("{} microbatches of {}", plan.shares, plan.microbatch_size)
    });
    let layers: Vec<u32> = plan.stages.iter().map(|s| s.layers.iter().sum()).collect();
    if layers.iter().any(|n| *n != layers[0]) {
        parts.push(format!("layers {layers:?}"));
    }
    let recompute: Vec<String> = plan.stages.iter().map(recompute).collect();
    match recompute.first() {
        Some(first) if recompute.iter().all(|r| r == first) => {
            if plan.stages[0].recompute != Recompute::None {
                parts.push(format!("{first} recomputation"));
            }
        }
        _ => parts.push(format!("recomputation per stage {}", recompute.join("/"))),
    }
    if plan.zero != ZeroStage::Zero0 {
        let part = plan.sharing.shard.map_or_else(String::new, |shard| format!(" over {shard}"));
        parts.push(format!("zero {}{part}", plan.zero.number()));
    }
    let offloaded = [
        ("activations", plan.sharing.offload_activations),
        ("optimizer", plan.sharing.offload_optimizer),
        ("parameters", plan.sharing.offload_parameters),
    ];
    let offloaded: Vec<&str> = offloaded.into_iter().filter(|(_, on)| *on).map(|(what, _)| what).collect();
    if !offloaded.is_empty() {
        parts.push(format!("{} offloaded", offloaded.join(" and ")));
    }
    if !plan.sharing.vocabulary.is_ends() {
        parts.push(format!("vocabulary over stages ({})", plan.sharing.vocabulary.name()));
    }
    parts.join(", ")
}

/// A plan's schedule.
#[must_use]
pub fn schedule(plan: &Plan) -> String {
    match &plan.schedule {
        Schedule::OneForwardOneBackward if plan.chunks_per_stage() > 1 => {
            format!("interleaved 1f1b ({} chunks per stage)", plan.chunks_per_stage())
        }
        Schedule::Explicit(_) => "a written schedule".to_owned(),
        named => named.name().to_owned(),
    }
}

/// The recomputation of a stage: `no`, `full`, `selective of 2 layers`.
fn recompute(stage: &StagePlan) -> String {
    match (stage.recompute, stage.recompute_layers) {
        (Recompute::None, _) => "no".to_owned(),
        (some, None) => some.name().to_owned(),
        (some, Some(layers)) => format!("{} ({layers} layers of a chunk)", some.name()),
    }
}

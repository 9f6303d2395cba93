//! Values in a line of words, for messages and tables.

use ir::{Plan, Recompute, Schedule, ZeroStage};

/// A plan in one line: `data 2 x tensor 2 x pipeline 4, 1f1b, 8 microbatches of 1, full recomputation, zero 1`.
#[must_use]
pub fn plan(plan: &Plan) -> String {
    let mut parts = vec![format!("data {} x tensor {} x pipeline {}", plan.data, plan.tensor, plan.pipeline())];
    if plan.sequence_parallel {
        parts.push("sequence parallel".to_owned());
    }
    parts.push(schedule(plan));
    parts.push(format!("{} microbatches of {}", plan.microbatches, plan.microbatch_size));
    let layers: Vec<u32> = plan.stages.iter().map(|s| s.layers.iter().sum()).collect();
    if layers.iter().any(|n| *n != layers[0]) {
        parts.push(format!("layers {layers:?}"));
    }
    let recompute: Vec<&str> = plan.stages.iter().map(|s| recompute(s.recompute)).collect();
    match recompute.first() {
        Some(first) if recompute.iter().all(|r| r == first) => {
            if *first != "no" {
                parts.push(format!("{first} recomputation"));
            }
        }
        _ => parts.push(format!("recomputation per stage {}", recompute.join("/"))),
    }
    if plan.zero == ZeroStage::Zero1 {
        parts.push("zero 1".to_owned());
    }
    parts.join(", ")
}

/// A plan's schedule.
#[must_use]
pub fn schedule(plan: &Plan) -> String {
    match &plan.schedule {
        Schedule::GPipe => "gpipe".to_owned(),
        Schedule::OneForwardOneBackward if plan.chunks_per_stage() > 1 => {
            format!("interleaved 1f1b ({} chunks per stage)", plan.chunks_per_stage())
        }
        Schedule::OneForwardOneBackward => "1f1b".to_owned(),
        Schedule::ZeroBubbleH1 => "zero-bubble-h1".to_owned(),
        Schedule::Explicit(_) => "a written schedule".to_owned(),
    }
}

const fn recompute(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "no",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

//! The parts of a step, and what each would give back.
//!
//! Parts are disjoint and sum up to the step: what it takes with stages in balance, by activity; what imbalance adds; and of
//! the passes' time, what they take beyond kernels that the host launches at once.

use cost::{CostModel, StackConstants};
use ir::{Activity, Breakdown, Evaluation, Recompute, SimDuration, StagePlan};
use reports::waterfall::Cause;
use sched::Relief;

use super::Subject;
use crate::Error;
use crate::results::ExplainedPart;
use crate::verbs::whatif::{self, World};

/// The parts of the subject's step that take time, in the order of [`Cause::ALL`].
pub(super) fn parts(subject: &Subject<'_>) -> Result<Vec<ExplainedPart>, Error> {
    let step = subject.prediction.iteration;
    let balanced = priced(subject, subject.world().without(&subject.plan, Relief::Balanced))?;
    // Where a mean of all chunks is slower than the chunks themselves, nothing is lost to their differences.
    let (divided, imbalance) = if balanced.iteration < step {
        (balanced.breakdown, step - balanced.iteration)
    } else {
        (subject.prediction.breakdown, SimDuration::ZERO)
    };
    let idle_host = without_launches(&subject.job.cost);
    let at_once = World { cost: &idle_host, ..subject.world() };
    let relief = if imbalance > SimDuration::ZERO { Relief::Balanced } else { Relief::Nothing };
    let launched = priced(subject, at_once.without(&subject.plan, relief))?.breakdown;
    let mut found = Vec::new();
    for cause in Cause::ALL {
        let time = match cause {
            Cause::Imbalance => imbalance,
            _ => time_of(cause, &divided, &launched),
        };
        if time > SimDuration::ZERO {
            found.push(gain(subject, cause, time)?);
        }
    }
    Ok(found)
}

/// What a cause takes with stages in balance. `launched` is the same step with kernels launched at once.
fn time_of(cause: Cause, divided: &Breakdown, launched: &Breakdown) -> SimDuration {
    let kernels = |activity: Activity| divided.of(activity).min(launched.of(activity));
    let waited = |activity: Activity| divided.of(activity) - kernels(activity);
    match cause {
        Cause::Compute => kernels(Activity::Compute),
        Cause::Recomputation => kernels(Activity::Recomputation),
        Cause::Launch => divided.of(Activity::Launch) + waited(Activity::Compute) + waited(Activity::Recomputation),
        Cause::Imbalance => SimDuration::ZERO,
        Cause::Bubble => divided.of(Activity::Bubble),
        Cause::TensorCommunication => divided.of(Activity::Tensor),
        Cause::ContextCommunication => divided.of(Activity::Context),
        Cause::ExpertCommunication => divided.of(Activity::Expert),
        Cause::PipelineCommunication => divided.of(Activity::Pipeline),
        Cause::DataCommunication => divided.of(Activity::Data),
        Cause::HostCopy => divided.of(Activity::HostCopy),
        Cause::InputStall => divided.of(Activity::Stall),
        Cause::Optimizer => divided.of(Activity::Optimizer),
    }
}

/// The step as if a cause cost nothing, and what would shrink it.
fn gain(subject: &Subject<'_>, cause: Cause, time: SimDuration) -> Result<ExplainedPart, Error> {
    let (world, plan) = (subject.world(), &subject.plan);
    let relieved = |relief| world.without(plan, relief);
    let without = |activity| Some(relieved(Relief::Without(activity)));
    let (evaluation, how) = match cause {
        Cause::Compute => (None, "nothing is left without it"),
        Cause::Recomputation => {
            let mut kept = plan.clone();
            let keep = |stage: &mut StagePlan| stage.recompute = Recompute::None;
            kept.stages.iter_mut().for_each(keep);
            (Some(world.evaluate(&kept)), "the same plan with nothing recomputed")
        }
        Cause::Launch => {
            let cost = without_launches(world.cost);
            let at_once = World { cost: &cost, ..world }.evaluate(plan);
            (Some(at_once), "the same plan with kernels launched at once, as CUDA graphs do")
        }
        Cause::Imbalance => (Some(relieved(Relief::Balanced)), "each pass takes the mean of all stages"),
        Cause::Bubble => {
            (without(Activity::Bubble), "stages never wait for each other, as over endlessly many microbatches")
        }
        Cause::TensorCommunication => (without(Activity::Tensor), "exchanges of tensor groups take no time"),
        Cause::ContextCommunication => (without(Activity::Context), "exchanges of context groups take no time"),
        Cause::ExpertCommunication => (without(Activity::Expert), "exchanges of experts take no time"),
        Cause::PipelineCommunication => (without(Activity::Pipeline), "messages between stages take no time"),
        Cause::DataCommunication => (without(Activity::Data), "exchanges over replicas take no time"),
        Cause::HostCopy => (without(Activity::HostCopy), "copies to the host take no time"),
        Cause::InputStall => (without(Activity::Stall), "input comes as fast as it is asked for"),
        Cause::Optimizer => (without(Activity::Optimizer), "norm and optimizer step take no time"),
    };
    let prediction = evaluation.map(|evaluation| priced(subject, evaluation)).transpose()?;
    let step = subject.prediction.iteration.seconds();
    let step_without_s = prediction.as_ref().map(|prediction| prediction.iteration.seconds());
    let over = prediction.as_ref().filter(|p| cause == Cause::Recomputation && !whatif::fits(p)).map(whatif::fullest);
    let memory = over.map_or_else(String::new, |share| format!("; it would need {:.0} % of the memory", share * 100.0));
    Ok(ExplainedPart {
        cause,
        time_s: time.seconds(),
        share: time.seconds() / step,
        step_without_s,
        gives_back_s: step_without_s.map(|without| step - without),
        priced_as: format!("{how}{memory}"),
        advice: advice(cause).to_owned(),
        time,
    })
}

const fn advice(cause: Cause) -> &'static str {
    match cause {
        Cause::Compute => "a narrower number format, larger matrix products, faster devices",
        Cause::Recomputation => "less of it where memory allows: selective, or of some layers",
        Cause::Launch => "CUDA graphs, fused kernels, larger microbatches",
        Cause::Imbalance => "fewer layers on the stages that hold embedding and head, or more on the fast devices",
        Cause::Bubble => "more microbatches, chunks per stage, or a zero-bubble schedule",
        Cause::TensorCommunication => "a smaller tensor degree, overlap with products, a faster domain link",
        Cause::ContextCommunication => "a smaller context degree, or the other method of exchange",
        Cause::ExpertCommunication => "experts of a group inside one domain, overlap, a smaller expert degree",
        Cause::PipelineCommunication => "fewer chunks per stage, neighbouring stages on near devices",
        Cause::DataCommunication => {
            "overlap with passes, half-precision gradients, more microbatches, a faster network"
        }
        Cause::HostCopy => "less offloaded, a faster host link",
        Cause::InputStall => "a faster input pipeline",
        Cause::Optimizer => "optimizer state divided over replicas (ZeRO-1)",
    }
}

/// Prices as if the host launched kernels in no time.
pub(super) fn without_launches(cost: &CostModel) -> CostModel {
    let mut stack = cost.stack().clone();
    stack.constants = StackConstants { launch_us: Some(0.0), ..stack.constants };
    cost.clone().with_stack(stack)
}

/// A plan that was legal stays legal in another world.
fn priced(subject: &Subject<'_>, evaluation: Evaluation) -> Result<ir::Prediction, Error> {
    evaluation.map_err(|infeasible| subject.job.infeasible(infeasible))
}

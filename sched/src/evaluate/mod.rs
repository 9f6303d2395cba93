//! Two evaluators of plans: a closed form in microseconds, and any backend with the program itself.

mod closed_form;
mod company;
mod critical;
mod divided;
mod floor;
mod inflight;
mod on_backend;
mod pace;
mod parts;
mod peak;
mod places;
mod prepared;
mod pricing;
mod profile;
mod recurrence;
mod relief;
mod shared;
mod spent;
mod stage;
mod tail;

#[cfg(test)]
mod tests;

pub use closed_form::ClosedForm;
pub use on_backend::{OnBackend, summarise};
pub use relief::Relief;
pub use stage::StageCost;

use ir::program::{Chunk, Layout};
use ir::{DeviceId, DeviceKindId, Evaluation, Expense, Plan, Prediction, Problem, SimDuration, Workload};

/// What planners ask: a plan to a prediction.
///
/// An evaluator answers `Err` for a plan that is not legal; its `nearest` is then empty, for a search asks in thousands
/// (see [`crate::nearest`]). A plan that is legal and does not fit into memory has a prediction: see
/// [`memory_problems`].
pub trait Evaluator {
    /// Time and memory of one iteration.
    fn evaluate(&mut self, plan: &Plan) -> Evaluation;
    /// A time that no iteration of the plan goes under, much cheaper than an evaluation; `None` if nothing is known. Of a
    /// plan that is not legal it says nothing.
    fn floor(&mut self, _plan: &Plan) -> Option<SimDuration> {
        None
    }
    /// What an iteration of the plan costs at least, much cheaper than an evaluation; nothing where nothing is known. Of a plan
    /// that is not legal it says nothing.
    fn least(&mut self, _plan: &Plan) -> Expense {
        Expense::default()
    }
    /// What a device that holds a rank costs in each second of an iteration at least.
    fn rate(&self, _device: DeviceId) -> Expense {
        Expense::default()
    }
    /// The plan with the unequal shares by which its replicas end together, if that is faster than equal ones, or equal
    /// ones do not make the batch; `None` if equal shares are best, or nothing is known. Of the plan its shares and the
    /// number of its microbatches do not matter.
    fn share_out(&mut self, _plan: &Plan) -> Option<Plan> {
        None
    }
    /// What a chunk takes on its position of a plan with one chunk a position, whatever the plan's stages hold: of the plan
    /// its degrees, schedule and placement matter, which may name a device twice. `None` if nothing is known.
    fn stage(&mut self, _plan: &Plan, _chunk: &Chunk) -> Option<StageCost> {
        None
    }
    /// Nanoseconds that the compute of a chunk's passes of one microbatch takes on a kind of device: no position of that kind
    /// that holds the chunk takes less, wherever it is and whatever the others hold. Of the plan its degrees, schedule and
    /// sizes matter; it need not be legal. `None` if nothing is known.
    fn compute(&mut self, _plan: &Plan, _chunk: &Chunk, _kind: DeviceKindId) -> Option<u64> {
        None
    }
    /// How far the worst stage of a plan is over its memory, as a share of the capacity, without its times; `None` if the
    /// plan fits, or nothing is known. Of a plan that is not legal it says nothing.
    fn excess(&mut self, _plan: &Plan) -> Option<f64> {
        None
    }
}

/// The shortest that an iteration can be for its input, in nanoseconds; 0 where as many tokens come as are asked for.
pub(crate) fn input_time(workload: &Workload, layout: &Layout) -> u64 {
    layout.input_time(workload).map_or(0, SimDuration::nanoseconds)
}

/// A prediction for devices of some kinds with its 90 % interval.
fn with_interval(cost: &cost::CostModel, kinds: &[DeviceKindId], prediction: Prediction) -> Prediction {
    let iteration = prediction.iteration;
    let (low, high) = cost.spread(kinds, &prediction).interval(iteration.seconds());
    let interval = SimDuration::from_seconds(low)
        .zip(SimDuration::from_seconds(high))
        .map(|(low, high)| (low.min(iteration), high.max(iteration)));
    Prediction { interval, ..prediction }
}

/// Stages whose peak is over their device's memory; empty if the plan fits.
#[must_use]
pub fn memory_problems(prediction: &Prediction) -> Vec<Problem> {
    let over = prediction.memory.iter().filter(|stage| stage.peak > stage.capacity);
    over.map(|stage| {
        let parts = stage.parts.iter().take(3).map(|(part, bytes)| format!("{part} {:.1} GiB", bytes.gib()));
        Problem::new(
            format!("stage {}", stage.stage.raw()),
            format!(
                "needs {:.1} GiB of {:.1} during {} ({})",
                stage.peak.gib(),
                stage.capacity.gib(),
                stage.moment,
                parts.collect::<Vec<_>>().join(", ")
            ),
        )
        .hint("a larger tensor or pipeline degree, smaller microbatches, ZeRO-1, or more recomputation")
    })
    .collect()
}

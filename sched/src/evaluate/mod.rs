//! Two evaluators of plans: a closed form in microseconds, and any backend with the program itself.

mod closed_form;
mod inflight;
mod on_backend;
mod prepared;
mod recurrence;
mod tail;

#[cfg(test)]
mod tests;

pub use closed_form::ClosedForm;
pub use on_backend::{OnBackend, summarise};

use ir::{Evaluation, Plan, Prediction, Problem};

/// What planners ask: a plan to a prediction.
///
/// An evaluator answers `Err` for a plan that is not legal; its `nearest` is then empty, for a search asks in thousands
/// (see [`crate::nearest`]). A plan that is legal and does not fit into memory has a prediction: see
/// [`memory_problems`].
pub trait Evaluator {
    /// Time and memory of one iteration.
    fn evaluate(&mut self, plan: &Plan) -> Evaluation;
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

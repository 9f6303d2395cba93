//! What was learned: a network that guides the search of [`Mcts`](super::Mcts) in place of rules alone.
//!
//! Its logit of an action is added to the rule's, so that a network that knows nothing searches as the rules do. Its value of
//! a node stands for plans behind it until some are known. Crate `learn` trains such networks on jobs that it draws; here they
//! are only asked. [`Weights`] come from a file, which says on what they were trained.
//!
//! Inference is a function: no randomness, every sum in index order, exponentials of `libm`.

pub mod features;
mod network;
#[cfg(test)]
mod tests;
mod weights;

pub use features::Job;
pub use network::{Network, Part, Rated, Seen, Widths, softmax};
pub use weights::{Origin, Weights};

use super::mcts::{Judgement, View};

/// Advice on a node: the network's on top of the `rules`' (logarithms of weights, one for each action).
pub(super) fn judge(network: &Network, job: &Job, view: &View<'_>, rules: &[f64]) -> Judgement {
    let seen = network.see(&job.state(view));
    let shared = network.shared(&seen);
    let rate = |(at, rule): (usize, &f64)| rule + network.rate(&shared, &job.choice(view, at)).output;
    let mut priors: Vec<f64> = rules.iter().enumerate().map(rate).collect();
    softmax(&mut priors);
    #[expect(clippy::cast_possible_truncation, reason = "advice is rough")]
    let narrow = |number: f64| number as f32;
    let value = share_of_floor(network.value(&seen).output);
    Judgement { priors: priors.into_iter().map(|prior| narrow(prior.max(1e-6))).collect(), value: Some(narrow(value)) }
}

/// What the floor is of a time whose logarithm to base 2 over the floor is given: in 0 to 1.
#[must_use]
pub fn share_of_floor(over: f64) -> f64 {
    libm::exp2(-over.clamp(0.0, 20.0))
}

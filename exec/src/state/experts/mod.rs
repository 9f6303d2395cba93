//! Layers of experts.
//!
//! # Who does what
//!
//! Each rank routes the tokens of its residual stream (beside the norm, in `Unit::MlpNorm`), and sends one *copy* of a token's
//! normed input to each of its experts; no copy is dropped. Experts are divided over the expert group by number, their
//! matrices over the expert-tensor group by width as a dense part's. What an expert gives is multiplied with the copy's
//! weight where the expert is, so that the weight travels with the copy and its gradient comes back with the copy's; the
//! copies of a token are added in the order of its choices where the token is.
//!
//! Copies that leave stand in the order of experts, then tokens; those that arrive in the order of senders; experts work on
//! them in the order of experts, then senders. A [`Parcel`](tokens) is what one rank sends to another.
//!
//! What all tokens pass beside the experts is divided over the tensor group as a dense part is; its gate, one number per
//! token, is applied to the whole sum.
//!
//! The loss that balances experts does not enter the loss that is reported. Its gradient needs how many of a *sequence's*
//! tokens chose each expert; `UnitTensor::RouterStatistics` adds that up over the ranks that share sequences.

mod backward;
mod dimensions;
mod feed;
mod finish;
mod forward;
mod router;
mod tokens;

use ir::program::UnitTensor;

pub(super) use dimensions::ExpertDimensions;

use super::buffers::{Held, Pool};

/// Tokens as a layer's experts see them, of one microbatch.
#[derive(Debug, Default)]
pub(super) struct ExpertSlot {
    /// Scores of this rank's tokens, `[rows, experts]`.
    pub(super) scores: Option<Held>,
    /// The experts of each token, best first, `[rows, active]`.
    pub(super) chosen: Vec<u32>,
    /// Their weights, `[rows, active]`, and the gradients of those.
    pub(super) weights: Option<Held>,
    pub(super) d_weights: Option<Held>,
    pub(super) d_logits: Option<Held>,
    /// Tokens of each sequence that chose an expert, `[sequences, experts]`.
    pub(super) statistics: Option<Held>,
    /// Choices (indices into `chosen`) in the order in which their copies leave.
    pub(super) order: Vec<u32>,
    /// Copies that leave for each rank of the expert group.
    pub(super) sent: Vec<usize>,
    /// A bundle that arrived from other ranks, or of this rank alone.
    pub(super) arrived: Option<Held>,
    /// Of each parcel that arrived, the copies for each expert of this rank.
    pub(super) counts: Vec<Vec<usize>>,
    /// In the order of experts: inputs `[received, hidden]` and weights `[received]`.
    pub(super) input: Option<Held>,
    pub(super) input_weights: Option<Held>,
    /// `[received, ffn]`.
    pub(super) gate: Option<Held>,
    pub(super) up: Option<Held>,
    pub(super) activated: Option<Held>,
    pub(super) d_gate: Option<Held>,
    pub(super) d_up: Option<Held>,
    /// Gradient of the experts' outputs, `[received, hidden]`.
    pub(super) d_output: Option<Held>,
    /// What leaves for where the copies came from, in the order in which they came: outputs, or gradients of weights and
    /// inputs.
    pub(super) leaving: Option<Held>,
    /// What came back, added up by token, `[rows, hidden]`: the routed output, or the gradient of the normed input.
    pub(super) routed: Option<Held>,
    /// What the shared part gives before its gate, `[rows, hidden]`, and that gate, `[rows]`, with its logit's gradient.
    pub(super) shared: Option<Held>,
    pub(super) shared_gate: Option<Held>,
    pub(super) d_shared_gate: Option<Held>,
}

impl ExpertSlot {
    /// What no backward pass needs where a layer is computed again.
    pub(super) fn discard(&mut self, pool: &mut Pool) {
        let Self { scores, weights, input, input_weights, gate, up, activated, .. } = self;
        for held in [scores, weights, input, input_weights, gate, up, activated] {
            pool.release(held);
        }
    }

    pub(super) fn release(&mut self, pool: &mut Pool) {
        self.discard(pool);
        let Self { d_weights, d_logits, statistics, arrived, d_gate, d_up, d_output, leaving, .. } = self;
        for held in [d_weights, d_logits, statistics, arrived, d_gate, d_up, d_output, leaving] {
            pool.release(held);
        }
        for held in [&mut self.routed, &mut self.shared, &mut self.shared_gate, &mut self.d_shared_gate] {
            pool.release(held);
        }
    }

    /// Copies that this rank's experts work on.
    pub(super) fn received(&self) -> usize {
        self.counts.iter().flatten().sum()
    }
}

impl ExpertDimensions {
    /// The collective after whose delivery a layer's output is whole; none if its compute leaves it whole.
    pub(super) fn last_forward(&self, tensor: usize) -> Option<UnitTensor> {
        self.last(tensor, UnitTensor::Output)
    }

    /// The same of the gradient of its normed input.
    pub(super) fn last_backward(&self, tensor: usize) -> Option<UnitTensor> {
        self.last(tensor, UnitTensor::InputGradient)
    }

    fn last(&self, tensor: usize, sum: UnitTensor) -> Option<UnitTensor> {
        if self.shared_ffn > 0 && tensor > 1 { Some(sum) } else { self.last_of_experts() }
    }

    /// The collective that brings copies back to their tokens.
    pub(super) fn last_of_experts(&self) -> Option<UnitTensor> {
        match (self.ranks > 1, self.tensor > 1) {
            (true, _) => Some(UnitTensor::Combined),
            (false, true) => Some(UnitTensor::ExpertInput),
            (false, false) => None,
        }
    }
}

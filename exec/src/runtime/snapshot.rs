//! The state of training, gathered from all ranks: what a run goes on from under another program.

use crate::state::{RankState, Weights};

/// Weights and optimizer state of a whole model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// The weights.
    pub weights: Weights,
    /// AdamW's first and second moments.
    pub moments: [Weights; 2],
}

impl Snapshot {
    /// Puts a rank's parts in their places.
    pub(super) fn put(&mut self, rank: &RankState) {
        rank.weights().for_each(|part| self.weights.put(&part));
        for (moment, parts) in self.moments.iter_mut().zip(rank.moments()) {
            parts.iter().for_each(|part| moment.put(part));
        }
    }
}

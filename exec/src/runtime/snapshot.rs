//! The state of training, gathered from all ranks: what a run goes on from under another program.

use crate::state::{Part, Weights};

/// Weights and optimizer state of a whole model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// The weights.
    pub weights: Weights,
    /// AdamW's first and second moments.
    pub moments: [Weights; 2],
}

/// One of the three numbers that training keeps for each parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Kept {
    /// The parameter.
    Weight,
    /// AdamW's first moment of it.
    FirstMoment,
    /// AdamW's second moment of it.
    SecondMoment,
}

impl Kept {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Weight, Self::FirstMoment, Self::SecondMoment];
}

impl Snapshot {
    /// Puts a rank's part in its place.
    pub(super) fn put(&mut self, kept: Kept, part: &Part<'_>) {
        self.all_mut(kept).put(part);
    }
    /// One number of all parameters.
    pub(super) const fn all(&self, kept: Kept) -> &Weights {
        match kept {
            Kept::Weight => &self.weights,
            Kept::FirstMoment => &self.moments[0],
            Kept::SecondMoment => &self.moments[1],
        }
    }
    /// One number of all parameters.
    pub(super) const fn all_mut(&mut self, kept: Kept) -> &mut Weights {
        match kept {
            Kept::Weight => &mut self.weights,
            Kept::FirstMoment => &mut self.moments[0],
            Kept::SecondMoment => &mut self.moments[1],
        }
    }
}

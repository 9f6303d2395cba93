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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    /// The parameter.
    Weight,
    /// AdamW's first moment of it.
    FirstMoment,
    /// AdamW's second moment of it.
    SecondMoment,
}

impl Kept {
    /// All three.
    pub(crate) const ALL: [Self; 3] = [Self::Weight, Self::FirstMoment, Self::SecondMoment];
    /// What stands before a tensor's name in a file.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Weight => "",
            Self::FirstMoment => "optimizer.first_moment.",
            Self::SecondMoment => "optimizer.second_moment.",
        }
    }
}

impl Snapshot {
    /// Puts a rank's part in its place.
    pub(crate) fn put(&mut self, kept: Kept, part: &Part<'_>) {
        match kept {
            Kept::Weight => self.weights.put(part),
            Kept::FirstMoment => self.moments[0].put(part),
            Kept::SecondMoment => self.moments[1].put(part),
        }
    }
}

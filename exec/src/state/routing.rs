//! Choices of experts that one run records and another repeats.
//!
//! A choice is discontinuous: where two scores are within rounding of each other, two divisions of one model may send a token
//! to different experts, and from there on they train different models. So runs are compared with the choices of one of
//! them. They are kept by iteration, layer, sequence of the global batch and position, which no division changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The experts that tokens went to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedRouting {
    /// By iteration, layer, sequence of the global batch and position: experts, best first.
    choices: BTreeMap<(u64, u32, usize, usize), Vec<u32>>,
}

impl RecordedRouting {
    /// How many tokens of how many layers and iterations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.choices.len()
    }
    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }
    /// The experts of a token in a layer.
    #[must_use]
    pub fn get(&self, iteration: u64, layer: u32, sequence: usize, position: usize) -> Option<&[u32]> {
        self.choices.get(&(iteration, layer, sequence, position)).map(Vec::as_slice)
    }
    /// Sets the experts of a token in a layer.
    pub fn put(&mut self, iteration: u64, layer: u32, sequence: usize, position: usize, experts: &[u32]) {
        self.choices.insert((iteration, layer, sequence, position), experts.to_vec());
    }
}

/// Where choices of experts come from, and whether they are kept.
#[derive(Debug, Clone, Default)]
pub enum Routing {
    /// The router's, not kept.
    #[default]
    Free,
    /// The router's, kept.
    Record(Arc<Mutex<RecordedRouting>>),
    /// Those of another run; the router only weighs them.
    Replay(Arc<RecordedRouting>),
}

/// The routing of one microbatch of one rank.
#[derive(Debug)]
pub(super) struct Routes<'a> {
    pub(super) routing: &'a Routing,
    pub(super) iteration: u64,
    /// The first sequence of the microbatch among those of the global batch.
    pub(super) first_sequence: usize,
}

impl Routes<'_> {
    /// Repeats the choices of another run, if it is to; `standing` says of a row its sequence in the microbatch and its
    /// position. `false` if the router chooses.
    ///
    /// # Panics
    /// If that run has no choice for a token, or one of other experts than `active`.
    pub(super) fn replay(
        &self,
        (layer, active): (u32, usize),
        rows: usize,
        standing: impl Fn(usize) -> (usize, usize),
        chosen: &mut Vec<u32>,
    ) -> bool {
        let Routing::Replay(recorded) = self.routing else { return false };
        chosen.clear();
        for row in 0..rows {
            let (sequence, position) = standing(row);
            let sequence = self.first_sequence + sequence;
            let known = recorded.get(self.iteration, layer, sequence, position);
            let experts = known.filter(|experts| experts.len() == active).unwrap_or_else(|| {
                panic!(
                    "no recorded choice of {active} experts for position {position} of sequence {sequence} in layer \
                     {layer}, iteration {}",
                    self.iteration
                )
            });
            chosen.extend_from_slice(experts);
        }
        true
    }

    /// Keeps choices, if it is to.
    pub(super) fn record(
        &self,
        (layer, active): (u32, usize),
        standing: impl Fn(usize) -> (usize, usize),
        chosen: &[u32],
    ) {
        let Routing::Record(into) = self.routing else { return };
        let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, experts) in chosen.chunks_exact(active).enumerate() {
            let (sequence, position) = standing(row);
            into.put(self.iteration, layer, self.first_sequence + sequence, position, experts);
        }
    }
}

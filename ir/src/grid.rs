//! A schedule written out: for each pipeline position, its passes in order.
//!
//! The text form is the one of PyTorch's pipelining schedules: one line per position, comma-separated cells
//! `<chunk><action><microbatch>` where the action is `F` (forward), `B` (whole backward), `I` (input gradients)
//! or `W` (weight gradients), and an empty cell is an idle slot: `0F0,0F1,,0B0`.

use serde::{Deserialize, Serialize};

use crate::{ChunkId, MicrobatchId};

mod check;
#[cfg(test)]
mod tests;
mod text;

/// A pass of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Forward.
    Forward,
    /// Input and weight gradients together.
    Backward,
    /// Input gradients.
    BackwardInput,
    /// Weight gradients.
    BackwardWeight,
}

/// One pass of one microbatch through one chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The chunk, numbered through the whole model.
    pub chunk: ChunkId,
    /// The pass.
    pub action: Action,
    /// The microbatch.
    pub microbatch: MicrobatchId,
}

/// Rows of cells; row `i` is pipeline position `i`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grid {
    /// Passes of each position, in order; idle slots are not kept.
    pub rows: Vec<Vec<Cell>>,
}

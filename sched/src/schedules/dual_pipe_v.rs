//! DualPipe-V: the half of DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.2.1) that is left when each
//! position holds two chunks, down the pipeline and up again (DeepSeek-AI 2025, "DualPipe", after Qi et al.).
//!
//! Position `r` of `p` runs, with `m` microbatches:
//!
//! 1. `2 (p - r - 1)` forward passes down;
//! 2. `r + 1` times a forward pass down and one up;
//! 3. `p - r - 1` times a backward pass of the upper chunk, split, and a forward pass up;
//! 4. `m - 2 p + r + 1` times a forward pass down beside a backward pass of the upper chunk, and a forward pass up beside a
//!    backward pass of the lower one;
//! 5. `p - r - 1` times a backward pass of the upper chunk, and a forward pass up beside a backward pass of the lower one;
//! 6. `r + 1` times a backward pass of each chunk, of which the later half are split;
//! 7. `p - r - 1` times a weight pass and a split backward pass of the lower chunk;
//! 8. `r + 1` weight passes.
//!
//! What runs beside another there follows it here, forward first: an order says nothing of passes that share a device.

use ir::grid::{Action, Cell, Grid};
use ir::{ChunkId, MicrobatchId, Problem};

use super::vee::two_chunks;

pub(super) fn refusals(pipeline: u32, chunks: u32, microbatches: u32) -> Vec<Problem> {
    let mut problems = two_chunks("down the pipeline and up again (DualPipe-V)", pipeline, chunks);
    let least = 2 * u64::from(pipeline);
    if u64::from(microbatches) < least {
        let message =
            format!("DualPipe-V needs two microbatches for each position, {least}, and there are {microbatches}");
        problems.push(Problem::new("plan.microbatches", message).hint(format!("{least} microbatches, or v-half")));
    }
    problems
}

/// Split backward passes of a position: of its upper and of its lower chunk.
const fn split(pipeline: u32, position: u32) -> [u32; 2] {
    let (before, half) = (pipeline - position - 1, position.div_ceil(2));
    // Of the sixth part: from the middle on, the middle's upper one only where the position is odd.
    if position.is_multiple_of(2) { [before + half, half + 1 + before] } else { [before + half, half + before] }
}

/// How many backward passes of a chunk are split.
pub(crate) fn split_in_dual_pipe_v(pipeline: u32, chunk: usize) -> u32 {
    let chunk = u32::try_from(chunk).expect("a number of chunks");
    let down = chunk < pipeline;
    let [upper, lower] = split(pipeline, if down { chunk } else { 2 * pipeline - 1 - chunk });
    if down { lower } else { upper }
}

/// The pass that adds to a chunk's gradients last.
pub(crate) const fn last_of_dual_pipe_v(pipeline: u32, chunk: usize) -> Action {
    // The upper chunk of the first position ends with a whole pass, where all others have split ones at the end.
    if chunk + 1 == 2 * pipeline as usize { Action::Backward } else { Action::BackwardWeight }
}

/// The passes of one position.
struct Row {
    position: u32,
    pipeline: u32,
    cells: Vec<Cell>,
    /// Forward and backward passes so far, of the lower and the upper chunk.
    forward: [u32; 2],
    backward: [u32; 2],
    /// Weight passes that wait, oldest first, and how many of them have run.
    waiting: Vec<(ChunkId, MicrobatchId)>,
    weighted: usize,
}

impl Row {
    const fn chunk(&self, slot: usize) -> ChunkId {
        ChunkId::new(if slot == 0 { self.position } else { 2 * self.pipeline - 1 - self.position })
    }

    fn forward(&mut self, slot: usize) {
        let microbatch = MicrobatchId::new(self.forward[slot]);
        self.forward[slot] += 1;
        self.cells.push(Cell { chunk: self.chunk(slot), action: Action::Forward, microbatch });
    }

    fn backward(&mut self, slot: usize, split: bool) {
        let (chunk, microbatch) = (self.chunk(slot), MicrobatchId::new(self.backward[slot]));
        self.backward[slot] += 1;
        if split {
            self.waiting.push((chunk, microbatch));
        }
        let action = if split { Action::BackwardInput } else { Action::Backward };
        self.cells.push(Cell { chunk, action, microbatch });
    }

    fn weight(&mut self) {
        let (chunk, microbatch) = self.waiting[self.weighted];
        self.weighted += 1;
        self.cells.push(Cell { chunk, action: Action::BackwardWeight, microbatch });
    }
}

pub(super) fn grid(pipeline: u32, microbatches: u32) -> Grid {
    Grid { rows: (0..pipeline).map(|position| row(position, pipeline, microbatches)).collect() }
}

fn row(position: u32, pipeline: u32, microbatches: u32) -> Vec<Cell> {
    let (before, own) = (pipeline - position - 1, position + 1);
    let mut row = Row {
        position,
        pipeline,
        cells: Vec::with_capacity(4 * microbatches as usize),
        forward: [0; 2],
        backward: [0; 2],
        waiting: Vec::new(),
        weighted: 0,
    };
    (0..2 * before).for_each(|_| row.forward(0));
    for _ in 0..own {
        row.forward(0);
        row.forward(1);
    }
    for _ in 0..before {
        row.backward(1, true);
        row.weight();
        row.forward(1);
    }
    for _ in 0..microbatches - 2 * pipeline + own {
        row.forward(0);
        row.backward(1, false);
        row.forward(1);
        row.backward(0, false);
    }
    for _ in 0..before {
        row.backward(1, false);
        row.forward(1);
        row.backward(0, false);
    }
    for turn in 0..own {
        let (middle, odd) = (own / 2, !position.is_multiple_of(2));
        row.backward(1, turn > middle || (turn == middle && odd));
        row.backward(0, turn >= middle);
    }
    for _ in 0..before {
        row.weight();
        row.backward(0, true);
    }
    (0..own).for_each(|_| row.weight());
    row.cells
}

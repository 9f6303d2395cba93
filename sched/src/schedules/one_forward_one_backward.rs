//! 1F1B (Narayanan et al. 2019, "PipeDream"; flushed form of Fan et al. 2021 and Megatron-LM).
//!
//! Position `s` of `p` runs `min(m, p - 1 - s)` forward passes, then alternates forward and backward, then runs the
//! backward passes that remain: it holds at most `p - s` microbatches.

use ir::grid::{Action, Grid};

use super::cell;

pub(super) fn grid(pipeline: u32, microbatches: u32) -> Grid {
    let row = |position: u32| {
        let warm_up = (pipeline - 1 - position).min(microbatches);
        let mut cells = Vec::with_capacity(2 * microbatches as usize);
        cells.extend((0..warm_up).map(|m| cell(position, Action::Forward, m)));
        for m in 0..microbatches {
            if let Some(next) = m.checked_add(warm_up).filter(|next| *next < microbatches) {
                cells.push(cell(position, Action::Forward, next));
            }
            cells.push(cell(position, Action::Backward, m));
        }
        cells
    };
    Grid { rows: (0..pipeline).map(row).collect() }
}

//! ZB-H1 (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.3): the backward pass is split into input
//! gradients and weight gradients; the latter wait until they fill what was a bubble.
//!
//! Position `s` warms up as in 1F1B and holds back its first `s` weight passes, so that at most `p` microbatches live on
//! any position: the memory of 1F1B's first position. With equal stages and `m >= p` each position idles
//! `(p - 1) (T_F + T_B - T_W)`, where 1F1B idles `(p - 1) (T_F + T_B + T_W)`.

use ir::Problem;
use ir::grid::{Action, Cell, Grid};

use super::cell;

pub(super) fn refusals(name: &str, chunks: u32) -> Vec<Problem> {
    if chunks == 1 {
        return Vec::new();
    }
    vec![
        Problem::new("plan.stages", format!("{name} is defined for one chunk per stage, here there are {chunks}"))
            .hint("give each stage one chunk, or write the order out as an explicit grid"),
    ]
}

pub(super) fn grid(pipeline: u32, microbatches: u32) -> Grid {
    Grid { rows: rows(pipeline, microbatches) }
}

/// The passes of each position in order.
#[must_use]
pub fn rows(pipeline: u32, microbatches: u32) -> Vec<Vec<Cell>> {
    let row = |position: u32| {
        let warm_up = (pipeline - 1 - position).min(microbatches);
        let mut cells = Vec::with_capacity(3 * microbatches as usize);
        cells.extend((0..warm_up).map(|m| cell(position, Action::Forward, m)));
        let mut weighted = 0;
        for m in 0..microbatches {
            if let Some(next) = m.checked_add(warm_up).filter(|next| *next < microbatches) {
                cells.push(cell(position, Action::Forward, next));
            }
            cells.push(cell(position, Action::BackwardInput, m));
            if m >= position {
                cells.push(cell(position, Action::BackwardWeight, weighted));
                weighted += 1;
            }
        }
        cells.extend((weighted..microbatches).map(|m| cell(position, Action::BackwardWeight, m)));
        cells
    };
    (0..pipeline).map(row).collect()
}

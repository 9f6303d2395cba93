//! An order that somebody wrote out: taken as it is once it is complete, placed and free of circles.

use ir::Problem;
use ir::grid::Grid;

/// The row on which each chunk appears first; `None` for a chunk that does not appear.
#[must_use]
pub fn chunk_rows(grid: &Grid, chunks: u32) -> Vec<Option<u32>> {
    let mut rows = vec![None; chunks as usize];
    for (row, cells) in grid.rows.iter().enumerate() {
        for cell in cells {
            if let Some(slot @ None) = rows.get_mut(cell.chunk.index()) {
                *slot = Some(u32::try_from(row).expect("more rows than u32"));
            }
        }
    }
    rows
}

pub(super) fn refusals(grid: &Grid, pipeline: u32, chunks: u32, microbatches: u32) -> Vec<Problem> {
    if grid.rows.len() != pipeline as usize {
        let message = format!("the grid has {} rows and the plan {pipeline} stages", grid.rows.len());
        return vec![Problem::new("plan.schedule", message).hint("one row for each stage")];
    }
    let total = pipeline.saturating_mul(chunks);
    let mut problems = grid.problems(total, microbatches);
    let rows = if problems.is_empty() { chunk_rows(grid, total) } else { Vec::new() };
    for row in (0..pipeline).filter(|_| !rows.is_empty()) {
        let held = rows.iter().filter(|at| **at == Some(row)).count();
        if held != chunks as usize {
            let message = format!("row {row} of the grid holds {held} chunks and the plan gives every stage {chunks}");
            problems.push(Problem::new("plan.schedule", message).hint("every stage holds equally many chunks"));
        }
    }
    problems
}

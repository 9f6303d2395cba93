//! Orders of passes: from degrees to a [`Grid`].
//!
//! One file per schedule. Every builder answers for (pipeline positions `p`, chunks per position `v`, microbatches `m`)
//! with a complete grid, or with every reason why there is none. What follows consumes grids only, so that a schedule
//! from a file and a schedule from here take the same way.

mod dry_run;
mod dual_pipe_v;
mod explicit;
mod gpipe;
mod interleaved;
mod one_forward_one_backward;
mod vee;
mod zero_bubble;
mod zero_bubble_h1;

#[cfg(test)]
mod tests;

pub(crate) use dry_run::dry_runs;
pub use dry_run::{CellTimes, DryRun, Order, Stuck, dry_run};
pub(crate) use dual_pipe_v::{last_of_dual_pipe_v, split_in_dual_pipe_v};
pub use explicit::chunk_rows;
pub use interleaved::{group_size, rows as interleaved_rows, warm_up};
pub use zero_bubble_h1::rows as zero_bubble_rows;

use ir::grid::{Action, Cell, Grid};
use ir::{ChunkId, MicrobatchId, Problem, Schedule};

/// The passes of every pipeline position in order.
///
/// `pipeline` positions hold `chunks` chunks each; chunk `c` sits on position `c % pipeline`, in orders that go
/// down and up again its second chunk on `2 pipeline - 1 - c` (an explicit grid may place chunks otherwise: a chunk sits on the
/// row in which it appears).
///
/// # Errors
/// Every reason why the schedule does not exist for these degrees.
pub fn grid(schedule: &Schedule, pipeline: u32, chunks: u32, microbatches: u32) -> Result<Grid, Vec<Problem>> {
    let problems = refusals(schedule, pipeline, chunks, microbatches);
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(match schedule {
        Schedule::GPipe => gpipe::grid(pipeline, chunks, microbatches),
        Schedule::OneForwardOneBackward if chunks == 1 => one_forward_one_backward::grid(pipeline, microbatches),
        Schedule::OneForwardOneBackward => interleaved::grid(pipeline, chunks, microbatches),
        Schedule::ZeroBubbleH1 => zero_bubble_h1::grid(pipeline, microbatches),
        Schedule::ZeroBubbleH2 => zero_bubble::h2(pipeline, microbatches),
        Schedule::ZeroBubble(searched) => zero_bubble::grid(*searched, pipeline, microbatches),
        Schedule::Vee(searched) => vee::grid(*searched, pipeline, microbatches),
        Schedule::DualPipeV => dual_pipe_v::grid(pipeline, microbatches),
        Schedule::Explicit(grid) => grid.clone(),
    })
}

/// Why a schedule does not exist for these degrees; empty if it does.
#[must_use]
pub fn refusals(schedule: &Schedule, pipeline: u32, chunks: u32, microbatches: u32) -> Vec<Problem> {
    let zero = [("plan.stages", pipeline), ("plan.stages", chunks), ("plan.microbatches", microbatches)]
        .iter()
        .filter(|(_, n)| *n == 0)
        .map(|(subject, _)| Problem::new(*subject, "is zero: a schedule needs a position, a chunk and a microbatch"))
        .collect::<Vec<_>>();
    if !zero.is_empty() {
        return zero;
    }
    match schedule {
        Schedule::GPipe => Vec::new(),
        Schedule::OneForwardOneBackward if chunks == 1 => Vec::new(),
        Schedule::OneForwardOneBackward => interleaved::refusals(pipeline, microbatches),
        Schedule::ZeroBubbleH1 => zero_bubble_h1::refusals("ZB-H1", chunks),
        Schedule::ZeroBubbleH2 => zero_bubble_h1::refusals("ZB-H2", chunks),
        Schedule::ZeroBubble(searched) => zero_bubble::refusals(*searched, chunks),
        Schedule::Vee(searched) => vee::refusals(*searched, pipeline, chunks),
        Schedule::DualPipeV => dual_pipe_v::refusals(pipeline, chunks, microbatches),
        Schedule::Explicit(grid) => explicit::refusals(grid, pipeline, chunks, microbatches),
    }
}

/// The name of a schedule, for sentences; `chunks` per position.
#[must_use]
pub const fn name(schedule: &Schedule, chunks: u32) -> &'static str {
    match schedule {
        Schedule::GPipe if chunks > 1 => "breadth-first GPipe",
        Schedule::GPipe => "GPipe",
        Schedule::OneForwardOneBackward if chunks > 1 => "interleaved 1F1B",
        Schedule::OneForwardOneBackward => "1F1B",
        Schedule::ZeroBubbleH1 => "ZB-H1",
        Schedule::ZeroBubbleH2 => "ZB-H2",
        Schedule::ZeroBubble(ir::ZeroBubble { memory: 0 | 1, .. }) => "ZB-1p",
        Schedule::ZeroBubble(_) => "ZB-2p",
        Schedule::Vee(ir::Vee { memory: ir::VeeMemory::Full, .. }) => "ZB-V",
        Schedule::Vee(ir::Vee { memory: ir::VeeMemory::Half, .. }) => "V-Half",
        Schedule::Vee(ir::Vee { memory: ir::VeeMemory::Third, .. }) => "V-Min",
        Schedule::DualPipeV => "DualPipe-V",
        Schedule::Explicit(_) => "explicit grid",
    }
}

fn cell(chunk: u32, action: Action, microbatch: u32) -> Cell {
    Cell { chunk: ChunkId::new(chunk), action, microbatch: MicrobatchId::new(microbatch) }
}

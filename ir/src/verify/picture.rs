//! The schedule that a program carries out, read back from its compute passes, for messages.

use crate::grid::{Action, Cell, Grid};
use crate::program::{Op, Pass};
use crate::{InstructionId, Program, Role, RoleId};

/// The schedule with the pass marked to which the instruction belongs, or else the next pass of its role.
pub(super) fn of(program: &Program, role: RoleId, instruction: InstructionId) -> String {
    let guilty_stage = program.roles[role.index()].stage;
    let mut rows: Vec<Option<Vec<Cell>>> = vec![None; program.layout.pipeline as usize];
    let mut guilty = None;
    for (index, candidate) in program.roles.iter().enumerate() {
        let own = index == role.index();
        let row = candidate.stage.index();
        // One role stands for its position; the guilty one for its own.
        if rows[row].is_some() || (candidate.stage == guilty_stage && !own) {
            continue;
        }
        let (cells, place) = cells(candidate, own.then_some(instruction));
        rows[row] = Some(cells);
        if own {
            guilty = Some((row, place));
        }
    }
    Grid { rows: rows.into_iter().map(Option::unwrap_or_default).collect() }.picture(guilty)
}

/// Passes of a role, instructions of one pass joined, and the index of the pass at or after `instruction`.
fn cells(role: &Role, instruction: Option<InstructionId>) -> (Vec<Cell>, usize) {
    let mut cells: Vec<Cell> = Vec::new();
    let mut place = None;
    for (index, one) in role.instructions().iter().enumerate() {
        if let Op::Compute { pass, chunk, microbatch, .. } = one.op {
            let action = match pass {
                Pass::Forward => Some(Action::Forward),
                Pass::Recompute => None,
                Pass::Backward => Some(Action::Backward),
                Pass::BackwardInput => Some(Action::BackwardInput),
                Pass::BackwardWeight => Some(Action::BackwardWeight),
            };
            if let Some(action) = action {
                let cell = Cell { chunk, action, microbatch };
                if cells.last() != Some(&cell) {
                    cells.push(cell);
                }
                if place.is_none() && instruction.is_some_and(|i| i.index() <= index) {
                    place = Some(cells.len() - 1);
                }
            }
        }
    }
    let end = cells.len();
    (cells, place.unwrap_or(end))
}

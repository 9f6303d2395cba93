//! Whether a grid is a complete and possible schedule.

use super::{Action, Cell, Grid};
use crate::Problem;

/// Faults shown with their picture; more are counted.
const SHOWN: usize = 8;

/// A cell and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Placed {
    chunk: u32,
    microbatch: u32,
    action: Action,
    row: usize,
    index: usize,
}

impl Grid {
    /// Every reason why the grid cannot train `chunks` chunks with `microbatches` microbatches: each microbatch must
    /// pass each chunk once forward and once backward (`B`, or `I` and `W`), each chunk sits on one position, the
    /// order of a position must respect forward before backward before weight gradients, and no positions may wait for
    /// each other in a circle. Empty if it can.
    ///
    /// Each message ends with the grid in which the guilty cell is marked.
    #[must_use]
    pub fn problems(&self, chunks: u32, microbatches: u32) -> Vec<Problem> {
        let mut placed: Vec<Placed> = (0..self.rows.len()).flat_map(|row| self.placed_in(row)).collect();
        placed.sort_unstable();
        let mut faults = Faults { grid: self, problems: Vec::new(), more: 0 };
        faults.strangers(&placed, chunks, microbatches);
        faults.homeless(&placed, chunks);
        faults.incomplete(&placed, chunks, microbatches);
        if faults.problems.is_empty() {
            faults.stuck(&placed, chunks, microbatches);
        }
        let Faults { mut problems, more, .. } = faults;
        if more > 0 {
            problems.push(Problem::new("schedule", format!("there are {more} more faults of these kinds")));
        }
        problems
    }

    fn placed_in(&self, row: usize) -> impl Iterator<Item = Placed> + '_ {
        self.rows[row].iter().enumerate().map(move |(index, cell)| Placed {
            chunk: cell.chunk.raw(),
            microbatch: cell.microbatch.raw(),
            action: cell.action,
            row,
            index,
        })
    }
}

struct Faults<'a> {
    grid: &'a Grid,
    problems: Vec<Problem>,
    more: u64,
}

impl Faults<'_> {
    fn add(&mut self, guilty: (usize, usize), message: &str, hint: &str) {
        if self.problems.len() >= SHOWN {
            self.more += 1;
            return;
        }
        let subject = format!("schedule line {}, cell {}", guilty.0 + 1, guilty.1 + 1);
        let picture = self.grid.picture(Some(guilty));
        self.problems.push(Problem::new(subject, format!("{message}:\n{picture}\n")).hint(hint));
    }
    /// The end of the row that holds a chunk, or of the row that would hold it.
    fn end_of(&self, placed: &[Placed], chunk: u32) -> (usize, usize) {
        let start = placed.partition_point(|p| p.chunk < chunk);
        let rows = self.grid.rows.len().max(1);
        let row = placed.get(start).filter(|p| p.chunk == chunk).map_or(chunk as usize % rows, |p| p.row);
        (row, self.grid.rows.get(row).map_or(0, Vec::len))
    }

    /// Chunks and microbatches that do not exist.
    fn strangers(&mut self, placed: &[Placed], chunks: u32, microbatches: u32) {
        for p in placed {
            if p.chunk >= chunks {
                let message =
                    format!("chunk {} does not exist: the model has chunks 0 to {}", p.chunk, i64::from(chunks) - 1);
                self.add((p.row, p.index), &message, "change the schedule or the number of chunks");
            } else if p.microbatch >= microbatches {
                let message = format!(
                    "microbatch {} does not exist: the plan has microbatches 0 to {}",
                    p.microbatch,
                    i64::from(microbatches) - 1
                );
                self.add((p.row, p.index), &message, "change the schedule or the number of microbatches");
            }
        }
    }

    /// Chunks on no or several rows.
    fn homeless(&mut self, placed: &[Placed], chunks: u32) {
        let mut next = 0;
        for of_chunk in placed.chunk_by(|a, b| a.chunk == b.chunk).filter(|c| c[0].chunk < chunks) {
            self.absent(placed, next..of_chunk[0].chunk);
            next = of_chunk[0].chunk + 1;
            if let Some(other) = of_chunk.iter().find(|p| p.row != of_chunk[0].row) {
                let message =
                    format!("chunk {} is on position {} and on position {}", other.chunk, of_chunk[0].row, other.row);
                self.add(
                    (other.row, other.index),
                    &message,
                    "its weights are in one place: move the pass to that line",
                );
            }
        }
        self.absent(placed, next..chunks);
    }
    fn absent(&mut self, placed: &[Placed], chunks: std::ops::Range<u32>) {
        for chunk in chunks.clone().take(SHOWN) {
            self.add(self.end_of(placed, chunk), &format!("chunk {chunk} has no pass"), "add its passes");
        }
        self.more += (chunks.len().saturating_sub(SHOWN)) as u64;
    }

    /// Passes that are missing, doubled, or in the wrong order within their position.
    fn incomplete(&mut self, placed: &[Placed], chunks: u32, microbatches: u32) {
        for of_chunk in placed.chunk_by(|a, b| a.chunk == b.chunk).filter(|c| c[0].chunk < chunks) {
            let mut next = 0;
            let microbatch_of = |p: &Placed| p.microbatch;
            for one in of_chunk.chunk_by(|a, b| a.microbatch == b.microbatch).filter(|o| o[0].microbatch < microbatches)
            {
                self.skipped(placed, of_chunk[0].chunk, next..microbatch_of(&one[0]));
                next = microbatch_of(&one[0]) + 1;
                self.one_microbatch(placed, one);
            }
            self.skipped(placed, of_chunk[0].chunk, next..microbatches);
        }
    }
    fn skipped(&mut self, placed: &[Placed], chunk: u32, microbatches: std::ops::Range<u32>) {
        for microbatch in microbatches.clone().take(SHOWN) {
            let message = format!("microbatch {microbatch} does not pass chunk {chunk}");
            self.add(self.end_of(placed, chunk), &message, "add its forward and backward pass");
        }
        self.more += (microbatches.len().saturating_sub(SHOWN)) as u64;
    }
    fn one_microbatch(&mut self, placed: &[Placed], one: &[Placed]) {
        for pair in one.windows(2).filter(|w| w[0].action == w[1].action) {
            let p = pair[1];
            self.add((p.row, p.index), &format!("{} occurs twice", self.grid.rows[p.row][p.index]), "remove one");
        }
        let find = |action| one.iter().find(|p| p.action == action);
        let (forward, whole) = (find(Action::Forward), find(Action::Backward));
        let (input, weight) = (find(Action::BackwardInput), find(Action::BackwardWeight));
        let name = |action: Action| format!("{}{}{}", one[0].chunk, action.letter(), one[0].microbatch);
        let end = self.end_of(placed, one[0].chunk);
        let mut missing = Vec::new();
        if forward.is_none() {
            missing.push(name(Action::Forward));
        }
        match (whole, input, weight) {
            (None, None, None) => missing.push(name(Action::Backward)),
            (None, None, Some(_)) => missing.push(name(Action::BackwardInput)),
            (None, Some(_), None) => missing.push(name(Action::BackwardWeight)),
            (Some(_), Some(extra), _) | (Some(_), None, Some(extra)) => {
                let message = format!("{} occurs beside {}", name(extra.action), name(Action::Backward));
                self.add((extra.row, extra.index), &message, "write either B, or I and W");
            }
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
        }
        for pass in missing {
            self.add(end, &format!("{pass} is missing"), "add it");
        }
        let order = [(forward, whole), (forward, input), (input, weight)];
        for (before, after) in order.iter().filter_map(|(a, b)| Some(((*a)?, (*b)?))) {
            if before.row == after.row && before.index > after.index {
                let message = format!("{} comes before {}", name(after.action), name(before.action));
                self.add((after.row, after.index), &message, "forward, then input gradients, then weight gradients");
            }
        }
    }

    /// Carries the grid out as far as it goes.
    fn stuck(&mut self, placed: &[Placed], chunks: u32, microbatches: u32) {
        let rows = &self.grid.rows;
        // Complete grids only: chunks * microbatches is at most the number of cells.
        let slots = chunks as usize * microbatches as usize;
        let slot = |chunk: u32, microbatch: u32| chunk as usize * microbatches as usize + microbatch as usize;
        let (mut forward, mut backward) = (vec![false; slots], vec![false; slots]);
        let mut next = vec![0usize; rows.len()];
        let mut row_of = vec![0usize; chunks as usize];
        for p in placed {
            row_of[p.chunk as usize] = p.row;
        }
        let mut work: Vec<usize> = (0..rows.len()).rev().collect();
        while let Some(row) = work.pop() {
            while let Some(cell) = rows[row].get(next[row]) {
                if blocker(*cell, chunks, |c, m, f| if f { forward[slot(c, m)] } else { backward[slot(c, m)] })
                    .is_some()
                {
                    break;
                }
                next[row] += 1;
                let (chunk, at) = (cell.chunk.raw(), slot(cell.chunk.raw(), cell.microbatch.raw()));
                match cell.action {
                    Action::Forward => forward[at] = true,
                    Action::Backward | Action::BackwardInput => backward[at] = true,
                    Action::BackwardWeight => continue,
                }
                let neighbour =
                    if cell.action == Action::Forward { chunk.checked_add(1) } else { chunk.checked_sub(1) };
                work.extend(neighbour.filter(|c| *c < chunks).map(|c| row_of[c as usize]).filter(|r| *r != row));
            }
        }
        let Some(start) = (0..rows.len()).find(|row| next[*row] < rows[*row].len()) else { return };
        // Every stuck row waits for a pass that a stuck row has not reached: follow until a row comes again.
        let mut path: Vec<(usize, String)> = Vec::new();
        let mut row = start;
        while !path.iter().any(|(seen, _)| *seen == row) {
            let cell = rows[row][next[row]];
            let wanted = blocker(cell, chunks, |c, m, f| if f { forward[slot(c, m)] } else { backward[slot(c, m)] })
                .expect("a stuck row has a blocker");
            let holder = row_of[wanted.0 as usize];
            path.push((row, format!("{cell} on position {row} waits for {}{}{}", wanted.0, wanted.2, wanted.1)));
            row = holder;
        }
        let first = path.iter().position(|(seen, _)| *seen == row).expect("the row that came again");
        let circle: Vec<&str> = path[first..].iter().map(|(_, text)| text.as_str()).collect();
        let message = format!("positions wait for each other in a circle: {}", circle.join("; "));
        self.add((row, next[row]), &message, "move the awaited passes before the waiting ones");
    }
}

/// The pass (chunk, microbatch, letter) of another position that a cell waits for, if it has not happened.
fn blocker(cell: Cell, chunks: u32, done: impl Fn(u32, u32, bool) -> bool) -> Option<(u32, u32, char)> {
    let (chunk, microbatch) = (cell.chunk.raw(), cell.microbatch.raw());
    let (wanted, forward) = match cell.action {
        Action::Forward if chunk == 0 => return None,
        Action::Forward => (chunk - 1, true),
        Action::Backward | Action::BackwardInput if chunk + 1 < chunks => (chunk + 1, false),
        Action::Backward | Action::BackwardInput => (chunk, true),
        Action::BackwardWeight => return None,
    };
    (!done(wanted, microbatch, forward)).then_some((wanted, microbatch, if forward { 'F' } else { 'B' }))
}

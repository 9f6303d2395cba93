//! When passes end, by recurrence: what a discrete-event simulation of the schedule gives, to the nanosecond.
//!
//! Each row runs its passes in order; a message begins when its producer has ended and the one before it on the same
//! edge and direction has; a consumer waits for its message. With `E` ends of passes, `M` ends of messages:
//!
//! `M[k] = max(E_producer[k], M[k-1]) + transfer`, `E_row = max(E_row, M[k]) + pass`.
//!
//! All is built of `max` and `+`: if the state after a period equals the one before but for a constant added
//! throughout, every later period adds that constant again (Baccelli et al. 1992, "Synchronization and Linearity"), and
//! is skipped.

use std::collections::VecDeque;

use ir::grid::{Action, Grid};

use super::closed_form::Paced;
use crate::schedules::{CellTimes, Order, dry_runs, warm_up};

/// Ends of what the rest of an iteration depends on, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    /// Start of each row's first pass.
    pub(super) first_start: Vec<u64>,
    /// End of each row's last pass.
    pub(super) row: Vec<u64>,
    /// End of each chunk's last weight-gradient pass.
    pub(super) chunk: Vec<u64>,
    /// End of the last message.
    pub(super) last_message: u64,
}

/// States after the last periods; finds one that equals the newest but for a constant.
///
/// A critical circuit of a pipeline goes over at most all its positions and back, so that its period is at most their
/// number: so far it looks back.
struct Periods {
    /// Newest last.
    history: VecDeque<Vec<u64>>,
    most: usize,
    looking: bool,
}

impl Periods {
    fn new(positions: usize, looking: bool) -> Self {
        Self { history: VecDeque::new(), most: positions + 1, looking }
    }
    /// Takes the state that `write` writes; `Some((periods, shift))` if it is the one `periods` ago with `shift` added to
    /// each of its numbers. Looks no more after that.
    fn take(&mut self, write: impl FnOnce(&mut Vec<u64>)) -> Option<(u64, u64)> {
        let oldest = if self.history.len() == self.most { self.history.pop_front() } else { None };
        let mut state = oldest.unwrap_or_default();
        state.clear();
        write(&mut state);
        let shifted = |old: &Vec<u64>| {
            let shift = state[0] - old[0];
            state.iter().zip(old).all(|(new, old)| *new == old + shift).then_some(shift)
        };
        let found = (1u64..).zip(self.history.iter().rev()).find_map(|(back, old)| Some((back, shifted(old)?)));
        self.looking = found.is_none();
        self.history.push_back(state);
        found
    }
}

/// The ends of messages, and in place of one that is never sent something that moves as all else does.
fn sent(messages: &[u64], rows: &[u64], state: &mut Vec<u64>) {
    state.extend(messages.iter().zip(rows).map(|(message, row)| if *message > 0 { *message } else { *row }));
}

/// GPipe with one chunk per position. `skip`: whether to look for periods.
pub(super) fn gpipe(microbatches: u32, times: &CellTimes, skip: bool) -> Ends {
    let p = times.forward.len();
    let mut rows = vec![0; p];
    let mut first_start = vec![0; p];
    let mut last_message = 0;
    for backward in [false, true] {
        let mut messages = vec![0; p];
        let mut periods = Periods::new(p, skip);
        let (mut k, mut end, mut skipped) = (0, u64::from(microbatches), 0);
        while k < end {
            let mut arrived = 0;
            for step in 0..p {
                let s = if backward { p - 1 - step } else { step };
                if !backward && k == 0 {
                    arrived = arrived.max(times.ready[s]);
                    first_start[s] = arrived;
                }
                let (pass, transfer) = if backward {
                    (times.backward[s], if s > 0 { times.backward_message[s - 1] } else { 0 })
                } else {
                    (times.forward[s], times.forward_message[s])
                };
                rows[s] = rows[s].max(arrived) + pass;
                if step + 1 < p {
                    messages[s] = rows[s].max(messages[s]) + transfer;
                    arrived = messages[s];
                }
            }
            k += 1;
            let write = |state: &mut Vec<u64>| {
                state.extend_from_slice(&rows);
                sent(&messages, &rows, state);
            };
            if periods.looking
                && let Some((period, shift)) = periods.take(write)
            {
                let times = (end - k) / period;
                end -= times * period;
                skipped = times * shift;
            }
        }
        // Later passes only add to these.
        for value in rows.iter_mut().chain(messages.iter_mut().filter(|end| **end > 0)) {
            *value += skipped;
        }
        last_message = messages.iter().copied().fold(last_message, u64::max);
    }
    Ends { first_start, chunk: rows.clone(), row: rows, last_message }
}

/// Degrees of a 1F1B schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interleaving {
    pub(super) pipeline: u32,
    pub(super) chunks: u32,
    pub(super) microbatches: u32,
    /// Microbatches of a group; 1 with one chunk per position.
    pub(super) group: u32,
    /// Whether backward passes are split and weight gradients wait as in ZB-H1; with one chunk per position.
    pub(super) split: bool,
}

impl Interleaving {
    /// Whether [`one_forward_one_backward`] can run it: the warm-up is whole and groups fill the pipeline. The others
    /// are short, and run as grids.
    pub(super) fn is_regular(self) -> bool {
        let passes = u64::from(self.chunks) * u64::from(self.microbatches);
        let warm_up = self.warm_up(0);
        warm_up < passes && (self.chunks == 1 || self.group >= self.pipeline)
    }
    /// Forward passes of a position before its first backward pass, uncapped.
    fn warm_up(self, position: u32) -> u64 {
        if self.chunks == 1 {
            return u64::from(self.pipeline - 1 - position);
        }
        warm_up(self.pipeline, self.chunks, u32::MAX, self.group, position)
    }
}

/// 1F1B, plain or interleaved, and ZB-H1: there the backward pass is the input-gradient pass, and position `s` runs the
/// weight-gradient pass of round `i - s` after that of round `i`, the last `s` at the end.
///
/// Round `i` of position `s` is its forward pass `W_s + i` and its backward pass `i` (those that exist; warm-up rounds
/// are negative). At step `T` position `s` runs round `T - (p - 1 - s)`, positions in ascending order: then everything
/// that a pass waits for is known.
pub(super) fn one_forward_one_backward(shape: Interleaving, times: &CellTimes, skip: bool) -> Ends {
    let mut run = Run::new(shape, times);
    let p = i64::from(shape.pipeline);
    let warmest = signed(run.warm_up[0]);
    let mut passes = signed(u64::from(shape.chunks) * u64::from(shape.microbatches));
    let period = signed(run.group * run.chunks);
    let mut periods = Periods::new(run.p, skip);
    let (mut step, mut skipped) = (p - 1 - warmest, 0);
    while step < passes + p - 1 {
        for s in 0..shape.pipeline as usize {
            run.round(s, step - (p - 1 - signed(s as u64)), passes);
        }
        step += 1;
        // Every position has both passes in each round from step p - 1 until the first one runs out of forward passes.
        let steady = passes - (warmest - (p - 1)) - step;
        let look = periods.looking && step > p && step % period == 0 && steady > 0;
        if look && let Some((lag, shift)) = periods.take(|state| run.state(step - 1, state)) {
            let lag = signed(lag) * period;
            // One period is left, for the last pass of each chunk to be seen.
            let times = (steady / lag - 1).max(0);
            passes -= times * lag;
            skipped = unsigned(times) * shift;
        }
    }
    run.finish(skipped)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).expect("fewer passes than 2^63")
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).expect("a number of passes")
}

struct Run<'a> {
    times: &'a CellTimes,
    /// Of each chunk's backward pass: all of it, or the part that passes a gradient on.
    back: &'a [u64],
    split: bool,
    p: usize,
    chunks: u64,
    group: u64,
    warm_up: Vec<u64>,
    rows: Vec<u64>,
    first_start: Vec<u64>,
    chunk_end: Vec<u64>,
    /// Ends of the last messages from each row, by the number of the pass that sent them.
    forward: Vec<u64>,
    backward: Vec<u64>,
    newest: [Vec<u64>; 2],
    ring: usize,
    /// The chunks that a row's passes go through, over one period.
    slots: Vec<usize>,
    /// Where in the period each row's next forward and backward pass is.
    places: [Vec<usize>; 2],
}

impl<'a> Run<'a> {
    fn new(shape: Interleaving, times: &'a CellTimes) -> Self {
        let p = shape.pipeline as usize;
        // A message is read at most a group and a few rounds after it was sent.
        let ring = (2 * (shape.group as usize + p) + 4).next_power_of_two();
        Self {
            times,
            back: if shape.split { &times.backward_input } else { &times.backward },
            split: shape.split,
            p,
            chunks: u64::from(shape.chunks),
            group: u64::from(shape.group),
            warm_up: (0..shape.pipeline).map(|s| shape.warm_up(s)).collect(),
            rows: vec![0; p],
            first_start: vec![0; p],
            chunk_end: vec![0; p * shape.chunks as usize],
            forward: vec![0; p * ring],
            backward: vec![0; p * ring],
            newest: [vec![0; p], vec![0; p]],
            ring,
            slots: (0..shape.chunks as usize).flat_map(|slot| vec![slot; shape.group as usize]).collect(),
            places: [vec![0; p], vec![0; p]],
        }
    }

    const fn at(&self, row: usize, pass: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the ring")]
        let place = pass as usize & (self.ring - 1);
        row * self.ring + place
    }

    /// Which of a row's chunks its next forward (backward) pass goes through, counted from its first (last).
    fn next_slot(&mut self, direction: usize, s: usize) -> usize {
        let place = &mut self.places[direction][s];
        let slot = self.slots[*place];
        *place = if *place + 1 == self.slots.len() { 0 } else { *place + 1 };
        slot
    }

    fn round(&mut self, s: usize, i: i64, passes: i64) {
        let k = i + signed(self.warm_up[s]);
        if (0..passes).contains(&k) {
            self.forward_pass(s, unsigned(k));
        }
        if (0..passes).contains(&i) {
            self.backward_pass(s, unsigned(i));
            if self.split && i >= signed(s as u64) {
                self.rows[s] += self.times.backward_weight[s];
                self.chunk_end[s] = self.rows[s];
            }
        }
    }

    fn forward_pass(&mut self, s: usize, k: u64) {
        let slot = self.next_slot(0, s);
        let input = match (s, slot) {
            (0, 0) => 0,
            (0, _) => self.forward[self.at(self.p - 1, k - self.group)],
            _ => self.forward[self.at(s - 1, k)],
        };
        let chunk = slot * self.p + s;
        let start = self.rows[s].max(input).max(self.times.ready[chunk]);
        if k == 0 {
            self.first_start[s] = start;
        }
        let end = start + self.times.forward[chunk];
        self.rows[s] = end;
        let mut sent = end;
        if chunk + 1 < self.chunk_end.len() {
            sent = end.max(self.newest[0][s]) + self.times.forward_message[chunk];
            self.newest[0][s] = sent;
        }
        let at = self.at(s, k);
        self.forward[at] = sent;
    }

    fn backward_pass(&mut self, s: usize, k: u64) {
        let last = self.slots[self.slots.len() - 1];
        let slot = last - self.next_slot(1, s);
        let input = match (s + 1 == self.p, slot == last) {
            (true, true) => 0,
            (true, false) => self.backward[self.at(0, k - self.group)],
            (false, _) => self.backward[self.at(s + 1, k)],
        };
        let chunk = slot * self.p + s;
        let end = self.rows[s].max(input) + self.back[chunk];
        self.rows[s] = end;
        self.chunk_end[chunk] = end;
        let mut sent = end;
        if chunk > 0 {
            sent = end.max(self.newest[1][s]) + self.times.backward_message[chunk - 1];
            self.newest[1][s] = sent;
        }
        let at = self.at(s, k);
        self.backward[at] = sent;
    }

    /// Everything that passes after step `step` depend on: rows, the newest message of each edge, and with several
    /// chunks all that may be unread.
    fn state(&self, step: i64, state: &mut Vec<u64>) {
        state.extend_from_slice(&self.rows);
        sent(&self.newest[0], &self.rows, state);
        sent(&self.newest[1], &self.rows, state);
        if self.slots.len() == 1 {
            return;
        }
        for s in 0..self.p {
            let backward = unsigned(step - (signed(self.p as u64) - 1 - signed(s as u64)));
            let forward = backward + self.warm_up[s];
            for back in 0..=self.group + 1 {
                // Passes before the first have no messages; numbers of later ones only grow.
                state.push(forward.checked_sub(back).map_or(self.rows[s], |k| self.forward[self.at(s, k)]));
                state.push(backward.checked_sub(back).map_or(self.rows[s], |k| self.backward[self.at(s, k)]));
            }
        }
    }

    fn finish(mut self, skipped: u64) -> Ends {
        if self.split {
            for ((s, row), weight) in (0u64..).zip(&mut self.rows).zip(&self.times.backward_weight) {
                *row += s * weight;
            }
            self.chunk_end.clone_from(&self.rows);
        }
        let add = |ends: Vec<u64>| ends.into_iter().map(|end| end + skipped).collect::<Vec<_>>();
        let newest = self.newest.iter().flatten().copied().max().unwrap_or(0);
        Ends {
            first_start: self.first_start,
            row: add(self.rows),
            chunk: add(self.chunk_end),
            last_message: if newest > 0 { newest + skipped } else { 0 },
        }
    }
}

/// By a walk over all cells, in each case.
pub(super) fn by_grid<const N: usize>(grid: &Grid, order: &Order, chunks: u32, cases: [&CellTimes; N]) -> Paced<N> {
    let run = dry_runs(grid, chunks, order, cases);
    let mut work = vec![0; grid.rows.len()];
    let ends = std::array::from_fn(|case| {
        let mut ends = Ends {
            first_start: vec![0; grid.rows.len()],
            row: vec![0; grid.rows.len()],
            chunk: vec![0; chunks as usize],
            last_message: run.last_message[case],
        };
        for (row, cells) in grid.rows.iter().enumerate() {
            ends.first_start[row] = run.ends[row][0][case] - cases[case].of(cells[0]);
            ends.row[row] = run.ends[row].last().expect("a position runs passes")[case];
            if case > 0 {
                continue;
            }
            for (cell, end) in cells.iter().zip(&run.ends[row]) {
                work[row] += cases[0].of(*cell);
                if matches!(cell.action, Action::Backward | Action::BackwardWeight) {
                    ends.chunk[cell.chunk.index()] = end[0];
                }
            }
        }
        ends
    });
    Paced { ends, work }
}

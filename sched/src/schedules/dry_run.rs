//! A grid run on paper: passes take given times, messages go between rows, nothing else exists.
//!
//! The order of events is that of a program: a row runs its cells in order; a message begins when its producer has ended
//! and both its sender's and its receiver's stream of that direction are free; streams carry messages in one [`Order`]
//! of the whole grid; the consumer waits for the end of its message.

use ir::grid::{Action, Cell, Grid};

use super::chunk_rows;

/// How long everything takes, in nanoseconds; indexed by chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellTimes {
    /// Forward pass.
    pub forward: Vec<u64>,
    /// Whole backward pass.
    pub backward: Vec<u64>,
    /// Input-gradient pass.
    pub backward_input: Vec<u64>,
    /// Weight-gradient pass.
    pub backward_weight: Vec<u64>,
    /// The activation from chunk `c` to chunk `c + 1`, where they sit on different rows.
    pub forward_message: Vec<u64>,
    /// The gradient from chunk `c + 1` to chunk `c`, where they sit on different rows.
    pub backward_message: Vec<u64>,
}

impl CellTimes {
    /// Every pass takes 1, messages take nothing.
    #[must_use]
    pub fn unit(chunks: u32) -> Self {
        Self::uniform(chunks, [1, 1, 1, 1], 0)
    }
    /// Every chunk takes the same for `[forward, backward, backward input, backward weight]` and for a message.
    #[must_use]
    pub fn uniform(chunks: u32, passes: [u64; 4], message: u64) -> Self {
        let all = |time| vec![time; chunks as usize];
        Self {
            forward: all(passes[0]),
            backward: all(passes[1]),
            backward_input: all(passes[2]),
            backward_weight: all(passes[3]),
            forward_message: all(message),
            backward_message: all(message),
        }
    }
    /// How long a cell takes.
    #[must_use]
    pub fn of(&self, cell: Cell) -> u64 {
        let table = match cell.action {
            Action::Forward => &self.forward,
            Action::Backward => &self.backward,
            Action::BackwardInput => &self.backward_input,
            Action::BackwardWeight => &self.backward_weight,
        };
        table[cell.chunk.index()]
    }
}

/// When every cell ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DryRun {
    /// End of each cell, by row and place in the row.
    pub ends: Vec<Vec<u64>>,
    /// End of the last message.
    pub last_message: u64,
}

impl DryRun {
    /// End of everything.
    #[must_use]
    pub fn makespan(&self) -> u64 {
        self.ends.iter().filter_map(|row| row.last()).copied().max().unwrap_or(0).max(self.last_message)
    }
}

/// A grid in which some cells wait for each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The first cell of each row that could not run: row, place in the row, the cell and what it waits for.
    pub waiting: Vec<(usize, usize, Cell, String)>,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the grid has a cycle of waits:")?;
        for (n, (row, place, cell, why)) in self.waiting.iter().enumerate() {
            let comma = if n == 0 { "" } else { ";" };
            write!(f, "{comma} row {row}, cell {place} (")?;
            write!(f, "{}{}{}) waits for {why}", cell.chunk.raw(), letter(cell.action), cell.microbatch.raw())?;
        }
        Ok(())
    }
}

const fn letter(action: Action) -> char {
    match action {
        Action::Forward => 'F',
        Action::Backward => 'B',
        Action::BackwardInput => 'I',
        Action::BackwardWeight => 'W',
    }
}

/// All cells of a grid, each after those it waits for: by their end when a forward pass takes 1 and a whole backward
/// pass 2, then by row.
///
/// Every stream carries its messages in this order of their producers. So no two streams can wait for each other: of the
/// messages not yet carried, the first one's producer waits only for messages before it. In the schedules of this
/// module it is also the order in which the receivers need them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Row and place in the row.
    pub cells: Vec<(u32, u32)>,
}

impl Order {
    /// Of a complete grid (see [`super::grid`]) over `chunks` chunks.
    ///
    /// # Errors
    /// The cells that wait for each other.
    ///
    /// # Panics
    /// If a chunk appears on no row.
    pub fn of(grid: &Grid, chunks: u32) -> Result<Self, Stuck> {
        let times = CellTimes::uniform(chunks, [1, 2, 1, 1], 0);
        let mut run = Run::new(grid, chunks, &times, false);
        let total: usize = grid.rows.iter().map(Vec::len).sum();
        let mut done: Vec<(u64, u32, u32)> = Vec::with_capacity(total);
        while done.len() < total {
            let before = done.len();
            for row in 0..grid.rows.len() {
                while let Some(end) = run.step(row) {
                    let place = run.ends[row].len() - 1;
                    done.push((end, index(row), index(place)));
                }
            }
            if done.len() == before {
                return Err(run.stuck());
            }
        }
        done.sort_unstable();
        Ok(Self { cells: done.into_iter().map(|(_, row, place)| (row, place)).collect() })
    }
}

/// Runs a complete grid in its order.
///
/// # Panics
/// If `order` is not that of the grid.
#[must_use]
pub fn dry_run(grid: &Grid, chunks: u32, order: &Order, times: &CellTimes) -> DryRun {
    let mut run = Run::new(grid, chunks, times, true);
    for &(row, place) in &order.cells {
        let ran = run.step(row as usize);
        assert!(ran.is_some(), "cell {place} of row {row} is out of order");
    }
    DryRun { ends: run.ends, last_message: run.last_message }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("a grid of more cells than u32")
}

/// Not yet.
const UNKNOWN: u64 = u64::MAX;

struct Run<'a> {
    grid: &'a Grid,
    times: &'a CellTimes,
    /// The row of each chunk.
    rows: Vec<usize>,
    microbatches: usize,
    chunks: usize,
    /// When the input of a forward or backward pass is there, by chunk and microbatch.
    forward_input: Vec<u64>,
    backward_input: Vec<u64>,
    /// When a chunk's forward (input-gradient) pass ended, for what follows on the same chunk.
    forward_end: Vec<u64>,
    input_end: Vec<u64>,
    /// When the streams of a row are free: forward send, forward receive, backward send, backward receive.
    streams: Vec<[u64; 4]>,
    /// Whether messages wait for each other on streams.
    queue: bool,
    clock: Vec<u64>,
    ends: Vec<Vec<u64>>,
    last_message: u64,
}

impl<'a> Run<'a> {
    fn new(grid: &'a Grid, chunks: u32, times: &'a CellTimes, queue: bool) -> Self {
        let rows = chunk_rows(grid, chunks)
            .into_iter()
            .enumerate()
            .map(|(chunk, row)| row.unwrap_or_else(|| panic!("chunk {chunk} is on no row")) as usize)
            .collect::<Vec<_>>();
        let microbatches = grid.rows.iter().flatten().map(|cell| cell.microbatch.index() + 1).max().unwrap_or(0);
        let chunks = chunks as usize;
        let unknown = vec![UNKNOWN; chunks * microbatches];
        let mut forward_input = unknown.clone();
        forward_input[..microbatches.min(chunks * microbatches)].fill(0);
        Self {
            grid,
            times,
            rows,
            microbatches,
            chunks,
            forward_input,
            backward_input: unknown.clone(),
            forward_end: unknown.clone(),
            input_end: unknown,
            streams: vec![[0; 4]; grid.rows.len()],
            queue,
            clock: vec![0; grid.rows.len()],
            ends: grid.rows.iter().map(|row| Vec::with_capacity(row.len())).collect(),
            last_message: 0,
        }
    }

    fn at(&self, cell: Cell) -> usize {
        cell.chunk.index() * self.microbatches + cell.microbatch.index()
    }

    /// When what a cell waits for is there, beside its row.
    fn ready(&self, cell: Cell) -> u64 {
        let at = self.at(cell);
        match cell.action {
            Action::Forward => self.forward_input[at],
            Action::Backward | Action::BackwardInput if cell.chunk.index() + 1 == self.chunks => self.forward_end[at],
            Action::Backward | Action::BackwardInput if self.forward_end[at] == UNKNOWN => UNKNOWN,
            Action::Backward | Action::BackwardInput => self.backward_input[at],
            Action::BackwardWeight => self.input_end[at],
        }
    }

    /// Runs the next cell of a row if it can, and says when it ended.
    fn step(&mut self, row: usize) -> Option<u64> {
        let &cell = self.grid.rows[row].get(self.ends[row].len())?;
        let ready = self.ready(cell);
        if ready == UNKNOWN {
            return None;
        }
        let end = self.clock[row].max(ready) + self.times.of(cell);
        self.clock[row] = end;
        self.ends[row].push(end);
        let (at, chunk) = (self.at(cell), cell.chunk.index());
        match cell.action {
            Action::Forward => {
                self.forward_end[at] = end;
                if chunk + 1 < self.chunks {
                    let (to, time) = (self.rows[chunk + 1], self.times.forward_message[chunk]);
                    self.forward_input[at + self.microbatches] = self.send(row, to, [0, 1], end, time);
                }
            }
            Action::Backward | Action::BackwardInput => {
                self.input_end[at] = end;
                if let Some(previous) = chunk.checked_sub(1) {
                    let (to, time) = (self.rows[previous], self.times.backward_message[previous]);
                    self.backward_input[at - self.microbatches] = self.send(row, to, [2, 3], end, time);
                }
            }
            Action::BackwardWeight => {}
        }
        Some(end)
    }

    fn send(&mut self, from: usize, to: usize, streams: [usize; 2], produced: u64, time: u64) -> u64 {
        if from == to || !self.queue {
            return produced;
        }
        let begin = produced.max(self.streams[from][streams[0]]).max(self.streams[to][streams[1]]);
        let end = begin + time;
        self.streams[from][streams[0]] = end;
        self.streams[to][streams[1]] = end;
        self.last_message = self.last_message.max(end);
        end
    }

    fn stuck(&self) -> Stuck {
        let waits = |cell: Cell| {
            let (chunk, microbatch) = (cell.chunk.raw(), cell.microbatch.raw());
            match cell.action {
                Action::Forward => format!("the forward pass of microbatch {microbatch} through chunk {}", chunk - 1),
                Action::Backward | Action::BackwardInput if self.forward_end[self.at(cell)] == UNKNOWN => {
                    format!("the forward pass of microbatch {microbatch} through its own chunk")
                }
                Action::Backward | Action::BackwardInput => {
                    format!("the backward pass of microbatch {microbatch} through chunk {}", chunk + 1)
                }
                Action::BackwardWeight => format!("the input-gradient pass of microbatch {microbatch}"),
            }
        };
        let waiting = (0..self.grid.rows.len()).filter_map(|row| {
            let place = self.ends[row].len();
            self.grid.rows[row].get(place).map(|cell| (row, place, *cell, waits(*cell)))
        });
        Stuck { waiting: waiting.collect() }
    }
}

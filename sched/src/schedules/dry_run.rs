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
    /// Before this, counted from the beginning, no pass of the chunk begins.
    pub ready: Vec<u64>,
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
            ready: all(0),
        }
    }
    /// How long each chunk's passes of a kind take.
    #[must_use]
    pub fn by_action(&self, action: Action) -> &[u64] {
        match action {
            Action::Forward => &self.forward,
            Action::Backward => &self.backward,
            Action::BackwardInput => &self.backward_input,
            Action::BackwardWeight => &self.backward_weight,
        }
    }
    /// How long a cell takes.
    #[must_use]
    pub fn of(&self, cell: Cell) -> u64 {
        self.by_action(cell.action)[cell.chunk.index()]
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
        let mut run = Run::new(grid, chunks, [&times], false);
        let total: usize = grid.rows.iter().map(Vec::len).sum();
        let mut done: Vec<(u64, u32, u32)> = Vec::with_capacity(total);
        while done.len() < total {
            let before = done.len();
            for row in 0..grid.rows.len() {
                while let Some([end]) = run.step(row) {
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
    let run = dry_runs(grid, chunks, order, [times]);
    let ends = run.ends.into_iter().map(|row| row.into_iter().map(|[end]| end).collect()).collect();
    DryRun { ends, last_message: run.last_message[0] }
}

/// The same for several times at once: of each cell and of the last message one end for each.
pub(crate) struct DryRuns<const N: usize> {
    pub(crate) ends: Vec<Vec<[u64; N]>>,
    pub(crate) last_message: [u64; N],
}

/// Runs a complete grid in its order with each of `times`: one walk over the cells for all of them.
///
/// # Panics
/// If `order` is not that of the grid.
pub(crate) fn dry_runs<const N: usize>(grid: &Grid, chunks: u32, order: &Order, times: [&CellTimes; N]) -> DryRuns<N> {
    let mut run = Run::new(grid, chunks, times, true);
    for &(row, place) in &order.cells {
        let ran = run.step(row as usize);
        assert!(ran.is_some(), "cell {place} of row {row} is out of order");
    }
    DryRuns { ends: run.ends, last_message: run.last_message }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("a grid of more cells than u32")
}

/// Not yet.
const UNKNOWN: u64 = u64::MAX;

struct Run<'a, const N: usize> {
    grid: &'a Grid,
    times: [&'a CellTimes; N],
    /// The row of each chunk.
    rows: Vec<usize>,
    microbatches: usize,
    chunks: usize,
    /// When the input of a forward or backward pass is there, by chunk and microbatch.
    forward_input: Vec<[u64; N]>,
    backward_input: Vec<[u64; N]>,
    /// When a chunk's forward (input-gradient) pass ended, for what follows on the same chunk.
    forward_end: Vec<[u64; N]>,
    input_end: Vec<[u64; N]>,
    /// When the streams of a row are free: forward send, forward receive, backward send, backward receive.
    streams: Vec<[[u64; N]; 4]>,
    /// Whether messages wait for each other on streams.
    queue: bool,
    clock: Vec<[u64; N]>,
    ends: Vec<Vec<[u64; N]>>,
    last_message: [u64; N],
}

impl<'a, const N: usize> Run<'a, N> {
    fn new(grid: &'a Grid, chunks: u32, times: [&'a CellTimes; N], queue: bool) -> Self {
        let rows = chunk_rows(grid, chunks)
            .into_iter()
            .enumerate()
            .map(|(chunk, row)| row.unwrap_or_else(|| panic!("chunk {chunk} is on no row")) as usize)
            .collect::<Vec<_>>();
        let microbatches = grid.rows.iter().flatten().map(|cell| cell.microbatch.index() + 1).max().unwrap_or(0);
        let chunks = chunks as usize;
        let unknown = vec![[UNKNOWN; N]; chunks * microbatches];
        let mut forward_input = unknown.clone();
        forward_input[..microbatches.min(chunks * microbatches)].fill([0; N]);
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
            streams: vec![[[0; N]; 4]; grid.rows.len()],
            queue,
            clock: vec![[0; N]; grid.rows.len()],
            ends: grid.rows.iter().map(|row| Vec::with_capacity(row.len())).collect(),
            last_message: [0; N],
        }
    }

    fn at(&self, cell: Cell) -> usize {
        cell.chunk.index() * self.microbatches + cell.microbatch.index()
    }

    /// When what a cell waits for is there, beside its row.
    fn ready(&self, cell: Cell) -> [u64; N] {
        let at = self.at(cell);
        match cell.action {
            Action::Forward => self.forward_input[at],
            Action::Backward | Action::BackwardInput if cell.chunk.index() + 1 == self.chunks => self.forward_end[at],
            Action::Backward | Action::BackwardInput if self.forward_end[at][0] == UNKNOWN => [UNKNOWN; N],
            Action::Backward | Action::BackwardInput => self.backward_input[at],
            Action::BackwardWeight => self.input_end[at],
        }
    }

    /// Runs the next cell of a row if it can, and says when it ended.
    fn step(&mut self, row: usize) -> Option<[u64; N]> {
        let &cell = self.grid.rows[row].get(self.ends[row].len())?;
        let ready = self.ready(cell);
        if ready[0] == UNKNOWN {
            return None;
        }
        let clock = self.clock[row];
        let end = std::array::from_fn(|of| {
            let ready = ready[of].max(self.times[of].ready[cell.chunk.index()]);
            clock[of].max(ready) + self.times[of].of(cell)
        });
        self.clock[row] = end;
        self.ends[row].push(end);
        let (at, chunk) = (self.at(cell), cell.chunk.index());
        match cell.action {
            Action::Forward => {
                self.forward_end[at] = end;
                if chunk + 1 < self.chunks {
                    let (to, time) = (self.rows[chunk + 1], self.times.map(|times| times.forward_message[chunk]));
                    self.forward_input[at + self.microbatches] = self.send(row, to, [0, 1], end, time);
                }
            }
            Action::Backward | Action::BackwardInput => {
                self.input_end[at] = end;
                if let Some(previous) = chunk.checked_sub(1) {
                    let (to, time) = (self.rows[previous], self.times.map(|times| times.backward_message[previous]));
                    self.backward_input[at - self.microbatches] = self.send(row, to, [2, 3], end, time);
                }
            }
            Action::BackwardWeight => {}
        }
        Some(end)
    }

    fn send(&mut self, from: usize, to: usize, streams: [usize; 2], produced: [u64; N], time: [u64; N]) -> [u64; N] {
        if from == to || !self.queue {
            return produced;
        }
        let (sent, received) = (self.streams[from][streams[0]], self.streams[to][streams[1]]);
        let end = std::array::from_fn(|of| produced[of].max(sent[of]).max(received[of]) + time[of]);
        self.streams[from][streams[0]] = end;
        self.streams[to][streams[1]] = end;
        for (last, end) in self.last_message.iter_mut().zip(end) {
            *last = end.max(*last);
        }
        end
    }

    fn stuck(&self) -> Stuck {
        let waits = |cell: Cell| {
            let (chunk, microbatch) = (cell.chunk.raw(), cell.microbatch.raw());
            match cell.action {
                Action::Forward => format!("the forward pass of microbatch {microbatch} through chunk {}", chunk - 1),
                Action::Backward | Action::BackwardInput if self.forward_end[self.at(cell)][0] == UNKNOWN => {
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

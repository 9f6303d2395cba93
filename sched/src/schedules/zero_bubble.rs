//! Zero bubble with a searched order (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 3): the backward pass is
//! split into input and weight gradients, as many microbatches are ahead as memory holds, and weight passes fill what
//! would be a bubble.
//!
//! The search is a greedy list schedule with the profiled times of the plan. A position prefers input gradients, for all
//! positions before it wait for them, then forward passes; a weight pass runs where nothing else can and it delays
//! what comes next by no more than a share of itself, and where memory must be freed. Of the shares tried, of ZB-H1 and of
//! 1F1B with split passes, the order with the shortest longest stage wins; so none is longer than 1F1B under these times.
//!
//! What lives on a position: of a microbatch all of its activations until its input-gradient pass, then [`ZeroBubble::kept`]
//! thousandths of them until its weight pass. It never exceeds `memory` times the pipeline degree, what the first position
//! of 1F1B holds.

use ir::grid::{Action, Cell, Grid};
use ir::{Problem, ZeroBubble};

use super::dry_run::{CellTimes, Order, dry_run};
use super::{cell, zero_bubble_h1};

/// Of a weight pass, what it may delay the next pass by, in halves.
const SHARES: [u64; 3] = [2, 1, 0];

pub(super) fn refusals(searched: ZeroBubble, chunks: u32) -> Vec<Problem> {
    let mut problems = zero_bubble_h1::refusals("a searched zero-bubble order", chunks);
    let ZeroBubble { memory, forward, backward_input, backward_weight, kept, .. } = searched;
    let mut refuse = |wrong: bool, message: String| {
        if wrong {
            problems.push(Problem::new("plan.schedule", message));
        }
    };
    refuse(
        !(1..=8).contains(&memory),
        format!("lets {memory} times 1F1B's microbatches live, and 1 to 8 are sensible"),
    );
    let none = forward.min(backward_input).min(backward_weight) == 0;
    refuse(none, "has a pass that takes no time, and a profile has none".to_owned());
    refuse(kept > 1000, format!("has {kept} thousandths of a microbatch wait for its weight pass"));
    problems
}

/// The best order found; see the module.
pub(super) fn grid(searched: ZeroBubble, pipeline: u32, microbatches: u32) -> Grid {
    let mut candidates = SHARES
        .into_iter()
        .filter_map(|share| Search::new(searched, pipeline, microbatches, share).run())
        .collect::<Vec<_>>();
    candidates.push(zero_bubble_h1::rows(pipeline, microbatches));
    candidates.push(split(pipeline, microbatches));
    let [f, b, w] = [searched.forward, searched.backward_input, searched.backward_weight].map(u64::from);
    let times = CellTimes::uniform(pipeline, [f, b + w, b, w], u64::from(searched.message));
    let length = |rows: &Vec<Vec<Cell>>| {
        let grid = Grid { rows: rows.clone() };
        let order = Order::of(&grid, pipeline).expect("passes of an order that was run");
        let run = dry_run(&grid, pipeline, &order, &times);
        let span = |ends: &Vec<u64>| ends.last().map_or(0, |end| end - (ends[0] - f));
        (run.ends.iter().map(span).max().unwrap_or(0), run.makespan())
    };
    let held = |rows: &Vec<Vec<Cell>>| rows.iter().map(|row| most_held(searched, row)).max().unwrap_or(0);
    let most = limit(searched, pipeline);
    let fits = candidates.into_iter().filter(|rows| held(rows) <= most);
    Grid { rows: fits.min_by_key(length).expect("1F1B fits") }
}

/// ZB-H2 (Qi et al. 2024, section 2.3): position `s` runs ahead by up to `2 (p - s) - 1` microbatches, and weight passes
/// wait until nothing else can run. With passes that all take as long, `m >= 2 p - 1` and no messages, no position idles between
/// its first pass and its last; at most `2 p` microbatches live on one.
pub(super) fn h2(pipeline: u32, microbatches: u32) -> Grid {
    let even = ZeroBubble { forward: 1, backward_input: 1, backward_weight: 1, ..ZeroBubble::unprofiled(2) };
    grid(even, pipeline, microbatches)
}

/// What may live on a position, in thousandths of a microbatch.
fn limit(searched: ZeroBubble, pipeline: u32) -> u64 {
    u64::from(searched.memory) * u64::from(pipeline) * 1000
}

/// The most that lives on a position, in thousandths of a microbatch.
pub(super) fn most_held(searched: ZeroBubble, row: &[Cell]) -> u64 {
    let kept = u64::from(searched.kept);
    let (mut held, mut most) = (0u64, 0);
    for cell in row {
        held = match cell.action {
            Action::Forward => held + 1000,
            Action::BackwardInput => held + kept - 1000,
            Action::BackwardWeight => held - kept,
            Action::Backward => held - 1000,
        };
        most = most.max(held);
    }
    most
}

/// 1F1B with each weight pass right after its input gradients.
fn split(pipeline: u32, microbatches: u32) -> Vec<Vec<Cell>> {
    let of = |cell: Cell| match cell.action {
        Action::Backward => {
            vec![Cell { action: Action::BackwardInput, ..cell }, Cell { action: Action::BackwardWeight, ..cell }]
        }
        Action::Forward | Action::BackwardInput | Action::BackwardWeight => vec![cell],
    };
    let rows = super::one_forward_one_backward::grid(pipeline, microbatches).rows;
    rows.into_iter().map(|row| row.into_iter().flat_map(of).collect()).collect()
}

/// A position while orders are searched.
#[derive(Clone, Debug, Default)]
struct Position {
    clock: u64,
    /// Whether nothing that could run is known.
    idle: bool,
    /// Passes run: forward, input-gradient and weight-gradient.
    done: [u32; 3],
    /// When the outputs of forward and of input-gradient passes are there.
    sent: [Vec<u64>; 2],
    row: Vec<Cell>,
}

const FORWARD: usize = 0;
const INPUT: usize = 1;
const WEIGHT: usize = 2;
const ACTIONS: [Action; 3] = [Action::Forward, Action::BackwardInput, Action::BackwardWeight];

struct Search {
    times: [u64; 3],
    message: u64,
    microbatches: u32,
    /// See [`SHARES`].
    share: u64,
    limit: u64,
    searched: ZeroBubble,
    positions: Vec<Position>,
}

/// When a pass can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ready {
    At(u64),
    /// What it waits for has not begun; not before this.
    NotBefore(u64),
    /// It has run, or may not now.
    Never,
}

impl Search {
    fn new(searched: ZeroBubble, pipeline: u32, microbatches: u32, share: u64) -> Self {
        Self {
            times: [searched.forward, searched.backward_input, searched.backward_weight].map(u64::from),
            message: u64::from(searched.message),
            microbatches,
            share,
            limit: limit(searched, pipeline),
            searched,
            positions: vec![Position::default(); pipeline as usize],
        }
    }

    /// The order; `None` if positions wait for each other's memory.
    fn run(mut self) -> Option<Vec<Vec<Cell>>> {
        loop {
            let unfinished = |at: &usize| self.positions[*at].done[WEIGHT] < self.microbatches;
            let place = |at: &usize| (self.positions[*at].clock, self.positions[*at].idle, *at);
            let Some(at) = (0..self.positions.len()).filter(unfinished).min_by_key(place) else { break };
            if let Some(pass) = self.choice(at) {
                self.carry_out(at, pass);
                continue;
            }
            let now = self.positions[at].clock;
            let others = self.positions.iter().map(|other| other.clock);
            let own = [FORWARD, INPUT].map(|pass| match self.ready(at, pass) {
                Ready::At(moment) => moment,
                Ready::NotBefore(_) | Ready::Never => 0,
            });
            let next = others.chain(own).filter(|moment| *moment > now).min();
            let position = &mut self.positions[at];
            match next {
                Some(moment) => (position.clock, position.idle) = (moment, false),
                None if position.idle => return None,
                None => position.idle = true,
            }
        }
        Some(self.positions.into_iter().map(|position| position.row).collect())
    }

    fn ready(&self, at: usize, pass: usize) -> Ready {
        let position = &self.positions[at];
        let microbatch = position.done[pass] as usize;
        if position.done[pass] == self.microbatches {
            return Ready::Never;
        }
        let (before, message) = match (pass, at) {
            (FORWARD, 0) => return Ready::At(0),
            (FORWARD, _) => (at - 1, self.message),
            _ if at + 1 == self.positions.len() => {
                let forward = position.sent[FORWARD].get(microbatch);
                return forward.map_or(Ready::Never, |end| Ready::At(*end));
            }
            _ => (at + 1, self.message),
        };
        let from = &self.positions[before];
        match from.sent[pass].get(microbatch) {
            Some(end) => Ready::At(end + message),
            None => Ready::NotBefore(from.clock + self.times[pass] + message),
        }
    }

    /// Whether one more microbatch may begin: few enough are ahead for the order that the limit is for, and there is memory.
    fn may_begin(&self, at: usize) -> (bool, bool) {
        let [forward, input, weight] = self.positions[at].done.map(u64::from);
        let memory = u64::from(self.searched.memory);
        let from_last = (self.positions.len() - at) as u64;
        let ahead = forward - input < memory * from_last - (memory - 1);
        let kept = u64::from(self.searched.kept);
        let held = (forward - input) * 1000 + (input - weight) * kept;
        (ahead, held + 1000 <= self.limit)
    }

    /// What a position runs now.
    fn choice(&self, at: usize) -> Option<usize> {
        let position = &self.positions[at];
        let now = position.clock;
        let can = |ready: Ready| matches!(ready, Ready::At(moment) if moment <= now);
        let (ahead, memory) = self.may_begin(at);
        let (forward, input) = (self.ready(at, FORWARD), self.ready(at, INPUT));
        if can(input) {
            return Some(INPUT);
        }
        if can(forward) && ahead && memory {
            return Some(FORWARD);
        }
        if position.done[WEIGHT] == position.done[INPUT] {
            return None;
        }
        let moment = |ready: Ready| match ready {
            Ready::At(moment) | Ready::NotBefore(moment) => moment,
            Ready::Never => u64::MAX,
        };
        let next = moment(input).min(if ahead && memory { moment(forward) } else { u64::MAX });
        let freeing = can(forward) && ahead && !memory;
        let fits = next.saturating_sub(now).saturating_mul(2) >= self.times[WEIGHT] * (2 - self.share);
        (freeing || fits).then_some(WEIGHT)
    }

    fn carry_out(&mut self, at: usize, pass: usize) {
        // Whoever was idle may go on from what is known now.
        self.positions.iter_mut().for_each(|position| position.idle = false);
        let time = self.times[pass];
        let position = &mut self.positions[at];
        position.clock += time;
        let chunk = u32::try_from(at).expect("fewer positions than u32");
        position.row.push(cell(chunk, ACTIONS[pass], position.done[pass]));
        position.done[pass] += 1;
        if pass != WEIGHT {
            position.sent[pass].push(position.clock);
        }
    }
}

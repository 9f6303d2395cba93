//! Two chunks on each position, down the pipeline and up again, with split backward passes: ZB-V (Qi et al. 2024, "Zero
//! Bubble Pipeline Parallelism", section 6), V-Half and V-Min (Qi, Wan, Amar and Lin 2024, "Pipeline Parallelism with
//! Controllable Memory").
//!
//! The second of these papers builds an order from one block: when each pass of a microbatch begins on each position, in
//! units of a pass, such that blocks six units apart never meet. How fast the passes of a block travel decides how long
//! activations live: [`travel`]. Here a block gives the passes their precedence, and a list schedule with the profiled times
//! of the plan carries them out: a position runs, of what is ready and has memory, the pass that the blocks put first. So
//! later microbatches fill the warm-up, and weight passes, which the blocks are made to put off, what is left.
//!
//! Of all blocks, of weight passes put off by different times and of different numbers of places kept free for microbatches
//! on their way up, the one wins that ends first over few microbatches. A position that keeps one place free for the way up
//! never blocks: the oldest microbatch can always go on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ir::grid::{Action, Cell, Grid};
use ir::{Problem, Vee, VeeMemory};

use super::cell;

/// Forward passes down and up, input-gradient passes of the upper and of the lower chunk, and weight passes likewise.
const PASSES: usize = 6;
const DOWN: usize = 0;
const UP: usize = 1;
const INPUT_UP: usize = 2;
const INPUT_DOWN: usize = 3;
const WEIGHT_UP: usize = 4;
const WEIGHT_DOWN: usize = 5;

const ACTIONS: [(Action, bool); PASSES] = [
    (Action::Forward, false),
    (Action::Forward, true),
    (Action::BackwardInput, true),
    (Action::BackwardInput, false),
    (Action::BackwardWeight, true),
    (Action::BackwardWeight, false),
];

/// Units of a pass from one position to the next: down, up, and the gradients of the upper and of the lower chunk. With 1 for
/// all, a position's activations live for `4 p` of the `12 p` units that 1F1B keeps them.
const fn travel(memory: VeeMemory) -> [u64; 4] {
    match memory {
        VeeMemory::Full => [4, 2, 2, 4],
        VeeMemory::Half => [2, 1, 2, 1],
        VeeMemory::Third => [1, 1, 1, 1],
    }
}

/// By how many units weight passes are put off behind their place in a block.
const PUT_OFF: [u64; 3] = [12, 30, u64::MAX >> 1];
/// Sixths of a place, for each position from the first, kept free for microbatches on their way up.
const KEPT_FREE: [usize; 3] = [0, 2, 3];

pub(super) fn refusals(searched: Vee, pipeline: u32, chunks: u32) -> Vec<Problem> {
    let mut problems = two_chunks("down the pipeline and up again", pipeline, chunks);
    let Vee { forward, backward_input, backward_weight, .. } = searched;
    if forward.min(backward_input).min(backward_weight) == 0 {
        problems.push(Problem::new("plan.schedule", "has a pass that takes no time, and a profile has none"));
    }
    problems
}

/// What an order down and up again needs.
pub(super) fn two_chunks(order: &str, pipeline: u32, chunks: u32) -> Vec<Problem> {
    let mut problems = Vec::new();
    if chunks != 2 {
        let message = format!("passes go {order} over two chunks per stage, here there are {chunks}");
        problems.push(Problem::new("plan.stages", message).hint("give each stage two chunks"));
    }
    if pipeline < 2 {
        let message = format!("passes go {order} over at least 2 positions, here there is {pipeline}");
        problems.push(Problem::new("plan.stages", message).hint("1f1b, or more stages"));
    }
    problems
}

/// The best order found; see the module.
pub(super) fn grid(searched: Vee, pipeline: u32, microbatches: u32) -> Grid {
    let blocks = blocks(travel(searched.memory), pipeline as usize);
    let few = microbatches.min(3 * pipeline);
    let tried = blocks.iter().flat_map(|block| {
        PUT_OFF.into_iter().flat_map(move |put_off| KEPT_FREE.into_iter().map(move |free| (block, put_off, free)))
    });
    let best = tried
        .min_by_key(|(block, put_off, free)| Search::new(searched, block, *put_off, *free, few).run().1)
        .expect("there are blocks for any number of positions");
    let (block, put_off, free) = best;
    Grid { rows: Search::new(searched, block, put_off, free, microbatches).run().0 }
}

/// When each pass of the first microbatch begins on each position, in units of a pass.
type Block = Vec<[u64; PASSES]>;

/// All blocks in which microbatches six units apart never meet, with turns of 1 to 6 units at the ends of the pipeline.
fn blocks(travel: [u64; 4], positions: usize) -> Vec<Block> {
    let turns = (1..=6).flat_map(|a| (1..=6).flat_map(move |b| (1..=6).map(move |c| [a, b, c])));
    turns.filter_map(|turns| block(travel, turns, positions as u64)).collect()
}

fn block(travel: [u64; 4], turns: [u64; 3], positions: u64) -> Option<Block> {
    let end = positions - 1;
    let [down, up, input_up, input_down] = travel;
    // Begins of the journeys up and back down and up: at the last position, at the first, at the last.
    let at_bottom = down * end + turns[0];
    let at_top = at_bottom + up * end + turns[1];
    let at_bottom_again = at_top + input_up * end + turns[2];
    let row = |position: u64| {
        let above = end - position;
        let begins = [
            down * position,
            at_bottom + up * above,
            at_top + input_up * position,
            at_bottom_again + input_down * above,
        ];
        let mut taken = [false; PASSES];
        for begin in begins {
            if std::mem::replace(&mut taken[(begin % 6) as usize], true) {
                return None;
            }
        }
        let mut free = |after: u64| {
            let begin = (after + 1..).find(|unit| !taken[(unit % 6) as usize]).expect("two of six are free");
            taken[(begin % 6) as usize] = true;
            begin
        };
        let weight_up = free(begins[INPUT_UP]);
        let weight_down = free(begins[INPUT_DOWN]);
        Some([begins[DOWN], begins[UP], begins[INPUT_UP], begins[INPUT_DOWN], weight_up, weight_down])
    };
    (0..positions).map(row).collect()
}

struct Position {
    clock: u64,
    begin: Option<u64>,
    /// Passes carried out, of each kind.
    done: [u32; PASSES],
    /// When each of those ended that others wait for.
    ends: [Vec<u64>; 4],
    row: Vec<Cell>,
}

struct Search<'a> {
    block: &'a Block,
    put_off: u64,
    free: usize,
    microbatches: u32,
    most: u32,
    times: [u64; PASSES],
    message: u64,
    positions: Vec<Position>,
}

impl<'a> Search<'a> {
    fn new(searched: Vee, block: &'a Block, put_off: u64, free: usize, microbatches: u32) -> Self {
        let [forward, input, weight] =
            [searched.forward, searched.backward_input, searched.backward_weight].map(u64::from);
        let pipeline = u32::try_from(block.len()).expect("a number of positions");
        let position = || Position {
            clock: 0,
            begin: None,
            done: [0; PASSES],
            ends: std::array::from_fn(|_| Vec::with_capacity(microbatches as usize)),
            row: Vec::with_capacity(PASSES * microbatches as usize),
        };
        Self {
            block,
            put_off,
            free,
            microbatches,
            most: searched.memory.chunks(pipeline),
            times: [forward, forward, input, input, weight, weight],
            message: u64::from(searched.message),
            positions: (0..pipeline).map(|_| position()).collect(),
        }
    }

    /// The order, and when it ends: the last position's end, and the longest time from a position's first pass to its last.
    fn run(mut self) -> (Vec<Vec<Cell>>, (u64, u64)) {
        let mut moments = BinaryHeap::from([Reverse(0)]);
        while let Some(Reverse(now)) = moments.pop() {
            while moments.peek() == Some(&Reverse(now)) {
                moments.pop();
            }
            for at in 0..self.positions.len() {
                if self.positions[at].clock > now {
                    continue;
                }
                if let Some(pass) = self.choice(at, now) {
                    let end = self.carry_out(at, pass, now);
                    moments.push(Reverse(end));
                    if self.message > 0 {
                        moments.push(Reverse(end + self.message));
                    }
                }
            }
        }
        let end = self.positions.iter().map(|position| position.clock).max().unwrap_or(0);
        let span = |position: &Position| position.clock - position.begin.unwrap_or(0);
        let longest = self.positions.iter().map(span).max().unwrap_or(0);
        (self.positions.into_iter().map(|position| position.row).collect(), (end, longest))
    }

    /// Whether a position's next pass of a kind has what it waits for.
    fn is_ready(&self, at: usize, pass: usize, now: u64) -> bool {
        let position = &self.positions[at];
        let microbatch = position.done[pass] as usize;
        let last = self.positions.len() - 1;
        let (from, before) = match pass {
            DOWN if at == 0 => return true,
            DOWN => (at - 1, DOWN),
            UP if at == last => (at, DOWN),
            UP => (at + 1, UP),
            INPUT_UP if at == 0 => (at, UP),
            INPUT_UP => (at - 1, INPUT_UP),
            INPUT_DOWN if at == last => (at, INPUT_UP),
            INPUT_DOWN => (at + 1, INPUT_DOWN),
            WEIGHT_UP => (at, INPUT_UP),
            _ => (at, INPUT_DOWN),
        };
        let message = if from == at { 0 } else { self.message };
        self.positions[from].ends[before].get(microbatch).is_some_and(|end| end + message <= now)
    }

    /// What a position runs now.
    fn choice(&self, at: usize, now: u64) -> Option<usize> {
        let done = &self.positions[at].done;
        let held_down = done[DOWN] - done[WEIGHT_DOWN];
        let held = held_down + done[UP] - done[WEIGHT_UP];
        let kept_free = u32::try_from(1 + at * self.free / 6).unwrap_or(u32::MAX).min(self.most - 1);
        let has_memory = |pass: usize| match pass {
            DOWN => held < self.most && held_down < self.most - kept_free,
            UP => held < self.most,
            _ => true,
        };
        let place = |pass: &usize| {
            let put_off = if matches!(*pass, WEIGHT_UP | WEIGHT_DOWN) { self.put_off } else { 0 };
            self.block[at][*pass] + 6 * u64::from(done[*pass]) + put_off
        };
        (0..PASSES)
            .filter(|pass| done[*pass] < self.microbatches && has_memory(*pass) && self.is_ready(at, *pass, now))
            .min_by_key(place)
    }

    fn carry_out(&mut self, at: usize, pass: usize, now: u64) -> u64 {
        let count = self.positions.len();
        let position = &mut self.positions[at];
        let (action, up) = ACTIONS[pass];
        let chunk = u32::try_from(if up { 2 * count - 1 - at } else { at }).expect("a number of chunks");
        position.row.push(cell(chunk, action, position.done[pass]));
        position.done[pass] += 1;
        position.begin.get_or_insert(now);
        position.clock = now + self.times[pass];
        if let Some(ends) = position.ends.get_mut(pass) {
            ends.push(position.clock);
        }
        position.clock
    }
}

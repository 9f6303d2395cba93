//! Cuts of a pipeline by dynamic programming, with a time that no cut goes under.
//!
//! Let position `s` of `p` hold a chunk whose passes take `f_s + b_s = w_s` for one of `m` microbatches, and let messages
//! from it to the next position and back take `c_s`. Its first forward pass waits for one pass through every position before
//! it, and after its last backward pass one goes back through them. So with
//!
//! * `S_s = sum over j > s of w_j + c_(j-1)`, the way to the end and back, and
//! * `K = p - s`, the microbatches in flight under 1F1B,
//!
//! the passes of position 0 end no sooner than `A_s + L_s` for every `s`, where `A_s = sum over j < s of w_j + c_j` and
//!
//! * 1F1B, `m > K`: `L_s = m w_s + max(0, S_s - (K-1) f_s) + max(0, S_s - (K-1) b_s)`. From the end of the first forward pass
//!   to the first backward pass there are `S_s`, and forward passes of `K - 1` others to fill them; from the end of the last
//!   forward pass to its backward pass there are `S_s` again, and backward passes of `K - 1` others. The two do not overlap.
//! * 1F1B, `m <= K`: `L_s = m w_s + max(0, S_s - (m-1) min(f_s, b_s))`: there is one such gap, and both hold for it.
//! * `GPipe`: `L_s = m w_s + S_s`. The last position turns round when it has every microbatch, the last of this one too.
//! * ZB-H1: weight gradients may come last, so of the way back nothing is left: `A_s = sum over j < s of f_j`, and of the two
//!   gaps only the first, with the way back of gradients of inputs alone. What follows the passes of `s` counts too.
//!
//! On equal stages the first gives `(m + p - 1) w`, which 1F1B takes. Backwards over positions, `V_s = max(L_s, w_s + c_s +
//! V_(s+1))` is the least of `max over j >= s of A_j - A_s + L_j`. It grows with `V_(s+1)` and with `S_s`, so of all ways to cut
//! what is behind a position only those matter that no other beats in both (Bellman's principle with labels of two criteria).
//! Reductions and the optimizer step of position 0 follow.

use std::collections::BTreeMap;

use ir::Recompute;

/// What a position takes that holds a chunk, with the recomputation by which it fits and is fastest. Nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Stage {
    pub(in crate::policies) forward: u64,
    pub(in crate::policies) backward: u64,
    /// Of the backward pass, the part that the position before waits for.
    pub(in crate::policies) input: u64,
    /// To the next position and back.
    pub(in crate::policies) messages: u64,
    /// What follows all passes.
    pub(in crate::policies) step: u64,
    pub(in crate::policies) recompute: Recompute,
    /// Layers that it concerns, the first ones; `None`: all.
    pub(in crate::policies) recomputed: Option<u32>,
}

/// A chunk on a position, with devices of a kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::policies) struct Held {
    pub(in crate::policies) position: u32,
    pub(in crate::policies) kind: usize,
    pub(in crate::policies) first: u32,
    pub(in crate::policies) layers: u32,
}

/// Where chunks can be held.
pub(in crate::policies) trait Rows {
    /// Positions for which there are devices, by kind.
    fn rows(&self) -> &[u32];
    /// What a chunk takes; `None` if it does not fit.
    fn stage(&mut self, held: Held) -> Option<Stage>;
}

/// What chunks take at least, by number of layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Least {
    /// By kind and number of layers less one, ascending.
    times: Vec<Vec<u64>>,
    /// Of `layers` layers together, however they are cut: `layers * of / by`.
    of: u64,
    by: u64,
}

impl Least {
    /// From what passes of each kind take at least through each number of layers; 0 where nothing is known.
    pub(in crate::policies) fn new(bare: &[Vec<u64>], rows: &[u32], positions: u32, layers: u32) -> Self {
        let most = (layers + 1).saturating_sub(positions) as usize;
        let (mut of, mut by) = (u64::MAX, 1u64);
        let mut ascending = |bare: &Vec<u64>, rows: u32| {
            let mut times = bare[..if rows > 0 { most.min(bare.len()) } else { 0 }].to_vec();
            for (layers, time) in (1u64..).zip(&times) {
                if u128::from(*time) * u128::from(by) < u128::from(of) * u128::from(layers) {
                    (of, by) = (*time, layers);
                }
            }
            // Where more layers take less, so do fewer at least.
            for at in (1..times.len()).rev() {
                times[at - 1] = times[at - 1].min(times[at]);
            }
            times
        };
        let times = bare.iter().zip(rows).map(|(bare, rows)| ascending(bare, *rows)).collect();
        Self { times, of: if of == u64::MAX { 0 } else { of }, by }
    }

    /// All passes of a microbatch through so many layers.
    pub(in crate::policies) fn of_layers(&self, layers: u32) -> u64 {
        let time = u128::from(layers) * u128::from(self.of) / u128::from(self.by);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// All passes of a microbatch through so many layers on a kind.
    pub(in crate::policies) fn on(&self, kind: usize, layers: u32) -> u64 {
        let times = &self.times[kind];
        times.get((layers as usize).wrapping_sub(1)).or(times.last()).copied().unwrap_or(0)
    }

    /// The most layers that a row of any kind holds with passes under a limit.
    fn most(&self, limit: u64) -> u32 {
        let most = self.times.iter().map(|times| times.partition_point(|time| *time < limit)).max();
        most.map_or(0, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// What the slowest position takes at least, with positions on the rows that there are.
    fn slowest(&self, rows: &[u32], positions: u32, layers: u32) -> u64 {
        let mut times = self.times.iter().flatten().copied().collect::<Vec<_>>();
        times.sort_unstable();
        let holds = |limit: u64| {
            let of = |times: &Vec<u64>| times.partition_point(|time| *time <= limit) as u64;
            let mut each = self.times.iter().map(of).zip(rows).collect::<Vec<_>>();
            each.sort_unstable_by(|a, b| b.cmp(a));
            let (mut left, mut held) = (positions, 0);
            for (layers, rows) in each {
                let taken = left.min(*rows);
                held += u64::from(taken) * layers;
                left -= taken;
            }
            held >= u64::from(layers)
        };
        let at = times.partition_point(|time| !holds(*time));
        times.get(at).copied().unwrap_or(u64::MAX)
    }
}

/// What the bound counts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policies) enum Order {
    OneForwardOneBackward,
    GPipe,
    /// Zero bubble.
    Split,
    /// The slowest position's passes of one microbatch, and nothing else.
    Slowest,
}

/// A pipeline to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Pipeline {
    pub(in crate::policies) order: Order,
    pub(in crate::policies) positions: u32,
    pub(in crate::policies) layers: u32,
    pub(in crate::policies) microbatches: u32,
}

/// One way to hold all layers.
pub(in crate::policies) type Cut = Vec<(Held, Stage)>;

/// What was found: of all cuts none is faster than the bound, which is the limit where none is under it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Found {
    pub(in crate::policies) bound: u64,
    /// Cuts under the limit, the one with the least bound first.
    pub(in crate::policies) cuts: Vec<Cut>,
}

/// The best that can be behind a position's first layer.
#[derive(Clone, Copy, Debug)]
struct Label {
    /// `V` and `S + w` of the module.
    value: u64,
    sum: u64,
    held: Held,
    stage: Stage,
    /// The label behind it, in the state behind it.
    next: usize,
}

/// Labels of a state that are kept; of more, two neighbours become one that is as good as the better of each.
const LABELS: usize = 12;

/// States of a level: by first layer and rows used of each kind, twelve bits each.
type Level = BTreeMap<(u32, u128), Vec<Label>>;

/// Bits of a number of rows, and how many kinds have room.
const BITS: usize = 12;
const KINDS: usize = 128 / BITS;
const MOST_ROWS: u32 = (1 << BITS) - 1;

fn used(rows: u128, kind: usize) -> u32 {
    u32::try_from(rows >> (BITS * kind) & u128::from(MOST_ROWS)).expect("twelve bits")
}

impl Pipeline {
    /// `L` of the module.
    pub(in crate::policies) fn local(&self, position: u32, stage: &Stage, behind: u64) -> u64 {
        let (f, b, m) = (stage.forward, stage.backward, u64::from(self.microbatches));
        let work = m.saturating_mul(f.saturating_add(b));
        let in_flight = u64::from(self.positions - position);
        let gap = |filled: u64, pass: u64| behind.saturating_sub(filled.saturating_mul(pass));
        let wait = match self.order {
            Order::Slowest => return f.saturating_add(b),
            Order::Split => gap(m.min(in_flight) - 1, f).saturating_add(stage.step),
            Order::GPipe => behind,
            Order::OneForwardOneBackward if m > in_flight => gap(in_flight - 1, f) + gap(in_flight - 1, b),
            Order::OneForwardOneBackward => gap(m - 1, f.min(b)),
        };
        work.saturating_add(wait)
    }

    /// What a position adds for those behind it.
    pub(in crate::policies) const fn before(&self, stage: &Stage) -> u64 {
        match self.order {
            Order::Slowest => 0,
            Order::Split => stage.forward,
            Order::GPipe | Order::OneForwardOneBackward => {
                stage.forward.saturating_add(stage.backward).saturating_add(stage.messages)
            }
        }
    }

    /// Whether the step of position 0 follows its passes in the bound.
    const fn steps(&self) -> bool {
        matches!(self.order, Order::GPipe | Order::OneForwardOneBackward)
    }

    /// The bound of one cut.
    pub(in crate::policies) fn bound(&self, cut: &[(Held, Stage)]) -> u64 {
        self.bound_before(cut, (0, 0))
    }

    /// The bound of the first positions of a cut, with `V` and `S + w` of what is behind them, at least.
    pub(in crate::policies) fn bound_before(&self, cut: &[(Held, Stage)], (mut value, mut sum): (u64, u64)) -> u64 {
        for (held, stage) in cut.iter().rev() {
            value = self.local(held.position, stage, sum).max(self.before(stage).saturating_add(value));
            sum = sum.saturating_add(self.way(stage));
        }
        value.saturating_add(cut.first().map_or(0, |(_, stage)| self.step(stage)))
    }

    /// What a position adds to the way of those before it.
    const fn way(&self, stage: &Stage) -> u64 {
        let back = if matches!(self.order, Order::Split) { stage.input } else { stage.backward };
        stage.forward.saturating_add(back).saturating_add(stage.messages)
    }

    const fn step(&self, stage: &Stage) -> u64 {
        if self.steps() { stage.step } else { 0 }
    }

    /// What no cut goes under, without cutting: the slowest position goes through all microbatches, and one goes there and back
    /// before the last position goes through the others.
    ///
    /// With passes of `w` on the slowest position `s` and `W` through all layers, `A_s + S_s >= W - w` and `A_s <= s w`. So
    /// `GPipe` takes `(m-1) w + W`. Under 1F1B with `m > p` the two gaps are `2 S_s - (p-1-s) w` together at least, and `A_s` with
    /// them `2 (W - w) - (p-1) w`, whichever `s` is; beyond `p` microbatches it all grows with `w`.
    pub(in crate::policies) fn least(&self, least: &Least, rows: &[u32]) -> u64 {
        let (m, slowest) = (u64::from(self.microbatches), least.slowest(rows, self.positions, self.layers));
        let all = m.saturating_mul(slowest);
        match self.order {
            Order::Slowest => slowest,
            Order::Split => all,
            Order::GPipe | Order::OneForwardOneBackward => {
                let one = least.times.iter().filter_map(|times| times.first()).min().copied().unwrap_or(0);
                let through = least.of_layers(self.layers);
                let others = through.saturating_sub(slowest);
                let waits = match self.order {
                    Order::GPipe => others,
                    Order::OneForwardOneBackward if self.microbatches > self.positions + 1 => {
                        let filled = u64::from(self.positions.saturating_sub(1)).saturating_mul(slowest);
                        others.saturating_mul(2).saturating_sub(filled)
                    }
                    _ => 0,
                };
                all.saturating_add(waits).max(through.saturating_add((m - 1).saturating_mul(one)))
            }
        }
    }

    /// All cuts into chunks of one layer or more, each on a row of its own, under a limit.
    pub(in crate::policies) fn cut(&self, rows: &mut dyn Rows, least: &Least, limit: u64) -> Found {
        let (p, layers) = (self.positions, self.layers);
        let available = rows.rows().iter().take(KINDS).map(|rows| (*rows).min(MOST_ROWS)).collect::<Vec<_>>();
        let nothing = Found { bound: limit, cuts: Vec::new() };
        if p == 0 || layers < p || available.iter().sum::<u32>() < p {
            return nothing;
        }
        let each = if self.order == Order::Slowest { 1 } else { u64::from(self.microbatches) };
        let most = least.most(limit.div_ceil(each)).max(1);
        // From the last position on; behind it there is nothing.
        let mut levels: Vec<Level> = Vec::with_capacity(p as usize);
        for position in (0..p).rev() {
            let behind = levels.last();
            let mut level = Level::new();
            let firsts = if position == 0 { 0..=0 } else { position..=layers - (p - position) };
            // Positions before and behind hold no more than is fast enough.
            let holds = |first: &u32| {
                u64::from(*first) <= u64::from(position) * u64::from(most)
                    && u64::from(layers - first) <= u64::from(p - position) * u64::from(most)
            };
            for first in firsts.filter(holds) {
                for kind in 0..available.len() {
                    let at = Held { position, kind, first, layers: 0 };
                    self.extend(rows, at, (&available, least, limit), behind, &mut level);
                }
            }
            // Before the first position there is nothing that more than the value could matter to: all of them are ways to cut.
            if position > 0 {
                level.values_mut().for_each(prune);
            }
            levels.push(level);
        }
        let mut ends = Vec::new();
        for (key, labels) in levels.last().into_iter().flatten() {
            for (at, label) in labels.iter().enumerate() {
                ends.push((label.value.saturating_add(self.step(&label.stage)), *key, at));
            }
        }
        ends.sort();
        ends.retain(|(value, ..)| *value < limit);
        let Some((bound, ..)) = ends.first() else { return nothing };
        let cuts = ends.iter().take(CUTS).map(|(_, key, at)| walk(&levels, *key, *at));
        Found { bound: *bound, cuts: cuts.collect() }
    }

    /// Adds the labels of a position that begins with a layer, on a row of a kind, for all numbers of layers.
    fn extend(
        &self,
        rows: &mut dyn Rows,
        at: Held,
        (available, bare, limit): (&[u32], &Least, u64),
        behind: Option<&Level>,
        level: &mut Level,
    ) {
        if available[at.kind] == 0 {
            return;
        }
        let rest = self.layers - at.first;
        let most = if behind.is_none() { rest } else { rest - (self.positions - 1 - at.position) };
        let least = if behind.is_none() { rest } else { 1 };
        // Where the way to a position counts, so do all layers before it.
        let whole = matches!(self.order, Order::GPipe | Order::OneForwardOneBackward);
        let before = if whole { bare.of_layers(at.first) } else { 0 };
        for layers in least..=most {
            let held = Held { layers, ..at };
            // What is too slow by its passes alone need not be priced, nor with more layers.
            let each = if self.order == Order::Slowest { 1 } else { u64::from(self.microbatches) };
            if each.saturating_mul(bare.on(at.kind, layers)).saturating_add(before) >= limit {
                break;
            }
            // With more layers it neither fits nor is faster.
            let Some(stage) = rows.stage(held) else { break };
            if self.local(held.position, &stage, 0) >= limit {
                break;
            }
            let mut add = |rows: u128, (value, sum, next): (u64, u64, usize)| {
                if used(rows, held.kind) >= available[held.kind] {
                    return;
                }
                let rows = rows + (1 << (BITS * held.kind));
                let value = self.local(held.position, &stage, sum).max(self.before(&stage).saturating_add(value));
                if value.saturating_add(before) < limit {
                    let sum = sum.saturating_add(self.way(&stage));
                    let label = Label { value, sum, held, stage, next };
                    level.entry((held.first, rows)).or_default().push(label);
                }
            };
            let Some(behind) = behind else {
                add(0, (0, 0, 0));
                continue;
            };
            let next = held.first + layers;
            for ((_, rows), labels) in behind.range((next, 0)..(next + 1, 0)) {
                for (number, label) in labels.iter().enumerate() {
                    add(*rows, (label.value, label.sum, number));
                }
            }
        }
    }
}

/// Cuts that are shown of one pipeline.
const CUTS: usize = 8;

/// Keeps the labels that no other beats in both criteria, at most so many.
fn prune(labels: &mut Vec<Label>) {
    labels.sort_by_key(|label| (label.value, label.sum));
    let mut least = u64::MAX;
    labels.retain(|label| {
        let better = label.sum < least;
        least = least.min(label.sum);
        better
    });
    while labels.len() > LABELS {
        // The two nearest in value become one, with the value of the first and the sum of the second.
        let nearest = (0..labels.len() - 1).min_by_key(|at| labels[at + 1].value - labels[*at].value).unwrap_or(0);
        let sum = labels[nearest + 1].sum;
        labels[nearest].sum = sum;
        labels.remove(nearest + 1);
    }
}

/// The cut of a label of the first position.
fn walk(levels: &[Level], key: (u32, u128), at: usize) -> Cut {
    let (mut key, mut at) = (key, at);
    let mut cut = Vec::with_capacity(levels.len());
    for level in levels.iter().rev() {
        let label = level[&key][at];
        cut.push((label.held, label.stage));
        key.0 += label.held.layers;
        key.1 -= 1 << (BITS * label.held.kind);
        at = label.next;
    }
    cut
}

//! Prices of passes summed, then the recurrence of the schedule: no program, no events.
//!
//! On plans whose ranks are alike and whose transfers do not share links, the iteration is what a simulation of the
//! program gives, to the nanosecond, for GPipe, 1F1B and interleaved 1F1B; other schedules are run on their grid, which
//! gives the same where streams carry messages in one order. On other plans it is an estimate: the slowest lane of each
//! position sets its pace, and links are never shared.
//!
//! Memory is the walk over the position's passes, as in the program; of boundary activations it counts two of each
//! direction received and one sent, where the program's count depends on times.

use cost::{CostModel, memory};
use ir::counts::Shape;
use ir::grid::{Action, Grid};
use ir::prediction::BasisShare;
use ir::program::{BufferKind, Chunk};
use ir::{
    Bytes, Evaluation, Infeasible, Model, Plan, Prediction, Problem, Schedule, SimDuration, StageId, StageMemory,
    Workload,
};
use rustc_hash::FxHashMap;

use super::Evaluator;
use super::inflight::{Context, contexts};
use super::prepared::{ByBasis, ChunkCost, Key, PARTS, Parts, Prepared, World, index};
use super::recurrence::{Ends, Interleaving, gpipe, one_forward_one_backward};
use super::tail::tail;
use crate::layout::chunks;
use crate::schedules::{self, CellTimes, Order, dry_run, group_size};

/// The closed-form evaluator. Plans of equal degrees and placement share prices, so that all but the first of them take
/// microseconds.
#[derive(Debug)]
pub struct ClosedForm<'a> {
    world: World<'a>,
    prepared: FxHashMap<Key, Prepared>,
    held: FxHashMap<ScheduleKey, Vec<Vec<Context>>>,
    grids: FxHashMap<ScheduleKey, (Grid, Order)>,
}

/// A schedule with its pipeline degree, chunks per position and microbatches.
type ScheduleKey = (Schedule, u32, u32, u32);

/// Entries of a cache that are kept; a cache that is full starts anew.
const KEPT: usize = 4096;
/// Grids that are kept.
const KEPT_GRIDS: usize = 64;

/// Makes room for one more.
fn bound<K, V>(cache: &mut FxHashMap<K, V>, most: usize) {
    if cache.len() >= most {
        cache.clear();
    }
}

impl<'a> ClosedForm<'a> {
    /// For one model and workload on the cost model's cluster.
    #[must_use]
    pub fn new(model: &'a Model, workload: &'a Workload, cost: &'a CostModel) -> Self {
        Self {
            world: World { model, workload, cost },
            prepared: FxHashMap::default(),
            held: FxHashMap::default(),
            grids: FxHashMap::default(),
        }
    }

    /// Ends of passes, and the time that they take on each position.
    fn ends(&mut self, plan: &Plan, chunks: &[Chunk], times: &CellTimes) -> (Ends, Vec<u64>) {
        let (p, v, m) = (plan.pipeline(), plan.chunks_per_stage(), plan.microbatches);
        let regular = match &plan.schedule {
            Schedule::GPipe if v == 1 => Some(gpipe(m, times, true)),
            Schedule::OneForwardOneBackward => {
                let group = if v == 1 { 1 } else { group_size(p, m).expect("a legal plan") };
                let shape = Interleaving { pipeline: p, chunks: v, microbatches: m, group };
                shape.is_regular().then(|| one_forward_one_backward(shape, times, true))
            }
            Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::Explicit(_) => None,
        };
        if let Some(ends) = regular {
            let mut work = vec![0; p as usize];
            for (number, chunk) in chunks.iter().enumerate() {
                work[chunk.stage.index()] += u64::from(m) * (times.forward[number] + times.backward[number]);
            }
            return (ends, work);
        }
        bound(&mut self.grids, KEPT_GRIDS);
        let (grid, order) = self.grids.entry((plan.schedule.clone(), p, v, m)).or_insert_with(|| {
            let grid = schedules::grid(&plan.schedule, p, v, m).expect("a legal plan");
            let order = Order::of(&grid, p * v).expect("a legal plan");
            (grid, order)
        });
        by_grid(grid, order, p * v, times)
    }

    /// Peak memory of each position.
    fn memory(&mut self, plan: &Plan, key: &Key, chunks: &[Chunk], costs: &[ChunkCost]) -> Vec<StageMemory> {
        let order = (plan.schedule.clone(), plan.pipeline(), plan.chunks_per_stage(), plan.microbatches);
        bound(&mut self.held, KEPT);
        let held = self.held.entry(order).or_insert_with(|| contexts(plan));
        let prepared = &self.prepared[key];
        let view = View { world: self.world, prepared, chunks, costs };
        (0u32..).zip(held.iter()).map(|(position, contexts)| view.stage(position, contexts)).collect()
    }
}

impl Evaluator for ClosedForm<'_> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        let world = self.world;
        let reasons = crate::legal(plan, world.model, world.workload, world.cost.cluster());
        if !reasons.is_empty() {
            return Err(Infeasible { reasons, nearest: Vec::new() });
        }
        let key = Key::of(plan);
        bound(&mut self.prepared, KEPT);
        let prepared = self.prepared.entry(key.clone()).or_insert_with(|| Prepared::new(world, plan));
        let chunks = chunks(plan);
        let costs = chunks.iter().map(|chunk| prepared.chunk(world, chunk)).collect::<Vec<_>>();
        let (times, messages) = cell_times(world, plan, prepared, &chunks, &costs);
        if let Some(reason) = too_long(&times, plan.microbatches) {
            return Err(Infeasible { reasons: vec![reason], nearest: Vec::new() });
        }
        let (ends, work) = self.ends(plan, &chunks, &times);
        let prepared = self.prepared.get_mut(&key).expect("inserted above");
        let tail = tail(world, plan, prepared, &chunks, &costs, &ends);
        let mut basis = tail.basis;
        for (sum, each) in basis.iter_mut().zip(messages) {
            *sum += each * u64::from(plan.microbatches);
        }
        let split = matches!(plan.schedule, Schedule::ZeroBubbleH1);
        for cost in &costs {
            let passes = if split { [0, 2, 3].as_slice() } else { &[0, 1] };
            for pass in passes {
                for (sum, each) in basis.iter_mut().zip(cost.passes[*pass].basis) {
                    *sum += each * u64::from(plan.microbatches);
                }
            }
        }
        let memory = self.memory(plan, &key, &chunks, &costs);
        Ok(Prediction {
            iteration: SimDuration::from_nanoseconds(tail.end),
            bubble_rate: Some(bubble_rate(&ends, &work)),
            memory,
            basis: shares(basis),
        })
    }
}

/// Whether any pass or message, or all of them together, would take too long to count.
fn too_long(times: &CellTimes, microbatches: u32) -> Option<Problem> {
    let lists = [
        &times.forward,
        &times.backward,
        &times.backward_input,
        &times.backward_weight,
        &times.forward_message,
        &times.backward_message,
    ];
    cost::too_long(lists.into_iter().flatten().map(|time| (*time, u64::from(microbatches))))
}

/// `1 - work / longest span`: work is the mean of all positions, a span lasts from a position's first pass to its last.
fn bubble_rate(ends: &Ends, work: &[u64]) -> f64 {
    let longest = ends.row.iter().zip(&ends.first_start).map(|(end, start)| end - start).max().unwrap_or(0);
    let mean = work.iter().sum::<u64>() as f64 / work.len().max(1) as f64;
    if longest == 0 { 0.0 } else { 1.0 - mean / longest as f64 }
}

pub(super) fn shares(basis: ByBasis) -> BasisShare {
    let total = basis.iter().sum::<u64>().max(1) as f64;
    let [measured, interpolated, analytic] = basis.map(|time| time as f64 / total);
    BasisShare { measured, interpolated, analytic }
}

/// Times of all passes and messages, and the bases of the messages of one microbatch.
fn cell_times(
    world: World<'_>,
    plan: &Plan,
    prepared: &mut Prepared,
    chunks: &[Chunk],
    costs: &[ChunkCost],
) -> (CellTimes, ByBasis) {
    let of = |action: Action| costs.iter().map(|cost| cost.passes[action as usize].time).collect::<Vec<_>>();
    let mut times = CellTimes {
        forward: of(Action::Forward),
        backward: of(Action::Backward),
        backward_input: of(Action::BackwardInput),
        backward_weight: of(Action::BackwardWeight),
        forward_message: vec![0; chunks.len()],
        backward_message: vec![0; chunks.len()],
    };
    let mut basis = [0; 3];
    for (edge, pair) in chunks.windows(2).enumerate() {
        let (a, b) = (pair[0].stage.raw(), pair[1].stage.raw());
        if a != b {
            let (there, back) = (prepared.message(world, plan, a, b), prepared.message(world, plan, b, a));
            times.forward_message[edge] = there.duration.nanoseconds();
            times.backward_message[edge] = back.duration.nanoseconds();
            basis[index(there.basis)] += there.duration.nanoseconds();
            basis[index(back.basis)] += back.duration.nanoseconds();
        }
    }
    (times, basis)
}

pub(super) fn by_grid(grid: &Grid, order: &Order, chunks: u32, times: &CellTimes) -> (Ends, Vec<u64>) {
    let run = dry_run(grid, chunks, order, times);
    let mut ends = Ends {
        first_start: vec![0; grid.rows.len()],
        row: vec![0; grid.rows.len()],
        chunk: vec![0; chunks as usize],
        last_message: run.last_message,
    };
    let mut work = vec![0; grid.rows.len()];
    for (row, cells) in grid.rows.iter().enumerate() {
        ends.first_start[row] = run.ends[row][0] - times.of(cells[0]);
        for (cell, end) in cells.iter().zip(&run.ends[row]) {
            work[row] += times.of(*cell);
            ends.row[row] = *end;
            if matches!(cell.action, Action::Backward | Action::BackwardWeight) {
                ends.chunk[cell.chunk.index()] = *end;
            }
        }
    }
    (ends, work)
}

/// Sizes of one plan.
struct View<'a> {
    world: World<'a>,
    prepared: &'a Prepared,
    chunks: &'a [Chunk],
    costs: &'a [ChunkCost],
}

impl View<'_> {
    fn stage(&self, position: u32, contexts: &[Context]) -> StageMemory {
        let here = (0u32..).zip(self.chunks).filter(|(_, chunk)| chunk.stage.raw() == position);
        let held = here.map(|(number, _)| (number, self.held_by(number))).collect::<Vec<_>>();
        let total = |parts: &Parts| parts.iter().sum::<i64>();
        let sums = held.iter().map(|(_, [forward, input])| [total(forward), total(input)]).collect::<Vec<_>>();
        let peak_of = |context: &Context| self.costs[context.chunk as usize].passes[context.action as usize].peak;
        let size = |context: &&Context| {
            let before = sums
                .iter()
                .zip(&context.held)
                .map(|([forward, input], count)| i64::from(count[0]) * forward + i64::from(count[1]) * input);
            total(&peak_of(context)) + before.sum::<i64>()
        };
        // The first of equals, as time goes.
        let reached = contexts.iter().rev().max_by_key(size).expect("a position runs passes");
        let mut peak = peak_of(reached);
        for ((_, [forward, input]), count) in held.iter().zip(&reached.held) {
            for (part, sum) in peak.iter_mut().enumerate() {
                *sum += i64::from(count[0]) * forward[part] + i64::from(count[1]) * input[part];
            }
        }
        self.report(position, held.iter().map(|(number, _)| *number), peak, reached)
    }

    /// What one microbatch holds in a chunk after its forward pass, and after its input-gradient pass.
    fn held_by(&self, chunk: u32) -> [Parts; 2] {
        let passes = &self.costs[chunk as usize].passes;
        let forward = passes[Action::Forward as usize].left;
        let input = passes[Action::BackwardInput as usize].left;
        [forward, std::array::from_fn(|part| forward[part] + input[part])]
    }

    fn report(&self, position: u32, held: impl Iterator<Item = u32>, peak: Parts, reached: &Context) -> StageMemory {
        let shape = Shape { model: self.world.model, workload: self.world.workload, layout: &self.prepared.layout };
        let cluster = self.world.cost.cluster();
        let device = self.prepared.smallest(position);
        let kind = cluster.device_kind(cluster.place(device).device_kind);
        let (mut parameters, mut stepped, mut boundaries) = (0, 0, 0);
        let elsewhere = |chunk: u32| self.chunks.get(chunk as usize).is_some_and(|c| c.stage.raw() != position);
        let (mut before, mut after) = (false, false);
        for chunk in held {
            let cost = &self.costs[chunk as usize];
            parameters += cost.parameters;
            stepped += cost.stepped;
            before |= chunk > 0 && elsewhere(chunk - 1);
            after |= elsewhere(chunk + 1);
        }
        // From and to each neighbour: two received, one sent.
        boundaries += 3 * (u64::from(before) + u64::from(after));
        let (weights, gradients, optimizer) = memory::state(shape, parameters, stepped);
        let mut parts = vec![
            (BufferKind::Weights.name(), weights),
            (BufferKind::Gradients.name(), gradients),
            (BufferKind::OptimizerState.name(), optimizer),
            (BufferKind::Communication.name(), self.prepared.message * boundaries),
            (BufferKind::Reserve.name(), memory::reserve(kind)),
        ];
        for (part, bytes) in PARTS.iter().zip(peak) {
            parts.push((part.name(), Bytes::new(u64::try_from(bytes).expect("a peak is not negative"))));
        }
        parts.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let in_flight = reached.held.iter().map(|[forward, input]| forward + input).sum::<u32>()
            + u32::from(reached.action == Action::Forward);
        StageMemory {
            stage: StageId::new(position),
            device,
            capacity: kind.memory,
            peak: parts.iter().map(|(_, bytes)| *bytes).sum(),
            parts,
            moment: moment(reached.action, reached.chunk, in_flight),
        }
    }
}

/// The moment of a peak, in words.
fn moment(action: Action, chunk: u32, in_flight: u32) -> String {
    let pass = match action {
        Action::Forward => "forward",
        Action::Backward => "backward",
        Action::BackwardInput => "backward-input",
        Action::BackwardWeight => "backward-weight",
    };
    let plural = if in_flight == 1 { "" } else { "es" };
    let mut text = String::with_capacity(64);
    for piece in [pass, " pass of chunk "] {
        text.push_str(piece);
    }
    use std::fmt::Write;
    write!(text, "{chunk} with {in_flight} microbatch{plural} in flight").expect("a string takes all");
    text
}

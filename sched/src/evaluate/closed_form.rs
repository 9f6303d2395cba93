//! Prices of passes summed, then the recurrence of the schedule: no program, no events.
//!
//! On plans whose ranks are alike and whose transfers do not share links, the iteration is what a simulation of the
//! program gives, to the nanosecond, for GPipe, 1F1B and interleaved 1F1B; other schedules are run on their grid, which
//! gives the same where streams carry messages in one order. On other plans it is an estimate: the slowest lane of each
//! position sets its pace, and links are never shared.
//!
//! Memory is the walk over the position's passes, as in the program; of boundary activations it counts two of each
//! direction received and one sent, where the program's count depends on times.

use std::borrow::Cow;

use cost::CostModel;
use ir::counts::{Shape, held_parameters};
use ir::grid::{Action, Grid};
use ir::prediction::BasisShare;
use ir::program::Chunk;
use ir::{
    Activity, Backward, DeviceId, DeviceKindId, Evaluation, Expense, Infeasible, Model, Plan, Prediction, Problem,
    Schedule, SimDuration, StageMemory, Workload,
};
use rustc_hash::FxHashMap;

use super::Evaluator;
use super::company::{Passes, Ran, is_runnable};
use super::divided;
use super::inflight::{Context, contexts, shown};
use super::parts::last_passes;
use super::peak::{Sizes, View};
use super::prepared::{ByBasis, ChunkCost, Key, Prepared, World, index};
use super::recurrence::{Ends, Interleaving, by_grid, gpipe, one_forward_one_backward};
use super::relief::Relief;
use super::shared::Shared;
use super::stage::StageCost;
use super::tail::tail;
use crate::layout::chunks;
use crate::lowering::Reductions;
use crate::schedules::{self, CellTimes, Order, group_size};
use crate::shares::alone;
use crate::vocabulary::Event;

/// The closed-form evaluator. Plans of equal degrees and placement share prices, so that all but the first of them take
/// microseconds.
#[derive(Debug)]
pub struct ClosedForm<'a> {
    world: World<'a>,
    shared: Shared,
    /// What was prepared, and its number by key.
    prepared: Vec<Prepared>,
    numbers: FxHashMap<Key, usize>,
    held: FxHashMap<ScheduleKey, Vec<Vec<Context>>>,
    grids: FxHashMap<ScheduleKey, (Grid, Order)>,
}

/// A schedule with its pipeline degree, chunks per position and microbatches.
type ScheduleKey = (Schedule, u32, u32, u32);

/// When passes end, in each case that was asked for, and the time that the first case's take on each position.
pub(super) struct Paced<const N: usize> {
    pub(super) ends: [Ends; N],
    pub(super) work: Vec<u64>,
}

/// Ends of each position's passes, if parameters that are gathered ahead were there, and if messages took nothing besides.
pub(super) struct Without {
    pub(super) gathers: Vec<u64>,
    pub(super) messages: Vec<u64>,
}

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
        Self::with(World { model, workload, cost, relief: Relief::Nothing })
    }

    fn with(world: World<'a>) -> Self {
        Self {
            world,
            shared: Shared::default(),
            prepared: Vec::new(),
            numbers: FxHashMap::default(),
            held: FxHashMap::default(),
            grids: FxHashMap::default(),
        }
    }

    /// The same with a part that costs nothing: what the part would give back. Of such a prediction only the iteration, its
    /// breakdown and memory mean anything.
    #[must_use]
    pub fn relieved(self, relief: Relief) -> Self {
        Self::with(World { relief, ..self.world })
    }

    pub(super) const fn world(&self) -> World<'a> {
        self.world
    }

    /// Prices that plans share, with room for more.
    pub(super) fn shared(&mut self) -> &mut Shared {
        self.make_room();
        &mut self.shared
    }

    /// Makes room for the prices of one more plan.
    pub(super) fn make_room(&mut self) {
        let full = self.shared.is_full();
        if full {
            self.shared = Shared::default();
        }
        if full || self.prepared.len() >= KEPT {
            self.prepared.clear();
            self.numbers.clear();
        }
    }

    /// How a plan's passes go, for the times of each case.
    fn paced<const N: usize>(&mut self, plan: &Plan, chunks: &[Chunk], cases: [&CellTimes; N]) -> Paced<N> {
        let (p, v, m) = (plan.pipeline(), plan.chunks_per_stage(), plan.microbatches);
        let one_pass =
            plan.schedule.backward().passes().iter().map(|action| cases[0].by_action(*action)).collect::<Vec<_>>();
        let mut work = vec![0; p as usize];
        if plan.schedule.backward() != Backward::Mixed {
            for (number, chunk) in chunks.iter().enumerate() {
                work[chunk.stage.index()] += u64::from(m) * one_pass.iter().map(|times| times[number]).sum::<u64>();
            }
        }
        let split = plan.schedule.backward() == Backward::Split;
        let regular = match &plan.schedule {
            Schedule::GPipe if v == 1 => Some(cases.map(|times| gpipe(m, times, true))),
            Schedule::OneForwardOneBackward | Schedule::ZeroBubbleH1 => {
                let group = if v == 1 { 1 } else { group_size(p, m).expect("a legal plan") };
                let shape = Interleaving { pipeline: p, chunks: v, microbatches: m, group, split };
                shape.is_regular().then(|| cases.map(|times| one_forward_one_backward(shape, times, true)))
            }
            Schedule::GPipe
            | Schedule::ZeroBubbleH2
            | Schedule::ZeroBubble(_)
            | Schedule::Vee(_)
            | Schedule::DualPipeV
            | Schedule::Explicit(_) => None,
        };
        if let Some(ends) = regular {
            return Paced { ends, work };
        }
        bound(&mut self.grids, KEPT_GRIDS);
        let (grid, order) = self.grids.entry((plan.schedule.clone(), p, v, m)).or_insert_with(|| {
            let grid = schedules::grid(&plan.schedule, p, v, m).expect("a legal plan");
            let order = Order::of(&grid, p * v).expect("a legal plan");
            (grid, order)
        });
        by_grid(grid, order, p * v, cases)
    }

    /// The same, with what waiting would be left if parameters gathered ahead were there, and if messages took nothing.
    fn pace(&mut self, plan: &Plan, chunks: &[Chunk], times: &CellTimes) -> (Ends, Vec<u64>, Without) {
        // Without waiting there is nothing before a pass but other passes.
        let waits = !self.world.relief.frees(Activity::Bubble);
        let gathers = waits && times.ready.iter().any(|ready| *ready > 0);
        let sends = waits && chunks.len() > 1;
        let mut gathered = times.clone();
        gathered.ready.fill(0);
        let mut sent = gathered.clone();
        sent.forward_message.fill(0);
        sent.backward_message.fill(0);
        match (gathers, sends) {
            (false, false) => {
                let Paced { ends: [ends], work } = self.paced(plan, chunks, [times]);
                let without = Without { gathers: ends.row.clone(), messages: ends.row.clone() };
                (ends, work, without)
            }
            (true, false) => {
                let Paced { ends: [ends, gathered], work } = self.paced(plan, chunks, [times, &gathered]);
                (ends, work, Without { gathers: gathered.row.clone(), messages: gathered.row })
            }
            (false, true) => {
                let Paced { ends: [ends, sent], work } = self.paced(plan, chunks, [times, &sent]);
                let without = Without { gathers: ends.row.clone(), messages: sent.row };
                (ends, work, without)
            }
            (true, true) => {
                let Paced { ends: [ends, gathered, sent], work } = self.paced(plan, chunks, [times, &gathered, &sent]);
                (ends, work, Without { gathers: gathered.row, messages: sent.row })
            }
        }
    }

    /// How often a pass of a chunk runs.
    pub(super) fn runs(plan: &Plan, action: Action, chunk: usize) -> u32 {
        if chunk >= (plan.pipeline() * plan.chunks_per_stage()) as usize {
            // A slice of the vocabulary, whose four passes stand in place of actions.
            return plan.microbatches;
        }
        match &plan.schedule {
            Schedule::Explicit(grid) => {
                let cells = grid.rows.iter().flatten();
                let same = cells.filter(|cell| cell.chunk.index() == chunk && cell.action == action);
                u32::try_from(same.count()).expect("a grid of fewer cells than u32")
            }
            Schedule::DualPipeV => {
                let split = schedules::split_in_dual_pipe_v(plan.pipeline(), chunk);
                match action {
                    Action::Forward => plan.microbatches,
                    Action::Backward => plan.microbatches - split,
                    Action::BackwardInput | Action::BackwardWeight => split,
                }
            }
            _ if plan.schedule.backward().passes().contains(&action) => plan.microbatches,
            _ => 0,
        }
    }

    /// Finds prices and sizes of some replicas of a plan, of none named of all, and says by which number they are known.
    pub(super) fn prepare(&mut self, plan: &Plan, replicas: &[u32]) -> usize {
        let (world, shared, prepared) = (self.world, &mut self.shared, &mut self.prepared);
        *self.numbers.entry(Key::of(plan, replicas)).or_insert_with(|| {
            prepared.push(Prepared::new(shared, world, plan, replicas));
            prepared.len() - 1
        })
    }

    pub(super) fn prepared(&mut self, number: usize) -> (&mut Shared, &mut Prepared) {
        (&mut self.shared, &mut self.prepared[number])
    }

    /// What was prepared, and which microbatches positions hold as they run the passes of a plan.
    pub(super) fn prepared_with_contexts(&mut self, plan: &Plan, number: usize) -> (&Prepared, &[Vec<Context>]) {
        (&self.prepared[number], held_of(&mut self.held, plan))
    }

    /// How the passes go of replicas that have the microbatches of a plan, with the prices of a number.
    pub(super) fn passes<'p>(
        &mut self,
        plan: Cow<'p, Plan>,
        number: usize,
        reductions: &Reductions<'_>,
        chunks: &[Chunk],
    ) -> Result<Passes<'p>, Problem> {
        let world = self.world;
        let layers = crate::vocabulary::layers_of(chunks, plan.sharing.vocabulary, plan.pipeline()).len();
        let (shared, prepared) = self.prepared(number);
        let mut costs = chunks.iter().map(|chunk| prepared.chunk(shared, world, chunk)).collect::<Vec<_>>();
        world.relief.balance(&mut costs[..layers]);
        let (mut times, mut basis) = cell_times(world, &plan, prepared, &chunks[..layers], &costs);
        if let Some(reason) = too_long(&times, plan.microbatches) {
            return Err(reason);
        }
        let mut events = Vec::new();
        let (mut ends, mut work, mut without) = if plan.sharing.vocabulary.is_ends() {
            ahead(world, &plan, (shared, prepared), reductions, chunks, &costs, (&mut times, &mut basis));
            self.pace(&plan, chunks, &times)
        } else {
            events = divided::events(world, prepared, &plan, chunks);
            let times = divided::times(world, &plan, (shared, prepared), &costs);
            basis = times.1;
            divided::pace(world, &plan, &events, &times.0)
        };
        world.relief.ends(&mut ends, &work, chunks);
        let (shared, prepared) = self.prepared(number);
        let (last, longer) = last_passes(world, (shared, prepared), reductions, chunks, (&costs, &mut basis));
        let mut paces = [&mut ends.row, &mut work, &mut without.gathers, &mut without.messages];
        for (position, longer) in longer.iter().enumerate() {
            paces.iter_mut().for_each(|pace| pace[position] += longer);
        }
        for chunk in (0..chunks.len()).filter(|chunk| reductions.ends_alone(*chunk)) {
            ends.chunk[chunk] += longer[chunks[chunk].stage.index()];
        }
        let of_layers = plan
            .schedule
            .backward()
            .passes()
            .iter()
            .flat_map(|action| costs[..layers].iter().map(|cost| cost.passes[*action as usize].basis));
        let of_slices = costs[layers..].iter().flat_map(|cost| cost.passes.map(|pass| pass.basis));
        for each in of_layers.chain(of_slices) {
            for (sum, time) in basis.iter_mut().zip(each) {
                *sum += time * u64::from(plan.microbatches);
            }
        }
        let ran = vec![Ran { costs, plan, less: None }];
        Ok(Passes { ends, work, without, basis, events, last, longer, ran, replicas: 1 })
    }

    /// Peak memory of each position: of replicas with unequal shares the one with the least left.
    fn memory(
        &mut self,
        plan: &Plan,
        number: usize,
        chunks: &[Chunk],
        (costs, events): (&[ChunkCost], &[Event]),
    ) -> Vec<StageMemory> {
        let mut sizes = costs.iter().map(|cost| cost.sizes).collect::<Vec<_>>();
        self.in_buckets(plan, number, chunks, &mut sizes);
        let sizes = &sizes;
        if plan.shares.are_equal() {
            return self.memory_of(plan, number, chunks, sizes, events);
        }
        let mut worst: Vec<StageMemory> = Vec::new();
        let left = |stage: &StageMemory| i128::from(stage.capacity.get()) - i128::from(stage.peak.get());
        for (replicas, held) in shares(plan) {
            let number = self.prepare(plan, &replicas);
            let events = self.events(&held, number, chunks);
            let found = self.memory_of(&held, number, chunks, sizes, &events);
            if worst.is_empty() {
                worst = found;
                continue;
            }
            for (worst, stage) in worst.iter_mut().zip(found) {
                if left(&stage) < left(worst) {
                    *worst = stage;
                }
            }
        }
        worst
    }

    /// With one microbatch the last pass, which may leave gradients in buckets, is the only one that adds to them.
    fn in_buckets(&mut self, plan: &Plan, number: usize, chunks: &[Chunk], sizes: &mut [Sizes]) {
        if plan.microbatches > 1 || !plan.overlap_gradients {
            return;
        }
        let world = self.world;
        let layout = crate::layout::layout(plan);
        let reductions = Reductions::new(world.model, world.workload, &layout, plan, chunks);
        let (shared, prepared) = self.prepared(number);
        for (number, (chunk, sizes)) in chunks.iter().zip(sizes).enumerate() {
            let layout = prepared.layout_at(chunk.stage.raw());
            let shape = Shape { model: world.model, workload: world.workload, layout };
            let held = held_parameters(shape, chunk, chunk.all_units());
            if let Some(least) = reductions.bucket_of_passes().filter(|_| reductions.is_by_part(number, held)) {
                sizes.passes = prepared.sizes_in_buckets(shared, world, chunk, least);
            }
        }
    }

    fn events(&self, plan: &Plan, number: usize, chunks: &[Chunk]) -> Vec<Event> {
        if plan.sharing.vocabulary.is_ends() {
            return Vec::new();
        }
        divided::events(self.world, &self.prepared[number], plan, chunks)
    }

    fn memory_of(
        &mut self,
        plan: &Plan,
        number: usize,
        chunks: &[Chunk],
        sizes: &[Sizes],
        events: &[Event],
    ) -> Vec<StageMemory> {
        let prepared = &self.prepared[number];
        let view = View { world: self.world, prepared, chunks, sizes };
        if !events.is_empty() {
            return divided::memory(&view, plan, events);
        }
        let held = held_of(&mut self.held, plan);
        (0u32..).zip(held.iter()).map(|(position, contexts)| view.stage(position, contexts)).collect()
    }

    /// How far the worst position of replicas that have the microbatches of a plan is over its memory.
    pub(super) fn excess_of(&mut self, plan: &Plan, number: usize, chunks: &[Chunk]) -> Option<f64> {
        let world = self.world;
        let (shared, prepared) = self.prepared(number);
        let mut sizes = chunks.iter().map(|chunk| prepared.sizes(shared, world, chunk)).collect::<Vec<_>>();
        self.in_buckets(plan, number, chunks, &mut sizes);
        let sizes = &sizes;
        let events = self.events(plan, number, chunks);
        let view = View { world, prepared: &self.prepared[number], chunks, sizes };
        if !events.is_empty() {
            let excess = |stage: &StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64 - 1.0;
            let worst = divided::memory(&view, plan, &events).iter().map(excess).fold(0.0, f64::max);
            return (worst > 0.0).then_some(worst);
        }
        view.excess(held_of(&mut self.held, plan))
    }
}

/// Replicas of unequal shares by what they take: which they are, and the plan with as many microbatches in flight as they
/// hold; where the schedule does not exist for so few, those of the one that has the most.
fn shares(plan: &Plan) -> Vec<(Vec<u32>, Plan)> {
    let mut found: Vec<(u32, Vec<u32>)> = Vec::new();
    for replica in 0..plan.data {
        let share = plan.share(replica);
        match found.iter_mut().find(|(other, _)| *other == share) {
            Some((_, replicas)) => replicas.push(replica),
            None => found.push((share, vec![replica])),
        }
    }
    let held = |share: u32| alone(plan, if is_runnable(plan, share) { share } else { plan.microbatches });
    found.into_iter().map(|(share, replicas)| (replicas, held(share))).collect()
}

impl Evaluator for ClosedForm<'_> {
    fn floor(&mut self, plan: &Plan) -> Option<SimDuration> {
        super::floor::floor(self, plan)
    }

    fn least(&mut self, plan: &Plan) -> Expense {
        super::floor::least(self, plan)
    }

    fn rate(&self, device: DeviceId) -> Expense {
        self.world.cost.least_rate(device)
    }

    fn excess(&mut self, plan: &Plan) -> Option<f64> {
        let world = self.world;
        if !crate::legal(plan, world.model, world.workload, world.cost.cluster()).is_empty() {
            return None;
        }
        self.make_room();
        let chunks = chunks(plan);
        if plan.shares.are_equal() {
            let number = self.prepare(plan, &[]);
            return self.excess_of(plan, number, &chunks);
        }
        let each = shares(plan).into_iter().filter_map(|(replicas, held)| {
            let number = self.prepare(plan, &replicas);
            self.excess_of(&held, number, &chunks)
        });
        each.reduce(f64::max)
    }

    fn stage(&mut self, plan: &Plan, chunk: &Chunk) -> Option<StageCost> {
        super::stage::stage(self, plan, chunk)
    }

    fn share_out(&mut self, plan: &Plan) -> Option<Plan> {
        self.shared_out(plan)
    }

    fn compute(&mut self, plan: &Plan, chunk: &Chunk, kind: DeviceKindId) -> Option<u64> {
        super::floor::compute(self, plan, chunk, kind)
    }

    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        let world = self.world;
        let reasons = crate::legal(plan, world.model, world.workload, world.cost.cluster());
        if !reasons.is_empty() {
            return Err(Infeasible { reasons, nearest: Vec::new() });
        }
        self.make_room();
        let chunks = chunks(plan);
        let layout = crate::layout::layout(plan);
        let reductions = Reductions::new(world.model, world.workload, &layout, plan, &chunks);
        let number = self.prepare(plan, &[]);
        let shape = Shape { model: world.model, workload: world.workload, layout: &layout };
        let reasons = world.cost.unprofiled(shape, &self.prepared(number).1.kinds());
        if !reasons.is_empty() {
            return Err(Infeasible { reasons, nearest: Vec::new() });
        }
        let everybody = match self.everybody(plan, number, &reductions, &chunks) {
            Ok(everybody) => everybody,
            Err(reason) => return Err(Infeasible { reasons: vec![reason], nearest: Vec::new() }),
        };
        let (costs, ends) = (everybody.costs(), everybody.ends());
        let (shared, prepared) = self.prepared(number);
        let kinds = prepared.kinds();
        let tail = tail(world, plan, (shared, prepared), &reductions, &chunks, (costs, everybody.last_passes()), ends);
        let last = everybody.last(tail.position);
        let mut basis = last.basis;
        for (sum, time) in basis.iter_mut().zip(tail.basis) {
            *sum += time;
        }
        let mut spent = last.before(&chunks, tail.position);
        spent.add_times(&tail.spent, 1);
        let input = if world.relief.frees(Activity::Stall) { 0 } else { super::input_time(world.workload, &layout) };
        let end = tail.end.max(input);
        spent.add(Activity::Stall, end - tail.end);
        let iteration = SimDuration::from_nanoseconds(end);
        let prediction = Prediction {
            iteration,
            interval: None,
            breakdown: spent.breakdown(),
            bubble_rate: Some(everybody.bubble_rate(&layout)),
            memory: self.memory(plan, number, &chunks, (costs, everybody.events())),
            basis: basis_shares(basis),
            at_risk: spent.at_risk(),
            expense: world.cost.expense(&plan.placement, iteration, &everybody.work(&layout)),
        };
        Ok(super::with_interval(world.cost, &kinds, prediction))
    }
}

/// Which microbatches positions hold as they run the passes of a plan, from the cache.
fn held_of<'c>(cache: &'c mut FxHashMap<ScheduleKey, Vec<Vec<Context>>>, plan: &Plan) -> &'c [Vec<Context>] {
    bound(cache, KEPT);
    let order = (plan.schedule.clone(), plan.pipeline(), plan.chunks_per_stage(), shown(plan));
    cache.entry(order).or_insert_with(|| contexts(plan))
}

/// With parameters gathered ahead: when those of each chunk are there.
fn ahead(
    world: World<'_>,
    plan: &Plan,
    (shared, prepared): (&mut Shared, &mut Prepared),
    reductions: &Reductions<'_>,
    chunks: &[Chunk],
    costs: &[ChunkCost],
    (times, basis): (&mut CellTimes, &mut ByBasis),
) {
    if !plan.sharing.overlap_parameters {
        return;
    }
    let mut now = vec![0; plan.stages.len()];
    for (number, (chunk, cost)) in chunks.iter().zip(costs).enumerate() {
        let now = &mut now[chunk.stage.index()];
        for gather in reductions.parameters(cost.held) {
            let priced = prepared.along(shared, world, gather.axis, chunk.stage.raw(), gather.kind, gather.bytes);
            basis[index(priced.basis)] += priced.duration.nanoseconds();
            *now += priced.duration.nanoseconds();
        }
        times.ready[number] = *now;
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

pub(super) fn basis_shares(basis: ByBasis) -> BasisShare {
    let total = basis.iter().sum::<u64>().max(1) as f64;
    let [measured, interpolated, analytic, assumed] = basis.map(|time| time as f64 / total);
    BasisShare { measured, interpolated, analytic, assumed }
}

/// Times of all passes and messages, and the bases of the messages.
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
        ready: vec![0; chunks.len()],
    };
    let (mut basis, count) = ([0; 4], u64::from(plan.microbatches));
    for (edge, pair) in chunks.windows(2).enumerate() {
        let (a, b) = (pair[0].stage.raw(), pair[1].stage.raw());
        if a != b {
            let (there, back) = (prepared.message(world, plan, a, b), prepared.message(world, plan, b, a));
            times.forward_message[edge] = there.duration.nanoseconds();
            times.backward_message[edge] = back.duration.nanoseconds();
            basis[index(there.basis)] += there.duration.nanoseconds() * count;
            basis[index(back.basis)] += back.duration.nanoseconds() * count;
        }
    }
    (times, basis)
}

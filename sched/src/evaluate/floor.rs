//! What an iteration cannot go under, in time and in what it costs, from sums of prices alone: no groups, no order of passes, no memory.
//!
//! A position runs its own passes one after the other. Before its first pass, a microbatch has gone forward through every
//! chunk before the position's first; after its last backward pass, its gradient still goes back through them. All of
//! them together then step the optimizer. A pass takes at least the compute of its units.

use ir::program::{Chunk, Pass, UnitRange};
use ir::{Backward, DeviceKindId, Expense, Plan, Recompute, SimDuration};

use super::closed_form::ClosedForm;
use super::relief::Relief;
use super::shared::{PassFloors, Shared};
use crate::layout::{chunks, layout};

/// Forward, whole backward, input-gradient and weight-gradient pass, in nanoseconds.
type Floor = [u64; 4];

/// Whether sums over a plan's chunks make sense: whatever else may be wrong with it, they are those of the model.
fn is_whole(plan: &Plan, layers: u32) -> bool {
    let listed = plan.stages.iter().flat_map(|stage| &stage.layers).map(|layers| u64::from(*layers)).sum::<u64>();
    let degrees = [plan.data, plan.tensor, plan.mesh.context, plan.mesh.expert, plan.mesh.expert_tensor];
    let sizes = [plan.microbatch_size, plan.microbatches, plan.chunks_per_stage()];
    degrees.into_iter().chain(sizes).all(|size| size > 0)
        && plan.shares.fault(plan.data, plan.microbatches).is_none()
        && plan.stages.iter().all(|stage| stage.layers.len() == plan.chunks_per_stage() as usize)
        && listed == u64::from(layers)
}

/// Whether every rank has a device, whose kind is needed.
fn is_placed(plan: &Plan, devices: u64) -> bool {
    if plan.placement.is_empty() {
        return plan.world() <= devices;
    }
    plan.placement.len() as u64 == plan.world() && plan.placement.iter().all(|one| u64::from(one.raw()) < devices)
}

/// What an iteration takes at least.
pub(super) fn floor(closed: &mut ClosedForm<'_>, plan: &Plan) -> Option<SimDuration> {
    floors(closed, plan).map(|(iteration, _)| iteration)
}

/// What it costs at least: all grows with its time and with the work of positions.
pub(super) fn least(closed: &mut ClosedForm<'_>, plan: &Plan) -> Expense {
    // Of unequal shares the first is not everybody's.
    let Some((iteration, work)) = floors(closed, plan).filter(|_| plan.shares.are_equal()) else {
        return Expense::default();
    };
    let wide = layout(plan).per_position();
    let positions = work.into_iter().map(|work| (wide, work)).collect::<Vec<_>>();
    closed.world().cost.expense(&plan.placement, iteration, &positions)
}

/// What an iteration takes at least, and the passes of each position, in nanoseconds.
fn floors(closed: &mut ClosedForm<'_>, plan: &Plan) -> Option<(SimDuration, Vec<u64>)> {
    let world = closed.world();
    let mixed = plan.schedule.backward() == Backward::Mixed || !plan.sharing.vocabulary.is_ends();
    if mixed
        || !is_placed(plan, world.cost.cluster().devices())
        || plan.has_unlike_tensors()
        || world.relief != Relief::Nothing
        || !is_whole(plan, world.model.layers)
    {
        return None;
    }
    let shared = closed.shared();
    let division = shared.division(world, plan, 0);
    if shared.of(division).prices.are_given() {
        return None;
    }
    let layout = layout(plan);
    let chunks = chunks(plan);
    let wide = layout.per_position();
    let cluster = world.cost.cluster();
    // Ranks of a position share its work; the slowest sets the pace, and this is one of them.
    let kind = |position: u32| cluster.place(plan.device(ir::Rank::new(position * wide))).device_kind;
    let patterned = !world.model.variants.pattern.is_empty();
    let split = plan.schedule.backward() == Backward::Split;
    let mut work = vec![0u64; plan.stages.len()];
    let mut fill = vec![0u64; plan.stages.len()];
    let mut before = 0u64;
    for (number, chunk) in chunks.iter().enumerate() {
        let position = chunk.stage.index();
        let [forward, backward, input, weight] =
            pass_floors(shared, division, chunk, kind(chunk.stage.raw()), patterned);
        if number < fill.len() {
            fill[number] = before;
            // Weight gradients at the end of a position may be its last passes: then nothing follows.
            before = before.saturating_add(if split { forward } else { forward.saturating_add(backward) });
        }
        let pass = if split { input.saturating_add(weight) } else { backward };
        let sum = forward.saturating_add(pass).saturating_mul(u64::from(plan.share(0)));
        work[position] = work[position].saturating_add(sum);
    }
    let passes = work.iter().zip(&fill).map(|(work, fill)| work.saturating_add(*fill)).max()?;
    Some((SimDuration::from_nanoseconds(passes), work))
}

/// See [`Evaluator::compute`](super::Evaluator::compute).
pub(super) fn compute(closed: &mut ClosedForm<'_>, plan: &Plan, chunk: &Chunk, kind: DeviceKindId) -> Option<u64> {
    let world = closed.world();
    let mixed = plan.schedule.backward() == Backward::Mixed || !plan.sharing.vocabulary.is_ends();
    if mixed || world.relief != Relief::Nothing {
        return None;
    }
    let shared = closed.shared();
    let division = shared.division(world, plan, chunk.stage.raw());
    if shared.of(division).prices.are_given() {
        return None;
    }
    let patterned = !world.model.variants.pattern.is_empty();
    let [forward, backward, input, weight] = pass_floors(shared, division, chunk, kind, patterned);
    let split = plan.schedule.backward() == Backward::Split;
    Some(forward.saturating_add(if split { input.saturating_add(weight) } else { backward }))
}

/// The compute of each pass of a chunk.
fn pass_floors(shared: &mut Shared, division: usize, chunk: &Chunk, kind: DeviceKindId, patterned: bool) -> Floor {
    let PassFloors { prices, known } = shared.floors(division);
    let first = if patterned { chunk.first_layer } else { 0 };
    let key = (kind, first, chunk.layers, chunk.embedding, chunk.head, chunk.recompute, chunk.recomputed_layers);
    *known.entry(key).or_insert_with(|| {
        let of = |pass: Pass, units: UnitRange| prices.compute(chunk, pass, units, kind).duration.nanoseconds();
        let all = chunk.all_units();
        let start = u32::from(chunk.embedding);
        let again = UnitRange { start, end: start + 4 * chunk.recomputed_layers };
        let recompute =
            if chunk.recompute == Recompute::Full && again.start < again.end { of(Pass::Recompute, again) } else { 0 };
        let [forward, backward, input, weight] =
            [Pass::Forward, Pass::Backward, Pass::BackwardInput, Pass::BackwardWeight].map(|pass| of(pass, all));
        [forward, backward.saturating_add(recompute), input.saturating_add(recompute), weight]
    })
}

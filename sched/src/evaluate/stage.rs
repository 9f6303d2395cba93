//! What one position of a pipeline takes by itself: what a search over cuts asks in thousands.

use ir::grid::Action;
use ir::program::Chunk;
use ir::{Backward, Plan};

use super::closed_form::ClosedForm;
use super::parts::last_pass;
use super::peak::View;
use super::prepared::ByBasis;
use super::relief::Relief;
use crate::lowering::{OverReplicas, Reductions};

/// What a position takes, whatever the others hold. Times in nanoseconds; those of passes are of one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageCost {
    /// The forward pass.
    pub forward: u64,
    /// The backward pass; split into two, both together.
    pub backward: u64,
    /// Of the backward pass, the part for the input's gradient; all of it where it is not split.
    pub input: u64,
    /// The messages to the next position and back; 0 for the last.
    pub messages: u64,
    /// What follows all passes on this position: reductions over replicas, gradient norm, optimizer and parameters that are
    /// gathered.
    pub step: u64,
    /// Whether its peak is within its device's memory.
    pub fits: bool,
}

/// See [`Evaluator::stage`](super::Evaluator::stage).
pub(super) fn stage(closed: &mut ClosedForm<'_>, plan: &Plan, chunk: &Chunk) -> Option<StageCost> {
    let world = closed.world();
    let written = plan.schedule.backward() == Backward::Mixed || !plan.sharing.vocabulary.is_ends();
    let (position, last) = (chunk.stage.raw(), plan.pipeline().checked_sub(1)?);
    let there = if plan.placement.is_empty() { world.cost.cluster().devices() } else { plan.placement.len() as u64 };
    if written || plan.chunks_per_stage() != 1 || world.relief != Relief::Nothing || position > last {
        return None;
    }
    if plan.world() > there || !plan.shares.are_equal() {
        return None;
    }
    closed.make_room();
    let number = closed.prepare(plan, &[]);
    let (shared, prepared) = closed.prepared(number);
    let cost = prepared.chunk(shared, world, chunk);
    let time = |action: Action| cost.passes[action as usize].time;
    let (input, weight) = match plan.schedule.backward() {
        Backward::Split => (time(Action::BackwardInput), time(Action::BackwardWeight)),
        Backward::Whole => (time(Action::Backward), 0),
        Backward::Mixed => return None,
    };
    let mut messages = 0u64;
    if position < last {
        for (from, to) in [(position, position + 1), (position + 1, position)] {
            messages += prepared.message(world, plan, from, to).duration.nanoseconds();
        }
    }
    let steps = prepared.steps(world, position, cost.sizes.stepped, std::iter::once(chunk));
    let mut step = steps.norm.duration.nanoseconds() + steps.optimizer.duration.nanoseconds();
    // Those of the others do not matter to this one.
    let chunks = (0..=last).map(|stage| Chunk { stage: ir::StageId::new(stage), ..*chunk }).collect::<Vec<_>>();
    let layout = crate::layout::layout(plan);
    let reductions = Reductions::new(world.model, world.workload, &layout, plan, &chunks);
    let mut follows = reductions.after_passes(position as usize, cost.held);
    if !plan.sharing.overlap_parameters {
        follows.extend(reductions.parameters(cost.held));
    }
    let of = (position as usize, chunk, cost.held);
    let mut basis = ByBasis::default();
    if let Some((last, longer)) = last_pass(world, (&mut *shared, &mut *prepared), &reductions, of, &mut basis) {
        step += longer + last.beyond();
    }
    for OverReplicas { kind, axis, bytes, .. } in follows {
        step += prepared.along(shared, world, axis, position, kind, bytes).duration.nanoseconds();
    }
    let sizes = vec![cost.sizes; chunks.len()];
    let fits = closed.fits_at(plan, number, position, (&chunks, &sizes));
    let (forward, backward) = (time(Action::Forward), input.saturating_add(weight));
    Some(StageCost { forward, backward, input, messages, step, fits })
}

impl ClosedForm<'_> {
    /// Whether a position's peak is within its memory.
    fn fits_at(
        &mut self,
        plan: &Plan,
        number: usize,
        position: u32,
        (chunks, sizes): (&[Chunk], &[super::peak::Sizes]),
    ) -> bool {
        let world = self.world();
        let (prepared, contexts) = self.prepared_with_contexts(plan, number);
        View { world, prepared, chunks, sizes }.fits(position, &contexts[position as usize])
    }
}

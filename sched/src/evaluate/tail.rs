//! The end of an iteration, from the ends of passes: reductions, norm, optimizer, parameters.
//!
//! What lowering emits, with the same waits: [`crate::lowering`].

use ir::program::{Chunk, CollectiveKind};
use ir::{Activity, Axis, Bytes, Plan};

use super::parts::LastPass;
use super::prepared::{ByBasis, ChunkCost, Prepared, World, index};
use super::recurrence::Ends;
use super::shared::Shared;
use super::spent::{Spent, activity_along};
use crate::lowering::{OverReplicas, Reductions};

/// When everything has ended, and what it took.
pub(super) struct Tail {
    pub(super) end: u64,
    pub(super) basis: ByBasis,
    /// The position whose passes decide the end.
    pub(super) position: usize,
    /// What the time from the end of that position's passes to the end is spent on.
    pub(super) spent: Spent,
}

struct Clock<'a> {
    world: World<'a>,
    plan: &'a Plan,
    shared: &'a mut Shared,
    prepared: &'a mut Prepared,
    basis: ByBasis,
    /// By position: end of its passes and reductions, and of its data stream.
    model: Vec<u64>,
    data: Vec<u64>,
    /// By position: what the time since the end of its passes is spent on.
    spent: Vec<Spent>,
}

/// `ahead` says that parameters were gathered at the beginning of the iteration.
pub(super) fn tail(
    world: World<'_>,
    plan: &Plan,
    (shared, prepared): (&mut Shared, &mut Prepared),
    reductions: &Reductions<'_>,
    chunks: &[Chunk],
    (costs, last): (&[ChunkCost], &[LastPass]),
    ends: &Ends,
) -> Tail {
    let pipeline = prepared.layout.pipeline as usize;
    let mut clock = Clock {
        world,
        plan,
        shared,
        prepared,
        basis: [0; 4],
        model: ends.row.clone(),
        data: vec![0; pipeline],
        spent: vec![Spent::default(); pipeline],
    };
    // Reductions beside passes, in the order of the chunks' last ones.
    let mut early = (0..chunks.len()).filter(|chunk| reductions.is_early(*chunk)).collect::<Vec<_>>();
    early.sort_unstable_by_key(|chunk| (ends.chunk[*chunk], *chunk));
    for chunk in early {
        if let Some(last) = last.iter().find(|last| last.chunk == chunk) {
            let data = &mut clock.data[chunks[chunk].stage.index()];
            for (before, time) in &last.reduced {
                *data = ends.chunk[chunk].saturating_sub(*before).max(*data) + time;
            }
        }
        clock.reduce(reductions, (chunk, &chunks[chunk]), &costs[chunk], ends.chunk[chunk]);
    }
    for chunk in (0..chunks.len()).filter(|chunk| !reductions.is_early(*chunk)) {
        let ready = ends.row[chunks[chunk].stage.index()];
        clock.reduce(reductions, (chunk, &chunks[chunk]), &costs[chunk], ready);
    }
    clock.model_wide(reductions);
    let (end, position, mut spent) = clock.step(reductions, chunks, costs);
    let last = end.max(ends.last_message);
    spent.add(Activity::Pipeline, last - end);
    Tail { end: last, basis: clock.basis, position, spent }
}

impl Clock<'_> {
    fn count(&mut self, priced: cost::Priced) -> u64 {
        self.basis[index(priced.basis)] += priced.duration.nanoseconds();
        priced.duration.nanoseconds()
    }

    fn along(&mut self, position: u32, axis: Axis, kind: CollectiveKind, bytes: Bytes) -> u64 {
        let priced = self.prepared.along(self.shared, self.world, axis, position, kind, bytes);
        self.count(priced)
    }

    fn reduce(&mut self, reductions: &Reductions<'_>, of: (usize, &Chunk), cost: &ChunkCost, ready: u64) {
        let (number, Chunk { stage, .. }) = of;
        for OverReplicas { kind, axis, bytes, .. } in reductions.after_passes(number, cost.held) {
            let time = self.along(stage.raw(), axis, kind, bytes);
            let data = &mut self.data[stage.index()];
            *data = ready.max(*data) + time;
        }
    }

    /// After reductions over replicas: gradients of replicated parameters, then of a tied embedding.
    fn model_wide(&mut self, reductions: &Reductions<'_>) {
        for ((end, data), spent) in self.model.iter_mut().zip(&self.data).zip(&mut self.spent) {
            spent.add(Activity::Data, data.saturating_sub(*end));
            *end = (*end).max(*data);
        }
        if let (Axis::Pipeline, Some(bytes)) = (reductions.replicated_axis(), reductions.replicated_bytes(0)) {
            let time = self.along(0, Axis::Pipeline, CollectiveKind::AllReduce, bytes);
            let arrived = self.model.iter().copied().max().unwrap_or(0);
            for (end, spent) in self.model.iter_mut().zip(&mut self.spent) {
                spent.add(Activity::Bubble, arrived - *end);
                spent.add(Activity::Pipeline, time);
                *end = arrived + time;
            }
            return;
        }
        for position in 0..self.prepared.layout.pipeline {
            if let Some(bytes) = reductions.replicated_bytes(position) {
                let time = self.along(position, Axis::Tensor, CollectiveKind::AllReduce, bytes);
                self.model[position as usize] += time;
                self.spent[position as usize].add(Activity::Tensor, time);
            }
        }
        if let (Some((first, last)), Some(bytes)) = (reductions.embedding(), reductions.tied_bytes()) {
            let priced = self.prepared.over_embedding(self.world, self.plan, (first, last), bytes);
            let time = self.count(priced);
            let arrived = self.model[first as usize].max(self.model[last as usize]);
            for position in [first as usize, last as usize] {
                self.spent[position].add(Activity::Bubble, arrived - self.model[position]);
                self.spent[position].add(Activity::Pipeline, time);
                self.model[position] = arrived + time;
            }
        }
    }

    /// Norm, optimizer and parameters; the end of all, the position whose passes decide it, and what follows them.
    fn step(&mut self, reductions: &Reductions<'_>, chunks: &[Chunk], costs: &[ChunkCost]) -> (u64, usize, Spent) {
        let one_number = Bytes::new(8);
        let pipeline = self.prepared.layout.pipeline;
        let mut stepped = vec![0; pipeline as usize];
        for (chunk, cost) in chunks.iter().zip(costs) {
            stepped[chunk.stage.index()] += cost.sizes.stepped;
        }
        let of = |position: u32| chunks.iter().filter(move |chunk| chunk.stage.raw() == position);
        let mut now = Vec::with_capacity(pipeline as usize);
        for position in 0..pipeline {
            let at = position as usize;
            let steps = self.prepared.steps(self.world, position, stepped[at], of(position));
            let time = self.count(steps.norm);
            self.spent[at].add(Activity::Optimizer, time);
            now.push(self.model[at] + time);
        }
        // The last to arrive decides; before that, nobody waits for anybody.
        let last_of = |now: &[u64]| {
            (0..now.len()).max_by_key(|at| (now[*at], std::cmp::Reverse(*at))).expect("a pipeline has positions")
        };
        let mut decides = last_of(&now);
        let layout = &self.prepared.layout;
        if layout.mesh.context * layout.tensor * pipeline > 1 {
            let time = self.along(0, Axis::Model, CollectiveKind::AllReduce, one_number);
            let (end, mut spent) = (now[decides] + time, self.spent[decides]);
            spent.add(Activity::Optimizer, time);
            now.fill(end);
            self.spent.fill(spent);
        }
        for position in 0..pipeline {
            let at = position as usize;
            let mut spend = |clock: &mut Self, activity, time| {
                now[at] += time;
                clock.spent[at].add(activity, time);
            };
            if let Some(axis) = reductions.norm_axis() {
                let time = self.along(position, axis, CollectiveKind::AllReduce, one_number);
                spend(self, Activity::Optimizer, time);
            }
            let steps = self.prepared.steps(self.world, position, stepped[at], of(position));
            let optimizer = self.count(steps.optimizer);
            spend(self, Activity::Optimizer, optimizer);
            if let Some((out, back)) = steps.copies {
                let time = self.count(out) + back.map_or(0, |back| self.count(back));
                spend(self, Activity::HostCopy, time);
            }
        }
        if !self.plan.sharing.overlap_parameters {
            for (chunk, cost) in chunks.iter().zip(costs) {
                for OverReplicas { kind, axis, bytes, .. } in reductions.parameters(cost.held) {
                    let time = self.along(chunk.stage.raw(), axis, kind, bytes);
                    now[chunk.stage.index()] += time;
                    self.spent[chunk.stage.index()].add(activity_along(axis), time);
                }
            }
        }
        let last = last_of(&now);
        if pipeline == 1 {
            decides = last;
        }
        (now[last], decides, self.spent[last])
    }
}

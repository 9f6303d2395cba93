//! The end of an iteration, from the ends of passes: reductions, norm, optimizer, parameters.
//!
//! What lowering emits, with the same waits: [`crate::lowering`].

use ir::program::{Chunk, CollectiveKind};
use ir::{Bytes, Plan, StageId, ZeroStage};

use super::prepared::{ByBasis, ChunkCost, Prepared, World, index};
use super::recurrence::Ends;
use crate::lowering::Reductions;

/// When everything has ended, and what it took.
pub(super) struct Tail {
    pub(super) end: u64,
    pub(super) basis: ByBasis,
}

struct Clock<'a> {
    world: World<'a>,
    plan: &'a Plan,
    prepared: &'a mut Prepared,
    basis: ByBasis,
    /// By position: end of its passes and model-wide reductions, and of its data stream.
    model: Vec<u64>,
    data: Vec<u64>,
}

pub(super) fn tail(
    world: World<'_>,
    plan: &Plan,
    prepared: &mut Prepared,
    chunks: &[Chunk],
    costs: &[ChunkCost],
    ends: &Ends,
) -> Tail {
    let layout = prepared.layout.clone();
    let reductions = Reductions::new(world.model, world.workload, &layout, plan.overlap_gradients, chunks);
    let pipeline = layout.pipeline;
    let mut clock =
        Clock { world, plan, prepared, basis: [0; 3], model: ends.row.clone(), data: vec![0; pipeline as usize] };
    // Reductions beside later passes, in the order of the chunks' last passes.
    let mut early = (0..chunks.len()).filter(|chunk| reductions.is_early(*chunk)).collect::<Vec<_>>();
    early.sort_unstable_by_key(|chunk| (ends.chunk[*chunk], *chunk));
    for chunk in early {
        clock.reduce(&reductions, chunks[chunk].stage, costs[chunk].parameters, ends.chunk[chunk]);
    }
    clock.model_wide(&reductions, ends);
    for chunk in (0..chunks.len()).filter(|chunk| !reductions.is_early(*chunk)) {
        let position = chunks[chunk].stage;
        clock.reduce(&reductions, position, costs[chunk].parameters, clock.model[position.index()]);
    }
    let end = clock.step(&reductions, chunks, costs);
    Tail { end: end.max(ends.last_message), basis: clock.basis }
}

impl Clock<'_> {
    fn count(&mut self, priced: cost::Priced) -> u64 {
        self.basis[index(priced.basis)] += priced.duration.nanoseconds();
        priced.duration.nanoseconds()
    }

    fn reduce(&mut self, reductions: &Reductions<'_>, position: StageId, parameters: u64, ready: u64) {
        if self.prepared.layout.data < 2 {
            return;
        }
        let kind = match self.prepared.layout.zero {
            ZeroStage::Zero0 => CollectiveKind::AllReduce,
            ZeroStage::Zero1 => CollectiveKind::ReduceScatter,
        };
        let priced = self.prepared.over_replicas(self.world, position.raw(), kind, reductions.data_bytes(parameters).0);
        let time = self.count(priced);
        let data = &mut self.data[position.index()];
        *data = ready.max(*data) + time;
    }

    /// Gradients of replicated parameters, then of a tied embedding.
    fn model_wide(&mut self, reductions: &Reductions<'_>, ends: &Ends) {
        for position in 0..self.prepared.layout.pipeline {
            if let Some(bytes) = reductions.replicated_bytes(position) {
                let priced = self.prepared.over_tensor(self.world, position, bytes);
                self.model[position as usize] = ends.row[position as usize] + self.count(priced);
            }
        }
        if let (Some((first, last)), Some(bytes)) = (reductions.embedding(), reductions.tied_bytes()) {
            let priced = self.prepared.over_embedding(self.world, self.plan, (first, last), bytes);
            let arrived = self.model[first as usize].max(self.model[last as usize]);
            let end = arrived + self.count(priced);
            self.model[first as usize] = end;
            self.model[last as usize] = end;
        }
    }

    /// Norm, optimizer and parameters; the end of all.
    fn step(&mut self, reductions: &Reductions<'_>, chunks: &[Chunk], costs: &[ChunkCost]) -> u64 {
        let layout = self.prepared.layout.clone();
        let sharded = layout.zero == ZeroStage::Zero1 && layout.data > 1;
        let one_number = Bytes::new(8);
        let pipeline = layout.pipeline;
        let mut stepped = vec![0; pipeline as usize];
        for (chunk, cost) in chunks.iter().zip(costs) {
            stepped[chunk.stage.index()] += cost.stepped;
        }
        let mut normed = Vec::with_capacity(pipeline as usize);
        for position in 0..pipeline {
            let at = position as usize;
            let (norm, _) = self.prepared.steps(self.world, position, stepped[at]);
            normed.push(self.model[at].max(self.data[at]) + self.count(norm));
        }
        if layout.tensor * pipeline > 1 {
            let priced = self.prepared.over_model(self.world, one_number);
            let end = normed.iter().copied().max().unwrap_or(0) + self.count(priced);
            normed.fill(end);
        }
        for position in 0..pipeline {
            let at = position as usize;
            if sharded {
                let kind = CollectiveKind::AllReduce;
                let priced = self.prepared.over_replicas(self.world, position, kind, one_number);
                normed[at] += self.count(priced);
            }
            let (_, optimizer) = self.prepared.steps(self.world, position, stepped[at]);
            normed[at] += self.count(optimizer);
        }
        for (chunk, cost) in chunks.iter().zip(costs).filter(|_| sharded) {
            let (kind, bytes) = (CollectiveKind::AllGather, reductions.data_bytes(cost.parameters).1);
            let priced = self.prepared.over_replicas(self.world, chunk.stage.raw(), kind, bytes);
            normed[chunk.stage.index()] += self.count(priced);
        }
        normed.into_iter().max().unwrap_or(0)
    }
}

//! Which gradients are reduced over whom, and when: the same for the program and for the closed form.

use ir::counts::{
    HeldParameters, Shape, chunk_partial_gradient_parameters, gradient_bytes, parameter_bytes, payload_bytes,
};
use ir::grid::{Action, Cell};
use ir::program::{Chunk, CollectiveKind, Layout, Payload};
use ir::{Axis, Backward, Bytes, ChunkId, MicrobatchId, Model, Plan, Schedule, Workload, ZeroStage};

use crate::axes::Sharding;
use crate::schedules::last_of_dual_pipe_v;

/// The reductions of one plan's iteration.
#[derive(Clone, Debug)]
pub(crate) struct Reductions<'a> {
    shape: Shape<'a>,
    plan: &'a Plan,
    chunks: &'a [Chunk],
    sharding: Sharding,
    /// By position: parameters whose gradient each tensor rank has only for its part of the sequence.
    partial: Vec<u64>,
}

/// One collective over replicas at the end (or the beginning) of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverReplicas {
    pub(crate) kind: CollectiveKind,
    pub(crate) axis: Axis,
    /// Whether of experts, else of all others.
    pub(crate) experts: bool,
    pub(crate) bytes: Bytes,
}

impl OverReplicas {
    /// What it moves, as gradients or as parameters of a chunk.
    pub(crate) const fn payload(&self, chunk: ChunkId, gradients: bool) -> Payload {
        match (gradients, self.experts) {
            (true, false) => Payload::Gradients { chunk },
            (true, true) => Payload::ExpertGradients { chunk },
            (false, false) => Payload::Parameters { chunk },
            (false, true) => Payload::ExpertParameters { chunk },
        }
    }

    /// What it moves, as gradients of the bucket of a chunk that begins with a unit.
    pub(crate) const fn of_unit(&self, chunk: ChunkId, unit: u32, microbatch: MicrobatchId) -> Payload {
        Payload::UnitGradients { chunk, unit, experts: self.experts, microbatch }
    }
}

impl<'a> Reductions<'a> {
    pub(crate) fn new(
        model: &'a Model,
        workload: &'a Workload,
        layout: &'a Layout,
        plan: &'a Plan,
        chunks: &'a [Chunk],
    ) -> Self {
        let shape = Shape { model, workload, layout };
        let mut partial = vec![0; layout.pipeline as usize];
        for chunk in chunks.iter().filter(|chunk| layout.tensor_at(chunk.stage.raw()) > 1) {
            let shape = Shape { layout: &layout.at(chunk.stage.raw()), ..shape };
            partial[chunk.stage.index()] += chunk_partial_gradient_parameters(shape, chunk);
        }
        Self { shape, plan, chunks, sharding: Sharding::of(layout), partial }
    }

    /// The positions that must agree on the gradient of a tied embedding: those of the first and last chunk, if they
    /// differ.
    pub(crate) fn embedding(&self) -> Option<(u32, u32)> {
        let (first, last) = (self.chunks.first()?.stage.raw(), self.chunks.last()?.stage.raw());
        if !self.shape.layout.sharing.vocabulary.is_ends() {
            return None;
        }
        (self.shape.model.tied_head && first != last).then_some((first, last))
    }

    /// Whether a chunk's gradients go to the data stream as passes leave them: if the plan overlaps them. What is reduced over
    /// other axes too (gradients of norms that each tensor rank has in part, of a tied embedding) follows at the end.
    pub(crate) fn is_early(&self, chunk: usize) -> bool {
        let slice = !self.shape.layout.sharing.vocabulary.is_ends() && self.chunks[chunk].head;
        self.plan.overlap_gradients && !slice
    }

    /// Whether gradients of a chunk, of which a rank holds `held`, are reduced part by part beside what is left of the last
    /// microbatch's pass, on a stream that no pass waits for. Where replicas take unlike shares, their last microbatches have
    /// unlike numbers, and what is left is reduced when passes have ended.
    ///
    /// * ZeRO-2 and 3: copies of hybrid shards, each part as soon as it is scattered, as FSDP does.
    /// * ZeRO-0 and 1: bucket by bucket, as Megatron-LM does where that is on the critical path (its data-parallel wrapper
    ///   cuts no buckets but on the first chunk of the first position): the chunk's last pass [ends](Self::ends_alone) its
    ///   position's.
    pub(crate) fn is_by_part(&self, chunk: usize, held: HeldParameters) -> bool {
        let layout = self.shape.layout;
        if !self.is_early(chunk) || !layout.sharing.vocabulary.is_ends() || !layout.shares.are_equal() {
            return false;
        }
        match layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => {
                self.ends_alone(chunk) && held.total() > self.bucket() && !self.gradients(held).is_empty()
            }
            ZeroStage::Zero2 | ZeroStage::Zero3 => self.scattered() > 1 && self.sharding.copies > 1,
        }
    }

    /// Parameters of a rank whose gradients make a bucket.
    pub(crate) fn bucket(&self) -> u64 {
        self.shape.layout.sharing.bucket(self.shape.layout.replicas())
    }

    /// The same where passes leave gradients in buckets; `None` where they scatter them.
    pub(crate) fn bucket_of_passes(&self) -> Option<u64> {
        match self.shape.layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => Some(self.bucket()),
            ZeroStage::Zero2 | ZeroStage::Zero3 => None,
        }
    }

    /// Whether the pass that adds to a chunk's gradients last is the last pass of its position, and no pass waits for it:
    /// nothing hides what is reduced afterwards.
    pub(crate) fn ends_alone(&self, chunk: usize) -> bool {
        let one_chunk = self.plan.chunks_per_stage() == 1;
        match &self.plan.schedule {
            Schedule::GPipe | Schedule::OneForwardOneBackward => chunk == 0,
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 | Schedule::ZeroBubble(_) => one_chunk || chunk == 0,
            // The chunk on the way down ends with the weight pass of the last microbatch.
            Schedule::Vee(_) | Schedule::DualPipeV => chunk < self.plan.stages.len(),
            Schedule::Explicit(grid) => {
                let last = grid.rows.iter().filter_map(|row| row.last()).find(|cell| cell.chunk.index() == chunk);
                last.is_some_and(|cell| match cell.action {
                    Action::BackwardWeight => true,
                    Action::Backward => chunk == 0,
                    Action::Forward | Action::BackwardInput => false,
                })
            }
        }
    }

    /// The pass that adds to a chunk's gradients last.
    pub(crate) fn last_weights(&self, chunk: usize) -> Action {
        match &self.plan.schedule {
            Schedule::DualPipeV => last_of_dual_pipe_v(self.plan.pipeline(), chunk),
            Schedule::Explicit(grid) => {
                let of = |cell: &&Cell| {
                    cell.chunk.index() == chunk && matches!(cell.action, Action::Backward | Action::BackwardWeight)
                };
                let last = grid.rows.iter().find_map(|row| row.iter().rev().find(of));
                last.map_or(Action::Backward, |cell| cell.action)
            }
            schedule if schedule.backward() == Backward::Split => Action::BackwardWeight,
            _ => Action::Backward,
        }
    }

    /// The reductions of a bucket's gradients, in order, of which a rank holds `held`.
    pub(crate) fn of_bucket(&self, held: HeldParameters) -> Vec<OverReplicas> {
        self.gradients(held)
    }

    /// The sum over copies of a rank's shard of a part that was scattered as `whole`.
    pub(crate) fn of_scattered(&self, whole: Bytes) -> OverReplicas {
        let bytes = Bytes::new(whole.get() / u64::from(self.sharding.ranks));
        OverReplicas { kind: CollectiveKind::AllReduce, axis: Axis::Replica, experts: false, bytes }
    }

    /// The reductions of a chunk's gradients that are left when its last backward pass has ended.
    pub(crate) fn after_passes(&self, chunk: usize, held: HeldParameters) -> Vec<OverReplicas> {
        match (self.is_by_part(chunk, held), self.shape.layout.zero) {
            (false, _) => self.gradients(held),
            (true, ZeroStage::Zero0 | ZeroStage::Zero1) => Vec::new(),
            (true, ZeroStage::Zero2 | ZeroStage::Zero3) => {
                let mut left = self.gradients(held);
                left.retain(|one| one.axis != Axis::Replica);
                left
            }
        }
    }

    /// Whether only a rank's part of the gradients is left after each pass (ZeRO-2 and 3).
    fn scattered(&self) -> u64 {
        match self.shape.layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => 1,
            ZeroStage::Zero2 | ZeroStage::Zero3 => u64::from(self.sharding.ranks),
        }
    }

    /// The axis over which gradients add up of parameters that all of its ranks hold: the tensor group's, or of the final
    /// norm that every slice of a divided vocabulary has.
    pub(crate) const fn replicated_axis(&self) -> Axis {
        if self.shape.layout.sharing.vocabulary.is_ends() { Axis::Tensor } else { Axis::Pipeline }
    }

    /// Bytes of the gradients that each tensor rank of a position has only for its part of the sequence (norms, under
    /// sequence parallelism), or each slice for its part of the vocabulary (the final norm); `None` where there are none.
    pub(crate) fn replicated_bytes(&self, position: u32) -> Option<Bytes> {
        if !self.shape.layout.sharing.vocabulary.is_ends() {
            let norm = self.shape.model.norm_parameters();
            return (norm > 0).then(|| gradient_bytes(self.shape, norm));
        }
        let held = self.partial[position as usize].div_ceil(self.scattered());
        (held > 0).then(|| gradient_bytes(self.shape, held))
    }

    /// Bytes of the gradient of the tied embedding; `None` where nothing is tied across positions.
    pub(crate) fn tied_bytes(&self) -> Option<Bytes> {
        let (first, _) = self.embedding()?;
        let layout = self.shape.layout.at(first);
        let whole = payload_bytes(Shape { layout: &layout, ..self.shape }, Payload::TiedGradients);
        Some(Bytes::new(whole.get().div_ceil(self.scattered())))
    }

    /// Reductions of a chunk's gradients over replicas, in order (padded where they are divided). Under ZeRO-2 and 3 only
    /// copies of shards are left to be summed.
    fn gradients(&self, held: HeldParameters) -> Vec<OverReplicas> {
        let layout = self.shape.layout;
        let Sharding { ranks, copies, axis } = self.sharding;
        let mut found = Vec::with_capacity(3);
        let mut push = |kind, axis, experts, members: u32, parameters: u64| {
            if members > 1 && parameters > 0 {
                found.push(OverReplicas { kind, axis, experts, bytes: gradient_bytes(self.shape, parameters) });
            }
        };
        let padded = held.common.next_multiple_of(u64::from(ranks));
        if layout.zero == ZeroStage::Zero1 {
            push(CollectiveKind::ReduceScatter, axis, false, ranks, padded);
        }
        push(CollectiveKind::AllReduce, Axis::Replica, false, copies, padded / u64::from(ranks));
        let copies = layout.expert_replicas();
        match layout.zero {
            ZeroStage::Zero0 => push(CollectiveKind::AllReduce, Axis::ExpertReplica, true, copies, held.experts),
            ZeroStage::Zero1 => {
                let padded = held.experts.next_multiple_of(u64::from(copies));
                push(CollectiveKind::ReduceScatter, Axis::ExpertReplica, true, copies, padded);
            }
            ZeroStage::Zero2 | ZeroStage::Zero3 => {}
        }
        found
    }

    /// Gathers of a chunk's stepped parameters, in order: under ZeRO-1 and 2.
    pub(crate) fn parameters(&self, held: HeldParameters) -> Vec<OverReplicas> {
        let layout = self.shape.layout;
        match layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero3 => return Vec::new(),
            ZeroStage::Zero1 | ZeroStage::Zero2 => {}
        }
        let parts = [
            (self.sharding.axis, false, self.sharding.ranks, held.common),
            (Axis::ExpertReplica, true, layout.expert_shard(), held.experts),
        ];
        let divided = parts.into_iter().filter(|(.., ranks, held)| *ranks > 1 && *held > 0);
        divided
            .map(|(axis, experts, ranks, held)| OverReplicas {
                kind: CollectiveKind::AllGather,
                axis,
                experts,
                bytes: parameter_bytes(self.shape, held.next_multiple_of(u64::from(ranks))),
            })
            .collect()
    }

    /// The axis over which squared norms of shards add up; see [`Sharding::norm_axis`].
    pub(crate) fn norm_axis(&self) -> Option<Axis> {
        self.sharding.norm_axis(self.shape.layout, self.shape.model.variants.experts.is_some())
    }
}

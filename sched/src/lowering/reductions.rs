//! Which gradients are reduced over whom, and when: the same for the program and for the closed form.

use ir::counts::{
    HeldParameters, Shape, chunk_partial_gradient_parameters, gradient_bytes, parameter_bytes, payload_bytes,
};
use ir::program::{Chunk, CollectiveKind, Layout, Payload};
use ir::{Axis, Bytes, ChunkId, Model, Workload, ZeroStage};

use crate::axes::Sharding;

/// The reductions of one plan's iteration.
#[derive(Clone, Debug)]
pub(crate) struct Reductions<'a> {
    shape: Shape<'a>,
    overlap: bool,
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
}

impl<'a> Reductions<'a> {
    pub(crate) fn new(
        model: &'a Model,
        workload: &'a Workload,
        layout: &'a Layout,
        overlap: bool,
        chunks: &'a [Chunk],
    ) -> Self {
        let shape = Shape { model, workload, layout };
        let mut partial = vec![0; layout.pipeline as usize];
        if layout.tensor > 1 {
            for chunk in chunks {
                partial[chunk.stage.index()] += chunk_partial_gradient_parameters(shape, chunk);
            }
        }
        Self { shape, overlap, chunks, sharding: Sharding::of(layout), partial }
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

    /// Whether a chunk's gradients go to the data stream right after its last weight-gradient pass: if the plan overlaps
    /// them and nothing of them must be reduced otherwise before.
    pub(crate) fn is_early(&self, chunk: usize) -> bool {
        let chunk = &self.chunks[chunk];
        if !self.shape.layout.sharing.vocabulary.is_ends() {
            return self.overlap && !chunk.head;
        }
        let tied = self.embedding().is_some() && (chunk.embedding || chunk.head);
        self.overlap && !tied && self.replicated_bytes(chunk.stage.raw()).is_none()
    }

    /// Whether copies of a chunk's shards are summed part by part, each as soon as the last microbatch's gradients of the part
    /// are scattered: with hybrid sharding, beside what is left of the backward pass, as FSDP does on a stream of its own.
    /// Where replicas take unlike shares, their last microbatches have unlike numbers, and copies are summed at the end.
    pub(crate) fn is_by_part(&self, chunk: usize) -> bool {
        let layout = self.shape.layout;
        let divided = layout.sharing.vocabulary.is_ends() && layout.shares.are_equal() && self.scattered() > 1;
        divided && self.sharding.copies > 1 && self.is_early(chunk)
    }

    /// Bytes of a rank's shard of a part whose gradients are scattered as `whole`.
    pub(crate) fn shard_of(&self, whole: Bytes) -> Bytes {
        Bytes::new(whole.get() / u64::from(self.sharding.ranks))
    }

    /// The reductions of a chunk's gradients that are left when its last backward pass has ended.
    pub(crate) fn after_passes(&self, chunk: usize, held: HeldParameters) -> Vec<OverReplicas> {
        let mut left = self.gradients(held);
        if self.is_by_part(chunk) {
            left.retain(|one| one.axis != Axis::Replica);
        }
        left
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
        let whole = self.embedding().map(|_| payload_bytes(self.shape, Payload::TiedGradients))?;
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

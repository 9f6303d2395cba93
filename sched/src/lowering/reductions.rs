//! Which gradients are reduced over whom, and when: the same for the program and for the closed form.

use cost::memory;
use ir::counts::{Shape, gradient_bytes, parameter_bytes, partial_gradient_parameters, payload_bytes};
use ir::program::{Chunk, Layout, Payload, Unit};
use ir::{Bytes, Model, Workload, ZeroStage};

/// The reductions of one plan's iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reductions<'a> {
    shape: Shape<'a>,
    overlap: bool,
    chunks: &'a [Chunk],
}

impl<'a> Reductions<'a> {
    pub(crate) const fn new(
        model: &'a Model,
        workload: &'a Workload,
        layout: &'a Layout,
        overlap: bool,
        chunks: &'a [Chunk],
    ) -> Self {
        Self { shape: Shape { model, workload, layout }, overlap, chunks }
    }

    /// The positions that must agree on the gradient of a tied embedding: those of the first and last chunk, if they
    /// differ.
    pub(crate) fn embedding(self) -> Option<(u32, u32)> {
        let (first, last) = (self.chunks.first()?.stage.raw(), self.chunks.last()?.stage.raw());
        (self.shape.model.tied_head && first != last).then_some((first, last))
    }

    /// Whether a chunk's gradients go to the data stream right after its last weight-gradient pass: if the plan overlaps
    /// them and nothing of them must be reduced otherwise before.
    pub(crate) fn is_early(self, chunk: usize) -> bool {
        let chunk = &self.chunks[chunk];
        let tied = self.embedding().is_some() && (chunk.embedding || chunk.head);
        self.overlap && !tied && self.replicated_bytes(chunk.stage.raw()).is_none()
    }

    /// Bytes of the gradients that each tensor rank of a position has only for its part of the sequence (norms, under
    /// sequence parallelism); `None` where there are none.
    pub(crate) fn replicated_bytes(self, position: u32) -> Option<Bytes> {
        if !self.shape.layout.sequence_parallel || self.shape.layout.tensor < 2 {
            return None;
        }
        let one = |unit| partial_gradient_parameters(self.shape, unit);
        let norms = |chunk: &Chunk| {
            let layer = one(Unit::AttentionNorm(0)) + one(Unit::MlpNorm(0));
            u64::from(chunk.layers) * layer + if chunk.head { one(Unit::FinalNorm) } else { 0 }
        };
        let held = self.chunks.iter().filter(|chunk| chunk.stage.raw() == position).map(norms).sum::<u64>();
        (held > 0).then(|| gradient_bytes(held))
    }

    /// Bytes of the gradient of the tied embedding; `None` where nothing is tied across positions.
    pub(crate) fn tied_bytes(self) -> Option<Bytes> {
        self.embedding().map(|_| payload_bytes(self.shape, Payload::TiedGradients))
    }

    /// Bytes of a chunk's gradients and of its weights as collectives over replicas move them (padded under ZeRO-1).
    pub(crate) fn data_bytes(self, chunk: usize) -> (Bytes, Bytes) {
        let held = memory::parameters(self.shape, &self.chunks[chunk]);
        let moved = match self.shape.layout.zero {
            ZeroStage::Zero0 => held,
            ZeroStage::Zero1 => held.next_multiple_of(u64::from(self.shape.layout.data)),
        };
        (gradient_bytes(moved), parameter_bytes(self.shape, moved))
    }
}

//! Which gradients are reduced over whom, and when: the same for the program and for the closed form.

use ir::counts::{Shape, gradient_bytes, parameter_bytes, partial_gradient_parameters, payload_bytes};
use ir::program::{Chunk, Layout, Payload, Unit};
use ir::{Bytes, Model, Workload, ZeroStage};

/// The reductions of one plan's iteration.
#[derive(Clone, Debug)]
pub(crate) struct Reductions<'a> {
    shape: Shape<'a>,
    overlap: bool,
    chunks: &'a [Chunk],
    /// By position: parameters whose gradient each tensor rank has only for its part of the sequence.
    partial: Vec<u64>,
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
        if layout.sequence_parallel && layout.tensor > 1 {
            let one = |unit| partial_gradient_parameters(shape, unit);
            let layer = one(Unit::AttentionNorm(0)) + one(Unit::MlpNorm(0));
            for chunk in chunks {
                let last = if chunk.head { one(Unit::FinalNorm) } else { 0 };
                partial[chunk.stage.index()] += u64::from(chunk.layers) * layer + last;
            }
        }
        Self { shape, overlap, chunks, partial }
    }

    /// The positions that must agree on the gradient of a tied embedding: those of the first and last chunk, if they
    /// differ.
    pub(crate) fn embedding(&self) -> Option<(u32, u32)> {
        let (first, last) = (self.chunks.first()?.stage.raw(), self.chunks.last()?.stage.raw());
        (self.shape.model.tied_head && first != last).then_some((first, last))
    }

    /// Whether a chunk's gradients go to the data stream right after its last weight-gradient pass: if the plan overlaps
    /// them and nothing of them must be reduced otherwise before.
    pub(crate) fn is_early(&self, chunk: usize) -> bool {
        let chunk = &self.chunks[chunk];
        let tied = self.embedding().is_some() && (chunk.embedding || chunk.head);
        self.overlap && !tied && self.replicated_bytes(chunk.stage.raw()).is_none()
    }

    /// Bytes of the gradients that each tensor rank of a position has only for its part of the sequence (norms, under
    /// sequence parallelism); `None` where there are none.
    pub(crate) fn replicated_bytes(&self, position: u32) -> Option<Bytes> {
        let held = self.partial[position as usize];
        (held > 0).then(|| gradient_bytes(held))
    }

    /// Bytes of the gradient of the tied embedding; `None` where nothing is tied across positions.
    pub(crate) fn tied_bytes(&self) -> Option<Bytes> {
        self.embedding().map(|_| payload_bytes(self.shape, Payload::TiedGradients))
    }

    /// Bytes of the gradients and of the weights of a chunk of `parameters` parameters, as collectives over replicas
    /// move them (padded under ZeRO-1).
    pub(crate) fn data_bytes(&self, parameters: u64) -> (Bytes, Bytes) {
        let moved = match self.shape.layout.zero {
            ZeroStage::Zero0 => parameters,
            ZeroStage::Zero1 => parameters.next_multiple_of(u64::from(self.shape.layout.data)),
        };
        (gradient_bytes(moved), parameter_bytes(self.shape, moved))
    }
}

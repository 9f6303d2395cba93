//! What a position holds all along, and the end of the iteration: reductions of gradients, their norm, the optimizer.

use cost::memory;
use ir::program::{Access, BufferKind, CollectiveKind, Payload, Role, Stream};
use ir::{Axis, BufferId, Bytes, ChunkId, GroupId, InstructionId, Op, ZeroStage};

use super::Lowering;
use super::emit::Emitter;
use super::groups::axis_index;

/// Resident buffers of a role.
pub(super) struct StateBuffers {
    weights: BufferId,
    gradients: BufferId,
    optimizer: BufferId,
}

/// The place of the reserve among a role's buffers: its bytes depend on the device.
pub(super) const RESERVE: usize = 3;

impl StateBuffers {
    pub(super) fn new(lowering: &Lowering<'_>, position: u32, role: &mut Role) -> Self {
        let shape = lowering.shape();
        let held = || lowering.chunks.iter().filter(|chunk| chunk.stage.raw() == position);
        let parameters = held().map(|chunk| memory::parameters(shape, chunk)).sum();
        let stepped = held().map(|chunk| memory::stepped_parameters(shape, chunk)).sum();
        let (weights, gradients, optimizer) = memory::state(shape, parameters, stepped);
        let buffers = Self {
            weights: role.buffer(BufferKind::Weights, weights, true),
            gradients: role.buffer(BufferKind::Gradients, gradients, true),
            optimizer: role.buffer(BufferKind::OptimizerState, optimizer, true),
        };
        let reserve = role.buffer(BufferKind::Reserve, Bytes::ZERO, true);
        assert!(reserve.index() == RESERVE, "the reserve is the fourth buffer");
        buffers
    }
}

impl Emitter<'_> {
    /// Issues a chunk's reduction right after its last weight-gradient pass, if the plan overlaps it and nothing of the
    /// chunk's gradients must be reduced otherwise before.
    pub(super) fn early_reduction(&mut self, chunk: ChunkId, last: InstructionId) {
        if self.lowering.reductions.is_early(chunk.index()) {
            self.reduction(chunk, &[last]);
        }
    }

    pub(super) fn end_of_iteration(&mut self) {
        let lowering = self.lowering;
        let reductions = &lowering.reductions;
        let (last, _) = self.last.expect("a position runs at least one pass");
        // What the norm waits for: the last instruction of each stream that reduces.
        let mut model = last;
        if let Some(bytes) = reductions.replicated_bytes(self.position) {
            model =
                self.collective(CollectiveKind::AllReduce, Axis::Tensor, Payload::ReplicatedGradients, bytes, &[last]);
        }
        let tied = reductions.embedding().filter(|(a, b)| self.position == *a || self.position == *b);
        if let Some(bytes) = tied.and_then(|_| reductions.tied_bytes()) {
            model = self.collective(CollectiveKind::AllReduce, Axis::Embedding, Payload::TiedGradients, bytes, &[last]);
        }
        let mut weighted = std::mem::take(&mut self.weighted);
        weighted.sort_unstable();
        for (chunk, _) in weighted.iter().filter(|(chunk, _)| !reductions.is_early(chunk.index())) {
            self.reduction(*chunk, &[last, model]);
        }
        let mut waits = vec![last, model];
        waits.extend(self.last_on(Stream::Data));
        waits.sort_unstable();
        waits.dedup();
        let gradients = (self.state.gradients, Access::Use);
        let norm = self.role.push(Op::GradientNorm, Stream::Compute, &waits, &[gradients]);
        let stepped = self.norm_and_step(norm);
        let layout = self.lowering.layout;
        if layout.zero == ZeroStage::Zero1 && layout.data > 1 {
            for (chunk, _) in weighted {
                let (_, bytes) = reductions.data_bytes(lowering.parameters(chunk));
                self.collective(
                    CollectiveKind::AllGather,
                    Axis::Data,
                    Payload::Parameters { chunk },
                    bytes,
                    &[stepped],
                );
            }
        }
    }

    /// The norm over all ranks, then the optimizer.
    fn norm_and_step(&mut self, norm: InstructionId) -> InstructionId {
        let layout = self.lowering.layout;
        let mut last = norm;
        let one_number = Bytes::new(8);
        if layout.tensor * layout.pipeline > 1 {
            last = self.collective(CollectiveKind::AllReduce, Axis::Model, Payload::GradientNorm, one_number, &[last]);
        }
        if layout.zero == ZeroStage::Zero1 && layout.data > 1 {
            last = self.collective(CollectiveKind::AllReduce, Axis::Data, Payload::GradientNorm, one_number, &[last]);
        }
        let accesses = [self.state.weights, self.state.gradients, self.state.optimizer].map(|b| (b, Access::Use));
        self.role.push(Op::Optimizer, Stream::Compute, &[last], &accesses)
    }

    /// The reduction of a chunk's gradients over replicas, if there are several.
    fn reduction(&mut self, chunk: ChunkId, waits: &[InstructionId]) {
        if self.lowering.layout.data < 2 {
            return;
        }
        let kind = match self.lowering.layout.zero {
            ZeroStage::Zero0 => CollectiveKind::AllReduce,
            ZeroStage::Zero1 => CollectiveKind::ReduceScatter,
        };
        let (bytes, _) = self.lowering.reductions.data_bytes(self.lowering.parameters(chunk));
        self.collective(kind, Axis::Data, Payload::Gradients { chunk }, bytes, waits);
    }

    fn collective(
        &mut self,
        kind: CollectiveKind,
        axis: Axis,
        payload: Payload,
        bytes: Bytes,
        waits: &[InstructionId],
    ) -> InstructionId {
        let stream = match payload {
            Payload::Gradients { .. } | Payload::Parameters { .. } => Stream::Data,
            Payload::Activation { .. }
            | Payload::ReplicatedGradients
            | Payload::TiedGradients
            | Payload::GradientNorm => Stream::Tensor,
        };
        let buffer = match payload {
            Payload::Gradients { .. } | Payload::ReplicatedGradients | Payload::TiedGradients => {
                Some(self.state.gradients)
            }
            Payload::Parameters { .. } => Some(self.state.weights),
            Payload::Activation { .. } | Payload::GradientNorm => None,
        };
        let uses = buffer.map(|buffer| (buffer, Access::Use));
        let mut waits = waits.to_vec();
        waits.sort_unstable();
        waits.dedup();
        let op = Op::Collective { kind, group: GroupId::new(axis_index(axis)), payload, bytes };
        self.role.push(op, stream, &waits, uses.as_slice())
    }

    fn last_on(&self, stream: Stream) -> Option<InstructionId> {
        self.role.instructions().iter().rposition(|i| i.stream == stream).map(InstructionId::at)
    }
}

//! What a position holds all along, and the end of the iteration: reductions of gradients, their norm, the optimizer.

use ir::grid::Cell;
use ir::program::{Access, BufferKind, CollectiveKind, HostCopy, Payload, Role, Stream};
use ir::{Axis, BufferId, Bytes, ChunkId, GroupId, InstructionId, Op};

use super::emit::Emitter;
use super::groups::axis_index;
use super::{Lowering, OverReplicas};
use crate::passes::{Moves, PassOp, completes};

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
        let shape = lowering.shape(position);
        let held = || lowering.chunks.iter().filter(|chunk| chunk.stage.raw() == position);
        let [weights, gradients, optimizer] = crate::state::bytes(shape, held());
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
    /// With parameters gathered ahead: those of each chunk held, in order, before anything else. The chunk's first pass
    /// waits for its own.
    pub(super) fn parameters_ahead(&mut self) {
        let lowering = self.lowering;
        if !lowering.plan.sharing.overlap_parameters {
            return;
        }
        let position = self.position;
        let here = lowering.chunks.iter().enumerate().filter(|(_, chunk)| chunk.stage.raw() == position);
        for chunk in here.map(|(chunk, _)| ChunkId::at(chunk)) {
            for gather in lowering.reductions.parameters(lowering.parameters(chunk)) {
                let id = self.over_replicas(gather, gather.payload(chunk, false), &[]);
                self.arriving[chunk.index()].push(id);
            }
        }
    }

    /// Issues a chunk's reduction right after its last weight-gradient pass, if the plan overlaps it; of what is reduced part
    /// by part, the rest.
    pub(super) fn early_reduction(&mut self, chunk: ChunkId) {
        if self.lowering.reductions.is_early(chunk.index()) {
            let last = self.chain();
            self.reduction(chunk, &last);
        }
    }

    pub(super) fn end_of_iteration(&mut self) {
        let lowering = self.lowering;
        let reductions = &lowering.reductions;
        let last = self.chain();
        let mut weighted = std::mem::take(&mut self.weighted);
        weighted.sort_unstable();
        for chunk in weighted.iter().filter(|chunk| !reductions.is_early(chunk.index())) {
            self.reduction(*chunk, &last);
        }
        // What the norm waits for: the last instruction of each stream that reduces.
        let mut waits = last;
        waits.extend(self.last_on(Stream::Data));
        if let Some(bytes) = reductions.replicated_bytes(self.position) {
            let (axis, payload) = (reductions.replicated_axis(), Payload::ReplicatedGradients);
            waits.push(self.collective(CollectiveKind::AllReduce, axis, payload, bytes, &waits));
        }
        let tied = reductions.embedding().filter(|(a, b)| self.position == *a || self.position == *b);
        if let Some(bytes) = tied.and_then(|_| reductions.tied_bytes()) {
            let payload = Payload::TiedGradients;
            waits.push(self.collective(CollectiveKind::AllReduce, Axis::Embedding, payload, bytes, &waits));
        }
        waits.sort_unstable();
        waits.dedup();
        let gradients = (self.state.gradients, Access::Use);
        let norm = self.role.push(Op::GradientNorm, Stream::Compute, &waits, &[gradients]);
        let stepped = self.norm_and_step(norm);
        if !lowering.plan.sharing.overlap_parameters {
            for chunk in weighted {
                for gather in reductions.parameters(lowering.parameters(chunk)) {
                    self.over_replicas(gather, gather.payload(chunk, false), &[stepped]);
                }
            }
        }
    }

    /// The norm over all ranks, then the optimizer; in host memory, with gradients and stepped parameters copied there and
    /// back.
    fn norm_and_step(&mut self, norm: InstructionId) -> InstructionId {
        let (layout, position) = (self.lowering.layout, self.position);
        let mut last = norm;
        let one_number = Bytes::new(8);
        if layout.mesh.context * layout.tensor * layout.pipeline > 1 {
            last = self.collective(CollectiveKind::AllReduce, Axis::Model, Payload::GradientNorm, one_number, &[last]);
        }
        if let Some(axis) = self.lowering.reductions.norm_axis() {
            last = self.collective(CollectiveKind::AllReduce, axis, Payload::GradientNorm, one_number, &[last]);
        }
        let accesses = [self.state.weights, self.state.gradients, self.state.optimizer].map(|b| (b, Access::Use));
        let held = self.lowering.chunks.iter().filter(|chunk| chunk.stage.raw() == position);
        let copies = crate::state::host_copies(self.lowering.shape(position), held);
        let copy = |out, bytes| Op::HostCopy { what: HostCopy::OptimizerState, out, bytes };
        if let Some((out, _)) = copies {
            last = self.role.push(copy(true, out), Stream::Host, &[last], &accesses[1..2]);
        }
        last = self.role.push(Op::Optimizer, Stream::Compute, &[last], &accesses);
        if let Some((_, back)) = copies.filter(|(_, back)| *back > Bytes::ZERO) {
            last = self.role.push(copy(false, back), Stream::Host, &[last], &accesses[..1]);
        }
        last
    }

    /// The reductions of a chunk's gradients over replicas, if there are several.
    fn reduction(&mut self, chunk: ChunkId, waits: &[InstructionId]) {
        for one in self.lowering.reductions.after_passes(chunk.index(), self.lowering.parameters(chunk)) {
            self.over_replicas(one, one.payload(chunk, true), waits);
        }
    }

    /// After an op of a pass: what is reduced of a part whose last gradients it left, where that does not wait for the end.
    /// Under ZeRO-2 and 3 the sum over copies of this rank's shard of what it scattered, else the bucket that it completed.
    pub(super) fn reduction_by_part(&mut self, cell: Cell, op: PassOp, done: InstructionId) {
        let lowering = self.lowering;
        let buckets = &lowering.last[cell.chunk.index()];
        if !self.last_weights || !buckets.by_part {
            return;
        }
        if let Some(bucket) = completes(&op, &buckets.buckets) {
            for one in lowering.reductions.of_bucket(bucket.held) {
                self.over_replicas(one, one.of_unit(cell.chunk, bucket.units.start, cell.microbatch), &[done]);
            }
        }
        let PassOp::Collective { moves: Moves::Gradients { units, experts: false }, bytes, .. } = op else { return };
        let one = lowering.reductions.of_scattered(bytes);
        self.over_replicas(one, one.of_unit(cell.chunk, units.start, cell.microbatch), &[done]);
    }

    fn over_replicas(&mut self, one: OverReplicas, payload: Payload, waits: &[InstructionId]) -> InstructionId {
        self.collective(one.kind, one.axis, payload, one.bytes, waits)
    }

    fn collective(
        &mut self,
        kind: CollectiveKind,
        axis: Axis,
        payload: Payload,
        bytes: Bytes,
        waits: &[InstructionId],
    ) -> InstructionId {
        let (stream, buffer) = match payload {
            Payload::Gradients { .. } | Payload::ExpertGradients { .. } | Payload::UnitGradients { .. } => {
                (Stream::Data, Some(self.state.gradients))
            }
            Payload::Parameters { .. } | Payload::ExpertParameters { .. } => (Stream::Data, Some(self.state.weights)),
            Payload::ReplicatedGradients | Payload::TiedGradients => (Stream::Tensor, Some(self.state.gradients)),
            Payload::GradientNorm => (Stream::Tensor, None),
            Payload::Activation { .. } | Payload::UnitParameters { .. } => {
                panic!("{payload:?} is of a pass")
            }
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

//! Up and down through the units of a chunk.

use cost::memory;
use ir::counts::{HeldParameters, Shape, gradient_bytes, held_parameters, parameter_bytes};
use ir::program::{Chunk, CollectiveKind, Pass, Unit, UnitRange};
use ir::{Axis, Bytes, Recompute, ZeroStage};

use super::around::Surroundings;
use super::parts::{Parts, layer_of, part, part_down};
use super::{Bucket, Copied, Moves, PassOp};
use crate::axes::Sharding;

/// A pass that grows.
pub(super) struct Walk<'a> {
    around: Surroundings<'a>,
    overlap_gradients: bool,
    /// Where instructions of a pass that adds to gradients end, beside where they end anyway.
    buckets: &'a [Bucket],
    sharding: Sharding,
    up: Parts,
    down: Parts,
    ops: Vec<PassOp>,
    /// What will run beside the next body.
    pending: Vec<PassOp>,
    /// The part whose parameters were asked for ahead.
    fetched: Option<UnitRange>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(shape: Shape<'a>, chunk: &'a Chunk, overlap_gradients: bool, buckets: &'a [Bucket]) -> Self {
        let around = Surroundings::new(shape, chunk);
        let layout = shape.layout;
        let sharding = Sharding::of(layout);
        let experts = shape.model.variants.experts.is_some() && layout.expert_shard() > 1;
        let divided = sharding.ranks > 1 || experts;
        let parts = match (layout.sharing.offload_activations, around.divides_layers()) {
            (false, true) => Parts::Halves,
            (true, _) | (false, false) => Parts::Layers,
        };
        let offload = layout.sharing.offload_activations;
        let of = |wanted: bool| if wanted || offload { parts } else { Parts::Whole };
        Self {
            around,
            overlap_gradients,
            buckets,
            sharding,
            up: of(divided && layout.zero == ZeroStage::Zero3),
            down: of(divided && matches!(layout.zero, ZeroStage::Zero2 | ZeroStage::Zero3)),
            ops: Vec::new(),
            pending: Vec::new(),
            fetched: None,
        }
    }

    pub(super) fn finish(mut self) -> Vec<PassOp> {
        self.settle();
        self.ops
    }

    const fn shape(&self) -> Shape<'a> {
        self.around.shape
    }
    const fn chunk(&self) -> &'a Chunk {
        self.around.chunk
    }
    fn gathers(&self) -> bool {
        self.shape().layout.zero == ZeroStage::Zero3 && self.up != Parts::Whole
    }
    fn scatters(&self) -> bool {
        match self.shape().layout.zero {
            ZeroStage::Zero2 | ZeroStage::Zero3 => self.down != Parts::Whole,
            ZeroStage::Zero0 | ZeroStage::Zero1 => false,
        }
    }

    /// Up through `units`: what must be gathered before a unit, the units, what must be reduced after one.
    pub(super) fn forward(&mut self, units: UnitRange, pass: Pass) {
        let in_parts = pass == Pass::Forward && self.up != Parts::Whole;
        let mut start = units.start;
        for position in units.start..units.end {
            if in_parts && part(self.chunk(), self.up, position).start == position {
                self.compute(pass, start, position);
                start = position;
                self.enter_up(position);
            }
            // Nobody reads the output of a recomputed layer.
            let read = pass != Pass::Recompute || position + 1 < units.end;
            let around = self.around.forward(position, pass, read);
            if !around.before.is_empty() || !around.beside.is_empty() {
                self.compute(pass, start, position);
                start = position;
                self.ops.extend(around.before);
                self.pending.extend(around.beside);
            }
            let alone = !self.pending.is_empty() && self.is_bracketed(position);
            if !around.after.is_empty() || !around.later.is_empty() || alone {
                self.compute(pass, start, position + 1);
                start = position + 1;
                self.ops.extend(around.after);
                self.pending.extend(around.later);
            }
        }
        self.compute(pass, start, units.end);
    }

    /// Whether a unit's compute ends with it because something runs beside just this unit.
    fn is_bracketed(&self, position: u32) -> bool {
        let beside = self.pending.iter().any(|op| match op {
            PassOp::Collective { moves: Moves::Activation { unit, .. }, .. } => *unit == position,
            PassOp::Collective { .. } | PassOp::HostCopy { .. } | PassOp::Compute { .. } => false,
        });
        beside && matches!(self.chunk().unit(position), Unit::Attention(_) | Unit::Mlp(_))
    }

    /// Before the first unit of a part on the way up.
    fn enter_up(&mut self, position: u32) {
        if self.gathers() {
            let units = part(self.chunk(), self.up, position);
            self.arrive(units, Pass::Forward);
            let next = (units.end < self.chunk().units()).then(|| part(self.chunk(), self.up, units.end));
            self.fetch(next, Pass::Forward);
        }
        if let Some((below, _)) = position.checked_sub(1).and_then(|below| layer_of(self.chunk(), below))
            && below.end == position
            && let Some(copy) = self.host_copy(below, true)
        {
            self.pending.push(copy);
        }
    }

    /// Down through the whole chunk.
    pub(super) fn backward(&mut self, pass: Pass) {
        let mut end = self.chunk().units();
        for position in (0..self.chunk().units()).rev() {
            let unit = self.chunk().unit(position);
            let units = part_down(self.chunk(), self.down, position);
            if self.down != Parts::Whole && units.end == position + 1 {
                self.compute(pass, position + 1, end);
                end = position + 1;
                self.enter_down(units, pass);
            }
            if let Unit::Mlp(layer) = unit
                && self.chunk().recompute_of(layer) == Recompute::Full
            {
                self.compute(pass, position + 1, end);
                end = position + 1;
                self.forward(UnitRange { start: position - 3, end: position + 1 }, Pass::Recompute);
            }
            let around = self.around.backward(position, pass);
            if !around.before.is_empty() || !around.beside.is_empty() {
                self.compute(pass, position + 1, end);
                end = position + 1;
                self.ops.extend(around.before);
                self.pending.extend(around.beside);
            }
            let alone = !self.pending.is_empty() && self.is_bracketed(position);
            if !around.after.is_empty() || !around.later.is_empty() || alone {
                self.compute(pass, position, end);
                end = position;
                self.ops.extend(around.after);
                self.pending.extend(around.later);
            }
            if self.down != Parts::Whole && units.start == position {
                self.compute(pass, position, end);
                end = position;
                if pass == Pass::Backward {
                    self.leave_down(units);
                }
            }
            if pass == Pass::Backward && self.buckets.iter().any(|bucket| bucket.units.start == position) {
                self.compute(pass, position, end);
                end = position;
            }
        }
        self.compute(pass, 0, end);
    }

    /// Before the last unit of a part on the way down.
    fn enter_down(&mut self, units: UnitRange, pass: Pass) {
        let below = units.start.checked_sub(1).map(|below| part_down(self.chunk(), self.down, below));
        if self.gathers() {
            self.arrive(units, pass);
            self.fetch(below, pass);
        }
        if layer_of(self.chunk(), units.start).is_some()
            && let Some((layer, _)) = below.and_then(|below| layer_of(self.chunk(), below.start))
            && let Some(copy) = self.host_copy(layer, false)
        {
            self.pending.push(copy);
        }
    }

    /// After the first unit of a part on the way down.
    fn leave_down(&mut self, units: UnitRange) {
        if self.scatters() {
            for op in self.scattered(units) {
                if self.overlap_gradients {
                    self.pending.push(op);
                } else {
                    self.ops.push(op);
                }
            }
        }
    }

    /// Weight gradients of the whole chunk, part by part where they are scattered.
    pub(super) fn weights(&mut self) {
        let mut end = self.chunk().units();
        while end > 0 {
            let bucket = || self.buckets.iter().map(|bucket| bucket.units).find(|units| units.end == end);
            let units = match self.scatters() {
                true => part_down(self.chunk(), self.down, end - 1),
                false => bucket().unwrap_or_else(|| self.chunk().all_units()),
            };
            self.compute(Pass::BackwardWeight, units.start, end);
            self.leave_down(units);
            end = units.start;
        }
    }

    /// Parameters of a part that must be there now: gathered in the chain, unless they came beside something before.
    fn arrive(&mut self, units: UnitRange, pass: Pass) {
        if self.fetched.take() == Some(units) {
            if self.pending.iter().any(moves_parameters) {
                self.settle();
            }
        } else {
            let gathers = self.gathered(units, pass);
            self.ops.extend(gathers);
        }
    }

    /// With prefetch, the next part's parameters come beside this one's body.
    fn fetch(&mut self, next: Option<UnitRange>, pass: Pass) {
        self.fetched = next.filter(|_| self.shape().layout.sharing.prefetch);
        if let Some(next) = self.fetched {
            let gathers = self.gathered(next, pass);
            self.pending.extend(gathers);
        }
    }

    fn gathered(&self, units: UnitRange, pass: Pass) -> Vec<PassOp> {
        let (shape, chunk) = (self.shape(), self.chunk());
        let mut counts = held_parameters(shape, chunk, units);
        // A head tied to the embedding of its chunk has no parameters of its own, and needs them again.
        if shape.model.tied_head && chunk.embedding && chunk.head && units.end == chunk.units() {
            counts.common += shape.rank_vocabulary() * u64::from(shape.model.hidden);
        }
        let gathers =
            self.of_part(counts, CollectiveKind::AllGather, |experts| Moves::Parameters { units, experts, pass });
        if !shape.layout.sharing.offload_parameters {
            return gathers;
        }
        let held = |op: &PassOp| match op {
            PassOp::Collective { moves: Moves::Parameters { experts, .. }, bytes, .. } => {
                let ranks = if *experts { shape.layout.expert_shard() } else { self.sharding.ranks };
                bytes.get() / u64::from(ranks)
            }
            PassOp::Collective { .. } | PassOp::HostCopy { .. } | PassOp::Compute { .. } => 0,
        };
        let bytes = Bytes::new(gathers.iter().map(held).sum());
        let copy = PassOp::HostCopy { what: Copied::Parameters, units, out: false, bytes, beside: false };
        let copies = (bytes > Bytes::ZERO).then_some(copy);
        copies.into_iter().chain(gathers).collect()
    }

    /// Gradients of a part; those of a head tied to the embedding of the same chunk go with the embedding's.
    fn scattered(&self, units: UnitRange) -> Vec<PassOp> {
        let counts = held_parameters(self.shape(), self.chunk(), units);
        self.of_part(counts, CollectiveKind::ReduceScatter, |experts| Moves::Gradients { units, experts })
    }

    /// What of a part is divided over ranks, as one collective for each way of dividing.
    fn of_part(&self, counts: HeldParameters, kind: CollectiveKind, moves: impl Fn(bool) -> Moves) -> Vec<PassOp> {
        let shape = self.shape();
        let groups = [
            (counts.common, self.sharding.ranks, self.sharding.axis, false),
            (counts.experts, shape.layout.expert_shard(), Axis::ExpertReplica, true),
        ];
        let divided = groups.into_iter().filter(|(count, ranks, ..)| *count > 0 && *ranks > 1);
        divided
            .map(|(count, ranks, axis, experts)| {
                let padded = count.next_multiple_of(u64::from(ranks));
                let bytes = match kind {
                    CollectiveKind::AllGather => parameter_bytes(shape, padded),
                    CollectiveKind::ReduceScatter | CollectiveKind::AllReduce | CollectiveKind::AllToAll => {
                        gradient_bytes(shape, padded)
                    }
                };
                PassOp::Collective { kind, axis, moves: moves(experts), bytes, beside: false }
            })
            .collect()
    }

    /// The copy of what a layer keeps; `None` if it stays on the device.
    fn host_copy(&self, units: UnitRange, out: bool) -> Option<PassOp> {
        let chunk = self.chunk();
        let last = u32::from(chunk.embedding) + 4 * chunk.layers;
        if !self.shape().layout.sharing.offload_activations || units.end == last {
            return None;
        }
        let bytes = memory::kept(self.shape(), chunk, units);
        (bytes > Bytes::ZERO).then_some(PassOp::HostCopy { what: Copied::Kept, units, out, bytes, beside: false })
    }

    /// What waits for a body joins the chain.
    fn settle(&mut self) {
        self.ops.extend(self.pending.drain(..).map(|op| op.placed(false)));
    }

    /// An instruction; what is pending runs beside it if it holds a body (parameters for later not beside recomputation,
    /// which scattered gradients already fill).
    fn compute(&mut self, pass: Pass, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let body = |unit| matches!(unit, Unit::Embedding | Unit::Attention(_) | Unit::Mlp(_) | Unit::Head);
        if (start..end).any(|position| body(self.chunk().unit(position))) {
            let stays = |op: &PassOp| pass == Pass::Recompute && moves_parameters(op);
            let (kept, now): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending).into_iter().partition(stays);
            self.pending = kept;
            self.ops.extend(now.into_iter().map(|op| op.placed(true)));
        }
        self.ops.push(PassOp::Compute { pass, units: UnitRange { start, end } });
    }
}

/// Whether an op brings parameters of a part.
const fn moves_parameters(op: &PassOp) -> bool {
    matches!(
        op,
        PassOp::Collective { moves: Moves::Parameters { .. }, .. } | PassOp::HostCopy { what: Copied::Parameters, .. }
    )
}

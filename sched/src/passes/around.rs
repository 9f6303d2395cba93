//! What stands around one unit in a pass.

use ir::counts::{Shape, UnitKind, unit_tensor_bytes};
use ir::program::{Chunk, CollectiveKind, Pass, Unit, UnitTensor};
use ir::{Axis, Bytes, ContextMethod, FeedForward, ParallelBranches};

use super::{Moves, PassOp};

/// Ops around the compute of one unit.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// In the chain before it.
    pub(super) before: Vec<PassOp>,
    /// Beside it.
    pub(super) beside: Vec<PassOp>,
    /// In the chain after it.
    pub(super) after: Vec<PassOp>,
    /// Beside the next body.
    pub(super) later: Vec<PassOp>,
}

/// How the tensor group divides the work of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    Whole,
    Tensor,
    Sequence,
}

/// What a unit's surroundings depend on.
pub(super) struct Surroundings<'a> {
    pub(super) shape: Shape<'a>,
    pub(super) chunk: &'a Chunk,
    division: Division,
}

const REDUCED: [UnitTensor; 2] = [UnitTensor::Output, UnitTensor::InputGradient];

impl<'a> Surroundings<'a> {
    pub(super) const fn new(shape: Shape<'a>, chunk: &'a Chunk) -> Self {
        let division = match (shape.layout.tensor, shape.layout.sequence_parallel) {
            (0 | 1, _) => Division::Whole,
            (_, false) => Division::Tensor,
            (_, true) => Division::Sequence,
        };
        Self { shape, chunk, division }
    }

    /// Whether any pass falls apart inside layers.
    pub(super) fn divides_layers(&self) -> bool {
        let mesh = self.shape.layout.mesh;
        let experts = self.shape.model.variants.experts.is_some() && mesh.expert * mesh.expert_tensor > 1;
        self.division != Division::Whole || mesh.context > 1 || experts
    }

    /// Around the forward pass of the unit at a position. `read`: whether anybody reads its output.
    pub(super) fn forward(&self, position: u32, pass: Pass, read: bool) -> Around {
        let mut around = Around::default();
        match self.chunk.unit(position) {
            Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => {}
            Unit::Embedding => self.reduce(&mut around, UnitTensor::Output, position, pass, false),
            Unit::Attention(layer) => {
                self.gather(&mut around, UnitTensor::Input, position, pass, true);
                self.context_forward(&mut around, position, pass);
                // Branches beside each other are added up before they are reduced.
                if self.branches(layer) == ParallelBranches::No {
                    self.reduce(&mut around, UnitTensor::Output, position, pass, true);
                }
            }
            Unit::Mlp(layer) => self.feed_forward(&mut around, layer, position, pass),
            Unit::Head => self.gather(&mut around, UnitTensor::Input, position, pass, false),
            Unit::Loss if self.division == Division::Whole => {}
            Unit::Loss => {
                let sharded = self.shape.workload.recipe.sharded_loss;
                let tensor = if sharded { UnitTensor::LossStatistics } else { UnitTensor::Logits };
                around.before.push(self.op(CollectiveKind::AllGather, Axis::Tensor, tensor, position - 1, pass));
            }
        }
        if !read {
            around.after.clear();
            around.later.clear();
            let makes = |op: &PassOp| !matches!(op, PassOp::Collective { moves: Moves::Activation { tensor, .. }, .. } if REDUCED.contains(tensor));
            around.beside.retain(makes);
        }
        around
    }

    /// Around the backward pass of the unit at a position; `before` is what stands above it.
    pub(super) fn backward(&self, position: u32, pass: Pass) -> Around {
        let mut around = Around::default();
        match self.chunk.unit(position) {
            Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => {}
            Unit::Embedding => self.gather(&mut around, UnitTensor::OutputGradient, position, pass, false),
            Unit::Attention(layer) => {
                let branches = self.branches(layer);
                if branches == ParallelBranches::No {
                    self.gather(&mut around, UnitTensor::OutputGradient, position, pass, true);
                }
                if branches != ParallelBranches::OneNorm {
                    self.gather(&mut around, UnitTensor::Input, position, pass, true);
                }
                self.context_backward(&mut around, position, pass);
                self.reduce(&mut around, UnitTensor::InputGradient, position, pass, true);
            }
            Unit::Mlp(layer) => self.feed_forward(&mut around, layer, position, pass),
            Unit::Head => self.reduce(&mut around, UnitTensor::InputGradient, position, pass, false),
            Unit::Loss => self.gather(&mut around, UnitTensor::Input, position - 1, pass, false),
        }
        around
    }

    fn is_dense(&self, layer: u32) -> bool {
        self.shape.model.layer(layer).feed_forward == FeedForward::Dense
    }
    /// Whether attention and dense feed-forward part of a layer stand beside each other. With norms of their own they share
    /// an output, with one norm an input too.
    fn branches(&self, layer: u32) -> ParallelBranches {
        if self.is_dense(layer) { self.shape.model.variants.parallel_branches } else { ParallelBranches::No }
    }

    /// A dense part, or experts; up or down, as the pass says.
    fn feed_forward(&self, around: &mut Around, layer: u32, position: u32, pass: Pass) {
        let forward = matches!(pass, Pass::Forward | Pass::Recompute);
        let inputs: &[UnitTensor] =
            if forward { &[UnitTensor::Input] } else { &[UnitTensor::OutputGradient, UnitTensor::Input] };
        let output = if forward { UnitTensor::Output } else { UnitTensor::InputGradient };
        let dense = self.is_dense(layer);
        // What both branches read, attention has gathered on the way up, and reduces on the way down.
        let one_norm = self.branches(layer) == ParallelBranches::OneNorm;
        let shared = self.shape.model.variants.experts.is_some_and(|experts| experts.shared_ffn > 0);
        if dense || shared {
            for tensor in inputs.iter().filter(|_| !(one_norm && forward)) {
                self.gather(around, *tensor, position, pass, dense);
            }
        }
        if !dense {
            self.experts(around, position, pass);
        }
        if (dense || shared) && (forward || !one_norm) {
            self.reduce(around, output, position, pass, dense);
        }
    }

    /// Tokens to experts and back.
    fn experts(&self, around: &mut Around, position: u32, pass: Pass) {
        let mesh = self.shape.layout.mesh;
        let overlap = self.shape.layout.sharing.overlap_experts;
        let op = |kind, axis, tensor| self.op(kind, axis, tensor, position, pass);
        if pass == Pass::Forward && self.shape.workload.recipe.balance_loss > 0.0 {
            // The parts of a sequence lie on the ranks of both groups.
            let groups = [(Axis::Tensor, self.division == Division::Sequence), (Axis::Context, mesh.context > 1)];
            let sum = |axis| op(CollectiveKind::AllReduce, axis, UnitTensor::RouterStatistics);
            around.before.extend(groups.into_iter().filter(|(_, divides)| *divides).map(|(axis, _)| sum(axis)));
        }
        if mesh.expert > 1 {
            let dispatch = op(CollectiveKind::AllToAll, Axis::Expert, UnitTensor::Dispatched);
            if overlap { &mut around.beside } else { &mut around.before }.push(dispatch.placed(overlap));
        }
        if mesh.expert_tensor > 1 {
            around.before.push(op(CollectiveKind::AllGather, Axis::ExpertTensor, UnitTensor::ExpertInput));
            around.after.push(op(CollectiveKind::ReduceScatter, Axis::ExpertTensor, UnitTensor::ExpertInput));
        }
        if mesh.expert > 1 {
            let combine = op(CollectiveKind::AllToAll, Axis::Expert, UnitTensor::Combined);
            if overlap { &mut around.later } else { &mut around.after }.push(combine);
        }
    }

    fn context_forward(&self, around: &mut Around, position: u32, pass: Pass) {
        let mesh = self.shape.layout.mesh;
        if mesh.context < 2 {
            return;
        }
        let op = |kind, tensor| self.op(kind, Axis::Context, tensor, position, pass);
        match mesh.context_method {
            ContextMethod::Ring => {
                around.beside.push(op(CollectiveKind::AllGather, UnitTensor::KeysAndValues).placed(true));
            }
            ContextMethod::AllGather => around.before.push(op(CollectiveKind::AllGather, UnitTensor::KeysAndValues)),
            ContextMethod::AllToAll => {
                around.before.push(op(CollectiveKind::AllToAll, UnitTensor::Heads));
                around.after.push(op(CollectiveKind::AllToAll, UnitTensor::Heads));
            }
        }
    }

    fn context_backward(&self, around: &mut Around, position: u32, pass: Pass) {
        let mesh = self.shape.layout.mesh;
        if mesh.context < 2 {
            return;
        }
        let op = |kind, tensor| self.op(kind, Axis::Context, tensor, position, pass);
        let (again, gradients) = (
            op(CollectiveKind::AllGather, UnitTensor::KeysAndValues),
            op(CollectiveKind::ReduceScatter, UnitTensor::KeysAndValues),
        );
        match mesh.context_method {
            ContextMethod::Ring => around.beside.extend([again.placed(true), gradients.placed(true)]),
            ContextMethod::AllGather => {
                around.before.push(again);
                around.after.push(gradients);
            }
            ContextMethod::AllToAll => self.context_forward(around, position, pass),
        }
    }

    /// The input of a body (or its output's gradient) from all parts of the sequence.
    fn gather(&self, around: &mut Around, tensor: UnitTensor, unit: u32, pass: Pass, in_pieces: bool) {
        if self.division == Division::Sequence {
            let op = self.op(CollectiveKind::AllGather, Axis::Tensor, tensor, unit, pass);
            let (exposed, rest) = self.pieces(op, in_pieces);
            around.before.push(exposed);
            around.beside.extend(rest);
        }
    }

    /// The sum of partial outputs (or input gradients) of a body.
    fn reduce(&self, around: &mut Around, tensor: UnitTensor, unit: u32, pass: Pass, in_pieces: bool) {
        let kind = match self.division {
            Division::Whole => return,
            Division::Tensor => CollectiveKind::AllReduce,
            Division::Sequence => CollectiveKind::ReduceScatter,
        };
        let (exposed, rest) = self.pieces(self.op(kind, Axis::Tensor, tensor, unit, pass), in_pieces);
        around.after.push(exposed);
        around.beside.extend(rest);
    }

    /// With overlap, one piece of as many as there are ranks, and the rest beside.
    fn pieces(&self, op: PassOp, in_pieces: bool) -> (PassOp, Option<PassOp>) {
        let PassOp::Collective { kind, axis, moves, bytes, .. } = op else { return (op, None) };
        let layout = self.shape.layout;
        let piece = bytes.get() / u64::from(layout.tensor.max(1));
        if !in_pieces || !layout.sharing.overlap_tensor || self.division != Division::Sequence || piece == 0 {
            return (op, None);
        }
        let of = |bytes: u64, beside| PassOp::Collective { kind, axis, moves, bytes: Bytes::new(bytes), beside };
        (of(piece, false), Some(of(bytes.get() - piece, true)))
    }

    fn op(&self, kind: CollectiveKind, axis: Axis, tensor: UnitTensor, unit: u32, pass: Pass) -> PassOp {
        let of = UnitKind::of(self.shape.model, self.chunk.unit(unit));
        let bytes = unit_tensor_bytes(self.shape, of, tensor);
        PassOp::Collective { kind, axis, moves: Moves::Activation { tensor, unit, pass }, bytes, beside: false }
    }
}

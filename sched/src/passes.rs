//! The ops of one pass of one chunk: which units run together and which collectives stand between them.
//!
//! This is the only enumeration: lowering emits it and the closed-form evaluator sums its prices.
//!
//! The ops of a rank's passes form one chain: each begins when the one before has ended, whichever stream it queues on.
//!
//! * One tensor rank: the whole chunk is one instruction.
//! * Tensor parallelism (Shoeybi et al. 2019): an all-reduce of each partial output on the way up, and of each partial
//!   input gradient on the way down.
//! * With sequence parallelism (Korthikanti et al. 2022): a reduce-scatter in place of each all-reduce, and gathers
//!   of a body's input before it, of its output gradient and again of its input before its backward pass.
//! * Full recomputation: directly before the first backward instruction that touches a layer, its units run forward
//!   again, with their collectives except the last (nobody reads the layer's output); backward instructions end at layer
//!   boundaries, so that one layer's activations are back at a time.

use ir::counts::{Shape, payload_bytes};
use ir::grid::Action;
use ir::program::{Chunk, CollectiveKind, Layout, Pass, Payload, Unit, UnitRange, UnitTensor};
use ir::{Bytes, ChunkId, MicrobatchId, Recompute};

/// One op of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassOp {
    /// Consecutive units.
    Compute {
        /// What is done with them.
        pass: Pass,
        /// Which.
        units: UnitRange,
    },
    /// A collective over the tensor group.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Which tensor of the unit.
        tensor: UnitTensor,
        /// The unit's position in the chunk; the statistics of the loss are those of the head.
        unit: u32,
        /// The pass that needs it.
        pass: Pass,
    },
}

/// The ops of a pass of a chunk, in order.
///
/// # Panics
/// If the chunk is empty.
#[must_use]
pub fn pass_ops(chunk: &Chunk, layout: &Layout, action: Action) -> Vec<PassOp> {
    assert!(chunk.units() > 0, "a pass of an empty chunk");
    let mut walk = Walk { chunk, layout, ops: Vec::new() };
    match action {
        Action::Forward => walk.forward(chunk.all_units(), Pass::Forward),
        Action::Backward => walk.backward(Pass::Backward),
        Action::BackwardInput => walk.backward(Pass::BackwardInput),
        Action::BackwardWeight => {
            walk.ops.push(PassOp::Compute { pass: Pass::BackwardWeight, units: chunk.all_units() });
        }
    }
    walk.ops
}

/// Bytes of the whole buffer of a collective of a pass; the same for every chunk and microbatch.
#[must_use]
pub fn collective_bytes(shape: Shape<'_>, tensor: UnitTensor) -> Bytes {
    let (chunk, microbatch) = (ChunkId::new(0), MicrobatchId::new(0));
    payload_bytes(shape, Payload::Activation { tensor, chunk, unit: 0, microbatch, pass: Pass::Forward })
}

/// How the tensor group divides the work of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Division {
    Whole,
    Tensor,
    Sequence,
}

impl Division {
    const fn of(layout: &Layout) -> Self {
        match (layout.tensor, layout.sequence_parallel) {
            (0 | 1, _) => Self::Whole,
            (_, false) => Self::Tensor,
            (_, true) => Self::Sequence,
        }
    }
}

struct Walk<'a> {
    chunk: &'a Chunk,
    layout: &'a Layout,
    ops: Vec<PassOp>,
}

impl Walk<'_> {
    /// Up through `units`: what must be gathered before a unit, the units, what must be reduced after one.
    fn forward(&mut self, units: UnitRange, pass: Pass) {
        let division = Division::of(self.layout);
        let mut start = units.start;
        for position in units.start..units.end {
            let unit = self.chunk.unit(position);
            let before = match (division, unit) {
                (Division::Sequence, Unit::Attention(_) | Unit::Mlp(_) | Unit::Head) => {
                    Some((CollectiveKind::AllGather, UnitTensor::Input, position))
                }
                (Division::Tensor | Division::Sequence, Unit::Loss) => {
                    Some((CollectiveKind::AllGather, UnitTensor::LossStatistics, position - 1))
                }
                _ => None,
            };
            if let Some((kind, tensor, unit)) = before {
                self.compute(pass, start, position);
                self.ops.push(PassOp::Collective { kind, tensor, unit, pass });
                start = position;
            }
            let partial = matches!(unit, Unit::Embedding | Unit::Attention(_) | Unit::Mlp(_));
            // Nobody reads the output of a recomputed layer.
            let read = pass != Pass::Recompute || position + 1 < units.end;
            let kind = match division {
                Division::Whole => None,
                Division::Tensor => Some(CollectiveKind::AllReduce),
                Division::Sequence => Some(CollectiveKind::ReduceScatter),
            };
            if let Some(kind) = kind.filter(|_| partial && read) {
                self.compute(pass, start, position + 1);
                self.ops.push(PassOp::Collective { kind, tensor: UnitTensor::Output, unit: position, pass });
                start = position + 1;
            }
        }
        self.compute(pass, start, units.end);
    }

    /// Down through the whole chunk.
    fn backward(&mut self, pass: Pass) {
        let division = Division::of(self.layout);
        let mut end = self.chunk.units();
        for position in (0..self.chunk.units()).rev() {
            let unit = self.chunk.unit(position);
            if self.chunk.recompute == Recompute::Full && matches!(unit, Unit::Mlp(_)) {
                self.compute(pass, position + 1, end);
                end = position + 1;
                self.forward(UnitRange { start: position - 3, end: position + 1 }, Pass::Recompute);
            }
            if division == Division::Sequence {
                let gather = |tensor, unit| PassOp::Collective { kind: CollectiveKind::AllGather, tensor, unit, pass };
                let before: &[PassOp] = match unit {
                    Unit::Attention(_) | Unit::Mlp(_) => {
                        &[gather(UnitTensor::OutputGradient, position), gather(UnitTensor::Input, position)]
                    }
                    Unit::Embedding => &[gather(UnitTensor::OutputGradient, position)],
                    Unit::Loss => &[gather(UnitTensor::Input, position - 1)],
                    Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm | Unit::Head => &[],
                };
                if !before.is_empty() {
                    self.compute(pass, position + 1, end);
                    end = position + 1;
                    self.ops.extend_from_slice(before);
                }
            }
            let kind = match division {
                Division::Whole => None,
                Division::Tensor => Some(CollectiveKind::AllReduce),
                Division::Sequence => Some(CollectiveKind::ReduceScatter),
            };
            let partial = matches!(unit, Unit::Attention(_) | Unit::Mlp(_) | Unit::Head);
            if let Some(kind) = kind.filter(|_| partial) {
                self.compute(pass, position, end);
                end = position;
                self.ops.push(PassOp::Collective { kind, tensor: UnitTensor::InputGradient, unit: position, pass });
            }
        }
        self.compute(pass, 0, end);
    }

    fn compute(&mut self, pass: Pass, start: u32, end: u32) {
        if start < end {
            self.ops.push(PassOp::Compute { pass, units: UnitRange { start, end } });
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::{Recompute, Schedule, StageId};

    use super::*;
    use crate::testing::{plan, small_model, workload};

    /// Ops in a line: `F0..3` a pass over units, `AR:Output:2` a collective of a unit's tensor.
    fn text(tensor: u32, sequence: bool, recompute: Recompute, layers: u32, ends: [bool; 2], action: Action) -> String {
        let (model, work) = (small_model(4), workload(32, 4));
        let mut plan = plan(&model, &work, [1, tensor, 1, 1], Schedule::GPipe);
        plan.sequence_parallel = sequence;
        let chunk =
            Chunk { stage: StageId::new(0), first_layer: 0, layers, embedding: ends[0], head: ends[1], recompute };
        let ops = pass_ops(&chunk, &crate::layout::layout(&plan), action);
        let shown = ops.iter().map(|op| match op {
            PassOp::Compute { pass, units } => {
                let letter = match pass {
                    Pass::Forward => "F",
                    Pass::Recompute => "R",
                    Pass::Backward => "B",
                    Pass::BackwardInput => "I",
                    Pass::BackwardWeight => "W",
                };
                format!("{letter}{}..{}", units.start, units.end)
            }
            PassOp::Collective { kind, tensor, unit, .. } => {
                let kind = match kind {
                    CollectiveKind::AllReduce => "AR",
                    CollectiveKind::AllGather => "AG",
                    CollectiveKind::ReduceScatter => "RS",
                };
                format!("{kind}:{tensor:?}:{unit}")
            }
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_rank_runs_whole_chunks() {
        let whole = |recompute, action| text(1, false, recompute, 2, [true, true], action);
        assert_eq!(whole(Recompute::None, Action::Forward), "F0..12");
        assert_eq!(whole(Recompute::Selective, Action::Backward), "B0..12");
        assert_eq!(whole(Recompute::None, Action::BackwardInput), "I0..12");
        assert_eq!(whole(Recompute::Full, Action::BackwardWeight), "W0..12");
        assert_eq!(whole(Recompute::Full, Action::Backward), "B9..12 R5..9 B5..9 R1..5 B0..5");
    }

    #[test]
    fn tensor_parallelism_reduces_partial_sums() {
        let one = |recompute, action| text(2, false, recompute, 1, [true, true], action);
        assert_eq!(
            one(Recompute::None, Action::Forward),
            "F0..1 AR:Output:0 F1..3 AR:Output:2 F3..5 AR:Output:4 F5..7 AG:LossStatistics:6 F7..8"
        );
        assert_eq!(
            one(Recompute::None, Action::Backward),
            "B6..8 AR:InputGradient:6 B4..6 AR:InputGradient:4 B2..4 AR:InputGradient:2 B0..2"
        );
        assert_eq!(
            one(Recompute::Full, Action::BackwardInput),
            "I6..8 AR:InputGradient:6 I5..6 R1..3 AR:Output:2 R3..5 I4..5 AR:InputGradient:4 I2..4 AR:InputGradient:2 I0..2"
        );
        assert_eq!(one(Recompute::None, Action::BackwardWeight), "W0..8");
    }

    #[test]
    fn sequence_parallelism_gathers_and_scatters() {
        let one = |ends, action| text(2, true, Recompute::None, 1, ends, action);
        assert_eq!(
            one([true, true], Action::Forward),
            "F0..1 RS:Output:0 F1..2 AG:Input:2 F2..3 RS:Output:2 F3..4 AG:Input:4 F4..5 RS:Output:4 \
             F5..6 AG:Input:6 F6..7 AG:LossStatistics:6 F7..8"
        );
        assert_eq!(
            one([true, true], Action::Backward),
            "AG:Input:6 B6..8 RS:InputGradient:6 B5..6 AG:OutputGradient:4 AG:Input:4 B4..5 RS:InputGradient:4 \
             B3..4 AG:OutputGradient:2 AG:Input:2 B2..3 RS:InputGradient:2 B1..2 AG:OutputGradient:0 B0..1"
        );
        assert_eq!(
            one([false, false], Action::Backward),
            "AG:OutputGradient:3 AG:Input:3 B3..4 RS:InputGradient:3 B2..3 AG:OutputGradient:1 AG:Input:1 B1..2 \
             RS:InputGradient:1 B0..1"
        );
        // Chunks of no layers.
        assert_eq!(text(2, true, Recompute::Full, 0, [true, false], Action::Backward), "AG:OutputGradient:0 B0..1");
        assert_eq!(text(1, false, Recompute::Full, 0, [false, true], Action::Backward), "B0..3");
    }
}

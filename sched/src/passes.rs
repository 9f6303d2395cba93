//! The ops of one pass of one chunk: which units run together, which collectives stand between them, and which run beside
//! them.
//!
//! This is the only enumeration: lowering emits it and the closed-form evaluator sums its prices.
//!
//! # The chain
//!
//! The ops of a rank's passes form one chain: each begins when the one before has ended, whichever stream it queues on.
//! Ops may be *beside* the compute instruction that follows them: they begin when it may begin (those of one stream one
//! after the other), and the op after that compute waits for it and for them. So a compute with its companions takes the
//! longest of the compute and, of each stream, the sum of its companions ([`segments`]). What overlaps is said here, op by
//! op; no factor stands for it. Where a calibration says so, both go slower while they are beside each other
//! ([`cost::Slowing`]).
//!
//! # What stands where
//!
//! * One tensor rank and nothing else: the whole chunk is one instruction.
//! * Tensor parallelism (Shoeybi et al. 2019): an all-reduce of each partial output on the way up, and of each partial
//!   input gradient on the way down.
//!   Where attention and feed-forward part stand beside each other, their outputs are added up first: one reduction a layer
//!   on the way up, and one on the way down where they read the same norm (Wang and Komatsuzaki 2021).
//! * With sequence parallelism (Korthikanti et al. 2022): a reduce-scatter in place of each all-reduce, and gathers
//!   of a body's input before it, of its output gradient and again of its input before its backward pass. With overlap
//!   (Wang et al. 2023; Transformer Engine) each of these runs in as many pieces as there are ranks: one piece has nothing
//!   to hide behind, the rest is beside the body.
//! * Context parallelism, around each mixer: keys and values go round beside it (ring; backward once more, and their
//!   gradients), or are gathered before it (and their gradients scattered after), or heads are exchanged for tokens before
//!   and after.
//! * Experts: tokens are dispatched before the feed-forward part and combined after it, and gathered where several ranks
//!   share an expert; with overlap, dispatch is beside the feed-forward part and combination beside the next body. With a
//!   loss that balances experts, the ranks that share sequences first sum what their tokens chose.
//! * ZeRO-3: the parameters of each *part* (the embedding, a layer or half of one, the head) are gathered before it, or with
//!   prefetch beside the body of the part before; ZeRO-2 and 3: its gradients are scattered after it, or with overlap beside
//!   the body of the next.
//! * Parameter offload: what this rank holds of a part comes from host memory before the part is gathered (with prefetch
//!   beside the same body as the gather, which it feeds piece by piece).
//! * Activation offload: what a layer keeps leaves beside the next layer's forward pass and returns beside the backward pass
//!   of the layer above; that of a chunk's last layer stays.
//! * Full recomputation: directly before the first backward instruction that touches a layer, its units run forward
//!   again, with their collectives except the last (nobody reads the layer's output); backward instructions end at layer
//!   boundaries, so that one layer's activations are back at a time.

mod around;
mod buckets;
mod parts;
mod segments;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use buckets::{Bucket, buckets, completes};
pub use segments::{Segment, op_ends, segments};

use ir::counts::Shape;
use ir::grid::Action;
use ir::program::{Chunk, CollectiveKind, Pass, Stream, UnitRange, UnitTensor};
use ir::{Axis, Bytes};

/// All passes of a chunk, each at its own index.
pub(crate) const ACTIONS: [Action; 4] =
    [Action::Forward, Action::Backward, Action::BackwardInput, Action::BackwardWeight];

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
    /// A collective.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Over whom.
        axis: Axis,
        /// Of what.
        moves: Moves,
        /// Bytes of the whole buffer.
        bytes: Bytes,
        /// Whether it runs beside the compute that follows.
        beside: bool,
    },
    /// A copy to or from host memory.
    HostCopy {
        /// Of what.
        what: Copied,
        /// The units whose it is.
        units: UnitRange,
        /// Whether it leaves the device.
        out: bool,
        /// How much.
        bytes: Bytes,
        /// Whether it runs beside the compute that follows.
        beside: bool,
    },
}

/// What a pass copies to or from host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// What a layer keeps.
    Kept,
    /// This rank's part of the parameters of a part.
    Parameters,
}

/// What a collective of a pass moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    /// An activation or its gradient.
    Activation {
        /// Which tensor of the unit.
        tensor: UnitTensor,
        /// The unit's position in the chunk; the statistics of the loss are those of the head.
        unit: u32,
        /// The pass that needs it.
        pass: Pass,
    },
    /// Parameters of a part, before a pass.
    Parameters {
        /// The part.
        units: UnitRange,
        /// Whether those of its experts, else all others.
        experts: bool,
        /// The pass that needs them.
        pass: Pass,
    },
    /// Gradients of a part, after a pass.
    Gradients {
        /// The part.
        units: UnitRange,
        /// Whether those of its experts, else all others.
        experts: bool,
    },
}

impl PassOp {
    /// Where it queues.
    #[must_use]
    pub fn stream(&self) -> Stream {
        match self {
            Self::Compute { .. } => Stream::Compute,
            Self::HostCopy { .. } => Stream::Host,
            Self::Collective { moves: Moves::Parameters { .. } | Moves::Gradients { .. }, .. } => Stream::Shard,
            Self::Collective { moves: Moves::Activation { .. }, axis, .. } => match axis {
                Axis::Context => Stream::Context,
                Axis::Expert | Axis::ExpertTensor => Stream::Expert,
                Axis::Tensor => Stream::Tensor,
                Axis::Data
                | Axis::Pipeline
                | Axis::Embedding
                | Axis::Model
                | Axis::Replica
                | Axis::Shard
                | Axis::ExpertReplica => panic!("no activation moves over the {} axis", axis.name()),
            },
        }
    }
    /// Whether it runs beside the compute that follows it.
    #[must_use]
    pub const fn is_beside(&self) -> bool {
        match self {
            Self::Compute { .. } => false,
            Self::Collective { beside, .. } | Self::HostCopy { beside, .. } => *beside,
        }
    }
    /// The same, beside the compute that follows or in the chain.
    #[must_use]
    const fn placed(self, to: bool) -> Self {
        match self {
            Self::Compute { .. } => self,
            Self::Collective { kind, axis, moves, bytes, .. } => {
                Self::Collective { kind, axis, moves, bytes, beside: to }
            }
            Self::HostCopy { what, units, out, bytes, .. } => Self::HostCopy { what, units, out, bytes, beside: to },
        }
    }
}

/// The ops of a pass of a chunk, in order; `overlap_gradients` as in [`ir::Plan`].
///
/// # Panics
/// If the chunk is empty.
#[must_use]
pub fn pass_ops(shape: Shape<'_>, chunk: &Chunk, overlap_gradients: bool, action: Action) -> Vec<PassOp> {
    pass_in_buckets(shape, chunk, overlap_gradients, action, &[])
}

/// The same of a pass that leaves its chunk's gradients bucket by bucket: no instruction adds to gradients of two of them.
pub(crate) fn pass_in_buckets(
    shape: Shape<'_>,
    chunk: &Chunk,
    overlap_gradients: bool,
    action: Action,
    buckets: &[Bucket],
) -> Vec<PassOp> {
    assert!(chunk.units() > 0, "a pass of an empty chunk");
    let mut walk = walk::Walk::new(shape, chunk, overlap_gradients, buckets);
    match action {
        Action::Forward => walk.forward(chunk.all_units(), Pass::Forward),
        Action::Backward => walk.backward(Pass::Backward),
        Action::BackwardInput => walk.backward(Pass::BackwardInput),
        Action::BackwardWeight => walk.weights(),
    }
    walk.finish()
}

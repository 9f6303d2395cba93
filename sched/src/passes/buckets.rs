//! Parts of a chunk whose gradients are reduced together, as the last backward pass leaves them behind.

use ir::counts::{HeldParameters, Shape, held_parameters};
use ir::program::{Chunk, Pass, UnitRange};

use super::PassOp;
use super::parts::{Parts, part};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bucket {
    pub(crate) units: UnitRange,
    pub(crate) held: HeldParameters,
}

/// The buckets of a chunk in the order in which a backward pass leaves them: consecutive layers (and what stands before and
/// after them), together of at least `least` parameters, but for what is left at the end.
pub(crate) fn buckets(shape: Shape<'_>, chunk: &Chunk, least: u64) -> Vec<Bucket> {
    let (mut found, mut end, mut start) = (Vec::new(), chunk.units(), chunk.units());
    let mut held = HeldParameters { common: 0, experts: 0 };
    while start > 0 {
        let units = part(chunk, Parts::Layers, start - 1);
        let more = held_parameters(shape, chunk, units);
        held = HeldParameters { common: held.common + more.common, experts: held.experts + more.experts };
        start = units.start;
        if held.total() >= least || start == 0 {
            found.push(Bucket { units: UnitRange { start, end }, held });
            (end, held) = (start, HeldParameters { common: 0, experts: 0 });
        }
    }
    found
}

/// The bucket whose last gradients an op adds.
pub(crate) fn completes<'b>(op: &PassOp, buckets: &'b [Bucket]) -> Option<&'b Bucket> {
    match op {
        PassOp::Compute { pass: Pass::Backward | Pass::BackwardWeight, units } => {
            buckets.iter().find(|bucket| bucket.units.start == units.start)
        }
        PassOp::Compute { pass: Pass::Forward | Pass::Recompute | Pass::BackwardInput, .. }
        | PassOp::Collective { .. }
        | PassOp::HostCopy { .. } => None,
    }
}

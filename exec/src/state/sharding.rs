//! How a chunk's parameters are cut into segments and divided over replicas.
//!
//! A *segment* is a run of a chunk's parameters that comes, goes and is divided by itself: a vector of its own, padded to a
//! multiple of the ranks that share it, of which each of them steps one part. There is one for each part of a chunk whose
//! parameters are gathered or whose gradients are reduced by themselves; the instructions of the program say which those
//! are. Under ZeRO-0 and 1 that is the chunk, or its buckets where they are reduced beside a pass. A tied table is always a
//! segment of its own, so that its two copies are divided alike.

use std::collections::BTreeSet;

use ir::program::{Op, Pass, Payload, Program, Role, UnitRange};
use ir::{ChunkId, Rank, ZeroStage};

use super::buffers::{Held, Pool};
use super::dimensions::{Dimensions, size};
use super::parameters::Of;
use super::values::{View, ViewMut};

/// Who shares the training state of a rank, and what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharing {
    /// Ranks over which it is divided.
    pub(super) ranks: usize,
    /// This rank's index among them.
    pub(super) index: usize,
    /// Whether gradients are held whole only until they are scattered (ZeRO-2 and 3).
    pub(super) scatters: bool,
    /// Whether parameters are held whole only while they are gathered (ZeRO-3).
    pub(super) gathers: bool,
    /// Whether this rank answers for its part in the gradient's norm: of ranks that hold copies, the first.
    pub(super) counted: bool,
    /// Whether this rank writes its part into a checkpoint: of ranks that hold copies, the first of all.
    pub(super) writes: bool,
}

impl Sharing {
    /// That of a rank.
    pub(super) fn of(program: &Program, rank: Rank, dims: &Dimensions, of: Of) -> Self {
        let layout = &program.layout;
        let (ranks, index, counted, copy) = match of {
            Of::Common => {
                let replica = layout.place_of(rank).replica;
                let ranks = layout.shard().min(layout.replicas());
                let apart = program.model.variants.experts.is_some() && layout.experts_span_replicas();
                // Norms add up over all replicas where state is divided or no replica has all experts, else over those
                // of one sequence.
                let counted = match (ranks > 1, apart) {
                    (true, _) => replica < ranks,
                    (false, true) => replica == 0,
                    (false, false) => replica.is_multiple_of(layout.mesh.context),
                };
                (size(ranks), size(replica % ranks), counted, size(replica / ranks))
            }
            Of::Experts => {
                let experts = dims.experts();
                let ranks = experts.shard();
                (ranks, experts.copy % ranks, experts.counted, experts.copy / ranks)
            }
        };
        let divided = ranks > 1;
        let (scatters, gathers) = match layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => (false, false),
            ZeroStage::Zero2 => (divided, false),
            ZeroStage::Zero3 => (divided, divided),
        };
        Self { ranks, index, scatters, gathers, counted, writes: copy == 0 }
    }
}

/// Where a chunk's parts begin, by position of the unit: those gathered before forward and before backward passes, and
/// those whose gradients are scattered.
#[derive(Debug, Default)]
pub(super) struct Parts {
    up: BTreeSet<u32>,
    down: BTreeSet<u32>,
    gradients: BTreeSet<u32>,
    units: u32,
}

impl Parts {
    /// As a role's instructions name them; experts come and go in the same parts as all else.
    pub(super) fn of(program: &Program, role: &Role, of: ChunkId) -> Self {
        let mut parts = Self { units: program.chunk(of).units(), ..Self::default() };
        for instruction in role.instructions() {
            let Op::Collective { payload, .. } = instruction.op else { continue };
            if let Payload::UnitParameters { chunk, unit, pass, .. } = payload
                && chunk == of
            {
                parts.starts(pass).insert(unit);
            }
            if let Payload::UnitGradients { chunk, unit, .. } = payload
                && chunk == of
            {
                parts.gradients.insert(unit);
            }
        }
        parts
    }

    fn starts(&mut self, pass: Pass) -> &mut BTreeSet<u32> {
        match pass {
            Pass::Forward => &mut self.up,
            Pass::Recompute | Pass::Backward | Pass::BackwardInput | Pass::BackwardWeight => &mut self.down,
        }
    }

    /// Whether a segment begins with a unit.
    pub(super) fn begins(&self, unit: u32) -> bool {
        unit == 0 || [&self.up, &self.down, &self.gradients].into_iter().any(|starts| starts.contains(&unit))
    }

    /// The units of the part that is gathered for a pass and begins with a unit.
    pub(super) fn gathered(&self, pass: Pass, unit: u32) -> UnitRange {
        let starts = if pass == Pass::Forward { &self.up } else { &self.down };
        self.to_next(starts, unit)
    }

    /// The units of the part whose gradients are scattered together with those of a unit.
    pub(super) fn scattered(&self, unit: u32) -> UnitRange {
        let start = self.gradients.range(..=unit).next_back().copied().unwrap_or(0);
        self.to_next(&self.gradients, start)
    }

    /// Whether a part is the chunk's last.
    pub(super) const fn is_last(&self, units: UnitRange) -> bool {
        units.end == self.units
    }

    /// Whether a unit is the matrix of the chunk's head, which stands before the loss.
    pub(super) const fn is_head(&self, unit: u32) -> bool {
        unit + 2 == self.units
    }

    fn to_next(&self, starts: &BTreeSet<u32>, start: u32) -> UnitRange {
        UnitRange { start, end: starts.range(start + 1..).next().copied().unwrap_or(self.units) }
    }
}

/// A run of a chunk's parameters with a vector of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// The units that its parameters are of, by position.
    pub(super) units: UnitRange,
    /// Elements, padding included.
    pub(super) length: usize,
    /// Elements that each rank steps.
    pub(super) part: usize,
    /// Where this rank's part stands among all that it steps of the chunk.
    pub(super) own: usize,
}

impl Segment {
    /// Where the part of a rank stands in the segment.
    pub(super) fn part_of(&self, index: usize) -> std::ops::Range<usize> {
        index * self.part..(index + 1) * self.part
    }
}

/// One vector for each segment; absent while nobody needs it.
#[derive(Debug, Default)]
pub(super) struct Flat {
    pieces: Vec<Option<Held>>,
}

impl Flat {
    pub(super) fn new(pieces: Vec<Option<Held>>) -> Self {
        Self { pieces }
    }
    /// A segment's vector.
    ///
    /// # Panics
    /// If it is absent.
    pub(super) fn piece(&self, segment: usize) -> View<'_> {
        let piece = self.pieces[segment].as_ref().map(Held::view);
        piece.unwrap_or_else(|| panic!("segment {segment} was not gathered"))
    }
    pub(super) fn piece_mut(&mut self, segment: usize) -> ViewMut<'_> {
        let piece = self.pieces[segment].as_mut().map(Held::view_mut);
        piece.unwrap_or_else(|| panic!("segment {segment} was not gathered"))
    }
    pub(super) fn has(&self, segment: usize) -> bool {
        self.pieces[segment].is_some()
    }
    pub(super) fn put(&mut self, segment: usize, piece: Held) {
        assert!(self.pieces[segment].replace(piece).is_none(), "segment {segment} was there before");
    }
    pub(super) fn release(&mut self, segment: usize, pool: &mut Pool) {
        pool.release(&mut self.pieces[segment]);
    }
    pub(super) fn pieces_mut(&mut self) -> impl Iterator<Item = ViewMut<'_>> {
        self.pieces.iter_mut().flatten().map(Held::view_mut)
    }
}

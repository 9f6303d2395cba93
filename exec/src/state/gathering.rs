//! Parameters that are gathered and gradients that are reduced: what this rank puts into those collectives, and what it
//! takes out of them.
//!
//! Of several segments a rank's parts stand one after the other in the order of the segments; a whole buffer is those of
//! all ranks, in the order of the group.

use std::ops::Range;

use ir::program::{BufferKind, Pass, UnitRange};

use super::arithmetic::accumulate;
use super::buffers::Pool;
use super::formats::Formats;
use super::offered::{Joined, Offered};
use super::parameters::Parameters;
use super::places::Place;
use super::values::{View, ViewMut};

/// A piece of the weights and the segment whose values it has: its own, but for a shared table that is gathered again.
#[derive(Debug, Clone, Copy)]
struct Piece {
    at: usize,
    segment: usize,
}

impl Parameters {
    fn all(&self) -> Vec<Piece> {
        (0..self.segments.len()).map(|segment| Piece { at: segment, segment }).collect()
    }

    /// The segments of a part.
    fn within(&self, units: UnitRange) -> Vec<Piece> {
        let inside = |of: UnitRange| units.start <= of.start && of.end <= units.end;
        self.all().into_iter().filter(|piece| inside(self.segments[piece.segment].units)).collect()
    }

    /// The pieces that are gathered for a part.
    fn gathered(&self, units: UnitRange, last: bool) -> Vec<Piece> {
        let mut pieces = self.within(units);
        pieces.extend(self.again.filter(|_| last).map(|segment| Piece { at: self.segments.len(), segment }));
        pieces
    }

    fn part_to_gather(&self, pass: Pass, unit: u32) -> (UnitRange, Vec<Piece>) {
        let units = self.parts.gathered(pass, unit);
        (units, self.gathered(units, self.parts.is_last(units)))
    }

    /// This rank's part of all weights, after a step.
    pub(super) fn stepped_weights<'a>(&'a self, formats: Formats, joined: &'a mut Joined) -> Offered<'a> {
        self.join_weights(&self.all(), formats, joined)
    }

    /// This rank's part of the weights of a part.
    pub(super) fn part_weights<'a>(
        &'a self,
        (pass, unit): (Pass, u32),
        formats: Formats,
        joined: &'a mut Joined,
    ) -> Offered<'a> {
        self.join_weights(&self.part_to_gather(pass, unit).1, formats, joined)
    }

    fn join_weights<'a>(&'a self, pieces: &[Piece], formats: Formats, joined: &'a mut Joined) -> Offered<'a> {
        let as_held = self.own_weights.is_none() || formats.own_weight == formats.weight;
        if let ([piece], true) = (pieces, as_held) {
            return joined.whole(self.own_weights(piece.segment));
        }
        joined.clear();
        pieces.iter().for_each(|piece| joined.append(self.own_weights(piece.segment)));
        joined.round(formats.is_half());
        joined.offered()
    }

    /// Takes the weights of all ranks, after a step.
    pub(super) fn take_stepped(&mut self, result: View<'_>) {
        for piece in self.all() {
            self.fill(piece, &self.all(), result);
        }
    }

    /// Takes the weights of a part, which are there until its last pass ends.
    pub(super) fn take_part(&mut self, (pass, unit): (Pass, u32), formats: Formats, pool: &mut Pool, result: View<'_>) {
        let (units, pieces) = self.part_to_gather(pass, unit);
        for piece in &pieces {
            let length = self.segments[piece.segment].length;
            self.weights.put(piece.at, pool.take_as(formats.weight, BufferKind::Communication, length));
            self.fill(*piece, &pieces, result);
        }
        self.here.push((pass == Pass::Forward, units));
    }

    /// Copies a piece out of the result of a gather of `pieces`.
    fn fill(&mut self, piece: Piece, pieces: &[Piece], result: View<'_>) {
        let part = |piece: &Piece| self.segments[piece.segment].part;
        let each: usize = pieces.iter().map(part).sum();
        assert_eq!(result.len(), each * self.sharing.ranks, "size of gathered parameters");
        let before: usize = pieces.iter().take_while(|other| other.at != piece.at).map(part).sum();
        let length = part(&piece);
        let mut whole = self.weights.piece_mut(piece.at);
        for rank in 0..self.sharing.ranks {
            let from = rank * each + before;
            whole.again().part(rank * length..(rank + 1) * length).copy_from(result.part(from..from + length));
        }
    }

    /// Gives up gathered parts whose last unit a pass has just been through.
    pub(super) fn leave(&mut self, pass: Pass, passed: UnitRange, pool: &mut Pool) {
        let forward = match pass {
            Pass::Forward => true,
            Pass::Backward | Pass::BackwardInput => false,
            Pass::Recompute | Pass::BackwardWeight => return,
        };
        let done = |units: UnitRange| {
            let last = if forward { units.end - 1 } else { units.start };
            (passed.start..passed.end).contains(&last)
        };
        let here = std::mem::take(&mut self.here);
        let (gone, stay) = here.into_iter().partition(|(up, units)| *up == forward && done(*units));
        self.here = stay;
        for (_, units) in gone {
            for piece in self.gathered(units, self.parts.is_last(units)) {
                self.weights.release(piece.at, pool);
            }
        }
    }

    /// Gives up all that is gathered, and gradients that were not scattered.
    pub(super) fn forget(&mut self, pool: &mut Pool) {
        if self.sharing.gathers {
            (0..self.segments.len() + self.again.iter().len()).for_each(|piece| self.weights.release(piece, pool));
        }
        if self.sharing.scatters {
            (0..self.segments.len()).for_each(|segment| self.gradients.release(segment, pool));
            if let Some(own) = &mut self.own_gradients {
                own.view_mut().clear();
            }
        }
        self.here.clear();
    }

    /// Makes sure that gradients of a unit can be added to: of the part that is scattered with it.
    pub(super) fn open_gradients(&mut self, unit: u32, formats: Formats, pool: &mut Pool) {
        if !self.sharing.scatters {
            return;
        }
        // A shared table's gradient is scattered with the embedding's.
        let table = self.places.head_gradient.filter(|_| self.parts.is_head(unit)).map(Place::segment);
        let wanted = self.within(self.parts.scattered(unit)).into_iter().map(|piece| piece.segment).chain(table);
        for segment in wanted {
            if !self.gradients.has(segment) {
                let length = self.segments[segment].length;
                self.gradients.put(segment, pool.zeros(formats.gradient, BufferKind::Gradients, length));
            }
        }
    }

    /// The whole gradients of a part, or of all, ordered by the rank that gets them.
    pub(super) fn gradients_to_scatter<'a>(
        &'a self,
        unit: Option<u32>,
        formats: Formats,
        joined: &'a mut Joined,
    ) -> Offered<'a> {
        let pieces = unit.map_or_else(|| self.all(), |unit| self.within(self.parts.scattered(unit)));
        if let ([piece], true) = (&pieces[..], formats.reduces_as_held()) {
            return joined.whole(self.gradients.piece(piece.segment));
        }
        joined.clear();
        for rank in 0..self.sharing.ranks {
            for piece in &pieces {
                let part = self.segments[piece.segment].part_of(rank);
                joined.append(self.gradients.piece(piece.segment).part(part));
            }
        }
        joined.round(formats.reduces_half());
        joined.offered()
    }

    /// What a microbatch that this replica does not have adds to the gradients of a part.
    pub(super) fn nothing_to_scatter<'a>(&self, unit: u32, formats: Formats, joined: &'a mut Joined) -> Offered<'a> {
        let pieces = self.within(self.parts.scattered(unit));
        joined.clear();
        joined.append_zeros(pieces.iter().map(|piece| self.segments[piece.segment].length).sum());
        joined.round(formats.reduces_half());
        joined.offered()
    }

    /// Adds this rank's part of the sum of a part's gradients, and gives up the whole ones.
    pub(super) fn take_scattered(&mut self, unit: u32, formats: Formats, pool: &mut Pool, result: View<'_>) {
        let mut rest = result;
        for piece in self.within(self.parts.scattered(unit)) {
            let mut own = self.own_gradients_mut(piece.segment);
            let (part, after) = rest.split_at(own.len());
            accumulate(own.again(), part);
            formats.round_gradients(own);
            rest = after;
            self.gradients.release(piece.segment, pool);
        }
        assert!(rest.len() == 0, "{} scattered gradients too many", rest.len());
    }

    /// This rank's part of the gradients of a part, or of all.
    pub(super) fn part_gradients<'a>(
        &'a self,
        unit: Option<u32>,
        formats: Formats,
        joined: &'a mut Joined,
    ) -> Offered<'a> {
        let pieces = unit.map_or_else(|| self.all(), |unit| self.within(self.parts.scattered(unit)));
        if let ([piece], true) = (&pieces[..], formats.reduces_as_held()) {
            return joined.whole(self.own_gradients(piece.segment));
        }
        joined.clear();
        pieces.iter().for_each(|piece| joined.append(self.own_gradients(piece.segment)));
        joined.round(formats.reduces_half());
        joined.offered()
    }

    /// Replaces this rank's part of the gradients of a part, or of all, by their sum.
    pub(super) fn take_gradients(&mut self, unit: Option<u32>, formats: Formats, result: View<'_>) {
        let mut rest = result;
        let pieces = unit.map_or_else(|| self.all(), |unit| self.within(self.parts.scattered(unit)));
        for piece in pieces {
            let mut own = self.own_gradients_mut(piece.segment);
            let (part, after) = rest.split_at(own.len());
            own.again().copy_from(part);
            formats.round_gradients(own);
            rest = after;
        }
        assert!(rest.len() == 0, "{} gradients too many", rest.len());
    }

    /// Of a tensor's gradient, what is here between microbatches: all, or this rank's part. Its segment, and the range
    /// within the segment's piece or within the part.
    pub(super) fn visible(&self, place: Place) -> Option<(usize, Range<usize>)> {
        let (segment, range) = (place.segment(), place.range());
        if !self.sharing.scatters {
            return Some((segment, range));
        }
        let own = self.segments[segment].part_of(self.sharing.index);
        let (start, end) = (range.start.max(own.start), range.end.min(own.end));
        (start < end).then(|| (segment, start - own.start..end - own.start))
    }

    /// What [`visible`](Self::visible) found.
    pub(super) fn seen(&self, (segment, range): (usize, Range<usize>)) -> View<'_> {
        let of = if self.sharing.scatters { self.own_gradients(segment) } else { self.gradients.piece(segment) };
        of.part(range)
    }

    /// The same, to write.
    pub(super) fn seen_mut(&mut self, (segment, range): (usize, Range<usize>)) -> ViewMut<'_> {
        if self.sharing.scatters {
            self.own_gradients_mut(segment).part(range)
        } else {
            self.gradients.piece_mut(segment).part(range)
        }
    }
}

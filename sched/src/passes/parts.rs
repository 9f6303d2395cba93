//! The parts of a chunk whose parameters come and go together, and their sizes.

use ir::Recompute;
use ir::program::{Chunk, Unit, UnitRange};

/// How the layers of a chunk fall into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parts {
    /// The pass is one piece.
    Whole,
    /// Each layer is a part.
    Layers,
    /// Each layer is two parts, each with its norm: instructions stand between them anyway.
    Halves,
}

/// The part that holds a position: embedding, a layer or half of one, or the head's units.
pub(super) fn part(chunk: &Chunk, parts: Parts, position: u32) -> UnitRange {
    let first = u32::from(chunk.embedding);
    let Some(inner) = position.checked_sub(first) else { return UnitRange { start: 0, end: 1 } };
    let end = first + 4 * chunk.layers;
    if position >= end {
        return UnitRange { start: end, end: chunk.units() };
    }
    let wide = match parts {
        Parts::Halves => 2,
        Parts::Layers | Parts::Whole => 4,
    };
    let start = first + inner / wide * wide;
    UnitRange { start, end: start + wide }
}

/// The layer's units that a position lies in, and the layer; `None` outside layers.
pub(super) fn layer_of(chunk: &Chunk, position: u32) -> Option<(UnitRange, u32)> {
    match chunk.unit(position) {
        Unit::AttentionNorm(layer) | Unit::Attention(layer) | Unit::MlpNorm(layer) | Unit::Mlp(layer) => {
            Some((part(chunk, Parts::Layers, position), layer))
        }
        Unit::Embedding | Unit::FinalNorm | Unit::Head | Unit::Loss => None,
    }
}

/// As [`part`] on the way down, where a layer that is wholly computed again is one part.
pub(super) fn part_down(chunk: &Chunk, parts: Parts, position: u32) -> UnitRange {
    match layer_of(chunk, position) {
        Some((units, layer)) if chunk.recompute_of(layer) == Recompute::Full => units,
        Some(_) | None => part(chunk, parts, position),
    }
}

//! Counts to bytes of memory: what one rank holds.

use ir::counts::Shape;
use ir::program::{Chunk, Pass, UnitRange};
use ir::{Bytes, DeviceKind};

/// Parameters that one rank holds of a chunk (its part of each matrix; norms whole; padded vocabulary).
/// A tied head on another chunk than the embedding holds its own copy.
#[must_use]
pub fn parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    let _ = (shape, chunk);
    0
}

/// Parameters whose optimizer state one rank holds: all of them, or its part under ZeRO-1 (rounded up).
#[must_use]
pub fn stepped_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    let _ = (shape, chunk);
    0
}

/// Weights, gradients and optimizer state of `parameters` held and `stepped` stepped parameters.
#[must_use]
pub fn state(shape: Shape<'_>, parameters: u64, stepped: u64) -> (Bytes, Bytes, Bytes) {
    let _ = (shape, parameters, stepped);
    (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO)
}

/// What a forward pass over `units` of a chunk keeps for the backward pass, of one microbatch, given the chunk's
/// recomputation (with [`ir::Recompute::Full`] only the input of each layer). The logits are not in it.
#[must_use]
pub fn kept(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    let _ = (shape, chunk, units);
    Bytes::ZERO
}

/// What a recomputation of `units` brings back until the backward pass has used it.
#[must_use]
pub fn recomputed(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    let _ = (shape, chunk, units);
    Bytes::ZERO
}

/// What a split backward pass leaves from `BackwardInput` for `BackwardWeight`, beyond what was kept.
#[must_use]
pub fn left_for_weights(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    let _ = (shape, chunk, units);
    Bytes::ZERO
}

/// What one instruction needs only while it runs.
#[must_use]
pub fn workspace(shape: Shape<'_>, chunk: &Chunk, pass: Pass, units: UnitRange) -> Bytes {
    let _ = (shape, chunk, pass, units);
    Bytes::ZERO
}

/// Logits of one microbatch and what the loss keeps of them, on one rank; zero where the chunk has no head.
#[must_use]
pub fn logits(shape: Shape<'_>, chunk: &Chunk) -> Bytes {
    let _ = (shape, chunk);
    Bytes::ZERO
}

/// What the runtime takes for itself on a device (context, communication libraries, allocator slack).
#[must_use]
pub fn reserve(device: &DeviceKind) -> Bytes {
    let _ = device;
    Bytes::ZERO
}

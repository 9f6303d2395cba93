//! Training state of one rank of a pipeline position.

use cost::memory;
use ir::Bytes;
use ir::counts::{Shape, host_optimizer_bytes};
use ir::program::Chunk;

/// Weights, gradients and optimizer state that stay through an iteration.
pub(crate) fn bytes<'a>(shape: Shape<'_>, held: impl Iterator<Item = &'a Chunk> + Clone) -> [Bytes; 3] {
    let parameters = held.clone().map(|chunk| memory::parameters(shape, chunk)).sum();
    let stepped = held.map(|chunk| memory::stepped_parameters(shape, chunk)).sum();
    let (weights, gradients, optimizer) = memory::state(shape, parameters, stepped);
    [weights, gradients, optimizer]
}

/// Bytes that go to host memory and come back for an optimizer step there; `None` where it is stepped on the device.
/// Nothing comes back where parameters live in host memory too.
pub(crate) fn host_copies<'a>(shape: Shape<'_>, held: impl Iterator<Item = &'a Chunk>) -> Option<(Bytes, Bytes)> {
    let stepped: u64 = held.map(|chunk| memory::stepped_parameters(shape, chunk)).sum();
    let sharing = shape.layout.sharing;
    (sharing.offload_optimizer && stepped > 0).then(|| {
        let (out, back) = host_optimizer_bytes(shape, stepped);
        (out, if sharing.offload_parameters { Bytes::ZERO } else { back })
    })
}

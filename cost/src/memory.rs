//! Counts to bytes of memory: what one rank holds.
//!
//! What the passes of a unit keep for each other is one table, [`kept_tensors`]; everything else here sums parts of it.
//! `T` is the microbatch's tokens on this rank, `R` those of its residual stream (`T/t` under sequence parallelism), `h`
//! the hidden width, `b` the bytes of the precision, `q`, `qkv` and `ffn` this rank's widths.
//!
//! For a GPT layer without dropout, 16-bit and fused attention the table sums to `(8h + 24h/t) T` bytes, which is the
//! 34h of Korthikanti et al. (2022) without their two dropout masks (2h).

use ir::counts::{
    Shape, UnitKind, accumulated_gradient_bytes, bytes_of, held_parameters, parameter_bytes, unit_counts,
};
use ir::program::{Chunk, Pass, UnitRange};
use ir::{Bytes, GradientFormat, LogitCopies, Recompute, ZeroStage};

mod figure;
mod kept;
mod sizes;
mod workspace;

pub use figure::{Figures, MemoryKind, add_unused, divided, passes};
pub use kept::{Keep, KeptTensor, Reader, kept_tensors};
use kept::{is_kept, is_recomputed, sum_of_kept};

/// Sums a count over the units of a range: of those that the chunk's recomputation concerns, and of the others. Equal units
/// are counted once.
fn over_units(shape: Shape<'_>, chunk: &Chunk, units: UnitRange, of: impl Fn(UnitKind, Recompute) -> Bytes) -> Bytes {
    parts(shape, chunk, units).map(|(kind, recompute, count)| of(kind, recompute) * u64::from(count)).sum()
}

/// The largest of a count over the units of a range.
fn largest(shape: Shape<'_>, chunk: &Chunk, units: UnitRange, of: impl Fn(UnitKind, Recompute) -> Bytes) -> Bytes {
    parts(shape, chunk, units).map(|(kind, recompute, _)| of(kind, recompute)).max().unwrap_or(Bytes::ZERO)
}

/// Kinds of units in a range, what is computed again of them, and how many there are.
fn parts(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> impl Iterator<Item = (UnitKind, Recompute, u32)> {
    let counts = unit_counts(shape.model, chunk, units);
    let half = |counts: [u32; UnitKind::COUNT], recompute| {
        UnitKind::ALL.into_iter().zip(counts).map(move |(kind, count)| (kind, recompute, count))
    };
    half(counts.recomputed, chunk.recompute)
        .chain(half(counts.kept, Recompute::None))
        .filter(|(_, _, count)| *count > 0)
}

/// Parameters that one rank holds of a chunk before any sharding (its part of each matrix, its experts; norms whole; padded
/// vocabulary). A tied head on another chunk than the embedding holds its own copy.
#[must_use]
pub fn parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    held_parameters(shape, chunk, chunk.all_units()).total()
}

/// Parameters that one rank steps: all of them under ZeRO-0, else its part, of experts over the ranks that hold the same
/// ones (each rounded up).
#[must_use]
pub fn stepped_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    let held = held_parameters(shape, chunk, chunk.all_units());
    let over = |parameters: u64, ranks: u32| parameters.div_ceil(u64::from(ranks.max(1)));
    over(held.common, shape.layout.shard()) + over(held.experts, shape.layout.expert_shard())
}

/// Weights, gradients and optimizer state that stay on the device through an iteration, of `parameters` held and `stepped`
/// stepped parameters (of all chunks of the rank).
///
/// | | weights | gradients | optimizer |
/// |---|---|---|---|
/// | half precision | 2 | 2 or 4, as the recipe says | 12 of each stepped: FP32 weight and two moments |
/// | FP32, TF32 | 4 | 4 | 8 |
/// | ZeRO-3, FP32 gradients (FSDP) | 4, the FP32 weight itself | 4 | 8 |
///
/// ZeRO-2 and 3 hold the gradients of stepped parameters only, ZeRO-3 their weights only; what is gathered or not yet
/// scattered is a buffer of the program. An optimizer in host memory holds nothing here. So Megatron-LM's distributed
/// optimizer has `2 + 4 + 12/d` bytes, DeepSpeed's ZeRO-1 `2 + 2 + 12/d`, FSDP `16/d`.
#[must_use]
pub fn state(shape: Shape<'_>, parameters: u64, stepped: u64) -> (Bytes, Bytes, Bytes) {
    let (zero, half) = (shape.layout.zero, shape.workload.precision.is_half());
    let single = zero == ZeroStage::Zero3 && shape.workload.recipe.gradients == GradientFormat::Fp32;
    let weights = match zero {
        _ if shape.layout.sharing.offload_parameters => Bytes::ZERO,
        ZeroStage::Zero0 | ZeroStage::Zero1 | ZeroStage::Zero2 => parameter_bytes(shape, parameters),
        ZeroStage::Zero3 if single => bytes_of([stepped, 4]),
        ZeroStage::Zero3 => parameter_bytes(shape, stepped),
    };
    let gradients = match zero {
        ZeroStage::Zero0 | ZeroStage::Zero1 => accumulated_gradient_bytes(shape, parameters),
        ZeroStage::Zero2 | ZeroStage::Zero3 => accumulated_gradient_bytes(shape, stepped),
    };
    let each = match (shape.layout.sharing.offload_optimizer, half && !single) {
        (true, _) => 0,
        (false, true) => 12,
        (false, false) => 8,
    };
    (weights, gradients, bytes_of([stepped, each]))
}

/// What a forward pass over `units` of a chunk keeps for the backward pass, of one microbatch, given the chunk's
/// recomputation (with [`ir::Recompute::Full`] only the input of each layer that it concerns). The logits are not in it.
#[must_use]
pub fn kept(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| sum_of_kept(shape, kind, |keep, _| is_kept(keep, recompute)))
}

/// What a recomputation of `units` brings back until the backward pass has used it: all that full recomputation threw
/// away. Selective recomputation works inside the backward pass: see [`workspace`].
#[must_use]
pub fn recomputed(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| {
        sum_of_kept(shape, kind, |keep, _| is_recomputed(keep, recompute))
    })
}

/// Of what is kept, what `BackwardInput` gives back: no weight gradient reads it, and no gradient that waits for
/// `BackwardWeight` takes its place (see [`left_for_weights`]).
#[must_use]
pub fn kept_until_inputs(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| {
        let there = sum_of_kept(shape, kind, |keep, reader| is_kept(keep, recompute) && reader == Reader::Inputs);
        Bytes::new(there.get().saturating_sub(workspace::left(shape, kind)))
    })
}

/// The same of what is recomputed.
#[must_use]
pub fn recomputed_until_inputs(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| {
        let there = sum_of_kept(shape, kind, |keep, reader| is_recomputed(keep, recompute) && reader == Reader::Inputs);
        Bytes::new(there.get().saturating_sub(workspace::left(shape, kind)))
    })
}

/// What a split backward pass leaves from `BackwardInput` for `BackwardWeight` in places of its own. It leaves the gradient
/// of each matrix's and norm's output, and inputs gathered again; unit by unit these take the places of what only input
/// gradients read, as far as they reach. The logits' gradient is in the logits' buffer.
#[must_use]
pub fn left_for_weights(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| {
        let left = workspace::left(shape, kind);
        Bytes::new(left - left.min(read_by_inputs(shape, kind, recompute)))
    })
}

/// What is there of a unit in a backward pass, kept or recomputed, that only input gradients read.
fn read_by_inputs(shape: Shape<'_>, kind: UnitKind, recompute: Recompute) -> u64 {
    let there = |keep| is_kept(keep, recompute) || is_recomputed(keep, recompute);
    sum_of_kept(shape, kind, |keep, reader| there(keep) && reader == Reader::Inputs).get()
}

/// What one instruction needs only while it runs: that of its most demanding unit. Forward: what the unit makes and does
/// not keep, its output, and its input gathered from sequence-parallel ranks. Backward: the gradients inside the unit, of
/// its input and of the residual stream, what it gathers again, and the attention core that selective recomputation brings
/// back.
#[must_use]
pub fn workspace(shape: Shape<'_>, chunk: &Chunk, pass: Pass, units: UnitRange) -> Bytes {
    match pass {
        Pass::Forward => largest(shape, chunk, units, |kind, recompute| {
            sum_of_kept(shape, kind, |keep, _| keep != Keep::Chosen && !is_kept(keep, recompute))
                + Bytes::new(workspace::forward(shape, kind))
        }),
        Pass::Recompute => largest(shape, chunk, units, |kind, _| Bytes::new(workspace::forward(shape, kind))),
        Pass::BackwardInput => largest(shape, chunk, units, |kind, recompute| {
            // The unit's own gradients, before they take the place of what they were made from.
            let own = workspace::left(shape, kind).min(read_by_inputs(shape, kind, recompute));
            Bytes::new(workspace::gradients(shape, kind, recompute) + own)
        }),
        Pass::Backward => largest(shape, chunk, units, |kind, recompute| {
            Bytes::new(workspace::gradients(shape, kind, recompute) + workspace::left(shape, kind))
        }),
        Pass::BackwardWeight => Bytes::ZERO,
    }
}

/// Logits of one microbatch and what the loss keeps of them, on one rank; zero where the chunk has no head.
///
/// Of each, in half precision, with [`ir::LogitCopies`] and [`ir::Recipe::fused_loss`]:
///
/// | | fused | elementary |
/// |---|---|---|
/// | held | 10: the logits, an FP32 copy, its gradient; 9.9 fits published peaks of Megatron-LM's sharded loss | 16: FP32 logits, logarithm of the softmax, gradients of both |
/// | freed | 10 | 12: the same without the logits |
/// | half | 4: the logits and their gradient | 4 |
///
/// FP32: 4, the gradient in place; 12.
///
/// A loss that is not sharded has them of the whole vocabulary, beside the rank's own part, the parts that it gathered and
/// their concatenation (of elementary kernels in FP32): published runs with such a loss ran out of memory where 16 bytes
/// leave tens of gigabytes, with several tensor ranks only.
#[must_use]
pub fn logits(shape: Shape<'_>, chunk: &Chunk) -> Bytes {
    if !chunk.head {
        return Bytes::ZERO;
    }
    let (recipe, element) = (&shape.workload.recipe, shape.workload.precision.bytes());
    let each = match (shape.workload.precision.is_half(), recipe.fused_loss, recipe.logits) {
        (true, _, LogitCopies::Half) => 4,
        (true, true, LogitCopies::Held | LogitCopies::Freed) => 10,
        (true, false, LogitCopies::Held) => 16,
        (true, false, LogitCopies::Freed) => 12,
        (false, true, _) => 4,
        (false, false, _) => 12,
    };
    let (own, gathered) = match (recipe.sharded_loss || shape.tensor() == 1, recipe.fused_loss) {
        (true, _) => (0, 0),
        (false, true) => (element, 2 * element),
        (false, false) => (element, 2 * 4),
    };
    bytes_of([shape.tokens(), shape.loss_vocabulary(), each + gathered])
        + bytes_of([shape.tokens(), shape.rank_vocabulary(), own])
}

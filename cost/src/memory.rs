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
use ir::{Bytes, DeviceKind, GradientFormat, Recompute, ZeroStage};

mod kept;
mod sizes;
mod workspace;

pub use kept::{Keep, KeptTensor, kept_tensors};
use kept::{is_kept, sum_inside, sum_of_kept};

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
    over_units(shape, chunk, units, |kind, recompute| sum_of_kept(shape, kind, |keep| is_kept(keep, recompute)))
}

/// What of that a split backward pass needs no longer after `BackwardInput`: what lies inside mixers and activations. What
/// products and norms read stays for `BackwardWeight` (of a GPT layer 14 of 34 bytes for each token and unit of width, and
/// all scores of attention: Qi et al. 2024, section 2).
#[must_use]
pub fn kept_inside(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| sum_inside(shape, kind, recompute))
}

/// What a recomputation of `units` brings back until the backward pass has used it: all that full recomputation threw
/// away. Selective recomputation works inside the backward pass: see [`workspace`].
#[must_use]
pub fn recomputed(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, recompute| match recompute {
        Recompute::None | Recompute::Selective | Recompute::Operations => Bytes::ZERO,
        Recompute::Full => sum_of_kept(shape, kind, |keep| keep != Keep::Always),
    })
}

/// What a split backward pass leaves from `BackwardInput` for `BackwardWeight`, beyond what was kept: the gradient of
/// each matrix's and norm's output, and inputs gathered again. The logits' gradient is in the logits' buffer.
#[must_use]
pub fn left_for_weights(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(shape, chunk, units, |kind, _| Bytes::new(workspace::left(shape, kind)))
}

/// What one instruction needs only while it runs: that of its most demanding unit. Forward: what the unit makes and does
/// not keep, its output, and its input gathered from sequence-parallel ranks. Backward: the gradients inside the unit, of
/// its input and of the residual stream, what it gathers again, and the attention core that selective recomputation brings
/// back.
#[must_use]
pub fn workspace(shape: Shape<'_>, chunk: &Chunk, pass: Pass, units: UnitRange) -> Bytes {
    match pass {
        Pass::Forward => largest(shape, chunk, units, |kind, recompute| {
            sum_of_kept(shape, kind, |keep| !is_kept(keep, recompute)) + Bytes::new(workspace::forward(shape, kind))
        }),
        Pass::Recompute => largest(shape, chunk, units, |kind, _| Bytes::new(workspace::forward(shape, kind))),
        Pass::BackwardInput => {
            largest(shape, chunk, units, |kind, recompute| Bytes::new(workspace::gradients(shape, kind, recompute)))
        }
        Pass::Backward => largest(shape, chunk, units, |kind, recompute| {
            Bytes::new(workspace::gradients(shape, kind, recompute) + workspace::left(shape, kind))
        }),
        Pass::BackwardWeight => Bytes::ZERO,
    }
}

/// Logits of one microbatch and what the loss keeps of them, on one rank; zero where the chunk has no head.
///
/// Half precision: 10 bytes of each (the logits, an FP32 copy, the FP32 gradient), which is what fits published peaks of
/// Megatron-LM's sharded cross-entropy (9.9); 16 where the loss is not fused (shifted FP32 copies and the logarithm of the
/// softmax too). FP32: 4, the gradient in place; 12.
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
    let each = match (shape.workload.precision.is_half(), recipe.fused_loss) {
        (true, true) => 10,
        (true, false) => 16,
        (false, true) => 4,
        (false, false) => 12,
    };
    let (own, gathered) = match (recipe.sharded_loss || shape.tensor() == 1, recipe.fused_loss) {
        (true, _) => (0, 0),
        (false, true) => (element, 2 * element),
        (false, false) => (element, 2 * 4),
    };
    bytes_of([shape.tokens(), shape.loss_vocabulary(), each + gathered])
        + bytes_of([shape.tokens(), shape.rank_vocabulary(), own])
}

/// Whose figure a peak of memory is. The three differ by gigabytes, so a comparison names its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemoryKind {
    /// Tensors alone (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// What the framework's allocator holds (`max_memory_reserved`): tensors, and what it could not use again.
    Reserved,
    /// What the driver counts for the process (`nvidia-smi`): the context, communication libraries and the allocator too.
    Driver,
}

impl MemoryKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Allocated, Self::Reserved, Self::Driver];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Driver => "driver",
        }
    }
    /// The one of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What a peak has beyond weights, state, activations and buffers, as that kind of figure counts it: 0.5 GiB of workspaces
/// of matrix libraries among allocated tensors; 2 GiB (published peaks lie 1 to 3 above) of what an allocator holds; 9.5
/// GiB (10 GB) of what a driver shows. Nothing of a CPU worker (one multiprocessor), whose runtime is its process's.
#[must_use]
pub const fn reserve(device: &DeviceKind, kind: MemoryKind) -> Bytes {
    if device.multiprocessors <= 1 {
        return Bytes::ZERO;
    }
    match kind {
        MemoryKind::Allocated => Bytes::new(1 << 29),
        MemoryKind::Reserved => Bytes::from_gib(2),
        MemoryKind::Driver => Bytes::new(19 << 29),
    }
}

/// What a figure of a kind shows at a peak, of bytes that stay through an iteration (weights, state) and of those that come
/// and go (activations, buffers): their sum and [`reserve`]. A driver also shows what the allocator could not use again, a
/// quarter of what comes and goes: BLOOM's 45 runs show 1.27 times the inputs that full recomputation keeps.
#[must_use]
pub fn shown(device: &DeviceKind, kind: MemoryKind, resident: Bytes, passing: Bytes) -> Bytes {
    let unused = match kind {
        MemoryKind::Driver if device.multiprocessors > 1 => Bytes::new(passing.get() / 4),
        MemoryKind::Allocated | MemoryKind::Reserved | MemoryKind::Driver => Bytes::ZERO,
    };
    resident + passing + unused + reserve(device, kind)
}

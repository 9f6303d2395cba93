//! Counts to bytes of memory: what one rank holds.
//!
//! What the passes of a unit keep for each other is one table, [`kept_tensors`]; everything else here sums parts of it.
//! `T` is the microbatch's tokens, `R` those of the residual stream on this rank (`T/t` under sequence parallelism), `h`
//! the hidden width, `b` the bytes of the precision, `q`, `qkv` and `ffn` this rank's widths.
//!
//! For a GPT layer without dropout, 16-bit and fused attention the table sums to `(8h + 24h/t) T` bytes, which is the
//! 34h of Korthikanti et al. (2022) without their two dropout masks (2h). Tensors that an all-gather makes (the inputs and
//! output gradients of sequence-parallel units) are communication buffers and not counted here, except where they stay
//! for a later pass.

use ir::counts::{Shape, bytes_of, chunk_parameters, gradient_bytes, parameter_bytes};
use ir::program::{Chunk, Pass, Unit, UnitRange};
use ir::{AttentionKernel, Bytes, DeviceKind, NormKind, Precision, Recompute, ZeroStage};

/// When a kept tensor is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Whatever is recomputed: the input of a layer, or of a part that is never recomputed.
    Always,
    /// Unless whole layers are recomputed.
    UnlessFull,
    /// Only if the attention core is not recomputed.
    Core,
}

/// A tensor that a forward pass makes and a backward pass reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptTensor {
    /// Its name.
    pub name: &'static str,
    /// Its size on one rank.
    pub bytes: Bytes,
    /// When it is kept.
    pub keep: Keep,
}

/// What one unit's passes keep for each other, of one microbatch on one rank.
#[must_use]
pub fn kept_tensors(shape: Shape<'_>, unit: Unit) -> Vec<KeptTensor> {
    let sizes = Sizes::of(shape);
    let tensor = |name, bytes, keep| KeptTensor { name, bytes: Bytes::new(bytes), keep };
    let (residual, statistics) = (sizes.residual(), sizes.rows * sizes.norm_statistics);
    match unit {
        // The gradient is added to the rows of these tokens.
        Unit::Embedding => vec![tensor("token ids", sizes.tokens * 4, Keep::Always)],
        // The input and its statistics give the gradient of the norm; full recomputation starts from this input.
        Unit::AttentionNorm(_) => {
            vec![tensor("layer input", residual, Keep::Always), tensor("norm statistics", statistics, Keep::UnlessFull)]
        }
        Unit::MlpNorm(_) => {
            vec![
                tensor("norm input", residual, Keep::UnlessFull),
                tensor("norm statistics", statistics, Keep::UnlessFull),
            ]
        }
        Unit::Attention(_) => vec![
            // Weight gradient of the query, key and value projections; the shard only, where it is gathered again.
            tensor("normed input", residual, Keep::UnlessFull),
            // Gradient of the core.
            tensor("queries, keys, values", sizes.wide(sizes.qkv), Keep::UnlessFull),
            // Gradient of the core, and weight gradient of the output projection.
            tensor("attention output", sizes.wide(sizes.query), Keep::UnlessFull),
            tensor("attention probabilities", sizes.core, Keep::Core),
        ],
        Unit::Mlp(_) => vec![
            tensor("normed input", residual, Keep::UnlessFull),
            // Gradient of the activation.
            tensor("activation input", sizes.wide(sizes.mlp_inputs * sizes.ffn), Keep::UnlessFull),
            // Weight gradient of the last matrix.
            tensor("activation output", sizes.wide(sizes.ffn), Keep::UnlessFull),
        ],
        // The head's units are never recomputed.
        Unit::FinalNorm => {
            vec![tensor("norm input", residual, Keep::Always), tensor("norm statistics", statistics, Keep::Always)]
        }
        Unit::Head => vec![tensor("normed input", residual, Keep::Always)],
        Unit::Loss => vec![tensor("logarithm of the sum", sizes.tokens * 4, Keep::Always)],
    }
}

/// Sizes that the tables share.
struct Sizes {
    tokens: u64,
    rows: u64,
    hidden: u64,
    element: u64,
    query: u64,
    qkv: u64,
    ffn: u64,
    mlp_inputs: u64,
    norm_statistics: u64,
    /// Probabilities (plain) or the logarithm of each query's sum (fused).
    core: u64,
    sequence_parallel: bool,
}

impl Sizes {
    fn of(shape: Shape<'_>) -> Self {
        let (model, workload) = (shape.model, shape.workload);
        let heads = u64::from(model.heads).div_ceil(shape.tensor());
        Self {
            tokens: shape.tokens(),
            rows: shape.residual_tokens(),
            hidden: u64::from(model.hidden),
            element: workload.precision.bytes(),
            query: shape.rank_query_width(),
            qkv: shape.rank_query_width() + 2 * shape.rank_kv_width(),
            ffn: shape.rank_ffn(),
            mlp_inputs: model.mlp_inputs(),
            norm_statistics: match model.norm {
                NormKind::RmsNorm => 4,
                NormKind::LayerNorm => 8,
            },
            core: match workload.attention {
                AttentionKernel::Fused => bytes_of([shape.tokens(), heads, 4]).get(),
                AttentionKernel::Plain => {
                    let length = u64::from(workload.sequence_length);
                    bytes_of([shape.tokens(), length, heads, workload.precision.bytes()]).get()
                }
            },
            sequence_parallel: shape.layout.sequence_parallel && shape.layout.tensor > 1,
        }
    }
    /// `[T, width]`.
    fn wide(&self, width: u64) -> u64 {
        bytes_of([self.tokens, width, self.element]).get()
    }
    /// The residual stream on this rank, `[R, h]`.
    fn residual(&self) -> u64 {
        bytes_of([self.rows, self.hidden, self.element]).get()
    }
    /// A gathered input that stays beside its shard; nothing without sequence parallelism.
    fn gathered(&self) -> u64 {
        if self.sequence_parallel { self.wide(self.hidden) } else { 0 }
    }
}

const fn is_kept(keep: Keep, recompute: Recompute) -> bool {
    match (keep, recompute) {
        (Keep::Always, _) | (Keep::UnlessFull | Keep::Core, Recompute::None) => true,
        (Keep::UnlessFull, Recompute::Selective) => true,
        (Keep::Core, Recompute::Selective) | (Keep::UnlessFull | Keep::Core, Recompute::Full) => false,
    }
}

fn sum_of_kept(shape: Shape<'_>, unit: Unit, wanted: impl Fn(Keep) -> bool) -> Bytes {
    kept_tensors(shape, unit).into_iter().filter(|tensor| wanted(tensor.keep)).map(|tensor| tensor.bytes).sum()
}

/// Sums a count over the units of a range; equal layers are counted once.
fn over_units(chunk: &Chunk, units: UnitRange, of: impl Fn(Unit) -> Bytes) -> Bytes {
    crate::prices::class_counts(chunk, units)
        .into_iter()
        .zip(crate::prices::CLASSES)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| of(unit) * u64::from(count))
        .sum()
}

/// The largest of a count over the units of a range.
fn largest_of_units(chunk: &Chunk, units: UnitRange, of: impl Fn(Unit) -> Bytes) -> Bytes {
    crate::prices::class_counts(chunk, units)
        .into_iter()
        .zip(crate::prices::CLASSES)
        .filter(|(count, _)| *count > 0)
        .map(|(_, unit)| of(unit))
        .max()
        .unwrap_or(Bytes::ZERO)
}

/// Parameters that one rank holds of a chunk (its part of each matrix; norms whole; padded vocabulary).
/// A tied head on another chunk than the embedding holds its own copy.
#[must_use]
pub fn parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    chunk_parameters(shape, chunk)
}

/// Parameters whose optimizer state one rank holds: all of them, or its part under ZeRO-1 (rounded up).
#[must_use]
pub fn stepped_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    match shape.layout.zero {
        ZeroStage::Zero0 => parameters(shape, chunk),
        ZeroStage::Zero1 => parameters(shape, chunk).div_ceil(u64::from(shape.layout.data.max(1))),
    }
}

/// Weights, gradients and optimizer state of `parameters` held and `stepped` stepped parameters.
///
/// Half precision: weights 2, gradients 4 (accumulated in FP32), and 12 of each stepped one (FP32 master weight and two
/// moments): Megatron-LM with its distributed optimizer. FP32: 4, 4 and 8.
#[must_use]
pub fn state(shape: Shape<'_>, parameters: u64, stepped: u64) -> (Bytes, Bytes, Bytes) {
    let optimizer = match shape.workload.precision {
        Precision::Fp32 => 8,
        Precision::Fp16 | Precision::Bf16 => 12,
    };
    (parameter_bytes(shape, parameters), gradient_bytes(parameters), Bytes::new(stepped * optimizer))
}

/// What a forward pass over `units` of a chunk keeps for the backward pass, of one microbatch, given the chunk's
/// recomputation (with [`ir::Recompute::Full`] only the input of each layer). The logits are not in it.
#[must_use]
pub fn kept(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(chunk, units, |unit| sum_of_kept(shape, unit, |keep| is_kept(keep, chunk.recompute)))
}

/// What a recomputation of `units` brings back until the backward pass has used it: all that full recomputation threw
/// away. Selective recomputation works inside the backward pass: see [`workspace`].
#[must_use]
pub fn recomputed(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    match chunk.recompute {
        Recompute::None | Recompute::Selective => Bytes::ZERO,
        Recompute::Full => over_units(chunk, units, |unit| sum_of_kept(shape, unit, |keep| keep != Keep::Always)),
    }
}

/// What a split backward pass leaves from `BackwardInput` for `BackwardWeight`, beyond what was kept: the gradient of
/// each matrix's and norm's output, and inputs gathered again. The logits' gradient is in the logits' buffer.
#[must_use]
pub fn left_for_weights(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> Bytes {
    over_units(chunk, units, |unit| Bytes::new(left_by_unit(&Sizes::of(shape), unit)))
}

fn left_by_unit(sizes: &Sizes, unit: Unit) -> u64 {
    match unit {
        Unit::Embedding => sizes.wide(sizes.hidden),
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => sizes.residual(),
        Unit::Attention(_) => sizes.wide(sizes.hidden) + sizes.wide(sizes.qkv) + sizes.gathered(),
        Unit::Mlp(_) => sizes.wide(sizes.hidden) + sizes.wide(sizes.mlp_inputs * sizes.ffn) + sizes.gathered(),
        Unit::Head => sizes.gathered(),
        Unit::Loss => 0,
    }
}

/// What one instruction needs only while it runs: that of its most demanding unit. Forward: what the unit makes and does
/// not keep, and its output. Backward: the gradients inside the unit, of its input and of the residual stream, and the
/// attention core that selective recomputation brings back.
#[must_use]
pub fn workspace(shape: Shape<'_>, chunk: &Chunk, pass: Pass, units: UnitRange) -> Bytes {
    let sizes = Sizes::of(shape);
    match pass {
        Pass::Forward => largest_of_units(chunk, units, |unit| {
            sum_of_kept(shape, unit, |keep| !is_kept(keep, chunk.recompute)) + Bytes::new(output(&sizes, unit))
        }),
        Pass::Recompute => largest_of_units(chunk, units, |unit| Bytes::new(output(&sizes, unit))),
        Pass::BackwardInput => {
            largest_of_units(chunk, units, |unit| Bytes::new(gradients(&sizes, shape, chunk.recompute, unit)))
        }
        Pass::Backward => largest_of_units(chunk, units, |unit| {
            Bytes::new(
                gradients(&sizes, shape, chunk.recompute, unit) + left_by_unit(&sizes, unit) - regathered(&sizes, unit),
            )
        }),
        Pass::BackwardWeight => Bytes::ZERO,
    }
}

/// The part of what is left that an all-gather made, which is a communication buffer while one pass holds it.
fn regathered(sizes: &Sizes, unit: Unit) -> u64 {
    match unit {
        Unit::Attention(_) | Unit::Mlp(_) | Unit::Head => sizes.gathered(),
        Unit::Embedding | Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm | Unit::Loss => 0,
    }
}

fn output(sizes: &Sizes, unit: Unit) -> u64 {
    match unit {
        Unit::Embedding | Unit::Attention(_) | Unit::Mlp(_) => sizes.wide(sizes.hidden),
        // A norm's output is the body's kept input; the logits have their own buffer.
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm | Unit::Head | Unit::Loss => 0,
    }
}

fn gradients(sizes: &Sizes, shape: Shape<'_>, recompute: Recompute, unit: Unit) -> u64 {
    let residual = sizes.residual();
    match unit {
        Unit::Embedding | Unit::Loss => 0,
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => residual,
        Unit::Attention(_) => {
            let again = if matches!(recompute, Recompute::Selective) { sizes.core } else { 0 };
            let scores = match shape.workload.attention {
                AttentionKernel::Plain => sizes.core,
                AttentionKernel::Fused => 0,
            };
            residual + sizes.wide(sizes.hidden) + sizes.wide(sizes.query) + again + scores
        }
        Unit::Mlp(_) => residual + sizes.wide(sizes.hidden) + sizes.wide(sizes.ffn),
        Unit::Head => sizes.wide(sizes.hidden),
    }
}

/// Logits of one microbatch and what the loss keeps of them, on one rank; zero where the chunk has no head.
///
/// FP32: 4 bytes of each, the gradient in place. Half precision: 10 (the logits, an FP32 copy, the FP32 gradient), which
/// is what fits published peaks of Megatron-LM's sharded cross-entropy (9.9).
#[must_use]
pub fn logits(shape: Shape<'_>, chunk: &Chunk) -> Bytes {
    let each = match shape.workload.precision {
        Precision::Fp32 => 4,
        Precision::Fp16 | Precision::Bf16 => 10,
    };
    if chunk.head { bytes_of([shape.tokens(), shape.rank_vocabulary(), each]) } else { Bytes::ZERO }
}

/// What the runtime takes for itself on a device (context, communication libraries, allocator slack): 2 GiB of a GPU,
/// between the 0.5 GiB of the context alone and the 3 GiB that allocators of published runs had reserved; nothing of a
/// CPU worker (one multiprocessor), whose runtime is its process's.
#[must_use]
pub const fn reserve(device: &DeviceKind) -> Bytes {
    if device.multiprocessors <= 1 { Bytes::ZERO } else { Bytes::from_gib(2) }
}

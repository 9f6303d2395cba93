//! Parameters, activations and what ranks exchange.

use super::{Shape, bytes_of};
use crate::program::{Chunk, Payload, Unit, UnitTensor};
use crate::{Bytes, Positions, Precision};

/// Parameters that one rank of the tensor group holds of a unit (padded vocabulary).
///
/// Matrices that produce columns (query, key, value, up, gate) are split with their biases; matrices that consume rows
/// (projection, down) are split, their biases whole on every rank; norms and learned positions are whole. A tied head
/// counts as if it were its own: see [`chunk_parameters`].
#[must_use]
pub fn unit_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    let model = shape.model;
    let hidden = u64::from(model.hidden);
    let if_present = |present: bool, count: u64| if present { count } else { 0 };
    match unit {
        Unit::Embedding => shape.rank_vocabulary() * hidden + replicated_parameters(shape, unit),
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => model.norm_parameters(),
        Unit::Attention(_) => {
            let qkv = shape.rank_query_width() + 2 * shape.rank_kv_width();
            hidden * (qkv + shape.rank_query_width())
                + if_present(model.qkv_bias, qkv)
                + replicated_parameters(shape, unit)
        }
        Unit::Mlp(_) => {
            let (ffn, inputs) = (shape.rank_ffn(), model.mlp_inputs());
            (inputs + 1) * hidden * ffn + if_present(model.mlp_bias, inputs * ffn) + replicated_parameters(shape, unit)
        }
        Unit::Head => shape.rank_vocabulary() * hidden,
        Unit::Loss => 0,
    }
}

/// Parameters of a unit that every rank of the tensor group holds whole: norms, learned positions, biases of the
/// projection and of the last feed-forward matrix.
#[must_use]
pub fn replicated_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    let model = shape.model;
    let hidden = u64::from(model.hidden);
    let if_present = |present: bool| if present { hidden } else { 0 };
    match unit {
        Unit::Embedding => match model.positions {
            Positions::Rope { .. } => 0,
            Positions::Learned { maximum } => u64::from(maximum) * hidden,
        },
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => model.norm_parameters(),
        Unit::Attention(_) => if_present(model.projection_bias),
        Unit::Mlp(_) => if_present(model.mlp_bias),
        Unit::Head | Unit::Loss => 0,
    }
}

/// Parameters of a unit whose gradient each tensor rank knows only for its part of the sequence, under sequence
/// parallelism: the norms. What [`Payload::ReplicatedGradients`] reduces.
#[must_use]
pub fn partial_gradient_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    match unit {
        Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm if shape.layout.sequence_parallel => {
            shape.model.norm_parameters()
        }
        Unit::AttentionNorm(_)
        | Unit::MlpNorm(_)
        | Unit::FinalNorm
        | Unit::Embedding
        | Unit::Attention(_)
        | Unit::Mlp(_)
        | Unit::Head
        | Unit::Loss => 0,
    }
}

/// Parameters that one rank holds of a chunk. A tied head beside the embedding holds nothing of its own; on another
/// chunk it holds a copy.
#[must_use]
pub fn chunk_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    let one = |present: bool, unit: Unit| if present { unit_parameters(shape, unit) } else { 0 };
    let layer: u64 = [Unit::AttentionNorm(0), Unit::Attention(0), Unit::MlpNorm(0), Unit::Mlp(0)]
        .into_iter()
        .map(|unit| unit_parameters(shape, unit))
        .sum();
    let own_head = chunk.head && !(shape.model.tied_head && chunk.embedding);
    one(chunk.embedding, Unit::Embedding)
        + u64::from(chunk.layers) * layer
        + one(chunk.head, Unit::FinalNorm)
        + one(own_head, Unit::Head)
}

/// Bytes of a full activation `[microbatch tokens, hidden]`, before any division.
#[must_use]
pub fn activation_bytes(shape: Shape<'_>) -> Bytes {
    bytes_of([shape.tokens(), u64::from(shape.model.hidden), shape.workload.precision.bytes()])
}

/// Bytes of a message between stages, on one rank: its shard of the activation under sequence parallelism, else all.
#[must_use]
pub fn message_bytes(shape: Shape<'_>) -> Bytes {
    bytes_of([shape.residual_tokens(), u64::from(shape.model.hidden), shape.workload.precision.bytes()])
}

/// Bytes of weight gradients as they are accumulated and reduced: FP32 in every precision (as in Megatron-LM).
#[must_use]
pub const fn gradient_bytes(parameters: u64) -> Bytes {
    Bytes::new(parameters * 4)
}

/// Bytes of weights in the training precision.
#[must_use]
pub const fn parameter_bytes(shape: Shape<'_>, parameters: u64) -> Bytes {
    Bytes::new(parameters * shape.workload.precision.bytes())
}

/// Bytes that the sum of squares of gradients reads.
#[must_use]
pub const fn gradient_norm_bytes(parameters: u64) -> Bytes {
    Bytes::new(parameters.saturating_mul(4))
}

/// Bytes that an AdamW step moves. Of each parameter, FP32 reads weight, gradient and both moments, writes weight and
/// moments and clears the gradient (32); half precision does so on the FP32 master weight and writes the weight too (34).
#[must_use]
pub const fn optimizer_bytes(parameters: u64, precision: Precision) -> Bytes {
    let each = match precision {
        Precision::Fp32 => 32,
        Precision::Fp16 | Precision::Bf16 => 34,
    };
    Bytes::new(parameters.saturating_mul(each))
}

/// Bytes of the whole buffer of a collective, as [`crate::Op::Collective`] counts them.
///
/// Loss statistics: three FP32 numbers per token from every tensor rank. Tied gradients: one rank's part of the
/// embedding matrix. Gradient norm: one FP64 number.
///
/// # Panics
/// For `Gradients`, `Parameters` and `ReplicatedGradients`, whose size is that of the chunks that a rank holds: use
/// [`gradient_bytes`] and [`parameter_bytes`] of [`chunk_parameters`] (or of [`partial_gradient_parameters`]).
#[must_use]
pub fn payload_bytes(shape: Shape<'_>, payload: Payload) -> Bytes {
    match payload {
        Payload::Activation { tensor, .. } => match tensor {
            UnitTensor::Input | UnitTensor::Output | UnitTensor::OutputGradient | UnitTensor::InputGradient => {
                activation_bytes(shape)
            }
            UnitTensor::LossStatistics => bytes_of([shape.tokens(), 12, shape.tensor()]),
        },
        Payload::TiedGradients => gradient_bytes(unit_parameters(shape, Unit::Head)),
        Payload::GradientNorm => Bytes::new(8),
        Payload::Gradients { .. } | Payload::Parameters { .. } | Payload::ReplicatedGradients => {
            panic!("the size of {payload:?} is that of parameters, not of a shape")
        }
    }
}

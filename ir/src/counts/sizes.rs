//! Bytes of activations, gradients and what ranks exchange.

use super::{Shape, UnitKind, bytes_of, kind_parameters};
use crate::program::{Payload, UnitTensor};
use crate::workload::GradientFormat;
use crate::{Bytes, Precision};

/// Bytes of one rank's part of a full activation `[microbatch tokens, hidden]`, before any division over its tensor group.
#[must_use]
pub fn activation_bytes(shape: Shape<'_>) -> Bytes {
    wide(shape, shape.tokens(), u64::from(shape.model.hidden))
}

/// Bytes of a message between stages, on one rank: its tokens' activation, of them its shard under sequence parallelism or
/// where the recipe scatters messages over the tensor group.
#[must_use]
pub fn message_bytes(shape: Shape<'_>) -> Bytes {
    let tokens = if shape.workload.recipe.scattered_messages {
        shape.tokens().div_ceil(shape.tensor())
    } else {
        shape.residual_tokens()
    };
    wide(shape, tokens, u64::from(shape.model.hidden))
}

/// `[tokens, width]` in the format of activations.
fn wide(shape: Shape<'_>, tokens: u64, width: u64) -> Bytes {
    bytes_of([tokens, width, shape.workload.precision.bytes()])
}

const fn gradient_size(shape: Shape<'_>, format: GradientFormat) -> u64 {
    match (format, shape.workload.precision.is_half()) {
        (GradientFormat::Half, true) => 2,
        (GradientFormat::Half, false) | (GradientFormat::Fp32, _) => 4,
    }
}

/// Bytes of weight gradients as they cross the network: in the recipe's `reduced_gradients`.
#[must_use]
pub const fn gradient_bytes(shape: Shape<'_>, parameters: u64) -> Bytes {
    Bytes::new(parameters.saturating_mul(gradient_size(shape, shape.workload.recipe.reduced_gradients)))
}

/// Bytes of weight gradients as they are accumulated and held: in the recipe's `gradients`.
#[must_use]
pub const fn accumulated_gradient_bytes(shape: Shape<'_>, parameters: u64) -> Bytes {
    Bytes::new(parameters.saturating_mul(gradient_size(shape, shape.workload.recipe.gradients)))
}

/// Bytes of weights in the training precision.
#[must_use]
pub const fn parameter_bytes(shape: Shape<'_>, parameters: u64) -> Bytes {
    Bytes::new(parameters.saturating_mul(shape.workload.precision.bytes()))
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
        Precision::Fp32 | Precision::Tf32 => 32,
        Precision::Fp16 | Precision::Bf16 | Precision::Fp8 => 34,
    };
    Bytes::new(parameters.saturating_mul(each))
}

/// Bytes that cross to host memory, and back, for an optimizer step there: gradients as they are held, stepped weights in
/// the training precision.
#[must_use]
pub const fn host_optimizer_bytes(shape: Shape<'_>, stepped: u64) -> (Bytes, Bytes) {
    (accumulated_gradient_bytes(shape, stepped), parameter_bytes(shape, stepped))
}

/// Bytes of the whole buffer of a collective over a tensor of a unit, as [`crate::Op::Collective`] counts them. `T` is the
/// microbatch's tokens on one rank of those that share its sequences, `b` the bytes of an activation.
///
/// | tensor | bytes |
/// |---|---|
/// | input, input gradient | `T hidden b`; of latent attention the low-rank vectors, `T (query rank + kv rank + rotary) b`, because what leads into them runs before the gather |
/// | output, output gradient | `T hidden b` |
/// | loss statistics | `T 12` from every rank that holds rows of the vocabulary |
/// | logits | `T padded-vocabulary b` |
/// | keys and values | both, of this rank's heads and of all tokens of the context group; a delta rule or state space passes its state on: `state b` of each rank |
/// | heads | queries, keys and values (or the core's output) of this rank's tokens: the mean of the two, `T (queries + keys + values + outputs) b / 2` |
/// | dispatched, combined | copies of this rank's tokens, one for each active expert, times the imbalance: `T/t active hidden b` |
/// | expert input | copies that reach the rank's experts, of all its expert-tensor group: `received hidden b` |
/// | router statistics | an FP32 number for each sequence and expert: `sequences experts 4` |
#[must_use]
pub fn unit_tensor_bytes(shape: Shape<'_>, kind: UnitKind, tensor: UnitTensor) -> Bytes {
    let hidden = u64::from(shape.model.hidden);
    match tensor {
        UnitTensor::Input | UnitTensor::InputGradient => wide(shape, shape.tokens(), gathered_width(shape, kind)),
        UnitTensor::Output | UnitTensor::OutputGradient => activation_bytes(shape),
        UnitTensor::LossStatistics => bytes_of([shape.tokens(), 12, shape.vocabulary_parts()]),
        UnitTensor::Logits => wide(shape, shape.tokens(), shape.rank_vocabulary() * shape.tensor()),
        UnitTensor::KeysAndValues => {
            let (_, key_value, state) = mixer_widths(shape, kind);
            match state {
                0 => wide(shape, shape.tokens() * shape.context(), key_value),
                state => bytes_of([u64::from(shape.layout.microbatch_size), shape.context(), state, 4]),
            }
        }
        UnitTensor::Heads => {
            let (query_output, key_value, _) = mixer_widths(shape, kind);
            wide(shape, shape.tokens(), (query_output + key_value).div_ceil(2))
        }
        UnitTensor::Dispatched | UnitTensor::Combined => {
            wide(shape, shape.received_copies().div_ceil(shape.expert_tensor()), hidden)
        }
        UnitTensor::ExpertInput => wide(shape, shape.received_copies(), hidden),
        UnitTensor::RouterStatistics => {
            bytes_of([u64::from(shape.layout.microbatch_size), u64::from(shape.experts().count), 4])
        }
    }
}

/// Width of what sequence-parallel ranks gather for a unit.
pub(super) fn gathered_width(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let hidden = u64::from(shape.model.hidden);
    match (kind, shape.model.variants.latent) {
        (UnitKind::Latent, Some(latent)) => {
            let query = latent.query_rank.map_or(hidden, u64::from);
            query + u64::from(latent.kv_rank) + u64::from(latent.rotary_head_dim)
        }
        _ => hidden,
    }
}

/// Widths on one rank: queries and outputs together, keys and values together; and the numbers of a state, where a mixer
/// has one instead of keys and values.
fn mixer_widths(shape: Shape<'_>, kind: UnitKind) -> (u64, u64, u64) {
    let variants = &shape.model.variants;
    match (kind, variants.latent, variants.mamba, variants.delta) {
        (UnitKind::Latent, Some(latent), _, _) => {
            let key = u64::from(latent.plain_head_dim) + u64::from(latent.rotary_head_dim);
            let both = shape.rank_heads() * (key + u64::from(latent.value_head_dim));
            (both, both, 0)
        }
        (UnitKind::Mamba, _, Some(mamba), _) => {
            let inner = u64::from(mamba.inner).div_ceil(shape.tensor());
            (2 * inner, inner, inner * u64::from(mamba.state))
        }
        (UnitKind::GatedDelta, _, _, Some(delta)) => {
            let key = u64::from(delta.key_heads).div_ceil(shape.tensor()) * u64::from(delta.key_head_dim);
            let heads = u64::from(delta.value_heads).div_ceil(shape.tensor());
            let value = heads * u64::from(delta.value_head_dim);
            (key + value, key + value, value * u64::from(delta.key_head_dim))
        }
        _ => (2 * shape.rank_query_width(), 2 * shape.rank_kv_width(), 0),
    }
}

/// Bytes of the whole buffer of a collective, as [`crate::Op::Collective`] counts them: of an activation, see
/// [`unit_tensor_bytes`], here of the largest kind of unit that the model has. Tied gradients: one rank's part of the
/// embedding matrix. Gradient norm: one FP64 number.
///
/// # Panics
/// For gradients and parameters of chunks and units, whose size is that of what a rank holds: use [`gradient_bytes`] and
/// [`parameter_bytes`] of [`super::held_parameters`] (or of [`super::chunk_partial_gradient_parameters`]).
#[must_use]
pub fn payload_bytes(shape: Shape<'_>, payload: Payload) -> Bytes {
    match payload {
        Payload::Activation { tensor, .. } => match tensor {
            UnitTensor::KeysAndValues | UnitTensor::Heads => shape
                .model
                .runs()
                .map(|run| unit_tensor_bytes(shape, UnitKind::of_mixer(run.mixer), tensor))
                .max()
                .unwrap_or(Bytes::ZERO),
            UnitTensor::Input
            | UnitTensor::InputGradient
            | UnitTensor::Output
            | UnitTensor::OutputGradient
            | UnitTensor::LossStatistics
            | UnitTensor::Logits
            | UnitTensor::Dispatched
            | UnitTensor::Combined
            | UnitTensor::ExpertInput
            | UnitTensor::RouterStatistics => unit_tensor_bytes(shape, UnitKind::Experts, tensor),
        },
        Payload::TiedGradients => gradient_bytes(shape, kind_parameters(shape, UnitKind::Head)),
        Payload::GradientNorm => Bytes::new(8),
        Payload::Gradients { .. }
        | Payload::Parameters { .. }
        | Payload::ExpertGradients { .. }
        | Payload::ExpertParameters { .. }
        | Payload::UnitParameters { .. }
        | Payload::UnitGradients { .. }
        | Payload::ReplicatedGradients => {
            panic!("the size of {payload:?} is that of parameters, not of a shape")
        }
    }
}

//! Bytes of what ranks exchange.

use super::models::{deepseek, gpt2, llama_8b, qwen3_30b, qwen3_next};
use super::*;
use crate::program::{Payload, Unit, UnitTensor};
use crate::{ChunkId, GradientFormat, MicrobatchId};

fn activation(tensor: UnitTensor) -> Payload {
    let (chunk, microbatch) = (ChunkId::new(0), MicrobatchId::new(0));
    Payload::Activation { tensor, chunk, unit: 0, microbatch, pass: Pass::Forward }
}

#[test]
fn sequence_parallelism_divides_norms_and_messages() {
    let model = gpt2();
    let workload = workload();
    let (split, plain) = (layout(4, true), layout(4, false));
    let with = Shape { model: &model, workload: &workload, layout: &split };
    let without = Shape { model: &model, workload: &workload, layout: &plain };
    let norm = |shape| streamed(shape, UnitKind::MlpNorm, Pass::Forward);
    assert_eq!(norm(with) * 4, norm(without));
    assert_eq!(message_bytes(with).get() * 4, message_bytes(without).get());
    assert_eq!(message_bytes(without), activation_bytes(without));
    assert_eq!(partial_gradient_parameters(without, Unit::FinalNorm), 0);
    assert_eq!(partial_gradient_parameters(with, Unit::FinalNorm), 2 * 768);
    assert_eq!(payload_bytes(with, activation(UnitTensor::Output)), activation_bytes(with));
    assert_eq!(payload_bytes(with, activation(UnitTensor::LossStatistics)).get(), 2048 * 12 * 4);
    assert_eq!(payload_bytes(with, Payload::GradientNorm).get(), 8);
    assert_eq!(payload_bytes(with, activation(UnitTensor::Logits)).get(), 2048 * 50_260 * 2);
}

#[test]
fn scattered_messages_are_divided_too() {
    let model = gpt2();
    let (mut workload, layout) = (workload(), layout(4, false));
    let bytes = |workload: &Workload| message_bytes(Shape { model: &model, workload, layout: &layout }).get();
    let whole = bytes(&workload);
    workload.recipe.scattered_messages = true;
    assert_eq!(bytes(&workload) * 4, whole);
}

#[test]
fn context_ranks_divide_tokens() {
    let model = llama_8b();
    let (workload, mut layout) = (workload(), layout(2, true));
    layout.mesh.context = 4;
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    assert_eq!((shape.tokens(), shape.residual_tokens()), (512, 256));
    assert_eq!(message_bytes(shape).get(), 256 * 4096 * 2);
    // Keys and values of four heads, of all 2,048 tokens.
    let bytes = |tensor| unit_tensor_bytes(shape, UnitKind::Attention, tensor).get();
    assert_eq!(bytes(UnitTensor::KeysAndValues), 2048 * 2 * 4 * 128 * 2);
    // Queries, keys and values on the way out, outputs back: on the mean 16 heads of queries and 4 of keys.
    assert_eq!(bytes(UnitTensor::Heads), 512 * (16 + 4) * 128 * 2);
    assert_eq!(payload_bytes(shape, activation(UnitTensor::Heads)).get(), bytes(UnitTensor::Heads));
}

#[test]
fn mixers_exchange_what_they_have() {
    let (workload, mut layout) = (workload(), layout(8, true));
    layout.mesh.context = 2;
    let model = deepseek();
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let bytes = |kind, tensor| unit_tensor_bytes(shape, kind, tensor).get();
    // Low-rank vectors are gathered in place of the hidden state.
    assert_eq!(bytes(UnitKind::Latent, UnitTensor::Input), 1024 * (1536 + 512 + 64) * 2);
    assert_eq!(bytes(UnitKind::Dense, UnitTensor::Input), 1024 * 7168 * 2);
    assert_eq!(bytes(UnitKind::Latent, UnitTensor::KeysAndValues), 2048 * 16 * (192 + 128) * 2);
    let model = qwen3_next();
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    // Each of two ranks a state of 128 x 128 of four heads, in FP32, for two sequences.
    let state = unit_tensor_bytes(shape, UnitKind::GatedDelta, UnitTensor::KeysAndValues).get();
    assert_eq!(state, 2 * 2 * 4 * 128 * 128 * 4);
}

#[test]
fn experts_get_copies() {
    let model = qwen3_30b();
    let (workload, mut layout) = (workload(), layout(2, true));
    (layout.mesh.expert, layout.mesh.expert_tensor, layout.data) = (4, 2, 4);
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let bytes = |tensor| payload_bytes(shape, activation(tensor)).get();
    // Each rank's 1,024 tokens go to eight experts each; two ranks share what arrives.
    assert_eq!(bytes(UnitTensor::Dispatched), 1024 * 8 * 2048 * 2);
    assert_eq!(bytes(UnitTensor::Combined), bytes(UnitTensor::Dispatched));
    assert_eq!(bytes(UnitTensor::ExpertInput), 2 * bytes(UnitTensor::Dispatched));
}

#[test]
fn gradients_have_their_recipe_s_format() {
    let model = llama_8b();
    let (mut workload, layout) = (workload(), layout(1, false));
    let bytes = |workload: &Workload| {
        let shape = Shape { model: &model, workload, layout: &layout };
        let (out, back) = host_optimizer_bytes(shape, 100);
        [gradient_bytes(shape, 100), accumulated_gradient_bytes(shape, 100), out, back].map(Bytes::get)
    };
    assert_eq!(bytes(&workload), [400, 400, 400, 200]);
    workload.recipe.reduced_gradients = GradientFormat::Half;
    assert_eq!(bytes(&workload), [200, 400, 400, 200]);
    workload.recipe.gradients = GradientFormat::Half;
    assert_eq!(bytes(&workload), [200, 200, 200, 200]);
    // The format of FP32 weights is FP32.
    workload.precision = Precision::Fp32;
    assert_eq!(bytes(&workload), [400; 4]);
}

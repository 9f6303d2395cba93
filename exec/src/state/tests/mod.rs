//! Whole models: against a reference in double precision, and divided against one rank.

mod divided;
mod faults;
mod gradients;
mod lockstep;
mod on_device;
pub(crate) mod programs;
mod reference;

use ir::{AdamW, AttentionKernel, MlpKind, Model, NormKind, Positions, Precision, Workload};

use super::Weights;
use crate::kernels::init::RandomTensor;

/// Llama's family: RMSNorm, rotary positions, grouped queries, SwiGLU, an untied head; `heads * head_dim != hidden`.
fn llama() -> Model {
    Model {
        name: "llama-like".to_owned(),
        hidden: 16,
        layers: 4,
        heads: 8,
        kv_heads: 4,
        head_dim: 6,
        ffn: 20,
        vocabulary: 29,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 100.0 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    }
}

/// GPT-2's family: LayerNorm, learned positions, GELU, biases everywhere, a tied head.
fn gpt2() -> Model {
    Model {
        name: "gpt2-like".to_owned(),
        kv_heads: 8,
        head_dim: 4,
        norm: NormKind::LayerNorm,
        positions: Positions::Learned { maximum: 9 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        ..llama()
    }
}

fn workload() -> Workload {
    Workload {
        sequence_length: 8,
        global_batch: 8,
        iterations: 20,
        precision: Precision::Fp32,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 4,
        optimizer: AdamW { learning_rate: 5e-3, warmup_iterations: 4, ..AdamW::default() },
        seed: 7,
        recipe: ir::Recipe::default(),
    }
}

/// Weights large enough that every part of the model matters, norms and biases included.
fn lively(model: &Model) -> Weights {
    let mut weights = Weights::initial(model, 0);
    let names: Vec<(String, Vec<usize>)> = weights.iter().map(|(n, t)| (n.to_owned(), t.shape.clone())).collect();
    for (name, shape) in names {
        let mut data = vec![0.0; shape.iter().product()];
        RandomTensor::new(11, &name).fill_normal(0.25, 0, &mut data);
        if name.contains("norm") && name.ends_with("weight") {
            data.iter_mut().for_each(|value| *value += 1.0);
        }
        weights.insert(name, shape, data);
    }
    weights
}

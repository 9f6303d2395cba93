//! How a model is trained: batch, sequence, precision, optimizer.

use serde::{Deserialize, Serialize};

/// The number format of weights and activations in matrix products.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32-bit floats throughout.
    Fp32,
    /// 16-bit IEEE floats with FP32 master weights.
    Fp16,
    /// bfloat16 with FP32 master weights.
    Bf16,
}

impl Precision {
    /// Bytes of one weight or activation.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }
}

/// How the core of attention (scores, softmax, weighted values) is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKernel {
    /// Fused and tiled: scores never reach memory (FlashAttention, Dao et al. 2022).
    Fused,
    /// Scores are written to memory and kept for the backward pass unless recomputed.
    Plain,
}

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019), linear warm-up and clipping of the global norm.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamW {
    /// Learning rate after warm-up.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, on matrices only (not norms, not biases).
    pub weight_decay: f64,
    /// Iterations of linear warm-up: iteration `i` (from 0) uses `learning_rate * min(1, (i+1)/warmup)`.
    pub warmup_iterations: u32,
    /// Gradients are scaled so that their global L2 norm is at most this; `None` leaves them.
    pub clip_norm: Option<f64>,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            learning_rate: 3e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            warmup_iterations: 0,
            clip_norm: Some(1.0),
        }
    }
}

/// A training job, whoever carries it out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Tokens of one sequence.
    pub sequence_length: u32,
    /// Sequences of one iteration, over all replicas.
    pub global_batch: u32,
    /// Iterations to run.
    pub iterations: u32,
    /// Number format.
    pub precision: Precision,
    /// Attention kernel.
    pub attention: AttentionKernel,
    /// The vocabulary is padded to a multiple of this times the tensor degree.
    pub vocabulary_divisor: u32,
    /// Optimizer.
    pub optimizer: AdamW,
    /// Seed of initial weights and of the order of data.
    pub seed: u64,
}

impl Workload {
    /// Tokens of one iteration.
    #[must_use]
    pub const fn tokens_per_iteration(&self) -> u64 {
        self.sequence_length as u64 * self.global_batch as u64
    }
}

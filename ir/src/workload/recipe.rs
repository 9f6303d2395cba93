//! How the software that trains does what the model leaves open: switches that time and memory share.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// A number format of gradients while they are accumulated or reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientFormat {
    /// 4 bytes (Megatron-LM).
    Fp32,
    /// 2 bytes: that of the weights.
    Half,
}

named!(GradientFormat { Fp32 = "fp32", Half = "half" });

impl GradientFormat {
    /// Bytes of one gradient.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Half => 2,
        }
    }
}

/// What is there of the logits while the loss runs, where the precision is 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogitCopies {
    /// FP32 copies, and the logits themselves until the backward pass has ended.
    Held,
    /// FP32 copies; the caller gives the logits back before the backward pass.
    Freed,
    /// The logits and their gradient in 16 bits: one kernel converts what it reads and writes.
    Half,
}

named!(LogitCopies { Held = "held", Freed = "freed", Half = "half" });

/// Switches of the training software. The default is Megatron-LM's with its fused kernels.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// One kernel for each normalisation and each rotation; else the elementary kernels that PyTorch runs, with FP32
    /// copies of the activation.
    pub fused_normalisation: bool,
    /// The softmax of a plain attention core in one kernel, else in elementary ones. Megatron-LM's kernel needs
    /// `microbatch_size heads / tensor` to be a multiple of 4 and is not used otherwise.
    pub fused_softmax: bool,
    /// Cross-entropy over each rank's part of the vocabulary; else every tensor rank gathers all logits.
    pub sharded_loss: bool,
    /// Cross-entropy in one kernel, else in elementary ones with FP32 copies of the logits.
    pub fused_loss: bool,
    /// What is there of the logits while the loss runs. Only memory follows it.
    pub logits: LogitCopies,
    /// A gated activation in one kernel; else its parts each keep what they read. Only memory follows it.
    pub fused_activation: bool,
    /// The allocator maps memory page by page and can use all of it again (PyTorch's `expandable_segments`). Only memory
    /// follows it.
    pub expandable_segments: bool,
    /// In what gradients are accumulated and held.
    pub gradients: GradientFormat,
    /// In what gradients cross the network.
    pub reduced_gradients: GradientFormat,
    /// Recomputation of a layer stops where the backward pass needs no more: its last product and the addition to the
    /// residual stream are left out (PyTorch's checkpointing without re-entry).
    pub early_stop_recompute: bool,
    /// Messages between stages are divided over the tensor group and gathered behind (Narayanan et al. 2021, section
    /// 4.1; DeepSpeed); sequence parallelism divides them anyway.
    pub scattered_messages: bool,
    /// A stage computes nothing while it sends or receives: each pass is longer by the messages that it waits for or hands
    /// on, as in DeepSpeed's pipeline engine; else messages go beside passes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub blocking_messages: bool,
    /// Whether the device launches whole graphs of kernels by itself, so that the host costs nothing per kernel.
    pub cuda_graphs: bool,
    /// Tokens of each document packed into a sequence, where attention stays inside documents; `None`: one document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_length: Option<u32>,
    /// A token goes to each node once, whatever experts there want it, and is passed on inside (DeepEP, Hybrid-EP); else a
    /// copy for each expert crosses the network.
    pub deduplicated_dispatch: bool,
    /// Tokens on the busiest expert rank over the mean; 1 is a perfect balance.
    pub expert_imbalance: f64,
    /// Weight of the loss that balances experts, per sequence and summed over layers: with `f` the share of a sequence's
    /// copies that go to an expert times the experts, and `P` its mean normalised score there, `weight * sum(f P)`
    /// (DeepSeek-AI 2024, V3, section 2.1.2); 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub balance_loss: f64,
    /// Tokens per second that the input pipeline delivers to one replica; `None`: as many as are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens_per_second: Option<f64>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            fused_normalisation: true,
            fused_softmax: true,
            sharded_loss: true,
            fused_loss: true,
            logits: LogitCopies::Held,
            fused_activation: true,
            expandable_segments: false,
            gradients: GradientFormat::Fp32,
            reduced_gradients: GradientFormat::Fp32,
            early_stop_recompute: false,
            scattered_messages: false,
            blocking_messages: false,
            cuda_graphs: false,
            document_length: None,
            deduplicated_dispatch: false,
            expert_imbalance: 1.0,
            balance_loss: 0.0,
            input_tokens_per_second: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl Recipe {
    /// Whether every switch is at its default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

//! Number formats of a training: what is rounded where, and how many bytes each value counts.
//!
//! In half precision (bfloat16) weights, activations and what crosses between ranks are rounded; products and sums are
//! FP32. Weights are stepped in FP32 and rounded afterwards.

use ir::{GradientFormat, Precision, Program, ZeroStage};

use super::values::ViewMut;
use crate::device::Element;
use crate::kernels::bf16;

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Formats {
    /// Whether weights and activations are bfloat16.
    half: bool,
    /// Bytes of a weight that passes read.
    pub(super) weight: u64,
    /// Bytes of a weight of this rank's part, where the whole is gathered.
    pub(super) own_weight: u64,
    /// Bytes of a gradient as it is accumulated.
    pub(super) gradient: u64,
    /// Whether gradients are rounded before they are reduced.
    reduced_half: bool,
    /// Whether FP32 weights are kept beside those that passes read.
    pub(super) master: bool,
}

impl Formats {
    /// Those of a program, of parameters that are divided over `shard` ranks.
    pub(super) fn of(program: &Program, shard: u32) -> Self {
        let (workload, layout) = (&program.workload, &program.layout);
        let half = workload.precision == Precision::Bf16;
        let halved = |format: GradientFormat| half && format == GradientFormat::Half;
        let gradient = if halved(workload.recipe.gradients) { 2 } else { 4 };
        let weight = if half { 2 } else { 4 };
        // With FP32 gradients, ZeRO-3 holds its part of the weights in FP32 and needs no others.
        let single = layout.zero == ZeroStage::Zero3 && shard > 1 && gradient == 4;
        Self {
            half,
            weight,
            own_weight: if single { 4 } else { weight },
            gradient,
            reduced_half: halved(workload.recipe.reduced_gradients) || gradient == 2,
            master: half && !single,
        }
    }
    /// Bytes of an activation.
    pub(super) const fn activation(self) -> u64 {
        self.weight
    }
    /// Whether the training is of half precision.
    pub(super) const fn is_half(self) -> bool {
        self.half
    }
    /// Rounds weights or activations. On a device they are in half precision as they are.
    pub(super) fn round<'a>(self, values: impl Into<ViewMut<'a>>) {
        if self.half {
            round(values.into());
        }
    }
    /// Rounds gradients as they are held.
    pub(super) fn round_gradients(self, values: ViewMut<'_>) {
        if self.gradient == 2 {
            round(values);
        }
    }
    /// Whether gradients that go into a reduction are rounded.
    pub(super) const fn reduces_half(self) -> bool {
        self.reduced_half
    }
    /// Whether gradients are reduced as they are.
    pub(super) const fn reduces_as_held(self) -> bool {
        !self.reduced_half || self.gradient == 2
    }
}

fn round(values: ViewMut<'_>) {
    match values {
        ViewMut::Host(values) => bf16::round(values),
        ViewMut::Device(_, slice) => assert_eq!(slice.element, Element::Bf16, "{slice} is not in half precision"),
    }
}

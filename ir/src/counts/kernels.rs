//! The kernels of each unit's passes.
//!
//! Bytes are what one fused kernel per operation reads and writes once; `b` is the precision's bytes, `T` the
//! microbatch's tokens, `R` the tokens of the residual stream on this rank (`T/t` under sequence parallelism). Where the
//! recipe says that nothing is fused, bytes and launches are those of the elementary kernels that PyTorch runs instead.

use super::{Kernel, Shape, Streaming, UnitKind, bytes_of};
use crate::program::Pass;
use crate::{Bytes, Recompute, ZeroStage};

/// Kernels that convert a tensor to FP8: with dynamic scales its largest value in two stages, then the conversion (pytorch/ao
/// torchao/float8/roofline_utils.py @086ff72); with delayed ones the conversion, the scale kept for the backward pass, and
/// the next scale (NVIDIA/TransformerEngine issue 836). All but one are as short as a kernel can be.
const CONVERSION_LAUNCHES: u32 = 3;

mod attention;
mod elementwise;
mod ends;
mod experts;
mod recurrent;

/// Which half of a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Input,
    Weight,
}

/// Pushes the kernels of one pass of a unit of a kind on one rank onto `out`.
///
/// `Backward` is `BackwardInput` then `BackwardWeight`; `Recompute` is `Forward`, where it stops early without what nobody
/// reads of the feed-forward part. With selective recomputation the backward (input) pass of attention begins with the
/// forward attention core.
///
/// # Panics
/// If the model has no sizes for that kind: see [`UnitKind::is_in`].
pub fn unit_kernels(shape: Shape<'_>, kind: UnitKind, pass: Pass, recompute: Recompute, out: &mut Vec<Kernel>) {
    let stops = pass == Pass::Recompute && shape.workload.recipe.early_stop_recompute;
    let mut list = List { shape, element: shape.workload.precision.bytes(), stops, out };
    match pass {
        Pass::Forward | Pass::Recompute => list.forward(kind),
        Pass::BackwardInput => list.backward(kind, Half::Input, recompute),
        Pass::BackwardWeight => list.backward(kind, Half::Weight, recompute),
        Pass::Backward => {
            list.backward(kind, Half::Input, recompute);
            list.backward(kind, Half::Weight, recompute);
        }
    }
}

struct List<'a, 'o> {
    shape: Shape<'a>,
    element: u64,
    /// Whether the pass ends with the input of a feed-forward part's last matrix.
    stops: bool,
    out: &'o mut Vec<Kernel>,
}

impl List<'_, '_> {
    fn forward(&mut self, kind: UnitKind) {
        match kind {
            UnitKind::Embedding => self.embedding(),
            UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::FinalNorm => self.norms(kind),
            UnitKind::RouterNorm => {
                self.norms(kind);
                self.router();
            }
            UnitKind::Attention => self.attention(None),
            UnitKind::Window => self.attention(self.shape.model.variants.window),
            UnitKind::Latent => self.latent(),
            UnitKind::Mamba => self.mamba(),
            UnitKind::GatedDelta => self.delta(),
            UnitKind::Dense => self.dense(),
            UnitKind::Experts => self.experts(),
            UnitKind::Head => self.head(),
            UnitKind::Loss => self.loss(),
        }
    }

    /// What selection by operation computes again: norms, rotations and activations, and of the products of attention the
    /// keys' and the last one, of a feed-forward part half of the first ones.
    fn again(&mut self, kind: UnitKind) {
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        match kind {
            UnitKind::AttentionNorm | UnitKind::MlpNorm => self.norms(kind),
            UnitKind::Attention | UnitKind::Window => {
                let (query, key) = (self.shape.rank_query_width(), self.shape.rank_kv_width());
                self.linear(tokens, hidden, key);
                self.rotate(tokens, query + key);
                self.linear(tokens, query, hidden);
            }
            UnitKind::Dense => {
                let (mlp, ffn) = (self.shape.model.mlp, self.shape.rank_ffn());
                self.linear(tokens, hidden, (mlp.inputs() * ffn).div_ceil(2));
                self.activation(mlp, tokens, ffn);
            }
            UnitKind::RouterNorm
            | UnitKind::Latent
            | UnitKind::Mamba
            | UnitKind::GatedDelta
            | UnitKind::Experts
            | UnitKind::Embedding
            | UnitKind::FinalNorm
            | UnitKind::Head
            | UnitKind::Loss => {}
        }
    }

    fn backward(&mut self, kind: UnitKind, half: Half, recompute: Recompute) {
        if half == Half::Input && recompute == Recompute::Operations {
            self.again(kind);
        }
        match kind {
            UnitKind::Embedding => self.embedding_backward(half),
            UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::FinalNorm => self.norms_backward(kind, half),
            UnitKind::RouterNorm => {
                self.router_backward(half);
                self.norms_backward(kind, half);
            }
            UnitKind::Attention => self.attention_backward(None, half, recompute),
            UnitKind::Window => self.attention_backward(self.shape.model.variants.window, half, recompute),
            UnitKind::Latent => self.latent_backward(half, recompute),
            UnitKind::Mamba => self.mamba_backward(half),
            UnitKind::GatedDelta => self.delta_backward(half),
            UnitKind::Dense => self.dense_backward(half),
            UnitKind::Experts => self.experts_backward(half),
            UnitKind::Head => self.head_backward(half),
            UnitKind::Loss => self.loss_backward(half),
        }
    }

    fn hidden(&self) -> u64 {
        u64::from(self.shape.model.hidden)
    }
    fn product(&mut self, m: u64, n: u64, k: u64) {
        self.out.push(Kernel::MatrixProduct { m, n, k });
    }
    fn stream(&mut self, kind: Streaming, bytes: u64, launches: u32) {
        self.out.push(Kernel::Streaming { kind, bytes: Bytes::new(bytes), launches });
    }
    /// `[tokens, width]` in the training precision, `times` over.
    fn pass_over(&self, tokens: u64, width: u64, times: u64) -> u64 {
        bytes_of([tokens, width, times, self.element]).get()
    }

    /// `[tokens, inputs] x [inputs, outputs]` of a layer, with its conversions in FP8.
    fn linear(&mut self, tokens: u64, inputs: u64, outputs: u64) {
        if self.converts() {
            self.cast(tokens, inputs);
            self.cast_weights(bytes_of([inputs, outputs]).get());
        }
        self.product(tokens, outputs, inputs);
    }
    /// A feed-forward part's last matrix: its input is kept converted, its result is what nobody reads of a recomputation.
    fn last_linear(&mut self, tokens: u64, inputs: u64, outputs: u64) {
        if !self.stops {
            self.linear(tokens, inputs, outputs);
        } else if self.converts() {
            self.cast(tokens, inputs);
        }
    }
    /// The half of its backward pass: `[tokens, outputs] x [outputs, inputs]`, or `[inputs, tokens] x [tokens, outputs]`.
    fn linear_backward(&mut self, half: Half, tokens: u64, inputs: u64, outputs: u64) {
        match half {
            Half::Input => {
                if self.converts() {
                    self.cast(tokens, outputs);
                }
                self.product(tokens, inputs, outputs);
            }
            Half::Weight => self.product(inputs, outputs, tokens),
        }
    }
    const fn converts(&self) -> bool {
        matches!(self.shape.workload.precision, crate::Precision::Fp8)
    }
    /// Conversion of an activation or a gradient: reads 16 bits, writes 8 twice, as it is and transposed for the product
    /// of the other pass (Micikevicius et al. 2022; both operands of an FP8 product lie along the contracted size).
    fn cast(&mut self, tokens: u64, width: u64) {
        self.stream(Streaming::Cast, bytes_of([tokens, width, 4]).get(), CONVERSION_LAUNCHES);
    }
    /// Conversion of weights: once in an iteration, of which each microbatch carries its share; where parameters are
    /// gathered for each pass (ZeRO-3), in each.
    fn cast_weights(&mut self, elements: u64) {
        let shares = match self.shape.layout.zero {
            ZeroStage::Zero3 => 1,
            ZeroStage::Zero0 | ZeroStage::Zero1 | ZeroStage::Zero2 => u64::from(self.shape.layout.microbatches.max(1)),
        };
        self.stream(
            Streaming::Cast,
            bytes_of([elements, 4]).get().div_ceil(shares),
            if shares == 1 { CONVERSION_LAUNCHES } else { 0 },
        );
    }
}

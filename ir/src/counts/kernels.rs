//! The kernels of each unit's passes.
//!
//! Bytes are what one fused kernel per operation reads and writes once; `b` is the precision's bytes, `T` the
//! microbatch's tokens, `R` the tokens of the residual stream on this rank (`T/t` under sequence parallelism).

use super::{Kernel, Shape, Streaming, bytes_of};
use crate::program::{Pass, Unit};
use crate::{AttentionKernel, Bytes, MlpKind, NormKind, Positions, Precision, Recompute};

/// Which half of a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Input,
    Weight,
}

/// Pushes the kernels of one unit's pass on one rank onto `out`.
///
/// `Backward` is `BackwardInput` then `BackwardWeight`; `Recompute` is `Forward`. With selective recomputation the
/// backward (input) pass of attention begins with the forward attention core.
pub fn unit_kernels(shape: Shape<'_>, unit: Unit, pass: Pass, recompute: Recompute, out: &mut Vec<Kernel>) {
    let mut list = List { shape, element: shape.workload.precision.bytes(), out };
    match pass {
        Pass::Forward | Pass::Recompute => list.forward(unit),
        Pass::BackwardInput => list.backward(unit, Half::Input, recompute),
        Pass::BackwardWeight => list.backward(unit, Half::Weight, recompute),
        Pass::Backward => {
            list.backward(unit, Half::Input, recompute);
            list.backward(unit, Half::Weight, recompute);
        }
    }
}

struct List<'a, 'o> {
    shape: Shape<'a>,
    element: u64,
    out: &'o mut Vec<Kernel>,
}

impl List<'_, '_> {
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
    /// Width of this rank's queries, keys and values together.
    const fn qkv(&self) -> u64 {
        self.shape.rank_query_width() + 2 * self.shape.rank_kv_width()
    }

    /// The model's norm, forward and backward.
    const fn norm_kind(&self) -> (Streaming, Streaming) {
        match self.shape.model.norm {
            NormKind::RmsNorm => (Streaming::RmsNorm, Streaming::RmsNormBackward),
            NormKind::LayerNorm => (Streaming::LayerNorm, Streaming::LayerNormBackward),
        }
    }

    /// The model's activation, forward and backward.
    const fn activation_kind(&self) -> (Streaming, Streaming) {
        match self.shape.model.mlp {
            MlpKind::SwiGlu => (Streaming::SwiGlu, Streaming::SwiGluBackward),
            MlpKind::Gelu => (Streaming::Gelu, Streaming::GeluBackward),
        }
    }

    fn forward(&mut self, unit: Unit) {
        let shape = self.shape;
        let (tokens, rows, hidden) = (shape.tokens(), shape.residual_tokens(), u64::from(shape.model.hidden));
        match unit {
            Unit::Embedding => {
                // Reads the rows that this rank holds, writes [T, hidden]; positions are added in the same kernel.
                let bytes =
                    self.pass_over(tokens, hidden, 1) + self.pass_over(tokens.div_ceil(shape.tensor()), hidden, 1);
                self.stream(Streaming::Embedding, bytes, 1);
            }
            Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm => {
                self.stream(self.norm_kind().0, self.pass_over(rows, hidden, 2), 1);
            }
            Unit::Attention(_) => {
                self.product(tokens, self.qkv(), hidden);
                self.qkv_elementwise(tokens);
                self.attention_core(false);
                self.product(tokens, hidden, shape.rank_query_width());
                // x += reduced branch: two reads and a write. The projection's bias goes with it.
                self.stream(Streaming::Add, self.pass_over(rows, hidden, 3), 1);
            }
            Unit::Mlp(_) => {
                let (ffn, inputs) = (shape.rank_ffn(), shape.model.mlp_inputs());
                self.product(tokens, inputs * ffn, hidden);
                // Reads each input branch (its bias with it), writes one.
                self.stream(self.activation_kind().0, self.pass_over(tokens, ffn, inputs + 1), 1);
                self.product(tokens, hidden, ffn);
                self.stream(Streaming::Add, self.pass_over(rows, hidden, 3), 1);
            }
            Unit::Head => {
                self.product(tokens, shape.rank_vocabulary(), hidden);
                self.stream(
                    Streaming::CrossEntropy,
                    bytes_of([tokens, shape.rank_vocabulary(), statistics_bytes(self.precision())]).get(),
                    1,
                );
            }
            // Three FP32 statistics per token from each tensor rank.
            Unit::Loss => self.stream(Streaming::Add, bytes_of([tokens, 12, shape.tensor()]).get(), 1),
        }
    }

    fn backward(&mut self, unit: Unit, half: Half, recompute: Recompute) {
        let shape = self.shape;
        let (tokens, rows, hidden) = (shape.tokens(), shape.residual_tokens(), u64::from(shape.model.hidden));
        match (unit, half) {
            (Unit::Embedding, Half::Input) | (Unit::Loss, Half::Weight) => {}
            (Unit::Embedding, Half::Weight) => self.embedding_gradient(tokens, hidden),
            // Reads the gradient, the input and the residual's gradient; writes their sum.
            (Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm, Half::Input) => {
                self.stream(self.norm_kind().1, self.pass_over(rows, hidden, 4), 1);
            }
            // Reads the gradient and the input; the sums are small.
            (Unit::AttentionNorm(_) | Unit::MlpNorm(_) | Unit::FinalNorm, Half::Weight) => {
                self.stream(self.norm_kind().1, self.pass_over(rows, hidden, 2), 1);
            }
            (Unit::Attention(_), Half::Input) => {
                if recompute == Recompute::Selective {
                    self.attention_core(false);
                }
                self.product(tokens, shape.rank_query_width(), hidden);
                self.attention_core(true);
                self.rope(tokens);
                self.product(tokens, hidden, self.qkv());
            }
            (Unit::Attention(_), Half::Weight) => {
                self.product(shape.rank_query_width(), hidden, tokens);
                self.product(hidden, self.qkv(), tokens);
                self.bias_gradient(shape.model.projection_bias, tokens, hidden);
                self.bias_gradient(shape.model.qkv_bias, tokens, self.qkv());
            }
            (Unit::Mlp(_), Half::Input) => {
                let (ffn, inputs) = (shape.rank_ffn(), shape.model.mlp_inputs());
                self.product(tokens, ffn, hidden);
                // Reads the gradient and each input branch, writes the gradient of each.
                self.stream(self.activation_kind().1, self.pass_over(tokens, ffn, 2 * inputs + 1), 1);
                self.product(tokens, hidden, inputs * ffn);
            }
            (Unit::Mlp(_), Half::Weight) => {
                let (ffn, inputs) = (shape.rank_ffn(), shape.model.mlp_inputs());
                self.product(ffn, hidden, tokens);
                self.product(hidden, inputs * ffn, tokens);
                self.bias_gradient(shape.model.mlp_bias, tokens, hidden);
                self.bias_gradient(shape.model.mlp_bias, tokens, inputs * ffn);
            }
            (Unit::Head, Half::Input) => self.product(tokens, hidden, shape.rank_vocabulary()),
            (Unit::Head, Half::Weight) => self.product(hidden, shape.rank_vocabulary(), tokens),
            (Unit::Loss, Half::Input) => {
                let logits = [tokens, shape.rank_vocabulary(), logits_gradient_bytes(self.precision())];
                self.stream(Streaming::CrossEntropyBackward, bytes_of(logits).get(), 1);
            }
        }
    }

    const fn precision(&self) -> Precision {
        self.shape.workload.precision
    }
    /// Rotation of queries and keys, or the bias of queries, keys and values: each is read and written once.
    fn qkv_elementwise(&mut self, tokens: u64) {
        self.rope(tokens);
        if self.shape.model.qkv_bias {
            self.stream(Streaming::Add, self.pass_over(tokens, self.qkv(), 2), 1);
        }
    }
    fn rope(&mut self, tokens: u64) {
        match self.shape.model.positions {
            Positions::Rope { .. } => {
                let width = self.shape.rank_query_width() + self.shape.rank_kv_width();
                self.stream(Streaming::Rope, self.pass_over(tokens, width, 2), 1);
            }
            Positions::Learned { .. } => {}
        }
    }
    fn attention_core(&mut self, backward: bool) {
        let (model, tensor) = (self.shape.model, self.shape.tensor());
        self.out.push(Kernel::Attention {
            sequences: u64::from(self.shape.layout.microbatch_size),
            sequence_length: u64::from(self.shape.workload.sequence_length),
            heads: u64::from(model.heads).div_ceil(tensor),
            kv_heads: u64::from(model.kv_heads).div_ceil(tensor),
            head_dim: u64::from(model.head_dim),
            kernel: self.shape.workload.attention,
            backward,
        });
    }
    /// Reads `[T, hidden]`; reads and writes the FP32 gradient rows that this rank holds. Positions: one more row each.
    fn embedding_gradient(&mut self, tokens: u64, hidden: u64) {
        let rows = tokens.div_ceil(self.shape.tensor());
        let positions = match self.shape.model.positions {
            Positions::Rope { .. } => 0,
            Positions::Learned { .. } => tokens,
        };
        let bytes = self.pass_over(tokens, hidden, 1) + bytes_of([rows + positions, hidden, 8]).get();
        self.stream(Streaming::EmbeddingBackward, bytes, if positions == 0 { 1 } else { 2 });
    }
    fn bias_gradient(&mut self, present: bool, tokens: u64, width: u64) {
        if present {
            self.stream(Streaming::Add, self.pass_over(tokens, width, 1), 1);
        }
    }
}

/// Bytes per logit of the statistics. FP32: one read for the maximum, one for the sum. Half precision: read, write an
/// FP32 copy, read it (the fused cross-entropy of Megatron-LM; with the gradient about 21 bytes per logit in all).
const fn statistics_bytes(precision: Precision) -> u64 {
    match precision {
        Precision::Fp32 => 8,
        Precision::Fp16 | Precision::Bf16 => 10,
    }
}

/// Bytes per logit of the gradient. FP32: in place. Half precision: read and write FP32, write the half-precision copy.
const fn logits_gradient_bytes(precision: Precision) -> u64 {
    match precision {
        Precision::Fp32 => 8,
        Precision::Fp16 | Precision::Bf16 => 10,
    }
}

impl Kernel {
    /// Launches that a framework makes for it: the plain attention core is two products and a softmax; its gradient four
    /// products and a softmax gradient; the fused gradient has a preparing kernel.
    #[must_use]
    pub const fn launches(self) -> u32 {
        match self {
            Self::MatrixProduct { .. } => 1,
            Self::Attention { kernel: AttentionKernel::Fused, backward, .. } => {
                if backward {
                    2
                } else {
                    1
                }
            }
            Self::Attention { kernel: AttentionKernel::Plain, backward, .. } => {
                if backward {
                    5
                } else {
                    3
                }
            }
            Self::Streaming { launches, .. } => launches,
        }
    }
}

//! Norms, rotations, activations and the dense feed-forward part.

use super::{Half, List};
use crate::counts::parameters::norms;
use crate::counts::{Streaming, UnitKind, bytes_of};
use crate::{MlpKind, NormKind, ParallelBranches, Positions};

/// Bytes and launches of one element through an RMSNorm of elementary kernels.
///
/// Forward, half precision: to FP32 (read 2, write 4), square (8), mean (4), scale (8), back to half (6), weight (4); 34.
/// Input gradient: of the weight's product (4), to FP32 (6), of the scaling (8 and 12), of the square (12), their sum (12),
/// back to half (6), the residual's added (6); 66. FP32: the same without the conversions, each at 4 bytes.
struct Elementary {
    forward: (u64, u32),
    input: (u64, u32),
    weight: (u64, u32),
}

const HALF: Elementary = Elementary { forward: (34, 8), input: (66, 12), weight: (8, 2) };
const SINGLE: Elementary = Elementary { forward: (28, 6), input: (64, 10), weight: (16, 2) };

impl List<'_, '_> {
    fn elementary(&self) -> &'static Elementary {
        if self.shape.workload.precision.is_half() { &HALF } else { &SINGLE }
    }
    /// PyTorch's LayerNorm is one kernel whatever the recipe.
    fn is_elementary(&self) -> bool {
        !self.shape.workload.recipe.fused_normalisation && self.shape.model.norm == NormKind::RmsNorm
    }

    /// Normalises `[tokens, width]`: reads it, writes it.
    pub(super) fn norm(&mut self, tokens: u64, width: u64) {
        if self.is_elementary() {
            let (bytes, launches) = self.elementary().forward;
            self.stream(Streaming::Elementary, bytes_of([tokens, width, bytes]).get(), launches);
            return;
        }
        let kind = match self.shape.model.norm {
            NormKind::RmsNorm => Streaming::RmsNorm,
            NormKind::LayerNorm => Streaming::LayerNorm,
        };
        self.stream(kind, self.pass_over(tokens, width, 2), 1);
    }

    /// Input: reads the gradient, the input and the residual's gradient, writes their sum. Weight: reads the gradient and
    /// the input; the sums are small.
    pub(super) fn norm_backward(&mut self, half: Half, tokens: u64, width: u64) {
        if self.is_elementary() {
            let (bytes, launches) = match half {
                Half::Input => self.elementary().input,
                Half::Weight => self.elementary().weight,
            };
            self.stream(Streaming::Elementary, bytes_of([tokens, width, bytes]).get(), launches);
            return;
        }
        let kind = match self.shape.model.norm {
            NormKind::RmsNorm => Streaming::RmsNormBackward,
            NormKind::LayerNorm => Streaming::LayerNormBackward,
        };
        let times = match half {
            Half::Input => 4,
            Half::Weight => 2,
        };
        self.stream(kind, self.pass_over(tokens, width, times), 1);
    }

    pub(super) fn norms(&mut self, kind: UnitKind) {
        for _ in 0..norms(self.shape, kind) {
            self.norm(self.shape.residual_tokens(), self.hidden());
        }
    }
    pub(super) fn norms_backward(&mut self, kind: UnitKind, half: Half) {
        for _ in 0..norms(self.shape, kind) {
            self.norm_backward(half, self.shape.residual_tokens(), self.hidden());
        }
    }

    /// Rotates `[tokens, width]` of queries and keys, forward or backward: reads and writes it once, in a kernel for each
    /// of the two. Elementary: two products with sine and cosine, a negation, a concatenation and a sum: ten passes each.
    pub(super) fn rotate(&mut self, tokens: u64, width: u64) {
        match self.shape.model.positions {
            Positions::Rope { .. } if self.shape.workload.recipe.fused_normalisation => {
                self.stream(Streaming::Rope, self.pass_over(tokens, width, 2), 2);
            }
            Positions::Rope { .. } => self.stream(Streaming::Elementary, self.pass_over(tokens, width, 10), 10),
            Positions::Learned { .. } | Positions::None => {}
        }
    }

    /// `x += branch`: two reads and a write, the branch's bias with it. Of parallel branches both at once, after the
    /// second.
    pub(super) fn add_branch(&mut self, last: bool) {
        let (rows, hidden) = (self.shape.residual_tokens(), self.hidden());
        if last && self.stops {
            return;
        }
        let times = match (self.shape.model.variants.parallel_branches, last) {
            (ParallelBranches::No, _) => 3,
            (ParallelBranches::OwnNorms | ParallelBranches::OneNorm, false) => return,
            (ParallelBranches::OwnNorms | ParallelBranches::OneNorm, true) => 4,
        };
        self.stream(Streaming::Add, self.pass_over(rows, hidden, times), 1);
    }

    /// Reads each input branch (its bias with it), writes one.
    pub(super) fn activation(&mut self, mlp: MlpKind, tokens: u64, ffn: u64) {
        let kind = match mlp {
            MlpKind::SwiGlu | MlpKind::GeGlu => Streaming::SwiGlu,
            MlpKind::Gelu => Streaming::Gelu,
        };
        self.stream(kind, self.pass_over(tokens, ffn, mlp.inputs() + 1), 1);
    }
    /// Reads the gradient and each input branch, writes the gradient of each.
    pub(super) fn activation_backward(&mut self, mlp: MlpKind, tokens: u64, ffn: u64) {
        let kind = match mlp {
            MlpKind::SwiGlu | MlpKind::GeGlu => Streaming::SwiGluBackward,
            MlpKind::Gelu => Streaming::GeluBackward,
        };
        self.stream(kind, self.pass_over(tokens, ffn, 2 * mlp.inputs() + 1), 1);
    }

    pub(super) fn bias_gradient(&mut self, present: bool, tokens: u64, width: u64) {
        if present {
            self.stream(Streaming::Add, self.pass_over(tokens, width, 1), 1);
        }
    }

    pub(super) fn dense(&mut self) {
        let (tokens, mlp, ffn) = (self.shape.tokens(), self.shape.model.mlp, self.shape.rank_ffn());
        self.linear(tokens, self.hidden(), mlp.inputs() * ffn);
        self.activation(mlp, tokens, ffn);
        self.last_linear(tokens, ffn, self.hidden());
        self.add_branch(true);
    }

    pub(super) fn dense_backward(&mut self, half: Half) {
        let (tokens, mlp, ffn) = (self.shape.tokens(), self.shape.model.mlp, self.shape.rank_ffn());
        self.linear_backward(half, tokens, ffn, self.hidden());
        if half == Half::Input {
            self.activation_backward(mlp, tokens, ffn);
        }
        self.linear_backward(half, tokens, self.hidden(), mlp.inputs() * ffn);
        if half == Half::Weight {
            self.bias_gradient(self.shape.model.mlp_bias, tokens, self.hidden());
            self.bias_gradient(self.shape.model.mlp_bias, tokens, mlp.inputs() * ffn);
        }
    }
}

//! How a model is trained: batch, sequence, precision, optimizer.

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::{Model, Positions, Problem};

mod recipe;

pub use recipe::{GradientFormat, LogitCopies, Recipe};

/// The number format of weights and activations in matrix products.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32-bit floats throughout.
    Fp32,
    /// 32-bit floats whose products are rounded to 10 bits of mantissa.
    Tf32,
    /// 16-bit IEEE floats with FP32 master weights.
    Fp16,
    /// bfloat16 with FP32 master weights.
    Bf16,
    /// As bfloat16, but the layers' matrix products take 8-bit floats, converted before each of them.
    Fp8,
}

impl Precision {
    /// Bytes of one weight or activation.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp32 | Self::Tf32 => 4,
            Self::Fp16 | Self::Bf16 | Self::Fp8 => 2,
        }
    }
    /// Whether weights are 16-bit (or 8-bit) copies of FP32 master weights.
    #[must_use]
    pub const fn is_half(self) -> bool {
        match self {
            Self::Fp32 | Self::Tf32 => false,
            Self::Fp16 | Self::Bf16 | Self::Fp8 => true,
        }
    }
    /// The format of matrix products outside the layers, and of attention cores.
    #[must_use]
    pub const fn outside_layers(self) -> Self {
        match self {
            Self::Fp8 => Self::Bf16,
            Self::Fp32 | Self::Tf32 | Self::Fp16 | Self::Bf16 => self,
        }
    }
}

named!(Precision {
    Fp32 = "fp32",
    Tf32 = "tf32",
    Fp16 = "fp16",
    Bf16 = "bf16",
    Fp8 = "fp8",
});

/// How the core of attention (scores, softmax, weighted values) is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKernel {
    /// Fused and tiled: scores never reach memory (FlashAttention, Dao et al. 2022).
    Fused,
    /// Scores are written to memory and kept for the backward pass unless recomputed.
    Plain,
}

named!(AttentionKernel { Fused = "fused", Plain = "plain" });

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
    /// Switches of the training software.
    #[serde(default, skip_serializing_if = "Recipe::is_default")]
    pub recipe: Recipe,
}

impl Workload {
    /// Tokens of one iteration.
    #[must_use]
    pub const fn tokens_per_iteration(&self) -> u64 {
        self.sequence_length as u64 * self.global_batch as u64
    }
}

/// Longest sequence and largest divisor of the vocabulary; under them no count leaves 64 bits.
const MOST_TOKENS: u32 = 1 << 26;
const MOST_DIVISOR: u32 = 1 << 20;

impl Workload {
    /// Every reason why nothing can be trained so. Subjects are `training.<field>`. Empty if it can.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, size, most) in [
            ("sequence_length", self.sequence_length, MOST_TOKENS),
            ("global_batch", self.global_batch, u32::MAX),
            ("iterations", self.iterations, u32::MAX),
            ("vocabulary_divisor", self.vocabulary_divisor, MOST_DIVISOR),
        ] {
            if size == 0 {
                problems.push(Problem::new(format!("training.{field}"), "is zero").hint("write a positive number"));
            } else if size > most {
                let hint = format!("at most {most} is supported; is a digit too many?");
                problems.push(Problem::new(format!("training.{field}"), format!("{size} is out of reach")).hint(hint));
            }
        }
        problems.extend(self.optimizer.problems());
        problems.extend(self.recipe_problems());
        problems
    }
    fn recipe_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let Recipe { document_length, expert_imbalance, balance_loss, input_tokens_per_second, .. } = self.recipe;
        if !(expert_imbalance.is_finite() && expert_imbalance >= 1.0) {
            let message = format!("{expert_imbalance} is not the busiest over the mean");
            problems.push(Problem::new("training.expert_imbalance", message).hint("1 is a perfect balance, 1.2 usual"));
        }
        if !(balance_loss.is_finite() && balance_loss >= 0.0) {
            let message = format!("{balance_loss} is not a weight");
            problems.push(Problem::new("training.balance_loss", message).hint("0.01 and 0.001 are usual, 0 is none"));
        }
        if document_length.is_some_and(|length| length == 0 || !self.sequence_length.is_multiple_of(length)) {
            let length = document_length.unwrap_or_default();
            let message = format!("documents of {length} do not fill sequences of {}", self.sequence_length);
            let nearest =
                (1..=length.min(self.sequence_length)).rev().find(|n| self.sequence_length.is_multiple_of(*n));
            let hint =
                nearest.map_or("write a positive number".to_owned(), |nearest| format!("the nearest is {nearest}"));
            problems.push(Problem::new("training.document_length", message).hint(hint));
        }
        if input_tokens_per_second.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            let message = "is not a positive rate";
            problems.push(Problem::new("training.input_tokens_per_second", message).hint("leave it out for no limit"));
        }
        problems
    }
    /// Every reason why `model` cannot be trained so, beyond [`Workload::problems`] and [`Model::problems`].
    #[must_use]
    pub fn problems_with(&self, model: &Model) -> Vec<Problem> {
        match model.positions {
            Positions::Learned { maximum } if self.sequence_length > maximum => {
                let message =
                    format!("{} tokens are more than the model's {maximum} learned positions", self.sequence_length);
                vec![Problem::new("training.sequence_length", message).hint(format!("write at most {maximum}"))]
            }
            Positions::Learned { .. } | Positions::Rope { .. } | Positions::None => Vec::new(),
        }
    }
}

impl AdamW {
    /// Every number with which the optimizer cannot work. Subjects are `training.optimizer.<field>`.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let fraction = |x: f64| (0.0..1.0).contains(&x);
        for (field, value, good, hint) in [
            ("learning_rate", self.learning_rate, positive(self.learning_rate), "write a positive number, as in 3e-4"),
            ("beta1", self.beta1, fraction(self.beta1), "write a number from 0 to under 1, as in 0.9"),
            ("beta2", self.beta2, fraction(self.beta2), "write a number from 0 to under 1, as in 0.95"),
            ("epsilon", self.epsilon, positive(self.epsilon), "write a positive number, as in 1e-8"),
            (
                "weight_decay",
                self.weight_decay,
                self.weight_decay == 0.0 || positive(self.weight_decay),
                "write 0 or a positive number, as in 0.1",
            ),
            (
                "clip_norm",
                self.clip_norm.unwrap_or(1.0),
                self.clip_norm.is_none_or(positive),
                "write a positive number, or leave it out for no clipping",
            ),
        ] {
            if !good {
                let subject = format!("training.optimizer.{field}");
                problems.push(Problem::new(subject, format!("{value} is not possible")).hint(hint));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::Workload;
    use crate::Positions;

    fn check(change: impl FnOnce(&mut Workload), expect: &[&str]) {
        let mut workload = crate::testing::program(1, 1, 1).workload;
        change(&mut workload);
        let mut model = crate::testing::model();
        model.positions = Positions::Learned { maximum: 64 };
        let problems = workload.problems().into_iter().chain(workload.problems_with(&model));
        let problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        assert_eq!(problems.len(), expect.len(), "{problems:#?}");
        assert!(problems.iter().zip(expect).all(|(problem, part)| problem.contains(part)), "{problems:#?}");
    }

    #[test]
    fn impossible_training_is_named() {
        check(|_| {}, &[]);
        check(|w| w.sequence_length = 64, &[]);
        check(|w| w.sequence_length = 65, &["more than the model's 64 learned positions (write at most 64)"]);
        check(|w| (w.sequence_length, w.global_batch) = (0, 0), &["sequence_length: is zero", "global_batch: is zero"]);
        check(|w| w.vocabulary_divisor = u32::MAX, &["vocabulary_divisor: 4294967295 is out of reach"]);
        check(|w| w.optimizer.learning_rate = f64::NAN, &["training.optimizer.learning_rate: NaN is not possible"]);
        check(|w| (w.optimizer.beta1, w.optimizer.beta2) = (1.0, -0.1), &["beta1: 1 is", "beta2: -0.1 is"]);
        check(
            |w| (w.optimizer.epsilon, w.optimizer.weight_decay) = (0.0, -1.0),
            &["epsilon: 0 is", "weight_decay: -1"],
        );
        check(|w| w.optimizer.clip_norm = Some(0.0), &["clip_norm: 0 is"]);
        check(|w| w.optimizer.clip_norm = None, &[]);
    }
}

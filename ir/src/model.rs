//! What is trained: the shape of a decoder-only transformer.

use serde::{Deserialize, Serialize};

use crate::Problem;

/// How hidden states are normalised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// Root mean square, a weight and no bias (Zhang and Sennrich 2019).
    RmsNorm,
    /// Mean and variance, a weight and a bias (Ba et al. 2016).
    LayerNorm,
}

/// How positions enter.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Positions {
    /// Rotary embedding of queries and keys (Su et al. 2021), with base `theta`.
    Rope {
        /// The base of the geometric series of wavelengths.
        theta: f64,
    },
    /// A learned table of `maximum` positions added to the embedding (GPT-2).
    Learned {
        /// The rows of the table.
        maximum: u32,
    },
}

/// The feed-forward part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MlpKind {
    /// `down(silu(gate(x)) * up(x))`: three matrices (Shazeer 2020).
    SwiGlu,
    /// `down(gelu(up(x)))` with the tanh form of GELU: two matrices (GPT-2).
    Gelu,
}

/// A decoder-only transformer. All sizes are positive; [`Model::problems`] checks that they fit together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Transformer layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of one head; `heads * head_dim` may differ from `hidden`.
    pub head_dim: u32,
    /// Inner width of the feed-forward part.
    pub ffn: u32,
    /// Rows of the embedding, before padding.
    pub vocabulary: u32,
    /// Normalisation.
    pub norm: NormKind,
    /// The norm's epsilon.
    pub norm_epsilon: f64,
    /// Positions.
    pub positions: Positions,
    /// Feed-forward kind.
    pub mlp: MlpKind,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// A bias on the attention output projection.
    pub projection_bias: bool,
    /// Biases in the feed-forward part.
    pub mlp_bias: bool,
    /// Whether the output head shares the embedding's weights.
    pub tied_head: bool,
}

impl Model {
    /// Width of all query heads together.
    #[must_use]
    pub const fn query_width(&self) -> u64 {
        self.heads as u64 * self.head_dim as u64
    }
    /// Width of all key (or value) heads together.
    #[must_use]
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads as u64 * self.head_dim as u64
    }
    /// Matrices of the feed-forward part that read its input: 2 with a gate, else 1.
    #[must_use]
    pub const fn mlp_inputs(&self) -> u64 {
        match self.mlp {
            MlpKind::SwiGlu => 2,
            MlpKind::Gelu => 1,
        }
    }
    /// Vocabulary padded so that it divides evenly over `tensor` ranks in multiples of `divisor`:
    /// `ceil(V / (divisor * tensor)) * divisor * tensor` (the rule of Megatron-LM).
    #[must_use]
    pub const fn padded_vocabulary(&self, divisor: u32, tensor: u32) -> u64 {
        let unit = divisor as u64 * tensor as u64;
        (self.vocabulary as u64).div_ceil(unit) * unit
    }
    /// Trainable parameters to the unit, with the unpadded vocabulary; a tied head is counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let (hidden, vocabulary) = (u64::from(self.hidden), u64::from(self.vocabulary));
        let positions = match self.positions {
            Positions::Rope { .. } => 0,
            Positions::Learned { maximum } => u64::from(maximum) * hidden,
        };
        let heads = if self.tied_head { 1 } else { 2 };
        heads * vocabulary * hidden
            + positions
            + u64::from(self.layers) * self.layer_parameters()
            + self.norm_parameters()
    }
    /// Parameters of one layer.
    #[must_use]
    pub fn layer_parameters(&self) -> u64 {
        self.attention_parameters() + self.mlp_parameters() + 2 * self.norm_parameters()
    }
    /// Parameters of one norm.
    #[must_use]
    pub const fn norm_parameters(&self) -> u64 {
        match self.norm {
            NormKind::RmsNorm => self.hidden as u64,
            NormKind::LayerNorm => 2 * self.hidden as u64,
        }
    }
    /// Parameters of one layer's attention, its norm not counted.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        let qkv = self.query_width() + 2 * self.kv_width();
        hidden * qkv
            + if self.qkv_bias { qkv } else { 0 }
            + self.query_width() * hidden
            + if self.projection_bias { hidden } else { 0 }
    }
    /// Parameters of one layer's feed-forward part, its norm not counted.
    #[must_use]
    pub fn mlp_parameters(&self) -> u64 {
        let (hidden, ffn, inputs) = (u64::from(self.hidden), u64::from(self.ffn), self.mlp_inputs());
        (inputs + 1) * hidden * ffn + if self.mlp_bias { inputs * ffn + hidden } else { 0 }
    }
}

/// Largest sizes. No model comes near; under them no count of parameters or bytes leaves 64 bits.
const MOST_WIDTH: u64 = 1 << 22;
const MOST_LAYERS: u64 = 1 << 16;
const MOST_VOCABULARY: u64 = 1 << 28;
const MOST_POSITIONS: u64 = 1 << 26;

impl Model {
    /// Every reason why no such model can be: sizes that are zero, out of reach, or do not fit together. Subjects are
    /// `model.<field>`. Empty if it can.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, size, most) in [
            ("hidden", self.hidden, MOST_WIDTH),
            ("layers", self.layers, MOST_LAYERS),
            ("heads", self.heads, MOST_WIDTH),
            ("kv_heads", self.kv_heads, MOST_WIDTH),
            ("head_dim", self.head_dim, MOST_WIDTH),
            ("ffn", self.ffn, MOST_WIDTH),
            ("vocabulary", self.vocabulary, MOST_VOCABULARY),
        ] {
            if size == 0 {
                problems.push(Problem::new(format!("model.{field}"), "is zero").hint("write a positive number"));
            } else if u64::from(size) > most {
                let hint = format!("at most {most} is supported; is a digit too many?");
                problems.push(Problem::new(format!("model.{field}"), format!("{size} is out of reach")).hint(hint));
            }
        }
        self.head_problems(&mut problems);
        match self.positions {
            Positions::Rope { theta } => {
                if !(theta.is_finite() && theta > 1.0) {
                    let message = format!("{theta} is not a base of wavelengths");
                    problems
                        .push(Problem::new("model.positions.theta", message).hint("10000 is usual; it is more than 1"));
                }
            }
            Positions::Learned { maximum } => {
                if maximum == 0 || u64::from(maximum) > MOST_POSITIONS {
                    let message = format!("a table of {maximum} positions is not possible");
                    let hint = format!("write 1 to {MOST_POSITIONS}");
                    problems.push(Problem::new("model.positions.maximum", message).hint(hint));
                }
            }
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            let message = format!("{} is not a small positive number", self.norm_epsilon);
            problems.push(Problem::new("model.norm_epsilon", message).hint("1e-5 and 1e-6 are usual"));
        }
        problems
    }

    fn head_problems(&self, problems: &mut Vec<Problem>) {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if heads > 0 && u64::from(heads) <= MOST_WIDTH && kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
            let message = format!("{heads} query heads do not divide over {kv_heads} key and value heads");
            let below = (1..kv_heads.min(heads)).rev().find(|n| heads.is_multiple_of(*n));
            let above = (kv_heads.saturating_add(1)..=heads).find(|n| heads.is_multiple_of(*n));
            let nearest: Vec<String> = [below, above].into_iter().flatten().map(|n| n.to_string()).collect();
            problems
                .push(Problem::new("model.kv_heads", message).hint(format!("the nearest is {}", nearest.join(" or "))));
        }
        if self.query_width() > MOST_WIDTH && u64::from(heads) <= MOST_WIDTH && u64::from(self.head_dim) <= MOST_WIDTH {
            let message = format!("{heads} heads of {} are out of reach", self.head_dim);
            problems.push(Problem::new("model.head_dim", message).hint(format!("together at most {MOST_WIDTH}")));
        }
        if matches!(self.positions, Positions::Rope { .. }) && !self.head_dim.is_multiple_of(2) {
            let message = format!("a head of {} cannot be rotated in pairs", self.head_dim);
            problems.push(Problem::new("model.head_dim", message).hint("rotary embedding needs an even width"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Model, Positions};

    fn check(change: impl FnOnce(&mut Model), expect: &[&str]) {
        let mut model = crate::testing::model();
        change(&mut model);
        let problems: Vec<String> = model.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), expect.len(), "{problems:#?}");
        assert!(problems.iter().zip(expect).all(|(problem, part)| problem.contains(part)), "{problems:#?}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        check(|_| {}, &[]);
        check(|m| m.hidden = 0, &["model.hidden: is zero"]);
        check(|m| (m.layers, m.ffn) = (0, 0), &["model.layers: is zero", "model.ffn: is zero"]);
        check(|m| m.vocabulary = u32::MAX, &["model.vocabulary: 4294967295 is out of reach"]);
        check(|m| (m.heads, m.kv_heads) = (40, 7), &["7 key and value heads (the nearest is 5 or 8)"]);
        check(|m| m.kv_heads = 8, &["4 query heads do not divide over 8 key and value heads (the nearest is 2)"]);
        check(|m| m.head_dim = 33, &["cannot be rotated in pairs"]);
        check(|m| (m.heads, m.head_dim) = (1 << 20, 1 << 20), &["out of reach (together at most"]);
        check(|m| m.positions = Positions::Rope { theta: f64::NAN }, &["model.positions.theta: NaN"]);
        check(|m| m.positions = Positions::Learned { maximum: 0 }, &["a table of 0 positions"]);
        check(|m| m.norm_epsilon = f64::INFINITY, &["model.norm_epsilon: inf"]);
    }

    #[test]
    fn the_largest_model_has_a_count() {
        let mut model = crate::testing::model();
        (model.hidden, model.ffn, model.layers) = (1 << 22, 1 << 22, 1 << 16);
        (model.heads, model.kv_heads, model.head_dim, model.vocabulary) = (1 << 12, 1 << 12, 1 << 10, 1 << 28);
        assert_eq!(model.problems(), []);
        assert!(model.parameters() > 7 << 60);
    }
}

//! What is trained: the shape of a decoder-only transformer.

use serde::{Deserialize, Serialize};

use crate::Problem;
use crate::named::named;

mod parameters;
mod variants;

pub use variants::{
    BranchNorms, Experts, FeedForward, GatedDelta, LatentAttention, LayerKind, LayerRun, Mamba, Mixer,
    ParallelBranches, QueryKeyNorm, Router, Scoring, Variants,
};

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
    /// Not at all, or by biases of scores, which cost nothing (Press et al. 2022).
    None,
}

/// The feed-forward part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MlpKind {
    /// `down(silu(gate(x)) * up(x))`: three matrices (Shazeer 2020).
    SwiGlu,
    /// `down(gelu(up(x)))` with the tanh form of GELU: two matrices (GPT-2).
    Gelu,
    /// `down(gelu(gate(x)) * up(x))` with the tanh form of GELU: three matrices (Gemma).
    GeGlu,
}

named!(NormKind { RmsNorm = "rms-norm", LayerNorm = "layer-norm" });
named!(MlpKind { SwiGlu = "swi-glu", Gelu = "gelu", GeGlu = "ge-glu" });

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
    /// What layers have beyond this.
    #[serde(default, skip_serializing_if = "Variants::is_plain")]
    pub variants: Variants,
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
        self.mlp.inputs()
    }
    /// Vocabulary padded so that it divides evenly over `tensor` ranks in multiples of `divisor`:
    /// `ceil(V / (divisor * tensor)) * divisor * tensor` (the rule of Megatron-LM).
    #[must_use]
    pub const fn padded_vocabulary(&self, divisor: u32, tensor: u32) -> u64 {
        let unit = divisor as u64 * tensor as u64;
        (self.vocabulary as u64).div_ceil(unit) * unit
    }
    /// The runs of equal layers, in order.
    pub fn runs(&self) -> impl Iterator<Item = LayerRun> + '_ {
        let plain = LayerRun { layers: self.layers, mixer: Mixer::Attention, feed_forward: FeedForward::Dense };
        let alike = self.variants.pattern.is_empty().then_some(plain);
        alike.into_iter().chain(self.variants.pattern.iter().copied())
    }
    /// What a layer is.
    ///
    /// # Panics
    /// If the model has no such layer.
    #[must_use]
    pub fn layer(&self, layer: u32) -> LayerKind {
        let mut end = 0;
        for run in self.runs() {
            end += run.layers;
            if layer < end {
                return run.kind();
            }
        }
        panic!("no layer {layer} in a model of {}", self.layers)
    }
    /// How many of the layers `first..first + layers` are of each mixer and of each feed-forward part, in their order.
    #[must_use]
    pub fn kinds_of(&self, first: u32, layers: u32) -> ([u32; 5], [u32; 2]) {
        let (mut mixers, mut parts) = ([0; 5], [0; 2]);
        if self.variants.pattern.is_empty() {
            let inside = self.layers.min(first + layers).saturating_sub(first);
            (mixers[Mixer::Attention as usize], parts[FeedForward::Dense as usize]) = (inside, inside);
            return (mixers, parts);
        }
        let (mut start, end) = (0, first + layers);
        for run in self.runs() {
            let stop = start + run.layers;
            let inside = stop.min(end).saturating_sub(start.max(first));
            mixers[run.mixer as usize] += inside;
            parts[run.feed_forward as usize] += inside;
            start = stop;
        }
        (mixers, parts)
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
        self.variant_problems(&mut problems);
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
            Positions::None => {}
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

/// A size that must be there, or is zero or out of reach.
fn size_problem(field: &str, size: u32) -> Option<Problem> {
    let subject = format!("model.{field}");
    if size == 0 {
        Some(Problem::new(subject, "is zero").hint("write a positive number"))
    } else if u64::from(size) > MOST_WIDTH {
        let hint = format!("at most {MOST_WIDTH} is supported; is a digit too many?");
        Some(Problem::new(subject, format!("{size} is out of reach")).hint(hint))
    } else {
        None
    }
}

impl Model {
    fn variant_problems(&self, problems: &mut Vec<Problem>) {
        let Variants { pattern, window, latent, mamba, delta, experts, .. } = &self.variants;
        let total = pattern.iter().map(|run| u64::from(run.layers)).sum::<u64>();
        if !pattern.is_empty() && total != u64::from(self.layers) {
            let message = format!("the pattern has {total} layers, the model {}", self.layers);
            problems.push(Problem::new("model.pattern", message).hint("every layer has its place in the pattern"));
        }
        let has = |mixer| pattern.iter().any(|run| run.mixer == mixer);
        let routed = pattern.iter().any(|run| run.feed_forward == FeedForward::Experts);
        for (wanted, given, name) in [
            (has(Mixer::Window), window.is_some(), "window"),
            (has(Mixer::Latent), latent.is_some(), "latent"),
            (has(Mixer::Mamba), mamba.is_some(), "mamba"),
            (has(Mixer::GatedDelta), delta.is_some(), "delta"),
            (routed, experts.is_some(), "experts"),
        ] {
            if wanted && !given {
                let message = format!("the pattern has layers that need `{name}`, which is not there");
                problems.push(Problem::new(format!("model.{name}"), message).hint(format!("give model.{name}")));
            } else if given && !wanted {
                let message = "is given, but no layer of the pattern has it";
                problems.push(Problem::new(format!("model.{name}"), message).hint("name the layers in model.pattern"));
            }
        }
        let mut sizes = Vec::new();
        sizes.extend(window.map(|window| ("window", window)));
        if let Some(latent) = latent {
            sizes.extend(latent.query_rank.map(|rank| ("latent.query_rank", rank)));
            sizes.extend([
                ("latent.kv_rank", latent.kv_rank),
                ("latent.plain_head_dim", latent.plain_head_dim),
                ("latent.rotary_head_dim", latent.rotary_head_dim),
                ("latent.value_head_dim", latent.value_head_dim),
            ]);
        }
        if let Some(mamba) = mamba {
            sizes.extend([
                ("mamba.inner", mamba.inner),
                ("mamba.state", mamba.state),
                ("mamba.convolution", mamba.convolution),
                ("mamba.step_rank", mamba.step_rank),
            ]);
        }
        if let Some(delta) = delta {
            sizes.extend([
                ("delta.key_heads", delta.key_heads),
                ("delta.key_head_dim", delta.key_head_dim),
                ("delta.value_heads", delta.value_heads),
                ("delta.value_head_dim", delta.value_head_dim),
                ("delta.convolution", delta.convolution),
            ]);
        }
        if let Some(experts) = experts {
            sizes.extend([
                ("experts.count", experts.count),
                ("experts.active", experts.active),
                ("experts.ffn", experts.ffn),
            ]);
            if experts.active > experts.count {
                let message = format!("a token goes to {} of {} experts", experts.active, experts.count);
                problems.push(Problem::new("model.experts.active", message).hint("write at most the count"));
            }
        }
        problems.extend(sizes.into_iter().filter_map(|(field, size)| size_problem(field, size)));
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

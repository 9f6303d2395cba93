//! What is trained: the shape of a decoder-only transformer.

use serde::{Deserialize, Serialize};

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
        heads * vocabulary * hidden + positions + u64::from(self.layers) * self.layer_parameters() + self.norm_parameters()
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

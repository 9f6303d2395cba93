//! What layers are made of beyond plain attention and a dense feed-forward part, and which layers have it.

use serde::{Deserialize, Serialize};

use super::MlpKind;
use crate::named::named;

/// What mixes positions in a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixer {
    /// Attention over the whole sequence.
    #[default]
    Attention,
    /// Attention over the last [`Variants::window`] positions.
    Window,
    /// Latent attention: keys and values come from one low-rank vector (DeepSeek-AI 2024).
    Latent,
    /// A selective state space (Gu and Dao 2023).
    Mamba,
    /// A gated delta rule: linear attention with a state (Yang et al. 2024).
    GatedDelta,
}

named!(Mixer {
    Attention = "attention",
    Window = "window",
    Latent = "latent",
    Mamba = "mamba",
    GatedDelta = "gated-delta",
});

/// What follows the mixer in a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedForward {
    /// One feed-forward part for all tokens.
    #[default]
    Dense,
    /// Experts, a few of them for each token (Shazeer et al. 2017).
    Experts,
}

named!(FeedForward {
    Dense = "dense",
    Experts = "experts",
});

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LayerKind {
    /// What mixes positions.
    pub mixer: Mixer,
    /// What follows.
    pub feed_forward: FeedForward,
}

/// Consecutive layers of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRun {
    /// How many.
    pub layers: u32,
    /// What mixes positions in each.
    #[serde(default)]
    pub mixer: Mixer,
    /// What follows in each.
    #[serde(default)]
    pub feed_forward: FeedForward,
}

impl LayerRun {
    /// What each of them is.
    #[must_use]
    pub const fn kind(&self) -> LayerKind {
        LayerKind { mixer: self.mixer, feed_forward: self.feed_forward }
    }
}

/// Sizes of latent attention. The model's `heads` count; its `kv_heads` and `head_dim` do not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Width of the vector that queries come from; `None` where they come from the hidden state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_rank: Option<u32>,
    /// Width of the vector that keys and values come from.
    pub kv_rank: u32,
    /// Width of a query's and a key's part without positions, of each head.
    pub plain_head_dim: u32,
    /// Width of the rotated part, whose key all heads share.
    pub rotary_head_dim: u32,
    /// Width of a value, of each head.
    pub value_head_dim: u32,
}

/// Sizes of a selective state space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba {
    /// Inner width.
    pub inner: u32,
    /// Numbers of state for each inner channel.
    pub state: u32,
    /// Width of the causal convolution.
    pub convolution: u32,
    /// Width of the vector that time steps come from.
    pub step_rank: u32,
    /// Whether time step, input and output vectors are normalised (Jamba).
    #[serde(default)]
    pub normalised: bool,
}

/// Sizes of the gated delta rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// Query and key heads.
    pub key_heads: u32,
    /// Width of a query or key head.
    pub key_head_dim: u32,
    /// Value heads; a multiple of the key heads.
    pub value_heads: u32,
    /// Width of a value head.
    pub value_head_dim: u32,
    /// Width of the causal convolution over queries, keys and values.
    pub convolution: u32,
}

/// Experts of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Routed experts.
    pub count: u32,
    /// Routed experts that each token goes to.
    pub active: u32,
    /// Inner width of a routed expert.
    pub ffn: u32,
    /// Inner width of what every token passes beside them (all shared experts together); 0 without.
    #[serde(default)]
    pub shared_ffn: u32,
    /// Whether a gate of one number per token scales the shared part (Qwen).
    #[serde(default)]
    pub shared_gate: bool,
    /// Kind of each expert.
    pub mlp: MlpKind,
    /// Biases in the experts.
    #[serde(default)]
    pub bias: bool,
    /// A bias of the router that is trained as a parameter (GPT-OSS).
    #[serde(default)]
    pub router_bias: bool,
    /// How scores become weights of experts.
    #[serde(default, skip_serializing_if = "Router::is_default")]
    pub router: Router,
}

/// How the router's logits become scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scoring {
    /// The softmax over all experts (Shazeer et al. 2017).
    #[default]
    Softmax,
    /// The sigmoid of each logit by itself (DeepSeek-AI 2024, V3).
    Sigmoid,
}

/// What a token's experts are weighted with: their scores, the best of which chose them. It costs the same either way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// The scores.
    pub scoring: Scoring,
    /// Whether the weights of a token's experts are divided by their sum (Mixtral, where the softmax is over the chosen ones;
    /// Qwen's `norm_topk_prob`).
    pub normalised: bool,
}

impl Default for Router {
    fn default() -> Self {
        Self { scoring: Scoring::Softmax, normalised: true }
    }
}

impl Router {
    /// Whether it is the softmax over the chosen experts.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How queries and keys are normalised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryKeyNorm {
    /// Not at all.
    #[default]
    None,
    /// Each head by itself, with one weight of a head's width (Qwen3).
    Head,
    /// All heads together, with one weight of their width (OLMo 2).
    Width,
}

/// Norms around a branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchNorms {
    /// Before each branch.
    #[default]
    Before,
    /// After each branch and not before (OLMo 2).
    After,
    /// Both (Gemma 2).
    Both,
}

/// Whether the two branches of a layer follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParallelBranches {
    /// One after the other.
    #[default]
    No,
    /// Side by side, each with its own norm (GPT-NeoX).
    OwnNorms,
    /// Side by side, with one norm (Phi, Falcon-7B).
    OneNorm,
}

named!(Scoring { Softmax = "softmax", Sigmoid = "sigmoid" });
named!(QueryKeyNorm { None = "none", Head = "head", Width = "width" });
named!(BranchNorms { Before = "before", After = "after", Both = "both" });
named!(ParallelBranches { No = "no", OwnNorms = "own-norms", OneNorm = "one-norm" });

/// What a model has beyond plain attention and one dense feed-forward part. The default has nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variants {
    /// Positions that a query of a [`Mixer::Window`] layer sees, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// How queries and keys are normalised.
    #[serde(default)]
    pub query_key_norm: QueryKeyNorm,
    /// Whether the attention output is gated by a projection as wide as the queries (Qwen3-Next).
    #[serde(default)]
    pub gated_attention: bool,
    /// One learned score per head that takes part in the softmax (GPT-OSS).
    #[serde(default)]
    pub attention_sinks: bool,
    /// Norms around each branch.
    #[serde(default)]
    pub branch_norms: BranchNorms,
    /// Whether attention and the feed-forward part run side by side.
    #[serde(default)]
    pub parallel_branches: ParallelBranches,
    /// Whether GELU is the exact one, with the error function, instead of its tanh form. It costs the same.
    #[serde(default)]
    pub exact_gelu: bool,
    /// Whether the head has a bias (Phi).
    #[serde(default)]
    pub head_bias: bool,
    /// Whether norms have no parameters (OLMo).
    #[serde(default)]
    pub plain_norms: bool,
    /// Of [`Mixer::Latent`] layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentAttention>,
    /// Of [`Mixer::Mamba`] layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mamba: Option<Mamba>,
    /// Of [`Mixer::GatedDelta`] layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<GatedDelta>,
    /// Of [`FeedForward::Experts`] layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Layers in order; empty where all are attention and dense. Adds up to the model's layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<LayerRun>,
}

impl Variants {
    /// Whether there is nothing beyond plain attention and a dense feed-forward part.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

//! Parameters of a model, to the unit.

use super::{
    BranchNorms, FeedForward, LayerKind, Mixer, MlpKind, Model, NormKind, ParallelBranches, Positions, QueryKeyNorm,
};

impl MlpKind {
    /// Matrices that read the input: 2 with a gate, else 1.
    #[must_use]
    pub const fn inputs(self) -> u64 {
        match self {
            Self::SwiGlu | Self::GeGlu => 2,
            Self::Gelu => 1,
        }
    }
}

const fn if_present(present: bool, count: u64) -> u64 {
    if present { count } else { 0 }
}

impl Model {
    /// Trainable parameters to the unit, with the unpadded vocabulary; a tied head is counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let layers = self.runs().map(|run| u64::from(run.layers) * self.layer_parameters(run.kind())).sum::<u64>();
        self.ends_parameters() + layers
    }
    /// Parameters that one token passes: of the routed experts, only the active ones.
    #[must_use]
    pub fn active_parameters(&self) -> u64 {
        let idle = |kind: LayerKind| match (kind.feed_forward, &self.variants.experts) {
            (FeedForward::Experts, Some(experts)) => {
                u64::from(experts.count.saturating_sub(experts.active)) * self.expert_parameters()
            }
            (FeedForward::Experts, None) | (FeedForward::Dense, _) => 0,
        };
        self.parameters() - self.runs().map(|run| u64::from(run.layers) * idle(run.kind())).sum::<u64>()
    }
    /// Embedding, positions, final norm and head.
    fn ends_parameters(&self) -> u64 {
        let (hidden, vocabulary) = (u64::from(self.hidden), u64::from(self.vocabulary));
        let positions = match self.positions {
            Positions::Rope { .. } | Positions::None => 0,
            Positions::Learned { maximum } => u64::from(maximum) * hidden,
        };
        let heads = if self.tied_head { 1 } else { 2 };
        heads * vocabulary * hidden
            + positions
            + self.norm_parameters()
            + if_present(self.variants.head_bias, vocabulary)
    }
    /// Parameters of one layer of a kind.
    #[must_use]
    pub fn layer_parameters(&self, kind: LayerKind) -> u64 {
        self.mixer_parameters(kind.mixer)
            + self.feed_forward_parameters(kind.feed_forward)
            + self.norms_in_layer() * self.norm_parameters()
    }
    /// Norms over the hidden width in one layer.
    #[must_use]
    pub const fn norms_in_layer(&self) -> u64 {
        let around = match self.variants.branch_norms {
            BranchNorms::Before | BranchNorms::After => 2,
            BranchNorms::Both => 4,
        };
        match self.variants.parallel_branches {
            ParallelBranches::No | ParallelBranches::OwnNorms => around,
            ParallelBranches::OneNorm => around / 2,
        }
    }
    /// Parameters of one norm over the hidden width.
    #[must_use]
    pub const fn norm_parameters(&self) -> u64 {
        match (self.variants.plain_norms, self.norm) {
            (true, _) => 0,
            (false, NormKind::RmsNorm) => self.hidden as u64,
            (false, NormKind::LayerNorm) => 2 * self.hidden as u64,
        }
    }
    /// Parameters of what mixes positions in one layer, its norm not counted.
    ///
    /// # Panics
    /// If the model lacks the sizes of that mixer, which [`Model::problems`] names.
    #[must_use]
    pub fn mixer_parameters(&self, mixer: Mixer) -> u64 {
        match mixer {
            Mixer::Attention | Mixer::Window => self.attention_parameters(),
            Mixer::Latent => self.latent_parameters(),
            Mixer::Mamba => self.mamba_parameters(),
            Mixer::GatedDelta => self.delta_parameters(),
        }
    }
    /// Parameters of one layer's plain attention, its norm not counted.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        let gate = if_present(self.variants.gated_attention, self.query_width());
        let qkv = self.query_width() + gate + 2 * self.kv_width();
        let norms = match self.variants.query_key_norm {
            QueryKeyNorm::None => 0,
            QueryKeyNorm::Head => 2 * u64::from(self.head_dim),
            QueryKeyNorm::Width => self.query_width() + self.kv_width(),
        };
        hidden * qkv
            + if_present(self.qkv_bias, qkv)
            + self.query_width() * hidden
            + if_present(self.projection_bias, hidden)
            + norms
            + if_present(self.variants.attention_sinks, u64::from(self.heads))
    }
    /// Latent attention: query down, norm and up (or one query matrix); key and value down with the shared rotated key,
    /// norm, up; projection (DeepSeek-AI 2024, section 2.1).
    fn latent_parameters(&self) -> u64 {
        let latent = self.variants.latent.expect("a model with latent layers has their sizes");
        let (hidden, heads) = (u64::from(self.hidden), u64::from(self.heads));
        let key = u64::from(latent.plain_head_dim) + u64::from(latent.rotary_head_dim);
        let kv_rank = u64::from(latent.kv_rank);
        let query = match latent.query_rank {
            Some(rank) => u64::from(rank) * (hidden + heads * key + 1),
            None => hidden * heads * key,
        };
        let down = hidden * (kv_rank + u64::from(latent.rotary_head_dim)) + kv_rank;
        let value = u64::from(latent.value_head_dim);
        query + down + kv_rank * heads * (u64::from(latent.plain_head_dim) + value) + heads * value * hidden
    }
    /// Input and gate, convolution with bias, step and state projections, step up with bias, A and D, output
    /// (Gu and Dao 2023), and Jamba's three norms.
    fn mamba_parameters(&self) -> u64 {
        let mamba = self.variants.mamba.expect("a model with state spaces has their sizes");
        let (hidden, inner) = (u64::from(self.hidden), u64::from(mamba.inner));
        let (state, rank) = (u64::from(mamba.state), u64::from(mamba.step_rank));
        hidden * 2 * inner
            + inner * (u64::from(mamba.convolution) + 1)
            + inner * (rank + 2 * state)
            + (rank + 1) * inner
            + inner * state
            + inner
            + inner * hidden
            + if_present(mamba.normalised, rank + 2 * state)
    }
    /// Queries, keys, values and gate; two numbers per value head; convolution; norm; A and step bias; output
    /// (the gated delta net of Qwen3-Next).
    fn delta_parameters(&self) -> u64 {
        let delta = self.variants.delta.expect("a model with a delta rule has its sizes");
        let hidden = u64::from(self.hidden);
        let key = u64::from(delta.key_heads) * u64::from(delta.key_head_dim);
        let (heads, width) = (u64::from(delta.value_heads), u64::from(delta.value_head_dim));
        let value = heads * width;
        hidden * (2 * key + 2 * value)
            + hidden * 2 * heads
            + (2 * key + value) * u64::from(delta.convolution)
            + 2 * heads
            + width
            + value * hidden
    }
    /// Parameters of what follows the mixer in one layer, its norm not counted; the router with its experts.
    ///
    /// # Panics
    /// If the model lacks the sizes of experts, which [`Model::problems`] names.
    #[must_use]
    pub fn feed_forward_parameters(&self, part: FeedForward) -> u64 {
        match part {
            FeedForward::Dense => self.mlp_parameters(),
            FeedForward::Experts => {
                let experts = self.variants.experts.expect("a model with expert layers has their sizes");
                let (hidden, count) = (u64::from(self.hidden), u64::from(experts.count));
                let shared = (experts.mlp.inputs() + 1) * hidden * u64::from(experts.shared_ffn);
                count * self.expert_parameters()
                    + hidden * count
                    + if_present(experts.router_bias, count)
                    + shared
                    + if_present(experts.shared_gate, hidden)
            }
        }
    }
    /// Parameters of one routed expert.
    ///
    /// # Panics
    /// If the model has none.
    #[must_use]
    pub fn expert_parameters(&self) -> u64 {
        let experts = self.variants.experts.expect("a model with expert layers has their sizes");
        let (hidden, ffn, inputs) = (u64::from(self.hidden), u64::from(experts.ffn), experts.mlp.inputs());
        (inputs + 1) * hidden * ffn + if_present(experts.bias, inputs * ffn + hidden)
    }
    /// Parameters of one layer's dense feed-forward part, its norm not counted.
    #[must_use]
    pub fn mlp_parameters(&self) -> u64 {
        let (hidden, ffn, inputs) = (u64::from(self.hidden), u64::from(self.ffn), self.mlp_inputs());
        (inputs + 1) * hidden * ffn + if_present(self.mlp_bias, inputs * ffn + hidden)
    }
}

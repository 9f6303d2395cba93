//! Parameters that one rank holds.

use super::{Shape, UnitKind, unit_counts};
use crate::model::QueryKeyNorm;
use crate::program::{Chunk, Unit, UnitRange};
use crate::{BranchNorms, Mixer, ParallelBranches, Positions};

/// Parameters that one rank holds, by what they are divided and copied over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldParameters {
    /// All but routed experts: copied over data x context ranks.
    pub common: u64,
    /// Routed experts: copied over [`crate::program::Layout::expert_replicas`] ranks.
    pub experts: u64,
}

impl HeldParameters {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.common + self.experts
    }
}

/// What each rank of a tensor group holds of a unit: a part of its own, or the same as the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Division {
    split: u64,
    whole: u64,
}

const fn if_present(present: bool, count: u64) -> u64 {
    if present { count } else { 0 }
}

/// Parameters that one rank of the tensor group holds of a unit (padded vocabulary), experts included.
///
/// # Panics
/// If the unit is of a layer that the model does not have.
#[must_use]
pub fn unit_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    kind_parameters(shape, UnitKind::of(shape.model, unit))
}

/// Parameters that one rank of the tensor group holds of a unit of a kind (padded vocabulary), experts included.
///
/// Matrices that produce columns (query, key, value, up, gate, what leads into a state space) are split with their biases;
/// matrices that consume rows (projection, down) are split, their biases whole on every rank; norms, learned positions,
/// routers and the matrices that lead into the low-rank vectors of latent attention are whole. A key and value head that
/// fewer ranks than there are could hold is copied. A tied head counts as if it were its own: see [`chunk_parameters`].
#[must_use]
pub fn kind_parameters(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let Division { split, whole } = division(shape, kind);
    split + whole + kind_expert_parameters(shape, kind)
}

/// Parameters of routed experts that one rank holds of a unit of a kind: its local experts, each matrix over the
/// expert-tensor ranks, the biases of their last matrices whole.
#[must_use]
pub fn kind_expert_parameters(shape: Shape<'_>, kind: UnitKind) -> u64 {
    if kind != UnitKind::Experts {
        return 0;
    }
    let experts = shape.experts();
    let (hidden, inputs, ffn) = (u64::from(shape.model.hidden), experts.mlp.inputs(), shape.rank_expert_ffn());
    shape.local_experts() * ((inputs + 1) * hidden * ffn + if_present(experts.bias, inputs * ffn + hidden))
}

/// Parameters of a unit that every rank of the tensor group holds whole: norms, learned positions, routers, the matrices
/// into low-rank vectors, biases of the projection and of the last feed-forward matrix.
///
/// # Panics
/// If the unit is of a layer that the model does not have.
#[must_use]
pub fn replicated_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    division(shape, UnitKind::of(shape.model, unit)).whole
}

/// Norms over the hidden width that a unit runs; a norm after a branch counts with the one before it.
pub(super) const fn norms(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let variants = &shape.model.variants;
    let around = match variants.branch_norms {
        BranchNorms::Before | BranchNorms::After => 1,
        BranchNorms::Both => 2,
    };
    match (kind, variants.parallel_branches) {
        (UnitKind::FinalNorm, _) => 1,
        (UnitKind::MlpNorm | UnitKind::RouterNorm, ParallelBranches::OneNorm) => 0,
        (UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::RouterNorm, _) => around,
        _ => 0,
    }
}

fn division(shape: Shape<'_>, kind: UnitKind) -> Division {
    let model = shape.model;
    let hidden = u64::from(model.hidden);
    let vocabulary = shape.rank_vocabulary();
    let norms = norms(shape, kind) * model.norm_parameters();
    match kind {
        UnitKind::Embedding => Division {
            split: vocabulary * hidden,
            whole: match model.positions {
                Positions::Rope { .. } | Positions::None => 0,
                // Where positions share the vocabulary, they share this table too.
                Positions::Learned { maximum } => {
                    u64::from(maximum).div_ceil(shape.vocabulary_parts() / shape.tensor()) * hidden
                }
            },
        },
        UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::FinalNorm => Division { split: 0, whole: norms },
        UnitKind::RouterNorm => {
            let experts = shape.experts();
            let count = u64::from(experts.count);
            Division { split: 0, whole: norms + hidden * count + if_present(experts.router_bias, count) }
        }
        UnitKind::Attention | UnitKind::Window => attention(shape),
        UnitKind::Latent => latent(shape),
        UnitKind::Mamba => mamba(shape),
        UnitKind::GatedDelta => delta(shape),
        UnitKind::Dense => {
            let (ffn, inputs) = (shape.rank_ffn(), model.mlp_inputs());
            Division {
                split: (inputs + 1) * hidden * ffn + if_present(model.mlp_bias, inputs * ffn),
                whole: if_present(model.mlp_bias, hidden),
            }
        }
        UnitKind::Experts => {
            let experts = shape.experts();
            Division {
                split: (experts.mlp.inputs() + 1) * hidden * shape.rank_shared_ffn(),
                whole: if_present(experts.shared_gate, hidden),
            }
        }
        UnitKind::Head => {
            Division { split: vocabulary * hidden + if_present(model.variants.head_bias, vocabulary), whole: 0 }
        }
        UnitKind::Loss => Division::default(),
    }
}

fn attention(shape: Shape<'_>) -> Division {
    let model = shape.model;
    let (hidden, query) = (u64::from(model.hidden), shape.rank_query_width());
    let qkv = query + if_present(model.variants.gated_attention, query) + 2 * shape.rank_kv_width();
    let (split_norms, whole_norms) = match model.variants.query_key_norm {
        QueryKeyNorm::None => (0, 0),
        QueryKeyNorm::Head => (0, 2 * u64::from(model.head_dim)),
        QueryKeyNorm::Width => (query + shape.rank_kv_width(), 0),
    };
    Division {
        split: hidden * (qkv + query)
            + if_present(model.qkv_bias, qkv)
            + split_norms
            + if_present(model.variants.attention_sinks, shape.rank_heads()),
        whole: if_present(model.projection_bias, hidden) + whole_norms,
    }
}

fn latent(shape: Shape<'_>) -> Division {
    let latent = shape.model.variants.latent.expect("a model with latent layers has their sizes");
    let (hidden, heads) = (u64::from(shape.model.hidden), shape.rank_heads());
    let (plain, rotary) = (u64::from(latent.plain_head_dim), u64::from(latent.rotary_head_dim));
    let (kv_rank, value) = (u64::from(latent.kv_rank), u64::from(latent.value_head_dim));
    let (query_up, query_down) = match latent.query_rank.map(u64::from) {
        Some(rank) => (rank * heads * (plain + rotary), rank * (hidden + 1)),
        None => (hidden * heads * (plain + rotary), 0),
    };
    Division {
        split: query_up + kv_rank * heads * (plain + value) + heads * value * hidden,
        whole: query_down + hidden * (kv_rank + rotary) + kv_rank,
    }
}

fn mamba(shape: Shape<'_>) -> Division {
    let mamba = shape.model.variants.mamba.expect("a model with state spaces has their sizes");
    let hidden = u64::from(shape.model.hidden);
    let inner = u64::from(mamba.inner).div_ceil(shape.tensor());
    let (state, rank) = (u64::from(mamba.state), u64::from(mamba.step_rank));
    // Input and gate, output; convolution with bias; step and state projections; step up with bias; A and D.
    let each = 3 * hidden + u64::from(mamba.convolution) + 1 + rank + 2 * state + rank + 1 + state + 1;
    Division { split: inner * each, whole: if_present(mamba.normalised, rank + 2 * state) }
}

fn delta(shape: Shape<'_>) -> Division {
    let delta = shape.model.variants.delta.expect("a model with a delta rule has its sizes");
    let hidden = u64::from(shape.model.hidden);
    let key = u64::from(delta.key_heads).div_ceil(shape.tensor()) * u64::from(delta.key_head_dim);
    let heads = u64::from(delta.value_heads).div_ceil(shape.tensor());
    let value = heads * u64::from(delta.value_head_dim);
    Division {
        split: hidden * (2 * key + 3 * value + 2 * heads)
            + (2 * key + value) * u64::from(delta.convolution)
            + 2 * heads,
        whole: u64::from(delta.value_head_dim),
    }
}

/// Parameters of a unit whose gradient each tensor rank knows only in part: under sequence parallelism, what every rank
/// holds whole and applies to its part of the sequence (norms, routers, the gate of shared experts, the matrices into
/// low-rank vectors); and norms of each query and key head, which see a rank's heads only. What
/// [`crate::program::Payload::ReplicatedGradients`] reduces.
///
/// # Panics
/// If the unit is of a layer that the model does not have.
#[must_use]
pub fn partial_gradient_parameters(shape: Shape<'_>, unit: Unit) -> u64 {
    kind_partial_gradient_parameters(shape, UnitKind::of(shape.model, unit))
}

fn kind_partial_gradient_parameters(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let divided = shape.layout.sequence_parallel;
    match kind {
        UnitKind::AttentionNorm
        | UnitKind::MlpNorm
        | UnitKind::RouterNorm
        | UnitKind::FinalNorm
        | UnitKind::Experts
        | UnitKind::Latent
            if divided =>
        {
            division(shape, kind).whole
        }
        UnitKind::Attention | UnitKind::Window if shape.model.variants.query_key_norm == QueryKeyNorm::Head => {
            if_present(shape.tensor() > 1, 2 * u64::from(shape.model.head_dim))
        }
        _ => 0,
    }
}

/// The sum of [`partial_gradient_parameters`] over the units of a chunk.
#[must_use]
pub fn chunk_partial_gradient_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    over_kinds(shape, chunk, chunk.all_units(), kind_partial_gradient_parameters)
}

/// Sums a count over the units of a range, kind by kind.
fn over_kinds(shape: Shape<'_>, chunk: &Chunk, units: UnitRange, of: impl Fn(Shape<'_>, UnitKind) -> u64) -> u64 {
    let counts = unit_counts(shape.model, chunk, units).all();
    UnitKind::ALL
        .into_iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| u64::from(count) * of(shape, kind))
        .sum()
}

/// Parameters that one rank holds of consecutive units of a chunk before any sharding. A tied head beside the embedding
/// holds nothing of its own; on another chunk it holds a copy.
#[must_use]
pub fn held_parameters(shape: Shape<'_>, chunk: &Chunk, units: UnitRange) -> HeldParameters {
    let of = |shape: Shape<'_>, kind| {
        let tied = kind == UnitKind::Head && shape.model.tied_head && chunk.embedding;
        let Division { split, whole } = division(shape, kind);
        let shared = if tied { shape.rank_vocabulary() * u64::from(shape.model.hidden) } else { 0 };
        split + whole - shared
    };
    HeldParameters {
        common: over_kinds(shape, chunk, units, of),
        experts: over_kinds(shape, chunk, units, kind_expert_parameters),
    }
}

/// Parameters that one rank holds of a chunk before any sharding, experts included.
#[must_use]
pub fn chunk_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    held_parameters(shape, chunk, chunk.all_units()).total()
}

/// Parameters of routed experts that one rank holds of a chunk before any sharding.
#[must_use]
pub fn chunk_expert_parameters(shape: Shape<'_>, chunk: &Chunk) -> u64 {
    held_parameters(shape, chunk, chunk.all_units()).experts
}

/// Parameters of one layer's matrices that tokens are multiplied with, one token's part: of the routed experts the active
/// ones, no norms, biases, convolutions or decays.
pub(super) fn multiplied_mixer(model: &crate::Model, mixer: Mixer) -> u64 {
    let hidden = u64::from(model.hidden);
    match mixer {
        Mixer::Attention | Mixer::Window => {
            let query = model.query_width();
            let gate = if_present(model.variants.gated_attention, query);
            hidden * (2 * query + gate + 2 * model.kv_width())
        }
        Mixer::Latent => {
            let latent = model.variants.latent.expect("a model with latent layers has their sizes");
            let heads = u64::from(model.heads);
            let key = u64::from(latent.plain_head_dim) + u64::from(latent.rotary_head_dim);
            let (kv_rank, value) = (u64::from(latent.kv_rank), u64::from(latent.value_head_dim));
            let query = match latent.query_rank.map(u64::from) {
                Some(rank) => rank * (hidden + heads * key),
                None => hidden * heads * key,
            };
            query
                + hidden * (kv_rank + u64::from(latent.rotary_head_dim))
                + kv_rank * heads * (u64::from(latent.plain_head_dim) + value)
                + heads * value * hidden
        }
        Mixer::Mamba => {
            let mamba = model.variants.mamba.expect("a model with state spaces has their sizes");
            let (inner, rank) = (u64::from(mamba.inner), u64::from(mamba.step_rank));
            inner * (3 * hidden + 2 * rank + 2 * u64::from(mamba.state))
        }
        Mixer::GatedDelta => {
            let delta = model.variants.delta.expect("a model with a delta rule has its sizes");
            let key = u64::from(delta.key_heads) * u64::from(delta.key_head_dim);
            let heads = u64::from(delta.value_heads);
            hidden * (2 * key + 3 * heads * u64::from(delta.value_head_dim) + 2 * heads)
        }
    }
}

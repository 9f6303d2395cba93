//! What instructions need only while they run, and what one half of a backward pass leaves for the other.

use ir::counts::{Shape, UnitKind, bytes_of};
use ir::{AttentionKernel, BranchNorms, Recompute};

use super::sizes::Sizes;

/// `[copies that experts receive, width]`.
fn received(sizes: &Sizes<'_>, width: u64) -> u64 {
    bytes_of([sizes.shape.received_copies(), width, sizes.element]).get()
}
/// `[copies that this rank sends, h]`.
fn sent(sizes: &Sizes<'_>) -> u64 {
    bytes_of([sizes.shape.routed_copies(), sizes.hidden, sizes.element]).get()
}
/// Norms of a branch, at least those of one.
fn norms(sizes: &Sizes<'_>) -> u64 {
    match sizes.shape.model.variants.branch_norms {
        BranchNorms::Before | BranchNorms::After => 1,
        BranchNorms::Both => 2,
    }
}

/// A unit's output that nobody keeps, and its input gathered from sequence-parallel ranks. Of experts also the copies that
/// are sent, and what comes back of them.
pub(super) fn forward(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let sizes = Sizes::of(shape);
    match kind {
        UnitKind::Embedding => sizes.wide(sizes.hidden),
        // A norm's output is the body's kept input; the logits have their own buffer.
        UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::RouterNorm | UnitKind::FinalNorm | UnitKind::Loss => 0,
        UnitKind::Head => sizes.gathered(kind),
        UnitKind::Attention
        | UnitKind::Window
        | UnitKind::Latent
        | UnitKind::Mamba
        | UnitKind::GatedDelta
        | UnitKind::Dense => sizes.wide(sizes.hidden) + sizes.gathered(kind),
        UnitKind::Experts => {
            let shared = if shape.experts().shared_ffn > 0 { sizes.wide(sizes.hidden) } else { 0 };
            sizes.residual() + 2 * sent(&sizes) + received(&sizes, sizes.hidden) + shared + sizes.gathered(kind)
        }
    }
}

/// Gradients while a backward pass goes through a unit: of the residual stream, of the unit's output, of what lies inside
/// and is no matrix's output (those are [`left`]).
pub(super) fn gradients(shape: Shape<'_>, kind: UnitKind, recompute: Recompute) -> u64 {
    let sizes = Sizes::of(shape);
    let residual = sizes.residual();
    match kind {
        UnitKind::Embedding | UnitKind::Loss => 0,
        UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::FinalNorm => residual + copies(&sizes),
        UnitKind::RouterNorm => {
            residual + copies(&sizes) + bytes_of([sizes.rows, u64::from(shape.experts().count), 8]).get()
        }
        UnitKind::Attention | UnitKind::Window | UnitKind::Latent => {
            let again = if recompute == Recompute::Selective { sizes.core() } else { 0 };
            let scores = match shape.workload.attention {
                AttentionKernel::Plain => sizes.scores(sizes.element),
                AttentionKernel::Fused => 0,
            };
            residual + sizes.wide(sizes.hidden) + sizes.wide(sizes.mixing(kind).output) + again + scores
        }
        UnitKind::Mamba | UnitKind::GatedDelta => {
            let mixing = sizes.mixing(kind);
            let inside = mixing.inside.saturating_sub(mixing.products) + mixing.output;
            residual + sizes.wide(sizes.hidden) + sizes.wide(inside)
        }
        UnitKind::Dense => residual + sizes.wide(sizes.hidden) + sizes.wide(shape.rank_ffn()),
        UnitKind::Experts => {
            let routed = 2 * sent(&sizes) + received(&sizes, sizes.hidden + shape.rank_expert_ffn());
            let shared = if shape.experts().shared_ffn > 0 {
                sizes.wide(sizes.hidden) + sizes.wide(shape.rank_shared_ffn())
            } else {
                0
            };
            residual + routed.max(shared)
        }
        UnitKind::Head => sizes.wide(sizes.hidden),
    }
}

/// FP32 gradients of the copies that a norm of elementary kernels makes.
fn copies(sizes: &Sizes<'_>) -> u64 {
    bytes_of([sizes.rows, sizes.hidden, sizes.norm_copies()]).get()
}

/// What is left for the weight gradients: the gradient of each matrix's and norm's output, and inputs gathered again.
pub(super) fn left(shape: Shape<'_>, kind: UnitKind) -> u64 {
    let sizes = Sizes::of(shape);
    let (_, same_norm) = sizes.shares();
    match kind {
        UnitKind::Embedding => sizes.wide(sizes.hidden),
        UnitKind::MlpNorm | UnitKind::RouterNorm if same_norm => router(&sizes, kind),
        UnitKind::AttentionNorm | UnitKind::MlpNorm | UnitKind::RouterNorm => {
            norms(&sizes) * sizes.residual() + router(&sizes, kind)
        }
        UnitKind::FinalNorm => sizes.residual(),
        UnitKind::Attention | UnitKind::Window | UnitKind::Latent | UnitKind::Mamba | UnitKind::GatedDelta => {
            let mixing = sizes.mixing(kind);
            // Of each low-rank vector the one after its norm was made from the one before.
            let low_rank = bytes_of([sizes.rows, mixing.low_rank, sizes.element]).get();
            sizes.wide(sizes.hidden) + sizes.wide(mixing.products) + low_rank + sizes.gathered(kind)
        }
        UnitKind::Dense => {
            let (inputs, _) = Sizes::activation(shape.model.mlp, shape.rank_ffn());
            sizes.wide(sizes.hidden) + sizes.wide(inputs) + sizes.gathered(kind)
        }
        UnitKind::Experts => {
            let experts = shape.experts();
            let (inputs, _) = Sizes::activation(experts.mlp, shape.rank_expert_ffn());
            let (shared_inputs, _) = Sizes::activation(experts.mlp, shape.rank_shared_ffn());
            let shared = if experts.shared_ffn > 0 { sizes.wide(sizes.hidden) + sizes.wide(shared_inputs) } else { 0 };
            received(&sizes, sizes.hidden + inputs) + shared + sizes.gathered(kind)
        }
        UnitKind::Head => sizes.gathered(kind),
        UnitKind::Loss => 0,
    }
}

/// Gradients of the router's scores.
fn router(sizes: &Sizes<'_>, kind: UnitKind) -> u64 {
    if kind == UnitKind::RouterNorm {
        bytes_of([sizes.rows, u64::from(sizes.shape.experts().count), 4]).get()
    } else {
        0
    }
}

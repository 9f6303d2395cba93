//! What the passes of a unit keep for each other.

use ir::counts::{Shape, UnitKind, bytes_of};
use ir::{BranchNorms, Bytes, Precision, Recompute};

use super::sizes::Sizes;

/// When a kept tensor is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Whatever is recomputed: the input of a layer, or of a part that is never recomputed.
    Always,
    /// Unless whole layers are recomputed.
    UnlessFull,
    /// Unless it is recomputed as cheap, or whole layers are.
    Cheap,
    /// Only if the attention core is not recomputed.
    Core,
    /// Only where operations are chosen one by one: what the choice names although no backward pass reads it.
    Chosen,
}

/// Which half of a split backward pass reads a kept tensor last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// That of input gradients.
    Inputs,
    /// That of weight gradients: inputs of matrices, norms and tables.
    Weights,
}

/// A tensor that a forward pass makes and a backward pass reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptTensor {
    /// Its name.
    pub name: &'static str,
    /// Its size on one rank.
    pub bytes: Bytes,
    /// When it is kept.
    pub keep: Keep,
    /// Who reads it last.
    pub reader: Reader,
}

/// What the passes of one unit of a kind keep for each other, of one microbatch on one rank.
///
/// # Panics
/// If the model has no sizes for that kind.
#[must_use]
pub fn kept_tensors(shape: Shape<'_>, kind: UnitKind) -> Vec<KeptTensor> {
    let mut tensors = Vec::new();
    each_kept(shape, kind, &mut |name, bytes, (keep, reader)| {
        tensors.push(KeptTensor { name, bytes: Bytes::new(bytes), keep, reader });
    });
    tensors
}

pub(super) const fn is_kept(keep: Keep, recompute: Recompute) -> bool {
    match (keep, recompute) {
        (Keep::Always, _) | (Keep::UnlessFull | Keep::Core, Recompute::None) => true,
        (Keep::UnlessFull, Recompute::Selective | Recompute::Operations) => true,
        (Keep::Cheap, Recompute::None | Recompute::Selective) => true,
        (Keep::Core | Keep::Chosen, Recompute::Operations) => true,
        (Keep::Chosen, Recompute::None | Recompute::Selective | Recompute::Full)
        | (Keep::Core, Recompute::Selective)
        | (Keep::Cheap, Recompute::Operations)
        | (Keep::UnlessFull | Keep::Cheap | Keep::Core, Recompute::Full) => false,
    }
}

/// What full recomputation brings back.
pub(super) const fn is_recomputed(keep: Keep, recompute: Recompute) -> bool {
    match (keep, recompute) {
        (Keep::UnlessFull | Keep::Cheap | Keep::Core, Recompute::Full) => true,
        (Keep::Always | Keep::Chosen, _) | (_, Recompute::None | Recompute::Selective | Recompute::Operations) => false,
    }
}

pub(super) fn sum_of_kept(shape: Shape<'_>, kind: UnitKind, wanted: impl Fn(Keep, Reader) -> bool) -> Bytes {
    let mut sum = 0;
    each_kept(shape, kind, &mut |_, bytes, (keep, reader)| {
        if wanted(keep, reader) {
            sum += bytes;
        }
    });
    Bytes::new(sum)
}

type Visit<'v> = &'v mut dyn FnMut(&'static str, u64, (Keep, Reader));

/// What input gradients read, kept so; and what weight gradients read.
const fn until_inputs(keep: Keep) -> (Keep, Reader) {
    (keep, Reader::Inputs)
}
const fn until_weights(keep: Keep) -> (Keep, Reader) {
    (keep, Reader::Weights)
}

fn each_kept(shape: Shape<'_>, kind: UnitKind, visit: Visit<'_>) {
    let sizes = Sizes::of(shape);
    match kind {
        // The gradient is added to the rows of these tokens.
        UnitKind::Embedding => visit("token ids", sizes.tokens * 4, until_weights(Keep::Always)),
        // Full recomputation starts from this input.
        UnitKind::AttentionNorm => norms(&sizes, "layer input", Keep::Always, Keep::Cheap, visit),
        UnitKind::MlpNorm => second_norms(&sizes, visit),
        UnitKind::RouterNorm => {
            second_norms(&sizes, visit);
            let scores = bytes_of([sizes.rows, u64::from(shape.experts().count), 8]).get();
            visit("router scores", scores, until_inputs(Keep::UnlessFull));
        }
        UnitKind::Attention | UnitKind::Window | UnitKind::Latent | UnitKind::Mamba | UnitKind::GatedDelta => {
            mixer(&sizes, kind, visit);
        }
        UnitKind::Dense => {
            if !sizes.shares().1 {
                visit("normed input", sizes.saved(sizes.rows, sizes.hidden), until_weights(Keep::Cheap));
            }
            let (inputs, output) = Sizes::activation(shape.model.mlp, shape.rank_ffn());
            visit("activation input", sizes.wide(inputs - inputs / 2), until_inputs(Keep::UnlessFull));
            visit("activation input", sizes.wide(inputs / 2), until_inputs(Keep::Cheap));
            if inputs > output && !shape.workload.recipe.fused_activation {
                // Of elementary kernels the product with the other branch reads the activated gate.
                visit("activated gate", sizes.wide(output), until_inputs(Keep::Cheap));
                // The seventh product of a layer, whose output only the residual stream reads.
                visit("branch output", sizes.wide(sizes.hidden), until_inputs(Keep::Chosen));
            }
            visit("activation output", sizes.saved(sizes.tokens, output), until_weights(Keep::Cheap));
        }
        UnitKind::Experts => experts(&sizes, visit),
        // The head's units are never recomputed.
        UnitKind::FinalNorm => norm(&sizes, "norm input", Keep::Always, Keep::Always, visit),
        UnitKind::Head => visit("normed input", sizes.residual(), until_weights(Keep::Always)),
        UnitKind::Loss => visit("logarithm of the sum", sizes.tokens * 4, until_inputs(Keep::Always)),
    }
}

/// The input and its statistics give the gradient of a norm; elementary kernels keep FP32 copies too.
fn norm(sizes: &Sizes<'_>, name: &'static str, input: Keep, rest: Keep, visit: Visit<'_>) {
    visit(name, sizes.residual(), until_weights(input));
    visit("norm statistics", sizes.rows * sizes.statistics(), until_weights(rest));
    let copies = bytes_of([sizes.rows, sizes.hidden, sizes.norm_copies()]).get();
    if copies > 0 {
        visit("norm copies", copies, until_weights(rest));
    }
}

/// A branch's norms. A norm after it in place of the one before keeps the branch's output in place of a normed input,
/// which is of the same size.
fn norms(sizes: &Sizes<'_>, name: &'static str, input: Keep, rest: Keep, visit: Visit<'_>) {
    norm(sizes, name, input, rest, visit);
    if sizes.shape.model.variants.branch_norms == BranchNorms::Both {
        norm(sizes, "branch output", rest, rest, visit);
    }
}

/// The norms of the second branch; of parallel branches the layer's input is already kept.
fn second_norms(sizes: &Sizes<'_>, visit: Visit<'_>) {
    let (same_input, same_norm) = sizes.shares();
    if same_norm {
        return;
    }
    let residual = if same_input { sizes.residual() } else { 0 };
    norms(sizes, "norm input", Keep::Cheap, Keep::Cheap, &mut |name, bytes, keep| {
        visit(name, if name == "norm input" { bytes - residual } else { bytes }, keep);
    });
}

fn mixer(sizes: &Sizes<'_>, kind: UnitKind, visit: Visit<'_>) {
    let mixing = sizes.mixing(kind);
    // Weight gradient of the first projections; the shard only, where it is gathered again.
    visit("normed input", sizes.saved(sizes.rows, sizes.hidden), until_weights(Keep::Cheap));
    if mixing.low_rank > 0 {
        let bytes = bytes_of([sizes.rows, mixing.low_rank, sizes.element]).get();
        visit("low-rank vectors", bytes, until_weights(Keep::UnlessFull));
    }
    let attends = matches!(kind, UnitKind::Attention | UnitKind::Window | UnitKind::Latent);
    let inside = if attends { "queries, keys, values" } else { "inputs of the recurrence" };
    // Every second product's output is cheap enough to compute again: of three products that of the keys.
    let first = match kind {
        UnitKind::Attention | UnitKind::Window => mixing.products - sizes.shape.rank_kv_width(),
        _ => mixing.inside - mixing.inside / 2,
    };
    // A recurrence's inputs are inputs of its matrices too.
    let until = if attends { until_inputs } else { until_weights };
    visit(inside, sizes.wide(first), until(Keep::UnlessFull));
    visit(inside, sizes.wide(mixing.inside - first), until(Keep::Cheap));
    // Gradient of the core, and weight gradient of the output projection.
    visit("mixer output", sizes.wide(mixing.output), until_weights(Keep::UnlessFull));
    if sizes.shape.workload.precision == Precision::Fp8 {
        visit("converted output", sizes.saved(sizes.tokens, mixing.output), until_weights(Keep::Cheap));
    }
    if attends {
        visit("attention probabilities", sizes.core(), until_inputs(Keep::Core));
    }
}

/// Of the routed experts what reaches the busiest rank; of the shared ones as of a dense part.
fn experts(sizes: &Sizes<'_>, visit: Visit<'_>) {
    let (shape, received) = (sizes.shape, sizes.shape.received_copies());
    let experts = shape.experts();
    let wide = |width: u64| bytes_of([received, width, sizes.element]).get();
    if !sizes.shares().1 {
        visit("normed input", sizes.saved(sizes.rows, sizes.hidden), until_weights(Keep::UnlessFull));
    }
    visit("places of copies", bytes_of([shape.routed_copies() + received, 8]).get(), until_weights(Keep::UnlessFull));
    visit("experts' input", sizes.saved(received, sizes.hidden), until_weights(Keep::UnlessFull));
    let (inputs, output) = Sizes::activation(experts.mlp, shape.rank_expert_ffn());
    visit("experts' activation input", wide(inputs), until_inputs(Keep::UnlessFull));
    visit("experts' activation output", sizes.saved(received, output), until_weights(Keep::UnlessFull));
    if experts.shared_ffn > 0 {
        let (inputs, output) = Sizes::activation(experts.mlp, shape.rank_shared_ffn());
        visit("shared activation input", sizes.wide(inputs), until_inputs(Keep::UnlessFull));
        visit("shared activation output", sizes.saved(sizes.tokens, output), until_weights(Keep::UnlessFull));
        if experts.shared_gate {
            visit("shared output", sizes.residual(), until_inputs(Keep::UnlessFull));
        }
    }
}

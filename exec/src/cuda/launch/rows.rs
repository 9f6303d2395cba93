//! Launches of what works row by row.

use super::{Argument, Launch, Launches, THREADS, int};
use crate::cuda::source::{Module, Source};
use crate::device::{Element, NormSaved, Operation, Rotation, Slice};
use crate::kernels::loss::STATS;

/// Rows of a stretch that one block adds up, and the most stretches.
const STRETCH: usize = 64;
const STRETCHES: usize = 64;

pub(super) fn launches(all: &mut Launches, element: Element, operation: &Operation) {
    match *operation {
        Operation::NormForward { norm, x, y, mean, rstd } => {
            let features = norm.weight.length.into();
            let arguments = [
                features,
                norm.epsilon.into(),
                x.into(),
                norm.weight.into(),
                norm.bias.into(),
                y.into(),
                mean.into(),
                rstd.into(),
            ];
            all.call((Source::Norm, element), "norm_forward", rstd.length, arguments);
        }
        Operation::NormBackwardInput { norm, saved: NormSaved { x, mean, rstd }, dy, add, dx } => {
            let features = norm.weight.length.into();
            let arguments =
                [features, add.into(), x.into(), norm.weight.into(), mean.into(), rstd.into(), dy.into(), dx.into()];
            all.call((Source::Norm, element), "norm_backward_input", rstd.length, arguments);
        }
        Operation::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient } => {
            norm_weights(all, element, saved, dy, weight_gradient, bias_gradient);
        }
        Operation::BiasBackward { dy, bias_gradient } => {
            let features = bias_gradient.length;
            let rows = dy.length.checked_div(features).unwrap_or(0);
            let stretches = rows.div_ceil(STRETCH).min(STRETCHES);
            all.scratch_bytes = stretches * features * size_of::<f32>();
            let arguments = vec![rows.into(), features.into(), dy.into(), Argument::Scratch(0)];
            columns(all, element, "bias_parts", features, stretches, arguments);
            add_parts(all, element, features, stretches, Argument::Scratch(0), bias_gradient);
        }
        Operation::LossStatistics { shard, logits, targets, statistics } => {
            let tokens = targets.length;
            let sizes = [tokens, shard.first, shard.valid, shard.columns].map(Argument::from);
            let [a, b, c, d] = sizes;
            let arguments = [a, b, c, d, logits.into(), targets.into(), statistics.into()];
            all.call((Source::Loss, element), "loss_statistics", tokens, arguments);
        }
        Operation::LossCombine { statistics, targets, losses, lse } => {
            let tokens = targets.length;
            let ranks = statistics.length.checked_div(STATS * tokens).unwrap_or(0);
            let arguments = [tokens.into(), ranks.into(), statistics.into(), targets.into(), losses.into(), lse.into()];
            all.elements((Source::Loss, Element::F32), "loss_combine", tokens, arguments);
        }
        Operation::LossBackward { shard, logits, targets, lse, scale } => {
            let [first, valid, width] = [shard.first, shard.valid, shard.columns].map(Argument::from);
            let arguments = [first, valid, width, scale.into(), targets.into(), lse.into(), logits.into()];
            all.call((Source::Loss, element), "loss_backward", targets.length, arguments);
        }
        _ => embeddings(all, element, operation),
    }
}

fn embeddings(all: &mut Launches, element: Element, operation: &Operation) {
    let module = (Source::Embedding, element);
    match *operation {
        Operation::EmbeddingForward { sizes, tokens, table, out } => {
            let [features, first, rows] =
                [sizes.features, sizes.first, table.length / sizes.features].map(Argument::from);
            let arguments = [features, first, rows, tokens.into(), table.into(), out.into()];
            all.call(module, "embedding_forward", tokens.length, arguments);
        }
        Operation::EmbeddingBackward { sizes, tokens, d_out, table_gradient } => {
            let rows = table_gradient.length / sizes.features;
            let [count, features, first, rows] = [tokens.length, sizes.features, sizes.first, rows].map(Argument::from);
            let arguments = [count, features, first, rows, tokens.into(), d_out.into(), table_gradient.into()];
            all.call(module, "embedding_backward", tokens.length, arguments);
        }
        Operation::PositionsForward { sizes, table, x } => {
            let [n, features, first, sequence] =
                [x.length, sizes.features, sizes.first, sizes.sequence_length].map(Argument::from);
            let arguments = [n, features, first, sequence, table.into(), x.into()];
            all.elements(module, "positions_forward", x.length, arguments);
        }
        Operation::PositionsBackward { sizes, dx, table_gradient } => {
            let [n, features, first, sequence] =
                [dx.length, sizes.features, sizes.first, sizes.sequence_length].map(Argument::from);
            let arguments = [n, features, first, sequence, dx.into(), table_gradient.into()];
            let elements = dx.length.min(sizes.sequence_length * sizes.features);
            all.elements(module, "positions_backward", elements, arguments);
        }
        Operation::Rotate { rotation, x } => {
            let Rotation { cosines, sines, head_dim, heads, sequence_length, first_position, back } = rotation;
            let sign = if back { -1.0 } else { 1.0 };
            let [count, pairs, heads, sequence, first] =
                [x.length / 2, head_dim / 2, heads, sequence_length, first_position].map(Argument::from);
            let arguments =
                [count, pairs, heads, sequence, first, Argument::Single(sign), cosines.into(), sines.into(), x.into()];
            all.elements(module, "rotate", x.length / 2, arguments);
        }
        _ => unreachable!("{operation:?} does not work row by row"),
    }
}

fn norm_weights(
    all: &mut Launches,
    element: Element,
    saved: NormSaved,
    dy: Slice,
    weight_gradient: Slice,
    bias_gradient: Option<Slice>,
) {
    let (rows, features) = (saved.rstd.length, weight_gradient.length);
    let stretches = rows.div_ceil(STRETCH).min(STRETCHES);
    let bytes = stretches * features * size_of::<f32>();
    all.scratch_bytes = if bias_gradient.is_some() { 2 * bytes } else { bytes };
    let parts = Argument::Scratch(0);
    let of_bias = bias_gradient.map_or(Argument::Null, |_| Argument::Scratch(bytes));
    let NormSaved { x, mean, rstd } = saved;
    let arguments = vec![rows.into(), features.into(), x.into(), mean.into(), rstd.into(), dy.into(), parts, of_bias];
    columns(all, element, "norm_weight_parts", features, stretches, arguments);
    add_parts(all, element, features, stretches, parts, weight_gradient);
    if let Some(bias_gradient) = bias_gradient {
        add_parts(all, element, features, stretches, of_bias, bias_gradient);
    }
}

/// A block per 32 columns of a stretch of rows.
fn columns(
    all: &mut Launches,
    element: Element,
    kernel: &'static str,
    features: usize,
    stretches: usize,
    arguments: Vec<Argument>,
) {
    let blocks = [features.div_ceil(32), stretches, 1].map(|n| u32::try_from(n).expect("fewer columns than 2^32"));
    let module = Module { source: Source::Norm, element, head: None };
    all.push(Launch { module, kernel, grid: blocks, threads: THREADS, shared_bytes: 0, arguments });
}

fn add_parts(
    all: &mut Launches,
    element: Element,
    features: usize,
    stretches: usize,
    parts: Argument,
    gradient: Slice,
) {
    if stretches > 0 {
        let arguments = [features.into(), int(stretches), parts, gradient.into()];
        all.elements((Source::Norm, element), "add_parts", features, arguments);
    }
}

pub(super) fn routing(all: &mut Launches, element: Element, operation: &Operation) {
    let module = (Source::Routing, element);
    let warps = |rows: usize| (rows * 32).div_ceil(THREADS as usize);
    match *operation {
        Operation::Softmax { columns, values } => {
            let rows = values.length / columns;
            all.call((Source::Loss, Element::F32), "softmax", rows, [columns.into(), values.into()]);
        }
        Operation::ChooseExperts { experts, normalised, tokens, scores, chosen, weights } => {
            let active = chosen.length.checked_div(tokens).unwrap_or(0);
            let arguments = [
                tokens.into(),
                int(experts),
                int(active),
                normalised.into(),
                scores.into(),
                chosen.into(),
                weights.into(),
            ];
            all.call((Source::Routing, Element::F32), "choose_experts", warps(tokens), arguments);
        }
        Operation::OrderByExpert { chosen, order, places, counts } => {
            let sizes = (int(chosen.length), int(counts.length));
            let arguments = [sizes.0, sizes.1, chosen.into(), order.into(), places.into(), counts.into()];
            all.call((Source::Routing, Element::F32), "order_by_expert", 1, arguments);
        }
        Operation::GatherRows { width, share, indices, factors, from, to } => {
            let share = Argument::Unsigned(u32::try_from(share).expect("fewer choices than 2^32"));
            let arguments = [width.into(), share, indices.into(), factors.into(), from.into(), to.into()];
            all.call(module, "gather_rows", indices.length, arguments);
        }
        Operation::CombineRows { width, share, places, factors, rows, out } => {
            let arguments = [width.into(), int(share), places.into(), factors.into(), rows.into(), out.into()];
            all.call(module, "combine_rows", out.length / width, arguments);
        }
        Operation::RowProducts { width, share, places, a, rows, products } => {
            let n = places.length;
            let arguments = [n.into(), width.into(), int(share), places.into(), a.into(), rows.into(), products.into()];
            all.call(module, "row_products", warps(n), arguments);
        }
        _ => unreachable!("{operation:?} moves no rows"),
    }
}

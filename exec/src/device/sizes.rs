//! Whether an operation's sizes, elements and places fit each other. What does not is a bug of the caller.

use super::operation::{AttentionTensors, Norm, NormSaved, Operands, Operation, Rotation, Sizes};
use super::{Element, Slice};

impl Operation {
    /// Asserts that every slice has the size and element that the operation needs, and that outputs overlap nothing.
    ///
    /// # Panics
    /// If not; the message holds the whole operation.
    pub fn assert_sound(&self) {
        if let Some(fault) = self.fault() {
            panic!("{fault} in {self:?}");
        }
    }

    fn fault(&self) -> Option<&'static str> {
        let Operands { reads, writes, updates } = self.operands();
        let outputs = || writes.iter().chain(&updates);
        for (index, output) in outputs().enumerate() {
            if reads.iter().any(|read| read.overlaps(*output)) {
                return Some("an output overlaps an input");
            }
            if outputs().skip(index + 1).any(|other| other.overlaps(*output)) {
                return Some("two outputs overlap");
            }
        }
        if !self.elements_fit() {
            return Some("operands are of the wrong element");
        }
        (!self.lengths_fit()).then_some("sizes do not fit")
    }

    /// The operands whose element may be any, and which are then of one; the rest is what `fixed` says.
    fn elements_fit(&self) -> bool {
        let (any, fixed) = self.elements();
        let real = |slice: &Slice| matches!(slice.element, Element::F32 | Element::Bf16);
        any.iter().all(real)
            && any.windows(2).all(|pair| pair[0].element == pair[1].element)
            && fixed.iter().all(|(slice, element)| slice.element == *element)
    }

    #[expect(clippy::too_many_lines, reason = "one line or two per operation: a table")]
    fn elements(&self) -> (Vec<Slice>, Vec<(Slice, Element)>) {
        use Element::{Bf16, F32, F64, U32};
        let f32s = |slices: &[Slice]| slices.iter().map(|slice| (*slice, F32)).collect::<Vec<_>>();
        match *self {
            Self::EmbeddingForward { tokens, table, out, .. } => (vec![table, out], vec![(tokens, U32)]),
            Self::EmbeddingBackward { tokens, d_out, table_gradient, .. } => {
                (vec![d_out], vec![(tokens, U32), (table_gradient, F32)])
            }
            Self::PositionsForward { table, x, .. } => (vec![table, x], vec![]),
            Self::PositionsBackward { dx, table_gradient, .. } => (vec![dx], f32s(&[table_gradient])),
            Self::NormForward { norm: Norm { weight, bias, .. }, x, y, mean, rstd } => {
                let any = [weight, x, y].into_iter().chain(bias).collect();
                (any, f32s(&[rstd]).into_iter().chain(mean.map(|mean| (mean, F32))).collect())
            }
            Self::NormBackwardInput { norm, saved: NormSaved { x, mean, rstd }, dy, dx, .. } => {
                let statistics = f32s(&[rstd]).into_iter().chain(mean.map(|mean| (mean, F32))).collect();
                (vec![norm.weight, x, dy, dx], statistics)
            }
            Self::NormBackwardWeight { saved: NormSaved { x, mean, rstd }, dy, weight_gradient, bias_gradient } => {
                let more = mean.into_iter().chain(bias_gradient).map(|slice| (slice, F32));
                (vec![x, dy], f32s(&[rstd, weight_gradient]).into_iter().chain(more).collect())
            }
            Self::Rotate { rotation, x } => (vec![x], f32s(&[rotation.cosines, rotation.sines])),
            Self::SwigluForward { gate, up, out } | Self::GegluForward { gate, up, out, .. } => {
                (vec![gate, up, out], vec![])
            }
            Self::SwigluBackward { gate, up, d_out, d_gate, d_up }
            | Self::GegluBackward { gate, up, d_out, d_gate, d_up, .. } => {
                (vec![gate, up, d_out, d_gate, d_up], vec![])
            }
            Self::ActivationForward { x, y, .. } => (vec![x, y], vec![]),
            Self::ActivationBackward { x, dy, dx, .. } => (vec![x, dy, dx], vec![]),
            Self::AttentionForward { tensors: AttentionTensors { q, k, v, out, lse, starts }, .. } => {
                let starts = starts.map(|starts| (starts, U32));
                (vec![q, k, v, out], [(lse, F32)].into_iter().chain(starts).collect())
            }
            Self::AttentionBackward { tensors, d_out, delta, dq, dk, dv, .. } => {
                let AttentionTensors { q, k, v, out, lse, starts } = tensors;
                let starts = starts.map(|starts| (starts, U32));
                let fixed = [(lse, F32), (delta, F32)].into_iter().chain(starts);
                (vec![q, k, v, out, d_out, dq, dk, dv], fixed.collect())
            }
            Self::AttentionMerge { out, lse, part_out, part_lse } => (vec![part_out], f32s(&[out, lse, part_lse])),
            Self::LossStatistics { logits, targets, statistics, .. } => {
                (vec![logits], vec![(targets, U32), (statistics, F32)])
            }
            Self::LossCombine { statistics, targets, losses, lse } => {
                (vec![], vec![(statistics, F32), (targets, U32), (losses, F32), (lse, F32)])
            }
            Self::LossBackward { logits, targets, lse, .. } => (vec![logits], vec![(targets, U32), (lse, F32)]),
            Self::AddBias { y, bias } => (vec![y, bias], vec![]),
            Self::BiasBackward { dy, bias_gradient } => (vec![dy], f32s(&[bias_gradient])),
            Self::Add { a, b, out } => (vec![a, b, out], vec![]),
            // Gradients of one element may be added into FP32 sums.
            Self::Accumulate { total, part, .. } if total.element == F32 => (vec![part], vec![]),
            Self::Accumulate { total, part, .. } => (vec![total, part], vec![]),
            Self::Scale { values, .. } => (vec![values], vec![]),
            Self::CopyBlock { from, to, .. } => (vec![from, to], vec![]),
            Self::Cast { from, to } if from.element == F32 => (vec![], vec![(to, Bf16)]),
            Self::Cast { from, to } => (vec![], vec![(from, Bf16), (to, F32)]),
            Self::SquaredNorm { values, sum } => (vec![], vec![(values, F32), (sum, F64)]),
            Self::ClipFactor { squared_norm, factor, .. } => (vec![], vec![(squared_norm, F64), (factor, F32)]),
            Self::AdamW { factor, master, gradients, first, second, rounded, .. } => {
                let mut fixed = f32s(&[master, gradients, first, second]);
                fixed.extend(factor.map(|factor| (factor, F32)));
                fixed.extend(rounded.map(|rounded| (rounded, Bf16)));
                (vec![], fixed)
            }
            Self::Softmax { values, .. } => (vec![], f32s(&[values])),
            Self::ChooseExperts { scores, chosen, weights, .. } => {
                (vec![], vec![(scores, F32), (chosen, U32), (weights, F32)])
            }
            Self::OrderByExpert { chosen, order, places, counts } => {
                (vec![], [chosen, order, places, counts].map(|slice| (slice, U32)).to_vec())
            }
            Self::GatherRows { indices: index, factors, from: rows, to: out, .. }
            | Self::CombineRows { places: index, factors, rows, out, .. } => {
                let factors = factors.map(|factors| (factors, F32));
                (vec![rows, out], [(index, U32)].into_iter().chain(factors).collect())
            }
            Self::RowProducts { places, a, rows, products, .. } => {
                (vec![a, rows], vec![(places, U32), (products, F32)])
            }
            Self::CheckFinite { values, flag, .. } => (vec![values], vec![(flag, U32)]),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one line or two per operation: a table")]
    fn lengths_fit(&self) -> bool {
        let same = |slices: &[Slice]| slices.windows(2).all(|pair| pair[0].length == pair[1].length);
        let optional = |slice: Option<Slice>, length: usize| slice.is_none_or(|slice| slice.length == length);
        match *self {
            Self::EmbeddingForward { sizes, tokens, table, out } => embedding_fits(sizes, tokens, out, table),
            Self::EmbeddingBackward { sizes, tokens, d_out, table_gradient } => {
                embedding_fits(sizes, tokens, d_out, table_gradient)
            }
            Self::PositionsForward { sizes, table, x } => positions_fit(sizes, x, table),
            Self::PositionsBackward { sizes, dx, table_gradient } => positions_fit(sizes, dx, table_gradient),
            Self::NormForward { norm, x, y, mean, rstd } => {
                same(&[x, y])
                    && norm_fits(norm.weight, x, rstd, mean)
                    && norm.bias.is_some() == mean.is_some()
                    && optional(norm.bias, norm.weight.length)
            }
            Self::NormBackwardInput { norm, saved, dy, dx, .. } => {
                same(&[saved.x, dy, dx]) && norm_fits(norm.weight, saved.x, saved.rstd, saved.mean)
            }
            Self::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient } => {
                same(&[saved.x, dy])
                    && norm_fits(weight_gradient, saved.x, saved.rstd, saved.mean)
                    && bias_gradient.is_some() == saved.mean.is_some()
                    && optional(bias_gradient, weight_gradient.length)
            }
            Self::Rotate { rotation, x } => rotation_fits(rotation, x),
            Self::SwigluForward { gate, up, out } | Self::GegluForward { gate, up, out, .. } => same(&[gate, up, out]),
            Self::SwigluBackward { gate, up, d_out, d_gate, d_up }
            | Self::GegluBackward { gate, up, d_out, d_gate, d_up, .. } => same(&[gate, up, d_out, d_gate, d_up]),
            Self::ActivationForward { x, y, .. } => same(&[x, y]),
            Self::ActivationBackward { x, dy, dx, .. } => same(&[x, dy, dx]),
            Self::AttentionForward { shape, tensors } => attention_fits(shape, tensors),
            Self::AttentionBackward { shape, tensors, d_out, delta, dq, dk, dv, .. } => {
                let AttentionTensors { q, k, lse, .. } = tensors;
                attention_fits(shape, tensors) && same(&[q, d_out, dq]) && same(&[k, dk, dv]) && same(&[lse, delta])
            }
            Self::AttentionMerge { out, lse, part_out, part_lse } => {
                same(&[out, part_out]) && same(&[lse, part_lse]) && rows(out.length, lse.length)
            }
            Self::LossStatistics { shard, logits, targets, statistics } => {
                logits.length == targets.length * shard.columns
                    && shard.valid <= shard.columns
                    && statistics.length == crate::kernels::loss::STATS * targets.length
            }
            Self::LossCombine { statistics, targets, losses, lse } => {
                same(&[targets, losses, lse]) && rows(statistics.length, crate::kernels::loss::STATS * targets.length)
            }
            Self::LossBackward { shard, logits, targets, lse, .. } => {
                same(&[targets, lse]) && shard.valid <= shard.columns && logits.length == targets.length * shard.columns
            }
            Self::AddBias { y, bias } => rows(y.length, bias.length),
            Self::BiasBackward { dy, bias_gradient } => rows(dy.length, bias_gradient.length),
            Self::Add { a, b, out } => same(&[a, b, out]),
            Self::Accumulate { total, part, .. } => same(&[total, part]),
            Self::Scale { .. } | Self::CheckFinite { flag: Slice { length: 1, .. }, .. } => true,
            Self::CopyBlock { rows, columns, from, from_stride, to, to_stride } => {
                let fits = |slice: Slice, stride: usize| {
                    stride >= columns && (rows == 0 || (rows - 1) * stride + columns <= slice.length)
                };
                fits(from, from_stride) && fits(to, to_stride)
            }
            Self::Cast { from, to } => same(&[from, to]),
            Self::SquaredNorm { sum, .. } => sum.length == 1,
            Self::ClipFactor { squared_norm, factor, .. } => squared_norm.length == 1 && factor.length == 1,
            Self::AdamW { factor, master, gradients, first, second, rounded, step, .. } => {
                same(&[master, gradients, first, second])
                    && optional(rounded, master.length)
                    && optional(factor, 1)
                    && step > 0
            }
            Self::CheckFinite { .. } => false,
            _ => self.routing_lengths_fit(),
        }
    }
}

impl Operation {
    /// The same for what moves and weighs rows.
    fn routing_lengths_fit(&self) -> bool {
        let optional = |slice: Option<Slice>, length: usize| slice.is_none_or(|slice| slice.length == length);
        match *self {
            Self::Softmax { columns, values } => columns > 0 && rows(values.length, columns),
            Self::ChooseExperts { experts, tokens, scores, chosen, weights, .. } => {
                experts > 0
                    && scores.length == tokens * experts
                    && chosen.length == weights.length
                    && rows(chosen.length, tokens)
                    && chosen.length <= scores.length
            }
            Self::OrderByExpert { chosen, order, places, .. } => {
                (order.length, places.length) == (chosen.length, chosen.length)
            }
            Self::GatherRows { width, share, indices, factors, from, to } => {
                width > 0
                    && share > 0
                    && to.length == indices.length * width
                    && rows(from.length, width)
                    && optional(factors, from.length / width * share)
            }
            Self::CombineRows { width, share, places, factors, rows: from, out } => {
                width > 0
                    && share > 0
                    && rows(from.length, width)
                    && out.length * share == places.length * width
                    && optional(factors, places.length)
            }
            Self::RowProducts { width, share, places, a, rows: of, products } => {
                width > 0
                    && share > 0
                    && rows(of.length, width)
                    && a.length * share == places.length * width
                    && products.length == places.length
            }
            _ => unreachable!("{self:?} moves no rows"),
        }
    }
}

/// Whether `length` elements are rows of `width`.
fn rows(length: usize, width: usize) -> bool {
    if width == 0 { length == 0 } else { length.is_multiple_of(width) }
}

fn embedding_fits(sizes: Sizes, tokens: Slice, values: Slice, table: Slice) -> bool {
    sizes.features > 0 && values.length == tokens.length * sizes.features && rows(table.length, sizes.features)
}

fn positions_fit(sizes: Sizes, x: Slice, table: Slice) -> bool {
    let Sizes { features, first, sequence_length } = sizes;
    features > 0
        && sequence_length > 0
        && rows(x.length, features)
        && rows(table.length, features)
        && (first + sequence_length.min(x.length / features)) * features <= table.length
}

fn norm_fits(weight: Slice, x: Slice, rstd: Slice, mean: Option<Slice>) -> bool {
    weight.length > 0 && x.length == rstd.length * weight.length && mean.is_none_or(|mean| mean.length == rstd.length)
}

fn rotation_fits(rotation: Rotation, x: Slice) -> bool {
    let Rotation { cosines, sines, head_dim, heads, sequence_length, first_position, .. } = rotation;
    let row = heads * head_dim;
    if head_dim == 0 || !head_dim.is_multiple_of(2) || heads == 0 || sequence_length == 0 || !rows(x.length, row) {
        return false;
    }
    let last = first_position + sequence_length.min(x.length / row);
    cosines.length == sines.length && last * head_dim / 2 <= cosines.length
}

fn attention_fits(sizes: crate::kernels::attention::Attention, tensors: AttentionTensors) -> bool {
    let AttentionTensors { q, k, v, out, lse, starts } = tensors;
    let rows = sizes.sequences * sizes.queries * sizes.query_heads;
    let keys = sizes.sequences * sizes.keys * sizes.key_heads * sizes.head_dim;
    sizes.head_dim > 0
        && sizes.key_heads > 0
        && sizes.query_heads.is_multiple_of(sizes.key_heads)
        && (q.length, out.length, lse.length) == (rows * sizes.head_dim, rows * sizes.head_dim, rows)
        && (k.length, v.length) == (keys, keys)
        && starts.is_none_or(|starts| starts.length == sizes.sequences * sizes.queries)
}

//! Which kernel an operation is.

use super::storage::{Storage, Table};
use crate::device::{AttentionTensors, Norm, NormSaved, Operation, Rotation, Slice};
use crate::kernels::attention::{
    AttentionGradients, AttentionSaved, AttentionWorkspace, Packed, attention_backward, attention_forward,
    attention_merge,
};
use crate::kernels::optimizer::{adamw_step, clip_factor, squared_norm};
use crate::kernels::{Store, activation, elementwise, embedding, linear, loss, norm, rope};

fn store(add: bool) -> Store {
    if add { Store::Accumulate } else { Store::Overwrite }
}

#[expect(clippy::too_many_lines, reason = "one short arm per operation: a table")]
pub(super) fn run(table: &mut Table, workspace: &mut AttentionWorkspace, operation: &Operation) {
    match *operation {
        Operation::EmbeddingForward { .. }
        | Operation::EmbeddingBackward { .. }
        | Operation::PositionsForward { .. }
        | Operation::PositionsBackward { .. } => embeddings(table, operation),
        Operation::NormForward { norm, x, y, mean, rstd } => norm_forward(table, norm, x, y, mean, rstd),
        Operation::NormBackwardInput { norm, saved, dy, add, dx } => {
            norm_backward_input(table, norm, saved, dy, add, dx);
        }
        Operation::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient } => {
            norm_backward_weight(table, saved, dy, weight_gradient, bias_gradient);
        }
        Operation::Rotate { rotation, x } => rotate(table, rotation, x),
        Operation::SwigluForward { gate, up, out } => {
            table.with([gate, up], [out], |[gate, up], [out]| activation::swiglu_forward(gate, up, out));
        }
        Operation::SwigluBackward { gate, up, d_out, d_gate, d_up } => {
            table.with([gate, up, d_out], [d_gate, d_up], |[gate, up, d_out], [d_gate, d_up]| {
                activation::swiglu_backward(gate, up, d_out, d_gate, d_up);
            });
        }
        Operation::GegluForward { kind, gate, up, out } => {
            table.with([gate, up], [out], |[gate, up], [out]| activation::geglu_forward(kind.gelu(), gate, up, out));
        }
        Operation::GegluBackward { kind, gate, up, d_out, d_gate, d_up } => {
            table.with([gate, up, d_out], [d_gate, d_up], |[gate, up, d_out], [d_gate, d_up]| {
                activation::geglu_backward(kind.gelu(), gate, up, d_out, d_gate, d_up);
            });
        }
        Operation::ActivationForward { kind, x, y } => {
            table.with([x], [y], |[x], [y]| activation::gelu_forward(kind.gelu(), x, y));
        }
        Operation::ActivationBackward { kind, x, dy, dx } => {
            table.with([x, dy], [dx], |[x, dy], [dx]| activation::gelu_backward(kind.gelu(), x, dy, dx));
        }
        Operation::AttentionForward { shape, tensors: AttentionTensors { q, k, v, out, lse, starts } } => {
            let starts = starts.map(|starts| table.tokens(starts)).unwrap_or_default();
            let over = Packed { shape, starts: &starts };
            table.with([q, k, v], [out, lse], |[q, k, v], [out, lse]| {
                attention_forward(over, q, k, v, out, lse, workspace);
            });
        }
        Operation::AttentionBackward { shape, tensors, d_out, add, dq, dk, dv, .. } => {
            let AttentionTensors { q, k, v, out, lse, starts } = tensors;
            let starts = starts.map(|starts| table.tokens(starts)).unwrap_or_default();
            let over = Packed { shape, starts: &starts };
            table.with([q, k, v, out, lse, d_out], [dq, dk, dv], |[q, k, v, out, lse, d_out], [dq, dk, dv]| {
                let saved = AttentionSaved { q, k, v, out, lse };
                let gradients = &mut AttentionGradients { dq, dk, dv };
                attention_backward(over, saved, d_out, store(add), gradients, workspace);
            });
        }
        Operation::AttentionMerge { out, lse, part_out, part_lse } => {
            table.with([part_out, part_lse], [out, lse], |[part_out, part_lse], [out, lse]| {
                attention_merge(out, lse, part_out, part_lse);
            });
        }
        Operation::LossStatistics { shard, logits, targets, statistics } => {
            let targets = table.tokens(targets);
            table.with([logits], [statistics], |[logits], [statistics]| {
                loss::local_stats(shard, logits, &targets, statistics);
            });
        }
        Operation::LossCombine { statistics, targets, losses, lse } => {
            let targets = table.tokens(targets);
            table.with([statistics], [losses, lse], |[statistics], [losses, lse]| {
                loss::combine(statistics, &targets, losses, lse);
            });
        }
        Operation::LossBackward { shard, logits, targets, lse, scale } => {
            let targets = table.tokens(targets);
            table.with([lse], [logits], |[lse], [logits]| loss::backward(shard, logits, &targets, lse, scale));
        }
        Operation::AddBias { y, bias } => table.with([bias], [y], |[bias], [y]| {
            for row in y.chunks_exact_mut(bias.len().max(1)) {
                elementwise::accumulate(row, bias);
            }
        }),
        Operation::BiasBackward { dy, bias_gradient } => {
            table.with([dy], [bias_gradient], |[dy], [db]| linear::linear_backward_bias(dy, db));
        }
        Operation::Add { a, b, out } => table.with([a, b], [out], |[a, b], [out]| elementwise::add(a, b, out)),
        Operation::Accumulate { total, factor, part } => {
            table.with([part], [total], |[part], [total]| elementwise::accumulate_scaled(total, factor, part));
        }
        Operation::Scale { values, factor } => {
            table.with([], [values], |[], [values]| elementwise::scale(values, factor));
        }
        Operation::CopyBlock { rows, columns, from, from_stride, to, to_stride } => {
            table.with([from], [to], |[from], [to]| {
                elementwise::copy_block(rows, columns, from, from_stride, to, to_stride);
            });
        }
        Operation::Cast { from, to } => table.with([from], [to], |[from], [to]| to.copy_from_slice(from)),
        Operation::SquaredNorm { .. }
        | Operation::ClipFactor { .. }
        | Operation::AdamW { .. }
        | Operation::CheckFinite { .. } => optimizer(table, operation),
        Operation::Softmax { .. }
        | Operation::ChooseExperts { .. }
        | Operation::OrderByExpert { .. }
        | Operation::GatherRows { .. }
        | Operation::CombineRows { .. }
        | Operation::RowProducts { .. } => super::routing::run(table, operation),
    }
}

fn embeddings(table: &mut Table, operation: &Operation) {
    match *operation {
        Operation::EmbeddingForward { sizes, tokens, table: weight, out } => {
            let tokens = table.tokens(tokens);
            table.with([weight], [out], |[weight], [out]| {
                embedding::embedding_forward(&tokens, weight, sizes.features, sizes.first, out);
            });
        }
        Operation::EmbeddingBackward { sizes, tokens, d_out, table_gradient } => {
            let tokens = table.tokens(tokens);
            table.with([d_out], [table_gradient], |[d_out], [gradient]| {
                embedding::embedding_backward(&tokens, d_out, sizes.features, sizes.first, gradient);
            });
        }
        Operation::PositionsForward { sizes, table: weight, x } => table.with([weight], [x], |[weight], [x]| {
            embedding::positions_forward(x, weight, sizes.features, sizes.sequence_length, sizes.first);
        }),
        Operation::PositionsBackward { sizes, dx, table_gradient } => {
            table.with([dx], [table_gradient], |[dx], [gradient]| {
                embedding::positions_backward(dx, sizes.features, sizes.sequence_length, sizes.first, gradient);
            });
        }
        _ => unreachable!("{operation:?} is no embedding"),
    }
}

fn norm_forward(table: &mut Table, norm: Norm, x: Slice, y: Slice, mean: Option<Slice>, rstd: Slice) {
    let Norm { weight, bias, epsilon } = norm;
    match bias.zip(mean) {
        Some((bias, mean)) => {
            table.with([x, weight, bias], [y, mean, rstd], |[x, weight, bias], [y, mean, rstd]| {
                norm::layer_norm_forward(x, weight, bias, epsilon, y, mean, rstd);
            });
        }
        None => table.with([x, weight], [y, rstd], |[x, weight], [y, rstd]| {
            norm::rms_norm_forward(x, weight, epsilon, y, rstd);
        }),
    }
}

fn norm_backward_input(table: &mut Table, norm: Norm, saved: NormSaved, dy: Slice, add: bool, dx: Slice) {
    let (NormSaved { x, mean, rstd }, weight, store) = (saved, norm.weight, store(add));
    match mean {
        Some(mean) => {
            table.with([x, weight, mean, rstd, dy], [dx], |[x, weight, mean, rstd, dy], [dx]| {
                norm::layer_norm_backward_input(x, weight, mean, rstd, dy, store, dx);
            });
        }
        None => table.with([x, weight, rstd, dy], [dx], |[x, weight, rstd, dy], [dx]| {
            norm::rms_norm_backward_input(x, weight, rstd, dy, store, dx);
        }),
    }
}

fn norm_backward_weight(table: &mut Table, saved: NormSaved, dy: Slice, weight: Slice, bias: Option<Slice>) {
    let NormSaved { x, mean, rstd } = saved;
    match mean.zip(bias) {
        Some((mean, bias)) => table.with([x, mean, rstd, dy], [weight, bias], |[x, mean, rstd, dy], [weight, bias]| {
            norm::layer_norm_backward_weight(x, mean, rstd, dy, weight, bias);
        }),
        None => table.with([x, rstd, dy], [weight], |[x, rstd, dy], [weight]| {
            norm::rms_norm_backward_weight(x, rstd, dy, weight);
        }),
    }
}

fn rotate(table: &mut Table, rotation: Rotation, x: Slice) {
    let Rotation { cosines, sines, head_dim, heads, sequence_length, first_position, back } = rotation;
    table.with([cosines, sines], [x], |[cosines, sines], [x]| {
        let angles = rope::Angles { cosines, sines, pairs: head_dim / 2 };
        if back {
            rope::rotate_angles::<true>(angles, x, heads, sequence_length, first_position);
        } else {
            rope::rotate_angles::<false>(angles, x, heads, sequence_length, first_position);
        }
    });
}

fn optimizer(table: &mut Table, operation: &Operation) {
    match *operation {
        Operation::SquaredNorm { values, sum } => {
            let mut squares = 0.0;
            table.with([values], [], |[values], []| squares = squared_norm(values));
            *table.f64_mut(sum) += squares;
        }
        Operation::ClipFactor { squared_norm, largest, factor } => {
            let value = clip_factor(*table.f64_mut(squared_norm), largest);
            table.with([], [factor], |[], [factor]| factor[0] = value);
        }
        Operation::AdamW { options, step, decay, factor, master, gradients, first, second, rounded } => {
            let mut clip = 1.0;
            if let Some(factor) = factor {
                table.with([factor], [], |[factor], []| clip = factor[0]);
            }
            table.with([gradients], [master, first, second], |[gradients], [master, first, second]| {
                let scaled: Vec<f32> = gradients.iter().map(|gradient| gradient * clip).collect();
                adamw_step(&options, step, decay, master, &scaled, first, second);
            });
            if let Some(rounded) = rounded {
                table.with([master], [rounded], |[master], [rounded]| rounded.copy_from_slice(master));
            }
        }
        Operation::CheckFinite { values, label, flag } => {
            let mut finite = true;
            table.with([values], [], |[values], []| finite = values.iter().all(|value| value.is_finite()));
            if let (false, Storage::U32(data)) = (finite, table.get_mut(flag)) {
                data[flag.start] = data[flag.start].min(label);
            }
        }
        _ => unreachable!("{operation:?} is no part of the optimizer"),
    }
}

//! Causal attention with grouped queries, over all positions before or over a window of them, tiled over query rows.
//!
//! Forward saves, per query, the logarithm of its sum of exponentials; backward recomputes the probabilities from it,
//! so that memory stays linear in the sequence length.
//! Source: Dao et al., "FlashAttention" (2022); grouped queries: Ainslie et al. (2023).

use super::math::exp;
use super::matmul::{Matrix, MatrixMut, multiply};
use super::{Store, exponentiate, maximum, sum_over, vectorized};

mod shape;
use shape::TILE;
pub use shape::{Attention, Packed};

/// Scratch of the attention passes, `2 * 64 * keys` elements at most.  Keep one per rank: it grows to what the largest
/// call needed and is reused.
#[derive(Debug, Default)]
pub struct AttentionWorkspace {
    scores: Vec<f32>,
    d_scores: Vec<f32>,
}

fn at_least(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

/// `out = softmax(scale q k^T + causal mask) v` per sequence and head; with [`Packed`], per document.
///
/// `q`, `out`: `[sequences, queries, query_heads, head_dim]`; `k`, `v`: `[sequences, keys, key_heads, head_dim]`;
/// `lse`: `[sequences, queries, query_heads]`, the logarithm of the sum of exponentials of the scaled scores, saved
/// for backward.  A query that sees no key gets zeros and minus infinity.
///
/// # Panics
/// If a slice has not the size that `shape` gives it.
pub fn attention_forward<'a>(
    over: impl Into<Packed<'a>>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    forward(over.into(), q, k, v, out, lse, workspace);
}

fn forward(
    over: Packed<'_>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    over.assert_sizes(q.len(), k.len(), v.len(), lse.len());
    assert_eq!(q.len(), out.len(), "queries and output differ in size");
    let (shape, dim) = (over.shape, over.shape.head_dim);
    for tile in over.tiles() {
        if tile.width == 0 {
            for row in (0..tile.rows).map(|row| tile.row(row)) {
                out[row * dim..][..dim].fill(0.0);
                lse[row] = f32::NEG_INFINITY;
            }
            continue;
        }
        let scores = at_least(&mut workspace.scores, tile.rows * tile.width);
        let mut product = MatrixMut::new(scores, tile.rows, tile.width);
        multiply(shape.softmax_scale, tile.queries(q), tile.keys(k).transposed(), 0.0, &mut product);
        let mut sums = [0.0f32; TILE];
        vectorized!({
            for (row, scores) in scores.chunks_exact_mut(tile.width).enumerate() {
                let visible = tile.visible(row);
                scores[..visible.start].fill(0.0);
                scores[visible.end..].fill(0.0);
                let seen = &mut scores[visible];
                let largest = maximum(seen);
                sums[row] = exponentiate(seen, largest);
                lse[tile.row(row)] = if seen.is_empty() { largest } else { largest + libm::logf(sums[row]) };
            }
        });
        multiply(1.0, Matrix::new(scores, tile.rows, tile.width), tile.keys(v), 0.0, &mut tile.queries_mut(out));
        vectorized!({
            for (row, &sum) in sums[..tile.rows].iter().enumerate().filter(|&(row, _)| !tile.visible(row).is_empty()) {
                let factor = 1.0 / sum;
                for value in &mut out[tile.row(row) * dim..][..dim] {
                    *value *= factor;
                }
            }
        });
    }
}

/// What [`attention_backward`] needs of the forward pass, in its shapes.  With the keys in pieces, `out` and `lse` are
/// those of all pieces together.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a> {
    /// Queries.
    pub q: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Output.
    pub out: &'a [f32],
    /// Log-sum-exps.
    pub lse: &'a [f32],
}

/// Where [`attention_backward`] puts the gradients of queries, keys and values, each in the shape of its own.
#[derive(Debug)]
pub struct AttentionGradients<'a> {
    /// Gradient of the queries.
    pub dq: &'a mut [f32],
    /// Gradient of the keys.
    pub dk: &'a mut [f32],
    /// Gradient of the values.
    pub dv: &'a mut [f32],
}

/// Gradients of [`attention_forward`].  With `p` the recomputed probabilities:
/// `dv = p^T d_out`, `ds = p (d_out v^T - rowsum(d_out out))`, `dq = scale ds k`, `dk = scale ds^T q`.
///
/// `d_out` has the shape of `out`.  `store` holds for all three gradients.  The heads that share keys add to `dk` and
/// `dv` in order.
///
/// # Panics
/// If a slice has not the size that `shape` gives it.
pub fn attention_backward<'a>(
    over: impl Into<Packed<'a>>,
    saved: AttentionSaved<'_>,
    d_out: &[f32],
    store: Store,
    gradients: &mut AttentionGradients<'_>,
    workspace: &mut AttentionWorkspace,
) {
    backward(over.into(), saved, d_out, store, gradients, workspace);
}

fn backward(
    over: Packed<'_>,
    saved: AttentionSaved<'_>,
    d_out: &[f32],
    store: Store,
    gradients: &mut AttentionGradients<'_>,
    workspace: &mut AttentionWorkspace,
) {
    let shape = over.shape;
    let AttentionSaved { q, k, v, out, lse } = saved;
    let AttentionGradients { dq, dk, dv } = gradients;
    over.assert_sizes(q.len(), k.len(), v.len(), lse.len());
    over.assert_sizes(dq.len(), dk.len(), dv.len(), lse.len());
    assert_eq!((q.len(), q.len()), (out.len(), d_out.len()), "queries, output and its gradient differ in size");
    if store == Store::Overwrite {
        dq.fill(0.0);
        dk.fill(0.0);
        dv.fill(0.0);
    }
    let (dim, scale) = (shape.head_dim, shape.softmax_scale);
    for tile in over.tiles().filter(|tile| tile.width > 0) {
        let (rows, width) = (tile.rows, tile.width);
        let scores = at_least(&mut workspace.scores, rows * width);
        let d_scores = at_least(&mut workspace.d_scores, rows * width);
        multiply(scale, tile.queries(q), tile.keys(k).transposed(), 0.0, &mut MatrixMut::new(scores, rows, width));
        let d_probabilities = &mut MatrixMut::new(d_scores, rows, width);
        multiply(1.0, tile.queries(d_out), tile.keys(v).transposed(), 0.0, d_probabilities);
        vectorized!({
            let score_rows = scores.chunks_exact_mut(width).zip(d_scores.chunks_exact_mut(width));
            for (row, (p, ds)) in score_rows.enumerate() {
                let index = tile.row(row);
                let products = [&d_out[index * dim..][..dim], &out[index * dim..][..dim]];
                let delta = sum_over(products, |[d_out, out]| d_out * out);
                let visible = tile.visible(row);
                for values in [&mut *p, &mut *ds] {
                    values[..visible.start].fill(0.0);
                    values[visible.end..].fill(0.0);
                }
                for (p, ds) in p[visible.clone()].iter_mut().zip(&mut ds[visible]) {
                    *p = exp(*p - lse[index]);
                    *ds = *p * (*ds - delta);
                }
            }
        });
        let (p, ds) = (Matrix::new(scores, rows, width), Matrix::new(d_scores, rows, width));
        multiply(1.0, p.transposed(), tile.queries(d_out), 1.0, &mut tile.keys_mut(dv));
        multiply(scale, ds, tile.keys(k), 1.0, &mut tile.queries_mut(dq));
        multiply(scale, ds.transposed(), tile.queries(q), 1.0, &mut tile.keys_mut(dk));
    }
}

/// Joins the attention of the same queries over two disjoint sets of keys: `out` and `lse` become those over both.
///
/// `out`, `part_out`: `[rows, head_dim]` with a row per query and head; `lse`, `part_lse`: `[rows]`.  Starting from
/// zeros and minus infinity is the same as starting from the first part.
///
/// # Panics
/// If the sizes do not match.
pub fn attention_merge(out: &mut [f32], lse: &mut [f32], part_out: &[f32], part_lse: &[f32]) {
    assert_eq!((out.len(), lse.len()), (part_out.len(), part_lse.len()), "the parts differ in size");
    if lse.is_empty() {
        return;
    }
    let dim = super::rows_of(out.len(), lse.len());
    vectorized!({
        let rows = out.chunks_exact_mut(dim).zip(part_out.chunks_exact(dim));
        for ((out, part_out), (lse, &part_lse)) in rows.zip(lse.iter_mut().zip(part_lse)) {
            let largest = maximum(&[*lse, part_lse]);
            if largest == f32::NEG_INFINITY {
                continue; // no key seen by either
            }
            let total = largest + libm::logf(exp(*lse - largest) + exp(part_lse - largest));
            let (kept, added) = (exp(*lse - total), exp(part_lse - total));
            for (out, &part_out) in out.iter_mut().zip(part_out) {
                *out = *out * kept + part_out * added;
            }
            *lse = total;
        }
    });
}

#[cfg(test)]
mod tests;

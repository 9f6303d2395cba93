//! What a kernel is asked to do, as plain data.

use super::{Element, Slice};
use crate::kernels::activation::Gelu;
use crate::kernels::attention::Attention;
use crate::kernels::loss::VocabularyShard;
use crate::kernels::optimizer::AdamW;

/// Which activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationKind {
    /// The definition.
    GeluExact,
    /// With a hyperbolic tangent, as GPT-2.
    GeluTanh,
}

impl ActivationKind {
    pub(crate) fn gelu(self) -> Gelu {
        match self {
            Self::GeluExact => Gelu::Exact,
            Self::GeluTanh => Gelu::Tanh,
        }
    }
}

/// Tensors of an attention: `q`, `out` as `[sequences, queries, query_heads, head_dim]`, `k`, `v` as
/// `[sequences, keys, key_heads, head_dim]`, `lse` (FP32) as `[sequences, queries, query_heads]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionTensors {
    /// Queries.
    pub q: Slice,
    /// Keys.
    pub k: Slice,
    /// Values.
    pub v: Slice,
    /// Output.
    pub out: Slice,
    /// Log-sum-exps.
    pub lse: Slice,
    /// U32, of each query the position in its sequence at which its document begins, `[sequences, queries]`, never less
    /// than the one before; none where each sequence is one document.
    pub starts: Option<Slice>,
}

/// Weights of a norm: with a bias it is a LayerNorm, without an RMSNorm. `[features]` each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Factor per feature.
    pub weight: Slice,
    /// Summand per feature, of a LayerNorm.
    pub bias: Option<Slice>,
    /// Added under the root.
    pub epsilon: f32,
}

/// What a norm's backward passes read: the input and, in FP32 per row, what forward saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSaved {
    /// Input, `[rows, features]`.
    pub x: Slice,
    /// Means, of a LayerNorm; `[rows]`.
    pub mean: Option<Slice>,
    /// One over the root of the variance (or mean square), `[rows]`.
    pub rstd: Slice,
}

/// Tables and sizes of a rotary embedding, see [`rope`](crate::kernels::rope).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// FP32 `[positions, head_dim / 2]`.
    pub cosines: Slice,
    /// FP32 `[positions, head_dim / 2]`.
    pub sines: Slice,
    /// Elements of a head.
    pub head_dim: usize,
    /// Heads per token.
    pub heads: usize,
    /// Tokens per sequence.
    pub sequence_length: usize,
    /// Position of a sequence's first token.
    pub first_position: usize,
    /// Whether to undo it (and so to rotate a gradient).
    pub back: bool,
}

/// Rows of an embedding table or positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Elements of a row.
    pub features: usize,
    /// The first row of the table that this rank holds, or the position of a sequence's first token.
    pub first: usize,
    /// Tokens per sequence; not used by the token embedding.
    pub sequence_length: usize,
}

/// A kernel and what it works on. The formulas are those of the functions of the same name in
/// [`kernels`](crate::kernels). "Any" is FP32 or BF16, one for all such operands; everything else is FP32, tokens are
/// U32. Operands that end in `_gradient` of weights are added to.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "operands are those of the kernel named by the variant")]
pub enum Operation {
    /// `out = table[tokens - first]`, zeros for rows of others; any: `table`, `out`.
    EmbeddingForward { sizes: Sizes, tokens: Slice, table: Slice, out: Slice },
    /// `table_gradient[tokens - first] += d_out`, in token order; any: `d_out`.
    EmbeddingBackward { sizes: Sizes, tokens: Slice, d_out: Slice, table_gradient: Slice },
    /// `x += table[position]` in place; any: both.
    PositionsForward { sizes: Sizes, table: Slice, x: Slice },
    /// `table_gradient[position] += dx`, in order of sequences; any: `dx`.
    PositionsBackward { sizes: Sizes, dx: Slice, table_gradient: Slice },
    /// Norm of each row; any: the norm's weights, `x`, `y`.
    NormForward { norm: Norm, x: Slice, y: Slice, mean: Option<Slice>, rstd: Slice },
    /// Input gradient, written or added; any: weights, `saved.x`, `dy`, `dx`.
    NormBackwardInput { norm: Norm, saved: NormSaved, dy: Slice, add: bool, dx: Slice },
    /// Weight gradients; any: `saved.x`, `dy`.
    NormBackwardWeight { saved: NormSaved, dy: Slice, weight_gradient: Slice, bias_gradient: Option<Slice> },
    /// Rotation in place; any: `x`.
    Rotate { rotation: Rotation, x: Slice },
    /// `out = silu(gate) up`; any: all.
    SwigluForward { gate: Slice, up: Slice, out: Slice },
    /// Its input gradients; any: all.
    SwigluBackward { gate: Slice, up: Slice, d_out: Slice, d_gate: Slice, d_up: Slice },
    /// `out = gelu(gate) up`; any: all.
    GegluForward { kind: ActivationKind, gate: Slice, up: Slice, out: Slice },
    /// Its input gradients; any: all.
    GegluBackward { kind: ActivationKind, gate: Slice, up: Slice, d_out: Slice, d_gate: Slice, d_up: Slice },
    /// `y = activation(x)`; any: both.
    ActivationForward { kind: ActivationKind, x: Slice, y: Slice },
    /// `dx = dy activation'(x)`; any: all.
    ActivationBackward { kind: ActivationKind, x: Slice, dy: Slice, dx: Slice },
    /// Causal attention; any: all but `lse`.
    AttentionForward { shape: Attention, tensors: AttentionTensors },
    /// Its gradients, written or added; any: all but `lse` and `delta`. `delta` is scratch of the size of `lse`.
    AttentionBackward {
        shape: Attention,
        tensors: AttentionTensors,
        d_out: Slice,
        delta: Slice,
        add: bool,
        dq: Slice,
        dk: Slice,
        dv: Slice,
    },
    /// Joins two parts in FP32 `out` and `lse`; any: `part_out`.
    AttentionMerge { out: Slice, lse: Slice, part_out: Slice, part_lse: Slice },
    /// Statistics of a rank's logits; any: `logits`.
    LossStatistics { shard: VocabularyShard, logits: Slice, targets: Slice, statistics: Slice },
    /// Losses from the statistics of all ranks.
    LossCombine { statistics: Slice, targets: Slice, losses: Slice, lse: Slice },
    /// Logits become their gradient, in place; any: `logits`.
    LossBackward { shard: VocabularyShard, logits: Slice, targets: Slice, lse: Slice, scale: f32 },
    /// `y[row] += bias`, in place; any: both.
    AddBias { y: Slice, bias: Slice },
    /// `bias_gradient += dy[row]` over rows in a fixed order; any: `dy`.
    BiasBackward { dy: Slice, bias_gradient: Slice },
    /// `out = a + b`; any: all.
    Add { a: Slice, b: Slice, out: Slice },
    /// `total += factor part`, in place; `total` and `part` any, each its own.
    Accumulate { total: Slice, factor: f32, part: Slice },
    /// `values *= factor`, in place; any.
    Scale { values: Slice, factor: f32 },
    /// Rows of `columns` from a matrix of one stride into one of another; any: both.
    CopyBlock { rows: usize, columns: usize, from: Slice, from_stride: usize, to: Slice, to_stride: usize },
    /// Between FP32 and BF16, rounding to nearest even.
    Cast { from: Slice, to: Slice },
    /// `sum += ` sum of squares, in FP64; `sum` is one F64.
    SquaredNorm { values: Slice, sum: Slice },
    /// `factor = min(1, largest / (sqrt(squared_norm) + 1e-6))`; one F64 to one FP32.
    ClipFactor { squared_norm: Slice, largest: f64, factor: Slice },
    /// One step on FP32 master weights with gradients times `factor` (one FP32); BF16 `rounded`, if there is one, becomes
    /// the rounded master.
    AdamW {
        options: AdamW,
        step: u64,
        decay: bool,
        factor: Option<Slice>,
        master: Slice,
        gradients: Slice,
        first: Slice,
        second: Slice,
        rounded: Option<Slice>,
    },
    /// Softmax of each row of `columns`, in place.
    Softmax { columns: usize, values: Slice },
    /// The `chosen` experts of the highest scores of each token, highest first, of equal ones the first; and their scores,
    /// divided by their sum if `normalised`. `scores`: `[tokens, experts]`; `chosen` (U32), `weights`: `[tokens, active]`.
    ChooseExperts { experts: usize, normalised: bool, scores: Slice, chosen: Slice, weights: Slice, tokens: usize },
    /// Stable order of choices by expert. `chosen`, `order` (the choice at a place), `places` (the place of a choice):
    /// `[choices]`; `counts`: `[experts]`. All U32.
    OrderByExpert { chosen: Slice, order: Slice, places: Slice, counts: Slice },
    /// `to[i] = from[indices[i] / share]`, times `factors[indices[i]]` if there are any, row by row of `width`; any: `from`,
    /// `to`. With `share` the choices of a token, rows of tokens become copies in the order of experts.
    GatherRows { width: usize, share: usize, indices: Slice, factors: Option<Slice>, from: Slice, to: Slice },
    /// `out[t] = ` sum over `j` of `rows[places[t, j]]`, times `factors[t, j]` if there are any, in the order of `j`; any:
    /// `rows`, `out`.
    CombineRows { width: usize, share: usize, places: Slice, factors: Option<Slice>, rows: Slice, out: Slice },
    /// `products[t, j] = ` inner product of `a[t]` and `rows[places[t, j]]`: the gradient of the factors of `CombineRows`
    /// from `a`, the gradient of its output; any: `a`, `rows`.
    RowProducts { width: usize, share: usize, places: Slice, a: Slice, rows: Slice, products: Slice },
    /// `flag = min(flag, label)` if a value is infinite or not a number; `flag` is one U32; `values` any.
    CheckFinite { values: Slice, label: u32, flag: Slice },
}

/// The slices of an operation, by how it uses them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Operands {
    /// Read only.
    pub reads: Vec<Slice>,
    /// Written without reading.
    pub writes: Vec<Slice>,
    /// Read and written.
    pub updates: Vec<Slice>,
}

impl Operation {
    /// What it reads and writes.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "one line or two per operation: a table")]
    pub fn operands(&self) -> Operands {
        let operands = |reads: &[Slice], writes: &[Slice], updates: &[Slice]| Operands {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            updates: updates.to_vec(),
        };
        match *self {
            Self::EmbeddingForward { tokens, table, out, .. } => operands(&[tokens, table], &[out], &[]),
            Self::EmbeddingBackward { tokens, d_out, table_gradient, .. } => {
                operands(&[tokens, d_out], &[], &[table_gradient])
            }
            Self::PositionsForward { table, x, .. } => operands(&[table], &[], &[x]),
            Self::PositionsBackward { dx, table_gradient, .. } => operands(&[dx], &[], &[table_gradient]),
            Self::NormForward { norm, x, y, mean, rstd } => {
                let mut all = operands(&[x, norm.weight], &[y, rstd], &[]);
                all.reads.extend(norm.bias);
                all.writes.extend(mean);
                all
            }
            Self::NormBackwardInput { norm, saved, dy, add, dx } => {
                let mut all = written(operands(&[norm.weight, saved.x, saved.rstd, dy], &[], &[]), add, &[dx]);
                all.reads.extend(saved.mean);
                all
            }
            Self::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient } => {
                let mut all = operands(&[saved.x, saved.rstd, dy], &[], &[weight_gradient]);
                all.reads.extend(saved.mean);
                all.updates.extend(bias_gradient);
                all
            }
            Self::Rotate { rotation, x } => operands(&[rotation.cosines, rotation.sines], &[], &[x]),
            Self::SwigluForward { gate, up, out } | Self::GegluForward { gate, up, out, .. } => {
                operands(&[gate, up], &[out], &[])
            }
            Self::SwigluBackward { gate, up, d_out, d_gate, d_up }
            | Self::GegluBackward { gate, up, d_out, d_gate, d_up, .. } => {
                operands(&[gate, up, d_out], &[d_gate, d_up], &[])
            }
            Self::ActivationForward { x, y, .. } => operands(&[x], &[y], &[]),
            Self::ActivationBackward { x, dy, dx, .. } => operands(&[x, dy], &[dx], &[]),
            Self::AttentionForward { tensors: AttentionTensors { q, k, v, out, lse, starts }, .. } => {
                let mut all = operands(&[q, k, v], &[out, lse], &[]);
                all.reads.extend(starts);
                all
            }
            Self::AttentionBackward { tensors, d_out, delta, add, dq, dk, dv, .. } => {
                let AttentionTensors { q, k, v, out, lse, starts } = tensors;
                let mut all = operands(&[q, k, v, out, lse, d_out], &[delta], &[]);
                all.reads.extend(starts);
                written(all, add, &[dq, dk, dv])
            }
            Self::AttentionMerge { out, lse, part_out, part_lse } => operands(&[part_out, part_lse], &[], &[out, lse]),
            Self::LossStatistics { logits, targets, statistics, .. } => {
                operands(&[logits, targets], &[statistics], &[])
            }
            Self::LossCombine { statistics, targets, losses, lse } => {
                operands(&[statistics, targets], &[losses, lse], &[])
            }
            Self::LossBackward { logits, targets, lse, .. } => operands(&[targets, lse], &[], &[logits]),
            Self::AddBias { y, bias } => operands(&[bias], &[], &[y]),
            Self::BiasBackward { dy, bias_gradient } => operands(&[dy], &[], &[bias_gradient]),
            Self::Add { a, b, out } => operands(&[a, b], &[out], &[]),
            Self::Accumulate { total, part, .. } => operands(&[part], &[], &[total]),
            Self::Scale { values, .. } => operands(&[], &[], &[values]),
            Self::CopyBlock { from, to, .. } => operands(&[from], &[], &[to]),
            Self::Cast { from, to } => operands(&[from], &[to], &[]),
            Self::SquaredNorm { values, sum } => operands(&[values], &[], &[sum]),
            Self::ClipFactor { squared_norm, factor, .. } => operands(&[squared_norm], &[factor], &[]),
            Self::AdamW { factor, master, gradients, first, second, rounded, .. } => {
                let mut all = operands(&[gradients], &[], &[master, first, second]);
                all.reads.extend(factor);
                all.writes.extend(rounded);
                all
            }
            Self::Softmax { values, .. } => operands(&[], &[], &[values]),
            Self::ChooseExperts { scores, chosen, weights, .. } => operands(&[scores], &[chosen, weights], &[]),
            Self::OrderByExpert { chosen, order, places, counts } => operands(&[chosen], &[order, places, counts], &[]),
            Self::GatherRows { indices: index, factors, from: rows, to: out, .. }
            | Self::CombineRows { places: index, factors, rows, out, .. } => {
                let mut all = operands(&[index, rows], &[out], &[]);
                all.reads.extend(factors);
                all
            }
            Self::RowProducts { places, a, rows, products, .. } => operands(&[places, a, rows], &[products], &[]),
            Self::CheckFinite { values, flag, .. } => operands(&[values], &[], &[flag]),
        }
    }

    /// The element of the operands that may be of any: the first that is BF16, else FP32.
    #[must_use]
    pub fn element(&self) -> Element {
        let Operands { reads, writes, updates } = self.operands();
        let mut all = reads.iter().chain(&writes).chain(&updates);
        if all.any(|slice| slice.element == Element::Bf16) { Element::Bf16 } else { Element::F32 }
    }
}

/// The outputs are added to or overwritten.
fn written(mut operands: Operands, add: bool, outputs: &[Slice]) -> Operands {
    if add {
        operands.updates.extend(outputs)
    } else {
        operands.writes.extend(outputs)
    }
    operands
}

//! The arithmetic of passes, wherever numbers lie: [`kernels`](crate::kernels) on host memory, or the operation of the same
//! meaning on a device. Functions are named and take their operands as those of the kernels do.
//!
//! What devices do not carry out (experts) takes host memory and is refused before a program is
//! loaded for a device.

use super::accelerator::Accelerator;
use super::values::{View, ViewMut};
use crate::device::{ActivationKind, AttentionTensors, Norm, NormSaved, Operation, Product, Rotation, Sizes, Slice};
use crate::kernels::activation::Gelu;
use crate::kernels::attention::{AttentionGradients, AttentionSaved, AttentionWorkspace, Packed};
use crate::kernels::linear::Linear;
use crate::kernels::loss::VocabularyShard;
use crate::kernels::optimizer::AdamW;
use crate::kernels::rope::RotaryTable;
use crate::kernels::{self, Store};

fn adds(store: Store) -> bool {
    matches!(store, Store::Accumulate)
}

pub(super) fn linear_forward<'a, 'b>(
    shape: Linear,
    x: impl Into<View<'a>>,
    w: View<'_>,
    bias: Option<View<'_>>,
    y: impl Into<ViewMut<'b>>,
) {
    let Linear { tokens, inputs, outputs } = shape;
    match y.into() {
        ViewMut::Host(y) => {
            kernels::linear::linear_forward(shape, x.into().host(), w.host(), bias.map(View::host), y);
        }
        ViewMut::Device(on, y) => {
            on.product(&Product::forward(tokens, inputs, outputs, x.into().slice(), w.slice(), false, y));
            if let Some(bias) = bias {
                on.run(&Operation::AddBias { y, bias: bias.slice() });
            }
        }
    }
}

pub(super) fn linear_backward_input<'a, 'b>(
    shape: Linear,
    dy: impl Into<View<'a>>,
    w: View<'_>,
    store: Store,
    dx: impl Into<ViewMut<'b>>,
) {
    let Linear { tokens, inputs, outputs } = shape;
    match dx.into() {
        ViewMut::Host(dx) => kernels::linear::linear_backward_input(shape, dy.into().host(), w.host(), store, dx),
        ViewMut::Device(on, dx) => {
            let (dy, w, add) = (dy.into().slice(), w.slice(), adds(store));
            on.product(&Product::input_gradient(tokens, inputs, outputs, dy, w, add, dx));
        }
    }
}

pub(super) fn linear_backward_weight<'a, 'b>(
    shape: Linear,
    x: impl Into<View<'a>>,
    dy: impl Into<View<'b>>,
    dw: ViewMut<'_>,
) {
    let Linear { tokens, inputs, outputs } = shape;
    match dw {
        ViewMut::Host(dw) => kernels::linear::linear_backward_weight(shape, x.into().host(), dy.into().host(), dw),
        ViewMut::Device(on, dw) => {
            let (x, dy) = (x.into().slice(), dy.into().slice());
            on.product(&Product::weight_gradient(tokens, inputs, outputs, x, dy, dw));
        }
    }
}

pub(super) fn linear_backward_bias<'a>(dy: impl Into<View<'a>>, db: ViewMut<'_>) {
    match db {
        ViewMut::Host(db) => kernels::linear::linear_backward_bias(dy.into().host(), db),
        ViewMut::Device(on, bias_gradient) => {
            on.run(&Operation::BiasBackward { dy: dy.into().slice(), bias_gradient });
        }
    }
}

/// RMSNorm without a bias and a mean; LayerNorm with both, whose statistics are means and then what RMSNorm has.
pub(super) fn norm_forward<'a>(
    (weight, bias): (View<'_>, Option<View<'_>>),
    epsilon: f32,
    x: impl Into<View<'a>>,
    y: ViewMut<'_>,
    statistics: ViewMut<'_>,
) {
    let x = x.into();
    match (y, bias) {
        (ViewMut::Host(y), None) => {
            kernels::norm::rms_norm_forward(x.host(), weight.host(), epsilon, y, statistics.host());
        }
        (ViewMut::Host(y), Some(bias)) => {
            let statistics = statistics.host();
            let (mean, rstd) = statistics.split_at_mut(statistics.len() / 2);
            kernels::norm::layer_norm_forward(x.host(), weight.host(), bias.host(), epsilon, y, mean, rstd);
        }
        (ViewMut::Device(on, y), bias) => {
            let norm = Norm { weight: weight.slice(), bias: bias.map(View::slice), epsilon };
            let NormSaved { x, mean, rstd } = saved(x, statistics.view(), bias.is_some());
            on.run(&Operation::NormForward { norm, x, y, mean, rstd });
        }
    }
}

/// What a device's norm saved of its input.
fn saved(x: View<'_>, statistics: View<'_>, centred: bool) -> NormSaved {
    let (mean, rstd) = statistics.split_at(if centred { statistics.len() / 2 } else { 0 });
    NormSaved { x: x.slice(), mean: centred.then(|| mean.slice()), rstd: rstd.slice() }
}

/// `centred` says that it is a LayerNorm's; its bias has no part in this.
pub(super) fn norm_backward_input<'a, 'b>(
    (weight, centred): (View<'_>, bool),
    (x, statistics): (View<'_>, View<'_>),
    dy: impl Into<View<'a>>,
    store: Store,
    dx: impl Into<ViewMut<'b>>,
) {
    let dy = dy.into();
    match dx.into() {
        ViewMut::Host(dx) if centred => {
            let (mean, rstd) = statistics.split_at(statistics.len() / 2);
            let (mean, rstd) = (mean.host(), rstd.host());
            kernels::norm::layer_norm_backward_input(x.host(), weight.host(), mean, rstd, dy.host(), store, dx);
        }
        ViewMut::Host(dx) => {
            kernels::norm::rms_norm_backward_input(x.host(), weight.host(), statistics.host(), dy.host(), store, dx);
        }
        ViewMut::Device(on, dx) => {
            let norm = Norm { weight: weight.slice(), bias: None, epsilon: 0.0 };
            let (saved, add) = (saved(x, statistics, centred), adds(store));
            on.run(&Operation::NormBackwardInput { norm, saved, dy: dy.slice(), add, dx });
        }
    }
}

/// With a gradient of the bias it is a LayerNorm's.
pub(super) fn norm_backward_weight<'a>(
    (x, statistics): (View<'_>, View<'_>),
    dy: impl Into<View<'a>>,
    d_weight: ViewMut<'_>,
    d_bias: Option<ViewMut<'_>>,
) {
    let dy = dy.into();
    match (d_weight, d_bias) {
        (ViewMut::Host(d_weight), Some(d_bias)) => {
            let (mean, rstd) = statistics.split_at(statistics.len() / 2);
            let (mean, rstd, d_bias) = (mean.host(), rstd.host(), d_bias.host());
            kernels::norm::layer_norm_backward_weight(x.host(), mean, rstd, dy.host(), d_weight, d_bias);
        }
        (ViewMut::Host(d_weight), None) => {
            kernels::norm::rms_norm_backward_weight(x.host(), statistics.host(), dy.host(), d_weight);
        }
        (ViewMut::Device(on, weight_gradient), d_bias) => {
            let saved = saved(x, statistics, d_bias.is_some());
            let bias_gradient = d_bias.map(ViewMut::slice);
            on.run(&Operation::NormBackwardWeight { saved, dy: dy.slice(), weight_gradient, bias_gradient });
        }
    }
}

/// Turns queries or keys of whole sequences or pieces of them by their positions, or `back`.
pub(super) fn rotate(
    table: &RotaryTable,
    x: ViewMut<'_>,
    heads: usize,
    (sequence_length, first_position): (usize, usize),
    back: bool,
) {
    match x {
        ViewMut::Host(x) if back => kernels::rope::rotate_back(table, x, heads, sequence_length, first_position),
        ViewMut::Host(x) => kernels::rope::rotate(table, x, heads, sequence_length, first_position),
        ViewMut::Device(on, x) => {
            let [cosines, sines] = on.rotary(table);
            let head_dim = 2 * table.pairs();
            let rotation = Rotation { cosines, sines, head_dim, heads, sequence_length, first_position, back };
            on.run(&Operation::Rotate { rotation, x });
        }
    }
}

/// Queries, keys and values of an attention's core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Core<'a> {
    pub(super) q: View<'a>,
    pub(super) k: View<'a>,
    pub(super) v: View<'a>,
}

impl Core<'_> {
    fn tensors(self, out: Slice, lse: Slice) -> AttentionTensors {
        let [q, k, v] = [self.q, self.k, self.v].map(View::slice);
        AttentionTensors { q, k, v, out, lse, starts: None }
    }
}

/// Lets `run` work with where documents begin, if sequences hold several.
fn with_starts(on: &Accelerator, over: Packed<'_>, run: impl FnOnce(Option<Slice>)) {
    if over.starts.is_empty() { run(None) } else { on.with_tokens(over.starts, |starts| run(Some(starts))) }
}

pub(super) fn attention_forward<'a, 'b>(
    over: Packed<'_>,
    core: Core<'_>,
    out: impl Into<ViewMut<'a>>,
    lse: impl Into<ViewMut<'b>>,
    workspace: &mut AttentionWorkspace,
) {
    let Core { q, k, v } = core;
    match out.into() {
        ViewMut::Host(out) => {
            let (q, k, v, lse) = (q.host(), k.host(), v.host(), lse.into().host());
            kernels::attention::attention_forward(over, q, k, v, out, lse, workspace);
        }
        ViewMut::Device(on, out) => {
            let (shape, tensors) = (over.shape, core.tensors(out, lse.into().slice()));
            with_starts(on, over, |starts| {
                let tensors = AttentionTensors { starts, ..tensors };
                on.run(&Operation::AttentionForward { shape, tensors });
            });
        }
    }
}

/// Joins a part, of output and log-sum-exps, to what there is of both, in FP32.
pub(super) fn attention_merge(out: ViewMut<'_>, lse: ViewMut<'_>, part_out: View<'_>, part_lse: View<'_>) {
    match out {
        ViewMut::Host(out) => {
            kernels::attention::attention_merge(out, lse.host(), part_out.host(), part_lse.host());
        }
        ViewMut::Device(on, out) => {
            let (lse, part_out, part_lse) = (lse.slice(), part_out.slice(), part_lse.slice());
            on.run(&Operation::AttentionMerge { out, lse, part_out, part_lse });
        }
    }
}

/// `saved` is the output and its log-sum-exps; writes the gradients of queries, keys and values, or adds them.
pub(super) fn attention_backward<'a>(
    over: Packed<'_>,
    core: Core<'_>,
    (out, lse): (View<'_>, View<'_>),
    d_out: impl Into<View<'a>>,
    (store, [dq, dk, dv]): (Store, [ViewMut<'_>; 3]),
    workspace: &mut AttentionWorkspace,
) {
    let Core { q, k, v } = core;
    match dq {
        ViewMut::Host(dq) => {
            let saved = AttentionSaved { q: q.host(), k: k.host(), v: v.host(), out: out.host(), lse: lse.host() };
            let mut gradients = AttentionGradients { dq, dk: dk.host(), dv: dv.host() };
            let d_out = d_out.into().host();
            kernels::attention::attention_backward(over, saved, d_out, store, &mut gradients, workspace);
        }
        ViewMut::Device(on, dq) => {
            let (shape, tensors) = (over.shape, core.tensors(out.slice(), lse.slice()));
            let (d_out, dk, dv) = (d_out.into().slice(), dk.slice(), dv.slice());
            let add = adds(store);
            on.with_scratch(tensors.lse.element, tensors.lse.length, |delta| {
                with_starts(on, over, |starts| {
                    let tensors = AttentionTensors { starts, ..tensors };
                    on.run(&Operation::AttentionBackward { shape, tensors, d_out, delta, add, dq, dk, dv });
                });
            });
        }
    }
}

fn activation_kind(gelu: Gelu) -> ActivationKind {
    match gelu {
        Gelu::Exact => ActivationKind::GeluExact,
        Gelu::Tanh => ActivationKind::GeluTanh,
    }
}

pub(super) fn swiglu_forward<'a>(gate: View<'_>, up: View<'_>, out: impl Into<ViewMut<'a>>) {
    match out.into() {
        ViewMut::Host(out) => kernels::activation::swiglu_forward(gate.host(), up.host(), out),
        ViewMut::Device(on, out) => on.run(&Operation::SwigluForward { gate: gate.slice(), up: up.slice(), out }),
    }
}

pub(super) fn swiglu_backward(
    (gate, up): (View<'_>, View<'_>),
    d_out: View<'_>,
    (d_gate, d_up): (ViewMut<'_>, ViewMut<'_>),
) {
    match d_gate {
        ViewMut::Host(d_gate) => {
            kernels::activation::swiglu_backward(gate.host(), up.host(), d_out.host(), d_gate, d_up.host());
        }
        ViewMut::Device(on, d_gate) => {
            let (gate, up, d_out, d_up) = (gate.slice(), up.slice(), d_out.slice(), d_up.slice());
            on.run(&Operation::SwigluBackward { gate, up, d_out, d_gate, d_up });
        }
    }
}

pub(super) fn geglu_forward<'a>(gelu: Gelu, gate: View<'_>, up: View<'_>, out: impl Into<ViewMut<'a>>) {
    match out.into() {
        ViewMut::Host(out) => kernels::activation::geglu_forward(gelu, gate.host(), up.host(), out),
        ViewMut::Device(on, out) => {
            let (kind, gate, up) = (activation_kind(gelu), gate.slice(), up.slice());
            on.run(&Operation::GegluForward { kind, gate, up, out });
        }
    }
}

pub(super) fn geglu_backward(
    gelu: Gelu,
    (gate, up): (View<'_>, View<'_>),
    d_out: View<'_>,
    (d_gate, d_up): (ViewMut<'_>, ViewMut<'_>),
) {
    match d_gate {
        ViewMut::Host(d_gate) => {
            kernels::activation::geglu_backward(gelu, gate.host(), up.host(), d_out.host(), d_gate, d_up.host());
        }
        ViewMut::Device(on, d_gate) => {
            let (kind, gate, up) = (activation_kind(gelu), gate.slice(), up.slice());
            let (d_out, d_up) = (d_out.slice(), d_up.slice());
            on.run(&Operation::GegluBackward { kind, gate, up, d_out, d_gate, d_up });
        }
    }
}

pub(super) fn gelu_forward<'a>(gelu: Gelu, x: View<'_>, y: impl Into<ViewMut<'a>>) {
    match y.into() {
        ViewMut::Host(y) => kernels::activation::gelu_forward(gelu, x.host(), y),
        ViewMut::Device(on, y) => {
            on.run(&Operation::ActivationForward { kind: activation_kind(gelu), x: x.slice(), y });
        }
    }
}

pub(super) fn gelu_backward<'a>(gelu: Gelu, x: View<'_>, dy: View<'_>, dx: impl Into<ViewMut<'a>>) {
    match dx.into() {
        ViewMut::Host(dx) => kernels::activation::gelu_backward(gelu, x.host(), dy.host(), dx),
        ViewMut::Device(on, dx) => {
            let (kind, x, dy) = (activation_kind(gelu), x.slice(), dy.slice());
            on.run(&Operation::ActivationBackward { kind, x, dy, dx });
        }
    }
}

/// `first` is the first row of the table that this rank holds.
pub(super) fn embedding_forward<'a>(
    tokens: &[u32],
    table: View<'_>,
    (features, first): (usize, usize),
    out: impl Into<ViewMut<'a>>,
) {
    match out.into() {
        ViewMut::Host(out) => kernels::embedding::embedding_forward(tokens, table.host(), features, first, out),
        ViewMut::Device(on, out) => on.with_tokens(tokens, |tokens| {
            let sizes = Sizes { features, first, sequence_length: 0 };
            on.run(&Operation::EmbeddingForward { sizes, tokens, table: table.slice(), out });
        }),
    }
}

pub(super) fn embedding_backward<'a>(
    tokens: &[u32],
    d_out: impl Into<View<'a>>,
    (features, first): (usize, usize),
    d_table: ViewMut<'_>,
) {
    match d_table {
        ViewMut::Host(d_table) => {
            kernels::embedding::embedding_backward(tokens, d_out.into().host(), features, first, d_table);
        }
        ViewMut::Device(on, table_gradient) => on.with_tokens(tokens, |tokens| {
            let (sizes, d_out) = (Sizes { features, first, sequence_length: 0 }, d_out.into().slice());
            on.run(&Operation::EmbeddingBackward { sizes, tokens, d_out, table_gradient });
        }),
    }
}

pub(super) fn positions_forward(x: ViewMut<'_>, table: View<'_>, sizes: Sizes) {
    let Sizes { features, first, sequence_length } = sizes;
    match x {
        ViewMut::Host(x) => kernels::embedding::positions_forward(x, table.host(), features, sequence_length, first),
        ViewMut::Device(on, x) => on.run(&Operation::PositionsForward { sizes, table: table.slice(), x }),
    }
}

pub(super) fn positions_backward(dx: View<'_>, sizes: Sizes, d_table: ViewMut<'_>) {
    let Sizes { features, first, sequence_length } = sizes;
    match d_table {
        ViewMut::Host(to) => kernels::embedding::positions_backward(dx.host(), features, sequence_length, first, to),
        ViewMut::Device(on, table_gradient) => {
            on.run(&Operation::PositionsBackward { sizes, dx: dx.slice(), table_gradient });
        }
    }
}

/// The same of tokens each of which has a position of its own.
pub(super) fn positions_forward_at(
    x: ViewMut<'_>,
    table: View<'_>,
    features: usize,
    positions: impl Iterator<Item = usize>,
) {
    match x {
        ViewMut::Host(x) => kernels::embedding::positions_forward_at(x, table.host(), features, positions),
        // A row of the table for each token, as of a vocabulary.
        ViewMut::Device(on, x) => on.with_tokens(&numbers(positions), |tokens| {
            on.with_scratch(x.element, x.length, |rows| {
                let sizes = Sizes { features, first: 0, sequence_length: 0 };
                on.run(&Operation::EmbeddingForward { sizes, tokens, table: table.slice(), out: rows });
                on.run(&Operation::Accumulate { total: x, factor: 1.0, part: rows });
            });
        }),
    }
}

pub(super) fn positions_backward_at(
    dx: View<'_>,
    features: usize,
    positions: impl Iterator<Item = usize>,
    d_table: ViewMut<'_>,
) {
    match d_table {
        ViewMut::Host(d_table) => kernels::embedding::positions_backward_at(dx.host(), features, positions, d_table),
        ViewMut::Device(on, table_gradient) => on.with_tokens(&numbers(positions), |tokens| {
            let (sizes, d_out) = (Sizes { features, first: 0, sequence_length: 0 }, dx.slice());
            on.run(&Operation::EmbeddingBackward { sizes, tokens, d_out, table_gradient });
        }),
    }
}

fn numbers(positions: impl Iterator<Item = usize>) -> Vec<u32> {
    positions.map(|position| u32::try_from(position).expect("a position of fewer than 2^32")).collect()
}

pub(super) fn loss_statistics<'a, 'b>(
    shard: VocabularyShard,
    logits: impl Into<View<'a>>,
    targets: &[u32],
    statistics: impl Into<ViewMut<'b>>,
) {
    match statistics.into() {
        ViewMut::Host(statistics) => kernels::loss::local_stats(shard, logits.into().host(), targets, statistics),
        ViewMut::Device(on, statistics) => on.with_tokens(targets, |targets| {
            on.run(&Operation::LossStatistics { shard, logits: logits.into().slice(), targets, statistics });
        }),
    }
}

pub(super) fn loss_combine<'a, 'b, 'c>(
    statistics: impl Into<View<'a>>,
    targets: &[u32],
    losses: impl Into<ViewMut<'b>>,
    lse: impl Into<ViewMut<'c>>,
) {
    match losses.into() {
        ViewMut::Host(losses) => {
            kernels::loss::combine(statistics.into().host(), targets, losses, lse.into().host());
        }
        ViewMut::Device(on, losses) => on.with_tokens(targets, |targets| {
            let (statistics, lse) = (statistics.into().slice(), lse.into().slice());
            on.run(&Operation::LossCombine { statistics, targets, losses, lse });
        }),
    }
}

pub(super) fn loss_backward<'a, 'b>(
    shard: VocabularyShard,
    logits: impl Into<ViewMut<'a>>,
    targets: &[u32],
    lse: impl Into<View<'b>>,
    scale: f32,
) {
    match logits.into() {
        ViewMut::Host(logits) => kernels::loss::backward(shard, logits, targets, lse.into().host(), scale),
        ViewMut::Device(on, logits) => on.with_tokens(targets, |targets| {
            on.run(&Operation::LossBackward { shard, logits, targets, lse: lse.into().slice(), scale });
        }),
    }
}

pub(super) fn accumulate<'a, 'b>(total: impl Into<ViewMut<'a>>, part: impl Into<View<'b>>) {
    match (total.into(), part.into()) {
        (ViewMut::Host(total), part) => kernels::elementwise::accumulate(total, part.host()),
        (ViewMut::Device(on, total), View::Device(_, part)) => {
            on.run(&Operation::Accumulate { total, factor: 1.0, part });
        }
        (ViewMut::Device(on, total), View::Host(part)) => on.with_scratch(total.element, part.len(), |summand| {
            on.upload(part, summand);
            on.run(&Operation::Accumulate { total, factor: 1.0, part: summand });
        }),
    }
}

pub(super) fn scale(values: ViewMut<'_>, factor: f32) {
    match values {
        ViewMut::Host(values) => kernels::elementwise::scale(values, factor),
        ViewMut::Device(on, values) => on.run(&Operation::Scale { values, factor }),
    }
}

/// Whether no value is infinite or not a number. On a device the answer comes later: when the instruction ends, the first
/// tensor that is not finite is named as what it is `of`.
pub(super) fn all_finite<'a>(values: impl Into<View<'a>>, of: &'static str) -> bool {
    match values.into() {
        View::Host(values) => super::all_finite(values),
        View::Device(on, values) => {
            on.check(values, of);
            true
        }
    }
}

/// The sum of the squares of all of them.
pub(super) fn squared_norm<'a>(all: impl Iterator<Item = View<'a>>) -> f64 {
    let mut all = all.peekable();
    match all.peek() {
        Some(View::Device(on, _)) => on.squared_norm(all.map(View::slice)),
        Some(View::Host(_)) | None => all.map(|values| kernels::optimizer::squared_norm(values.host())).sum(),
    }
}

/// A step on FP32 weights, of which `step` is counted from 1.
pub(super) fn adamw_step(
    options: &AdamW,
    (step, decay): (u64, bool),
    weights: ViewMut<'_>,
    gradients: View<'_>,
    [first, second]: [ViewMut<'_>; 2],
) {
    match weights {
        ViewMut::Host(weights) => {
            let (first, second) = (first.host(), second.host());
            kernels::optimizer::adamw_step(options, step, decay, weights, gradients.host(), first, second);
        }
        ViewMut::Device(on, master) => {
            let (options, gradients) = (*options, gradients.slice());
            let (first, second) = (first.slice(), second.slice());
            let (factor, rounded) = (None, None);
            let step = Operation::AdamW { options, step, decay, factor, master, gradients, first, second, rounded };
            on.run(&step);
        }
    }
}

//! Kernels that are bound by memory, each at several sizes; bytes are those that [`ir::counts`] counts for them.

use ir::counts::{Streaming, gradient_norm_bytes, optimizer_bytes};
use ir::{Bytes, MeasuredOp, Measurement, Precision};

use super::sampling::{kernel, numbers, sets};
use super::{Job, MeasureOptions};
use crate::kernels::Store;
use crate::kernels::activation::{Gelu, gelu_backward, gelu_forward, swiglu_backward, swiglu_forward};
use crate::kernels::elementwise::{accumulate, scale};
use crate::kernels::embedding::{embedding_backward, embedding_forward};
use crate::kernels::loss::{self, STATS, VocabularyShard};
use crate::kernels::norm::{
    layer_norm_backward_input, layer_norm_backward_weight, layer_norm_forward, rms_norm_backward_input,
    rms_norm_backward_weight, rms_norm_forward,
};
use crate::kernels::optimizer::{AdamW, adamw_step, squared_norm};
use crate::kernels::rope::{RotaryTable, rotate};

/// What the executor's models run; of the rest another kind's rate stands in (see [`Streaming::stand_in`]).
pub(super) const KINDS: [Streaming; 16] = [
    Streaming::Embedding,
    Streaming::EmbeddingBackward,
    Streaming::RmsNorm,
    Streaming::RmsNormBackward,
    Streaming::LayerNorm,
    Streaming::LayerNormBackward,
    Streaming::Rope,
    Streaming::SwiGlu,
    Streaming::SwiGluBackward,
    Streaming::Gelu,
    Streaming::GeluBackward,
    Streaming::Add,
    Streaming::CrossEntropy,
    Streaming::CrossEntropyBackward,
    Streaming::GradientNorm,
    Streaming::Optimizer,
];

/// Width of rows.
const HIDDEN: usize = 128;
/// Rows of the embedding and columns of the logits.
const VOCABULARY: usize = 256;
/// Tokens of a sequence.
const LENGTH: usize = 64;
/// Width of a head.
const HEAD: usize = 16;

/// Adds a job for every kernel and size.
pub(super) fn jobs(options: &MeasureOptions, jobs: &mut Vec<Job>) {
    let tokens: &[usize] = if options.quick { &[64, 256] } else { &[64, 256, 1024, 4096] };
    for kind in KINDS {
        for &tokens in tokens {
            let options = *options;
            let run = Box::new(move || measure(&options, kind, tokens));
            jobs.push(Job { what: "streaming kernels", run });
        }
    }
}

/// Passes over the `[tokens, HIDDEN]` tensors of a kernel, as counted.
fn bytes(kind: Streaming, tokens: usize) -> u64 {
    let pass = 4 * tokens as u64 * HIDDEN as u64;
    let logits = 4 * tokens as u64 * VOCABULARY as u64;
    match kind {
        Streaming::Embedding | Streaming::RmsNorm | Streaming::LayerNorm | Streaming::Rope | Streaming::Gelu => {
            2 * pass
        }
        Streaming::EmbeddingBackward | Streaming::SwiGlu | Streaming::GeluBackward | Streaming::Add => 3 * pass,
        // The input gradient's four and the weight gradient's two.
        Streaming::RmsNormBackward | Streaming::LayerNormBackward => 6 * pass,
        Streaming::SwiGluBackward => 5 * pass,
        Streaming::CrossEntropy | Streaming::CrossEntropyBackward => 2 * logits,
        Streaming::GradientNorm => gradient_norm_bytes((tokens * HIDDEN) as u64).get(),
        Streaming::Optimizer => optimizer_bytes((tokens * HIDDEN) as u64, Precision::Fp32).get(),
        Streaming::Elementary
        | Streaming::Router
        | Streaming::Permute
        | Streaming::Scan
        | Streaming::Convolution
        | Streaming::Cast => unreachable!("{} is not a kernel of the executor", kind.name()),
    }
}

/// The tensors of one call.
struct Tensors {
    /// `[tokens, HIDDEN]` each.
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    d: Vec<f32>,
    e: Vec<f32>,
    /// `[tokens, VOCABULARY]`, for the loss.
    logits: Vec<f32>,
    /// `[STATS, tokens]`.
    stats: Vec<f32>,
    /// `[tokens]`.
    rows: Vec<f32>,
}

fn measure(options: &MeasureOptions, kind: Streaming, tokens: usize) -> Measurement {
    let bytes = bytes(kind, tokens);
    let op = MeasuredOp::ElementWise { bytes: Bytes::new(bytes), kernel: kind.name().to_owned() };
    let sets = sets(usize::try_from(bytes).expect("a few megabytes"));
    let of_loss = matches!(kind, Streaming::CrossEntropy | Streaming::CrossEntropyBackward);
    let tensor = || if of_loss { Vec::new() } else { numbers(tokens * HIDDEN) };
    let mut all: Vec<Tensors> = (0..sets)
        .map(|_| Tensors {
            a: tensor(),
            b: tensor(),
            c: tensor(),
            d: tensor(),
            // Second moments are not negative.
            e: tensor().into_iter().map(f32::abs).collect(),
            logits: if of_loss { numbers(tokens * VOCABULARY) } else { Vec::new() },
            stats: vec![1.0; STATS * tokens],
            rows: vec![1.0; tokens],
        })
        .collect();
    let shared = Shared::new(tokens);
    let mut gradient = numbers(VOCABULARY * HIDDEN);
    kernel(options, op, sets, |set| run(kind, &mut all[set], &shared, &mut gradient))
}

/// What all calls share.
struct Shared {
    ids: Vec<u32>,
    table: Vec<f32>,
    weight: Vec<f32>,
    rotary: RotaryTable,
    shard: VocabularyShard,
}

impl Shared {
    fn new(tokens: usize) -> Self {
        let ids = (0..tokens).map(|i| u32::try_from(i * 97 % VOCABULARY).expect("a byte")).collect();
        Self {
            ids,
            table: numbers(VOCABULARY * HIDDEN),
            weight: numbers(HIDDEN),
            rotary: RotaryTable::new(LENGTH, HEAD, 1e4),
            shard: VocabularyShard { first: 0, valid: VOCABULARY, columns: VOCABULARY },
        }
    }
}

fn run(kind: Streaming, tensors: &mut Tensors, shared: &Shared, gradient: &mut [f32]) {
    let Tensors { a, b, c, d, e, logits, stats, rows } = tensors;
    let tokens = rows.len();
    match kind {
        Streaming::Embedding => embedding_forward(&shared.ids, &shared.table, HIDDEN, 0, a),
        Streaming::EmbeddingBackward => embedding_backward(&shared.ids, a, HIDDEN, 0, gradient),
        Streaming::RmsNorm => rms_norm_forward(a, &shared.weight, 1e-5, b, rows),
        Streaming::LayerNorm => {
            layer_norm_forward(a, &shared.weight, &shared.weight, 1e-5, b, &mut stats[..tokens], rows)
        }
        Streaming::LayerNormBackward => {
            let means = &stats[..tokens];
            layer_norm_backward_input(a, &shared.weight, means, rows, b, Store::Accumulate, c);
            let (weights, biases) = gradient[..2 * HIDDEN].split_at_mut(HIDDEN);
            layer_norm_backward_weight(a, means, rows, b, weights, biases);
        }
        Streaming::RmsNormBackward => {
            rms_norm_backward_input(a, &shared.weight, rows, b, Store::Accumulate, c);
            rms_norm_backward_weight(a, rows, b, &mut gradient[..HIDDEN]);
        }
        Streaming::Rope => rotate(&shared.rotary, a, HIDDEN / HEAD, LENGTH, 0),
        Streaming::SwiGlu => swiglu_forward(a, b, c),
        Streaming::SwiGluBackward => swiglu_backward(a, b, c, d, e),
        Streaming::Gelu => gelu_forward(Gelu::Tanh, a, b),
        Streaming::GeluBackward => gelu_backward(Gelu::Tanh, a, b, c),
        Streaming::Add => accumulate(a, b),
        Streaming::CrossEntropy => loss::local_stats(shared.shard, logits, &shared.ids, stats),
        // The shift by a log-sum-exp that is far too large keeps repeated gradients of gradients in range.
        Streaming::CrossEntropyBackward => loss::backward(shared.shard, logits, &shared.ids, rows, 1e-3),
        Streaming::GradientNorm => {
            std::hint::black_box(squared_norm(a));
        }
        Streaming::Optimizer => {
            let options = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
            scale(b, 0.5);
            adamw_step(&options, 1, true, a, b, c, e);
            // Not zero, so that moments do not decay into slow subnormal numbers.
            b.fill(1e-3);
        }
        Streaming::Elementary
        | Streaming::Router
        | Streaming::Permute
        | Streaming::Scan
        | Streaming::Convolution
        | Streaming::Cast => unreachable!("{} is not a kernel of the executor", kind.name()),
    }
}

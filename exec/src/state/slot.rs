//! What a rank keeps of one microbatch in one chunk, from its first forward to its last backward pass.
//!
//! The residual stream `x` runs through *sublayers*: a norm and the body that reads its output. Sublayer `2 l` is the
//! attention of the chunk's `l`-th layer, `2 l + 1` its feed-forward part; the last one of a chunk with a head is the
//! final norm and the head. A body leaves a *branch*, partial over the tensor group; once it is whole, the next sublayer
//! begins with `x + branch`.

use super::buffers::{Held, Pool};
use super::experts::ExpertSlot;
use super::offload::Away;
use super::values::View;

/// A buffer that is first a rank's summand and then, when a collective delivered, the sum over the tensor group.
#[derive(Debug)]
pub(super) struct Sum {
    pub(super) data: Held,
    pub(super) whole: bool,
}

/// A norm and the body after it.
#[derive(Debug, Default)]
pub(super) struct Sublayer {
    /// The residual stream before the norm, `[rows, hidden]`.
    pub(super) input: Option<Held>,
    /// One over the root mean square of each row, `[rows]`; with LayerNorm after the mean, `[2, rows]`.
    pub(super) statistics: Option<Held>,
    /// The normed input of the body, `[rows, hidden]`.
    pub(super) output: Option<Held>,
    /// The same of all tokens, `[tokens, hidden]` (sequence parallelism).
    pub(super) gathered: Option<Held>,
    /// The gradient of the body's output, `[tokens, hidden]`, where it is not simply the residual gradient: gathered
    /// (sequence parallelism), or kept for a weight pass to come.
    pub(super) output_gradient: Option<Held>,
    /// The gradient of the normed input, `[tokens, hidden]` until scattered to `[rows, hidden]`.
    pub(super) input_gradient: Option<Sum>,
    /// The body's output where a norm comes after it, `[rows, hidden]`, and that norm's statistics.
    pub(super) branch: Option<Held>,
    pub(super) branch_statistics: Option<Held>,
    /// The gradient of that norm's output, kept for a weight pass to come.
    pub(super) after_gradient: Option<Held>,
}

impl Sublayer {
    /// Gives up what the body read, which nothing needs any more.
    pub(super) fn release_body_input(&mut self, pool: &mut Pool) {
        pool.release(&mut self.gathered);
        pool.release(&mut self.output);
    }
    fn release(&mut self, pool: &mut Pool) {
        self.release_body_input(pool);
        pool.release(&mut self.input);
        pool.release(&mut self.statistics);
        pool.release(&mut self.output_gradient);
        for held in [&mut self.branch, &mut self.branch_statistics, &mut self.after_gradient] {
            pool.release(held);
        }
        release_sum(&mut self.input_gradient, pool);
    }
}

/// How far a pass of an attention has come whose sequences are shared with other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// Nothing is computed.
    #[default]
    Start,
    /// What the first exchange carries is.
    Projected,
    /// The core has begun, with this rank's own keys (or its heads of all tokens).
    Own,
    /// Backward: gradients of all keys are there.
    Gradients,
}

/// A layer's attention, `[tokens, heads, head_dim]`.
#[derive(Debug, Default)]
pub(super) struct AttentionSlot {
    pub(super) stage: Stage,
    /// Queries, rotated.
    pub(super) q: Option<Held>,
    /// Keys, rotated.
    pub(super) k: Option<Held>,
    pub(super) v: Option<Held>,
    /// Weighted values, the input of the projection.
    pub(super) out: Option<Held>,
    /// Logarithm of the sum of exponentials, `[tokens, heads]`.
    pub(super) lse: Option<Held>,
    pub(super) dq: Option<Held>,
    pub(super) dk: Option<Held>,
    pub(super) dv: Option<Held>,
    /// With norms of queries and keys: both before their norms, and the norms' statistics.
    pub(super) raw: [Option<Held>; 4],
    /// The gradients of both after their norms.
    pub(super) d_normed: [Option<Held>; 2],
    /// The gradient of `out`, while the core's backward pass waits for other ranks.
    pub(super) d_out: Option<Held>,
    /// Keys and values of all ranks that share the sequences, `[ranks, 2, tokens, kv width]`, and the gradients of those.
    pub(super) gathered: Option<Held>,
    pub(super) d_gathered: Option<Held>,
    /// The output of this rank's heads over all tokens, backward.
    pub(super) exchanged_out: Option<Held>,
}

impl AttentionSlot {
    /// Gives every buffer back.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        let Self { stage, q, k, v, out, lse, dq, dk, dv, raw, d_normed, d_out, gathered, d_gathered, exchanged_out } =
            self;
        *stage = Stage::Start;
        let of_core = [q, k, v, out, lse, dq, dk, dv, d_out, gathered, d_gathered, exchanged_out];
        for held in of_core.into_iter().chain(raw).chain(d_normed) {
            pool.release(held);
        }
    }
}

/// A layer's feed-forward part, `[tokens, ffn]`.
#[derive(Debug, Default)]
pub(super) struct MlpSlot {
    pub(super) gate: Option<Held>,
    pub(super) up: Option<Held>,
    /// The input of the down projection.
    pub(super) activated: Option<Held>,
    pub(super) d_gate: Option<Held>,
    pub(super) d_up: Option<Held>,
}

/// The head.
#[derive(Debug, Default)]
pub(super) struct HeadSlot {
    /// Logits of this rank's columns `[tokens, columns]`; after the loss's backward pass, their gradient.
    pub(super) logits: Option<Held>,
    /// The FP32 copy of half-precision logits that the loss reads.
    pub(super) wide: Option<Held>,
    /// This rank's statistics, `[3, tokens]`.
    pub(super) statistics: Option<Held>,
    /// Those of the tensor group, `[ranks, 3, tokens]`.
    pub(super) all_statistics: Option<Held>,
    /// Logarithm of the sum of exponentials over the whole vocabulary, `[tokens]`.
    pub(super) lse: Option<Held>,
}

/// A microbatch in a chunk.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) sublayers: Vec<Sublayer>,
    pub(super) attention: Vec<AttentionSlot>,
    pub(super) mlp: Vec<MlpSlot>,
    pub(super) experts: Vec<ExpertSlot>,
    pub(super) head: HeadSlot,
    /// The sublayer whose input is the residual stream to which `branch` is still to be added; none at the beginning of
    /// the chunk, where `branch` alone is the stream.
    pub(super) latest: Option<usize>,
    pub(super) branch: Option<Sum>,
    /// The gradient of the residual stream, `[rows, hidden]`.
    pub(super) residual_gradient: Option<Held>,
    /// The gradient of the embedding's output, `[tokens, hidden]`.
    pub(super) embedding_gradient: Option<Held>,
    /// The gradient of a layer's input through its second branch, where both branches read it.
    pub(super) second_gradient: Option<Held>,
    /// What the first layers keep, while it is in host memory.
    pub(super) away: Vec<Away>,
}

impl Slot {
    /// An empty slot of a chunk of so many layers.
    pub(super) fn resized(mut self, layers: usize, head: bool) -> Self {
        self.sublayers.resize_with(2 * layers + usize::from(head), Sublayer::default);
        self.attention.resize_with(layers, AttentionSlot::default);
        self.mlp.resize_with(layers, MlpSlot::default);
        self.experts.resize_with(layers, ExpertSlot::default);
        self
    }

    /// What the body of a sublayer reads, `[tokens, hidden]`: what was gathered for it, or the output of the norm of sublayer
    /// `normed`; without a norm before bodies, the residual stream.
    pub(super) fn body_input(&self, sublayer: usize, normed: usize, sequence_parallel: bool) -> View<'_> {
        if sequence_parallel {
            return self.sublayers[sublayer].gathered.as_ref().expect("the body's input was gathered").view();
        }
        let Sublayer { input, output, .. } = &self.sublayers[normed];
        output.as_ref().or(input.as_ref()).expect("the body's input was computed").view()
    }

    /// The gradient of a body's output, `[tokens, hidden]`.
    pub(super) fn output_gradient(&self, sublayer: usize) -> View<'_> {
        let gradient = self.sublayers[sublayer].output_gradient.as_ref();
        gradient.or(self.residual_gradient.as_ref()).expect("the gradient of the body's output").view()
    }

    /// Gives every buffer back.
    pub(super) fn release(&mut self, pool: &mut Pool, host: &mut Pool) {
        self.release_away(host);
        for sublayer in &mut self.sublayers {
            sublayer.release(pool);
        }
        self.attention.iter_mut().for_each(|attention| attention.release(pool));
        self.experts.iter_mut().for_each(|experts| experts.release(pool));
        for MlpSlot { gate, up, activated, d_gate, d_up } in &mut self.mlp {
            for held in [gate, up, activated, d_gate, d_up] {
                pool.release(held);
            }
        }
        let HeadSlot { logits, wide, statistics, all_statistics, lse } = &mut self.head;
        for held in [logits, wide, statistics, all_statistics, lse] {
            pool.release(held);
        }
        pool.release(&mut self.residual_gradient);
        pool.release(&mut self.embedding_gradient);
        pool.release(&mut self.second_gradient);
        release_sum(&mut self.branch, pool);
        self.latest = None;
    }
}

/// Gives a sum's buffer back, if there is one.
pub(super) fn release_sum(sum: &mut Option<Sum>, pool: &mut Pool) {
    if let Some(sum) = sum.take() {
        pool.give(sum.data);
    }
}

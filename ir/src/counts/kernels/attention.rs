//! Attention: plain, with a window, and latent.

use super::{Half, List};
use crate::counts::{Kernel, Streaming};
use crate::model::QueryKeyNorm;
use crate::{ContextMethod, LatentAttention, Recompute};

/// What the core of attention depends on beyond the shape.
#[derive(Clone, Copy)]
struct Core {
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    value_dim: u64,
    window: Option<u32>,
}

/// Widths of latent attention on one rank.
#[derive(Clone, Copy)]
struct Latent {
    query_rank: Option<u64>,
    /// The low-rank vector of keys and values with the shared rotated key.
    down: u64,
    kv_rank: u64,
    queries: u64,
    /// Keys' plain parts and values.
    up: u64,
    values: u64,
    /// Rotated parts of queries, and the shared key's.
    rotated: u64,
}

impl List<'_, '_> {
    /// Width of this rank's queries (with their gate), keys and values together.
    fn qkv(&self) -> u64 {
        let query = self.shape.rank_query_width();
        let gate = if self.shape.model.variants.gated_attention { query } else { 0 };
        query + gate + 2 * self.shape.rank_kv_width()
    }
    fn plain_core(&self, window: Option<u32>) -> Core {
        let width = u64::from(self.shape.model.head_dim);
        Core {
            heads: self.shape.rank_heads(),
            kv_heads: self.shape.rank_kv_heads(),
            head_dim: width,
            value_dim: width,
            window,
        }
    }

    pub(super) fn attention(&mut self, window: Option<u32>) {
        let (tokens, hidden, query) = (self.shape.tokens(), self.hidden(), self.shape.rank_query_width());
        self.linear(tokens, hidden, self.qkv());
        if self.shape.model.qkv_bias {
            self.stream(Streaming::Add, self.pass_over(tokens, self.qkv(), 2), 1);
        }
        if self.shape.model.variants.query_key_norm != QueryKeyNorm::None {
            self.norm(tokens, query);
            self.norm(tokens, self.shape.rank_kv_width());
        }
        self.rotate(tokens, query + self.shape.rank_kv_width());
        self.core(self.plain_core(window), false);
        if self.shape.model.variants.gated_attention {
            // Reads the core's output and its gate, writes one.
            self.stream(Streaming::SwiGlu, self.pass_over(tokens, query, 3), 1);
        }
        self.linear(tokens, query, hidden);
        self.add_branch(false);
    }

    pub(super) fn attention_backward(&mut self, window: Option<u32>, half: Half, recompute: Recompute) {
        let (tokens, hidden, query) = (self.shape.tokens(), self.hidden(), self.shape.rank_query_width());
        let normed = self.shape.model.variants.query_key_norm != QueryKeyNorm::None;
        let core = self.plain_core(window);
        if half == Half::Input && recompute == Recompute::Selective {
            self.core(core, false);
        }
        self.linear_backward(half, tokens, query, hidden);
        if half == Half::Input {
            if self.shape.model.variants.gated_attention {
                self.stream(Streaming::SwiGluBackward, self.pass_over(tokens, query, 5), 1);
            }
            self.core(core, true);
            self.rotate(tokens, query + self.shape.rank_kv_width());
        }
        if normed {
            self.norm_backward(half, tokens, query);
            self.norm_backward(half, tokens, self.shape.rank_kv_width());
        }
        self.linear_backward(half, tokens, hidden, self.qkv());
        if half == Half::Weight {
            self.bias_gradient(self.shape.model.projection_bias, tokens, hidden);
            self.bias_gradient(self.shape.model.qkv_bias, tokens, self.qkv());
            // The sink's part of each row of the softmax.
            self.bias_gradient(self.shape.model.variants.attention_sinks, tokens, self.shape.rank_heads());
        }
    }

    /// The core, over documents and the ranks that share them: a ring computes as many parts as it has ranks, a gather the
    /// two ends of the zig-zag, an exchange of heads all tokens of its part of the heads.
    fn core(&mut self, core: Core, backward: bool) {
        let shape = self.shape;
        let (sequence_length, sequences) = shape.documents();
        let ranks = shape.layout.mesh.context.max(1);
        let (context, pieces) = match shape.layout.mesh.context_method {
            ContextMethod::Ring => (ranks, ranks),
            ContextMethod::AllGather => (ranks, ranks.min(2)),
            ContextMethod::AllToAll => (1, 1),
        };
        self.out.push(Kernel::Attention {
            sequences,
            sequence_length,
            heads: core.heads.div_ceil(shape.head_exchange()),
            kv_heads: core.kv_heads.div_ceil(shape.head_exchange()),
            head_dim: core.head_dim,
            value_dim: core.value_dim,
            window: core.window.map_or(sequence_length, u64::from).min(sequence_length),
            context: u64::from(context),
            pieces,
            kernel: shape.workload.attention,
            fused_softmax: shape.fused_softmax(),
            backward,
        });
    }

    fn latent_sizes(&self) -> (Latent, Core) {
        let sizes: LatentAttention =
            self.shape.model.variants.latent.expect("a model with latent layers has their sizes");
        let heads = self.shape.rank_heads();
        let (plain, rotary) = (u64::from(sizes.plain_head_dim), u64::from(sizes.rotary_head_dim));
        let (kv_rank, value) = (u64::from(sizes.kv_rank), u64::from(sizes.value_head_dim));
        let latent = Latent {
            query_rank: sizes.query_rank.map(u64::from),
            down: kv_rank + rotary,
            kv_rank,
            queries: heads * (plain + rotary),
            up: heads * (plain + value),
            values: heads * value,
            rotated: (heads + 1) * rotary,
        };
        (latent, Core { heads, kv_heads: heads, head_dim: plain + rotary, value_dim: value, window: None })
    }

    /// Queries and keys are put together from their plain and rotated parts: each is read and written once.
    fn assemble(&mut self, latent: Latent) {
        let tokens = self.shape.tokens();
        self.rotate(tokens, latent.rotated);
        self.stream(Streaming::Add, self.pass_over(tokens, latent.queries, 4), 2);
    }

    /// As Megatron-LM does: the matrices into low-rank vectors run on the residual stream's tokens of this rank, those out
    /// of them on all, each rank its heads.
    pub(super) fn latent(&mut self) {
        let (tokens, rows, hidden) = (self.shape.tokens(), self.shape.residual_tokens(), self.hidden());
        let (latent, core) = self.latent_sizes();
        match latent.query_rank {
            Some(rank) => {
                self.linear(rows, hidden, rank);
                self.norm(rows, rank);
                self.linear(tokens, rank, latent.queries);
            }
            None => self.linear(tokens, hidden, latent.queries),
        }
        self.linear(rows, hidden, latent.down);
        self.norm(rows, latent.kv_rank);
        self.linear(tokens, latent.kv_rank, latent.up);
        self.assemble(latent);
        self.core(core, false);
        self.linear(tokens, latent.values, hidden);
        self.add_branch(false);
    }

    pub(super) fn latent_backward(&mut self, half: Half, recompute: Recompute) {
        let (tokens, rows, hidden) = (self.shape.tokens(), self.shape.residual_tokens(), self.hidden());
        let (latent, core) = self.latent_sizes();
        if half == Half::Input && recompute == Recompute::Selective {
            self.core(core, false);
        }
        self.linear_backward(half, tokens, latent.values, hidden);
        if half == Half::Input {
            self.core(core, true);
            self.assemble(latent);
        }
        self.linear_backward(half, tokens, latent.kv_rank, latent.up);
        self.norm_backward(half, rows, latent.kv_rank);
        self.linear_backward(half, rows, hidden, latent.down);
        match latent.query_rank {
            Some(rank) => {
                self.linear_backward(half, tokens, rank, latent.queries);
                self.norm_backward(half, rows, rank);
                self.linear_backward(half, rows, hidden, rank);
            }
            None => self.linear_backward(half, tokens, hidden, latent.queries),
        }
    }
}

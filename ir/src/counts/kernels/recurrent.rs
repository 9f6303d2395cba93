//! Mixers with a state: selective state spaces and the gated delta rule. Their recurrences are streaming kernels.

use super::{Half, List};
use crate::counts::{Streaming, bytes_of};

/// Tokens of one step of the chunked delta rule, as its kernels are written (Yang et al. 2024).
const DELTA_CHUNK: u64 = 64;

#[derive(Clone, Copy)]
struct Mamba {
    inner: u64,
    state: u64,
    rank: u64,
    normalised: bool,
}

#[derive(Clone, Copy)]
struct Delta {
    /// Queries and keys and values, which the convolution passes.
    mixed: u64,
    values: u64,
    heads: u64,
    head: u64,
    /// Queries (or keys) repeated for each value head.
    repeated: u64,
    /// Numbers of the states that one token's share of a chunk writes.
    states: u64,
}

impl List<'_, '_> {
    fn mamba_sizes(&self) -> Mamba {
        let sizes = self.shape.model.variants.mamba.expect("a model with state spaces has their sizes");
        Mamba {
            inner: u64::from(sizes.inner).div_ceil(self.shape.tensor()),
            state: u64::from(sizes.state),
            rank: u64::from(sizes.step_rank),
            normalised: sizes.normalised,
        }
    }

    pub(super) fn mamba(&mut self) {
        let Mamba { inner, state, rank, normalised } = self.mamba_sizes();
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        self.linear(tokens, hidden, 2 * inner);
        self.stream(Streaming::Convolution, self.pass_over(tokens, inner, 2), 1);
        self.linear(tokens, inner, rank + 2 * state);
        if normalised {
            self.norm(tokens, rank + 2 * state);
        }
        self.linear(tokens, rank, inner);
        // Reads input, time step and gate, the two state vectors; writes the output.
        let bytes = self.pass_over(tokens, inner, 4) + self.pass_over(tokens, state, 2);
        self.stream(Streaming::Scan, bytes, 1);
        self.linear(tokens, inner, hidden);
        self.add_branch(false);
    }

    pub(super) fn mamba_backward(&mut self, half: Half) {
        let Mamba { inner, state, rank, normalised } = self.mamba_sizes();
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        self.linear_backward(half, tokens, inner, hidden);
        if half == Half::Input {
            // Reads what the forward scan read and the gradient of its output, writes a gradient of each; the state is
            // computed again.
            let bytes = self.pass_over(tokens, inner, 7) + self.pass_over(tokens, state, 4);
            self.stream(Streaming::Scan, bytes, 1);
        }
        self.linear_backward(half, tokens, rank, inner);
        if normalised {
            self.norm_backward(half, tokens, rank + 2 * state);
        }
        self.linear_backward(half, tokens, inner, rank + 2 * state);
        match half {
            Half::Input => self.stream(Streaming::Convolution, self.pass_over(tokens, inner, 3), 1),
            Half::Weight => self.stream(Streaming::Convolution, self.pass_over(tokens, inner, 2), 1),
        }
        self.linear_backward(half, tokens, hidden, 2 * inner);
    }

    fn delta_sizes(&self) -> Delta {
        let sizes = self.shape.model.variants.delta.expect("a model with a delta rule has its sizes");
        let tensor = self.shape.tensor();
        let (key, head) = (u64::from(sizes.key_head_dim), u64::from(sizes.value_head_dim));
        let keys = u64::from(sizes.key_heads).div_ceil(tensor) * key;
        let heads = u64::from(sizes.value_heads).div_ceil(tensor);
        Delta {
            mixed: 2 * keys + heads * head,
            values: heads * head,
            heads,
            head,
            repeated: heads * key,
            states: (heads * key * head).div_ceil(DELTA_CHUNK),
        }
    }
    /// The chunked rule: normalised queries and keys (4 passes over a key's width), their products (1), the two sides of
    /// the update (key and value read and written), states (keys twice, values twice, states written), outputs (keys
    /// twice, values twice, states read).
    fn delta_rule(&self, delta: Delta) -> u64 {
        let tokens = self.shape.tokens();
        self.pass_over(tokens, delta.repeated, 11)
            + self.pass_over(tokens, delta.values, 6)
            + self.pass_over(tokens, delta.states, 2)
    }

    pub(super) fn delta(&mut self) {
        let delta = self.delta_sizes();
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        self.linear(tokens, hidden, delta.mixed + delta.values);
        self.linear(tokens, hidden, 2 * delta.heads);
        self.stream(Streaming::Convolution, self.pass_over(tokens, delta.mixed, 2), 1);
        self.stream(Streaming::Scan, self.delta_rule(delta), 8);
        // The norm of each head reads the gate too.
        self.norm(tokens * delta.heads, delta.head);
        self.stream(Streaming::SwiGlu, self.pass_over(tokens, delta.values, 3), 1);
        self.linear(tokens, delta.values, hidden);
        self.add_branch(false);
    }

    pub(super) fn delta_backward(&mut self, half: Half) {
        let delta = self.delta_sizes();
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        self.linear_backward(half, tokens, delta.values, hidden);
        if half == Half::Input {
            self.stream(Streaming::SwiGluBackward, self.pass_over(tokens, delta.values, 5), 1);
        }
        self.norm_backward(half, tokens * delta.heads, delta.head);
        if half == Half::Input {
            // States are computed again, then each of the steps has two gradients.
            self.stream(Streaming::Scan, bytes_of([self.delta_rule(delta), 5]).get() / 2, 14);
        }
        let times = if half == Half::Input { 3 } else { 2 };
        self.stream(Streaming::Convolution, self.pass_over(tokens, delta.mixed, times), 1);
        self.linear_backward(half, tokens, hidden, 2 * delta.heads);
        self.linear_backward(half, tokens, hidden, delta.mixed + delta.values);
    }
}

//! Recomputation by operation: what is cheap is thrown away after a forward pass, and made again inside the backward pass
//! that reads it.
//!
//! Of a layer its input, the products of queries and values, the core's output and statistics, and one of the feed-forward
//! part's two first products are kept (the only one, where it has no gate). Made again are both norms, the product of keys,
//! rotations, the projection that the feed-forward part's input needs, the other first product and the activation. One
//! rank holds the whole layer then: no sum over tensor ranks stands between.
//!
//! The same operations on the same values give the same bits, so what a forward pass found finite needs no second look.

use ir::program::{BufferKind, Pass};
use ir::{MlpKind, ParallelBranches, Recompute};

use super::arithmetic::{geglu_forward, gelu_forward, swiglu_forward};
use super::buffers::Held;
use super::work::Work;

impl Work<'_> {
    /// Whether this pass throws away what is cheap: all of it goes with full recomputation too.
    pub(super) fn discards_cheap(&self) -> bool {
        self.pass == Pass::Forward && matches!(self.recompute, Recompute::Operations | Recompute::Full)
    }

    /// After a forward pass over a layer's attention.
    pub(super) fn release_cheap_attention(&mut self, layer: usize) {
        if self.recompute != Recompute::Operations || self.pass != Pass::Forward {
            return;
        }
        let slot = &mut self.slot.attention[layer];
        self.pool.release(&mut slot.k);
        let [queries, rest @ ..] = &mut slot.raw;
        // Queries before their norm are what their product gave.
        if queries.is_some() {
            self.pool.release(&mut slot.q);
        }
        rest.iter_mut().for_each(|held| self.pool.release(held));
    }

    /// After a forward pass over a layer's feed-forward part.
    pub(super) fn release_cheap_mlp(&mut self, layer: usize) {
        if self.recompute != Recompute::Operations || self.pass != Pass::Forward {
            return;
        }
        let slot = &mut self.slot.mlp[layer];
        self.pool.release(&mut slot.activated);
        if slot.gate.is_some() {
            self.pool.release(&mut slot.up);
        }
    }

    /// Before the backward pass of a layer's feed-forward part: its input, its products and their activation.
    pub(super) fn mlp_again(&mut self, layer: usize) {
        if self.recompute != Recompute::Operations {
            return;
        }
        let pass = std::mem::replace(&mut self.pass, Pass::Recompute);
        let (sublayer, dims) = (2 * layer + 1, self.dims);
        if dims.branches == ParallelBranches::OneNorm {
            self.norm_again(2 * layer);
        }
        let out = self.slot.attention[layer].out.take().expect("kept by forward");
        let branch = self.project_out(layer, &out);
        self.slot.attention[layer].out = Some(out);
        self.slot.latest = Some(2 * layer);
        let branch = self.after_body(2 * layer, branch);
        let _finite = self.leave_branch(branch, "output of attention").is_ok();
        let _finite = self.norm_forward(sublayer).is_ok();
        let kept = &mut self.slot.mlp[layer];
        let (gate, up) = (kept.gate.take(), kept.up.take());
        let up = up.unwrap_or_else(|| self.project_in(layer, self.parameters.places.dense(layer).up));
        let activated = self.activate(gate.as_ref(), &up);
        if self.has_norm_after() {
            let branch = self.project_down(layer, &activated);
            let whole = self.after_body(sublayer, branch);
            self.pool.give(whole);
        }
        let slot = &mut self.slot.mlp[layer];
        (slot.gate, slot.up, slot.activated) = (gate, Some(up), Some(activated));
        self.pass = pass;
    }

    /// Before the backward pass of a layer's attention: its input, its keys, and normed queries.
    pub(super) fn attention_again(&mut self, layer: usize) {
        if self.recompute != Recompute::Operations {
            return;
        }
        let pass = std::mem::replace(&mut self.pass, Pass::Recompute);
        self.norm_again(2 * layer);
        let places = self.parameters.places.attention[layer];
        let norms = places.query_key_norm.map_or([None; 2], |norms| norms.map(Some));
        let [mut q_raw, mut k_raw, mut q_statistics, mut k_statistics] =
            std::mem::take(&mut self.slot.attention[layer].raw);
        if let Some(queries) = q_raw.take() {
            let q = self.turn(self.dims.query_heads, norms[0], queries, [&mut q_raw, &mut q_statistics]);
            self.slot.attention[layer].q = Some(q);
        }
        let k = self.project_key(layer, places.k);
        let k = self.turn(self.dims.kv_heads, norms[1], k, [&mut k_raw, &mut k_statistics]);
        let slot = &mut self.slot.attention[layer];
        (slot.k, slot.raw) = (Some(k), [q_raw, k_raw, q_statistics, k_statistics]);
        self.pass = pass;
    }

    /// The output of a sublayer's norm, unless it is there.
    fn norm_again(&mut self, sublayer: usize) {
        if self.slot.sublayers[sublayer].output.is_none() {
            let _finite = self.norm_forward(sublayer).is_ok();
        }
    }

    /// What the feed-forward part's first products become.
    pub(super) fn activate(&mut self, gate: Option<&Held>, up: &Held) -> Held {
        let dims = self.dims;
        let mut activated = self.pool.take(BufferKind::Activations, up.len());
        match (dims.mlp, gate) {
            (MlpKind::SwiGlu, Some(gate)) => swiglu_forward(gate.view(), up.view(), &mut activated),
            (MlpKind::GeGlu, Some(gate)) => geglu_forward(dims.gelu, gate.view(), up.view(), &mut activated),
            (MlpKind::Gelu, None) => gelu_forward(dims.gelu, up.view(), &mut activated),
            (kind, gate) => panic!("{kind:?} with a gate: {}", gate.is_some()),
        }
        dims.formats.round(&mut activated);
        activated
    }
}

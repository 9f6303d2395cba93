//! Experts, backward.

use ir::program::{BufferKind, UnitTensor};

use super::router::dot;
use crate::kernels::elementwise::{accumulate, scale};
use crate::state::slot::{Sum, release_sum};
use crate::state::work::Work;

impl Work<'_> {
    /// Leaves the gradient of the normed input, or what of it goes back to other ranks.
    pub(in crate::state) fn experts_backward_input(&mut self, layer: usize) {
        // A recomputed layer ends with outputs that nobody reads.
        release_sum(&mut self.slot.branch, self.pool);
        self.pool.release(&mut self.slot.experts[layer].leaving);
        self.pool.release(&mut self.slot.experts[layer].routed);
        let exchanges = self.dims.experts().exchanges();
        if !exchanges {
            let mut bundle = std::mem::take(self.packed);
            self.pack_gradients(layer, &mut bundle);
            self.slot.experts[layer].arrived = Some(self.pool.copy_varying(BufferKind::Workspace, &bundle));
            *self.packed = bundle;
        }
        self.sort_gradients(layer);
        let (mut dx, d_weights) = self.grouped_backward_input(layer);
        self.unsort(layer, Some(&d_weights), &dx);
        self.pool.relabel(&mut dx, BufferKind::Workspace);
        self.pool.give(dx);
        self.pool.give(d_weights);
        self.shared_backward_input(layer);
        if !exchanges {
            let came = self.slot.experts[layer].leaving.take().expect("gradients of what experts read");
            self.sum_gradients(layer, &[&came]);
            self.pool.give(came);
            self.end_experts_backward(layer, None);
        }
    }

    /// Gradients of the copies and of their weights, in the order of experts. The gradients of outputs are then those before
    /// the weights, for the weight pass.
    fn grouped_backward_input(&mut self, layer: usize) -> (crate::state::buffers::Held, crate::state::buffers::Held) {
        let (hidden, kind, experts) = (self.dims.hidden, self.gradient_kind(), self.dims.experts());
        let formats = self.dims.formats;
        let received = self.slot.experts[layer].received();
        let (wide, gate_wide) = self.feed(received, experts.ffn).widths();
        let each = self.each_expert(layer);
        let parameters = self.experts.as_deref().expect("the chunk's experts");
        let mut d_activated = self.pool.take_varying(BufferKind::Workspace, wide);
        let (mut d_gate, mut d_up) = (self.pool.take_varying(kind, gate_wide), self.pool.take_varying(kind, wide));
        let mut dx = self.pool.take_varying(BufferKind::Workspace, received * hidden);
        let mut d_weights = self.pool.take_varying(BufferKind::Workspace, received);
        let slot = &mut self.slot.experts[layer];
        let take = [&mut slot.gate, &mut slot.up, &mut slot.input_weights];
        let [gate, up, weights] = take.map(|held| held.take().expect("kept by forward"));
        let activated = slot.activated.as_deref().expect("kept by forward");
        let d_output = slot.d_output.as_deref_mut().expect("gradients of outputs");
        for (expert, rows, feed) in each {
            let places = parameters.places.experts[layer][expert];
            let inner = rows.start * experts.ffn..rows.end * experts.ffn;
            let outer = rows.start * hidden..rows.end * hidden;
            feed.backward_activated(
                places,
                &parameters.weights,
                &d_output[outer.clone()],
                &mut d_activated[inner.clone()],
            );
            let bias =
                places.down.bias.filter(|_| experts.tensor_index == 0).map(|bias| bias.of(&parameters.weights).host());
            for row in rows {
                let (inside, outside) = (row * experts.ffn..(row + 1) * experts.ffn, row * hidden..(row + 1) * hidden);
                let d_output = &mut d_output[outside];
                d_weights[row] = dot(&d_activated[inside.clone()], &activated[inside.clone()])
                    + bias.map_or(0.0, |bias| dot(d_output, bias));
                scale(&mut d_activated[inside.clone()], weights[row]);
                scale(d_output, weights[row]);
                formats.round(&mut d_activated[inside]);
                formats.round(d_output);
            }
            let gated = if gate_wide > 0 { inner.clone() } else { 0..0 };
            let out = (&mut d_gate[gated.clone()], &mut d_up[inner.clone()], &mut dx[outer]);
            let kept = (&gate[gated], &up[inner.clone()]);
            feed.backward_input(places, &parameters.weights, kept, &d_activated[inner], out);
        }
        (slot.d_gate, slot.d_up) = (Some(d_gate), Some(d_up));
        for held in [gate, up, weights, d_activated] {
            self.pool.give(held);
        }
        (dx, d_weights)
    }

    /// The shared part's gradient of the normed input, partial over the tensor group.
    fn shared_backward_input(&mut self, layer: usize) {
        let Some(places) = self.parameters.places.mlp[layer] else { return };
        let (dims, feed, kind) = (self.dims, self.shared_feed(), self.gradient_kind());
        if !dims.sequence_parallel {
            let mut own = self.gate_gradient(layer);
            if let Some(own) = &mut own {
                self.pool.relabel(own, kind);
                self.slot.sublayers[2 * layer + 1].output_gradient = Some(self.pool.copy(kind, own));
            }
            self.pool.release(&mut own);
            if self.slot.sublayers[2 * layer + 1].output_gradient.is_none() {
                self.keep_output_gradient(2 * layer + 1);
            }
        }
        let (wide, gate_wide) = feed.widths();
        let weights = &self.parameters.weights;
        let mut d_activated = self.pool.take(BufferKind::Workspace, wide);
        let dy = self.slot.output_gradient(2 * layer + 1).host();
        feed.backward_activated(places, weights, dy, &mut d_activated);
        let (mut d_gate, mut d_up) = (self.pool.take(kind, gate_wide), self.pool.take(kind, wide));
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        let slot = &mut self.slot.mlp[layer];
        let [gate, up] = [&mut slot.gate, &mut slot.up].map(|held| held.take().expect("kept by forward"));
        feed.backward_input(places, weights, (&gate, &up), &d_activated, (&mut d_gate, &mut d_up, &mut dx));
        (slot.d_gate, slot.d_up) = (Some(d_gate), Some(d_up));
        for held in [gate, up, d_activated] {
            self.pool.give(held);
        }
        self.slot.sublayers[2 * layer + 1].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    /// Gradients of weights and inputs are back with their tokens.
    pub(super) fn sum_gradients(&mut self, layer: usize, came: &[&[f32]]) {
        let choices = self.slot.experts[layer].chosen.len();
        let mut d_weights = self.pool.take(self.gradient_kind(), choices);
        self.sum_copies(layer, came, Some(&mut d_weights));
        self.slot.experts[layer].d_weights = Some(d_weights);
    }

    /// After the compute (`None`) or a delivery: once it was the last, the gradient of the normed input is whole but for the
    /// router's part.
    pub(super) fn end_experts_backward(&mut self, layer: usize, after: Option<UnitTensor>) {
        if self.dims.experts().last_backward(self.dims.tensor) != after {
            return;
        }
        let mut routed = self.slot.experts[layer].routed.take().expect("gradients of copies came back");
        self.pool.relabel(&mut routed, BufferKind::Workspace);
        let sublayer = &mut self.slot.sublayers[2 * layer + 1];
        if let Some(Sum { data: shared, whole }) = sublayer.input_gradient.take() {
            assert!(whole, "the shared part's gradient was read before it was summed over the tensor group");
            accumulate(&mut routed, &shared);
            self.pool.give(shared);
        }
        self.dims.formats.round(&mut routed);
        sublayer.input_gradient = Some(Sum { data: routed, whole: true });
    }

    pub(in crate::state) fn experts_backward_weight(&mut self, layer: usize) {
        let (hidden, experts) = (self.dims.hidden, self.dims.experts());
        let each = self.each_expert(layer);
        let parameters = self.experts.as_deref_mut().expect("the chunk's experts");
        let slot = &mut self.slot.experts[layer];
        let take = [&mut slot.input, &mut slot.activated, &mut slot.d_gate, &mut slot.d_up, &mut slot.d_output];
        let [input, activated, d_gate, d_up, d_output] = take.map(|held| held.take().expect("left by the input pass"));
        for (expert, rows, feed) in each {
            let places = parameters.places.experts[layer][expert];
            let inner = rows.start * experts.ffn..rows.end * experts.ffn;
            let outer = rows.start * hidden..rows.end * hidden;
            let gated = if d_gate.is_empty() { 0..0 } else { inner.clone() };
            let out = (&d_gate[gated], &d_up[inner.clone()], &d_output[outer.clone()]);
            feed.backward_weight(places, &input[outer], &activated[inner], out, &mut parameters.gradients);
        }
        for held in [input, activated, d_gate, d_up, d_output] {
            self.pool.give(held);
        }
        let Some(places) = self.parameters.places.mlp[layer] else { return };
        let feed = self.shared_feed();
        let slot = &mut self.slot.mlp[layer];
        let take = [&mut slot.activated, &mut slot.d_gate, &mut slot.d_up];
        let [activated, d_gate, d_up] = take.map(|held| held.take().expect("left by the input pass"));
        let dy = self.slot.output_gradient(2 * layer + 1).host();
        let x = self.slot.body_input(2 * layer + 1, 2 * layer + 1, self.dims.sequence_parallel).host();
        feed.backward_weight(places, x, &activated, (&d_gate, &d_up, dy), &mut self.parameters.gradients);
        for held in [activated, d_gate, d_up] {
            self.pool.give(held);
        }
        // The router reads the norm's output once more.
        let sublayer = &mut self.slot.sublayers[2 * layer + 1];
        self.pool.release(&mut sublayer.gathered);
        self.pool.release(&mut sublayer.output_gradient);
    }
}

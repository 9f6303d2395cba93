//! The feed-forward part.

use ir::MlpKind;
use ir::program::BufferKind;

use super::arithmetic::{geglu_backward, gelu_backward, swiglu_backward};
use super::buffers::Held;
use super::places::LinearPlaces;
use super::slot::{Sum, release_sum};
use super::work::{Suspect, Work};
use crate::kernels::Store;
use crate::kernels::linear::Linear;

impl Work<'_> {
    /// The linear layers into and out of this rank's columns.
    fn mlp_shapes(&self) -> (Linear, Linear) {
        let dims = self.dims;
        let (tokens, hidden, ffn) = (dims.tokens, dims.hidden, dims.ffn);
        (Linear { tokens, inputs: hidden, outputs: ffn }, Linear { tokens, inputs: ffn, outputs: hidden })
    }

    /// One of the first products, of the normed input.
    pub(super) fn project_in(&mut self, layer: usize, linear: LinearPlaces) -> Held {
        let (dims, (inward, _)) = (self.dims, self.mlp_shapes());
        let sublayer = 2 * layer + 1;
        let x = self.slot.body_input(sublayer, self.reads(sublayer), dims.sequence_parallel);
        let mut y = self.pool.take(BufferKind::Activations, dims.tokens * dims.ffn);
        linear.forward(inward, &self.parameters.weights, x, &mut y);
        dims.formats.round(&mut y);
        y
    }

    /// The last product.
    pub(super) fn project_down(&mut self, layer: usize, activated: &Held) -> Held {
        let (dims, (_, outward)) = (self.dims, self.mlp_shapes());
        let mut branch = self.pool.take(BufferKind::Activations, dims.activation());
        let down = self.parameters.places.dense(layer).down.biased_if(dims.tensor_index == 0);
        down.forward(outward, &self.parameters.weights, activated, &mut branch);
        branch
    }

    pub(super) fn mlp_forward(&mut self, layer: usize) -> Result<(), Suspect> {
        let (sublayer, discards) = (2 * layer + 1, self.discards());
        let places = self.parameters.places.dense(layer);
        let up = self.project_in(layer, places.up);
        let gate = places.gate.map(|gate| self.project_in(layer, gate));
        let activated = self.activate(gate.as_ref(), &up);
        let branch = self.project_down(layer, &activated);

        let slot = &mut self.slot.mlp[layer];
        (slot.gate, slot.up, slot.activated) = (gate, Some(up), Some(activated));
        if discards {
            for held in [&mut slot.gate, &mut slot.up, &mut slot.activated] {
                self.pool.release(held);
            }
        }
        self.release_cheap_mlp(layer);
        self.release_after_forward(sublayer);
        let branch = self.after_body(sublayer, branch);
        self.leave_branch(branch, "output of the feed-forward part")
    }

    /// Leaves the gradient of the normed input, partial over the tensor group.
    pub(super) fn mlp_backward_input(&mut self, layer: usize) {
        let (dims, (inward, outward), kind) = (self.dims, self.mlp_shapes(), self.gradient_kind());
        let formats = dims.formats;
        // A recomputed layer ends with a branch that the next layer already had.
        release_sum(&mut self.slot.branch, self.pool);
        self.mlp_again(layer);
        self.keep_output_gradient(2 * layer + 1);
        let places = self.parameters.places.dense(layer);
        let weights = &self.parameters.weights;
        let d_branch = self.slot.output_gradient(2 * layer + 1);
        let width = dims.tokens * dims.ffn;
        let mut d_activated = self.pool.take(BufferKind::Workspace, width);
        places.down.backward_input(outward, weights, d_branch, Store::Overwrite, &mut d_activated);
        formats.round(&mut d_activated);

        let slot = &mut self.slot.mlp[layer];
        let up = slot.up.take().expect("kept by forward");
        let mut d_up = self.pool.take(kind, width);
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        match dims.mlp {
            MlpKind::SwiGlu | MlpKind::GeGlu => {
                let gate = slot.gate.take().expect("kept by forward");
                let mut d_gate = self.pool.take(kind, width);
                let inputs = (gate.view(), up.view());
                let outputs = (d_gate.view_mut(), d_up.view_mut());
                if dims.mlp == MlpKind::SwiGlu {
                    swiglu_backward(inputs, d_activated.view(), outputs);
                } else {
                    geglu_backward(dims.gelu, inputs, d_activated.view(), outputs);
                }
                formats.round(&mut d_gate);
                formats.round(&mut d_up);
                self.pool.give(gate);
                let place = places.gate.expect("a gated unit has a gate");
                place.backward_input(inward, weights, &d_gate, Store::Overwrite, &mut dx);
                places.up.backward_input(inward, weights, &d_up, Store::Accumulate, &mut dx);
                slot.d_gate = Some(d_gate);
            }
            MlpKind::Gelu => {
                gelu_backward(dims.gelu, up.view(), d_activated.view(), &mut d_up);
                formats.round(&mut d_up);
                places.up.backward_input(inward, weights, &d_up, Store::Overwrite, &mut dx);
            }
        }
        formats.round(&mut dx);
        slot.d_up = Some(d_up);
        self.pool.give(up);
        self.pool.give(d_activated);
        self.slot.sublayers[2 * layer + 1].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    pub(super) fn mlp_backward_weight(&mut self, layer: usize) {
        let (dims, (inward, outward), reads) = (self.dims, self.mlp_shapes(), self.reads(2 * layer + 1));
        let places = self.parameters.places.dense(layer);
        let gradients = &mut self.parameters.gradients;
        let slot = &mut self.slot.mlp[layer];
        let [d_up, activated] =
            [&mut slot.d_up, &mut slot.activated].map(|held| held.take().expect("left by the input pass"));
        let d_gate = slot.d_gate.take();
        let d_branch = self.slot.output_gradient(2 * layer + 1);
        places.down.backward_weight(outward, &activated, d_branch, gradients);
        let sublayer = 2 * layer + 1;
        let x = self.slot.body_input(sublayer, reads, dims.sequence_parallel);
        if let (Some(place), Some(d_gate)) = (places.gate, &d_gate) {
            place.backward_weight(inward, x, d_gate, gradients);
        }
        places.up.backward_weight(inward, x, &d_up, gradients);
        for held in [d_up, activated].into_iter().chain(d_gate) {
            self.pool.give(held);
        }
        self.after_body_weight(sublayer);
        let sublayer = &mut self.slot.sublayers[sublayer];
        sublayer.release_body_input(self.pool);
        self.pool.release(&mut sublayer.output_gradient);
    }
}

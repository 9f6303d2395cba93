//! The feed-forward part.

use ir::MlpKind;
use ir::program::BufferKind;

use super::slot::{Sum, release_sum};
use super::work::{Suspect, Work};
use crate::kernels::Store;
use crate::kernels::activation::{Gelu, gelu_backward, gelu_forward, swiglu_backward, swiglu_forward};
use crate::kernels::linear::Linear;

impl Work<'_> {
    /// The linear layers into and out of this rank's columns.
    fn mlp_shapes(&self) -> (Linear, Linear) {
        let dims = self.dims;
        let (tokens, hidden, ffn) = (dims.tokens, dims.hidden, dims.ffn);
        (Linear { tokens, inputs: hidden, outputs: ffn }, Linear { tokens, inputs: ffn, outputs: hidden })
    }

    pub(super) fn mlp_forward(&mut self, layer: usize) -> Result<(), Suspect> {
        let (dims, (inward, outward), discards) = (self.dims, self.mlp_shapes(), self.discards());
        let places = self.parameters.places.mlp[layer].expect("a dense part");
        let weights = &self.parameters.weights;
        let sublayer = &mut self.slot.sublayers[2 * layer + 1];
        let x = sublayer.body_input(dims.sequence_parallel);
        let width = dims.tokens * dims.ffn;
        let mut up = self.pool.take(BufferKind::Activations, width);
        places.up.forward(inward, weights, x, &mut up);
        let mut activated = self.pool.take(BufferKind::Activations, width);
        let gate = match dims.mlp {
            MlpKind::SwiGlu => {
                let mut gate = self.pool.take(BufferKind::Activations, width);
                places.gate.expect("SwiGLU has a gate").forward(inward, weights, x, &mut gate);
                swiglu_forward(&gate, &up, &mut activated);
                Some(gate)
            }
            MlpKind::GeGlu => unreachable!("`unsupported` refuses GeGLU, and layer {layer} has it"),
            MlpKind::Gelu => {
                gelu_forward(Gelu::Tanh, &up, &mut activated);
                None
            }
        };
        let mut branch = self.pool.take(BufferKind::Activations, dims.activation());
        let down = places.down.biased_if(dims.tensor_index == 0);
        down.forward(outward, weights, &activated, &mut branch);

        let slot = &mut self.slot.mlp[layer];
        (slot.gate, slot.up, slot.activated) = (gate, Some(up), Some(activated));
        self.pool.release(&mut sublayer.gathered);
        if discards {
            self.pool.release(&mut sublayer.output);
            for held in [&mut slot.gate, &mut slot.up, &mut slot.activated] {
                self.pool.release(held);
            }
        }
        self.leave_branch(branch, "output of the feed-forward part")
    }

    /// Leaves the gradient of the normed input, partial over the tensor group.
    pub(super) fn mlp_backward_input(&mut self, layer: usize) {
        let (dims, (inward, outward), kind) = (self.dims, self.mlp_shapes(), self.gradient_kind());
        // A recomputed layer ends with a branch that the next layer already had.
        release_sum(&mut self.slot.branch, self.pool);
        self.keep_output_gradient(2 * layer + 1);
        let places = self.parameters.places.mlp[layer].expect("a dense part");
        let weights = &self.parameters.weights;
        let d_branch = self.slot.output_gradient(2 * layer + 1);
        let width = dims.tokens * dims.ffn;
        let mut d_activated = self.pool.take(BufferKind::Workspace, width);
        places.down.backward_input(outward, weights, d_branch, Store::Overwrite, &mut d_activated);

        let slot = &mut self.slot.mlp[layer];
        let up = slot.up.take().expect("kept by forward");
        let mut d_up = self.pool.take(kind, width);
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        match dims.mlp {
            MlpKind::SwiGlu => {
                let gate = slot.gate.take().expect("kept by forward");
                let mut d_gate = self.pool.take(kind, width);
                swiglu_backward(&gate, &up, &d_activated, &mut d_gate, &mut d_up);
                self.pool.give(gate);
                let place = places.gate.expect("SwiGLU has a gate");
                place.backward_input(inward, weights, &d_gate, Store::Overwrite, &mut dx);
                places.up.backward_input(inward, weights, &d_up, Store::Accumulate, &mut dx);
                slot.d_gate = Some(d_gate);
            }
            MlpKind::GeGlu => unreachable!("`unsupported` refuses GeGLU, and layer {layer} has it"),
            MlpKind::Gelu => {
                gelu_backward(Gelu::Tanh, &up, &d_activated, &mut d_up);
                places.up.backward_input(inward, weights, &d_up, Store::Overwrite, &mut dx);
            }
        }
        slot.d_up = Some(d_up);
        self.pool.give(up);
        self.pool.give(d_activated);
        self.slot.sublayers[2 * layer + 1].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    pub(super) fn mlp_backward_weight(&mut self, layer: usize) {
        let (dims, (inward, outward)) = (self.dims, self.mlp_shapes());
        let places = self.parameters.places.mlp[layer].expect("a dense part");
        let gradients = &mut self.parameters.gradients;
        let slot = &mut self.slot.mlp[layer];
        let [d_up, activated] =
            [&mut slot.d_up, &mut slot.activated].map(|held| held.take().expect("left by the input pass"));
        let d_gate = slot.d_gate.take();
        let d_branch = self.slot.output_gradient(2 * layer + 1);
        places.down.backward_weight(outward, &activated, d_branch, gradients);
        let x = self.slot.sublayers[2 * layer + 1].body_input(dims.sequence_parallel);
        if let (Some(place), Some(d_gate)) = (places.gate, &d_gate) {
            place.backward_weight(inward, x, d_gate, gradients);
        }
        places.up.backward_weight(inward, x, &d_up, gradients);
        for held in [d_up, activated].into_iter().chain(d_gate) {
            self.pool.give(held);
        }
        let sublayer = &mut self.slot.sublayers[2 * layer + 1];
        sublayer.release_body_input(self.pool);
        self.pool.release(&mut sublayer.output_gradient);
    }
}

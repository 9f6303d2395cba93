//! A feed-forward part over some rows: an expert's, or the shared one's.

use ir::MlpKind;

use crate::kernels::Store;
use crate::kernels::activation::{Gelu, gelu_backward, gelu_forward, swiglu_backward, swiglu_forward};
use crate::kernels::linear::Linear;
use crate::state::places::MlpPlaces;

/// Its sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Feed {
    pub(super) mlp: MlpKind,
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
}

impl Feed {
    fn inward(self) -> Linear {
        Linear { tokens: self.rows, inputs: self.hidden, outputs: self.ffn }
    }
    fn outward(self) -> Linear {
        Linear { tokens: self.rows, inputs: self.ffn, outputs: self.hidden }
    }

    /// `y = down(act(x))`; `gate` is empty where there is none.
    pub(super) fn forward(
        self,
        places: MlpPlaces,
        weights: &[f32],
        x: &[f32],
        (gate, up, activated): (&mut [f32], &mut [f32], &mut [f32]),
        y: &mut [f32],
    ) {
        places.up.forward(self.inward(), weights, x, up);
        match self.mlp {
            MlpKind::SwiGlu => {
                places.gate.expect("SwiGLU has a gate").forward(self.inward(), weights, x, gate);
                swiglu_forward(gate, up, activated);
            }
            MlpKind::GeGlu => unreachable!("`unsupported` refuses GeGLU"),
            MlpKind::Gelu => gelu_forward(Gelu::Tanh, up, activated),
        }
        places.down.forward(self.outward(), weights, activated, y);
    }

    /// The gradient of what the last product reads.
    pub(super) fn backward_activated(self, places: MlpPlaces, weights: &[f32], dy: &[f32], d_activated: &mut [f32]) {
        places.down.backward_input(self.outward(), weights, dy, Store::Overwrite, d_activated);
    }

    /// Gradients of gate, up and input from that of the last product's input.
    pub(super) fn backward_input(
        self,
        places: MlpPlaces,
        weights: &[f32],
        (gate, up): (&[f32], &[f32]),
        d_activated: &[f32],
        (d_gate, d_up, dx): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        match self.mlp {
            MlpKind::SwiGlu => {
                swiglu_backward(gate, up, d_activated, d_gate, d_up);
                let place = places.gate.expect("SwiGLU has a gate");
                place.backward_input(self.inward(), weights, d_gate, Store::Overwrite, dx);
                places.up.backward_input(self.inward(), weights, d_up, Store::Accumulate, dx);
            }
            MlpKind::GeGlu => unreachable!("`unsupported` refuses GeGLU"),
            MlpKind::Gelu => {
                gelu_backward(Gelu::Tanh, up, d_activated, d_up);
                places.up.backward_input(self.inward(), weights, d_up, Store::Overwrite, dx);
            }
        }
    }

    /// Adds the weight gradients.
    pub(super) fn backward_weight(
        self,
        places: MlpPlaces,
        x: &[f32],
        activated: &[f32],
        (d_gate, d_up, dy): (&[f32], &[f32], &[f32]),
        gradients: &mut [f32],
    ) {
        places.down.backward_weight(self.outward(), activated, dy, gradients);
        if let Some(place) = places.gate {
            place.backward_weight(self.inward(), x, d_gate, gradients);
        }
        places.up.backward_weight(self.inward(), x, d_up, gradients);
    }

    /// Elements of `[rows, ffn]`, and of the gate (none without).
    pub(super) fn widths(self) -> (usize, usize) {
        let wide = self.rows * self.ffn;
        (wide, if self.mlp.inputs() > 1 { wide } else { 0 })
    }
}

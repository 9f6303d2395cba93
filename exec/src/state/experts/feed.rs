//! A feed-forward part over some rows: an expert's, or the shared one's.

use ir::MlpKind;

use crate::kernels::Store;
use crate::kernels::activation::{
    Gelu, geglu_backward, geglu_forward, gelu_backward, gelu_forward, swiglu_backward, swiglu_forward,
};
use crate::kernels::linear::Linear;
use crate::state::formats::Formats;
use crate::state::places::MlpPlaces;
use crate::state::sharding::Flat;
use crate::state::work::Work;

/// Its sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Feed {
    pub(super) mlp: MlpKind,
    pub(super) gelu: Gelu,
    pub(super) formats: Formats,
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
}

impl Work<'_> {
    /// A part of so many columns over so many rows.
    pub(super) fn feed(&self, rows: usize, ffn: usize) -> Feed {
        let dims = self.dims;
        let mlp = dims.experts().mlp;
        Feed { mlp, gelu: dims.gelu, formats: dims.formats, rows, hidden: dims.hidden, ffn }
    }
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
        weights: &Flat,
        x: &[f32],
        (gate, up, activated): (&mut [f32], &mut [f32], &mut [f32]),
        y: &mut [f32],
    ) {
        places.up.forward(self.inward(), weights, x, &mut *up);
        self.formats.round(&mut *up);
        if let Some(place) = places.gate {
            place.forward(self.inward(), weights, x, &mut *gate);
            self.formats.round(&mut *gate);
        }
        match self.mlp {
            MlpKind::SwiGlu => swiglu_forward(gate, up, activated),
            MlpKind::GeGlu => geglu_forward(self.gelu, gate, up, activated),
            MlpKind::Gelu => gelu_forward(self.gelu, up, activated),
        }
        self.formats.round(&mut *activated);
        places.down.forward(self.outward(), weights, activated, y);
    }

    /// The gradient of what the last product reads.
    pub(super) fn backward_activated(self, places: MlpPlaces, weights: &Flat, dy: &[f32], d_activated: &mut [f32]) {
        places.down.backward_input(self.outward(), weights, dy, Store::Overwrite, &mut *d_activated);
        self.formats.round(d_activated);
    }

    /// Gradients of gate, up and input from that of the last product's input.
    pub(super) fn backward_input(
        self,
        places: MlpPlaces,
        weights: &Flat,
        (gate, up): (&[f32], &[f32]),
        d_activated: &[f32],
        (d_gate, d_up, dx): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        match self.mlp {
            MlpKind::SwiGlu => swiglu_backward(gate, up, d_activated, d_gate, d_up),
            MlpKind::GeGlu => geglu_backward(self.gelu, gate, up, d_activated, d_gate, d_up),
            MlpKind::Gelu => gelu_backward(self.gelu, up, d_activated, d_up),
        }
        self.formats.round(&mut *d_gate);
        self.formats.round(&mut *d_up);
        places.up.backward_input(self.inward(), weights, &*d_up, Store::Overwrite, &mut *dx);
        if let Some(place) = places.gate {
            place.backward_input(self.inward(), weights, &*d_gate, Store::Accumulate, &mut *dx);
        }
        self.formats.round(dx);
    }

    /// Adds the weight gradients.
    pub(super) fn backward_weight(
        self,
        places: MlpPlaces,
        x: &[f32],
        activated: &[f32],
        (d_gate, d_up, dy): (&[f32], &[f32], &[f32]),
        gradients: &mut Flat,
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

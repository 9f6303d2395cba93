//! The norm before a body, and the residual stream that it reads.

use ir::NormKind;
use ir::program::BufferKind;

use super::slot::Sum;
use super::work::{Suspect, Work, take_residual};
use crate::kernels::Store;
use crate::kernels::norm::{
    layer_norm_backward_input, layer_norm_backward_weight, layer_norm_forward, rms_norm_backward_input,
    rms_norm_backward_weight, rms_norm_forward,
};

impl Work<'_> {
    pub(super) fn norm_forward(&mut self, index: usize) -> Result<(), Suspect> {
        let (dims, discards) = (self.dims, self.discards());
        if self.slot.sublayers[index].input.is_none() {
            let mut input = take_residual(self.slot, self.pool, discards);
            self.pool.relabel(&mut input, BufferKind::Activations);
            self.slot.sublayers[index].input = Some(input);
        }
        self.slot.latest = Some(index);
        let places = self.parameters.places.norms[index];
        let weights = &self.parameters.weights;
        let sublayer = &mut self.slot.sublayers[index];
        let x = sublayer.input.as_deref().expect("set above");
        let mut y = self.pool.take(BufferKind::Activations, x.len());
        let weight = places.weight.of(weights);
        let mut statistics = match dims.norm {
            NormKind::RmsNorm => {
                let mut rstd = self.pool.take(BufferKind::Activations, dims.rows);
                rms_norm_forward(x, weight, dims.epsilon, &mut y, &mut rstd);
                Some(rstd)
            }
            NormKind::LayerNorm => {
                let bias = places.bias.expect("LayerNorm has a bias").of(weights);
                let mut statistics = self.pool.take(BufferKind::Activations, 2 * dims.rows);
                let (mean, rstd) = statistics.split_at_mut(dims.rows);
                layer_norm_forward(x, weight, bias, dims.epsilon, &mut y, mean, rstd);
                Some(statistics)
            }
        };
        // The final norm belongs to no layer, so it is not computed again.
        if discards && index < 2 * self.slot.attention.len() {
            self.pool.release(&mut statistics);
        }
        let finite = super::all_finite(&y);
        sublayer.statistics = statistics;
        sublayer.output = Some(y);
        if finite { Ok(()) } else { Err(Suspect("output of the norm")) }
    }

    /// Adds the norm's input gradient to the residual gradient, or begins it.
    pub(super) fn norm_backward_input(&mut self, index: usize) {
        let (dims, defers) = (self.dims, self.defers());
        let places = self.parameters.places.norms[index];
        let weight = places.weight.of(&self.parameters.weights);
        let sublayer = &mut self.slot.sublayers[index];
        let Sum { data: dy, whole } = sublayer.input_gradient.as_mut().expect("the body's input gradient");
        assert!(*whole, "an input gradient was read before it was summed over the tensor group");
        let x = sublayer.input.as_deref().expect("the norm's input was kept");
        let statistics = sublayer.statistics.as_deref().expect("the norm's statistics were kept");
        let (store, dx) = match &mut self.slot.residual_gradient {
            Some(dx) => (Store::Accumulate, dx),
            none => (Store::Overwrite, none.insert(self.pool.take(BufferKind::Workspace, x.len()))),
        };
        match dims.norm {
            NormKind::RmsNorm => rms_norm_backward_input(x, weight, statistics, dy, store, dx),
            NormKind::LayerNorm => {
                let (mean, rstd) = statistics.split_at(dims.rows);
                layer_norm_backward_input(x, weight, mean, rstd, dy, store, dx);
            }
        }
        if defers {
            self.pool.relabel(dy, BufferKind::Activations);
        }
    }

    pub(super) fn norm_backward_weight(&mut self, index: usize) {
        let places = self.parameters.places.norms[index];
        let gradients = &mut self.parameters.gradients;
        let sublayer = &mut self.slot.sublayers[index];
        let dy = sublayer.input_gradient.take().expect("the body's input gradient").data;
        let x = sublayer.input.as_deref().expect("the norm's input was kept");
        let statistics = sublayer.statistics.as_deref().expect("the norm's statistics were kept");
        match self.dims.norm {
            NormKind::RmsNorm => {
                rms_norm_backward_weight(x, statistics, &dy, places.weight.of_mut(gradients));
            }
            NormKind::LayerNorm => {
                let (mean, rstd) = statistics.split_at(self.dims.rows);
                // The bias follows its weight in the flat vector.
                let bias = places.bias.expect("LayerNorm has a bias");
                let (weight, bias) = places.weight.then(bias).of_mut(gradients).split_at_mut(places.weight.len());
                layer_norm_backward_weight(x, mean, rstd, &dy, weight, bias);
            }
        }
        self.pool.give(dy);
        self.pool.release(&mut sublayer.input);
        self.pool.release(&mut sublayer.statistics);
        self.pool.release(&mut sublayer.output);
    }
}

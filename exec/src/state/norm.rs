//! Norms: before a body, after it, and the residual stream that they read.

use ir::program::BufferKind;
use ir::{BranchNorms, NormKind, ParallelBranches};

use super::arithmetic::{accumulate, all_finite, norm_backward_input, norm_backward_weight, norm_forward};
use super::buffers::{Held, Pool};
use super::dimensions::Dimensions;
use super::places::NormPlaces;
use super::sharding::Flat;
use super::slot::Sum;
use super::values::View;
use super::work::{Suspect, Work, take_residual};
use crate::kernels::Store;

impl Work<'_> {
    /// The sublayer whose input a sublayer's norm reads: of branches side by side, the layer's first.
    fn source(&self, index: usize) -> usize {
        if self.dims.side_by_side() && index < 2 * self.slot.attention.len() { index & !1 } else { index }
    }

    /// Whether a sublayer has a norm before its body.
    fn has_norm(&self, index: usize) -> bool {
        let in_layers = index < 2 * self.slot.attention.len();
        let after = self.dims.branch_norms == BranchNorms::After;
        let shared = self.dims.branches == ParallelBranches::OneNorm && index % 2 == 1;
        !in_layers || !(after || shared)
    }

    pub(super) fn norm_forward(&mut self, index: usize) -> Result<(), Suspect> {
        let (dims, discards) = (self.dims, self.discards_cheap());
        if self.slot.sublayers[index].input.is_none() {
            let discarding = if self.pass == ir::program::Pass::Forward { self.discarding } else { 0 };
            let mut input = take_residual(self.slot, self.pool, dims, discarding);
            self.pool.relabel(&mut input, BufferKind::Activations);
            self.slot.sublayers[index].input = Some(input);
        }
        self.slot.latest = Some(index);
        if !self.has_norm(index) {
            return Ok(());
        }
        let places = self.parameters.places.norms[index];
        let x = self.slot.sublayers[self.source(index)].input.as_ref().expect("the norm's input");
        let mut y = self.pool.take(BufferKind::Activations, x.len());
        let mut statistics = Some(norm(dims, places, &self.parameters.weights, x, &mut y, self.pool));
        // The final norm belongs to no layer, so it is not computed again.
        if discards && index < 2 * self.slot.attention.len() {
            self.pool.release(&mut statistics);
        }
        let finite = all_finite(&y, "output of the norm");
        let sublayer = &mut self.slot.sublayers[index];
        sublayer.statistics = statistics;
        sublayer.output = Some(y);
        if finite { Ok(()) } else { Err(Suspect("output of the norm")) }
    }

    /// Adds the gradient of the norm's input to the residual gradient, or begins it.
    pub(super) fn norm_backward_input(&mut self, index: usize) {
        let dims = self.dims;
        if self.dims.side_by_side() && index < 2 * self.slot.attention.len() {
            return self.side_by_side_backward(index);
        }
        let sum = self.slot.sublayers[index].input_gradient.as_mut().expect("the body's input gradient");
        assert!(sum.whole, "an input gradient was read before it was summed over the tensor group");
        if !self.has_norm(index) {
            let Sum { data: dx, .. } = self.slot.sublayers[index].input_gradient.take().expect("seen above");
            return self.join_residual_gradient(dx);
        }
        let mut dx = self.slot.residual_gradient.take();
        self.input_gradient_of_norm(index, index, &mut dx);
        if let Some(dx) = &mut dx {
            dims.formats.round(dx);
        }
        self.slot.residual_gradient = dx;
        self.defer_input_gradient(index);
    }

    /// The gradient of the input of a sublayer's norm, added to `dx` or begun in it.
    fn input_gradient_of_norm(&mut self, index: usize, source: usize, dx: &mut Option<Held>) {
        let dims = self.dims;
        let places = self.parameters.places.norms[index];
        let sublayers = &self.slot.sublayers;
        let Sum { data: dy, .. } = sublayers[index].input_gradient.as_ref().expect("the body's input gradient");
        let x = sublayers[source].input.as_ref().expect("the norm's input was kept");
        let statistics = sublayers[index].statistics.as_ref().expect("the norm's statistics were kept");
        let (store, dx) = match dx {
            Some(dx) => (Store::Accumulate, dx),
            none => (Store::Overwrite, none.insert(self.pool.take(BufferKind::Workspace, x.len()))),
        };
        norm_input_gradient(dims, places, &self.parameters.weights, (x, statistics), dy, store, dx);
    }

    /// Marks the gradient of a norm's output as what a weight pass to come reads.
    fn defer_input_gradient(&mut self, index: usize) {
        if self.defers()
            && let Some(Sum { data, .. }) = &mut self.slot.sublayers[index].input_gradient
        {
            self.pool.relabel(data, BufferKind::Activations);
        }
    }

    fn join_residual_gradient(&mut self, dx: Held) {
        match &mut self.slot.residual_gradient {
            Some(residual) => {
                accumulate(&mut *residual, &dx);
                self.dims.formats.round(residual);
                self.pool.give(dx);
            }
            none => *none = Some(dx),
        }
    }

    /// Both branches read the layer's input, and have the same output gradient: what the second branch adds to the input's
    /// gradient waits until the first has read it.
    fn side_by_side_backward(&mut self, index: usize) {
        let (first, dims) = (index & !1, self.dims);
        let whole = self.slot.sublayers[index].input_gradient.as_ref().is_some_and(|sum| sum.whole);
        assert!(whole, "an input gradient was read before it was summed over the tensor group");
        if index % 2 == 1 {
            if self.has_norm(index) {
                let mut dx = None;
                self.input_gradient_of_norm(index, first, &mut dx);
                self.slot.second_gradient = dx;
                self.defer_input_gradient(index);
            }
            return;
        }
        if !self.has_norm(index + 1) {
            // One norm for both: it sees the sum of what both bodies say.
            let Sum { data, .. } = self.slot.sublayers[index + 1].input_gradient.take().expect("of the second body");
            let sum = self.slot.sublayers[index].input_gradient.as_mut().expect("of the first body");
            accumulate(&mut sum.data, &data);
            dims.formats.round(&mut sum.data);
            self.pool.give(data);
        }
        let mut dx = self.slot.residual_gradient.take();
        self.input_gradient_of_norm(index, first, &mut dx);
        if let (Some(dx), Some(second)) = (&mut dx, &self.slot.second_gradient) {
            accumulate(&mut *dx, second);
        }
        self.pool.release(&mut self.slot.second_gradient);
        if let Some(dx) = &mut dx {
            dims.formats.round(dx);
        }
        self.slot.residual_gradient = dx;
        self.defer_input_gradient(index);
    }

    pub(super) fn norm_backward_weight(&mut self, index: usize) {
        let places = self.parameters.places.norms[index];
        let source = self.source(index);
        if self.has_norm(index) {
            let sublayers = &mut self.slot.sublayers;
            let dy = sublayers[index].input_gradient.take().expect("the body's input gradient").data;
            let x = sublayers[source].input.as_ref().expect("the norm's input was kept");
            let statistics = sublayers[index].statistics.as_ref().expect("the norm's statistics were kept");
            norm_weight_gradient(self.dims, places, &mut self.parameters.gradients, (x, statistics), &dy);
            self.pool.give(dy);
        }
        let sublayer = &mut self.slot.sublayers[index];
        self.pool.release(&mut sublayer.input);
        self.pool.release(&mut sublayer.statistics);
        self.pool.release(&mut sublayer.output);
    }

    /// The norm of a branch, where one comes after the body: the branch is whole, since then the rank is alone.
    pub(super) fn after_body(&mut self, index: usize, mut branch: Held) -> Held {
        let Some(places) = self.after_places(index) else { return branch };
        let (dims, discards) = (self.dims, self.discards_cheap());
        dims.formats.round(&mut branch);
        let mut y = self.pool.take(BufferKind::Activations, branch.len());
        let statistics = norm(dims, places, &self.parameters.weights, &branch, &mut y, self.pool);
        if discards {
            self.pool.give(branch);
            self.pool.give(statistics);
        } else {
            let sublayer = &mut self.slot.sublayers[index];
            (sublayer.branch, sublayer.branch_statistics) = (Some(branch), Some(statistics));
        }
        y
    }

    /// Whether a norm comes after each body.
    pub(super) fn has_norm_after(&self) -> bool {
        self.dims.branch_norms != BranchNorms::Before
    }

    fn after_places(&self, index: usize) -> Option<NormPlaces> {
        let places = &self.parameters.places;
        match self.dims.branch_norms {
            BranchNorms::Before => None,
            BranchNorms::After => Some(places.norms[index]),
            BranchNorms::Both => Some(places.after[index]),
        }
    }

    /// The gradient of the body's output from that of the norm after it, which a weight pass may still need.
    pub(super) fn before_body(&mut self, index: usize) {
        let Some(places) = self.after_places(index) else { return };
        let gradient = self.slot.residual_gradient.as_ref().expect("the residual gradient arrived");
        let sublayer = &mut self.slot.sublayers[index];
        let x = sublayer.branch.as_ref().expect("the branch was kept");
        let statistics = sublayer.branch_statistics.as_ref().expect("the norm's statistics were kept");
        let mut dx = self.pool.take(BufferKind::Workspace, x.len());
        let weights = &self.parameters.weights;
        norm_input_gradient(self.dims, places, weights, (x, statistics), gradient, Store::Overwrite, &mut dx);
        self.dims.formats.round(&mut dx);
        sublayer.output_gradient = Some(dx);
        if self.pass == ir::program::Pass::BackwardInput {
            sublayer.after_gradient = Some(self.pool.copy(BufferKind::Activations, gradient));
        }
    }

    /// The weight gradient of the norm after a body.
    pub(super) fn after_body_weight(&mut self, index: usize) {
        let Some(places) = self.after_places(index) else { return };
        let sublayer = &mut self.slot.sublayers[index];
        let kept = sublayer.after_gradient.as_ref();
        let dy = kept.or(self.slot.residual_gradient.as_ref()).expect("the gradient of the norm's output");
        let x = sublayer.branch.as_ref().expect("the branch was kept");
        let statistics = sublayer.branch_statistics.as_ref().expect("the norm's statistics were kept");
        norm_weight_gradient(self.dims, places, &mut self.parameters.gradients, (x, statistics), dy);
        for held in [&mut sublayer.branch, &mut sublayer.branch_statistics, &mut sublayer.after_gradient] {
            self.pool.release(held);
        }
    }
}

/// The factors of a norm, and its summands if it has them; norms without parameters have ones and zeros, where `x` is.
fn parameters<'a>(
    dims: &'a Dimensions,
    places: NormPlaces,
    weights: &'a Flat,
    x: View<'a>,
) -> (View<'a>, Option<View<'a>>) {
    let weight = places.weight.map_or_else(|| x.constant(&dims.ones), |weight| weight.of(weights));
    let bias = (dims.norm == NormKind::LayerNorm)
        .then(|| places.bias.map_or_else(|| x.constant(&dims.zeros), |bias| bias.of(weights)));
    (weight, bias)
}

/// Writes the norm of `x` to `y` and gives its statistics.
fn norm(dims: &Dimensions, places: NormPlaces, weights: &Flat, x: &Held, y: &mut Held, pool: &mut Pool) -> Held {
    let rows = x.len() / dims.hidden;
    let numbers = match dims.norm {
        NormKind::RmsNorm => rows,
        NormKind::LayerNorm => 2 * rows,
    };
    let mut statistics = pool.take_single(BufferKind::Activations, numbers);
    norm_forward(parameters(dims, places, weights, x.view()), dims.epsilon, x, y.view_mut(), statistics.view_mut());
    dims.formats.round(y);
    statistics
}

fn norm_input_gradient(
    dims: &Dimensions,
    places: NormPlaces,
    weights: &Flat,
    (x, statistics): (&Held, &Held),
    dy: &Held,
    store: Store,
    dx: &mut Held,
) {
    let (weight, bias) = parameters(dims, places, weights, x.view());
    norm_backward_input((weight, bias.is_some()), (x.view(), statistics.view()), dy, store, dx);
}

fn norm_weight_gradient(
    dims: &Dimensions,
    places: NormPlaces,
    gradients: &mut Flat,
    (x, statistics): (&Held, &Held),
    dy: &Held,
) {
    let Some(weight) = places.weight else { return };
    let saved = (x.view(), statistics.view());
    match dims.norm {
        NormKind::RmsNorm => norm_backward_weight(saved, dy, weight.of_mut(gradients), None),
        NormKind::LayerNorm => {
            // The bias follows its weight.
            let bias = places.bias.expect("LayerNorm has a bias");
            let (d_weight, d_bias) = weight.then(bias).of_mut(gradients).split_at(weight.len());
            norm_backward_weight(saved, dy, d_weight, Some(d_bias));
        }
    }
}

//! The two ends of the model: embedding; head and loss.

use ir::program::BufferKind;

use super::arithmetic::{
    all_finite, embedding_backward, embedding_forward, linear_backward_bias, linear_backward_input,
    linear_backward_weight, linear_forward, loss_backward, loss_combine, loss_statistics, positions_backward,
    positions_backward_at, positions_forward, positions_forward_at,
};
use super::dimensions::{Dimensions, size};
use super::places::Place;
use super::slot::Sum;
use super::work::{Starts, Suspect, Work};
use crate::device::Sizes;
use crate::kernels::Store;
use crate::kernels::linear::Linear;
use crate::kernels::loss::STATS;

impl Work<'_> {
    /// Leaves the embedding of this rank's rows of the vocabulary; the first tensor rank adds learned positions.
    pub(super) fn embedding_forward(&mut self) -> Result<(), Suspect> {
        let dims = self.dims;
        let places = &self.parameters.places;
        let table = places.embedding.expect("a chunk with an embedding has its table").of(&self.parameters.weights);
        let mut x = self.pool.take(BufferKind::Activations, dims.activation());
        embedding_forward(&self.sample.tokens, table, (dims.hidden, dims.vocabulary.first), &mut x);
        if let Some(positions) = places.positions.filter(|_| dims.tensor_index == 0) {
            let table = positions.of(&self.parameters.weights);
            if let Some(positions) = within_documents(dims, self.starts) {
                positions_forward_at(x.view_mut(), table, dims.hidden, positions);
                return self.leave_branch(x, "output of the embedding");
            }
            for (first, x) in dims.context.views_mut(x.view_mut()) {
                positions_forward(x, table, positions_at(dims, first));
            }
        }
        self.leave_branch(x, "output of the embedding")
    }

    /// There is no gradient of tokens; the gradient of the output is kept for the weights.
    pub(super) fn embedding_backward_input(&mut self) {
        if self.dims.sequence_parallel {
            self.pool.release(&mut self.slot.residual_gradient);
        } else {
            self.slot.embedding_gradient = self.slot.residual_gradient.take();
        }
        if self.defers() {
            let gradient = self.slot.embedding_gradient.as_mut().expect("the gradient of the embedding's output");
            self.pool.relabel(gradient, BufferKind::Activations);
        }
    }

    /// Every tensor rank has the whole output gradient, so learned positions have the same gradient on each.
    pub(super) fn embedding_backward_weight(&mut self) {
        let dims = self.dims;
        let d_out = self.slot.embedding_gradient.take().expect("the gradient of the embedding's output");
        let (embedding, positions) = (self.parameters.places.embedding, self.parameters.places.positions);
        let gradients = &mut self.parameters.gradients;
        let table = embedding.expect("a chunk with an embedding has its table").of_mut(gradients);
        embedding_backward(&self.sample.tokens, &d_out, (dims.hidden, dims.vocabulary.first), table);
        if let Some(positions) = positions {
            let mut d_positions = positions.of_mut(gradients);
            if let Some(positions) = within_documents(dims, self.starts) {
                positions_backward_at(d_out.view(), dims.hidden, positions, d_positions);
                self.pool.give(d_out);
                return;
            }
            for (first, d_out) in dims.context.views(d_out.view()) {
                positions_backward(d_out, positions_at(dims, first), d_positions.again());
            }
        }
        self.pool.give(d_out);
    }

    fn head_shape(&self) -> Linear {
        let dims = self.dims;
        Linear { tokens: dims.tokens, inputs: dims.hidden, outputs: dims.vocabulary.columns }
    }

    /// The head's matrix: its own, or the embedding's table that it shares.
    fn head_place(&self) -> Place {
        self.parameters.places.head.expect("a head has a matrix or shares the embedding's")
    }

    pub(super) fn head_forward(&mut self) -> Result<(), Suspect> {
        let (dims, shape, last, place) = (self.dims, self.head_shape(), self.last(), self.head_place());
        let x = self.slot.body_input(last, last, dims.sequence_parallel);
        let weights = &self.parameters.weights;
        let bias = self.parameters.places.head_bias.map(|bias| bias.of(weights));
        let mut logits = self.pool.take(BufferKind::Logits, shape.tokens * shape.outputs);
        linear_forward(shape, x, place.of(weights), bias, &mut logits);
        dims.formats.round(&mut logits);
        self.pool.release(&mut self.slot.sublayers[last].gathered);
        let slot = &mut self.slot.head;
        let mut statistics = self.pool.take_single(BufferKind::Logits, STATS * dims.tokens);
        loss_statistics(dims.vocabulary, &logits, &self.sample.targets, &mut statistics);
        // The sum of exponentials is not finite if any logit is not.
        let finite = all_finite(statistics.view().part(dims.tokens..2 * dims.tokens), "logits");
        // A device's kernels read half precision as it is.
        if dims.formats.is_half() && !logits.is_on_device() {
            let mut wide = self.pool.take_single(BufferKind::Logits, logits.len());
            wide.view_mut().copy_from(&logits);
            slot.wide = Some(wide);
        }
        slot.logits = Some(logits);
        let statistics = Some(statistics);
        if dims.alone() {
            slot.all_statistics = statistics;
        } else {
            slot.statistics = statistics;
        }
        if finite { Ok(()) } else { Err(Suspect("logits")) }
    }

    pub(super) fn loss_forward(&mut self) -> Result<(), Suspect> {
        let dims = self.dims;
        let slot = &mut self.slot.head;
        let statistics = slot.all_statistics.take().expect("the loss statistics of the tensor group");
        let mut losses = self.pool.take_single(BufferKind::Workspace, dims.tokens);
        let mut lse = self.pool.take_single(BufferKind::Logits, dims.tokens);
        loss_combine(&statistics, &self.sample.targets, &mut losses, &mut lse);
        slot.lse = Some(lse);
        self.pool.give(statistics);
        self.pool.release(&mut slot.statistics);
        if let Some(late) = &mut self.late_loss {
            all_finite(&losses, "loss");
            **late = Some(losses);
            return Ok(());
        }
        *self.loss = losses.view().read().iter().map(|&loss| f64::from(loss)).sum();
        self.pool.give(losses);
        if self.loss.is_finite() { Ok(()) } else { Err(Suspect("loss")) }
    }

    /// Logits become their gradient; of half precision, a copy of their FP32 copy does.
    pub(super) fn loss_backward(&mut self) {
        let dims = self.dims;
        let slot = &mut self.slot.head;
        if let Some(wide) = &slot.wide {
            let mut gradient = self.pool.take_single(BufferKind::Logits, wide.len());
            gradient.view_mut().copy_from(wide);
            self.pool.release(&mut slot.logits);
            slot.logits = Some(gradient);
        }
        let logits = slot.logits.as_mut().expect("logits were kept");
        let lse = slot.lse.take().expect("the loss's forward pass came before");
        loss_backward(dims.vocabulary, &mut *logits, &self.sample.targets, &lse, self.loss_scale);
        dims.formats.round(logits);
        self.pool.give(lse);
    }

    pub(super) fn head_backward_input(&mut self) {
        let (dims, shape, last) = (self.dims, self.head_shape(), self.last());
        let matrix = self.head_place().of(&self.parameters.weights);
        let d_logits = self.slot.head.logits.as_ref().expect("the gradient of the logits");
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        linear_backward_input(shape, d_logits, matrix, Store::Overwrite, &mut dx);
        dims.formats.round(&mut dx);
        self.slot.sublayers[last].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    pub(super) fn head_backward_weight(&mut self) {
        let (shape, last) = (self.head_shape(), self.last());
        let d_logits = self.slot.head.logits.take().expect("the gradient of the logits");
        self.pool.release(&mut self.slot.head.wide);
        let x = self.slot.body_input(last, last, self.dims.sequence_parallel);
        let place = self.parameters.places.head_gradient.expect("a head has a matrix or shares the embedding's");
        let gradients = &mut self.parameters.gradients;
        linear_backward_weight(shape, x, &d_logits, place.of_mut(gradients));
        if let Some(bias) = self.parameters.places.head_bias {
            linear_backward_bias(&d_logits, bias.of_mut(gradients));
        }
        self.pool.give(d_logits);
        self.slot.sublayers[last].release_body_input(self.pool);
    }
}

/// Learned positions of a piece of each sequence that begins there.
fn positions_at(dims: &Dimensions, first: usize) -> Sizes {
    Sizes { features: dims.hidden, first, sequence_length: dims.context.length }
}

/// The position of each of this rank's tokens in its document; `None` where sequences are documents.
fn within_documents(dims: &Dimensions, starts: &Starts) -> Option<impl Iterator<Item = usize>> {
    let position = |(token, start): (usize, &u32)| dims.context.standing(token).1 - size(*start);
    (!starts.own.is_empty()).then(|| starts.own.iter().enumerate().map(position))
}

//! Attention with its projections.

use ir::Recompute;
use ir::program::BufferKind;

use super::Progress;
use super::buffers::Held;
use super::places::LinearPlaces;
use super::slot::{Stage, Sum};
use super::work::{Suspect, Work};
use crate::kernels::Store;
use crate::kernels::attention::{AttentionGradients, AttentionSaved, attention_backward, attention_forward};
use crate::kernels::linear::Linear;
use crate::kernels::rope::{rotate, rotate_back};

/// The linear layers of this rank's heads.
struct Shapes {
    query: Linear,
    key: Linear,
    projection: Linear,
}

impl Work<'_> {
    fn attention_shapes(&self) -> Shapes {
        let dims = self.dims;
        let tokens = dims.tokens;
        Shapes {
            query: Linear { tokens, inputs: dims.hidden, outputs: dims.query_width },
            key: Linear { tokens, inputs: dims.hidden, outputs: dims.kv_width },
            projection: Linear { tokens, inputs: dims.query_width, outputs: dims.hidden },
        }
    }

    pub(super) fn attention_forward(&mut self, layer: usize) -> Result<Progress, Suspect> {
        if let Some(method) = self.shared_sequences() {
            return self.context_forward(layer, method);
        }
        self.attention_project(layer);
        let dims = self.dims;
        let slot = &mut self.slot.attention[layer];
        let [q, k, v] = [&slot.q, &slot.k, &slot.v].map(|held| held.as_deref().expect("just projected"));
        let mut out = self.pool.take(BufferKind::Activations, q.len());
        let mut lse = self.pool.take(BufferKind::Activations, dims.tokens * dims.query_heads);
        attention_forward(dims.attention, q, k, v, &mut out, &mut lse, self.attention);
        (slot.out, slot.lse) = (Some(out), Some(lse));
        self.attention_finish(layer)?;
        Ok(Progress::Ended)
    }

    /// Queries, keys and values of this rank's tokens, rotated.
    pub(super) fn attention_project(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let places = self.parameters.places.attention[layer];
        let weights = &self.parameters.weights;
        let x = self.slot.sublayers[2 * layer].body_input(dims.sequence_parallel);
        let mut project = |shape: Linear, linear: LinearPlaces| -> Held {
            let mut y = self.pool.take(BufferKind::Activations, shape.tokens * shape.outputs);
            linear.forward(shape, weights, x, &mut y);
            y
        };
        let (mut q, mut k) = (project(shapes.query, places.q), project(shapes.key, places.k));
        let v = project(shapes.key, places.v);
        if let Some(table) = &dims.rotary {
            for (x, heads) in [(&mut q, dims.query_heads), (&mut k, dims.kv_heads)] {
                for (first, x) in dims.context.each_mut(x) {
                    rotate(table, x, heads, dims.context.length, first);
                }
            }
        }
        let slot = &mut self.slot.attention[layer];
        (slot.q, slot.k, slot.v, slot.stage) = (Some(q), Some(k), Some(v), Stage::Projected);
    }

    /// The core's output is there: the projection, as the branch.
    pub(super) fn attention_finish(&mut self, layer: usize) -> Result<(), Suspect> {
        let (dims, shapes, discards) = (self.dims, self.attention_shapes(), self.discards());
        let projection = self.parameters.places.attention[layer].projection.biased_if(dims.tensor_index == 0);
        let slot = &mut self.slot.attention[layer];
        let out = slot.out.as_deref().expect("the core's output");
        let mut branch = self.pool.take(BufferKind::Activations, dims.activation());
        projection.forward(shapes.projection, &self.parameters.weights, out, &mut branch);
        slot.stage = Stage::Start;
        let sublayer = &mut self.slot.sublayers[2 * layer];
        self.pool.release(&mut sublayer.gathered);
        if discards {
            self.pool.release(&mut sublayer.output);
            slot.release(self.pool);
        } else if self.recompute == Recompute::Selective {
            self.pool.release(&mut slot.lse);
        }
        self.leave_branch(branch, "output of attention")
    }

    /// Leaves the gradient of the normed input, partial over the tensor group.
    pub(super) fn attention_backward_input(&mut self, layer: usize) -> Progress {
        if let Some(method) = self.shared_sequences() {
            return self.context_backward(layer, method);
        }
        self.attention_output_gradient(layer);
        let (dims, kind) = (self.dims, self.gradient_kind());
        let slot = &mut self.slot.attention[layer];
        let [q, k, v, d_out]: [Held; 4] =
            [&mut slot.q, &mut slot.k, &mut slot.v, &mut slot.d_out].map(|held| held.take().expect("kept by forward"));
        let out = slot.out.as_mut().expect("kept by forward");
        let lse = slot.lse.take().unwrap_or_else(|| {
            // Selective recomputation: the core of attention again.
            let mut lse = self.pool.take(BufferKind::Workspace, dims.tokens * dims.query_heads);
            attention_forward(dims.attention, &q, &k, &v, out, &mut lse, self.attention);
            lse
        });
        let mut dq = self.pool.take(kind, q.len());
        let [mut dk, mut dv] = [(); 2].map(|()| self.pool.take(kind, k.len()));
        let saved = AttentionSaved { q: &q, k: &k, v: &v, out, lse: &lse };
        let mut gradients = AttentionGradients { dq: &mut dq, dk: &mut dk, dv: &mut dv };
        attention_backward(dims.attention, saved, &d_out, Store::Overwrite, &mut gradients, self.attention);
        for held in [q, k, v, lse, d_out] {
            self.pool.give(held);
        }
        (slot.dq, slot.dk, slot.dv) = (Some(dq), Some(dk), Some(dv));
        self.attention_input_gradient(layer);
        Progress::Ended
    }

    /// The gradient of the core's output.
    pub(super) fn attention_output_gradient(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        self.keep_output_gradient(2 * layer);
        let places = self.parameters.places.attention[layer];
        let d_branch = self.slot.output_gradient(2 * layer);
        let mut d_out = self.pool.take(BufferKind::Workspace, dims.tokens * dims.query_width);
        let weights = &self.parameters.weights;
        places.projection.backward_input(shapes.projection, weights, d_branch, Store::Overwrite, &mut d_out);
        self.slot.attention[layer].d_out = Some(d_out);
    }

    /// From the gradients of rotated queries and keys, and of values, that of the normed input.
    pub(super) fn attention_input_gradient(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let places = self.parameters.places.attention[layer];
        let weights = &self.parameters.weights;
        let slot = &mut self.slot.attention[layer];
        let [dq, dk, dv] =
            [&mut slot.dq, &mut slot.dk, &mut slot.dv].map(|held| held.as_mut().expect("the core's gradients"));
        if let Some(table) = &dims.rotary {
            for (x, heads) in [(&mut *dq, dims.query_heads), (&mut *dk, dims.kv_heads)] {
                for (first, x) in dims.context.each_mut(x) {
                    rotate_back(table, x, heads, dims.context.length, first);
                }
            }
        }
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        places.q.backward_input(shapes.query, weights, dq, Store::Overwrite, &mut dx);
        places.k.backward_input(shapes.key, weights, dk, Store::Accumulate, &mut dx);
        places.v.backward_input(shapes.key, weights, dv, Store::Accumulate, &mut dx);
        slot.stage = Stage::Start;
        self.slot.sublayers[2 * layer].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    pub(super) fn attention_backward_weight(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let places = self.parameters.places.attention[layer];
        let gradients = &mut self.parameters.gradients;
        let slot = &mut self.slot.attention[layer];
        let take = [&mut slot.dq, &mut slot.dk, &mut slot.dv, &mut slot.out];
        let [dq, dk, dv, out] = take.map(|held| held.take().expect("left by the input pass"));
        let d_branch = self.slot.output_gradient(2 * layer);
        places.projection.backward_weight(shapes.projection, &out, d_branch, gradients);
        let x = self.slot.sublayers[2 * layer].body_input(dims.sequence_parallel);
        places.q.backward_weight(shapes.query, x, &dq, gradients);
        places.k.backward_weight(shapes.key, x, &dk, gradients);
        places.v.backward_weight(shapes.key, x, &dv, gradients);
        for held in [dq, dk, dv, out] {
            self.pool.give(held);
        }
        let sublayer = &mut self.slot.sublayers[2 * layer];
        sublayer.release_body_input(self.pool);
        self.pool.release(&mut sublayer.output_gradient);
    }
}

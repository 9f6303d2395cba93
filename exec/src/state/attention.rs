//! Attention with its projections.

use ir::program::BufferKind;
use ir::{QueryKeyNorm, Recompute};

use super::Progress;
use super::arithmetic::{
    Core, attention_backward, attention_forward, norm_backward_input, norm_backward_weight, norm_forward, rotate,
};
use super::buffers::{Held, Pool};
use super::dimensions::Dimensions;
use super::places::{LinearPlaces, Place};
use super::slot::{Stage, Sum};
use super::values::View;
use super::work::{Suspect, Work};
use crate::kernels::Store;
use crate::kernels::attention::{Attention, Packed};
use crate::kernels::linear::Linear;

/// The linear layers of this rank's heads.
struct Shapes {
    query: Linear,
    key: Linear,
    projection: Linear,
}

impl<'a> Work<'a> {
    /// An attention of all of this rank's tokens, each within its document.
    fn over(&self, shape: Attention) -> Packed<'a> {
        Packed { shape, starts: &self.starts.own }
    }
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

    /// The core's sizes in a layer of the chunk.
    pub(super) fn core(&self, layer: usize) -> Attention {
        let layer = u32::try_from(layer).expect("layers are u32");
        self.dims.attention_of(self.first_layer + layer)
    }

    /// Queries, keys or values: a product of the normed input.
    fn project(&mut self, layer: usize, shape: Linear, linear: LinearPlaces) -> Held {
        let dims = self.dims;
        let x = self.slot.body_input(2 * layer, 2 * layer, dims.sequence_parallel);
        let mut y = self.pool.take(BufferKind::Activations, shape.tokens * shape.outputs);
        linear.forward(shape, &self.parameters.weights, x, &mut y);
        dims.formats.round(&mut y);
        y
    }

    /// Keys, or values.
    pub(super) fn project_key(&mut self, layer: usize, linear: LinearPlaces) -> Held {
        self.project(layer, self.attention_shapes().key, linear)
    }

    /// Queries or keys after their norm, rotated. `raw` gets what they were and the norm's statistics.
    pub(super) fn turn(&mut self, heads: usize, norm: Option<Place>, mut x: Held, raw: [&mut Option<Held>; 2]) -> Held {
        let dims = self.dims;
        if let Some(norm) = norm {
            let [before, statistics] = raw;
            *statistics = Some(head_norm(dims, norm.of(&self.parameters.weights), &mut x, before, self.pool));
        }
        if let Some(table) = &dims.rotary {
            for (first, x) in dims.context.views_mut(x.view_mut()) {
                rotate(table, x, heads, (dims.context.length, first), false);
            }
            dims.formats.round(&mut x);
        }
        x
    }

    /// The projection of weighted values.
    pub(super) fn project_out(&mut self, layer: usize, out: &Held) -> Held {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let mut branch = self.pool.take(BufferKind::Activations, dims.activation());
        let projection = self.parameters.places.attention[layer].projection.biased_if(dims.tensor_index == 0);
        projection.forward(shapes.projection, &self.parameters.weights, out, &mut branch);
        branch
    }

    pub(super) fn attention_forward(&mut self, layer: usize) -> Result<Progress, Suspect> {
        if let Some(method) = self.shared_sequences() {
            return self.context_forward(layer, method);
        }
        self.attention_project(layer);
        let (dims, over) = (self.dims, self.over(self.core(layer)));
        let slot = &mut self.slot.attention[layer];
        let [q, k, v] = [&slot.q, &slot.k, &slot.v].map(|held| held.as_ref().expect("just projected").view());
        let mut out = self.pool.take(BufferKind::Activations, q.len());
        let mut lse = self.pool.take_single(BufferKind::Activations, dims.tokens * dims.query_heads);
        attention_forward(over, Core { q, k, v }, &mut out, &mut lse, self.attention);
        (slot.out, slot.lse) = (Some(out), Some(lse));
        self.attention_finish(layer)?;
        Ok(Progress::Ended)
    }

    /// Queries, keys and values of this rank's tokens; queries and keys normed, if the model does that, and rotated.
    pub(super) fn attention_project(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let places = self.parameters.places.attention[layer];
        let q = self.project(layer, shapes.query, places.q);
        let k = self.project_key(layer, places.k);
        let v = self.project_key(layer, places.v);
        let norms = places.query_key_norm.map_or([None; 2], |norms| norms.map(Some));
        let mut raw: [Option<Held>; 4] = Default::default();
        let [q_raw, k_raw, q_statistics, k_statistics] = &mut raw;
        let q = self.turn(dims.query_heads, norms[0], q, [q_raw, q_statistics]);
        let k = self.turn(dims.kv_heads, norms[1], k, [k_raw, k_statistics]);
        let slot = &mut self.slot.attention[layer];
        (slot.q, slot.k, slot.v, slot.raw, slot.stage) = (Some(q), Some(k), Some(v), raw, Stage::Projected);
    }

    /// The core's output is there: the projection, as the branch.
    pub(super) fn attention_finish(&mut self, layer: usize) -> Result<(), Suspect> {
        let (sublayer, discards) = (2 * layer, self.discards());
        let out = self.slot.attention[layer].out.take().expect("the core's output");
        let out = self.rounded(out);
        let branch = self.project_out(layer, &out);
        let slot = &mut self.slot.attention[layer];
        (slot.out, slot.stage) = (Some(out), Stage::Start);
        if discards {
            slot.release(self.pool);
        } else if self.recompute == Recompute::Selective {
            self.pool.release(&mut slot.lse);
        }
        self.release_cheap_attention(layer);
        self.release_after_forward(sublayer);
        let branch = self.after_body(sublayer, branch);
        self.leave_branch(branch, "output of attention")
    }

    /// The core's output as an activation: parts are joined in FP32.
    pub(super) fn rounded(&mut self, mut out: Held) -> Held {
        if out.is_on_device() && out.is_single() && self.dims.formats.is_half() {
            let rounded = self.pool.copy(BufferKind::Activations, &out);
            self.pool.give(out);
            return rounded;
        }
        self.dims.formats.round(&mut out);
        out
    }

    /// Leaves the gradient of the normed input, partial over the tensor group.
    pub(super) fn attention_backward_input(&mut self, layer: usize) -> Progress {
        if let Some(method) = self.shared_sequences() {
            return self.context_backward(layer, method);
        }
        self.attention_output_gradient(layer);
        let (dims, kind, over) = (self.dims, self.gradient_kind(), self.over(self.core(layer)));
        let slot = &mut self.slot.attention[layer];
        let [q, k, v, d_out]: [Held; 4] =
            [&mut slot.q, &mut slot.k, &mut slot.v, &mut slot.d_out].map(|held| held.take().expect("kept by forward"));
        let out = slot.out.as_mut().expect("kept by forward");
        let core = Core { q: q.view(), k: k.view(), v: v.view() };
        let lse = slot.lse.take().unwrap_or_else(|| {
            // Selective recomputation: the core of attention again.
            let mut lse = self.pool.take_single(BufferKind::Workspace, dims.tokens * dims.query_heads);
            attention_forward(over, core, &mut *out, &mut lse, self.attention);
            dims.formats.round(&mut *out);
            lse
        });
        let mut dq = self.pool.take(kind, q.len());
        let [mut dk, mut dv] = [(); 2].map(|()| self.pool.take(kind, k.len()));
        let gradients = [&mut dq, &mut dk, &mut dv].map(Held::view_mut);
        let saved = (out.view(), lse.view());
        attention_backward(over, core, saved, &d_out, (Store::Overwrite, gradients), self.attention);
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
        self.attention_again(layer);
        self.keep_output_gradient(2 * layer);
        let places = self.parameters.places.attention[layer];
        let d_branch = self.slot.output_gradient(2 * layer);
        let mut d_out = self.pool.take(BufferKind::Workspace, dims.tokens * dims.query_width);
        let weights = &self.parameters.weights;
        places.projection.backward_input(shapes.projection, weights, d_branch, Store::Overwrite, &mut d_out);
        dims.formats.round(&mut d_out);
        self.slot.attention[layer].d_out = Some(d_out);
    }

    /// From the gradients of rotated queries and keys, and of values, that of the normed input.
    pub(super) fn attention_input_gradient(&mut self, layer: usize) {
        let (dims, shapes, formats) = (self.dims, self.attention_shapes(), self.dims.formats);
        let places = self.parameters.places.attention[layer];
        let weights = &self.parameters.weights;
        let slot = &mut self.slot.attention[layer];
        let [mut dq, mut dk, mut dv]: [Held; 3] =
            [&mut slot.dq, &mut slot.dk, &mut slot.dv].map(|held| held.take().expect("the core's gradients"));
        if let Some(table) = &dims.rotary {
            for (x, heads) in [(&mut dq, dims.query_heads), (&mut dk, dims.kv_heads)] {
                for (first, x) in dims.context.views_mut(x.view_mut()) {
                    rotate(table, x, heads, (dims.context.length, first), true);
                }
            }
        }
        [&mut dq, &mut dk, &mut dv].into_iter().for_each(|gradient| formats.round(gradient));
        if let Some(norms) = places.query_key_norm {
            let raw = &slot.raw;
            let normed = norms.map(|norm| norm.of(weights));
            let [d_q, d_k] = &mut slot.d_normed;
            dq = head_norm_backward(dims, normed[0], [&raw[0], &raw[2]], dq, d_q, self.pool);
            dk = head_norm_backward(dims, normed[1], [&raw[1], &raw[3]], dk, d_k, self.pool);
        }
        let mut dx = self.pool.take(BufferKind::Workspace, dims.activation());
        places.q.backward_input(shapes.query, weights, &dq, Store::Overwrite, &mut dx);
        places.k.backward_input(shapes.key, weights, &dk, Store::Accumulate, &mut dx);
        places.v.backward_input(shapes.key, weights, &dv, Store::Accumulate, &mut dx);
        formats.round(&mut dx);
        (slot.dq, slot.dk, slot.dv, slot.stage) = (Some(dq), Some(dk), Some(dv), Stage::Start);
        self.slot.sublayers[2 * layer].input_gradient = Some(Sum { data: dx, whole: dims.alone() });
    }

    pub(super) fn attention_backward_weight(&mut self, layer: usize) {
        let (dims, shapes) = (self.dims, self.attention_shapes());
        let places = self.parameters.places.attention[layer];
        let gradients = &mut self.parameters.gradients;
        let slot = &mut self.slot.attention[layer];
        let take = [&mut slot.dq, &mut slot.dk, &mut slot.dv, &mut slot.out];
        let [dq, dk, dv, out] = take.map(|held| held.take().expect("left by the input pass"));
        let raw = std::mem::take(&mut slot.raw);
        let d_normed = std::mem::take(&mut slot.d_normed);
        if let Some(norms) = places.query_key_norm {
            for (norm, index) in norms.into_iter().zip(0..) {
                let x = raw[index].as_ref().expect("kept by forward").view();
                let statistics = raw[index + 2].as_ref().expect("kept by forward").view();
                let dy = d_normed[index].as_ref().expect("left by the input pass");
                norm_backward_weight((x, statistics), dy, norm.of_mut(gradients), None);
            }
        }
        let d_branch = self.slot.output_gradient(2 * layer);
        places.projection.backward_weight(shapes.projection, &out, d_branch, gradients);
        let x = self.slot.body_input(2 * layer, 2 * layer, dims.sequence_parallel);
        places.q.backward_weight(shapes.query, x, &dq, gradients);
        places.k.backward_weight(shapes.key, x, &dk, gradients);
        places.v.backward_weight(shapes.key, x, &dv, gradients);
        for held in [dq, dk, dv, out].into_iter().chain(raw.into_iter().chain(d_normed).flatten()) {
            self.pool.give(held);
        }
        self.after_body_weight(2 * layer);
        let sublayer = &mut self.slot.sublayers[2 * layer];
        sublayer.release_body_input(self.pool);
        self.pool.release(&mut sublayer.output_gradient);
    }
}

/// Norms the rows of `x` in place, leaving what they were in `raw`, and gives the norm's statistics. A row is a head, or all
/// heads together, as the weight is wide.
fn head_norm(dims: &Dimensions, weight: View<'_>, x: &mut Held, raw: &mut Option<Held>, pool: &mut Pool) -> Held {
    debug_assert!(dims.query_key_norm != QueryKeyNorm::Head || weight.len() == dims.head_dim, "a weight of a head");
    let before = raw.insert(pool.copy(BufferKind::Activations, &*x));
    let mut rstd = pool.take_single(BufferKind::Activations, x.len() / weight.len());
    norm_forward((weight, None), dims.epsilon, &*before, x.view_mut(), rstd.view_mut());
    dims.formats.round(x);
    rstd
}

/// The gradient before the norm from `dy`, that after it, which is left in `kept`.
fn head_norm_backward(
    dims: &Dimensions,
    weight: View<'_>,
    [x, rstd]: [&Option<Held>; 2],
    dy: Held,
    kept: &mut Option<Held>,
    pool: &mut Pool,
) -> Held {
    let [x, rstd] = [x, rstd].map(|held| held.as_ref().expect("kept by forward").view());
    let mut dx = pool.copy_of(&dy, dy.kind());
    norm_backward_input((weight, false), (x, rstd), &dy, Store::Overwrite, &mut dx);
    dims.formats.round(&mut dx);
    *kept = Some(dy);
    dx
}

//! The router: which experts each token goes to, with which weights.

use ir::program::{BufferKind, Pass};

use crate::kernels::Store;
use crate::kernels::elementwise::accumulate_scaled;
use crate::kernels::linear::Linear;
use crate::kernels::math::sigmoid;
use crate::kernels::router::{choose_experts, expert_weights, router_backward, router_scores};
use crate::state::dimensions::narrow;
use crate::state::work::{Suspect, Work};

impl Work<'_> {
    fn router_shape(&self) -> Linear {
        Linear { tokens: self.dims.rows, inputs: self.dims.hidden, outputs: self.dims.experts().count }
    }

    /// Scores, choices and weights from the output of the layer's second norm; nothing in a dense layer.
    pub(in crate::state) fn router_forward(&mut self, layer: usize) -> Result<(), Suspect> {
        let Some(places) = self.parameters.places.routers[layer] else { return Ok(()) };
        let (dims, shape) = (self.dims, self.router_shape());
        let experts = dims.experts();
        let weights = &self.parameters.weights;
        let y = self.slot.sublayers[2 * layer + 1].output.as_deref().expect("the norm's output");
        let mut scores = self.pool.take(BufferKind::Activations, shape.tokens * shape.outputs);
        places.router.forward(shape, weights, y, &mut scores);
        let finite = crate::state::all_finite(&scores);
        let slot = &mut self.slot.experts[layer];
        self.pool.release(&mut slot.shared_gate);
        if let Some(place) = places.shared_gate {
            let mut gate = self.pool.take(BufferKind::Activations, dims.rows);
            for (gate, y) in gate.iter_mut().zip(y.chunks_exact(dims.hidden)) {
                *gate = sigmoid(dot(y, place.of(weights).host())).0;
            }
            slot.shared_gate = Some(gate);
        }
        router_scores(experts.router.scoring, &mut scores, experts.count);
        let standing = |row: usize| dims.standing(row);
        let at = (self.first_layer + u32::try_from(layer).expect("layers are u32"), experts.active);
        if !self.routes.replay(at, dims.rows, standing, &mut slot.chosen) {
            choose_experts(&scores, experts.count, experts.active, &mut slot.chosen);
        }
        let mut chosen_weights = self.pool.take(BufferKind::Activations, slot.chosen.len());
        expert_weights(experts.router, &scores, experts.count, &slot.chosen, &mut chosen_weights);
        if self.pass == Pass::Forward {
            self.routes.record(at, standing, &slot.chosen);
            if experts.balance > 0.0 {
                let mut statistics = self.pool.take(BufferKind::Activations, dims.sequences * experts.count);
                statistics.fill(0.0);
                for (choice, &expert) in slot.chosen.iter().enumerate() {
                    let (sequence, _) = dims.standing(choice / experts.active);
                    statistics[sequence * experts.count + expert as usize] += 1.0;
                }
                self.pool.release(&mut slot.statistics);
                slot.statistics = Some(statistics);
            }
        }
        (slot.scores, slot.weights) = (Some(scores), Some(chosen_weights));
        if finite { Ok(()) } else { Err(Suspect("logits of the router")) }
    }

    /// Adds the router's part (and that of the shared gate) to the gradient of the norm's output.
    pub(in crate::state) fn router_backward_input(&mut self, layer: usize) {
        let Some(places) = self.parameters.places.routers[layer] else { return };
        let (dims, shape, kind) = (self.dims, self.router_shape(), self.gradient_kind());
        let experts = dims.experts();
        let slot = &mut self.slot.experts[layer];
        let scores = slot.scores.take().expect("the router's scores");
        let (weights, d_weights) =
            (slot.weights.take().expect("weights of experts"), slot.d_weights.take().expect("their gradients"));
        // Of each sequence and expert, the derivative of the balance by a normalised score.
        let mut balance = Vec::new();
        if let Some(statistics) = &slot.statistics {
            let length = (dims.context.length * dims.context.ranks * dims.context.pieces.len()) as f64;
            let each = experts.balance * experts.count as f64 / (experts.active as f64 * length * length);
            balance.extend(statistics.iter().map(|&count| narrow(each * f64::from(count))));
        }
        let row = |row: usize| {
            let of = dims.standing(row).0 * experts.count;
            balance.get(of..of + experts.count)
        };
        let mut d_logits = self.pool.take(kind, scores.len());
        let chosen = (&slot.chosen[..], &weights[..]);
        router_backward(experts.router, (&scores, experts.count), chosen, &d_weights, row, &mut d_logits);
        for held in [scores, weights, d_weights] {
            self.pool.give(held);
        }
        let dy = self.slot.sublayers[2 * layer + 1].input_gradient.as_mut().expect("the body's input gradient");
        assert!(dy.whole, "an input gradient was read before it was whole");
        let weights = &self.parameters.weights;
        places.router.backward_input(shape, weights, &d_logits, Store::Accumulate, &mut dy.data);
        if let (Some(place), Some(d_gate)) = (places.shared_gate, &slot.d_shared_gate) {
            for (dy, &d_gate) in dy.data.chunks_exact_mut(dims.hidden).zip(&d_gate[..]) {
                accumulate_scaled(dy, d_gate, place.of(weights).host());
            }
        }
        dims.formats.round(&mut dy.data);
        slot.d_logits = Some(d_logits);
    }

    pub(in crate::state) fn router_backward_weight(&mut self, layer: usize) {
        let Some(places) = self.parameters.places.routers[layer] else { return };
        let shape = self.router_shape();
        let slot = &mut self.slot.experts[layer];
        let d_logits = slot.d_logits.take().expect("left by the input pass");
        let y = self.slot.sublayers[2 * layer + 1].output.as_deref().expect("the norm's output was kept");
        places.router.backward_weight(shape, y, &d_logits, &mut self.parameters.gradients);
        self.pool.give(d_logits);
        if let (Some(place), Some(d_gate)) = (places.shared_gate, slot.d_shared_gate.take()) {
            let gradient = place.of_mut(&mut self.parameters.gradients).host();
            for (y, &d_gate) in y.chunks_exact(self.dims.hidden).zip(&d_gate[..]) {
                accumulate_scaled(gradient, d_gate, y);
            }
            self.pool.give(d_gate);
        }
    }
}

/// The inner product, element by element in order.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

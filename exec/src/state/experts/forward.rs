//! Experts, forward.

use ir::program::{BufferKind, UnitTensor};

use super::feed::Feed;
use crate::kernels::elementwise::scale;
use crate::state::slot::Sum;
use crate::state::work::{Suspect, Work};

impl Work<'_> {
    /// The experts of this rank, one after the other: their number, their rows among all copies, their sizes.
    pub(super) fn each_expert(&self, layer: usize) -> Vec<(usize, std::ops::Range<usize>, Feed)> {
        let experts = self.dims.experts();
        let mut start = 0;
        let one = |expert: usize| {
            let rows: usize = self.slot.experts[layer].counts.iter().map(|counts| counts[expert]).sum();
            start += rows;
            (expert, start - rows..start, self.feed(rows, experts.ffn))
        };
        (0..experts.local).map(one).collect()
    }

    /// What all tokens pass beside the experts.
    pub(super) fn shared_feed(&self) -> Feed {
        self.feed(self.dims.tokens, self.dims.experts().shared_ffn)
    }

    pub(in crate::state) fn experts_forward(&mut self, layer: usize) -> Result<(), Suspect> {
        let (dims, discards) = (self.dims, self.discards());
        if !dims.experts().exchanges() {
            let mut bundle = std::mem::take(self.packed);
            self.pack_inputs(layer, &mut bundle);
            self.slot.experts[layer].arrived = Some(self.pool.copy_varying(BufferKind::Workspace, &bundle));
            *self.packed = bundle;
        }
        self.sort_inputs(layer);
        let mut output = self.grouped_forward(layer);
        let slot = &self.slot.experts[layer];
        let weights = slot.input_weights.as_deref().expect("weights came with the copies");
        for (row, weight) in output.chunks_exact_mut(dims.hidden).zip(weights) {
            scale(row, *weight);
        }
        dims.formats.round(&mut output);
        let finite = crate::state::all_finite(&output);
        self.unsort(layer, None, &output);
        self.pool.give(output);
        self.shared_forward(layer);
        if discards {
            self.slot.experts[layer].discard(self.pool);
        }
        self.release_after_forward(2 * layer + 1);
        if !dims.experts().exchanges() {
            let came = self.slot.experts[layer].leaving.take().expect("what experts gave");
            self.sum_copies(layer, &[&came], None);
            self.pool.give(came);
            self.end_experts_forward(layer, None);
        }
        if finite { Ok(()) } else { Err(Suspect("output of the experts")) }
    }

    /// The outputs of this rank's experts, `[received, hidden]`; keeps what the backward pass reads.
    fn grouped_forward(&mut self, layer: usize) -> crate::state::buffers::Held {
        let (hidden, experts) = (self.dims.hidden, self.dims.experts());
        let received = self.slot.experts[layer].received();
        let (wide, gate_wide) = self.feed(received, experts.ffn).widths();
        let each = self.each_expert(layer);
        let parameters = self.experts.as_deref().expect("the chunk's experts");
        let mut gate = self.pool.take_varying(BufferKind::Activations, gate_wide);
        let [mut up, mut activated] = [(); 2].map(|()| self.pool.take_varying(BufferKind::Activations, wide));
        let mut output = self.pool.take_varying(BufferKind::Workspace, received * hidden);
        let slot = &mut self.slot.experts[layer];
        let input = slot.input.as_deref().expect("copies for experts");
        for (expert, rows, feed) in each {
            let mut places = parameters.places.experts[layer][expert];
            places.down = places.down.biased_if(experts.tensor_index == 0);
            let inner = rows.start * experts.ffn..rows.end * experts.ffn;
            let outer = rows.start * hidden..rows.end * hidden;
            let gate = if gate_wide > 0 { &mut gate[inner.clone()] } else { &mut [] };
            let inside = (gate, &mut up[inner.clone()], &mut activated[inner]);
            feed.forward(places, &parameters.weights, &input[outer.clone()], inside, &mut output[outer]);
        }
        (slot.gate, slot.up, slot.activated) = (Some(gate), Some(up), Some(activated));
        output
    }

    /// The shared part, partial over the tensor group, as the branch.
    fn shared_forward(&mut self, layer: usize) {
        let Some(places) = self.parameters.places.mlp[layer] else { return };
        let (dims, feed, discards) = (self.dims, self.shared_feed(), self.discards());
        let (wide, gate_wide) = feed.widths();
        let mut gate = self.pool.take(BufferKind::Activations, gate_wide);
        let [mut up, mut activated] = [(); 2].map(|()| self.pool.take(BufferKind::Activations, wide));
        let mut branch = self.pool.take(BufferKind::Activations, dims.activation());
        let x = self.slot.body_input(2 * layer + 1, 2 * layer + 1, dims.sequence_parallel).host();
        feed.forward(places, &self.parameters.weights, x, (&mut gate, &mut up, &mut activated), &mut branch);
        if discards {
            for held in [gate, up, activated] {
                self.pool.give(held);
            }
        } else {
            let slot = &mut self.slot.mlp[layer];
            (slot.gate, slot.up, slot.activated) = (Some(gate), Some(up), Some(activated));
        }
        assert!(self.slot.branch.is_none(), "a branch was left unread before the shared part");
        self.slot.branch = Some(Sum { data: branch, whole: dims.alone() });
    }

    /// After the compute (`None`) or a delivery: once it was the last, the layer's output is whole.
    pub(super) fn end_experts_forward(&mut self, layer: usize, after: Option<UnitTensor>) {
        let experts = self.dims.experts();
        if experts.last_forward(self.dims.tensor) != after {
            return;
        }
        let routed = self.slot.experts[layer].routed.take().expect("what experts gave came back");
        self.finish_branch(layer, routed);
    }
}

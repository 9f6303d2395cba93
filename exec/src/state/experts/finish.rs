//! The end of a layer of experts: the routed and the shared part meet.

use ir::program::{BufferKind, CollectiveKind, Pass, UnitTensor};

use super::router::dot;
use crate::kernels::elementwise::{accumulate, accumulate_scaled};
use crate::parcels::parts;
use crate::state::buffers::Held;
use crate::state::slot::Sum;
use crate::state::work::Work;

impl Work<'_> {
    /// Adds the shared part to the routed one, scaled by its gate, as the whole branch.
    pub(super) fn finish_branch(&mut self, layer: usize, mut routed: Held) {
        self.pool.relabel(&mut routed, BufferKind::Activations);
        if self.dims.experts().shared_ffn > 0 {
            let Sum { data: mut shared, whole } = self.slot.branch.take().expect("what the shared part gave");
            assert!(whole, "the shared part was read before it was summed over the tensor group");
            self.dims.formats.round(&mut shared);
            let slot = &mut self.slot.experts[layer];
            match slot.shared_gate.as_deref() {
                None => {
                    accumulate(&mut routed, &shared);
                    self.pool.give(shared);
                }
                Some(gates) => {
                    let hidden = self.dims.hidden;
                    let rows = routed.chunks_exact_mut(hidden).zip(shared.chunks_exact(hidden));
                    rows.zip(gates).for_each(|((routed, shared), gate)| accumulate_scaled(routed, *gate, shared));
                    // A layer that is computed again is not summed over the tensor group again, so this is kept.
                    self.pool.release(&mut slot.shared);
                    slot.shared = Some(shared);
                }
            }
        }
        self.dims.formats.round(&mut routed);
        assert!(self.slot.branch.is_none(), "a branch was left unread before the output of the experts");
        self.slot.branch = Some(Sum { data: routed, whole: true });
    }

    /// The gradient of the shared part's output on this rank's tokens, where a gate makes it another than the layer's; and
    /// the gradient of the gate.
    pub(super) fn gate_gradient(&mut self, layer: usize) -> Option<Held> {
        let (dims, kind) = (self.dims, self.gradient_kind());
        let slot = &mut self.slot.experts[layer];
        let gates = slot.shared_gate.as_deref()?;
        let gradient = self.slot.residual_gradient.as_deref().expect("the residual gradient arrived");
        let shared = slot.shared.as_deref().expect("what the shared part gave was kept");
        let mut d_shared = self.pool.take(BufferKind::Workspace, dims.residual());
        let mut d_gate = self.pool.take(kind, dims.rows);
        let rows = gradient.chunks_exact(dims.hidden).zip(shared.chunks_exact(dims.hidden));
        let out = d_shared.chunks_exact_mut(dims.hidden).zip(d_gate.iter_mut());
        for (((gradient, shared), &gate), (d_shared, d_gate)) in rows.zip(gates).zip(out) {
            *d_gate = dot(gradient, shared) * gate * (1.0 - gate);
            d_shared.iter_mut().zip(gradient).for_each(|(d_shared, gradient)| *d_shared = gate * gradient);
        }
        dims.formats.round(&mut d_shared);
        self.pool.release(&mut slot.d_shared_gate);
        slot.d_shared_gate = Some(d_gate);
        Some(d_shared)
    }

    /// The gradient of a gated shared part's output, for the ranks that share the part.
    pub(in crate::state) fn pack_gated(&mut self, layer: usize, out: &mut Vec<f32>) {
        let mut gradient = self.gate_gradient(layer);
        out.clear();
        out.extend_from_slice(gradient.as_deref().expect("a gated shared part"));
        self.pool.release(&mut gradient);
    }

    /// Elements of a copy that goes back: with the gradient of its weight on the way down.
    fn each_leaving(&self) -> usize {
        self.dims.hidden + usize::from(!self.upwards())
    }

    /// What this rank puts into an exchange of a layer of experts.
    pub(in crate::state) fn pack_experts(
        &mut self,
        layer: usize,
        tensor: UnitTensor,
        kind: CollectiveKind,
        out: &mut Vec<f32>,
    ) {
        let each = self.each_leaving();
        match (tensor, kind) {
            (UnitTensor::RouterStatistics, _) => {
                let statistics = self.slot.experts[layer].statistics.as_deref().expect("counted by the router");
                out.clear();
                out.extend_from_slice(statistics);
            }
            (UnitTensor::Dispatched, _) => self.pack_copies(layer, out),
            // Of ranks that all hold the same experts, each begins with its own copies.
            (UnitTensor::ExpertInput, CollectiveKind::AllGather) if self.dims.experts().ranks == 1 => {
                self.pack_copies(layer, out);
            }
            (UnitTensor::ExpertInput, CollectiveKind::AllGather) => {
                let slot = &mut self.slot.experts[layer];
                out.clear();
                out.extend_from_slice(slot.arrived.as_deref().expect("copies arrived"));
                self.pool.release(&mut slot.arrived);
            }
            (UnitTensor::ExpertInput, _) => self.pack_partial(layer, each, out),
            (UnitTensor::Combined, _) => self.pack_leaving(layer, each, out),
            _ => panic!("no {} of {tensor:?} in a layer of experts", kind.name()),
        }
    }

    fn pack_copies(&mut self, layer: usize, out: &mut Vec<f32>) {
        if self.upwards() { self.pack_inputs(layer, out) } else { self.pack_gradients(layer, out) }
    }

    /// Takes what an exchange of a layer of experts gave.
    pub(in crate::state) fn take_experts(
        &mut self,
        layer: usize,
        tensor: UnitTensor,
        kind: CollectiveKind,
        result: &[f32],
    ) {
        let each = self.each_leaving();
        match (tensor, kind) {
            (UnitTensor::RouterStatistics, _) => {
                let slot = &mut self.slot.experts[layer];
                slot.statistics.as_mut().expect("contributed before").copy_from_slice(result);
            }
            (UnitTensor::Dispatched, _) | (UnitTensor::ExpertInput, CollectiveKind::AllGather) => {
                let arrived = self.pool.copy_varying(BufferKind::Communication, result);
                assert!(self.slot.experts[layer].arrived.replace(arrived).is_none(), "copies arrived twice");
            }
            (UnitTensor::ExpertInput, _) => {
                self.take_partial(layer, each, result);
                if self.dims.experts().ranks == 1 {
                    let came = self.slot.experts[layer].leaving.take().expect("just taken");
                    self.take_back(layer, UnitTensor::ExpertInput, &[&came]);
                    self.pool.give(came);
                }
            }
            (UnitTensor::Combined, _) => {
                let came = parts(result, 1, self.dims.experts().ranks);
                self.take_back(layer, UnitTensor::Combined, &came);
            }
            _ => panic!("no {} of {tensor:?} in a layer of experts", kind.name()),
        }
    }

    /// Copies are back with their tokens.
    fn take_back(&mut self, layer: usize, after: UnitTensor, came: &[&[f32]]) {
        if self.upwards() {
            self.sum_copies(layer, came, None);
            self.end_experts_forward(layer, Some(after));
        } else {
            self.sum_gradients(layer, came);
            self.end_experts_backward(layer, Some(after));
        }
    }

    /// A tensor collective of a layer of experts was delivered: the shared part's.
    pub(in crate::state) fn shared_delivered(&mut self, layer: usize, tensor: UnitTensor) {
        match tensor {
            UnitTensor::Output if self.pass == Pass::Forward => self.end_experts_forward(layer, Some(tensor)),
            UnitTensor::InputGradient => self.end_experts_backward(layer, Some(tensor)),
            _ => {}
        }
    }
}

//! Copies between device and host memory.
//!
//! What layers keep of a microbatch leaves in the order of the layers and comes back in the opposite order, so that the
//! layers in host memory are a stack.

use ir::ChunkId;
use ir::MicrobatchId;
use ir::program::{BufferKind, HostCopy};

use super::RankState;
use super::buffers::{Held, Pool};
use super::slot::Slot;

/// What a layer keeps, in host memory, in the order of [`Slot::kept`].
pub(super) type Away = Vec<Option<Held>>;

impl RankState {
    /// Carries out a copy to host memory (`out`) or back.
    ///
    /// # Panics
    /// If what is to be copied is not there, which a verified program rules out.
    pub fn host_copy(&mut self, what: HostCopy, out: bool) {
        match (what, out) {
            (HostCopy::Parameters { .. }, _) => panic!("{}: {what:?} is refused before it is loaded", self.rank),
            (HostCopy::Activations { chunk, microbatch }, true) => self.layer_leaves(chunk, microbatch),
            (HostCopy::Activations { chunk, microbatch }, false) => self.layer_returns(chunk, microbatch),
            (HostCopy::OptimizerState, true) => self.gradients_leave(),
            (HostCopy::OptimizerState, false) => {
                self.all_parameters_mut().for_each(|parameters| parameters.take_master(parameters.formats));
            }
        }
    }

    fn layer_leaves(&mut self, chunk: ChunkId, microbatch: MicrobatchId) {
        let index = self.slot_index(self.local(chunk), microbatch);
        let (pool, host) = (&mut self.pool, &mut self.host);
        let slot = self.slots[index].as_mut().unwrap_or_else(|| panic!("{chunk} has not run {microbatch}"));
        let layer = slot.away.len();
        let read = slot.latest.is_some_and(|latest| latest > 2 * layer + 1);
        assert!(read, "layer {layer} of {chunk} leaves before the next one has read its output");
        let away: Away = slot
            .kept(layer)
            .into_iter()
            .map(|held| {
                let held = held.take()?;
                let copy = host.copy_of(&held, BufferKind::Activations);
                pool.give(held);
                Some(copy)
            })
            .collect();
        slot.away.push(away);
    }

    fn layer_returns(&mut self, chunk: ChunkId, microbatch: MicrobatchId) {
        let index = self.slot_index(self.local(chunk), microbatch);
        let (pool, host) = (&mut self.pool, &mut self.host);
        let slot = self.slots[index].as_mut().unwrap_or_else(|| panic!("{chunk} has not run {microbatch}"));
        let away = slot.away.pop().unwrap_or_else(|| panic!("nothing of {chunk} {microbatch} is in host memory"));
        let layer = slot.away.len();
        for (place, held) in slot.kept(layer).into_iter().zip(away) {
            let Some(held) = held else { continue };
            *place = Some(pool.copy_of(&held, BufferKind::Activations));
            host.give(held);
        }
    }

    fn gradients_leave(&mut self) {
        for parameters in self.all_parameters_mut() {
            let own: Vec<_> = (0..parameters.segments.len()).map(|segment| parameters.own_range(segment)).collect();
            for (segment, range) in own.into_iter().enumerate() {
                let part = parameters.segments[segment].part_of(parameters.sharing.index);
                let from = match &parameters.own_gradients {
                    Some(own) => own.view().part(range.clone()),
                    None => parameters.gradients.piece(segment).part(part),
                };
                let host = parameters.optimizer.host_gradients().expect("the optimizer is in host memory");
                host.part(range).copy_from(from);
            }
        }
    }
}

impl Slot {
    /// What a layer keeps from its forward to its backward pass.
    fn kept(&mut self, layer: usize) -> Vec<&mut Option<Held>> {
        let attention = &mut self.attention[layer];
        let mlp = &mut self.mlp[layer];
        let mut kept =
            vec![&mut attention.q, &mut attention.k, &mut attention.v, &mut attention.out, &mut attention.lse];
        kept.extend(attention.raw.iter_mut());
        kept.extend([&mut mlp.gate, &mut mlp.up, &mut mlp.activated]);
        for sublayer in &mut self.sublayers[2 * layer..2 * layer + 2] {
            kept.extend([&mut sublayer.input, &mut sublayer.statistics, &mut sublayer.output]);
            kept.extend([&mut sublayer.branch, &mut sublayer.branch_statistics]);
        }
        kept
    }

    /// Gives back what is in host memory.
    pub(super) fn release_away(&mut self, host: &mut Pool) {
        for held in self.away.drain(..).flatten().flatten() {
            host.give(held);
        }
    }
}

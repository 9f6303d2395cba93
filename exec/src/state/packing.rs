//! Exchanges whose parts are put together when they begin: those of experts, and of sequences that ranks share.

use ir::program::{CollectiveKind, Pass, Payload, Unit, UnitRange, UnitTensor};
use ir::{ChunkId, ContextMethod, MicrobatchId};

use super::offered::Offered;
use super::slot::Stage;
use super::values::View;
use super::{RankState, size};

/// What of a chunk an exchange is of.
struct Place {
    tensor: UnitTensor,
    local: usize,
    position: u32,
    unit: Unit,
    /// Among those of the chunk.
    layer: usize,
    microbatch: MicrobatchId,
    pass: Pass,
}

/// Whether a tensor is put together when its exchange begins, and taken apart when it ends.
pub(super) const fn is_packed(tensor: UnitTensor) -> bool {
    is_of_context(tensor)
        || matches!(
            tensor,
            UnitTensor::Dispatched | UnitTensor::Combined | UnitTensor::ExpertInput | UnitTensor::RouterStatistics
        )
}

const fn is_of_context(tensor: UnitTensor) -> bool {
    matches!(tensor, UnitTensor::KeysAndValues | UnitTensor::Heads)
}

impl RankState {
    /// Whether what this rank puts into a collective is there yet. Only an exchange that runs beside the instruction that
    /// computes it may have to wait, though the program lets it begin: keys and values that go round.
    ///
    /// # Panics
    /// If the rank does not hold the chunk.
    #[must_use]
    pub fn offers(&self, kind: CollectiveKind, payload: Payload) -> bool {
        let Payload::Activation { tensor: UnitTensor::KeysAndValues, chunk, unit, microbatch, pass } = payload else {
            return true;
        };
        match self.dims.context.method {
            ContextMethod::AllGather | ContextMethod::AllToAll => true,
            ContextMethod::Ring => {
                let stage = self.stage(chunk, unit, microbatch);
                match kind {
                    CollectiveKind::ReduceScatter => stage == Stage::Gradients,
                    CollectiveKind::AllGather | CollectiveKind::AllReduce | CollectiveKind::AllToAll => {
                        !matches!(pass, Pass::Forward | Pass::Recompute) || stage != Stage::Start
                    }
                }
            }
        }
    }

    /// Whether an instruction that [paused](super::Progress::Paused) has something to go on with; what an exchange that is
    /// still `under_way` brings does not count.
    ///
    /// # Panics
    /// If the rank does not hold the chunk.
    #[must_use]
    pub fn continues(&self, chunk: ChunkId, units: UnitRange, microbatch: MicrobatchId, under_way: bool) -> bool {
        let local = self.local(chunk);
        let Some(slot) = &self.slots[self.slot_index(local, microbatch)] else { return false };
        let Unit::Attention(layer) = self.program.chunk(chunk).unit(units.start) else { return false };
        let attention = &slot.attention[size(layer - self.program.chunk(chunk).first_layer)];
        match attention.stage {
            Stage::Start | Stage::Projected => true,
            Stage::Own => !under_way && attention.gathered.is_some(),
            Stage::Gradients => !under_way && attention.dk.is_some(),
        }
    }

    fn stage(&self, chunk: ChunkId, unit: u32, microbatch: MicrobatchId) -> Stage {
        let slot = &self.slots[self.slot_index(self.local(chunk), microbatch)];
        let position = self.program.chunk(chunk);
        match (slot, position.unit(unit)) {
            (Some(slot), Unit::Attention(layer)) => slot.attention[size(layer - position.first_layer)].stage,
            _ => Stage::Start,
        }
    }

    fn place(&self, payload: Payload) -> Place {
        let Payload::Activation { tensor, chunk, unit: position, microbatch, pass } = payload else {
            panic!("{payload:?} is no activation");
        };
        let (local, chunk) = (self.local(chunk), self.program.chunk(chunk));
        let unit = chunk.unit(position);
        let layer = match unit {
            Unit::Attention(layer) | Unit::Mlp(layer) => size(layer - chunk.first_layer),
            _ => panic!("{}: no exchange of {tensor:?} at {unit:?}", self.rank),
        };
        Place { tensor, local, position, unit, layer, microbatch, pass }
    }

    /// Whether a payload is the gradient of a shared part's output that a gate scales, so that it is not the layer's.
    pub(super) fn is_gated(&self, payload: Payload) -> bool {
        let Payload::Activation { tensor: UnitTensor::OutputGradient, chunk, unit, .. } = payload else { return false };
        let (local, chunk) = (self.local(chunk), self.program.chunk(chunk));
        let Unit::Mlp(layer) = chunk.unit(unit) else { return false };
        let router = self.chunks[local].1.places.routers[size(layer - chunk.first_layer)];
        router.is_some_and(|places| places.shared_gate.is_some())
    }

    /// What this rank puts into an exchange.
    pub(super) fn pack(&mut self, kind: CollectiveKind, payload: Payload) -> Offered<'_> {
        let Place { tensor, local, position, layer, microbatch, pass, .. } = self.place(payload);
        let mut out = std::mem::take(&mut self.joined);
        self.with_work((pass, local, microbatch), position, |work| {
            if is_of_context(tensor) {
                work.prepare_context(layer);
                work.pack_context(layer, kind, &mut out);
            } else if tensor == UnitTensor::OutputGradient {
                work.pack_gated(layer, out.numbers());
            } else {
                work.pack_experts(layer, tensor, kind, out.numbers());
            }
        });
        self.joined = out;
        self.joined.offered()
    }

    /// Takes what an exchange gave.
    pub(super) fn unpack(&mut self, kind: CollectiveKind, payload: Payload, result: View<'_>) {
        let Place { tensor, local, position, unit, layer, microbatch, pass } = self.place(payload);
        let outcome = self.with_work((pass, local, microbatch), position, |work| {
            if is_of_context(tensor) {
                return work.take_context(layer, kind, result);
            }
            work.take_experts(layer, tensor, kind, result.host());
            Ok(())
        });
        self.remember(unit, local, (microbatch, pass));
        let outcome = self.found().map_or(outcome, |(suspect, _)| Err(suspect));
        if let Err(suspect) = outcome {
            self.suspect = Some(self.explain(suspect, unit, local, (microbatch, pass)));
        }
    }

    /// After a tensor collective of a feed-forward part: with experts, their part and the shared one may meet now.
    pub(super) fn delivered_to_experts(&mut self, payload: Payload) {
        let Payload::Activation { tensor, chunk, unit: position, microbatch, pass } = payload else { return };
        let (local, chunk) = (self.local(chunk), self.program.chunk(chunk));
        if let Unit::Mlp(layer) = chunk.unit(position) {
            let layer = size(layer - chunk.first_layer);
            if self.chunks[local].1.places.routers[layer].is_some() {
                self.with_work((pass, local, microbatch), position, |work| work.shared_delivered(layer, tensor));
            }
        }
    }
}

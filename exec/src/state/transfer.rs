//! Both ends of collectives and messages.
//!
//! | payload | contribution | result |
//! |---|---|---|
//! | activation, `AllReduce` | `[tokens, hidden]` | the same, summed |
//! | activation, `ReduceScatter` | `[tokens, hidden]` | `[tokens / tensor, hidden]`, part `tensor_index` |
//! | activation, `AllGather` | `[tokens / tensor, hidden]` | `[tokens, hidden]` |
//! | loss statistics, `AllGather` | `[3, tokens]` | `[tensor, 3, tokens]` |
//! | of experts and of shared sequences | as [`super::experts`] and [`super::context`] say | |
//! | gradients (also of experts), `AllReduce` | the chunk's flat vector | the same, summed |
//! | gradients, `ReduceScatter` | the chunk's flat vector, padded | this replica's part |
//! | parameters, `AllGather` | this replica's part | the chunk's flat vector, padded |
//! | replicated gradients, `AllReduce` | those of all norms of this rank, joined | the same, summed |
//! | tied gradients, `AllReduce` | `[padded vocabulary / tensor, hidden]` | the same, summed |
//! | gradient norm, `AllReduce` | the bits of one FP64 in two FP32, high half first | the sum of the FP64s, likewise |

use ir::program::{BufferKind, CollectiveKind, Direction, Message, Payload, Unit, UnitTensor};
use ir::{ChunkId, MicrobatchId};

use super::RankState;
use super::buffers::{Held, Pool};
use super::packing::is_packed;
use super::parameters::Parameters;
use super::places::Place;
use super::slot::{Slot, Sum};

/// A collective's activation: which, of what.
#[derive(Debug, Clone, Copy)]
struct Site {
    tensor: UnitTensor,
    chunk: ChunkId,
    unit: Unit,
    microbatch: MicrobatchId,
}

impl RankState {
    /// What this rank puts into a collective.
    ///
    /// # Panics
    /// If it has not been computed.
    pub fn contribution(&mut self, kind: CollectiveKind, payload: Payload) -> &[f32] {
        match payload {
            Payload::Activation { tensor, .. } if is_packed(tensor) || self.is_gated(payload) => {
                self.pack(kind, payload)
            }
            Payload::Activation { .. } => {
                let site = self.site(payload);
                let layers = self.program.chunk(site.chunk).first_layer;
                let rank = self.rank;
                let held = activation(self.slot(site.chunk, site.microbatch), site, layers);
                held.unwrap_or_else(|| panic!("{rank} has nothing for the {} of {payload:?}", kind.name()))
            }
            Payload::Gradients { .. } | Payload::ExpertGradients { .. } => &self.over_replicas(payload).gradients,
            Payload::Parameters { .. } | Payload::ExpertParameters { .. } => {
                let parameters = self.over_replicas(payload);
                &parameters.weights[parameters.own()]
            }
            Payload::ReplicatedGradients => {
                self.replicated.clear();
                for (_, parameters) in &self.chunks {
                    for place in parameters.places.replicated() {
                        self.replicated.extend_from_slice(place.of(&parameters.gradients));
                    }
                }
                &self.replicated
            }
            Payload::TiedGradients => {
                let (local, place) = self.tied();
                place.of(&self.chunks[local].1.gradients)
            }
            Payload::GradientNorm => {
                self.norm_halves = halves(self.squared_norm);
                &self.norm_halves
            }
            Payload::UnitParameters { .. } | Payload::UnitGradients { .. } => {
                panic!("{}: {payload:?} is refused before it is loaded", self.rank)
            }
        }
    }

    /// Takes the result of a collective.
    ///
    /// # Panics
    /// If it has not the size that the kind and payload say.
    pub fn deliver(&mut self, kind: CollectiveKind, payload: Payload, result: &[f32]) {
        match payload {
            Payload::Activation { tensor, .. } if is_packed(tensor) => self.unpack(kind, payload, result),
            Payload::Activation { .. } => {
                self.deliver_activation(kind, payload, result);
                self.delivered_to_experts(payload);
            }
            Payload::Gradients { .. } | Payload::ExpertGradients { .. } => {
                let rank = self.rank;
                let parameters = self.over_replicas(payload);
                let range = match kind {
                    CollectiveKind::AllReduce => 0..parameters.gradients.len(),
                    CollectiveKind::ReduceScatter => parameters.own(),
                    CollectiveKind::AllGather | CollectiveKind::AllToAll => {
                        panic!("{rank}: no {} of gradients", kind.name())
                    }
                };
                parameters.gradients[range].copy_from_slice(result);
            }
            Payload::Parameters { .. } | Payload::ExpertParameters { .. } => {
                self.over_replicas(payload).weights.copy_from_slice(result);
            }
            Payload::ReplicatedGradients => {
                let mut rest = result;
                for (_, parameters) in &mut self.chunks {
                    for place in parameters.places.replicated() {
                        let (part, after) = rest.split_at(place.len());
                        place.of_mut(&mut parameters.gradients).copy_from_slice(part);
                        rest = after;
                    }
                }
                assert!(rest.is_empty(), "{}: {} replicated gradients too many", self.rank, rest.len());
            }
            Payload::TiedGradients => {
                let (local, place) = self.tied();
                place.of_mut(&mut self.chunks[local].1.gradients).copy_from_slice(result);
            }
            Payload::GradientNorm => {
                let [high, low] = result else { panic!("{}: an FP64 in {} halves", self.rank, result.len()) };
                self.squared_norm = f64::from_bits(u64::from(high.to_bits()) << 32 | u64::from(low.to_bits()));
            }
            Payload::UnitParameters { .. } | Payload::UnitGradients { .. } => {
                panic!("{}: {payload:?} is refused before it is loaded", self.rank)
            }
        }
    }

    /// The boundary tensor of a message from this rank, `[rows, hidden]`: once, since the rank then forgets it. Its
    /// buffer is used again by the next call.
    ///
    /// # Panics
    /// If it has not been computed, or was handed out before.
    pub fn outgoing(&mut self, message: Message) -> &[f32] {
        let held = match message.direction {
            Direction::Forward => self.chunk_output(message.edge, message.microbatch),
            Direction::Backward => {
                let mut held = self.departing_gradients.remove(&(message.edge, message.microbatch));
                if held.is_none() && self.holds(message.edge) {
                    // A message to itself: the gradient went to the chunk before already.
                    held = self.slot(message.edge, message.microbatch).residual_gradient.take();
                }
                held.unwrap_or_else(|| panic!("{} has nothing to send for {message:?}", self.rank))
            }
        };
        self.pool.release(&mut self.departing);
        let departing = self.departing.insert(held);
        self.pool.relabel(departing, BufferKind::Communication);
        departing
    }

    /// Takes the boundary tensor of a message to this rank.
    ///
    /// # Panics
    /// If it has not the size of this rank's residual stream.
    pub fn incoming(&mut self, message: Message, data: &[f32]) {
        assert_eq!(data.len(), self.dims.residual(), "{}: size of {message:?}", self.rank);
        let held = self.pool.copy(BufferKind::Communication, data);
        match message.direction {
            Direction::Forward => {
                let chunk = ChunkId::new(message.edge.raw() + 1);
                self.slot(chunk, message.microbatch).branch = Some(Sum { data: held, whole: true });
            }
            Direction::Backward => self.slot(message.edge, message.microbatch).residual_gradient = Some(held),
        }
    }

    fn deliver_activation(&mut self, kind: CollectiveKind, payload: Payload, result: &[f32]) {
        let site = self.site(payload);
        let first_layer = self.program.chunk(site.chunk).first_layer;
        let (whole, part) = (self.dims.activation(), self.dims.residual());
        let index = self.slot_index(self.local(site.chunk), site.microbatch);
        let slot =
            self.slots[index].as_mut().unwrap_or_else(|| panic!("{} never contributed to {payload:?}", self.rank));
        let pool = &mut self.pool;
        match (site.tensor, kind) {
            (UnitTensor::Output, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) => {
                replace(slot.branch.as_mut().expect("contributed before"), pool, result, part);
            }
            (UnitTensor::InputGradient, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) => {
                let index = sublayer(slot, site.unit, first_layer);
                replace(slot.sublayers[index].input_gradient.as_mut().expect("contributed before"), pool, result, part);
            }
            (UnitTensor::Input, CollectiveKind::AllGather) => {
                assert_eq!(result.len(), whole, "size of {payload:?}");
                let gathered = pool.copy(BufferKind::Communication, result);
                let index = sublayer(slot, site.unit, first_layer);
                slot.sublayers[index].gathered = Some(gathered);
            }
            (UnitTensor::OutputGradient, CollectiveKind::AllGather) => {
                assert_eq!(result.len(), whole, "size of {payload:?}");
                let gathered = Some(pool.copy(BufferKind::Communication, result));
                match site.unit {
                    Unit::Embedding => slot.embedding_gradient = gathered,
                    unit => {
                        let index = sublayer(slot, unit, first_layer);
                        slot.sublayers[index].output_gradient = gathered;
                    }
                }
            }
            (UnitTensor::LossStatistics, CollectiveKind::AllGather) => {
                slot.head.all_statistics = Some(pool.copy(BufferKind::Logits, result));
            }
            (tensor, kind) => panic!("{}: no {} of {tensor:?}", self.rank, kind.name()),
        }
    }

    /// The parameters of a chunk that a collective over replicas is of.
    fn over_replicas(&mut self, payload: Payload) -> &mut Parameters {
        match payload {
            Payload::Gradients { chunk } | Payload::Parameters { chunk } => {
                let local = self.local(chunk);
                &mut self.chunks[local].1
            }
            Payload::ExpertGradients { chunk } | Payload::ExpertParameters { chunk } => {
                let (local, rank) = (self.local(chunk), self.rank);
                self.experts[local].as_mut().unwrap_or_else(|| panic!("{rank} has no experts of {chunk}"))
            }
            payload => panic!("{}: {payload:?} is not over replicas", self.rank),
        }
    }

    fn site(&self, payload: Payload) -> Site {
        let Payload::Activation { tensor, chunk, unit, microbatch, pass: _ } = payload else {
            panic!("{payload:?} is no activation");
        };
        Site { tensor, chunk, unit: self.program.chunk(chunk).unit(unit), microbatch }
    }

    /// The table that is tied to another rank's, in which of the held chunks.
    fn tied(&self) -> (usize, Place) {
        let found = self.chunks.iter().enumerate().find_map(|(local, (id, parameters))| {
            let chunk = self.program.chunk(*id);
            let places = &parameters.places;
            let place = places.embedding.filter(|_| chunk.embedding).or(places.head.filter(|_| chunk.head))?;
            Some((local, place))
        });
        found.unwrap_or_else(|| panic!("{} holds neither embedding nor head", self.rank))
    }
}

/// The bits of an FP64 number in two FP32 numbers, high half first.
fn halves(number: f64) -> [f32; 2] {
    let bits = number.to_bits();
    [bits >> 32, bits & 0xffff_ffff].map(|half| f32::from_bits(u32::try_from(half).expect("32 bits")))
}

/// What a slot has for a collective.
fn activation(slot: &Slot, site: Site, first_layer: u32) -> Option<&[f32]> {
    match site.tensor {
        UnitTensor::Output => slot.branch.as_ref().map(|sum| &*sum.data),
        UnitTensor::Input => slot.sublayers[sublayer(slot, site.unit, first_layer)].output.as_deref(),
        UnitTensor::OutputGradient => slot.residual_gradient.as_deref(),
        UnitTensor::InputGradient => {
            slot.sublayers[sublayer(slot, site.unit, first_layer)].input_gradient.as_ref().map(|sum| &*sum.data)
        }
        UnitTensor::LossStatistics => slot.head.statistics.as_deref(),
        UnitTensor::Logits => panic!("{site:?} is refused before it is loaded"),
        UnitTensor::KeysAndValues
        | UnitTensor::Heads
        | UnitTensor::Dispatched
        | UnitTensor::Combined
        | UnitTensor::ExpertInput
        | UnitTensor::RouterStatistics => panic!("{site:?} is put together, not held"),
    }
}

/// The sublayer that a unit belongs to.
fn sublayer(slot: &Slot, unit: Unit, first_layer: u32) -> usize {
    let local = |layer: u32| super::size(layer - first_layer);
    match unit {
        Unit::AttentionNorm(layer) | Unit::Attention(layer) => 2 * local(layer),
        Unit::MlpNorm(layer) | Unit::Mlp(layer) => 2 * local(layer) + 1,
        Unit::FinalNorm | Unit::Head => slot.sublayers.len() - 1,
        Unit::Embedding | Unit::Loss => panic!("{unit:?} follows no norm"),
    }
}

/// Puts the reduced result where the summand was: in place if it is whole, in a smaller buffer if it is this rank's part.
fn replace(sum: &mut Sum, pool: &mut Pool, result: &[f32], part: usize) {
    assert!(!sum.whole, "a sum was delivered twice");
    assert_eq!(result.len(), part, "size of a reduced activation");
    if sum.data.len() == result.len() {
        sum.data.copy_from_slice(result);
    } else {
        let smaller: Held = pool.copy(BufferKind::Activations, result);
        pool.give(std::mem::replace(&mut sum.data, smaller));
    }
    sum.whole = true;
}

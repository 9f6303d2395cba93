//! Both ends of collectives; those of messages are in [`super::boundary`].
//!
//! | payload | contribution | result |
//! |---|---|---|
//! | activation, `AllReduce` | `[tokens, hidden]` | the same, summed |
//! | activation, `ReduceScatter` | `[tokens, hidden]` | `[tokens / tensor, hidden]`, part `tensor_index` |
//! | activation, `AllGather` | `[tokens / tensor, hidden]` | `[tokens, hidden]` |
//! | loss statistics, `AllGather` | `[3, tokens]` | `[tensor, 3, tokens]` |
//! | of experts and of shared sequences | as [`super::experts`] and [`super::context`] say | |
//! | gradients (of experts too), `AllReduce` | the part of the chunk that this rank steps | the same, summed |
//! | gradients, `ReduceScatter` | the chunk's gradients, padded, by the rank that steps them | this rank's part |
//! | parameters (of experts too), `AllGather` | this rank's part | the chunk's parameters, padded, by the rank that steps them |
//! | gradients of a unit, `ReduceScatter` | those of its part of the chunk, padded, likewise | this rank's part |
//! | gradients of a unit, `AllReduce` | this rank's part of those | the same, summed |
//! | parameters of a unit, `AllGather` | this rank's part of its part of the chunk | the whole of it, likewise |
//! | replicated gradients, `AllReduce` | those of all norms of this rank, joined | the same, summed |
//! | tied gradients, `AllReduce` | `[padded vocabulary / tensor, hidden]` | the same, summed |
//! | gradient norm, `AllReduce` | the bits of one FP64 in two FP32, high half first | the sum of the FP64s, likewise |

use ir::program::{BufferKind, CollectiveKind, Payload, Unit, UnitTensor};
use ir::{ChunkId, MicrobatchId, ParallelBranches, Rank};

use super::RankState;
use super::buffers::{Held, Pool};
use super::formats::Formats;
use super::offered::{Got, Joined, Offered};
use super::packing::is_packed;
use super::parameters::{Of, Parameters};
use super::places::Place;
use super::slot::{Slot, Sum};
use super::values::View;

/// A collective's activation: which, of what.
#[derive(Debug, Clone, Copy)]
struct Site {
    tensor: UnitTensor,
    chunk: ChunkId,
    unit: Unit,
    microbatch: MicrobatchId,
}

/// What a collective over ranks that hold the same touches.
struct OverReplicas<'a> {
    rank: Rank,
    formats: Formats,
    parameters: &'a mut Parameters,
    pool: &'a mut Pool,
    joined: &'a mut Joined,
}

impl RankState {
    /// What this rank puts into a collective.
    ///
    /// # Panics
    /// If it has not been computed, or lies where exchanges take it from a device.
    pub fn contribution(&mut self, kind: CollectiveKind, payload: Payload) -> &[f32] {
        self.offer(kind, payload).host()
    }

    /// Takes the result of a collective.
    ///
    /// # Panics
    /// If it has not the size that the kind and payload say.
    pub fn deliver(&mut self, kind: CollectiveKind, payload: Payload, result: &[f32]) {
        self.accept(kind, payload, Got::Host(result));
    }

    /// [`contribution`](Self::contribution), wherever it lies.
    pub(crate) fn offer(&mut self, kind: CollectiveKind, payload: Payload) -> Offered<'_> {
        match payload {
            Payload::Activation { tensor, .. } if is_packed(tensor) || self.is_gated(payload) => {
                self.pack(kind, payload)
            }
            Payload::Activation { .. } => {
                let site = self.site(payload);
                let layers = self.program.chunk(site.chunk).first_layer;
                let (rank, branches) = (self.rank, self.dims.branches);
                let index = self.slot_index(self.local(site.chunk), site.microbatch);
                let held = self.slots[index].as_ref().and_then(|slot| activation(slot, site, layers, branches));
                let held = held.unwrap_or_else(|| panic!("{rank} has nothing for the {} of {payload:?}", kind.name()));
                self.joined.whole(held.view())
            }
            Payload::Gradients { .. } | Payload::ExpertGradients { .. } => {
                let OverReplicas { rank, formats, parameters, joined, .. } = self.over_replicas(payload);
                match kind {
                    CollectiveKind::ReduceScatter => parameters.gradients_to_scatter(None, formats, joined),
                    CollectiveKind::AllReduce => parameters.part_gradients(None, formats, joined),
                    CollectiveKind::AllGather | CollectiveKind::AllToAll => {
                        panic!("{rank}: no {} of gradients", kind.name())
                    }
                }
            }
            Payload::Parameters { .. } | Payload::ExpertParameters { .. } => {
                let OverReplicas { formats, parameters, joined, .. } = self.over_replicas(payload);
                parameters.stepped_weights(formats, joined)
            }
            Payload::UnitParameters { unit, pass, .. } => {
                let OverReplicas { formats, parameters, joined, .. } = self.over_replicas(payload);
                parameters.part_weights((pass, unit), formats, joined)
            }
            Payload::UnitGradients { unit, microbatch, .. } => {
                let others = self.is_others(microbatch);
                let OverReplicas { formats, parameters, joined, .. } = self.over_replicas(payload);
                match kind {
                    CollectiveKind::AllReduce => parameters.part_gradients(Some(unit), formats, joined),
                    CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll if others => {
                        parameters.nothing_to_scatter(unit, formats, joined)
                    }
                    CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll => {
                        parameters.gradients_to_scatter(Some(unit), formats, joined)
                    }
                }
            }
            Payload::ReplicatedGradients => {
                let (sequence, by_head) = (self.dims.sequence_parallel, self.dims.tensor > 1);
                self.joined.clear();
                for (_, parameters) in &self.chunks {
                    let places = parameters.places.replicated(sequence, by_head).into_iter();
                    for seen in places.filter_map(|place| parameters.visible(place)) {
                        self.joined.append(parameters.seen(seen));
                    }
                }
                self.joined.offered()
            }
            Payload::TiedGradients => {
                let (local, place) = self.tied();
                let parameters = &self.chunks[local].1;
                let seen = parameters.visible(place).map(|seen| parameters.seen(seen));
                match seen {
                    Some(seen) => self.joined.whole(seen),
                    None => Offered::Host(&[]),
                }
            }
            Payload::GradientNorm => {
                self.norm_halves = halves(self.squared_norm);
                Offered::Host(&self.norm_halves)
            }
        }
    }

    /// [`deliver`](Self::deliver), wherever it lies.
    pub(crate) fn accept(&mut self, kind: CollectiveKind, payload: Payload, result: Got<'_>) {
        let on = self.on.clone();
        let result = View::of(result, on.as_deref());
        match payload {
            Payload::Activation { tensor, .. } if is_packed(tensor) => self.unpack(kind, payload, result),
            Payload::Activation { .. } => {
                self.deliver_activation(kind, payload, result);
                self.delivered_to_experts(payload);
                self.drop_unasked(kind, payload);
            }
            Payload::Gradients { .. } | Payload::ExpertGradients { .. } => {
                let OverReplicas { formats, parameters, .. } = self.over_replicas(payload);
                parameters.take_gradients(None, formats, result);
            }
            Payload::Parameters { .. } | Payload::ExpertParameters { .. } => {
                self.over_replicas(payload).parameters.take_stepped(result);
            }
            Payload::UnitParameters { microbatch, .. } if self.is_others(microbatch) => {}
            Payload::UnitParameters { unit, pass, .. } => {
                let OverReplicas { formats, parameters, pool, .. } = self.over_replicas(payload);
                parameters.take_part((pass, unit), formats, pool, result);
            }
            Payload::UnitGradients { unit, .. } => {
                let OverReplicas { formats, parameters, pool, .. } = self.over_replicas(payload);
                match kind {
                    CollectiveKind::AllReduce => parameters.take_gradients(Some(unit), formats, result),
                    CollectiveKind::ReduceScatter | CollectiveKind::AllGather | CollectiveKind::AllToAll => {
                        if parameters.sharing.scatters {
                            parameters.take_scattered(unit, formats, pool, result);
                        } else {
                            parameters.take_gradients(Some(unit), formats, result);
                        }
                    }
                }
            }
            Payload::ReplicatedGradients => {
                let (sequence, by_head) = (self.dims.sequence_parallel, self.dims.tensor > 1);
                let mut rest = result;
                for (_, parameters) in &mut self.chunks {
                    let places = parameters.places.replicated(sequence, by_head);
                    for seen in places.into_iter().filter_map(|place| parameters.visible(place)).collect::<Vec<_>>() {
                        let gradients = parameters.seen_mut(seen);
                        let (part, after) = rest.split_at(gradients.len());
                        gradients.copy_from(part);
                        rest = after;
                    }
                }
                assert!(rest.len() == 0, "{}: {} replicated gradients too many", self.rank, rest.len());
            }
            Payload::TiedGradients => {
                let (local, place) = self.tied();
                let parameters = &mut self.chunks[local].1;
                if let Some(seen) = parameters.visible(place) {
                    parameters.seen_mut(seen).copy_from(result);
                }
            }
            Payload::GradientNorm => {
                let [high, low] = result.host() else { panic!("{}: an FP64 in {} halves", self.rank, result.len()) };
                self.squared_norm = f64::from_bits(u64::from(high.to_bits()) << 32 | u64::from(low.to_bits()));
            }
        }
    }

    fn deliver_activation(&mut self, kind: CollectiveKind, payload: Payload, result: View<'_>) {
        let site = self.site(payload);
        let first_layer = self.program.chunk(site.chunk).first_layer;
        let (whole, part, formats) = (self.dims.activation(), self.dims.residual(), self.dims.formats);
        let index = self.slot_index(self.local(site.chunk), site.microbatch);
        let slot =
            self.slots[index].as_mut().unwrap_or_else(|| panic!("{} never contributed to {payload:?}", self.rank));
        let pool = &mut self.pool;
        match (site.tensor, kind) {
            (UnitTensor::Output, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) => {
                let branch = slot.branch.as_mut().expect("contributed before");
                replace(branch, pool, result, part);
                formats.round(&mut branch.data);
            }
            (UnitTensor::InputGradient, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) => {
                let index = sublayer(slot, site.unit, first_layer);
                let gradient = slot.sublayers[index].input_gradient.as_mut().expect("contributed before");
                replace(gradient, pool, result, part);
                formats.round(&mut gradient.data);
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
                let mut all = pool.take_single(BufferKind::Logits, result.len());
                all.view_mut().copy_from(result);
                slot.head.all_statistics = Some(all);
            }
            (tensor, kind) => panic!("{}: no {} of {tensor:?}", self.rank, kind.name()),
        }
    }

    /// What a collective over the ranks that hold the same is of: a chunk's experts, or all else of it.
    fn over_replicas(&mut self, payload: Payload) -> OverReplicas<'_> {
        let (chunk, of) = match payload {
            Payload::Gradients { chunk } | Payload::Parameters { chunk } => (chunk, Of::Common),
            Payload::ExpertGradients { chunk } | Payload::ExpertParameters { chunk } => (chunk, Of::Experts),
            Payload::UnitParameters { chunk, experts, .. } | Payload::UnitGradients { chunk, experts, .. } => {
                (chunk, if experts { Of::Experts } else { Of::Common })
            }
            Payload::Activation { .. }
            | Payload::ReplicatedGradients
            | Payload::TiedGradients
            | Payload::GradientNorm => panic!("{}: {payload:?} is not over replicas", self.rank),
        };
        let (local, rank) = (self.local(chunk), self.rank);
        let parameters = match of {
            Of::Common => &mut self.chunks[local].1,
            Of::Experts => self.experts[local].as_mut().unwrap_or_else(|| panic!("{rank} has no experts of {chunk}")),
        };
        let formats = parameters.formats;
        OverReplicas { rank, formats, parameters, pool: &mut self.pool, joined: &mut self.joined }
    }

    /// Whether a microbatch is one that only other replicas have: this one takes part in what they gather and reduce.
    fn is_others(&self, microbatch: MicrobatchId) -> bool {
        microbatch.index() >= self.dims.microbatches
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
fn activation(slot: &Slot, site: Site, first_layer: u32, branches: ParallelBranches) -> Option<&Held> {
    match site.tensor {
        UnitTensor::Output => slot.branch.as_ref().map(|sum| &sum.data),
        UnitTensor::Input => {
            let index = sublayer(slot, site.unit, first_layer);
            // With one norm for both branches, the second reads the first's.
            let in_layers = index < 2 * slot.attention.len();
            let shared = branches == ParallelBranches::OneNorm && in_layers;
            slot.sublayers[if shared { index & !1 } else { index }].output.as_ref()
        }
        UnitTensor::OutputGradient => slot.residual_gradient.as_ref(),
        UnitTensor::InputGradient => {
            slot.sublayers[sublayer(slot, site.unit, first_layer)].input_gradient.as_ref().map(|sum| &sum.data)
        }
        UnitTensor::LossStatistics => slot.head.statistics.as_ref(),
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
fn replace(sum: &mut Sum, pool: &mut Pool, result: View<'_>, part: usize) {
    assert!(!sum.whole, "a sum was delivered twice");
    assert_eq!(result.len(), part, "size of a reduced activation");
    if sum.data.len() == result.len() {
        sum.data.view_mut().copy_from(result);
    } else {
        let smaller: Held = pool.copy(BufferKind::Activations, result);
        pool.give(std::mem::replace(&mut sum.data, smaller));
    }
    sum.whole = true;
}

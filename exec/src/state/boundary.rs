//! Both ends of messages between pipeline positions.
//!
//! A message carries what a rank has of the residual stream, or of its gradient, `[rows, hidden]`. Where the positions
//! beside
//! a boundary differ in their tensor degree and the sequence is divided, the side with fewer ranks has several shards
//! of the
//! other's: it hands its rows out, or gets them, in as many parts, first rows first. Where the sequence is not divided,
//! every
//! rank has all rows: from fewer ranks to more, one hands the same out several times; from more to fewer, ranks that
//! nobody
//! asks give up what they have.

use ir::program::{BufferKind, CollectiveKind, Direction, Message, Payload, RankPlace, UnitTensor, ranks_across};
use ir::{ChunkId, MicrobatchId, Rank};

use super::buffers::Held;
use super::offered::{Got, Offered};
use super::slot::Sum;
use super::values::View;
use super::{RankState, size};
use crate::device::Element;

/// One of several ranks of the other side of a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partner {
    /// Which of them, in order.
    index: usize,
    of: usize,
    /// Whether each has a part of the rows, else all.
    divided: bool,
}

impl Partner {
    /// The part of so many elements that is exchanged with it.
    fn part(self, elements: usize) -> std::ops::Range<usize> {
        if !self.divided {
            return 0..elements;
        }
        let each = elements / self.of;
        self.index * each..(self.index + 1) * each
    }
}

impl RankState {
    /// The other rank of a message, if it is one of several that this one sends to or receives from.
    fn partner(&self, other: Rank, sends: bool) -> Option<Partner> {
        let layout = &self.program.layout;
        if !layout.has_unlike_tensors() {
            return None;
        }
        let (here, there) = (layout.place_of(self.rank), layout.place_of(other));
        let (own, others) = (layout.tensor_at(here.position), layout.tensor_at(there.position));
        let (_, several) = ranks_across(own, others).expect("lowering checked the degrees of neighbours");
        let divided = layout.sequence_parallel;
        // Whole rows come from one of them.
        (several > 1 && (sends || divided)).then(|| Partner {
            index: size(there.tensor_index - here.tensor_index * several),
            of: size(several),
            divided,
        })
    }

    /// Whether this rank has what leaves a chunk for another position and nobody there asks it for it.
    fn is_idle(&self, to: ChunkId) -> bool {
        let layout = &self.program.layout;
        if !layout.has_unlike_tensors() || layout.sequence_parallel || self.holds(to) {
            return false;
        }
        let RankPlace { position, tensor_index, .. } = layout.place_of(self.rank);
        let there = layout.tensor_at(self.program.chunk(to).stage.raw());
        let (several, _) =
            ranks_across(layout.tensor_at(position), there).expect("lowering checked the degrees of neighbours");
        !tensor_index.is_multiple_of(several)
    }

    /// Gives up a chunk's output, once it is whole, where nobody asks for it.
    pub(super) fn drop_unasked(&mut self, kind: CollectiveKind, payload: Payload) {
        let Payload::Activation { tensor: UnitTensor::Output, chunk, unit, microbatch, pass } = payload else { return };
        let last = unit + 1 == self.program.chunk(chunk).units() && chunk.index() + 1 < self.program.chunks.len();
        let forward = pass == ir::program::Pass::Forward && kind == CollectiveKind::AllReduce;
        if last && forward && self.is_idle(ChunkId::new(chunk.raw() + 1)) {
            let unasked = self.chunk_output(chunk, microbatch);
            self.pool.give(unasked);
        }
    }

    /// The gradient of a chunk's input goes to the chunk before, or waits to leave; where nobody asks for it, it is
    /// given up.
    pub(super) fn hand_back(&mut self, before: ChunkId, microbatch: MicrobatchId, mut gradient: Held) {
        if self.holds(before) {
            self.slot(before, microbatch).residual_gradient = Some(gradient);
        } else if self.is_idle(before) {
            self.pool.give(gradient);
        } else {
            self.pool.relabel(&mut gradient, BufferKind::Communication);
            self.departing_gradients.insert((before, microbatch), gradient);
        }
    }

    /// What this rank sends in a message.
    fn leaving(&mut self, message: Message) -> Held {
        match message.direction {
            Direction::Forward => self.chunk_output(message.edge, message.microbatch),
            Direction::Backward => {
                let mut held = self.departing_gradients.remove(&(message.edge, message.microbatch));
                if held.is_none() && self.holds(message.edge) {
                    // A message to itself: the gradient went to the chunk before already.
                    held = self.slot(message.edge, message.microbatch).residual_gradient.take();
                }
                held.unwrap_or_else(|| panic!("{} has nothing to send for {message:?}", self.rank))
            }
        }
    }

    /// The boundary tensor of a message from this rank to another, or the part of it that the other needs: once, since
    /// the rank
    /// then forgets it, as soon as all who need it have been given theirs. Its buffer is used again by the next call.
    ///
    /// # Panics
    /// If it has not been computed, was handed out before, or lies where exchanges take it from a device.
    pub fn outgoing(&mut self, message: Message, to: Rank) -> &[f32] {
        self.send(message, to).host()
    }

    /// Takes the boundary tensor of a message to this rank from another, or the other's part of it.
    ///
    /// # Panics
    /// If it has not the size of this rank's residual stream, or of the part.
    pub fn incoming(&mut self, message: Message, from: Rank, data: &[f32]) {
        self.receive(message, from, Got::Host(data));
    }

    /// [`outgoing`](Self::outgoing), wherever it lies.
    pub(crate) fn send(&mut self, message: Message, to: Rank) -> Offered<'_> {
        let partner = self.partner(to, true);
        let (held, left) = match self.several.remove(&message) {
            Some(several) => several,
            None => (self.leaving(message), partner.map_or(1, |partner| partner.of)),
        };
        self.pool.release(&mut self.departing);
        let part = partner.map_or(0..held.len(), |partner| partner.part(held.len()));
        let held = if left > 1 {
            let (held, _) = self.several.entry(message).insert_entry((held, left - 1)).into_mut();
            held
        } else {
            self.departing.insert(held)
        };
        self.pool.relabel(held, BufferKind::Communication);
        self.joined.whole(held.view().part(part))
    }

    /// [`incoming`](Self::incoming), wherever it lies.
    pub(crate) fn receive(&mut self, message: Message, from: Rank, data: Got<'_>) {
        let (rank, all) = (self.rank, self.dims.residual());
        let on = self.on.clone();
        let data = View::of(data, on.as_deref());
        let partner = self.partner(from, false);
        let part = partner.map_or(0..all, |partner| partner.part(all));
        assert_eq!(data.len(), part.len(), "{rank}: size of {message:?}");
        let before = match message.direction {
            Direction::Forward => {
                let chunk = ChunkId::new(message.edge.raw() + 1);
                partner.and_then(|_| self.slot(chunk, message.microbatch).branch.take()).map(|sum| sum.data)
            }
            Direction::Backward => {
                partner.and_then(|_| self.slot(message.edge, message.microbatch).residual_gradient.take())
            }
        };
        let held = match before {
            None if partner.is_none() => self.pool.copy(BufferKind::Communication, data),
            before => {
                let mut held = before.unwrap_or_else(|| self.pool.take(BufferKind::Communication, all));
                held.view_mut().part(part).copy_from(data);
                held
            }
        };
        match message.direction {
            Direction::Forward => {
                let chunk = ChunkId::new(message.edge.raw() + 1);
                self.slot(chunk, message.microbatch).branch = Some(Sum { data: held, whole: true });
            }
            Direction::Backward => self.slot(message.edge, message.microbatch).residual_gradient = Some(held),
        }
    }

    /// How many elements a message from another rank has, and which, where it comes to this rank's device.
    pub(crate) fn boundary(&self, from: Rank) -> Option<(usize, Element)> {
        self.joined.on_device.then(|| {
            let element = if self.dims.formats.is_half() { Element::Bf16 } else { Element::F32 };
            let all = self.dims.residual();
            (self.partner(from, false).map_or(all, |partner| partner.part(all).len()), element)
        })
    }
}

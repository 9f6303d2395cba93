//! Who hands what to whom over the boundary of two positions.
//!
//! Between positions of one tensor degree, each rank talks to the one of its own index, and a message is all that a
//! rank has: its shard of the sequence, or the whole activation.
//!
//! Between unlike degrees, of which one divides the other:
//!
//! * Where the sequence is divided, a rank of the side with fewer ranks has as many shards of the other side as the
//!   degrees say, one after the other: it gets each from the rank that has it (or gives it to the one that needs it).
//! * Where it is not, every rank before the boundary has the whole activation and every rank after it needs the whole:
//!   from more ranks to fewer, one of them each gives it; from fewer to more, each gives it to several. Nothing is
//!   summed on the way, neither forward nor backward, where the gradient is whole on every rank too.
//!
//! Messages go over one stream of a rank in order of the other side's index: those of one rank follow each other.

use ir::Bytes;
use ir::counts::{Shape, message_bytes};
use ir::program::{Layout, ranks_across};
use ir::{Model, Workload};

/// What crosses a boundary in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Across {
    /// Tensor degree of the side that sends, and of the one that receives.
    from: u32,
    to: u32,
    /// Whether what is sent is divided along the sequence.
    divided: bool,
}

impl Across {
    /// From one position to another.
    ///
    /// # Panics
    /// If neither of their degrees divides the other.
    pub(crate) fn new(layout: &Layout, from: u32, to: u32) -> Self {
        let (from, to) = (layout.tensor_at(from), layout.tensor_at(to));
        assert!(ranks_across(from, to).is_some(), "legality checked {from} beside {to} tensor ranks");
        Self { from, to, divided: layout.sequence_parallel }
    }

    /// Whether ranks of one position have unlike partners.
    pub(crate) const fn is_unlike(self) -> bool {
        self.from != self.to
    }

    /// To whom a rank sends, by index in the tensor groups, in order.
    pub(crate) fn receivers(self, sender: u32) -> std::ops::Range<u32> {
        if self.to >= self.from {
            let each = self.to / self.from;
            return sender * each..(sender + 1) * each;
        }
        let each = self.from / self.to;
        let sends = self.divided || sender.is_multiple_of(each);
        sender / each..sender / each + u32::from(sends)
    }

    /// From whom a rank receives, in order.
    pub(crate) fn senders(self, receiver: u32) -> std::ops::Range<u32> {
        if self.to >= self.from {
            let each = self.to / self.from;
            return receiver / each..receiver / each + 1;
        }
        let each = self.from / self.to;
        receiver * each..receiver * each + if self.divided { each } else { 1 }
    }

    /// Bytes of each message: what a rank of the side with more of them has.
    pub(crate) fn bytes(self, layout: &Layout, model: &Model, workload: &Workload, ends: (u32, u32)) -> Bytes {
        let position = if self.from >= self.to { ends.0 } else { ends.1 };
        message_bytes(Shape { model, workload, layout: &layout.at(position) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every receiver gets every part of what it needs once, and both sides agree who that is.
    #[test]
    fn every_receiver_gets_all_it_needs_once() {
        for (from, to, divided) in [1, 2, 4, 8]
            .into_iter()
            .flat_map(|from| [1, 2, 4, 8].map(|to| (from, to)))
            .flat_map(|(from, to)| [(from, to, false), (from, to, true)])
        {
            let across = Across { from, to, divided };
            let pairs = |sender: u32| across.receivers(sender).map(move |receiver| (sender, receiver));
            let sent = (0..from).flat_map(pairs).collect::<Vec<_>>();
            let pairs = |receiver: u32| across.senders(receiver).map(move |sender| (sender, receiver));
            let mut received = (0..to).flat_map(pairs).collect::<Vec<_>>();
            received.sort_unstable();
            assert_eq!(sent, received, "{across:?}");
            let parts = if divided { from.max(to) } else { to };
            assert_eq!(sent.len(), parts as usize, "{across:?}");
            for (sender, receiver) in sent.into_iter().filter(|_| divided) {
                // The sender's shard of the sequence and the receiver's overlap by one part.
                let shard = |index: u32, of: u32| index * (parts / of)..(index + 1) * (parts / of);
                let (gives, needs) = (shard(sender, from), shard(receiver, to));
                assert_eq!(gives.end.min(needs.end) - gives.start.max(needs.start), 1, "{across:?}");
            }
        }
    }
}

//! Buffers of `f32`, recycled by length and counted by kind.
//!
//! In steady state an iteration allocates nothing: what a pass gives back the next one takes.
//!
//! A half-precision value is emulated: it lies in an `f32` that holds nothing else than such a value can, and counts the
//! two bytes that it stands for.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use ir::Bytes;
use ir::program::BufferKind;

/// Bytes by kind, every kind named.
pub type BytesByKind = BTreeMap<BufferKind, Bytes>;

/// A buffer taken from a [`Pool`]; give it back there.
#[derive(Debug)]
pub(super) struct Held {
    data: Vec<f32>,
    kind: BufferKind,
    /// Bytes that each value counts.
    element: u64,
    /// Whether its length varies from use to use.
    varying: bool,
}

impl Held {
    /// What it counts as.
    pub(super) const fn kind(&self) -> BufferKind {
        self.kind
    }
    fn bytes(&self) -> u64 {
        self.element * self.data.len() as u64
    }
}

impl Deref for Held {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }
}

/// Free buffers by length, and the count of those in use. It never holds more than was once in use at the same time
/// of each length; of lengths that vary, of each power of two.
#[derive(Debug)]
pub(super) struct Pool {
    /// Bytes of an activation.
    element: u64,
    free: BTreeMap<usize, Vec<Vec<f32>>>,
    /// Those whose length varies, by the power of two that they have room for.
    varying: BTreeMap<usize, Vec<Vec<f32>>>,
    in_use: [u64; BufferKind::ALL.len()],
    highest: u64,
    at_highest: [u64; BufferKind::ALL.len()],
    /// The largest sum since [`Pool::take_highest`] was last called.
    lately: u64,
}

impl Pool {
    /// Nothing in use, of a training whose activations have `element` bytes.
    pub(super) fn new(element: u64) -> Self {
        let none = [0; BufferKind::ALL.len()];
        let (free, varying) = (BTreeMap::new(), BTreeMap::new());
        Self { element, free, varying, in_use: none, highest: 0, at_highest: none, lately: 0 }
    }

    /// A buffer of activations whose content is left over from an earlier use: write before reading.
    pub(super) fn take(&mut self, kind: BufferKind, length: usize) -> Held {
        self.take_as(self.element, kind, length)
    }

    /// The same of FP32 numbers, whatever the precision: statistics and sums.
    pub(super) fn take_single(&mut self, kind: BufferKind, length: usize) -> Held {
        self.take_as(4, kind, length)
    }

    /// The same of zeros, of numbers that count so many bytes each.
    pub(super) fn zeros(&mut self, element: u64, kind: BufferKind, length: usize) -> Held {
        let mut held = self.take_as(element, kind, length);
        held.fill(0.0);
        held
    }

    /// A buffer of numbers that count so many bytes each, with content left over from an earlier use.
    pub(super) fn take_as(&mut self, element: u64, kind: BufferKind, length: usize) -> Held {
        let recycled = self.free.get_mut(&length).and_then(Vec::pop);
        #[cfg_attr(not(test), expect(unused_mut, reason = "only tests write into it here"))]
        let mut data = recycled.unwrap_or_else(|| vec![0.0; length]);
        // In tests a value that is read before it was written cannot go unseen.
        #[cfg(test)]
        data.fill(f32::NAN);
        self.count(kind, element * length as u64);
        Held { data, kind, element, varying: false }
    }

    /// As [`take`](Self::take), of a length that varies from use to use, as the copies do that experts get.
    pub(super) fn take_varying(&mut self, kind: BufferKind, length: usize) -> Held {
        let room = length.next_power_of_two();
        let mut data = self.varying.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| Vec::with_capacity(room));
        data.resize(length, 0.0);
        #[cfg(test)]
        data.fill(f32::NAN);
        self.count(kind, self.element * length as u64);
        Held { data, kind, element: self.element, varying: true }
    }

    /// A copy of `data`, whose length varies from use to use.
    pub(super) fn copy_varying(&mut self, kind: BufferKind, data: &[f32]) -> Held {
        let mut held = self.take_varying(kind, data.len());
        held.copy_from_slice(data);
        held
    }

    /// A copy of `data`.
    pub(super) fn copy(&mut self, kind: BufferKind, data: &[f32]) -> Held {
        let mut held = self.take(kind, data.len());
        held.copy_from_slice(data);
        held
    }

    /// A copy of a buffer of this or another pool.
    pub(super) fn copy_of(&mut self, held: &Held, kind: BufferKind) -> Held {
        let mut copy = self.take_as(held.element, kind, held.len());
        copy.copy_from_slice(held);
        copy
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, held: Held) {
        self.in_use[held.kind.index()] -= held.bytes();
        let (free, key) = match held.varying {
            true => (&mut self.varying, held.len().next_power_of_two()),
            false => (&mut self.free, held.len()),
        };
        free.entry(key).or_default().push(held.data);
    }

    /// Takes a buffer back, if there is one.
    pub(super) fn release(&mut self, held: &mut Option<Held>) {
        if let Some(held) = held.take() {
            self.give(held);
        }
    }

    /// Counts a buffer under another kind from now on.
    pub(super) fn relabel(&mut self, held: &mut Held, kind: BufferKind) {
        self.in_use[held.kind.index()] -= held.bytes();
        held.kind = kind;
        self.count(kind, held.bytes());
    }

    /// Bytes in use now.
    pub(super) fn bytes(&self) -> BytesByKind {
        table(&self.in_use)
    }

    /// Bytes in use when their sum was highest since the last [`forget_peak`](Self::forget_peak).
    pub(super) fn peak(&self) -> BytesByKind {
        table(&self.at_highest)
    }

    /// The most bytes in use at a time since this was last called.
    pub(super) fn take_highest(&mut self) -> Bytes {
        let now = self.in_use.iter().sum();
        Bytes::new(std::mem::replace(&mut self.lately, now).max(now))
    }

    /// Buffers that wait to be used again.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.free.values().chain(self.varying.values()).map(Vec::len).sum()
    }

    /// Begins a new search for the peak.
    pub(super) fn forget_peak(&mut self) {
        self.at_highest = self.in_use;
        self.highest = self.in_use.iter().sum();
    }

    fn count(&mut self, kind: BufferKind, bytes: u64) {
        self.in_use[kind.index()] += bytes;
        let total = self.in_use.iter().sum();
        self.lately = self.lately.max(total);
        if total > self.highest {
            self.highest = total;
            self.at_highest = self.in_use;
        }
    }
}

fn table(bytes: &[u64; BufferKind::ALL.len()]) -> BytesByKind {
    BufferKind::ALL.into_iter().zip(bytes.iter().map(|&b| Bytes::new(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_varying_length_serve_each_other() {
        let mut pool = Pool::new(4);
        let held = pool.take_varying(BufferKind::Workspace, 9);
        let place = held.as_ptr();
        pool.give(held);
        for length in [16, 11, 9] {
            let held = pool.copy_varying(BufferKind::Workspace, &vec![1.0; length]);
            assert_eq!((held.as_ptr(), held.len()), (place, length));
            assert_eq!(pool.bytes()[&BufferKind::Workspace], Bytes::new(4 * length as u64));
            pool.give(held);
        }
        let held = pool.take_varying(BufferKind::Workspace, 0);
        pool.give(held);
        assert_eq!(pool.idle(), 2);
    }

    #[test]
    fn buffers_are_recycled_and_counted() {
        let mut pool = Pool::new(4);
        let held = pool.take(BufferKind::Activations, 10);
        let place = held.as_ptr();
        assert_eq!(pool.bytes()[&BufferKind::Activations], Bytes::new(40));
        pool.give(held);
        let mut held = pool.take(BufferKind::Workspace, 10);
        assert_eq!(held.as_ptr(), place);
        pool.relabel(&mut held, BufferKind::Logits);
        assert_eq!(pool.bytes()[&BufferKind::Workspace], Bytes::new(0));
        let other = pool.copy(BufferKind::Logits, &[1.0, 2.0]);
        assert_eq!(&other[..], [1.0, 2.0]);
        pool.give(held);
        pool.give(other);
        assert!(pool.bytes().values().all(|&bytes| bytes == Bytes::new(0)));
        assert_eq!(pool.peak()[&BufferKind::Logits], Bytes::new(48));
        assert_eq!([pool.take_highest(), pool.take_highest()], [Bytes::new(48), Bytes::new(0)]);
        pool.forget_peak();
        assert!(pool.peak().values().all(|&bytes| bytes == Bytes::new(0)));
    }
}

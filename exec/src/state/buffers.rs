//! Buffers of numbers, recycled by length and counted by kind.
//!
//! In steady state an iteration allocates nothing: what a pass gives back the next one takes.
//!
//! In host memory a half-precision value is emulated: it lies in an `f32` that holds nothing else than such a value can, and
//! counts the two bytes that it stands for. On a device it is one.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ir::Bytes;
use ir::program::BufferKind;

use super::accelerator::{Accelerator, Buffer};
use super::values::{View, ViewMut};
use crate::device::Element;

/// Bytes by kind, every kind named.
pub type BytesByKind = BTreeMap<BufferKind, Bytes>;

/// A buffer taken from a [`Pool`]; give it back there.
#[derive(Debug)]
pub(super) struct Held {
    data: Content,
    kind: BufferKind,
    /// Bytes that each value counts.
    element: u64,
    /// Whether its length varies from use to use.
    varying: bool,
}

/// Where the numbers of a buffer lie.
#[derive(Debug)]
enum Content {
    Host(Vec<f32>),
    Device(Buffer),
}

impl Held {
    pub(super) fn view(&self) -> View<'_> {
        match &self.data {
            Content::Host(data) => View::Host(data),
            Content::Device(buffer) => View::Device(&buffer.on, buffer.slice),
        }
    }
    pub(super) fn view_mut(&mut self) -> ViewMut<'_> {
        match &mut self.data {
            Content::Host(data) => ViewMut::Host(data),
            Content::Device(buffer) => ViewMut::Device(&buffer.on, buffer.slice),
        }
    }
    pub(super) fn len(&self) -> usize {
        self.view().len()
    }
    /// Whether its numbers count as FP32.
    pub(super) const fn is_single(&self) -> bool {
        self.element == 4
    }
    /// Whether it lies on a device.
    pub(super) const fn is_on_device(&self) -> bool {
        matches!(self.data, Content::Device(_))
    }
    /// What it counts as.
    pub(super) const fn kind(&self) -> BufferKind {
        self.kind
    }
    fn bytes(&self) -> u64 {
        self.element * self.len() as u64
    }
}

impl<'a> From<&'a Held> for View<'a> {
    fn from(held: &'a Held) -> Self {
        held.view()
    }
}

impl<'a> From<&'a mut Held> for View<'a> {
    fn from(held: &'a mut Held) -> Self {
        held.view()
    }
}

impl<'a> From<&'a mut Held> for ViewMut<'a> {
    fn from(held: &'a mut Held) -> Self {
        held.view_mut()
    }
}

/// For what computes in host memory only, and panics on a device as [`View::host`] does.
impl Deref for Held {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        self.view().host()
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.view_mut().host()
    }
}

/// Free buffers by length, and the count of those in use. It never holds more than was once in use at the same time
/// of each length; of lengths that vary, of each power of two.
#[derive(Debug)]
pub(super) struct Pool {
    /// Bytes of an activation.
    element: u64,
    /// Where its buffers lie, if not in host memory.
    on: Option<Arc<Accelerator>>,
    /// By length and, on a device, bytes of an element.
    free: BTreeMap<(usize, u64), Vec<Content>>,
    /// Those in host memory whose length varies, by the power of two that they have room for.
    varying: BTreeMap<usize, Vec<Vec<f32>>>,
    in_use: [u64; BufferKind::ALL.len()],
    highest: u64,
    at_highest: [u64; BufferKind::ALL.len()],
    /// The largest sum since [`Pool::take_highest`] was last called.
    lately: u64,
}

impl Pool {
    /// Nothing in use, of a training whose activations have `element` bytes.
    pub(super) fn new(element: u64, on: Option<Arc<Accelerator>>) -> Self {
        let none = [0; BufferKind::ALL.len()];
        let (free, varying) = (BTreeMap::new(), BTreeMap::new());
        Self { element, on, free, varying, in_use: none, highest: 0, at_highest: none, lately: 0 }
    }

    /// Whether its buffers lie on a device.
    pub(super) const fn is_on_device(&self) -> bool {
        self.on.is_some()
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
        held.view_mut().clear();
        held
    }

    /// A buffer of numbers that count so many bytes each, with content left over from an earlier use.
    pub(super) fn take_as(&mut self, element: u64, kind: BufferKind, length: usize) -> Held {
        let recycled = self.free.get_mut(&(length, self.key(element))).and_then(Vec::pop);
        #[cfg_attr(not(test), expect(unused_mut, reason = "only tests write into it here"))]
        let mut data = recycled.unwrap_or_else(|| match &self.on {
            None => Content::Host(vec![0.0; length]),
            Some(on) => Content::Device(on.allocate(device_element(element), length)),
        });
        // In tests a value that is read before it was written cannot go unseen.
        #[cfg(test)]
        if let Content::Host(data) = &mut data {
            data.fill(f32::NAN);
        }
        self.count(kind, element * length as u64);
        Held { data, kind, element, varying: false }
    }

    /// A buffer of the numbers of a vector, which count so many bytes each; on a device they are rounded to those.
    pub(super) fn adopt(&mut self, element: u64, kind: BufferKind, data: Vec<f32>) -> Held {
        if self.is_on_device() {
            let mut held = self.take_as(element, kind, data.len());
            held.view_mut().copy_from(&data[..]);
            return held;
        }
        self.count(kind, element * data.len() as u64);
        Held { data: Content::Host(data), kind, element, varying: false }
    }

    /// What buffers of such numbers are kept by beside their length.
    const fn key(&self, element: u64) -> u64 {
        if self.is_on_device() { element } else { 0 }
    }

    /// As [`take`](Self::take), of a length that varies from use to use, as the copies do that experts get.
    ///
    /// # Panics
    /// On a device: experts are refused there.
    pub(super) fn take_varying(&mut self, kind: BufferKind, length: usize) -> Held {
        assert!(!self.is_on_device(), "a buffer of varying length on a device");
        let room = length.next_power_of_two();
        let mut data = self.varying.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| Vec::with_capacity(room));
        data.resize(length, 0.0);
        #[cfg(test)]
        data.fill(f32::NAN);
        self.count(kind, self.element * length as u64);
        Held { data: Content::Host(data), kind, element: self.element, varying: true }
    }

    /// A copy of `data`, whose length varies from use to use.
    pub(super) fn copy_varying(&mut self, kind: BufferKind, data: &[f32]) -> Held {
        let mut held = self.take_varying(kind, data.len());
        held.copy_from_slice(data);
        held
    }

    /// A copy of `data`.
    pub(super) fn copy<'a>(&mut self, kind: BufferKind, data: impl Into<View<'a>>) -> Held {
        let data = data.into();
        let mut held = self.take(kind, data.len());
        held.view_mut().copy_from(data);
        held
    }

    /// A copy of a buffer of this or another pool.
    pub(super) fn copy_of(&mut self, held: &Held, kind: BufferKind) -> Held {
        let mut copy = self.take_as(held.element, kind, held.len());
        copy.view_mut().copy_from(held);
        copy
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, held: Held) {
        self.in_use[held.kind.index()] -= held.bytes();
        let length = held.len();
        match held.data {
            Content::Host(data) if held.varying => {
                self.varying.entry(length.next_power_of_two()).or_default().push(data);
            }
            data => self.free.entry((length, self.key(held.element))).or_default().push(data),
        }
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
        self.free.values().map(Vec::len).chain(self.varying.values().map(Vec::len)).sum()
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

/// What a number of so many bytes is on a device.
const fn device_element(bytes: u64) -> Element {
    if bytes == 2 { Element::Bf16 } else { Element::F32 }
}

fn table(bytes: &[u64; BufferKind::ALL.len()]) -> BytesByKind {
    BufferKind::ALL.into_iter().zip(bytes.iter().map(|&b| Bytes::new(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_varying_length_serve_each_other() {
        let mut pool = Pool::new(4, None);
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
        let mut pool = Pool::new(4, None);
        let held = pool.take(BufferKind::Activations, 10);
        let place = held.as_ptr();
        assert_eq!(pool.bytes()[&BufferKind::Activations], Bytes::new(40));
        pool.give(held);
        let mut held = pool.take(BufferKind::Workspace, 10);
        assert_eq!(held.as_ptr(), place);
        pool.relabel(&mut held, BufferKind::Logits);
        assert_eq!(pool.bytes()[&BufferKind::Workspace], Bytes::new(0));
        let other = pool.copy(BufferKind::Logits, &[1.0, 2.0][..]);
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

//! Numbers of a rank, wherever they lie: in host memory, or in a buffer of a device.
//!
//! What computes takes a [`View`] of what it reads and a [`ViewMut`] of what it writes; a buffer, a slice and a vector become
//! one by themselves. Operands of one call lie in one kind of memory; what is copied may change it.

use std::borrow::Cow;
use std::ops::Range;

use super::accelerator::Accelerator;
use super::offered::Got;
use crate::device::Slice;

/// Numbers to read.
#[derive(Debug, Clone, Copy)]
pub(super) enum View<'a> {
    /// In host memory.
    Host(&'a [f32]),
    /// On a device.
    Device(&'a Accelerator, Slice),
}

/// Numbers to write.
#[derive(Debug)]
pub(super) enum ViewMut<'a> {
    /// In host memory.
    Host(&'a mut [f32]),
    /// On a device.
    Device(&'a Accelerator, Slice),
}

impl<'a> View<'a> {
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(_, slice) => slice.length,
        }
    }

    /// The numbers in host memory.
    ///
    /// # Panics
    /// If they are not there: what computes with them is refused on a device.
    pub(super) fn host(self) -> &'a [f32] {
        match self {
            Self::Host(values) => values,
            Self::Device(_, slice) => panic!("{slice} is not in host memory"),
        }
    }

    /// Their place on the device.
    ///
    /// # Panics
    /// If they are in host memory.
    pub(super) fn slice(self) -> Slice {
        match self {
            Self::Host(values) => panic!("{} numbers in host memory among those of a device", values.len()),
            Self::Device(_, slice) => slice,
        }
    }

    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&values[range]),
            Self::Device(on, slice) => Self::Device(on, slice.part(range.start, range.len())),
        }
    }

    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        (self.part(0..middle), self.part(middle..self.len()))
    }

    /// What an exchange gave, on the device of a rank if it is there.
    pub(super) fn of(got: Got<'a>, on: Option<&'a Accelerator>) -> Self {
        match (got, on) {
            (Got::Host(values), _) => Self::Host(values),
            (Got::Device(slice), Some(on)) => Self::Device(on, slice),
            (Got::Device(slice), None) => panic!("{slice} came to a rank without a device"),
        }
    }

    /// The numbers, copied from the device if they are there.
    pub(super) fn read(self) -> Cow<'a, [f32]> {
        match self {
            Self::Host(values) => Cow::Borrowed(values),
            Self::Device(on, slice) => Cow::Owned(on.download(slice)),
        }
    }

    /// Numbers that are always the same, where these are, as they are.
    pub(super) fn constant(self, values: &'a [f32]) -> Self {
        match self {
            Self::Host(_) => Self::Host(values),
            Self::Device(on, slice) => Self::Device(on, on.constant(values, slice.element)),
        }
    }

    pub(super) fn append_to(self, all: &mut Vec<f32>) {
        all.extend_from_slice(&self.read());
    }
}

impl<'a> ViewMut<'a> {
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(_, slice) => slice.length,
        }
    }

    /// The numbers in host memory.
    ///
    /// # Panics
    /// As [`View::host`].
    pub(super) fn host(self) -> &'a mut [f32] {
        match self {
            Self::Host(values) => values,
            Self::Device(_, slice) => panic!("{slice} is not in host memory"),
        }
    }

    /// Their place on the device.
    ///
    /// # Panics
    /// As [`View::slice`].
    pub(super) fn slice(self) -> Slice {
        self.view().slice()
    }

    /// To read.
    pub(super) fn view(self) -> View<'a> {
        match self {
            Self::Host(values) => View::Host(values),
            Self::Device(on, slice) => View::Device(on, slice),
        }
    }

    /// The same again, for as long as this one is not used.
    pub(super) fn again(&mut self) -> ViewMut<'_> {
        match self {
            Self::Host(values) => ViewMut::Host(values),
            Self::Device(on, slice) => ViewMut::Device(on, *slice),
        }
    }

    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&mut values[range]),
            Self::Device(on, slice) => Self::Device(on, slice.part(range.start, range.len())),
        }
    }

    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::Host(values) => {
                let (before, after) = values.split_at_mut(middle);
                (Self::Host(before), Self::Host(after))
            }
            Self::Device(on, slice) => {
                let part = |start, length| Self::Device(on, slice.part(start, length));
                (part(0, middle), part(middle, slice.length - middle))
            }
        }
    }

    /// All zeros.
    pub(super) fn clear(self) {
        match self {
            Self::Host(values) => values.fill(0.0),
            Self::Device(on, slice) => on.zero(slice),
        }
    }

    /// Lets `fill` write all of them, in host memory first.
    pub(super) fn fill_with(self, fill: impl FnOnce(&mut [f32])) {
        match self {
            Self::Host(values) => fill(values),
            Self::Device(on, slice) => {
                let mut values = vec![0.0; slice.length];
                fill(&mut values);
                on.upload(&values, slice);
            }
        }
    }

    /// Becomes a copy, rounded where the device holds fewer bits.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(super) fn copy_from<'b>(self, from: impl Into<View<'b>>) {
        match (self, from.into()) {
            (Self::Host(to), View::Host(from)) => to.copy_from_slice(from),
            (Self::Host(to), View::Device(on, from)) => to.copy_from_slice(&on.download(from)),
            (Self::Device(on, to), View::Host(from)) => on.upload(from, to),
            (Self::Device(on, to), View::Device(_, from)) => on.copy(from, to),
        }
    }
}

impl<'a> From<&'a [f32]> for View<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Host(values)
    }
}

impl<'a> From<&'a mut [f32]> for View<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self::Host(values)
    }
}

impl<'a> From<&'a mut [f32]> for ViewMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self::Host(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for ViewMut<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        Self::Host(values)
    }
}

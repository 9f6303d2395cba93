//! What crosses between a rank's state and whatever carries its exchanges.

use super::values::View;
use crate::device::{Element, Slice};
use crate::kernels::bf16;

/// What a rank puts into an exchange.
#[derive(Debug)]
pub(crate) enum Offered<'a> {
    /// Numbers in host memory.
    Host(&'a [f32]),
    /// Numbers on the rank's device, one slice after the other, which are to go as `element`.
    Device(&'a [Slice], Element),
    /// So many zeros, which are to go as an element of a device.
    Zeros(usize, Element),
}

impl<'a> Offered<'a> {
    /// The numbers in host memory.
    ///
    /// # Panics
    /// If they are not there: only a rank that was told so leaves them on its device.
    pub(crate) fn host(self) -> &'a [f32] {
        match self {
            Self::Host(values) => values,
            Self::Device(..) | Self::Zeros(..) => panic!("{self:?} goes through host memory"),
        }
    }
}

/// What a rank gets out of an exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Got<'a> {
    /// Numbers in host memory.
    Host(&'a [f32]),
    /// Numbers on the rank's device.
    Device(Slice),
}

impl<'a> Got<'a> {
    /// The numbers in host memory.
    ///
    /// # Panics
    /// If they are not there.
    pub(crate) fn host(self) -> &'a [f32] {
        match self {
            Self::Host(values) => values,
            Self::Device(slice) => panic!("{slice} is not in host memory"),
        }
    }
}

/// Numbers of several tensors, joined for an exchange: copied into one vector, or named where they lie.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// Whether exchanges take from the device.
    pub(super) on_device: bool,
    numbers: Vec<f32>,
    slices: Vec<Slice>,
    /// What an exchange from the device goes as, if not as what the slices are of.
    element: Option<Element>,
    zeros: usize,
}

impl Joined {
    /// Nothing.
    pub(super) fn clear(&mut self) {
        (self.element, self.zeros) = (None, 0);
        self.numbers.clear();
        self.slices.clear();
    }

    /// A vector to fill in host memory, wherever the rank computes.
    pub(super) fn numbers(&mut self) -> &mut Vec<f32> {
        self.clear();
        &mut self.numbers
    }

    pub(super) fn append(&mut self, view: View<'_>) {
        match view {
            View::Device(_, slice) if self.on_device => self.slices.push(slice),
            view => view.append_to(&mut self.numbers),
        }
    }

    /// `count` numbers that add nothing.
    pub(super) fn append_zeros(&mut self, count: usize) {
        if self.on_device {
            self.zeros += count;
        } else {
            self.numbers.resize(self.numbers.len() + count, 0.0);
        }
    }

    /// Rounds to half precision, if asked to.
    pub(super) fn round(&mut self, half: bool) {
        if half {
            self.element = Some(Element::Bf16);
            bf16::round(&mut self.numbers);
        }
    }

    /// All of it.
    pub(super) fn offered(&self) -> Offered<'_> {
        let wide = || {
            if self.slices.iter().all(|slice| slice.element == Element::Bf16) { Element::Bf16 } else { Element::F32 }
        };
        match (self.zeros, &self.slices[..]) {
            (0, []) => Offered::Host(&self.numbers),
            (0, slices) => Offered::Device(slices, self.element.unwrap_or_else(wide)),
            (zeros, _) => Offered::Zeros(zeros, self.element.unwrap_or(Element::F32)),
        }
    }

    /// One tensor as it is, without a copy where it lies in host memory.
    pub(super) fn whole<'a>(&'a mut self, view: View<'a>) -> Offered<'a> {
        match view {
            View::Host(values) => Offered::Host(values),
            View::Device(..) => {
                self.clear();
                self.append(view);
                self.offered()
            }
        }
    }
}

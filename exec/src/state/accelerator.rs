//! The device that a rank computes on, where it is not the host: its buffers, and what goes there and back.
//!
//! Everything that a rank computes or copies is put on the device's compute stream in the order of the rank's instructions, so
//! that no two of them need an event between them. Where exchanges are work of other streams, the host runs ahead, and asks
//! what was not finite when it needs numbers ([`RankState::settle`](super::RankState::settle)); else it waits at the end of
//! each instruction, and what crosses between ranks passes through host memory.
//!
//! # When the device fails
//!
//! No instruction can go on without its device. The rank's thread then unwinds with the [`DeviceError`], without a word of the
//! panic hook, and whoever started it reports that.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Device, DeviceError, Element, Operation, Product, Slice, Stream, read_f32};
use crate::kernels::rope::RotaryTable;

/// The smallest label wins, so this is none.
const NONE: u32 = u32::MAX;

/// A device, and what a rank has there beside its tensors.
#[derive(Debug)]
pub(super) struct Accelerator {
    device: Arc<dyn Device>,
    /// The label of the first check that failed.
    flag: Slice,
    /// What was checked since the flag was last read, by label.
    checks: Mutex<Vec<&'static str>>,
    /// Scratch memory that nobody uses: what is put on the stream later comes after what used it before.
    scratch: Mutex<BTreeMap<(Element, usize), Vec<Slice>>>,
    /// Numbers that are always the same: where they are in host memory, and where here.
    constants: Mutex<BTreeMap<(usize, Element), Slice>>,
}

/// A buffer of a device; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) on: Arc<Accelerator>,
    pub(super) slice: Slice,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A device that is lost says so in what is computed.
        let _ = self.on.device.release(Stream::COMPUTE, self.slice);
    }
}

/// What a device call gave; see the [module](self) for what follows an error.
fn must<T>(result: Result<T, DeviceError>) -> T {
    result.unwrap_or_else(|error| resume_unwind(Box::new(error)))
}

impl Accelerator {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        let flag = must(device.allocate(Stream::COMPUTE, Element::U32, 1));
        let (checks, scratch, constants) = (Mutex::default(), Mutex::default(), Mutex::default());
        let new = Self { device, flag, checks, scratch, constants };
        new.write_tokens(&[NONE], flag);
        new
    }

    pub(super) fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    pub(super) fn allocate(self: &Arc<Self>, element: Element, length: usize) -> Buffer {
        let slice = must(self.device.allocate(Stream::COMPUTE, element, length));
        Buffer { on: Arc::clone(self), slice }
    }

    pub(super) fn run(&self, operation: &Operation) {
        must(self.device.run(Stream::COMPUTE, operation));
    }

    pub(super) fn product(&self, product: &Product) {
        must(self.device.product(Stream::COMPUTE, product));
    }

    pub(super) fn zero(&self, slice: Slice) {
        must(self.device.zero(Stream::COMPUTE, slice));
    }

    /// A copy, rounded or widened where the elements differ.
    pub(super) fn copy(&self, from: Slice, to: Slice) {
        if from.element == to.element {
            must(self.device.copy(Stream::COMPUTE, from, to));
        } else {
            self.run(&Operation::Cast { from, to });
        }
    }

    /// # Panics
    /// If the lengths differ.
    pub(super) fn upload(&self, values: &[f32], to: Slice) {
        must(crate::device::write_f32(&*self.device, Stream::COMPUTE, values, to));
    }

    pub(super) fn download(&self, from: Slice) -> Vec<f32> {
        must(read_f32(&*self.device, Stream::COMPUTE, from))
    }

    /// Lets `run` work with scratch memory of so many elements.
    pub(super) fn with_scratch<T>(&self, element: Element, length: usize, run: impl FnOnce(Slice) -> T) -> T {
        let idle = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle().get_mut(&(element, length)).and_then(Vec::pop);
        let slice = found.unwrap_or_else(|| must(self.device.allocate(Stream::COMPUTE, element, length)));
        let result = run(slice);
        idle().entry((element, length)).or_default().push(slice);
        result
    }

    /// Lets `run` work with tokens.
    pub(super) fn with_tokens<T>(&self, tokens: &[u32], run: impl FnOnce(Slice) -> T) -> T {
        self.with_scratch(Element::U32, tokens.len(), |slice| {
            self.write_tokens(tokens, slice);
            run(slice)
        })
    }

    /// The sum of the squares of all numbers of `each`.
    pub(super) fn squared_norm(&self, each: impl Iterator<Item = Slice>) -> f64 {
        self.with_scratch(Element::F64, 1, |sum| {
            self.zero(sum);
            each.for_each(|values| self.run(&Operation::SquaredNorm { values, sum }));
            let bytes = must(self.device.read(Stream::COMPUTE, sum));
            f64::from_le_bytes(bytes.try_into().expect("the bytes of one FP64"))
        })
    }

    /// Cosines and sines of a table, which is always the same.
    pub(super) fn rotary(&self, table: &RotaryTable) -> [Slice; 2] {
        let (cosines, sines) = table.content();
        [cosines, sines].map(|values| self.constant(values, Element::F32))
    }

    /// A copy of numbers that are always the same, and stay where they are as long as this.
    pub(super) fn constant(&self, values: &[f32], element: Element) -> Slice {
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        *constants.entry((values.as_ptr().addr(), element)).or_insert_with(|| {
            let slice = must(self.device.allocate(Stream::COMPUTE, element, values.len()));
            self.upload(values, slice);
            slice
        })
    }

    /// Looks for numbers that are not finite, and remembers what they are of until [`found`](Self::found).
    pub(super) fn check(&self, values: Slice, of: &'static str) {
        let label = {
            let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
            checks.push(of);
            u32::try_from(checks.len() - 1).expect("fewer checks than 2^32")
        };
        self.run(&Operation::CheckFinite { values, label, flag: self.flag });
    }

    /// How many checks are remembered.
    pub(super) fn checked(&self) -> usize {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits for all that was put on the device, and says which of the checks since the last call was the first to fail.
    pub(super) fn found(&self) -> Option<(usize, &'static str)> {
        let checks = std::mem::take(&mut *self.checks.lock().unwrap_or_else(PoisonError::into_inner));
        if checks.is_empty() {
            must(self.device.synchronize(Stream::COMPUTE));
            return None;
        }
        let bytes = must(self.device.read(Stream::COMPUTE, self.flag));
        let label = u32::from_le_bytes(bytes.try_into().expect("the bytes of one label"));
        if label == NONE {
            return None;
        }
        self.write_tokens(&[NONE], self.flag);
        let label = super::size(label);
        Some((label, checks[label]))
    }

    fn write_tokens(&self, tokens: &[u32], to: Slice) {
        must(crate::device::write_u32(&*self.device, Stream::COMPUTE, tokens, to));
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        // As of a buffer.
        let constants = self.constants.get_mut().unwrap_or_else(PoisonError::into_inner);
        let scratch = self.scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slice in constants.values().chain(scratch.values().flatten()).chain([&self.flag]) {
            let _ = self.device.release(Stream::COMPUTE, *slice);
        }
    }
}

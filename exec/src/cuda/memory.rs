//! Buffers of a GPU, and page-locked memory of the host.

#![expect(unsafe_code, reason = "CUDA's driver is a C interface")]

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::device::failed;
use crate::device::{BufferId, DeviceError, DeviceMemory, Element, Slice};

/// CUDA aligns allocations to this, and so takes at least as much.
const ALIGNMENT: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Allocation {
    address: sys::CUdeviceptr,
    element: Element,
    length: usize,
    bytes: usize,
}

/// The buffers of a GPU by number. From the driver's pool: allocations and releases are in the order of a stream and do not
/// wait for the device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    buffers: BTreeMap<BufferId, Allocation>,
    next: u32,
    totals: DeviceMemory,
}

impl Memory {
    pub(super) fn allocate(
        &mut self,
        stream: sys::CUstream,
        element: Element,
        length: usize,
    ) -> Result<Slice, DeviceError> {
        let bytes = (length * element.bytes()).max(1).next_multiple_of(ALIGNMENT);
        // SAFETY: the content of a new buffer may be anything.
        let address = unsafe { result::malloc_async(stream, bytes) }.map_err(|error| {
            let words = failed(format!("allocating {bytes} bytes, with {} in use", self.totals.in_use), error);
            match error.0 {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    words.hint("smaller microbatches, recomputation, more sharding or offloading take less")
                }
                _ => words,
            }
        })?;
        let buffer = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(buffer, Allocation { address, element, length, bytes });
        self.totals.in_use += bytes as u64;
        self.totals.peak = self.totals.peak.max(self.totals.in_use);
        Ok(Slice { buffer, element, start: 0, length })
    }

    pub(super) fn release(&mut self, stream: sys::CUstream, slice: Slice) -> Result<(), DeviceError> {
        let allocation = self.find(slice);
        assert_eq!(slice.length, allocation.length, "{slice}: a part of a buffer cannot be released");
        self.buffers.remove(&slice.buffer);
        self.totals.in_use -= allocation.bytes as u64;
        // SAFETY: allocated by this table, and forgotten here.
        unsafe { result::free_async(allocation.address, stream) }.map_err(|e| failed(format!("releasing {slice}"), e))
    }

    fn find(&self, slice: Slice) -> Allocation {
        let allocation = self.buffers.get(&slice.buffer).unwrap_or_else(|| panic!("{slice}: no such buffer"));
        let fits = allocation.element == slice.element && slice.start + slice.length <= allocation.length;
        assert!(fits, "{slice} does not lie in its buffer of {} {}", allocation.length, allocation.element.name());
        *allocation
    }

    /// Address of a slice's first element.
    pub(super) fn address(&self, slice: Slice) -> sys::CUdeviceptr {
        self.find(slice).address + (slice.start * slice.element.bytes()) as u64
    }

    pub(super) fn totals(&self) -> DeviceMemory {
        self.totals
    }

    /// Releases what is left.
    pub(super) fn free_all(&mut self, stream: sys::CUstream) {
        for allocation in std::mem::take(&mut self.buffers).into_values() {
            // SAFETY: allocated by this table, and forgotten here.
            let _ = unsafe { result::free_async(allocation.address, stream) };
        }
    }
}

/// Page-locked memory of the host. Not write-combined: the optimizer on the host reads it.
#[derive(Debug)]
pub(super) struct Pinned {
    pointer: *mut c_void,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self, DeviceError> {
        // SAFETY: the content is written before it is read, by a copy.
        let pointer = unsafe { result::malloc_host(bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) }
            .map_err(|e| failed(format!("page-locking {bytes} bytes of the host"), e))?;
        Ok(Self { pointer, bytes })
    }

    pub(super) fn free(self) -> Result<(), DeviceError> {
        // SAFETY: allocated above, and consumed here; the caller has waited for the copies.
        unsafe { result::free_host(self.pointer) }.map_err(|e| failed("freeing memory of the host", e))
    }

    fn check(&self, start: usize, bytes: usize) {
        let fits = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "bytes {start}+{bytes} of {} of the host", self.bytes);
    }

    pub(super) fn offload(
        &mut self,
        stream: sys::CUstream,
        from: sys::CUdeviceptr,
        start: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.check(start, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked, and the memory is freed only after the stream was waited for. The driver's
        // function is called by itself: a slice of Rust must not exist while the device writes.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.pointer.byte_add(start), from, bytes, stream) }
            .result()
            .map_err(|e| failed(format!("copying {bytes} bytes to the host"), e))
    }

    pub(super) fn fetch(
        &self,
        stream: sys::CUstream,
        to: sys::CUdeviceptr,
        start: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.check(start, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, self.pointer.byte_add(start), bytes, stream) }
            .result()
            .map_err(|e| failed(format!("copying {bytes} bytes from the host"), e))
    }
}

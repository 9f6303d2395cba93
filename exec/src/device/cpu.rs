//! The CPU as a device: every operation at once, on the calling thread, by the functions of [`kernels`](crate::kernels).

mod operations;
mod routing;
mod storage;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::bf16;

use super::{
    BufferId, Device, DeviceError, DeviceMemory, Devices, Element, Elsewhere, Event, HostBuffer, Links, Operation,
    Product, Slice, Stream,
};
use crate::kernels::attention::AttentionWorkspace;
use crate::kernels::matmul::{Matrix, MatrixMut, multiply};
use storage::{Storage, Table};

/// A processor core and host memory. Streams and events are there, but everything is done when a call returns.
#[derive(Debug, Default)]
pub struct CpuDevice {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    table: Table,
    attention: AttentionWorkspace,
    memory: DeviceMemory,
    /// When each event was recorded, in nanoseconds.
    events: BTreeMap<Event, u64>,
    next_event: u64,
    host: BTreeMap<HostBuffer, Vec<u8>>,
    next_host: u32,
}

impl CpuDevice {
    /// A device without buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A kernel that panicked is a bug that ends the run; what it left is not used.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        "CPU".to_owned()
    }

    fn unsupported(&self, _: &Operation) -> Option<String> {
        None
    }

    fn allocate(&self, _: Stream, element: Element, length: usize) -> Result<Slice, DeviceError> {
        let mut inner = self.inner();
        let buffer = BufferId(inner.table.next);
        inner.table.next += 1;
        inner.table.buffers.insert(buffer, Storage::new(element, length));
        let slice = Slice { buffer, element, start: 0, length };
        inner.memory.in_use += slice.bytes() as u64;
        inner.memory.peak = inner.memory.peak.max(inner.memory.in_use);
        Ok(slice)
    }

    fn release(&self, _: Stream, slice: Slice) -> Result<(), DeviceError> {
        let mut inner = self.inner();
        let whole = inner.table.get(slice).length() == slice.length;
        assert!(whole, "{slice}: a part of a buffer cannot be released");
        inner.table.buffers.remove(&slice.buffer);
        inner.memory.in_use -= slice.bytes() as u64;
        Ok(())
    }

    fn write(&self, _: Stream, bytes: &[u8], to: Slice) -> Result<(), DeviceError> {
        assert_eq!(bytes.len(), to.bytes(), "{to}: written with another number of bytes");
        let range = to.start..to.start + to.length;
        match self.inner().table.get_mut(to) {
            Storage::F32(data) => fill(&mut data[range], bytes, f32::from_le_bytes),
            Storage::Bf16(data) => fill(&mut data[range], bytes, bf16::from_le_bytes),
            Storage::U32(data) => fill(&mut data[range], bytes, u32::from_le_bytes),
            Storage::F64(data) => fill(&mut data[range], bytes, f64::from_le_bytes),
        }
        Ok(())
    }

    fn read(&self, _: Stream, from: Slice) -> Result<Vec<u8>, DeviceError> {
        let range = from.start..from.start + from.length;
        Ok(match self.inner().table.get(from) {
            Storage::F32(data) => data[range].iter().flat_map(|value| value.to_le_bytes()).collect(),
            Storage::Bf16(data) => data[range].iter().flat_map(|value| value.to_le_bytes()).collect(),
            Storage::U32(data) => data[range].iter().flat_map(|value| value.to_le_bytes()).collect(),
            Storage::F64(data) => data[range].iter().flat_map(|value| value.to_le_bytes()).collect(),
        })
    }

    fn copy(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        assert_eq!((from.element, from.length), (to.element, to.length), "{from} and {to} differ");
        assert!(!from.overlaps(to), "{from} and {to} overlap");
        let bytes = self.read(stream, from)?;
        self.write(stream, &bytes, to)
    }

    fn zero(&self, _: Stream, slice: Slice) -> Result<(), DeviceError> {
        let range = slice.start..slice.start + slice.length;
        match self.inner().table.get_mut(slice) {
            Storage::F32(data) => data[range].fill(0.0),
            Storage::Bf16(data) => data[range].fill(bf16::ZERO),
            Storage::U32(data) => data[range].fill(0),
            Storage::F64(data) => data[range].fill(0.0),
        }
        Ok(())
    }

    fn pin(&self, bytes: usize) -> Result<HostBuffer, DeviceError> {
        let mut inner = self.inner();
        let buffer = HostBuffer(inner.next_host);
        inner.next_host += 1;
        inner.host.insert(buffer, vec![0; bytes]);
        Ok(buffer)
    }

    fn unpin(&self, buffer: HostBuffer) -> Result<(), DeviceError> {
        assert!(self.inner().host.remove(&buffer).is_some(), "{buffer:?}: no such memory of the host");
        Ok(())
    }

    fn offload(&self, stream: Stream, from: Slice, to: HostBuffer, start: usize) -> Result<(), DeviceError> {
        let bytes = self.read(stream, from)?;
        let mut inner = self.inner();
        let memory = inner.host.get_mut(&to).unwrap_or_else(|| panic!("{to:?}: no such memory of the host"));
        memory[start..][..bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn fetch(&self, stream: Stream, from: HostBuffer, start: usize, to: Slice) -> Result<(), DeviceError> {
        let bytes = {
            let inner = self.inner();
            let memory = inner.host.get(&from).unwrap_or_else(|| panic!("{from:?}: no such memory of the host"));
            memory[start..][..to.bytes()].to_vec()
        };
        self.write(stream, &bytes, to)
    }

    fn run(&self, _: Stream, operation: &Operation) -> Result<(), DeviceError> {
        operation.assert_sound();
        let inner = &mut *self.inner();
        operations::run(&mut inner.table, &mut inner.attention, operation);
        Ok(())
    }

    fn product(&self, _: Stream, product: &Product) -> Result<(), DeviceError> {
        product.assert_sound();
        let Product { m, n, k, a, transpose_a, b, transpose_b, alpha, beta, c } = *product;
        self.inner().table.with([a, b], [c], |[a, b], [c]| {
            let (a, b) = (view(a, m, k, transpose_a), view(b, k, n, transpose_b));
            multiply(alpha, a, b, beta, &mut MatrixMut::new(c, m, n));
        });
        Ok(())
    }

    fn record(&self, _: Stream) -> Result<Event, DeviceError> {
        let mut inner = self.inner();
        let event = Event(inner.next_event);
        inner.next_event += 1;
        inner.events.insert(event, crate::runtime::monotonic());
        Ok(event)
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        self.inner().time_of(event);
        Ok(true)
    }

    fn between(&self, from: Event, to: Event) -> Result<i64, DeviceError> {
        let inner = self.inner();
        Ok(inner.time_of(to).cast_signed() - inner.time_of(from).cast_signed())
    }

    fn wait(&self, _: Stream, event: Event) -> Result<(), DeviceError> {
        self.inner().time_of(event);
        Ok(())
    }

    fn forget(&self, event: Event) -> Result<(), DeviceError> {
        assert!(self.inner().events.remove(&event).is_some(), "{event:?} has ended before");
        Ok(())
    }

    fn synchronize(&self, _: Stream) -> Result<(), DeviceError> {
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        self.inner().memory
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Inner {
    fn time_of(&self, event: Event) -> u64 {
        *self.events.get(&event).unwrap_or_else(|| panic!("{event:?} was never recorded, or has ended"))
    }
}

/// A [`CpuDevice`] for each rank: what ranks do on devices, where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuDevices;

impl Devices for CpuDevices {
    fn problems(&self, _: u32) -> Vec<ir::Problem> {
        Vec::new()
    }
    fn unsupported(&self, _: &Operation) -> Option<String> {
        None
    }
    fn words(&self, ranks: u32) -> String {
        format!("{ranks} x CPU as a device")
    }
    fn shared(&self, _: u32) -> bool {
        false
    }
    fn links(&self, _: u32) -> Result<Option<Arc<dyn Links>>, DeviceError> {
        Ok(None)
    }
    fn elsewhere(&self) -> Elsewhere {
        Elsewhere::Cpu
    }
    fn open(&self, _: u32) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(CpuDevice::new()))
    }
}

/// A dense `[rows, columns]`, or the transpose of a dense `[columns, rows]`.
fn view(data: &[f32], rows: usize, columns: usize, transposed: bool) -> Matrix<'_> {
    if transposed { Matrix::new(data, columns, rows).transposed() } else { Matrix::new(data, rows, columns) }
}

fn fill<T, const N: usize>(to: &mut [T], bytes: &[u8], value: fn([u8; N]) -> T) {
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = value(*bytes);
    }
}

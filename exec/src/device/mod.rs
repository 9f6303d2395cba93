//! Where arithmetic happens: a small interface that a CPU and a GPU both fill.
//!
//! A [`Device`] owns buffers, runs [`Operation`]s, products and copies on *streams*, and orders streams by *events*.
//! Everything handed to it is plain data: a [`Slice`] names elements of a buffer by number, an [`Operation`] names a
//! kernel and its slices. The same list of operations therefore runs on either device, which is how the CUDA kernels are
//! held against the CPU's.
//!
//! | device | what carries an operation out |
//! |---|---|
//! | [`CpuDevice`] | [`kernels`](crate::kernels), at once, on the calling thread; BF16 is emulated: widened, computed in FP32, rounded once |
//! | [`cuda::CudaDevice`](crate::cuda::CudaDevice) | kernels of `exec/kernels` and cuBLAS, in the order of each stream |
//!
//! # Rules
//!
//! - Work on one stream runs in order. Between streams nothing is ordered but by [`record`](Device::record) and
//!   [`wait`](Device::wait); the device adds nothing of its own.
//! - A buffer is released on the stream that used it last; whoever releases it has made that stream wait for the others.
//! - An operation's outputs overlap none of its other operands, unless it says that it works in place.
//! - FP32 operations compute in FP32. BF16 operations read and write BF16, compute and accumulate in FP32, and round
//!   once; only a GPU's attention rounds its probabilities too, as its tensor cores want them. Statistics, weight gradients, moments and master weights are FP32 in both.
//! - Every sum has a fixed order, so that the same operations give the same bits in every run on one device.
//!
//! # Who computes on what
//!
//! A rank ([`state`](crate::state)) computes on a device that it is given, or without one on host memory, by the same
//! [`kernels`](crate::kernels) that the [`CpuDevice`] runs: in host memory a kernel borrows the tensors that it works on, and
//! a table of buffers would only stand between. Both ways go through the same passes, and a test holds the second, on the
//! [`CpuDevice`], against the first.
//!
//! A rank computes on the compute stream. Where [`Links`] join devices, exchanges are work of the other streams, ordered by
//! events, and the host puts work on ahead of the device; where nothing does, what is exchanged passes through host memory.
//! [`Operation::CheckFinite`] leaves the first guilty label on the device until somebody asks.

mod cpu;
mod operation;
mod product;
mod sizes;
#[cfg(test)]
pub(crate) mod tests;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use cpu::{CpuDevice, CpuDevices};
pub use operation::{ActivationKind, AttentionTensors, Norm, NormSaved, Operands, Operation, Rotation, Sizes};
pub use product::Product;

/// What a buffer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// IEEE single precision.
    F32,
    /// The upper half of a single: 8 bits of exponent, 8 of precision.
    Bf16,
    /// Tokens and flags.
    U32,
    /// Sums of squares.
    F64,
}

impl Element {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Element::Bf16 => 2,
            Element::F32 | Element::U32 => 4,
            Element::F64 => 8,
        }
    }

    /// As kernels are named after it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
            Element::U32 => "u32",
            Element::F64 => "f64",
        }
    }
}

/// A buffer of a device, by the number that the device gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub(crate) u32);

/// Consecutive elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub buffer: BufferId,
    /// What it is made of.
    pub element: Element,
    /// First element.
    pub start: usize,
    /// How many.
    pub length: usize,
}

impl Slice {
    /// The `length` elements from `start` on.
    ///
    /// # Panics
    /// If they reach beyond the slice.
    #[must_use]
    pub fn part(self, start: usize, length: usize) -> Self {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length), "{self}: no part {start}+{length}");
        Self { start: self.start + start, length, ..self }
    }

    /// Bytes of all elements.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.length * self.element.bytes()
    }

    /// Whether both share an element.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.buffer == other.buffer
            && self.length > 0
            && other.length > 0
            && self.start < other.start + other.length
            && other.start < self.start + self.length
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {}[{}..{}] of {}", self.buffer.0, self.start, self.start + self.length, self.element.name())
    }
}

/// Memory of the host that a device copies to and from by itself, by the number that the device gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostBuffer(pub(crate) u32);

/// A stream of a device. A device has one for each stream of a rank ([`ir::program::Stream`]), in that order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream(pub(crate) usize);

impl Stream {
    /// How many there are.
    pub const COUNT: usize = ir::program::Stream::ALL.len();
    /// Where passes run.
    pub const COMPUTE: Self = Self(0);
    /// Where collectives of tensor ranks run: like all exchanges, at a higher priority.
    pub const COMMUNICATION: Self = Self(1);
    /// Where copies to and from the host run.
    pub const COPY: Self = Self(Self::COUNT - 1);
}

/// A moment on a stream, by the number that the device gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event(pub(crate) u64);

/// Why a device could not do something that the program may ask of it: not a bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// What was being done.
    pub doing: String,
    /// What the library below said.
    pub cause: String,
    /// What can be done about it, if that is known.
    pub hint: Option<String>,
}

impl DeviceError {
    /// An error without a hint.
    #[must_use]
    pub fn new(doing: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { doing: doing.into(), cause: cause.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.cause)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DeviceError {}

/// Bytes of a device's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceMemory {
    /// In buffers now.
    pub in_use: u64,
    /// In buffers at the moment when that was most.
    pub peak: u64,
}

/// A place to compute. See the [module](self) for the rules.
///
/// Its functions panic on what only a bug can cause (a slice beyond its buffer, sizes that disagree, overlapping
/// outputs), and return what the machine can cause (no memory, a lost device). On a device that works asynchronously an
/// error may surface in a later call.
pub trait Device: fmt::Debug + Send + Sync {
    /// What it is, in words.
    fn name(&self) -> String;

    /// Why an operation cannot be run here, if it cannot: ask before a run starts.
    fn unsupported(&self, operation: &Operation) -> Option<String>;

    /// A buffer whose content is anything.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn allocate(&self, stream: Stream, element: Element, length: usize) -> Result<Slice, DeviceError>;

    /// Gives a whole buffer back, after what was put on `stream` so far.
    fn release(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError>;

    /// Copies bytes of the host (little-endian elements) into a slice. The bytes may change once it returns.
    fn write(&self, stream: Stream, bytes: &[u8], to: Slice) -> Result<(), DeviceError>;

    /// Copies a slice to the host, and waits for it.
    fn read(&self, stream: Stream, from: Slice) -> Result<Vec<u8>, DeviceError>;

    /// Copies between slices of one length and element.
    fn copy(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError>;

    /// Sets all bits of a slice to zero.
    fn zero(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError>;

    /// Memory of the host to which a copy needs no thread of the host (page-locked, for a GPU).
    ///
    /// # Errors
    /// When there is not enough memory.
    fn pin(&self, bytes: usize) -> Result<HostBuffer, DeviceError>;

    /// Gives it back. Whoever does has synchronized the streams that copied to or from it.
    fn unpin(&self, buffer: HostBuffer) -> Result<(), DeviceError>;

    /// Copies a slice to bytes of the host from `start` on, in the order of the stream; the host goes on.
    fn offload(&self, stream: Stream, from: Slice, to: HostBuffer, start: usize) -> Result<(), DeviceError>;

    /// Copies bytes of the host from `start` on into a slice, in the order of the stream; the host goes on.
    fn fetch(&self, stream: Stream, from: HostBuffer, start: usize, to: Slice) -> Result<(), DeviceError>;

    /// Runs a kernel.
    fn run(&self, stream: Stream, operation: &Operation) -> Result<(), DeviceError>;

    /// Runs a matrix product.
    fn product(&self, stream: Stream, product: &Product) -> Result<(), DeviceError>;

    /// Marks this moment on a stream.
    fn record(&self, stream: Stream) -> Result<Event, DeviceError>;

    /// Whether all that came before an event on its stream is done. Does not wait.
    fn passed(&self, event: Event) -> Result<bool, DeviceError>;

    /// Nanoseconds of the device's clock from one event to another, less than zero if it is the earlier; both have passed.
    fn between(&self, from: Event, to: Event) -> Result<i64, DeviceError>;

    /// Lets what is put on `stream` from now on begin after the event. An event can be waited for many times, until
    /// [`forget`](Device::forget).
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Ends an event.
    fn forget(&self, event: Event) -> Result<(), DeviceError>;

    /// Blocks the host until all that was put on `stream` is done.
    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError>;

    /// What its buffers take.
    fn memory(&self) -> DeviceMemory;

    /// Itself, for what joins devices of its kind.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// A rank's end of a group of devices that exchange what lies on them, as work of a stream: calls return when it is put there.
///
/// All ranks of a group put the same exchanges on in the same order. What an exchange reads is there, and what it writes is
/// free, when the stream comes to it.
pub trait Link: fmt::Debug + Send + Sync {
    /// `values` of all ranks become their sum, on all of them. The order of a sum is the link's own, and always the same.
    ///
    /// # Errors
    /// When the group has failed, here as below.
    fn all_reduce(&self, stream: Stream, values: Slice) -> Result<(), DeviceError>;

    /// `to` becomes this rank's part of the sum of `from`, which has `to`'s length times the ranks.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    fn reduce_scatter(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError>;

    /// `to` becomes the `from` of all ranks, in their order.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    fn all_gather(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError>;

    /// Sends `from[r]` to rank `r` and receives `to[r]` from it; parts may be empty and unlike.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    fn all_to_all(&self, stream: Stream, from: &[Slice], to: &[Slice]) -> Result<(), DeviceError>;

    /// Sends to a rank, which receives as much.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    fn send(&self, stream: Stream, from: Slice, to: usize) -> Result<(), DeviceError>;

    /// Receives from a rank, which sends as much.
    ///
    /// # Errors
    /// As of [`all_reduce`](Self::all_reduce).
    fn receive(&self, stream: Stream, from: usize, to: Slice) -> Result<(), DeviceError>;

    /// Looks for an error of what is under way, without waiting.
    ///
    /// # Errors
    /// The error; the group has then failed.
    fn poll(&self) -> Result<(), DeviceError>;

    /// Ends all that is under way on this rank. Every later call says why.
    fn abort(&self, why: &str);
}

/// Ranks that exchange something with each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The ranks of the program, in the order of the group.
    pub members: Vec<usize>,
    /// Whether they send each other parts, as in messages and all-to-all; else they reduce and gather.
    pub exchanges: bool,
}

/// What joins the devices of a program's ranks.
pub trait Links: fmt::Debug + Send + Sync {
    /// Joins the device of a rank to groups of ranks; an end for each group that the rank is in. All ranks call it on their
    /// threads, with the same groups. Every group has been used once when it returns: the first use may wait for others.
    ///
    /// # Errors
    /// When it does not come about.
    fn join(
        &self,
        device: Arc<dyn Device>,
        rank: usize,
        groups: &[Group],
    ) -> Result<Vec<Option<Arc<dyn Link>>>, DeviceError>;

    /// Makes ranks that still join give up.
    fn abort(&self, why: &str);

    /// What lets another process join: see [`Elsewhere::links`].
    fn ticket(&self) -> Vec<u8>;
}

/// Where the ranks of a program get their devices from.
pub trait Devices: fmt::Debug + Send + Sync {
    /// Why there are not as many devices as a program of so many ranks needs, in words for people.
    fn problems(&self, ranks: u32) -> Vec<ir::Problem>;

    /// Why its devices cannot run an operation, if they cannot, as [`Device::unsupported`].
    fn unsupported(&self, operation: &Operation) -> Option<String>;

    /// What computes for so many ranks, in words for people.
    fn words(&self, ranks: u32) -> String;

    /// Whether several of so many ranks compute on one device.
    fn shared(&self, ranks: u32) -> bool;

    /// What joins the devices of so many ranks, if anything does: without it, what they exchange passes
    /// through host memory.
    ///
    /// # Errors
    /// When it is there and does not work.
    fn links(&self, ranks: u32) -> Result<Option<Arc<dyn Links>>, DeviceError>;

    /// The same for a rank that is a process of its own.
    fn elsewhere(&self) -> Elsewhere;

    /// The device of a rank of this machine, counted from zero, on the thread of that rank.
    ///
    /// # Errors
    /// Those of the device.
    fn open(&self, index: u32) -> Result<Arc<dyn Device>, DeviceError>;
}

/// [`Devices`] as one process tells another.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Elsewhere {
    /// [`CpuDevices`].
    Cpu,
    /// [`Gpus`](crate::cuda::Gpus).
    Cuda {
        /// Ranks on each GPU.
        ranks_per_gpu: u32,
        /// Where compiled kernels are kept.
        cache: Option<std::path::PathBuf>,
    },
}

impl Elsewhere {
    /// What joins the devices of so many ranks, of which one handed out a [`ticket`](Links::ticket).
    ///
    /// # Errors
    /// If it is no ticket of such devices, and where this program was built without what they need.
    pub fn links(&self, ticket: &[u8], ranks: u32) -> Result<Arc<dyn Links>, DeviceError> {
        match self {
            Self::Cpu => Err(DeviceError::new("joining devices", "nothing joins CPUs as devices")),
            #[cfg(feature = "cuda")]
            Self::Cuda { .. } => crate::cuda::Gpus::joined(ticket, ranks),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda { .. } => {
                let _ = (ticket, ranks);
                Err(DeviceError::new("joining GPUs", "this program was built without the feature `cuda`"))
            }
        }
    }

    /// The device of a rank of this machine, as [`Devices::open`].
    ///
    /// # Errors
    /// Those of the device, and where this program was built without what they need.
    pub fn open(self, index: u32) -> Result<Arc<dyn Device>, DeviceError> {
        match self {
            Self::Cpu => CpuDevices.open(index),
            #[cfg(feature = "cuda")]
            Self::Cuda { ranks_per_gpu, cache } => crate::cuda::Gpus { ranks_per_gpu, cache }.open(index),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda { .. } => {
                Err(DeviceError::new("using a GPU", "this program was built without the feature `cuda`"))
            }
        }
    }
}

/// [`Device::write`] of FP32 values, rounded to the element of the slice.
///
/// # Errors
/// Those of the device.
///
/// # Panics
/// If the lengths differ, or the slice holds no floating-point elements.
pub fn write_f32(device: &dyn Device, stream: Stream, values: &[f32], to: Slice) -> Result<(), DeviceError> {
    assert_eq!(values.len(), to.length, "{to}: written with another length");
    match to.element {
        // Elements of the host are little-endian too, wherever there are such devices; a test would see it if not.
        Element::F32 => device.write(stream, bytemuck::cast_slice(values), to),
        Element::Bf16 => {
            let halves: Vec<u16> = values.iter().map(|&value| half::bf16::from_f32(value).to_bits()).collect();
            device.write(stream, bytemuck::cast_slice(&halves), to)
        }
        Element::F64 => {
            let wide: Vec<f64> = values.iter().copied().map(f64::from).collect();
            device.write(stream, bytemuck::cast_slice(&wide), to)
        }
        Element::U32 => panic!("{to}: real numbers are no tokens"),
    }
}

/// [`Device::read`] of floating-point elements, widened or rounded to FP32.
///
/// # Errors
/// Those of the device.
///
/// # Panics
/// If the slice holds no floating-point elements.
pub fn read_f32(device: &dyn Device, stream: Stream, from: Slice) -> Result<Vec<f32>, DeviceError> {
    let bytes = device.read(stream, from)?;
    Ok(match from.element {
        Element::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        Element::Bf16 => bytes.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect(),
        Element::F64 => {
            bytes.as_chunks().0.iter().map(|&bytes| crate::kernels::narrow(f64::from_le_bytes(bytes))).collect()
        }
        Element::U32 => panic!("{from}: tokens are no real numbers"),
    })
}

/// [`Device::write`] of tokens.
///
/// # Errors
/// Those of the device.
///
/// # Panics
/// If the lengths differ, or the slice does not hold tokens.
pub fn write_u32(device: &dyn Device, stream: Stream, values: &[u32], to: Slice) -> Result<(), DeviceError> {
    assert_eq!((values.len(), Element::U32), (to.length, to.element), "{to}: written with something else");
    device.write(stream, bytemuck::cast_slice(values), to)
}

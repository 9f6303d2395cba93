//! A GPU as a [`Device`].

#![expect(unsafe_code, reason = "CUDA's driver is a C interface")]

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::blas::{Blas, WORKSPACE_BYTES};
use super::compiler::{Architecture, Compiler};
use super::launch::{self, Argument, Launch};
use super::memory::{Memory, Pinned};
use super::source::Module;
use crate::device::{Device, DeviceError, DeviceMemory, Element, Event, HostBuffer, Operation, Product, Slice, Stream};

/// How a GPU is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Its number among those that the process sees.
    pub ordinal: u32,
    /// Where compiled kernels are kept between runs, if anywhere.
    pub cache: Option<PathBuf>,
}

/// Shared memory that a block of every kernel may have: what GPUs from compute capability 8.6 on offer.
const SHARED_BYTES: u32 = 99 << 10;
const STREAMS: usize = Stream::COUNT;
/// The oldest generation of GPUs whose tensor cores take BF16.
pub(super) const OLDEST_CAPABILITY: i32 = 8;

/// One GPU, with streams for compute, communication and copies.
///
/// Opened only where [`probe`](super::probe) found driver, NVRTC and cuBLAS; all else that goes wrong is a [`DeviceError`].
#[derive(Debug)]
pub struct CudaDevice {
    name: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    architecture: Architecture,
    streams: [sys::CUstream; STREAMS],
    inner: Mutex<Inner>,
}

// SAFETY: contexts, streams, modules and events of CUDA's driver may be used from any thread; what has state of its own
// (cuBLAS handles, the tables) is behind the mutex, and every entry makes the context current on its thread.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

#[derive(Debug)]
struct Inner {
    memory: Memory,
    host: BTreeMap<HostBuffer, Pinned>,
    next_host: u32,
    events: BTreeMap<Event, sys::CUevent>,
    next_event: u64,
    compiler: Compiler,
    modules: BTreeMap<Module, sys::CUmodule>,
    functions: BTreeMap<(Module, &'static str), sys::CUfunction>,
    /// Handle and workspace of each stream, made by its first product.
    blas: [Option<Blas>; STREAMS],
    workspaces: [Option<sys::CUdeviceptr>; STREAMS],
    /// Address and bytes of each stream's scratch memory.
    scratch: [(sys::CUdeviceptr, usize); STREAMS],
}

/// The driver's words for a failure.
pub(super) fn failed(doing: impl Into<String>, error: DriverError) -> DeviceError {
    let words = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
    };
    let cause = format!("{} ({})", words(error.error_string()), words(error.error_name()));
    DeviceError::new(doing, cause)
}

impl CudaDevice {
    /// Opens a GPU.
    ///
    /// # Errors
    /// When libraries are missing, there is no such GPU, it is too old, or the driver refuses.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        super::probe().usable()?;
        let doing = || format!("opening GPU {}", options.ordinal);
        result::init().map_err(|e| failed(doing(), e))?;
        let ordinal = i32::try_from(options.ordinal).unwrap_or(i32::MAX);
        let device = result::device::get(ordinal).map_err(|e| failed(doing(), e))?;
        let name = result::device::get_name(device).map_err(|e| failed(doing(), e))?;
        let attribute = |which| {
            // SAFETY: the device is one that the driver gave.
            unsafe { result::device::get_attribute(device, which) }.map_err(|e| failed(doing(), e))
        };
        use sys::CUdevice_attribute as A;
        let architecture = Architecture {
            major: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        if architecture.major < OLDEST_CAPABILITY {
            let cause = format!("{name} has compute capability {}.{}", architecture.major, architecture.minor);
            return Err(DeviceError::new(doing(), cause).hint("the kernels need 8.0 (A100) or newer, for BF16"));
        }
        let compiler = Compiler::new(options.cache.clone())?;
        // SAFETY: the device is one that the driver gave; the context is released on drop.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed(doing(), e))?;
        let inner = Inner {
            memory: Memory::default(),
            host: BTreeMap::new(),
            next_host: 0,
            events: BTreeMap::new(),
            next_event: 0,
            compiler,
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            blas: [const { None }; STREAMS],
            workspaces: [None; STREAMS],
            scratch: [(0, 0); STREAMS],
        };
        let streams = [std::ptr::null_mut(); STREAMS];
        // From here on the drop gives back what was taken.
        let mut opened = Self { name, device, context, architecture, streams, inner: Mutex::new(inner) };
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(|e| failed(doing(), e))?;
        // A collective that waits behind passes keeps other ranks waiting, so it goes first.
        let computes = |index: usize| [Stream::COMPUTE.0, Stream::COPY.0].contains(&index);
        for (index, stream) in opened.streams.iter_mut().enumerate() {
            let priority = if computes(index) { 0 } else { -5 };
            *stream = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority)
                .map_err(|e| failed(doing(), e))?;
        }
        Ok(opened)
    }

    /// The tables, with the context current on this thread.
    fn inner(&self) -> Result<MutexGuard<'_, Inner>, DeviceError> {
        // SAFETY: the context is retained until the device is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("making a GPU current", e))?;
        // A call that panicked is a bug that ends the run; what it left is not used.
        Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes this GPU the current one of the calling thread.
    pub(super) fn make_current(&self) -> Result<(), DeviceError> {
        self.inner().map(drop)
    }

    /// The driver's stream, for a communicator that puts its work on it.
    pub(super) fn raw_stream(&self, stream: Stream) -> sys::CUstream {
        self.streams[stream.0]
    }

    /// The address of a slice, for a communicator.
    pub(super) fn address(&self, slice: Slice) -> Result<sys::CUdeviceptr, DeviceError> {
        Ok(self.inner()?.memory.address(slice))
    }

    fn function(&self, inner: &mut Inner, launch: &Launch) -> Result<sys::CUfunction, DeviceError> {
        if let Some(function) = inner.functions.get(&(launch.module, launch.kernel)) {
            return Ok(*function);
        }
        let module = match inner.modules.get(&launch.module) {
            Some(module) => *module,
            None => self.load(inner, launch.module)?,
        };
        let name = CString::new(launch.kernel).expect("names hold no zero bytes");
        let doing = || format!("finding {} in {}", launch.kernel, launch.module.name());
        // SAFETY: the module was loaded into this context and is unloaded only on drop.
        let function = unsafe { result::module::get_function(module, name) }.map_err(|e| failed(doing(), e))?;
        if launch.shared_bytes > 48 << 10 {
            let bytes = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            assert!(launch.shared_bytes <= SHARED_BYTES, "{launch:?} wants more shared memory than every GPU has");
            let size = SHARED_BYTES.cast_signed();
            // SAFETY: the function was just found.
            unsafe { result::function::set_function_attribute(function, bytes, size) }
                .map_err(|e| failed(doing(), e))?;
        }
        inner.functions.insert((launch.module, launch.kernel), function);
        Ok(function)
    }

    fn load(&self, inner: &mut Inner, module: Module) -> Result<sys::CUmodule, DeviceError> {
        let (image, kept) = inner.compiler.image(module, self.architecture)?;
        let load = |image: &[u8]| {
            // SAFETY: the image is a whole CUBIN, which holds its own length; the driver copies it.
            unsafe { result::module::load_data(image.as_ptr().cast()) }
        };
        // Something that is no CUBIN must not reach the driver, which would read beyond its end.
        let loaded = if kept && !image.starts_with(b"\x7fELF") {
            Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_IMAGE))
        } else {
            load(&image)
        };
        let loaded = match loaded {
            Err(_) if kept => {
                inner.compiler.discard(module, self.architecture);
                load(&inner.compiler.image(module, self.architecture)?.0)
            }
            other => other,
        };
        let loaded = loaded.map_err(|e| failed(format!("loading {}", module.name()), e))?;
        inner.modules.insert(module, loaded);
        Ok(loaded)
    }

    /// Scratch memory of a stream, at least so large. Work before on the stream has used the old; it is freed in order.
    fn scratch(&self, inner: &mut Inner, stream: Stream, bytes: usize) -> Result<sys::CUdeviceptr, DeviceError> {
        let (address, size) = inner.scratch[stream.0];
        if bytes <= size {
            return Ok(address);
        }
        let raw = self.streams[stream.0];
        if size > 0 {
            // SAFETY: allocated below, and forgotten here.
            unsafe { result::free_async(address, raw) }.map_err(|e| failed("freeing scratch memory", e))?;
            inner.scratch[stream.0] = (0, 0);
        }
        let size = bytes.next_power_of_two();
        // SAFETY: kernels write scratch memory before they read it.
        let address =
            unsafe { result::malloc_async(raw, size) }.map_err(|e| failed(format!("{size} bytes of scratch"), e))?;
        inner.scratch[stream.0] = (address, size);
        Ok(address)
    }

    fn launch(
        &self,
        inner: &mut Inner,
        stream: Stream,
        launch: &Launch,
        scratch: sys::CUdeviceptr,
    ) -> Result<(), DeviceError> {
        let function = self.function(inner, launch)?;
        let word = |argument: &Argument| match *argument {
            Argument::Slice(slice) => inner.memory.address(slice),
            Argument::Scratch(start) => scratch + start as u64,
            Argument::Null => 0,
            Argument::Long(value) => value.cast_unsigned(),
            Argument::Int(value) => u64::from(value.cast_unsigned()),
            Argument::Unsigned(value) => u64::from(value),
            Argument::Single(value) => u64::from(value.to_bits()),
            Argument::Double(value) => value.to_bits(),
        };
        // On a little-endian host the first bytes of a word are the argument, whatever its size.
        let mut words: Vec<u64> = launch.arguments.iter().map(word).collect();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        let [x, y, z] = launch.grid;
        // SAFETY: the arguments are those of the kernel's signature (a test compares them with the source), and
        // `Operation::assert_sound` has checked that the slices have the sizes that the kernel goes over.
        unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                launch.shared_bytes,
                self.streams[stream.0],
                &mut pointers,
            )
        }
        .map_err(|e| failed(format!("launching {} of {}", launch.kernel, launch.module.name()), e))
    }

    fn blas<'a>(&self, inner: &'a mut Inner, stream: Stream) -> Result<&'a Blas, DeviceError> {
        let raw = self.streams[stream.0];
        if inner.blas[stream.0].is_none() {
            let workspace = match inner.workspaces[stream.0] {
                Some(workspace) => workspace,
                // SAFETY: cuBLAS writes its workspace before it reads it.
                None => {
                    unsafe { result::malloc_async(raw, WORKSPACE_BYTES) }.map_err(|e| failed("memory for cuBLAS", e))?
                }
            };
            inner.workspaces[stream.0] = Some(workspace);
            inner.blas[stream.0] = Some(Blas::new(raw, workspace)?);
        }
        Ok(inner.blas[stream.0].as_ref().expect("just made"))
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        format!("{}, compute capability {}.{}", self.name, self.architecture.major, self.architecture.minor)
    }

    fn unsupported(&self, operation: &Operation) -> Option<String> {
        launch::unsupported(operation)
    }

    fn allocate(&self, stream: Stream, element: Element, length: usize) -> Result<Slice, DeviceError> {
        self.inner()?.memory.allocate(self.streams[stream.0], element, length)
    }

    fn release(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError> {
        self.inner()?.memory.release(self.streams[stream.0], slice)
    }

    fn write(&self, stream: Stream, bytes: &[u8], to: Slice) -> Result<(), DeviceError> {
        assert_eq!(bytes.len(), to.bytes(), "{to}: written with another number of bytes");
        let inner = self.inner()?;
        let address = inner.memory.address(to);
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffer has that many bytes; from memory that is not page-locked the driver copies before it returns.
        unsafe { result::memcpy_htod_async(address, bytes, self.streams[stream.0]) }
            .map_err(|e| failed(format!("writing {to}"), e))
    }

    fn read(&self, stream: Stream, from: Slice) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0u8; from.bytes()];
        let inner = self.inner()?;
        let (address, raw) = (inner.memory.address(from), self.streams[stream.0]);
        drop(inner);
        if !bytes.is_empty() {
            // SAFETY: the vector has that many bytes and lives until the stream has been waited for.
            unsafe { result::memcpy_dtoh_async(&mut bytes, address, raw) }
                .map_err(|e| failed(format!("reading {from}"), e))?;
        }
        self.synchronize(stream)?;
        Ok(bytes)
    }

    fn copy(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        assert_eq!((from.element, from.length), (to.element, to.length), "{from} and {to} differ");
        assert!(!from.overlaps(to), "{from} and {to} overlap");
        let inner = self.inner()?;
        let (source, target) = (inner.memory.address(from), inner.memory.address(to));
        if from.length == 0 {
            return Ok(());
        }
        // SAFETY: both buffers have that many bytes.
        unsafe { result::memcpy_dtod_async(target, source, from.bytes(), self.streams[stream.0]) }
            .map_err(|e| failed(format!("copying {from} to {to}"), e))
    }

    fn zero(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError> {
        let inner = self.inner()?;
        let address = inner.memory.address(slice);
        if slice.length == 0 {
            return Ok(());
        }
        // SAFETY: the buffer has that many bytes.
        unsafe { result::memset_d8_async(address, 0, slice.bytes(), self.streams[stream.0]) }
            .map_err(|e| failed(format!("zeroing {slice}"), e))
    }

    fn pin(&self, bytes: usize) -> Result<HostBuffer, DeviceError> {
        let mut inner = self.inner()?;
        let pinned = Pinned::new(bytes)?;
        let buffer = HostBuffer(inner.next_host);
        inner.next_host += 1;
        inner.host.insert(buffer, pinned);
        Ok(buffer)
    }

    fn unpin(&self, buffer: HostBuffer) -> Result<(), DeviceError> {
        let removed = self.inner()?.host.remove(&buffer);
        removed.unwrap_or_else(|| panic!("{buffer:?}: no such memory of the host")).free()
    }

    fn offload(&self, stream: Stream, from: Slice, to: HostBuffer, start: usize) -> Result<(), DeviceError> {
        let mut inner = self.inner()?;
        let address = inner.memory.address(from);
        let pinned = inner.host.get_mut(&to).unwrap_or_else(|| panic!("{to:?}: no such memory of the host"));
        pinned.offload(self.streams[stream.0], address, start, from.bytes())
    }

    fn fetch(&self, stream: Stream, from: HostBuffer, start: usize, to: Slice) -> Result<(), DeviceError> {
        let inner = self.inner()?;
        let address = inner.memory.address(to);
        let pinned = inner.host.get(&from).unwrap_or_else(|| panic!("{from:?}: no such memory of the host"));
        pinned.fetch(self.streams[stream.0], address, start, to.bytes())
    }

    fn run(&self, stream: Stream, operation: &Operation) -> Result<(), DeviceError> {
        operation.assert_sound();
        if let Some(why) = launch::unsupported(operation) {
            panic!("unsupported() had refused: {why}");
        }
        let launches = launch::launches(operation);
        let inner = &mut *self.inner()?;
        let scratch = self.scratch(inner, stream, launches.scratch_bytes)?;
        launches.list.iter().try_for_each(|launch| self.launch(inner, stream, launch, scratch))
    }

    fn product(&self, stream: Stream, product: &Product) -> Result<(), DeviceError> {
        product.assert_sound();
        let inner = &mut *self.inner()?;
        if product.c.length == 0 {
            return Ok(());
        }
        let [a, b, c] = [product.a, product.b, product.c].map(|slice| inner.memory.address(slice));
        self.blas(inner, stream)?.product(product, a, b, c)
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        let mut inner = self.inner()?;
        let raw =
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| failed("making an event", e))?;
        // SAFETY: both were made by the driver and live.
        if let Err(error) = unsafe { result::event::record(raw, self.streams[stream.0]) } {
            // SAFETY: made above, and destroyed once.
            let _ = unsafe { result::event::destroy(raw) };
            return Err(failed("recording an event", error));
        }
        inner.next_event += 1;
        let event = Event(inner.next_event);
        inner.events.insert(event, raw);
        Ok(event)
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        let raw = self.inner()?.event(event);
        // SAFETY: made by the driver, and lives.
        match unsafe { sys::cuEventQuery(raw) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            error => Err(failed("asking for an event", DriverError(error))),
        }
    }

    fn between(&self, from: Event, to: Event) -> Result<i64, DeviceError> {
        let inner = self.inner()?;
        let (from, to) = (inner.event(from), inner.event(to));
        let mut milliseconds = 0.0f32;
        // SAFETY: the probe has found the function (its second version came with CUDA 12.8) of the driver's signature; both
        // events were made by the driver and live; a place for a number.
        let code = unsafe {
            let elapsed = sys::culib()
                .get::<unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult>(
                    b"cuEventElapsedTime",
                )
                .expect("a function that was found");
            elapsed(&raw mut milliseconds, from, to)
        };
        code.result().map_err(|e| failed("asking for the time between two events", e))?;
        #[expect(clippy::cast_possible_truncation, reason = "whole nanoseconds; saturates")]
        let nanoseconds = (f64::from(milliseconds) * 1e6).round() as i64;
        Ok(nanoseconds)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let raw = self.inner()?.event(event);
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both were made by the driver and live.
        unsafe { result::stream::wait_event(self.streams[stream.0], raw, flags) }
            .map_err(|e| failed("waiting for an event", e))
    }

    fn forget(&self, event: Event) -> Result<(), DeviceError> {
        let raw = self.inner()?.events.remove(&event).unwrap_or_else(|| panic!("{event:?} has ended before"));
        // SAFETY: made by the driver, and destroyed once; waits that were put on streams keep what they need.
        unsafe { result::event::destroy(raw) }.map_err(|e| failed("ending an event", e))
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        // Not under the mutex: other threads go on putting work on other streams.
        drop(self.inner()?);
        // SAFETY: the stream lives as long as the device.
        unsafe { result::stream::synchronize(self.streams[stream.0]) }.map_err(|e| failed("waiting for a stream", e))
    }

    fn memory(&self) -> DeviceMemory {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).memory.totals()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Inner {
    fn event(&self, event: Event) -> sys::CUevent {
        *self.events.get(&event).unwrap_or_else(|| panic!("{event:?} was never recorded, or has ended"))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Errors here have nobody to hear them, and a lost device gives nothing but errors.
        let Ok(mut inner) = self.inner() else { return };
        let inner = &mut *inner;
        inner.blas = [const { None }; STREAMS];
        for (&raw, (scratch, workspace)) in self.streams.iter().zip(inner.scratch.iter().zip(&inner.workspaces)) {
            // SAFETY: everything was made by this device, and is destroyed once, in the order of the stream.
            unsafe {
                let addresses = workspace.iter().chain((scratch.1 > 0).then_some(&scratch.0));
                for &address in addresses {
                    let _ = result::free_async(address, raw);
                }
            }
        }
        inner.memory.free_all(self.streams[0]);
        for &raw in self.streams.iter().filter(|raw| !raw.is_null()) {
            // SAFETY: as above.
            unsafe {
                let _ = result::stream::synchronize(raw);
                let _ = result::stream::destroy(raw);
            }
        }
        for pinned in std::mem::take(&mut inner.host).into_values() {
            let _ = pinned.free();
        }
        // SAFETY: as above; nothing runs any more.
        unsafe {
            for &event in inner.events.values() {
                let _ = result::event::destroy(event);
            }
            for &module in inner.modules.values() {
                let _ = result::module::unload(module);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

//! Groups of ranks on GPUs, by NCCL.
//!
//! Our own, and small, because a run needs what bindings leave out: groups split from groups, all-to-all, a stream for each
//! call, errors that come later, and an end in time when a rank is gone. Every communicator is non-blocking: a call returns
//! while NCCL still works, and is polled until it is through, until NCCL reports an error, or until the deadline, after which
//! the communicator is aborted and says so ever after.

#![expect(unsafe_code, reason = "NCCL is a C interface")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::nccl::{Code, Config, Functions, RawComm, RawId, RawStream};
use super::{CudaDevice, nccl};
use crate::device::{DeviceError, Element, Slice, Stream};

/// How values of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their maximum.
    Maximum,
    /// Their mean.
    Mean,
}

impl Reduction {
    /// `ncclRedOp_t`.
    fn number(self) -> c_int {
        match self {
            Self::Sum => 0,
            Self::Maximum => 2,
            Self::Mean => 4,
        }
    }
}

/// `ncclDataType_t`.
fn kind(element: Element) -> c_int {
    match element {
        Element::U32 => 3,
        Element::F32 => 7,
        Element::F64 => 8,
        Element::Bf16 => 9,
    }
}

/// What the ranks of a group find each other by: made by one, handed to all.
#[derive(Clone, Copy)]
pub struct UniqueId(RawId);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

impl UniqueId {
    /// Bytes to send to the other ranks.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 128] {
        &self.0.0
    }

    /// From the bytes of the rank that made it.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(RawId(bytes))
    }
}

/// A rank's end of a group.
#[derive(Debug)]
pub struct Communicator {
    functions: Arc<Functions>,
    raw: Mutex<Handle>,
    rank: usize,
    size: usize,
    deadline: Duration,
    /// Set by anyone who wants calls that wait for other ranks to give up, of groups split from this one too.
    cancelled: Arc<AtomicBool>,
}

/// NCCL's communicator, or why there is none any more.
#[derive(Debug)]
struct Handle {
    comm: RawComm,
    ended: Option<DeviceError>,
}

// SAFETY: NCCL allows a communicator on any thread, one at a time.
unsafe impl Send for Handle {}

/// Where a rank's part of an exchange lies, and with whom.
#[derive(Debug, Clone, Copy)]
enum Part {
    Send(Slice, usize),
    Receive(Slice, usize),
}

impl Communicator {
    /// An id for a new group.
    ///
    /// # Errors
    /// When NCCL is missing or fails.
    pub fn unique_id() -> Result<UniqueId, DeviceError> {
        let functions = load(&nccl::FILE_NAMES.map(str::to_owned))?;
        let mut id = RawId([0; 128]);
        // SAFETY: a place for an id.
        match unsafe { (functions.get_unique_id)(&raw mut id) } {
            Code::SUCCESS => Ok(UniqueId(id)),
            code => {
                let words = functions.words(code, std::ptr::null_mut());
                Err(DeviceError::new("making an id for a group of GPUs", words)
                    .hint("NCCL_DEBUG=INFO says more; NCCL_SOCKET_IFNAME chooses the network"))
            }
        }
    }

    /// Joins the group of `id` as `rank` of `size`, on the GPU that is current on this thread. All ranks call it.
    ///
    /// # Errors
    /// When NCCL is missing or fails, or not all ranks have come within `deadline`, which is also how long every later call
    /// may take to be accepted.
    pub fn join(
        device: &CudaDevice,
        id: UniqueId,
        rank: usize,
        size: usize,
        deadline: Duration,
    ) -> Result<Self, DeviceError> {
        Self::join_until(device, id, (rank, size), deadline, Arc::default())
    }

    /// The same, unless it is cancelled while it waits.
    pub(super) fn join_until(
        device: &CudaDevice,
        id: UniqueId,
        (rank, size): (usize, usize),
        deadline: Duration,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Self, DeviceError> {
        device.make_current()?;
        let functions = load(&nccl::FILE_NAMES.map(str::to_owned))?;
        assert!(rank < size, "rank {rank} of {size}");
        let (mut comm, mut config) = (std::ptr::null_mut(), Config::non_blocking());
        // SAFETY: places for a communicator and a configuration; the id is copied.
        let code = unsafe { (functions.init)(&raw mut comm, int(size), id.0, int(rank), &raw mut config) };
        let raw = Mutex::new(Handle { comm, ended: None });
        let new = Self { functions, raw, rank, size, deadline, cancelled };
        new.settle(&mut new.handle(), code, || format!("joining a group of {size} GPUs as rank {rank}"))?;
        Ok(new)
    }

    /// A group of the ranks of this one that give the same `color`, in the order of `key`; none for a rank that gives none.
    /// All ranks call it.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn split(&self, color: Option<u32>, key: usize, rank: usize, size: usize) -> Result<Option<Self>, DeviceError> {
        let doing = || format!("splitting a group of {} GPUs", self.size);
        let handle = &mut *self.handle();
        self.alive(handle)?;
        let (mut comm, mut config) = (std::ptr::null_mut(), Config::non_blocking());
        // NCCL_SPLIT_NOCOLOR is -1.
        let number = color.map_or(-1, |color| int(color as usize));
        // SAFETY: the communicator is there; places for a new one and a configuration.
        let code = unsafe { (self.functions.split)(handle.comm, number, int(key), &raw mut comm, &raw mut config) };
        self.settle(handle, code, doing)?;
        if color.is_none() {
            return Ok(None);
        }
        let raw = Mutex::new(Handle { comm, ended: None });
        let (functions, cancelled) = (Arc::clone(&self.functions), Arc::clone(&self.cancelled));
        let new = Self { functions, raw, rank, size, deadline: self.deadline, cancelled };
        new.settle(&mut new.handle(), Code::IN_PROGRESS, doing)?;
        Ok(Some(new))
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks of the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// `values` of all ranks become one, on all of them.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn all_reduce(&self, d: &CudaDevice, s: Stream, op: Reduction, values: Slice) -> Result<(), DeviceError> {
        let (at, stream) = (address(d, values)?, raw(d, s));
        let (count, kind, op) = (values.length, kind(values.element), op.number());
        // SAFETY: the buffer has so many elements; reading and writing one place is allowed.
        self.call("an all-reduce", |f, comm| unsafe { (f.all_reduce)(at, at, count, kind, op, comm, stream) })
    }

    /// `to` becomes this rank's part of the reduced `from`, which has `to`'s length times the ranks.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn reduce_scatter(
        &self,
        d: &CudaDevice,
        s: Stream,
        op: Reduction,
        from: Slice,
        to: Slice,
    ) -> Result<(), DeviceError> {
        self.assert_parts(from, to);
        let (source, target, stream) = (address(d, from)?, address(d, to)?, raw(d, s));
        let (count, kind, op) = (to.length, kind(to.element), op.number());
        self.call("a reduce-scatter", |f, comm| {
            // SAFETY: the buffers have the sizes that were just asserted.
            unsafe { (f.reduce_scatter)(source, target, count, kind, op, comm, stream) }
        })
    }

    /// `to` becomes the `from` of all ranks, in their order.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn all_gather(&self, d: &CudaDevice, s: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        self.assert_parts(to, from);
        let (source, target, stream) = (address(d, from)?, address(d, to)?, raw(d, s));
        let (count, kind) = (from.length, kind(from.element));
        // SAFETY: the buffers have the sizes that were just asserted.
        self.call("an all-gather", |f, comm| unsafe { (f.all_gather)(source, target, count, kind, comm, stream) })
    }

    /// Sends `from[r]` to rank `r` and receives `to[r]` from it, this rank included; parts may be empty and unlike.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn all_to_all(&self, d: &CudaDevice, s: Stream, from: &[Slice], to: &[Slice]) -> Result<(), DeviceError> {
        assert_eq!((from.len(), to.len()), (self.size, self.size), "a part for each of {} ranks", self.size);
        let sends = from.iter().enumerate().map(|(peer, part)| Part::Send(*part, peer));
        let receives = to.iter().enumerate().map(|(peer, part)| Part::Receive(*part, peer));
        self.exchange(d, s, sends.chain(receives).collect())
    }

    /// Sends to a rank, which receives as much.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn send(&self, d: &CudaDevice, s: Stream, from: Slice, to: usize) -> Result<(), DeviceError> {
        self.exchange(d, s, vec![Part::Send(from, to)])
    }

    /// Receives from a rank, which sends as much.
    ///
    /// # Errors
    /// When the group has failed.
    pub fn receive(&self, d: &CudaDevice, s: Stream, from: usize, to: Slice) -> Result<(), DeviceError> {
        self.exchange(d, s, vec![Part::Receive(to, from)])
    }

    /// Sends and receives as one group, so that no order of them can block.
    fn exchange(&self, device: &CudaDevice, stream: Stream, parts: Vec<Part>) -> Result<(), DeviceError> {
        let place = |part| match part {
            Part::Send(slice, peer) | Part::Receive(slice, peer) => {
                assert!(peer < self.size, "rank {peer} of {}", self.size);
                address(device, slice).map(|at| (part, at, slice.length, kind(slice.element), int(peer)))
            }
        };
        let empty = |part: &Part| matches!(part, Part::Send(slice, _) | Part::Receive(slice, _) if slice.length == 0);
        let parts: Vec<_> = parts.into_iter().filter(|part| !empty(part)).map(place).collect::<Result<_, _>>()?;
        let stream = raw(device, stream);
        self.call("an exchange", |f, comm| {
            // SAFETY: the buffers have so many elements. A group that was begun is ended whatever its members say.
            unsafe {
                let mut code = (f.group_start)();
                for (part, at, count, kind, peer) in parts {
                    if code == Code::SUCCESS || code == Code::IN_PROGRESS {
                        code = match part {
                            Part::Send(..) => (f.send)(at, count, kind, peer, comm, stream),
                            Part::Receive(..) => (f.receive)(at, count, kind, peer, comm, stream),
                        };
                    }
                }
                let end = (f.group_end)();
                if code == Code::SUCCESS || code == Code::IN_PROGRESS { end } else { code }
            }
        })
    }

    /// Looks for an error of what is under way, without waiting: the host calls it while it waits for a stream, since a
    /// collective whose peer is gone never ends.
    ///
    /// # Errors
    /// The error; the communicator is then aborted.
    pub fn poll(&self) -> Result<(), DeviceError> {
        let handle = &mut *self.handle();
        self.alive(handle)?;
        let mut state = Code::SUCCESS;
        // SAFETY: the communicator is there; a place for a code.
        let code = unsafe { (self.functions.async_error)(handle.comm, &raw mut state) };
        match (code, state) {
            (Code::SUCCESS, Code::SUCCESS | Code::IN_PROGRESS) => Ok(()),
            (Code::SUCCESS, bad) | (bad, _) => Err(self.end(handle, "communicating between GPUs", bad)),
        }
    }

    /// Ends all that is under way on this rank. Every later call says so.
    pub fn abort(&self, why: &str) {
        let handle = &mut *self.handle();
        if handle.ended.is_none() {
            self.abort_raw(handle);
            handle.ended = Some(DeviceError::new("communicating between GPUs", why));
        }
    }

    fn handle(&self) -> MutexGuard<'_, Handle> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self, handle: &Handle) -> Result<(), DeviceError> {
        handle.ended.clone().map_or(Ok(()), Err)
    }

    fn call(&self, doing: &str, call: impl FnOnce(&Functions, RawComm) -> Code) -> Result<(), DeviceError> {
        let handle = &mut *self.handle();
        self.alive(handle)?;
        let code = call(&self.functions, handle.comm);
        self.settle(handle, code, || format!("{doing} of {} GPUs, rank {}", self.size, self.rank))
    }

    /// Waits until the library has accepted a call.
    fn settle(&self, handle: &mut Handle, code: Code, doing: impl Fn() -> String) -> Result<(), DeviceError> {
        let (started, mut code) = (Instant::now(), code);
        while code == Code::IN_PROGRESS {
            let cancelled = self.cancelled.load(Ordering::Relaxed);
            if cancelled || started.elapsed() > self.deadline {
                let words = format!("no answer from all ranks within {:.1} s", self.deadline.as_secs_f64());
                let words = if cancelled { "told to give up".to_owned() } else { words };
                let error = DeviceError::new(doing(), words).hint("a rank has not come, or has ended");
                self.abort_raw(handle);
                handle.ended = Some(error.clone());
                return Err(error);
            }
            std::thread::sleep(Duration::from_micros(50));
            let mut state = Code::SUCCESS;
            // SAFETY: the communicator is there; a place for a code.
            code = match unsafe { (self.functions.async_error)(handle.comm, &raw mut state) } {
                Code::SUCCESS => state,
                failed => failed,
            };
        }
        if code == Code::SUCCESS { Ok(()) } else { Err(self.end(handle, &doing(), code)) }
    }

    /// Aborts after an error, which it keeps.
    fn end(&self, handle: &mut Handle, doing: &str, code: Code) -> DeviceError {
        let error = DeviceError::new(doing, self.functions.words(code, handle.comm));
        let error = if code == Code::REMOTE { error.hint("another rank has ended") } else { error };
        self.abort_raw(handle);
        handle.ended = Some(error.clone());
        error
    }

    fn abort_raw(&self, handle: &mut Handle) {
        let comm = std::mem::replace(&mut handle.comm, std::ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator was there, and was forgotten here.
            unsafe { (self.functions.abort)(comm) };
        }
    }

    fn assert_parts(&self, whole: Slice, part: Slice) {
        assert_eq!(whole.element, part.element, "{whole} and {part}: two elements");
        assert_eq!(whole.length, part.length * self.size, "{whole} and {part}: not {} parts", self.size);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let handle = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner);
        if handle.ended.is_some() || handle.comm.is_null() {
            return;
        }
        // What is under way is finished first. Errors here have nobody to hear them; a group that does not end in time is
        // aborted, which frees it too.
        let (functions, comm, started) = (&self.functions, handle.comm, Instant::now());
        // SAFETY: the communicator is there, and nothing uses it after.
        unsafe {
            let mut code = (functions.finalize)(comm);
            while code == Code::IN_PROGRESS && started.elapsed() < self.deadline {
                std::thread::sleep(Duration::from_micros(50));
                let mut state = Code::SUCCESS;
                code = (functions.async_error)(comm, &raw mut state);
                if code == Code::SUCCESS {
                    code = state;
                }
            }
            if code == Code::SUCCESS {
                (functions.destroy)(comm)
            } else {
                (functions.abort)(comm)
            };
        }
    }
}

pub(super) fn load(names: &[String]) -> Result<Arc<Functions>, DeviceError> {
    Functions::load(names).map(Arc::new).map_err(|state| {
        let library = super::Library { name: "NCCL", state, hint: super::probe::NCCL_HINT };
        DeviceError::new("joining GPUs", library.to_string())
    })
}

fn int(value: usize) -> c_int {
    c_int::try_from(value).expect("a number of ranks that NCCL holds in an int")
}

fn address(device: &CudaDevice, slice: Slice) -> Result<*mut c_void, DeviceError> {
    let address = device.address(slice)?;
    Ok(std::ptr::with_exposed_provenance_mut(usize::try_from(address).expect("addresses have 64 bits")))
}

fn raw(device: &CudaDevice, stream: Stream) -> RawStream {
    device.raw_stream(stream).cast()
}

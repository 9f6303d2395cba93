//! The functions of NCCL, by name. The Python packages hold the library as `libnccl.so.2` alone.

#![expect(unsafe_code, reason = "NCCL is a C interface")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;

use libloading::Library as Handle;

use super::probe::{State, load};

/// File names, in order.
pub(super) const FILE_NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;
/// `cudaStream_t`.
pub(super) type RawStream = *mut c_void;

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Code(pub(super) c_int);

impl Code {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const REMOTE: Self = Self(6);
    pub(super) const IN_PROGRESS: Self = Self(7);
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawId(pub(super) [u8; 128]);

/// `ncclConfig_t` as of 2.18, which says its size and version; newer libraries take their defaults for the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once, and their end is polled for, so that a rank that never comes does not hold the others.
    pub(super) fn non_blocking() -> Self {
        // NCCL_CONFIG_UNDEF_INT: the library's default.
        let undefined = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
        }
    }
}

/// A version, such as 2.28.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) c_int);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

/// The oldest that has `ncclCommSplit` and the configuration above.
const OLDEST: Version = Version(21_800);

macro_rules! functions {
    ($($field:ident: $symbol:literal, fn($($kind:ty),*) -> $result:ty;)*) => {
        /// The functions that are called. The library stays loaded as long as they are there.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($kind),*) -> $result,)*
            version: Version,
            _handle: Handle,
        }

        impl Functions {
            const SYMBOLS: &'static [&'static str] = &[$($symbol),*];

            fn find(handle: Handle) -> Self {
                // SAFETY: `load` has found every symbol, and the signatures are those of NCCL's header.
                unsafe {
                    Self {
                        $($field: *handle.get($symbol.as_bytes()).expect("a symbol that was found"),)*
                        version: Version(0),
                        _handle: handle,
                    }
                }
            }
        }
    };
}

functions! {
    get_version: "ncclGetVersion", fn(*mut c_int) -> Code;
    get_unique_id: "ncclGetUniqueId", fn(*mut RawId) -> Code;
    init: "ncclCommInitRankConfig", fn(*mut RawComm, c_int, RawId, c_int, *mut Config) -> Code;
    split: "ncclCommSplit", fn(RawComm, c_int, c_int, *mut RawComm, *mut Config) -> Code;
    finalize: "ncclCommFinalize", fn(RawComm) -> Code;
    destroy: "ncclCommDestroy", fn(RawComm) -> Code;
    abort: "ncclCommAbort", fn(RawComm) -> Code;
    async_error: "ncclCommGetAsyncError", fn(RawComm, *mut Code) -> Code;
    error_string: "ncclGetErrorString", fn(Code) -> *const c_char;
    last_error: "ncclGetLastError", fn(RawComm) -> *const c_char;
    group_start: "ncclGroupStart", fn() -> Code;
    group_end: "ncclGroupEnd", fn() -> Code;
    all_reduce: "ncclAllReduce", fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    reduce_scatter: "ncclReduceScatter", fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    all_gather: "ncclAllGather", fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> Code;
    send: "ncclSend", fn(*const c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
    receive: "ncclRecv", fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> Code;
}

impl Functions {
    /// Loads the library.
    ///
    /// # Errors
    /// When it is missing, too old, or lacks a function.
    pub(super) fn load(names: &[String]) -> Result<Self, State> {
        let mut functions = Self::find(load(names, Self::SYMBOLS)?);
        let mut version = 0;
        // SAFETY: a place for an int.
        let code = unsafe { (functions.get_version)(&raw mut version) };
        functions.version = Version(version);
        match code {
            Code::SUCCESS if functions.version >= OLDEST => Ok(functions),
            Code::SUCCESS => Err(State::Unusable(format!("it is {}, at least {OLDEST} is needed", functions.version))),
            code => Err(State::Unusable(format!("asking its version gives {}", code.0))),
        }
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// What the library says about a failure.
    pub(super) fn words(&self, code: Code, comm: RawComm) -> String {
        // SAFETY: both return a string that stays, or a null pointer.
        let text = |pointer: *const c_char| unsafe {
            if pointer.is_null() { String::new() } else { CStr::from_ptr(pointer).to_string_lossy().into_owned() }
        };
        // SAFETY: as above.
        let (general, last) = unsafe { (text((self.error_string)(code)), text((self.last_error)(comm))) };
        if last.is_empty() { general } else { format!("{general}: {last}") }
    }
}

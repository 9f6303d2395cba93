//! Which of CUDA's libraries are there, and which GPUs. Nothing that is missing is an error here.

#![expect(unsafe_code, reason = "libraries are loaded and asked for their versions by C functions")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::sync::OnceLock;

use libloading::Library as Handle;

use super::nccl;
use crate::device::DeviceError;

/// Functions of the driver that are called, all of which CUDA 12.0 has.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];
const COMPILER_FUNCTIONS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetErrorString",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];
const PRODUCT_FUNCTIONS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasGemmEx",
    "cublasGetProperty",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
];

/// The oldest driver whose functions suffice, as CUDA numbers it.
const OLDEST_DRIVER: i32 = 12_000;
const DRIVER_HINT: &str = "install NVIDIA's driver 525 or newer; in a container, start it with the GPUs passed through";
const TOOLKIT_HINT: &str = "install CUDA 12 or 13, or the Python packages nvidia-cuda-nvrtc and nvidia-cublas, and put \
                            their folder on LD_LIBRARY_PATH";
pub(super) const NCCL_HINT: &str = "no run needs it yet, since ranks exchange through host memory: install libnccl2, or the \
                                   Python package nvidia-nccl-cu13 (its folder on LD_LIBRARY_PATH)";

/// Whether a library can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Yes; its version.
    Ready(String),
    /// There is none.
    Missing,
    /// There is one, and this stands in the way.
    Unusable(String),
}

/// A library that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// What it is, in the words of its vendor.
    pub name: &'static str,
    /// Whether it can be used.
    pub state: State,
    /// What to do if it cannot.
    pub hint: &'static str,
}

impl Library {
    /// Whether it can be used.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Ready(version) => write!(f, "{} {version}", self.name),
            State::Missing => write!(f, "{} is not there: {}", self.name, self.hint),
            State::Unusable(cause) => write!(f, "{}: {cause}: {}", self.name, self.hint),
        }
    }
}

/// A GPU that the driver shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As the driver calls it.
    pub name: String,
    /// Compute capability: generation and revision.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The driver.
    pub driver: Library,
    /// The compiler of kernels, NVRTC.
    pub compiler: Library,
    /// Matrix products, cuBLAS.
    pub products: Library,
    /// Collectives between GPUs, NCCL.
    pub collectives: Library,
    /// The GPUs, if the driver can be used.
    pub gpus: Vec<Gpu>,
}

impl Probe {
    /// Whether a GPU can compute.
    ///
    /// # Errors
    /// With all that stands in the way.
    pub fn usable(&self) -> Result<(), DeviceError> {
        let needed = [&self.driver, &self.compiler, &self.products];
        let missing: Vec<String> =
            needed.into_iter().filter(|library| !library.is_ready()).map(ToString::to_string).collect();
        if missing.is_empty() { Ok(()) } else { Err(DeviceError::new("using a GPU", missing.join("; "))) }
    }
}

/// File names under which each library is looked for, in order.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) driver: Vec<String>,
    pub(super) compiler: Vec<String>,
    pub(super) products: Vec<String>,
    pub(super) collectives: Vec<String>,
}

impl Names {
    /// The names that the bindings will try, so that what is found here is what they use.
    fn of_the_bindings() -> Self {
        let of = |name| cudarc::get_lib_name_candidates(name);
        let collectives = nccl::FILE_NAMES.map(str::to_owned).to_vec();
        Self { driver: [of("cuda"), of("nvcuda")].concat(), compiler: of("nvrtc"), products: of("cublas"), collectives }
    }
}

/// Looks once, and remembers what it found.
pub fn probe() -> &'static Probe {
    static FOUND: OnceLock<Probe> = OnceLock::new();
    FOUND.get_or_init(|| probe_for(&Names::of_the_bindings()))
}

pub(super) fn probe_for(names: &Names) -> Probe {
    let (driver, version, gpus) = match look_at_driver(&names.driver) {
        Ok((version, gpus)) => (State::Ready(cuda_version(version)), Some(version), gpus),
        Err(state) => (state, None, Vec::new()),
    };
    let compiler = look_at_compiler(&names.compiler, version).unwrap_or_else(|state| state);
    let products = look_at_products(&names.products).unwrap_or_else(|state| state);
    let collectives = match nccl::Functions::load(&names.collectives) {
        Ok(functions) => State::Ready(functions.version().to_string()),
        Err(state) => state,
    };
    Probe {
        driver: Library { name: "NVIDIA driver for CUDA", state: driver, hint: DRIVER_HINT },
        compiler: Library { name: "NVRTC", state: compiler, hint: TOOLKIT_HINT },
        products: Library { name: "cuBLAS", state: products, hint: TOOLKIT_HINT },
        collectives: Library { name: "NCCL", state: collectives, hint: NCCL_HINT },
        gpus,
    }
}

/// 13000 is 13.0.
fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The first library of these names that loads and has all functions.
pub(super) fn load(names: &[String], functions: &[&str]) -> Result<Handle, State> {
    let mut refused = None;
    for name in names {
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
        match unsafe { Handle::new(name) } {
            Ok(handle) => {
                let missing = functions.iter().find(|function| {
                    // SAFETY: the symbol is looked for and not used.
                    unsafe { handle.get::<*const ()>(function.as_bytes()) }.is_err()
                });
                return match missing {
                    Some(function) => Err(State::Unusable(format!("{name} is too old: it has no {function}"))),
                    None => Ok(handle),
                };
            }
            // A file that is there and does not load says why; one that is not there says only that.
            Err(error) => {
                let words = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                let absent = words.contains("cannot open shared object file") && words.contains(name.as_str());
                if !absent || std::path::Path::new(name).exists() {
                    refused.get_or_insert(words);
                }
            }
        }
    }
    Err(refused.map_or(State::Missing, State::Unusable))
}

/// Calls `$name` of a library with the signature given.
macro_rules! call {
    ($handle:expr, $name:literal, fn($($kind:ty),*), $($argument:expr),*) => {{
        // SAFETY: `load` has found the symbol; the signature is that of NVIDIA's documentation, and the places that
        // pointers name are as large as it says.
        unsafe {
            let function = $handle.get::<unsafe extern "C" fn($($kind),*) -> c_int>($name).expect("a symbol that was found");
            function($($argument),*)
        }
    }};
}

fn look_at_driver(names: &[String]) -> Result<(i32, Vec<Gpu>), State> {
    let driver = load(names, DRIVER_FUNCTIONS)?;
    let refused = |doing: &str, code: c_int| {
        let (words, name) = error_words(&driver, code);
        State::Unusable(format!("{doing}: {words} ({name}, {code}){}", advice(code)))
    };
    let check = |doing: &str, code: c_int| if code == 0 { Ok(()) } else { Err(refused(doing, code)) };
    check("starting it", call!(driver, b"cuInit", fn(c_uint), 0))?;
    let (mut version, mut count) = (0, 0);
    check("asking its version", call!(driver, b"cuDriverGetVersion", fn(*mut c_int), &raw mut version))?;
    if version < OLDEST_DRIVER {
        let (found, oldest) = (cuda_version(version), cuda_version(OLDEST_DRIVER));
        return Err(State::Unusable(format!("it is too old: it is of CUDA {found}, at least {oldest} is needed")));
    }
    check("counting GPUs", call!(driver, b"cuDeviceGetCount", fn(*mut c_int), &raw mut count))?;
    if count == 0 {
        return Err(State::Unusable("it shows no GPU; CUDA_VISIBLE_DEVICES may hide them".to_owned()));
    }
    let gpu = |ordinal| {
        let (mut device, mut name, mut memory) = (0, [0u8; 256], 0usize);
        check("opening a GPU", call!(driver, b"cuDeviceGet", fn(*mut c_int, c_int), &raw mut device, ordinal))?;
        let place = name.as_mut_ptr().cast::<c_char>();
        check("naming a GPU", call!(driver, b"cuDeviceGetName", fn(*mut c_char, c_int, c_int), place, 255, device))?;
        let total = call!(driver, b"cuDeviceTotalMem_v2", fn(*mut usize, c_int), &raw mut memory, device);
        check("asking for a GPU's memory", total)?;
        let attribute = |which: c_int| {
            let mut value = 0;
            let code =
                call!(driver, b"cuDeviceGetAttribute", fn(*mut c_int, c_int, c_int), &raw mut value, which, device);
            check("asking for a GPU's capability", code).map(|()| value)
        };
        let words =
            CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |n| n.to_string_lossy().into_owned());
        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        Ok(Gpu { name: words, capability: (attribute(75)?, attribute(76)?), memory: memory as u64 })
    };
    let gpus = (0..count).map(gpu).collect::<Result<_, _>>()?;
    // A driver that was started must not be unloaded.
    std::mem::forget(driver);
    Ok((version, gpus))
}

fn error_words(driver: &Handle, code: c_int) -> (String, String) {
    let text = |symbol: &[u8]| {
        let mut words: *const c_char = std::ptr::null();
        // SAFETY: both functions have this signature, and leave a constant string or a null pointer.
        unsafe {
            let Ok(function) = driver.get::<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(symbol) else {
                return String::new();
            };
            function(code, &raw mut words);
            if words.is_null() { String::new() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        }
    };
    (text(b"cuGetErrorString"), text(b"cuGetErrorName"))
}

/// What is known to help against a failure to start.
fn advice(code: c_int) -> &'static str {
    match code {
        100 => "; CUDA_VISIBLE_DEVICES may hide the GPUs, or the container was started without them",
        101 => "; CUDA_VISIBLE_DEVICES names a GPU that is not there",
        802 => "; the fabric manager of an NVSwitch machine is not running",
        803 => {
            "; the driver's library and its kernel module are of two versions: restart the machine, or in a container \
                remove the library that shadows the host's"
        }
        999 => "; nvidia-smi and the kernel's log say more",
        _ => "",
    }
}

fn look_at_compiler(names: &[String], driver: Option<i32>) -> Result<State, State> {
    let compiler = load(names, COMPILER_FUNCTIONS)?;
    let (mut major, mut minor) = (0, 0);
    match call!(compiler, b"nvrtcVersion", fn(*mut c_int, *mut c_int), &raw mut major, &raw mut minor) {
        0 if driver.is_some_and(|driver| driver / 1000 < major) => {
            let driver = cuda_version(driver.unwrap_or_default());
            Err(State::Unusable(format!(
                "it is of CUDA {major}.{minor}, and the driver of {driver} cannot load what it makes"
            )))
        }
        0 => Ok(State::Ready(format!("{major}.{minor}"))),
        code => Err(State::Unusable(format!("asking its version gives {code}"))),
    }
}

fn look_at_products(names: &[String]) -> Result<State, State> {
    let products = load(names, PRODUCT_FUNCTIONS)?;
    let property = |which: c_int| {
        let mut value = 0;
        match call!(products, b"cublasGetProperty", fn(c_int, *mut c_int), which, &raw mut value) {
            0 => Ok(value),
            code => Err(State::Unusable(format!("asking its version gives {code}"))),
        }
    };
    Ok(State::Ready(format!("{}.{}.{}", property(0)?, property(1)?, property(2)?)))
}

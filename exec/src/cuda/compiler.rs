//! Sources to device code, kept between runs.
//!
//! A file of the cache is named by all that its content depends on: the source and what it includes, the definitions, the
//! architecture and the compiler's version. It is written under a temporary name of its own and renamed, so that neither
//! processes nor the ranks of one meet in it; one that the driver refuses is built again.

#![expect(unsafe_code, reason = "NVRTC is a C interface")]

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::source::{COMMON, Module};
use crate::device::DeviceError;

/// A real architecture, such as 9.0 of an H100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Architecture {
    pub(super) major: i32,
    pub(super) minor: i32,
}

impl Architecture {
    fn option(self) -> String {
        format!("-arch=sm_{}{}", self.major, self.minor)
    }
}

/// NVRTC with a folder for what it made.
#[derive(Debug)]
pub(super) struct Compiler {
    cache: Option<PathBuf>,
    version: (i32, i32),
    /// How many modules were built, and not found.
    pub(super) built: u32,
}

impl Compiler {
    /// # Errors
    /// When NVRTC does not say its version. The caller has made sure that the library is there.
    pub(super) fn new(cache: Option<PathBuf>) -> Result<Self, DeviceError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for an int each.
        check(unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }, "asking NVRTC for its version")?;
        Ok(Self { cache, version: (major, minor), built: 0 })
    }

    /// Device code of a module, and whether it came from the cache.
    ///
    /// # Errors
    /// With the compiler's log.
    pub(super) fn image(&mut self, module: Module, of: Architecture) -> Result<(Vec<u8>, bool), DeviceError> {
        let file = self.cache.as_ref().map(|folder| folder.join(self.file_name(module, of)));
        if let Some(image) = file.as_deref().and_then(|file| std::fs::read(file).ok()) {
            return Ok((image, true));
        }
        let image = self.build(module, of)?;
        // A cache that cannot be written only costs the next run some seconds.
        if let Some(file) = file {
            let _ = keep(&file, &image);
        }
        Ok((image, false))
    }

    /// The same, without looking into the cache.
    ///
    /// # Errors
    /// With the compiler's log.
    pub(super) fn build(&mut self, module: Module, of: Architecture) -> Result<Vec<u8>, DeviceError> {
        self.built += 1;
        compile(module, of, &[]).map(|(image, _)| image)
    }

    /// Forgets what the driver refused.
    pub(super) fn discard(&self, module: Module, of: Architecture) {
        if let Some(folder) = &self.cache {
            let _ = std::fs::remove_file(folder.join(self.file_name(module, of)));
        }
    }

    fn file_name(&self, module: Module, of: Architecture) -> String {
        let (major, minor) = self.version;
        let definitions = module.definitions().join(" ");
        let key = fingerprint([COMMON, module.source.text(), &definitions]);
        format!("{}-sm_{}{}-nvrtc{major}.{minor}-{key:016x}.cubin", module.name(), of.major, of.minor)
    }
}

/// FNV-1a over texts and the borders between them: it tells versions of our own sources apart, and defends against nothing.
fn fingerprint<const N: usize>(texts: [&str; N]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn keep(file: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = file.with_extension(format!("{}.{number}.part", std::process::id()));
    std::fs::write(&temporary, image)?;
    std::fs::rename(&temporary, file)
}

fn check(result: nvrtcResult, doing: &str) -> Result<(), DeviceError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: NVRTC returns a constant string for every number.
    let words = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    let error = DeviceError::new(doing, words.to_string_lossy());
    Err(match result {
        nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => {
            error.hint("put the folder of libnvrtc-builtins.so on LD_LIBRARY_PATH")
        }
        nvrtcResult::NVRTC_ERROR_INVALID_OPTION => {
            error.hint("this NVRTC may be older than the GPU: install the one of CUDA 12.8 or newer")
        }
        _ => error,
    })
}

/// A program of NVRTC, destroyed at the end of its scope.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by nvrtcCreateProgram and destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn text(value: impl Into<Vec<u8>>) -> CString {
    CString::new(value).expect("our sources hold no zero bytes")
}

/// Device code and the compiler's log.
pub(super) fn compile(module: Module, of: Architecture, more: &[&str]) -> Result<(Vec<u8>, String), DeviceError> {
    let doing = format!("compiling {} for sm_{}{}", module.name(), of.major, of.minor);
    let (source, name) = (text(module.source.text()), text(format!("{}.cu", module.source.name())));
    let (header, header_name) = (text(COMMON), text("common.cuh"));
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: all strings live until the call returns; NVRTC copies them.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program.0,
            source.as_ptr(),
            name.as_ptr(),
            1,
            [header.as_ptr()].as_ptr(),
            [header_name.as_ptr()].as_ptr(),
        )
    };
    check(created, &doing)?;
    let options = [of.option(), "-std=c++17".to_owned()].into_iter();
    let options = options.chain(more.iter().map(|&option| option.to_owned()));
    let options: Vec<CString> = options.chain(module.definitions()).map(text).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let count = i32::try_from(pointers.len()).expect("a few options");
    // SAFETY: as many pointers as said, to strings that live until the call returns.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, count, pointers.as_ptr()) };
    check(compiled, &doing).map_err(|error| {
        let log = log_of(&program).unwrap_or_default();
        DeviceError { cause: format!("{}\n{}", error.cause, log.trim_end()), ..error }
    })?;
    let mut size = 0;
    // SAFETY: a place for a size.
    check(unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }, &doing)?;
    let mut image = vec![0u8; size];
    // SAFETY: a buffer of the size that NVRTC asked for.
    check(unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }, &doing)?;
    Ok((image, log_of(&program)?))
}

fn log_of(program: &Program) -> Result<String, DeviceError> {
    let mut size = 0;
    // SAFETY: a place for a size.
    check(unsafe { sys::nvrtcGetProgramLogSize(program.0, &raw mut size) }, "reading the compiler's log")?;
    let mut log = vec![0u8; size];
    // SAFETY: a buffer of the size that NVRTC asked for.
    check(unsafe { sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast()) }, "reading the compiler's log")?;
    Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of one process keep the same module at the same time: who reads gets all of it.
    #[test]
    fn a_file_of_the_cache_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, image) = (folder.path().join("module.cubin"), vec![7u8; 1 << 20]);
        keep(&file, &image).expect("a folder that can be written");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..30).for_each(|_| keep(&file, &image).expect("its own file until it is renamed")));
            }
            for _ in 0..200 {
                assert!(std::fs::read(&file).expect("a file") == image, "a part of a module");
            }
        });
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "temporary files were left");
    }
}

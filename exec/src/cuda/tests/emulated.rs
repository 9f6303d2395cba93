//! The whole host code on the emulated machine.
//!
//! Tests that are ignored are run by the others, in processes of their own.

use super::machine::{self, answer};
use super::skip;
use crate::cuda::{CudaDevice, CudaOptions};
use crate::device::tests::suite;
use crate::device::*;
use crate::kernels::testing::{Cases, long_tests};

/// How many random cases of each group: few where threads are emulated.
fn few() -> u64 {
    if long_tests() { 3 } else { 1 }
}

fn machines(test: &str) -> Option<&'static [std::path::PathBuf; 2]> {
    let built = machine::build();
    if built.is_none() {
        skip(test, "there is no compiler for C++ (c++)");
    }
    built
}

/// Every operation on a GPU against the CPU; returns a fingerprint of all that came out.
pub(super) fn hold_against_the_cpu(gpu: &CudaDevice, count: u64) -> u64 {
    let mut fingerprint = 0xcbf2_9ce4_8422_2325u64;
    for (name, group) in suite::GROUPS {
        for element in [Element::F32, Element::Bf16] {
            Cases::run(count, |cases| {
                let again = &mut cases.clone();
                let want = suite::run(&CpuDevice::new(), element, cases, *group);
                let got = suite::run(gpu, element, again, *group);
                suite::assert_agree(name, &got, &want);
                for bits in got.iter().flat_map(|outcome| &outcome.values).map(|value| value.to_bits()) {
                    fingerprint = (fingerprint ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3);
                }
            });
        }
    }
    fingerprint
}

#[test]
#[ignore = "run by operations_agree_with_the_cpu_in_any_order_of_threads"]
fn operations() {
    let gpu = CudaDevice::open(CudaOptions::default()).expect("the emulated GPU");
    let fingerprint = hold_against_the_cpu(&gpu, few());
    assert_eq!(gpu.memory().in_use, 0, "all was given back");
    drop(gpu);
    answer(&format!("{fingerprint:016x}"));
}

#[test]
fn operations_agree_with_the_cpu_in_any_order_of_threads() {
    let Some([whole, _]) = machines("operations_agree_with_the_cpu_in_any_order_of_threads") else { return };
    let [forward, backward] = ["0", "1"].map(|reverse| {
        let answer = machine::run(whole, "emulated::operations", &[("TRAINYARD_SHIM_REVERSE", reverse)]);
        assert!(answer.ok, "with threads turned around: {reverse}\n{}", answer.words);
        answer.words
    });
    assert_eq!(forward, backward, "the order in which threads and blocks run changes no bit");
}

/// On a real GPU. `device-check.sh` runs it.
#[test]
#[ignore = "needs a GPU: exec/device-check.sh runs it"]
fn operations_on_a_gpu() {
    let gpu = CudaDevice::open(CudaOptions::default()).expect("a GPU");
    let count = std::env::var("TRAINYARD_CASES").ok().map_or(20, |count| count.parse().expect("a number"));
    hold_against_the_cpu(&gpu, count);
}

/// Some work; what it ends with is the answer.
#[test]
#[ignore = "run by faults_are_told_with_their_cause"]
fn work() {
    let run = || -> Result<String, DeviceError> {
        let gpu = CudaDevice::open(CudaOptions { ordinal: 0, cache: std::env::var_os("CACHE").map(Into::into) })?;
        let result = work_on(&gpu);
        drop(gpu);
        result
    };
    answer(&run().map_or_else(|error| format!("failed: {error}"), |words| format!("done: {words}")));
}

fn work_on(gpu: &CudaDevice) -> Result<String, DeviceError> {
    let allocate = || gpu.allocate(Stream::COMPUTE, Element::F32, 9);
    let (a, b, out) = (allocate()?, allocate()?, allocate()?);
    for slice in [a, b] {
        write_f32(gpu, Stream::COMPUTE, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], slice)?;
    }
    gpu.run(Stream::COMPUTE, &Operation::Add { a, b, out })?;
    gpu.product(Stream::COMPUTE, &Product::forward(3, 3, 3, a, b, true, out))?;
    let event = gpu.record(Stream::COMPUTE)?;
    gpu.wait(Stream::COPY, event)?;
    gpu.forget(event)?;
    let host = gpu.pin(36)?;
    gpu.offload(Stream::COPY, out, host, 0)?;
    gpu.synchronize(Stream::COPY)?;
    gpu.unpin(host)?;
    let values = read_f32(gpu, Stream::COMPUTE, out)?;
    for slice in [a, b, out] {
        gpu.release(Stream::COMPUTE, slice)?;
    }
    Ok(format!("{:?} on {}, {} bytes in use", &values[..2], gpu.name(), gpu.memory().in_use))
}

#[test]
fn faults_are_told_with_their_cause() {
    let Some([whole, old]) = machines("faults_are_told_with_their_cause") else { return };
    // 1 * 2 + (1, 2, 3) . (1, 2, 3), and 2 * 2 + (1, 2, 3) . (4, 5, 6).
    let good = "done: [16.0, 36.0] on Emulated GPU, compute capability 9.0, 0 bytes in use";
    let cases: &[(&std::path::Path, &str, &[&str])] = &[
        (whole, "", &[good]),
        (whole, "MACHINE_DEVICES=0", &["using a GPU", "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"]),
        (whole, "MACHINE_INIT=803", &["803", "two versions", "restart the machine"]),
        (whole, "MACHINE_INIT=802", &["802", "fabric manager"]),
        (whole, "MACHINE_VERSION=11080", &["too old", "CUDA 11.8", "at least 12.0", "driver 525"]),
        (old, "", &["too old", "cuMemFreeAsync"]),
        (whole, "MACHINE_VERSION=12040", &["NVRTC", "CUDA 13.0", "12.4 cannot load"]),
        (whole, "MACHINE_CAPABILITY=7", &["capability 7.0", "8.0 (A100) or newer"]),
        (whole, "MACHINE_FAIL=cuDevicePrimaryCtxRetain:1:2", &["opening GPU 0", "out of memory"]),
        (whole, "MACHINE_FAIL=cuStreamCreateWithPriority:2:1", &["opening GPU 0"]),
        (
            whole,
            "MACHINE_FAIL=cuMemAllocAsync:2:2",
            &["allocating 256 bytes, with 256 in use", "out of memory", "recomputation"],
        ),
        (whole, "MACHINE_MEMORY=700", &["out of memory"]),
        (
            whole,
            "MACHINE_FAIL=nvrtcCompileProgram:1:6",
            &["compiling elementwise-f32 for sm_90", "NVRTC_ERROR_COMPILATION"],
        ),
        (whole, "MACHINE_FAIL=cuModuleLoadData:1:200", &["loading elementwise-f32"]),
        (whole, "MACHINE_FAIL=cuModuleGetFunction:1:500", &["finding add in elementwise-f32"]),
        (whole, "MACHINE_FAIL=cuLaunchKernel:1:719", &["launching add of elementwise-f32"]),
        (whole, "MACHINE_FAIL=cublasCreate_v2:1:1", &["opening cuBLAS", "NOT_INITIALIZED"]),
        (whole, "MACHINE_FAIL=cublasGemmEx:1:13", &["a product of 3 x 3 x 3", "EXECUTION_FAILED"]),
        (whole, "MACHINE_FAIL=cuEventRecord:1:719", &["recording an event"]),
        (whole, "MACHINE_FAIL=cuMemHostAlloc:1:2", &["page-locking 36 bytes"]),
        (whole, "MACHINE_FAIL=cuStreamSynchronize:1:719", &["waiting for a stream"]),
    ];
    for (machine, setting, expected) in cases {
        let settings: Vec<(&str, &str)> = setting.split_once('=').into_iter().collect();
        let answer = machine::run(machine, "emulated::work", &settings);
        assert!(answer.ok, "{setting}\n{}", answer.words);
        for words in *expected {
            assert!(answer.words.contains(words), "{setting}: `{words}` is not in `{}`", answer.words);
        }
        assert_eq!(
            answer.words.starts_with("done"),
            setting.is_empty() && *machine == whole,
            "{setting}: {}",
            answer.words
        );
    }
}

/// With a cache, a second process compiles nothing; a torn file is built again; no cache is no fault.
#[test]
fn device_code_is_kept_between_processes() {
    let Some([whole, _]) = machines("device_code_is_kept_between_processes") else { return };
    let cache = std::env::temp_dir().join(format!("trainyard-cache-{}", std::process::id()));
    let path = cache.to_str().expect("a path of letters");
    let run = |fault: &str| machine::run(whole, "emulated::work", &[("CACHE", path), ("MACHINE_FAIL", fault)]).words;
    assert!(run("").starts_with("done"), "the first compiles");
    let files: Vec<_> =
        std::fs::read_dir(&cache).expect("the cache").map(|file| file.expect("a file").path()).collect();
    let names: Vec<_> =
        files.iter().map(|file| file.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with("elementwise-f32-sm_90-nvrtc13.0-") && names[0].ends_with(".cubin"), "{names:?}");
    assert!(run("nvrtcCompileProgram:1:6").starts_with("done"), "the second does not compile");
    for torn in [&b""[..], b"\x7fELF/nowhere\0", b"something else"] {
        std::fs::write(&files[0], torn).expect("a torn file");
        assert!(run("").starts_with("done"), "what the driver refuses is built again: {torn:?}");
        assert!(run("nvrtcCompileProgram:1:6").starts_with("done"), "and kept");
    }
    std::fs::remove_dir_all(&cache).expect("the cache goes");
    assert!(
        machine::run(whole, "emulated::work", &[("CACHE", "/proc/no/folder")]).words.starts_with("done"),
        "a cache is a convenience"
    );
}

/// Without an event between them, work on two streams comes out wrong: the machine's order is adverse, so that the suite's
/// chain over streams shows something.
#[test]
#[ignore = "run by a_missing_wait_is_seen"]
fn race() {
    let gpu = CudaDevice::open(CudaOptions::default()).expect("the emulated GPU");
    let [a, out] = [(); 2].map(|()| gpu.allocate(Stream::COMPUTE, Element::F32, 4).expect("memory"));
    write_f32(&gpu, Stream::COMPUTE, &[1.0; 4], a).expect("a write");
    // A copy on another stream, which does not wait for the write.
    gpu.copy(Stream::COPY, a, out).expect("a copy");
    let early = read_f32(&gpu, Stream::COPY, out).expect("a read");
    let event = gpu.record(Stream::COMPUTE).expect("an event");
    gpu.wait(Stream::COPY, event).expect("a wait");
    gpu.copy(Stream::COPY, a, out).expect("a copy");
    let late = read_f32(&gpu, Stream::COPY, out).expect("a read");
    answer(&format!("{} {}", early[0].is_nan(), late[0]));
}

#[test]
fn a_missing_wait_is_seen() {
    let Some([whole, _]) = machines("a_missing_wait_is_seen") else { return };
    // The race leaves its buffers to the device, which gives them back.
    let answer = machine::run(whole, "emulated::race", &[]);
    assert!(answer.ok, "{}", answer.words);
    assert_eq!(answer.words, "true 1");
}

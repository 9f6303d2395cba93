//! `doctor`: what this machine can do and what stands in the way.

use crate::catalog::Catalog;
use crate::results::{DoctorReport, Finding, FindingState, Header};

/// The clock of measured spans must resolve far less than an instruction.
const FINE_CLOCK_US: u128 = 50;

/// Looks at the machine. Nothing that it finds is an error.
#[must_use]
pub fn doctor() -> DoctorReport {
    let mut findings = vec![cores(), build(), clock(), folder(), catalog()];
    findings.extend(gpus());
    DoctorReport { header: Header::new("doctor", ""), findings }
}

fn finding(subject: &'static str, state: FindingState, message: impl Into<String>) -> Finding {
    Finding { subject, state, message: message.into() }
}

/// Cores that the process may use.
pub(crate) fn available_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

fn cores() -> Finding {
    match available_cores() {
        1 => finding(
            "cores",
            FindingState::Warning,
            "1 core: runs of several ranks are oversubscribed unless devices are emulated",
        ),
        n => finding(
            "cores",
            FindingState::Good,
            format!("{n} cores: runs of up to {n} ranks, or more emulated ones, are timed fairly"),
        ),
    }
}

fn build() -> Finding {
    if cfg!(debug_assertions) {
        finding("build", FindingState::Warning, "a debug build: training is many times slower; use --release")
    } else {
        finding("build", FindingState::Good, "a release build")
    }
}

fn clock() -> Finding {
    let steps = (0..100).map(|_| {
        let start = std::time::Instant::now();
        loop {
            let step = start.elapsed();
            if !step.is_zero() {
                return step;
            }
        }
    });
    let finest = steps.min().unwrap_or_default();
    let message = format!("the monotonic clock steps by {} ns", finest.as_nanos());
    let state = if finest.as_micros() > FINE_CLOCK_US { FindingState::Bad } else { FindingState::Good };
    finding("clock", state, message)
}

fn folder() -> Finding {
    match tempfile::NamedTempFile::new_in(".") {
        Ok(_) => finding("folder", FindingState::Good, "the working folder can be written"),
        Err(error) => {
            let message = format!("the working folder cannot be written ({error}): give --out and --json elsewhere");
            finding("folder", FindingState::Warning, message)
        }
    }
}

/// GPUs and the libraries that they need. A machine without them is none that something is wrong with.
#[cfg(feature = "cuda")]
fn gpus() -> Vec<Finding> {
    let found = exec::cuda::probe();
    if !found.driver.is_ready() {
        return vec![finding("gpu", FindingState::Warning, format!("runs are on the CPU. {}", found.driver))];
    }
    let libraries = [("nvrtc", &found.compiler), ("cublas", &found.products), ("nccl", &found.collectives)];
    let of_library = |(subject, library): (&'static str, &exec::cuda::Library)| {
        let state = if library.is_ready() { FindingState::Good } else { FindingState::Warning };
        finding(subject, state, library.to_string())
    };
    let usable = found.usable().is_ok();
    let of_gpu = |(number, gpu): (usize, &exec::cuda::Gpu)| {
        let (major, minor) = gpu.capability;
        let memory = ir::Bytes::new(gpu.memory);
        let words = format!("{number}: {}, compute capability {major}.{minor}, {memory}", gpu.name);
        if major < 8 {
            finding("gpu", FindingState::Warning, format!("{words}: too old, the kernels need 8.0 or newer"))
        } else if !usable {
            finding("gpu", FindingState::Warning, format!("{words}: not without the libraries that are missing below"))
        } else {
            finding("gpu", FindingState::Good, format!("{words}: `run --device cuda` trains on it"))
        }
    };
    let driver = finding("driver", FindingState::Good, found.driver.to_string());
    let gpus = found.gpus.iter().enumerate().map(of_gpu);
    [driver].into_iter().chain(gpus).chain(libraries.map(of_library)).collect()
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> Vec<Finding> {
    vec![finding(
        "gpu",
        FindingState::Warning,
        "runs are on the CPU: this program was built without the feature `cuda`",
    )]
}

fn catalog() -> Finding {
    let catalog = Catalog::embedded();
    let count = |n: usize, what: &str| format!("{n} {what}");
    let parts = [
        count(catalog.devices.len(), "devices"),
        count(catalog.links.len(), "links"),
        count(catalog.nodes.len(), "nodes"),
        count(catalog.models.len(), "models"),
        count(crate::catalog::calibrations().len(), "calibrations"),
    ];
    finding("catalog", FindingState::Good, parts.join(", "))
}

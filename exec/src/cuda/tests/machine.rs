//! Builds the emulated machine of `exec/kernels/shim`, and runs a test of this program on it, in a process of its own:
//! libraries are looked for when a process starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names under which the one library is found.
const NAMES: [&str; 5] = ["libcuda.so", "libnvrtc.so", "libcublas.so", "libnccl.so.2", "libcuda.so.1"];

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// The folder of the built program, in which tests may write.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    program.parent().expect("a folder").join("emulated-gpu")
}

/// Folders of a whole machine and of one with an old driver; none if there is no compiler for C++.
pub(super) fn build() -> Option<&'static [PathBuf; 2]> {
    static BUILT: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            Command::new("c++").arg("--version").output().ok().filter(|output| output.status.success())?;
            Some([build_in("whole", &[]), build_in("old", &["-DOLD_DRIVER"])])
        })
        .as_ref()
}

fn build_in(name: &str, more: &[&str]) -> PathBuf {
    let libraries = folder().join(name);
    std::fs::create_dir_all(&libraries).expect("a folder");
    // Under a name of this process, then renamed: two runs of the tests may meet here.
    let part = libraries.join(format!("machine.{}.part", std::process::id()));
    let built = Command::new("c++")
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .args(more)
        .arg(kernels().join("shim/machine.cpp"))
        .arg("-o")
        .arg(&part)
        .output()
        .expect("c++ starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let machine = libraries.join("machine.so");
    std::fs::rename(&part, &machine).expect("a library in its place");
    for name in NAMES {
        let link = libraries.join(name);
        if !link.exists() {
            // Another process may have been faster.
            let _ = std::os::unix::fs::symlink("machine.so", &link);
        }
    }
    libraries
}

/// What a child said: its last words, and whether it ended well.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) ok: bool,
    pub(super) words: String,
}

/// Runs the ignored test `name` on the machine in `libraries`. What it writes by [`answer`] comes back, or what it printed
/// if it failed.
pub(super) fn run(libraries: &Path, name: &str, settings: &[(&str, &str)]) -> Answer {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let answer = folder().join(format!("answer.{}.{number}", std::process::id()));
    let mut command = child(libraries, settings);
    command
        .args(["--ignored", "--exact", "--nocapture"])
        .arg(format!("cuda::tests::{name}"))
        .env("TRAINYARD_ANSWER", &answer);
    let output = command.output().expect("this program starts");
    let said = std::fs::read_to_string(&answer).unwrap_or_default();
    let _ = std::fs::remove_file(&answer);
    let printed = || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let ok = output.status.success() && !said.is_empty();
    Answer { ok, words: if ok { said } else { printed() } }
}

/// This program on the machine in `libraries`.
fn child(libraries: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command
        .arg("--test-threads=1")
        .env("LD_LIBRARY_PATH", libraries)
        .env("MACHINE_SHIM", kernels().join("shim"))
        .env("MACHINE_BUILDS", folder().join("builds"))
        .envs(settings.iter().copied());
    command
}

/// Runs those of this program's tests whose names hold `filter` and none of `without`: how many passed, or what they printed.
pub(super) fn run_suite(
    libraries: &Path,
    (filter, without): (&str, &[&str]),
    settings: &[(&str, &str)],
) -> Result<usize, String> {
    let mut command = child(libraries, settings);
    command.arg(filter);
    without.iter().for_each(|name| drop(command.args(["--skip", name]).get_args()));
    let output = command.output().expect("this program starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = printed.lines().filter(|line| line.starts_with("test ") && line.ends_with("... ok")).count();
    if output.status.success() { Ok(passed) } else { Err(printed + &String::from_utf8_lossy(&output.stderr)) }
}

/// In a child: what the parent gets.
pub(super) fn answer(words: &str) {
    let path = std::env::var_os("TRAINYARD_ANSWER").expect("run by its parent");
    std::fs::write(path, words).expect("an answer");
}

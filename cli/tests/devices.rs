//! `run --device`, as a person uses it where there is no GPU. What GPUs do is shown by `exec/device-check.sh`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

fn scenario(folder: &Path, run: &str) -> PathBuf {
    let text = format!(
        "name = \"devices\"\nseed = 3\n\n[cluster]\nnodes = \"1 x cpu-4\"\n\n[model]\nname = \"tiny-gpt\"\n\n\
         [training]\nsequence_length = 16\nglobal_batch = 4\niterations = 3\n\n[plan]\ndata = 2\n\n[run]\n{run}\n"
    );
    let path = folder.join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// A program that sees no GPU, whatever the machine has.
fn trainyard(arguments: &[&str], scenario: &Path) -> Output {
    let mut command = Command::new(TRAINYARD);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("LD_LIBRARY_PATH");
    command.arg(arguments[0]).arg(scenario).args(&arguments[1..]).args(["--json", "-", "-q"]).output().unwrap()
}

#[test]
fn a_machine_without_a_gpu_says_so_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (run, arguments) in [
        ("", &["run", "--device", "cuda"][..]),
        ("device = \"cuda\"", &["run"]),
        ("device = \"cuda\"\nranks_per_gpu = 2", &["compare"]),
        ("device = \"cpu\"", &["run", "--device", "cuda", "--ranks-per-gpu", "2"]),
    ] {
        let output = trainyard(arguments, &scenario(folder.path(), run));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{run} {arguments:?}: {said}");
        assert!(said.contains("run.device") && said.contains("NVIDIA driver for CUDA"), "{run} {arguments:?}: {said}");
        assert!(said.contains("trainyard doctor"), "{said}");
    }
}

#[test]
fn what_is_asked_for_replaces_what_the_scenario_says() {
    let folder = tempfile::tempdir().unwrap();
    let output = trainyard(&["run", "--device", "cpu"], &scenario(folder.path(), "device = \"cuda\""));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["loss"].as_array().map(Vec::len), Some(3));
    assert!(report["devices"].is_null(), "{report}");
}

#[test]
fn ranks_per_gpu_without_gpus_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("ranks_per_gpu = 2", &["run"][..], "run.ranks_per_gpu"),
        ("", &["run", "--ranks-per-gpu", "2"], "run.ranks_per_gpu"),
        ("device = \"gpu\"", &["run"], "is none of: cpu, cuda"),
    ];
    for (run, arguments, words) in cases {
        let output = trainyard(arguments, &scenario(folder.path(), run));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

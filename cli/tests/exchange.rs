//! `import` and `export`, as a person uses them.

use std::path::Path;
use std::process::{Command, Output};

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

/// A script of two nodes.
const SCRIPT: &str = "NODES=2\nARGS=(\n    --num-layers 24 --hidden-size 2048 --num-attention-heads 16\n    --seq-length 2048\n    \
    --max-position-embeddings 2048 --vocab-size 50257\n    --micro-batch-size 2 --global-batch-size 64 --bf16\n    \
    --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer\n    --log-interval 10\n)\n\
    torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]}\n";

fn trainyard(folder: &Path, arguments: &[&str]) -> (Output, String, String) {
    let output = Command::new(TRAINYARD).current_dir(folder).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (output, out, error)
}

fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.sh"), script).unwrap();
    folder
}

#[test]
fn a_script_becomes_a_scenario_and_a_script_again() {
    let folder = folder(SCRIPT);
    let at = folder.path();
    let (output, out, error) = trainyard(at, &["import", "train.sh"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    for part in [
        "scenario.toml",
        "Megatron-LM",
        "2 x dgx-h100: 16 devices",
        "no meaning here",
        "log-interval",
        "Megatron-LM's default",
    ] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    let (output, out, error) = trainyard(at, &["simulate", "scenario.toml", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(report["prediction"]["iteration_ms"].as_f64().unwrap() > 1.0, "{out}");
    // To standard output, where it can be piped.
    let (output, out, error) = trainyard(at, &["export", "scenario.toml", "--to", "megatron"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(out.starts_with("#!/bin/bash\n") && out.contains("--tensor-model-parallel-size 2"), "{out}");
    let (_, quiet, error) = trainyard(at, &["export", "scenario.toml", "--to", "megatron", "-q"]);
    assert_eq!((quiet.as_str(), error.as_str()), (out.as_str(), ""));
    let (output, _, error) = trainyard(at, &["export", "scenario.toml", "--to", "megatron", "--out", "again.sh"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(std::fs::read_to_string(at.join("again.sh")).unwrap().trim(), out.trim());
    let (output, _, error) = trainyard(at, &["import", "again.sh", "--out", "again.toml"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let (output, out, error) = trainyard(at, &["export", "scenario.toml", "--to", "rank-map"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(out.lines().filter(|line| !line.starts_with('#')).count(), 17, "{out}");
    assert!(!bash_refuses(at, "again.sh"), "bash does not read the script");
}

/// Whether a shell that is there finds a fault in a script's words.
fn bash_refuses(folder: &Path, script: &str) -> bool {
    let output = Command::new("bash").current_dir(folder).args(["-n", script]).output();
    output.is_ok_and(|output| !output.status.success())
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_nothing_is_written() {
    let wrong = SCRIPT.replace("--seq-length 2048", "--seq-lengt 2048").replace("--log-interval 10", "--squared-relu");
    let folder = folder(&wrong);
    let (output, _, error) = trainyard(folder.path(), &["import", "train.sh"]);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["train.sh:4:", "did you mean `seq-length`?", "train.sh:8:", "squared ReLU is not modelled"] {
        assert!(error.contains(part), "no {part:?} in\n{error}");
    }
    assert!(!folder.path().join("scenario.toml").exists());
    let (output, _, error) = trainyard(folder.path(), &["import", "nowhere.sh"]);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("nowhere.sh: cannot read it"), "{error}");
}

#[test]
fn a_scenario_that_is_there_stays_and_what_cannot_be_told_is_named() {
    let folder = folder(SCRIPT);
    let at = folder.path();
    std::fs::write(at.join("scenario.toml"), "mine").unwrap();
    let (output, _, error) = trainyard(at, &["import", "train.sh"]);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--force replaces it"), "{error}");
    assert_eq!(std::fs::read_to_string(at.join("scenario.toml")).unwrap(), "mine");
    let (output, _, error) = trainyard(at, &["import", "train.sh", "--force", "-q"]);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let (output, out, error) = trainyard(at, &["export", "scenario.toml", "--to", "deepspeed"]);
    assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("plan.sequence_parallel") && error.contains("scenario.toml:"), "{error}");
}

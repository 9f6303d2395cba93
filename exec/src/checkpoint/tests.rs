//! What is written is read again to the bit, under any division; what is torn or changed is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ir::{Backend as _, BackendError, Model, Precision, Rank, VerifiedProgram, Workload, ZeroStage};

use super::*;
use crate::data::{Dataset, generate};
use crate::runtime::tests::domain;
use crate::runtime::tests::training::{model, workload};
use crate::runtime::{CheckpointOptions, Checkpointing, CpuBackend, CpuOptions, Kept, OnFailure, Snapshot};
use crate::state::Part;
use crate::state::tests::programs::{self, Division};

const OPTIONS: CheckpointOptions =
    CheckpointOptions { every: 2, keep: 2, asynchronous: true, on_failure: OnFailure::Stop };

fn backend(world: u32) -> CpuBackend {
    CpuBackend::new(domain(&vec![1.0; world as usize]), generate(1, 30_000), CpuOptions::default())
}

/// The samples that a backend trains on.
fn data(workload: &Workload) -> Dataset {
    Dataset::new(generate(1, 30_000), workload.sequence_length, workload.seed).unwrap()
}

fn program(model: &Model, workload: &Workload, division: Division) -> Arc<VerifiedProgram> {
    programs::program(model, workload, &Division { microbatches: 2, ..division })
}

fn bits(backend: &mut CpuBackend, iterations: std::ops::Range<u64>) -> Vec<u64> {
    iterations.map(|iteration| backend.iterate(iteration).unwrap().loss.unwrap().to_bits()).collect()
}

/// Trains for so many iterations with a checkpoint after every two, and gives the state at the end.
fn train(folder: &Path, program: &Arc<VerifiedProgram>, iterations: u64, options: CheckpointOptions) -> Snapshot {
    let store = Checkpoints::new(folder);
    store.prepare().unwrap();
    let mut backend = backend(program.world()).with_checkpoints(Checkpointing::new(store, options));
    backend.load(Arc::clone(program)).unwrap();
    bits(&mut backend, 0..iterations);
    backend.finish_checkpoints().unwrap();
    backend.snapshot().unwrap().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All of a checkpoint.
fn whole(found: &Found) -> Snapshot {
    let files: Vec<&str> = found.manifest.shards.iter().map(|shard| shard.name.as_str()).collect();
    load(&found.path, &files, &found.manifest.model, |_| true).unwrap()
}

fn divisions() -> [Division; 6] {
    let one = Division::ONE;
    [
        one,
        Division { data: 4, zero: ZeroStage::Zero1, ..one },
        Division { tensor: 2, data: 2, sequence_parallel: true, ..one },
        Division { positions: 2, chunks_per_position: 2, data: 2, zero: ZeroStage::Zero1, ..one },
        Division { positions: 4, split: true, ..one },
        Division { tensor: 2, positions: 2, data: 2, overlap: true, ..one },
    ]
}

#[test]
fn what_is_written_goes_on_under_any_division_to_the_bit() {
    let tied = Model { tied_head: true, ..model() };
    let half = Workload { precision: Precision::Bf16, ..workload() };
    for (model, workload) in [(model(), workload()), (tied, half)] {
        let folder = tempfile::tempdir().unwrap();
        let data = data(&workload);
        let mut previous: Option<(Found, Snapshot)> = None;
        for (index, division) in divisions().into_iter().enumerate() {
            let program = program(&model, &workload, division);
            if let Some((found, state)) = previous {
                let mut backend = backend(program.world()).from_checkpoint(found);
                backend.load(Arc::clone(&program)).unwrap();
                assert!(backend.snapshot().unwrap().unwrap() == state, "{division:?} begins with other numbers");
            }
            let folder = folder.path().join(index.to_string());
            let state = train(&folder, &program, 2, OPTIONS);
            let search = Checkpoints::new(&folder).newest(&model, &data).unwrap();
            let found = search.found.unwrap_or_else(|| panic!("{division:?}: {:?}", search.refused));
            assert!(whole(&found) == state, "{division:?}: other numbers were written");
            assert_eq!((found.manifest.iterations, found.manifest.data.next), (2, 16));
            previous = Some((found, state));
        }
    }
}

#[test]
fn a_run_that_goes_on_has_the_losses_of_one_that_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    for (index, division) in divisions().into_iter().enumerate() {
        let program = program(&model(), &workload(), division);
        let mut undisturbed = backend(program.world());
        undisturbed.load(Arc::clone(&program)).unwrap();
        let expect = bits(&mut undisturbed, 0..8);
        let folder = folder.path().join(index.to_string());
        train(&folder, &program, 4, CheckpointOptions { asynchronous: index % 2 == 0, ..OPTIONS });
        let search = Checkpoints::new(&folder).newest(&model(), &data(&workload())).unwrap();
        let mut again = backend(program.world()).from_checkpoint(search.found.unwrap());
        again.load(program).unwrap();
        assert_eq!(bits(&mut again, 4..8), expect[4..], "{division:?}");
    }
}

#[test]
fn the_newest_stay_and_nothing_is_left_half_done() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join(".iteration-00000099.partial")).unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let program = program(&model(), &workload(), Division { data: 2, ..Division::ONE });
    train(folder.path(), &program, 9, OPTIONS);
    assert_eq!(names(folder.path()), ["iteration-00000006", "iteration-00000008", "notes.txt"]);
    // Of two replicas that hold the same, one writes.
    assert_eq!(names(&folder.path().join("iteration-00000008")), ["checkpoint.json", "rank-0.safetensors"]);
}

/// Any library opens the files: the tensors have the model's names and the numbers that training has.
#[test]
fn the_files_are_plain_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(&model(), &workload(), Division { tensor: 2, ..Division::ONE });
    let state = train(folder.path(), &program, 2, OPTIONS);
    for rank in 0..2 {
        let bytes = fs::read(folder.path().join(format!("iteration-00000002/rank-{rank}.safetensors"))).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let up = tensors.tensor("layers.0.mlp.up.weight").unwrap();
        assert_eq!(up.shape(), [32, 32]);
        let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        let numbers: Vec<f32> = up.data().chunks_exact(4).map(number).collect();
        let all = &state.weights.get("layers.0.mlp.up.weight").unwrap().data;
        assert_eq!(numbers, all[rank * 1024..(rank + 1) * 1024]);
        assert!(tensors.tensor("optimizer.second_moment.layers.3.attention.q.weight").is_ok());
    }
}

/// Damages the newest of two checkpoints and looks for the newest that can be used: it is the one before, and why the newest
/// is not says these words.
fn check(damage: impl FnOnce(&Path), expect: &str) {
    static MADE: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&model(), &workload(), Division { positions: 2, ..Division::ONE });
        train(folder.path(), &program, 4, OPTIONS);
        folder
    });
    let folder = tempfile::tempdir().unwrap();
    for name in names(made.path()) {
        fs::create_dir(folder.path().join(&name)).unwrap();
        for file in names(&made.path().join(&name)) {
            fs::copy(made.path().join(&name).join(&file), folder.path().join(&name).join(&file)).unwrap();
        }
    }
    damage(&folder.path().join("iteration-00000004"));
    let search = Checkpoints::new(folder.path()).newest(&model(), &data(&workload())).unwrap();
    assert_eq!(search.found.expect("the one before").manifest.iterations, 2, "{expect}");
    let [refused] = &search.refused[..] else { panic!("{:?}, not one for {expect}", search.refused) };
    assert!(refused.to_string().contains(expect), "{refused}\nlacks: {expect}");
    assert!(refused.to_string().contains("iteration-00000004"), "{refused}");
}

/// Changes a file.
fn edit(name: &'static str, change: impl FnOnce(&mut Vec<u8>)) -> impl FnOnce(&Path) {
    move |folder| {
        let path = folder.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
}

fn manifest(from: &'static str, to: &'static str) -> impl FnOnce(&Path) {
    edit("checkpoint.json", move |bytes| {
        let text = String::from_utf8(std::mem::take(bytes)).unwrap();
        assert!(text.contains(from), "{text}");
        *bytes = text.replacen(from, to, 1).into_bytes();
    })
}

#[test]
fn what_is_torn_or_changed_is_refused_and_the_one_before_is_used() {
    check(|folder| fs::remove_file(folder.join("checkpoint.json")).unwrap(), "it has no checkpoint.json");
    check(|folder| fs::remove_file(folder.join("rank-1.safetensors")).unwrap(), "rank-1.safetensors is missing");
    check(edit("rank-0.safetensors", |bytes| bytes.truncate(1000)), "rank-0.safetensors has 1000 bytes of");
    check(edit("rank-0.safetensors", Vec::clear), "rank-0.safetensors has 0 bytes of");
    for place in [0, 20, 5000, 9999] {
        check(edit("rank-1.safetensors", move |bytes| bytes[place] ^= 1), "rank-1.safetensors was changed");
    }
    check(edit("checkpoint.json", |bytes| bytes.truncate(bytes.len() / 2)), "checkpoint.json is torn or changed");
    check(edit("checkpoint.json", Vec::clear), "checkpoint.json is torn or changed");
    check(manifest("\"iterations\": 4", "\"iterations\": 5"), "checkpoint.json was changed after it was written");
    check(manifest("\"schema_version\": 1", "\"schema_version\": 2"), "version 2 of the form of checkpoints");
    check(manifest("rank-0", "../rank-0"), "checkpoint.json was changed");
}

/// Who writes the checksum again can say what he likes, but not make it panic.
#[test]
fn what_fits_no_model_is_refused() {
    let sealed = |change: fn(&mut Manifest)| {
        move |folder: &Path| {
            let path = folder.join("checkpoint.json");
            let mut manifest = Manifest::parse(&fs::read_to_string(&path).unwrap()).unwrap();
            change(&mut manifest);
            fs::write(path, manifest.sealed().text()).unwrap();
        }
    };
    check(sealed(|m| drop(m.shards.pop())), "it has 0 of");
    check(sealed(|m| m.shards[0].name = "../checkpoint.json".to_owned()), "is not the name of a file");
    check(sealed(|m| m.model.hidden = 64), "it is of another model: hidden is 64 there and 32 here");
    check(
        sealed(|m| m.data.seed = 1),
        "its samples come in another order: seed: the run drew its order of samples from seed 1, not 11",
    );
    check(sealed(|m| m.data.data ^= 1), "its samples come in another order: data: the run went on with data");
    check(sealed(|m| m.data.next = u64::MAX), "the position was not written by a run on these data");
    let swap = |folder: &Path| {
        let path = folder.join("checkpoint.json");
        let mut manifest = Manifest::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        fs::write(folder.join("rank-0.safetensors"), [9; 100]).unwrap();
        let (bytes, crc32) = shard::measure(&folder.join("rank-0.safetensors")).unwrap();
        (manifest.shards[0].bytes, manifest.shards[0].crc32) = (bytes, crc32);
        fs::write(path, manifest.sealed().text()).unwrap();
    };
    check(swap, "rank-0.safetensors is no shard");
}

#[test]
fn another_name_of_the_same_model_is_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(&model(), &workload(), Division::ONE);
    train(folder.path(), &program, 2, OPTIONS);
    let renamed = Model { name: "other".to_owned(), ..model() };
    let look = |model: &Model| Checkpoints::new(folder.path()).newest(model, &data(&workload()));
    assert!(look(&renamed).unwrap().found.is_some());
    let search = look(&Model { layers: 3, ..model() }).unwrap();
    assert!(search.found.is_none());
    assert!(search.refused[0].why.contains("of another model: layers is 4 there and 3 here"), "{search:?}");
}

/// A folder that turns into a file in the middle of a run.
fn spoiled(on_failure: OnFailure) -> (Result<(), BackendError>, CpuBackend, PathBuf) {
    let folder = tempfile::tempdir().unwrap().keep();
    let (inside, program) = (folder.join("checkpoints"), program(&model(), &workload(), Division::ONE));
    let store = Checkpoints::new(&inside);
    store.prepare().unwrap();
    let options = CheckpointOptions { on_failure, ..OPTIONS };
    let mut backend = backend(1).with_checkpoints(Checkpointing::new(store, options));
    backend.load(program).unwrap();
    bits(&mut backend, 0..3);
    backend.finish_checkpoints().unwrap();
    fs::rename(&inside, folder.join("elsewhere")).unwrap();
    fs::write(&inside, "no folder").unwrap();
    let result = backend.iterate(3).map(drop).and_then(|()| backend.finish_checkpoints());
    (result, backend, folder)
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_or_is_told() {
    let (result, _, folder) = spoiled(OnFailure::Stop);
    let error = result.unwrap_err();
    assert!(matches!(error, BackendError::Checkpoint { iterations: 4, .. }), "{error}");
    assert!(error.to_string().contains("checkpoint after 4 iterations could not be written: cannot begin"), "{error}");
    assert_eq!(names(&folder.join("elsewhere")), ["iteration-00000002"]);
    fs::remove_dir_all(folder).unwrap();

    let (result, mut backend, folder) = spoiled(OnFailure::Continue);
    result.unwrap();
    bits(&mut backend, 4..5);
    let account = backend.checkpoints().unwrap().account();
    assert_eq!((account.written, account.failures.len()), (1, 1), "{account:?}");
    assert!(account.failures[0].contains("the state after 4 iterations: cannot begin"), "{account:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_disk_is_an_error_with_its_name() {
    let (say, hear) = std::sync::mpsc::channel();
    let mut saver = None;
    let folder = tempfile::tempdir().unwrap();
    // Everything written there meets a full disk.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("rank-3.safetensors")).unwrap();
    let show = |put: &mut dyn FnMut(Kept, &Part<'_>)| {
        put(
            Kept::Weight,
            &Part {
                name: "w",
                shape: &[2],
                slice: std::slice::from_ref(&(0..2)),
                first: 0,
                data: (&[1.0, 2.0][..]).into(),
            },
        );
    };
    let done = move |written| say.send(written).unwrap();
    Saver::save_with(&mut saver, Rank::new(3), folder.path(), show, done);
    let error = hear.recv().unwrap().unwrap_err();
    assert!(error.contains("cannot write") && error.contains("No space left on device"), "{error}");
}

/// A gigabyte of state: how long training stands still for a checkpoint that is written beside it, and how long for one that it
/// waits for. `cargo test --release -p trainyard-exec --lib -- --ignored gigabyte --nocapture`
#[test]
#[ignore = "writes several gigabytes"]
fn training_stands_still_for_a_tenth_of_writing_a_gigabyte() {
    let big = Model { hidden: 1024, layers: 5, heads: 8, kv_heads: 8, head_dim: 128, ffn: 4096, ..model() };
    let small = Workload { sequence_length: 16, global_batch: 2, ..workload() };
    let division = Division { data: 2, zero: ZeroStage::Zero1, microbatches: 1, ..Division::ONE };
    let program = programs::program(&big, &small, &division);
    let folder = tempfile::tempdir().unwrap();
    let median = |asynchronous: bool| {
        let store = Checkpoints::new(folder.path());
        store.prepare().unwrap();
        let options = CheckpointOptions { every: 1000, keep: 1, asynchronous, ..OPTIONS };
        let mut backend = backend(2).with_checkpoints(Checkpointing::new(store, options));
        backend.load(Arc::clone(&program)).unwrap();
        bits(&mut backend, 0..1);
        let mut times = Vec::new();
        for count in 1..=5 {
            let before = backend.checkpoints().unwrap().account().blocked;
            backend.checkpoint(count).unwrap();
            let account = backend.checkpoints().unwrap().account();
            times.push((account.blocked - before).as_secs_f64());
            backend.finish_checkpoints().unwrap();
        }
        let bytes = backend.checkpoints().unwrap().account().bytes as f64;
        say(&format!("asynchronous {asynchronous}: {:.2} GB, stood still for {times:.3?} s", bytes * 1e-9));
        assert!(bytes > 1e9, "{bytes} bytes");
        // The first one finds its memory for the first time.
        times.sort_by(f64::total_cmp);
        times[2]
    };
    let (waited, beside) = (median(false), median(true));
    say(&format!("median {beside:.3} s of {waited:.3} s: {:.1} %", 100.0 * beside / waited));
    assert!(beside <= 0.1 * waited, "{beside:.3} s of {waited:.3} s");
}

#[expect(clippy::print_stderr, reason = "what was measured is the point")]
fn say(words: &str) {
    eprintln!("{words}");
}

//! `launch`, as a person uses it: the numbers of threads, one clear cause when a rank is lost, and nothing left behind.

// A test may read the clock and the process table.
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

/// A scenario of four ranks: two replicas of two stages.
fn scenario(folder: &Path, iterations: u32) -> PathBuf {
    let text = format!(
        "name = \"processes\"\nseed = 3\n\n[cluster]\nnodes = \"1 x cpu-4\"\n\n[model]\nname = \"small-llama\"\n\n\
         [training]\nsequence_length = 32\nglobal_batch = 8\niterations = {iterations}\n\n\
         [plan]\npipeline = 2\ndata = 2\nmicrobatch_size = 1\n"
    );
    let path = folder.join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn losses(json: &[u8]) -> Vec<u64> {
    let report: serde_json::Value = serde_json::from_slice(json).unwrap_or_else(|e| panic!("{e}: {json:?}"));
    let numbers = report["loss"].as_array().expect("losses").iter();
    // Their bits.
    numbers.map(|loss| loss.as_f64().expect("a number").to_bits()).collect()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn trainyard(arguments: &[&str], scenario: &Path) -> Output {
    Command::new(TRAINYARD).args(arguments).arg(scenario).args(["--json", "-", "-q"]).output().unwrap()
}

/// A run of four processes that goes on for long.
struct Running {
    launcher: Child,
    workers: Vec<u32>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = scenario(folder.path(), 1_000_000);
        let mut command = Command::new(TRAINYARD);
        command.args(["launch", "--nproc", "4", "--silence", "1s", "--restarts", "0", "-q"]).arg(&path);
        let launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let workers = started(launcher.id());
        // Into the iterations.
        std::thread::sleep(Duration::from_millis(300));
        Self { launcher, workers, _folder: folder }
    }

    /// Waits for the launcher's end: exit code, words, and how long it took. All workers must be gone by then.
    fn end(mut self) -> (Option<i32>, String, Duration) {
        let begin = Instant::now();
        let mut said = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.launcher.wait().unwrap();
        let took = begin.elapsed();
        let left: Vec<&u32> = self.workers.iter().filter(|worker| exists(**worker)).collect();
        assert!(left.is_empty(), "workers {left:?} are left: {said}");
        (status.code(), said, took)
    }
}

/// Waits until four workers have met, and gives their process ids in the order of their ranks.
fn started(launcher: u32) -> Vec<u32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = children(launcher);
        // Each has its threads once all have met.
        if found.len() == 4 && found.iter().all(|worker| threads(*worker) >= 6) {
            return found;
        }
        assert!(Instant::now() < deadline, "the workers do not start: {found:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process ids whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = ids.filter(|id| status(*id, "PPid:") == Some(u64::from(parent))).collect();
    found.sort_unstable();
    found
}

fn threads(process: u32) -> u64 {
    status(process, "Threads:").unwrap_or(0)
}

fn status(process: u32, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// Whether a process is there, even as a zombie.
fn exists(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), process.to_string()]).status().unwrap().success());
}

#[test]
fn processes_give_the_losses_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), 5);
    let threads = trainyard(&["run"], &path);
    assert!(threads.status.success(), "{}", words(&threads));
    let processes = trainyard(&["launch", "--nproc", "4"], &path);
    assert!(processes.status.success(), "{}", words(&processes));
    assert_eq!(losses(&threads.stdout).len(), 5);
    assert_eq!(losses(&processes.stdout), losses(&threads.stdout));
    let said = String::from_utf8_lossy(&processes.stdout);
    assert!(said.contains("4 processes of one host, over Unix sockets"), "{said}");
}

#[test]
fn another_number_of_processes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), 5);
    let output = Command::new(TRAINYARD).args(["launch", "--nproc", "3"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = words(&output);
    assert!(said.contains("the plan has 4 ranks, and 3 processes are asked for"), "{said}");
    assert!(said.contains("--nproc 4"), "{said}");
}

#[test]
fn a_killed_rank_stops_the_run_with_its_cause() {
    for rank in [0, 3] {
        let running = Running::start();
        signal(running.workers[rank], "KILL");
        let (code, said, took) = running.end();
        assert_eq!(code, Some(4), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
        assert!(said.contains(&format!("rank {rank} failed in iteration")), "{said}");
        assert!(said.contains("was killed (signal 9"), "{said}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

/// Instructions that pause, exchanges of unequal parts and state that comes and goes: over processes as over threads.
#[test]
fn experts_and_shared_sequences_train_the_same_bits_over_processes() {
    let folder = tempfile::tempdir().unwrap();
    for (method, zero) in [("ring", 3), ("all-to-all", 2), ("all-gather", 1)] {
        let text = format!(
            "name = \"experts\"\nseed = 3\n\n[cluster]\nnodes = \"1 x cpu-4\"\n\n[model]\nhidden = 32\nlayers = 3\nheads = 4\n\
             kv_heads = 2\nhead_dim = 8\nffn = 48\nvocabulary = 256\nnorm = \"rms-norm\"\nnorm_epsilon = 1e-05\n\
             positions = {{ rope = {{ theta = 10000.0 }} }}\nmlp = \"swi-glu\"\ntied_head = true\n\
             experts = {{ count = 4, active = 2, ffn = 24, shared_ffn = 16, shared_gate = true }}\n\
             pattern = [{{ layers = 1 }}, {{ layers = 2, feed_forward = \"experts\" }}]\n\n\
             [training]\nsequence_length = 32\nglobal_batch = 8\niterations = 4\n\n\
             [plan]\ndata = 2\ncontext = 2\ncontext_method = \"{method}\"\nexpert = 4\nmicrobatch_size = 2\nzero = {zero}\n"
        );
        let path = folder.path().join("scenario.toml");
        std::fs::write(&path, text).unwrap();
        let threads = trainyard(&["run"], &path);
        assert!(threads.status.success(), "{method}: {}", words(&threads));
        let processes = trainyard(&["launch", "--nproc", "4"], &path);
        assert!(processes.status.success(), "{method}: {}", words(&processes));
        let (threads, processes) = (losses(&threads.stdout), losses(&processes.stdout));
        assert_eq!(threads.len(), 4, "{method}");
        assert_eq!(processes, threads, "{method}");
    }
}

/// Ranks are killed at moments that nothing is tuned to; every iteration's loss is that of an undisturbed run.
#[test]
fn a_run_goes_on_where_ranks_are_killed() {
    const KILLS: usize = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), 120);
    let undisturbed = trainyard(&["run"], &path);
    let mut command = Command::new(TRAINYARD);
    command.args(["launch", "--nproc", "4", "--restarts", "100", "--keep-every", "7", "-q", "--json", "-"]).arg(&path);
    let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut kills, mut dice) = (0, 0x9e37_79b9_u64);
    let killer = launcher.id();
    started(killer);
    let killer = std::thread::spawn(move || {
        while kills < KILLS {
            // A linear congruence is random enough to choose a rank and a moment.
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(dice >> 33 & 0xff));
            let workers = children(killer);
            if !exists(killer) || zombie(killer) {
                break;
            }
            if let Some(worker) = workers.get((dice >> 50) as usize % 4) {
                // It may be gone by now.
                let _ = Command::new("kill").args(["-KILL", &worker.to_string()]).stderr(Stdio::null()).status();
                kills += 1;
            }
        }
        kills
    });
    let output = launcher.wait_with_output().unwrap();
    let kills = killer.join().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(losses(&output.stdout).len(), 120);
    assert_eq!(losses(&output.stdout), losses(&undisturbed.stdout));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lost = report["lost"].as_array().unwrap().len();
    assert!(kills >= 2 && lost >= 1, "{kills} kills, {lost} ranks lost");
    assert!(report["goodput"].as_f64().is_some_and(|goodput| 0.0 < goodput && goodput < 1.0), "{report}");
}

#[test]
fn a_stopped_rank_stops_the_run_with_its_cause() {
    let running = Running::start();
    signal(running.workers[1], "STOP");
    let (code, said, took) = running.end();
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("rank 1 stalled in iteration"), "{said}");
    assert!(said.contains("nothing was heard of its process for 1.0 s"), "{said}");
    // The silence, and two seconds in which it could have ended by itself.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_signal_to_the_launcher_ends_all_ranks() {
    for name in ["TERM", "INT"] {
        let running = Running::start();
        signal(running.launcher.id(), name);
        let (code, said, took) = running.end();
        assert_eq!(code, Some(130), "{said}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

#[test]
fn no_rank_outlives_a_killed_launcher() {
    let mut running = Running::start();
    signal(running.launcher.id(), "KILL");
    running.launcher.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while running.workers.iter().any(|worker| status(*worker, "PPid:").is_some_and(|_| !zombie(*worker))) {
        assert!(Instant::now() < deadline, "workers outlive their launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has ended; whoever adopted it has yet to take notice.
fn zombie(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/status")).is_ok_and(|text| text.contains("State:\tZ"))
}

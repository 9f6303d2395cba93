//! Checkpoints, as a person uses them: a run that was stopped in any way goes on, under any plan, with the same numbers.

// A test may read the clock and the process table.
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TRAINYARD: &str = env!("CARGO_BIN_EXE_trainyard");

/// A scenario of four ranks with checkpoints, under a plan.
fn scenario(folder: &Path, iterations: u32, plan: &str, run: &str) -> PathBuf {
    let text = format!(
        "name = \"kept\"\nseed = 3\n\n[cluster]\nnodes = \"1 x cpu-4\"\n\n[model]\nname = \"small-llama\"\n\n\
         [training]\nsequence_length = 32\nglobal_batch = 8\niterations = {iterations}\n\n\
         [plan]\n{plan}\nmicrobatch_size = 1\n\n[run]\n{run}\n"
    );
    let path = folder.join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    path
}

const PLAN: &str = "pipeline = 2\ndata = 2";
const KEPT: &str = "checkpoints = \"checkpoints\"\nevery = 3";

fn trainyard(arguments: &[&str], scenario: &Path) -> Output {
    Command::new(TRAINYARD).args(arguments).arg(scenario).args(["--json", "-", "-q"]).output().unwrap()
}

fn report(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", words(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", output.stdout))
}

fn losses(report: &serde_json::Value) -> Vec<f64> {
    report["loss"].as_array().expect("losses").iter().map(|loss| loss.as_f64().expect("a number")).collect()
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_goes_on_where_it_was_under_the_same_and_other_plans() {
    let folder = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), 8, PLAN, "");
    let undisturbed = losses(&report(&trainyard(&["run"], &path)));

    let path = scenario(folder.path(), 4, PLAN, KEPT);
    let first = report(&trainyard(&["launch", "--nproc", "4"], &path));
    assert_eq!(first["checkpoints"]["written"], 2, "{first}");
    assert_eq!(names(&folder.path().join("checkpoints")), ["iteration-00000003", "iteration-00000004"]);

    // All is done.
    let again = trainyard(&["run"], &path);
    assert_eq!(again.status.code(), Some(2));
    assert!(words(&again).contains("has 4 iterations, and the run is to have 4"), "{}", words(&again));

    // With threads after processes, and under another plan.
    let copy = tempfile::tempdir().unwrap();
    for (plan, same) in [(PLAN, true), ("tensor = 2", false), ("data = 4\nzero = 3", false)] {
        let path = scenario(copy.path(), 8, plan, "");
        let kept = folder.path().join("checkpoints");
        let rest = report(&trainyard(&["run", "--resume", kept.to_str().unwrap()], &path));
        assert_eq!(rest["first_iteration"], 4, "{rest}");
        let rest = losses(&rest);
        assert_eq!(rest.len(), 4);
        let far = rest.iter().zip(&undisturbed[4..]).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-4, "{plan}: {rest:?} and {undisturbed:?}");
        assert!(!same || bits(&rest) == bits(&undisturbed[4..]), "{rest:?} and {undisturbed:?}");
    }

    // The newest is torn: the one before is used, and the report says so.
    let torn = folder.path().join("checkpoints/iteration-00000004/rank-0.safetensors");
    std::fs::write(&torn, "torn").unwrap();
    let path = scenario(folder.path(), 8, PLAN, KEPT);
    let rest = report(&trainyard(&["run"], &path));
    assert_eq!(rest["first_iteration"], 3, "{rest}");
    assert!(rest["refused_checkpoints"][0].as_str().unwrap().contains("rank-0.safetensors has 4 bytes of"), "{rest}");
    assert_eq!(bits(&losses(&rest)), bits(&undisturbed[3..]));
    let kept = ["iteration-00000004", "iteration-00000006", "iteration-00000008"];
    assert_eq!(names(&folder.path().join("checkpoints")), kept, "an old one with the name of a new one makes way");
}

#[test]
fn another_model_and_an_empty_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    report(&trainyard(&["run"], &scenario(folder.path(), 3, PLAN, KEPT)));
    let path = scenario(folder.path(), 6, PLAN, KEPT);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("small-llama", "tiny-gpt")).unwrap();
    let output = trainyard(&["run"], &path);
    assert_eq!(output.status.code(), Some(2));
    let said = words(&output);
    assert!(said.contains("iteration-00000003: cannot be used: it is of another model"), "{said}");
    assert!(said.contains("to begin anew, name another folder"), "{said}");

    let empty = tempfile::tempdir().unwrap();
    let path = scenario(folder.path(), 6, PLAN, "");
    let output = trainyard(&["run", "--resume", empty.path().to_str().unwrap()], &path);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("there is no checkpoint to go on from"), "{}", words(&output));
}

/// A limit on the size of files stands for a full disk: the write fails with an error.
#[test]
fn a_full_disk_ends_the_run_with_its_cause_and_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    for (on_failure, code) in [("stop", 4), ("continue", 0)] {
        for verb in ["run", "launch --nproc 4"] {
            let run = format!("{KEPT}\non_failure = \"{on_failure}\"");
            let path = scenario(folder.path(), 7, PLAN, &run);
            let script = format!("ulimit -f 64; trap '' XFSZ; exec {TRAINYARD} {verb} {} --json - -q", path.display());
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{verb} {on_failure}: {}", words(&output));
            let said = if code == 0 { report(&output)["checkpoints"].to_string() } else { words(&output) };
            assert!(said.contains("cannot write") && said.contains("File too large"), "{said}");
            assert!(
                said.contains(if code == 0 { "the state after 3" } else { "checkpoint after 3 iterations" }),
                "{said}"
            );
            assert_eq!(names(&folder.path().join("checkpoints")), [""; 0], "{verb} {on_failure}");
        }
    }
}

#[test]
fn an_interrupt_keeps_the_state_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("checkpoints");
    std::fs::create_dir(&kept).unwrap();
    let path = scenario(folder.path(), 1_000_000, PLAN, "checkpoints = \"checkpoints\"\nevery = 23");
    for verb in [&["run"][..], &["launch", "--nproc", "4"]] {
        let before = names(&kept).into_iter().rfind(|name| !name.starts_with('.'));
        let child = Command::new(TRAINYARD).args(verb).arg(&path).arg("-q").stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while names(&kept).into_iter().rfind(|name| !name.starts_with('.')) <= before {
            assert!(Instant::now() < deadline, "no checkpoint");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", words(&output));
    }
    let kept = names(&kept);
    assert!(kept.len() <= 3 && kept.iter().all(|name| !name.starts_with('.')), "{kept:?}");
    let done: u32 = kept.last().unwrap().trim_start_matches("iteration-").parse().unwrap();
    let path = scenario(folder.path(), done + 2, PLAN, "checkpoints = \"checkpoints\"");
    let rest = losses(&report(&trainyard(&["run"], &path)));
    let undisturbed = losses(&report(&trainyard(&["run"], &scenario(folder.path(), done + 2, PLAN, ""))));
    assert_eq!(bits(&rest), bits(&undisturbed[done as usize..]));
}

/// Process ids whose parent is `parent`, in the order in which they were started.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |id: u32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
    };
    let mut found: Vec<u32> = ids.filter(|id| of(*id) == Some(parent)).collect();
    found.sort_unstable();
    found
}

fn threads(process: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok()).unwrap_or(0)
}

/// Kills random ranks of a launch at random moments, so many times, and gives its report and how often it was done.
fn killed(path: &Path, kills: usize, seed: u64) -> (serde_json::Value, usize) {
    let mut command = Command::new(TRAINYARD);
    command.args(["launch", "--nproc", "4", "--restarts", "1000", "-q", "--json", "-"]).arg(path);
    let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = launcher.id();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Each has its threads once all have met.
    while !(children(id).len() == 4 && children(id).iter().all(|worker| threads(*worker) >= 6)) {
        assert!(Instant::now() < deadline, "the workers do not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killer = std::thread::spawn(move || {
        let (mut done, mut dice) = (0, seed);
        let deadline = Instant::now() + Duration::from_secs(600);
        while done < kills && Instant::now() < deadline {
            // A linear congruence is random enough to choose a rank and a moment.
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(dice >> 33 & 0x1ff));
            let workers = children(id);
            if let Some(worker) = workers.get((dice >> 50) as usize % 4) {
                let kill = Command::new("kill").args(["-KILL", &worker.to_string()]).stderr(Stdio::null()).status();
                done += usize::from(kill.is_ok_and(|status| status.success()));
            } else if !Path::new(&format!("/proc/{id}/exe")).exists() {
                break;
            }
        }
        done
    });
    let output = launcher.wait_with_output().unwrap();
    (report(&output), killer.join().unwrap())
}

/// Kills ranks of a run of so many iterations with a checkpoint after every few; every loss is that of an undisturbed run.
fn check_killed(kills: usize, iterations: u32, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = losses(&report(&trainyard(&["run"], &scenario(folder.path(), iterations, PLAN, ""))));
    let run = "checkpoints = \"checkpoints\"\nevery = 5";
    let (report, done) = killed(&scenario(folder.path(), iterations, PLAN, run), kills, seed);
    assert_eq!(bits(&losses(&report)), bits(&undisturbed), "seed {seed}");
    let lost = report["lost"].as_array().unwrap().len();
    assert!(done >= kills.min(2) && lost >= 1, "{done} kills, {lost} ranks lost");
    let time: f64 = report["time_ms"].as_object().unwrap().values().filter_map(serde_json::Value::as_f64).sum();
    let goodput = report["goodput"].as_f64().unwrap();
    let useful = report["time_ms"]["iterations"].as_f64().unwrap();
    assert!((goodput - useful / time).abs() < 1e-9 && goodput < 1.0, "{report}");
    assert!(report["time_ms"]["restarting"].as_f64().unwrap() > 0.0, "{}", report["time_ms"]);
    say(&format!(
        "{done} kills, {lost} losses found, {} iterations again, goodput {goodput:.2}, ms: {}",
        report["repeated_iterations"], report["time_ms"]
    ));
}

#[expect(clippy::print_stderr, reason = "a test of chance says what it saw")]
fn say(words: &str) {
    eprintln!("{words}");
}

#[test]
fn a_run_goes_on_from_its_checkpoints_where_ranks_are_killed() {
    check_killed(3, 60, 0x9e37_79b9);
}

/// `cargo test --release -p trainyard-cli --test checkpoints -- --ignored fifty --nocapture`, about two minutes.
#[test]
#[ignore = "minutes of killing: see its comment"]
fn fifty_kills_leave_no_trace_in_the_losses() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    say(&format!("seed {seed}"));
    check_killed(50, 1500, seed);
}

#[test]
fn a_run_goes_on_with_fewer_ranks_where_one_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = losses(&report(&trainyard(&["run"], &scenario(folder.path(), 60, PLAN, ""))));
    let run = "checkpoints = \"checkpoints\"\nevery = 5\non_loss = \"fewer-ranks\"";
    let (report, done) = killed(&scenario(folder.path(), 60, PLAN, run), 1, 7);
    assert_eq!(done, 1);
    let far = losses(&report).iter().zip(&undisturbed).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    assert!(losses(&report).len() == 60 && far < 1e-4, "{far} {report}");
    assert_eq!(report["lost"].as_array().unwrap().len(), 1, "{report}");
}

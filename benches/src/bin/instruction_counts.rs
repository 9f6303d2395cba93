//! Counts the instructions of deterministic workloads under callgrind and compares them with
//! `benches/instruction-counts.toml`: a measure that does not depend on what else the machine does.
//!
//! `instruction_counts` compares, `instruction_counts --update` rewrites the file, `instruction_counts --run NAME` runs
//! one workload (what callgrind watches). Exit codes: 0 all as committed, 1 something is not, 2 nothing was compared.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and CI")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use ir::VerifiedProgram;
use sched::{ClosedForm, Evaluator};
use serde::Deserialize;
use sim::machine::End;
use sim::queue::{IndexedQueue, Queue, RadixQueue};
use trainyard_benches::churn::Hold;
use trainyard_benches::jobs::gpt3_175b;

const RADIX: &str = "queue-radix-100k";
const INDEXED: &str = "queue-priority-queue-100k";
const NAMES: [&str; 6] =
    [RADIX, INDEXED, "engine-gpt3-175b", "lower-gpt3-175b", "verify-gpt3-175b", "estimate-gpt3-175b"];

/// The radix queue is this many times faster, in time, where both hold [`PENDING`] events.
const AT_LEAST: f64 = 3.0;
const PENDING: u32 = 100_000;
const INSTANTS: u32 = 20_000;

/// What is committed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Committed {
    tolerance_percent: f64,
    reason: String,
    counts: BTreeMap<String, u64>,
}

/// The only function whose instructions count.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    black_box(work)();
}

fn run(name: &str) -> bool {
    let job = gpt3_175b();
    match name {
        RADIX => hold::<RadixQueue<End>>(),
        INDEXED => hold::<IndexedQueue<End>>(),
        "engine-gpt3-175b" => {
            let simulator = job.simulator::<RadixQueue<End>>();
            counted(&mut || drop(black_box(simulator.iterate_afresh(0))));
        }
        "lower-gpt3-175b" => counted(&mut || drop(black_box(job.lowered()))),
        "verify-gpt3-175b" => {
            let mut program = Some(job.lowered());
            counted(&mut || drop(black_box(program.take().map(VerifiedProgram::new))));
        }
        "estimate-gpt3-175b" => {
            let cost = job.cost();
            let mut estimator = ClosedForm::new(&job.model, &job.workload, &cost);
            drop(black_box(estimator.evaluate(&job.plan)));
            counted(&mut || drop(black_box(estimator.evaluate(&job.plan))));
        }
        _ => return false,
    }
    true
}

fn hold<Q: Queue<End> + Default>() {
    let mut hold = Hold::<Q>::new(PENDING);
    counted(&mut || hold.step(INSTANTS));
}

fn count(name: &str) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"])
        .arg(own)
        .args(["--run", name])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = said.lines().find_map(|line| line.split("Collected :").nth(1));
    let digits = line.and_then(|line| line.trim().parse::<u64>().ok()).filter(|count| *count > 0);
    digits.filter(|_| output.status.success()).ok_or_else(|| format!("callgrind counted nothing of {name}:\n{said}"))
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instruction-counts.toml")
}

/// Time of one queue over that of the other, alternating so that both see the same machine; the median of the pairs.
fn time_ratio() -> f64 {
    let (mut radix, mut indexed) = (Hold::<RadixQueue<End>>::new(PENDING), Hold::<IndexedQueue<End>>::new(PENDING));
    let timed = |work: &mut dyn FnMut()| -> Duration {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let mut ratios: Vec<f64> = (0..21)
        .map(|_| {
            let one = timed(&mut || radix.step(INSTANTS));
            timed(&mut || indexed.step(INSTANTS)).as_secs_f64() / one.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn compare(counts: &BTreeMap<String, u64>) -> Result<bool, String> {
    let text = std::fs::read_to_string(file())
        .map_err(|error| format!("{}: {error}; --update writes it", file().display()))?;
    let committed: Committed = toml::from_str(&text).map_err(|error| format!("{}: {error}", file().display()))?;
    println!("within {} %: {}", committed.tolerance_percent, committed.reason);
    let mut good = true;
    for (name, count) in counts {
        let before = committed.counts.get(name).copied();
        let change = before.map(|before| (*count as f64 / before as f64 - 1.0) * 100.0);
        let within = change.is_some_and(|change| change.abs() <= committed.tolerance_percent);
        let verdict = match change {
            None => "not in the file".to_owned(),
            Some(change) => format!("{change:+.2} %{}", if within { "" } else { " FAILED" }),
        };
        println!("{name:28} {count:14} {verdict}");
        good &= within;
    }
    if !good {
        println!("if the change is meant: benches/instruction-counts.sh --update, and say why in the commit");
    }
    Ok(good)
}

fn update(counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let mut text = String::from(
        "# Instructions of the workloads of src/bin/instruction_counts.rs, by callgrind. Rewritten by\n\
         # benches/instruction-counts.sh --update.\n\
         tolerance_percent = 5.0\n\
         reason = \"another release of the compiler or of a dependency moves counts by a few percent; an extra pass over the data moves them by more\"\n\n\
         [counts]\n",
    );
    for (name, count) in counts {
        text.push_str(&format!("{name} = {count}\n"));
    }
    std::fs::write(file(), text).map_err(|error| format!("{}: {error}", file().display()))
}

fn all(rewrite: bool) -> Result<bool, String> {
    let counts =
        NAMES.iter().map(|name| Ok(((*name).to_owned(), count(name)?))).collect::<Result<BTreeMap<_, _>, String>>()?;
    let good = if rewrite { update(&counts).map(|()| true)? } else { compare(&counts)? };
    let instructions = counts[INDEXED] as f64 / counts[RADIX] as f64;
    let time = time_ratio();
    println!("priority-queue over radix at {PENDING} pending: {instructions:.2} in instructions, {time:.2} in time");
    let faster = instructions >= AT_LEAST || time >= AT_LEAST;
    if !faster {
        println!("FAILED: neither is {AT_LEAST}");
    }
    Ok(good && faster)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] => all(false),
        ["--update"] => all(true),
        ["--run", name] => {
            if run(name) {
                Ok(true)
            } else {
                Err(format!("no workload {name}; there are {}", NAMES.join(", ")))
            }
        }
        _ => Err("usage: instruction_counts [--update | --run NAME]".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

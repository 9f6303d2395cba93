//! E: failures, watchdogs, checkpoints.

use std::path::Path;

use trainyard::results::{LongRunSummary, SimulateReport};
use trainyard::{Context, SweepPoints, SweepRequest, scenario};

use super::dense;

const TRAINING: &str = "sequence_length = 1024\nglobal_batch = 256\nprecision = \"bf16\"";

fn simulated(nodes: &str, model: &str, plan: &str, sections: &str) -> SimulateReport {
    let text = format!(
        "[cluster]\nnodes = \"{nodes}\"\n[model]\n{model}\n[training]\n{TRAINING}\n[plan]\n{plan}\n{sections}\n"
    );
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}\n{text}"));
    trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// 256 devices of 32 nodes, with these two sections.
fn of_256(sections: &str) -> LongRunSummary {
    let report = simulated("32 x dgx-a100", &dense(16), "data = 32\ntensor = 8", sections);
    report.long_run.expect("the scenario has checkpoints")
}

fn share(run: &LongRunSummary, part: &str) -> f64 {
    run.parts.iter().find(|of| of.part == part).expect("every part is there").share
}

/// Parts of the median run add up to all of its time, to the nanosecond; shares to one.
#[track_caller]
fn adds_up(run: &LongRunSummary) {
    let sum: u64 = run.parts.iter().map(|part| part.median_run_ns).sum();
    assert_eq!(sum, run.duration_ns, "{run:#?}");
    for shares in
        [run.parts.iter().map(|part| part.share).sum::<f64>(), run.parts.iter().map(|p| p.expected_share).sum()]
    {
        assert!((shares - 1.0).abs() < 1e-9, "{run:#?}");
    }
    let goodput = run.goodput;
    assert!(0.0 <= goodput.low && goodput.low <= goodput.expected && goodput.expected <= goodput.high, "{goodput:?}");
    assert!(goodput.high <= 1.0, "{goodput:?}");
}

/// U44: a hang of 256 devices with a watchdog of 1800 s costs 128 device-hours of waiting, the restart, and on average half
/// of the time between checkpoints.
#[test]
fn a_hang_waits_for_the_watchdog() {
    for (watchdog_s, restart_s) in [(1800.0, 300.0), (600.0, 300.0), (7200.0, 900.0)] {
        let run = of_256(&format!(
            "[checkpoint]\ninterval = \"1h\"\nwrite_time = \"10s\"\n[failures]\nnode_mtbf = \"40d\"\nhang_share = 1.0\n\
             watchdog = \"{watchdog_s}s\"\nrestart = \"{restart_s}s\"\nduration = \"60d\"\nruns = 50"
        ));
        adds_up(&run);
        let stop = run.stop.as_ref().expect("it was stopped");
        let hours = |seconds: f64| 256.0 * seconds / 3600.0;
        assert!((stop.hang_detection_device_hours - hours(watchdog_s)).abs() < 1e-9);
        // 128 device-hours for 1800 s.
        assert!((stop.hang_detection_device_hours / 128.0 - watchdog_s / 1800.0).abs() < 1e-12);
        let near = |part: &str, seconds: f64, tolerance: f64| {
            let found = stop.mean_device_hours[part];
            assert!((found / hours(seconds) - 1.0).abs() < tolerance, "{part}: {found}, not {}", hours(seconds));
        };
        near("detection", watchdog_s, 0.02);
        // What is read at a restart comes with it; a restart that fails is cut short.
        near("restart", restart_s + 10.0, 0.03);
        near("lost work", 0.5 * 3600.0, 0.1);
        // 32 nodes that fail once in 40 days each: every 30 hours.
        assert!((run.mtbf_hours.expect("it fails") - 30.0).abs() < 1e-9 && run.spares == 0);
        // Not while it hangs.
        let stops = 48.0 / (1.0 + watchdog_s / 108_000.0);
        assert!((run.stops - stops).abs() < 3.0, "{}, not {stops}", run.stops);
    }
}

/// U44: what if the timeout, the interval or the number of spares were others.
#[test]
fn timeouts_intervals_and_spares_are_keys_like_others() {
    let goodput = |interval: &str, watchdog: &str, spares: u32| {
        let run = of_256(&format!(
            "[checkpoint]\ninterval = \"{interval}\"\nwrite_time = \"30s\"\n[failures]\nmtbf = \"8h\"\nhang_share = 0.5\n\
             watchdog = \"{watchdog}\"\nrestart = \"5min\"\nspares = {spares}\nrepair = {{ median = \"12h\", mean = \"20h\" }}\n\
             duration = \"90d\"\nruns = 40"
        ));
        adds_up(&run);
        let mean = share(&run, "useful");
        assert!((mean - run.expected_goodput).abs() < 0.03, "{mean} simulated, {} expected", run.expected_goodput);
        mean
    };
    let base = goodput("20min", "30min", 4);
    assert!(goodput("20min", "10min", 4) > base + 0.01, "a shorter timeout");
    assert!(goodput("3h", "30min", 4) < base - 0.05, "rarer checkpoints");
    assert!(goodput("90s", "30min", 4) < base - 0.1, "more frequent ones");
    assert!(goodput("20min", "30min", 8) > base + 0.02, "more spares");
    assert!(goodput("20min", "30min", 0) < base - 0.3, "none");
}

/// U45: BLOOM-176B writes 2.3 TB in 40 s every 3 h: 0.37 % of the time, 18.4 TB a day; with storage five times slower 1.85 %.
/// The optimum of Young for one failure in 3 h: 15 minutes, and 35.
#[test]
fn checkpoints_of_bloom() {
    let model = "name = \"bloom-176b\"";
    let plan = "data = 8\ntensor = 4\npipeline = 12\nlayers_per_stage = [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]\nzero = 1\nrecompute = \"full\"";
    let of = |checkpoint: &str, failures: &str| {
        let report = simulated("48 x dgx-a100", model, plan, &format!("[checkpoint]\n{checkpoint}\n{failures}"));
        report.long_run.expect("the scenario has checkpoints")
    };
    for (bandwidth, write_s, percent, minutes) in [("57.5GB/s", 40.0, 0.37, 15.0), ("11.5GB/s", 200.0, 1.85, 35.0)] {
        let run = of(&format!("interval = \"3h\"\nsize = \"2.3TB\"\nbandwidth = \"{bandwidth}\""), "");
        adds_up(&run);
        let overhead = 100.0 * run.checkpoint.overhead;
        assert!((run.checkpoint.blocked_s - write_s).abs() < 1e-6);
        // The interval is a whole number of iterations: that of three hours to half of one.
        assert!((overhead - percent).abs() < 0.02, "{overhead} %");
        assert!((100.0 * share(&run, "checkpoint") - percent).abs() < 0.02, "{run:#?}");
        assert!((run.checkpoint.bytes_per_day / 18.4e12 - 1.0).abs() < 0.01, "{}", run.checkpoint.bytes_per_day);
        assert!(run.mtbf_hours.is_none() && run.intervals.is_empty() && run.stop.is_none());
        // 90 days of it are 8 hours, or 40.
        assert!((90.0 * 24.0 * run.checkpoint.overhead / (write_s / 5.0) - 1.0).abs() < 0.02);
        let failing = of(
            &format!("interval = \"best\"\nsize = \"2.3TB\"\nbandwidth = \"{bandwidth}\""),
            "[failures]\nmtbf = \"3h\"\nrestart = \"5min\"\nruns = 20",
        );
        adds_up(&failing);
        let young = failing.checkpoint.young_interval_s.expect("it fails") / 60.0;
        let best = failing.checkpoint.best_interval_s.expect("it fails") / 60.0;
        assert!((young - minutes).abs() < 0.6 && (best / young - 1.0).abs() < 0.1, "{young} and {best} minutes");
        assert!((failing.checkpoint.interval_s / 60.0 - best).abs() < 1e-9);
        // No interval of the curve is better than the chosen one, simulated or expected.
        let top = failing.intervals.iter().map(|point| point.expected_goodput).fold(0.0, f64::max);
        assert!((top - failing.expected_goodput).abs() < 1e-9, "{top} {}", failing.expected_goodput);
        let simulated = failing.intervals.iter().map(|point| point.goodput.expected).fold(0.0, f64::max);
        assert!(simulated < failing.goodput.expected + 0.01, "{simulated} {}", failing.goodput.expected);
    }
    // Counted from the plan: BF16 weights, FP32 masters and two moments of 176.2 G parameters; published as 2.3 TB.
    let counted = of("interval = \"3h\"\nbandwidth = \"57.5GB/s\"", "");
    let tebibytes = counted.checkpoint.bytes as f64 / 1024f64.powi(4);
    assert!((tebibytes / 2.3 - 1.0).abs() < 0.04, "{tebibytes} TiB");
}

/// Checkpoints that are written beside training stop it for the copy alone, and what they lose is older.
#[test]
fn asynchronous_checkpoints_stop_training_for_the_copy_alone() {
    let of = |checkpoint: &str| {
        of_256(&format!(
            "[checkpoint]\nsize = \"512GB\"\nbandwidth = \"2GB/s\"\n{checkpoint}\n[failures]\nmtbf = \"12h\"\nrestart = \"5min\"\nruns = 40"
        ))
    };
    let standing = of("interval = \"best\"");
    let beside = of("interval = \"best\"\nasynchronous = true\ncopy_bandwidth = \"1GB/s\"");
    for run in [&standing, &beside] {
        adds_up(run);
        assert!((run.goodput.expected - run.expected_goodput).abs() < 0.02, "{run:#?}");
    }
    assert!((standing.checkpoint.blocked_s - 256.0).abs() < 1e-6 && standing.checkpoint.background_s < 1e-9);
    assert!((beside.checkpoint.blocked_s - 2.0).abs() < 1e-6 && (beside.checkpoint.background_s - 256.0).abs() < 1e-6);
    assert!(beside.goodput.expected > standing.goodput.expected + 0.05);
    // No more often than one can be written.
    assert!(beside.checkpoint.interval_s >= 256.0);
    let often = of("interval = \"30s\"\nasynchronous = true\ncopy_bandwidth = \"1GB/s\"");
    assert!(often.notes.iter().any(|note| note.contains("training waits")), "{:?}", often.notes);
    assert!(often.checkpoint.interval_s >= 256.0);
}

/// 16,384 devices whose nodes fail as often as those of a published run: 419 stops in 54 days, over 90 % useful.
#[test]
fn published_stops_in_54_days() {
    let sections = "[checkpoint]\ninterval = \"best\"\nsize = \"5.7TB\"\nbandwidth = \"2TB/s\"\n[failures]\nlike = \"llama-3-405b\"\n\
                    detection = \"1min\"\nrestart = \"10min\"\nduration = \"54d\"\nruns = 30";
    let training = "sequence_length = 1024\nglobal_batch = 4096\nprecision = \"bf16\"";
    let text = format!(
        "[cluster]\nnodes = \"2048 x dgx-h100\"\n[model]\n{}\n[training]\n{training}\n[plan]\ndata = 2048\ntensor = 8\n{sections}\n",
        dense(8)
    );
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    let run = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}")).long_run;
    let run = run.expect("the scenario has checkpoints");
    adds_up(&run);
    assert!((run.failures / 419.0 - 1.0).abs() < 0.03, "{}", run.failures);
    assert!((run.mtbf_hours.expect("it fails") - 3.09).abs() < 0.01);
    assert!((0.90..0.97).contains(&run.goodput.expected), "{:?}", run.goodput);
}

/// What is wrong in the two sections is named with what would be right, all at once.
#[test]
fn wrong_failures_and_checkpoints_are_refused() {
    let check = |sections: &str, needles: &[&str]| {
        let text = format!(
            "[cluster]\nnodes = \"4 x dgx-a100\"\n[model]\n{}\n[training]\n{TRAINING}\n[plan]\ndata = 4\ntensor = 8\n{sections}\n",
            dense(8)
        );
        let error = match scenario::parse("s.toml", &text, Path::new("")) {
            Ok(loaded) => trainyard::simulate(&loaded, &Context::default()).expect_err(sections).to_string(),
            Err(error) => error.to_string(),
        };
        for needle in needles {
            assert!(error.contains(needle), "{sections}: no {needle:?} in\n{error}");
        }
    };
    let good = "[checkpoint]\ninterval = \"1h\"\nbandwidth = \"10GB/s\"\n";
    check(
        "[failures]\nmtbf = \"3h\"\nrestart = \"5min\"",
        &["checkpoint", "every failure would lose", "interval = \"best\""],
    );
    check("[checkpoint]\ninterval = \"best\"\nbandwidth = \"1GB/s\"", &["checkpoint.interval", "no checkpoint at all"]);
    check("[checkpoint]\ninterval = \"beste\"\nbandwidth = \"1GB/s\"", &["checkpoint.interval"]);
    check("[checkpoint]\ninterval = 3600\nbandwidth = \"1GB/s\"", &["needs a unit"]);
    check("[checkpoint]\ninterval = \"0s\"\nbandwidth = \"1GB/s\"", &["no time at all"]);
    check("[checkpoint]\ninterval = \"1h\"", &["checkpoint.bandwidth", "how fast checkpoints are written"]);
    check("[checkpoint]\ninterval = \"1h\"\nbandwidth = \"0GB/s\"", &["checkpoint.bandwidth"]);
    check("[checkpoint]\ninterval = \"1h\"\nbandwidth = \"1B/s\"", &["checkpoint.bandwidth", "twenty years"]);
    check("[checkpoint]\ninterval = \"1h\"\nbandwith = \"1GB/s\"", &["unknown key", "`bandwidth`"]);
    check("[checkpoint]\ninterval = \"1h\"\nbandwidth = \"1GB/s\"\nwrite_time = \"40s\"", &["exclude each other"]);
    check("[checkpoint]\ninterval = \"1h\"\nread_time = \"40s\"", &["checkpoint.write_time"]);
    check(
        "[checkpoint]\ninterval = \"1h\"\nwrite_time = \"2h\"",
        &["checkpoint.interval", "stands still for", "faster storage"],
    );
    check("[checkpoint]\ninterval = \"1h\"\nwrite_time = \"1s\"\nsize = \"0B\"", &["nothing at all"]);
    check("[checkpoint]\ninterval = \"1h\"\nwrite_time = \"1s\"\ncopy_bandwidth = \"1GB/s\"", &["asynchronous = true"]);
    let fails = |keys: &str, needles: &[&str]| check(&format!("{good}[failures]\n{keys}"), needles);
    fails("restart = \"5min\"", &["failures.node_mtbf", "how often nodes fail"]);
    fails("mtbf = \"3h\"", &["failures.restart", "is missing"]);
    fails("mtbf = \"0s\"\nrestart = \"5min\"", &["failures.mtbf", "no time at all"]);
    fails("mtbf = 3\nrestart = \"5min\"", &["failures.mtbf", "needs a unit"]);
    fails("per_node_day = 0.0\nrestart = \"5min\"", &["failures.per_node_day", "must be between"]);
    fails("per_node_day = -1\nrestart = \"5min\"", &["failures.per_node_day", "must be between"]);
    fails("mtbf = \"3h\"\nnode_mtbf = \"1d\"\nrestart = \"5min\"", &["says how often nodes fail already"]);
    fails("like = \"lama-3-405b\"\nrestart = \"5min\"", &["failures.like", "did you mean `llama-3-405b`?"]);
    fails("mtbf = \"3h\"\nrestart = \"5min\"\nwatchdog = \"30min\"", &["failures.hang_share", "hang_share = 1.0"]);
    fails("mtbf = \"3h\"\nrestart = \"5min\"\nhang_share = 1.5", &["failures.hang_share", "between 0 and 1"]);
    fails("mtbf = \"3h\"\nrestart = \"5min\"\nspares = 2", &["failures.repair", "replaced at once"]);
    fails("mtbf = \"3h\"\nrestart = \"5min\"\nrepair = { median = \"2d\", mean = \"1d\" }", &["less than the median"]);
    fails(
        "mtbf = \"3h\"\nrestart = \"5min\"\nduration = \"30min\"",
        &["checkpoint.interval", "would have no checkpoint"],
    );
    fails("mtbf = \"1ms\"\nrestart = \"5min\"", &["failures.runs", "more than can be walked through"]);
    fails("mtbf = \"3h\"\nrestart = \"50y\"", &["failures.restart"]);
    check(
        &format!("{good}[size]\ntokens = \"2T\"\nwithin = \"30d\"\ngoodput = 0.9"),
        &["size.goodput", "follows from"],
    );
    // All at once.
    check(
        "[checkpoint]\ninterval = \"0s\"\n[failures]\nmtbf = \"0s\"",
        &["checkpoint.interval", "failures.mtbf", "failures.restart"],
    );
}

/// The resolved form holds every number, and reads back to the same run.
#[test]
fn a_resolved_long_run_is_the_same() {
    for sections in [
        "[checkpoint]\ninterval = \"best\"\nnode_bandwidth = \"2GB/s\"\n[failures]\nlike = \"infinitehbd\"\nrestart = \"5min\"\nspares = 3",
        "[checkpoint]\ninterval = \"1h\"\nbandwidth = \"60GB/s\"\nasynchronous = true\nsize = \"2.3TB\"\n[failures]\nmtbf = \"3h\"\n\
         restart = \"0s\"\nhang_share = 0.25\nwatchdog = \"30min\"\nrepair = \"20h\"\nrepair_share = 0.5\nruns = 10",
        "[checkpoint]\ninterval = \"1h\"\nwrite_time = \"40s\"\n[failures]\ndevice_mtbf = \"2000d\"\nrestart = \"5min\"",
        "[checkpoint]\ninterval = \"1h\"\nwrite_time = \"40s\"",
    ] {
        let text = format!(
            "name = \"s\"\n[cluster]\nnodes = \"4 x dgx-a100\"\n[model]\n{}\n[training]\n{TRAINING}\n[plan]\ndata = 4\ntensor = 8\n{sections}\n",
            dense(8)
        );
        let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
        let written = loaded.scenario.to_toml();
        let again = scenario::parse("r.toml", &written, Path::new("")).unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again.scenario, loaded.scenario, "{written}");
    }
}

/// `explain` says what becomes of elapsed time beyond the step, and `sweep` varies intervals, timeouts and spares.
#[test]
fn the_closed_form_explains_and_sweeps() {
    let text = format!(
        "[cluster]\nnodes = \"32 x dgx-a100\"\n[model]\n{}\n[training]\n{TRAINING}\n[plan]\ndata = 32\ntensor = 8\n[checkpoint]\n\
         interval = \"1h\"\nwrite_time = \"30s\"\n[failures]\nmtbf = \"8h\"\nhang_share = 0.5\nwatchdog = \"30min\"\nrestart = \"5min\"\n\
         spares = 4\nrepair = \"20h\"\n",
        dense(16)
    );
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    let report = trainyard::explain(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
    let shares = report.elapsed_shares.as_ref().expect("the scenario has checkpoints");
    assert!((shares.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    assert!(report.document.html().contains("Beyond the step"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("scenario.toml");
    std::fs::write(&file, &text).expect("a file");
    let vary = ["checkpoint.interval=10min,1h", "failures.watchdog=10min,30min", "failures.spares=0,4"];
    let points = SweepPoints::Grid(vary.map(|words| words.parse().expect("keys with values")).to_vec());
    let out = folder.path().join("sweep");
    let request = SweepRequest { scenario: &file, points, simulate: false, folder: &out };
    let result = trainyard::sweep(&request, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((result.points, result.fitting), (8, 8));
    let table = std::fs::read_to_string(out.join("sweep.csv")).expect("a table");
    let column =
        |name: &str| table.lines().next().and_then(|line| line.split(',').position(|cell| cell.starts_with(name)));
    let goodput = column("goodput").unwrap_or_else(|| panic!("{table}"));
    // Commas in the plan's words come before: cells are counted from the end of the line.
    let from_end = table.lines().next().map_or(0, |line| line.split(',').count()) - goodput;
    let of = |line: &str| line.rsplit(',').nth(from_end - 1).and_then(|cell| cell.parse::<f64>().ok());
    let values: Vec<f64> = table.lines().skip(1).filter_map(of).collect();
    assert_eq!(values.len(), 8, "{table}");
    assert!(values.iter().all(|value| (0.0..1.0).contains(value)), "{values:?}");
    // The last key varies fastest: more spares are better, a shorter timeout is, and so is the shorter interval.
    assert!(values[1] > values[0] && values[1] > values[3] && values[1] > values[5], "{values:?}");
    // The point as the scenario is: what `explain` says.
    assert!((values[7] - shares[0].1).abs() < 1e-9, "{values:?} {shares:?}");
}

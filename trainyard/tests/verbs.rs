//! Verbs over whole scenarios: what they return, and what they say to wrong input.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainyard::{Context, Error, Loaded, Output, Progress, scenario};

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

fn parse(text: &str) -> Loaded {
    scenario::parse("s.toml", text, Path::new("")).unwrap_or_else(|e| panic!("{e}"))
}

/// A scenario of eight A100 with these model, training and plan keys.
fn text(model: &str, training: &str, plan: &str) -> String {
    format!("cluster = \"1 x dgx-a100\"\nmodel = \"{model}\"\n[training]\n{training}\n[plan]\n{plan}\n")
}

/// Planning fails as infeasible, or reading as wrong; the message holds every needle.
fn check(text: &str, needles: &[&str]) {
    let result = scenario::parse("s.toml", text, Path::new("")).and_then(|l| trainyard::plan(&l, &Context::default()));
    let message = match result {
        Ok(report) => panic!("{} was planned for\n{text}", report.plan.words),
        Err(error @ (Error::Input(_) | Error::Infeasible { .. })) => error.to_string(),
        Err(other) => panic!("{other}"),
    };
    for needle in needles {
        assert!(message.contains(needle), "no {needle:?} in\n{message}");
    }
}

#[test]
fn what_does_not_divide_is_refused_with_places_and_what_would() {
    let training = "sequence_length = 1024\nglobal_batch = 16";
    // U01, U03: layers over stages; U11: key and value heads; U09, U10: the batch identity; U15: sequence parallelism.
    check(
        &text("gpt2-124m", training, "pipeline = 8"),
        &["s.toml:7:12", "12 layers do not divide into 8 equal chunks", "pipeline = 6"],
    );
    check(
        &text("llama-3.1-8b", training, "pipeline = 2\nlayers_per_stage = [16, 15]\ntensor = 4"),
        &["16+15 = 31 layers and the model has 32", "1 would be lost", "nearest legal plans"],
    );
    check(
        &text("tiny-llama", "sequence_length = 64\nglobal_batch = 16", "tensor = 4"),
        &["2 (key and value heads)", "tensor can be 1, 2"],
    );
    check(&text("gpt2-124m", "sequence_length = 1024\nglobal_batch = 30", "data = 8"), &["30", "nearest legal plans"]);
    check(&text("gpt2-124m", training, "data = 16"), &["16", "8", "nearest legal plans"]);
    check(
        &text("gpt2-124m", "sequence_length = 1023\nglobal_batch = 16", "tensor = 4\nsequence_parallel = true"),
        &["1023", "s.toml"],
    );
}

#[test]
fn wrong_schedules_are_refused() {
    let with = |cells: &str| {
        text(
            "gpt2-124m",
            "sequence_length = 256\nglobal_batch = 4",
            &format!("data = 4\npipeline = 2\nschedule = {{ cells = \"\"\"{cells}\"\"\" }}"),
        )
    };
    // A pass that is missing, a cycle of waits, a microbatch that does not exist.
    check(&with("0F0\n1F0,1B0"), &["0B0"]);
    check(&with("0B0,0F0\n1F0,1B0"), &["0B0"]);
    check(&with("0F0,0F9,0B0,0B9\n1F0,1B0"), &["0F9"]);
}

#[test]
fn huge_numbers_are_refused_at_once() {
    let begun = std::time::Instant::now();
    check(
        "cluster = \"125000 x dgx-a100\"\nmodel = \"gpt2-124m\"\n[training]\nsequence_length = 1024\nglobal_batch = 1000000000\n[plan]\ndata = 1000000\n",
        &["must be between 1 and 16777216, not 1000000000"],
    );
    check(&text("gpt2-124m", "sequence_length = 1024\nglobal_batch = 16000000", "data = 8"), &["2000000 microbatches"]);
    check(&text("gpt2-124m", "sequence_length = 1024\nglobal_batch = 8", "data = 1048576"), &["1048576"]);
    check(
        &text("gpt2-124m", "sequence_length = 1024\nglobal_batch = 8", "tensor = 1048576\npipeline = 4096"),
        &["4096"],
    );
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn what_does_not_fit_says_stage_part_and_moment() {
    let loaded = scenario::load(&scenarios().join("does-not-fit")).unwrap_or_else(|e| panic!("{e}"));
    let error = trainyard::simulate(&loaded, &Context::default()).expect_err("it does not fit");
    assert!(matches!(error, Error::Infeasible { .. }), "{error}");
    let message = error.to_string();
    for needle in ["stage 0", "GiB of 40.0", "pass of chunk", "activations"] {
        assert!(message.contains(needle), "no {needle:?} in\n{message}");
    }
}

#[test]
fn every_scenario_reads_and_its_resolved_form_reads_back() {
    let mut count = 0;
    let folders = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).expect("scenarios").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.join("scenario.toml").is_file())
    };
    for path in folders(scenarios()).chain(folders(scenarios().join("claims"))) {
        let loaded = scenario::load(&path).unwrap_or_else(|e| panic!("{e}"));
        let written = loaded.scenario.to_toml();
        assert_eq!(parse(&written).scenario, loaded.scenario, "{written}");
        let folder = path.file_name().map(|n| n.to_string_lossy().into_owned());
        assert_eq!(Some(loaded.scenario.name), folder, "a scenario has the name of its folder");
        count += 1;
    }
    assert!(count >= 8, "{count} scenarios");
}

#[test]
fn a_policy_keeps_to_what_is_written() {
    let training = "sequence_length = 1024\nglobal_batch = 64";
    let plan = |keys: &str| {
        let loaded = parse(&text("gpt2-124m", training, &format!("policy = \"megatron\"\n{keys}")));
        trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{keys}: {e}"))
    };
    let free = plan("");
    assert_eq!(free.plan.ranks, 8, "{}", free.plan.words);
    let held = plan(
        "tensor = 2\npipeline = 2\ndata = 2\nmicrobatch_size = 2\nrecompute = \"full\"\nzero = 0\nschedule = \"gpipe\"",
    );
    assert_eq!((held.plan.tensor, held.plan.pipeline, held.plan.data, held.plan.microbatch_size), (2, 2, 2, 2));
    assert_eq!((held.plan.zero, held.plan.schedule.as_str(), held.plan.microbatches), (0, "gpipe", 16));
    assert!(held.plan.recompute.iter().all(|r| *r == ir::Recompute::Full));
    assert!(held.prediction.iteration_ms > free.prediction.iteration_ms);
    check(
        &text("gpt2-124m", training, "policy = \"megatron\"\ntensor = 8"),
        &["heads", "tensor degree 8", "tensor can be"],
    );
    // What is planned is a scenario of its own, which gives the same plan.
    let again = trainyard::plan(&parse(&held.planned_scenario), &Context::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.plan, held.plan);
    let difference = again.prediction.iteration_ms / held.prediction.iteration_ms - 1.0;
    assert!(difference.abs() < 0.02, "closed form against simulator: {difference}");
}

#[test]
fn the_exhaustive_policy_is_no_worse_and_keeps_to_what_is_written() {
    let training = "sequence_length = 1024\nglobal_batch = 64";
    let plan = |keys: &str| {
        let loaded = parse(&text("gpt2-124m", training, keys));
        trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{keys}: {e}"))
    };
    let (thumb, all) = (plan("policy = \"megatron\""), plan("policy = \"exhaustive\""));
    assert!(all.prediction.iteration_ms <= thumb.prediction.iteration_ms, "{} {}", all.plan.words, thumb.plan.words);
    assert_eq!(all.policy, "exhaustive");
    assert!(all.reasons.iter().any(|reason| reason.contains("cannot win by their floor")), "{:?}", all.reasons);
    let held = plan(
        "policy = \"exhaustive\"\ntensor = 2\npipeline = 2\ndata = 2\nmicrobatch_size = 4\nrecompute = \"full\"\nzero = 0\n\
         schedule = \"zero-bubble-h1\"\nsequence_parallel = false",
    );
    assert_eq!((held.plan.tensor, held.plan.pipeline, held.plan.data, held.plan.microbatch_size), (2, 2, 2, 4));
    assert_eq!((held.plan.zero, held.plan.microbatches), (0, 8));
    assert!(held.plan.recompute.iter().all(|r| *r == ir::Recompute::Full));
    assert!(held.prediction.iteration_ms > all.prediction.iteration_ms);
    // What does not divide the heads is said.
    check(&text("gpt2-124m", training, "policy = \"exhaustive\"\ntensor = 8"), &["heads", "tensor can be"]);
}

#[test]
fn a_simulation_is_the_same_twice() {
    let loaded = parse(&text("gpt2-124m", "sequence_length = 1024\nglobal_batch = 64", "tensor = 2\npipeline = 2"));
    let one = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
    let two = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(trainyard::results::json(&one), trainyard::results::json(&two));
    let total: f64 = one.time_ms.values().sum();
    assert!((total / one.prediction.iteration_ms - 1.0).abs() < 1e-9, "the parts sum to the iteration");
    assert!(one.model_flops_utilization.is_some_and(|mfu| mfu > 0.0 && mfu < 1.0));
}

const TRAINED: &str = "cluster = \"1 x cpu-2\"\nmodel = \"tiny-gpt\"\n[training]\nsequence_length = 16\nglobal_batch = 4\niterations = 6\n[plan]\npipeline = 2\n";

#[test]
fn a_run_learns_and_is_compared() {
    let loaded = parse(TRAINED);
    let report = trainyard::compare(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.measured.loss.len(), 6);
    assert!(report.measured.loss[5] < report.measured.loss[0], "{:?}", report.measured.loss);
    assert_eq!(report.measured.timelines.len(), 3);
    assert_eq!(report.simulated.program_digest, report.measured.program_digest);
    let folder = tempfile::tempdir().expect("a folder");
    let mut output = Output::open(folder.path()).unwrap_or_else(|e| panic!("{e}"));
    trainyard::stage_reports(&mut output, &loaded, &trainyard::Subject::Compared(&report))
        .unwrap_or_else(|e| panic!("{e}"));
    let files = output.commit().unwrap_or_else(|e| panic!("{e}"));
    for file in &files {
        assert!(std::fs::metadata(file).is_ok_and(|m| m.len() > 100), "{}", file.display());
    }
    assert_eq!(files.len(), 7);
}

#[test]
fn an_interrupted_run_stops_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    let stop = move |progress: &Progress| {
        if progress.step == "train" && progress.done == 2 {
            flag.store(true, Ordering::Relaxed);
        }
    };
    let mut output = Output::open(folder.path()).unwrap_or_else(|e| panic!("{e}"));
    output.stage("early.json", b"{}").unwrap_or_else(|e| panic!("{e}"));
    let result = trainyard::run(&parse(TRAINED), &Context::new(interrupt, stop));
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    drop(output);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn what_a_cpu_cannot_train_is_refused() {
    let loaded = parse(&text("gpt2-124m", "sequence_length = 16\nglobal_batch = 8", "data = 8"));
    let error = trainyard::run(&loaded, &Context::default()).expect_err("GPUs").to_string();
    assert!(error.contains("a100-sxm4-80gb is not a CPU core"), "{error}");
}

#[test]
fn check_holds_scenarios_against_their_baselines() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
        std::fs::write(folder.path().join(name).join("scenario.toml"), text).expect("a scenario");
    };
    let training = "sequence_length = 1024\nglobal_batch = 64";
    write("good", &text("gpt2-124m", training, "tensor = 2\npipeline = 2"));
    write("no", &text("gpt3-175b", training, "tensor = 8"));
    let verdicts = |update| {
        let report =
            trainyard::check(folder.path(), 0.03, update, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
        let verdicts: Vec<String> = report.scenarios.iter().map(|s| format!("{:?}", s.verdict)).collect();
        (report.passed, verdicts.join(" "))
    };
    assert_eq!(verdicts(false), (false, "New New".to_owned()));
    assert_eq!(verdicts(true), (true, "Updated Updated".to_owned()));
    assert_eq!(verdicts(false), (true, "Same Same".to_owned()));
    write("good", &text("gpt2-124m", training, "tensor = 2\npipeline = 2\nrecompute = \"full\""));
    assert_eq!(verdicts(false), (false, "Worse Same".to_owned()));
    write("good", "nonsense");
    assert_eq!(verdicts(false), (false, "Failed Same".to_owned()));
    let empty = tempfile::tempdir().expect("a folder");
    let error =
        trainyard::check(empty.path(), 0.03, false, &Context::default()).expect_err("nothing there").to_string();
    assert!(error.contains("holds no folder with a scenario.toml"), "{error}");
}

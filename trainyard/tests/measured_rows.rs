//! Verbs over tables of measured rows: the project's own, ones never seen, and wrong ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trainyard::results::json;
use trainyard::{
    CalibrateRowsRequest, Context, Error, ScoreKind, ValidateRequest, Validation, calibrate_rows, check_scoreboard,
    scenario, validate,
};

fn own(table: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../catalog/measured").join(table).with_extension("csv")
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

fn of(files: &[&Path], scores: &[ScoreKind]) -> Result<Validation, Error> {
    validate(&ValidateRequest { files, leave_out: None, refit: false, scores }, &Context::default())
}

fn refused(result: Result<Validation, Error>, needles: &[&str]) {
    let message = result.expect_err("a fault").to_string();
    for needle in needles {
        assert!(message.contains(needle), "no {needle:?} in\n{message}");
    }
}

fn document(validation: &Validation) -> Value {
    serde_json::from_str(&json(&validation.document())).expect("JSON")
}

/// What the project promises of its own tables with stacks fitted to them: the middle table, and that it beats one constant.
#[test]
#[expect(clippy::print_stderr, reason = "what is skipped is said")]
fn the_projects_tables_are_predicted_when_stacks_are_fitted_to_them() {
    if std::env::var_os("TRAINYARD_LONG_TESTS").is_none() {
        eprintln!("SKIP fitting stacks to the project's tables: TRAINYARD_LONG_TESTS=1 takes the half minute for it");
        return;
    }
    let request = ValidateRequest { files: &[], leave_out: None, refit: true, scores: &[] };
    let validation = validate(&request, &Context::default()).expect("a score");
    assert!(validation.predicted() >= 1_700, "{} rows have a predicted time", validation.predicted());
    let tables = &validation.scores[0].tables;
    let mut medians: Vec<f64> = tables.iter().filter_map(|table| table.median_ape).collect();
    medians.sort_by(f64::total_cmp);
    let middle = medians[medians.len() / 2];
    assert!(medians.len() >= 18 && middle <= 0.045, "{} tables, the middle one at {middle}", medians.len());
    let beaten = tables.iter().filter(|table| table.mean_ape < table.baseline_mean_ape).count();
    assert!(beaten >= 15, "{beaten} tables are predicted better than by one constant");
    // Written and read again, the stacks are the same: byte for byte, over themselves.
    let once = validation.stacks_text(Validation::catalog_text());
    assert_eq!(validation.stacks_text(&once), once);
    assert!(once.starts_with(Validation::catalog_text().split("[[cold]]").next().expect("a head").trim_end()));
}

/// A page is no worse than itself; a figure that was better is told by table and name.
#[test]
fn what_has_become_worse_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let now = of(&[], &[]).expect("a score");
    let published = now.published_json(&now.scoreboard());
    let good = write(&folder, "good.json", &published);
    assert!(check_scoreboard(&good, &Context::default()).expect("a check").passed);
    let mut better: Value = serde_json::from_str(&published).expect("JSON");
    let table = &mut better["tables"][0];
    let file = table["file"].as_str().expect("a file").to_owned();
    table["median_ape"] = Value::from(table["median_ape"].as_f64().expect("a figure") / 2.0);
    let better = write(&folder, "better.json", &better.to_string());
    let report = check_scoreboard(&better, &Context::default()).expect("a check");
    assert!(!report.passed);
    let worse = report.worse();
    assert_eq!(worse.len(), 1, "{worse:?}");
    assert!(worse[0].starts_with(&format!("{file}: median error: published ")), "{worse:?}");
}

const TABLE_KEYS: [&str; 14] = [
    "baseline_mean_ape",
    "bias",
    "file",
    "interval_coverage",
    "kendall_tau",
    "max_ape",
    "mean_ape",
    "median_ape",
    "memory_mean_ape",
    "oom_accuracy",
    "p90_ape",
    "predicted",
    "refused",
    "rows",
];

#[test]
fn a_table_never_seen_has_every_score() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(own("mosaicml_llm_foundry")).expect("a table");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[1..].iter_mut().enumerate().for_each(|(index, line)| *line = format!("mine-{index}-{line}"));
    let mine = write(&folder, "mine.csv", &lines.join("\n"));
    let validation = of(&[&mine], &ScoreKind::ALL).expect("a score");
    let document = document(&validation);
    let tables = document["tables"].as_array().expect("tables");
    assert_eq!(tables.len(), 1, "the project's own tables are not among them");
    let mut keys: Vec<&str> = tables[0].as_object().expect("a table").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, TABLE_KEYS);
    assert_eq!(tables[0]["file"], "mine.csv");
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(lines.len() - 1));
    for key in [
        "row_id",
        "measured_s",
        "predicted_s",
        "low_s",
        "high_s",
        "ape",
        "measured_gb",
        "predicted_gb",
        "fits",
        "refused",
    ] {
        assert!(document["rows"][0].get(key).is_some(), "rows have no {key}");
    }
    let scores = document["scores"].as_object().expect("scores");
    assert!(["cold", "fitted", "shape"].iter().all(|kind| scores.contains_key(*kind)) && scores.len() == 3);
    let figure = |score: &str, key: &str| scores[score]["tables"][0][key].as_f64().expect("a figure");
    // One factor from the table cannot leave it off by more than it was.
    assert!(figure("shape", "bias").abs() < 0.02, "{}", figure("shape", "bias"));
    assert!(figure("shape", "median_ape") <= figure("cold", "median_ape") + 0.01);
    assert!(figure("cold", "predicted") >= 100.0);
    assert!(figure("shape", "mean_ape") < figure("shape", "baseline_mean_ape"));
    let csv = String::from_utf8(validation.rows_csv()).expect("text");
    assert_eq!(csv.lines().count(), lines.len());
}

#[test]
fn few_rows_are_a_pool_that_says_of_what() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(own("vtrain_a100")).expect("a table");
    let few = write(&folder, "few.csv", &text.lines().take(6).collect::<Vec<_>>().join("\n"));
    let document = document(&of(&[&few], &[]).expect("a score"));
    assert_eq!(document["tables"][0]["rows"], 5);
    assert_eq!(document["tables"][0]["pooled"][0], "few.csv");
}

#[test]
fn what_is_left_out_is_not_known() {
    let leave = |table| ValidateRequest { files: &[], leave_out: Some(table), refit: false, scores: &[] };
    let left = validate(&leave("internevo_7b.csv"), &Context::default()).expect("a score");
    assert!(left.stacks.stack.iter().all(|row| !row.tables.iter().any(|table| table == "internevo_7b")));
    refused(validate(&leave("vtran_a100"), &Context::default()), &["no table `vtran_a100`", "vtrain_a100"]);
}

const HEADING: &str = "row_id,gpu,gpus_per_node,nodes,gpus_total,model,layers,hidden,ffn,heads,vocab,mlp_type,seq_len,precision,\
    global_batch,micro_batch,tp,pp,dp,framework,iteration_time_s";

/// A sound row with some cells replaced.
fn row(id: &str, cells: &[(&str, &str)]) -> String {
    let good = [
        "id",
        "A100-SXM-80GB",
        "8",
        "1",
        "8",
        "GPT-1B",
        "24",
        "2048",
        "8192",
        "16",
        "50304",
        "gelu",
        "2048",
        "BF16",
        "32",
        "2",
        "2",
        "1",
        "4",
        "Megatron-LM",
        "1.5",
    ];
    let names: Vec<&str> = HEADING.split(',').collect();
    assert_eq!(names.len(), good.len());
    let values = names.iter().zip(good).map(|(name, value)| match *name {
        "row_id" => id,
        name => cells.iter().find(|(of, _)| *of == name).map_or(value, |(_, value)| *value),
    });
    values.collect::<Vec<_>>().join(",")
}

/// A row's name, its cells that are wrong, and the word of the refusal; empty where it may be predicted too.
type Wrong = (&'static str, &'static [(&'static str, &'static str)], &'static str);

#[test]
fn wrong_rows_are_refused_by_name_and_good_ones_are_predicted() {
    let cases: [Wrong; 16] = [
        ("hole", &[("layers", "")], "hole"),
        ("word", &[("hidden", "wide")], "not-a-number"),
        ("unit", &[("iteration_time_s", "1.5 s")], "not-a-number"),
        ("minus", &[("iteration_time_s", "-1.5")], "out-of-range"),
        ("nan", &[("iteration_time_s", "nan")], ""),
        ("huge", &[("hidden", "99999999999999999999")], ""),
        ("divides", &[("pp", "2")], "contradiction"),
        ("heads", &[("heads", "17")], ""),
        ("fast", &[("iteration_time_s", "0.0001")], "implausible"),
        ("milliseconds", &[("iteration_time_s", "1500000")], "implausible"),
        ("device", &[("gpu", "A1000-SXM-80GB")], "unknown-device"),
        ("format", &[("precision", "NVFP4")], "number-format"),
        ("untimed", &[("iteration_time_s", "")], "no-measurement"),
        ("batch", &[("global_batch", "30")], ""),
        ("zero", &[("tp", "0")], ""),
        ("short", &[("seq_len", "1")], ""),
    ];
    let mut text = HEADING.to_owned();
    for (id, cells, _) in cases {
        text.push_str(&format!("\n{}", row(id, cells)));
    }
    text.push_str(&format!("\n{}", row("unknown-framework", &[("framework", "Frobnicator 3000")])));
    text.push_str(&format!("\n{}\n{}", row("good", &[]), row("good", &[])));
    text.push_str("\ntoo,few,cells\n");
    let folder = tempfile::tempdir().expect("a folder");
    let table = write(&folder, "made-up.csv", &text);
    let document = document(&of(&[&table], &ScoreKind::ALL).expect("a score"));
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), cases.len() + 4);
    for ((id, _, reason), row) in cases.iter().zip(rows) {
        assert_eq!(row["row_id"], *id);
        match row["refused"].as_str() {
            Some(told) => assert!(told.contains(reason) && row["predicted_s"].is_null(), "{id}: {told}"),
            None => {
                assert!(reason.is_empty() && row["predicted_s"].as_f64().is_some_and(f64::is_finite), "{id}: {row}")
            }
        }
    }
    let told = |id: &str| rows.iter().find(|row| row["row_id"] == id).expect("a row")["refused"].clone();
    assert!(told("device").as_str().is_some_and(|told| told.contains("A100")), "{}", told("device"));
    assert!(told("hole").as_str().is_some_and(|told| told.contains("layers")), "{}", told("hole"));
    let predicted: Vec<&Value> =
        rows.iter().filter(|row| row["predicted_s"].is_f64()).map(|row| &row["row_id"]).collect();
    assert!(predicted.iter().any(|id| **id == "good") && predicted.iter().any(|id| **id == "unknown-framework"));
    let of = |id: &str| rows.iter().find(|row| row["row_id"] == id).expect("a row");
    let width = |id: &str| of(id)["high_s"].as_f64().unwrap_or(0.0) / of(id)["low_s"].as_f64().unwrap_or(1.0);
    assert!(width("unknown-framework") > 1.02 * width("good"), "what is not known is told less exactly");
    assert_eq!(
        rows.iter().filter(|row| row["row_id"] == "good" && row["refused"].is_string()).count(),
        1,
        "a row twice"
    );
}

/// Tables that others will bring: software, devices, spellings and holes that no table here has.
#[test]
fn tables_of_unknown_software_devices_and_spellings_are_read_or_refused_by_name() {
    let cells: [(&str, &[(&str, &str)]); 8] = [
        ("known", &[]),
        ("other-software", &[("framework", "HyperTrain 7.2")]),
        ("no-software", &[("framework", "")]),
        ("another-fsdp", &[("framework", "MyLab FSDP trainer"), ("tp", "1"), ("dp", "8"), ("micro_batch", "4")]),
        ("another-spelling", &[("gpu", "NVIDIA A100 80GB SXM4"), ("precision", "bfloat16"), ("mlp_type", "gelu_new")]),
        ("new-device", &[("gpu", "NVIDIA Q900-SXM-256GB")]),
        ("no-microbatch", &[("micro_batch", "")]),
        ("no-vocabulary", &[("vocab", "")]),
    ];
    let rows: Vec<String> = cells.iter().map(|(id, cells)| row(id, cells)).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let table = write(&folder, "theirs.csv", &format!("{HEADING}\n{}\n", rows.join("\n")));
    let document = document(&of(&[&table], &ScoreKind::ALL).expect("a score"));
    let of =
        |id: &str| document["rows"].as_array().expect("rows").iter().find(|row| row["row_id"] == id).expect("a row");
    let seconds = |id: &str| of(id)["predicted_s"].as_f64().unwrap_or_else(|| panic!("{id}: {}", of(id)));
    let width = |id: &str| {
        let end = |key: &str| of(id)[key].as_f64().expect("an end");
        end("high_s") / end("low_s")
    };
    let assumed = |id: &str| of(id)["assumed"].to_string();
    // Near each other: the same job, whatever it is called; what recomputes nothing takes less.
    for id in ["other-software", "no-software", "another-fsdp", "another-spelling", "no-microbatch", "no-vocabulary"] {
        let ratio = seconds(id) / seconds("known");
        assert!((0.4..1.5).contains(&ratio), "{id}: {ratio} of what the known one takes");
    }
    // Unknown software: what stands in is named, and the interval is wider.
    for (id, words) in [("other-software", "`hypertrain 7.2` is not known"), ("no-software", "no framework named")] {
        assert!(assumed(id).contains(words) && assumed(id).contains("no stack calibrated for"), "{}", assumed(id));
        assert!(width(id) > 1.02 * width("known"), "{id}: {} against {}", width(id), width("known"));
    }
    assert!(assumed("another-fsdp").contains("pytorch-fsdp"), "a class by its word: {}", assumed("another-fsdp"));
    assert!((seconds("another-spelling") / seconds("known") - 1.0).abs() < 1e-9, "one device, one format");
    assert!(assumed("no-microbatch").contains("microbatch = 2, by row known"), "{}", assumed("no-microbatch"));
    assert!(assumed("no-vocabulary").contains("vocabulary = 50257, by family gpt"), "{}", assumed("no-vocabulary"));
    let told = of("new-device")["refused"].as_str().expect("a refusal");
    assert!(told.contains("`NVIDIA Q900-SXM-256GB` is not in the catalog; the nearest are"), "{told}");
    assert!(of("new-device")["predicted_s"].is_null());
}

/// Of a table never seen, what is fitted to other people's rows of the same software says no more than cold does.
#[test]
fn a_table_never_seen_has_the_interval_of_other_machines() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(own("megatron_lm_sc21")).expect("a table");
    let (theirs, known) = (write(&folder, "theirs.csv", &text), own("megatron_lm_sc21"));
    let widest = |file: &Path| {
        let validation = of(&[file], &[]).expect("a score");
        let rows = &validation.scores[0].rows;
        let widths = rows.iter().filter_map(|row| Some(row.high_s? / row.low_s?));
        widths.fold(0.0, f64::max)
    };
    let (unseen, fitted) = (widest(&theirs), widest(&known));
    assert!(unseen > 1.03 * fitted, "{unseen} of a new table, {fitted} of the one that was fitted to");
}

#[test]
fn files_that_are_no_tables_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| write(&folder, name, text);
    let column = file("column.csv", &format!("{}\n{}\n", HEADING.replace("seq_len", "seq_length"), row("a", &[])));
    refused(of(&[&column], &[]), &["column.csv", "seq_length", "seq_len"]);
    refused(of(&[&file("twice.csv", &format!("{HEADING},tp\n"))], &[]), &["twice.csv", "tp"]);
    refused(of(&[&file("empty.csv", "")], &[]), &["empty.csv"]);
    refused(of(&[&file("other.csv", "a,b\n1,2\n")], &[]), &["other.csv"]);
    refused(of(&[Path::new("no/such/table.csv")], &[]), &["no/such/table.csv", "cannot be read"]);
    refused(of(&[folder.path()], &[]), &["is a folder"]);
    let bytes = folder.path().join("bytes.csv");
    std::fs::write(&bytes, [0xff, 0xfe, 0x00, 0x41]).expect("a file");
    refused(of(&[&bytes], &[]), &["bytes.csv", "cannot be read"]);
    let error = check_scoreboard(&file("wrong.json", "{}"), &Context::default()).expect_err("no scoreboard");
    assert!(error.to_string().contains("no scoreboard"), "{error}");
}

#[test]
fn the_same_name_in_two_folders_stays_two_tables() {
    let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let text = |count: usize| {
        let rows: Vec<String> = (0..count).map(|index| row(&format!("r{index}"), &[])).collect();
        format!("{HEADING}\n{}\n", rows.join("\n"))
    };
    let (one, two) = (write(&one, "a.csv", &text(12)), write(&two, "a.csv", &text(14)));
    let document = document(&of(&[&one, &two], &[]).expect("a score"));
    let tables: BTreeMap<&str, &Value> = document["tables"]
        .as_array()
        .expect("tables")
        .iter()
        .map(|table| (table["file"].as_str().expect("a file"), &table["rows"]))
        .collect();
    assert_eq!(tables.len(), 2, "{tables:?}");
    assert!(tables["a.csv"] == 12);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn ten_rows_of_a_test_bed_predict_the_others() {
    for (table, most, least_gain) in [("vtrain_a100", 0.08, 2.0), ("aleph_alpha_llama_layout_sweep", 0.065, 1.5)] {
        let path = own(table);
        let fit = |seed| {
            let request = CalibrateRowsRequest { rows: &path, take: Some(10), seed };
            calibrate_rows(&request, &Context::default()).expect("a fit")
        };
        let reports: Vec<_> = (0..5).map(fit).collect();
        assert!(reports.iter().all(|report| report.taken.len() == 10), "ten rows are taken");
        assert_ne!(reports[0].taken, reports[1].taken, "another seed takes others");
        assert_eq!(reports[0], fit(0), "the same seed gives the same");
        let errors = |rest: fn(&trainyard::results::CalibrateRowsReport) -> Option<f64>| {
            median(reports.iter().map(|report| rest(report).expect("a figure")).collect())
        };
        let after = errors(|report| report.rest.and_then(|rest| rest.median_ape));
        let before = errors(|report| report.rest_before.and_then(|rest| rest.median_ape));
        assert!(after <= most, "{table}: {after} over {most}");
        assert!(after * least_gain <= before, "{table}: {before} before, {after} after");
        let covered = errors(|report| report.rest.and_then(|rest| rest.interval_coverage));
        assert!((0.8..=1.0).contains(&covered), "{table}: {covered} of the rows in their intervals");
    }
}

#[test]
fn more_rows_than_there_are_cannot_be_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = write(&folder, "two.csv", &format!("{HEADING}\n{}\n{}\n", row("a", &[]), row("b", &[])));
    let take = |rows: &Path, take| calibrate_rows(&CalibrateRowsRequest { rows, take, seed: 0 }, &Context::default());
    let error = take(&table, Some(3)).expect_err("two rows").to_string();
    assert!(error.contains("2 rows were timed"), "{error}");
    let all = take(&table, None).expect("a fit");
    assert_eq!((all.taken.len(), all.rest), (2, None));
    let wrong = write(&folder, "wrong.csv", &format!("{HEADING}\n{}\n", row("a", &[("gpu", "abacus")])));
    let error = take(&wrong, None).expect_err("no row").to_string();
    assert!(error.contains("none of its 1 rows") && error.contains("abacus"), "{error}");
}

const SCENARIO: &str = "cluster = \"1 x dgx-a100\"\nmodel = \"gpt2-124m\"\n[training]\nsequence_length = 1024\nglobal_batch = 32\n\
    STACK\n[plan]\ntensor = 2\ndata = 4\n[cost]\nstacks = \"bed.toml\"\n";

#[test]
fn a_scenario_takes_the_stacks_of_a_test_bed() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows: Vec<String> = (1..6u32)
        .map(|n| {
            row(
                &format!("r{n}"),
                &[("global_batch", &(8 * n).to_string()), ("iteration_time_s", &f64::from(n).to_string())],
            )
        })
        .collect();
    let table = write(&folder, "bed.csv", &format!("{HEADING}\n{}\n", rows.join("\n")));
    let request = CalibrateRowsRequest { rows: &table, take: None, seed: 0 };
    let report = calibrate_rows(&request, &Context::default()).expect("a fit");
    write(&folder, "bed.toml", &report.stacks_toml);
    let stack = &report.stacks[0];
    let release = stack.release.as_ref().map_or_else(String::new, |release| format!("\nrelease = \"{release}\""));
    let named = SCENARIO.replace("STACK", &format!("stack = \"{}\"{release}", stack.class));
    let parse = |text: &str| scenario::parse("s.toml", text, folder.path());
    let iteration = |text: &str| {
        let loaded = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let again = scenario::parse("again.toml", &loaded.scenario.to_toml(), Path::new("")).expect("it reads again");
        assert_eq!(again.scenario.cost, loaded.scenario.cost);
        trainyard::simulate(&again, &Context::default()).expect("a prediction").prediction
    };
    let with = iteration(&named);
    let without = iteration(&named.replace("[cost]\nstacks = \"bed.toml\"\n", ""));
    // The bed's rows are much slower than any catalog says.
    assert!(with.iteration_ms > 1.5 * without.iteration_ms, "{} ms, {} ms", with.iteration_ms, without.iteration_ms);
    let message = |text: &str| parse(text).expect_err("a fault").to_string();
    let unnamed = message(&SCENARIO.replace("STACK", ""));
    assert!(unnamed.contains("s.toml") && unnamed.contains("stack is not named"), "{unnamed}");
    write(&folder, "bed.toml", &report.stacks_toml.replace("compute_factor", "compute_facto"));
    let broken =
        trainyard::simulate(&parse(&named).expect("it reads"), &Context::default()).expect_err("a fault").to_string();
    assert!(broken.contains("bed.toml") && broken.contains("compute_facto"), "{broken}");
}

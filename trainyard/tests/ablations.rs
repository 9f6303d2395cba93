//! `ablate` and its merging, over whole files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trainyard::results::AblateResult;
use trainyard::scenario::PolicyName;
use trainyard::{AblateRequest, Context, Error, Progress, Seeds, Shard, ablate, merge_ablations};

/// Two small jobs, the second on unlike devices.
const SCENARIOS: [(&str, &str); 2] = [("alike", "2 x dgx-a100"), ("unlike", "1 x dgx-a100\", \"1 x dgx-h100")];

fn scenario(name: &str, nodes: &str, batch: u32) -> String {
    format!(
        "name = \"{name}\"\ncluster = {{ nodes = [\"{nodes}\"] }}\nmodel = \"gpt2-124m\"\n[training]\nsequence_length = \
         1024\nglobal_batch = {batch}\n"
    )
}

/// The scenarios as files of a folder.
fn scenarios(folder: &Path) -> Vec<PathBuf> {
    let write = |(name, nodes): &(&str, &str)| {
        let path = folder.join(format!("{name}.toml"));
        std::fs::write(&path, scenario(name, nodes, 64)).expect("a file");
        path
    };
    SCENARIOS.iter().map(write).collect()
}

const POLICIES: [PolicyName; 3] = [PolicyName::Megatron, PolicyName::Random, PolicyName::DynProg];

struct Asked {
    scenarios: Vec<PathBuf>,
    seeds: Seeds,
    budget: u64,
}

impl Asked {
    fn new(folder: &Path) -> Self {
        Self { scenarios: scenarios(folder), seeds: Seeds((0..4).collect()), budget: 60 }
    }
    fn request<'a>(&'a self, shard: Option<(u64, u64)>, folder: &'a Path) -> AblateRequest<'a> {
        AblateRequest {
            scenarios: &self.scenarios,
            policies: &POLICIES,
            baseline: None,
            seeds: &self.seeds,
            budget: self.budget,
            shard: shard.map(|(index, count)| Shard { index, count }),
            folder,
        }
    }
    fn run(&self, shard: Option<(u64, u64)>, folder: &Path) -> Result<AblateResult, Error> {
        ablate(&self.request(shard, folder), &Context::default())
    }
}

/// Every file of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            (path.file_name().expect("a name").to_string_lossy().into_owned(), std::fs::read(path).expect("bytes"))
        })
        .collect();
    files.sort();
    files
}

fn lines(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("cells.jsonl")).expect("cells");
    text.lines().map(|line| serde_json::from_str(line).expect("a cell")).collect()
}

fn must(result: Result<AblateResult, Error>) -> AblateResult {
    result.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn shards_in_any_order_come_to_the_whole_byte_for_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = Asked::new(folder.path());
    let whole = folder.path().join("whole");
    let report = must(asked.run(None, &whole));
    // Of each scenario a cell of each policy that draws nothing, and four draws.
    assert_eq!((report.cells, report.here, report.evaluated, report.without_plan), (12, 12, 12, 0));
    let names: Vec<String> = files(&whole).into_iter().map(|(name, _)| name).collect();
    let expect = [
        "ablation.csv",
        "ablation.html",
        "ablation.json",
        "ablation.md",
        "ablation.toml",
        "best-so-far-1.svg",
        "best-so-far-2.svg",
        "cells.csv",
        "cells.jsonl",
        "ratios.svg",
    ];
    assert_eq!(names, expect);

    for count in [1, 3, 5] {
        let shards: Vec<PathBuf> =
            (1..=count).rev().map(|index| folder.path().join(format!("{index}-{count}"))).collect();
        let mut here = 0;
        for (shard, index) in shards.iter().zip((1..=count).rev()) {
            let report = must(asked.run(Some((index, count)), shard));
            assert!(report.scores.is_none() && report.page.is_none() && report.files.len() == 2, "{report:?}");
            here += report.here;
        }
        assert_eq!(here, 12);
        let merged = folder.path().join(format!("merged-{count}"));
        let report = must(merge_ablations(&shards, &merged));
        assert_eq!((report.cells, report.here), (12, 12));
        assert!(files(&merged) == files(&whole), "{count} shards differ from the whole");
    }
}

#[test]
fn what_was_stopped_goes_on_and_drops_half_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = Asked::new(folder.path());
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    must(asked.run(None, &whole));

    // Stopped by hand as soon as something is there.
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    let stop = move |progress: &Progress| {
        if progress.step == "ablate" && progress.done > 0 {
            flag.store(true, Ordering::Relaxed);
        }
    };
    let stopped = ablate(&asked.request(None, &parts), &Context::new(interrupt, stop));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert!(!parts.join("ablation.html").exists());
    let done = lines(&parts).len() as u64;
    assert!((1..12).contains(&done), "{done}");

    // Killed in the middle of a line.
    let log = parts.join("cells.jsonl");
    let mut text = std::fs::read_to_string(&log).expect("cells");
    text.push_str("{\"input\":\"1234\",\"build\":");
    std::fs::write(&log, text).expect("written");
    let report = must(asked.run(None, &parts));
    assert_eq!((report.resumed, report.evaluated), (done, 12 - done));
    assert!(files(&whole) == files(&parts), "what went on differs from the whole");
    let again = must(asked.run(None, &parts));
    assert_eq!((again.resumed, again.evaluated), (12, 0));
    assert!(files(&whole) == files(&parts));
}

/// More seeds are added to what is there; another budget, another text or another program is refused by name.
#[test]
fn cells_of_something_else_are_not_mixed_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Asked::new(folder.path());
    let out = folder.path().join("out");
    asked.seeds = Seeds(vec![1]);
    must(asked.run(None, &out));
    asked.seeds = Seeds(vec![0, 1]);
    let report = must(asked.run(None, &out));
    assert_eq!((report.resumed, report.evaluated), (6, 2));
    let before = files(&out);

    let refused = |asked: &Asked, shard: Option<(u64, u64)>, words: &[&str]| {
        let error = asked.run(shard, &out).expect_err("cells of something else").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?} in {error}");
        assert!(error.contains("give another --out"), "{error}");
        assert!(files(&out) == before, "what is there was touched: {words:?}");
    };
    asked.seeds = Seeds(vec![0]);
    refused(&asked, None, &["cells.jsonl:3: random in alike, seed 1 is not asked for here"]);
    asked.seeds = Seeds(vec![0, 1]);
    refused(&asked, Some((1, 2)), &["dynprog in alike is not asked for here"]);
    asked.budget = 61;
    refused(&asked, None, &["megatron in alike had a budget of 60, not 61", "dynprog in unlike"]);
    asked.budget = 60;
    let (name, nodes) = SCENARIOS[1];
    std::fs::write(&asked.scenarios[1], scenario(name, nodes, 32)).expect("written");
    refused(&asked, None, &["random in unlike, seed 0 was made of another text of the scenario"]);
    std::fs::write(&asked.scenarios[1], scenario(name, nodes, 64)).expect("written");
    must(asked.run(None, &out));

    // As another build of the program would have left it.
    let log = out.join("cells.jsonl");
    let text = std::fs::read_to_string(&log).expect("cells");
    let build = lines(&out)[0]["build"].as_str().expect("a digest").to_owned();
    std::fs::write(&log, text.replacen(&build, "0123456789abcdef", 1)).expect("written");
    let error = asked.run(None, &out).expect_err("another build").to_string();
    assert!(error.contains("cells.jsonl:1: megatron in alike was made by another build"), "{error}");
    std::fs::write(&log, "{\"cell\":1}\nnonsense\n").expect("written");
    let error = asked.run(None, &out).expect_err("no cells").to_string();
    assert!(error.contains("cells.jsonl:1: is no cell") && error.contains("cells.jsonl:2: is no cell"), "{error}");
}

#[test]
fn merging_refuses_what_does_not_belong_together_or_lacks_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Asked::new(folder.path());
    let at = |name: &str| folder.path().join(name);
    for index in 1..=3 {
        must(asked.run(Some((index, 3)), &at(&index.to_string())));
    }
    let merged = at("merged");
    let refused = |folders: &[&str], words: &[&str]| {
        let folders: Vec<PathBuf> = folders.iter().map(|name| at(name)).collect();
        let error = merge_ablations(&folders, &merged).expect_err("no whole").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?} in {error}");
        assert!(files(&merged).is_empty(), "nothing is written");
    };
    let lacks = ["alike, seed 0", "alike, seed 3", "unlike, seed 0", "unlike, seed 3"];
    let words = lacks.map(|cell| format!("random in {cell}: the cell of shard 2/3 is missing"));
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["given: 1/3, 3/3"]).collect();
    refused(&["1", "3"], &words);
    refused(&["1", "nowhere"], &["nowhere", "cannot be read", "a folder that `trainyard ablate` wrote"]);

    // A shard that did not end: what it lacks is named.
    let log = at("2").join("cells.jsonl");
    let text = std::fs::read_to_string(&log).expect("cells");
    let (kept, _) = text.trim_end().rsplit_once('\n').expect("several cells");
    std::fs::write(&log, format!("{kept}\n{{\"input")).expect("written");
    refused(&["1", "2", "3"], &["random in unlike, seed 3: the cell of shard 2/3 is missing"]);

    // Two folders that disagree on a cell.
    std::fs::write(&log, &text).expect("written");
    std::fs::create_dir(at("2b")).expect("a folder");
    std::fs::copy(at("2").join("ablation.toml"), at("2b").join("ablation.toml")).expect("copied");
    let iteration = lines(&at("2"))[0]["outcome"]["planned"]["iteration_ns"].to_string();
    std::fs::write(at("2b").join("cells.jsonl"), text.replacen(&iteration, "1", 1)).expect("written");
    refused(&["1", "2", "3", "2b"], &["random in alike, seed 0: differs between", "2b"]);

    // Another ablation; a definition that was cut; merged into one of its parts.
    asked.budget = 61;
    must(asked.run(Some((3, 3)), &at("other")));
    refused(&["1", "2", "other"], &["other: is of another ablation than", "budget 60 and 61"]);
    let definition = std::fs::read_to_string(at("1").join("ablation.toml")).expect("a definition");
    std::fs::create_dir(at("cut")).expect("a folder");
    std::fs::write(at("cut").join("ablation.toml"), &definition[..definition.len() / 2]).expect("written");
    refused(&["cut", "2"], &["cut/ablation.toml:", "is no ablation's"]);
    let parts: Vec<PathBuf> = ["1", "2", "3"].iter().map(|name| at(name)).collect();
    let error = merge_ablations(&parts, &at("2")).expect_err("a part").to_string();
    assert!(error.contains("is to be merged, and merged into"), "{error}");
    must(merge_ablations(&parts, &merged));
}

#[test]
fn wrong_requests_are_refused_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Asked::new(folder.path());
    let out = folder.path().join("out");
    asked.scenarios.push(asked.scenarios[0].clone());
    let error = asked.run(None, &out).expect_err("one name twice").to_string();
    assert!(error.contains("scenario alike: stands twice") && error.contains("`name` of its own"), "{error}");
    // Every scenario that cannot be read is named.
    let broken: Vec<PathBuf> = ["a.toml", "b.toml"].iter().map(|name| folder.path().join(name)).collect();
    broken.iter().for_each(|path| std::fs::write(path, "modl = \"x\"\n").expect("written"));
    asked.scenarios = broken;
    let error = asked.run(None, &out).expect_err("no scenarios").to_string();
    assert!(error.contains("a.toml:1:1") && error.contains("b.toml:1:1"), "{error}");

    let asked = Asked::new(folder.path());
    let policies = [PolicyName::Random, PolicyName::Random];
    let request = AblateRequest { policies: &policies, ..asked.request(None, &out) };
    let error = ablate(&request, &Context::default()).expect_err("one twice").to_string();
    assert!(error.contains("policy random: stands twice"), "{error}");
    let request = AblateRequest { baseline: Some(PolicyName::Exhaustive), ..asked.request(None, &out) };
    let error = ablate(&request, &Context::default()).expect_err("not there").to_string();
    assert!(error.contains("exhaustive is none of the policies"), "{error}");
    assert!(!out.exists(), "nothing is written for what cannot be");
}

/// A scenario that no plan fits has cells with reasons, and the other counts alone.
#[test]
fn cells_without_a_plan_have_their_reasons() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Asked::new(folder.path());
    let text = scenario("too-large", "1 x dgx-a100", 64).replace("gpt2-124m", "gpt3-175b");
    std::fs::write(&asked.scenarios[1], text).expect("written");
    asked.seeds = Seeds(vec![0, 1]);
    let out = folder.path().join("out");
    let report = must(asked.run(None, &out));
    assert_eq!((report.cells, report.without_plan), (8, 4));
    let scores = report.scores.expect("all are here");
    assert!(
        scores.overall.iter().all(|score| (score.found, score.of) == (1, 2) && score.ratio.is_some()),
        "{scores:?}"
    );
    let csv = std::fs::read_to_string(out.join("cells.csv")).expect("a table");
    let rows: Vec<&str> = csv.lines().filter(|line| line.starts_with("too-large")).collect();
    assert!(rows.len() == 4 && rows.iter().all(|row| row.contains("does not fit") || row.contains("fit")), "{rows:?}");
}

/// The judge is `simulate`, the search is `plan`: a cell is what these say of the same policy, seed and budget.
/// Policies that are said to draw nothing plan alike with any seed, and the others do not draw alike.
#[test]
fn cells_are_what_plan_and_simulate_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = Asked::new(folder.path());
    let out = folder.path().join("out");
    must(asked.run(None, &out));
    let cells = lines(&out);
    let (name, nodes) = SCENARIOS[0];
    for policy in PolicyName::ALL {
        let mut curves = Vec::new();
        for seed in [2u64, 3] {
            let text = format!(
                "seed = {seed}\n{}[plan]\npolicy = \"{}\"\nbudget = 60\n",
                scenario(name, nodes, 64),
                policy.name()
            );
            let loaded = trainyard::scenario::parse("s.toml", &text, folder.path()).unwrap_or_else(|e| panic!("{e}"));
            let report = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
            curves.push(report.plan.words.clone());
            let wanted = |cell: &&serde_json::Value| {
                cell["scenario"] == name
                    && cell["policy"] == policy.name()
                    && (cell["seed"].is_null() || cell["seed"] == seed)
            };
            let Some(cell) = cells.iter().find(wanted) else {
                assert!(!POLICIES.contains(&policy), "{policy:?} has no cell");
                continue;
            };
            let planned = &cell["outcome"]["planned"];
            assert_eq!(planned["plan"], report.plan.words, "{policy:?}");
            let milliseconds = planned["iteration_ns"].as_f64().expect("nanoseconds") * 1e-6;
            assert!((milliseconds / report.prediction.iteration_ms - 1.0).abs() < 1e-9, "{cell}");
            assert!(planned["evaluations"].as_u64().is_some_and(|n| (1..=80).contains(&n)), "{cell}");
        }
        assert!(policy.draws() || curves[0] == curves[1], "{policy:?} draws: {curves:?}");
    }
    // What draws sees other plans with another seed: its best so far goes another way.
    let curves: Vec<String> = cells
        .iter()
        .filter(|cell| cell["policy"] == "random" && cell["scenario"] == name)
        .map(|cell| cell["outcome"]["planned"]["curve"].to_string())
        .collect();
    assert!(curves.len() == 4 && (1..4).all(|other| curves[other] != curves[0]), "{curves:?}");
}

//! Every scenario resolves, plans and simulates to what is written in its `expected/`: integers, words and digests
//! exactly, other numbers within 1e-9. `UPDATE_GOLDENS=1` rewrites.

use std::path::{Path, PathBuf};

use serde_json::Value;
use trainyard::results::{error_json, json};
use trainyard::{Context, Error, Loaded, scenario};
use trainyard_conformance::golden::{differences, rewrites};
use trainyard_conformance::workspace::root;

fn folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("scenarios")).expect("the scenarios of the checkout");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    folders.retain(|folder| folder.join("scenario.toml").is_file());
    folders.sort();
    folders
}

fn answer(verb: &str, given: Result<String, Error>) -> String {
    match given {
        Ok(text) => text,
        Err(error @ Error::Infeasible { .. }) => error_json(verb, &error),
        Err(error) => panic!("{verb}: {error}"),
    }
}

/// A scenario, named without its folder as `trainyard check` names it: both write the same baselines.
fn load(folder: &Path) -> Loaded {
    let text = std::fs::read_to_string(folder.join("scenario.toml")).expect("a readable scenario");
    scenario::parse("scenario.toml", &text, folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// The name of each golden and what it holds now.
fn answers(folder: &Path) -> Vec<(&'static str, String)> {
    let loaded = load(folder);
    let context = Context::default();
    vec![
        ("resolved.toml", loaded.scenario.to_toml()),
        ("plan.json", answer("plan", trainyard::plan(&loaded, &context).map(|report| json(&report)))),
        ("simulate.json", answer("simulate", trainyard::simulate(&loaded, &context).map(|report| json(&report)))),
    ]
}

fn compare(name: &str, was: &str, is: &str) -> Vec<String> {
    let mut found = Vec::new();
    if Path::new(name).extension().is_some_and(|extension| extension == "json") {
        let read = |text: &str| serde_json::from_str::<Value>(text);
        match read(was) {
            Ok(was) => differences("", &was, &read(is).expect("just written"), &mut found),
            Err(error) => found.push(format!("is not JSON: {error}")),
        }
    } else if was != is {
        let line = was
            .lines()
            .zip(is.lines())
            .position(|(a, b)| a != b)
            .unwrap_or(was.lines().count().min(is.lines().count()));
        let [before, now] = [was, is].map(|text| text.lines().nth(line).unwrap_or("nothing").to_owned());
        found.push(format!("line {}: was `{before}`, is `{now}`", line + 1));
    }
    found
}

#[test]
fn scenarios_give_what_they_gave() {
    let update = rewrites();
    let mut faults = Vec::new();
    let folders = folders();
    assert!(folders.len() >= 8, "the first scenarios are gone: {folders:?}");
    for folder in folders {
        let scenario = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (name, is) in answers(&folder) {
            let path = folder.join("expected").join(name);
            if update {
                std::fs::create_dir_all(folder.join("expected")).expect("a writable checkout");
                std::fs::write(&path, &is).expect("a writable checkout");
                continue;
            }
            match std::fs::read_to_string(&path) {
                Ok(was) => faults.extend(
                    compare(name, &was, &is).into_iter().map(|what| format!("{scenario}/expected/{name}{what}")),
                ),
                Err(error) => faults.push(format!("{scenario}/expected/{name}: {error}")),
            }
        }
    }
    let hint = "UPDATE_GOLDENS=1 cargo test -p trainyard-conformance --test goldens rewrites them";
    assert!(faults.is_empty(), "{}\n{hint}", faults.join("\n"));
}

/// What is written out beside every result reads back to the same scenario.
#[test]
fn the_resolved_form_reads_back() {
    for folder in folders() {
        let loaded = scenario::load(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let again = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(again.path().join("scenario.toml"), loaded.scenario.to_toml()).expect("a temporary file");
        let read =
            scenario::load(again.path()).unwrap_or_else(|error| panic!("{} resolved: {error}", folder.display()));
        assert_eq!(read.scenario, loaded.scenario, "{}", folder.display());
    }
}

//! The layout of ARCHITECTURE.md, enforced: who may use whom, and how large a file may be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use trainyard_conformance::workspace::{files, root};

/// Crate, and the crates of ours that it may use (dev-dependencies included).
const ALLOWED: &[(&str, &[&str])] = &[
    ("trainyard-ir", &[]),
    ("trainyard-cost", &["trainyard-ir"]),
    ("trainyard-sched", &["trainyard-ir", "trainyard-cost"]),
    ("trainyard-sim", &["trainyard-ir", "trainyard-cost"]),
    ("trainyard-exec", &["trainyard-ir"]),
    ("trainyard-learn", &["trainyard-ir", "trainyard-cost", "trainyard-sched", "trainyard-sim"]),
    ("trainyard-reports", &["trainyard-ir"]),
    ("trainyard-formats", &["trainyard-ir"]),
    (
        "trainyard",
        &[
            "trainyard-ir",
            "trainyard-cost",
            "trainyard-sched",
            "trainyard-sim",
            "trainyard-exec",
            "trainyard-learn",
            "trainyard-reports",
            "trainyard-formats",
        ],
    ),
    ("trainyard-cli", &["trainyard"]),
];

/// May use everything: they test and time the others.
const UNBOUND: &[&str] = &["trainyard-conformance", "trainyard-benches"];

fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let names = dependencies.iter().filter_map(|d| d["name"].as_str());
            let ours = names.filter(|name| name.starts_with("trainyard")).map(str::to_owned).collect();
            (package["name"].as_str().expect("a name").to_owned(), ours)
        })
        .collect()
}

#[test]
fn crates_use_only_what_the_architecture_allows() {
    let mut faults = Vec::new();
    for (package, used) in edges() {
        if UNBOUND.contains(&package.as_str()) {
            continue;
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package) else {
            faults.push(format!("{package} is not in the table of allowed edges"));
            continue;
        };
        let forbidden = used.iter().filter(|name| !allowed.contains(&name.as_str()));
        faults.extend(forbidden.map(|name| format!("{package} must not use {name}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pure_crates_have_no_clock_no_files_and_no_environment() {
    let forbidden = ["std::time", "SystemTime", "std::fs", "std::env", "std::net", "std::thread", "std::process"];
    let mut faults = Vec::new();
    for folder in ["ir", "cost", "sched", "sim", "learn", "reports", "formats"] {
        let paths = files(&root().join(folder).join("src"), "rs");
        let texts: Vec<String> =
            paths.iter().map(|path| std::fs::read_to_string(path).expect("a readable source file")).collect();
        let of_tests: BTreeSet<&str> = texts.iter().flat_map(|text| test_modules(text)).collect();
        for (path, text) in paths.iter().zip(&texts) {
            // What stands behind `#[cfg(test)]` may read files of the checkout.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let parts = path.iter().map(|part| part.to_string_lossy());
            if parts.into_iter().any(|part| of_tests.contains(part.trim_end_matches(".rs"))) {
                continue;
            }
            faults.extend(
                forbidden.iter().filter(|word| code.contains(*word)).map(|word| format!("{}: {word}", path.display())),
            );
        }
    }
    assert!(
        faults.is_empty(),
        "below `trainyard` nothing touches files, clocks or environment:\n{}",
        faults.join("\n")
    );
}

/// Names of the modules that a file declares for tests only.
fn test_modules(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("#[cfg(test)]").skip(1);
    behind.filter_map(|rest| {
        let line = rest.trim_start().lines().next()?;
        line.strip_suffix(';')?.split_once("mod ").map(|(_, name)| name)
    })
}

/// Files over 600 lines, with the most lines each may have. The list only shrinks.
const LARGE: &[(&str, usize)] = &[];

#[test]
fn files_stay_small_enough_to_read() {
    let mut faults = Vec::new();
    for path in files(&root(), "rs") {
        let name = path.strip_prefix(root()).expect("inside the root").to_string_lossy().into_owned();
        let lines = std::fs::read_to_string(&path).expect("a readable source file").lines().count();
        let limit = LARGE.iter().find(|(large, _)| *large == name).map_or(600, |(_, most)| *most);
        if lines > limit {
            faults.push(format!("{name}: {lines} lines, at most {limit}"));
        }
    }
    for (large, most) in LARGE {
        let lines = std::fs::read_to_string(root().join(large)).map_or(0, |text| text.lines().count());
        if lines <= 600 || lines + 50 < *most {
            faults.push(format!("{large}: has shrunk to {lines} lines; shrink or drop its entry of {most}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn manifest(folder: &Path) -> toml::Table {
    let text = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    text.parse().expect("TOML")
}

/// Dependencies of the workspace that are not crates of ours.
fn foreign_dependencies() -> BTreeSet<String> {
    let root = manifest(&root());
    let all = root["workspace"]["dependencies"].as_table().expect("workspace.dependencies");
    all.iter().filter(|(_, value)| value.get("path").is_none()).map(|(name, _)| name.clone()).collect()
}

/// The table of DESIGN.md has a row for each dependency, and no row for what is none.
#[test]
fn every_dependency_has_its_reason_in_design_md() {
    let design = std::fs::read_to_string(root().join("DESIGN.md")).expect("DESIGN.md");
    let (_, table) = design.split_once("## Dependencies").expect("a section on dependencies");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let first_cells = rows.filter_map(|row| row.split('|').nth(1));
    let explained: BTreeSet<String> =
        first_cells.flat_map(|cell| cell.split(',').map(|name| name.trim().trim_matches('`').to_owned())).collect();
    assert_eq!(explained, foreign_dependencies(), "DESIGN.md explains the one, Cargo.toml has the other");
}

/// What a manifest names, the crate's code names too.
#[test]
fn every_dependency_is_used() {
    let mut faults = Vec::new();
    let mut used_by_some = BTreeSet::new();
    let members = manifest(&root())["workspace"]["members"].as_array().expect("members").clone();
    for member in members.iter().filter_map(toml::Value::as_str) {
        let folder = root().join(member);
        let code: String =
            files(&folder, "rs").iter().map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
        for section in ["dependencies", "dev-dependencies"] {
            let manifest = manifest(&folder);
            let names = manifest.get(section).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
            for name in names {
                used_by_some.insert(name.clone());
                let path = name.replace('-', "_");
                if !code.contains(&format!("{path}::")) {
                    faults.push(format!("{member} depends on {name} and does not name it"));
                }
            }
        }
    }
    faults.extend(foreign_dependencies().difference(&used_by_some).map(|name| format!("no crate depends on {name}")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_readme_shows_a_scenario_that_can_be_planned() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let scenario = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a scenario");
    let loaded = trainyard::scenario::parse("README.md", scenario, &root()).expect("a right scenario");
    let planned = trainyard::plan(&loaded, &trainyard::Context::default()).expect("a plan that fits");
    assert!(planned.prediction.iteration_ms > 0.0, "{planned:?}");
}

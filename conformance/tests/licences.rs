//! What enters with the dependencies: licences that `deny.toml` allows, one source, no version twice without need.
//!
//! `cargo deny check` asks the same and more; it is not there on every machine that runs the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use trainyard_conformance::workspace::root;

/// Crates that come in more than one version because their users have not met on one. The list only shrinks.
const TWICE: &[&str] = &["bitflags", "getrandom", "miniz_oxide", "syn"];

/// What cargo knows of every package that is built here, with all features.
fn packages() -> Vec<Value> {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root()).output().expect("it runs");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let rustc = run("rustc", &["-vV"]);
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    // What other platforms need may not have been fetched.
    let text = run(env!("CARGO"), &["metadata", "--format-version", "1", "--offline", "--filter-platform", host]);
    let metadata: Value = serde_json::from_str(&text).expect("cargo prints JSON");
    // The lock holds optional dependencies too that no feature asks for: cargo's tree does not.
    let tree = ["tree", "--workspace", "--all-features", "--offline", "--edges", "all", "--prefix", "none"];
    let tree = run(env!("CARGO"), &tree);
    let built: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default()))
        .collect();
    let is_built = |package: &Value| {
        package["name"].as_str().zip(package["version"].as_str()).is_some_and(|named| built.contains(&named))
    };
    metadata["packages"].as_array().expect("packages").iter().filter(|package| is_built(package)).cloned().collect()
}

fn name(package: &Value) -> String {
    format!("{} {}", package["name"].as_str().expect("a name"), package["version"].as_str().expect("a version"))
}

/// Whether an SPDX expression can be met by allowed licences; a slash is an `OR` of old.
fn allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at, allow);
    met && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut met = all(words, at, allow);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allow);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let mut met = one(words, at, allow);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allow);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allow: &BTreeSet<String>) -> bool {
    let word = words.get(*at);
    // Past the end, so that what lacks an operand is no whole expression.
    *at += 1;
    let Some(word) = word else { return false };
    if *word == "(" {
        let met = any(words, at, allow);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    let mut licence = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        licence = format!("{word} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allow.contains(&licence)
}

#[test]
fn expressions_are_understood() {
    let allow: BTreeSet<String> =
        ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into_iter().collect();
    for (expression, expect) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("(MIT AND GPL-3.0) OR LGPL-2.1", false),
        ("GPL-2.0 WITH LLVM-exception", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("MIT OR", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(allowed(expression, &allow), expect, "{expression:?}");
    }
}

#[test]
fn every_licence_is_allowed() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let deny: toml::Table = deny.parse().expect("TOML");
    let allow = deny["licenses"]["allow"].as_array().expect("licenses.allow");
    let allow: BTreeSet<String> = allow.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect();
    let packages = packages();
    assert!(packages.len() > 50, "{} packages", packages.len());
    let faults: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|licence| allowed(licence, &allow)))
        .map(|package| format!("{}: {}", name(package), package["license"]))
        .collect();
    assert!(faults.is_empty(), "deny.toml does not allow:\n{}", faults.join("\n"));
}

#[test]
fn dependencies_come_from_one_registry() {
    let packages = packages();
    let sources: BTreeSet<&str> = packages.iter().filter_map(|package| package["source"].as_str()).collect();
    assert!(sources.len() == 1 && sources.iter().all(|source| source.starts_with("registry+")), "{sources:?}");
    let foreign = packages.iter().filter(|package| package["source"].is_null());
    let outside: Vec<String> = foreign.map(name).filter(|name| !name.starts_with("trainyard")).collect();
    assert!(outside.is_empty(), "from a path outside of the checkout: {outside:?}");
}

#[test]
fn no_crate_comes_twice_without_need() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name").to_owned();
        versions.entry(name).or_default().insert(package["version"].to_string());
    }
    let twice: Vec<&str> = versions.iter().filter(|(_, of)| of.len() > 1).map(|(name, _)| name.as_str()).collect();
    assert_eq!(twice, TWICE, "{:?}", versions.iter().filter(|(_, of)| of.len() > 1).collect::<Vec<_>>());
}

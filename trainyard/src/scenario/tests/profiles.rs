//! Measured layers in scenarios: read, written out again, and every fault by its file and key.

use crate::scenario::{CostChoice, parse};
use crate::{Error, Loaded};

const PROFILE: &str = r#"{"1": {"1": {"0": [0.001, 0.0, 0.001], "1": [0.01, 0.02, 0.001], "2": [0.01, 0.02, 0.001],
    "3": [0.01, 0.02, 0.001], "4": [0.01, 0.02, 0.001], "5": [0.002, 0.003, 0.001]}},
    "4": {"1": {"0": [0.001, 0.0, 0.001], "1": [0.04, 0.08, 0.001], "2": [0.04, 0.08, 0.001],
    "3": [0.04, 0.08, 0.001], "4": [0.04, 0.08, 0.001], "5": [0.002, 0.003, 0.001]},
    "2": {"0": [0.001, 0.0, 0.001], "1": [0.02, 0.04, 0.001], "2": [0.02, 0.04, 0.001],
    "3": [0.02, 0.04, 0.001], "4": [0.02, 0.04, 0.001], "5": [0.002, 0.003, 0.001]}}}"#;

const SCENARIO: &str = r#"name = "profiled"
[cluster]
nodes = "2 x a2-highgpu-4g"
[model]
name = "small"
hidden = 256
layers = 4
heads = 4
ffn = 1024
vocabulary = 1024
[training]
sequence_length = 128
global_batch = 8
precision = "fp32"
blocking_messages = true
[plan]
data = 8
microbatch_size = 1
[cost]
profiles = [{ device = "A100-40", file = "p.json", interpolate = true }]
"#;

fn read(scenario: &str, profile: &str) -> Result<Loaded, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.json"), profile).expect("written");
    parse("s.toml", scenario, folder.path())
}

#[test]
fn profiles_are_read_and_written_out_again() {
    let loaded = read(SCENARIO, PROFILE).unwrap_or_else(|error| panic!("{error}"));
    let CostChoice::Calibration { profiles, .. } = &loaded.scenario.cost else { panic!("a calibration") };
    let choice = &profiles[0];
    assert_eq!((choice.profile.device.as_str(), choice.profile.source.as_str()), ("a100-sxm4-40gb", "p.json"));
    assert!(choice.profile.interpolate && choice.profile.points.len() == 3);
    assert_eq!(choice.gaps, ["at tensor degree 2 nothing was measured of microbatch 1"]);
    assert!(loaded.scenario.workload.recipe.blocking_messages);
    // The resolved form needs the file no more.
    let resolved = loaded.scenario.to_toml();
    let again = parse("r.toml", &resolved, std::path::Path::new("")).unwrap_or_else(|e| panic!("{e}\n{resolved}"));
    assert_eq!(again.scenario, loaded.scenario);
    // A layer 30 ms, eight of them in one iteration on each device; ends, update and norm beside them.
    let job = crate::job::Job::new(&loaded, None).unwrap_or_else(|error| panic!("{error}"));
    let decided = job.decide(&crate::Context::default()).unwrap_or_else(|error| panic!("{error}"));
    let seconds = decided.prediction.iteration.seconds();
    assert!((0.126 + 0.006..0.126 + 0.014).contains(&seconds), "{seconds}");
}

#[test]
fn faults_of_profiles_are_named_by_file_and_key() {
    fn check(scenario: (&str, &str), profile: (&str, &str), expect: &[&str]) {
        let error = read(&SCENARIO.replacen(scenario.0, scenario.1, 1), &PROFILE.replacen(profile.0, profile.1, 1))
            .and_then(|loaded| crate::job::Job::new(&loaded, None)?.decide(&crate::Context::default()).map(drop))
            .expect_err("a fault");
        let shown = match &error {
            Error::Infeasible { infeasible, .. } => format!("{:?}", infeasible.reasons),
            other => other.to_string(),
        };
        for part in expect {
            assert!(shown.contains(part), "{shown} has not {part}");
        }
    }
    let same = ("", "");
    check(same, ("[0.01, 0.02, 0.001]", "[0.01, -1]"), &["p.json", "1.1.1"]);
    check(
        same,
        ("\"5\": [0.002, 0.003, 0.001]", "\"6\": [0.002, 0.003, 0.001]"),
        &["p.json", "has layer 6, and not 5"],
    );
    check(("A100-40", "A100-60"), same, &["cost.profiles[0].device", "the cluster has no `A100-60`"]);
    check(("p.json", "q.json"), same, &["cost.profiles[0].file", "cannot read"]);
    check(("interpolate", "interpolated"), same, &["interpolated", "interpolate"]);
    check(("layers = 4", "layers = 2"), same, &["p.json has 6 layers", "small has 2"]);
    check(("data = 8", "data = 2\ntensor = 4"), same, &["no tensor degree 4"]);
    check(
        ("data = 8\nmicrobatch_size = 1", "data = 4\ntensor = 2\nmicrobatch_size = 1"),
        same,
        &["no microbatch 1 at tensor degree 2", "one of 4"],
    );
}

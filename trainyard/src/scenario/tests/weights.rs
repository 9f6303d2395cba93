//! Files of weights of the policy `learned`.

use super::*;

const LEARNED: &str = "cluster = \"1 x dgx-a100\"\nmodel = \"gpt2-124m\"\n[training]\nsequence_length = 1024\nglobal_batch = 8\n\
                       [plan]\npolicy = \"learned\"\nbudget = 20\nweights = \"my.weights\"\n";

/// What is said of a scenario beside which a file of weights has this text.
fn found(scenario: &str, text: &str) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("my.weights"), text).expect("a file");
    match parse("s.toml", scenario, folder.path()) {
        Ok(loaded) => Ok(loaded),
        Err(Error::Input(error)) => {
            Err(error.problems.iter().map(|p| error.sources.render(p)).collect::<Vec<_>>().join("\n"))
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn weights_are_read_and_their_faults_have_their_place() {
    let weights = crate::catalog::weights().text();
    let loaded = found(LEARNED, &weights).expect("right weights");
    let PlanChoice::Policy(PolicyName::Learned, keys) = &loaded.scenario.plan else { panic!("learned decides") };
    let (path, _) = keys.weights.as_ref().expect("weights");
    assert!(Path::new(path).is_absolute() && path.ends_with("my.weights"), "{path}");
    assert!(loaded.scenario.to_toml().contains(&format!("weights = \"{path}\"")));
    let planned = crate::plan(&loaded, &crate::Context::default()).expect("a plan");
    assert_eq!(planned.policy, "learned");

    let refused = |scenario: &str, text: &str, needles: &[&str]| {
        let words = found(scenario, text).expect_err("refused");
        assert!(needles.iter().all(|needle| words.contains(needle)), "no {needles:?} in\n{words}");
    };
    refused(LEARNED, "x", &["my.weights:1:1", "ends where the first line should stand", "train-policy"]);
    refused(LEARNED, "tensor = 2\n", &["my.weights:1:1", "holds no weights of a policy"]);
    refused(LEARNED, &weights[..weights.len() / 2], &["my.weights:", "a part of the file is missing"]);
    refused(LEARNED, &weights.replacen("seed ", "seed 1", 1), &["my.weights:", "is damaged", "copy the file again"]);
    refused(&LEARNED.replace("my.weights", "no.weights"), &weights, &["s.toml:9:11", "cannot read", "no.weights"]);
    let other = LEARNED.replace("policy = \"learned\"", "policy = \"mcts\"");
    refused(&other, &weights, &["s.toml:9:11", "is of the policy learned, and mcts decides", "policy = \"learned\""]);
    let written = LEARNED.replace("policy = \"learned\"\nbudget = 20", "tensor = 2");
    refused(&written, &weights, &["s.toml:8:11", "guides a search, and the plan is written"]);
}

/// The weights that come with the program say on what they were trained: nothing that they are scored on.
#[test]
fn the_catalogs_weights_know_nothing_that_is_held_out() {
    let weights = crate::catalog::weights();
    let (taught, held_out) = crate::catalog::families();
    assert_eq!((&weights.origin.nodes, &weights.origin.models), (&taught.node_names(), &taught.model_names()));
    let seen = |name: &String| weights.origin.nodes.contains(name) || weights.origin.models.contains(name);
    assert!(!held_out.node_names().iter().chain(&held_out.model_names()).any(seen));
    assert!(weights.origin.searches > 0 && weights.text().len() <= 200_000);
}

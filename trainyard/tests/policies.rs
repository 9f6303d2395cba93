//! Policies over the catalog: what the rules of thumb find where the search of all uniform plans finds something.

use std::path::Path;

use trainyard::{Context, Error, InitRequest, Loaded, results::PlanReport, scenario};

/// The models of the catalog, by name.
fn models() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../catalog/models");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("models").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let names = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).expect("a file");
        let name = |line: &str| Some(line.strip_prefix("[models.")?.strip_suffix(']')?.trim_matches('"').to_owned());
        text.lines().filter_map(name).collect::<Vec<_>>()
    });
    names.collect()
}

/// What `init` writes for a model on nodes, with more of its request, under a policy.
fn written(model: &str, nodes: &str, sizes: (Option<u32>, Option<u32>), policy: &str) -> Loaded {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = [nodes.to_owned()];
    let (sequence_length, global_batch) = sizes;
    let request =
        InitRequest { model, cluster: &cluster, sequence_length, global_batch, folder: folder.path(), force: false };
    let report = trainyard::init(&request).unwrap_or_else(|error| panic!("{model}: {error}"));
    let text = report.scenario.replace("policy = \"megatron\"", &format!("policy = \"{policy}\""));
    scenario::parse("s.toml", &text, folder.path()).unwrap_or_else(|error| panic!("{model}: {error}"))
}

fn planned(loaded: &Loaded) -> Option<PlanReport> {
    match trainyard::plan(loaded, &Context::default()) {
        Ok(report) => Some(report),
        Err(Error::Infeasible { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// How much slower than the fastest uniform plan the rules' one may be: the search also has zero-bubble schedules and ZeRO-3,
/// tensor parallelism without sequence parallelism, and every degree.
const MOST: f64 = 1.3;
/// And in the mean.
const MEAN: f64 = 1.06;
/// Plans that an expert looks at, at most.
const LOOKS: u64 = 1000;

/// The plans of both, or nothing where the search finds nothing.
fn ratio(model: &str, nodes: &str, sizes: (Option<u32>, Option<u32>)) -> Option<f64> {
    let all = planned(&written(model, nodes, sizes, "exhaustive"))?;
    let rules = planned(&written(model, nodes, sizes, "megatron"));
    let rules =
        rules.unwrap_or_else(|| panic!("{model} on {nodes}: the rules find nothing, there is {}", all.plan.words));
    let looks =
        rules.reasons[0].split_once("fastest of ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(looks.is_some_and(|looks| looks <= LOOKS), "{model} on {nodes}: {:?}", rules.reasons);
    let ratio = rules.prediction.iteration_ms / all.prediction.iteration_ms;
    println!("{ratio:.3} {model} on {nodes}: {} | {}", rules.plan.words, all.plan.words);
    Some(ratio)
}

#[test]
fn rules_of_thumb_find_plans_for_the_catalog() {
    let sensible = |nodes: u32| ["dgx-a100", "dgx-h100", "dgx-h200"].map(|node| format!("{nodes} x {node}"));
    let clusters: Vec<String> =
        sensible(8).into_iter().chain(sensible(64)).chain(["1 x dgx-h100".to_owned()]).collect();
    let cases: Vec<(String, &String)> =
        models().into_iter().flat_map(|model| clusters.iter().map(move |nodes| (model.clone(), nodes))).collect();
    assert!(cases.len() > 400, "{}", cases.len());
    // One in fifteen, over all models, or all where long tests are to be whole, as `.ci/run` has them.
    let every = if std::env::var_os("TRAINYARD_LONG_TESTS").is_some() { 1 } else { 15 };
    let found: Vec<f64> =
        cases.iter().step_by(every).filter_map(|(model, nodes)| ratio(model, nodes, (None, None))).collect();
    let (worst, mean) = (found.iter().copied().fold(0.0, f64::max), found.iter().sum::<f64>() / found.len() as f64);
    println!("{} plans, worst {worst:.3}, mean {mean:.3}", found.len());
    assert!(worst <= MOST && mean <= MEAN && found.len() > cases.len() / every / 2, "{worst} {mean} {}", found.len());
}

#[test]
fn rules_of_thumb_divide_experts_and_long_sequences() {
    let plan = |model: &str, nodes: &str, sizes| {
        let report = planned(&written(model, nodes, sizes, "megatron"));
        report.unwrap_or_else(|| panic!("{model} on {nodes}")).plan
    };
    // Experts inside a node where they fit, and not over tensor ranks.
    for (model, nodes) in
        [("deepseek-v3", "64 x dgx-h200"), ("mixtral-8x7b", "8 x dgx-h100"), ("qwen3-235b-a22b", "64 x dgx-h100")]
    {
        let plan = plan(model, nodes, (None, None));
        assert!(plan.mesh.expert > 1 && plan.mesh.expert_tensor == 1 && plan.zero == 1, "{model}: {}", plan.words);
    }
    // 128 thousand tokens: shared among ranks, each with 4 thousand at least.
    for (model, nodes) in [("llama-3.1-8b", "8 x dgx-h100"), ("llama-3.1-70b", "64 x dgx-h100")] {
        let plan = plan(model, nodes, (Some(131_072), Some(64)));
        assert!((2..=32).contains(&plan.mesh.context), "{model}: {}", plan.words);
        let ratio = ratio(model, nodes, (Some(131_072), Some(64))).expect("a plan");
        assert!(ratio <= MOST, "{model}: {ratio}");
    }
    assert_eq!(plan("llama-3.1-8b", "8 x dgx-h100", (Some(4096), None)).mesh.context, 1);
}

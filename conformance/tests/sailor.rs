//! Plans that others measured, predicted from measured layers; plans to Sailor and back; how long a search takes.
//!
//! The measured plans are read where they lie beside the project, and are not part of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ir::Plan;
use trainyard::scenario::PlanChoice;
use trainyard::{
    Context, ExportTarget, ImportRequest, ImportSource, Loaded, PlansRequest, export, import, scenario, simulate,
    validate_plans,
};
use trainyard_conformance::dice::{Dice, for_each_seed};

/// A file or folder of Sailor's data, if it is there.
#[expect(clippy::print_stderr, reason = "a skipped test names what it misses")]
fn data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/planners/sailor").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

const MODEL: &str = r#"
[model]
name = "opt-350m"
hidden = 1024
layers = 24
heads = 16
ffn = 4096
vocabulary = 50272
norm = "layer-norm"
positions = { learned = { maximum = 2048 } }
mlp = "gelu"
qkv_bias = true
projection_bias = true
mlp_bias = true
tied_head = false

[training]
sequence_length = 2048
global_batch = 1024
precision = "fp32"
attention = "plain"
blocking_messages = true
"#;

/// A scenario of OPT-350M with profiles of its layers, by Sailor's names of devices.
fn scenario_of(cluster: &str, plan: &str, profiles: &[(&str, &Path)]) -> String {
    let each = profiles.iter().map(|(device, path)| format!("{{ device = \"{device}\", file = {path:?} }}"));
    let each: Vec<String> = each.collect();
    format!("name = \"opt\"\n{cluster}\n{MODEL}\n[plan]\n{plan}\n[cost]\nprofiles = [{}]\n", each.join(", "))
}

/// Sailor's own mean error on these plans is 8.9 %; nothing here is fitted to their times.
#[test]
fn measured_plans_are_predicted() {
    let (Some(plans), Some(layers)) = (data("measured"), data("llm_info.json")) else { return };
    let Some(profile) = data("profiles/OPT-350/GH-96/profile.json") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("scenario.toml");
    let text = scenario_of("[cluster]\nnodes = \"32 x gh200-4\"", "policy = \"dynprog\"", &[("GH-96", &profile)]);
    std::fs::write(&path, text).expect("written");
    let request = PlansRequest { scenario: &path, plans: &plans, layers: Some(&layers) };
    let report = validate_plans(&request, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
    let page = report.markdown();
    let (time, memory) = (report.time.expect("times"), report.memory.expect("memory"));
    assert!(report.rows.iter().all(|row| row.predicted_s.is_some()) && time.rows >= 15, "{page}");
    assert!(time.mean <= 0.06 && time.median <= 0.03, "{page}");
    assert!(memory.mean <= 0.03 && memory.worst <= 0.08 && memory.rows >= 15, "{page}");
    // Of one plan the reduction is said to take 86 % of the iteration; its time is in line with others.
    let doubted: Vec<&str> =
        report.rows.iter().filter(|row| !row.reduction_counts).map(|row| row.name.as_str()).collect();
    assert_eq!(doubted.len(), 1, "{page}");
    assert!(doubted[0].ends_with("plan_config_N4_D4") && report.rows.iter().all(|row| row.time_counts), "{page}");
    assert!(report.profiles.iter().any(|note| note.contains("forward of a layer takes 2.38")), "{page}");
}

/// The profile of GPT-Neo on GH200 is that of OPT-350M under another name.
#[test]
fn a_profile_of_another_model_is_refused() {
    let Some(profile) = data("profiles/GPT-Neo-2.7/GH-96/profile.json") else { return };
    let text = scenario_of("[cluster]\nnodes = \"1 x gh200-4\"", "policy = \"dynprog\"", &[("GH-96", &profile)])
        .replace("layers = 24", "layers = 32");
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    let error = trainyard::plan(&loaded, &Context::default()).expect_err("another model").to_string();
    assert!(error.contains("has 26 layers") && error.contains("opt-350m has 32"), "{error}");
}

/// A cluster, the profiles of its devices, and milliseconds.
type Search<'a> = (&'a str, &'a [(&'a str, &'a Path)], u64);

/// How long the search of plans that Sailor can be told may take: its own takes 0.27, 2.0, 18.9 and 12.9 s.
#[test]
fn searches_with_profiles_are_quick() {
    let (Some(a100), Some(v100)) =
        (data("profiles/OPT-350/A100-40/profile.json"), data("profiles/OPT-350/V100-16/profile.json"))
    else {
        return;
    };
    let plan = "policy = \"dynprog\"\nzero = 0\nsequence_parallel = false\nschedule = \"1f1b\"\nrecompute = \"none\"";
    let zones = "[cluster]\nnodes = \"160 x a2-highgpu-4g\"\nfabric = { leaf_nodes = 32, up_link = \"zone\", source = \"a test\" }\n\
         [links.zone]\nbandwidth = \"40Gbps\"\nlatency = \"1ms\"\nefficiency = 1.0\nsource = \"a test\"";
    let (one, both) = ([("A100-40", a100.as_path())], [("A100-40", a100.as_path()), ("V100-16", v100.as_path())]);
    let mixed =
        "[cluster]\nnodes = [{ kind = \"a2-highgpu-4g\", count = 8 }, { kind = \"v100-4-16gb-100g\", count = 24 }]";
    let cases: [Search<'_>; 4] = [
        ("[cluster]\nnodes = \"8 x a2-highgpu-4g\"", &one, 300),
        ("[cluster]\nnodes = \"32 x a2-highgpu-4g\"", &one, 300),
        (mixed, &both, 2000),
        (zones, &one, 10_000),
    ];
    for (cluster, profiles, most) in cases {
        let text = scenario_of(cluster, plan, profiles);
        let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
        let before = Instant::now();
        let report = trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
        let took = before.elapsed();
        assert!(took < Duration::from_millis(most), "{took:?} for {cluster}: {}", report.plan.words);
        // What it found Sailor can be told.
        let written = export(&loaded, ExportTarget::Sailor, &Context::default());
        let written = written.unwrap_or_else(|error| panic!("{error}\n{}", report.plan.words));
        assert!(written.text.contains("\"pipeline_list\""));
    }
}

/// Times of a small model's layers at every degree and microbatch that is asked for.
fn drawn(dice: &mut Dice, layers: u32) -> String {
    let mut seconds = |most: u32| f64::from(1 + dice.within(0, most - 1)) * 1e-4;
    let of = |seconds: &mut dyn FnMut(u32) -> f64, scale: f64| {
        let one = |seconds: &mut dyn FnMut(u32) -> f64| {
            format!("[{:?}, {:?}, {:?}]", seconds(50) * scale, seconds(100) * scale, 1e-4)
        };
        let each: Vec<String> = (0..layers + 2).map(|layer| format!("\"{layer}\": {}", one(seconds))).collect();
        each.join(", ")
    };
    let degrees: Vec<String> = [1, 2, 4]
        .map(|microbatch| {
            let each = [1, 2].map(|tensor| {
                format!("\"{tensor}\": {{{}}}", of(&mut seconds, f64::from(microbatch) * 4.0 / f64::from(tensor)))
            });
            format!("\"{microbatch}\": {{{}}}", each.join(", "))
        })
        .to_vec();
    format!("{{{}}}", degrees.join(", "))
}

fn plan_of(loaded: &Loaded) -> &Plan {
    match &loaded.scenario.plan {
        PlanChoice::Written(plan) => plan,
        PlanChoice::Policy(..) => panic!("a policy"),
    }
}

/// With profiles the closed form is what a simulation gives, and plans come back from Sailor's format as they were.
#[test]
fn plans_with_profiles_are_simulated_as_predicted_and_go_round() {
    for_each_seed(24, |seed| {
        let mut dice = Dice::new(seed);
        let (tensor, pipeline) = (1 << dice.within(0, 1), 1 << dice.within(0, 2));
        let (microbatch, microbatches) = (1 << dice.within(0, 2), 1 + dice.within(0, 5));
        let data = 16 / (tensor * pipeline);
        let blocking = dice.within(0, 1) == 0;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("p.json"), drawn(&mut dice, 8)).expect("written");
        let head = "[model]\nname = \"eight\"\nhidden = 256\nlayers = 8\nheads = 4\nffn = 1024\nvocabulary = 1024\n";
        let text = format!(
            "name = \"s\"\n[cluster]\nnodes = \"4 x gh200-4\"\n{head}[training]\nsequence_length = 128\n\
             global_batch = {}\nprecision = \"fp32\"\nattention = \"plain\"\nblocking_messages = {blocking}\n\
             [plan]\ndata = {data}\ntensor = {tensor}\npipeline = {pipeline}\nmicrobatch_size = {microbatch}\nzero = 0\n\
             overlap_gradients = false\n[cost]\nprofiles = [{{ file = \"p.json\" }}]\n",
            data * microbatch * microbatches
        );
        let loaded = scenario::parse("s.toml", &text, folder.path()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let planned = trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let simulated = simulate(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let (closed, events) = (planned.prediction.iteration_ms, simulated.prediction.iteration_ms);
        assert!((closed / events - 1.0).abs() < 1e-9, "seed {seed}: {closed} against {events} ms\n{text}");

        let report =
            export(&loaded, ExportTarget::Sailor, &Context::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let file = folder.path().join("plan.json");
        std::fs::write(&file, &report.text).expect("written");
        let model = folder.path().join("config.json");
        let config = r#"{"model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8,
            "num_attention_heads": 4, "vocab_size": 1024}"#;
        std::fs::write(&model, config).expect("written");
        let out = folder.path().join("back.toml");
        let request = ImportRequest {
            file: &file,
            from: (seed % 2 == 0).then_some(ImportSource::Sailor),
            model: model.to_str(),
            cluster: &["4 x gh200-4".to_owned()],
            sequence_length: Some(128),
            global_batch: None,
            out: &out,
            force: false,
        };
        import(&request).unwrap_or_else(|e| panic!("{e}\n{}", report.text));
        let back = scenario::load(&out).unwrap_or_else(|e| panic!("{e}"));
        let (mine, theirs) = (plan_of(&loaded), plan_of(&back));
        assert_eq!((mine.data, mine.tensor, &mine.stages), (theirs.data, theirs.tensor, &theirs.stages), "{text}");
        assert_eq!(
            (mine.microbatch_size, mine.microbatches, &mine.placement),
            (theirs.microbatch_size, theirs.microbatches, &theirs.placement),
            "{text}"
        );
        assert!(back.scenario.workload.recipe.blocking_messages);
    });
}

#[test]
fn what_is_missing_of_an_import_is_named_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.json");
    let out = folder.path().join("out.toml");
    let text = r#"{"pipeline_list": [{"num_stages": 1, "layers_per_stage": [[0, 1, 2, 3]],
        "tmp_per_stage": [[[[["A100-40", 4, "z"]], 4]]], "dp": [1]}], "mbs": 2, "gbs": 8}"#;
    std::fs::write(&file, text).expect("written");
    let request = ImportRequest {
        file: &file,
        from: None,
        model: None,
        cluster: &[],
        sequence_length: None,
        global_batch: None,
        out: &out,
        force: false,
    };
    let check = |request: &ImportRequest<'_>, parts: &[&str]| {
        let error = import(request).expect_err("a fault").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    check(&request, &["--model", "--cluster", "--sequence-length"]);
    let (cluster, length) = (["1 x gh200-4".to_owned()], Some(128));
    let named = ImportRequest { model: Some("tiny-llama"), cluster: &cluster, sequence_length: length, ..request };
    check(&named, &["plan.json", "layers_per_stage"]);
    std::fs::write(&file, text.replace("\"mbs\": 2", "\"mbs\": \"two\"")).expect("written");
    check(&named, &["mbs", "sequences of a microbatch"]);
}

//! Scenario files: what is read, and what is said about wrong ones.

use std::path::Path;

use super::*;

mod observed;
mod profiles;
mod weights;

const GOOD: &str = r#"name = "t"
seed = 3
[cluster]
nodes = "2 x dgx-a100"
[model]
name = "gpt2-124m"
[training]
sequence_length = 1024
global_batch = 64
[plan]
tensor = 2
pipeline = 4
"#;

fn read(text: &str) -> Result<Loaded, Error> {
    parse("s.toml", text, Path::new("/nowhere"))
}

fn problems(text: &str) -> Vec<String> {
    match read(text) {
        Ok(_) => Vec::new(),
        Err(Error::Input(error)) => error.problems.iter().map(|p| error.sources.render(p)).collect(),
        Err(other) => panic!("{other}"),
    }
}

/// `GOOD` with `from` replaced by `to` has exactly these problems: each needle is in the problem of its index.
fn check(from: &str, to: &str, expect: &[&[&str]]) {
    assert!(GOOD.contains(from), "{from:?}");
    let found = problems(&GOOD.replacen(from, to, 1));
    assert_eq!(found.len(), expect.len(), "{to:?} gave\n{}", found.join("\n"));
    for (found, needles) in found.iter().zip(expect) {
        for needle in *needles {
            assert!(found.contains(needle), "no {needle:?} in\n{found}");
        }
    }
}

#[test]
fn a_good_scenario_has_no_problem() {
    assert_eq!(problems(GOOD), Vec::<String>::new());
    let loaded = read(GOOD).expect("good");
    assert_eq!(loaded.scenario.cluster.devices(), 16);
    let PlanChoice::Written(plan) = &loaded.scenario.plan else { panic!("a written plan") };
    assert_eq!((plan.data, plan.tensor, plan.pipeline(), plan.microbatches), (2, 2, 4, 32));
    assert_eq!(loaded.scenario.workload.precision, ir::Precision::Bf16);
}

#[test]
fn stages_may_have_tensor_degrees_of_their_own() {
    let text = GOOD.replacen("tensor = 2", "data = 2\ntensor = [4, 2, 1, 1]", 1);
    assert_eq!(problems(&text), Vec::<String>::new());
    let loaded = read(&text).expect("good");
    let PlanChoice::Written(plan) = &loaded.scenario.plan else { panic!("a written plan") };
    assert_eq!((plan.tensors().collect::<Vec<_>>(), plan.tensor, plan.world()), (vec![4, 2, 1, 1], 4, 16));
    let same = read(&loaded.scenario.to_toml()).expect("what was written reads back");
    assert_eq!(same.scenario.plan, loaded.scenario.plan);
    // Alike, they are one degree; without data, replicas take all devices.
    let alike = read(&GOOD.replacen("tensor = 2", "tensor = [2, 2, 2, 2]", 1)).expect("good");
    assert_eq!(alike.scenario.plan, read(GOOD).expect("good").scenario.plan);
    let two = read(&GOOD.replacen("tensor = 2", "tensor = [4, 2, 1, 1]", 1)).expect("good");
    let PlanChoice::Written(plan) = &two.scenario.plan else { panic!("a written plan") };
    assert_eq!((plan.data, plan.world()), (2, 16));
    check("tensor = 2", "tensor = [4, 2]", &[&["plan.tensor: lists 2 stages, and there are 4"]]);
    check("tensor = 2", "tensor = []", &[&["plan.tensor: no stage has any", "one number for all"]]);
    check("tensor = 2", "tensor = [4, 0, 1, 1]", &[&["must be between 1 and"]]);
    check("tensor = 2", "tensor = [4, 2, 2, 1]", &[&["the sum of all stages' tensor degrees = 9 does not divide"]]);
    let policy = "policy = \"exhaustive\"\ntensor = [4, 2, 1, 1]";
    check("tensor = 2", policy, &[&["plan.tensor: [4, 2, 1, 1] is a degree for each stage, and exhaustive has one"]]);
}

#[test]
fn unknown_keys_and_names_have_suggestions() {
    check("tensor = 2", "tensr = 2\ntensor = 2", &[&["s.toml:11:1", "plan.tensr: unknown key", "hint"]]);
    check(
        "pipeline = 4",
        "pipelin = 4",
        &[&["plan.pipelin: unknown key", "did you mean `pipeline`?", "12 | pipelin = 4", "^^^^^^^"]],
    );
    check("dgx-a100", "dgx-a10", &[&["s.toml:4:9", "there is no node `dgx-a10`", "did you mean `dgx-a100`?"]]);
    check("gpt2-124m", "gpt2-124", &[&["there is no model `gpt2-124`", "did you mean `gpt2-124m`?"]]);
    check(
        "[training]",
        "[trainign]",
        &[&["training: is missing"], &["trainign: unknown key", "did you mean `training`?"]],
    );
    check(
        "pipeline = 4",
        "pipeline = 4\nschedule = \"1f2b\"",
        &[&["`1f2b` is none of: 1f1b, gpipe", "did you mean `1f1b`?"]],
    );
}

#[test]
fn units_are_required() {
    let with_link = |bandwidth: &str| {
        format!("tensor = 2\n[emulate.between_nodes]\nlatency = \"5us\"\nbandwidth = {bandwidth}\n[plan]")
    };
    // A table may not be opened twice, so the emulation goes before the plan.
    let check_link = |bandwidth: &str, needles: &[&str]| {
        check("[plan]", &with_link(bandwidth).replacen("tensor = 2\n", "", 1), &[needles])
    };
    check_link("400", &["emulate.between_nodes.bandwidth: needs a unit", "\"400Gbps\""]);
    check_link("\"400\"", &["\"400\" has no unit", "bits per second"]);
    check_link("\"400GB\"", &["is an amount of data, not a data rate", "per second"]);
    check_link("\"-1Gbps\"", &["is negative"]);
    check_link("\"0Gbps\"", &["is zero"]);
    check_link("\"1e999Gbps\"", &["more digits than a data rate can hold"]);
    check_link("true", &["must be a text with a unit, not true or false"]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    check("global_batch = 64", "global_batch = 0", &[&["s.toml:9:16", "must be between 1 and 16777216, not 0"]]);
    check("global_batch = 64", "global_batch = -8", &[&["not -8"]]);
    check("global_batch = 64", "global_batch = 1000000000", &[&["not 1000000000"]]);
    check("global_batch = 64", "global_batch = 99999999999999999999999999999999999999999", &[&["more than 38 digits"]]);
    check("global_batch = 64", "global_batch = 64.5", &[&["must be a whole number, not a number"]]);
    check("2 x dgx-a100", "1000000 x dgx-a100", &[&["8000000 devices are more than the 1048576"]]);
    check("2 x dgx-a100", "0 x dgx-a100", &[&["`0` is not a count"]]);
    check("2 x dgx-a100", "99999999999 x dgx-a100", &[&["`99999999999` is not a count"]]);
    check("tensor = 2", "tensor = 0", &[&["plan.tensor: must be between 1 and"]]);
    check(
        "sequence_length = 1024",
        "sequence_length = 2048",
        &[&["2048 tokens are more than the model's 1024 learned positions"]],
    );
    check("seed = 3", "seed = -1", &[&["seed: must be between 0 and"]]);
}

#[test]
fn contradictions_are_named() {
    check(
        "pipeline = 4",
        "pipeline = 5",
        &[&[
            "12 layers do not divide into 5 equal chunks",
            "pipeline = 4 or pipeline = 6",
            "layers_per_stage = [2, 3, 3, 2, 2]",
        ]],
    );
    check("pipeline = 4", "pipeline = 4\nlayers_per_stage = [6, 6]", &[&["lists 2 stages, and pipeline says 4"]]);
    check("tensor = 2", "tensor = 3", &[&["tensor x pipeline = 12 does not divide the 16 devices"]]);
    check(
        "pipeline = 4",
        "layers_per_stage = [6, 6]\nchunks_per_stage = 2",
        &[&["lists 1 chunks per stage, and chunks_per_stage says 2"]],
    );
    check(
        "pipeline = 4",
        "layers_per_stage = [6, 6]\nschedule = \"interleaved\"",
        &[&["chunks_per_stage: an interleaved schedule needs at least 2"]],
    );
    check(
        "pipeline = 4",
        "policy = \"megatron\"\nrecompute = [\"full\", \"none\"]",
        &[&["lists 2 stages, and nothing says how many there are"]],
    );
    check(
        "[plan]",
        "[cost]\nfile = \"a.toml\"\ncalibration = \"\"\n[plan]",
        &[&["a file and a calibration written out exclude each other"]],
    );
    check("pipeline = 4", "pipeline = 4\nrecompute = [\"full\", \"none\"]", &[&["lists 2 stages, and there are 4"]]);
    check(
        "pipeline = 4",
        "pipeline = 4\nschedule = \"interleaved\"",
        &[&["chunks_per_stage: an interleaved schedule needs at least 2"]],
    );
    check(
        "global_batch = 64",
        "global_batch = 64\nprecision = \"bf17\"",
        &[&["`bf17` is none of", "did you mean `bf16`?"]],
    );
    check(
        "pipeline = 4",
        "pipeline = 4\nlayers_per_stage = [[3], [3], [3, 0], [3]]",
        &[&["has 2 chunks where the first stage has 1"]],
    );
    check("[plan]", "[emulate]\nfactors = [1, 2]\n[plan]", &[&["has 2 factors for 16 devices"]]);
    check(
        "2 x dgx-a100\"",
        "2 x dgx-1v\"\n[cluster.fabric]\noversubscription = 0.5",
        &[&["must be between 1 and 1000, not 0.5"]],
    );
}

#[test]
fn a_calibration_of_another_device_is_refused() {
    let with = |name: &str| {
        let text = include_str!("../../../catalog/calibration/v100.toml")
            .replace("name = \"v100\"", &format!("name = \"{name}\""));
        GOOD.replace("[plan]", &format!("[cost]\ncalibration = \'\'\'\n{text}\n\'\'\'\n[plan]"))
    };
    let found = problems(&with("v100"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("`v100` is of no device of this cluster") && found[0].contains("asks for `a100`"),
        "{found:?}"
    );
    assert_eq!(problems(&with("a100")), Vec::<String>::new());
}

#[test]
fn factors_of_overlap_and_rails_are_read_and_written() {
    let own = "[cost.interference]\ncompute = 1.25\n[cluster.fabric]\nleaf_nodes = 4\nrails = true\n";
    let loaded = parse("s.toml", &format!("{GOOD}\n{own}"), Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    assert!(loaded.scenario.cluster.fabric.rails);
    let CostChoice::Calibration { interference: Some(factors), .. } = &loaded.scenario.cost else { panic!("factors") };
    assert_eq!((factors.compute, factors.communication), (1.25, 1.0));
    let again = parse("r.toml", &loaded.scenario.to_toml(), Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((again.scenario.cluster, again.scenario.cost), (loaded.scenario.cluster, loaded.scenario.cost));
    check("[plan]", "[cost.interference]\ncommunication = 0.5\n[plan]", &[&["must be between 1 and 10, not 0.5"]]);
}

#[test]
fn a_precision_that_a_device_lacks_is_refused() {
    check("2 x dgx-a100\"", "2 x dgx-1v\"", &[]);
    let text =
        GOOD.replace("dgx-a100", "dgx-1v").replace("global_batch = 64", "global_batch = 64\nprecision = \"bf16\"");
    let found = problems(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("v100-sxm2-32gb does not compute in bf16") && found[0].contains("fp32, fp16"),
        "{found:?}"
    );
}

#[test]
fn everything_is_reported_at_once_in_the_order_of_the_file() {
    let text = "sed = 1\n[cluster]\nnodes = \"2 x dgx\"\n[model]\nname = \"gpt5\"\n[training]\nsequence_length = \"x\"\n[plan]\ntensor = -1\n[cost]\nsource = 5\n";
    let found = problems(text);
    let lines: Vec<&str> = found.iter().map(|p| p.split(':').nth(1).expect("a line")).collect();
    assert_eq!(lines, ["1", "3", "5", "6", "7", "9", "11"], "{found:#?}");
}

#[test]
fn broken_syntax_has_its_place() {
    check("seed = 3", "seed = = 3", &[&["s.toml:2:", "not TOML"]]);
    check("[model]", "[cluster]", &[&["s.toml:5:", "duplicate key"], &["cluster.name: unknown key"]]);
    assert!(!problems("\u{0}\u{1}[[[").is_empty());
    assert!(problems("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")[0].contains("not TOML"));
    assert!(!problems("").is_empty());
}

#[test]
fn files_that_are_not_there_are_named() {
    check("name = \"gpt2-124m\"", "config = \"config.json\"", &[&["model.config: cannot read /nowhere/config.json"]]);
    check("pipeline = 4", "schedule = { grid = \"g.csv\" }", &[&["cannot read /nowhere/g.csv"]]);
    check("[plan]", "[data]\nfile = \"text.txt\"\n[plan]", &[&["cannot read /nowhere/text.txt"]]);
    check("seed = 3", "seed = 3\ncatalogs = [\"c.toml\"]", &[&["cannot read /nowhere/c.toml"]]);
}

#[test]
fn grids_are_read_and_wrong_cells_named() {
    let grid = |cells: &str| format!("pipeline = 2\nschedule = {{ cells = \"\"\"{cells}\"\"\" }}");
    check("pipeline = 4", &grid("0F0,0B0\n1F0,1B0\n"), &[]);
    check("pipeline = 4", &grid("0F0,0X0\n1F0,1B0\n"), &[&["plan.schedule", "line 1, cell 2", "0X0"]]);
    assert_eq!(super::plan::wrong_cells("0F0, zz,,0B0\nq,1F0\n"), [5..7, 13..14]);
}

#[test]
fn the_resolved_form_reads_back() {
    let unlike = "name = \"u\"\ncluster = [\"2 x cpu-2\", \"1 x cpu-4\"]\nmodel = \"tiny-gpt\"\n[training]\nsequence_length = 32\nglobal_batch = 8\n\
        [emulate]\nfactors = [6, 6, 6, 9.5, 1, 2, 2, 2]\nbetween_nodes = { bandwidth = \"1Gbps\", latency = \"100us\" }\n\
        [cost]\nsource = \"pass-table\"\nstages = [{ forward = \"1.5ms\", backward_input = \"2ms\", backward_weight = \"1ns\" }]\n";
    let interleaved = GOOD.replace(
        "pipeline = 4",
        "pipeline = 2\nchunks_per_stage = 3\nschedule = \"interleaved\"\nrecompute = [\"none\", \"full\"]\nzero = 1\n",
    );
    let grid = GOOD.replace("pipeline = 4", "data = 8\nschedule = { cells = \"0F0,0B0\" }\nmicrobatches = 1\n");
    let policy = GOOD.replace(
        "tensor = 2",
        "policy = \"megatron\"\nmicrobatch_size = 2\nschedule = \"interleaved\"\nchunks_per_stage = 2",
    );
    let exhaustive = policy.replace("megatron", "exhaustive");
    for text in [GOOD, unlike, &interleaved, &grid, &policy, &exhaustive] {
        let first = read(text).unwrap_or_else(|e| panic!("{e}\n{text}")).scenario;
        let written = first.to_toml();
        let second = read(&written).unwrap_or_else(|e| panic!("{e}\n{written}")).scenario;
        assert_eq!(first, second, "{written}");
        assert_eq!(written, second.to_toml());
    }
}

/// A model of experts, latent attention and windows, on four axes, with every switch away from its default.
const RICH: &str = r#"name = "rich"
cluster = "4 x dgx-a100"
[model]
name = "mixture"
hidden = 256
layers = 6
heads = 4
ffn = 512
vocabulary = 1000
window = 64
query_key_norm = "width"
gated_attention = true
attention_sinks = true
branch_norms = "both"
parallel_branches = "own-norms"
exact_gelu = true
head_bias = true
plain_norms = true
mlp = "ge-glu"
latent = { kv_rank = 32, plain_head_dim = 16, rotary_head_dim = 8, value_head_dim = 16 }
experts = { count = 8, active = 2, ffn = 128, shared_ffn = 64, shared_gate = true, bias = true, router_bias = true }
pattern = [{ layers = 2, mixer = "window" }, { layers = 4, mixer = "latent", feed_forward = "experts" }]
[training]
sequence_length = 512
global_batch = 64
precision = "bf16"
attention = "plain"
fused_normalisation = false
fused_softmax = false
sharded_loss = false
fused_loss = false
logits = "freed"
fused_activation = false
expandable_segments = true
gradients = "half"
reduced_gradients = "half"
early_stop_recompute = true
scattered_messages = true
deduplicated_dispatch = true
cuda_graphs = true
document_length = 128
expert_imbalance = 1.25
input_tokens_per_second = 1e5
stack = "nvidia-te"
release = "25.01"
[plan]
tensor = 2
pipeline = 2
context = 2
context_method = "all-to-all"
expert = 4
expert_tensor = 1
recompute = ["full", "selective"]
recompute_layers = [2, "all"]
zero = 3
shard = 4
prefetch = true
overlap_parameters = true
overlap_tensor = true
overlap_experts = true
offload = ["optimizer", "activations"]
"#;

#[test]
fn every_axis_and_switch_is_read_and_reads_back() {
    let first = read(RICH).unwrap_or_else(|e| panic!("{e}")).scenario;
    let second = read(&first.to_toml()).unwrap_or_else(|e| panic!("{e}\n{}", first.to_toml())).scenario;
    assert_eq!(first, second);
    let PlanChoice::Written(plan) = &first.plan else { panic!("a written plan") };
    // 32 devices over tensor 2, context 2 and pipeline 2.
    assert_eq!((plan.data, plan.mesh.context, plan.world()), (4, 2, 32));
    assert_eq!((plan.mesh.expert, plan.zero, plan.sharing.shard), (4, ir::ZeroStage::Zero3, Some(4)));
    let recomputed: Vec<_> = plan.stages.iter().map(|s| (s.recompute, s.recompute_layers)).collect();
    assert_eq!(recomputed, [(ir::Recompute::Full, Some(2)), (ir::Recompute::Selective, None)]);
    assert!(plan.sharing.offload_activations && plan.sharing.offload_optimizer && plan.sharing.prefetch);
    let experts = first.model.variants.experts.expect("experts");
    // Experts are of the model's kind unless they say their own.
    assert_eq!((experts.mlp, experts.shared_ffn), (ir::MlpKind::GeGlu, 64));
    assert_eq!(first.workload.recipe.document_length, Some(128));
    assert_eq!(first.stack.release.as_deref(), Some("25.01"));
}

#[test]
fn searched_schedules_divided_vocabularies_and_parameters_on_the_host_read_back() {
    let own = "{ zero_bubble = \"2p\", forward = 5, backward_input = 4, backward_weight = 3, message = 1, kept = 400 }";
    let profile =
        ir::ZeroBubble { memory: 2, forward: 5, backward_input: 4, backward_weight: 3, message: 1, kept: 400 };
    for (written, expect) in [(own, profile), ("\"zero-bubble-1p\"", ir::ZeroBubble::unprofiled(1))] {
        let with =
            format!("offload = [\"optimizer\", \"parameters\"]\nvocabulary = \"one-barrier\"\nschedule = {written}");
        let text = RICH.replacen("offload = [\"optimizer\", \"activations\"]", &with, 1);
        let first = read(&text).unwrap_or_else(|e| panic!("{e}")).scenario;
        let second = read(&first.to_toml()).unwrap_or_else(|e| panic!("{e}\n{}", first.to_toml())).scenario;
        assert_eq!(first, second);
        let PlanChoice::Written(plan) = &first.plan else { panic!("a written plan") };
        assert_eq!(plan.schedule, ir::Schedule::ZeroBubble(expect));
        assert_eq!(plan.sharing.vocabulary, ir::VocabularyDivision::OneBarrier);
        assert!(plan.sharing.offload_parameters && !plan.sharing.offload_activations);
    }
    check_rich(
        "zero = 3",
        "zero = 3\nschedule = { zero_bubble = \"3p\" }",
        &["plan.schedule.zero_bubble", "none of: 1p, 2p"],
    );
}

/// `RICH` with `from` replaced has one problem, with these needles in it.
fn check_rich(from: &str, to: &str, needles: &[&str]) {
    assert!(RICH.contains(from), "{from:?}");
    let found = problems(&RICH.replacen(from, to, 1));
    assert_eq!(found.len(), 1, "{to:?} gave\n{}", found.join("\n"));
    assert!(needles.iter().all(|needle| found[0].contains(needle)), "no {needles:?} in\n{}", found[0]);
}

#[test]
fn what_is_wrong_with_an_axis_or_a_switch_has_its_place() {
    check_rich("zero = 3", "zero = 4", &["s.toml:55:8", "must be between 0 and 3, not 4"]);
    check_rich("shard = 4", "shard = \"al\"", &["plan.shard", "did you mean `all`?"]);
    check_rich("context_method = \"all-to-all\"", "context_method = \"rings\"", &["did you mean `ring`?"]);
    check_rich(
        "[\"optimizer\", \"activations\"]",
        "[\"optimiser\"]",
        &["plan.offload[0]", "did you mean `optimizer`?"],
    );
    check_rich("prefetch = true", "prefech = true", &["plan.prefech: unknown key", "did you mean `prefetch`?"]);
    check_rich("shared_gate = true", "shared_gat = true", &["model.experts.shared_gat", "did you mean `shared_gate`?"]);
    check_rich("active = 2", "active = 9", &["model.experts.active", "9 of 8 experts"]);
    check_rich("mixer = \"latent\"", "mixer = \"latnet\"", &["model.pattern[1].mixer", "did you mean `latent`?"]);
    check_rich("layers = 4, mixer", "layers = 5, mixer", &["model.pattern", "7 layers, the model 6"]);
    check_rich("document_length = 128", "document_length = 100", &["do not fill sequences of 512", "nearest is 64"]);
    check_rich("expert_imbalance = 1.25", "expert_imbalance = 0.5", &["must be between 1 and"]);
    check_rich("gradients = \"half\"", "gradients = \"bf16\"", &["training.gradients", "none of: fp32, half"]);
    check_rich("[2, \"all\"]", "[2, 1, 1]", &["plan.recompute_layers", "lists 3 stages, and there are 2"]);
    check_rich("context = 2", "context = 3", &["tensor x context x pipeline = 12 does not divide the 32 devices"]);
}

#[test]
fn emulation_gives_each_device_its_slowdown() {
    let text = "cluster = [\"2 x cpu-2\"]\nmodel = \"tiny-gpt\"\ntraining = { sequence_length = 32, global_batch = 8 }\n[emulate]\nfactors = [6, 6, 6, 9.5]\n";
    let cluster = read(text).unwrap_or_else(|e| panic!("{e}")).scenario.cluster;
    let slowdown = |d: u32| cluster.device_kind(cluster.place(ir::DeviceId::new(d)).device_kind).slowdown;
    let found: Vec<f64> = (0..4).map(slowdown).collect();
    assert_eq!(found, [6.0, 6.0, 6.0, 9.5]);
    assert_eq!((cluster.nodes(), cluster.node_kinds.len(), cluster.device_kinds.len()), (2, 2, 2));
}

/// BF16 where it is faster: on a CPU core it is emulated, and has to be asked for.
#[test]
fn precision_is_the_fastest_where_none_is_written() {
    let case = |nodes: &str, written: &str| {
        let text = format!(
            "cluster = [\"{nodes}\"]\nmodel = \"tiny-gpt\"\ntraining = {{ sequence_length = 32, global_batch = 8{written} }}\n"
        );
        read(&text).unwrap_or_else(|e| panic!("{e}")).scenario.workload.precision
    };
    assert_eq!(case("1 x cpu-2", ""), ir::Precision::Fp32);
    assert_eq!(case("1 x cpu-2", ", precision = \"bf16\""), ir::Precision::Bf16);
    assert_eq!(case("1 x dgx-a100", ""), ir::Precision::Bf16);
    assert_eq!(case("1 x dgx-1v", ""), ir::Precision::Fp16);
}

/// Mutations of good scenarios never panic, and whatever is accepted reads back from its resolved form.
#[test]
fn mutated_scenarios_never_panic() {
    const SEED: u64 = 0x7261_696c;
    let mut state = SEED;
    let mut draw = |below: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below as u64).expect("below")
    };
    let scraps = [
        "=",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        ",",
        ".",
        "\n",
        "-",
        "0",
        "9",
        "99999999999",
        "1e308",
        "nan",
        "inf",
        "true",
        " x ",
        "é",
        "\u{0}",
        "[plan]",
        "[emulate]\nfactors = 6\n",
        "schedule = \"gpipe\"\n",
        "\"\"\"",
        "data = 0\n",
        "recompute = []\n",
        "layers_per_stage = []\n",
        "layers_per_stage = [[]]\n",
        "placement = [1]\n",
        "pipeline = 4096\n",
        "chunks_per_stage = 4096\n",
        "tensor = 1048576\n",
    ];
    let mut accepted = 0;
    for round in 0..3000 {
        let mut text: Vec<char> = GOOD.chars().collect();
        for _ in 0..=draw(3) {
            let at = draw(text.len() + 1);
            match draw(4) {
                0 => drop(text.splice(at..at, scraps[draw(scraps.len())].chars())),
                1 => drop(text.drain(at..(at + draw(12)).min(text.len()))),
                2 if at < text.len() => text[at] = char::from(b' ' + u8::try_from(draw(95)).expect("ASCII")),
                _ => text.truncate(text.len() - draw(4).min(text.len())),
            }
        }
        let text: String = text.into_iter().collect();
        if let Ok(loaded) = read(&text) {
            accepted += 1;
            let written = loaded.scenario.to_toml();
            let again =
                read(&written).unwrap_or_else(|e| panic!("seed {SEED} round {round}: {e}\n{text}\n---\n{written}"));
            assert_eq!(again.scenario, loaded.scenario, "seed {SEED} round {round}:\n{text}");
        }
    }
    assert!(
        accepted > 100,
        "only {accepted} of 3000 mutations were accepted: the mutations are too wild to test resolving"
    );
}

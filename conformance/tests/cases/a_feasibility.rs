//! A: configurations that cannot be carried out are refused with every reason and the nearest legal value.

use ir::Model;

use super::{Case, dense};

const TRAINING: &str = "sequence_length = 2048\nglobal_batch = 64";

/// U01, U03: layers that do not divide are neither dropped nor invented.
#[test]
fn layers_over_stages() {
    let check = |layers: u32, plan: &str, needles: &[&str]| {
        Case { nodes: "2 x dgx-a100", model: &dense(layers), training: TRAINING, plan }.refused(needles);
    };
    check(30, "pipeline = 4", &["30 layers do not divide into 4 equal chunks"]);
    check(40, "pipeline = 16", &["40 layers do not divide into 16 equal chunks"]);
    check(61, "pipeline = 2\nchunks_per_stage = 2", &["61 layers do not divide into 4 equal chunks"]);
    check(
        48,
        "pipeline = 2\nlayers_per_stage = [11, 13]",
        &["11+13 = 24 layers and the model has 48", "24 would be lost"],
    );
    check(8, "pipeline = 4\nlayers_per_stage = [2, 2, 2, 3]", &["2+2+2+3 = 9 layers and the model has 8: 1 too many"]);
    let uneven = "pipeline = 4\nlayers_per_stage = [7, 8, 8, 7]";
    let planned = Case { nodes: "2 x dgx-a100", model: &dense(30), training: TRAINING, plan: uneven }.planned();
    assert_eq!(planned.plan.layers_per_stage.concat().iter().sum::<u32>(), 30);
}

/// U03: of ways to use 16 devices for 40 layers, 16 stages are the worst: the fullest has 3 layers of 2.5.
#[test]
fn deep_pipelines_of_few_layers_lose() {
    for (layers, deep, even) in [(40, [2, 3].repeat(8), 8), (24, [1, 2].repeat(8), 8)] {
        let time = |plan: &str| {
            let case = Case { nodes: "2 x dgx-a100", model: &dense(layers), training: TRAINING, plan };
            case.planned().prediction.iteration_ms
        };
        let deep = time(&format!("pipeline = 16\nlayers_per_stage = {deep:?}"));
        assert!(time(&format!("pipeline = {even}")) < deep, "{layers}");
    }
}

/// U05: microbatches of an interleaved schedule, and whose rule it is. What runs in PyTorch, Megatron-LM refuses.
#[test]
fn microbatches_of_interleaved_schedules() {
    for (microbatches, pipeline, here, megatron) in
        [(8, 4, true, true), (10, 4, true, false), (3, 4, true, false), (63, 9, true, true), (11, 4, false, false)]
    {
        let training = format!("sequence_length = 512\nglobal_batch = {microbatches}");
        let plan = format!("data = 1\npipeline = {pipeline}\nchunks_per_stage = 2\nmicrobatch_size = 1");
        let case = Case { nodes: "2 x dgx-a100", model: &dense(36), training: &training, plan: &plan };
        let layers = Case { model: &dense(pipeline * 4), ..case };
        if here {
            let report = layers.planned();
            let refused = &report.runtimes["Megatron-LM"];
            let rule = refused.iter().any(|why| why.contains("when interleaved"));
            assert_eq!(rule, !megatron, "{microbatches} over {pipeline}: {refused:?}");
            assert!(report.runtimes["DeepSpeed"].iter().any(|why| why.contains("one chunk a stage")));
        } else {
            layers.refused(&["microbatches", "PyTorch"]);
        }
    }
}

/// U09, U10: the global batch is data x microbatch x microbatches; with what numbers it would be.
#[test]
fn the_batch_identity() {
    let check = |nodes: &str, batch: u32, plan: &str, needles: &[&str]| {
        let training = format!("sequence_length = 1024\nglobal_batch = {batch}");
        Case { nodes, model: &dense(8), training: &training, plan }.refused(needles);
    };
    // 1,472 GPUs, tensor 8, pipeline 8: 23 replicas of 32 sequences.
    check("184 x dgx-a100", 32, "tensor = 8\npipeline = 8", &["32", "23", "a global batch of 23 or 46"]);
    check(
        "1 x dgx-a100",
        8,
        "data = 2\npipeline = 4\nmicrobatch_size = 1\nmicrobatches = 1",
        &["8 is not data 2 x microbatch_size 1 x microbatches 1 = 2"],
    );
    check(
        "2 x dgx-a100",
        256,
        "data = 7\nmicrobatch_size = 2\nmicrobatches = 18",
        &["256 is not data 7 x microbatch_size 2 x microbatches 18 = 252"],
    );
    check(
        "1 x dgx-a100",
        64,
        "data = 8\nmicrobatch_size = 4\nmicrobatches = 1",
        &["64 is not data 8 x microbatch_size 4 x microbatches 1 = 32", "use 2 microbatches"],
    );
    check("1 x dgx-a100", 30, "data = 8", &["30", "nearest legal plans"]);
}

/// U11: key and value heads fewer than tensor ranks, or not a multiple of them.
#[test]
fn key_and_value_heads() {
    let check = |model: &str, tensor: u32, needles: &[&str]| {
        let plan = format!("tensor = {tensor}");
        Case { nodes: "2 x dgx-h100", model, training: TRAINING, plan: &plan }.refused(needles);
    };
    check("phi-4", 4, &["10 (key and value heads)", "tensor can be 1, 2, 5, 10"]);
    check("phi-4", 8, &["10 (key and value heads)", "tensor can be 1, 2, 5, 10"]);
    check("qwen3-30b-a3b", 8, &["4 (key and value heads)", "tensor can be 1, 2, 4"]);
    check("llama-3.1-8b", 16, &["8 (key and value heads)", "tensor can be 1, 2, 4, 8"]);
    let two = dense(8).replace("heads = 16", "heads = 16\nkv_heads = 2");
    check(&two, 4, &["2 (key and value heads)", "tensor can be 1, 2"]);
}

/// U13: the experts' mesh has its own product, with the expert-tensor degree in it.
#[test]
fn the_mesh_of_experts() {
    let check = |nodes: &str, plan: &str, needles: &[&str]| {
        Case { nodes, model: "qwen3-30b-a3b", training: TRAINING, plan }.refused(needles);
    };
    // As Megatron-LM resolves it where the expert-tensor degree is not written.
    check(
        "1 x hgx-h100-4",
        "tensor = 4\nsequence_parallel = true\nexpert = 4\nexpert_tensor = 4",
        &["expert 4 x expert_tensor 4 = 16", "4 ranks of a stage"],
    );
    check(
        "1 x dgx-h100",
        "tensor = 2\npipeline = 2\nsequence_parallel = true\nexpert = 8",
        &["expert 8", "4 ranks of a stage"],
    );
    check("1 x dgx-h100", "expert = 3", &["128 experts do not divide over 3 ranks", "expert can be 1, 2, 4, 8"]);
    check("1 x dgx-h100", "tensor = 4\nexpert = 4\nsequence_parallel = false", &["sequence_parallel"]);
    Case { nodes: "1 x dgx-h100", model: &dense(8), training: TRAINING, plan: "expert = 4" }
        .refused(&["has no experts"]);
}

/// U14: the vocabulary is padded once, to a multiple of divisor x tensor; the model's size is that of the unpadded one.
#[test]
fn vocabularies_are_padded_once() {
    for (vocabulary, divisor, tensor, expect) in [
        (50_257, 128, 8, 51_200),
        (32_003, 128, 2, 32_256),
        (128_256, 128, 8, 129_024),
        (129_280, 3_232, 1, 129_280),
        (65_535, 1, 2, 65_536),
        (151_936, 128, 1, 151_936),
    ] {
        let model = Model { vocabulary, ..small() };
        assert_eq!(model.padded_vocabulary(divisor, tensor), expect, "{vocabulary}");
        assert_eq!(model.parameters() - small().parameters(), u64::from(vocabulary - small().vocabulary) * 2 * 64);
    }
}

/// Parameters of its own embedding and head for each word.
fn small() -> Model {
    let text = dense(2).replace("hidden = 1024", "hidden = 64").replace("heads = 16", "heads = 4");
    let case = Case { nodes: "1 x dgx-a100", model: &text, training: TRAINING, plan: "" };
    trainyard::scenario::parse("s.toml", &case.text(), std::path::Path::new("")).expect("sound").scenario.model
}

/// U15: tokens of a microbatch over tensor ranks, tokens of a sequence over context ranks.
#[test]
fn sequences_over_ranks() {
    let check = |length: u32, plan: &str, needles: &[&str]| {
        let training = format!("sequence_length = {length}\nglobal_batch = 16");
        Case { nodes: "2 x dgx-h100", model: &dense(8), training: &training, plan }.refused(needles);
    };
    check(4090, "tensor = 4\nsequence_parallel = true", &["4090 tokens do not divide by tensor 4", "4092"]);
    check(1023, "tensor = 2\nsequence_parallel = true", &["1023 tokens do not divide by tensor 2", "1024"]);
    check(131_000, "context = 16", &["131000 does not divide into 32 parts for context 16", "131008"]);
    check(4100, "context = 8", &["4100 does not divide into 16 parts for context 8", "4112"]);
    let good = "sequence_length = 131072\nglobal_batch = 16";
    Case { nodes: "2 x dgx-h100", model: &dense(8), training: good, plan: "context = 8\nrecompute = \"full\"" }
        .planned();
}

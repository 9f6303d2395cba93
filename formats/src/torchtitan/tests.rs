//! Configurations as people have them, what is wrong with others, and the way back.

use std::path::Path;

use ir::{ContextMethod, Model, Precision, Problem, Recompute, Schedule, Vee, VeeMemory, ZeroStage};

use super::{overrides, read};
use crate::testing::skipped;
use crate::text::testing::mutate;
use crate::training::{self, Asked, Divided, ModelGiven, ModelSource, Tool, Training};

/// Hybrid sharding, an interleaved pipeline and FP8.
const LARGE: &str = include_str!("tests/llama3_70b.toml");
/// Older spellings, experts and shared sequences.
const EXPERTS: &str = include_str!("tests/experts_2024.toml");

fn words(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn good(text: &str) -> Training {
    training::read(text, "train.toml", None, ModelGiven::No).unwrap_or_else(|problems| panic!("{}", words(&problems)))
}

/// A model of Llama's kind with so many layers.
fn model(layers: u32, experts: bool) -> Model {
    let text = format!(
        r#"{{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": {layers},
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}}"#
    );
    let mut model = crate::hugging_face::read(&text, "m.json").expect("a model");
    if experts {
        let text = r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 27,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
            "num_experts_per_tok": 2}"#;
        model = crate::hugging_face::read(text, "m.json").expect("a model");
    }
    model
}

fn asked(devices: u64) -> Asked {
    Asked { devices, sequence_length: None, global_batch: None }
}

#[test]
fn a_configuration_is_read() {
    let training = good(LARGE);
    assert_eq!((training.tool, training.devices), (Tool::Torchtitan, Some(256)));
    assert_eq!(training.model, ModelSource::Catalog("llama-3.1-70b"));
    let Divided { workload, plan, .. } = training.divide(&model(80, false), asked(256)).expect("a division");
    assert_eq!((workload.precision, workload.global_batch, workload.sequence_length), (Precision::Fp8, 128, 8192));
    assert!(workload.recipe.fused_normalisation && workload.recipe.fused_loss);
    assert_eq!((plan.data, plan.tensor, plan.pipeline(), plan.sharing.shard), (16, 4, 4, Some(8)));
    assert_eq!((plan.zero, plan.sequence_parallel, plan.sharing.overlap_tensor), (ZeroStage::Zero2, true, true));
    assert_eq!((plan.microbatch_size, plan.microbatches, plan.chunks_per_stage()), (2, 4, 2));
    // 82 parts over eight stages: the first two have eleven, the embedding and the head being one each.
    let layers: Vec<_> = plan.stages.iter().map(|stage| stage.layers.clone()).collect();
    assert_eq!(layers, [[10, 10], [11, 10], [10, 10], [10, 9]]);
    assert_eq!(plan.stages[0].recompute, Recompute::Operations);
    let report = &training.report;
    assert!(
        report.read.iter().any(|one| one.key == "training.seq_len" && one.value == "8192" && one.line == 26),
        "{report:?}"
    );
    assert!(report.ignored.iter().any(|one| one.key == "training.dataset"), "{report:?}");
    let assumed = report.assumed.iter().find(|one| one.name == "optimizer.beta2").expect("it is not written");
    assert_eq!((assumed.value.as_str(), assumed.source.as_str()), ("0.95", "torchtitan's default"));
}

#[test]
fn older_spellings_are_read() {
    let training = good(EXPERTS);
    assert_eq!((training.model.clone(), training.devices), (ModelSource::Catalog("deepseek-v2-lite"), None));
    let Divided { workload, plan, .. } = training.divide(&model(27, true), asked(32)).expect("a division");
    assert_eq!((plan.data, plan.mesh.context, plan.mesh.expert, plan.zero), (16, 2, 8, ZeroStage::Zero3));
    assert_eq!(plan.mesh.context_method, ContextMethod::AllGather);
    assert_eq!((workload.global_batch, workload.optimizer.warmup_iterations), (64, 20));
    let message = words(&training.divide(&model(27, true), asked(7)).expect_err("seven"));
    assert!(message.contains("6 or 8 devices"), "{message}");
}

/// A good configuration with these lines more, and what is wrong then.
fn check(more: &str, expect: &[&str]) {
    let text = format!("[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = 4096\n{more}\n");
    let result = training::read(&text, "t.toml", None, ModelGiven::No)
        .and_then(|training| training.divide(&model(32, false), asked(16)).map(drop));
    match result {
        Ok(()) => assert!(expect.is_empty(), "{more}"),
        Err(problems) => {
            let found = words(&problems);
            assert_eq!(problems.len(), expect.len(), "{more}:\n{found}");
            expect.iter().for_each(|part| assert!(found.contains(part), "no {part:?} in\n{found}"));
            let placed = problems.iter().filter(|problem| problem.span.is_some()).count();
            assert_eq!(placed, problems.len(), "{problems:?}");
        }
    }
}

#[test]
fn faults_are_told_by_name_and_place() {
    check("", &[]);
    check("dataset = \"c4\"\n[checkpoint]\nenable = true", &[]);
    check("local_batch_siz = 4", &["did you mean `local_batch_size`?"]);
    check("tensor_parallel_degre = 4", &["did you mean `tensor_parallel_degree`?"]);
    check("[parallelism]\nseq_len = 4", &["did you mean `training.seq_len`?"]);
    check("steps = \"many\"", &["is many, not a number"]);
    check("steps = 0", &["a whole number from 1 on"]);
    check("steps = 1.5", &["is 1.5"]);
    check("batch_size = 2\nlocal_batch_size = 4", &["is 2, and training.local_batch_size is 4"]);
    check("batch_size = 4\nlocal_batch_size = 4", &[]);
    check("global_batch_size = 100", &["the nearest is 128"]);
    check("[parallelism]\ntensor_parallel_degree = 3", &["the nearest are 15 or 18 devices"]);
    check("[parallelism]\ndata_parallel_shard_degree = 4", &["degrees multiply to 4"]);
    check(
        "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = \"1F1\"",
        &["did you mean `1F1B`?"],
    );
    check(
        "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = \"InterleavedZeroBubble\"",
        &["InterleavedZeroBubble is not modelled (ZBVZeroBubble or Interleaved1F1B)"],
    );
    check(
        "local_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 3",
        &["a divisor of 8"],
    );
    check(
        "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_split_points = [\"layers.8\"]",
        &["2 stages do not divide over 4 ranks"],
    );
    check("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = [\"layers.20\"]", &[]);
    check(
        "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = [\"layers.40\"]",
        &["behind the last of 32 layers"],
    );
    check(
        "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_first_stage_less_layers = 4000000000\npipeline_parallel_layers_per_stage = 1",
        &["do not divide into"],
    );
    check("global_batch_size = 256\n[parallelism]\npipeline_parallel_degree = 2", &["empties 4 times"]);
    check("[activation_checkpoint]\nmode = \"memory_budget\"", &["within a budget is not modelled"]);
    check("[activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"ops\"", &["`ops` is not known"]);
    check("[fault_tolerance]\nenable = true", &["replicas that come and go"]);
    check("[fault_tolerance]\nenable = false", &[]);
    check("[nonsense]\nx = 1\ny = 2", &["nonsense.x", "nonsense.y"]);
    check("[optimizer]\nname = \"Muon\"\nbeta1 = 1.0", &["`Muon` is not known here"]);
    check("[optimizer]\nbeta1 = 1.0", &["optimizer.beta1: 1 is not possible"]);
    check("steps = 3\nsteps = 4", &["is not TOML"]);
}

#[test]
fn flavours_are_known_or_named() {
    let read = |text: &str, given| training::read(text, "t.toml", Some(Tool::Torchtitan), given);
    let message = words(&read("[model]\nflavor = \"80B\"\n", ModelGiven::No).expect_err("none"));
    assert!(message.contains("one of 8B, 70B, 405B") && message.contains("--model"), "{message}");
    let message = words(&read("[model]\nname = \"llama\"\n", ModelGiven::No).expect_err("none"));
    assert!(message.contains("did you mean `llama"), "{message}");
    assert_eq!(
        read("[model]\nflavor = \"80B\"\n", ModelGiven::Yes).expect("a model is given").model,
        ModelSource::Given
    );
}

#[test]
fn the_way_back_gives_the_same_values() {
    for (text, model, devices) in [(LARGE, model(80, false), 256), (EXPERTS, model(27, true), 32)] {
        let Divided { workload, plan, .. } = good(text).divide(&model, asked(devices)).expect("a division");
        let written = overrides(&model, Some(("llama3", "8B")), &workload, &plan);
        let written = written.unwrap_or_else(|problems| panic!("{}", words(&problems)));
        let again =
            good(&written).divide(&model, asked(devices)).unwrap_or_else(|p| panic!("{}\n{written}", words(&p)));
        assert_eq!((again.workload, again.plan), (workload, plan), "{written}");
    }
}

/// Layers lie down the pipeline and up again: the last part of the model is the first position's second chunk.
#[test]
fn orders_down_and_up_again_place_layers_so() {
    let model = model(80, false);
    for (name, schedule) in
        [("ZBVZeroBubble", Schedule::Vee(Vee::unprofiled(VeeMemory::Full))), ("DualPipeV", Schedule::DualPipeV)]
    {
        let text = LARGE.replace("Interleaved1F1B", name);
        let Divided { workload, plan, .. } = good(&text).divide(&model, asked(256)).expect("a division");
        assert_eq!(plan.schedule, schedule);
        let layers: Vec<_> = plan.stages.iter().map(|stage| stage.layers.clone()).collect();
        assert_eq!(layers, [[10, 9], [11, 10], [10, 10], [10, 10]]);
        let written = overrides(&model, Some(("llama3", "8B")), &workload, &plan).expect("it has this order");
        assert!(written.contains(&format!("\"{name}\"")), "{written}");
        let again = good(&written).divide(&model, asked(256)).expect("a division");
        assert_eq!((again.workload, again.plan), (workload, plan), "{written}");
    }
}

#[test]
fn what_torchtitan_cannot_do_is_refused_by_name() {
    let model = model(80, false);
    let Divided { mut workload, mut plan, .. } = good(LARGE).divide(&model, asked(256)).expect("a division");
    plan.schedule = Schedule::ZeroBubbleH1;
    plan.sharing.offload_activations = true;
    plan.stages[1].recompute = Recompute::Selective;
    plan.zero = ZeroStage::Zero1;
    workload.precision = Precision::Fp16;
    let refused = words(&overrides(&model, None, &workload, &plan).expect_err("much"));
    for part in [
        "model: ",
        "plan.schedule",
        "zero-bubble-v",
        "plan.offload",
        "plan.recompute_layers",
        "plan.zero",
        "training.precision",
    ] {
        assert!(refused.contains(part), "no {part} in\n{refused}");
    }
}

#[test]
fn the_file_of_a_user_means_the_same_after_the_way_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles/torchtitan/llama3_405b.toml");
    let Ok(text) = std::fs::read_to_string(&path) else { return skipped(&path) };
    let training = good(&text);
    assert_eq!(training.model, ModelSource::Catalog("llama-3.1-405b"));
    let model = model(126, false);
    let Divided { workload, plan, .. } = training.divide(&model, asked(128)).expect("a division");
    assert_eq!((workload.precision, workload.global_batch, workload.sequence_length), (Precision::Fp8, 32, 8192));
    assert_eq!((plan.data, plan.tensor, plan.pipeline(), plan.zero), (16, 8, 1, ZeroStage::Zero3));
    assert_eq!((plan.stages[0].recompute, plan.sharing.overlap_tensor), (Recompute::Full, true));
    let written = overrides(&model, Some(("llama3", "405B")), &workload, &plan).expect("all of it can be said");
    assert_eq!(
        good(&written).divide(&model, asked(128)).map(|again| (again.workload, again.plan)),
        Ok((workload, plan))
    );
}

#[test]
fn no_text_makes_it_panic() {
    let model = model(32, false);
    let tried = mutate(11, 3000, &[LARGE, EXPERTS], |text| match read(text, "t.toml", ModelGiven::Yes) {
        Ok((run, _)) => {
            for devices in [0, 1, 8, 256] {
                if let Ok(Divided { workload, plan, .. }) = run.divide(&model, asked(devices)) {
                    let _ = overrides(&model, Some(("llama3", "8B")), &workload, &plan);
                }
            }
        }
        Err(problems) => assert!(problems.iter().all(|problem| problem.span.is_some()), "{problems:?}"),
    });
    assert!(tried > 2000, "{tried}");
}

//! Configurations as people have them, what is wrong with others, and the way back.

use std::path::Path;

use ir::{AttentionKernel, Model, Precision, Problem, Recompute, ZeroStage};

use super::{config, read};
use crate::testing::skipped;
use crate::text::testing::mutate;
use crate::training::{self, Asked, Divided, ModelGiven, Tool, Training};

/// ZeRO-3 with the optimizer in host memory.
const SHARDED: &str = include_str!("tests/zero3.json");
/// A pipeline with ZeRO-1.
const PIPELINE: &str = include_str!("tests/pipeline.json");

fn words(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn good(text: &str) -> Training {
    let read = training::read(text, "ds_config.json", None, ModelGiven::Yes);
    read.unwrap_or_else(|problems| panic!("{}", words(&problems)))
}

fn model() -> Model {
    let text = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}"#;
    crate::hugging_face::read(text, "m.json").expect("a model")
}

fn asked(devices: u64) -> Asked {
    Asked { devices, sequence_length: None, global_batch: None }
}

#[test]
fn a_configuration_is_read() {
    let training = good(SHARDED);
    assert_eq!((training.tool, training.devices), (Tool::DeepSpeed, None));
    let Divided { workload, plan, assumed } = training.divide(&model(), asked(16)).expect("a division");
    assert_eq!((workload.precision, workload.global_batch, workload.sequence_length), (Precision::Bf16, 512, 4096));
    assert_eq!((plan.data, plan.microbatch_size, plan.microbatches, plan.zero), (16, 4, 8, ZeroStage::Zero3));
    assert!(plan.sharing.offload_optimizer && !plan.sharing.offload_parameters && plan.sharing.prefetch);
    assert_eq!((plan.stages[0].recompute, workload.optimizer.warmup_iterations), (Recompute::Full, 100));
    assert!(assumed.iter().any(|one| one.name == "sequence_length"), "{assumed:?}");
    assert!(
        training.report.ignored.iter().any(|one| one.key == "zero_optimization.reduce_bucket_size" && one.line == 11)
    );
}

#[test]
fn a_pipeline_is_read_and_its_batch_says_how_many_devices_there_are() {
    let training = good(PIPELINE);
    assert_eq!(training.devices, Some(32));
    let Divided { plan, .. } = training.divide(&model(), asked(32)).expect("a division");
    assert_eq!((plan.data, plan.pipeline(), plan.microbatches, plan.zero), (8, 4, 16, ZeroStage::Zero1));
    let message = words(&training.divide(&model(), asked(16)).expect_err("half of them"));
    let identity = "256 is not train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 16 x 4 replicas = 128";
    assert!(message.contains(identity) && message.contains("8 replicas"), "{message}");
}

/// A configuration of these keys on so many devices, and what is wrong with it.
fn check(devices: u64, keys: &str, expect: &[&str]) {
    let text = format!("{{\n{keys}\n}}\n");
    let result = training::read(&text, "ds.json", Some(Tool::DeepSpeed), ModelGiven::Yes)
        .and_then(|training| training.divide(&model(), asked(devices)).map(drop));
    match result {
        Ok(()) => assert!(expect.is_empty(), "{keys}"),
        Err(problems) => {
            let found = words(&problems);
            assert_eq!(problems.len(), expect.len(), "{keys}:\n{found}");
            expect.iter().for_each(|part| assert!(found.contains(part), "no {part:?} in\n{found}"));
        }
    }
}

#[test]
fn the_batch_is_solved_for_what_is_missing() {
    // The identities of several reports: what is told is not the product.
    check(
        1,
        "\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 1",
        &["8 is not train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 1 x 1 replicas = 2"],
    );
    check(
        7,
        "\"train_batch_size\": 256, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 18",
        &["= 252"],
    );
    check(4, "\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 1", &[]);
    check(4, "\"train_batch_size\": 8", &[]);
    check(3, "\"train_batch_size\": 8", &["the nearest is 6 or 9"]);
    check(3, "\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2", &["the nearest is 6 or 12"]);
    check(3, "\"train_micro_batch_size_per_gpu\": 2", &[]);
    let huge = "\"train_micro_batch_size_per_gpu\": 4294967295, \"gradient_accumulation_steps\": 4294967295";
    check(1 << 20, huge, &["are out of reach"]);
    check(1 << 20, &format!("\"train_batch_size\": 8, {huge}"), &["8 is not"]);
    check(3, "\"gradient_accumulation_steps\": 2", &["neither it nor train_micro_batch_size_per_gpu"]);
    check(3, "\"train_batch_size\": \"auto\"", &["give --global-batch"]);
}

#[test]
fn faults_are_told_by_name_and_place() {
    let with = |keys: &str, expect: &[&str]| check(8, &format!("\"train_batch_size\": 64,\n{keys}"), expect);
    with("\"zero_optimization\": {\"stag\": 2}", &["did you mean `stage`?"]);
    with("\"zero_optimization\": {\"stage\": 4}", &["0, 1, 2 or 3"]);
    with("\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}", &["`nvme` as a tier"]);
    with("\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}", &["quantised gathers"]);
    with("\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": false}", &[]);
    with("\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}", &["exclude each other"]);
    with(
        "\"pipeline\": {\"stages\": 5}",
        &["8 devices do not divide", "32 layers do not divide over 5 stages (4 does"],
    );
    with("\"optimizer\": {\"type\": \"Lamb\"}", &["`Lamb` is not known"]);
    with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}", &["is not a pair of numbers"]);
    with("\"train_batch_size\": 64", &["stands in the file twice"]);
    with("\"curriculum_learning\": {\"enabled\": true}", &["sequences that grow"]);
    with("\"curriculum_learning\": {\"enabled\": false, \"min\": 8}", &[]);
    with("\"fp17\": {}", &["fp17"]);
    with("\"bf16\": {\"enabled\": \"yes\"}", &["is yes, not true or false"]);
    with("\"a\" 1", &["a colon should stand here"]);
}

#[test]
fn without_a_model_it_is_asked_for() {
    let message = words(&training::read(SHARDED, "ds.json", None, ModelGiven::No).expect_err("no model"));
    assert!(message.contains("--model NAME"), "{message}");
}

#[test]
fn the_way_back_gives_the_same_values() {
    for (text, devices) in [(SHARDED, 16), (PIPELINE, 32)] {
        let Divided { workload, plan, .. } = good(text).divide(&model(), asked(devices)).expect("a division");
        let written = config(&model(), &workload, &plan).unwrap_or_else(|problems| panic!("{}", words(&problems)));
        let again =
            good(&written).divide(&model(), asked(devices)).unwrap_or_else(|p| panic!("{}\n{written}", words(&p)));
        assert_eq!((again.workload, again.plan), (workload, plan), "{written}");
    }
}

#[test]
fn what_deepspeed_cannot_do_is_refused_by_name() {
    let Divided { workload, mut plan, .. } = good(PIPELINE).divide(&model(), asked(32)).expect("a division");
    plan.mesh.context = 2;
    plan.schedule = ir::Schedule::GPipe;
    plan.zero = ZeroStage::Zero3;
    plan.stages[0].layers = vec![9];
    plan.stages[1].layers = vec![7];
    let refused = words(&config(&model(), &workload, &plan).expect_err("much"));
    let (degrees, words_of_it) = ([2, 2, 1, 1], "DeepSpeed has no key for it: a tensor degree for each stage");
    let unlike = words(&config(&model(), &workload, &plan.clone().with_tensors(&degrees)).expect_err("much"));
    assert!(unlike.contains(words_of_it), "{unlike}");
    for part in ["plan.context", "plan.schedule", "plan.zero", "plan.stages"] {
        assert!(refused.contains(part), "no {part} in\n{refused}");
    }
}

fn user(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles/deepspeed").join(name);
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        skipped(&path);
    }
    text
}

#[test]
fn the_file_of_a_trainer_leaves_the_batch_to_the_command_line() {
    let Some(text) = user("hf_transformers.ds_config_zero3.json") else { return };
    let training = good(&text);
    assert!(words(&training.divide(&model(), asked(8)).expect_err("no batch")).contains("--global-batch"));
    let asked = Asked { devices: 8, sequence_length: Some(2048), global_batch: Some(64) };
    let Divided { workload, plan, .. } = training.divide(&model(), asked).expect("a division");
    assert_eq!((workload.precision, workload.sequence_length, plan.microbatch_size), (Precision::Fp16, 2048, 8));
    assert!(plan.sharing.offload_parameters && plan.sharing.offload_optimizer && !plan.sharing.prefetch);
    assert_eq!((workload.optimizer.beta1, workload.optimizer.warmup_iterations), (0.8, 500));
    let written = config(&model(), &workload, &plan).expect("all of it can be said");
    let again = good(&written).divide(&model(), asked).map(|again| (again.workload, again.plan));
    assert_eq!(again, Ok((workload, plan)), "{written}");
}

#[test]
fn the_file_of_gpt_neox_is_held_against_the_model() {
    let Some(text) = user("gpt-neox.20B.yml") else { return };
    let training = good(&text);
    let neox = r#"{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "vocab_size": 50432, "max_position_embeddings": 2048, "rotary_pct": 0.25,
        "use_parallel_residual": true, "tie_word_embeddings": false}"#;
    let neox = crate::hugging_face::read(neox, "neox.json").expect("a model");
    let Divided { workload, plan, .. } = training.divide(&neox, asked(96)).expect("a division");
    assert_eq!((plan.data, plan.tensor, plan.pipeline(), plan.zero), (12, 2, 4, ZeroStage::Zero1));
    assert_eq!(
        (workload.global_batch, workload.sequence_length, workload.attention),
        (1536, 2048, AttentionKernel::Plain)
    );
    assert_eq!((plan.stages[0].recompute, plan.microbatches), (Recompute::Full, 32));
    let message = words(&training.divide(&model(), asked(96)).expect_err("another model"));
    for part in ["num_layers: is 44", "hidden_size: is 6144", "num_attention_heads: is 64"] {
        assert!(message.contains(part), "no {part} in\n{message}");
    }
}

#[test]
fn no_text_makes_it_panic() {
    let model = model();
    let tried = mutate(13, 3000, &[SHARDED, PIPELINE], |text| match read(text, "ds.json", ModelGiven::Yes) {
        Ok((run, _)) => {
            for devices in [0, 1, 8, 32] {
                if let Ok(Divided { workload, plan, .. }) = run.divide(&model, asked(devices)) {
                    let _ = config(&model, &workload, &plan);
                }
            }
        }
        Err(problems) => assert!(problems.iter().all(|problem| problem.span.is_some()), "{problems:?}"),
    });
    assert!(tried > 2000, "{tried}");
}

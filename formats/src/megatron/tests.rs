//! Scripts and logs as people have them, what is wrong with others, and the way back.

use ir::{FeedForward, Mixer, MlpKind, NormKind, Positions, Precision, Problem, Recompute, ZeroStage};

use super::{flags, read, script};
use crate::text::testing::mutate;

/// A script with variables, arrays, sums and a launcher.
const SCRIPT: &str = include_str!("tests/gpt3.sh");
/// A mixture of experts with latent attention whose command stands in a string.
const EXPERTS: &str = include_str!("tests/experts.sh");
/// A log with a block of arguments, as rank 0 prints it.
const LOG: &str = include_str!("tests/llama.log");

fn words(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

fn good(text: &str, file: &str) -> super::Run {
    read(text, file).unwrap_or_else(|problems| panic!("{}", words(&problems)))
}

#[test]
fn a_script_with_variables_and_arrays_is_read() {
    let run = good(SCRIPT, "examples/gpt3.sh");
    assert_eq!((run.model.name.as_str(), run.model.layers, run.model.hidden, run.model.heads), ("gpt3", 96, 12288, 96));
    assert_eq!((run.model.ffn, run.model.head_dim, run.model.tied_head), (49152, 128, true));
    assert_eq!(run.model.positions, Positions::Learned { maximum: 2048 });
    assert_eq!(
        (run.workload.precision, run.workload.global_batch, run.workload.sequence_length),
        (Precision::Bf16, 1536, 2048)
    );
    assert_eq!(run.devices, Some(128));
    let plan = run.plan(128).unwrap();
    assert_eq!((plan.tensor, plan.pipeline(), plan.data, plan.microbatches), (8, 16, 1, 1536));
    assert_eq!(plan.stages[3].layers, [3, 3]);
    assert_eq!(
        (plan.zero, plan.sequence_parallel, plan.stages[0].recompute),
        (ZeroStage::Zero1, true, Recompute::Selective)
    );
}

#[test]
fn a_mixture_of_experts_is_read() {
    let run = good(EXPERTS, "experts.sh");
    let experts = run.model.variants.experts.unwrap();
    assert_eq!((experts.count, experts.active, experts.ffn, experts.shared_ffn), (64, 6, 1408, 2816));
    let pattern = run.model.variants.pattern.iter().map(|run| (run.layers, run.mixer, run.feed_forward));
    let latent = Mixer::Latent;
    assert_eq!(pattern.collect::<Vec<_>>(), [(1, latent, FeedForward::Dense), (26, latent, FeedForward::Experts)]);
    let plan = run.plan(run.devices.unwrap()).unwrap();
    assert_eq!((plan.mesh.expert, plan.mesh.expert_tensor, plan.data), (8, 2, 8));
    assert!(
        run.report.notes.iter().any(|note| note.contains("expert-tensor-parallel-size: 2")),
        "{:?}",
        run.report.notes
    );
}

#[test]
fn a_log_is_read() {
    let run = good(LOG, "run.log");
    assert_eq!((run.model.kv_heads, run.model.norm, run.model.mlp), (8, NormKind::RmsNorm, MlpKind::SwiGlu));
    assert_eq!((run.model.vocabulary, run.model.qkv_bias, run.model.tied_head), (128_256, false, false));
    assert_eq!(run.devices, Some(64));
    let plan = run.plan(64).unwrap();
    assert_eq!((plan.data, plan.tensor, plan.pipeline(), plan.mesh.context), (4, 4, 2, 2));
    assert!(
        run.report.notes.iter().any(|note| note.contains("some-argument-of-another-version")),
        "{:?}",
        run.report.notes
    );
}

/// What options say of a plan is what the plan says.
#[test]
fn the_way_back_gives_the_same_values() {
    for (text, file) in [(SCRIPT, "a.sh"), (EXPERTS, "a.sh"), (LOG, "a.log")] {
        let run = good(text, file);
        let devices = run.devices.unwrap();
        let plan = run.plan(devices).unwrap();
        let written = flags(&run.model, &run.workload, &plan).unwrap_or_else(|problems| panic!("{}", words(&problems)));
        let options = written.iter().map(|flag| format!("    {flag} \\\n")).collect::<String>();
        let again = good(&format!("torchrun --nproc_per_node {devices} pretrain_gpt.py \\\n{options}\n"), file);
        assert_eq!((&again.model, &again.workload), (&run.model, &run.workload));
        assert_eq!(again.plan(devices).unwrap(), plan);
    }
}

/// Buckets of gradients: said, not said, and as a log says that nobody did.
#[test]
fn buckets_of_gradients_go_there_and_back() {
    for (said, bucket) in [("--ddp-bucket-size 25000000", Some(25_000_000)), ("", None)] {
        let run = good(&SCRIPT.replace("--lr 6.0e-5", &format!("--lr 6.0e-5 {said}")), "a.sh");
        let plan = run.plan(128).unwrap();
        assert_eq!(plan.sharing.bucket, bucket);
        let written = flags(&run.model, &run.workload, &plan).unwrap_or_else(|problems| panic!("{}", words(&problems)));
        let found = written.iter().find(|flag| flag.name == "--ddp-bucket-size");
        assert_eq!(found.and_then(|flag| flag.value.clone()), bucket.map(|bucket| bucket.to_string()));
    }
    let line = "[default0]:  overlap_grad_reduce ............................. True\n";
    assert!(LOG.contains(line));
    let none = format!("{line}[default0]:  ddp_bucket_size ................................. None\n");
    assert_eq!(good(&LOG.replace(line, &none), "run.log").plan(64).unwrap().sharing.bucket, None);
    check("--ddp-bucket-size 0", &["ddp-bucket-size: is zero"]);
}

#[test]
fn what_megatron_cannot_do_is_refused_by_name() {
    let run = good(LOG, "run.log");
    let mut plan = run.plan(64).unwrap();
    plan.sharing.offload_parameters = true;
    plan.schedule = ir::Schedule::ZeroBubbleH1;
    let mut model = run.model.clone();
    model.mlp = MlpKind::GeGlu;
    let refused = words(&flags(&model, &run.workload, &plan).unwrap_err());
    for part in ["plan.offload", "plan.schedule", "zero-bubble-h1", "model.mlp", "a GELU that gates"] {
        assert!(refused.contains(part), "no {part} in\n{refused}");
    }
}

#[test]
fn stages_of_any_layers_are_written_as_a_layout() {
    let run = good(LOG, "run.log");
    let mut plan = run.plan(64).unwrap();
    for layers in [[vec![20], vec![12]], [vec![9, 7], vec![8, 8]], [vec![0, 15], vec![17, 0]]] {
        plan.stages.iter_mut().zip(layers).for_each(|(stage, layers)| stage.layers = layers);
        plan.microbatches = 32;
        let written =
            script(&run.model, &run.workload, &plan, 8).unwrap_or_else(|problems| panic!("{}", words(&problems)));
        assert_eq!(good(&written, "a.sh").plan(64).unwrap(), plan, "{written}");
    }
}

/// A good command with these words more, and what is wrong then.
fn check(more: &str, expect: &[&str]) {
    let text = format!(
        "HEADS=16\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads $HEADS \\\n\
         --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size 4 --global-batch-size 64 --bf16 \\\n\
         --tensor-model-parallel-size 2 {more}\n"
    );
    match read(&text, "train.sh") {
        Ok(run) => assert!(expect.is_empty(), "{run:?}"),
        Err(problems) => {
            let found = words(&problems);
            assert_eq!(problems.len(), expect.len(), "{found}");
            expect.iter().for_each(|part| assert!(found.contains(part), "no {part:?} in\n{found}"));
            assert!(problems.iter().all(|problem| problem.span.is_some()), "{problems:?}");
        }
    }
}

#[test]
fn faults_are_told_by_name_and_line() {
    check("", &[]);
    check("--log-interval 10 --save x --data-path a b c", &[]);
    check("--num-layer 24", &["did you mean `num-layers`?"]);
    check("--tensor-model-parallel-size 4", &["`4` here, and `2` in line 4"]);
    check("--tensor-model-parallel-size 2", &[]);
    check("--context-parallel-size $CP", &["`CP` is set outside of the script"]);
    check("--pipeline-model-parallel-size ${1}", &["it is an argument of the script"]);
    check("--pipeline-model-parallel-size ${PP:-4}", &[]);
    check("--pipeline-model-parallel-size $((HEADS / 4))", &[]);
    check("--pipeline-model-parallel-size $((HEADS / 0))", &["divided by zero"]);
    check("--pipeline-model-parallel-size $(nproc)", &["what a command prints"]);
    check("--pipeline-model-parallel-size 5", &["24 layers do not divide over 5 stages"]);
    check("--pipeline-model-parallel-size 0", &["is zero"]);
    check("--pipeline-model-parallel-size many", &["`many` is not a number"]);
    check("--pipeline-model-parallel-size", &["nothing stands after it"]);
    check(
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4",
        &["stages of 6 layers do not divide"],
    );
    check("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E,t*10|t*14,L'", &[]);
    check("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|t*9|t*15|L'", &[]);
    check(
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|t*10|L'",
        &["has 10 layers, and the model 24"],
    );
    check("--recompute-granularity full", &["recompute-method is missing"]);
    check("--squared-relu --fp16", &["squared ReLU is not modelled", "exclude each other"]);
    check("--moe-router-topk 2", &["says nothing without --num-experts"]);
    check("--num-experts 8 --moe-layer-freq [0]*3", &["does not say which of 24 layers have experts"]);
    check("--num-experts 8 --moe-layer-freq ([0]*4+[1]*20)", &[]);
}

#[test]
fn a_division_that_does_not_fit_says_what_would() {
    let run = good(SCRIPT, "gpt3.sh");
    let message = words(&run.plan(200).unwrap_err());
    assert!(message.contains("128 or 256 devices"), "{message}");
    let message = words(&run.plan(128 * 5).unwrap_err());
    assert!(message.contains("1535 or 1540"), "{message}");
    assert!(run.plan(0).is_err());
    // Degrees whose product leaves 64 bits.
    let text = SCRIPT
        .replace("--tensor-model-parallel-size 8", "--tensor-model-parallel-size 2147483648")
        .replace("--sequence-parallel", "--context-parallel-size 2147483648");
    assert!(good(&text, "gpt3.sh").plan(128).is_err());
}

#[test]
fn other_files_are_told_apart() {
    for (text, part) in [
        ("", "no command of it runs a Python program"),
        ("echo hello", "no command of it runs a Python program"),
        ("------ arguments ------\n  num_layers ........ 4\n", "ends before its last line"),
    ] {
        let message = words(&read(text, "x").unwrap_err());
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn conditions_leave_values_unknown() {
    let text =
        "if [ $X = 1 ]; then\n  TP=4\nelse\n  TP=8\nfi\npython pretrain_gpt.py --tensor-model-parallel-size $TP\n";
    let message = words(&read(text, "x.sh").unwrap_err());
    assert!(message.contains("`TP` is set under a condition"), "{message}");
}

#[test]
fn no_text_makes_it_panic() {
    let tried = mutate(7, 4000, &[SCRIPT, EXPERTS, LOG], |text| {
        if let Ok(run) = read(text, "train.sh") {
            let devices = run.devices.unwrap_or(8).min(1 << 20);
            if let Ok(plan) = run.plan(devices) {
                let _ = flags(&run.model, &run.workload, &plan);
            }
        }
    });
    assert!(tried > 3000, "{tried}");
}

#[test]
fn a_script_is_read_back_to_the_same_values() {
    for (text, file) in [(SCRIPT, "a.sh"), (EXPERTS, "a.sh"), (LOG, "a.log")] {
        let run = good(text, file);
        let devices = run.devices.unwrap();
        let plan = run.plan(devices).unwrap();
        let written =
            script(&run.model, &run.workload, &plan, 8).unwrap_or_else(|problems| panic!("{}", words(&problems)));
        let again = good(&written, file);
        assert_eq!(
            (&again.model, &again.workload, again.devices),
            (&run.model, &run.workload, Some(devices)),
            "{written}"
        );
        assert_eq!(again.plan(devices).unwrap(), plan, "{written}");
        assert_eq!(again.report.notes, Vec::<String>::new(), "{written}");
    }
    let run = good(SCRIPT, "a.sh");
    let message = words(&script(&run.model, &run.workload, &run.plan(128).unwrap(), 7).unwrap_err());
    assert!(message.contains("126 or 133 ranks"), "{message}");
}

#[test]
fn what_was_read_assumed_and_passed_over_is_told() {
    let report = good(SCRIPT, "gpt3.sh").report;
    let read = report.read.iter().find(|one| one.key == "pipeline-model-parallel-size").unwrap();
    assert_eq!((read.value.as_str(), read.line), ("16", 52));
    // The first of an array that is expanded in quotes stands where the array is written, too.
    let first = report.read.iter().find(|one| one.key == "tensor-model-parallel-size").unwrap();
    assert_eq!(first.line, 51);
    assert!(report.ignored.iter().any(|one| one.key == "log-interval" && one.value == "100"), "{report:?}");
    let assumed = |name: &str| report.assumed.iter().find(|one| one.name == name).map(|one| one.value.as_str());
    assert_eq!(
        (assumed("seed"), assumed("adam-eps"), assumed("normalization")),
        (Some("1234"), Some("1e-8"), Some("LayerNorm"))
    );
    assert_eq!(assumed("adam-beta2"), None, "it is written");
}

#[test]
fn a_file_of_another_kind_has_no_more_faults_than_can_be_read() {
    let many = (0..30_000).map(|index| format!(" --option-{index} {index}")).collect::<String>();
    let problems = read(&format!("python x.py{many}"), "x.sh").unwrap_err();
    assert_eq!(problems.len(), 100);
}

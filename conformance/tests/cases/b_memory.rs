//! B: peak memory by stage and part, before anything runs.

use super::{Case, dense, largest, tensors};

/// U17: with equal layers the first stage of 1F1B holds most, as many microbatches as there are stages; dividing the
/// optimizer's state makes a 70B fit that did not.
#[test]
fn the_first_stage_holds_most() {
    fn case(plan: &str) -> Case<'_> {
        let training = "sequence_length = 8192\nglobal_batch = 64";
        Case { nodes: "32 x dgx-a100", model: "llama-3.1-70b", training, plan }
    }
    const SHAPE: &str =
        "tensor = 4\npipeline = 8\nsequence_parallel = true\nrecompute = \"selective\"\nmicrobatch_size = 1\n";
    // By hand 89 GB of 80, at stage 0.
    case(&format!("{SHAPE}zero = 0")).refused(&["stage 0", "GiB of 80.0", "activations", "optimizer"]);
    let fits = case(&format!("{SHAPE}zero = 1")).planned().prediction;
    // By hand 64 GB.
    let first = tensors(&fits.memory[0]);
    assert!((first * 1.0737 / 64.0 - 1.0).abs() < 0.1, "{first} GiB");
    for model in [dense(32), dense(16)] {
        let plan = "pipeline = 8\nmicrobatch_size = 1\nzero = 1";
        let training = "sequence_length = 2048\nglobal_batch = 64";
        let found = Case { nodes: "1 x dgx-a100", model: &model, training, plan }.planned().prediction;
        let activations: Vec<f64> = found.memory.iter().map(|memory| memory.parts_gib["activations"]).collect();
        // Stage s keeps p - s microbatches.
        assert!(activations[..7].is_sorted_by(|a, b| a > b), "{activations:?}");
    }
}

/// U18: the heaviest stage counts, embedding, head and uneven layers included, and not the mean.
#[test]
fn the_heaviest_stage_counts() {
    for (layers, heaviest) in [(vec![1, 2, 2, 3], 3), (vec![3, 2, 2, 1], 0), (vec![2, 4, 1, 1], 1)] {
        let model = dense(8).replace("vocabulary = 32000", "vocabulary = 128");
        let plan = format!("pipeline = 4\nlayers_per_stage = {layers:?}\nmicrobatch_size = 1");
        let training = "sequence_length = 512\nglobal_batch = 8";
        let found = Case { nodes: "1 x hgx-a100-4", model: &model, training, plan: &plan }.planned().prediction;
        let weights: Vec<f64> = found.memory.iter().map(|memory| memory.parts_gib["weights"]).collect();
        let most = (0..4).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).expect("stages");
        assert_eq!(most, heaviest, "{weights:?}");
        let mean = weights.iter().sum::<f64>() / 4.0;
        assert!(weights[heaviest] > 1.3 * mean, "{weights:?}");
    }
}

/// U20: gated feed-forward parts have three matrices, latent attention and experts theirs: sizes to the unit.
#[test]
fn models_have_the_size_that_they_say() {
    for (model, parameters) in [
        ("qwen1.5-72b", 72_287_920_128_u64),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-8b", 8_030_261_248),
        ("mixtral-8x7b", 46_702_792_704),
    ] {
        let case = Case { nodes: "1 x dgx-a100", model, training: "sequence_length = 512\nglobal_batch = 8", plan: "" };
        let loaded = trainyard::scenario::parse("s.toml", &case.text(), std::path::Path::new("")).expect("sound");
        assert_eq!(loaded.scenario.model.parameters(), parameters, "{model}");
    }
}

/// U23: attention that is not fused keeps its scores: 5 x heads x length^2 bytes of each sequence and layer, beside which
/// a 774M does not fit where weights alone would.
#[test]
fn plain_attention_keeps_its_scores() {
    for (layers, length) in [(8, 1024), (8, 2048), (16, 1024)] {
        let training = |kind: &str| format!("sequence_length = {length}\nglobal_batch = 4\nattention = \"{kind}\"");
        let held = |kind: &str| {
            let case = Case {
                nodes: "1 x dgx-a100",
                model: &dense(layers),
                training: &training(kind),
                plan: "data = 1\nmicrobatch_size = 4",
            };
            largest(&case.planned().prediction)
        };
        let expect = 5.0 * 16.0 * f64::from(length * length) * 4.0 * f64::from(layers) / f64::from(1u32 << 30);
        let more = held("plain") - held("fused");
        assert!((more / expect - 1.0).abs() < 0.1, "{layers} layers of {length}: {more} GiB, by hand {expect}");
    }
}

/// U24: 128k tokens on a 70B. Each way to keep less is smaller; recomputing all takes the most time on the device.
#[test]
fn long_sequences_of_a_large_model() {
    for (nodes, context) in [("16 x dgx-h200", 8), ("16 x dgx-h200", 4)] {
        let case = |rest: &str| {
            let plan =
                format!("tensor = 8\ncontext = {context}\npipeline = 2\nsequence_parallel = true\nzero = 1\n{rest}");
            let training = "sequence_length = 131072\nglobal_batch = 16";
            Case { nodes, model: "llama-3.1-70b", training, plan: &plan }.planned().prediction
        };
        let full = case("recompute = \"full\"");
        let selective = case("recompute = \"selective\"");
        let offload = case("offload = [\"activations\"]");
        assert!(largest(&full) < 0.6 * largest(&selective), "{} and {}", largest(&full), largest(&selective));
        assert!(largest(&offload) < 0.6 * largest(&selective), "{} and {}", largest(&offload), largest(&selective));
        // A forward pass more against copies on a link that has the time.
        let (slowest, fastest) = (full.iteration_ms, offload.iteration_ms.min(selective.iteration_ms));
        assert!((1.05..1.4).contains(&(slowest / fastest)), "{slowest} ms and {fastest} ms");
    }
}

/// U25: with 1F1B and its kin the peak does not grow with the number of microbatches; with GPipe it does.
#[test]
fn peaks_do_not_grow_with_microbatches() {
    for (schedule, chunks, grows) in
        [("1f1b", 1, false), ("1f1b", 2, false), ("zero-bubble-h1", 1, false), ("gpipe", 1, true)]
    {
        let held = |batch: u32| {
            let training = format!("sequence_length = 1024\nglobal_batch = {batch}");
            let word = if chunks > 1 { String::new() } else { format!("schedule = \"{schedule}\"") };
            let plan = format!("data = 1\npipeline = 4\nchunks_per_stage = {chunks}\nmicrobatch_size = 1\n{word}");
            largest(
                &Case { nodes: "1 x dgx-a100", model: &dense(16), training: &training, plan: &plan }
                    .planned()
                    .prediction,
            )
        };
        let (few, many) = (held(16), held(64));
        assert_eq!(many > few * 1.2, grows, "{schedule} of {chunks}: {few} and {many} GiB");
        assert!(grows || (many - few).abs() < 1e-9, "{schedule} of {chunks}: {few} and {many} GiB");
    }
}

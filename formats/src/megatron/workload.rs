//! How arguments say that a model is trained.

use ir::{AdamW, AttentionKernel, GradientFormat, Precision, Recipe, Workload};

use super::options::Options;

/// The workload; after a fault (kept in the options) sizes may be stand-ins.
pub(super) fn read(options: &mut Options<'_>) -> Workload {
    let precision = precision(options);
    let global_batch = global_batch(options);
    Workload {
        sequence_length: sequence(options),
        global_batch,
        iterations: iterations(options, global_batch),
        precision,
        attention: attention(options),
        vocabulary_divisor: options.count("make-vocab-size-divisible-by", 128),
        optimizer: optimizer(options),
        seed: options.number_or("seed", 1234),
        recipe: recipe(options, precision),
    }
}

fn sequence(options: &mut Options<'_>) -> u32 {
    let old = options.has("encoder-seq-length") && !options.has("seq-length");
    let _ = options.number::<u32>("encoder-seq-length");
    if old { options.needed("encoder-seq-length") } else { options.needed("seq-length") }
}

fn global_batch(options: &mut Options<'_>) -> u32 {
    if !options.has("global-batch-size") {
        let hint = "Megatron's default is micro-batch-size times replicas, which depends on the devices: write it";
        let _ = options.number::<u32>("global-batch-size");
        options.fault("global-batch-size", "is missing", hint);
        return 1;
    }
    options.needed("global-batch-size")
}

fn iterations(options: &mut Options<'_>, global_batch: u32) -> u32 {
    let samples = options.number::<u64>("train-samples");
    if options.has("train-iters") {
        return options.needed("train-iters");
    }
    let _ = options.number::<u32>("train-iters");
    let whole = samples.map(|samples| samples.div_ceil(u64::from(global_batch)).max(1));
    if whole.is_none() {
        options.assume("train-iters", 1);
    }
    whole.map_or(1, |whole| u32::try_from(whole).unwrap_or(u32::MAX))
}

fn precision(options: &mut Options<'_>) -> Precision {
    let (fp16, bf16) = (options.switch("fp16", false), options.switch("bf16", false));
    let eight = ["fp8-format", "fp8"].map(|name| options.has(name).then(|| options.text(name)).flatten());
    options.pass(&[
        "fp8-recipe",
        "fp8-margin",
        "fp8-amax-history-len",
        "fp8-amax-compute-algo",
        "fp8-interval",
        "fp8-param-gather",
        "params-dtype",
    ]);
    if fp16 && bf16 {
        options.fault("fp16", "and bf16 exclude each other", "one of the two");
    }
    if eight.iter().flatten().any(|format| format != "None") {
        Precision::Fp8
    } else if bf16 {
        Precision::Bf16
    } else if fp16 {
        Precision::Fp16
    } else {
        options.assume("params-dtype", "fp32");
        Precision::Fp32
    }
}

/// The scores are there as a whole in the local implementation without flash attention alone.
fn attention(options: &mut Options<'_>) -> AttentionKernel {
    let flash = options.switch("use-flash-attn", false);
    let local = options.text("transformer-impl").is_some_and(|way| way == "local");
    let backend =
        options.text("attention-backend").map(|backend| backend.trim_start_matches("AttnBackend.").to_owned());
    match backend.as_deref() {
        Some("flash" | "fused") => AttentionKernel::Fused,
        Some("unfused" | "local") => AttentionKernel::Plain,
        None | Some("auto") if flash || !local => {
            if !flash {
                options.assume("attention-backend", "fused");
            }
            AttentionKernel::Fused
        }
        None | Some("auto") => AttentionKernel::Plain,
        Some(other) => {
            options.fault(
                "attention-backend",
                format!("`{other}` is not known"),
                "flash, fused, unfused, local or auto",
            );
            AttentionKernel::Fused
        }
    }
}

fn optimizer(options: &mut Options<'_>) -> AdamW {
    let other = options.text_or("optimizer", "adam");
    if other != "adam" {
        options.fault("optimizer", format!("`{other}` is not modelled"), "adam");
    }
    let clip = options.number_or("clip-grad", 1.0);
    AdamW {
        learning_rate: options.number_or("lr", AdamW::default().learning_rate),
        beta1: options.number_or("adam-beta1", 0.9),
        beta2: options.number_or("adam-beta2", 0.999),
        epsilon: options.number_or("adam-eps", 1e-8),
        weight_decay: options.number_or("weight-decay", 0.01),
        warmup_iterations: options.number_or("lr-warmup-iters", 0),
        clip_norm: (clip > 0.0).then_some(clip),
    }
}

fn recipe(options: &mut Options<'_>, precision: Precision) -> Recipe {
    let fused_activation = ["bias-swiglu-fusion", "bias-gelu-fusion"].map(|name| options.switch(name, true));
    options.pass(&[
        "bias-dropout-fusion",
        "gradient-accumulation-fusion",
        "persist-layer-norm",
        "rope-fusion",
        "apply-rope-fusion",
        "cross-entropy-fusion-impl",
        "cuda-graph-scope",
        "cuda-graph-warmup-steps",
        "cuda-graph-num-warmup-steps",
    ]);
    // Megatron accumulates in FP32 where it trains in BF16.
    let whole = options.switch("accumulate-allreduce-grads-in-fp32", false) || precision != Precision::Fp16;
    let half = options.switch("grad-reduce-in-bf16", false);
    let graphs = ["enable-cuda-graph", "external-cuda-graph"].map(|name| options.switch(name, false));
    let way = options.text("cuda-graph-impl").is_some_and(|way| way != "none");
    let dispatcher = options.text("moe-token-dispatcher-type");
    let deep = options.switch("moe-enable-deepep", false);
    Recipe {
        fused_softmax: options.switch("masked-softmax-fusion", true),
        fused_activation: fused_activation.into_iter().all(|fused| fused),
        fused_loss: options.switch("cross-entropy-loss-fusion", false),
        gradients: if whole { GradientFormat::Fp32 } else { GradientFormat::Half },
        reduced_gradients: if half || !whole { GradientFormat::Half } else { GradientFormat::Fp32 },
        cuda_graphs: way || graphs.into_iter().any(|graph| graph),
        deduplicated_dispatch: deep && dispatcher.as_deref() == Some("flex"),
        balance_loss: options.number("moe-aux-loss-coeff").unwrap_or(0.0),
        ..Recipe::default()
    }
}

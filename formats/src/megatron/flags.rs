//! A plan as the options that make Megatron-LM carry it out.

use ir::{
    AttentionKernel, ContextMethod, FeedForward, Mixer, MlpKind, Model, NormKind, Plan, Positions, Precision, Problem,
    QueryKeyNorm, Recompute, Schedule, Scoring, Variants, Workload, ZeroStage,
};

use super::layout;
use super::model::default_ffn;

/// An option and what stands after it, if anything does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flag {
    /// With its dashes.
    pub name: String,
    /// As it is written.
    pub value: Option<String>,
}

impl std::fmt::Display for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{} {value}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The options of a model, its training and its division. [`super::read`] reads them back to the same values, but for
/// switches of the training software ([`ir::Recipe`]) that Megatron-LM has otherwise and no option for. Data, tokenizer,
/// logs and checkpoints are left to the person.
///
/// # Errors
/// Everything that Megatron-LM has no option for, by name.
pub fn flags(model: &Model, workload: &Workload, plan: &Plan) -> Result<Vec<Flag>, Vec<Problem>> {
    let mut out = Out::default();
    sizes(&mut out, model);
    variants(&mut out, model);
    training(&mut out, workload, matches!(model.positions, Positions::Learned { .. }));
    recipe(&mut out, workload, plan);
    degrees(&mut out, model, plan);
    stages(&mut out, model, plan);
    sharing(&mut out, model, plan);
    if out.problems.is_empty() { Ok(out.flags) } else { Err(out.problems) }
}

#[derive(Default)]
struct Out {
    flags: Vec<Flag>,
    problems: Vec<Problem>,
}

impl Out {
    fn value(&mut self, name: &str, value: impl ToString) {
        self.flags.push(Flag { name: format!("--{name}"), value: Some(value.to_string()) });
    }
    fn number(&mut self, name: &str, value: f64) {
        self.value(name, format_args!("{value:?}"));
    }
    fn switch(&mut self, name: &str, is_on: bool) {
        if is_on {
            self.flags.push(Flag { name: format!("--{name}"), value: None });
        }
    }
    fn refuse(&mut self, subject: &str, message: &str, hint: &str) {
        self.problems.push(Problem::new(subject, format!("Megatron-LM has no option for it: {message}")).hint(hint));
    }
    fn refuse_if(&mut self, is_so: bool, subject: &str, message: &str, hint: &str) {
        if is_so {
            self.refuse(subject, message, hint);
        }
    }
}

fn sizes(out: &mut Out, model: &Model) {
    out.value("num-layers", model.layers);
    out.value("hidden-size", model.hidden);
    out.value("num-attention-heads", model.heads);
    if model.kv_heads != model.heads {
        out.switch("group-query-attention", true);
        out.value("num-query-groups", model.kv_heads);
    }
    if model.head_dim != model.hidden / model.heads {
        out.value("kv-channels", model.head_dim);
    }
    if model.ffn != default_ffn(model.hidden, model.mlp) {
        out.value("ffn-hidden-size", model.ffn);
    }
    out.value("vocab-size", model.vocabulary);
    if model.norm == NormKind::RmsNorm {
        out.value("normalization", "RMSNorm");
    }
    out.number("norm-epsilon", model.norm_epsilon);
    match model.positions {
        Positions::Rope { theta } => {
            out.value("position-embedding-type", "rope");
            out.value("rotary-base", theta);
        }
        Positions::Learned { maximum } => {
            out.value("position-embedding-type", "learned_absolute");
            out.value("max-position-embeddings", maximum);
        }
        Positions::None => out.value("position-embedding-type", "none"),
    }
    match model.mlp {
        MlpKind::SwiGlu => out.switch("swiglu", true),
        MlpKind::Gelu => {}
        MlpKind::GeGlu => out.refuse("model.mlp", "a GELU that gates", "swi-glu or gelu"),
    }
    let biases = [model.projection_bias, model.mlp_bias];
    out.refuse_if(biases[0] != biases[1], "model.mlp_bias", "biases in one branch alone", "the same in both");
    out.refuse_if(biases[0] && !model.qkv_bias, "model.qkv_bias", "biases everywhere but there", "true");
    out.switch("disable-bias-linear", !biases[0]);
    out.switch("add-qkv-bias", model.qkv_bias && !biases[0]);
    out.switch("untie-embeddings-and-output-weights", !model.tied_head);
}

fn variants(out: &mut Out, model: &Model) {
    let Variants { query_key_norm, experts, latent, window, pattern, .. } = &model.variants;
    match query_key_norm {
        QueryKeyNorm::None => {}
        QueryKeyNorm::Head => out.switch("qk-layernorm", true),
        QueryKeyNorm::Width => out.refuse("model.query_key_norm", "a norm over all heads", "head"),
    }
    let plain = Variants {
        query_key_norm: *query_key_norm,
        experts: *experts,
        latent: *latent,
        window: *window,
        pattern: pattern.clone(),
        ..Variants::default()
    };
    out.refuse_if(model.variants != plain, "model", "gates, sinks, norms after branches, branches side by side, exact GELU, a bias of the head or plain norms, state spaces", "a model without them");
    let mixers = model.runs().map(|run| run.mixer).collect::<Vec<_>>();
    out.refuse_if(
        mixers.iter().any(|mixer| *mixer != mixers[0]),
        "model.pattern",
        "layers of unlike mixers",
        "one mixer in all layers",
    );
    if let (Some(window), Mixer::Window) = (window, mixers[0]) {
        out.value("window-size", format!("{},0", window - 1));
    }
    if let (Some(latent), Mixer::Latent) = (latent, mixers[0]) {
        out.switch("multi-latent-attention", true);
        if let Some(rank) = latent.query_rank {
            out.value("q-lora-rank", rank);
        }
        out.value("kv-lora-rank", latent.kv_rank);
        out.value("qk-head-dim", latent.plain_head_dim);
        out.value("qk-pos-emb-head-dim", latent.rotary_head_dim);
        out.value("v-head-dim", latent.value_head_dim);
    }
    let Some(experts) = experts else { return };
    out.value("num-experts", experts.count);
    out.value("moe-router-topk", experts.active);
    out.value("moe-ffn-hidden-size", experts.ffn);
    if experts.shared_ffn > 0 {
        out.value("moe-shared-expert-intermediate-size", experts.shared_ffn);
        out.switch("moe-shared-expert-gate", experts.shared_gate);
    }
    match (experts.router.scoring, experts.router.normalised) {
        (Scoring::Softmax, true) => {}
        (Scoring::Softmax, false) => out.switch("moe-router-pre-softmax", true),
        (Scoring::Sigmoid, true) => out.value("moe-router-score-function", "sigmoid"),
        (Scoring::Sigmoid, false) => out.refuse("model.experts.normalised", "sigmoid weights as they are", "true"),
    }
    out.refuse_if(
        experts.mlp != model.mlp,
        "model.experts.mlp",
        "experts of another kind than dense layers",
        "the same kind",
    );
    out.refuse_if(
        experts.bias != model.mlp_bias,
        "model.experts.bias",
        "biases in experts alone",
        "as in dense layers",
    );
    out.refuse_if(experts.router_bias, "model.experts.router_bias", "a bias of the router that is trained", "false");
    let runs =
        model.runs().map(|run| format!("[{}]*{}", u8::from(run.feed_forward == FeedForward::Experts), run.layers));
    let runs = runs.collect::<Vec<_>>();
    if runs.len() > 1 || !runs[0].starts_with("[1]") {
        out.value("moe-layer-freq", format!("({})", runs.join("+")));
    }
}

fn training(out: &mut Out, workload: &Workload, learned: bool) {
    let optimizer = workload.optimizer;
    out.value("seq-length", workload.sequence_length);
    if !learned {
        // Megatron-LM asks for it whatever tells positions.
        out.value("max-position-embeddings", workload.sequence_length);
    }
    out.value("global-batch-size", workload.global_batch);
    out.value("train-iters", workload.iterations);
    out.value("seed", workload.seed);
    out.value("make-vocab-size-divisible-by", workload.vocabulary_divisor);
    match workload.precision {
        Precision::Fp32 => {}
        Precision::Fp16 => out.switch("fp16", true),
        Precision::Bf16 => out.switch("bf16", true),
        Precision::Fp8 => {
            out.switch("bf16", true);
            out.value("fp8-format", "hybrid");
        }
        Precision::Tf32 => {
            out.refuse("training.precision", "TF32 is a setting of the environment there", "fp32 or bf16")
        }
    }
    match workload.attention {
        AttentionKernel::Fused => out.switch("use-flash-attn", true),
        AttentionKernel::Plain => out.value("attention-backend", "unfused"),
    }
    out.number("lr", optimizer.learning_rate);
    out.number("adam-beta1", optimizer.beta1);
    out.number("adam-beta2", optimizer.beta2);
    out.number("adam-eps", optimizer.epsilon);
    out.number("weight-decay", optimizer.weight_decay);
    out.number("clip-grad", optimizer.clip_norm.unwrap_or(0.0));
    if optimizer.warmup_iterations > 0 {
        out.value("lr-warmup-iters", optimizer.warmup_iterations);
    }
}

fn recipe(out: &mut Out, workload: &Workload, plan: &Plan) {
    let recipe = workload.recipe;
    out.switch("no-masked-softmax-fusion", !recipe.fused_softmax);
    if !recipe.fused_activation {
        out.switch("no-bias-swiglu-fusion", true);
        out.switch("no-bias-gelu-fusion", true);
    }
    out.switch("cross-entropy-loss-fusion", recipe.fused_loss);
    let half = workload.precision == Precision::Fp16;
    let (whole, crossing) =
        (recipe.gradients == ir::GradientFormat::Fp32, recipe.reduced_gradients == ir::GradientFormat::Fp32);
    out.switch("accumulate-allreduce-grads-in-fp32", whole && half);
    out.switch("grad-reduce-in-bf16", whole && !crossing);
    out.switch("enable-cuda-graph", recipe.cuda_graphs);
    if recipe.deduplicated_dispatch {
        out.value("moe-token-dispatcher-type", "flex");
        out.switch("moe-enable-deepep", true);
    }
    if recipe.balance_loss > 0.0 {
        out.number("moe-aux-loss-coeff", recipe.balance_loss);
    }
    let packed = recipe.document_length.is_some();
    out.refuse_if(packed, "training.document_length", "documents that see themselves alone", "leave the key out");
    let unlike = plan.has_unlike_tensors();
    out.refuse_if(unlike, "plan.tensor", "a tensor degree for each stage", "one degree for all stages");
    out.refuse_if(
        !plan.shares.are_equal(),
        "plan.microbatches",
        "replicas that take unlike shares",
        "one number for all of them",
    );
}

fn degrees(out: &mut Out, model: &Model, plan: &Plan) {
    out.value("micro-batch-size", plan.microbatch_size);
    out.value("tensor-model-parallel-size", plan.tensor);
    out.value("pipeline-model-parallel-size", plan.pipeline());
    out.switch("sequence-parallel", plan.sequence_parallel);
    if plan.mesh.context > 1 {
        out.value("context-parallel-size", plan.mesh.context);
        out.value(
            "cp-comm-type",
            match plan.mesh.context_method {
                ContextMethod::Ring => "p2p",
                ContextMethod::AllGather => "all_gather",
                ContextMethod::AllToAll => "a2a",
            },
        );
    }
    if model.variants.experts.is_some() {
        out.value("expert-model-parallel-size", plan.mesh.expert);
        out.value("expert-tensor-parallel-size", plan.mesh.expert_tensor);
    }
    out.refuse_if(
        !plan.placement.is_empty(),
        "plan.placement",
        "ranks in another order than devices",
        "the order of the host file",
    );
    let hint = "1f1b";
    match plan.schedule {
        Schedule::OneForwardOneBackward => {}
        Schedule::GPipe => out.refuse_if(plan.pipeline() > 1, "plan.schedule", "GPipe", hint),
        _ => out.refuse("plan.schedule", plan.schedule.name(), hint),
    }
    let algorithm = plan.collective.name();
    let is_automatic = plan.collective == ir::CollectiveAlgorithm::Automatic;
    out.refuse_if(
        !is_automatic,
        "plan.collective",
        algorithm,
        "automatic: NCCL chooses, or NCCL_ALGO in the environment",
    );
}

fn stages(out: &mut Out, model: &Model, plan: &Plan) {
    let totals = plan.stages.iter().map(|stage| stage.layers.iter().sum::<u32>()).collect::<Vec<_>>();
    let chunks = plan.chunks_per_stage();
    let even = plan.stages.iter().all(|stage| stage.layers.iter().all(|layers| *layers == stage.layers[0]));
    let (first, last) = (totals[0], totals[totals.len() - 1]);
    let middle = totals.get(1..totals.len() - 1).unwrap_or_default();
    let alike = middle.windows(2).all(|pair| pair[0] == pair[1]) && totals.iter().all(|layers| *layers >= chunks);
    if !(even && alike) {
        let chunk = |chunk: usize| plan.stages.iter().map(move |stage| stage.layers.get(chunk).copied().unwrap_or(0));
        let all = (0..chunks as usize).flat_map(chunk).collect::<Vec<_>>();
        out.value("pipeline-model-parallel-layout", layout::write(&all));
    } else {
        if chunks > 1 {
            out.value("num-virtual-stages-per-pipeline-rank", chunks);
        }
        if totals.iter().any(|layers| *layers != first) {
            out.value("decoder-first-pipeline-num-layers", first);
            out.value("decoder-last-pipeline-num-layers", last);
        }
    }
    let (first, concerned) = (plan.stages[0].recompute, plan.stages[0].recompute_layers);
    let unlike = plan.stages.iter().any(|stage| (stage.recompute, stage.recompute_layers) != (first, concerned));
    out.refuse_if(unlike, "plan.stages", "unlike recomputation in stages", "one way for all of them");
    match first {
        Recompute::None => {}
        Recompute::Selective => {
            out.value("recompute-granularity", "selective");
            out.refuse_if(
                concerned.is_some(),
                "plan.recompute_layers",
                "selective recomputation of some layers",
                "all",
            );
        }
        Recompute::Full => {
            out.value("recompute-granularity", "full");
            match concerned {
                None => {
                    out.value("recompute-method", "uniform");
                    out.value("recompute-num-layers", 1);
                }
                Some(layers) => {
                    out.value("recompute-method", "block");
                    out.value("recompute-num-layers", layers.min(model.layers));
                }
            }
        }
        Recompute::Operations => out.refuse("plan.recompute", "recomputation by operation", "selective or full"),
    }
}

fn sharing(out: &mut Out, model: &Model, plan: &Plan) {
    let sharing = plan.sharing;
    match plan.zero {
        ZeroStage::Zero0 => {}
        ZeroStage::Zero1 => out.switch("use-distributed-optimizer", true),
        ZeroStage::Zero2 | ZeroStage::Zero3 => {
            out.switch("use-distributed-optimizer", true);
            out.switch("use-megatron-fsdp", true);
            let strategy = if plan.zero == ZeroStage::Zero2 { "optim_grads" } else { "optim_grads_params" };
            out.value("data-parallel-sharding-strategy", strategy);
        }
    }
    if let Some(shard) = sharing.shard.filter(|shard| *shard < plan.replicas()) {
        out.value("num-distributed-optimizer-instances", plan.replicas() / shard);
    }
    out.switch("overlap-grad-reduce", plan.overlap_gradients);
    if let Some(bucket) = sharing.bucket {
        out.value("ddp-bucket-size", bucket);
    }
    out.switch("overlap-param-gather", sharing.overlap_parameters || sharing.prefetch);
    out.switch("tp-comm-overlap", sharing.overlap_tensor);
    out.switch("overlap-moe-expert-parallel-comm", sharing.overlap_experts);
    out.switch("optimizer-cpu-offload", sharing.offload_optimizer);
    if sharing.offload_activations {
        out.switch("cpu-offloading", true);
        out.value("cpu-offloading-num-layers", model.layers.saturating_sub(1).max(1));
    }
    out.refuse_if(
        sharing.offload_parameters,
        "plan.offload",
        "parameters in host memory",
        "activations or the optimizer",
    );
    out.refuse_if(!sharing.vocabulary.is_ends(), "plan.vocabulary", "a vocabulary divided over stages", "ends");
    out.refuse_if(
        sharing.prefetch && plan.zero != ZeroStage::Zero3,
        "plan.prefetch",
        "parameters gathered ahead without ZeRO-3",
        "false",
    );
}

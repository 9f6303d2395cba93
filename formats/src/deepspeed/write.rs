//! A plan as the configuration that makes DeepSpeed carry it out.

use ir::{GradientFormat, Model, Plan, Precision, Problem, Recompute, Schedule, Workload, ZeroStage};
use serde_json::{Map, Value, json};

use super::names;
use crate::refusals::Refusals;
use crate::training::Tool;

/// The configuration of a training and its division, as JSON. [`crate::training::read`] reads it back to the same values,
/// but for what the program around it has: the model, the length of sequences, iterations, the kernel of attention, and
/// switches of the software ([`ir::Recipe`]).
///
/// # Errors
/// Everything that DeepSpeed has no key for, by name.
pub fn config(model: &Model, workload: &Workload, plan: &Plan) -> Result<String, Vec<Problem>> {
    let mut refusals = Refusals::new(Tool::DeepSpeed);
    refusals.common(workload, plan);
    refuse(&mut refusals, model, workload, plan);
    if !refusals.problems.is_empty() {
        return Err(refusals.problems);
    }
    let mut root = Root::default();
    root.put(names::BATCH, json!(workload.global_batch));
    root.put(names::MICROBATCH, json!(plan.microbatch_size));
    root.put(names::STEPS, json!(plan.microbatches));
    let of = workload.optimizer;
    if let Some(clip) = of.clip_norm {
        root.put(names::CLIPPING, json!(clip));
    }
    root.put(names::FP16, json!(workload.precision == Precision::Fp16));
    root.put(names::BF16, json!(workload.precision == Precision::Bf16));
    // 16 bits are what DeepSpeed takes where nothing is said.
    for (format, key) in
        [(workload.recipe.gradients, names::ACCUMULATION), (workload.recipe.reduced_gradients, names::COMMUNICATION)]
    {
        if format == GradientFormat::Fp32 {
            root.put(key, json!("fp32"));
        }
    }
    root.put(names::OPTIMIZER, json!("AdamW"));
    root.put(names::LEARNING_RATE, json!(of.learning_rate));
    root.put(names::BETAS, json!([of.beta1, of.beta2]));
    root.put(names::EPSILON, json!(of.epsilon));
    root.put(names::WEIGHT_DECAY, json!(of.weight_decay));
    if of.warmup_iterations > 0 {
        root.put(&["scheduler.type"], json!("WarmupLR"));
        root.put(names::WARMUP, json!(of.warmup_iterations));
        root.put(&["scheduler.params.warmup_max_lr"], json!(of.learning_rate));
    }
    zero(&mut root, plan);
    if plan.stages.iter().any(|stage| stage.recompute == Recompute::Full) {
        root.put(names::PARTITIONED, json!(false));
    }
    if plan.pipeline() > 1 {
        root.put(names::STAGES, json!(plan.pipeline()));
        root.put(&["pipeline.partition_method"], json!("uniform"));
    }
    if plan.tensor > 1 {
        root.put(names::TENSOR, json!(plan.tensor));
    }
    let mut text = serde_json::to_string_pretty(&Value::Object(root.keys)).unwrap_or_default();
    text.push('\n');
    Ok(text)
}

#[derive(Default)]
struct Root {
    keys: Map<String, Value>,
}

impl Root {
    /// Puts a value under the present spelling of a key.
    fn put(&mut self, key: names::Key, value: Value) {
        let mut parts: Vec<&str> = key[0].split('.').collect();
        let Some(last) = parts.pop() else { return };
        let mut here = &mut self.keys;
        for part in parts {
            let inner = here.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else { return };
            here = inner;
        }
        here.insert(last.to_owned(), value);
    }
}

fn zero(root: &mut Root, plan: &Plan) {
    root.put(names::ZERO, json!(plan.zero.number()));
    root.put(names::OVERLAP, json!(plan.overlap_gradients));
    if plan.zero == ZeroStage::Zero3 {
        let bucket = if plan.sharing.prefetch { 50_000_000 } else { 0 };
        root.put(names::PREFETCH, json!(bucket));
    }
    if let Some(shard) = plan.sharing.shard.filter(|shard| *shard < plan.replicas()) {
        root.put(names::SHARD, json!(shard));
    }
    for (offloads, key) in [
        (plan.sharing.offload_optimizer, names::OPTIMIZER_DEVICE),
        (plan.sharing.offload_parameters, names::PARAMETER_DEVICE),
    ] {
        if offloads {
            root.put(key, json!("cpu"));
        }
    }
}

fn refuse(refusals: &mut Refusals, model: &Model, workload: &Workload, plan: &Plan) {
    let precision = workload.precision;
    let odd = matches!(precision, Precision::Fp8 | Precision::Tf32);
    refusals.refuse_if(odd, "training.precision", precision.name(), "bf16, fp16 or fp32");
    refusals.refuse_if(plan.mesh.context > 1, "plan.context", "ranks that share sequences", "context = 1");
    refusals.refuse_if(
        plan.mesh.expert > 1,
        "plan.expert",
        "experts divided over ranks: the program decides",
        "expert = 1",
    );
    let apart = plan.mesh.expert_tensor > 1;
    refusals.refuse_if(apart, "plan.expert_tensor", "matrices of experts divided over ranks", "expert_tensor = 1");
    let piped = plan.pipeline() > 1;
    let ordered = plan.schedule == Schedule::OneForwardOneBackward && plan.chunks_per_stage() == 1;
    let name = plan.schedule.name();
    let words = if plan.chunks_per_stage() > 1 { "several chunks of a stage" } else { name };
    refusals.refuse_if(
        !ordered && (piped || plan.microbatches > 1),
        "plan.schedule",
        words,
        "1f1b with one chunk a stage",
    );
    let even = plan.stages.iter().all(|stage| stage.layers == plan.stages[0].layers);
    refusals.refuse_if(!even, "plan.stages", "stages of unlike layers", "equal stages");
    let short = plan.stages.iter().flat_map(|stage| &stage.layers).map(|layers| u64::from(*layers)).sum::<u64>();
    refusals.refuse_if(short != u64::from(model.layers), "plan.stages", "other layers than the model's", "all of them");
    let deep = matches!(plan.zero, ZeroStage::Zero2 | ZeroStage::Zero3) && piped;
    refusals.refuse_if(deep, "plan.zero", "ZeRO-2 or 3 with its pipeline", "zero = 1, or one stage");
    let sharing = plan.sharing;
    refusals.refuse_if(
        sharing.offload_activations,
        "plan.offload",
        "activations in host memory",
        "recompute = \"full\"",
    );
    let hint = "false";
    refusals.refuse_if(
        sharing.overlap_parameters,
        "plan.overlap_parameters",
        "stepped parameters gathered beside the next iteration",
        hint,
    );
    refusals.refuse_if(sharing.overlap_tensor, "plan.overlap_tensor", "tensor collectives in pieces", hint);
    let first = plan.stages.first().map(|stage| (stage.recompute, stage.recompute_layers));
    let alike = plan.stages.iter().all(|stage| Some((stage.recompute, stage.recompute_layers)) == first);
    let told = matches!(first, Some((Recompute::None | Recompute::Full, None)));
    refusals.refuse_if(
        !alike || !told,
        "plan.recompute",
        "recomputation of a part: the program decides",
        "none or full",
    );
    let ends = sharing.shard == Some(1);
    refusals.refuse_if(ends && plan.replicas() > 1, "plan.shard", "state divided over one replica", "all, or more");
}

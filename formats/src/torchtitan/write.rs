//! A plan as the configuration that makes torchtitan carry it out.

use std::fmt::Write as _;

use ir::{
    AttentionKernel, ContextMethod, GradientFormat, Model, Plan, Precision, Problem, Recompute, Schedule, Vee,
    VeeMemory, Workload, ZeroStage,
};

use super::names;
use super::split::ruled;
use crate::refusals::Refusals;
use crate::training::Tool;

/// The configuration of a model, its training and its division, as TOML. [`crate::training::read`] reads it back to the
/// same values, but for switches of the training software ([`ir::Recipe`]) and the padding of the vocabulary, which
/// torchtitan has its own way. Tokenizer, data, logs and checkpoints are left to the person. `flavour` is
/// [`super::flavour`] of the model.
///
/// # Errors
/// Everything that torchtitan has no key for, by name.
pub fn overrides(
    model: &Model,
    flavour: Option<(&str, &str)>,
    workload: &Workload,
    plan: &Plan,
) -> Result<String, Vec<Problem>> {
    let mut refusals = Refusals::new(Tool::Torchtitan);
    refusals.common(workload, plan);
    if flavour.is_none() {
        let known: Vec<&str> = names::FLAVOURS.iter().map(|(_, _, name)| *name).collect();
        let message = format!("it trains models by their names, and {} is none of them", model.name);
        refusals.refuse("model", &message, &format!("one of {}", known.join(", ")));
    }
    refuse_workload(&mut refusals, workload);
    refuse_plan(&mut refusals, plan);
    let mut lines = Lines::default();
    lines.table("model");
    let (family, word) = flavour.unwrap_or_default();
    lines.text(names::NAME, family);
    lines.text(names::FLAVOUR, word);
    if workload.precision == Precision::Fp8 {
        lines.line(names::CONVERTERS, "[\"float8\"]");
    }
    optimizer(&mut lines, workload);
    training(&mut lines, workload, plan);
    parallelism(&mut lines, &mut refusals, model, plan);
    recomputation(&mut lines, &mut refusals, plan);
    compilation(&mut lines, workload);
    if refusals.problems.is_empty() { Ok(lines.out) } else { Err(refusals.problems) }
}

/// Lines of a configuration.
#[derive(Default)]
struct Lines {
    out: String,
}

impl Lines {
    fn table(&mut self, name: &str) {
        let blank = if self.out.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.out, "{blank}[{name}]");
    }
    /// The last part of the key's present spelling, and a value as TOML has it.
    fn line(&mut self, key: names::Key, value: impl std::fmt::Display) {
        let last = key[0].rsplit('.').next().unwrap_or(key[0]);
        let _ = writeln!(self.out, "{last} = {value}");
    }
    fn text(&mut self, key: names::Key, value: &str) {
        self.line(key, format_args!("\"{value}\""));
    }
    fn number(&mut self, key: names::Key, value: f64) {
        self.line(key, format_args!("{value:?}"));
    }
}

/// Its orders, with the name for the usual number of chunks.
const KNOWN: [(Schedule, &str); 4] = [
    (Schedule::GPipe, "GPipe"),
    (Schedule::OneForwardOneBackward, "1F1B"),
    (Schedule::Vee(Vee::unprofiled(VeeMemory::Full)), "ZBVZeroBubble"),
    (Schedule::DualPipeV, "DualPipeV"),
];

fn refuse_workload(refusals: &mut Refusals, workload: &Workload) {
    let precision = workload.precision;
    let odd = matches!(precision, Precision::Fp16 | Precision::Tf32);
    refusals.refuse_if(odd, "training.precision", precision.name(), "bf16, fp8 or fp32");
    let plain = workload.attention == AttentionKernel::Plain;
    refusals.refuse_if(plain, "training.attention", "attention with its scores in memory", "fused");
    let large = workload.seed > u64::from(u32::MAX);
    refusals.refuse_if(large, "seed", "a seed over 32 bits", "a smaller one");
}

fn refuse_plan(refusals: &mut Refusals, plan: &Plan) {
    let (sharing, replicas) = (plan.sharing, plan.replicas());
    match plan.zero {
        ZeroStage::Zero0 => {
            let divided = plan.mesh.context > 1;
            let hint = "zero = 2 or 3: ranks that share sequences divide parameters";
            refusals.refuse_if(divided, "plan.zero", "whole parameters on ranks that share sequences", hint);
        }
        ZeroStage::Zero1 => refusals.refuse("plan.zero", "ZeRO-1: FSDP divides gradients too", "zero = 2 or 3"),
        ZeroStage::Zero2 | ZeroStage::Zero3 => {
            refusals.refuse_if(replicas == 1, "plan.zero", "state divided over one replica", "zero = 0");
        }
    }
    let hybrid = sharing.shard.filter(|shard| *shard < replicas);
    let odd = hybrid.is_some_and(|shard| !shard.is_multiple_of(plan.mesh.context) || shard == 1);
    refusals.refuse_if(odd, "plan.shard", "groups that cut through ranks of one sequence", "a multiple of context");
    let late = !plan.overlap_gradients && replicas > 1;
    refusals.refuse_if(late, "plan.overlap_gradients", "gradients reduced after all passes", "true");
    let behind = plan.zero == ZeroStage::Zero3 && !sharing.prefetch;
    refusals.refuse_if(behind, "plan.prefetch", "parameters that are not gathered ahead", "true");
    let behind = plan.zero == ZeroStage::Zero2 && !sharing.overlap_parameters;
    refusals.refuse_if(behind, "plan.overlap_parameters", "parameters gathered after the step", "true");
    refusals.refuse_if(
        sharing.offload_activations,
        "plan.offload",
        "activations in host memory",
        "recompute = \"full\"",
    );
    let one = sharing.offload_optimizer != sharing.offload_parameters;
    refusals.refuse_if(one, "plan.offload", "optimizer or parameters alone in host memory", "both");
    let exchanged = plan.mesh.context > 1 && plan.mesh.context_method == ContextMethod::AllToAll;
    refusals.refuse_if(exchanged, "plan.context_method", "heads exchanged for tokens", "ring or all-gather");
    let alone = plan.pipeline() == 1;
    refusals.refuse_if(alone && plan.chunks_per_stage() > 1, "plan.chunks_per_stage", "chunks of the only stage", "1");
    let other = !KNOWN.iter().any(|(schedule, _)| *schedule == plan.schedule);
    let unpiped = alone && plan.schedule == Schedule::GPipe && plan.microbatches > 1;
    refusals.refuse_if(unpiped, "plan.schedule", "all forward passes first without a pipeline", "1f1b");
    let hint = "1f1b, interleaved or gpipe; of orders that split backward passes zero-bubble-v or dualpipe-v";
    refusals.refuse_if(other, "plan.schedule", plan.schedule.name(), hint);
}

fn optimizer(lines: &mut Lines, workload: &Workload) {
    let of = workload.optimizer;
    lines.table("optimizer");
    lines.text(names::OPTIMIZER, "AdamW");
    lines.number(names::LEARNING_RATE, of.learning_rate);
    lines.number(names::BETA1, of.beta1);
    lines.number(names::BETA2, of.beta2);
    lines.number(names::EPSILON, of.epsilon);
    lines.number(names::WEIGHT_DECAY, of.weight_decay);
    lines.table("lr_scheduler");
    lines.line(names::WARMUP, of.warmup_iterations);
}

fn training(lines: &mut Lines, workload: &Workload, plan: &Plan) {
    lines.table("training");
    let local =
        if plan.pipeline() > 1 { plan.microbatch_size.saturating_mul(plan.microbatches) } else { plan.microbatch_size };
    lines.line(names::LOCAL_BATCH, local);
    lines.line(names::GLOBAL_BATCH, workload.global_batch);
    lines.line(names::SEQUENCE, workload.sequence_length);
    lines.number(names::MAX_NORM, workload.optimizer.clip_norm.unwrap_or(0.0));
    lines.line(names::STEPS, workload.iterations);
    let parameters = if workload.precision == Precision::Fp32 { "float32" } else { "bfloat16" };
    lines.text(names::PARAMETERS, parameters);
    let reduced = match workload.recipe.reduced_gradients {
        GradientFormat::Fp32 => "float32",
        GradientFormat::Half => "bfloat16",
    };
    lines.text(names::REDUCTION, reduced);
    lines.line(names::CPU_OFFLOAD, plan.sharing.offload_parameters);
    lines.table("debug");
    lines.line(names::SEED, workload.seed);
}

fn parallelism(lines: &mut Lines, refusals: &mut Refusals, model: &Model, plan: &Plan) {
    let pipeline = plan.pipeline();
    let replicas = plan.replicas();
    let shard =
        plan.sharing.shard.filter(|shard| *shard < replicas && plan.zero != ZeroStage::Zero0).unwrap_or(replicas);
    let replicate = if plan.zero == ZeroStage::Zero0 { plan.data } else { replicas / shard.max(1) };
    lines.table("parallelism");
    lines.line(names::REPLICATE, replicate);
    lines.line(names::SHARD, plan.data / replicate.max(1));
    let reshard = match (plan.zero, pipeline > 1) {
        (ZeroStage::Zero2, false) => "never",
        (ZeroStage::Zero3, true) => "always",
        _ => "default",
    };
    lines.text(names::RESHARD, reshard);
    lines.line(names::TENSOR, plan.tensor);
    lines.line(names::ASYNC_TENSOR, plan.sharing.overlap_tensor);
    lines.line(names::CONTEXT, plan.mesh.context);
    let rotation = match plan.mesh.context_method {
        ContextMethod::AllGather => "allgather",
        ContextMethod::Ring | ContextMethod::AllToAll => "alltoall",
    };
    lines.text(names::ROTATION, rotation);
    if model.variants.experts.is_some() {
        lines.line(names::EXPERT, plan.mesh.expert);
        lines.line(names::EXPERT_TENSOR, plan.mesh.expert_tensor);
    }
    lines.line(names::PIPELINE, pipeline);
    if pipeline == 1 {
        return;
    }
    let chunks = plan.chunks_per_stage();
    let (schedule, usual) = match (&plan.schedule, chunks) {
        (Schedule::GPipe, 2..) => ("LoopedBFS", 2),
        (Schedule::OneForwardOneBackward, 2..) => ("Interleaved1F1B", 2),
        (schedule, _) => {
            let known = KNOWN.iter().find(|(known, _)| known == schedule);
            (known.map_or("1F1B", |(_, name)| name), schedule.usual_chunks())
        }
    };
    lines.text(names::SCHEDULE, schedule);
    lines.line(names::MICROBATCH, plan.microbatch_size);
    let place = |chunk: u32| (plan.schedule.position(chunk, pipeline) as usize, (chunk / pipeline) as usize);
    let layers = |(position, slot): (usize, usize)| plan.stages[position].layers.get(slot).copied().unwrap_or(0);
    let all: Vec<u32> = (0..pipeline * chunks).map(|chunk| layers(place(chunk))).collect();
    if chunks == usual && ruled(model.layers, pipeline * chunks, (1, 1)).as_ref() == Some(&all) {
        return;
    }
    if all.iter().map(|layers| u64::from(*layers)).sum::<u64>() == u64::from(model.layers) {
        lines.line(names::PARTS, parts(&all));
    } else {
        refusals.refuse("plan.stages", "stages that hold other layers than the model's", "all layers of the model");
    }
}

/// Modules of each stage, by name.
fn parts(layers: &[u32]) -> String {
    let mut next = 0;
    let mut out = String::from("[\n");
    for (index, count) in layers.iter().enumerate() {
        let mut modules: Vec<String> = (next..next + count).map(|layer| format!("\"layers.{layer}\"")).collect();
        next += count;
        if index == 0 {
            modules.insert(0, "\"tok_embeddings\"".to_owned());
        }
        if index + 1 == layers.len() {
            modules.extend(["\"norm\"".to_owned(), "\"output\"".to_owned()]);
        }
        let _ = writeln!(out, "    [{}],", modules.join(", "));
    }
    out.push(']');
    out
}

fn recomputation(lines: &mut Lines, refusals: &mut Refusals, plan: &Plan) {
    lines.table("activation_checkpoint");
    let first = plan.stages.first().map(|stage| stage.recompute).unwrap_or(Recompute::None);
    let every = every(plan);
    let whole = plan.stages.iter().all(|stage| stage.recompute == first && stage.recompute_layers.is_none());
    match (first, whole, every) {
        (Recompute::None, true, _) => lines.text(names::CHECKPOINTING, "none"),
        (Recompute::Full, true, _) => lines.text(names::CHECKPOINTING, "full"),
        (Recompute::Operations, true, _) => {
            lines.text(names::CHECKPOINTING, "selective");
            lines.text(names::SELECTION, "op");
        }
        (Recompute::Selective, true, _) => {
            let hint = "operations, full or none";
            refusals.refuse("plan.recompute", "recomputation of the core of attention alone", hint);
        }
        (_, _, Some(every)) => {
            lines.text(names::CHECKPOINTING, "selective");
            lines.text(names::SELECTION, &every.to_string());
        }
        _ => {
            let hint = "one way for all stages: all layers, or every n-th";
            refusals.refuse("plan.recompute_layers", "recomputation of other layers than every n-th", hint);
        }
    }
}

/// The n for which every n-th layer is what a plan recomputes.
fn every(plan: &Plan) -> Option<u32> {
    let most = plan.stages.iter().flat_map(|stage| &stage.layers).copied().max()?;
    (2..=most).find(|every| {
        plan.stages.iter().all(|stage| {
            let exact = stage.layers.len() == 1 || stage.layers.iter().all(|layers| layers.is_multiple_of(*every));
            let counts: Vec<u32> = stage.layers.iter().map(|layers| layers / every).collect();
            let alike = counts.iter().all(|count| *count == counts[0]);
            let wanted = match (stage.recompute, stage.recompute_layers) {
                (Recompute::None, None) => Some(0),
                (Recompute::Full, Some(layers)) => Some(layers),
                _ => None,
            };
            exact && alike && wanted == counts.first().copied()
        })
    })
}

fn compilation(lines: &mut Lines, workload: &Workload) {
    let recipe = workload.recipe;
    let (model, loss) = (recipe.fused_normalisation && recipe.fused_activation, recipe.fused_loss);
    lines.table("compile");
    lines.line(names::COMPILE, model || loss);
    match (model, loss) {
        (true, false) => lines.line(names::COMPONENTS, "[\"model\"]"),
        (false, true) => lines.line(names::COMPONENTS, "[\"loss\"]"),
        _ => {}
    }
}

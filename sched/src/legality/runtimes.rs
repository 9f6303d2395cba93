//! What the software that people train with refuses, of plans that can be carried out: legality is per runtime.

use ir::{Backward, Mixer, Model, Plan, Problem, Recompute, Workload, ZeroStage};

/// Software that trains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Runtime {
    /// Megatron-LM (Megatron-Core).
    Megatron,
    /// DeepSpeed.
    DeepSpeed,
    /// torchtitan.
    Torchtitan,
}

impl Runtime {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Megatron, Self::DeepSpeed, Self::Torchtitan];
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "Megatron-LM",
            Self::DeepSpeed => "DeepSpeed",
            Self::Torchtitan => "torchtitan",
        }
    }
}

/// Every reason why a runtime would refuse a plan that [`super::legal`] allows; empty if it knows of none.
///
/// The rules are those that the runtimes check or that their maintainers state; a runtime may have others, and versions
/// differ.
#[must_use]
pub fn refused_by(runtime: Runtime, plan: &Plan, model: &Model, workload: &Workload) -> Vec<Problem> {
    let mut found = Vec::from_iter(unequal_shares(runtime, plan).into_iter().chain(unlike_tensors(runtime, plan)));
    let mut refuse = |subject: &str, message: String, hint: &str| {
        found.push(Problem::new(subject, format!("{}: {message}", runtime.name())).hint(hint));
    };
    let (pipeline, stage) = (plan.pipeline(), plan.zero.number());
    let deep_sharding = matches!(plan.zero, ZeroStage::Zero2 | ZeroStage::Zero3);
    if !plan.sharing.vocabulary.is_ends() {
        let message = format!("it does not divide a vocabulary over stages ({})", plan.sharing.vocabulary.name());
        refuse("plan.sharing.vocabulary", message, "its fork by Yeung et al. 2024 does, or vocabulary = \"ends\"");
    }
    let recomputes = plan.stages.iter().any(|stage| stage.recompute != Recompute::None);
    match runtime {
        Runtime::Megatron => {
            if deep_sharding {
                let message = format!("its distributed optimizer is ZeRO-1, not ZeRO-{stage}");
                refuse("plan.zero", message, "ZeRO-1, or its separate FSDP wrapper");
            }
            if plan.sharing.offload_activations && pipeline > 1 {
                let message = "CPU offloading does not work with pipeline parallelism".to_owned();
                refuse("plan.sharing.offload_activations", message, "one stage, or recomputation instead");
            }
            if plan.sharing.offload_activations && recomputes {
                let message = "CPU offloading and recomputation exclude each other".to_owned();
                refuse("plan.sharing.offload_activations", message, "one of the two");
            }
            if plan.sharing.overlap_parameters && !plan.overlap_gradients {
                let message = "overlapped parameter gathers need overlapped gradient reduction".to_owned();
                refuse("plan.sharing.overlap_parameters", message, "overlap_gradients = true");
            }
            if plan.mesh.context > 1 && !workload.sequence_length.is_multiple_of(2 * plan.mesh.context) {
                let message = "the sequence divides by twice the context degree, whatever the method".to_owned();
                refuse("training.sequence_length", message, "pad sequences");
            }
            if plan.chunks_per_stage() > 1 && !plan.microbatches.is_multiple_of(pipeline) {
                let message =
                    format!("{} microbatches do not divide by {pipeline} stages when interleaved", plan.microbatches);
                refuse("plan.microbatches", message, "a multiple of the stages");
            }
        }
        Runtime::DeepSpeed => {
            if deep_sharding && pipeline > 1 {
                let message = format!("ZeRO-{stage} is incompatible with its pipeline parallelism");
                refuse("plan.zero", message, "ZeRO-1 with a pipeline, or one stage");
            }
            if plan.chunks_per_stage() > 1 || plan.schedule.backward() != Backward::Whole {
                let message = "its pipeline runs 1F1B with one chunk a stage".to_owned();
                refuse("plan.schedule", message, "1F1B");
            }
            if plan.mesh.context > 1 && plan.mesh.context_method != ir::ContextMethod::AllToAll {
                let message = "it exchanges heads for tokens (Ulysses), not keys and values".to_owned();
                refuse("plan.mesh.context_method", message, "all-to-all");
            }
        }
        Runtime::Torchtitan => {
            if plan.zero == ZeroStage::Zero1 {
                let message = "it shards by FSDP: gradients too (ZeRO-2) or all (ZeRO-3)".to_owned();
                refuse("plan.zero", message, "ZeRO-2 or 3");
            }
            if plan.tensor > 1 && !plan.sequence_parallel {
                let message = "its tensor parallelism always divides activations along the sequence".to_owned();
                refuse("plan.sequence_parallel", message, "sequence_parallel = true");
            }
            if model.runs().any(|run| matches!(run.mixer, Mixer::Mamba | Mixer::GatedDelta)) {
                let message = "it has no layers of that kind".to_owned();
                refuse("model.pattern", message, "another runtime");
            }
        }
    }
    found
}

/// All of them have one tensor degree for all stages.
fn unlike_tensors(runtime: Runtime, plan: &Plan) -> Option<Problem> {
    let message = format!("{}: all stages have one tensor degree, not {}", runtime.name(), super::unlike::shown(plan));
    let problem = || Problem::new("plan.tensor", message).hint("one number for all of them");
    plan.has_unlike_tensors().then(problem)
}

/// All of them give every replica as much.
fn unequal_shares(runtime: Runtime, plan: &Plan) -> Option<Problem> {
    let message = format!("{}: all replicas take equally many microbatches, not {}", runtime.name(), plan.shares);
    let problem = || Problem::new("plan.microbatches", message).hint("one number for all of them");
    (!plan.shares.are_equal()).then(problem)
}

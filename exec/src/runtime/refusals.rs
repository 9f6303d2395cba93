//! What the CPU executor does not do, said of a program before it is loaded.
//!
//! Whatever passes [`of`] is carried out as written. The arms that the executor has for other values of the vocabulary
//! (logits of the whole vocabulary, …) are therefore never reached; they panic with ids, as bugs do.

use std::collections::BTreeMap;

use ir::program::{CollectiveKind, HostCopy, Op, Payload, UnitTensor};
use ir::{
    AttentionKernel, BranchNorms, ContextMethod, FeedForward, GradientFormat, InstructionId, Mixer, ParallelBranches,
    Positions, Precision, Problem, Program, QueryKeyNorm, Recompute, RoleId, ZeroStage,
};

use crate::device::{AttentionTensors, BufferId, Devices, Element, Operation, Slice};
use crate::kernels::attention::Attention;

/// A norm after a branch reads all of it, and no instruction stands where it is whole.
const DIVIDED_BRANCH: &str = "norm after a branch whose sum tensor ranks share";

/// Every reason why the executor cannot carry out a program, whatever the machine.
pub(super) fn of(program: &Program) -> Vec<Problem> {
    let mut problems = workload(program);
    problems.extend(recipe(program));
    problems.extend(model(program));
    problems.extend(division(program));
    problems.extend(sequences(program));
    problems.extend(experts(program));
    problems.extend(sharing(program));
    problems.extend(together(program));
    problems.extend(instructions(program));
    problems
}

/// What devices do not carry out of what the CPU does.
pub(super) fn on_devices(program: &Program, devices: &dyn Devices) -> Vec<Problem> {
    let workload = &program.workload;
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, what: &str| {
        if asked {
            let hint = "let the CPU compute, or simulate it";
            problems.push(Problem::new(key, format!("no device carries out {what}")).hint(hint));
        }
    };
    refuse(program.model.variants.experts.is_some(), "model.experts", "experts");
    let halved = workload.precision == Precision::Bf16 && workload.recipe.gradients == GradientFormat::Half;
    refuse(halved, "training.gradients", "sums of gradients in half precision");
    if let Some(why) = devices.unsupported(&attention(program)) {
        problems.push(Problem::new("model.head_dim", why).hint("let the CPU compute, or simulate it"));
    }
    problems
}

/// The attention of a model, of which a device looks at the sizes.
fn attention(program: &Program) -> Operation {
    let (model, workload) = (&program.model, &program.workload);
    let element = if workload.precision == Precision::Bf16 { Element::Bf16 } else { Element::F32 };
    let nothing = Slice { buffer: BufferId(0), element, start: 0, length: 0 };
    let tensors = AttentionTensors { q: nothing, k: nothing, v: nothing, out: nothing, lse: nothing, starts: None };
    let [length, heads, key_heads, head_dim] =
        [workload.sequence_length, model.heads, model.kv_heads, model.head_dim].map(|n| n as usize);
    Operation::AttentionForward { shape: Attention::new(1, length, heads, key_heads, head_dim), tensors }
}

fn workload(program: &Program) -> Vec<Problem> {
    let (workload, model) = (&program.workload, &program.model);
    let mut problems = Vec::new();
    match workload.precision {
        Precision::Fp32 | Precision::Bf16 => {}
        Precision::Tf32 | Precision::Fp16 | Precision::Fp8 => {
            let message = format!("the CPU executor trains in fp32 or bf16, not in {}", workload.precision.name());
            problems.push(Problem::new("training.precision", message).hint("set precision = \"bf16\""));
        }
    }
    match workload.attention {
        AttentionKernel::Fused => {}
        AttentionKernel::Plain => {
            let message = "the CPU executor's attention is fused: it keeps no scores";
            problems.push(Problem::new("training.attention", message).hint("set attention = \"fused\""));
        }
    }
    match model.positions {
        Positions::Learned { maximum } if maximum < workload.sequence_length => {
            let message = format!("a sequence of {} tokens outruns {maximum} positions", workload.sequence_length);
            problems.push(Problem::new("training.sequence_length", message).hint("shorten the sequence"));
        }
        Positions::Rope { .. } if !model.head_dim.is_multiple_of(2) => {
            let message = format!("rotary positions turn pairs, and a head has {} elements", model.head_dim);
            problems.push(Problem::new("model.head_dim", message));
        }
        Positions::Learned { .. } | Positions::Rope { .. } | Positions::None => {}
    }
    problems
}

fn division(program: &Program) -> Vec<Problem> {
    let (workload, model, layout) = (&program.workload, &program.model, &program.layout);
    let mut problems = Vec::new();
    let sequences = layout.sequences();
    if sequences != u128::from(workload.global_batch) {
        let shares = if layout.shares.are_equal() {
            format!("{} replicas x {} microbatches", layout.data, layout.microbatches)
        } else {
            format!("{} microbatches", layout.shares)
        };
        let message = format!(
            "{shares} x {} sequences are {sequences}, not the global batch of {}",
            layout.microbatch_size, workload.global_batch
        );
        problems.push(Problem::new("plan.microbatches", message));
    }
    let mut divides = |what: &str, size: u64| {
        let tensors = (0..layout.pipeline).map(|position| layout.tensor_at(position));
        if let Some(tensor) = tensors.into_iter().find(|tensor| !size.is_multiple_of(u64::from(*tensor))) {
            let message = format!("{size} {what} do not divide over {tensor} tensor ranks");
            problems.push(Problem::new("plan.tensor", message));
        }
    };
    divides("query heads", u64::from(model.heads));
    divides("key and value heads", u64::from(model.kv_heads));
    divides("columns of the feed-forward part", u64::from(model.ffn));
    if layout.sequence_parallel {
        divides("tokens of a microbatch", program.microbatch_tokens());
    }
    problems
}

/// What the context axis must divide.
fn sequences(program: &Program) -> Vec<Problem> {
    let (layout, model, length) = (&program.layout, &program.model, program.workload.sequence_length);
    let (degree, method) = (layout.mesh.context, layout.mesh.context_method);
    let mut problems = Vec::new();
    let parts = match method {
        ContextMethod::Ring | ContextMethod::AllGather if degree > 1 => 2 * degree,
        ContextMethod::Ring | ContextMethod::AllGather | ContextMethod::AllToAll => degree,
    };
    if !length.is_multiple_of(parts) {
        let message = format!("sequences of {length} tokens do not divide into {parts} parts for context {degree}");
        problems.push(Problem::new("plan.mesh.context", message));
    }
    let exchanged = layout.tensor * if method == ContextMethod::AllToAll { degree } else { 1 };
    for (what, heads) in [("query heads", model.heads), ("key and value heads", model.kv_heads)] {
        if degree > 1 && !heads.is_multiple_of(exchanged) {
            let message =
                format!("{heads} {what} over {} tensor ranks do not divide over context {degree}", layout.tensor);
            problems.push(Problem::new("plan.mesh.context_method", message).hint("send keys and values round: ring"));
        }
    }
    problems
}

/// What the expert axes must divide.
fn experts(program: &Program) -> Vec<Problem> {
    let (layout, mesh) = (&program.layout, program.layout.mesh);
    let mut problems = Vec::new();
    let Some(experts) = program.model.variants.experts else {
        let mut routed = program.model.runs().filter(|run| run.feed_forward == FeedForward::Experts);
        if routed.any(|run| run.layers > 0) {
            problems.push(Problem::new("model.experts", "layers of experts have no sizes"));
        }
        if mesh.expert * mesh.expert_tensor != 1 {
            problems.push(Problem::new("plan.mesh.expert", "the model has no experts to divide").hint("set it to 1"));
        }
        return problems;
    };
    let mut divides = |key: &str, what: &str, size: u32, ranks: u32| {
        if !size.is_multiple_of(ranks) {
            problems
                .push(Problem::new(format!("plan.{key}"), format!("{size} {what} do not divide over {ranks} ranks")));
        }
    };
    divides("mesh.expert", "experts", experts.count, mesh.expert);
    divides("mesh.expert_tensor", "columns of an expert", experts.ffn, mesh.expert_tensor);
    divides("tensor", "columns of the shared experts", experts.shared_ffn, layout.tensor);
    divides("mesh.expert", "ranks of a stage", layout.per_position(), mesh.expert * mesh.expert_tensor);
    if layout.tensor > 1 && !layout.sequence_parallel {
        let message = format!("without it all {} tensor ranks would send each token to its experts", layout.tensor);
        problems.push(Problem::new("plan.sequence_parallel", message).hint("set it to true"));
    }
    if program.workload.recipe.deduplicated_dispatch {
        let message = "the CPU executor sends a copy of a token to each of its experts";
        problems.push(Problem::new("training.deduplicated_dispatch", message).hint("set it to false"));
    }
    problems
}

/// Switches that change what is computed, or how fast it would be: none of them is emulated.
fn recipe(program: &Program) -> Vec<Problem> {
    let plain = ir::Recipe::default();
    let asked = program.workload.recipe;
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, message: &str, hint: &str| {
        if asked {
            problems.push(Problem::new(format!("training.{key}"), message).hint(hint));
        }
    };
    let fused = "the CPU executor has one kernel for it, and no elementary ones";
    let switch = "leave it at true";
    refuse(asked.fused_normalisation != plain.fused_normalisation, "fused_normalisation", fused, switch);
    refuse(asked.fused_softmax != plain.fused_softmax, "fused_softmax", fused, switch);
    refuse(asked.fused_loss != plain.fused_loss, "fused_loss", fused, switch);
    refuse(asked.fused_activation != plain.fused_activation, "fused_activation", fused, switch);
    let held = "the CPU executor holds logits until their gradient is found";
    refuse(asked.logits != plain.logits, "logits", held, "set logits = \"held\"");
    let sharded = "the CPU executor's loss stays divided over the vocabulary";
    refuse(asked.sharded_loss != plain.sharded_loss, "sharded_loss", sharded, switch);
    let early = "the CPU executor recomputes a layer to its end";
    let stops = asked.early_stop_recompute != plain.early_stop_recompute;
    refuse(stops, "early_stop_recompute", early, "set it to false");
    let scattered = "the CPU executor sends whole messages between stages";
    let scatters = asked.scattered_messages != plain.scattered_messages;
    refuse(scatters, "scattered_messages", scattered, "set it to false");
    let blocking = "messages of the CPU executor go beside passes";
    refuse(asked.blocking_messages != plain.blocking_messages, "blocking_messages", blocking, "set it to false");
    let graphs = "a CPU has no CUDA graphs";
    refuse(asked.cuda_graphs != plain.cuda_graphs, "cuda_graphs", graphs, "set cuda_graphs = false");
    let packed = "the CPU executor packs the documents that it is given, which are not of one length";
    let hint = "leave it out, and set packing = \"documents\" of the data";
    refuse(asked.document_length != plain.document_length, "document_length", packed, hint);
    problems
}

/// What layers may have beyond plain attention and a dense feed-forward part.
fn model(program: &Program) -> Vec<Problem> {
    let model = &program.model;
    let asked = &model.variants;
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, what: &str| {
        if asked {
            let message = format!("the CPU executor has no {what}");
            problems.push(Problem::new(format!("model.{key}"), message).hint("simulate it"));
        }
    };
    let has = |mixer| model.runs().any(|run| run.mixer == mixer && run.layers > 0);
    refuse(has(Mixer::Latent) || asked.latent.is_some(), "latent", "latent attention");
    refuse(has(Mixer::Mamba) || asked.mamba.is_some(), "mamba", "selective state space");
    refuse(has(Mixer::GatedDelta) || asked.delta.is_some(), "delta", "gated delta rule");
    refuse(asked.gated_attention, "gated_attention", "gate of the attention output");
    refuse(asked.attention_sinks, "attention_sinks", "attention sinks");
    let tensor = program.layout.tensor;
    let together = asked.branch_norms != BranchNorms::Before && asked.parallel_branches != ParallelBranches::No;
    refuse(together, "branch_norms", "norms after branches that run side by side");
    refuse(asked.branch_norms != BranchNorms::Before && tensor > 1, "branch_norms", DIVIDED_BRANCH);
    let summed = asked.parallel_branches != ParallelBranches::No && tensor > 1;
    refuse(summed, "parallel_branches", "branches side by side that tensor ranks sum together");
    let wide = asked.query_key_norm == QueryKeyNorm::Width && tensor > 1;
    refuse(wide, "query_key_norm", "norm over all heads where tensor ranks divide them");
    problems
}

/// How training state is divided, and what runs beside what.
fn sharing(program: &Program) -> Vec<Problem> {
    let sharing = program.layout.sharing;
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, message: String, hint: &str| {
        if asked {
            problems.push(Problem::new(format!("plan.{key}"), message).hint(hint));
        }
    };
    let serial = |what: &str| format!("the CPU executor does not run {what} beside compute");
    refuse(sharing.overlap_tensor, "overlap_tensor", serial("tensor collectives"), "set it to false");
    refuse(sharing.overlap_experts, "overlap_experts", serial("the exchange of experts"), "set it to false");
    let kept = "the CPU executor does not keep parameters in host memory".to_owned();
    refuse(sharing.offload_parameters, "offload", kept, "leave \"parameters\" out");
    let slices = "the CPU executor does not divide the vocabulary over pipeline positions".to_owned();
    refuse(!sharing.vocabulary.is_ends(), "vocabulary", slices, "leave it out");
    let by_operation = program.chunks.iter().any(|chunk| chunk.recompute == Recompute::Operations);
    let message = format!(
        "the CPU executor computes single operations again on whole layers, not on those of {} tensor ranks",
        program.layout.tensor
    );
    let hint = "set recompute = \"selective\" or \"full\"";
    refuse(by_operation && program.layout.tensor > 1, "recompute", message, hint);
    problems
}

/// What the executor does alone, and not together with experts or sequences that ranks share.
fn together(program: &Program) -> Vec<Problem> {
    let (layout, asked) = (&program.layout, &program.model.variants);
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, message: &str, hint: &str| {
        if asked {
            problems.push(Problem::new(key, message).hint(hint));
        }
    };
    let (experts, shared) = (asked.experts.is_some(), layout.mesh.context > 1);
    let by_operation = program.chunks.iter().any(|chunk| chunk.recompute == Recompute::Operations);
    let again = "set recompute = \"selective\" or \"full\"";
    let message = "the CPU executor computes no single operations again in models with experts";
    refuse(experts && by_operation, "plan.recompute", message, again);
    let message = "the CPU executor computes no single operations again where context ranks share sequences";
    refuse(shared && by_operation, "plan.recompute", message, again);
    let kept = "the CPU executor does not move what layers of experts keep to host memory";
    refuse(experts && layout.sharing.offload_activations, "plan.offload", kept, "leave \"activations\" out");
    let beside = "the CPU executor has no experts beside attention";
    let side_by_side = asked.parallel_branches != ParallelBranches::No;
    refuse(experts && side_by_side, "model.parallel_branches", beside, "simulate it");
    let after = "the CPU executor has no norm after experts";
    refuse(experts && asked.branch_norms != BranchNorms::Before, "model.branch_norms", after, "simulate it");
    // The gradient's norm would add up over the ranks of one replica, and those hold only parts of their experts' gradients.
    let apart = layout.zero != ZeroStage::Zero0 && layout.shard() == 1 && layout.expert_shard() > 1 && layout.data > 1;
    let whole = "the CPU executor does not divide the state of experts alone";
    refuse(experts && apart, "plan.shard", whole, "leave it out, or set zero = 0");
    problems
}

/// Instructions that no lowering gives for what the other refusals leave; one problem for each kind of them.
fn instructions(program: &Program) -> Vec<Problem> {
    let mut found: BTreeMap<String, (u32, RoleId, InstructionId)> = BTreeMap::new();
    for (role_index, role) in program.roles.iter().enumerate() {
        for (index, instruction) in role.instructions().iter().enumerate() {
            if let Some(what) = refused(instruction.op) {
                let first = (0, RoleId::at(role_index), InstructionId::at(index));
                found.entry(what).or_insert(first).0 += 1;
            }
        }
    }
    let problem = |(what, (count, role, id)): (String, (u32, RoleId, InstructionId))| {
        let message = format!("the CPU executor carries out no {what}; {count} of them, the first {id} of {role}");
        Problem::new("program", message)
    };
    found.into_iter().map(problem).collect()
}

/// What an operation is, if the executor does not carry it out.
fn refused(op: Op) -> Option<String> {
    match op {
        Op::Compute { .. }
        | Op::Send { .. }
        | Op::Receive { .. }
        | Op::GradientNorm
        | Op::Optimizer
        | Op::HostCopy { what: HostCopy::Activations { .. } | HostCopy::OptimizerState, .. } => None,
        Op::HostCopy { what: HostCopy::Parameters { .. }, .. } => Some("copy of parameters to host memory".to_owned()),
        Op::Collective { kind, payload, .. } => {
            let (of, known): (&str, &[CollectiveKind]) = payload_kinds(payload);
            (!known.contains(&kind)).then(|| format!("{} of {of}", kind.name()))
        }
    }
}

/// A payload in words, and the collectives of it that the executor carries out.
const fn payload_kinds(payload: Payload) -> (&'static str, &'static [CollectiveKind]) {
    use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    const SUMS: &[CollectiveKind] = &[AllReduce, ReduceScatter];
    match payload {
        Payload::Activation { tensor, .. } => match tensor {
            UnitTensor::Output => ("outputs", SUMS),
            UnitTensor::InputGradient => ("input gradients", SUMS),
            UnitTensor::Input => ("inputs", &[AllGather]),
            UnitTensor::OutputGradient => ("output gradients", &[AllGather]),
            UnitTensor::LossStatistics => ("loss statistics", &[AllGather]),
            UnitTensor::Logits => ("logits", &[]),
            UnitTensor::KeysAndValues => ("keys and values", &[AllGather, ReduceScatter]),
            UnitTensor::Heads => ("heads", &[AllToAll]),
            UnitTensor::Dispatched => ("tokens for experts", &[AllToAll]),
            UnitTensor::Combined => ("outputs of experts", &[AllToAll]),
            UnitTensor::ExpertInput => ("inputs of experts", &[AllGather, ReduceScatter]),
            UnitTensor::RouterStatistics => ("router statistics", &[AllReduce]),
        },
        Payload::Gradients { .. } => ("gradients", SUMS),
        Payload::Parameters { .. } => ("parameters", &[AllGather]),
        Payload::ExpertGradients { .. } => ("gradients of experts", SUMS),
        Payload::ExpertParameters { .. } => ("parameters of experts", &[AllGather]),
        Payload::UnitParameters { experts: false, .. } => ("parameters of a unit", &[AllGather]),
        Payload::UnitGradients { experts: false, .. } => ("gradients of a unit", SUMS),
        Payload::UnitParameters { experts: true, .. } => ("parameters of a unit's experts", &[AllGather]),
        Payload::UnitGradients { experts: true, .. } => ("gradients of a unit's experts", SUMS),
        Payload::ReplicatedGradients => ("replicated gradients", &[AllReduce]),
        Payload::TiedGradients => ("tied gradients", &[AllReduce]),
        Payload::GradientNorm => ("the gradient norm", &[AllReduce]),
    }
}

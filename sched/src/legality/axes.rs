//! Rules of the axes beyond data, tensor and pipeline, and of how training state is divided.

use ir::{ContextMethod, Experts, FeedForward, Mixer, Model, Plan, Problem, Recompute, Schedule, Workload, ZeroStage};

/// Every rule of context, experts, sharding, overlap and recomputation that a plan breaks.
pub(super) fn problems(plan: &Plan, model: &Model, workload: &Workload) -> Vec<Problem> {
    let mut problems = context(plan, model, workload);
    problems.extend(experts(plan, model));
    problems.extend(sharing(plan));
    problems.extend(vocabulary(plan));
    problems.extend(offload(plan));
    problems.extend(recomputation(plan));
    problems
}

/// The tokens that a context degree must divide: halves, where tokens are dealt in a zig-zag.
const fn token_parts(plan: &Plan) -> u32 {
    match plan.mesh.context_method {
        ContextMethod::Ring | ContextMethod::AllGather => 2 * plan.mesh.context,
        ContextMethod::AllToAll => plan.mesh.context,
    }
}

fn context(plan: &Plan, model: &Model, workload: &Workload) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (degree, length) = (plan.mesh.context, workload.sequence_length);
    if degree < 2 {
        return problems;
    }
    let parts = token_parts(plan).max(1);
    if !length.is_multiple_of(parts) {
        let below = length / parts * parts;
        let nearest = if below == 0 { String::new() } else { format!("{below} or ") };
        let rule = match plan.mesh.context_method {
            ContextMethod::AllToAll => "heads are exchanged for equal parts (DeepSpeed-Ulysses)",
            ContextMethod::Ring | ContextMethod::AllGather => {
                "each rank has an early and a late part of a sequence, so that causal work is equal (Megatron-LM, \
                 torchtitan)"
            }
        };
        problems.push(
            Problem::new(
                "training.sequence_length",
                format!("{length} does not divide into {parts} parts for context {degree}: {rule}"),
            )
            .hint(format!("pad sequences to {nearest}{}", u64::from(length).next_multiple_of(u64::from(parts)))),
        );
    }
    if plan.mesh.context_method == ContextMethod::AllToAll {
        let attends = model.runs().any(|run| matches!(run.mixer, Mixer::Attention | Mixer::Window | Mixer::Latent));
        let latent = model.runs().any(|run| run.mixer == Mixer::Latent);
        let heads = [("model.heads", "query heads", model.heads, attends)];
        let kv = [("model.kv_heads", "key and value heads", model.kv_heads, attends && !latent)];
        for (subject, what, count, matters) in heads.into_iter().chain(kv) {
            let each = count / plan.tensor.max(1);
            if matters && (each == 0 || !each.is_multiple_of(degree)) {
                let fits: Vec<String> =
                    (1..=each.min(degree)).filter(|n| each.is_multiple_of(*n)).map(|n| n.to_string()).collect();
                problems.push(
                    Problem::new(
                        subject,
                        format!(
                            "{count} ({what}) over tensor {} leave {each} to exchange over context {degree}",
                            plan.tensor
                        ),
                    )
                    .hint(format!(
                        "context can be {} with all-to-all (DeepSpeed-Ulysses), or exchange keys and values: ring",
                        fits.join(", ")
                    )),
                );
            }
        }
    } else if let Some(run) = model.runs().find(|run| matches!(run.mixer, Mixer::Mamba | Mixer::GatedDelta)) {
        problems.push(
            Problem::new(
                "plan.mesh.context_method",
                format!(
                    "layers of {} carry a state along the sequence and have no keys and values to exchange",
                    run.mixer.name()
                ),
            )
            .hint("all-to-all, as Megatron-LM does for state spaces"),
        );
    }
    problems
}

fn experts(plan: &Plan, model: &Model) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mesh = plan.mesh;
    let Some(experts) = model.variants.experts else {
        for (subject, degree) in [("plan.mesh.expert", mesh.expert), ("plan.mesh.expert_tensor", mesh.expert_tensor)] {
            if degree > 1 {
                let message = format!("is {degree}, and {} has no experts", model.name);
                problems.push(Problem::new(subject, message).hint("1, or a model with experts"));
            }
        }
        return problems;
    };
    if !experts.count.is_multiple_of(mesh.expert) {
        let fits: Vec<String> =
            (1..=experts.count.min(1024)).filter(|n| experts.count.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        problems.push(
            Problem::new(
                "plan.mesh.expert",
                format!("{} experts do not divide over {} ranks", experts.count, mesh.expert),
            )
            .hint(format!("expert can be {} for this model", fits.join(", "))),
        );
    }
    let (here, wanted) =
        (u64::from(plan.replicas()) * u64::from(plan.tensor), u64::from(mesh.expert) * u64::from(mesh.expert_tensor));
    if !here.is_multiple_of(wanted) {
        let product = format!("expert {} x expert_tensor {} = {wanted}", mesh.expert, mesh.expert_tensor);
        let hint = if here.is_multiple_of(u64::from(mesh.expert)) && mesh.expert_tensor > 1 {
            "expert_tensor = 1 would do (Megatron-LM takes the tensor degree where it is not set)".to_owned()
        } else {
            let fits: Vec<String> = (1..=here.min(u64::from(experts.count)))
                .filter(|n| u64::from(experts.count).is_multiple_of(*n))
                .filter(|n| here.is_multiple_of(n * u64::from(mesh.expert_tensor)))
                .map(|n| n.to_string())
                .collect();
            format!(
                "expert can be {} with this expert_tensor",
                if fits.is_empty() { "nothing".into() } else { fits.join(", ") }
            )
        };
        problems.push(
            Problem::new(
                "plan.mesh",
                format!(
                    "the {here} ranks of a stage (data {} x context {} x tensor {}) do not divide by {product}",
                    plan.data, mesh.context, plan.tensor
                ),
            )
            .hint(hint),
        );
    }
    if problems.is_empty() {
        problems.extend(unequal_shares(plan));
    }
    problems.extend(expert_widths(plan, &experts));
    if plan.tensor > 1 && !plan.sequence_parallel {
        problems.push(
            Problem::new(
                "plan.sequence_parallel",
                format!(
                    "experts get each token once, and without it all {} tensor ranks hold every token",
                    plan.tensor
                ),
            )
            .hint("sequence_parallel = true (Megatron-LM asks for it too), or tensor = 1"),
        );
    }
    problems
}

/// Replicas that exchange tokens with each other's experts in every pass must have as many passes.
fn unequal_shares(plan: &Plan) -> Option<Problem> {
    if plan.shares.are_equal() || !crate::layout::layout(plan).experts_span_replicas() {
        return None;
    }
    let mesh = plan.mesh;
    let message = format!(
        "replicas take unequal shares ({}), and in every pass they exchange tokens with each other's experts (expert {} x \
         expert_tensor {} over context {} x tensor {})",
        plan.shares, mesh.expert, mesh.expert_tensor, mesh.context, plan.tensor
    );
    let hint =
        "equal shares, or experts divided within a replica: expert x expert_tensor that divides context x tensor";
    Some(Problem::new("plan.microbatches", message).hint(hint))
}

/// Widths that the ranks which share an expert divide.
fn expert_widths(plan: &Plan, experts: &Experts) -> Vec<Problem> {
    let widths = [
        ("expert_tensor", plan.mesh.expert_tensor, "a routed expert", experts.ffn),
        ("tensor", plan.tensor, "the shared experts", experts.shared_ffn),
    ];
    let broken = widths.into_iter().filter(|(_, size, _, width)| !width.is_multiple_of(*size));
    broken
        .map(|(degree, size, what, width)| {
            let message = format!("the width of {what}, {width}, does not divide by {degree} {size}");
            Problem::new("model.experts", message).hint(format!("a {degree} degree that divides it"))
        })
        .collect()
}

fn sharing(plan: &Plan) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (sharing, replicas) = (plan.sharing, plan.replicas());
    let mut refuse = |key: &str, message: String, hint: &str| {
        problems.push(Problem::new(format!("plan.sharing.{key}"), message).hint(hint));
    };
    if let Some(shard) = sharing.shard {
        let fits: Vec<String> = (1..=replicas).filter(|n| replicas.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        if shard == 0 || !replicas.is_multiple_of(shard) {
            let shown = if fits.len() > 24 { "a divisor of the replicas".to_owned() } else { fits.join(", ") };
            refuse(
                "shard",
                format!("{shard} ranks do not divide the {replicas} replicas (data x context) into equal groups"),
                &format!("it can be {shown}"),
            );
        }
        if plan.zero == ZeroStage::Zero0 {
            refuse("shard", "divides state over ranks, and ZeRO-0 divides none".to_owned(), "ZeRO-1 or more");
        }
    }
    if sharing.prefetch && plan.zero != ZeroStage::Zero3 {
        let message = format!("gathers parameters ahead, and ZeRO-{} keeps them whole", plan.zero.number());
        refuse("prefetch", message, "ZeRO-3, or prefetch = false");
    }
    if sharing.overlap_parameters && !matches!(plan.zero, ZeroStage::Zero1 | ZeroStage::Zero2) {
        let message = format!(
            "gathers stepped parameters beside the next forward passes, which ZeRO-{} does not",
            plan.zero.number()
        );
        refuse("overlap_parameters", message, "ZeRO-1 or 2; ZeRO-3 has prefetch");
    }
    if sharing.overlap_tensor && !(plan.tensor > 1 && plan.sequence_parallel) {
        let message = "runs gathers and scatters in pieces, which only sequence parallelism has".to_owned();
        refuse("overlap_tensor", message, "sequence_parallel = true with tensor > 1 (Transformer Engine's rule too)");
    }
    if sharing.overlap_experts && plan.mesh.expert < 2 {
        let message = "hides dispatch and combination, and experts are not divided".to_owned();
        refuse("overlap_experts", message, "expert > 1, or overlap_experts = false");
    }
    problems
}

/// Rules of parameters that live in host memory.
fn offload(plan: &Plan) -> Vec<Problem> {
    if !plan.sharing.offload_parameters {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut refuse = |wrong: bool, subject: &str, message: &str, hint: &str| {
        if wrong {
            let message = format!("parameters live in host memory, {message}");
            problems.push(Problem::new(subject, message).hint(format!("{hint}, or offload without \"parameters\"")));
        }
    };
    let divided = plan.zero == ZeroStage::Zero3 && plan.data * plan.mesh.context > 1;
    let message = "which ZeRO-3 over two or more replicas can do alone (ZeRO-Infinity, Rajbhandari et al. 2021)";
    refuse(!divided, "plan.zero", message, "zero = 3");
    let message = "and are stepped on the device";
    refuse(!plan.sharing.offload_optimizer, "plan.offload", message, "\"optimizer\" too");
    problems
}

/// Rules of a vocabulary that is divided over positions.
fn vocabulary(plan: &Plan) -> Vec<Problem> {
    let mut problems = Vec::new();
    if plan.sharing.vocabulary.is_ends() {
        return problems;
    }
    let mut refuse = |wrong: bool, subject: &str, message: &str, hint: &str| {
        if wrong {
            let message = format!("the vocabulary is divided over pipeline positions, {message}");
            problems.push(Problem::new(subject, message).hint(format!("{hint}, or vocabulary = \"ends\"")));
        }
    };
    let one_forward = plan.schedule == Schedule::OneForwardOneBackward && plan.chunks_per_stage() == 1;
    let schedule = "whose passes have their place in plain 1F1B alone (Yeung et al. 2024)";
    refuse(!one_forward, "plan.schedule", schedule, "1f1b with one chunk a stage");
    refuse(plan.stages.len() < 2, "plan.stages", "and there is one", "more stages");
    refuse(plan.tensor > 1, "plan.tensor", "and not over a tensor group too", "tensor = 1");
    refuse(plan.mesh.context > 1, "plan.mesh.context", "whose ranks see whole sequences", "context = 1");
    let deep = matches!(plan.zero, ZeroStage::Zero2 | ZeroStage::Zero3);
    refuse(deep, "plan.zero", "whose slices are not sharded over replicas", "ZeRO-0 or 1");
    let ahead = plan.sharing.overlap_parameters;
    refuse(
        ahead,
        "plan.sharing.overlap_parameters",
        "whose slices are not gathered ahead",
        "overlap_parameters = false",
    );
    problems
}

fn recomputation(plan: &Plan) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (position, stage) in plan.stages.iter().enumerate() {
        let Some(wanted) = stage.recompute_layers else { continue };
        let most = stage.layers.iter().copied().max().unwrap_or(0);
        let subject = format!("plan.stages[{position}].recompute_layers");
        if wanted > most {
            let message = format!("{wanted} of the first layers of each chunk, and the largest has {most}");
            problems.push(Problem::new(subject, message).hint(format!("at most {most}, or leave it out for all")));
        } else if wanted > 0 && stage.recompute == Recompute::None {
            problems.push(
                Problem::new(subject, "says how many layers are computed again, and recompute is none")
                    .hint("recompute = \"full\" or \"selective\""),
            );
        }
    }
    problems
}

/// Whether a model has layers with a dense feed-forward part.
pub(super) fn has_dense(model: &Model) -> bool {
    model.runs().any(|run| run.feed_forward == FeedForward::Dense && run.layers > 0)
}

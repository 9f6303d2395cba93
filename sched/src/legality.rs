//! Whether a plan can be carried out, and if not, every reason why.

mod axes;
mod nearest;
mod runtimes;
#[cfg(test)]
mod tests;
mod unlike;

pub use nearest::{balanced_stages, nearest};
pub use runtimes::{Runtime, refused_by};

use ir::{Cluster, DeviceKind, DeviceKindId, Mixer, Model, Plan, Problem, Schedule, Workload};

use crate::layout::chunk_positions;
use crate::{schedules, shares};

/// The most microbatches of an iteration on one replica; programs are written out.
pub const MOST_MICROBATCHES: u32 = 1 << 20;
/// The most passes of one iteration over all positions; programs are written out.
pub const MOST_PASSES: u64 = 1 << 26;

/// Every reason why a plan cannot be carried out; empty if it can.
///
/// Rules, beside those of the schedule ([`schedules::refusals`]):
///
/// * data x context x tensor x pipeline ranks (data x the sum of the stages' tensor degrees, where they differ) have
///   devices of their own;
/// * query heads, key and value heads, the feed-forward width and the widths of state spaces divide by the tensor degree
///   (the vocabulary is padded so that it does);
/// * where stages have unlike tensor degrees, those beside a boundary divide one another, and neither shared sequences,
///   experts, schedules down the pipeline and up again, divided vocabularies nor an embedding tied over unlike stages go
///   with them;
/// * the layers of all stages sum to the model's, equally many chunks per stage, and no chunk is empty: a chunk of no
///   layers must hold the embedding or the head;
/// * data x microbatch size x microbatches is the global batch, or where replicas take unequal shares, microbatch size x the
///   sum of their microbatches;
/// * sequence parallelism needs tensor > 1 and a microbatch whose tokens divide by it;
/// * the devices of a tensor group are of one kind: they share every pass in lockstep. Unlike replicas are legal: they
///   take the shares that the plan gives them, and the one that takes longest for its own sets the pace;
/// * every device supports the precision;
/// * sequences divide into twice the context degree (by it, where heads are exchanged for tokens; heads then divide by it),
///   and layers that carry a state along the sequence exchange heads;
/// * experts divide by the expert degree, the ranks of a stage by expert x expert-tensor, and with tensor > 1 experts need
///   sequence parallelism;
/// * the shard group divides the replicas, and switches that speak of a ZeRO stage or a division stand with it.
///
/// What is legal here, one runtime or another may refuse all the same: [`refused_by`].
#[must_use]
pub fn legal(plan: &Plan, model: &Model, workload: &Workload, cluster: &Cluster) -> Vec<Problem> {
    let mut problems = sizes(plan);
    if problems.is_empty() {
        problems.extend(division(plan, model));
        problems.extend(unlike::problems(plan, model, workload));
        problems.extend(layers(plan, model));
        problems.extend(batch(plan, workload));
        problems.extend(sequence(plan, workload));
        problems.extend(axes::problems(plan, model, workload));
        problems.extend(order(plan, model));
        problems.extend(devices(plan, workload, cluster));
    }
    problems
}

/// Zeros and sizes past all use.
fn sizes(plan: &Plan) -> Vec<Problem> {
    let mut problems = Vec::new();
    let degrees = [
        ("plan.data", u64::from(plan.data)),
        ("plan.tensor", u64::from(plan.tensor)),
        ("plan.stages", plan.stages.len() as u64),
        ("plan.microbatch_size", u64::from(plan.microbatch_size)),
        ("plan.microbatches", u64::from(plan.microbatches)),
        ("plan.mesh.context", u64::from(plan.mesh.context)),
        ("plan.mesh.expert", u64::from(plan.mesh.expert)),
        ("plan.mesh.expert_tensor", u64::from(plan.mesh.expert_tensor)),
    ];
    for (subject, size) in degrees {
        if size == 0 {
            problems.push(Problem::new(subject, "is zero").hint("at least 1"));
        }
    }
    problems.extend(unlike::sizes(plan));
    let chunks = plan.stages.first().map_or(0, |stage| stage.layers.len());
    for (position, stage) in plan.stages.iter().enumerate() {
        if stage.layers.is_empty() {
            let subject = format!("plan.stages[{position}].layers");
            problems.push(Problem::new(subject, "holds no chunk").hint("the layers of at least one chunk"));
        } else if stage.layers.len() != chunks {
            problems.push(
                Problem::new(
                    format!("plan.stages[{position}].layers"),
                    format!("holds {} chunks and stage 0 holds {chunks}", stage.layers.len()),
                )
                .hint("every stage holds equally many chunks"),
            );
        }
    }
    if let Some(fault) = plan.shares.fault(plan.data, plan.microbatches) {
        let one = "one number of at least 1 for each replica, or one number for all of them";
        problems.push(Problem::new("plan.microbatches", fault).hint(one));
    }
    if plan.microbatches > MOST_MICROBATCHES {
        problems.push(
            Problem::new("plan.microbatches", format!("{} is over {MOST_MICROBATCHES}", plan.microbatches))
                .hint("larger microbatches, more replicas or a smaller global batch"),
        );
    }
    let world = [u64::from(plan.mesh.context), u64::from(plan.tensor), plan.stages.len() as u64]
        .iter()
        .try_fold(u64::from(plan.data), |world, degree| world.checked_mul(*degree))
        .unwrap_or(u64::MAX);
    if world > u64::from(u32::MAX >> 8) {
        problems.push(Problem::new("plan", format!("{} ranks are over 2^24", degrees_of(plan))));
    }
    let passes = plan.stages.len() as u64 * chunks as u64 * u64::from(plan.microbatches) * 2;
    if problems.is_empty() && passes > MOST_PASSES {
        problems.push(
            Problem::new("plan.microbatches", format!("{passes} passes in one iteration are over {MOST_PASSES}"))
                .hint("larger microbatches, more replicas or a smaller global batch"),
        );
    }
    problems
}

/// What the tensor degree must divide.
fn division(plan: &Plan, model: &Model) -> Vec<Problem> {
    let divided = divided(model);
    let legal = |tensor: u32| divided.iter().all(|(_, _, size)| size.is_multiple_of(tensor));
    let most = divided.iter().map(|(_, _, size)| *size).min().unwrap_or(1);
    let choices = (1..=most.min(4096)).filter(|tensor| legal(*tensor)).collect::<Vec<_>>();
    let degrees = unlike::degrees(plan);
    let broken = degrees.iter().flat_map(|degree| {
        let broken = divided.iter().filter(move |(_, _, size)| !size.is_multiple_of(degree.0));
        broken.map(move |divided| (*degree, divided))
    });
    broken
        .map(|((tensor, position), (subject, what, size))| {
            let fewer = if *size < tensor { "fewer than the" } else { "not a multiple of the" };
            let of = if degrees.len() > 1 { format!(" of stage {position}") } else { String::new() };
            let nearest = choices.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            Problem::new(*subject, format!("{size} ({what}) is {fewer} tensor degree {tensor}{of}"))
                .hint(format!("tensor can be {nearest} for this model; heads are not replicated"))
        })
        .collect()
}

/// Whether a model's matrices divide over so many tensor ranks.
pub(crate) fn divides_over(model: &Model, tensor: u32) -> bool {
    let shared = model.variants.experts.map_or(0, |experts| experts.shared_ffn);
    divided(model).iter().all(|(_, _, size)| size.is_multiple_of(tensor)) && shared.is_multiple_of(tensor)
}

/// Degrees, for sentences: context only where there is any.
fn degrees_of(plan: &Plan) -> String {
    let context = if plan.mesh.context == 1 { String::new() } else { format!(" x context {}", plan.mesh.context) };
    if plan.has_unlike_tensors() {
        return format!("data {}{context} x stages of tensor {}", plan.data, unlike::shown(plan));
    }
    format!("data {}{context} x tensor {} x pipeline {}", plan.data, plan.tensor, plan.stages.len())
}

/// What divides over the tensor group: subject, words and size. Latent attention makes keys and values of each query head.
fn divided(model: &Model) -> Vec<(&'static str, &'static str, u32)> {
    let has = |mixers: &[Mixer]| model.runs().any(|run| run.layers > 0 && mixers.contains(&run.mixer));
    let mut found = Vec::with_capacity(6);
    if has(&[Mixer::Attention, Mixer::Window, Mixer::Latent]) {
        found.push(("model.heads", "query heads", model.heads));
    }
    if has(&[Mixer::Attention, Mixer::Window]) {
        found.push(("model.kv_heads", "key and value heads", model.kv_heads));
    }
    if axes::has_dense(model) {
        found.push(("model.ffn", "the feed-forward width", model.ffn));
    }
    if let Some(mamba) = model.variants.mamba {
        found.push(("model.mamba.inner", "the inner width of state spaces", mamba.inner));
    }
    if let Some(delta) = model.variants.delta {
        found.push(("model.delta.key_heads", "key heads of the delta rule", delta.key_heads));
        found.push(("model.delta.value_heads", "value heads of the delta rule", delta.value_heads));
    }
    found
}

fn layers(plan: &Plan, model: &Model) -> Vec<Problem> {
    let mut problems = Vec::new();
    let sum = plan.stages.iter().flat_map(|stage| &stage.layers).map(|layers| u64::from(*layers)).sum::<u64>();
    if sum != u64::from(model.layers) {
        let all = plan.stages.iter().flat_map(|stage| &stage.layers).map(u32::to_string).collect::<Vec<_>>();
        let shown = if all.len() > 32 {
            format!("{} … {}", all[..16].join("+"), all[all.len() - 8..].join("+"))
        } else {
            all.join("+")
        };
        let lost = i128::from(model.layers) - i128::from(sum);
        let what = if lost > 0 { format!("{lost} would be lost") } else { format!("{} too many", -lost) };
        problems.push(
            Problem::new(
                "plan.stages",
                format!("the stages hold {shown} = {sum} layers and the model has {}: {what}", model.layers),
            )
            .hint("the layers of all stages must sum to the model's"),
        );
    }
    let positions = chunk_positions(plan);
    let mut held = vec![0usize; plan.stages.len()];
    let last = positions.len() - 1;
    for (chunk, position) in positions.into_iter().enumerate() {
        let slot = held[position as usize];
        held[position as usize] += 1;
        let empty = plan.stages[position as usize].layers.get(slot) == Some(&0);
        let end = plan.sharing.vocabulary.is_ends() && (chunk == 0 || chunk == last);
        if empty && !end {
            problems.push(
                Problem::new(
                    format!("plan.stages[{position}].layers"),
                    format!("chunk {chunk} has no layers and holds neither the embedding nor the head"),
                )
                .hint("only the first and the last chunk may hold no layer"),
            );
        }
    }
    problems
}

fn batch(plan: &Plan, workload: &Workload) -> Vec<Problem> {
    let mut problems = Vec::new();
    if workload.global_batch == 0 || workload.sequence_length == 0 {
        problems.push(
            Problem::new("training", "an iteration of no tokens")
                .hint("a global batch and a sequence length of at least 1"),
        );
        return problems;
    }
    let wanted = workload.global_batch;
    let total = u128::from(plan.microbatch_size) * u128::from(plan.shares.sum(plan.data, plan.microbatches));
    if total != u128::from(wanted) {
        problems.push(if plan.shares.are_equal() { equal(plan, wanted, total) } else { unequal(plan, wanted, total) });
    }
    problems
}

/// Equal shares of another batch than is wanted.
fn equal(plan: &Plan, wanted: u32, total: u128) -> Problem {
    let step = u64::from(plan.data) * u64::from(plan.microbatch_size);
    let wanted = u64::from(wanted);
    let identity = format!(
        "global_batch {wanted} is not data {} x microbatch_size {} x microbatches {} = {total}",
        plan.data, plan.microbatch_size, plan.microbatches
    );
    let problem = Problem::new("training.global_batch", identity);
    if wanted.is_multiple_of(step) {
        return problem.hint(format!("use {} microbatches", wanted / step));
    }
    let (below, above) = (wanted / step * step, wanted.div_ceil(step) * step);
    let batches = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
    let unequal = match nearest_shares(plan, wanted) {
        Some(shares) => format!("; unequal shares do: microbatches = {shares}"),
        None => String::new(),
    };
    problem.hint(format!(
        "{wanted} sequences do not divide over data {} x microbatch_size {}: no number of microbatches is right; \
         a global batch of {batches} does, or another data degree{unequal}",
        plan.data, plan.microbatch_size
    ))
}

/// Unequal shares of another batch than is wanted.
fn unequal(plan: &Plan, wanted: u32, total: u128) -> Problem {
    let size = u64::from(plan.microbatch_size);
    let identity =
        format!("global_batch {wanted} is not microbatch_size {size} x ({}) microbatches = {total}", plan.shares);
    let problem = Problem::new("training.global_batch", identity);
    let wanted = u64::from(wanted);
    match nearest_shares(plan, wanted) {
        Some(shares) => problem.hint(format!("shares in that proportion: microbatches = {shares}")),
        None if wanted.is_multiple_of(size) => {
            let replicas = format!("{} microbatches are fewer than {} replicas", wanted / size, plan.data);
            problem.hint(format!("{replicas}: smaller microbatches, or fewer replicas"))
        }
        None => problem.hint(format!(
            "{wanted} sequences are no whole number of microbatches of {size}: a global batch of {total} is"
        )),
    }
}

/// The shares nearest to a plan's that sum to a batch, as they are written; `None` if there are none, or too many to read.
fn nearest_shares(plan: &Plan, wanted: u64) -> Option<String> {
    const SHOWN: u32 = 16;
    let size = u64::from(plan.microbatch_size);
    if plan.data > SHOWN || !wanted.is_multiple_of(size) {
        return None;
    }
    let weights = (0..plan.data).map(|replica| f64::from(plan.share(replica))).collect::<Vec<_>>();
    let counts = shares::apportion(u32::try_from(wanted / size).ok()?, &weights)?;
    Some(format!("{counts:?}"))
}

fn sequence(plan: &Plan, workload: &Workload) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !plan.sequence_parallel {
        return problems;
    }
    if plan.tensor < 2 {
        problems.push(
            Problem::new("plan.sequence_parallel", "divides activations over the tensor group, and tensor is 1")
                .hint("sequence_parallel = false, or tensor > 1"),
        );
    }
    let context = u64::from(plan.mesh.context);
    let tokens = u64::from(plan.microbatch_size) * u64::from(workload.sequence_length).div_ceil(context);
    for (tensor, _) in
        unlike::degrees(plan).into_iter().filter(|(tensor, _)| !tokens.is_multiple_of(u64::from(*tensor)))
    {
        let (tensor, length) = (u64::from(tensor), u64::from(workload.sequence_length));
        problems.push(
            Problem::new(
                "training.sequence_length",
                format!(
                    "sequence_length {length}{} x microbatch_size {} = {tokens} tokens do not divide by tensor {tensor}, \
                     which sequence parallelism needs",
                    if context > 1 { format!(" / context {context}") } else { String::new() },
                    plan.microbatch_size
                ),
            )
            .hint(format!("pad sequences to {}, or sequence_parallel = false", length.next_multiple_of(tensor * context))),
        );
    }
    problems
}

/// The schedule's own rules, and what its placement of chunks allows.
fn order(plan: &Plan, model: &Model) -> Vec<Problem> {
    let (pipeline, chunks) = (plan.pipeline(), plan.chunks_per_stage());
    let refusals = |microbatches| schedules::refusals(&plan.schedule, pipeline, chunks, microbatches);
    let mut problems = if plan.shares.are_equal() {
        refusals(plan.microbatches)
    } else {
        shares::counts(plan, model.variants.experts.is_some()).into_iter().flat_map(refusals).collect()
    };
    problems.dedup();
    if chunks > 1 && pipeline == 1 && !matches!(plan.schedule, Schedule::OneForwardOneBackward) {
        problems.push(
            Problem::new("plan.stages", "several chunks on the only stage").hint("give the one stage a single chunk"),
        );
    }
    if problems.is_empty() && model.tied_head && pipeline > 1 {
        let positions = chunk_positions(plan);
        if positions.first() == positions.last() {
            problems.push(
                Problem::new(
                    "plan.schedule",
                    "the first and the last chunk sit on one position and the head is tied to the embedding: one rank \
                     would hold two copies of it",
                )
                .hint("place the last chunk on another row, or untie the head"),
            );
        }
    }
    problems
}

fn devices(plan: &Plan, workload: &Workload, cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (world, there) = (plan.world(), cluster.devices());
    if !plan.placement.is_empty() {
        problems.extend(placement(plan, there));
    } else if world > there {
        problems.push(
            Problem::new("plan", format!("{} = {world} ranks and the cluster has {there} devices", degrees_of(plan)))
                .hint("smaller degrees, or more nodes"),
        );
    }
    if problems.is_empty() {
        problems.extend(kinds(plan, workload, cluster));
    }
    problems
}

fn placement(plan: &Plan, there: u64) -> Vec<Problem> {
    let mut problems = Vec::new();
    if plan.placement.len() as u64 != plan.world() {
        problems.push(
            Problem::new(
                "plan.placement",
                format!("names {} devices for {} ranks", plan.placement.len(), plan.world()),
            )
            .hint("one device for each rank, or leave it out"),
        );
    }
    if let Some(device) = plan.placement.iter().find(|device| u64::from(device.raw()) >= there) {
        problems.push(
            Problem::new("plan.placement", format!("device {} does not exist", device.raw()))
                .hint(format!("the cluster has devices 0 to {}", there.saturating_sub(1))),
        );
    }
    let mut sorted = plan.placement.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        problems.push(
            Problem::new("plan.placement", format!("device {} carries two ranks", pair[0].raw()))
                .hint("every rank has a device of its own"),
        );
    }
    problems
}

/// Whether two kinds are the same hardware, at whatever speed: a device that is throttled is still one of its group.
fn same_but_for_speed(a: &DeviceKind, b: &DeviceKind) -> bool {
    let other = DeviceKind {
        name: a.name.clone(),
        slowdown: a.slowdown,
        usd_per_hour: a.usd_per_hour,
        price_source: a.price_source.clone(),
        source: a.source.clone(),
        ..b.clone()
    };
    *a == other
}

/// Kinds of device: one in each tensor group, at whatever speed, all able to compute in the precision.
fn kinds(plan: &Plan, workload: &Workload, cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (mut used, joined) = used_kinds(plan, cluster);
    if let Some(Joined { stage, replica, rank, kinds }) = joined {
        let [before, after] = kinds.map(|kind| &cluster.device_kind(kind).name);
        let group = format!("the tensor group of replica {replica} on stage {stage}");
        let message = format!("{group} would join unlike devices, {before} and {after} (rank {rank})");
        problems.push(Problem::new("plan.tensor", message).hint("place each tensor group on devices of one kind"));
    }
    used.sort_unstable();
    used.dedup();
    for kind in used.into_iter().map(|kind| cluster.device_kind(kind)) {
        if kind.peak(workload.precision).is_none() {
            let formats = kind.peak.iter().map(|(precision, _)| precision.name()).collect::<Vec<_>>();
            problems.push(
                Problem::new(
                    "training.precision",
                    format!("{} does not compute in {}", kind.name, workload.precision.name()),
                )
                .hint(format!("it computes in {}", formats.join(", "))),
            );
        }
    }
    problems
}

/// A tensor group that joins unlike devices.
struct Joined {
    stage: u64,
    replica: u64,
    /// The first of its ranks that is unlike one before it.
    rank: u64,
    kinds: [DeviceKindId; 2],
}

/// Kinds of devices that a plan uses, and a tensor group that joins unlike ones.
fn used_kinds(plan: &Plan, cluster: &Cluster) -> (Vec<DeviceKindId>, Option<Joined>) {
    let unlike = |a, b| !same_but_for_speed(cluster.device_kind(a), cluster.device_kind(b));
    if plan.has_unlike_tensors() {
        return unlike::kinds(plan, cluster, unlike);
    }
    let runs = kind_runs(plan, cluster);
    let (tensor, data) = (u64::from(plan.tensor), u64::from(plan.replicas()));
    let inside = runs.windows(2).find(|pair| !pair[1].0.is_multiple_of(tensor) && unlike(pair[0].1, pair[1].1));
    let joined = inside.map(|pair| {
        let (rank, kinds) = (pair[1].0, [pair[0].1, pair[1].1]);
        Joined { stage: rank / (tensor * data), replica: rank / tensor % data, rank, kinds }
    });
    (runs.into_iter().map(|(_, kind)| kind).collect(), joined)
}

/// Kinds of the devices of all ranks, joined where they repeat: the first rank of each run and its kind.
///
/// Without a placement equal nodes are not walked over: of each group only so many ranks as show every kind at every
/// place of a tensor group.
fn kind_runs(plan: &Plan, cluster: &Cluster) -> Vec<(u64, DeviceKindId)> {
    let mut runs: Vec<(u64, DeviceKindId)> = Vec::new();
    let mut push = |rank: u64, kind: DeviceKindId| {
        if runs.last().is_none_or(|(_, last)| *last != kind) {
            runs.push((rank, kind));
        }
    };
    for (rank, device) in (0u64..).zip(&plan.placement) {
        push(rank, cluster.place(*device).device_kind);
    }
    let mut first = 0u64;
    for group in cluster.groups.iter().filter(|_| plan.placement.is_empty()) {
        let node = &cluster.node_kind(group.kind).devices;
        let wide = node.len() as u64;
        let end = (first + wide * u64::from(group.count)).min(plan.world());
        let mixed = node.iter().any(|kind| *kind != node[0]);
        let shown = if mixed { wide * u64::from(plan.tensor) } else { 1 };
        for rank in (first..end).take(usize::try_from(shown).unwrap_or(usize::MAX)) {
            push(rank, node[usize::try_from((rank - first) % wide).expect("a place in a node")]);
        }
        first += wide * u64::from(group.count);
    }
    runs
}

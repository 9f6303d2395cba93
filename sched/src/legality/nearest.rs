//! Legal plans near one that is not.

use ir::{
    Cluster, Mesh, Model, Plan, Recompute, Schedule, Sharing, StagePlan, VocabularyDivision, Workload, ZeroStage,
};

use super::legal;

/// How many nearest plans are worth reading.
const WANTED: usize = 3;

/// The nearest legal plans, nearest first, at most three; empty if no small change helps.
///
/// Changed are the degrees (each by a factor of at most 8), chunks per stage, microbatch size and count, the split of
/// layers and sequence parallelism; stages of unlike tensor degrees get one. Near means: few doublings of degrees and
/// of the number of devices, few layers moved.
#[must_use]
pub fn nearest(plan: &Plan, model: &Model, workload: &Workload, cluster: &Cluster) -> Vec<Plan> {
    let devices = cluster.devices();
    if plan.stages.len() > 4096 || workload.global_batch == 0 {
        return Vec::new();
    }
    // With one tensor degree for all stages, which something near is legal with.
    let one_degree = |stage: &StagePlan| StagePlan { tensor: None, ..stage.clone() };
    let plan = &Plan { stages: plan.stages.iter().map(one_degree).collect(), ..plan.clone() };
    let mut candidates: Vec<(u64, Plan)> = Vec::new();
    let chunks = plan.chunks_per_stage().max(1);
    for tensor in tensors(plan, model) {
        for pipeline in pipelines(plan, model) {
            for data in
                datas(plan, workload, u64::from(tensor) * u64::from(pipeline) * u64::from(plan.mesh.context), devices)
            {
                for size in sizes(plan, workload, data) {
                    for chunks in [chunks, 1].into_iter().take(if chunks == 1 { 1 } else { 2 }) {
                        let mut changed = plan.clone();
                        let step = data * size;
                        changed.tensor = tensor;
                        changed.data = data;
                        changed.microbatch_size = size;
                        changed.microbatches = workload.global_batch / step.max(1);
                        changed.shares = ir::Shares::EQUAL;
                        resplit(&mut changed, model, pipeline, chunks);
                        candidates.extend(variants(plan, changed).map(|c| (distance(plan, &c, model), c)));
                    }
                }
            }
        }
    }
    candidates.sort_by_key(|(distance, _)| *distance);
    let mut found: Vec<Plan> = Vec::new();
    for (_, candidate) in candidates {
        if !found.contains(&candidate) && legal(&candidate, model, workload, cluster).is_empty() {
            found.push(candidate);
            if found.len() == WANTED {
                break;
            }
        }
    }
    found
}

/// With and without sequence parallelism where it can be, and without a placement where degrees changed.
fn variants(plan: &Plan, mut changed: Plan) -> impl Iterator<Item = Plan> {
    if world(&changed) != world(plan) || changed.placement.len() as u64 != world(&changed) {
        changed.placement.clear();
    }
    let mut with = vec![changed.clone()];
    with.extend(meshes(&changed));
    if changed.sequence_parallel || changed.tensor > 1 {
        with.push(Plan { sequence_parallel: !changed.sequence_parallel, ..changed.clone() });
    }
    if !changed.placement.is_empty() {
        with.push(Plan { placement: Vec::new(), ..changed });
    }
    with.into_iter()
}

/// Smaller context degrees, other expert degrees, and no switches that speak of what is not there.
fn meshes(changed: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mesh = changed.mesh;
    let with = |mesh: Mesh| Plan { mesh, ..changed.clone() };
    let smaller = |degree: u32| (1..degree).filter(move |n| degree.is_multiple_of(*n));
    if mesh.context > 1 && mesh.context <= 256 {
        found.extend(smaller(mesh.context).map(|context| with(Mesh { context, ..mesh })));
    }
    if (mesh.expert > 1 || mesh.expert_tensor > 1) && mesh.expert <= 256 {
        let experts = smaller(mesh.expert).chain([mesh.expert]);
        let tensors = [mesh.expert_tensor, 1].into_iter().take(if mesh.expert_tensor == 1 { 1 } else { 2 });
        let pairs = experts.flat_map(|expert| tensors.clone().map(move |tensor| (expert, tensor)));
        let other = pairs.filter(|pair| *pair != (mesh.expert, mesh.expert_tensor));
        found.extend(other.map(|(expert, expert_tensor)| with(Mesh { expert, expert_tensor, ..mesh })));
    }
    let replicas = u64::from(changed.data) * u64::from(mesh.context);
    let divides = |shard: &u32| *shard > 0 && replicas.is_multiple_of(u64::from(*shard)) && replicas > 1;
    let plain = Sharing {
        shard: changed.sharing.shard.filter(divides).filter(|_| changed.zero != ZeroStage::Zero0),
        prefetch: changed.sharing.prefetch && changed.zero == ZeroStage::Zero3,
        overlap_parameters: changed.sharing.overlap_parameters
            && matches!(changed.zero, ZeroStage::Zero1 | ZeroStage::Zero2),
        overlap_tensor: changed.sharing.overlap_tensor && changed.sequence_parallel && changed.tensor > 1,
        overlap_experts: changed.sharing.overlap_experts && mesh.expert > 1,
        vocabulary: if with_slices(changed) { changed.sharing.vocabulary } else { VocabularyDivision::Ends },
        offload_parameters: changed.sharing.offload_parameters
            && changed.sharing.offload_optimizer
            && changed.zero == ZeroStage::Zero3,
        ..changed.sharing
    };
    if plain != changed.sharing {
        found.push(Plan { sharing: plain, ..changed.clone() });
    }
    found
}

/// Whether a plan has what a vocabulary divided over positions goes with.
fn with_slices(plan: &Plan) -> bool {
    plan.schedule == Schedule::OneForwardOneBackward
        && plan.chunks_per_stage() == 1
        && plan.stages.len() > 1
        && plan.tensor == 1
        && plan.mesh.context == 1
        && matches!(plan.zero, ZeroStage::Zero0 | ZeroStage::Zero1)
}

fn within(size: u32, of: u32, factor: u32) -> bool {
    let (size, of, factor) = (u64::from(size), u64::from(of.max(1)), u64::from(factor));
    size <= of * factor && of <= size * factor
}

fn tensors(plan: &Plan, model: &Model) -> Vec<u32> {
    let divided = super::divided(model);
    let fits = |t: &u32| divided.iter().all(|(_, _, size)| size.is_multiple_of(*t));
    let most = divided.iter().map(|(_, _, size)| *size).min().unwrap_or(1);
    (1..=most.min(1024)).filter(|t| within(*t, plan.tensor, 8)).filter(fits).collect()
}

fn pipelines(plan: &Plan, model: &Model) -> Vec<u32> {
    let now = u32::try_from(plan.stages.len()).unwrap_or(u32::MAX).max(1);
    let divides = |p: u32| model.layers.is_multiple_of(p) && within(p, now, 8);
    let most = model.layers.min(now.saturating_mul(8)).min(4096);
    (1..=most).filter(|p| *p == now || divides(*p)).collect()
}

fn datas(plan: &Plan, workload: &Workload, others: u64, devices: u64) -> Vec<u32> {
    let most = u32::try_from(devices / others.max(1)).unwrap_or(u32::MAX).min(workload.global_batch);
    let batch = workload.global_batch;
    let mut divisors =
        (1..=most.min(1 << 16)).filter(|d| batch.is_multiple_of(*d) && within(*d, plan.data, 8)).collect::<Vec<_>>();
    divisors.sort_by_key(|d| u64::from(plan.data.max(*d)) * 1024 / u64::from(plan.data.min(*d).max(1)));
    divisors.truncate(8);
    divisors
}

fn sizes(plan: &Plan, workload: &Workload, data: u32) -> Vec<u32> {
    let share = workload.global_batch / data.max(1);
    (1..=share.min(plan.microbatch_size.saturating_mul(8)).min(512))
        .filter(|size| share.is_multiple_of(*size) && within(*size, plan.microbatch_size, 8))
        .collect()
}

/// Gives a plan `pipeline` stages of `chunks` chunks; layers stay if they are right, and are balanced otherwise.
fn resplit(plan: &mut Plan, model: &Model, pipeline: u32, chunks: u32) {
    let sum = plan.stages.iter().flat_map(|stage| &stage.layers).map(|l| u64::from(*l)).sum::<u64>();
    let same = plan.stages.len() == pipeline as usize
        && plan.stages.iter().all(|stage| stage.layers.len() == chunks as usize)
        && sum == u64::from(model.layers);
    if same {
        return;
    }
    let recompute = plan.stages.first().map_or(Recompute::None, |stage| stage.recompute);
    plan.stages = balanced_stages(model.layers, pipeline, chunks, recompute);
}

/// `layers` over `pipeline` stages of `chunks` chunks as evenly as they go; what is left over goes to the chunks in the
/// middle, for the first also holds the embedding and the last the head.
#[must_use]
pub fn balanced_stages(layers: u32, pipeline: u32, chunks: u32, recompute: Recompute) -> Vec<StagePlan> {
    let total = pipeline * chunks;
    let (each, over) = (layers / total, layers % total);
    // Of the chunks that get one more, the first: the middle of the model, no earlier than after the first chunk.
    let first = (total - over).div_ceil(2);
    let of = |chunk: u32| each + u32::from((first..first + over).contains(&chunk));
    let stage = |position: u32| StagePlan {
        layers: (0..chunks).map(|slot| of(slot * pipeline + position)).collect(),
        recompute,
        recompute_layers: None,
        tensor: None,
    };
    (0..pipeline).map(stage).collect()
}

/// Ranks of a plan that need not be legal.
fn world(plan: &Plan) -> u64 {
    let replicas = u64::from(plan.data).saturating_mul(u64::from(plan.mesh.context));
    replicas.saturating_mul(u64::from(plan.tensor)).saturating_mul(plan.stages.len() as u64)
}

/// Thousandths of a doubling.
fn doublings(a: u64, b: u64) -> u64 {
    let ratio = libm::log2(a.max(1) as f64) - libm::log2(b.max(1) as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 64000 and not negative")]
    let thousandths = libm::round(ratio.abs() * 1000.0) as u64;
    thousandths
}

fn distance(plan: &Plan, changed: &Plan, model: &Model) -> u64 {
    let of = |a: u32, b: u32| doublings(u64::from(a), u64::from(b));
    let degrees = of(plan.data, changed.data)
        + of(plan.tensor, changed.tensor)
        + doublings(plan.stages.len() as u64, changed.stages.len() as u64)
        + of(plan.chunks_per_stage(), changed.chunks_per_stage())
        + of(plan.mesh.context, changed.mesh.context)
        + of(plan.mesh.expert, changed.mesh.expert)
        + of(plan.mesh.expert_tensor, changed.mesh.expert_tensor);
    let batch = of(plan.microbatch_size, changed.microbatch_size) + of(plan.microbatches, changed.microbatches) / 4;
    let layers = |plan: &Plan| plan.stages.iter().flat_map(|stage| stage.layers.clone()).collect::<Vec<_>>();
    let (before, after) = (layers(plan), layers(changed));
    let moved = before.iter().zip(&after).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>();
    let switches = u64::from(plan.sequence_parallel != changed.sequence_parallel) * 500
        + u64::from(plan.placement != changed.placement) * 250
        + u64::from(plan.sharing != changed.sharing) * 250;
    degrees
        + batch
        + switches
        + doublings(world(plan), world(changed)) / 2
        + moved * 500 / u64::from(model.layers.max(1))
}

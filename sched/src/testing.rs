//! What the tests of this crate share: small clusters, models, workloads and random legal plans.

use ir::grid::{Action, Cell, Grid};
use ir::{
    AdamW, AttentionKernel, Bytes, BytesPerSecond, ChunkId, Cluster, CollectiveAlgorithm, ContextMethod, DeviceKind,
    DeviceKindId, Fabric, FeedForward, FlopsPerSecond, LayerRun, Link, MicrobatchId, Mixer, MlpKind, Model, NodeGroup,
    NodeKind, NodeKindId, NormKind, Plan, Positions, Precision, Recompute, Schedule, SimDuration, Vee, VeeMemory,
    Workload, ZeroBubble, ZeroStage,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::legality::{balanced_stages, legal};

mod interpreter;
mod unlike;

pub(crate) use interpreter::Interpreter;
pub(crate) use unlike::{one_domain, random_unlike_case};

/// The cluster priced by the catalog's calibration of the A100.
pub(crate) fn analytic(cluster: Cluster) -> cost::CostModel {
    let text = include_str!("../../catalog/calibration/a100.toml");
    let calibration = cost::Calibration::from_toml(text, "a100.toml").unwrap();
    cost::CostModel::new(cluster, vec![calibration]).unwrap()
}

pub(crate) fn device(name: &str, memory_gib: u64) -> DeviceKind {
    DeviceKind {
        name: name.into(),
        calibration: "a100".into(),
        peak: vec![
            (Precision::Bf16, FlopsPerSecond::new(312e12).unwrap()),
            (Precision::Fp32, FlopsPerSecond::new(19.5e12).unwrap()),
        ],
        memory: Bytes::from_gib(memory_gib),
        memory_bandwidth: BytesPerSecond::new(2039e9).unwrap(),
        multiprocessors: 108,
        slowdown: 1.0,
        tdp_watts: Some(250.0 + memory_gib as f64),
        usd_per_hour: Some(memory_gib as f64 / 40.0),
        price_source: None,
        source: "test".into(),
    }
}

fn link(name: &str, gigabytes: f64, microseconds: u64) -> Link {
    Link {
        name: name.into(),
        bandwidth: BytesPerSecond::new(gigabytes * 1e9).unwrap(),
        latency: SimDuration::from_nanoseconds(microseconds * 1000),
        efficiency: None,
    }
}

pub(crate) fn node(name: &str, kinds: &[u32], domain_size: u32, nics: u32) -> NodeKind {
    NodeKind {
        name: name.into(),
        devices: kinds.iter().map(|kind| DeviceKindId::new(*kind)).collect(),
        domain_size,
        domain_link: link("nvlink3", 300.0, 2),
        host_link: link("pcie4", 32.0, 3),
        nics,
        nic: link("hdr", 25.0, 5),
    }
}

/// `nodes` nodes of eight equal devices with eight NICs under one switch.
pub(crate) fn dgx(nodes: u32) -> Cluster {
    Cluster {
        device_kinds: vec![device("a100-80", 80)],
        node_kinds: vec![node("dgx-a100", &[0; 8], 8, 8)],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count: nodes }],
        fabric: Fabric::one_switch(),
    }
}

/// Two leaf switches over nodes of two kinds: four devices in two domains behind one NIC, and two with a NIC each.
pub(crate) fn two_leaves_of_unlike_nodes() -> Cluster {
    Cluster {
        device_kinds: vec![device("fast", 80), device("slow", 40)],
        node_kinds: vec![node("wide", &[0; 4], 2, 1), node("narrow", &[1; 2], 2, 2)],
        groups: vec![
            NodeGroup { kind: NodeKindId::new(0), count: 3 },
            NodeGroup { kind: NodeKindId::new(1), count: 2 },
        ],
        fabric: Fabric { leaf_nodes: 2, oversubscription: 2.0, up_link: None, rails: false },
    }
}

pub(crate) fn small_model(layers: u32) -> Model {
    Model {
        name: "small".into(),
        hidden: 64,
        layers,
        heads: 8,
        kv_heads: 4,
        head_dim: 8,
        ffn: 256,
        vocabulary: 1000,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 1e4 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    }
}

/// A model with a pattern of layers and eight experts, two of them for each token.
pub(crate) fn with_experts(mut model: Model, pattern: &[ir::LayerRun]) -> Model {
    model.variants.experts = Some(ir::Experts {
        count: 8,
        active: 2,
        ffn: 64,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: ir::Router::default(),
    });
    model.variants.pattern = pattern.to_vec();
    model.layers = pattern.iter().map(|run| run.layers).sum();
    model
}

/// GPT-3 175B (Brown et al. 2020).
pub(crate) fn gpt3() -> Model {
    Model {
        name: "gpt3-175b".into(),
        hidden: 12288,
        layers: 96,
        heads: 96,
        kv_heads: 96,
        head_dim: 128,
        ffn: 49152,
        vocabulary: 51200,
        norm: NormKind::LayerNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Learned { maximum: 2048 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        variants: ir::Variants::default(),
    }
}

pub(crate) fn workload(sequence_length: u32, global_batch: u32) -> Workload {
    Workload {
        sequence_length,
        global_batch,
        iterations: 1,
        precision: Precision::Bf16,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 128,
        optimizer: AdamW::default(),
        seed: 1,
        recipe: ir::Recipe::default(),
    }
}

/// A plan with balanced stages and the microbatches that the batch needs.
pub(crate) fn plan(
    model: &Model,
    work: &Workload,
    [data, tensor, pipeline, chunks]: [u32; 4],
    schedule: Schedule,
) -> Plan {
    Plan {
        data,
        tensor,
        sequence_parallel: tensor > 1,
        stages: balanced_stages(model.layers, pipeline, chunks, Recompute::None),
        microbatch_size: 1,
        microbatches: work.global_batch / data,
        shares: ir::Shares::EQUAL,
        schedule,
        zero: if data > 1 { ZeroStage::Zero1 } else { ZeroStage::Zero0 },
        overlap_gradients: true,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    }
}

pub(crate) fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A random complete grid: chunks on random rows, passes in a random order that can happen.
fn random_grid(rng: &mut ChaCha8Rng, p: u32, v: u32, m: u32) -> Grid {
    let total = p * v;
    let mut rows = (0..total).map(|chunk| (chunk % p) as usize).collect::<Vec<_>>();
    for i in (1..rows.len()).rev() {
        rows.swap(i, rng.random_range(0..=i));
    }
    let mut grid = Grid { rows: vec![Vec::new(); p as usize] };
    // Of each chunk and microbatch: passes done, of forward, backward (input), weight.
    let mut done = vec![0u8; (total * m) as usize];
    let split = rng.random_bool(0.5);
    let at = |chunk: u32, microbatch: u32| (chunk * m + microbatch) as usize;
    loop {
        let mut ready = Vec::new();
        for (chunk, microbatch) in (0..total).flat_map(|c| (0..m).map(move |b| (c, b))) {
            let action = match done[at(chunk, microbatch)] {
                0 if chunk == 0 || done[at(chunk - 1, microbatch)] > 0 => Action::Forward,
                1 if chunk + 1 == total || done[at(chunk + 1, microbatch)] > 1 => {
                    if split {
                        Action::BackwardInput
                    } else {
                        Action::Backward
                    }
                }
                2 if split => Action::BackwardWeight,
                _ => continue,
            };
            ready.push(Cell { chunk: ChunkId::new(chunk), action, microbatch: MicrobatchId::new(microbatch) });
        }
        if ready.is_empty() {
            return grid;
        }
        let cell = ready[rng.random_range(0..ready.len())];
        done[at(cell.chunk.raw(), cell.microbatch.raw())] += 1;
        grid.rows[rows[cell.chunk.index()]].push(cell);
    }
}

/// A random legal plan with its model, workload and cluster.
pub(crate) fn random_case(seed: u64) -> (Plan, Model, Workload, Cluster) {
    let rng = &mut random(seed);
    loop {
        let pick = |rng: &mut ChaCha8Rng, choices: &[u32]| choices[rng.random_range(0..choices.len())];
        let [data, tensor, pipeline] = [(); 3].map(|()| pick(rng, &[1, 1, 2, 2, 3, 4]));
        let chunks = pick(rng, &[1, 1, 2, 3]);
        let mut model = small_model((pipeline * chunks + rng.random_range(0..4)).max(1));
        model.tied_head = rng.random_bool(0.5);
        model.norm = if rng.random_bool(0.5) { NormKind::RmsNorm } else { NormKind::LayerNorm };
        let microbatches = rng.random_range(1..11);
        let mut work = workload(32, data * microbatches);
        work.global_batch *= pick(rng, &[1, 2]);
        let schedule = match rng.random_range(0..12) {
            0 => Schedule::GPipe,
            2 => Schedule::ZeroBubble(ZeroBubble {
                message: 50,
                kept: 400,
                ..ZeroBubble::unprofiled(rng.random_range(1..3))
            }),
            1 => Schedule::ZeroBubbleH1,
            5 => Schedule::ZeroBubbleH2,
            6..12 if chunks == 2 && pipeline > 1 && microbatches >= 2 * pipeline => Schedule::DualPipeV,
            6..12 if chunks == 2 => Schedule::Vee(Vee {
                message: rng.random_range(0..900),
                ..Vee::unprofiled([VeeMemory::Full, VeeMemory::Half, VeeMemory::Third][rng.random_range(0..3)])
            }),
            _ => Schedule::OneForwardOneBackward,
        };
        let mut plan = plan(&model, &work, [data, tensor, pipeline, chunks], schedule);
        plan.microbatch_size = work.global_batch / data / microbatches;
        plan.microbatches = microbatches;
        plan.sequence_parallel = tensor > 1 && rng.random_bool(0.5);
        plan.zero = if rng.random_bool(0.5) { ZeroStage::Zero0 } else { ZeroStage::Zero1 };
        plan.overlap_gradients = rng.random_bool(0.5);
        // From part by part to all together.
        let buckets = &mut random(seed ^ 0xb0c7);
        plan.sharing.bucket = Some(u64::from(pick(buckets, &[1, 20_000, 100_000, 1 << 30])));
        for stage in &mut plan.stages {
            stage.recompute = [Recompute::None, Recompute::Selective, Recompute::Full][rng.random_range(0..3)];
        }
        if chunks == 1 && pipeline > 1 && plan.stages[0].layers[0] > 0 && rng.random_bool(0.3) {
            plan.stages[0].layers[0] -= 1;
            plan.stages[1].layers[0] += 1;
        }
        if rng.random_bool(0.2) {
            plan.schedule = Schedule::Explicit(random_grid(rng, pipeline, chunks, microbatches));
        }
        let cluster = match rng.random_range(0..3) {
            0 => two_leaves_of_unlike_nodes(),
            1 => Cluster {
                fabric: Fabric { leaf_nodes: 2, oversubscription: 2.0, up_link: None, rails: false },
                ..dgx(8)
            },
            _ => dgx(8),
        };
        let (before, batch) = (plan.clone(), work.global_batch);
        share_out(seed, &mut plan, &mut work);
        if legal(&plan, &model, &work, &cluster).is_empty() {
            return (plan, model, work, cluster);
        }
        (plan, work.global_batch) = (before, batch);
        if legal(&plan, &model, &work, &cluster).is_empty() {
            return (plan, model, work, cluster);
        }
    }
}

/// Gives some cases of several replicas unequal shares, the batch with them; not always a legal plan.
pub(crate) fn share_out(seed: u64, plan: &mut Plan, work: &mut Workload) {
    let rng = &mut random(seed ^ 0x5a4e);
    if plan.data < 2 || plan.microbatches < 2 || rng.random_bool(0.6) {
        return;
    }
    let most = plan.microbatches;
    let mut counts = (0..plan.data).map(|_| rng.random_range(1..=most)).collect::<Vec<_>>();
    counts[rng.random_range(0..plan.data as usize)] = most;
    *plan = plan.clone().with_shares(counts);
    work.global_batch = plan.microbatch_size * u32::try_from(plan.shares.sum(plan.data, most)).unwrap();
}

/// Changes a random case into one with axes, sharding and overlap drawn at random; not always a legal one.
fn widen(rng: &mut ChaCha8Rng, plan: &mut Plan, model: &mut Model, work: &mut Workload) {
    let pick = |rng: &mut ChaCha8Rng, choices: &[u32]| choices[rng.random_range(0..choices.len())];
    plan.mesh.context = pick(rng, &[1, 1, 2, 2, 4]);
    plan.mesh.context_method =
        [ContextMethod::Ring, ContextMethod::AllGather, ContextMethod::AllToAll][rng.random_range(0..3)];
    if rng.random_bool(0.5) {
        let first = rng.random_range(0..model.layers);
        let run = |layers, feed_forward| LayerRun { layers, mixer: Mixer::Attention, feed_forward };
        let pattern = [run(first, FeedForward::Dense), run(model.layers - first, FeedForward::Experts)];
        *model = with_experts(model.clone(), &pattern[usize::from(first == 0)..]);
        plan.mesh.expert = pick(rng, &[1, 2, 4]);
        plan.mesh.expert_tensor = pick(rng, &[1, 1, 2]);
        model.variants.experts.as_mut().unwrap().shared_ffn = pick(rng, &[0, 128]);
        plan.sequence_parallel = plan.tensor > 1;
        plan.sharing.overlap_experts = plan.mesh.expert > 1 && rng.random_bool(0.5);
    }
    plan.zero = ZeroStage::ALL[rng.random_range(0..4)];
    let replicas = plan.replicas();
    if plan.zero != ZeroStage::Zero0 && rng.random_bool(0.4) {
        plan.sharing.shard = Some(pick(rng, &[1, 2, replicas]));
    }
    plan.sharing.prefetch = plan.zero == ZeroStage::Zero3 && rng.random_bool(0.7);
    let parameters = matches!(plan.zero, ZeroStage::Zero1 | ZeroStage::Zero2);
    plan.sharing.overlap_parameters = parameters && rng.random_bool(0.5);
    plan.sharing.overlap_tensor = plan.sequence_parallel && rng.random_bool(0.5);
    plan.sharing.offload_activations = rng.random_bool(0.25);
    plan.sharing.offload_optimizer = rng.random_bool(0.15);
    let alone = plan.zero != ZeroStage::Zero3 || replicas < 2;
    plan.sharing.offload_parameters = !alone && plan.sharing.offload_optimizer && rng.random_bool(0.7);
    work.recipe.sharded_loss = rng.random_bool(0.7);
    for stage in &mut plan.stages {
        if stage.recompute != Recompute::None && rng.random_bool(0.5) {
            stage.recompute_layers = Some(rng.random_range(0..=stage.layers.iter().copied().max().unwrap_or(0)));
        }
    }
}

/// A random legal plan with any axis, sharding and overlap, with its model, workload and cluster.
pub(crate) fn random_wide_case(seed: u64) -> (Plan, Model, Workload, Cluster) {
    for attempt in 0.. {
        let (mut plan, mut model, mut work, cluster) = random_case(seed ^ (attempt << 32));
        let rng = &mut random(seed ^ (attempt << 32) ^ 0xa7e5);
        widen(rng, &mut plan, &mut model, &mut work);
        if legal(&plan, &model, &work, &cluster).is_empty() {
            return (plan, model, work, cluster);
        }
    }
    unreachable!("some case is legal")
}

/// Nanoseconds that this thread has spent on a processor (Linux), or wall time elsewhere: tests run beside each other.
pub(crate) fn thread_cpu_nanoseconds() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let wall = || u64::try_from(START.get_or_init(std::time::Instant::now).elapsed().as_nanos()).unwrap();
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(wall)
}

/// What `nanoseconds`, promised on the machine where the figures of speed were taken, are on this one: more where this
/// one, or what runs beside, makes the same fixed work take longer; never less.
pub(crate) fn promised(nanoseconds: u64) -> u64 {
    /// What [`fixed_work`] takes at best on one of two cores of an AMD EPYC at rest.
    const AT_REST: u64 = 17_000;
    let best = (0..200).map(|_| fixed_work()).min().unwrap();
    nanoseconds * best.max(AT_REST) / AT_REST
}

/// Nanoseconds that a piece of work takes which never changes, and which is like what estimates do: look-ups by hash,
/// divisions, small allocations.
fn fixed_work() -> u64 {
    let start = std::time::Instant::now();
    let mut known = std::collections::HashMap::new();
    let mut sum = 0.0;
    for key in 0..400_u64 {
        known.insert(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), vec![key; 8]);
    }
    for key in 0..400_u64 {
        let row = &known[&key.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
        sum += row.iter().map(|value| 1.0 / (1.0 + *value as f64)).sum::<f64>();
    }
    std::hint::black_box(sum);
    u64::try_from(start.elapsed().as_nanos()).unwrap()
}

//! Peaks of memory, simulated and held by the executor, over plans that divide, recompute and move state.

use std::sync::Arc;

use exec::runtime::{CpuBackend, CpuOptions};
use ir::{
    AdamW, AttentionKernel, Backend, CollectiveAlgorithm, IterationOutcome, MlpKind, Model, NormKind, Plan, Positions,
    Precision, Recompute, Schedule, StagePlan, Timeline, Workload, ZeroStage,
};
use sched::Folding;
use sim::Simulator;

use crate::clusters;
use crate::swarm::Case;

/// The two families, with widths that make activations and state of like size.
fn models() -> [Model; 2] {
    let llama = Model {
        name: "small-llama".into(),
        hidden: 128,
        layers: 8,
        heads: 8,
        kv_heads: 4,
        head_dim: 16,
        ffn: 352,
        vocabulary: 256,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 1e4 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    };
    let gpt = Model {
        name: "small-gpt".into(),
        kv_heads: 8,
        ffn: 512,
        norm: NormKind::LayerNorm,
        positions: Positions::Learned { maximum: 512 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        ..llama.clone()
    };
    [llama, gpt]
}

/// What a case changes of one rank that keeps everything.
type Change = fn(&mut Case);

/// How far a simulated peak may lie above a measured one.
const NEAR: f64 = 0.05;
/// Where the program frees what a pass used with its instruction, and the executor inside it.
const COARSE: f64 = 0.25;

fn stages(plan: &mut Plan, counts: &[u32]) {
    let recompute = plan.stages[0].recompute;
    let stage = |layers: &u32| StagePlan { layers: vec![*layers], recompute, recompute_layers: None, tensor: None };
    plan.stages = counts.iter().map(stage).collect();
}

fn replicas(plan: &mut Plan, data: u32, zero: ZeroStage) {
    (plan.data, plan.microbatches, plan.zero) = (data, plan.microbatches / data, zero);
}

const CHANGES: &[(&str, f64, Change)] = &[
    ("one rank", NEAR, |_| {}),
    ("data 2, ZeRO-1", NEAR, |case| replicas(&mut case.plan, 2, ZeroStage::Zero1)),
    ("data 2, ZeRO-2", NEAR, |case| replicas(&mut case.plan, 2, ZeroStage::Zero2)),
    ("data 2, ZeRO-3", NEAR, |case| replicas(&mut case.plan, 2, ZeroStage::Zero3)),
    ("data 4, ZeRO-3 over 2, prefetch", NEAR, |case| {
        replicas(&mut case.plan, 4, ZeroStage::Zero3);
        (case.plan.sharing.shard, case.plan.sharing.prefetch) = (Some(2), true);
    }),
    ("tensor 2", NEAR, |case| case.plan.tensor = 2),
    ("tensor 2 in sequence", NEAR, |case| (case.plan.tensor, case.plan.sequence_parallel) = (2, true)),
    ("pipeline 2, 1F1B", NEAR, |case| stages(&mut case.plan, &[4, 4])),
    ("pipeline 4, layers 3 2 2 1", NEAR, |case| stages(&mut case.plan, &[3, 2, 2, 1])),
    ("pipeline 2, ZB-H1", NEAR, |case| {
        stages(&mut case.plan, &[4, 4]);
        case.plan.schedule = Schedule::ZeroBubbleH1;
    }),
    ("full recomputation", NEAR, |case| case.plan.stages[0].recompute = Recompute::Full),
    ("full recomputation of 4 layers", COARSE, |case| {
        (case.plan.stages[0].recompute, case.plan.stages[0].recompute_layers) = (Recompute::Full, Some(4));
    }),
    ("selective recomputation", NEAR, |case| case.plan.stages[0].recompute = Recompute::Selective),
    ("activations in host memory", NEAR, |case| case.plan.sharing.offload_activations = true),
    ("optimizer in host memory", NEAR, |case| case.plan.sharing.offload_optimizer = true),
    ("both in host memory, data 2, ZeRO-3", COARSE, |case| {
        replicas(&mut case.plan, 2, ZeroStage::Zero3);
        (case.plan.sharing.offload_activations, case.plan.sharing.offload_optimizer) = (true, true);
    }),
    ("BF16", NEAR, |case| case.workload.precision = Precision::Bf16),
    ("BF16, data 2, ZeRO-3, full recomputation", NEAR, |case| {
        replicas(&mut case.plan, 2, ZeroStage::Zero3);
        case.workload.precision = Precision::Bf16;
        case.plan.stages[0].recompute = Recompute::Full;
    }),
];

/// A case by its name, and how far its simulated peak may lie above the measured one.
#[derive(Clone, Debug)]
pub struct Peak {
    /// Of the model and the plan.
    pub name: String,
    /// As a fraction of the measured peak.
    pub bound: f64,
    /// What runs.
    pub case: Case,
}

/// All of them.
#[must_use]
pub fn cases() -> Vec<Peak> {
    let named = |model: Model| {
        CHANGES.iter().map(move |(name, bound, change)| {
            let mut case = whole(model.clone());
            change(&mut case);
            Peak { name: format!("{}, {name}", case.model.name), bound: *bound, case }
        })
    };
    models().into_iter().flat_map(named).collect()
}

fn whole(model: Model) -> Case {
    let workload = Workload {
        sequence_length: 128,
        global_batch: 8,
        iterations: 1,
        precision: Precision::Fp32,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 8,
        optimizer: AdamW::default(),
        seed: 1,
        recipe: ir::Recipe::default(),
    };
    let plan = Plan {
        data: 1,
        tensor: 1,
        sequence_parallel: false,
        stages: vec![StagePlan {
            layers: vec![model.layers],
            recompute: Recompute::None,
            recompute_layers: None,
            tensor: None,
        }],
        microbatch_size: 2,
        microbatches: 4,
        shares: ir::Shares::EQUAL,
        schedule: Schedule::OneForwardOneBackward,
        zero: ZeroStage::Zero0,
        overlap_gradients: false,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    };
    Case { model, workload, cluster: clusters::cpu(8), plan }
}

/// Of each rank, the peak of an iteration in bytes: simulated, and as the executor held them.
///
/// # Panics
/// If the case cannot be run.
#[must_use]
pub fn peaks(case: &Case) -> Vec<(u64, u64)> {
    let program = case.program(Folding::Flat);
    let mut simulator = Simulator::new(clusters::priced(case.cluster.clone()));
    let text = exec::data::generate(1, 20_000);
    let mut trained = CpuBackend::new(case.cluster.clone(), text, CpuOptions::default());
    simulator.load(Arc::clone(&program)).unwrap_or_else(|error| panic!("{error}"));
    trained.load(Arc::clone(&program)).unwrap_or_else(|error| panic!("{error}"));
    let iterate = |outcome: Result<IterationOutcome, _>| outcome.unwrap_or_else(|error| panic!("{error}")).timeline;
    let simulated = iterate(simulator.iterate(0));
    let measured = iterate(trained.iterate(0));
    let of = |timeline: &Timeline| {
        let peak = |lane: &ir::Lane| lane.memory.iter().map(|(_, bytes)| bytes.get()).max().unwrap_or(0);
        let mut lanes: Vec<_> = timeline.lanes.iter().map(|lane| (lane.rank, peak(lane))).collect();
        lanes.sort_unstable();
        lanes.into_iter().map(|(_, peak)| peak).collect::<Vec<_>>()
    };
    of(&simulated).into_iter().zip(of(&measured)).collect()
}

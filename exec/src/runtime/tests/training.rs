//! The backend with real state: what is trained does not depend on how it is divided, placed or emulated.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::program::Stream;
use ir::{
    AdamW, AttentionKernel, Backend, BackendError, MlpKind, Model, NormKind, Positions, Precision, Rank, Recompute,
    SimTime, Timeline, VerifiedProgram, Workload, ZeroStage,
};

use super::{cluster, domain};
use crate::data::{generate, unigram_entropy};
use crate::runtime::script::{End, Script};
use crate::runtime::{CpuBackend, CpuOptions, Fault, FaultKind};
use crate::state::Weights;
use crate::state::tests::programs::{Division, program};

pub(crate) fn model() -> Model {
    Model {
        name: "tiny".to_owned(),
        hidden: 32,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn: 64,
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
    }
}

pub(crate) fn workload() -> Workload {
    Workload {
        sequence_length: 32,
        global_batch: 8,
        iterations: 10,
        precision: Precision::Fp32,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 8,
        optimizer: AdamW { learning_rate: 1e-2, warmup_iterations: 4, ..AdamW::default() },
        seed: 11,
        recipe: ir::Recipe::default(),
    }
}

fn backend(ranks: usize, options: CpuOptions) -> CpuBackend {
    CpuBackend::new(domain(&vec![1.0; ranks]), generate(1, 30_000), options)
}

pub(super) fn train(
    backend: &mut CpuBackend,
    program: Arc<VerifiedProgram>,
    iterations: std::ops::Range<u64>,
) -> Vec<f64> {
    backend.load(Arc::clone(&program)).unwrap();
    let mut iterate = |iteration| {
        let outcome = backend.iterate(iteration).unwrap();
        assert_sound(&program, &outcome.timeline);
        assert!(outcome.gradient_norm.unwrap() > 0.0);
        outcome.loss.unwrap()
    };
    iterations.map(&mut iterate).collect()
}

/// Every instruction has a span, none begins before its waits and its stream let it, both ends of a message and all
/// members of a collective begin no earlier than the last was issued, and memory ends as it began but for the boundary
/// tensor sent last.
fn assert_sound(program: &ir::Program, timeline: &Timeline) {
    assert_eq!(timeline.lanes.len(), program.world() as usize);
    for lane in &timeline.lanes {
        let role = &program.roles[lane.role.index()];
        assert!(role.ranks.contains(lane.rank) && lane.spans.len() == role.instructions().len());
        let mut streams: BTreeMap<Stream, SimTime> = BTreeMap::new();
        for (span, instruction) in lane.spans.iter().zip(role.instructions()) {
            let what = || format!("{} of rank {}: {instruction:?} {span:?}", span.instruction, lane.rank);
            assert!(span.issued <= span.start && span.start <= span.end, "{}", what());
            let before = streams.insert(instruction.stream, span.end).unwrap_or(SimTime::ZERO);
            let waits = role.waits(instruction).iter().map(|wait| lane.spans[wait.index()].end).max();
            assert!(span.issued >= before && Some(span.issued) >= waits, "{}", what());
        }
        assert!(lane.memory.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 != pair[1].1));
        let (first, last) = (lane.memory.first().unwrap().1, lane.memory.last().unwrap().1);
        let boundary = 4 * program.microbatch_tokens() * u64::from(program.model.hidden);
        let left = (last - first).get();
        assert!(left <= boundary, "rank {} ends with {left} bytes more than it began with", lane.rank);
    }
    let script = Script::new(program);
    for transaction in &script.transactions {
        let span = |end: &End| timeline.lanes[end.rank].spans[end.instruction.index()];
        let last = transaction.ends.iter().map(|end| span(end).issued).max().unwrap();
        assert!(transaction.ends.iter().all(|end| span(end).start >= last), "{transaction:?} begins too early");
    }
}

fn divided(division: &Division) -> (Vec<f64>, CpuBackend) {
    let program = program(&model(), &workload(), division);
    let mut backend = backend(program.world() as usize, CpuOptions::default());
    (train(&mut backend, program, 0..6), backend)
}

pub(super) fn assert_close(a: &[f64], b: &[f64], what: &str) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(((a - b) / b).abs() < 1e-4, "{what}: loss of iteration {i} is {a}, not {b}");
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn every_division_trains_as_one_rank_and_the_same_twice() {
    let (one, _) = divided(&Division::ONE);
    let base = Division { microbatches: 2, ..Division::ONE };
    let divisions = [
        Division { data: 2, ..base },
        Division { data: 2, zero: ZeroStage::Zero1, ..base },
        Division { tensor: 2, ..base },
        Division { tensor: 2, sequence_parallel: true, recompute: Recompute::Full, ..base },
        Division { positions: 2, microbatches: 4, split: true, ..base },
        Division { positions: 2, chunks_per_position: 2, microbatches: 4, ..base },
        Division { positions: 2, data: 2, tensor: 2, zero: ZeroStage::Zero1, ..base },
    ];
    for division in divisions {
        let (losses, mut first) = divided(&division);
        assert_close(&losses, &one, &format!("{division:?}"));
        let (again, mut second) = divided(&division);
        let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&losses), bits(&again), "{division:?}: two runs differ");
        assert_eq!(first.snapshot().unwrap(), second.snapshot().unwrap(), "{division:?}: weights of two runs differ");
    }
}

#[test]
fn the_loss_falls_below_what_frequencies_alone_allow() {
    let text = generate(1, 60_000);
    let workload = Workload { global_batch: 16, iterations: 120, ..workload() };
    let program = program(&model(), &workload, &Division { data: 2, microbatches: 1, ..Division::ONE });
    let mut backend = CpuBackend::new(domain(&[1.0; 2]), text.clone(), CpuOptions::default());
    let losses = train(&mut backend, program, 0..120);
    let (entropy, last) = (unigram_entropy(&text), losses[110..].iter().sum::<f64>() / 10.0);
    assert!((losses[0] - 256f64.ln()).abs() < 0.2, "an untrained model is not uniform: {}", losses[0]);
    assert!(last < 0.75 * entropy, "after 120 iterations {last}, unigram entropy {entropy}");
    assert_eq!(backend.losses(), losses);
}

#[test]
fn training_goes_on_under_another_program() {
    let (tensor, pipeline) = (
        Division { tensor: 2, ..Division::ONE },
        Division { positions: 2, data: 2, zero: ZeroStage::Zero1, ..Division::ONE },
    );
    let (one, _) = divided(&Division::ONE);
    let program = |division: &Division| program(&model(), &workload(), &Division { microbatches: 2, ..*division });
    let mut backend = backend(4, CpuOptions::default());
    let mut losses = train(&mut backend, program(&tensor), 0..2);
    losses.extend(train(&mut backend, program(&pipeline), 2..4));
    losses.extend(train(&mut backend, program(&tensor), 4..6));
    assert_close(&losses, &one, "three programs in turn");

    // To the bit, and to no other model.
    let before = backend.snapshot().unwrap().unwrap();
    backend.load(program(&pipeline)).unwrap();
    assert_eq!(backend.snapshot().unwrap().unwrap(), before);
    let other = Model { norm_epsilon: 1e-6, ..model() };
    backend.load(self::program(&other, &workload(), &Division::ONE)).unwrap();
    let fresh = backend.snapshot().unwrap().unwrap();
    assert_eq!(fresh.weights, Weights::initial(&other, workload().seed));
    assert!(fresh.moments.iter().flat_map(Weights::iter).all(|(_, moment)| moment.data.iter().all(|x| *x == 0.0)));
}

#[test]
fn emulation_changes_times_and_not_numbers() {
    let division = Division { positions: 2, microbatches: 4, ..Division::ONE };
    let (plain, _) = divided(&division);
    let program = program(&model(), &workload(), &division);
    let mut backend = CpuBackend::new(cluster(&[2.0, 3.0], 1e7, 200), generate(1, 30_000), CpuOptions::default());
    assert_eq!(train(&mut backend, program, 0..6), plain);
    assert!(!backend.oversubscribed() || std::thread::available_parallelism().unwrap().get() < 2);
}

#[test]
fn what_is_not_finite_is_named_by_layer_rank_and_iteration() {
    let program = program(&model(), &workload(), &Division { positions: 2, microbatches: 2, ..Division::ONE });
    let fault = Fault { rank: Rank::new(1), iteration: 2, instruction: None, kind: FaultKind::Poison };
    let mut backend = backend(2, CpuOptions { faults: vec![fault], ..CpuOptions::default() });
    backend.load(program).unwrap();
    backend.iterate(0).unwrap();
    backend.iterate(1).unwrap();
    let error = backend.iterate(2).unwrap_err();
    let BackendError::NotFinite { rank, iteration: 2, what } = &error else { panic!("{error}") };
    assert_eq!(rank.raw(), 1);
    // The second stage holds layers 2 and 3, and its first weight is that of the attention norm of layer 2.
    assert!(what.contains("layers.2.attention_norm.weight"), "{what}");
    assert_eq!(backend.iterate(3).unwrap_err(), error, "unusable until the next load");
}

#[test]
fn every_reason_why_not_is_given_at_once() {
    let good = program(&model(), &workload(), &Division { tensor: 2, microbatches: 2, ..Division::ONE });
    let mut bad = ir::Program::clone(&good);
    bad.workload.precision = Precision::Fp16;
    bad.workload.attention = AttentionKernel::Plain;
    bad.model.vocabulary = 100;
    bad.model.kv_heads = 3;
    bad.layout.microbatches = 3;
    let mut cluster = domain(&[0.5]);
    cluster.device_kinds[0].multiprocessors = 108;
    "a100".clone_into(&mut cluster.device_kinds[0].name);
    let mut poor = CpuBackend::new(cluster, b"short".to_vec(), CpuOptions::default());
    let reasons: Vec<String> = poor.problems(&bad).iter().map(ToString::to_string).collect();
    let parts =
        ["fp16", "fused", "of 100", "batch of 8", "3 key and", "the 1 devices", "a100 is not", "slowdown", "5 bytes"];
    for part in parts {
        assert!(reasons.iter().any(|reason| reason.contains(part)), "no reason says `{part}`: {reasons:#?}");
    }
    assert_eq!(reasons.len(), parts.len(), "{reasons:#?}");
    assert!(backend(2, CpuOptions::default()).unsupported(&good).is_empty());
    let refused = poor.load(Arc::clone(&good)).unwrap_err();
    assert!(matches!(refused, BackendError::Unsupported(reasons) if reasons == poor.unsupported(&good)));
}

/// A change to a program that runs is refused with these reasons, each found by its subject and a part of it.
fn check_refused(change: impl FnOnce(&mut ir::Program), expect: &[&str]) {
    let division = Division { data: 2, zero: ZeroStage::Zero1, microbatches: 2, ..Division::ONE };
    let mut program = ir::Program::clone(&program(&model(), &workload(), &division));
    change(&mut program);
    let reasons: Vec<String> =
        backend(2, CpuOptions::default()).problems(&program).iter().map(ToString::to_string).collect();
    assert_eq!(reasons.len(), expect.len(), "{reasons:#?}");
    assert!(reasons.iter().zip(expect).all(|(reason, part)| reason.contains(part)), "{reasons:#?}, not {expect:?}");
}

fn experts() -> ir::Experts {
    ir::Experts {
        count: 4,
        active: 2,
        ffn: 8,
        shared_ffn: 0,
        shared_gate: false,
        mlp: MlpKind::SwiGlu,
        bias: false,
        router_bias: false,
        router: ir::Router::default(),
    }
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    check_refused(|_| {}, &[]);
    for precision in ir::Precision::ALL {
        let trained = matches!(precision, Precision::Fp32 | Precision::Bf16);
        let reason = format!("fp32 or bf16, not in {}", precision.name());
        let reasons: &[&str] = if trained { &[] } else { &[&reason] };
        check_refused(|p| p.workload.precision = precision, reasons);
    }
    let run = |mixer| ir::LayerRun { layers: 4, mixer, feed_forward: ir::FeedForward::Dense };
    for (mixer, key) in
        [(ir::Mixer::Latent, "model.latent"), (ir::Mixer::Mamba, "model.mamba"), (ir::Mixer::GatedDelta, "model.delta")]
    {
        check_refused(|p| p.model.variants.pattern = vec![run(mixer)], &[key]);
    }
    let routed = ir::LayerRun { feed_forward: ir::FeedForward::Experts, ..run(ir::Mixer::Attention) };
    check_refused(|p| p.model.variants.pattern = vec![routed], &["model.experts: layers of experts have no sizes"]);
    check_refused(|p| p.model.variants.gated_attention = true, &["model.gated_attention"]);
    check_refused(|p| p.model.variants.attention_sinks = true, &["model.attention_sinks"]);
    let after = |model: &mut Model| {
        model.variants.branch_norms = ir::BranchNorms::Both;
        model.variants.parallel_branches = ir::ParallelBranches::OwnNorms;
    };
    check_refused(
        |p| after(&mut p.model),
        &["model.branch_norms: the CPU executor has no norms after branches that run"],
    );
}

/// What the executor does, but not with experts or sequences that ranks share.
#[test]
fn what_is_not_done_together_is_refused() {
    let routed = |change: fn(&mut ir::Program), expect: &str| {
        let change = |p: &mut ir::Program| {
            p.model.variants.experts = Some(experts());
            change(p);
        };
        check_refused(change, &[expect]);
    };
    routed(
        |p| p.chunks[0].recompute = Recompute::Operations,
        "plan.recompute: the CPU executor computes no single operations",
    );
    routed(|p| p.layout.sharing.offload_activations = true, "plan.offload: the CPU executor does not move");
    routed(|p| p.model.variants.parallel_branches = ir::ParallelBranches::OneNorm, "model.parallel_branches");
    routed(|p| p.model.variants.branch_norms = ir::BranchNorms::Both, "model.branch_norms");
    routed(|p| (p.layout.zero, p.layout.sharing.shard) = (ZeroStage::Zero1, Some(1)), "plan.shard");
    let shared = |p: &mut ir::Program| {
        (p.layout.data, p.layout.mesh.context, p.layout.microbatches) = (1, 2, 4);
        (p.workload.sequence_length, p.chunks[0].recompute) = (12, Recompute::Operations);
    };
    check_refused(shared, &["plan.recompute: the CPU executor computes no single operations again where context"]);
}

/// What a rank alone does, and tensor ranks cannot share.
#[test]
fn what_tensor_ranks_divide_and_one_must_see_is_refused() {
    let good = program(&model(), &workload(), &Division { tensor: 2, microbatches: 2, ..Division::ONE });
    let reasons = |change: fn(&mut ir::Program)| {
        let mut program = ir::Program::clone(&good);
        change(&mut program);
        backend(2, CpuOptions::default()).problems(&program).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    type Change = fn(&mut ir::Program);
    let cases: [(Change, &str); 5] = [
        (|p| p.model.variants.query_key_norm = ir::QueryKeyNorm::Width, "model.query_key_norm"),
        (|p| p.model.variants.branch_norms = ir::BranchNorms::Both, "model.branch_norms"),
        (|p| p.model.variants.branch_norms = ir::BranchNorms::After, "model.branch_norms"),
        (|p| p.model.variants.parallel_branches = ir::ParallelBranches::OneNorm, "model.parallel_branches"),
        (|p| p.chunks[0].recompute = Recompute::Operations, "plan.recompute"),
    ];
    for (change, key) in cases {
        let reasons = reasons(change);
        assert!(reasons.len() == 1 && reasons[0].starts_with(key), "{reasons:?}, not {key}");
    }
    assert!(reasons(|p| p.model.variants.query_key_norm = ir::QueryKeyNorm::Head).is_empty());
}

#[test]
fn recipes_that_are_not_followed_are_refused() {
    let check =
        |change: fn(&mut ir::Recipe), expect: &str| check_refused(|p| change(&mut p.workload.recipe), &[expect]);
    check(|r| r.fused_normalisation = false, "training.fused_normalisation");
    check(|r| r.fused_softmax = false, "training.fused_softmax");
    check(|r| r.fused_loss = false, "training.fused_loss");
    check(|r| r.logits = ir::LogitCopies::Freed, "training.logits");
    check(|r| r.fused_activation = false, "training.fused_activation");
    check(|r| r.sharded_loss = false, "training.sharded_loss");
    check(|r| r.early_stop_recompute = true, "training.early_stop_recompute");
    check(|r| r.scattered_messages = true, "training.scattered_messages");
    check(|r| r.blocking_messages = true, "training.blocking_messages");
    check(|r| r.cuda_graphs = true, "training.cuda_graphs");
    check(|r| r.document_length = Some(8), "training.document_length");
}

#[test]
fn divisions_that_are_not_made_are_refused() {
    check_refused(|p| p.layout.mesh.expert = 2, &["plan.mesh.expert: the model has no experts to divide"]);
    let routed = |change: fn(&mut ir::Program), expect: &[&str]| {
        let change = |p: &mut ir::Program| {
            p.model.variants.experts = Some(experts());
            change(p);
        };
        check_refused(change, expect);
    };
    let ranks = "plan.mesh.expert: 2 ranks of a stage do not divide over";
    routed(|p| p.layout.mesh.expert = 3, &["plan.mesh.expert: 4 experts do not divide over 3", ranks]);
    routed(|p| p.layout.mesh.expert = 4, &[ranks]);
    routed(|p| p.layout.mesh.expert_tensor = 3, &["plan.mesh.expert_tensor: 8 columns of an expert", ranks]);
    routed(|p| p.workload.recipe.deduplicated_dispatch = true, &["training.deduplicated_dispatch"]);
    let shared = |method, kv_heads: u32, length: u32, expect: &str| {
        let change = |p: &mut ir::Program| {
            (p.layout.data, p.layout.mesh.context, p.layout.microbatches) = (1, 2, 4);
            (p.layout.mesh.context_method, p.model.kv_heads, p.workload.sequence_length) = (method, kv_heads, length);
        };
        check_refused(change, &[expect]);
    };
    let parts = "plan.mesh.context: sequences of 10 tokens do not divide into 4 parts";
    shared(ir::ContextMethod::Ring, 2, 10, parts);
    let heads = "1 key and value heads over 1 tensor ranks do not divide over context 2";
    shared(ir::ContextMethod::AllToAll, 1, 10, heads);
    check_refused(|p| p.layout.sharing.overlap_tensor = true, &["plan.overlap_tensor"]);
    check_refused(|p| p.layout.sharing.overlap_experts = true, &["plan.overlap_experts"]);
    check_refused(|p| p.layout.sharing.offload_parameters = true, &["plan.offload: the CPU executor does not keep"]);
}

#[test]
fn instructions_that_are_not_carried_out_are_refused() {
    use ir::program::{CollectiveKind, Op, Payload, Stream};
    let bytes = ir::Bytes::new(64);
    let mut push = Vec::new();
    let of_unit = |experts| Payload::UnitGradients {
        chunk: ir::ChunkId::new(0),
        unit: 0,
        experts,
        microbatch: ir::MicrobatchId::new(0),
    };
    let group = ir::GroupId::new(0);
    let scatter = |payload| Op::Collective { kind: CollectiveKind::ReduceScatter, group, payload, bytes };
    let exchange = Op::Collective { kind: CollectiveKind::AllToAll, group, payload: of_unit(true), bytes };
    push.push((exchange, Stream::Shard));
    push.push((exchange, Stream::Shard));
    push.push((scatter(Payload::TiedGradients), Stream::Shard));
    let payload = Payload::Gradients { chunk: ir::ChunkId::new(0) };
    push.push((Op::Collective { kind: CollectiveKind::AllToAll, group, payload, bytes }, Stream::Expert));
    check_refused(
        |p| {
            for (op, stream) in &push {
                p.roles[0].push(*op, *stream, &[], &[]);
            }
        },
        &[
            "no all-to-all of gradients; 1 of them",
            "no all-to-all of gradients of a unit's experts; 2 of them",
            "of tied gradients; 1 of them",
        ],
    );
}

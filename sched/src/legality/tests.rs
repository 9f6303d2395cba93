//! Cases U01 to U15 of real users' faults, as far as they concern these axes, and hostile numbers.

mod axes;
mod unlike;

use ir::{DeviceId, Precision, Schedule};
use rand::RngExt;

use super::*;
use crate::evaluate::{ClosedForm, Evaluator};
use crate::testing::{
    analytic, dgx, plan, random, random_case, random_wide_case, small_model, two_leaves_of_unlike_nodes, workload,
};

const ONE: Schedule = Schedule::OneForwardOneBackward;

/// Each expected text is in a problem of its own, and there are no others.
fn check(plan: &Plan, model: &Model, work: &Workload, cluster: &Cluster, expect: &[&str]) {
    let problems = legal(plan, model, work, cluster);
    let texts = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts.len(), expect.len(), "{texts:#?}\n{plan:#?}");
    for (text, words) in texts.iter().zip(expect) {
        assert!(text.contains(words), "{words}\nin {text}");
    }
}

/// The nearest plans are legal; the first satisfies `first`.
fn check_nearest(plan: &Plan, model: &Model, work: &Workload, cluster: &Cluster, first: impl Fn(&Plan) -> bool) {
    let found = nearest(plan, model, work, cluster);
    assert!(!found.is_empty() && found.len() <= 3, "{} plans", found.len());
    for near in &found {
        check(near, model, work, cluster, &[]);
    }
    assert!(first(&found[0]), "{found:#?}");
}

fn split(plan: &mut Plan, layers: &[u32]) {
    for (stage, layers) in plan.stages.iter_mut().zip(layers) {
        stage.layers = vec![*layers];
    }
}

/// U01: layers that do not divide are neither dropped nor invented.
#[test]
fn layers_must_sum() {
    let (model, work, cluster) = (small_model(30), workload(32, 8), dgx(1));
    let mut lost = plan(&model, &work, [1, 1, 4, 1], ONE);
    assert_eq!(lost.stages.iter().map(|s| s.layers[0]).collect::<Vec<_>>(), [7, 8, 8, 7]);
    check(&lost, &model, &work, &cluster, &[]);
    split(&mut lost, &[7, 7, 7, 7]);
    check(&lost, &model, &work, &cluster, &["7+7+7+7 = 28 layers and the model has 30: 2 would be lost"]);
    check_nearest(&lost, &model, &work, &cluster, |near| {
        near.stages.iter().map(|s| s.layers[0]).collect::<Vec<_>>() == [7, 8, 8, 7]
    });
    let model = small_model(48);
    let mut uneven = plan(&model, &work, [1, 1, 2, 1], ONE);
    split(&mut uneven, &[11, 13]);
    check(&uneven, &model, &work, &cluster, &["11+13 = 24 layers and the model has 48"]);
    split(&mut uneven, &[30, 20]);
    check(&uneven, &model, &work, &cluster, &["30+20 = 50 layers and the model has 48: 2 too many"]);
}

#[test]
fn only_the_ends_may_hold_no_layer() {
    let (model, work, cluster) = (small_model(4), workload(32, 8), dgx(1));
    let mut ends = plan(&model, &work, [1, 1, 4, 1], ONE);
    split(&mut ends, &[0, 2, 2, 0]);
    check(&ends, &model, &work, &cluster, &[]);
    split(&mut ends, &[2, 0, 2, 0]);
    check(&ends, &model, &work, &cluster, &["chunk 1 has no layers and holds neither the embedding nor the head"]);
    ends.stages[2].layers = vec![1, 1];
    check(&ends, &model, &work, &cluster, &["holds 2 chunks and stage 0 holds 1"]);
}

/// U03: 40 layers on 16 stages lose to 8 stages and two replicas.
#[test]
fn uneven_stages_lose_to_even_ones() {
    let (model, work) = (small_model(40), workload(512, 64));
    let cost = analytic(dgx(2));
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let deep = closed.evaluate(&plan(&model, &work, [1, 1, 16, 1], ONE)).unwrap();
    let even = closed.evaluate(&plan(&model, &work, [2, 1, 8, 1], ONE)).unwrap();
    assert!(even.iteration < deep.iteration);
    // 40 / (16 x 3) of the work, before any bubble.
    assert!(deep.bubble_rate.unwrap() > 1.0 - 40.0 / 48.0, "{deep:?}");
}

/// U05, U07: interleaving over two positions is legal, whatever a runtime's messages once were.
#[test]
fn interleaving_over_two_positions() {
    let (model, work, cluster) = (small_model(4), workload(32, 8), dgx(1));
    check(&plan(&model, &work, [1, 1, 2, 2], ONE), &model, &work, &cluster, &[]);
    let (model, work) = (small_model(8), workload(32, 11));
    let odd = plan(&model, &work, [1, 1, 4, 2], ONE);
    check(&odd, &model, &work, &cluster, &["PyTorch"]);
    check_nearest(&odd, &model, &work, &cluster, |near| near.chunks_per_stage() == 1 && near.pipeline() == 4);
}

/// U09, U10: the batch identity, with all four numbers; no number of microbatches helps 23 replicas.
#[test]
fn batch_identity() {
    let (model, work, cluster) = (small_model(8), workload(32, 32), dgx(184));
    let mut odd = plan(&model, &work, [23, 4, 8, 1], ONE);
    odd.microbatches = 1;
    check(
        &odd,
        &model,
        &work,
        &cluster,
        &[
            "global_batch 32 is not data 23 x microbatch_size 1 x microbatches 1 = 23 (32 sequences do not divide over data 23",
        ],
    );
    let text = legal(&odd, &model, &work, &cluster)[0].to_string();
    assert!(text.contains("a global batch of 23 or 46 does"), "{text}");
    check_nearest(&odd, &model, &work, &cluster, |near| near.data == 16 || near.data == 32);
    let mut wrong = plan(&model, &work, [2, 1, 4, 1], ONE);
    wrong.microbatches = 8;
    check(&wrong, &model, &work, &cluster, &["x microbatches 8 = 16 (use 16 microbatches)"]);
    check_nearest(&wrong, &model, &work, &cluster, |near| near.microbatches == 16 && near.data == 2);
}

/// U11: key and value heads are neither replicated nor split: 10 of them allow tensor 1, 2, 5, 10.
#[test]
fn heads_divide_by_the_tensor_degree() {
    let (work, cluster) = (workload(32, 8), dgx(2));
    let mut phi = small_model(8);
    (phi.heads, phi.kv_heads, phi.ffn) = (40, 10, 17920);
    let eight = plan(&phi, &work, [1, 8, 1, 1], ONE);
    check(
        &eight,
        &phi,
        &work,
        &cluster,
        &["10 (key and value heads) is not a multiple of the tensor degree 8 (tensor can be 1, 2, 5, 10"],
    );
    check_nearest(&eight, &phi, &work, &cluster, |near| [5, 10].contains(&near.tensor));
    let mut qwen = small_model(8);
    (qwen.heads, qwen.kv_heads) = (32, 4);
    let eight = plan(&qwen, &work, [1, 8, 1, 1], ONE);
    check(
        &eight,
        &qwen,
        &work,
        &cluster,
        &["4 (key and value heads) is fewer than the tensor degree 8 (tensor can be 1, 2, 4 "],
    );
    check_nearest(&eight, &qwen, &work, &cluster, |near| near.tensor == 4);
}

/// U15: with sequence parallelism the tokens of a microbatch divide by the tensor degree.
#[test]
fn sequences_divide_by_the_tensor_degree() {
    let (model, cluster) = (small_model(8), dgx(1));
    let good = workload(4096, 8);
    check(&plan(&model, &good, [1, 4, 2, 1], ONE), &model, &good, &cluster, &[]);
    let odd = workload(4090, 8);
    let mut parallel = plan(&model, &odd, [1, 4, 2, 1], ONE);
    check(&parallel, &model, &odd, &cluster, &["4090 tokens do not divide by tensor 4"]);
    let text = legal(&parallel, &model, &odd, &cluster)[0].to_string();
    assert!(text.contains("pad sequences to 4092"), "{text}");
    check_nearest(&parallel, &model, &odd, &cluster, |near| !near.sequence_parallel || near.microbatch_size == 2);
    (parallel.tensor, parallel.data, parallel.microbatches) = (1, 4, 2);
    check(&parallel, &model, &odd, &cluster, &["divides activations over the tensor group, and tensor is 1"]);
}

/// U17: the first stage of a balanced 70B holds most; sharded optimizer state makes it fit.
#[test]
fn the_first_stage_holds_most() {
    let mut llama = small_model(80);
    (llama.hidden, llama.heads, llama.kv_heads, llama.head_dim) = (8192, 64, 8, 128);
    (llama.ffn, llama.vocabulary) = (28672, 128_256);
    let work = workload(8192, 64);
    let cost = analytic(dgx(32));
    let mut closed = ClosedForm::new(&llama, &work, &cost);
    let mut whole = plan(&llama, &work, [8, 4, 8, 1], ONE);
    whole.microbatches = 8;
    whole.zero = ir::ZeroStage::Zero0;
    let peaks = |closed: &mut ClosedForm<'_>, plan: &Plan| {
        closed.evaluate(plan).unwrap().memory.iter().map(|stage| stage.peak.gib()).collect::<Vec<_>>()
    };
    let zero0 = peaks(&mut closed, &whole);
    assert!(zero0[0] > 80.0 && zero0[1..7].is_sorted_by(|a, b| a > b) && zero0[7] < 0.75 * zero0[0], "{zero0:?}");
    whole.zero = ir::ZeroStage::Zero1;
    let zero1 = peaks(&mut closed, &whole);
    assert!(zero1.iter().all(|peak| *peak < 80.0), "{zero1:?}");
    // U25: 1F1B's peak does not grow with the number of microbatches.
    let more = workload(8192, 256);
    let mut closed = ClosedForm::new(&llama, &more, &cost);
    whole.microbatches = 32;
    assert_eq!(peaks(&mut closed, &whole), zero1);
}

/// U42: unlike replicas are slow, not illegal; a tensor group of unlike devices is refused.
#[test]
fn unlike_devices() {
    let cluster = two_leaves_of_unlike_nodes();
    let (model, work) = (small_model(4), workload(32, 8));
    check(&plan(&model, &work, [8, 2, 1, 1], ONE), &model, &work, &cluster, &[]);
    let crossing = plan(&model, &work, [2, 8, 1, 1], ONE);
    let mut eight = model.clone();
    eight.kv_heads = 8;
    check(
        &crossing,
        &eight,
        &work,
        &cluster,
        &["tensor group of replica 1 on stage 0 would join unlike devices, fast and slow (rank 12)"],
    );
    let mut exact = work.clone();
    exact.precision = Precision::Fp16;
    check(
        &plan(&model, &work, [8, 2, 1, 1], ONE),
        &model,
        &exact,
        &cluster,
        &["fast does not compute in fp16 (it computes in bf16, fp32", "slow does not compute in fp16"],
    );
    // Only devices that carry ranks count.
    check(&plan(&model, &work, [2, 2, 1, 1], ONE), &model, &exact, &cluster, &["fast does not compute in fp16"]);
}

#[test]
fn placements_are_checked() {
    let (model, work, cluster) = (small_model(4), workload(32, 8), dgx(1));
    let mut placed = plan(&model, &work, [2, 1, 2, 1], ONE);
    let at = |devices: &[u32]| devices.iter().map(|d| DeviceId::new(*d)).collect::<Vec<_>>();
    placed.placement = at(&[7, 5, 3, 1]);
    check(&placed, &model, &work, &cluster, &[]);
    placed.placement = at(&[7, 5, 9, 7, 1]);
    check(
        &placed,
        &model,
        &work,
        &cluster,
        &["names 5 devices for 4 ranks", "device 9 does not exist", "device 7 carries two ranks"],
    );
    check_nearest(&placed, &model, &work, &cluster, |near| near.placement.is_empty());
    let large = plan(&model, &work, [8, 2, 2, 1], ONE);
    check(&large, &model, &work, &cluster, &["= 32 ranks and the cluster has 8 devices"]);
    check_nearest(&large, &model, &work, &cluster, |near| near.world() <= 8);
}

#[test]
fn a_tied_head_on_the_embeddings_row_of_a_grid_is_refused() {
    let (mut model, work, cluster) = (small_model(4), workload(32, 1), dgx(1));
    let grid = ir::grid::Grid::parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0").unwrap();
    let zigzag = plan(&model, &work, [1, 1, 2, 2], Schedule::Explicit(grid));
    check(&zigzag, &model, &work, &cluster, &[]);
    model.tied_head = true;
    check(&zigzag, &model, &work, &cluster, &["one rank would hold two copies"]);
}

#[test]
fn all_reasons_come_at_once() {
    let (model, work, cluster) = (small_model(8), workload(33, 8), dgx(1));
    let mut all = plan(&model, &work, [3, 3, 3, 1], ONE);
    split(&mut all, &[1, 2, 3]);
    all.sequence_parallel = true;
    all.microbatches = 4;
    all.microbatch_size = 5;
    check(
        &all,
        &model,
        &work,
        &cluster,
        &["query heads", "key and value heads", "feed-forward", "1+2+3 = 6", "global_batch 8", "27 ranks"],
    );
    let mut none = all.clone();
    (none.data, none.tensor, none.microbatch_size, none.microbatches, none.stages) = (0, 0, 0, 0, Vec::new());
    check(&none, &model, &work, &cluster, &["is zero"; 5]);
    assert!(nearest(&none, &model, &work, &cluster).len() <= 3);
}

/// Neither checking nor searching panics, takes long, or calls a plan legal that does not lower.
#[test]
fn hostile_numbers() {
    for seed in 0..300 {
        let case = if seed % 2 == 0 { random_case(seed) } else { random_wide_case(seed) };
        let (mut plan, mut model, mut work, mut cluster) = case;
        let rng = &mut random(seed ^ 0xdead);
        for _ in 0..rng.random_range(1..4) {
            let value = [0, 1, 3, 7, 1000, 65_536, 1_000_000, u32::MAX - 1, u32::MAX][rng.random_range(0..9)];
            match rng.random_range(0..15) {
                0 => plan.data = value,
                1 => plan.tensor = value,
                2 => plan.microbatch_size = value,
                3 => plan.microbatches = value,
                4 => work.global_batch = value,
                5 => work.sequence_length = value,
                6 => model.layers = value,
                7 => model.kv_heads = value,
                8 => cluster.groups[0].count = value.min(1 << 24),
                9 => plan.stages.iter_mut().take(1).for_each(|stage| stage.layers[0] = value),
                10 => plan.stages.truncate(value as usize),
                11 => plan.mesh.context = value,
                12 => (plan.mesh.expert, plan.mesh.expert_tensor) = (value, value),
                13 => plan.sharing.shard = Some(value),
                _ => plan.placement = vec![DeviceId::new(value); value.min(9) as usize],
            }
        }
        let fine = legal(&plan, &model, &work, &cluster).is_empty();
        let lowers = fine && u64::from(plan.microbatches) * plan.world() < 10_000;
        if lowers {
            assert!(crate::lower(&plan, &model, &work, &cluster).is_ok(), "seed {seed}");
        }
        for near in nearest(&plan, &model, &work, &cluster) {
            check(&near, &model, &work, &cluster, &[]);
        }
    }
}

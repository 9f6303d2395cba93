use ir::{Bytes, Cluster, DeviceKindId, Fabric, Model, NodeGroup, NodeKindId, Workload};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::super::twin::brute;
use super::pipeline::{Rows, Stage};
use super::*;
use crate::evaluate::ClosedForm;
use crate::layout::chunks;
use crate::testing::{analytic, device, dgx, node, random, random_case, small_model, workload};

const BUDGET: u64 = 1 << 40;

/// Times drawn at random that grow with layers, on rows of two kinds.
struct Table {
    rows: Vec<u32>,
    /// By kind and layer: forward and backward.
    times: Vec<Vec<(u64, u64)>>,
    most: u32,
}

impl Table {
    fn bare(&self, kind: usize, layers: u32) -> u64 {
        let all = self.times[kind].windows(layers as usize);
        all.map(|layers| layers.iter().map(|layer| layer.0 + layer.1).sum::<u64>()).min().unwrap_or(0)
    }
    fn new(rng: &mut ChaCha8Rng, layers: u32, positions: u32) -> Self {
        let kinds = rng.random_range(1..3usize);
        let rows = (0..kinds).map(|_| rng.random_range(positions.div_ceil(2)..=positions)).collect();
        let mut layer = |_| (rng.random_range(1..50), rng.random_range(1..100));
        let times = (0..kinds).map(|_| (0..layers).map(&mut layer).collect()).collect();
        Self { rows, times, most: rng.random_range(layers.div_ceil(positions)..=layers) }
    }
}

impl Rows for Table {
    fn rows(&self) -> &[u32] {
        &self.rows
    }
    fn stage(&mut self, held: Held) -> Option<Stage> {
        let layers = &self.times[held.kind][held.first as usize..(held.first + held.layers) as usize];
        let (forward, backward) = layers.iter().fold((3, 5), |(f, b), layer| (f + layer.0, b + layer.1));
        (held.layers <= self.most).then_some(Stage {
            forward,
            backward,
            input: backward / 2,
            messages: 2,
            step: u64::from(held.layers),
            recompute: Recompute::None,
            recomputed: None,
        })
    }
}

/// All cuts into chunks from a layer on, on positions from one on.
fn all_cuts(
    pipeline: &Pipeline,
    table: &mut Table,
    position: u32,
    first: u32,
    cut: &mut Cut,
    seen: &mut dyn FnMut(&Cut),
) {
    if position == pipeline.positions {
        if first == pipeline.layers {
            seen(cut);
        }
        return;
    }
    for kind in 0..table.rows.len() {
        let used = cut.iter().filter(|(held, _)| held.kind == kind).count();
        for layers in 1..=pipeline.layers - first {
            let held = Held { position, kind, first, layers };
            if used < table.rows[kind] as usize
                && let Some(stage) = table.stage(held)
            {
                cut.push((held, stage));
                all_cuts(pipeline, table, position + 1, first + layers, cut, seen);
                cut.pop();
            }
        }
    }
}

#[test]
fn cuts_are_those_of_least_bound_among_all() {
    let (mut several, mut nothing) = (0, 0);
    for seed in 0..400 {
        let rng = &mut random(seed);
        let (positions, layers) = (rng.random_range(1..5), rng.random_range(4..8));
        let orders = [Order::OneForwardOneBackward, Order::GPipe, Order::Split, Order::Slowest];
        let order = orders[rng.random_range(0..4)];
        let pipeline = Pipeline { order, positions, layers, microbatches: rng.random_range(1..9) };
        let mut table = Table::new(rng, layers, positions);
        let mut least = u64::MAX;
        all_cuts(&pipeline, &mut table, 0, 0, &mut Vec::new(), &mut |cut| least = least.min(pipeline.bound(cut)));
        let kinds = 0..table.rows.len();
        let times = kinds.map(|kind| (1..=layers).map(|layers| table.bare(kind, layers)).collect()).collect::<Vec<_>>();
        let bare = &Least::new(&times, &table.rows, positions, layers);
        let found = pipeline.cut(&mut table, bare, u64::MAX);
        assert_eq!(found.bound, least, "seed {seed} {pipeline:?}");
        assert!(pipeline.least(bare, &table.rows) <= least, "seed {seed} {pipeline:?}");
        several += u32::from(table.rows.len() > 1 && positions > 1);
        nothing += u32::from(found.cuts.is_empty());
        if let Some(cut) = found.cuts.first() {
            assert_eq!(pipeline.bound(cut), least, "seed {seed}");
            // With a limit: nothing at it, the same above it.
            let at = pipeline.cut(&mut table, bare, least);
            assert!(at.cuts.is_empty() && at.bound == least, "seed {seed}");
            assert_eq!(pipeline.cut(&mut table, bare, least + 1).bound, least, "seed {seed}");
        }
    }
    assert!(several > 100 && nothing < 100, "{several} {nothing}");
}

/// What a plan's stages take, as the bound has them.
fn cut_of(plan: &Plan, closed: &mut ClosedForm<'_>) -> Option<Cut> {
    let of = |chunk: &ir::program::Chunk| {
        let cost = closed.stage(plan, chunk)?;
        let held = Held { position: chunk.stage.raw(), kind: 0, first: chunk.first_layer, layers: chunk.layers };
        let stage = Stage {
            forward: cost.forward,
            backward: cost.backward,
            input: cost.input,
            messages: cost.messages,
            step: cost.step,
            recompute: chunk.recompute,
            recomputed: None,
        };
        Some(((held, stage), cost.fits))
    };
    let found = chunks(plan).iter().map(of).collect::<Option<Vec<_>>>()?;
    Some(found.into_iter().map(|(stage, _)| stage).collect())
}

#[test]
fn no_plan_is_faster_than_its_bound() {
    let (mut tight, mut found) = (0, 0);
    let mut seed = 0;
    while found < 500 {
        seed += 1;
        let (mut plan, model, work, cluster) = random_case(seed);
        let Some(order) = order(&plan.schedule) else { continue };
        if plan.chunks_per_stage() > 1 || !plan.shares.are_equal() {
            continue;
        }
        for stage in &mut plan.stages {
            stage.recompute_layers = None;
        }
        let cost = analytic(cluster);
        let mut closed = ClosedForm::new(&model, &work, &cost);
        let prediction = closed.evaluate(&plan).unwrap();
        let cut = cut_of(&plan, &mut closed).expect("an ordinary plan");
        let (positions, layers) = (plan.pipeline(), model.layers);
        let pipeline = Pipeline { order, positions, layers, microbatches: plan.microbatches };
        let (bound, time) = (pipeline.bound(&cut), prediction.iteration.nanoseconds());
        assert!(bound <= time, "seed {seed}: {bound} over {time} {plan:?}");
        // What a stage says of memory is what the prediction says.
        for (chunk, memory) in chunks(&plan).iter().zip(&prediction.memory) {
            let fits = closed.stage(&plan, chunk).expect("as above").fits;
            assert_eq!(fits, memory.peak <= memory.capacity, "seed {seed} stage {}", chunk.stage.raw());
        }
        found += 1;
        tight += u32::from(order != Order::Split && bound as f64 > 0.9 * time as f64);
    }
    assert!(tight > 100, "{tight} of {found} are within a tenth");
}

/// Sizes with which a pass takes more than its launches.
fn some_model(rng: &mut ChaCha8Rng) -> (Model, Workload) {
    let mut model = small_model(rng.random_range(4..7));
    (model.hidden, model.ffn, model.head_dim) = (1024, 4096, 128);
    (model, workload(512, [4, 8, 12][rng.random_range(0..3)]))
}

fn small_space(rng: &mut ChaCha8Rng) -> Space {
    let schedules = [Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1, Schedule::GPipe];
    Space {
        tensor: vec![[1, 2][rng.random_range(0..2)]],
        sequence_parallel: Vec::new(),
        pipeline: vec![1, 2, [3, 4][rng.random_range(0..2)]],
        context: vec![1],
        expert: vec![1],
        microbatch_size: vec![1],
        chunks: vec![1, 2],
        schedules: vec![schedules[rng.random_range(0..3)].clone()],
        zero: vec![ZeroStage::Zero1, ZeroStage::Zero0],
        ..Space::default()
    }
}

/// A memory in which some plans fit and some do not.
fn tighten(rng: &mut ChaCha8Rng, cluster: &mut Cluster) {
    let share = rng.random_range(0.2..1.2);
    for kind in &mut cluster.device_kinds {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some bytes")]
        let bytes = (share * rng.random_range(4.0..6.0) * f64::from(1u32 << 30)) as u64;
        kind.memory = Bytes::new(bytes);
    }
}

#[test]
fn like_devices_are_never_slower_than_uniform_plans() {
    let (mut planned, mut faster, mut wide) = (0, 0, 0.0);
    for seed in 0..200 {
        let rng = &mut random(seed);
        let (model, work) = some_model(rng);
        let space = small_space(rng);
        let mut cluster = dgx(1);
        tighten(rng, &mut cluster);
        let cost = analytic(cluster);
        let ask = Question::new(&model, &work, cost.cluster());
        let uniform = Exhaustive { space: space.clone(), ..Exhaustive::default() };
        let uniform = uniform.plan(&ask, &mut ClosedForm::new(&model, &work, &cost), BUDGET, &mut |_, _| {});
        let planner = DynProg { space, shown: 5 };
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let found = planner.search(&ask, closed, BUDGET, &mut |_, _| {});
        let time = |candidate: &Candidate| candidate.evaluation.as_ref().unwrap().iteration.nanoseconds();
        let Ok(found) = found else {
            assert!(uniform.is_err(), "seed {seed}");
            continue;
        };
        let best = time(&found.candidates[0]);
        let bound = found.bound.expect("no budget ended it");
        assert!(fits(found.candidates[0].evaluation.as_ref().unwrap()) && bound <= best as f64, "seed {seed}");
        planned += 1;
        wide += 1.0 - bound / best as f64;
        let Ok(uniform) = uniform else { continue };
        let uniform = time(&uniform[0]);
        assert!(best as f64 <= 1.01 * uniform as f64, "seed {seed}: {best} of {uniform}");
        faster += u32::from(best < uniform);
    }
    assert!(planned > 100 && faster > 10, "{planned} planned, {faster} faster");
    assert!(wide / f64::from(planned) < 0.1, "{wide} of {planned}: gaps of a tenth in the mean");
}

/// Two nodes of four devices each, the second some times slower.
fn unlike(rng: &mut ChaCha8Rng) -> Cluster {
    let mut slow = device("slow", 80);
    slow.slowdown = rng.random_range(1.2..3.0);
    let group = |kind| NodeGroup { kind: NodeKindId::new(kind), count: 1 };
    Cluster {
        device_kinds: vec![device("quick", 80), slow],
        node_kinds: vec![node("quick", &[0; 4], 4, 4), node("slow", &[1; 4], 4, 4)],
        groups: vec![group(0), group(1)],
        fabric: Fabric::one_switch(),
    }
}

#[test]
fn unlike_devices_are_planned_as_well_as_by_trying_everything() {
    let (mut planned, mut gains, mut worst) = (0, 0, 0.0f64);
    let wanted = if std::env::var_os("TRAINYARD_LONG_TESTS").is_some() { 200 } else { 40 };
    for seed in 0..wanted {
        let rng = &mut random(seed);
        let (mut model, work) = some_model(rng);
        model.layers = model.layers.min(5);
        let space = Space { pipeline: vec![1, 2, 3], chunks: vec![1], ..small_space(rng) };
        let mut cluster = unlike(rng);
        tighten(rng, &mut cluster);
        let cost = analytic(cluster);
        let ask = Question::new(&model, &work, cost.cluster());
        let expected = brute(&space, &ask, &mut ClosedForm::new(&model, &work, &cost));
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let uniform = Exhaustive { space: space.clone(), ..Exhaustive::default() };
        let uniform = uniform.plan(&ask, closed, BUDGET, &mut |_, _| {});
        let found = DynProg { space, shown: 5 }.search(&ask, closed, BUDGET, &mut |_, _| {});
        let Some(expected) = expected else { continue };
        let found = found.unwrap_or_else(|no| panic!("seed {seed}: {no:?} and {expected}"));
        let best = found.candidates[0].evaluation.as_ref().unwrap().iteration.nanoseconds();
        let bound = found.bound.expect("no budget ended it");
        assert!(bound <= best as f64 && bound <= expected as f64, "seed {seed}: {bound} bounds {best} and {expected}");
        planned += 1;
        worst = worst.max(best as f64 / expected as f64);
        let uniform = uniform.ok().and_then(|all| Some(all[0].evaluation.as_ref().ok()?.iteration.nanoseconds()));
        gains += u64::from(uniform.is_none_or(|uniform| (best as f64) < 0.95 * uniform as f64));
    }
    assert!(worst <= 1.01, "{worst} of {planned} planned, {gains} gain a twentieth");
    assert!(2 * planned > wanted && 3 * gains > planned, "{planned} planned, {gains} gain");
}

#[test]
fn kinds_are_told_apart_and_rows_are_whole_nodes_or_parts_of_them() {
    let mut cluster = unlike(&mut random(1));
    cluster.groups[1].count = 3;
    cluster.node_kinds.push(node("both", &[0, 0, 1, 1], 4, 4));
    cluster.groups.push(NodeGroup { kind: NodeKindId::new(2), count: 1 });
    let (model, work) = (small_model(4), workload(32, 8));
    let found = kinds(&Question::new(&model, &work, &cluster));
    let sizes = found.iter().map(|kind| (kind.name.as_str(), kind.devices.len())).collect::<Vec<_>>();
    assert_eq!(sizes, [("quick", 4), ("slow", 12), ("quick", 2), ("slow", 2)]);
    assert_eq!(found[3].devices[0].raw(), 18);
    let rows = [1, 2, 3, 4, 6, 8, 12].map(|wide| found[1].rows(wide));
    assert_eq!(rows, [12, 6, 0, 3, 0, 1, 1]);
    assert!(cluster.device_kind(DeviceKindId::new(1)).slowdown > 1.0);
}

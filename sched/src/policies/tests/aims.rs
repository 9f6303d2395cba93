//! Objectives, limits and fronts, held against everything tried.

use ir::{Cluster, DeviceId, Fabric, Infeasible, NodeGroup, NodeKindId, SimDuration};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::super::pareto::{Measure, Pareto};
use super::*;
use crate::aim::{Limits, Score, usable};
use crate::testing::{device, node, random};

const BUDGET: u64 = 1 << 40;
const ALL: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

/// Up to three nodes of two kinds, whose prices and power are drawn.
fn some_cluster(rng: &mut ChaCha8Rng) -> Cluster {
    let mut kinds = vec![device("quick", 80), device("slow", 40)];
    for kind in &mut kinds {
        kind.usd_per_hour = Some(rng.random_range(0.5..4.0));
        kind.tdp_watts = Some(rng.random_range(200.0..800.0));
    }
    kinds[1].slowdown = rng.random_range(1.0..3.0);
    let groups = match rng.random_range(0..3) {
        0 => vec![(0, 1), (1, 1)],
        1 => vec![(0, rng.random_range(1..3))],
        _ => vec![(1, 1), (0, 1), (1, 1)],
    };
    Cluster {
        device_kinds: kinds,
        node_kinds: vec![node("quick", &[0; 4], 4, 2), node("slow", &[1; 4], 4, 2)],
        groups: groups.into_iter().map(|(kind, count)| NodeGroup { kind: NodeKindId::new(kind), count }).collect(),
        fabric: Fabric::one_switch(),
    }
}

fn some_space(rng: &mut ChaCha8Rng) -> Space {
    Space {
        tensor: vec![1, 2],
        pipeline: vec![1, [2, 3][rng.random_range(0..2)]],
        context: vec![1],
        microbatch_size: vec![1, 2],
        chunks: vec![1],
        schedules: vec![[Schedule::OneForwardOneBackward, Schedule::GPipe][rng.random_range(0..2)].clone()],
        zero: vec![ZeroStage::Zero1, ZeroStage::Zero0],
        ..Space::default()
    }
}

/// Every plan of a space on every number of devices, on all that may be used and on those of each kind of node, that is legal
/// and fits: without a thought.
fn everything(space: &Space, ask: &Question<'_>, closed: &mut ClosedForm<'_>) -> Vec<(Plan, Prediction)> {
    let all = usable(ask.cluster, &ask.aim.avoid);
    let mut orders = vec![all.iter().map(|(device, ..)| *device).collect::<Vec<_>>()];
    for kind in 0..2 {
        let own = all.iter().filter(|(_, of, _)| of.raw() == kind).map(|(device, ..)| *device);
        orders.push(own.collect());
    }
    let mut found = Vec::new();
    for (order, tensor) in orders.iter().flat_map(|order| space.tensor.iter().map(move |tensor| (order, *tensor))) {
        for (pipeline, data) in space.pipeline.iter().flat_map(|p| (1..=12u32).map(move |data| (*p, data))) {
            let ranks = (tensor * pipeline * data) as usize;
            if ranks > order.len() || !ask.workload.global_batch.is_multiple_of(data) {
                continue;
            }
            for (size, zero) in
                space.microbatch_size.iter().flat_map(|size| space.zero.iter().map(move |z| (*size, *z)))
            {
                let share = ask.workload.global_batch / data;
                if !share.is_multiple_of(size) || (data == 1 && zero == ZeroStage::Zero1) {
                    continue;
                }
                for (parallel, recompute) in [true, false].into_iter().flat_map(|p| ALL.map(|recompute| (p, recompute)))
                {
                    let mut written =
                        plan(ask.model, ask.workload, [data, tensor, pipeline, 1], space.schedules[0].clone());
                    if pipeline == 1 {
                        written.schedule = Schedule::OneForwardOneBackward;
                    }
                    (written.microbatch_size, written.microbatches) = (size, share / size);
                    (written.sequence_parallel, written.zero) = (parallel && tensor > 1, zero);
                    written.overlap_gradients = data > 1;
                    written.placement = order[..ranks].to_vec();
                    written.stages.iter_mut().for_each(|stage| stage.recompute = recompute);
                    found.extend(closed.evaluate(&written).ok().filter(fits).map(|prediction| (written, prediction)));
                }
            }
        }
    }
    found
}

struct Case {
    model: Model,
    work: Workload,
    cluster: Cluster,
    space: Space,
    avoid: Vec<DeviceId>,
}

fn some_case(seed: u64) -> Case {
    let rng = &mut random(seed);
    let mut model = small_model(rng.random_range(4..7));
    (model.hidden, model.ffn, model.head_dim) = (1024, 4096, 128);
    let work = workload(512, [8, 12][rng.random_range(0..2)]);
    let mut cluster = some_cluster(rng);
    let share = rng.random_range(0.6..1.5);
    for kind in &mut cluster.device_kinds {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some bytes")]
        let bytes = (share * 4.0 * f64::from(1u32 << 30)) as u64;
        kind.memory = ir::Bytes::new(bytes);
    }
    let devices = u32::try_from(cluster.devices()).unwrap();
    let avoid =
        (0..devices).filter(|_| seed.is_multiple_of(3) && rng.random_bool(0.25)).map(DeviceId::new).collect::<Vec<_>>();
    let avoid = if avoid.len() as u64 == cluster.devices() { Vec::new() } else { avoid };
    Case { model, work, cluster, space: some_space(rng), avoid }
}

/// A limit between the least and the most of what plans take, or under all of them.
fn some_limit(rng: &mut ChaCha8Rng, values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    match rng.random_range(0..4) {
        0 => None,
        1 => Some(least * rng.random_range(0.5..0.99)),
        _ => Some(least + (most - least) * rng.random_range(0.0..0.4)),
    }
}

fn uses(plan: &Plan, avoid: &[DeviceId]) -> bool {
    (0..u32::try_from(plan.world()).unwrap()).any(|rank| avoid.contains(&plan.device(ir::Rank::new(rank))))
}

/// Of a limit that stands in the way: what is nearest among all plans, as the message has it.
fn check_refusal(no: &Infeasible, aim: &Aim, all: &[(Plan, Prediction)], say: &str) {
    let limits = aim.limits;
    let text = no.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    if all.is_empty() {
        assert!(text.contains("fits into memory") || text.contains("do not divide"), "{say}: {text}");
        return;
    }
    let money = |found: &Prediction| found.expense.usd.unwrap() * limits.iterations;
    let time = |found: &Prediction| found.iteration.seconds() * limits.iterations;
    let paid = |found: &Prediction| limits.budget_usd.is_none_or(|budget| money(found) <= budget);
    let timely = |found: &Prediction| limits.deadline.is_none_or(|deadline| time(found) <= deadline.seconds());
    let least = |of: &dyn Fn(&Prediction) -> f64, keeps: &dyn Fn(&Prediction) -> bool| {
        all.iter().map(|(_, found)| found).filter(|found| keeps(found)).map(of).fold(f64::INFINITY, f64::min)
    };
    let cheapest = least(&money, &timely);
    if limits.budget_usd.is_some() && cheapest.is_finite() {
        let figure = if cheapest >= 1000.0 { format!("${cheapest:.0}") } else { format!("${cheapest:.2}") };
        assert!(text.contains("constraints.budget_usd") && text.contains(&figure), "{say}: no {figure} in {text}");
    }
    let fastest = least(&time, &paid);
    if limits.deadline.is_some() && fastest.is_finite() {
        let figure = match fastest {
            s if s >= 2.0 * 86_400.0 => format!("{:.2} days", s / 86_400.0),
            s if s >= 7200.0 => format!("{:.2} h", s / 3600.0),
            s => format!("{s:.1} s"),
        };
        assert!(text.contains("constraints.deadline") && text.contains(&figure), "{say}: no {figure} in {text}");
    }
}

#[test]
fn what_is_best_and_allowed_is_found_among_everything() {
    let (mut planned, mut refused, mut idle) = (0, 0, 0);
    for seed in 0..60 {
        let Case { model, work, cluster, space, avoid } = some_case(seed);
        let cost = analytic(cluster);
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        for objective in Objective::ALL {
            let mut aim = Aim { objective, avoid: avoid.clone(), ..Aim::default() };
            let all = everything(&space, &Question { aim: &aim, ..ask(&model, &work, &cost) }, closed);
            let rng = &mut random(seed * 3 + objective as u64);
            let iterations = 1e6;
            aim.limits = Limits {
                iterations,
                budget_usd: some_limit(rng, all.iter().map(|(_, found)| found.expense.usd.unwrap() * iterations)),
                deadline: some_limit(rng, all.iter().map(|(_, found)| found.iteration.seconds() * iterations))
                    .and_then(SimDuration::from_seconds),
            };
            // Where nothing may be left idle, the most replicas are the fastest but where links are slow.
            let open = aim.may_leave_idle();
            let best = all.iter().filter(|(_, found)| aim.allows(found)).map(|(_, found)| aim.score(found)).min();
            let ask = Question { aim: &aim, ..ask(&model, &work, &cost) };
            let say = format!("seed {seed} {objective:?} {:?}", aim.limits);
            for prune in [true, false] {
                let planner = Exhaustive { space: space.clone(), prune, ..Exhaustive::default() };
                let found = match (planner.plan(&ask, closed, BUDGET, &mut |_, _| {}), best) {
                    (Ok(found), Some(_)) => found,
                    (Err(no), _) => {
                        assert!(best.is_none() || !open, "{say}: {no:?}");
                        if open {
                            check_refusal(&no, &aim, &all, &say);
                        }
                        refused += 1;
                        continue;
                    }
                    (Ok(found), None) => panic!("{say}: {found:?}"),
                };
                let winner = found[0].evaluation.as_ref().unwrap();
                assert!(aim.allows(winner) && !uses(&found[0].plan, &avoid), "{say}: {found:?}");
                let (score, best) = (aim.score(winner), best.unwrap());
                assert!(score >= best, "{say}: {score:?} {best:?}");
                assert!(!open || (score.get() / best.get() - 1.0).abs() < 1e-12, "{say}: {score:?} {best:?}");
                planned += 1;
                idle += u32::from(found[0].plan.world() < ask.devices());
            }
        }
    }
    assert!(
        planned > 150 && refused > 40 && idle > 40,
        "{planned} planned, {refused} refused, {idle} leave devices idle"
    );
}

#[test]
fn no_policy_breaks_a_limit_or_is_better_than_its_bound() {
    let (mut planned, mut better) = (0, 0);
    for seed in 0..90 {
        let Case { model, work, cluster, space, avoid } = some_case(seed);
        let cost = analytic(cluster);
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let objective = Objective::ALL[usize::try_from(seed % 3).unwrap()];
        let mut aim = Aim { objective, avoid: avoid.clone(), ..Aim::default() };
        let all = everything(&space, &Question { aim: &aim, ..ask(&model, &work, &cost) }, closed);
        let rng = &mut random(seed + 1000);
        let deadline = some_limit(rng, all.iter().map(|(_, found)| found.iteration.seconds()));
        aim.limits =
            Limits { iterations: 1.0, budget_usd: None, deadline: deadline.and_then(SimDuration::from_seconds) };
        let ask = Question { aim: &aim, ..ask(&model, &work, &cost) };
        let say = format!("seed {seed} {objective:?} {:?}", aim.limits);
        let score = |found: &Result<Vec<Candidate>, Infeasible>| {
            let Ok(found) = found else { return Score::WORST };
            let winner = found[0].evaluation.as_ref().unwrap();
            assert!(aim.allows(winner) && !uses(&found[0].plan, &avoid), "{say}: {found:?}");
            aim.score(winner)
        };
        let uniform = Exhaustive { space: space.clone(), ..Exhaustive::default() };
        let uniform = score(&uniform.plan(&ask, closed, BUDGET, &mut |_, _| {}));
        let random = Random { space: space.clone(), ..Random::new(seed) };
        assert_eq!(score(&random.plan(&ask, closed, BUDGET, &mut |_, _| {})), uniform, "{say}");
        let few = score(&random.plan(&ask, closed, 10, &mut |_, _| {}));
        assert!(few >= uniform, "{say}");
        score(&Megatron::default().plan(&ask, closed, 10_000, &mut |_, _| {}));
        let found = DynProg { space: space.clone(), shown: 5 }.search(&ask, closed, BUDGET, &mut |_, _| {});
        let Ok(found) = found else {
            assert_eq!(uniform, Score::WORST, "{say}");
            continue;
        };
        let bound = found.bound.expect("no budget ended it");
        let found = score(&Ok(found.candidates));
        assert!(found <= uniform && bound <= found.get(), "{say}: {bound} {found:?} {uniform:?}");
        let least = all.iter().filter(|(_, found)| aim.allows(found)).map(|(_, found)| aim.score(found)).min();
        assert!(least.is_none_or(|least| bound <= least.get() * (1.0 + 1e-9)), "{say}: {bound} {least:?}");
        planned += 1;
        better += u32::from(found < uniform);
    }
    assert!(planned > 50 && better > 1, "{planned} planned, {better} better than uniform plans");
}

/// What stands in the way of a tree search.
const WHY: [&str; 3] = ["constraints.", "fits into memory", "plan.budget"];

/// What a tree search and what is turned beyond a space find, beside everything tried and `dynprog`.
#[test]
fn trees_and_switches_keep_to_limits_and_bounds() {
    let (mut planned, mut refused, mut idle, mut turned, mut proven, mut worst) = (0, 0, 0, 0, 0, 1.0f64);
    for seed in 0..90 {
        let Case { model, work, cluster, space, avoid } = some_case(seed);
        let cost = analytic(cluster);
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let objective = Objective::ALL[usize::try_from(seed % 3).unwrap()];
        let mut aim = Aim { objective, avoid: avoid.clone(), ..Aim::default() };
        let all = everything(&space, &Question { aim: &aim, ..ask(&model, &work, &cost) }, closed);
        let rng = &mut random(seed + 2000);
        let budget_usd = some_limit(rng, all.iter().map(|(_, found)| found.expense.usd.unwrap()));
        let deadline = some_limit(rng, all.iter().map(|(_, found)| found.iteration.seconds()));
        aim.limits = Limits { iterations: 1.0, budget_usd, deadline: deadline.and_then(SimDuration::from_seconds) };
        let ask = Question { aim: &aim, ..ask(&model, &work, &cost) };
        let say = format!("seed {seed} {objective:?} {:?}", aim.limits);
        let mut score = |candidates: &[Candidate]| {
            let winner = candidates[0].evaluation.as_ref().unwrap();
            assert!(aim.allows(winner) && !uses(&candidates[0].plan, &avoid), "{say}: {candidates:?}");
            let kept = candidates.iter().filter_map(|candidate| Some((candidate, candidate.evaluation.as_ref().ok()?)));
            for (candidate, prediction) in kept.filter(|(_, prediction)| aim.allows(prediction)) {
                assert!(!uses(&candidate.plan, &avoid), "{say}: {candidate:?}");
                assert_eq!(closed.evaluate(&candidate.plan).as_ref(), Ok(prediction), "{say}");
            }
            aim.score(winner)
        };
        let dynprog = DynProg { space: space.clone(), shown: 5 };
        let theirs = dynprog.search(&ask, &mut ClosedForm::new(&model, &work, &cost), BUDGET, &mut |_, _| {});
        let theirs = theirs.map_or(Score::WORST, |found| score(&found.candidates));
        let least = all.iter().filter(|(_, found)| aim.allows(found)).map(|(_, found)| aim.score(found)).min();
        let least = least.unwrap_or(Score::WORST).min(theirs);
        for (start, budget) in [(Start::Nothing, 3000), (Start::Nothing, 40), (Start::DynProg, 3000)] {
            let planner = Mcts { space: space.clone(), start, ..Mcts::new(seed) };
            let inner = &mut ClosedForm::new(&model, &work, &cost);
            let say = format!("{say} {start:?} {budget}");
            let found = match planner.search(&ask, inner, budget, &mut |_, _| {}) {
                Ok(found) => found,
                Err(no) => {
                    let text = no.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
                    assert!(WHY.iter().any(|why| text.contains(why)), "{say}: {text}");
                    assert!(budget == 40 || least == Score::WORST, "{say}: {least:?}, but {text}");
                    refused += 1;
                    continue;
                }
            };
            let own = score(&found.candidates);
            let most = least.min(own).get() * (1.0 + 1e-9);
            assert!(found.used <= budget && found.bound <= most, "{say}: {} bounds {most}", found.bound);
            if budget > 40 {
                worst = worst.max(own.over(least));
                assert!(own.over(least) <= 1.02, "{say}: {own:?} of {least:?}");
            }
            planned += 1;
            proven += u32::from(found.bound >= own.get());
            idle += u32::from(found.candidates[0].plan.world() < ask.devices());
        }
        let tree = Mcts { space: space.clone(), ..Mcts::new(seed) };
        for inner in [&dynprog as &dyn Planner, &tree] {
            let inner_closed = &mut ClosedForm::new(&model, &work, &cost);
            let plain = inner.plan(&ask, inner_closed, 1500, &mut |_, _| {});
            let found = Switched { inner, orders: true }.plan(&ask, inner_closed, 2000, &mut |_, _| {});
            assert_eq!(plain.is_ok(), found.is_ok(), "{say}");
            let (Ok(plain), Ok(found)) = (plain, found) else { continue };
            let (before, after) = (score(&plain), score(&found));
            assert!(after <= before, "{say}: {after:?} {before:?}");
            turned += u32::from(after < before);
        }
    }
    assert!(
        planned > 120 && refused > 60 && idle > 60 && turned > 60 && proven > 80,
        "{planned} planned, {refused} refused, {idle} idle, {turned} turned, {proven} proven, at worst {worst}"
    );
}

#[test]
fn fronts_are_those_of_everything() {
    let choices: [&[Measure]; 5] = [
        &Measure::ALL,
        &[Measure::Time, Measure::Money],
        &[Measure::Time, Measure::Energy],
        &[Measure::Money, Measure::Energy, Measure::Time],
        &[Measure::Time, Measure::Memory],
    ];
    let (mut fronts, mut points) = (0, 0);
    for seed in 0..60 {
        let Case { model, work, cluster, space, avoid } = some_case(seed);
        let cost = analytic(cluster);
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let aim = Aim { avoid, ..Aim::default() };
        let ask = Question { aim: &aim, ..ask(&model, &work, &cost) };
        let all = everything(&space, &ask, closed);
        let measures = choices[usize::try_from(seed % 5).unwrap()].to_vec();
        let values = |found: &Prediction| measures.iter().map(|measure| measure.of(found)).collect::<Vec<_>>();
        let weighed = all.iter().map(|(_, found)| values(found)).collect::<Vec<_>>();
        let beats = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a <= b) && a.iter().zip(b).any(|(a, b)| a < b);
        let mut expected = weighed.clone();
        expected.retain(|one| !weighed.iter().any(|other| beats(other, one)));
        let order = |list: &mut Vec<Vec<f64>>| {
            list.sort_by(|a, b| a.partial_cmp(b).unwrap());
            list.dedup();
        };
        order(&mut expected);
        let search = Pareto { space, measures: measures.clone() };
        let found = search.front(&ask, closed, BUDGET, &[], &mut |_, _| {});
        let Ok(found) = found else {
            assert!(expected.is_empty(), "seed {seed}: {expected:?}");
            continue;
        };
        let mut got = found.points.iter().map(|(_, found)| values(found)).collect::<Vec<_>>();
        assert!(got.is_sorted_by(|a, b| a[0] <= b[0]), "seed {seed}");
        order(&mut got);
        assert_eq!(got.len(), found.points.len(), "seed {seed}: a point is there twice");
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a / b - 1.0).abs() < 1e-9);
        assert!(
            got.len() == expected.len() && got.iter().zip(&expected).all(|(a, b)| near(a, b)),
            "seed {seed}: {got:?} {expected:?}"
        );
        for (plan, prediction) in &found.points {
            assert_eq!(closed.evaluate(plan).as_ref(), Ok(prediction), "seed {seed}: a point is no plan");
        }
        fronts += 1;
        points += got.len();
    }
    assert!(fronts > 40 && points > 3 * fronts, "{fronts} fronts, {points} points");
}

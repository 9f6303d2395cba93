//! What is said without an evaluation is what an evaluation says: floors, excess, and places that repeat themselves.

use ir::{DeviceId, Plan};

use super::*;

/// How far the worst stage is over its memory.
fn excess(prediction: &Prediction) -> Option<f64> {
    let over = prediction.memory.iter().filter(|stage| stage.peak > stage.capacity);
    over.map(|stage| stage.peak.get() as f64 / stage.capacity.get() as f64 - 1.0).reduce(f64::max)
}

/// Nothing is cheaper than it is said to be at least.
fn check_expense(closed: &mut ClosedForm<'_>, plan: &Plan, prediction: &Prediction, say: &str) {
    let (usd, joules) = (prediction.expense.usd.unwrap(), prediction.expense.joules.unwrap());
    let least = closed.least(plan);
    // Sums of the same products, in another order.
    let most = 1.0 + 1e-12;
    assert!(least.usd.is_none_or(|least| least <= usd * most), "{least:?} {usd} {say}");
    assert!(least.joules.is_none_or(|least| least <= joules * most), "{least:?} {joules} {say}");
    let seconds = prediction.iteration.seconds();
    let ranks = || (0..u32::try_from(plan.world()).unwrap()).map(|rank| plan.device(ir::Rank::new(rank)));
    let rate = |of: fn(ir::Expense) -> Option<f64>| ranks().map(|device| of(closed.rate(device)).unwrap()).sum::<f64>();
    assert!(rate(|rate| rate.usd) * seconds <= usd * most, "{usd} {say}");
    assert!(rate(|rate| rate.joules) * seconds <= joules * most, "{joules} {say}");
}

#[test]
fn nothing_is_faster_than_its_floor_or_larger_than_its_excess() {
    let (mut close, mut over, mut known) = (0, 0, 0);
    for seed in 0..1500 {
        let (plan, model, work, mut cluster) = if seed < 500 { random_case(seed) } else { random_wide_case(seed) };
        let constants = cost::StackConstants {
            launch_us: (seed % 2 == 0).then_some(8.0),
            hidden_in_launches: 0.7,
            message_sync_us: 20.0,
            ..Default::default()
        };
        let priced = |cluster| analytic(cluster).with_stack(cost::Stack { constants, ..Default::default() });
        let mut cost = priced(cluster.clone());
        if seed % 3 == 0 {
            // What a stage needs, or a little less. A device that holds less keeps less for itself, so the need is found in
            // steps, each an eightieth of the one before.
            for last in [false, false, false, false, false, false, true] {
                let found = ClosedForm::new(&model, &work, &cost).evaluate(&plan).unwrap();
                let peak = found.memory[usize::try_from(seed).unwrap() % found.memory.len()].peak.get();
                let memory = ir::Bytes::new(if last { peak - 8 * (seed % 2) } else { peak });
                cluster.device_kinds.iter_mut().for_each(|kind| kind.memory = memory);
                cost = priced(cluster.clone());
            }
        }
        let mut closed = ClosedForm::new(&model, &work, &cost);
        let (floor, apart) = (closed.floor(&plan), closed.excess(&plan));
        let prediction = closed.evaluate(&plan).unwrap();
        assert_eq!(apart, excess(&prediction), "seed {seed}: {plan:#?}");
        over += u32::from(apart.is_some());
        check_expense(&mut closed, &plan, &prediction, &format!("seed {seed}: {plan:#?}"));
        let Some(floor) = floor else { continue };
        known += 1;
        assert!(floor <= prediction.iteration, "seed {seed}: {floor:?} {:?} {plan:#?}", prediction.iteration);
        close += u32::from(floor.seconds() > 0.7 * prediction.iteration.seconds());
    }
    assert!(known > 1000 && over > 200 && close > 500, "{known} floors, {close} close, {over} over");
}

/// Floors are close where search needs them: large models on fast links.
#[test]
fn floors_of_large_models_are_close() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let mut closed = ClosedForm::new(&model, &work, &cost);
    for schedule in [Schedule::OneForwardOneBackward, Schedule::GPipe, Schedule::ZeroBubbleH1] {
        let plan = plan(&model, &work, [16, 8, 8, 1], schedule);
        let (floor, found) = (closed.floor(&plan).unwrap(), closed.evaluate(&plan).unwrap().iteration);
        let share = floor.seconds() / found.seconds();
        assert!((0.75..=1.0).contains(&share), "{share} {plan:#?}");
    }
}

/// Of what is not legal nothing need be known, and nobody panics.
#[test]
fn floors_of_illegal_plans_are_no_ones_concern() {
    let (model, work) = (small_model(4), workload(32, 8));
    let cost = analytic(dgx(1));
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let good = plan(&model, &work, [2, 2, 2, 1], Schedule::OneForwardOneBackward);
    let broken: [fn(&mut Plan); 6] = [
        |plan| plan.stages.clear(),
        |plan| plan.stages[1].layers.clear(),
        |plan| plan.stages[0].layers[0] = 1000,
        |plan| plan.tensor = 0,
        |plan| plan.data = 1 << 20,
        |plan| (plan.microbatches, plan.stages[0].layers) = (u32::MAX, vec![1, 1]),
    ];
    for change in broken {
        let mut plan = good.clone();
        change(&mut plan);
        let _ = closed.floor(&plan);
        assert_eq!(closed.excess(&plan), None);
    }
}

/// A plan with every rank's device written down is looked at rank by rank: the same comes out.
#[test]
fn ranks_that_repeat_themselves_are_as_if_all_were_looked_at() {
    for seed in 0..1000 {
        let (plan, model, work, mut cluster) = if seed < 300 { random_case(seed) } else { random_wide_case(seed) };
        if seed % 3 == 0 {
            // Nodes of unlike devices and of odd sizes, with and without leaf switches.
            cluster = dgx(24);
            let pick = |turn: u64, values: &[u32]| values[usize::try_from(seed / turn).unwrap() % values.len()];
            cluster.node_kinds[0].devices.truncate(pick(3, &[3, 4, 6, 8]) as usize);
            cluster.node_kinds[0].domain_size = pick(12, &[1, 2, 8]);
            cluster.node_kinds[0].nics = pick(36, &[1, 2, 8]);
            cluster.fabric.leaf_nodes = pick(9, &[0, 2, 5]);
        }
        if !crate::legal(&plan, &model, &work, &cluster).is_empty() {
            continue;
        }
        let cost = analytic(cluster);
        let world = u32::try_from(plan.world()).unwrap();
        let written = Plan { placement: (0..world).map(DeviceId::new).collect(), ..plan.clone() };
        let mut closed = ClosedForm::new(&model, &work, &cost);
        let (short, long) = (closed.evaluate(&plan).unwrap(), closed.evaluate(&written).unwrap());
        assert_eq!(short, long, "seed {seed}: {plan:#?}");
    }
}

mod axes;
mod bounds;
mod speed;
mod unlike;

use ir::{Bytes, Schedule, VerifiedProgram};
use rand::RngExt;

use super::closed_form::ClosedForm;
use super::recurrence::{Interleaving, gpipe, one_forward_one_backward};
use super::*;
use crate::schedules::{self, CellTimes, Order, dry_run, group_size};
use crate::testing::{
    Interpreter, analytic, dgx, gpt3, plan, promised, random, random_case, random_wide_case, small_model,
    thread_cpu_nanoseconds, with_experts, workload,
};

/// Random times of passes and messages.
fn random_times(rng: &mut rand_chacha::ChaCha8Rng, chunks: u32, uniform: bool) -> CellTimes {
    let mut draw = |low: u64, high: u64| {
        let one = rng.random_range(low..high);
        (0..chunks).map(|_| if uniform { one } else { rng.random_range(low..high) }).collect::<Vec<_>>()
    };
    CellTimes {
        forward: draw(50, 150),
        backward: draw(100, 300),
        backward_input: draw(50, 150),
        backward_weight: draw(50, 150),
        forward_message: draw(0, 60),
        backward_message: draw(0, 60),
        ready: draw(0, 2000),
    }
}

#[test]
fn recurrences_equal_the_dry_run_and_skipping_changes_nothing() {
    let (mut regular, mut skipped) = (0, 0);
    for seed in 0..600 {
        let rng = &mut random(seed);
        let (p, v) = (rng.random_range(1..6), rng.random_range(1..4));
        let m = if seed % 10 == 0 { 60 * rng.random_range(1..6) } else { rng.random_range(1..40) };
        let times = random_times(rng, p * v, seed % 2 == 0);
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1] {
            let Ok(grid) = schedules::grid(&schedule, p, v, m) else { continue };
            let order = Order::of(&grid, p * v).unwrap();
            let [expect] = super::recurrence::by_grid(&grid, &order, p * v, [&times]).ends;
            for skip in [false, true] {
                let ends = match schedule {
                    Schedule::GPipe if v == 1 => gpipe(m, &times, skip),
                    Schedule::OneForwardOneBackward | Schedule::ZeroBubbleH1 => {
                        let group = if v == 1 { 1 } else { group_size(p, m).unwrap() };
                        let split = schedule == Schedule::ZeroBubbleH1;
                        let shape = Interleaving { pipeline: p, chunks: v, microbatches: m, group, split };
                        if !shape.is_regular() {
                            continue;
                        }
                        one_forward_one_backward(shape, &times, skip)
                    }
                    _ => continue,
                };
                regular += 1;
                skipped += u32::from(skip);
                assert_eq!(ends, expect, "seed {seed}: {schedule:?} p {p} v {v} m {m} skip {skip}\n{times:?}");
            }
        }
    }
    assert!(regular > 1000 && skipped > 500, "{regular} {skipped}");
}

#[test]
fn a_million_microbatches_cost_no_more_than_a_few() {
    let m = 1 << 20;
    let start = thread_cpu_nanoseconds();
    for (seed, v) in (0..20).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let times = random_times(&mut random(seed), 8 * v, false);
        let group = if v == 1 { 1 } else { group_size(8, m).unwrap() };
        let shape = Interleaving { pipeline: 8, chunks: v, microbatches: m, group, split: false };
        let ends = one_forward_one_backward(shape, &times, true);
        let busiest = (0..8usize)
            .map(|s| (0..v as usize).map(|j| times.forward[j * 8 + s] + times.backward[j * 8 + s]).sum::<u64>())
            .max()
            .unwrap();
        let bound = busiest * u64::from(m);
        assert!(ends.row[0] >= bound && ends.row[0] < bound * 3 / 2, "{} against {bound}", ends.row[0]);
    }
    // Forty runs, of which each would take a tenth of a second or more without skipping.
    let time = thread_cpu_nanoseconds() - start;
    assert!(cfg!(debug_assertions) || time < 1_000_000_000, "{time} ns");
}

/// Bubble rates of uniform stages: (p-1)/(m+p-1) of 1F1B and GPipe, (p-1)/(vm+p-1) interleaved, with no transfers.
#[test]
fn bubbles_have_their_closed_forms() {
    for (p, v, m) in [(2, 1, 4), (4, 1, 8), (8, 1, 64), (4, 2, 8), (4, 3, 16), (8, 4, 32), (1, 1, 3)] {
        let times = CellTimes::uniform(p * v, [100, 200, 0, 0], 0);
        let group = if v == 1 { 1 } else { p };
        let shape = Interleaving { pipeline: p, chunks: v, microbatches: m, group, split: false };
        let ends = one_forward_one_backward(shape, &times, false);
        let (p, v, m) = (u64::from(p), u64::from(v), u64::from(m));
        assert_eq!(*ends.row.iter().max().unwrap(), 300 * (v * m + p - 1), "p {p} v {v} m {m}");
        if v == 1 {
            assert_eq!(gpipe(u32::try_from(m).unwrap(), &times, false).row[0], 300 * (m + p - 1));
        }
    }
}

/// On plans whose ranks are alike: equal to a simulation of the program on links that are not shared.
#[test]
fn closed_form_equals_the_carried_out_program() {
    let (mut equal, mut schedules, mut unequal) = (0, [0; 8], 0);
    for seed in 0..1000 {
        let (plan, model, work, cluster) = if seed < 500 { random_case(seed) } else { random_wide_case(seed) };
        let cost = analytic(cluster);
        let roles = crate::lower(&plan, &model, &work, cost.cluster()).unwrap().roles.len();
        let closed = ClosedForm::new(&model, &work, &cost).evaluate(&plan).unwrap();
        let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&plan).unwrap();
        let say = format!("seed {seed}: {plan:#?}");
        assert_eq!(closed.breakdown.total(), closed.iteration, "{say}");
        assert_eq!(carried.breakdown.total(), carried.iteration, "{say}");
        for (a, b) in closed.memory.iter().zip(&carried.memory) {
            check_memory(a, b, &plan, crate_message_bytes(&plan, &model, &work), &say);
        }
        // Of replicas that meet in every pass, or go through an order that is written for others, those that have nothing to
        // do are busy with what they gather.
        let company = crate::shares::company(&crate::layout::layout(&plan), model.variants.experts.is_some()) > 1
            || matches!(plan.schedule, Schedule::Explicit(_));
        if !plan.shares.are_equal() {
            let like = one_place(&plan, &model, &work, &cost);
            unequal += u32::from(like);
            if like {
                assert_eq!(closed.iteration, carried.iteration, "{say}");
            }
            if like && !company {
                let (a, b) = (closed.bubble_rate.unwrap(), carried.bubble_rate.unwrap());
                assert!((a - b).abs() < 1e-9, "{a} {b} {say}");
            }
            continue;
        }
        if roles != plan.stages.len() {
            continue;
        }
        equal += 1;
        schedules[match plan.schedule {
            Schedule::GPipe => 0,
            Schedule::OneForwardOneBackward => 1,
            Schedule::ZeroBubbleH1 => 2,
            Schedule::Explicit(_) => 3,
            Schedule::ZeroBubble(_) => 4,
            Schedule::ZeroBubbleH2 => 5,
            Schedule::Vee(_) => 6,
            Schedule::DualPipeV => 7,
        }] += 1;
        assert_eq!(closed.iteration, carried.iteration, "{say}");
        let (a, b) = (closed.bubble_rate.unwrap(), carried.bubble_rate.unwrap());
        assert!((a - b).abs() < 1e-9, "{a} {b} {say}");
        assert_eq!(closed.expense.usd, carried.expense.usd, "{say}");
        let (a, b) = (closed.expense.joules.unwrap(), carried.expense.joules.unwrap());
        assert!((a / b - 1.0).abs() < 1e-9, "{a} {b} {say}");
    }
    assert!(equal > 400 && schedules.iter().all(|n| *n > 10), "{equal} {schedules:?}");
    assert!(unequal > 60, "{unequal} with unequal shares");
}

/// Whether replicas are alike but for their shares: the same plan with equal ones has a role for each position.
fn one_place(plan: &ir::Plan, model: &ir::Model, work: &ir::Workload, cost: &cost::CostModel) -> bool {
    let equal = crate::shares::alone(plan, plan.microbatches);
    let batch = equal.data * equal.microbatches * equal.microbatch_size;
    let work = ir::Workload { global_batch: batch, ..work.clone() };
    crate::lower(&equal, model, &work, cost.cluster()).unwrap().roles.len() == plan.stages.len()
}

fn crate_message_bytes(plan: &ir::Plan, model: &ir::Model, work: &ir::Workload) -> Bytes {
    let layout = crate::layout::layout(plan);
    ir::counts::message_bytes(ir::counts::Shape { model, workload: work, layout: &layout })
}

/// Equal but for boundary activations, of which the program holds what the times make it hold, and but for what runs beside
/// passes, which the closed form counts as if it lasted as long as they do.
fn check_memory(closed: &ir::StageMemory, carried: &ir::StageMemory, plan: &ir::Plan, message: Bytes, say: &str) {
    assert_eq!((closed.stage, closed.capacity), (carried.stage, carried.capacity), "{say}");
    let part = |memory: &ir::StageMemory, name: &str| {
        memory.parts.iter().find(|(part, _)| *part == name).map_or(0, |(_, bytes)| bytes.get())
    };
    for name in ["weights", "optimizer-state"] {
        assert_eq!(part(closed, name), part(carried, name), "{name} {say}");
    }
    // What an allocator keeps and cannot use, an eighth of what passes at most, follows the boundary activations.
    let messages = 6 * message.get();
    let slack = messages + messages / 8 + 1;
    let scattered = matches!(plan.zero, ir::ZeroStage::Zero2 | ir::ZeroStage::Zero3);
    if scattered || plan.sharing.offload_activations {
        let most = carried.peak.get() * 3 / 2 + slack;
        assert!(
            (carried.peak.get()..=most + slack).contains(&(closed.peak.get() + slack)),
            "{closed:?} {carried:?} {say}"
        );
        return;
    }
    assert_eq!(part(closed, "gradients"), part(carried, "gradients"), "{say}");
    let reserves = part(closed, "reserve").abs_diff(part(carried, "reserve"));
    assert!(reserves <= messages / 8 + 1, "reserves differ by {reserves}: {closed:?} {carried:?} {say}");
    let without = |memory: &ir::StageMemory| memory.peak.get() - part(memory, "communication");
    let apart = without(closed).abs_diff(without(carried));
    assert!(apart <= slack, "peaks differ by {apart}: {closed:?} {carried:?} {say}");
}

/// What positions hold is known by as many microbatches as are shown.
#[test]
fn more_microbatches_than_show_all_that_is_held_change_nothing() {
    let mut fewer = 0;
    for seed in 0..400 {
        let rng = &mut random(seed);
        let (p, v) = (rng.random_range(1..7), rng.random_range(1..4));
        let m = if seed % 2 == 0 { p * rng.random_range(1..12) } else { rng.random_range(1..40) };
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1] {
            if !schedules::refusals(&schedule, p, v, m).is_empty() {
                continue;
            }
            let plan = plan(&small_model(p * v), &workload(32, m), [1, 1, p, v], schedule);
            let shown = super::inflight::shown(&plan);
            let short = ir::Plan { microbatches: shown, ..plan.clone() };
            assert_eq!(super::inflight::contexts(&plan), super::inflight::contexts(&short), "seed {seed}: {plan:?}");
            fewer += u32::from(shown < m);
        }
    }
    assert!(fewer > 200, "{fewer}");
}

#[test]
fn illegal_plans_have_their_reasons() {
    let (model, work) = (small_model(4), workload(32, 8));
    let cost = analytic(dgx(1));
    let mut wrong = plan(&model, &work, [4, 4, 2, 1], Schedule::OneForwardOneBackward);
    wrong.microbatches = 3;
    let no = ClosedForm::new(&model, &work, &cost).evaluate(&wrong).unwrap_err();
    assert_eq!(no.reasons.len(), 2, "{:?}", no.reasons);
    let no = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&wrong).unwrap_err();
    assert_eq!(no.reasons.len(), 2, "{:?}", no.reasons);
}

#[test]
fn what_does_not_fit_is_named() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let big = plan(&model, &work, [128, 8, 1, 1], Schedule::OneForwardOneBackward);
    let prediction = ClosedForm::new(&model, &work, &cost).evaluate(&big).unwrap();
    let problems = memory_problems(&prediction);
    assert_eq!(problems.len(), 1);
    let text = problems[0].to_string();
    assert!(text.starts_with("stage 0: needs ") && text.contains("GiB of 80.0 during"), "{text}");
    assert!(text.contains("gradients") && text.contains("in flight"), "{text}");
}

#[test]
fn dry_run_and_program_agree_on_zero_bubble() {
    // The same numbers from three sides: paper, dry run, program.
    let (p, m) = (4u32, 12u32);
    let grid = schedules::grid(&Schedule::ZeroBubbleH1, p, 1, m).unwrap();
    let order = Order::of(&grid, p).unwrap();
    let run = dry_run(&grid, p, &order, &CellTimes::uniform(p, [100, 200, 100, 100], 0));
    assert_eq!(run.makespan(), u64::from(m) * 300 + u64::from(p - 1) * 100);
    let (model, work) = (small_model(4), workload(32, 12));
    let plan = plan(&model, &work, [1, 1, p, 1], Schedule::ZeroBubbleH1);
    let program = crate::lower(&plan, &model, &work, &dgx(1)).unwrap();
    assert!(VerifiedProgram::new(program).is_ok());
}

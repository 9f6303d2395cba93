//! Stages of unlike tensor degrees: the closed form against the carried out program.

use super::*;
use crate::layout::chunks;
use crate::testing::{one_domain, random_unlike_case};

/// On one switch, where every lane has the same price: equal to a simulation of the program.
#[test]
fn closed_form_equals_the_carried_out_program_of_unlike_degrees() {
    let (mut equal, mut unequal) = (0, 0);
    for seed in 0..1000 {
        let (plan, model, work, cluster) = random_unlike_case(seed);
        let cost = analytic(cluster);
        let closed = ClosedForm::new(&model, &work, &cost).evaluate(&plan).unwrap();
        let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&plan).unwrap();
        let say = format!("seed {seed}: {plan:#?}");
        assert_eq!(closed.breakdown.total(), closed.iteration, "{say}");
        let layout = crate::layout::layout(&plan);
        for (position, (a, b)) in (0u32..).zip(closed.memory.iter().zip(&carried.memory)) {
            let own = layout.at(position);
            let message = ir::counts::message_bytes(ir::counts::Shape { model: &model, workload: &work, layout: &own });
            check_memory(a, b, &plan, message, &say);
        }
        if seed % 2 == 0 || !plan.shares.are_equal() && crate::shares::company(&layout, false) > 1 {
            continue;
        }
        if matches!(plan.schedule, Schedule::Explicit(_)) {
            // In any order, a rank whose partners are several may be free for others before the last of them is done.
            let (closed, carried) = (closed.iteration.seconds(), carried.iteration.seconds());
            assert!(closed >= carried && closed < 1.02 * carried, "{closed} {carried} {say}");
            continue;
        }
        equal += 1;
        unequal += u32::from(!plan.shares.are_equal());
        assert_eq!(closed.iteration, carried.iteration, "{say}");
        assert_eq!(closed.expense.usd, carried.expense.usd, "{say}");
        let (ours, theirs) = (closed.expense.joules.unwrap(), carried.expense.joules.unwrap());
        assert!((ours / theirs - 1.0).abs() < 1e-9, "{ours} {theirs} {say}");
        let (a, b) = (closed.bubble_rate.unwrap(), carried.bubble_rate.unwrap());
        // Where a rank sends to several, the first of them begins its span before the others.
        let tensors = plan.tensors().collect::<Vec<_>>();
        let widens =
            chunks(&plan).windows(2).any(|pair| tensors[pair[0].stage.index()] < tensors[pair[1].stage.index()]);
        let within = if widens { -1e-9..0.05 } else { -1e-9..1e-9 };
        assert!(!plan.shares.are_equal() || within.contains(&(b - a)), "{a} {b} {say}");
    }
    assert!(equal > 300 && unequal > 5, "{equal} {unequal}");
}

/// What a stage's degree changes is that stage alone: its passes, its state and the messages at its borders.
#[test]
fn a_stage_costs_what_its_own_degree_says() {
    let (model, work) = (small_model(8), workload(32, 8));
    let cost = analytic(one_domain(16));
    let uniform = |tensor| plan(&model, &work, [1, tensor, 4, 1], Schedule::OneForwardOneBackward);
    let mixed = uniform(4).with_tensors(&[4, 2, 2, 1]);
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let found = closed.evaluate(&mixed).unwrap();
    for (stage, tensor) in found.memory.iter().zip(mixed.tensors()) {
        let alike = closed.evaluate(&uniform(tensor)).unwrap();
        let part = |memory: &ir::StageMemory, name: &str| {
            memory.parts.iter().find(|(part, _)| *part == name).map(|(_, bytes)| *bytes)
        };
        for name in ["weights", "gradients", "optimizer-state", "activations"] {
            assert_eq!(part(stage, name), part(&alike.memory[stage.stage.index()], name), "{name} of {}", stage.stage);
        }
    }
}

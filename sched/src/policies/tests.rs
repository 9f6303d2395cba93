mod aims;

use ir::{Recompute, Schedule, ZeroStage};

use super::*;
use crate::aim::fits;
use crate::evaluate::ClosedForm;
use crate::testing::{analytic, dgx, gpt3, plan, small_model, workload};

fn ask<'a>(model: &'a Model, workload: &'a Workload, cost: &'a cost::CostModel) -> Question<'a> {
    Question::new(model, workload, cost.cluster())
}

#[test]
fn megatron_keeps_the_tensor_groups_of_gpt3_in_a_node_as_its_authors_did() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let mut calls = 0;
    let found = Megatron::default()
        .plan(&ask(&model, &work, &cost), &mut ClosedForm::new(&model, &work, &cost), 10_000, &mut |used, best| {
            calls += 1;
            assert_eq!(used, calls);
            assert!(best.is_none_or(|(_, prediction)| fits(prediction)));
        })
        .unwrap();
    let best = &found[0];
    // Narayanan et al. 2021, table 1: tensor 8, pipeline 12 (without sharded optimizer state or selective recomputation, with
    // which fewer tensor ranks do).
    assert!([4, 8].contains(&best.plan.tensor), "{:?}", best.plan);
    let time = |candidate: &Candidate| candidate.evaluation.as_ref().unwrap().iteration.seconds();
    let held = Held { tensor: Some(8), ..Held::default() };
    let theirs = Megatron { held, ..Megatron::default() }
        .plan(&ask(&model, &work, &cost), &mut ClosedForm::new(&model, &work, &cost), 10_000, &mut |_, _| {})
        .unwrap();
    assert_eq!((theirs[0].plan.tensor, fits(theirs[0].evaluation.as_ref().unwrap())), (8, true));
    assert!(time(&theirs[0]) >= time(best) / 1.04);
    assert!((2..=16).contains(&best.plan.pipeline()), "{:?}", best.plan);
    assert!(best.plan.sequence_parallel && best.plan.zero == ZeroStage::Zero1 && best.plan.overlap_gradients);
    assert!(fits(best.evaluation.as_ref().unwrap()));
    assert!(found.len() > 3, "{}", found.len());
    // The chosen one is as fast as the fastest, which follow in order.
    assert!(time(best) <= 1.04 * time(&found[1]));
    for pair in found[1..].windows(2) {
        assert!(!fits(pair[1].evaluation.as_ref().unwrap()) || time(&pair[0]) <= time(&pair[1]));
        assert!(!pair[1].reasons.is_empty());
    }
    let reasons = found.iter().flat_map(|c| &c.reasons).cloned().collect::<Vec<_>>().join("\n");
    for words in ["fastest of ", "% slower: bubble", "does not fit: stage 0 needs", "GiB of 80.0"] {
        assert!(reasons.contains(words), "{words} in\n{reasons}");
    }
}

#[test]
fn small_models_stay_data_parallel() {
    let (model, work) = (small_model(4), workload(512, 64));
    let cost = analytic(dgx(1));
    let found = Megatron::default()
        .plan(&ask(&model, &work, &cost), &mut ClosedForm::new(&model, &work, &cost), 1000, &mut |_, _| {})
        .unwrap();
    let best = &found[0].plan;
    assert_eq!((best.data, best.tensor, best.pipeline()), (8, 1, 1));
    assert!(best.stages.iter().all(|stage| stage.recompute == Recompute::None));
}

#[test]
fn what_fits_nowhere_has_the_closest_and_its_stage() {
    let (model, work) = (gpt3(), workload(2048, 8));
    let cost = analytic(dgx(1));
    let no = Megatron::default()
        .plan(&ask(&model, &work, &cost), &mut ClosedForm::new(&model, &work, &cost), 1000, &mut |_, _| {})
        .unwrap_err();
    let text = no.reasons[0].to_string();
    assert!(text.contains("none fits into memory; the closest") && text.contains("GiB of 80.0"), "{text}");
    // A budget that runs out is said.
    let no = Megatron::default()
        .plan(&ask(&model, &work, &cost), &mut ClosedForm::new(&model, &work, &cost), 2, &mut |_, _| {})
        .unwrap_err();
    assert!(no.reasons.iter().any(|reason| reason.to_string().contains("budget of 2")), "{:?}", no.reasons);
}

#[test]
fn manual_says_what_was_written_and_what_is_near() {
    let (model, work) = (small_model(8), workload(32, 8));
    let cost = analytic(dgx(1));
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let good = plan(&model, &work, [2, 2, 2, 1], Schedule::GPipe);
    let found = Manual::new(good.clone()).plan(&ask(&model, &work, &cost), &mut closed, 1, &mut |_, _| {}).unwrap();
    assert_eq!((found.len(), &found[0].plan, found[0].reasons[0].as_str()), (1, &good, "what was written"));
    let mut bad = good;
    bad.tensor = 3;
    let no = Manual::new(bad).plan(&ask(&model, &work, &cost), &mut closed, 1, &mut |_, _| {}).unwrap_err();
    assert!(no.reasons.len() >= 3 && !no.nearest.is_empty(), "{no:?}");
    for near in no.nearest {
        assert!(crate::legal(&near, &model, &work, cost.cluster()).is_empty());
    }
}

/// A space of some dozens of plans on a node.
fn few() -> Space {
    let schedules = vec![Schedule::OneForwardOneBackward, Schedule::GPipe];
    let zero = vec![ZeroStage::Zero1, ZeroStage::Zero0];
    Space { tensor: vec![1, 2], pipeline: vec![1, 2, 4], chunks: vec![1, 2], schedules, zero, ..Space::default() }
}

#[test]
fn draws_of_a_whole_space_find_its_optimum_and_more_draws_find_no_worse() {
    let (model, work) = (small_model(8), workload(512, 16));
    let cost = analytic(dgx(1));
    let ask = ask(&model, &work, &cost);
    let closed = &mut ClosedForm::new(&model, &work, &cost);
    let time = |found: &[Candidate]| found[0].evaluation.as_ref().unwrap().iteration;
    let all = Exhaustive { space: few(), ..Exhaustive::default() };
    let best = time(&all.plan(&ask, closed, 1 << 40, &mut |_, _| {}).unwrap());
    for seed in 0..50 {
        let planner = Random { space: few(), ..Random::new(seed) };
        let mut draw = |budget| {
            let mut least = None;
            let found = planner.plan(&ask, closed, budget, &mut |used, best| {
                // The best so far at any time.
                assert!(used <= budget);
                let now = best.map(|(_, prediction)| prediction.iteration);
                assert!(least.is_none() || now <= least, "seed {seed}");
                least = now;
            });
            found.unwrap()
        };
        let found = [1, 4, 16, 1 << 40].map(&mut draw);
        for pair in found.windows(2) {
            assert!(time(&pair[1]) <= time(&pair[0]), "seed {seed}");
        }
        assert_eq!(time(&found[3]), best, "seed {seed}");
        assert!(found[0][0].reasons[1].contains(&format!("with seed {seed}")), "{:?}", found[0][0].reasons);
        assert!(found[0][0].reasons[2].contains("budget"), "{:?}", found[0][0].reasons);
        assert_eq!(found[1][0].plan, draw(4)[0].plan, "the same seed draws the same");
    }
}

#[test]
fn draws_are_uniform_over_the_legal_plans() {
    let (model, work) = (small_model(8), workload(512, 16));
    let cost = analytic(dgx(1));
    let ask = ask(&model, &work, &cost);
    let closed = &mut ClosedForm::new(&model, &work, &cost);
    let mut counts = std::collections::BTreeMap::<String, f64>::new();
    let draws = 20_000;
    for seed in 0..draws {
        let planner = Random { space: few(), ..Random::new(seed) };
        let found = planner.plan(&ask, closed, 1, &mut |_, _| {}).unwrap();
        *counts.entry(format!("{:?}", found[0].plan)).or_default() += 1.0;
    }
    let numbered = exhaustive::Numbered::new(&few(), &ask);
    let legal = (0..numbered.count())
        .filter(|number| crate::legal(&numbered.plan(*number), &model, &work, cost.cluster()).is_empty());
    let legal = legal.count();
    assert_eq!(counts.len(), legal);
    // Chi squared has a mean of n - 1 and a variance of twice that: six deviations.
    let expected = draws as f64 / legal as f64;
    let squares = counts.values().map(|count| (count - expected).powi(2) / expected).sum::<f64>();
    let freedom = legal as f64 - 1.0;
    assert!((squares - freedom).abs() < 6.0 * (2.0 * freedom).sqrt(), "{squares} of {freedom}");
}

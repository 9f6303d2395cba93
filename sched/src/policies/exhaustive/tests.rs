use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use ir::{Bytes, Schedule};

use super::*;
use crate::evaluate::ClosedForm;
use crate::testing::{
    analytic, dgx, gpt3, promised, random, random_wide_case, small_model, thread_cpu_nanoseconds, workload,
};

const BUDGET: u64 = 1 << 40;

/// Some of a list's values, at least one, in its order.
fn some<T: Clone>(rng: &mut ChaCha8Rng, all: &[T], most: usize) -> Vec<T> {
    let mut left = all.to_vec();
    while left.len() > most || (left.len() > 1 && rng.random_bool(0.3)) {
        left.remove(rng.random_range(0..left.len()));
    }
    left
}

/// A random space of some dozens of plans.
fn random_space(rng: &mut ChaCha8Rng) -> Space {
    let zero = [ZeroStage::Zero1, ZeroStage::Zero0, ZeroStage::Zero3, ZeroStage::Zero2];
    let schedules = [Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1, Schedule::GPipe];
    Space {
        data: Vec::new(),
        sequence_parallel: Vec::new(),
        tensor: some(rng, &[1, 2, 4], 2),
        pipeline: some(rng, &[1, 2, 3, 4, 8], 2),
        context: some(rng, &[1, 2], 2),
        expert: some(rng, &[1, 2, 4], 2),
        microbatch_size: some(rng, &[1, 2, 4], 2),
        chunks: some(rng, &[1, 2, 3], 2),
        schedules: some(rng, &schedules, 2),
        recompute: LADDER.to_vec(),
        zero: some(rng, &zero, 2),
    }
}

/// Every plan of a space without a thought: of each shape the fastest that fits, fastest first; and all peaks.
fn all(space: &Space, ask: &Question<'_>, evaluator: &mut dyn Evaluator) -> (Vec<ir::SimDuration>, Vec<u64>) {
    let (mut best, mut peaks) = (Vec::new(), Vec::new());
    for mut shape in Spaces::new(space, ask) {
        let mut fastest: Option<ir::SimDuration> = None;
        for recompute in &space.recompute {
            shape.stages.iter_mut().for_each(|stage| stage.recompute = *recompute);
            let Ok(found) = evaluator.evaluate(&shape) else { continue };
            peaks.extend(found.memory.iter().map(|stage| stage.peak.get()).max());
            if fits(&found) {
                fastest = Some(fastest.map_or(found.iteration, |fastest| fastest.min(found.iteration)));
            }
        }
        best.extend(fastest);
    }
    best.sort_unstable();
    (best, peaks)
}

#[test]
fn pruning_keeps_the_optimum_in_random_spaces() {
    let (mut found, mut pruned, mut nothing) = (0, 0, 0);
    let mut seed = 0;
    // A fifth, or all where long tests are to be whole, as `.ci/run` has them.
    let wanted = if std::env::var_os("TRAINYARD_LONG_TESTS").is_some() { 1000 } else { 200 };
    while found < wanted {
        seed += 1;
        let rng = &mut random(seed);
        let (_, mut model, mut work, mut cluster) = random_wide_case(seed);
        model.layers = model.layers.max(4);
        if model.variants.pattern.is_empty() && rng.random_bool(0.5) {
            (model.hidden, model.ffn) = (1024, 4096);
        }
        work.global_batch = [8, 16, 24][rng.random_range(0..3)];
        let sum = model.variants.pattern.iter().map(|run| run.layers).sum::<u32>();
        model.layers = if model.variants.pattern.is_empty() { model.layers } else { sum };
        let space = random_space(rng);
        let cost = analytic(cluster.clone());
        let ask = Question::new(&model, &work, &cluster);
        let (_, mut peaks) = all(&space, &ask, &mut ClosedForm::new(&model, &work, &cost));
        if peaks.is_empty() {
            continue;
        }
        // A memory in which some plans fit and some do not.
        peaks.sort_unstable();
        let memory = Bytes::new(peaks[rng.random_range(0..peaks.len())]);
        cluster.device_kinds.iter_mut().for_each(|kind| kind.memory = memory);
        let cost = analytic(cluster);
        let ask = Question::new(&model, &work, cost.cluster());
        let (expected, _) = all(&space, &ask, &mut ClosedForm::new(&model, &work, &cost));
        found += u32::from(!expected.is_empty());
        nothing += u32::from(expected.is_empty());
        let plans = 3 * Spaces::new(&space, &ask).count() as u64;
        for (shown, prune) in [(1, true), (5, true), (1, false), (5, false)] {
            let planner = Exhaustive { space: space.clone(), shown, prune };
            let mut used = 0;
            let closed = &mut ClosedForm::new(&model, &work, &cost);
            let got = planner.plan(&ask, closed, BUDGET, &mut |done, _| used = done);
            let Ok(got) = got else {
                assert!(expected.is_empty(), "seed {seed} shown {shown} prune {prune}: nothing, and {expected:?}");
                continue;
            };
            let times = got.iter().map(|candidate| candidate.evaluation.as_ref().unwrap());
            let times = times.filter(|found| fits(found)).map(|found| found.iteration).collect::<Vec<_>>();
            let say = format!("seed {seed} shown {shown} prune {prune} {space:?}");
            assert_eq!(times[0], expected[0], "{say}");
            assert!(times == expected[..shown.min(expected.len())], "{say}: {times:?} {expected:?}");
            if prune {
                pruned += u32::from(used < plans);
            }
        }
    }
    assert!(2 * pruned > 3 * wanted && 5 * nothing < wanted, "{pruned} {nothing}");
}

#[test]
fn all_plans_of_gpt3_on_1024_devices_take_two_seconds() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let ask = Question::new(&model, &work, cost.cluster());
    let start = thread_cpu_nanoseconds();
    let found =
        Exhaustive::default().plan(&ask, &mut ClosedForm::new(&model, &work, &cost), BUDGET, &mut |_, _| {}).unwrap();
    let time = thread_cpu_nanoseconds() - start;
    assert!(cfg!(debug_assertions) || time < promised(2_000_000_000), "{time} ns");
    let (best, losers) = found.split_first().unwrap();
    let winner = best.evaluation.as_ref().unwrap();
    assert!(fits(winner) && best.reasons[0].starts_with("fastest of "), "{:?}", best.reasons);
    assert!(best.reasons[1].contains("cannot win by their floor"), "{:?}", best.reasons);
    assert_eq!(losers.len(), 10, "nine more and the closest that does not fit");
    for loser in losers {
        let prediction = loser.evaluation.as_ref().unwrap();
        assert!(prediction.iteration >= winner.iteration);
        assert!(loser.reasons[0].contains(if fits(prediction) { "% slower: " } else { "does not fit: " }));
    }
    // Rules of thumb look at a part of the space: they find nothing faster.
    let thumb = crate::Megatron::default()
        .plan(&ask, &mut ClosedForm::new(&model, &work, &cost), BUDGET, &mut |_, _| {})
        .unwrap();
    assert!(thumb[0].evaluation.as_ref().unwrap().iteration >= winner.iteration);
}

#[test]
fn what_ends_a_search_early_or_in_nothing_is_said() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let ask = Question::new(&model, &work, cost.cluster());
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let found = Exhaustive::default().plan(&ask, &mut closed, 20, &mut |_, _| {}).unwrap();
    assert!(found[0].reasons.iter().any(|reason| reason.contains("budget of 20")), "{:?}", found[0].reasons);
    let cost = analytic(dgx(1));
    let ask = Question { cluster: cost.cluster(), ..ask };
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let no = Exhaustive::default().plan(&ask, &mut closed, BUDGET, &mut |_, _| {}).unwrap_err();
    let text = no.reasons[0].to_string();
    assert!(text.contains("no uniform plan fits") && text.contains("GiB of 80.0"), "{text}");
    // A batch of nothing divides by nothing.
    let (model, work) = (small_model(4), workload(32, 0));
    let ask = Question::new(&model, &work, cost.cluster());
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let no = Exhaustive::default().plan(&ask, &mut closed, BUDGET, &mut |_, _| {}).unwrap_err();
    assert!(!no.reasons.is_empty());
}

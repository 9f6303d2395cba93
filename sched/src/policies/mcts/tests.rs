use std::collections::BTreeSet;

use ir::program::Chunk;
use ir::{DeviceKindId, Evaluation, FeedForward, LayerRun, Mixer};

use super::super::twin::{Case, brute};
use super::*;
use crate::evaluate::{ClosedForm, StageCost};
use crate::testing::{analytic, dgx, gpt3, random, small_model, with_experts, workload};

fn time(candidates: &[Candidate]) -> u64 {
    candidates[0].evaluation.as_ref().unwrap().iteration.nanoseconds()
}

/// What each policy found in a case, beside what trying everything finds.
#[derive(Debug, Default)]
struct Score {
    cases: u32,
    unlike: u32,
    experts: u32,
    worst: f64,
    /// Of `mcts` without a start: where it proved the optimum.
    proven: u32,
}

#[test]
fn dynprog_and_mcts_are_within_a_hundredth_of_trying_everything() {
    let whole = std::env::var_os("TRAINYARD_LONG_TESTS").is_some();
    let one = std::env::var("TRAINYARD_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let wanted = if whole { 200 } else { 50 };
    let mut score = Score::default();
    let mut seed = one.unwrap_or(0);
    while score.cases < if one.is_some() { 1 } else { wanted } {
        let case = Case::draw(seed);
        let cost = analytic(case.cluster.clone());
        let ask = Question::new(&case.model, &case.work, cost.cluster());
        let closed = &mut ClosedForm::new(&case.model, &case.work, &cost);
        let say = format!("seed {seed}: {}", case.words());
        seed += 1;
        let Some(expected) = brute(&case.space, &ask, closed) else { continue };
        let nothing = &mut |_: u64, _: Option<(&Plan, &Prediction)>| {};
        let dynprog = DynProg { space: case.space.clone(), shown: 5 }.search(&ask, closed, 1 << 40, nothing);
        let dynprog = dynprog.unwrap_or_else(|no| panic!("{say}: dynprog {no:?} and {expected}"));
        let bound = dynprog.bound.expect("no budget ended it");
        let best = time(&dynprog.candidates);
        let mut ratios = vec![("dynprog", best, bound)];
        for (name, start) in [("mcts", Start::Nothing), ("mcts-seeded", Start::DynProg)] {
            let planner = Mcts { space: case.space.clone(), start, ..Mcts::new(seed) };
            let found = planner.search(&ask, closed, 2000, nothing);
            let found = found.unwrap_or_else(|no| panic!("{say}: {name} {no:?} and {expected}"));
            assert!(found.used <= 2000, "{say}: {name} took {}", found.used);
            let least = time(&found.candidates);
            if start == Start::Nothing {
                score.proven += u32::from(found.bound >= least as f64);
            }
            ratios.push((name, least, found.bound));
        }
        for (name, least, bound) in ratios {
            let ratio = least as f64 / expected as f64;
            assert!(
                bound <= least.min(expected) as f64,
                "{say}: {name} says {bound}, there are {least} and {expected}"
            );
            assert!(ratio <= 1.01, "{say}: {name} is {ratio} of the optimum");
            score.worst = score.worst.max(ratio);
        }
        score.cases += 1;
        score.unlike += u32::from(case.cluster.device_kinds.len() > 1);
        score.experts += u32::from(case.model.variants.experts.is_some());
    }
    if one.is_none() {
        assert!(3 * score.unlike > score.cases && 3 * score.unlike < 2 * score.cases + 3, "{score:?} to {seed}");
        assert!(6 * score.experts > score.cases && 2 * score.proven > score.cases, "{score:?}");
    }
}

/// Counts what is evaluated, and how often again.
struct Counted<'a> {
    inner: ClosedForm<'a>,
    seen: BTreeSet<String>,
    calls: u64,
}

impl Evaluator for Counted<'_> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        self.calls += 1;
        self.seen.insert(format!("{plan:?}"));
        self.inner.evaluate(plan)
    }
    fn floor(&mut self, plan: &Plan) -> Option<ir::SimDuration> {
        self.inner.floor(plan)
    }
    fn share_out(&mut self, plan: &Plan) -> Option<Plan> {
        self.inner.share_out(plan)
    }
    fn stage(&mut self, plan: &Plan, chunk: &Chunk) -> Option<StageCost> {
        self.inner.stage(plan, chunk)
    }
    fn compute(&mut self, plan: &Plan, chunk: &Chunk, kind: DeviceKindId) -> Option<u64> {
        self.inner.compute(plan, chunk, kind)
    }
    fn excess(&mut self, plan: &Plan) -> Option<f64> {
        self.inner.excess(plan)
    }
}

#[test]
fn more_budget_is_no_worse_and_no_plan_is_evaluated_twice() {
    let mut ended = 0;
    for seed in 0..12 {
        let case = Case::draw(seed);
        let cost = analytic(case.cluster.clone());
        let ask = Question::new(&case.model, &case.work, cost.cluster());
        let mut before = u64::MAX;
        for budget in [1, 8, 64, 2000] {
            let inner = ClosedForm::new(&case.model, &case.work, &cost);
            let mut counted = Counted { inner, seen: BTreeSet::new(), calls: 0 };
            let planner = Mcts { space: case.space.clone(), ..Mcts::new(seed) };
            let mut least = u64::MAX;
            let found = planner.search(&ask, &mut counted, budget, &mut |used, best| {
                let now = best.map_or(u64::MAX, |(_, prediction)| prediction.iteration.nanoseconds());
                assert!(used <= budget && now <= least, "seed {seed} budget {budget}");
                least = now;
            });
            assert!(counted.calls == counted.seen.len() as u64 && counted.calls <= budget, "seed {seed}");
            let Ok(found) = found else { continue };
            let best = time(&found.candidates);
            assert!(best <= before && found.bound <= best as f64, "seed {seed} budget {budget}");
            before = best;
            let open = found.candidates[0].reasons.iter().any(|reason| reason.contains("ended the search"));
            ended += u32::from(open);
            assert!(
                open || found.bound >= best as f64,
                "seed {seed} budget {budget}: {:?}",
                found.candidates[0].reasons
            );
            assert!(found.candidates.iter().all(|candidate| !candidate.reasons.is_empty()), "seed {seed}");
        }
    }
    assert!(ended > 6, "{ended}");
}

#[test]
fn what_fits_nowhere_is_said() {
    let (model, work) = (gpt3(), workload(2048, 8));
    let cost = analytic(dgx(1));
    let ask = Question::new(&model, &work, cost.cluster());
    for start in [Start::Nothing, Start::DynProg] {
        let planner = Mcts { start, ..Mcts::new(1) };
        let no = planner.plan(&ask, &mut ClosedForm::new(&model, &work, &cost), 100, &mut |_, _| {}).unwrap_err();
        let text = no.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(text.contains("fits into memory"), "{text}");
    }
}

#[test]
fn what_advisers_see_has_one_length_and_is_finite() {
    let small = with_experts(
        small_model(6),
        &[LayerRun { layers: 6, mixer: Mixer::Attention, feed_forward: FeedForward::Experts }],
    );
    let cases = [(small, workload(512, 16), dgx(1)), (gpt3(), workload(8192, 1536), dgx(256))];
    for (model, work, cluster) in cases {
        let cost = analytic(cluster);
        let ask = Question::new(&model, &work, cost.cluster());
        let closed = &mut ClosedForm::new(&model, &work, &cost);
        let mut decisions = Decisions::new(&ask, &Space::default(), closed);
        let facts = Facts::new(&ask, &decisions.kinds, &decisions.orders);
        let (floor, rng) = (decisions.floor(), &mut random(1));
        assert!(floor > 0);
        let mut complete = 0;
        for _ in 0..200 {
            let (mut state, mut least) = (decisions.start(), floor);
            while state.next().is_some() {
                let actions = decisions.actions(closed, &state, (least, u64::MAX));
                if actions.is_empty() {
                    break;
                }
                let view = View { facts: &facts, state: &state, actions: &actions, floor, best: u64::MAX };
                assert!(view.features().iter().all(|number| number.is_finite() && number.abs() <= 8.0), "{state:?}");
                for at in 0..actions.len() {
                    assert!(view.of_action(at).iter().all(|number| number.is_finite()), "{state:?}");
                }
                let priors = Guide::Rules.judge(&view).priors;
                assert!(priors.len() == actions.len() && priors.iter().all(|prior| *prior > 0.0));
                assert!((priors.iter().sum::<f32>() - 1.0).abs() < 1e-3, "{priors:?}");
                let action = actions[rng.random_range(0..actions.len())];
                // Floors never fall on the way down.
                assert!(action.floor >= least, "{state:?} {action:?}");
                least = action.floor;
                state.decide(action.choice);
            }
            if state.next().is_none()
                && let Some(plan) = decisions.plan(closed, &state)
                && let Ok(found) = closed.evaluate(&plan)
            {
                complete += 1;
                assert!(found.iteration.nanoseconds() >= least, "{plan:?}");
            }
        }
        assert!(complete > 20, "{complete}");
    }
}

use super::super::twin::{Case, brute};
use super::*;
use crate::evaluate::ClosedForm;
use crate::testing::analytic;

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
        let ask = Question { model: &case.model, workload: &case.work, cluster: cost.cluster() };
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
                score.proven += u32::from(found.bound >= least);
            }
            ratios.push((name, least, found.bound));
        }
        for (name, least, bound) in ratios {
            let ratio = least as f64 / expected as f64;
            assert!(bound <= least.min(expected), "{say}: {name} says {bound}, there are {least} and {expected}");
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

//! Two policies side by side on jobs that neither was trained on, with as many evaluations each.

use ir::Plan;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sched::{ClosedForm, Evaluator as _, Guide, Mcts, OnBackend, Planner as _, Question};
use serde::{Deserialize, Serialize};
use sim::Simulator;

use crate::families::{Drawn, Families};

/// What a search found.
#[derive(Clone, PartialEq, Debug)]
pub struct Searched {
    /// The fastest plan that fits.
    pub plan: Plan,
    /// Its iteration by the closed form, which the search asked, in seconds.
    pub estimated: f64,
    /// Its iteration as simulated, in seconds; `None` if it was not simulated.
    pub simulated: Option<f64>,
}

/// Searches a job from nothing with a guide and tells what it had found after each of some budgets, in order; `None` where no
/// plan was found that fits. A search with a smaller budget is the beginning of one with a larger. With `simulate` the plans
/// are carried out by the simulator too.
#[must_use]
pub fn searched(drawn: &Drawn, guide: &Guide, (seed, budgets): (u64, &[u64]), simulate: bool) -> Vec<Option<Searched>> {
    let ask = Question::new(&drawn.model, &drawn.workload, drawn.cost.cluster());
    let mut closed = ClosedForm::new(&drawn.model, &drawn.workload, &drawn.cost);
    let planner = Mcts { guide: guide.clone(), ..Mcts::new(seed) };
    let mut found: Vec<Option<(Plan, f64)>> = vec![None; budgets.len()];
    let most = budgets.iter().copied().max().unwrap_or(0);
    let answer = planner.plan(&ask, &mut closed, most, &mut |used, best| {
        let Some((plan, prediction)) = best else { return };
        let time = prediction.iteration.seconds();
        for (found, _) in found.iter_mut().zip(budgets).filter(|(_, budget)| used <= **budget) {
            if found.as_ref().is_none_or(|(_, known)| time < *known) {
                *found = Some((plan.clone(), time));
            }
        }
    });
    debug_assert!(answer.is_ok() || found.iter().all(Option::is_none));
    let mut known: Option<Searched> = None;
    let mut told = |(plan, estimated): (Plan, f64)| {
        let same = known.take().filter(|known| known.plan == plan);
        let searched = same.unwrap_or_else(|| {
            let simulated = if simulate { simulated(drawn, &plan) } else { None };
            Searched { plan, estimated, simulated }
        });
        known = Some(searched.clone());
        searched
    };
    found.into_iter().map(|found| found.map(&mut told)).collect()
}

/// One iteration of a plan as simulated, in seconds.
fn simulated(drawn: &Drawn, plan: &Plan) -> Option<f64> {
    let simulator = Simulator::new(drawn.cost.clone());
    let mut backend = OnBackend::new(&drawn.model, &drawn.workload, &drawn.cost, simulator);
    backend.evaluate(plan).ok().map(|prediction| prediction.iteration.seconds())
}

/// Iteration times that two policies found for one job with equal budgets, in seconds; `None` where one found no plan that
/// fits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pair {
    /// By the one that is scored.
    pub scored: Option<f64>,
    /// By the one that it is held against.
    pub against: Option<f64>,
}

/// Jobs with what rules alone find on them, for whatever is held against it.
#[derive(Clone, Debug)]
pub struct Trial {
    jobs: Vec<Drawn>,
    budget: u64,
    against: Vec<Option<f64>>,
}

/// Jobs drawn from families by a seed, of which no search of a training draws.
#[must_use]
pub fn jobs(families: &Families, seed: u64, count: u64) -> Vec<Drawn> {
    let draw = |number| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::MAX - number);
        families.draw(&mut rng)
    };
    (0..count).map(draw).collect()
}

impl Trial {
    /// Of jobs and a budget of evaluations. `None` if `stop` says so.
    pub fn new(jobs: Vec<Drawn>, budget: u64, stop: &(dyn Fn() -> bool + Sync)) -> Option<Self> {
        let against = times(&jobs, budget, &Guide::Rules, stop)?;
        Some(Self { jobs, budget, against })
    }
    /// What a guide finds beside what rules find, one pair a job. `None` if `stop` says so.
    pub fn pairs(&self, guide: &Guide, stop: &(dyn Fn() -> bool + Sync)) -> Option<Vec<Vec<Pair>>> {
        let scored = times(&self.jobs, self.budget, guide, stop)?;
        let pair = |(scored, against): (Option<f64>, &Option<f64>)| vec![Pair { scored, against: *against }];
        Some(scored.into_iter().zip(&self.against).map(pair).collect())
    }
}

fn times(jobs: &[Drawn], budget: u64, guide: &Guide, stop: &(dyn Fn() -> bool + Sync)) -> Option<Vec<Option<f64>>> {
    let search = |(seed, job): (usize, &Drawn)| {
        let found = || searched(job, guide, (seed as u64, &[budget]), false).remove(0);
        (!stop()).then(|| found().map(|found| found.estimated))
    };
    let found: Vec<Option<Option<f64>>> = jobs.par_iter().enumerate().map(search).collect();
    found.into_iter().collect()
}

/// What pairs say together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean of the scored time over the other, over pairs in which both found a plan; below 1 the scored policy
    /// is faster.
    pub mean: f64,
    /// Where 95 of 100 such means lie, if jobs are drawn anew.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Pairs in which both found a plan.
    pub both: u32,
    /// Pairs in which only the scored policy found one.
    pub only_scored: u32,
    /// Pairs in which only the other did.
    pub only_against: u32,
    /// Pairs in which the scored policy's plan is faster by more than one in a thousand.
    pub faster: u32,
    /// Pairs in which it is slower by more than that.
    pub slower: u32,
}

/// Times the jobs are drawn anew.
const RESAMPLES: usize = 4000;
/// The seed of those draws.
const SEED: u64 = 20;
/// A difference that counts.
const TIE: f64 = 1e-3;

impl Ratio {
    /// Of pairs, one list a job: pairs of one job (searches with several seeds) are drawn together, because they are alike
    /// (percentile bootstrap over clusters, Davison and Hinkley 1997). `None` if no pair has both times.
    #[must_use]
    pub fn of(jobs: &[Vec<Pair>]) -> Option<Self> {
        let pairs = || jobs.iter().flatten();
        let count =
            |of: &dyn Fn(&Pair) -> bool| u32::try_from(pairs().filter(|pair| of(pair)).count()).unwrap_or(u32::MAX);
        let logs: Vec<Vec<f64>> = jobs.iter().map(|job| job.iter().filter_map(Pair::log).collect()).collect();
        let logs: Vec<Vec<f64>> = logs.into_iter().filter(|job| !job.is_empty()).collect();
        let mean = mean(logs.iter())?;
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                let drawn: Vec<usize> = (0..logs.len()).map(|_| rng.random_range(0..logs.len())).collect();
                self::mean(drawn.into_iter().map(|job| &logs[job]))
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let at = |of_forty: usize| libm::exp(means[(means.len() - 1) * of_forty / 40]);
        Some(Self {
            mean: libm::exp(mean),
            low: at(1),
            high: at(39),
            both: count(&|pair| pair.scored.is_some() && pair.against.is_some()),
            only_scored: count(&|pair| pair.scored.is_some() && pair.against.is_none()),
            only_against: count(&|pair| pair.scored.is_none() && pair.against.is_some()),
            faster: count(&|pair| pair.log().is_some_and(|log| log < -TIE)),
            slower: count(&|pair| pair.log().is_some_and(|log| log > TIE)),
        })
    }
    /// What may be said of it, in words.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        if self.high < 1.0 {
            "faster"
        } else if self.low > 1.0 {
            "slower"
        } else {
            "no difference shown"
        }
    }
}

impl Pair {
    /// The logarithm of the scored time over the other.
    fn log(&self) -> Option<f64> {
        Some(libm::log(self.scored? / self.against?))
    }
}

fn mean<'l>(jobs: impl Iterator<Item = &'l Vec<f64>>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for log in jobs.flatten() {
        sum += log;
        count += 1;
    }
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        // Irwin and Hall: twelve uniform draws have a variance of 1.
        (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0
    }

    /// 40 jobs whose log ratios have a known mean: of 300 such experiments 95 % of the intervals should hold it. A percentile
    /// bootstrap of 40 is a little narrow, and 300 experiments leave a deviation of 1.3 points: 89 to 98 %.
    #[test]
    fn intervals_hold_the_mean_as_often_as_they_say() {
        let mut held = 0;
        for seed in 0..300 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let job = |rng: &mut ChaCha8Rng| {
                let scored = libm::exp(-0.05 + 0.2 * normal(rng));
                vec![Pair { scored: Some(scored), against: Some(1.0) }]
            };
            let jobs: Vec<_> = (0..40).map(|_| job(&mut rng)).collect();
            let ratio = Ratio::of(&jobs).expect("pairs");
            held += u32::from(ratio.low <= libm::exp(-0.05) && libm::exp(-0.05) <= ratio.high);
            assert!(ratio.low <= ratio.mean && ratio.mean <= ratio.high);
        }
        assert!((267..=294).contains(&held), "{held} of 300");
    }

    #[test]
    fn what_only_one_found_is_counted_apart() {
        let pair = |scored: Option<f64>, against: Option<f64>| Pair { scored, against };
        let jobs = [
            vec![pair(Some(1.0), Some(2.0)), pair(Some(2.0), Some(1.0))],
            vec![pair(Some(1.0), None), pair(None, Some(1.0)), pair(None, None)],
            vec![pair(Some(4.0), Some(4.0))],
        ];
        let ratio = Ratio::of(&jobs).expect("pairs");
        assert!((ratio.mean - 1.0).abs() < 1e-12, "{ratio:?}");
        assert_eq!((ratio.both, ratio.only_scored, ratio.only_against), (3, 1, 1));
        assert_eq!((ratio.faster, ratio.slower, ratio.verdict()), (1, 1, "no difference shown"));
        assert_eq!(Ratio::of(&[vec![pair(None, Some(1.0))]]), None);
        let sure: Vec<_> = (0..20).map(|_| vec![pair(Some(0.9), Some(1.0))]).collect();
        assert_eq!(Ratio::of(&sure).expect("pairs").verdict(), "faster");
    }
}

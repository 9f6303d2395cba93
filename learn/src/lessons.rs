//! What one search teaches.

use std::sync::Arc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use sched::learned::Weights;
use sched::mcts::{Note, Study};
use sched::{ClosedForm, Guide, Mcts, Question};

use crate::families::Drawn;
use crate::gradient::Sample;

/// What a search found and teaches.
#[derive(Clone, PartialEq, Debug)]
pub struct Lesson {
    /// Of each node that says something.
    pub samples: Vec<Sample>,
    /// The logarithm to base 2 of the best time over the least work there can be; `None` if no plan fits.
    pub over_ideal: Option<f64>,
    /// Evaluations.
    pub evaluations: u64,
}

/// The share of equal priors in a search that is learned from.
const EXPLORE: f32 = 0.15;
/// How much slower the best plan behind a choice is than the best behind its rival, as a logarithm, for a share of 1/e of the
/// rival's. A few per cent of time are worth a search.
const TEMPERATURE: f64 = 0.03;
/// Nodes of one search that teach: those with the most evaluations behind them.
const NODES: usize = 48;
/// The value of what does not fit, and the most there is: no search looks for plans sixteen times over the floor.
const WORST: f64 = 4.0;

/// Searches a job with what is known, and tells what was found.
#[must_use]
pub fn lesson(drawn: &Drawn, weights: &Arc<Weights>, evaluations: u64, rng: &mut ChaCha8Rng) -> Lesson {
    let ask = Question::new(&drawn.model, &drawn.workload, drawn.cost.cluster());
    let mut closed = ClosedForm::new(&drawn.model, &drawn.workload, &drawn.cost);
    let planner = Mcts { guide: Guide::Learned(Arc::clone(weights)), ..Mcts::new(rng.random()) };
    let study = planner.study(&ask, &mut closed, evaluations, EXPLORE);
    let over_ideal = study.best.map(|best| over(best, study.floor));
    Lesson { samples: samples(&study), over_ideal, evaluations: study.used }
}

fn over(time: u64, floor: u64) -> f64 {
    libm::log2(time.max(1) as f64 / floor.max(1) as f64)
}

fn samples(study: &Study) -> Vec<Sample> {
    let tried = |note: &Note| note.visits.iter().sum::<u32>();
    let mut notes: Vec<&Note> = study.notes.iter().collect();
    notes.sort_by_key(|note| std::cmp::Reverse(tried(note)));
    let told = notes.into_iter().filter_map(|note| sample(note, study.floor));
    told.take(NODES).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "a network learns from rough numbers")]
fn narrow(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|number| *number as f32).collect()
}

/// What a node teaches: of choices, if two were tried and behind one a plan fits; of its value, if a few were.
fn sample(note: &Note, floor: u64) -> Option<Sample> {
    let best = note.times.iter().flatten().min();
    let several = note.visits.iter().filter(|visits| **visits > 0).count() > 1;
    let tried = note.visits.iter().sum::<u32>();
    let shares = match best {
        Some(best) if several => shares(&note.times, *best),
        Some(_) | None => Vec::new(),
    };
    if shares.is_empty() && tried < 3 {
        return None;
    }
    let value = best.map_or(WORST, |best| over(*best, floor).clamp(0.0, WORST));
    let choices = note.choices.iter().map(|choice| narrow(choice)).collect();
    let (state, rules) = (narrow(&note.state), narrow(&note.rules));
    Some(Sample { state, choices, rules, shares: narrow(&shares), value: narrow(&[value])[0] })
}

/// Shares that fall with the time of the best plan behind a choice; what nothing is known of has none.
fn shares(times: &[Option<u64>], best: u64) -> Vec<f64> {
    let weight =
        |time: &Option<u64>| time.map_or(0.0, |time| libm::exp(-libm::log(time as f64 / best as f64) / TEMPERATURE));
    let weights: Vec<f64> = times.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_with_time() {
        let shares = shares(&[Some(1030), None, Some(1000), Some(2000)], 1000);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // exp(-ln(1.03) / 0.03) = 0.3734.
        assert!((shares[0] / shares[2] - 0.3734).abs() < 1e-3, "{shares:?}");
        assert!(shares[1].abs() < 1e-300 && shares[3] < 1e-9, "{shares:?}");
    }

    #[test]
    fn only_what_was_tried_teaches() {
        let note = |visits: [u32; 2], times: [Option<u64>; 2]| Note {
            state: vec![0.5],
            choices: vec![vec![1.0], vec![2.0]],
            rules: vec![0.0, -1.0],
            visits: visits.to_vec(),
            times: times.to_vec(),
        };
        assert_eq!(sample(&note([1, 0], [Some(10), None]), 5), None);
        assert_eq!(sample(&note([1, 1], [None, None]), 5), None);
        let hopeless = sample(&note([2, 2], [None, None]), 5).expect("a value");
        assert_eq!((hopeless.shares.len(), hopeless.value), (0, 4.0));
        let both = sample(&note([1, 1], [Some(20), None]), 5).expect("shares");
        assert_eq!((both.shares, both.value), (vec![1.0, 0.0], 2.0));
    }
}

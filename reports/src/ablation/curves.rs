//! The best time so far against evaluations: of each seed a staircase, of a policy their geometric mean with its
//! interval.

use super::statistics::{Mean, Spread};
use super::{Ablation, Planned};

/// A policy's best time so far over the baseline's final one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Curve {
    pub(super) policy: String,
    /// Seeds with a plan, of all.
    pub(super) found: (usize, usize),
    /// Steps: from so many evaluations on, the mean and its interval.
    pub(super) steps: Vec<Step>,
    /// Where the last of its seeds ended.
    pub(super) end: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Step {
    pub(super) evaluations: u64,
    pub(super) mean: f64,
    pub(super) band: Option<(f64, f64)>,
}

/// The best after so many evaluations.
fn best(cell: &Planned, evaluations: u64) -> Option<u64> {
    let after = cell.curve.partition_point(|(at, _)| *at <= evaluations);
    after.checked_sub(1).map(|last| cell.curve[last].1)
}

impl Ablation {
    /// Curves of a scenario, in order of the policies; none of those that found nothing, none at all if the baseline
    /// did not.
    pub(super) fn curves(&self, scenario: &str) -> Vec<Curve> {
        let last = |cell: &&super::Cell| cell.planned()?.curve.last().map(|(_, ns)| *ns as f64);
        let base: Vec<f64> = self.cells_of(scenario, &self.baseline).iter().filter_map(last).collect();
        let Some(base) = Mean::of_logarithms(&base, false) else { return Vec::new() };
        let curve = |name: &str, draws: bool| {
            let all = self.cells_of(scenario, name);
            let found = all.iter().filter_map(|cell| cell.planned());
            let cells: Vec<&Planned> = found.filter(|planned| !planned.curve.is_empty()).collect();
            // From where every seed has a plan: before, a mean would be of the lucky ones.
            let first = cells.iter().map(|cell| cell.curve[0].0).max()?;
            let mut places: Vec<u64> = cells.iter().flat_map(|cell| cell.curve.iter().map(|(at, _)| *at)).collect();
            places.retain(|at| *at >= first);
            places.sort_unstable();
            places.dedup();
            let step = |at: u64| {
                let times: Vec<f64> = cells.iter().filter_map(|cell| best(cell, at)).map(|ns| ns as f64).collect();
                let mean = Mean::of_logarithms(&times, draws)?;
                // The baseline's end is what the picture measures by, as it came out.
                let ratio = mean.over(base.value).ratio(draws);
                let band = match ratio.spread {
                    Spread::Interval { low, high } => Some((low, high)),
                    Spread::Exact | Spread::Unknown => None,
                };
                Some(Step { evaluations: at, mean: ratio.value, band })
            };
            Some(Curve {
                policy: name.to_owned(),
                found: (cells.len(), all.len()),
                steps: places.into_iter().filter_map(step).collect(),
                end: cells.iter().map(|cell| cell.evaluations).max()?.max(first),
            })
        };
        self.policies.iter().filter_map(|policy| curve(&policy.name, policy.draws)).collect()
    }
}

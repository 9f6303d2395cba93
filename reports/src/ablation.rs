//! An ablation: policies held against each other over scenarios and seeds, and the page over them.
//!
//! A [`Cell`] is one policy with one seed in one scenario: the plan that it found with a budget of evaluations, and
//! what the judge said of it. [`Ablation::scores`] makes ratios to a baseline of them, with what is known of their
//! spread ([`Spread`]); [`Ablation::document`] shows them, and [`Ablation::summary_csv`] and [`Ablation::cells_csv`]
//! write them out. All of it depends on the cells alone, never on the order in which they came.

mod curves;
mod page;
mod pictures;
mod statistics;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use statistics::{Ratio, Score, Spread};

/// One policy with one seed in one scenario.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// The seed; `None` of a policy that draws nothing.
    pub seed: Option<u64>,
    /// What came out.
    pub outcome: Outcome,
}

/// What became of a cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A plan.
    Planned(Planned),
    /// None that the judge can carry out, with the reason.
    Nothing(String),
}

/// A plan that a policy found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Planned {
    /// An iteration of it, as the judge says, in nanoseconds.
    pub iteration_ns: u64,
    /// The same, as the policy's evaluator said.
    pub predicted_ns: u64,
    /// The largest share of a device's memory that it needs.
    pub memory_share: f64,
    /// Legal plans that the evaluator timed.
    pub evaluations: u64,
    /// Where the best time of a plan that fits went down: evaluations so far and nanoseconds, as the evaluator said.
    pub curve: Vec<(u64, u64)>,
    /// The plan in a line of words.
    pub plan: String,
}

impl Cell {
    /// The plan, where there is one.
    #[must_use]
    pub const fn planned(&self) -> Option<&Planned> {
        match &self.outcome {
            Outcome::Planned(planned) => Some(planned),
            Outcome::Nothing(_) => None,
        }
    }
}

/// A policy that takes part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// Its name.
    pub name: String,
    /// Whether it draws, and has a cell for each seed; else one for all.
    pub draws: bool,
}

/// Cells with what they are cells of.
#[derive(Clone, PartialEq, Debug)]
pub struct Ablation {
    /// Names of the scenarios, in order.
    pub scenarios: Vec<String>,
    /// The policies, in order.
    pub policies: Vec<Contender>,
    /// The policy that ratios are to; one of them.
    pub baseline: String,
    /// Seeds of those that draw.
    pub seeds: Vec<u64>,
    /// Evaluations that each may use.
    pub budget: u64,
    /// Every cell, in any order.
    pub cells: Vec<Cell>,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Ablation {
    /// The cells of a policy in a scenario, by seed.
    #[must_use]
    pub fn cells_of(&self, scenario: &str, policy: &str) -> Vec<&Cell> {
        let mut cells: Vec<&Cell> =
            self.cells.iter().filter(|cell| cell.scenario == scenario && cell.policy == policy).collect();
        cells.sort_by_key(|cell| cell.seed);
        cells
    }

    /// All cells in order: by scenario, then policy, then seed.
    fn in_order(&self) -> Vec<&Cell> {
        let pairs = self.scenarios.iter().flat_map(|of| self.policies.iter().map(move |policy| (of, policy)));
        pairs.flat_map(|(scenario, policy)| self.cells_of(scenario, &policy.name)).collect()
    }

    /// The scores as CSV: a line for each policy in each scenario, then one for each over all of them.
    #[must_use]
    pub fn summary_csv(&self) -> String {
        let headings = [
            "scenario",
            "policy",
            "found",
            "cells",
            "iteration_s",
            "predicted_s",
            "evaluations",
            "ratio",
            "ratio_low",
            "ratio_high",
            "spread",
        ];
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let rows = self.scores().into_iter().chain(self.overall()).map(|score| {
            let (low, high) = score.ratio.and_then(Ratio::bounds).unzip();
            vec![
                score.scenario.unwrap_or_else(|| statistics::ALL.to_owned()),
                score.policy,
                score.found.to_string(),
                score.of.to_string(),
                number(score.iteration_s),
                number(score.predicted_s),
                number(score.evaluations),
                number(score.ratio.map(|ratio| ratio.value)),
                number(low),
                number(high),
                score.ratio.map_or("", |ratio| ratio.spread.word()).to_owned(),
            ]
        });
        written(&headings, rows)
    }

    /// The cells as CSV, one line each.
    #[must_use]
    pub fn cells_csv(&self) -> String {
        let headings = [
            "scenario",
            "policy",
            "seed",
            "evaluations",
            "iteration_s",
            "predicted_s",
            "memory_share",
            "plan",
            "reason",
        ];
        let seconds = |nanoseconds: u64| (nanoseconds as f64 * 1e-9).to_string();
        let rows = self.in_order().into_iter().map(|cell| {
            let seed = cell.seed.map_or_else(String::new, |seed| seed.to_string());
            let mut row = vec![cell.scenario.clone(), cell.policy.clone(), seed];
            match &cell.outcome {
                Outcome::Planned(planned) => row.extend([
                    planned.evaluations.to_string(),
                    seconds(planned.iteration_ns),
                    seconds(planned.predicted_ns),
                    planned.memory_share.to_string(),
                    planned.plan.clone(),
                    String::new(),
                ]),
                Outcome::Nothing(reason) => {
                    row.resize(8, String::new());
                    row.push(reason.replace(['\n', '\r'], " "));
                }
            }
            row
        });
        written(&headings, rows)
    }
}

fn written(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(headings).expect("a buffer takes everything");
    rows.for_each(|row| out.write_record(row).expect("a buffer takes everything"));
    String::from_utf8(out.into_inner().expect("a buffer takes everything")).expect("written from text")
}

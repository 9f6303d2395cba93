//! What `place` returns.

use serde::Serialize;

use super::{Header, PlanSummary};

/// How many groups of an axis lie inside what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct GroupPlaces {
    /// Inside a domain.
    pub domain: u64,
    /// Inside a node, over several domains.
    pub node: u64,
    /// Under one leaf, over several nodes.
    pub leaf: u64,
    /// Over several leaves.
    pub beyond: u64,
}

/// The groups of an axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlacedAxis {
    /// The axis; of `pipeline` each two ranks that a message joins are a group.
    pub axis: &'static str,
    /// How many groups there are.
    pub groups: u64,
    /// Where they were.
    pub before: GroupPlaces,
    /// Where they are.
    pub after: GroupPlaces,
}

/// A step of the search that was faster than all before.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlaceStep {
    /// What was changed.
    pub step: String,
    /// The iteration that it led to, in milliseconds.
    pub iteration_ms: f64,
}

/// What `place` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlaceReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The plan placed.
    pub plan: PlanSummary,
    /// What the scenario says of domains and leaves.
    pub domains: Vec<String>,
    /// What a matrix or topology says of them.
    pub found: Vec<String>,
    /// An iteration in the order that the search began with, in milliseconds, by the closed form; `None` if the plan
    /// was not legal there.
    pub before_ms: Option<f64>,
    /// The same in the order that was found.
    pub after_ms: f64,
    /// How much faster that is: 0.1 is ten percent.
    pub gain: Option<f64>,
    /// Plans evaluated.
    pub evaluations: u64,
    /// Whether no exchange gains any more; else the budget ended the search.
    pub settled: bool,
    /// Where groups lie.
    pub axes: Vec<PlacedAxis>,
    /// Steps that were faster, in order.
    pub steps: Vec<PlaceStep>,
    /// The person's number of each rank's device.
    pub order: Vec<u32>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// The map of ranks, as `export --to rank-map` writes it.
    #[serde(skip)]
    pub ranks: String,
    /// The scenario with the plan and its placement, by the scenario's own numbers.
    #[serde(skip)]
    pub placed_scenario: String,
}

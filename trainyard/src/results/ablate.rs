//! What `ablate` returns.

use reports::ablation::{Ablation, Score};
use serde::Serialize;

use super::{Header, SCHEMA_VERSION};

/// The scores of an ablation: what `ablation.json` holds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AblationScores {
    /// The version of this shape.
    pub schema_version: u32,
    /// The policy that ratios are to.
    pub baseline: String,
    /// Evaluations that each policy might use.
    pub budget: u64,
    /// Seeds of the policies that draw.
    pub seeds: Vec<u64>,
    /// Each policy over all scenarios.
    pub overall: Vec<Score>,
    /// Each policy in each scenario.
    pub by_scenario: Vec<Score>,
}

impl AblationScores {
    pub(crate) fn of(ablation: &Ablation) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            baseline: ablation.baseline.clone(),
            budget: ablation.budget,
            seeds: ablation.seeds.clone(),
            overall: ablation.overall(),
            by_scenario: ablation.scores(),
        }
    }
}

/// What `ablate` and `ablate merge` return.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AblateResult {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The part of the cells that is here, as in `2/3`; `None` if all of them are.
    pub shard: Option<String>,
    /// Cells of the whole.
    pub cells: u64,
    /// Cells that are here.
    pub here: u64,
    /// Those of them that an earlier call had made.
    pub resumed: u64,
    /// Those that this call made.
    pub evaluated: u64,
    /// Cells without a plan.
    pub without_plan: u64,
    /// What they come to, if all are here.
    pub scores: Option<AblationScores>,
    /// The page, for a summary.
    #[serde(skip)]
    pub page: Option<reports::Document>,
    /// Files of the folder.
    pub files: Vec<String>,
}

//! The scoreboard as JSON.
//!
//! `tables` and `rows` are of the prediction as the catalog of stacks stands; `scores` has the tables of each kind of score
//! that was asked for. Shares are shares: an error of 0.05 is 5 %. What is not known is `null`. Gigabytes are those of the
//! row's own table. `outcomes` tells whether runs fit, each group of one model, sequence length and devices by what other
//! groups of the same software say; it is `null` where no failures are on record.

use std::collections::BTreeMap;

use reports::scoreboard::{ScoreRow, ScoreSet, ScoreTable, Scoreboard, Target};
use serde::{Deserialize, Serialize};

use super::outcomes::Outcomes;

/// The document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Document {
    /// The version of all results.
    pub schema_version: u32,
    /// Scores of tables; those of under ten rows are one entry.
    pub tables: Vec<TableEntry>,
    /// Every row of every table.
    pub rows: Vec<RowEntry>,
    /// Tables of each kind of score, by its name.
    pub scores: BTreeMap<&'static str, Scored>,
    /// Whether runs fit, each group told by others.
    pub outcomes: Option<Outcomes>,
}

/// As [`Document`], without rows, with targets.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PublishedDocument {
    /// The version of all results.
    pub schema_version: u32,
    /// Scores of tables; those of under ten rows are one entry.
    pub tables: Vec<TableEntry>,
    /// Tables of each kind of score, by its name.
    pub scores: BTreeMap<&'static str, Scored>,
    /// Whether runs fit, each group told by others.
    pub outcomes: Option<Outcomes>,
    /// What was promised.
    pub targets: Vec<JudgedTarget>,
}

/// A target and whether it is met.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JudgedTarget {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// Whether it is met.
    pub met: bool,
}

impl PublishedDocument {
    /// That of scores, outcomes and their page.
    #[must_use]
    pub fn new(scores: &[ScoreSet], outcomes: Option<&Outcomes>, page: &Scoreboard) -> Self {
        let Document { schema_version, tables, scores, .. } = Document::new(scores);
        let judged = |target: &Target| JudgedTarget { target: target.clone(), met: target.met() };
        let outcomes = outcomes.cloned();
        Self { schema_version, tables, scores, outcomes, targets: page.targets.iter().map(judged).collect() }
    }
}

/// The tables of one kind of score.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scored {
    /// With every figure that there is.
    pub tables: Vec<ScoreTable>,
}

/// A table's score.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TableEntry {
    /// Its file, or the name of the pool.
    pub file: String,
    /// Rows.
    pub rows: u64,
    /// Rows with a predicted time.
    pub predicted: u64,
    /// Rows that are refused.
    pub refused: u64,
    /// Median absolute error of the step time.
    pub median_ape: Option<f64>,
    /// Its mean.
    pub mean_ape: Option<f64>,
    /// Its 90th percentile.
    pub p90_ape: Option<f64>,
    /// Its largest.
    pub max_ape: Option<f64>,
    /// Median error with its sign.
    pub bias: Option<f64>,
    /// Mean tau-b of its sweeps.
    pub kendall_tau: Option<f64>,
    /// Share of measurements in the 90 % interval.
    pub interval_coverage: Option<f64>,
    /// Mean absolute error of the model of one constant.
    pub baseline_mean_ape: Option<f64>,
    /// Mean absolute error of the peak memory.
    pub memory_mean_ape: Option<f64>,
    /// Share of rows of which it is right whether they fit.
    pub oom_accuracy: Option<f64>,
    /// The tables that it pools, if it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pooled: Vec<String>,
}

/// A row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RowEntry {
    /// Its name.
    pub row_id: String,
    /// Its table's file.
    pub file: String,
    /// Measured step time.
    pub measured_s: Option<f64>,
    /// Predicted step time.
    pub predicted_s: Option<f64>,
    /// Lower end of its 90 % interval.
    pub low_s: Option<f64>,
    /// Upper end of its 90 % interval.
    pub high_s: Option<f64>,
    /// Absolute error.
    pub ape: Option<f64>,
    /// Measured peak memory.
    pub measured_gb: Option<f64>,
    /// Predicted peak memory.
    pub predicted_gb: Option<f64>,
    /// Whether it is predicted to fit.
    pub fits: Option<bool>,
    /// Why it is not predicted.
    pub refused: Option<String>,
    /// What the row leaves open and was taken from the catalog, and what stood in for a stack that is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

impl Document {
    /// That of the scores, without outcomes; the first is the prediction as the catalog stands.
    #[must_use]
    pub fn new(scores: &[ScoreSet]) -> Self {
        let first = scores.first();
        Self {
            schema_version: reports::SCHEMA_VERSION,
            tables: first.map_or_else(Vec::new, |set| set.tables.iter().map(TableEntry::new).collect()),
            rows: first.map_or_else(Vec::new, |set| set.rows.iter().map(RowEntry::new).collect()),
            scores: scores.iter().map(|set| (set.score.name(), Scored { tables: set.tables.clone() })).collect(),
            outcomes: None,
        }
    }
}

impl TableEntry {
    /// The figures of a table that are part of the interface.
    #[must_use]
    pub fn new(table: &ScoreTable) -> Self {
        Self {
            file: table.file.clone(),
            rows: table.rows,
            predicted: table.predicted,
            refused: table.refused,
            median_ape: table.median_ape,
            mean_ape: table.mean_ape,
            p90_ape: table.p90_ape,
            max_ape: table.max_ape,
            bias: table.bias,
            kendall_tau: table.kendall_tau,
            interval_coverage: table.interval_coverage,
            baseline_mean_ape: table.baseline_mean_ape,
            memory_mean_ape: table.memory_mean_ape,
            oom_accuracy: table.oom_accuracy,
            pooled: table.pooled.clone(),
        }
    }
}

impl RowEntry {
    fn new(row: &ScoreRow) -> Self {
        Self {
            row_id: row.row_id.clone(),
            file: row.file.clone(),
            measured_s: row.measured_s,
            predicted_s: row.predicted_s,
            low_s: row.low_s,
            high_s: row.high_s,
            ape: row.ape,
            measured_gb: row.measured_gb,
            predicted_gb: row.predicted_gb,
            fits: row.fits,
            refused: row.refused.clone(),
            assumed: row.assumed.clone(),
        }
    }
}

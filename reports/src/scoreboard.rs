//! Predictions against published measurements: rows, figures of each table, targets, peers, and the page.
//!
//! Whoever predicts fills [`ScoreRow`]s; [`ScoreSet::of`] computes each table's figures from them, so that a table, a
//! picture and the JSON cannot disagree. The three ways of predicting stand apart everywhere and are never pooled:
//! *fitted* (the table took part in fitting), *shape* (constants without the table, one factor from it), *cold* (nothing
//! from the table).
//!
//! Definitions, per table over its predicted rows, all as shares (0.05 is 5 %):
//! *error* (APE) is |predicted / measured - 1|; *bias* the median of predicted / measured - 1; *p90* the 90th percentile
//! (Hyndman and Fan type 7); *coverage* the share of rows whose measured time lies in the predicted interval; *tau*
//! Kendall's, over pairs of one sweep that were measured more than 10 % apart, averaged over sweeps; *regret* how much
//! slower than the sweep's best measured row the row is that was predicted best, averaged over sweeps.

mod page;
mod pictures;
mod statistics;

use serde::Serialize;

use crate::unit::Unit;

/// A table of fewer predicted rows than this says little by itself: it is pooled with the others of its kind.
pub const FEWEST_ROWS: usize = 10;
/// The name of the pooled table.
pub const POOLED: &str = "tables under 10 rows, pooled";
/// Pairs of a sweep measured closer than this (a share of the faster) are not held against the order of predictions.
pub const SMALLEST_GAP: f64 = 0.10;

/// What a prediction knew of the table that it is held against.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// The table took part in fitting the shared constants, and has its factor.
    Fitted,
    /// Constants fitted without the table, one factor from it.
    Shape,
    /// Nothing from the table.
    Cold,
}

impl ScoreKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Fitted, Self::Shape, Self::Cold];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Shape => "shape",
            Self::Cold => "cold",
        }
    }

    /// What it means, in a sentence.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Fitted => "Shared constants fitted on these tables too, one factor per declared group.",
            Self::Shape => "Shared constants fitted without the table, one factor from it.",
            Self::Cold => "Nothing from the table: constants and factor come from other tables.",
        }
    }
}

/// One measured run and what was predicted for it. Times in seconds of one iteration, memory in 10^9 bytes of one device.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ScoreRow {
    /// The row's name in its table.
    pub row_id: String,
    /// The table's file name.
    pub file: String,
    /// The kind of device that it ran on, where that is known.
    pub device: Option<String>,
    /// The sweep that it belongs to (same model, devices, sequence length and batch), if any.
    pub group: Option<String>,
    /// The measured time.
    pub measured_s: Option<f64>,
    /// The predicted time.
    pub predicted_s: Option<f64>,
    /// The lower end of the 90 % interval.
    pub low_s: Option<f64>,
    /// Its upper end.
    pub high_s: Option<f64>,
    /// |predicted / measured - 1|; [`ScoreSet::of`] fills it.
    pub ape: Option<f64>,
    /// What the one-constant baseline predicts.
    pub baseline_s: Option<f64>,
    /// The measured peak memory.
    pub measured_gb: Option<f64>,
    /// The predicted peak memory, of the same kind.
    pub predicted_gb: Option<f64>,
    /// Which memory was measured: allocated, reserved, driver's.
    pub memory_kind: Option<String>,
    /// Whether it fitted when it was tried, where the table says so.
    pub measured_fits: Option<bool>,
    /// Whether it is predicted to fit.
    pub fits: Option<bool>,
    /// Why there is no prediction, in words that are the same for all rows of that reason.
    pub refused: Option<String>,
    /// What its table leaves open and was taken from elsewhere, and what stood in for a stack that is not known: in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// A reason for which rows were not predicted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refusal {
    /// The reason.
    pub reason: String,
    /// How many rows.
    pub rows: u64,
}

/// The figures of one table. Shares are plain: 0.05 is 5 %.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ScoreTable {
    /// The table's file name, or [`POOLED`].
    pub file: String,
    /// Rows it has.
    pub rows: u64,
    /// Rows whose time was both measured and predicted.
    pub predicted: u64,
    /// Rows that were refused.
    pub refused: u64,
    /// Why, most frequent first.
    pub refusals: Vec<Refusal>,
    /// The median error.
    pub median_ape: Option<f64>,
    /// The mean error.
    pub mean_ape: Option<f64>,
    /// The 90th percentile of errors.
    pub p90_ape: Option<f64>,
    /// The largest error.
    pub max_ape: Option<f64>,
    /// The median signed error: above zero where predictions are slow.
    pub bias: Option<f64>,
    /// Kendall's tau, mean over sweeps.
    pub kendall_tau: Option<f64>,
    /// Sweeps that have a tau.
    pub sweeps: u64,
    /// How much slower the best predicted is than the best measured, mean over sweeps.
    pub regret: Option<f64>,
    /// Rows whose measured time lies in their 90 % interval.
    pub interval_coverage: Option<f64>,
    /// The mean error of the one-constant baseline on the same rows.
    pub baseline_mean_ape: Option<f64>,
    /// Rows whose memory was both measured and predicted.
    pub memory_rows: u64,
    /// The median error of memory.
    pub memory_median_ape: Option<f64>,
    /// The mean error of memory.
    pub memory_mean_ape: Option<f64>,
    /// Rows of which it is known whether they fitted.
    pub oom_rows: u64,
    /// Rows of these that were told right.
    pub oom_accuracy: Option<f64>,
    /// The tables that were pooled in it; empty for a table of its own.
    pub pooled: Vec<String>,
}

/// All rows and tables of one kind of score.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ScoreSet {
    /// What predictions knew.
    pub score: ScoreKind,
    /// Tables, in order of the rows.
    pub tables: Vec<ScoreTable>,
    /// Rows, in the order given.
    pub rows: Vec<ScoreRow>,
}

/// What a target asks for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// Between these, both included.
    Between(f64, f64),
}

impl Bound {
    /// Whether a value keeps to it; one that is not a number does not.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Between(low, high) => value >= low && value <= high,
        }
    }
}

/// A figure that was promised, what was found, and if it was missed, why.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target {
    /// Which figure, such as `median error`.
    pub figure: String,
    /// Of what: a table, a group of tables, a command.
    pub of: String,
    /// The kind of score, where it is one.
    pub score: Option<ScoreKind>,
    /// What is asked for.
    pub bound: Bound,
    /// What was found; `None` if it was not measured, which counts as missed.
    pub found: Option<f64>,
    /// The unit of both.
    pub unit: Unit,
    /// If missed: the cause, as far as it is known.
    pub cause: String,
    /// If missed: what was tried.
    pub tried: String,
}

impl Target {
    /// Whether it is met.
    #[must_use]
    pub fn met(&self) -> bool {
        self.found.is_some_and(|found| self.bound.holds(found))
    }
}

/// What someone else published as a prediction of a row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PeerPrediction {
    /// Who: a simulator's name.
    pub peer: String,
    /// Where it was published.
    pub source: String,
    /// The row.
    pub row_id: String,
    /// The predicted time in seconds.
    pub predicted_s: f64,
}

/// The scoreboard; whoever predicts fills it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scoreboard {
    /// The page's title.
    pub title: String,
    /// A sentence or two under it; may be empty.
    pub description: String,
    /// What a reader must know before trusting a number.
    pub warnings: Vec<String>,
    /// One for each kind of score.
    pub scores: Vec<ScoreSet>,
    /// Every figure that was promised.
    pub targets: Vec<Target>,
    /// What others predicted for the same rows.
    pub peers: Vec<PeerPrediction>,
    /// What others published of their errors without a prediction of each row: a paragraph each.
    pub peer_words: Vec<String>,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Scoreboard {
    /// Everything as JSON: `schema_version`, `scores[].{score,tables,rows}`, `targets[]` (with `met`), `peers[]`.
    ///
    /// # Panics
    /// Never: plain data has a JSON form.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Judged<'a> {
            #[serde(flatten)]
            target: &'a Target,
            met: bool,
        }
        #[derive(Serialize)]
        struct Whole<'a> {
            schema_version: u32,
            scores: &'a [ScoreSet],
            targets: Vec<Judged<'a>>,
            peers: &'a [PeerPrediction],
        }
        let targets = self.targets.iter().map(|target| Judged { target, met: target.met() }).collect();
        let whole = Whole { schema_version: crate::SCHEMA_VERSION, scores: &self.scores, targets, peers: &self.peers };
        serde_json::to_string_pretty(&whole).expect("plain data has a JSON form")
    }
}

impl ScoreSet {
    /// One kind of score as JSON: `score`, `tables[]`, `rows[]`.
    ///
    /// # Panics
    /// Never: plain data has a JSON form.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data has a JSON form")
    }

    /// Writes every row as CSV, columns named as the fields of [`ScoreRow`]; a value that is missing is an empty cell.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn rows_csv(&self, out: impl std::io::Write) -> std::io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        for row in &self.rows {
            csv.serialize(row).map_err(crate::csv_tables::into_io)?;
        }
        csv.flush()
    }
}

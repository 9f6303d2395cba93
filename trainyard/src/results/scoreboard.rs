//! Results about measured rows.

use serde::Serialize;

use super::Header;
use crate::validate::published::Change;

/// What `calibrate --rows` returns. Errors are shares: 0.05 is 5 %.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CalibrateRowsReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The table.
    pub table: String,
    /// The seed that chose its rows.
    pub seed: u64,
    /// What was fitted, a row for each key.
    pub stacks: Vec<FittedStack>,
    /// Names of the rows that it was fitted to.
    pub taken: Vec<String>,
    /// Errors on the other rows; `None` if there are none.
    pub rest: Option<RestErrors>,
    /// Errors on the same rows before anything was fitted.
    pub rest_before: Option<RestErrors>,
    /// The catalog of stacks to write.
    pub stacks_toml: String,
}

/// The constants of one key.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FittedStack {
    /// Stack class.
    pub class: String,
    /// Release line, if known.
    pub release: Option<String>,
    /// The whole key in words.
    pub key: String,
    /// Rows that it was fitted to.
    pub rows: u32,
    /// Standard deviation of the logarithm of prediction over measurement.
    pub spread: f64,
    /// Factor of time on kernels.
    pub compute_factor: f64,
    /// Microseconds of the host for each launch; `None`: the calibration's.
    pub launch_us: Option<f64>,
    /// Microseconds of each iteration beside its program.
    pub iteration_us: f64,
    /// Share of the network's calibrated bandwidth.
    pub network_efficiency: f64,
    /// Microseconds by which exchanges between stages hold up a pass.
    pub message_sync_us: f64,
}

/// Errors on rows that nothing was fitted to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct RestErrors {
    /// Rows.
    pub rows: u64,
    /// Median error.
    pub median_ape: Option<f64>,
    /// Mean error.
    pub mean_ape: Option<f64>,
    /// 90th percentile.
    pub p90_ape: Option<f64>,
    /// Share of rows in their 90 % interval.
    pub interval_coverage: Option<f64>,
}

/// What `check --scoreboard` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckScoreboardReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Whether no figure is worse.
    pub passed: bool,
    /// Every figure of every table.
    pub changes: Vec<Change>,
}

impl CheckScoreboardReport {
    /// Figures that are worse, a line each, with the table and the figure by name.
    #[must_use]
    pub fn worse(&self) -> Vec<String> {
        let number = |figure: &str, value: Option<f64>| match value {
            None => "nothing".to_owned(),
            Some(value) if figure.starts_with("rows") => format!("{value:.0}"),
            Some(value) => format!("{:.2} %", value * 100.0),
        };
        let line = |change: &Change| {
            let (published, now) = (number(change.figure, change.published), number(change.figure, change.now));
            format!("{}: {}: published {published}, now {now}", change.file, change.figure)
        };
        self.changes.iter().filter(|change| change.worse).map(line).collect()
    }
}

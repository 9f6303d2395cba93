//! What `import` and `export` give.

use formats::training::{Assumption, Reading};
use serde::Serialize;

use super::{Header, PlanSummary};

/// A scenario that was made of another tool's file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImportReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The file that was read.
    pub file: String,
    /// Whose file it is.
    pub tool: &'static str,
    /// The file that was written.
    pub path: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Nodes by name and count.
    pub nodes: Vec<String>,
    /// Devices of the cluster.
    pub devices: u64,
    /// The plan that the file says.
    pub plan: PlanSummary,
    /// Keys that were read.
    pub read: Vec<Reading>,
    /// Values that the file does not say, each with whose word it is.
    pub assumed: Vec<Assumption>,
    /// Keys that change neither what is trained nor its time or memory.
    pub ignored: Vec<Reading>,
    /// What else is to be known.
    pub notes: Vec<String>,
    /// The scenario written.
    #[serde(skip)]
    pub scenario: String,
}

/// A plan in another tool's words.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ExportReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// For whom.
    pub target: &'static str,
    /// The plan.
    pub plan: PlanSummary,
    /// What that tool does in its own way, and what else is to be known.
    pub notes: Vec<String>,
    /// The file's text.
    pub text: String,
}

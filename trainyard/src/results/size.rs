//! What `size` returns.

use reports::Document;
use reports::sizing::Interval;
use serde::Serialize;

use super::Header;

/// Answers to the questions of `[size]`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Everything that went in: name and value.
    pub inputs: Vec<(String, String)>,
    /// The smallest cluster of each kind of node.
    pub cluster: Option<SizeSection>,
    /// Tokens for the budget.
    pub tokens: Option<SizeSection>,
    /// The largest model that fits.
    pub model: Option<ModelSection>,
    /// The network at which exchanges stop mattering.
    pub network: Option<NetworkReport>,
    /// What a reader must know before trusting it.
    pub warnings: Vec<String>,
    /// The page.
    #[serde(skip)]
    pub document: Document,
}

/// A question whose answer is one of several clusters.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeSection {
    /// The question.
    pub question: String,
    /// The answer in a sentence or two.
    pub answer: String,
    /// Clusters; of one kind by number of nodes.
    pub rows: Vec<SizeRow>,
    /// Of `rows`, for each kind the smallest that suffices.
    pub smallest: Vec<usize>,
    /// Of `rows`, the one that the answer names.
    pub chosen: Option<usize>,
}

/// A cluster and what training on it takes. Intervals hold nine of ten runs, of the step and what follows from it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeRow {
    /// The kind of node.
    pub node: String,
    /// Kinds of its devices.
    pub device: String,
    /// Nodes.
    pub nodes: u64,
    /// Devices; all are paid for, whether the plan uses them or not.
    pub devices: u64,
    /// Devices that the plan uses.
    pub used_devices: u64,
    /// The plan in one line; empty where there is none.
    pub plan: String,
    /// Whether a plan fits into the devices' memory.
    pub fits: bool,
    /// Whether it keeps to what was asked, by what is expected.
    pub suffices: bool,
    /// Whether it does at the upper end of the interval too.
    pub surely: bool,
    /// One step, seconds.
    pub step_s: Option<Interval>,
    /// Steps.
    pub iterations: Option<f64>,
    /// Tokens.
    pub tokens: Option<Interval>,
    /// Elapsed time, days.
    pub days: Option<Interval>,
    /// Devices times hours.
    pub device_hours: Option<Interval>,
    /// Money, US dollars; `null` where a device has no price.
    pub usd: Option<Interval>,
    /// Energy, megawatt-hours; `null` where a device has no power limit.
    pub megawatt_hours: Option<Interval>,
    /// Model FLOPs over the dense peak of the devices used, of the simulated plan.
    pub model_flops_utilization: Option<f64>,
    /// The same with the forward passes that are done again.
    pub hardware_flops_utilization: Option<f64>,
    /// Useful work over elapsed time, where it follows from the scenario's checkpoints and failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// The largest share of its memory that a device needs.
    pub memory_share: Option<f64>,
    /// On what the step rests: name and value.
    pub basis: Vec<(String, String)>,
    /// Why there is no plan, or what limits it; may be empty.
    pub notes: String,
}

/// The largest model that fits.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelSection {
    /// The question.
    pub question: String,
    /// The answer.
    pub answer: String,
    /// Models, smallest first.
    pub rows: Vec<ModelRow>,
    /// Of `rows`, the largest that fits.
    pub largest: Option<usize>,
}

/// A model on the scenario's cluster.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelRow {
    /// Its name, or its sizes where it was scaled.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// Those that one token passes.
    pub active_parameters: u64,
    /// Whether a plan fits.
    pub fits: bool,
    /// The plan in one line; empty where there is none.
    pub plan: String,
    /// One step, seconds.
    pub step_s: Option<Interval>,
    /// Model FLOPs over peak.
    pub model_flops_utilization: Option<f64>,
    /// The largest share of its memory that a device needs.
    pub memory_share: Option<f64>,
    /// Why there is no plan; may be empty.
    pub reason: String,
}

/// How a step depends on the network.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NetworkReport {
    /// The question.
    pub question: String,
    /// The answer.
    pub answer: String,
    /// The plan, which stays as it is.
    pub plan: String,
    /// Bandwidth of a node's adapters together, as they are, Gb/s.
    pub present_gbit_per_s: f64,
    /// The step at rising bandwidth.
    pub points: Vec<NetworkPoint>,
    /// Bandwidth of a node from which exchanges between nodes lengthen a step by less than 1 %; `null` if none in the range.
    pub one_percent_gbit_per_s: Option<f64>,
    /// Bandwidth of a node at which they lengthen it by as much as compute takes; `null` if none in the range.
    pub as_compute_gbit_per_s: Option<f64>,
}

/// A step at a bandwidth.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct NetworkPoint {
    /// Bandwidth of a node's adapters together, Gb/s.
    pub node_gbit_per_s: f64,
    /// The step, seconds.
    pub step_s: f64,
    /// By how much it is longer than on a network a thousand times as fast, seconds.
    pub exposed_s: f64,
    /// The same as a share of the step.
    pub exposed_share: f64,
}

//! What `train-policy` returns.

use reports::Document;
use serde::Serialize;

use super::Header;

/// What `train-policy` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TrainPolicyReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The file of weights.
    pub weights: String,
    /// The seed of all draws.
    pub seed: u64,
    /// Searches that the weights were learned from.
    pub searches: u64,
    /// Evaluations in all of them.
    pub evaluations: u64,
    /// Searches that a checkpoint had done before.
    pub resumed_at: u64,
    /// Numbers in the network.
    pub parameters: usize,
    /// Kinds of node that were trained on.
    pub taught_nodes: Vec<String>,
    /// Models that were trained on.
    pub taught_models: Vec<String>,
    /// Losses, round by round.
    pub rounds: Vec<RoundRow>,
    /// What the network found on other jobs as it learned.
    pub curve: Vec<CurveRow>,
    /// Both policies on jobs that are held out.
    pub scores: Vec<ScoreRow>,
    /// Its page.
    #[serde(skip)]
    pub page: Document,
}

/// A round of a training.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RoundRow {
    /// Searches until its end.
    pub searches: u64,
    /// Divergence of the network's shares from those taught, in nats.
    pub policy_loss: f64,
    /// Loss of values.
    pub value_loss: f64,
    /// Best time over the floor, as a logarithm to base 2: mean over the round's searches.
    pub log2_over_floor: f64,
}

/// A point of the learning curve.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CurveRow {
    /// Searches until then.
    pub searches: u64,
    /// Evaluations of each job.
    pub evaluations: u64,
    /// Jobs.
    pub jobs: u64,
    /// Geometric mean of the time found over that of `mcts`.
    pub time_ratio: Option<f64>,
    /// The lower end of its 95 % interval.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
}

/// Two policies with one budget.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ScoreRow {
    /// Evaluations of each search.
    pub evaluations: u64,
    /// Jobs.
    pub jobs: u64,
    /// Searches of each.
    pub seeds: u64,
    /// Geometric mean of the time found over that of `mcts`, by the closed form.
    pub time_ratio: Option<f64>,
    /// The lower end of its 95 % interval.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// The same with both plans simulated.
    pub simulated_ratio: Option<f64>,
    /// The lower end of its 95 % interval.
    pub simulated_low: Option<f64>,
    /// The upper end.
    pub simulated_high: Option<f64>,
    /// Searches in which both found a plan.
    pub both: u32,
    /// In which `learned` found one that is faster by more than one in a thousand.
    pub faster: u32,
    /// In which `mcts` did.
    pub slower: u32,
    /// In which `learned` alone found one.
    pub only_learned: u32,
    /// In which `mcts` alone did.
    pub only_mcts: u32,
    /// What the interval allows to say.
    pub verdict: &'static str,
}

//! `[run]`: how training is carried out, and how it survives.
//!
//! ```toml
//! [run]
//! checkpoints = "checkpoints"     # a folder
//! every = 100                     # iterations
//! device = "cuda"                 # what ranks compute on
//! ```

use exec::runtime::OnFailure;

use super::Sight;
use crate::read::Table;

/// How `run` and `launch` carry out training.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RunChoice {
    /// Where the state of training is kept, if it is.
    pub checkpoints: Option<CheckpointFolder>,
    /// What a launch does when a rank is lost.
    pub on_loss: OnLoss,
    /// From how many times the work of its like a rank counts as slow.
    pub slow_rank: Option<f64>,
    /// What ranks compute on.
    pub device: DeviceChoice,
}

/// What the ranks of a run compute on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceChoice {
    /// The cores of this machine.
    #[default]
    Cpu,
    /// Its NVIDIA GPUs.
    Cuda {
        /// Ranks on each GPU.
        ranks_per_gpu: u32,
    },
}

impl DeviceChoice {
    /// By its word in a scenario, with so many ranks to a GPU (one where nothing is said).
    ///
    /// # Errors
    /// What is wrong with that, as key, message and hint.
    pub fn of(word: &str, ranks_per_gpu: Option<u32>) -> Result<Self, ir::Problem> {
        match (word, ranks_per_gpu) {
            ("cpu", None) => Ok(Self::Cpu),
            ("cpu", Some(_)) => {
                let problem = ir::Problem::new("run.ranks_per_gpu", "says nothing where the CPU computes");
                Err(problem.hint("set device = \"cuda\", or leave it out"))
            }
            ("cuda", Some(0)) => {
                let problem = ir::Problem::new("run.ranks_per_gpu", "no rank computes on a GPU with 0 ranks");
                Err(problem.hint("1 gives each rank a GPU of its own"))
            }
            ("cuda", ranks) => Ok(Self::Cuda { ranks_per_gpu: ranks.unwrap_or(1) }),
            (other, _) => {
                let problem = ir::Problem::new("run.device", format!("there is no device `{other}`"));
                Err(problem.hint("it is cpu or cuda"))
            }
        }
    }
}

/// A folder of checkpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointFolder {
    /// Its whole path.
    pub path: String,
    /// Iterations from one to the next.
    pub every: u32,
    /// How many of the newest stay.
    pub keep: u32,
    /// Whether training goes on while one is written.
    pub asynchronous: bool,
    /// What follows when one cannot be written.
    pub on_failure: OnFailure,
}

/// What a launch does when a rank is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnLoss {
    /// Starts all ranks again.
    #[default]
    SameRanks,
    /// Starts all ranks again, and fewer of them once they were lost three times without an iteration in between.
    FewerIfNeeded,
    /// Goes on with fewer ranks: the largest number of replicas that the batch divides over, below what it was.
    FewerRanks,
}

pub(super) const ON_LOSS: [(&str, OnLoss); 3] = [
    ("same-ranks", OnLoss::SameRanks),
    ("fewer-if-needed", OnLoss::FewerIfNeeded),
    ("fewer-ranks", OnLoss::FewerRanks),
];
pub(super) const ON_FAILURE: [(&str, OnFailure); 2] = [("stop", OnFailure::Stop), ("continue", OnFailure::Continue)];

const DEVICES: [(&str, &str); 2] = [("cpu", "cpu"), ("cuda", "cuda")];

/// Iterations between two checkpoints, unless told otherwise.
pub(super) const EVERY: u32 = 100;
/// Checkpoints that stay, unless told otherwise.
pub(super) const KEEP: u32 = 3;

/// Reads `[run]`.
pub(super) fn read(root: &Table<'_>, sight: &Sight<'_>) -> Option<RunChoice> {
    let Some(table) = root.table("run") else { return Some(RunChoice::default()) };
    let folder = table.get("checkpoints").map(|value| {
        let joined = sight.base.join(value.text()?);
        let path = std::path::absolute(&joined).unwrap_or(joined);
        if path.is_file() {
            value.problem(format!("{} is a file", path.display()), Some("name a folder".to_owned()));
            return None;
        }
        path.to_str().map(str::to_owned)
    });
    let every = table.get("every").map_or(Some(EVERY), |v| v.count());
    let keep = table.get("keep").map_or(Some(KEEP), |v| v.count());
    let asynchronous = table.get("asynchronous").map_or(Some(true), |v| v.boolean());
    let on_failure = table.get("on_failure").map_or(Some(OnFailure::Stop), |v| v.choice(&ON_FAILURE));
    let on_loss = table.get("on_loss").map_or(Some(OnLoss::SameRanks), |v| v.choice(&ON_LOSS));
    let slow_rank = table.get("slow_rank").map_or(Some(None), |v| v.number(1.05..=1000.0).map(Some));
    let word = table.get("device").map_or(Some("cpu"), |v| v.choice(&DEVICES));
    let ranks_per_gpu = table.get("ranks_per_gpu").map_or(Some(None), |v| v.count().map(Some));
    table.finish();
    let device = match (word, ranks_per_gpu) {
        (Some(word), Some(ranks)) => {
            DeviceChoice::of(word, ranks).map_err(|problem| table.report_at("ranks_per_gpu", problem)).ok()
        }
        _ => None,
    };
    if folder.is_none() {
        for key in ["every", "keep", "asynchronous", "on_failure"].into_iter().filter(|key| table.has(key)) {
            let message = "says nothing without a folder for checkpoints";
            let problem = ir::Problem::new(table.path_of(key), message);
            table.report_at(key, problem.hint("such as checkpoints = \"checkpoints\""));
        }
    }
    let (every, keep, asynchronous, on_failure) = (every?, keep?, asynchronous?, on_failure?);
    let checkpoints = match folder {
        None => None,
        Some(path) => Some(CheckpointFolder { path: path?, every, keep, asynchronous, on_failure }),
    };
    Some(RunChoice { checkpoints, on_loss: on_loss?, slow_rank: slow_rank?, device: device? })
}

//! The machine that carries out a program: a simulator or a real executor.

use std::sync::Arc;

use crate::{Problem, Rank, SimTime, Timeline, VerifiedProgram};

/// What a timeline's times are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// Virtual nanoseconds.
    Simulated,
    /// Nanoseconds of a real clock.
    Measured,
}

impl Clock {
    /// The word for reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Measured => "measured",
        }
    }
}

/// Something that happened and that a controller may react to.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// An iteration ended.
    IterationEnded {
        /// Which, from 0.
        iteration: u64,
        /// When, on the backend's clock.
        at: SimTime,
        /// Mean loss of the iteration's tokens, where the backend computes one.
        loss: Option<f64>,
    },
}

/// What a controller decides at an iteration boundary.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Go on with the same program.
    Continue,
    /// End the run here.
    Stop,
    /// Go on with another program.
    Replace(Arc<VerifiedProgram>),
}

/// What one iteration gave.
#[derive(Clone, Debug)]
pub struct IterationOutcome {
    /// What each role (or rank) did when.
    pub timeline: Timeline,
    /// Mean loss over the iteration's tokens, where the backend computes one.
    pub loss: Option<f64>,
    /// L2 norm of all gradients before clipping, where the backend computes one.
    pub gradient_norm: Option<f64>,
}

/// Why a backend stopped.
#[derive(Clone, PartialEq, Debug)]
pub enum BackendError {
    /// The program asks for what this backend cannot do; every reason.
    Unsupported(Vec<Problem>),
    /// A value that is not a number, found where the message says.
    NotFinite {
        /// The rank that saw it.
        rank: Rank,
        /// The iteration, from 0.
        iteration: u64,
        /// What was not finite and in which layer.
        what: String,
    },
    /// A rank made no progress for the stated time; all were stopped.
    Stalled {
        /// The rank.
        rank: Rank,
        /// The iteration, from 0.
        iteration: u64,
        /// What it was doing, and for how long.
        what: String,
    },
    /// A rank ended early.
    RankFailed {
        /// The rank.
        rank: Rank,
        /// The iteration, from 0.
        iteration: u64,
        /// Why.
        cause: String,
    },
    /// The state of training could not be kept.
    Checkpoint {
        /// Iterations that are in it.
        iterations: u64,
        /// What prevented it.
        what: String,
    },
    /// The person asked to stop.
    Interrupted,
}

impl std::fmt::Display for BackendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unsupported(reasons) => {
                write!(f, "the backend cannot carry out this program:")?;
                reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
            }
            Self::NotFinite { rank, iteration, what } => {
                write!(f, "not a finite number in iteration {iteration} on rank {}: {what}", rank.raw())
            }
            Self::Stalled { rank, iteration, what } => {
                write!(f, "rank {} stalled in iteration {iteration}: {what}; all ranks were stopped", rank.raw())
            }
            Self::RankFailed { rank, iteration, cause } => {
                write!(f, "rank {} failed in iteration {iteration}: {cause}; all ranks were stopped", rank.raw())
            }
            Self::Checkpoint { iterations, what } => {
                write!(
                    f,
                    "the checkpoint after {iterations} iterations could not be written: {what}; the run was stopped"
                )
            }
            Self::Interrupted => write!(f, "interrupted"),
        }
    }
}
impl std::error::Error for BackendError {}

/// A machine that carries out verified programs, one iteration at a time.
///
/// Order of calls: `unsupported` (any time), `load`, then `iterate` with consecutive iterations, from 0 unless it goes on from
/// the state of an earlier run; `load` again replaces
/// the program between iterations and keeps the state of training.
pub trait Backend {
    /// What its times are.
    fn clock(&self) -> Clock;
    /// Every reason why it cannot carry out the program; empty if it can.
    fn unsupported(&self, program: &VerifiedProgram) -> Vec<Problem>;
    /// Takes a program.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] with all reasons.
    fn load(&mut self, program: Arc<VerifiedProgram>) -> Result<(), BackendError>;
    /// Carries out one iteration.
    ///
    /// # Errors
    /// What stopped it; the backend is then unusable until the next `load`.
    fn iterate(&mut self, iteration: u64) -> Result<IterationOutcome, BackendError>;
}

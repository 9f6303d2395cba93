//! What can end a verb early.

use ir::{BackendError, Infeasible, Problem};

use crate::source::Sources;

/// Faults of what a person wrote.
#[derive(Clone, Debug)]
pub struct InputError {
    /// Every one.
    pub problems: Vec<Problem>,
    /// The texts that they point into.
    pub sources: Sources,
}

/// Why a verb gave no result.
#[derive(Clone, Debug)]
pub enum Error {
    /// Something in the input is wrong.
    Input(InputError),
    /// There is no legal plan, or the one written does not fit.
    Infeasible {
        /// Reasons and the nearest legal plans.
        infeasible: Box<Infeasible>,
        /// The texts that the reasons point into.
        sources: Sources,
    },
    /// A run stopped.
    Run(BackendError),
    /// A file could not be read or written.
    Files {
        /// The path.
        path: String,
        /// What was being done, and why it failed.
        message: String,
    },
    /// The person asked to stop; nothing is left half-written.
    Interrupted,
}

impl Error {
    /// The word of its kind, as the JSON of a result has it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Input(_) => "bad-input",
            Self::Files { .. } => "file-error",
            Self::Infeasible { .. } => "infeasible",
            Self::Run(_) => "run-failed",
            Self::Interrupted => "interrupted",
        }
    }
    /// What is wrong in one line that does not say where, for what has no file of its own.
    pub(crate) fn in_a_line(&self) -> String {
        match self {
            Self::Input(error) => in_a_line(&error.problems),
            Self::Infeasible { infeasible, .. } => in_a_line(&infeasible.reasons),
            Self::Run(_) | Self::Files { .. } | Self::Interrupted => self.to_string(),
        }
    }
    /// A failure around a file.
    pub(crate) fn files(path: &std::path::Path, message: impl std::fmt::Display) -> Self {
        Self::Files { path: path.display().to_string(), message: message.to_string() }
    }
    /// Problems with no place in a file.
    #[must_use]
    pub fn input(problems: Vec<Problem>) -> Self {
        Self::Input(InputError { problems, sources: Sources::default() })
    }
    /// A single problem with no place in a file.
    pub(crate) fn problem(problem: Problem) -> Self {
        Self::Input(InputError { problems: vec![problem], sources: Sources::default() })
    }
}

/// Problems in one line, without their places.
pub(crate) fn in_a_line(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{}: {}", problem.subject, problem.message)).collect::<Vec<_>>().join("; ")
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Interrupted => Self::Interrupted,
            other => Self::Run(other),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |f: &mut std::fmt::Formatter<'_>, problems: &[Problem], sources: &Sources| {
            for (index, problem) in problems.iter().enumerate() {
                write!(f, "{}{}", if index == 0 { "" } else { "\n" }, sources.render(problem))?;
            }
            Ok(())
        };
        match self {
            Self::Input(error) => list(f, &error.problems, &error.sources),
            Self::Infeasible { infeasible, sources } => {
                list(f, &infeasible.reasons, sources)?;
                for (index, plan) in infeasible.nearest.iter().enumerate() {
                    let head = if index == 0 { "\n  nearest legal plans:" } else { "" };
                    write!(f, "{head}\n    {}", crate::words::plan(plan))?;
                }
                Ok(())
            }
            Self::Run(error) => write!(f, "{error}"),
            Self::Files { path, message } => write!(f, "{path}: {message}"),
            Self::Interrupted => write!(f, "interrupted"),
        }
    }
}
impl std::error::Error for Error {}

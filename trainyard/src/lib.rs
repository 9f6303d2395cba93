//! Trainyard as a library: a scenario is resolved, planned, simulated, run, compared and checked.
//!
//! ```no_run
//! use std::path::Path;
//! use trainyard::{Context, scenario, simulate};
//!
//! # fn main() -> Result<(), trainyard::Error> {
//! let loaded = scenario::load(Path::new("scenarios/gpt3-175b-1024-a100"))?;
//! let report = simulate(&loaded, &Context::default())?;
//! assert!(report.prediction.iteration_ms > 0.0);
//! # Ok(())
//! # }
//! ```
//!
//! The only crate that touches files, clocks and the environment on behalf of the rest. It prints nothing: verbs return
//! values ([`results`]), tell of their progress through a [`Context`], and stop when its flag is set. Files appear whole
//! or not at all ([`Output`]).
//!
//! **Deliberately ignorant of** the terminal, and of how anything is decided, priced, simulated or carried out.
//!
//! Read next: [`scenario`] for the language, [`catalog`] for what is known by name, [`results`] for what comes out.

pub mod catalog;
mod error;
mod facts;
mod job;
pub mod launch;
mod long_run;
pub mod output;
pub mod plans;
mod policy;
mod progress;
mod read;
pub mod results;
pub mod scenario;
pub mod source;
#[cfg(test)]
mod testing;
mod texts;
pub mod validate;
mod verbs;
pub mod words;

pub use catalog::calibrations;
pub use error::{Error, InputError};
pub use formats::training::Tool;
pub use launch::{Launch, Launcher};
pub use output::Output;
pub use plans::{PlansReport, PlansRequest, validate_plans};
pub use progress::{Context, Progress};
pub use reports::Document;
pub use reports::scoreboard::{ScoreKind, ScoreSet, ScoreTable, Scoreboard};
pub use scenario::{DeviceChoice, Loaded, Scenario};
pub use verbs::{
    AblateRequest, CalibrateRowsRequest, ExportTarget, Gathered, ImportRequest, ImportSource, InitRequest,
    LaunchRequest, PlaceRequest, Seeds, Shard, Subject, SweepPoints, SweepRequest, TrainPolicyRequest, ValidateRequest,
    Validation, Vary, ablate, calibrate, calibrate_rows, check, check_scoreboard, compare, diff, doctor, explain,
    export, gather, import, init, launch as launch_processes, merge_ablations, place, plan, quickstart, run, run_from,
    run_gathered, serve_launched, simulate, size, stage_front, stage_reports, sweep, take_part, train_policy, validate,
};

//! What can be done with a scenario. Nothing here prints; progress goes through a [`crate::Context`].

mod calibrate;
mod check;
mod compare;
mod doctor;
mod in_training;
mod init;
mod plan;
mod quickstart;
mod reporting;
mod run;
mod simulate;

pub use calibrate::calibrate;
pub use check::check;
pub use compare::compare;
pub use doctor::doctor;
pub use init::{InitRequest, init};
pub use plan::plan;
pub use quickstart::quickstart;
pub use reporting::{Subject, stage_reports};
pub use run::run;
pub use simulate::simulate;

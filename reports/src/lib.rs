//! Timelines to numbers, comparisons and pages.
//!
//! [`Report::new`] computes the [`Metrics`] of each clock's iteration and the [`Comparison`] between two clocks; the
//! report then writes itself as a self-contained HTML page, Markdown, JSON, CSV, a Perfetto trace, SVG and PNG pictures,
//! and as rows for a terminal. Everything goes to a `String`, bytes, or a `Write` that the caller hands in.
//!
//! **Deliberately ignorant of** files, terminals and how a timeline came about: a simulated timeline differs from a
//! measured one by its clock tag only. It neither prices nor decides anything.
//!
//! Read next: [`metrics`] for how an iteration's time is divided, [`compare`] for how two timelines join.

mod activity;
pub mod compare;
mod csv_tables;
mod draw;
pub mod metrics;
mod page;
mod perfetto;
mod pictures;
mod report;
pub mod show;
pub mod tables;
pub mod words;

pub use activity::{Activity, Colour, InstructionClass};
pub use compare::Comparison;
pub use metrics::{Metrics, ModelRate};
pub use perfetto::{Process, write_trace};
pub use report::{LossCurve, Report, ReportInput, SCHEMA_VERSION};

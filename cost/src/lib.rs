//! Counts to time and memory: one cost function per fact.
//!
//! The closed-form estimator and the simulator compose what is here; neither derives it again.
//! **Deliberately ignorant of** policies, schedules and programs' order: every function is pure in its arguments.
//!
//! A [`CostModel`] prices compute, collectives and messages on one [`ir::Cluster`] from [`Calibration`]s (plain data,
//! TOML) or a [`PassTable`]; [`fit`] makes a calibration from an executor's measurements; [`memory`] counts bytes.
//! Times are whole nanoseconds, at least one, and equal on all machines (`libm`, fixed order of sums).
//!
//! Read next: [`Calibration`] for the equations, `collective`'s table for algorithms, [`CostModel`] for the prices.

mod calibration;
mod calibration_text;
mod collective;
mod compute;
mod curve;
mod fit;
pub mod memory;
mod model;
mod pass_table;
mod place;
mod prices;

pub use calibration::{
    Attention, Calibration, CollectiveFit, CollectivePoints, Dispatch, Interference, LinkEfficiency, MatrixProduct,
    Measured, MessageFit, Protocol, SHARED_MEMORY, StreamingPoints, StreamingRate,
};
pub use collective::Steps;
pub use fit::{ClassError, FitReport, fit};
pub use model::{Basis, CostModel, Priced};
pub use pass_table::{PassTable, StagePasses};
pub use place::GroupPlace;
pub use prices::Prices;

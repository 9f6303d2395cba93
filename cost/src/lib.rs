//! Counts to time and memory: one cost function per fact.
//!
//! The closed-form estimator and the simulator compose what is here; neither derives it again.
//! **Deliberately ignorant of** policies, schedules and programs' order: every function is pure in its arguments.

pub mod memory;
mod model;

pub use model::{Basis, CostModel, GroupPlace, Priced};

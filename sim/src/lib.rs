//! The simulator: a discrete-event engine, and the models that run on it.
//!
//! Two halves know nothing of training and stand alone. In both, time is a bare `u64` of
//! nanoseconds; whoever builds on them puts the types of the vocabulary around it.
//!
//! - [`queue`] keeps pending events in the order in which they happen.
//! - [`fabric`] shares links among the flows that cross them, max-min fairly, in integers.
//!
//! Both are deterministic: no floating point, no hash order, no clock, no randomness.

pub mod fabric;
pub mod machine;
pub mod queue;

pub use machine::Simulator;

#[cfg(test)]
mod swarm;

//! The simulator: a discrete-event engine, and the machine that carries out a program on it.
//!
//! - [`queue`] keeps pending events in the order in which they happen.
//! - [`fabric`] shares links among the flows that cross them, max-min fairly, in integers.
//! - [`long_run`] walks through months of iterations, checkpoints and failures.
//! - [`machine`] is the [`ir::Backend`] on both: streams, collectives, messages and memory of every role, priced by `cost`.
//!
//! The first two know nothing of training and stand alone: time there is a bare `u64` of nanoseconds, and the machine puts
//! the types of the vocabulary around it. All are deterministic: no hash order in a result, no clock, and failures
//! come from a seed.
//!
//! **Deliberately ignorant of** why a program is what it is, and of the executor that carries out the same one.
//!
//! Read next: [`Simulator`].

pub mod fabric;
pub mod long_run;
pub mod machine;
pub mod queue;

pub use machine::Simulator;

#[cfg(test)]
mod swarm;

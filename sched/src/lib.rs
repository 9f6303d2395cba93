//! The shared scheduler: what decides, in simulation and in execution alike.
//!
//! * [`schedules`]: the order of passes as a [`ir::grid::Grid`];
//! * [`legality`]: whether a plan can be carried out, with every reason and the nearest plans that can;
//! * [`lowering`]: from a plan to the folded [`ir::Program`] that a backend carries out.
//!
//! **Deliberately ignorant of** clocks, files, the simulator and the executor: time is an argument, search budgets count
//! evaluations, planners ask an evaluator that they are handed.

pub mod layout;
pub mod legality;
pub mod lowering;
pub mod passes;
pub mod schedules;
#[cfg(test)]
mod testing;

pub use legality::{legal, nearest};
pub use lowering::{Folding, lower, lower_as};

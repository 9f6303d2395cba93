//! Offline training of learned policies in simulation.
//!
//! A network that guides the tree search of [`sched::Mcts`] is trained on jobs that are [drawn from families](families): each
//! is searched with the network as it is, and the network learns which choices led to the fastest plans, and how fast those
//! were ([`lessons`], [`gradient`], [`trainer`]). [`score`] holds policies against each other on other jobs.
//!
//! Inference is not here: `sched::learned` has it, so that whoever plans needs nothing of this crate.
//!
//! **Deliberately ignorant of** files, clocks and the executor: a training is a value that goes on round by round, and whoever
//! drives it says when it stops and where it is kept. Everything follows from a seed, whatever the number of cores.
//!
//! Read next: [`trainer`].

pub mod adam;
pub mod families;
pub mod gradient;
pub mod lessons;
pub mod score;
#[cfg(test)]
mod tests;
pub mod trainer;

pub use families::{Drawn, Families};
pub use score::{Pair, Ratio, Searched, Trial, jobs, searched};
pub use trainer::{Point, Round, Settings, Trainer};

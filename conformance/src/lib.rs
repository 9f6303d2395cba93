//! Tests that need several crates: one suite over every backend, goldens, dependency and tidy checks.
//!
//! The tests are in `tests/`; here is what they share: the checkout ([`workspace`]), seeded chance ([`dice`]), clusters
//! ([`clusters`]), whole random cases ([`swarm`]), an oracle of the simulator
//! ([`alone`]), peaks of memory ([`peaks`]), the cases of the accuracy study ([`accuracy`]), claims
//! about plans ([`claims`]) and the comparison of goldens ([`golden`]).

pub mod accuracy;
pub mod alone;
pub mod claims;
pub mod clusters;
pub mod dice;
pub mod golden;
pub mod peaks;
pub mod swarm;
mod trained;
mod unlike;
mod wide;
pub mod workspace;

//! What is timed: the jobs and the small machines that the Criterion benches in `benches/` and the instruction counts
//! in `src/bin/` share.
//!
//! `cargo bench -p trainyard-benches` times; `benches/instruction-counts.sh` counts instructions, which do not depend on
//! what else the machine does, and compares them with the committed ones.

pub mod churn;
pub mod jobs;

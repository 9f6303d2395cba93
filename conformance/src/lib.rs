//! Tests that need several crates: one suite over every backend, goldens, dependency and tidy checks.
//!
//! The tests are in `tests/`; here is what they share.

pub mod workspace;

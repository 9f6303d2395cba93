//! Tests of the whole crate, by subject.

mod calibrations;
mod collectives;
mod compute;
mod fits;
mod fixtures;
mod memory;
mod published;
mod swarm;

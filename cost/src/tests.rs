//! Tests of the whole crate, by subject.

mod calibrations;
mod collectives;
mod compute;
mod exchanges;
mod fits;
mod fixtures;
mod kernels;
mod memory;
mod memory_models;
mod memory_rows;
mod mixed;
mod profiles;
mod published;
mod stacks;
mod swarm;
mod terms;
mod trust;

//! Many small divisions over several nodes, with every kind of traffic at once: none may stall, and all train as one
//! rank does.

use std::time::Duration;

use ir::{Cluster, Model, Workload, ZeroStage};

use super::nodes;
use super::training::{assert_close, model, train, workload};
use crate::data::generate;
use crate::runtime::{CpuBackend, CpuOptions};
use crate::state::tests::programs::{Division, program};

/// A tied head adds a reduction of its own between the ends of a pipeline.
fn tied() -> Model {
    Model { hidden: 16, head_dim: 4, ffn: 16, tied_head: true, ..model() }
}

fn small() -> Workload {
    Workload { sequence_length: 8, ..workload() }
}

/// All divisions of up to 8 ranks by two along each axis.
fn divisions() -> Vec<Division> {
    let mut all = Vec::new();
    for (tensor, sequence_parallel) in [(1, false), (2, false), (2, true)] {
        for (data, zero) in [(1, ZeroStage::Zero0), (2, ZeroStage::Zero0), (2, ZeroStage::Zero1)] {
            for (positions, chunks_per_position, split) in [(1, 1, false), (2, 1, true), (2, 2, false)] {
                for overlap in [false, true] {
                    let replicas = Division { data, zero, overlap, microbatches: 2, ..Division::ONE };
                    let pipeline = Division { positions, chunks_per_position, split, ..replicas };
                    all.push(Division { tensor, sequence_parallel, ..pipeline });
                }
            }
        }
    }
    all
}

/// Few large nodes on a fast network, and nodes of one device on a slow one; every other device is emulated.
fn clusters(world: u32) -> Vec<Cluster> {
    let slowdowns: Vec<f64> = (0..world).map(|device| f64::from(1 + device % 2)).collect();
    let halves = (world > 2).then(|| nodes(&slowdowns, slowdowns.len() / 2, 1e9, 20));
    halves.into_iter().chain([nodes(&slowdowns, 1, 2e8, 50)]).collect()
}

#[test]
fn no_division_over_emulated_links_stalls() {
    let losses = |division: &Division, cluster: Cluster| {
        let options = CpuOptions { stall_timeout: Duration::from_secs(5), ..CpuOptions::default() };
        let mut backend = CpuBackend::new(cluster, generate(1, 10_000), options);
        train(&mut backend, program(&tied(), &small(), division), 0..3)
    };
    let one = losses(&Division::ONE, nodes(&[1.0], 1, 1e9, 1));
    for division in divisions() {
        for cluster in clusters(division.positions * division.data * division.tensor) {
            let what = format!("{division:?} over {} nodes", cluster.groups.len());
            assert_close(&losses(&division, cluster), &one, &what);
        }
    }
}

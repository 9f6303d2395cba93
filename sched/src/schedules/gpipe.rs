//! GPipe (Huang et al. 2019): all forward passes, then all backward passes, both in order of microbatches.
//!
//! With several chunks per position it is the breadth-first order of Lamy-Poirier (2023): each chunk sees all
//! microbatches before the next chunk of the position sees any.

use ir::grid::{Action, Grid};

use super::cell;

pub(super) fn grid(pipeline: u32, chunks: u32, microbatches: u32) -> Grid {
    let row = |position: u32| {
        let pass = |slot: u32, action| (0..microbatches).map(move |m| cell(slot * pipeline + position, action, m));
        let forward = (0..chunks).flat_map(|slot| pass(slot, Action::Forward));
        let backward = (0..chunks).rev().flat_map(|slot| pass(slot, Action::Backward));
        forward.chain(backward).collect()
    };
    Grid { rows: (0..pipeline).map(row).collect() }
}

//! A plan as the sizes and chunks that ops refer to.

use ir::grid::Grid;
use ir::program::{Chunk, Layout};
use ir::{Plan, Recompute, Schedule, StageId};

use crate::schedules::chunk_rows;

/// Sizes and switches of a plan.
#[must_use]
pub fn layout(plan: &Plan) -> Layout {
    let tensors = if plan.has_unlike_tensors() { plan.tensors().collect() } else { Vec::new() };
    Layout {
        data: plan.data,
        tensor: plan.tensors().max().unwrap_or(plan.tensor),
        tensors,
        pipeline: plan.pipeline(),
        sequence_parallel: plan.sequence_parallel,
        microbatch_size: plan.microbatch_size,
        microbatches: plan.microbatches,
        shares: plan.shares.clone(),
        zero: plan.zero,
        collective: plan.collective,
        mesh: plan.mesh,
        sharing: plan.sharing,
    }
}

/// The pipeline position of each chunk of a plan: `chunk % pipeline`, down and up again, or the row of an explicit grid (one that the grid
/// leaves out is placed as if there were no grid).
#[must_use]
pub fn chunk_positions(plan: &Plan) -> Vec<u32> {
    let (pipeline, total) = (plan.pipeline(), plan.pipeline() * plan.chunks_per_stage());
    match &plan.schedule {
        Schedule::Explicit(grid) => placed(grid, pipeline, total),
        schedule => (0..total).map(|chunk| schedule.position(chunk, pipeline)).collect(),
    }
}

fn placed(grid: &Grid, pipeline: u32, total: u32) -> Vec<u32> {
    let rows = chunk_rows(grid, total);
    (0..total).zip(rows).map(|(chunk, row)| row.unwrap_or(chunk % pipeline).min(pipeline - 1)).collect()
}

/// The chunks of a plan in the order of the model: the `i`-th chunk of a position has the `i`-th of its stage's layers.
/// Where the vocabulary is divided over positions, a slice of it for each follows them.
///
/// # Panics
/// If a stage holds more chunks than it has entries of layers.
#[must_use]
pub fn chunks(plan: &Plan) -> Vec<Chunk> {
    let positions = chunk_positions(plan);
    let mut held = vec![0usize; plan.stages.len()];
    let mut first_layer = 0;
    let last = positions.len().saturating_sub(1);
    let ends = plan.sharing.vocabulary.is_ends();
    let mut chunks = Vec::with_capacity(positions.len());
    for (number, position) in positions.into_iter().enumerate() {
        let stage = &plan.stages[position as usize];
        let slot = &mut held[position as usize];
        let layers = stage.layers[*slot];
        *slot += 1;
        chunks.push(Chunk {
            stage: StageId::new(position),
            first_layer,
            layers,
            embedding: ends && number == 0,
            head: ends && number == last,
            recompute: stage.recompute,
            recomputed_layers: stage.recompute_layers.map_or(layers, |first| first.min(layers)),
        });
        first_layer += layers;
    }
    let slice = |position: u32| Chunk {
        stage: StageId::new(position),
        first_layer,
        layers: 0,
        embedding: true,
        head: true,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    chunks.extend((0..plan.pipeline()).filter(|_| !ends).map(slice));
    chunks
}

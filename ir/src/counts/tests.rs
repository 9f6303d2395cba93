//! Counts against golden figures and naive sums.

use super::*;
use crate::program::{Chunk, Layout, Pass, UnitRange};
use crate::{
    AdamW, AttentionKernel, CollectiveAlgorithm, Mesh, Model, Precision, Recipe, Recompute, Sharing, StageId, Workload,
    ZeroStage,
};

mod flops;
mod kernels;
mod kinds;
mod models;
mod parameters;
mod payloads;

/// Sequences of 1,024 tokens in bfloat16, flash attention.
fn workload() -> Workload {
    Workload {
        sequence_length: 1024,
        global_batch: 8,
        iterations: 1,
        precision: Precision::Bf16,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 1,
        optimizer: AdamW::default(),
        seed: 0,
        recipe: Recipe::default(),
    }
}

/// Two sequences in a microbatch.
fn layout(tensor: u32, sequence_parallel: bool) -> Layout {
    Layout {
        data: 1,
        tensor,
        pipeline: 1,
        tensors: Vec::new(),
        sequence_parallel,
        microbatch_size: 2,
        microbatches: 1,
        shares: crate::Shares::EQUAL,
        zero: ZeroStage::Zero0,
        collective: CollectiveAlgorithm::Automatic,
        mesh: Mesh::default(),
        sharing: Sharing::default(),
    }
}

fn whole(model: &Model) -> Chunk {
    Chunk {
        stage: StageId::new(0),
        first_layer: 0,
        layers: model.layers,
        embedding: true,
        head: true,
        recompute: Recompute::None,
        recomputed_layers: model.layers,
    }
}

/// The kernels of one pass of a unit of a kind.
fn kernels_of(shape: Shape<'_>, kind: UnitKind, pass: Pass, recompute: Recompute) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    unit_kernels(shape, kind, pass, recompute, &mut kernels);
    kernels
}

/// FLOPs of one pass of a rank over the whole model.
fn total_flops(shape: Shape<'_>, pass: Pass) -> u128 {
    let chunk = whole(shape.model);
    let counts = unit_counts(shape.model, &chunk, chunk.all_units()).all();
    let of = |kind| {
        kernels_of(shape, kind, pass, Recompute::None).into_iter().map(|kernel| flops(kernel).get()).sum::<u128>()
    };
    UnitKind::ALL
        .into_iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| u128::from(count) * of(kind))
        .sum()
}

/// Bytes of the streaming kernels of one pass of a unit of a kind.
fn streamed(shape: Shape<'_>, kind: UnitKind, pass: Pass) -> u64 {
    let bytes = |kernel: &Kernel| match kernel {
        Kernel::Streaming { bytes, .. } => bytes.get(),
        Kernel::MatrixProduct { .. } | Kernel::GroupedProduct { .. } | Kernel::Attention { .. } => 0,
    };
    kernels_of(shape, kind, pass, Recompute::None).iter().map(bytes).sum()
}

/// Kernel launches of one pass of a unit of a kind.
fn launched(shape: Shape<'_>, kind: UnitKind, pass: Pass) -> u32 {
    kernels_of(shape, kind, pass, Recompute::None).iter().map(|kernel| kernel.launches()).sum()
}

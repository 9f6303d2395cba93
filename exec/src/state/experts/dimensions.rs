//! The sizes of one rank's share of experts.

use ir::program::Program;
use ir::{MlpKind, Rank, Router, ZeroStage};

use crate::state::dimensions::size;

/// Where a rank stands among those that hold experts, and the sizes of its share.
#[derive(Debug)]
pub(in crate::state) struct ExpertDimensions {
    pub(in crate::state) count: usize,
    /// Experts of each token.
    pub(in crate::state) active: usize,
    /// Experts on this rank.
    pub(in crate::state) local: usize,
    /// The first of them.
    pub(in crate::state) first: usize,
    /// Ranks over which experts are divided.
    pub(in crate::state) ranks: usize,
    /// Ranks that share each expert's matrices.
    pub(in crate::state) tensor: usize,
    pub(in crate::state) tensor_index: usize,
    /// This rank's part of an expert's width.
    pub(in crate::state) ffn: usize,
    /// This rank's part of the shared width; 0 without.
    pub(in crate::state) shared_ffn: usize,
    pub(in crate::state) mlp: MlpKind,
    pub(in crate::state) router: Router,
    /// Ranks that hold the same experts.
    pub(in crate::state) copies: usize,
    pub(in crate::state) copy: usize,
    /// Whether the state of experts is divided over the copies.
    sharded: bool,
    /// Whether this rank answers for its experts in the gradient's norm: once in what the norm adds up over.
    pub(in crate::state) counted: bool,
    /// Weight of the loss that balances each sequence, over all sequences of an iteration.
    pub(in crate::state) balance: f64,
}

impl ExpertDimensions {
    /// The share of a rank of a program whose model has experts.
    pub(in crate::state) fn new(program: &Program, rank: Rank) -> Self {
        let layout = &program.layout;
        let (shape, mesh) = (program.shape(), layout.mesh);
        let experts = shape.experts();
        // Ranks of a pipeline position are numbered anew: expert-tensor fastest, then expert, then copies.
        let lane = rank.raw() % layout.per_position();
        let (tensor_index, holder) = (lane % mesh.expert_tensor, lane / mesh.expert_tensor);
        let (index, copy) = (holder % mesh.expert, holder / mesh.expert);
        let local = experts.count / mesh.expert;
        let copies = layout.expert_replicas();
        let sharded = layout.expert_shard() > 1;
        let replica = mesh.context * layout.tensor;
        // The norm adds up over all replicas, or over one, whichever its collectives say.
        let over_all = layout.data > 1
            && (layout.experts_span_replicas() || (layout.zero != ZeroStage::Zero0 && layout.shard() > 1));
        let scope = if over_all { lane } else { lane % replica };
        let workload = &program.workload;
        Self {
            count: size(experts.count),
            active: size(experts.active),
            local: size(local),
            first: size(index * local),
            ranks: size(mesh.expert),
            tensor: size(mesh.expert_tensor),
            tensor_index: size(tensor_index),
            ffn: size(experts.ffn / mesh.expert_tensor),
            shared_ffn: size(experts.shared_ffn / layout.tensor),
            mlp: experts.mlp,
            router: experts.router,
            copies: size(copies),
            copy: size(copy),
            sharded,
            counted: sharded || scope < mesh.expert * mesh.expert_tensor,
            balance: workload.recipe.balance_loss / f64::from(workload.global_batch),
        }
    }

    /// Ranks over which the state of experts is divided.
    pub(in crate::state) const fn shard(&self) -> usize {
        if self.sharded { self.copies } else { 1 }
    }

    /// Whether tokens leave their rank for experts.
    pub(in crate::state) const fn exchanges(&self) -> bool {
        self.ranks > 1 || self.tensor > 1
    }
}

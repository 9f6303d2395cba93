//! The flat program: one role per rank, for small worlds, for the slices of an executor, and for the property that
//! folding changes nothing.

use super::{Op, Peer, Program, RankSet, Role};
use crate::{Rank, RoleId};

/// One role per rank, in order of rank: role `r` is rank `r`. Instruction, buffer and group ids are kept.
///
/// # Panics
/// If a rank of `0..world` has no role, which no verified program has.
#[must_use]
pub fn unfold(program: &Program) -> Program {
    let roles = (0..program.world()).map(|rank| slice(program, Rank::new(rank))).collect();
    Program {
        model: program.model.clone(),
        workload: program.workload.clone(),
        layout: program.layout.clone(),
        chunks: program.chunks.clone(),
        groups: program.groups.clone(),
        roles,
        placement: program.placement.clone(),
    }
}

/// What one rank carries out: its role's list, with the same ids, in which the other end of a message is the role of
/// the unfolded program (so its number is the other rank's).
///
/// # Panics
/// If the rank has no role, or a message leaves the world, which no verified program has.
#[must_use]
pub fn slice(program: &Program, rank: Rank) -> Role {
    let role = program.role_of(rank).unwrap_or_else(|| panic!("rank {rank} has no role"));
    let own = |peer: Peer| {
        let other = i64::from(rank.raw()) + peer.shift;
        let other =
            u32::try_from(other).unwrap_or_else(|_| panic!("a message of {rank} leaves the world by {}", peer.shift));
        Peer { role: RoleId::new(other), ..peer }
    };
    program.roles[role.index()].relabelled(RankSet::run(rank.raw(), 1, 1), |op| match op {
        Op::Send { peer, message, bytes } => Op::Send { peer: own(peer), message, bytes },
        Op::Receive { peer, message, bytes } => Op::Receive { peer: own(peer), message, bytes },
        Op::Compute { .. } | Op::Collective { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => op,
    })
}

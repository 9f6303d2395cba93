//! Each unit of each chunk is passed once per microbatch: forward from the first, backward from the last.

use super::faults::Faults;
use crate::program::{Op, Pass, UnitRange};
use crate::{ChunkId, InstructionId, MicrobatchId, Role, RoleId};

/// How far one microbatch is through one chunk.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Units passed forward: `0..forward`.
    forward: u32,
    /// Units whose input gradients are done: `input..`.
    input: u32,
    /// Units whose weight gradients are done: `weight..`.
    weight: u32,
}

pub(super) fn check(faults: &mut Faults<'_>) {
    faults.section("passes");
    batch(faults);
    for role in 0..faults.program.roles.len() {
        check_role(faults, RoleId::at(role));
    }
}

fn steps(role: &Role) -> bool {
    role.instructions().iter().any(|instruction| instruction.op == Op::Optimizer)
}

/// The replicas' microbatches are the global batch, so that the loss is the mean over it.
fn batch(faults: &mut Faults<'_>) {
    let (layout, wanted) = (&faults.program.layout, u64::from(faults.program.workload.global_batch));
    let sequences = layout.sequences();
    if sequences != u128::from(wanted) && faults.program.roles.iter().any(steps) {
        let parts = if layout.shares.are_equal() {
            format!("{} x {} x {}", layout.data, layout.microbatch_size, layout.microbatches)
        } else {
            format!("{} x ({})", layout.microbatch_size, layout.shares)
        };
        faults.add(
            "workload.global_batch",
            format!("is {wanted}, but replicas x microbatch size x microbatches are {parts} = {sequences} sequences"),
        );
    }
}

/// Microbatches of each rank of a role; `None` if its ranks are of replicas with unequal shares.
fn share(faults: &mut Faults<'_>, id: RoleId) -> Option<u32> {
    let (layout, ranks) = (&faults.program.layout, &faults.program.roles[id.index()].ranks);
    let of = |rank| layout.share(layout.replica_of(rank));
    let (first, share) = (ranks.first(), of(ranks.first()));
    let other = if layout.shares.are_equal() { None } else { ranks.iter().find(|rank| of(*rank) != share) };
    let Some(other) = other else { return Some(share) };
    let message = format!(
        "rank {} has {share} microbatches and rank {} has {}, so they cannot share a role",
        first.raw(),
        other.raw(),
        of(other)
    );
    faults.add(id.to_string(), message);
    None
}

fn check_role(faults: &mut Faults<'_>, id: RoleId) {
    let program = faults.program;
    let role = &program.roles[id.index()];
    let Some(share) = share(faults, id) else { return };
    let microbatches = share as usize;
    // Where the progress of each chunk of this position begins in the table.
    let mut held = 0;
    let first: Vec<usize> = program
        .chunks
        .iter()
        .map(|chunk| {
            let at = held;
            held += if chunk.stage == role.stage { microbatches } else { 0 };
            at
        })
        .collect();
    let mut table = Vec::with_capacity(held);
    for chunk in program.chunks.iter().filter(|chunk| chunk.stage == role.stage) {
        let start = Progress { forward: 0, input: chunk.units(), weight: chunk.units() };
        table.resize(table.len() + microbatches, start);
    }
    for (index, instruction) in role.instructions().iter().enumerate() {
        if let Op::Compute { pass, chunk, units, microbatch } = instruction.op {
            let all = program.chunk(chunk).units();
            if microbatch.raw() >= share {
                let message = format!("its replicas have {share} microbatches, and {microbatch} is none of them");
                faults.order(id, InstructionId::at(index), message);
                continue;
            }
            let progress = &mut table[first[chunk.index()] + microbatch.index()];
            if let Err(message) = advance(progress, pass, units, all) {
                faults.order(id, InstructionId::at(index), message);
            }
        }
    }
    if !steps(role) {
        return;
    }
    for (chunk, one) in program.chunks.iter().enumerate().filter(|(_, one)| one.stage == role.stage) {
        for microbatch in 0..share {
            let Progress { forward, input, weight } = table[first[chunk] + microbatch as usize];
            let missing = match (forward == one.units(), input == 0, weight == 0) {
                (true, true, true) => continue,
                (false, _, _) => "forward pass",
                (true, false, _) => "backward pass",
                (true, true, false) => "weight gradients",
            };
            let (chunk, microbatch) = (ChunkId::at(chunk), MicrobatchId::new(microbatch));
            let last = InstructionId::at(role.instructions().len() - 1);
            faults.order(
                id,
                last,
                format!("the optimizer steps, but the {missing} of {chunk} {microbatch} is missing or incomplete"),
            );
        }
    }
}

/// Takes one instruction into account.
fn advance(progress: &mut Progress, pass: Pass, units: UnitRange, all: u32) -> Result<(), String> {
    let UnitRange { start, end } = units;
    match pass {
        Pass::Forward if start == progress.forward => {
            progress.forward = end;
            Ok(())
        }
        Pass::Forward if start < progress.forward => Err(format!("u{start} is passed forward twice")),
        Pass::Forward => Err(format!("u{} is not passed forward before it", progress.forward)),
        Pass::Recompute if progress.forward < end => Err("the forward pass does not come before it".to_owned()),
        Pass::Recompute => Ok(()),
        Pass::Backward | Pass::BackwardInput if progress.forward < all => {
            Err("the forward pass does not come before it".to_owned())
        }
        Pass::Backward | Pass::BackwardInput if end > progress.input => {
            Err(format!("u{} is passed backward twice", end - 1))
        }
        Pass::Backward | Pass::BackwardInput if end < progress.input => {
            Err(format!("u{} is not passed backward before it", progress.input - 1))
        }
        Pass::Backward if progress.weight != progress.input => {
            Err("weight gradients of later units are missing".to_owned())
        }
        Pass::Backward => {
            (progress.input, progress.weight) = (start, start);
            Ok(())
        }
        Pass::BackwardInput => {
            progress.input = start;
            Ok(())
        }
        Pass::BackwardWeight if start < progress.input => Err("input gradients do not come before it".to_owned()),
        Pass::BackwardWeight if end != progress.weight => Err(format!("weight gradients of u{} are not next", end - 1)),
        Pass::BackwardWeight => {
            progress.weight = start;
            Ok(())
        }
    }
}

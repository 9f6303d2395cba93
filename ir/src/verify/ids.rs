//! Every id of an instruction exists.

use super::faults::Faults;
use crate::program::{HostCopy, Message, Op, Payload, Peer};
use crate::{ChunkId, InstructionId, MicrobatchId, Program, Role, RoleId};

pub(super) fn check(faults: &mut Faults<'_>) {
    faults.section("names");
    let program = faults.program;
    for (role_index, role) in program.roles.iter().enumerate() {
        for (index, instruction) in role.instructions().iter().enumerate() {
            let id = InstructionId::at(index);
            let mut fault = |message: String| faults.at(RoleId::at(role_index), id, message);
            for wait in role.waits(instruction).iter().filter(|wait| **wait >= id) {
                fault(format!("waits for {wait}, which does not come before it"));
            }
            for (buffer, _) in role.accesses(instruction).iter().filter(|(b, _)| b.index() >= role.buffers.len()) {
                fault(format!("uses {buffer}, but the role has {} buffers", role.buffers.len()));
            }
            if let Some(message) = op_fault(program, role, instruction.op) {
                fault(message);
            }
        }
    }
}

fn op_fault(program: &Program, role: &Role, op: Op) -> Option<String> {
    match op {
        Op::Compute { chunk, units, microbatch, .. } => chunk_fault(program, chunk, microbatch).or_else(|| {
            let (held, all) = (program.chunk(chunk).stage, program.chunk(chunk).units());
            if held != role.stage {
                Some(format!("{chunk} is on position {}, this role on position {}", held.raw(), role.stage.raw()))
            } else if units.start >= units.end || units.end > all {
                Some(format!("units {}..{} are not a part of the {all} of {chunk}", units.start, units.end))
            } else {
                None
            }
        }),
        Op::Collective { group, payload, bytes, .. } => {
            if group.index() >= program.groups.len() {
                return Some(format!("{group} does not exist"));
            }
            if bytes.get() == 0 {
                return Some("moves no bytes".to_owned());
            }
            match payload {
                Payload::Activation { chunk, unit, microbatch, .. }
                | Payload::UnitParameters { chunk, unit, microbatch, .. }
                | Payload::UnitGradients { chunk, unit, microbatch, .. } => chunk_fault(program, chunk, microbatch)
                    .or_else(|| {
                        let all = program.chunk(chunk).units();
                        (unit >= all).then(|| format!("{chunk} has {all} units, no u{unit}"))
                    }),
                Payload::Gradients { chunk }
                | Payload::Parameters { chunk }
                | Payload::ExpertGradients { chunk }
                | Payload::ExpertParameters { chunk } => chunk_fault(program, chunk, MicrobatchId::new(0)),
                Payload::ReplicatedGradients | Payload::TiedGradients | Payload::GradientNorm => None,
            }
        }
        Op::Send { peer, message, bytes } | Op::Receive { peer, message, bytes } => {
            message_fault(program, peer, message).or_else(|| (bytes.get() == 0).then(|| "moves no bytes".to_owned()))
        }
        Op::HostCopy {
            what: HostCopy::Activations { chunk, microbatch } | HostCopy::Parameters { chunk, microbatch },
            bytes,
            ..
        } => {
            chunk_fault(program, chunk, microbatch).or_else(|| (bytes.get() == 0).then(|| "moves no bytes".to_owned()))
        }
        Op::HostCopy { what: HostCopy::OptimizerState, bytes, .. } => {
            (bytes.get() == 0).then(|| "moves no bytes".to_owned())
        }
        Op::GradientNorm | Op::Optimizer => None,
    }
}

fn chunk_fault(program: &Program, chunk: ChunkId, microbatch: MicrobatchId) -> Option<String> {
    if chunk.index() >= program.chunks.len() {
        Some(format!("{chunk} does not exist"))
    } else if microbatch.raw() >= program.layout.microbatches {
        Some(format!("{microbatch} does not exist"))
    } else {
        None
    }
}

fn message_fault(program: &Program, peer: Peer, message: Message) -> Option<String> {
    if peer.role.index() >= program.roles.len() {
        return Some(format!("{} does not exist", peer.role));
    }
    if message.edge.index() + 1 >= program.chunks.len() {
        return Some(format!("there is no chunk after {}", message.edge));
    }
    chunk_fault(program, message.edge, message.microbatch)
}

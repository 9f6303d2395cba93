//! Instructions in words, for people who ask why a run stopped.

use ir::program::{CollectiveKind, Direction, Op, Payload};
use ir::{InstructionId, Program};

/// An instruction in words.
pub(super) fn describe(program: &Program, role: usize, id: InstructionId) -> String {
    let what = match program.roles[role].instruction(id).op {
        Op::Compute { pass, chunk, microbatch, .. } => {
            format!("{} of microbatch {} through chunk {}", pass.name(), microbatch.raw(), chunk.raw())
        }
        Op::Collective { kind, payload, .. } => collective(kind, payload),
        Op::Send { peer, message, .. } => {
            format!(
                "sending {} of microbatch {} to a rank {:+} away",
                tensor(message.direction),
                message.microbatch.raw(),
                peer.shift
            )
        }
        Op::Receive { peer, message, .. } => {
            format!(
                "receiving {} of microbatch {} from a rank {:+} away",
                tensor(message.direction),
                message.microbatch.raw(),
                peer.shift
            )
        }
        Op::GradientNorm => "the gradient norm".to_owned(),
        Op::Optimizer => "the optimizer step".to_owned(),
        Op::HostCopy { .. } => "a copy to or from host memory".to_owned(),
    };
    format!("instruction {} ({what})", id.raw())
}

const fn tensor(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "the activation",
        Direction::Backward => "the gradient",
    }
}

fn collective(kind: CollectiveKind, payload: Payload) -> String {
    let of = match payload {
        Payload::Activation { chunk, unit, microbatch, .. } => {
            format!("activations at unit {unit} of chunk {}, microbatch {}", chunk.raw(), microbatch.raw())
        }
        Payload::Gradients { chunk } => format!("gradients of chunk {}", chunk.raw()),
        Payload::Parameters { chunk } => format!("parameters of chunk {}", chunk.raw()),
        Payload::ExpertGradients { chunk } => format!("gradients of the experts of chunk {}", chunk.raw()),
        Payload::ExpertParameters { chunk } => format!("parameters of the experts of chunk {}", chunk.raw()),
        Payload::UnitParameters { chunk, unit, .. } => format!("parameters of unit {unit} of chunk {}", chunk.raw()),
        Payload::UnitGradients { chunk, unit, .. } => format!("gradients of unit {unit} of chunk {}", chunk.raw()),
        Payload::ReplicatedGradients => "gradients of replicated parameters".to_owned(),
        Payload::TiedGradients => "gradients of the tied embedding".to_owned(),
        Payload::GradientNorm => "the gradient norm".to_owned(),
    };
    format!("{} of {of}", kind.name())
}

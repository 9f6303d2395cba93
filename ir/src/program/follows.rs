//! Which instruction a collective follows directly in its pass.

use super::{Instruction, Op, Pass, Payload, Role, UnitRange};
use crate::ChunkId;

impl Role {
    /// The compute instruction after which a collective of activations begins, if it directly follows one of its own pass:
    /// while the device still waits for the host to launch that instruction's kernels, it can carry out the collective.
    #[must_use]
    pub fn followed(&self, instruction: &Instruction) -> Option<(ChunkId, Pass, UnitRange)> {
        let Op::Collective { payload: Payload::Activation { chunk, microbatch, pass, .. }, .. } = instruction.op else {
            return None;
        };
        self.waits(instruction).iter().find_map(|wait| match self.instruction(*wait).op {
            Op::Compute { pass: of, chunk: on, units, microbatch: with } => {
                ((of, on, with) == (pass, chunk, microbatch)).then_some((on, of, units))
            }
            Op::Collective { .. }
            | Op::Send { .. }
            | Op::Receive { .. }
            | Op::GradientNorm
            | Op::Optimizer
            | Op::HostCopy { .. } => None,
        })
    }
}

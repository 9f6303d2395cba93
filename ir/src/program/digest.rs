//! A 64-bit digest that is the same on any machine and in any release.

use super::{HostCopy, Message, Op, Payload, Peer, Program, text};
use crate::Bytes;

/// FNV-1a over 64-bit words with a final mix (offset and prime: Fowler, Noll, Vo; mix: the 64-bit finaliser of MurmurHash3).
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Digest {
    /// The digest of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
    /// Takes in a number.
    pub const fn number(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
    /// Takes in several numbers.
    pub fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers.into_iter().for_each(|number| self.number(number));
    }
    /// Takes in a text and its length.
    pub fn text(&mut self, text: &str) {
        for word in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.number(u64::from_le_bytes(bytes));
        }
        self.number(text.len() as u64);
    }
    /// The digest of all that was taken in.
    #[must_use]
    pub const fn finish(self) -> u64 {
        let mut hash = self.0;
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ (hash >> 33)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

/// A digest of all parts of a program. The short parts are taken in as text, the instructions as numbers.
pub(super) fn of_program(program: &Program) -> u64 {
    let mut digest = Digest::new();
    digest.text(&text::header(program));
    program.chunks.iter().for_each(|chunk| digest.text(&text::ChunkWords(chunk).to_string()));
    digest.number(program.chunks.len() as u64);
    program.groups.iter().for_each(|group| digest.text(&text::GroupWords(group).to_string()));
    digest.number(program.groups.len() as u64);
    program.placement.iter().for_each(|device| digest.number(device.raw().into()));
    digest.number(program.placement.len() as u64);
    for role in &program.roles {
        digest.number(role.stage.raw().into());
        digest.text(&role.ranks.to_string());
        for buffer in &role.buffers {
            digest.numbers([buffer.kind as u64, buffer.bytes.get(), buffer.resident.into()]);
        }
        digest.number(role.buffers.len() as u64);
        for instruction in role.instructions() {
            op(&mut digest, instruction.op);
            let (waits, accesses) = (role.waits(instruction), role.accesses(instruction));
            digest.numbers([instruction.stream as u64, waits.len() as u64, accesses.len() as u64]);
            waits.iter().for_each(|wait| digest.number(wait.raw().into()));
            accesses.iter().for_each(|(buffer, access)| digest.numbers([buffer.raw().into(), *access as u64]));
        }
        digest.number(role.instructions().len() as u64);
    }
    digest.number(program.roles.len() as u64);
    digest.finish()
}

/// The first number tells the operations apart.
fn op(digest: &mut Digest, op: Op) {
    let message = |digest: &mut Digest, name: u64, peer: Peer, message: Message, bytes: Bytes| {
        let Message { edge, direction, microbatch } = message;
        digest.numbers([name, peer.role.raw().into(), peer.shift.cast_unsigned(), edge.raw().into()]);
        digest.numbers([direction as u64, microbatch.raw().into(), bytes.get()]);
    };
    match op {
        Op::Compute { pass, chunk, units, microbatch } => {
            digest.numbers([0, pass as u64, chunk.raw().into(), units.start.into(), units.end.into()]);
            digest.number(microbatch.raw().into());
        }
        Op::Collective { kind, group, payload: what, bytes } => {
            digest.numbers([1, kind as u64, group.raw().into(), bytes.get()]);
            payload(digest, what);
        }
        Op::Send { peer, message: what, bytes } => message(digest, 2, peer, what, bytes),
        Op::Receive { peer, message: what, bytes } => message(digest, 3, peer, what, bytes),
        Op::GradientNorm => digest.number(4),
        Op::Optimizer => digest.number(5),
        Op::HostCopy { what, out, bytes } => {
            digest.numbers([6, out.into(), bytes.get()]);
            match what {
                HostCopy::Activations { chunk, microbatch } => {
                    digest.numbers([0, chunk.raw().into(), microbatch.raw().into()]);
                }
                HostCopy::OptimizerState => digest.number(1),
                HostCopy::Parameters { chunk, microbatch } => {
                    digest.numbers([2, chunk.raw().into(), microbatch.raw().into()]);
                }
            }
        }
    }
}

fn payload(digest: &mut Digest, payload: Payload) {
    match payload {
        Payload::Activation { tensor, chunk, unit, microbatch, pass } => {
            digest.numbers([0, tensor as u64, chunk.raw().into(), unit.into(), microbatch.raw().into(), pass as u64]);
        }
        Payload::Gradients { chunk } => digest.numbers([1, chunk.raw().into()]),
        Payload::Parameters { chunk } => digest.numbers([2, chunk.raw().into()]),
        Payload::ReplicatedGradients => digest.number(3),
        Payload::TiedGradients => digest.number(4),
        Payload::GradientNorm => digest.number(5),
        Payload::ExpertGradients { chunk } => digest.numbers([6, chunk.raw().into()]),
        Payload::ExpertParameters { chunk } => digest.numbers([7, chunk.raw().into()]),
        Payload::UnitParameters { chunk, unit, experts, microbatch, pass } => {
            digest.numbers([8, chunk.raw().into(), unit.into(), experts.into(), microbatch.raw().into(), pass as u64]);
        }
        Payload::UnitGradients { chunk, unit, experts, microbatch } => {
            digest.numbers([9, chunk.raw().into(), unit.into(), experts.into(), microbatch.raw().into()]);
        }
    }
}

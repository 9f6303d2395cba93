//! Each message has one send and one receive, alike on every rank of both roles.

use rustc_hash::FxHashMap;

use super::Numbering;
use super::faults::Faults;
use crate::program::{Direction, Message, Op};
use crate::{Bytes, ChunkId, InstructionId, Rank, RoleId};

/// A message between roles, seen from its sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    sender: RoleId,
    receiver: RoleId,
    shift: i64,
    message: Message,
}

#[derive(Debug)]
struct Sent {
    key: Key,
    instruction: InstructionId,
    bytes: Bytes,
    received: Option<InstructionId>,
}

/// Joins the nodes of both ends; false if something does not match.
pub(super) fn check(faults: &mut Faults<'_>, owners: &[u32], numbering: &Numbering, nodes: &mut [u32]) -> bool {
    faults.section("messages");
    let program = faults.program;
    let mut ways: FxHashMap<(RoleId, RoleId, i64), bool> = FxHashMap::default();
    let mut sent: Vec<Sent> = Vec::new();
    let mut by_key: FxHashMap<Key, u32> = FxHashMap::default();
    let mut sound = true;
    for_each_end(faults, |faults, key, bytes, sending, role, instruction| {
        if let Some(fault) = place_fault(faults, key) {
            sound = false;
            faults.order(role, instruction, fault);
        }
        let way = *ways.entry((key.sender, key.receiver, key.shift)).or_insert_with(|| {
            let fault = way_fault(program, owners, key);
            if let Some(fault) = &fault {
                faults.at(role, instruction, fault.clone());
            }
            fault.is_none()
        });
        sound &= way;
        if !sending {
            return;
        }
        let next = u32::try_from(sent.len()).expect("counted in u32");
        if let Some(other) = by_key.insert(key, next) {
            sound = false;
            faults.order(role, instruction, format!("{} sends the same message", sent[other as usize].instruction));
        }
        sent.push(Sent { key, instruction, bytes, received: None });
    });
    for_each_end(faults, |faults, key, bytes, sending, role, instruction| {
        if sending {
            return;
        }
        let Some(one) = by_key.get(&key).map(|index| &mut sent[*index as usize]) else {
            sound = false;
            faults.order(role, instruction, format!("{} sends no such message", key.sender));
            return;
        };
        if let Some(other) = one.received {
            sound = false;
            faults.order(role, instruction, format!("{other} receives the same message"));
        } else if one.bytes != bytes {
            sound = false;
            let message = format!(
                "receives {} bytes, but {} {} sends {}",
                bytes.get(),
                key.sender,
                one.instruction,
                one.bytes.get()
            );
            faults.at(role, instruction, message);
        }
        one.received = Some(instruction);
        let (from, to) = (
            numbering.number(key.sender.index(), one.instruction.index()),
            numbering.number(role.index(), instruction.index()),
        );
        nodes[to as usize] = nodes[from as usize];
    });
    for one in sent.iter().filter(|one| one.received.is_none()) {
        sound = false;
        faults.order(one.key.sender, one.instruction, format!("{} receives no such message", one.key.receiver));
    }
    sound
}

fn for_each_end<'a>(
    faults: &mut Faults<'a>,
    mut visit: impl FnMut(&mut Faults<'a>, Key, Bytes, bool, RoleId, InstructionId),
) {
    for (role_index, role) in faults.program.roles.iter().enumerate() {
        let own = RoleId::at(role_index);
        for (index, instruction) in role.instructions().iter().enumerate() {
            let id = InstructionId::at(index);
            match instruction.op {
                Op::Send { peer, message, bytes } => {
                    let key = Key { sender: own, receiver: peer.role, shift: peer.shift, message };
                    visit(faults, key, bytes, true, own, id);
                }
                Op::Receive { peer, message, bytes } => {
                    // `i64::MIN` has no negative; it leaves every world either way.
                    let key = Key { sender: peer.role, receiver: own, shift: peer.shift.saturating_neg(), message };
                    visit(faults, key, bytes, false, own, id);
                }
                Op::Compute { .. } | Op::Collective { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => {
                }
            }
        }
    }
}

/// Why the sender's ranks, moved by the shift, are not the receiver's.
fn way_fault(program: &crate::Program, owners: &[u32], key: Key) -> Option<String> {
    let (sender, receiver) = (&program.roles[key.sender.index()], &program.roles[key.receiver.index()]);
    let target = |rank: Rank| {
        let to = i64::from(rank.raw()).checked_add(key.shift)?;
        owners.get(usize::try_from(to).ok()?).copied()
    };
    let stray = sender.ranks.iter().find(|rank| target(*rank) != Some(key.receiver.raw()));
    if let Some(rank) = stray {
        let (rank, sender, receiver) = (rank.raw(), key.sender, key.receiver);
        let to = i64::from(rank).saturating_add(key.shift);
        return Some(format!("rank {rank} of {sender} would send to rank {to}, which is not of {receiver}"));
    }
    (sender.ranks.len() != receiver.ranks.len()).then(|| {
        let (sent, received) = (sender.ranks.len(), receiver.ranks.len());
        format!("{sent} ranks of {} cannot send to {received} ranks of {}", key.sender, key.receiver)
    })
}

/// Why the two positions do not hold the chunks on both sides of the edge.
fn place_fault(faults: &Faults<'_>, key: Key) -> Option<String> {
    let program = faults.program;
    let edge = key.message.edge;
    let (before, after) = (edge, ChunkId::new(edge.raw() + 1));
    let (from, to) = match key.message.direction {
        Direction::Forward => (before, after),
        Direction::Backward => (after, before),
    };
    let wrong = |role: RoleId, chunk: ChunkId| program.roles[role.index()].stage != program.chunk(chunk).stage;
    [(key.sender, from), (key.receiver, to)]
        .into_iter()
        .find(|(role, chunk)| wrong(*role, *chunk))
        .map(|(role, chunk)| format!("{role} does not hold {chunk}, which this message concerns"))
}

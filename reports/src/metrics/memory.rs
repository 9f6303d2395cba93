//! Memory: a walk over a program's allocations along a lane's spans.

use ir::program::{Access, BufferKind};
use ir::{Bytes, InstructionId, Lane, Program, Rank};
use serde::Serialize;

use crate::{show, words};

/// One allocation or release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryChange {
    /// When, in nanoseconds of the timeline.
    pub time_ns: u64,
    /// What the buffer holds.
    pub kind: BufferKind,
    /// Its size.
    pub bytes: Bytes,
    /// Taken (true) or given back.
    pub taken: bool,
    /// By which instruction.
    pub instruction: InstructionId,
}

/// The most that a stage holds at once.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MemoryPeak {
    /// The rank that holds it.
    pub rank: Rank,
    /// Peak of the sum.
    pub peak_bytes: u64,
    /// Each part at that moment, largest first; parts of no size are left out.
    pub parts: Vec<MemoryPart>,
    /// When, in nanoseconds of the timeline.
    pub at_ns: u64,
    /// The moment in words: the instruction that reaches it.
    pub moment: String,
    /// Memory of the device, if it was given.
    pub capacity_bytes: Option<u64>,
    /// The most that the backend itself counted on this lane, if it counted.
    pub counted_peak_bytes: Option<u64>,
}

/// One part of a peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryPart {
    /// Its name.
    pub kind: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// Every allocation (when its instruction starts) and release (when it ends) of a lane, in time order; at one instant
/// what ends gives back before what starts takes.
#[must_use]
pub fn memory_changes(program: &Program, lane: &Lane) -> Vec<MemoryChange> {
    let role = &program.roles[lane.role.index()];
    let mut changes: Vec<(u64, u8, MemoryChange)> = Vec::new();
    for (index, instruction) in role.instructions().iter().enumerate() {
        let span = lane.spans[index];
        let (start, end) = (span.start.nanoseconds(), span.end.nanoseconds());
        for (id, access) in role.accesses(instruction) {
            let buffer = &role.buffers[id.index()];
            // An instruction of no length gives back what it just took, so its releases come last.
            let (time_ns, order, taken) = match access {
                Access::Use => continue,
                Access::Allocate => (start, 1, true),
                Access::Free => (end, if start == end { 2 } else { 0 }, false),
            };
            let change = MemoryChange {
                time_ns,
                kind: buffer.kind,
                bytes: buffer.bytes,
                taken,
                instruction: InstructionId::at(index),
            };
            changes.push((time_ns, order, change));
        }
    }
    changes.sort_by_key(|(time, order, change)| (*time, *order, change.instruction));
    changes.into_iter().map(|(_, _, change)| change).collect()
}

/// What is resident on a lane, by position in [`BufferKind::ALL`].
pub(crate) fn resident(program: &Program, lane: &Lane) -> [u64; BufferKind::ALL.len()] {
    let mut held = [0; BufferKind::ALL.len()];
    for buffer in program.roles[lane.role.index()].buffers.iter().filter(|buffer| buffer.resident) {
        held[buffer.kind.index()] += buffer.bytes.get();
    }
    held
}

/// Applies a change to what is held.
///
/// # Panics
/// If more is given back than was taken, which a verified program excludes on a sound timeline.
pub(crate) fn apply(held: &mut [u64; BufferKind::ALL.len()], change: &MemoryChange) {
    let part = &mut held[change.kind.index()];
    *part = if change.taken {
        *part + change.bytes.get()
    } else {
        part.checked_sub(change.bytes.get()).unwrap_or_else(|| {
            panic!("{} gives back {} of {} that nobody took", change.instruction, change.bytes, change.kind.name())
        })
    };
}

/// The peak of a lane, from the program's buffers and the lane's spans.
#[must_use]
pub fn memory_peak(program: &Program, lane: &Lane, capacity: Option<Bytes>) -> MemoryPeak {
    let mut held = resident(program, lane);
    let mut most = (held.iter().sum::<u64>(), held, None::<MemoryChange>);
    for change in memory_changes(program, lane) {
        apply(&mut held, &change);
        let sum = held.iter().sum();
        if sum > most.0 {
            most = (sum, held, Some(change));
        }
    }
    let (peak_bytes, held, reached) = most;
    let mut parts: Vec<MemoryPart> = BufferKind::ALL
        .iter()
        .zip(held)
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(kind, bytes)| MemoryPart { kind: kind.name(), bytes })
        .collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let moment = reached.map_or_else(
        || "all through the iteration".to_owned(),
        |change| {
            let time = ir::SimTime::from_nanoseconds(change.time_ns);
            format!("{} starts, at {}", words::instruction(program, lane.role, change.instruction), show::time(time))
        },
    );
    MemoryPeak {
        rank: lane.rank,
        peak_bytes,
        parts,
        at_ns: reached.map_or(0, |change| change.time_ns),
        moment,
        capacity_bytes: capacity.map(Bytes::get),
        counted_peak_bytes: lane.memory.iter().map(|(_, bytes)| bytes.get()).max(),
    }
}

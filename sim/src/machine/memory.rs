//! What each node takes when it starts and gives back when it ends, added up once.

use ir::program::Access;
use ir::{Bytes, Program, Role};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Memory {
    /// Bytes that each node takes.
    pub(super) taken: Vec<u64>,
    /// Bytes that each node gives back.
    pub(super) given: Vec<u64>,
    /// What a rank of each role holds before and after.
    pub(super) resident: Vec<Bytes>,
    /// How often the memory of each role changes.
    pub(super) changes: Vec<usize>,
}

impl Memory {
    /// Of a verified program.
    pub(super) fn new(program: &Program) -> Self {
        let mut memory = Self { taken: Vec::new(), given: Vec::new(), resident: Vec::new(), changes: Vec::new() };
        for role in &program.roles {
            let first = memory.taken.len();
            for instruction in role.instructions() {
                let accesses = role.accesses(instruction);
                memory.taken.push(sum(role, accesses, Access::Allocate));
                memory.given.push(sum(role, accesses, Access::Free));
            }
            memory.resident.push(role.buffers.iter().filter(|buffer| buffer.resident).map(|buffer| buffer.bytes).sum());
            let both = memory.taken[first..].iter().chain(&memory.given[first..]);
            memory.changes.push(both.filter(|bytes| **bytes > 0).count());
        }
        memory
    }
}

fn sum(role: &Role, accesses: &[(ir::BufferId, Access)], wanted: Access) -> u64 {
    let own = accesses.iter().filter(|(_, access)| *access == wanted);
    own.map(|(buffer, _)| role.buffers[buffer.index()].bytes).sum::<Bytes>().get()
}

//! Buffers live once: allocated, used, freed, in the order of the role's list.

use super::faults::Faults;
use crate::program::Access;
use crate::{BufferId, InstructionId, RoleId};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Resident,
    Future,
    Live,
    Past,
}

pub(super) fn check(faults: &mut Faults<'_>) {
    faults.section("buffers");
    let program = faults.program;
    for (role_index, role) in program.roles.iter().enumerate() {
        let id = RoleId::at(role_index);
        let mut lives: Vec<Life> =
            role.buffers.iter().map(|buffer| if buffer.resident { Life::Resident } else { Life::Future }).collect();
        for (index, instruction) in role.instructions().iter().enumerate() {
            let accesses = role.accesses(instruction);
            // Allocation happens at the start and freeing at the end, in whatever order they are written.
            for moment in [Access::Allocate, Access::Use, Access::Free] {
                for (buffer, _) in accesses.iter().filter(|(_, access)| *access == moment) {
                    if let Err(fault) = step(&mut lives[buffer.index()], moment) {
                        faults.at(id, InstructionId::at(index), format!("{} {buffer}, {fault}", verb(moment)));
                    }
                }
            }
        }
        for (index, life) in lives.iter().enumerate() {
            let (name, kind) = (BufferId::at(index), role.buffers[index].kind.name());
            match life {
                Life::Live => faults.add(id.to_string(), format!("{name} ({kind}) is never freed")),
                Life::Future => faults.add(id.to_string(), format!("{name} ({kind}) is never allocated")),
                Life::Resident | Life::Past => {}
            }
        }
    }
}

const fn verb(access: Access) -> &'static str {
    match access {
        Access::Allocate => "allocates",
        Access::Use => "uses",
        Access::Free => "frees",
    }
}

fn step(life: &mut Life, access: Access) -> Result<(), &'static str> {
    match (*life, access) {
        (Life::Resident, Access::Use) | (Life::Live, Access::Use) => Ok(()),
        (Life::Resident, Access::Allocate | Access::Free) => Err("which is resident"),
        (Life::Future, Access::Allocate) => {
            *life = Life::Live;
            Ok(())
        }
        (Life::Live, Access::Free) => {
            *life = Life::Past;
            Ok(())
        }
        (Life::Future, Access::Use | Access::Free) => Err("which is not allocated yet"),
        (Life::Live, Access::Allocate) => Err("which is allocated already"),
        (Life::Past, Access::Allocate) => Err("which was allocated and freed before"),
        (Life::Past, Access::Use) => Err("which is freed already"),
        (Life::Past, Access::Free) => Err("which is freed already, a second time"),
    }
}

//! The only way to a [`VerifiedProgram`].
//!
//! What is proved, over roles and so for every rank:
//!
//! * every rank has one role and one device; the chunks are the model, in order;
//! * every id in an instruction exists, and waits look back;
//! * each message has one send and one receive, of equal size, on every rank of both roles;
//! * all members of each group instance issue the same collectives in the same order, and all instances that hold
//!   ranks of one role are made of the same roles: one rank per role stands for all;
//! * no circle of waits: the program is carried out once, without times;
//! * buffers are allocated before they are used and freed once, after their last use;
//! * no unit is passed twice or out of order, and a program that steps the optimizer has passed all of them.

mod buffers;
mod dry_run;
mod faults;
mod frame;
mod groups;
mod ids;
mod messages;
mod passes;
mod picture;
#[cfg(test)]
mod tests;

use crate::{InstructionId, Problem, Program, RoleId};
use faults::Faults;

/// A program that [`VerifiedProgram::new`] found sound.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifiedProgram {
    program: Program,
}

impl VerifiedProgram {
    /// Verifies. Takes time and memory linear in instructions and ranks.
    ///
    /// # Errors
    /// The faults found, each with the role and the instruction concerned; of one kind, the first ones and how many
    /// more. Faults of order end with the schedule of the program in which the guilty pass is marked. Checks that
    /// need sound ids are made only when the ids are sound.
    pub fn new(program: Program) -> Result<Self, Vec<Problem>> {
        let problems = problems(&program);
        if problems.is_empty() { Ok(Self { program }) } else { Err(problems) }
    }
}

impl std::ops::Deref for VerifiedProgram {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

fn problems(program: &Program) -> Vec<Problem> {
    let mut faults = Faults::new(program);
    let Some(owners) = frame::check(&mut faults) else { return faults.finish() };
    let numbering = Numbering::of(program);
    let instances = groups::instances(&mut faults);
    if !faults.is_empty() {
        return faults.finish();
    }
    ids::check(&mut faults);
    if !faults.is_empty() {
        return faults.finish();
    }
    buffers::check(&mut faults);
    passes::check(&mut faults);
    // Instructions that happen together share one node: the number of the first of them.
    let mut nodes: Vec<u32> = (0..numbering.total).collect();
    let matched = messages::check(&mut faults, &owners, &numbering, &mut nodes)
        & groups::check(&mut faults, &owners, &instances, &numbering, &mut nodes);
    if matched {
        dry_run::check(&mut faults, &numbering, &nodes);
    }
    faults.finish()
}

/// Numbers of all instructions, role by role.
#[derive(Debug)]
struct Numbering {
    first: Vec<u32>,
    total: u32,
}

impl Numbering {
    fn of(program: &Program) -> Self {
        let mut first = Vec::with_capacity(program.roles.len());
        let mut total = 0u32;
        for role in &program.roles {
            first.push(total);
            let length = u32::try_from(role.instructions().len()).expect("a list of fewer than 2^32 instructions");
            total = total.checked_add(length).expect("a program of fewer than 2^32 instructions");
        }
        Self { first, total }
    }
    fn number(&self, role: usize, instruction: usize) -> u32 {
        self.first[role] + u32::try_from(instruction).expect("counted in u32")
    }
    fn place(&self, number: u32) -> (RoleId, InstructionId) {
        let role = self.first.partition_point(|first| *first <= number) - 1;
        (RoleId::at(role), InstructionId::new(number - self.first[role]))
    }
}

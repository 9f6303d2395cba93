//! Collects faults: the first of each kind in full, the rest counted.

use super::picture;
use crate::{InstructionId, Problem, Program, RoleId};

/// Faults of one check that are told in full.
const SHOWN: usize = 16;
/// Of these, faults shown with the schedule.
const PICTURED: usize = 3;

#[derive(Debug)]
pub(super) struct Faults<'a> {
    pub(super) program: &'a Program,
    problems: Vec<Problem>,
    check: &'static str,
    in_check: usize,
}

impl<'a> Faults<'a> {
    pub(super) const fn new(program: &'a Program) -> Self {
        Self { program, problems: Vec::new(), check: "", in_check: 0 }
    }
    pub(super) const fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }
    /// Begins another check.
    pub(super) fn section(&mut self, check: &'static str) {
        self.close();
        self.check = check;
    }
    fn close(&mut self) {
        if self.in_check > SHOWN {
            let message = format!("there are {} more faults of {}", self.in_check - SHOWN, self.check);
            self.problems.push(Problem::new("program", message));
        }
        self.in_check = 0;
    }
    pub(super) fn finish(mut self) -> Vec<Problem> {
        self.close();
        self.problems
    }
    fn push(&mut self, problem: impl FnOnce() -> Problem) {
        self.in_check += 1;
        if self.in_check <= SHOWN {
            self.problems.push(problem());
        }
    }
    /// A fault of the program as a whole or of a part that is no instruction.
    pub(super) fn add(&mut self, subject: impl Into<String>, message: impl Into<String>) {
        self.push(|| Problem::new(subject, message));
    }
    /// A fault of an instruction.
    pub(super) fn at(&mut self, role: RoleId, instruction: InstructionId, message: impl Into<String>) {
        let program = self.program;
        self.push(|| Problem::new(subject(program, role, instruction), message));
    }
    /// A fault of order, with the schedule.
    pub(super) fn order(&mut self, role: RoleId, instruction: InstructionId, message: impl std::fmt::Display) {
        let program = self.program;
        let pictured = self.in_check < PICTURED;
        self.push(|| {
            let text = if pictured {
                format!("{message}:\n{}\n", picture::of(program, role, instruction))
            } else {
                message.to_string()
            };
            Problem::new(subject(program, role, instruction), text)
        });
    }
}

/// `role1 i12 "compute forward c0 u0..49 m3"`.
pub(super) fn subject(program: &Program, role: RoleId, instruction: InstructionId) -> String {
    format!("{role} {instruction} \"{}\"", program.roles[role.index()].instruction(instruction).op)
}

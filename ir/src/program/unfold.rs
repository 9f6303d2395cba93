//! The flat program: one role per rank.
use crate::Program;
/// One role per rank; instruction ids are kept.
#[must_use]
pub fn unfold(program: &Program) -> Program {
    program.clone()
}

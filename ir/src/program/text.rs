//! The text form of a program.
use crate::Program;
/// Prints a program.
#[must_use]
pub fn print(_program: &Program) -> String {
    String::new()
}

//! DeepSpeed's configuration (JSON), in and out, and that of GPT-NeoX, which adds sizes of the model to it.
//!
//! Strict: a key is read, or known to change neither what is trained nor how long it takes, or refused by name. What is
//! left out has DeepSpeed's default, which the report names. The model is not in the file: the program around it has it.

mod names;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::{Run, read};
pub use write::config;

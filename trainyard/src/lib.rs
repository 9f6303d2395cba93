//! Trainyard as a library.
pub mod catalog;
mod error;
mod read;
pub mod scenario;
pub mod source;
pub mod words;

pub use error::{Error, InputError};

//! What is trained on: bytes of a text, as samples whose order does not depend on how training is divided.

mod corpus;
mod dataset;
mod position;

pub use corpus::{generate, unigram_entropy};
pub use dataset::Dataset;
pub use position::DataPosition;

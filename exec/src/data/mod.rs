//! What is trained on: tokens of documents, as samples whose order does not depend on how training is divided.
//!
//! | module | what it knows |
//! |---|---|
//! | `text` | tokens of documents, compact |
//! | `packing` | which documents stand in which sequence |
//! | `order` | a permutation of its own for each epoch |
//! | `dataset` | all of them: the samples at any place of a training |
//! | `position` | where a run stands in that order |
//! | `loader` | a thread that makes batches ahead of their use |
//! | `corpus` | a text of the project's own |
//!
//! Reading files and making tokens of them is the caller's: this sees no file.

mod batch;
mod corpus;
mod dataset;
mod loader;
mod order;
mod packing;
mod position;
mod text;

pub use batch::Batch;
pub use corpus::{generate, unigram_entropy};
pub use dataset::Dataset;
pub(crate) use loader::Loader;
pub use position::DataPosition;
pub use text::{BYTES, Packing, Text, TextBuilder};

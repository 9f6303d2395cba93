//! Checkpoints: the state of training in a folder, whole or not at all.
//!
//! | module | what it knows |
//! |---|---|
//! | `manifest` | what a checkpoint is of, which files it has, and how to tell that they are whole |
//! | `shard` | what one rank writes: plain safetensors |
//! | `store` | the folder: names, renaming, the newest that is whole, how many stay |
//! | `saver` | a rank's thread that writes while the rank goes on |
//!
//! # The form
//!
//! ```text
//! checkpoints/
//!   iteration-00000120/            the state after 120 iterations
//!     rank-0.safetensors           what rank 0 writes: every element of the state is in one file of all, once
//!     rank-1.safetensors
//!     checkpoint.json              what it is of, bytes and checksum of each file; written last
//!   .iteration-00000140.partial/   one that is being written, or was when the run ended
//! ```
//!
//! A file of a rank is read by any safetensors library. A weight has its own name ([`crate::state::weights`] lists them), a
//! moment of AdamW that name behind `optimizer.first_moment.` or `optimizer.second_moment.`; all are FP32, the master weights
//! where the model's are of half precision. A tensor of the file is what the rank has of a tensor of the model: the metadata
//! entry `trainyard` (JSON) says of each the whole shape, the slice by dimension, and `first`, where in the slice, flattened
//! row by row, it begins. Where optimizer state is divided over replicas a part ends anywhere in a slice and has one dimension.
//!
//! So a checkpoint says nothing that depends on how the model was divided, and any plan goes on from it.
//!
//! # Whole or not at all
//!
//! Files are written under a hidden name, brought to the disk (`fsync`), and the folder gets its name last. Before a checkpoint is
//! used, all of its bytes are read and held against the checksums (CRC-32: what a disk, a copy or an editor changed is found; who
//! wants to deceive and writes the sums again is not). What is torn, changed, of another model, of another order of samples or of
//! another version is refused by name, and the one before it is used.
//!
//! **The only files of `exec` beside the cache of device code**, in the folder that it is given.

mod manifest;
mod saver;
mod shard;
mod store;
#[cfg(test)]
mod tests;

pub use manifest::{Manifest, SCHEMA_VERSION, ShardFile};
pub use store::{Checkpoints, Found, Refused, Search};

pub(crate) use saver::Saver;
pub(crate) use shard::Shard;
pub(crate) use store::load;

/// What a rank wrote: nothing if others write all that it holds.
pub(crate) type Written = Result<Option<ShardFile>, String>;

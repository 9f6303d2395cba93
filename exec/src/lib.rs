//! Real training, on the CPU or on GPUs: the machine that carries out a program with ranks and numbers instead of
//! predictions.
//!
//! | module | what it is |
//! |---|---|
//! | [`kernels`] | the arithmetic: pure functions over slices, forward and both gradients apart |
//! | [`state`] | one rank: weights, activations, gradients, and what every instruction does to them |
//! | [`runtime`] | threads or processes that carry out a program on such ranks; emulated devices and links; [`CpuBackend`] |
//! | [`checkpoint`] | the state of training in a folder: written beside training, read under any other division |
//! | [`data`] | tokens of documents, and samples of them in an order that no division changes |
//! | [`device`] | where arithmetic happens: buffers, streams, events and operations as data; the CPU as such a device |
//! | `cuda` | NVIDIA GPUs as such devices, and groups of them (feature `cuda`, on by default; needs no CUDA to build) |
//! | [`measure`](mod@measure) | what this machine takes for each of the above: the input of a calibration |
//!
//! **Deliberately ignorant of** schedules, prices and predictions: it interprets a verified program as the simulator does,
//! knows neither why the program is what it is nor how long anything should take, and reports what happened as the same
//! [`ir::Timeline`]. It prints nothing, and touches no file but checkpoints and the cache of device code, in the folders
//! that it is given.
//!
//! The same program gives the same bits in every run on one machine: every sum has a fixed order, and times decide nothing.
//!
//! ```
//! use trainyard_exec::data::{Dataset, generate, unigram_entropy};
//!
//! let text = generate(0, 10_000);
//! assert!(unigram_entropy(&text) > 2.5);
//! let data = Dataset::new(text, 64, 0)?;
//! let batch = data.batch(3, 1);
//! assert_eq!(batch.tokens[1..], batch.targets[..63]);
//! # Ok::<(), ir::Problem>(())
//! ```
//!
//! Read next: [`runtime`] for what the measured spans mean.

pub mod checkpoint;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod data;
pub mod device;
pub mod kernels;
pub mod measure;
mod parcels;
pub mod runtime;
pub mod state;

pub use measure::{MeasureOptions, measure};
pub use runtime::processes::{self, Processes};
pub use runtime::{
    CpuBackend, CpuOptions, Fault, FaultKind, Loss, Recovery, Snapshot, Started, emulates_links, oversubscribed,
    slowdowns,
};
pub use state::Weights;

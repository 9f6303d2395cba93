//! NVIDIA GPUs: a [`Device`](crate::device::Device) over CUDA's driver, and a communicator over NCCL.
//!
//! Nothing of CUDA is needed to build this, and nothing is looked for before it is asked for: [`probe`] says which libraries
//! are there and which GPUs, [`CudaDevice::open`] uses them, [`Communicator`] joins GPUs. The kernels are
//! those of `exec/kernels`, compiled for the GPU at hand by NVRTC and kept as CUBINs.
//!
//! | part | what it does |
//! |---|---|
//! | `probe` | which libraries and GPUs there are, and what to do about those that are not |
//! | `source`, `compiler` | sources, the ways in which each is built, and the cache of what was built |
//! | `launch` | an operation as launches: names, grids, arguments; pure, without a device |
//! | `device`, `memory`, `blas` | streams, events, buffers, page-locked memory; matrix products |
//! | `gpus` | the GPUs of a machine for the ranks of a program |
//! | `nccl`, `communicator`, `links` | the functions of NCCL by name; groups of ranks, collectives, abort; the groups of a program |
//!
//! # How it is tested without a GPU
//!
//! The same sources are compiled for a CPU through `exec/kernels/shim`, where threads of a block are fibers; behind the same
//! header stands a driver that runs them, as late and in as adverse an order as its streams and events allow. The whole
//! host code runs on it unchanged, and every operation is held against the CPU's kernels. NVRTC and `ptxas` show that the
//! sources are right CUDA and spill no registers. What this cannot show is speed, and whatever differs on real hardware.
//!
//! # Who exchanges through NCCL
//!
//! Ranks with a GPU each, threads or processes: their exchanges are work of streams ([`Links`](crate::device::Links)). NCCL takes
//! no two ranks on one GPU, so ranks that share one exchange through host memory, as do all where there is no NCCL. CUDA graphs
//! and FP8 are absent.

mod blas;
mod communicator;
mod compiler;
mod device;
mod gpus;
mod launch;
mod links;
mod memory;
mod nccl;
mod probe;
mod source;
#[cfg(test)]
mod tests;

pub use communicator::{Communicator, Reduction, UniqueId};
pub use device::{CudaDevice, CudaOptions};
pub use gpus::Gpus;
pub use probe::{Gpu, Library, Probe, State, probe};

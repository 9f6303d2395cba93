//! Threads or processes that carry out a program: ranks, where they meet, and the devices and links that are emulated.
//!
//! | module | what it knows |
//! |---|---|
//! | `script` | a program, prepared: stream queues of each rank, both ends of each message, all members of each collective |
//! | `rank` | one rank's event loop over its streams |
//! | `exchange` | the moments and data of every transaction, under one lock |
//! | `network` | flows over emulated links, max-min fair, in virtual time |
//! | `reduce` | sums in a fixed order |
//! | `emulation` | which devices and links are emulated |
//! | `crew` | the threads: start, iterate, fail, stop |
//! | `checkpointing` | when ranks write their state, and from what a training goes on |
//! | `stragglers` | ranks that work for longer than their like |
//! | `recovery` | processes that are started again when a rank is lost |
//! | `meeting` | what a rank asks of whatever carries its messages and collectives |
//! | [`processes`] | ranks that are processes: started, joined, watched, ended |
//! | `backend` | all of it behind [`ir::Backend`] |
//!
//! # Streams on a CPU
//!
//! A rank is one thread, so its streams overlap where they wait and not where they work: time on an emulated link
//! passes while the rank computes; a copy, or a sum in shared memory, is made between two compute instructions.
//! Nothing spins: a rank that has nothing to do sleeps until another rank, a link or its own emulated device has
//! something for it.
//!
//! # What the spans mean
//!
//! * A compute instruction lasts its wall time, on an emulated device at least `slowdown` times its thread-CPU time.
//!   The slowdown applies to compute instructions, the gradient norm and the optimizer, not to copies and sums.
//! * A message or collective inside a domain starts when all ends are there and the thread of the rank that copies the
//!   data out is free, and ends when that rank has its data. Its copies and sums are CPU time of the ranks.
//! * On an emulated link it starts when all ends are there and lasts exactly as long as the link says; the copies are
//!   made meanwhile if the rank has nothing else to do, and otherwise lie between two spans of its compute stream.
//! * Attention whose keys and values go round the ranks pauses while it waits for them: its span lasts from its start to its
//!   end. Where an exchange stands before the instruction that computes what it carries (keys and values that are gathered,
//!   heads for tokens), that is computed when the exchange begins, between two compute spans; what only needs to be added up
//!   or multiplied once an exchange has ended is computed when its data are taken.
//! * Exchanges with experts carry as many copies as the router says; on an emulated link they last as long as those of the
//!   program, which knows only the mean.
//! * A copy to or from host memory is a copy in memory by the rank's thread, before or after a compute instruction that it
//!   would run beside on a device with a copy engine; an emulated device's slowdown does not stretch it.
//! * Memory is what the rank's state holds ([`crate::state::RankState::bytes_held`]) after each instruction, and the most
//!   that it held inside one, not what the program says that it would: a boundary tensor counts until the next one is sent,
//!   and the runtime's own copies of tensors on their way between ranks are not in it. Host memory that a plan uses is
//!   counted apart.
//!
//! # Ranks on devices
//!
//! Where devices are joined ([`Links`](crate::device::Links)), or a rank is alone on one, its thread runs ahead of the device
//! (module `ahead`): exchanges are work of streams (module `lines`), spans are times of the device (module `settled`), and sums have the
//! order of what joins the devices.
//!
//! Else a rank's thread puts the work of an instruction on its device and waits for it, so that a span is what the device took,
//! and what the thread took to say what is to be done. What a rank gives to others is copied from the device when its exchange
//! begins, and what it gets is copied there when its data are taken; messages and sums are the same as those of ranks on the
//! CPU. Ranks that share a device take turns, and their spans count the others' turns.
//!
//! # When something goes wrong
//!
//! The first failure stops all ranks: a number that is not finite, a thread that panics, a rank that works on one
//! instruction (or keeps others waiting) for longer than [`CpuOptions::stall_timeout`], an interrupt. Ranks that wait leave
//! at once, ranks that compute at the end of their instruction; dropping the backend joins every thread. Ranks that are
//! processes may also end or stop as such, see [`processes::Processes`]; [`Recovery`] starts them again.

mod ahead;
mod backend;
pub(crate) mod bench;
mod checkpointing;
pub(crate) mod clock;
mod crew;
mod describe;
mod emulation;
mod exchange;
mod lines;
mod meeting;
mod network;
mod options;
pub mod processes;
mod rank;
mod recovery;
pub(crate) mod reduce;
mod refusals;
mod script;
mod settled;
mod shared;
mod snapshot;
mod stall;
mod stragglers;
#[cfg(test)]
pub(crate) mod tests;
mod threads;
mod worker;

pub use backend::CpuBackend;
pub use checkpointing::{CheckpointAccount, CheckpointOptions, Checkpointing, OnFailure};
pub use emulation::{emulates_links, oversubscribed, slowdowns};
pub use options::{CpuOptions, Fault, FaultKind};
pub use recovery::{Loss, LostTime, Recovery, Started};
pub use snapshot::Snapshot;
pub use stragglers::{Slow, Stragglers};

pub(crate) use clock::monotonic;
pub(crate) use snapshot::Kept;

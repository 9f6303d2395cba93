//! Ranks that are processes, of one host or of several.
//!
//! | module | what it knows |
//! |---|---|
//! | `fleet` | the coordinator: what all ranks are told, what is heard of them, who is lost and why |
//! | `children` | processes that the coordinator started: how they ended; none is left behind |
//! | `gather` | processes that a launcher started: who they are, and whether they are a run |
//! | `serve` | a worker: the process of one rank |
//! | `join` | how workers reach each other |
//! | `mesh` | a rank's side of messages and collectives (`super::meeting::Meeting`) |
//! | `watching` | the same where devices exchange by themselves: who has come to what |
//! | `inbox` | what has come from other ranks |
//! | `frame`, `wire` | what ranks send each other; what the coordinator and a worker tell each other |
//! | `socket` | a stream between two processes |
//!
//! The coordinator holds the program, the data and the clock. It sends each worker its program and microbatches, starts
//! each iteration, and collects times and losses; tensors go from worker to worker. It is in the process that the person
//! started ([`Processes::spawn`]), or in that of rank 0 ([`Processes::gather`]).
//!
//! Within one host, all streams are unnamed pairs of Unix sockets that are handed from process to process: there is no
//! file that could stay behind, and nobody else can connect. Whoever loses the coordinator ends at once, so that none is
//! left when it is killed.
//!
//! **Links are not emulated between processes**: messages and collectives take what the machine and its network take.
//! Emulated devices are, as each rank does that by itself.

mod children;
mod fleet;
mod frame;
mod gather;
mod inbox;
mod join;
mod mesh;
mod serve;
mod socket;
#[cfg(test)]
pub(super) mod tests;
mod watching;
mod wire;

use std::sync::Arc;

use ir::{Program, Rank, VerifiedProgram};

pub use fleet::{Processes, Watchfulness};
pub use gather::{Place, take_part};
pub use serve::Ended;
use socket::Socket;
pub(in crate::runtime) use wire::{Job, Tensors};

use super::checkpointing::from_checkpoint;
use crate::state::RankState;

/// Carries out the rank of a process that [`Processes::spawn`] started, until the coordinator ends it. Its standard input
/// is the way to the coordinator.
///
/// # Errors
/// If standard input is no such way, or another rank could not be reached.
pub fn serve_standard_input() -> std::io::Result<Ended> {
    use std::os::fd::AsFd as _;
    let stream = std::os::unix::net::UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    serve::serve(Socket::Unix(stream), None, train)
}

/// The state of a rank that trains, where all ranks are of one host.
pub(super) fn train(rank: Rank, program: &Arc<Program>, job: Job) -> Result<RankState, String> {
    train_on(rank.raw(), rank, program, job)
}

/// The same of the rank that is so many of its host.
fn train_at(index: u32) -> impl serve::Build<RankState> {
    move |rank, program: &Arc<Program>, job| train_on(index, rank, program, job)
}

fn train_on(index: u32, rank: Rank, program: &Arc<Program>, job: Job) -> Result<RankState, String> {
    let device = job.devices.clone().map(|devices| devices.open(index)).transpose();
    let device = device.map_err(|error| error.to_string())?;
    let verified = VerifiedProgram::new(Program::clone(program));
    let verified =
        verified.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let verified = Arc::new(verified);
    if let Some((folder, files)) = &job.checkpoint {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        return from_checkpoint(&verified, rank, (std::path::Path::new(folder), &files), device);
    }
    let weights = job.weights.map(Tensors::weights);
    let mut state = RankState::on(&verified, rank, weights.as_ref(), device);
    if let Some(moments) = job.moments {
        let [first, second] = moments.map(Tensors::weights);
        state.load_moments(&first, &second);
    }
    Ok(state)
}

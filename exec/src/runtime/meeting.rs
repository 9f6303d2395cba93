//! The contract between a rank and whatever carries its messages and collectives: memory that threads share, or sockets
//! between processes.
//!
//! A transaction is known by its number in the [`Script`](super::script::Script), which is that of its key in order: source,
//! destination, edge, microbatch and direction of a message; group, instance and ordinal of a collective. Every rank reads
//! the same script, so the number alone says which mailbox something belongs into.
//!
//! The rank calls [`Meeting::arrive`] when the waits of an end have ended, [`Meeting::give`] right after it if the end puts
//! data in, then [`Meeting::look`] until the end is ready, [`Meeting::take`] if it gets data out, and [`Meeting::look`] until
//! it has ended. Ends of one stream begin and end in the order of the stream, whatever the order in which data come.
//! What a sum is does not depend on the carrier: `((m0 + m1) + m2) + ...` in group order, see [`super::reduce`].

use ir::{BackendError, Rank};

use super::clock::Epoch;
use super::script::EndId;
use super::shared::Beat;
use super::worker::NotFinite;

/// Why a rank leaves an iteration before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// It was told to.
    Told,
    /// It found a number that is not finite.
    NotFinite(NotFinite),
    /// Another rank could not be reached, or sent what makes no sense.
    Lost {
        /// The other rank.
        rank: Rank,
        /// What happened.
        why: String,
    },
}

impl Stop {
    /// The failure to report, unless someone else reports one.
    pub(super) fn failure(self, rank: Rank, iteration: u64) -> Option<BackendError> {
        match self {
            Self::Told => None,
            Self::NotFinite(NotFinite(what)) => Some(BackendError::NotFinite { rank, iteration, what }),
            Self::Lost { rank: lost, why } => {
                let cause = format!("rank {} lost its connection to it: {why}", rank.raw());
                Some(BackendError::RankFailed { rank: lost, iteration, cause })
            }
        }
    }
}

/// What an end may be told: moments of the iteration in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Moments {
    /// When its stream and waits let it begin.
    pub(super) reached: Option<u64>,
    /// When all ends were reached and, where data are copied, the taker's thread was free to copy.
    pub(super) started: Option<u64>,
    /// When it ended.
    pub(super) ended: Option<u64>,
    /// Whether its data can be taken.
    pub(super) ready: bool,
}

/// One rank's side of all transactions of an iteration.
pub(super) trait Meeting {
    /// The moment that times count from.
    fn epoch(&self) -> Epoch;
    /// What the rank does now, for whoever watches for stalls.
    fn beat(&self) -> &Beat;
    /// The waits of these ends' instructions have ended.
    ///
    /// # Errors
    /// [`Stop`] if the rank must leave.
    fn arrive(&mut self, ids: &[EndId]) -> Result<(), Stop>;
    /// Puts the rank's part in.
    ///
    /// # Errors
    /// [`Stop`] if another rank is lost.
    fn give(&mut self, id: EndId, values: &[f32]) -> Result<(), Stop>;
    /// Lets `see` ask for the moments of ends, all as they are at one instant.
    ///
    /// # Errors
    /// [`Stop`] if the rank must leave.
    fn look<R>(&mut self, see: impl FnOnce(&dyn Fn(EndId) -> Moments) -> R) -> Result<R, Stop>;
    /// Hands what an end that is ready gets to `copy`: the tensor of a message, the sum, this member's part of it, or all
    /// parts in group order. The rank's thread was busy with something else until `free`. Gives the time after it.
    ///
    /// # Errors
    /// [`Stop`] if another rank is lost.
    fn take(&mut self, id: EndId, free: u64, copy: impl FnOnce(&[f32])) -> Result<u64, Stop>;
    /// Sleeps until something happens that concerns the rank, or `until`. With `open`, the rank has ends that have not
    /// ended. May wake early.
    ///
    /// # Errors
    /// [`Stop`] if the rank must leave.
    fn wait(&mut self, open: bool, until: Option<u64>) -> Result<(), Stop>;
}

//! What ranks of several processes tell each other while their devices exchange: an end of an exchange that was put on its
//! stream is told to its other ends, so that who keeps all waiting can be named.
//!
//! Devices do not wait for these words, which may come when the exchange has long ended. The iteration ends when all of them
//! have come: in the next one they would be about ends that were not reached.

use std::sync::MutexGuard;
use std::time::Duration;

use super::frame::{self, Header, Kind};
use super::inbox::{Inbox, State};
use super::mesh::Lines;
use super::socket::Socket;
use crate::runtime::ahead::Control;
use crate::runtime::clock::Epoch;
use crate::runtime::meeting::Stop;
use crate::runtime::script::{EndId, Script};
use crate::runtime::shared::Beat;
use crate::runtime::stall::rank_at;

/// One rank's side of one iteration.
#[derive(Debug)]
pub(super) struct Watching<'a> {
    iteration: u64,
    script: &'a Script,
    inbox: &'a Inbox,
    peers: &'a mut [Option<Socket>],
    epoch: Epoch,
    /// Ends that were put on their streams and have not ended.
    open: Vec<EndId>,
}

impl<'a> Watching<'a> {
    pub(super) fn new(iteration: u64, script: &'a Script, lines: Lines<'a>, epoch: Epoch) -> Self {
        let Lines { inbox, peers, scratch: _ } = lines;
        Self { iteration, script, inbox, peers, epoch, open: Vec::new() }
    }

    /// The lock on what has come, if the rank may go on.
    fn lock(&self) -> Result<MutexGuard<'a, State>, Stop> {
        let state = self.inbox.lock();
        if state.quit {
            return Err(Stop::Told);
        }
        match &state.lost {
            Some((peer, why)) => Err(Stop::Lost { rank: rank_at(*peer), why: why.clone() }),
            None => Ok(state),
        }
    }

    /// The first end of another rank in a transaction of this one that is not known to be reached.
    fn unreached(&self, state: &State, transaction: usize) -> Option<EndId> {
        let ends = &self.script.transactions[transaction].ends;
        let reached = &state.slots[transaction].reached;
        // To itself a rank says nothing.
        let end = (0..reached.len()).find(|&end| reached[end].is_none() && self.peers[ends[end].rank].is_some())?;
        Some(EndId { transaction, end })
    }

    /// The first end of another rank that an open one of this rank waits for.
    fn missing(&self, state: &State) -> Option<EndId> {
        self.open.iter().find_map(|id| self.unreached(state, id.transaction))
    }
}

impl Control for Watching<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn beat(&self) -> &Beat {
        &self.inbox.beat
    }

    fn arrive(&mut self, id: EndId) -> Result<(), Stop> {
        drop(self.lock()?);
        self.open.push(id);
        let header = Header::about(Kind::Reached, self.iteration, id, Some(self.epoch.elapsed()));
        let ends = self.script.transactions[id.transaction].ends.iter().enumerate();
        for (_, end) in ends.filter(|(place, _)| *place != id.end) {
            // A message of the rank to itself has no other end.
            let Some(socket) = self.peers[end.rank].as_mut() else { continue };
            frame::send(socket, header, &[]).map_err(|error| {
                let lost = Stop::Lost { rank: rank_at(end.rank), why: error.to_string() };
                if self.inbox.lock().quit { Stop::Told } else { lost }
            })?;
        }
        Ok(())
    }

    fn passed(&mut self, id: EndId) -> Result<(), Stop> {
        self.open.retain(|open| *open != id);
        self.lock().map(drop)
    }

    fn wait(&mut self, until: u64) -> Result<(), Stop> {
        let mut state = self.lock()?;
        state.missing = self.missing(&state);
        let at_most = Duration::from_nanos(until.saturating_sub(self.epoch.elapsed()).min(1 << 40));
        drop(self.inbox.sleep(state, Some(at_most)));
        self.lock().map(drop)
    }

    fn finish(&mut self) -> Result<(), Stop> {
        let mut complete = 0;
        loop {
            let mut state = self.lock()?;
            state.missing = (complete..state.slots.len()).find_map(|number| self.unreached(&state, number));
            let Some(id) = state.missing else { return Ok(()) };
            complete = id.transaction;
            drop(self.inbox.sleep(state, None));
        }
    }
}

//! Ranks that are threads of one process meet in its memory, under one lock.

use std::sync::MutexGuard;
use std::time::Duration;

use super::ahead::Control;
use super::clock::Epoch;
use super::exchange::{Data, makes_whole};
use super::meeting::{Meeting, Moments, Stop};
use super::reduce;
use super::script::{EndId, Exchange, Script, Transaction};
use super::shared::{Beat, Shared, State};

/// One rank's side of the shared state.
#[derive(Debug)]
pub(super) struct Threads<'a> {
    rank: usize,
    script: &'a Script,
    shared: &'a Shared,
    epoch: Epoch,
    scratch: &'a mut Vec<f32>,
}

impl<'a> Threads<'a> {
    /// An iteration that has begun. `scratch` is any buffer, kept from one iteration to the next.
    pub(super) fn new(rank: usize, script: &'a Script, shared: &'a Shared, scratch: &'a mut Vec<f32>) -> Self {
        let epoch = shared.lock().exchanges.epoch();
        Self { rank, script, shared, epoch, scratch }
    }

    /// The lock, with the network brought up to now.
    fn lock(&self) -> Result<(MutexGuard<'a, State>, u64), Stop> {
        let mut state = self.shared.lock();
        if state.quit {
            return Err(Stop::Told);
        }
        let now = state.exchanges.advance();
        Ok((state, now))
    }

    /// Makes the whole out of all parts (two members gave at the same moment, so neither knew to be the last).
    fn make_whole(
        &self,
        mut state: MutexGuard<'a, State>,
        transaction: &Transaction,
        number: usize,
    ) -> MutexGuard<'a, State> {
        let Exchange::Collective(kind, payload) = transaction.exchange else { unreachable!("a message has no whole") };
        let parts = state.exchanges.parts(number);
        let mut whole = state.exchanges.tensor(transaction.elements());
        drop(state);
        let slices: Vec<&[f32]> = parts.iter().flatten().map(|part| part.as_slice()).collect();
        reduce::whole(kind, payload, &slices, &mut whole);
        drop(parts);
        state = self.shared.lock();
        state.exchanges.give_whole(number, whole);
        state
    }
}

/// Of exchanges whose data another carrier moves, the same state says who has come.
impl Control for Threads<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn beat(&self) -> &Beat {
        &self.shared.beats[self.rank]
    }

    fn arrive(&mut self, id: EndId) -> Result<(), Stop> {
        Meeting::arrive(self, &[id])
    }

    fn wait(&mut self, until: u64) -> Result<(), Stop> {
        Meeting::wait(self, false, Some(until))
    }

    fn passed(&mut self, id: EndId) -> Result<(), Stop> {
        let (mut state, now) = self.lock()?;
        if self.script.transactions[id.transaction].takes(id.end) {
            state.exchanges.take(id, now);
        }
        self.shared.release(state);
        Ok(())
    }

    /// What ranks tell each other is there at once.
    fn finish(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

impl Meeting for Threads<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn beat(&self) -> &Beat {
        &self.shared.beats[self.rank]
    }

    fn arrive(&mut self, ids: &[EndId]) -> Result<(), Stop> {
        let (mut state, _) = self.lock()?;
        ids.iter().for_each(|id| state.exchanges.arrive(*id));
        self.shared.release(state);
        Ok(())
    }

    /// The last giver makes the whole.
    fn give(&mut self, id: EndId, values: &[f32]) -> Result<(), Stop> {
        let transaction = &self.script.transactions[id.transaction];
        let mut state = self.shared.lock();
        if let Exchange::Collective(kind, payload) = transaction.exchange
            && makes_whole(transaction.exchange)
            && state.exchanges.last_giver(id.transaction)
        {
            let others = state.exchanges.parts(id.transaction);
            let mut whole = state.exchanges.tensor(transaction.elements());
            drop(state);
            let parts: Vec<&[f32]> = others.iter().map(|part| part.as_ref().map_or(values, |part| part)).collect();
            reduce::whole(kind, payload, &parts, &mut whole);
            drop(others);
            state = self.shared.lock();
            state.exchanges.give_whole(id.transaction, whole);
        } else {
            let mut part = state.exchanges.tensor(values.len());
            drop(state);
            part.extend_from_slice(values);
            state = self.shared.lock();
            if state.exchanges.give(id, part) {
                state = self.make_whole(state, transaction, id.transaction);
            }
        }
        self.shared.release(state);
        Ok(())
    }

    fn look<R>(&mut self, see: impl FnOnce(&dyn Fn(EndId) -> Moments) -> R) -> Result<R, Stop> {
        let (state, _) = self.lock()?;
        let seen = see(&|id| state.exchanges.moments(id));
        self.shared.release(state);
        Ok(seen)
    }

    fn take(&mut self, id: EndId, free: u64, copy: impl FnOnce(&[f32])) -> Result<u64, Stop> {
        let data = self.shared.lock().exchanges.data(id.transaction);
        match (self.script.transactions[id.transaction].exchange, &data) {
            (Exchange::Message(_), Data::Parts(parts)) => copy(&parts[0]),
            (Exchange::Collective(..), Data::Whole(whole)) => copy(whole),
            (Exchange::Collective(kind, payload), Data::Parts(parts)) => {
                reduce::part(kind, payload, parts, id.end, self.scratch);
                copy(self.scratch);
            }
            (Exchange::Message(_), Data::Whole(_)) => unreachable!("a message has one part"),
        }
        drop(data);
        let mut state = self.shared.lock();
        let now = state.exchanges.advance();
        state.exchanges.take(id, free);
        self.shared.release(state);
        Ok(now)
    }

    fn wait(&mut self, open: bool, until: Option<u64>) -> Result<(), Stop> {
        let (state, now) = self.lock()?;
        let network = state.exchanges.next_event().filter(|_| open);
        let until = [network, until].into_iter().flatten().min();
        let at_most = until.map(|until| Duration::from_nanos(until.saturating_sub(now)));
        drop(self.shared.sleep(self.rank, state, at_most));
        Ok(())
    }
}

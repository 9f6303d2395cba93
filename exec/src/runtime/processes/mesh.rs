//! Ranks of several processes meet over a stream between each two of them.
//!
//! A message leaves when it is given, and the receiver says when it began to take it and when it had it: both ends have
//! the same span. Of a collective, every member tells the others when its end is reached, and sends each what it needs:
//!
//! | collective | what a member sends each other member | what it makes |
//! |---|---|---|
//! | all-gather | its part | the join |
//! | all-to-all | the other's part of its bundle | a bundle of what came |
//! | reduce-scatter | the other's slice of its buffer | the sum of its slice |
//! | all-reduce, small or of two | its buffer | the sum |
//! | all-reduce, large | the other's slice, and then the sum of its own | its slice's sum, and the join |
//!
//! The last is what a ring would send, `2 (n-1)/n` of the buffer, in two steps in place of `2 (n-1)`. Sums go over the
//! members in group order, as they do between threads: the bits are the same.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ir::program::{CollectiveKind, Payload};

use super::frame::{self, Header, Kind};
use super::inbox::{Inbox, State};
use super::socket::Socket;
use crate::parcels;
use crate::runtime::clock::Epoch;
use crate::runtime::meeting::{Meeting, Moments, Stop};
use crate::runtime::reduce;
use crate::runtime::script::{EndId, Exchange, STREAMS, Script, Transaction};
use crate::runtime::shared::Beat;
use crate::runtime::stall::rank_at;

/// An all-reduce of at least so many numbers over more than two members is made slice by slice.
const LARGE: usize = 16 << 10;

/// This rank's end of a transaction.
#[derive(Clone, Copy, Default, Debug)]
struct Own {
    arrived: Option<u64>,
    reached: Option<u64>,
    /// Whether its part was sent.
    given: bool,
    /// Whether each member sums a slice; all give equally much, so each knows when it gives.
    sliced: bool,
    /// Whether the sum of its slice was sent.
    summed: bool,
    started: Option<u64>,
    ended: Option<u64>,
}

/// One rank's side of one iteration.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    rank: usize,
    iteration: u64,
    script: &'a Script,
    inbox: &'a Inbox,
    /// Streams to the others, by rank.
    peers: &'a mut [Option<Socket>],
    epoch: Epoch,
    scratch: &'a mut Vec<f32>,
    /// By transaction.
    own: Vec<Own>,
    /// Ends that have arrived and not ended.
    open: Vec<EndId>,
    /// Of each stream: transactions that have ended, and when the last did.
    cursors: [(usize, u64); STREAMS],
}

/// What carries a rank's part of an iteration.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    pub(super) inbox: &'a Inbox,
    pub(super) peers: &'a mut [Option<Socket>],
    pub(super) scratch: &'a mut Vec<f32>,
}

impl<'a> Mesh<'a> {
    pub(super) fn new(rank: usize, iteration: u64, script: &'a Script, lines: Lines<'a>, epoch: Epoch) -> Self {
        let Lines { inbox, peers, scratch } = lines;
        Self {
            rank,
            iteration,
            script,
            inbox,
            peers,
            epoch,
            scratch,
            own: vec![Own::default(); script.transactions.len()],
            open: Vec::new(),
            cursors: [(0, 0); STREAMS],
        }
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

    fn send(&mut self, peer: usize, header: Header, values: &[f32]) -> Result<(), Stop> {
        let socket = self.peers[peer].as_mut().expect("a stream to every other rank");
        frame::send(socket, header, values).map_err(|error| {
            if self.inbox.lock().quit { Stop::Told } else { Stop::Lost { rank: rank_at(peer), why: error.to_string() } }
        })
    }

    fn header(&self, kind: Kind, id: EndId, at: Option<u64>) -> Header {
        Header::about(kind, self.iteration, id, at)
    }

    /// Places and ranks of the other members of a transaction.
    fn others(&self, id: EndId) -> Vec<(usize, usize)> {
        let ends = self.script.transactions[id.transaction].ends.iter().enumerate();
        ends.filter(|(place, _)| *place != id.end).map(|(place, end)| (place, end.rank)).collect()
    }

    /// Marks an end as reached if it has arrived and heads its stream, and tells the others unless its part will.
    fn reach(&mut self, id: EndId) -> Result<(), Stop> {
        let transaction = &self.script.transactions[id.transaction];
        let stream = transaction.ends[id.end].stream;
        let (passed, free) = self.cursors[stream];
        let own = &mut self.own[id.transaction];
        let Some(arrived) = own.arrived else { return Ok(()) };
        if own.reached.is_some() || self.script.ranks[self.rank].exchanges[stream][passed] != id {
            return Ok(());
        }
        let reached = Some(arrived.max(free));
        own.reached = reached;
        if own.given && matches!(transaction.exchange, Exchange::Collective(..)) {
            let header = self.header(Kind::Reached, id, reached);
            for (_, rank) in self.others(id) {
                self.send(rank, header, &[])?;
            }
        }
        Ok(())
    }

    /// Ends an end and lets its stream's next one begin.
    fn end(&mut self, id: EndId, started: u64, ended: u64) -> Result<(), Stop> {
        let stream = self.script.transactions[id.transaction].ends[id.end].stream;
        let own = &mut self.own[id.transaction];
        assert!(own.ended.is_none(), "an end ended twice: {id:?}");
        (own.started, own.ended) = (Some(started), Some(ended));
        self.open.retain(|open| *open != id);
        let cursor = &mut self.cursors[stream];
        *cursor = (cursor.0 + 1, ended);
        let next = self.script.ranks[self.rank].exchanges[stream].get(cursor.0).copied();
        next.map_or(Ok(()), |next| self.reach(next))
    }

    /// When all ends were reached, if they are.
    fn begun(&self, state: &State, id: EndId) -> Option<u64> {
        let own = self.own[id.transaction].reached?;
        let others = state.slots[id.transaction].reached.iter().enumerate().filter(|(place, _)| *place != id.end);
        others.map(|(_, reached)| *reached).try_fold(own, |latest, reached| Some(latest.max(reached?)))
    }

    /// Whether an end's data can be taken.
    fn ready(&self, state: &State, id: EndId) -> bool {
        let transaction = &self.script.transactions[id.transaction];
        let slot = &state.slots[id.transaction];
        match transaction.exchange {
            Exchange::Message(_) => slot.parts[0].is_some(),
            Exchange::Collective(..) if self.own[id.transaction].sliced => slot.sums.iter().all(Option::is_some),
            Exchange::Collective(..) => slot.parts.iter().all(Option::is_some),
        }
    }

    fn moments(&self, state: &State, id: EndId) -> Moments {
        let own = self.own[id.transaction];
        let takes = self.script.transactions[id.transaction].takes(id.end);
        let begun = if takes { self.begun(state, id) } else { None };
        Moments {
            reached: own.reached,
            started: own.started.or(begun),
            ended: own.ended,
            ready: begun.is_some() && self.ready(state, id),
        }
    }

    /// Does what nobody waits for: ends messages that were taken, sums slices that are there.
    fn settle(&mut self) -> Result<(), Stop> {
        for id in self.open.clone() {
            let transaction = &self.script.transactions[id.transaction];
            match transaction.exchange {
                Exchange::Message(_) if id.end == 0 => {
                    let taken = self.inbox.lock().slots[id.transaction].taken;
                    // Its stream may have sent to someone else meanwhile.
                    let heads = self.own[id.transaction].reached;
                    if let (Some((started, ended)), Some(reached)) = (taken, heads) {
                        let started = started.max(reached);
                        self.end(id, started, ended.max(started))?;
                    }
                }
                Exchange::Message(_) => {}
                Exchange::Collective(kind, payload) => {
                    let own = self.own[id.transaction];
                    if own.sliced && !own.summed {
                        self.sum_slice(id, kind, payload)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sums this member's slice if all have sent it, and sends it to all.
    fn sum_slice(&mut self, id: EndId, kind: CollectiveKind, payload: Payload) -> Result<(), Stop> {
        let mut state = self.inbox.lock();
        let slot = &mut state.slots[id.transaction];
        if !slot.parts.iter().all(Option::is_some) {
            return Ok(());
        }
        let parts: Vec<Vec<f32>> = slot.parts.iter_mut().filter_map(Option::take).collect();
        let mut sum = state.tensor(parts[0].len());
        drop(state);
        let slices: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        assert_eq!(kind, CollectiveKind::AllReduce, "only an all-reduce is made in slices and joined");
        reduce::reduce(payload, &slices, &mut sum);
        self.own[id.transaction].summed = true;
        let header = self.header(Kind::Sum, id, None);
        for (_, rank) in self.others(id) {
            self.send(rank, header, &sum)?;
        }
        let mut state = self.inbox.lock();
        parts.into_iter().for_each(|part| state.recycle(part));
        state.slots[id.transaction].sums[id.end] = Some(sum);
        Ok(())
    }

    /// The first end of another rank that an open one of this rank waits for.
    fn missing(&self, state: &State) -> Option<EndId> {
        self.open.iter().find_map(|id| {
            let transaction = &self.script.transactions[id.transaction];
            if !transaction.takes(id.end) {
                return state.slots[id.transaction].taken.is_none().then_some(EndId { end: 1, ..*id });
            }
            let slot = &state.slots[id.transaction];
            let missing = (0..slot.reached.len()).find(|end| *end != id.end && slot.reached[*end].is_none())?;
            Some(EndId { end: missing, ..*id })
        })
    }
}

impl Meeting for Mesh<'_> {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn beat(&self) -> &Beat {
        &self.inbox.beat
    }

    fn arrive(&mut self, ids: &[EndId]) -> Result<(), Stop> {
        drop(self.lock()?);
        self.settle()?;
        let now = self.epoch.elapsed();
        for id in ids {
            assert!(self.own[id.transaction].arrived.replace(now).is_none(), "an end arrived twice: {id:?}");
            self.open.push(*id);
            self.reach(*id)?;
        }
        Ok(())
    }

    fn give(&mut self, id: EndId, values: &[f32]) -> Result<(), Stop> {
        let transaction = &self.script.transactions[id.transaction];
        let own = &mut self.own[id.transaction];
        own.given = true;
        own.sliced = in_slices(transaction, values.len());
        let sliced = own.sliced;
        let slice = |place: usize| match transaction.exchange {
            Exchange::Message(_) => 0..values.len(),
            Exchange::Collective(kind, _) if kind == CollectiveKind::ReduceScatter || sliced => {
                part_of(values.len(), transaction.ends.len(), place)
            }
            Exchange::Collective(CollectiveKind::AllToAll, _) => {
                parcels::part_for(values, transaction.ends.len(), place)
            }
            Exchange::Collective(..) => 0..values.len(),
        };
        let at = match transaction.exchange {
            Exchange::Message(_) => own.arrived,
            Exchange::Collective(..) => own.reached,
        };
        let whole = !matches!(transaction.exchange, Exchange::Collective(CollectiveKind::ReduceScatter, _));
        let members = transaction.ends.len();
        assert!(whole || values.len().is_multiple_of(members), "{} numbers over {members} members", values.len());
        let header = self.header(Kind::Part, id, at);
        for (place, rank) in self.others(id) {
            self.send(rank, header, &values[slice(place)])?;
        }
        if let Exchange::Collective(..) = transaction.exchange {
            let kept = &values[slice(id.end)];
            let mut state = self.inbox.lock();
            let mut tensor = state.tensor(kept.len());
            tensor.copy_from_slice(kept);
            state.slots[id.transaction].parts[id.end] = Some(tensor);
        }
        Ok(())
    }

    fn look<R>(&mut self, see: impl FnOnce(&dyn Fn(EndId) -> Moments) -> R) -> Result<R, Stop> {
        self.settle()?;
        let state = self.lock()?;
        Ok(see(&|id| self.moments(&state, id)))
    }

    fn take(&mut self, id: EndId, free: u64, copy: impl FnOnce(&[f32])) -> Result<u64, Stop> {
        let transaction = &self.script.transactions[id.transaction];
        let mut state = self.inbox.lock();
        let begun = self.begun(&state, id).expect("an end that is ready has begun");
        let slot = &mut state.slots[id.transaction];
        let sliced = self.own[id.transaction].sliced;
        let of = if sliced { &mut slot.sums } else { &mut slot.parts };
        let parts: Vec<Arc<Vec<f32>>> = of.iter_mut().filter_map(Option::take).map(Arc::new).collect();
        drop(state);
        let slices: Vec<&[f32]> = parts.iter().map(|part| part.as_slice()).collect();
        match transaction.exchange {
            Exchange::Message(_) => copy(slices[0]),
            Exchange::Collective(kind, payload) => {
                combine(kind, payload, sliced, &slices, self.scratch);
                copy(self.scratch);
            }
        }
        let mut state = self.inbox.lock();
        parts.into_iter().filter_map(Arc::into_inner).for_each(|part| state.recycle(part));
        drop(state);
        let started = begun.max(free);
        let ended = self.epoch.elapsed().max(started);
        if let Exchange::Message(_) = transaction.exchange {
            let sent = EndId { end: 0, ..id };
            let header = Header { until: Some(ended), ..self.header(Kind::Taken, sent, Some(started)) };
            self.send(transaction.ends[0].rank, header, &[])?;
        }
        self.end(id, started, ended)?;
        Ok(ended)
    }

    fn wait(&mut self, _: bool, until: Option<u64>) -> Result<(), Stop> {
        let mut state = self.lock()?;
        state.missing = self.missing(&state);
        let at_most = until.map(|until| Duration::from_nanos(until.saturating_sub(self.epoch.elapsed())));
        drop(self.inbox.sleep(state, at_most));
        Ok(())
    }
}

/// What a member gets out of what has come, in group order.
fn combine(kind: CollectiveKind, payload: Payload, sliced: bool, parts: &[&[f32]], out: &mut Vec<f32>) {
    match kind {
        CollectiveKind::AllReduce if sliced => reduce::whole(CollectiveKind::AllGather, payload, parts, out),
        CollectiveKind::AllReduce | CollectiveKind::AllGather => reduce::whole(kind, payload, parts, out),
        CollectiveKind::ReduceScatter => reduce::reduce(payload, parts, out),
        CollectiveKind::AllToAll => parcels::join(parts, out),
    }
}

/// Whether each member of a collective of so many numbers sums a slice of it.
const fn in_slices(transaction: &Transaction, elements: usize) -> bool {
    match transaction.exchange {
        Exchange::Collective(CollectiveKind::AllReduce, _) => transaction.ends.len() > 2 && elements >= LARGE,
        Exchange::Collective(..) | Exchange::Message(_) => false,
    }
}

/// The slice of a buffer that the member at `place` answers for: as equal as whole numbers are.
const fn part_of(length: usize, members: usize, place: usize) -> Range<usize> {
    length * place / members..length * (place + 1) / members
}

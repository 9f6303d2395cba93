//! Where ranks meet: the state of every message and collective of an iteration, under one lock.
//!
//! A transaction passes through these moments:
//!
//! 1. each end *arrives* when its rank's thread finds the instruction's waits ended;
//! 2. an end is *reached* when it has arrived and its stream's predecessor has ended;
//! 3. the transaction *begins* when all ends are reached;
//! 4. its data are *ready* when every giver has put its part in (and, for all-reduce and all-gather, the last giver
//!    has made the whole of them);
//! 5. it *ends*: on an emulated link when its flow has ended, whatever the threads do in the meantime; in shared
//!    memory when the taker has copied its data out.
//!
//! Emulated time is exact: [`Exchanges::advance`] carries out all that happened on the network up to now, in the order of
//! virtual time, including transactions that begin when another ends, so that a busy thread does not delay a link.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clock::Epoch;
use super::meeting::Moments;
use super::network::{Network, Wire};
use super::script::{EndId, Exchange, STREAMS, Script};

/// A tensor on its way.
pub(super) type Tensor = Arc<Vec<f32>>;

/// The moments of one end.
#[derive(Clone, Copy, Default, Debug)]
struct EndState {
    arrived: Option<u64>,
    reached: Option<u64>,
    started: Option<u64>,
    ended: Option<u64>,
    taken: bool,
}

/// The moments and data of one transaction.
#[derive(Default, Debug)]
struct Meeting {
    ends: Vec<EndState>,
    reached: usize,
    begun: Option<u64>,
    parts: Vec<Option<Tensor>>,
    given: usize,
    whole: Option<Tensor>,
    ready: bool,
    taken: usize,
}

/// All transactions of an iteration.
#[derive(Debug)]
pub(super) struct Exchanges {
    script: Arc<Script>,
    wires: Vec<Option<Wire>>,
    meetings: Vec<Meeting>,
    /// Of each rank and stream: transactions that have ended, and when the last did.
    cursors: Vec<[(usize, u64); STREAMS]>,
    network: Network,
    /// Tensors to use again, by the power of two that they have room for: what experts exchange varies in length.
    pool: BTreeMap<usize, Vec<Vec<f32>>>,
    epoch: Epoch,
    /// Ranks that something happened to since they last looked.
    pub(super) signals: Vec<bool>,
}

impl Exchanges {
    /// Nothing has happened.
    pub(super) fn new(script: Arc<Script>, wires: Vec<Option<Wire>>, capacities: &[f64]) -> Self {
        let ranks = script.ranks.len();
        let mut state = Self {
            meetings: script.transactions.iter().map(|_| Meeting::default()).collect(),
            cursors: vec![[(0, 0); STREAMS]; ranks],
            network: Network::new(capacities),
            pool: BTreeMap::new(),
            signals: vec![false; ranks],
            epoch: Epoch::now(),
            script,
            wires,
        };
        state.begin();
        state
    }
    /// Begins another iteration: nothing has happened in it, and it begins now.
    pub(super) fn begin(&mut self) {
        for (meeting, transaction) in self.meetings.iter_mut().zip(&self.script.transactions) {
            let ends = transaction.ends.len();
            *meeting = Meeting { ends: vec![EndState::default(); ends], parts: vec![None; ends], ..Meeting::default() };
        }
        self.cursors.fill([(0, 0); STREAMS]);
        self.network.reset();
        self.epoch = Epoch::now();
    }
    /// The moment that times of this iteration count from.
    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }
    /// Carries out what happened on the network up to now and gives now.
    pub(super) fn advance(&mut self) -> u64 {
        let now = self.epoch.elapsed().max(self.network.now());
        let mut ended = Vec::new();
        loop {
            let next = self.network.next().filter(|next| *next <= now);
            self.network.advance(next.unwrap_or(now), &mut ended);
            for transaction in ended.drain(..) {
                for end in 0..self.meetings[transaction].ends.len() {
                    self.end(EndId { transaction, end });
                }
            }
            if next.is_none() {
                return now;
            }
        }
    }
    /// When the network next does something by itself.
    pub(super) fn next_event(&self) -> Option<u64> {
        self.network.next()
    }
    /// The moments of an end so far.
    pub(super) fn moments(&self, id: EndId) -> Moments {
        let meeting = &self.meetings[id.transaction];
        let end = &meeting.ends[id.end];
        Moments {
            reached: end.reached,
            started: end.started.or(meeting.begun),
            ended: end.ended,
            ready: meeting.begun.is_some() && meeting.ready,
        }
    }
    /// The waits of an end's instruction have ended. Call [`Self::advance`] first, under the same lock.
    pub(super) fn arrive(&mut self, id: EndId) {
        let end = &mut self.meetings[id.transaction].ends[id.end];
        assert!(end.arrived.replace(self.network.now()).is_none(), "an end arrived twice: {id:?}");
        self.reach(id);
    }
    /// Whether all parts but one were given: the giver that asks is the last.
    pub(super) fn last_giver(&self, transaction: usize) -> bool {
        self.meetings[transaction].given + 1 == self.script.transactions[transaction].givers()
    }
    /// The parts given so far, by place.
    pub(super) fn parts(&self, transaction: usize) -> Vec<Option<Tensor>> {
        self.meetings[transaction].parts.clone()
    }
    /// Puts a part in. `true` if it was the last and someone has yet to make the whole: the caller must.
    pub(super) fn give(&mut self, id: EndId, part: Vec<f32>) -> bool {
        let transaction = &self.script.transactions[id.transaction];
        let meeting = &mut self.meetings[id.transaction];
        assert!(meeting.parts[id.end].replace(Arc::new(part)).is_none(), "an end gave twice: {id:?}");
        meeting.given += 1;
        if meeting.given < transaction.givers() {
            return false;
        }
        let whole = makes_whole(transaction.exchange);
        if !whole {
            self.make_ready(id.transaction);
        }
        whole
    }
    /// Puts in what every member gets; its parts are no longer needed.
    pub(super) fn give_whole(&mut self, transaction: usize, whole: Vec<f32>) {
        let meeting = &mut self.meetings[transaction];
        let parts: Vec<Tensor> = meeting.parts.iter_mut().filter_map(Option::take).collect();
        meeting.whole = Some(Arc::new(whole));
        parts.into_iter().for_each(|part| self.recycle(part));
        self.make_ready(transaction);
    }
    /// What an end takes: the whole, or every part.
    pub(super) fn data(&self, transaction: usize) -> Data {
        let meeting = &self.meetings[transaction];
        match &meeting.whole {
            Some(whole) => Data::Whole(Arc::clone(whole)),
            None => Data::Parts(meeting.parts.iter().flatten().cloned().collect()),
        }
    }
    /// An end has taken its data (and has dropped its handles on them); its thread had been busy with something else
    /// until `free`. In shared memory it ends now, and a message's sender with it.
    /// Call [`Self::advance`] first, under the same lock.
    pub(super) fn take(&mut self, id: EndId, free: u64) {
        let script = Arc::clone(&self.script);
        let transaction = &script.transactions[id.transaction];
        let takers = (0..transaction.ends.len()).filter(|end| transaction.takes(*end)).count();
        let meeting = &mut self.meetings[id.transaction];
        assert!(!std::mem::replace(&mut meeting.ends[id.end].taken, true), "an end took twice: {id:?}");
        meeting.taken += 1;
        if meeting.taken == takers {
            let parts = meeting.parts.iter_mut().filter_map(Option::take).chain(meeting.whole.take());
            parts.collect::<Vec<_>>().into_iter().for_each(|tensor| self.recycle(tensor));
        }
        if self.wires[id.transaction].is_none() {
            let started = self.meetings[id.transaction].begun.map(|begun| begun.max(free));
            let ends = match transaction.exchange {
                Exchange::Message(_) => 0..2,
                Exchange::Collective(..) => id.end..id.end + 1,
            };
            for end in ends {
                self.meetings[id.transaction].ends[end].started = started;
                self.end(EndId { end, ..id });
            }
        }
    }
    /// An empty tensor with room for `length` elements.
    pub(super) fn tensor(&mut self, length: usize) -> Vec<f32> {
        let room = length.next_power_of_two();
        self.pool.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| Vec::with_capacity(room))
    }
    /// The first end of a transaction that others wait for: reached by some, not by it.
    pub(super) fn missing_end(&self) -> Option<EndId> {
        (0..self.meetings.len()).find_map(|transaction| {
            let meeting = &self.meetings[transaction];
            let missing = meeting.ends.iter().position(|end| end.reached.is_none())?;
            (meeting.reached > 0).then_some(EndId { transaction, end: missing })
        })
    }
    fn recycle(&mut self, tensor: Tensor) {
        if let Some(mut tensor) = Arc::into_inner(tensor) {
            tensor.clear();
            let room = tensor.capacity().checked_ilog2().map_or(1, |power| 1 << power);
            self.pool.entry(room).or_default().push(tensor);
        }
    }
    /// Marks an end as reached if it has arrived and heads its stream; begins the transaction if it was the last.
    fn reach(&mut self, id: EndId) {
        let script = Arc::clone(&self.script);
        let transaction = &script.transactions[id.transaction];
        let place = transaction.ends[id.end];
        let (passed, free) = self.cursors[place.rank][place.stream];
        let meeting = &mut self.meetings[id.transaction];
        let end = &mut meeting.ends[id.end];
        let Some(arrived) = end.arrived else { return };
        if script.ranks[place.rank].exchanges[place.stream][passed] != id {
            return;
        }
        end.reached = Some(arrived.max(free));
        meeting.reached += 1;
        if meeting.reached < transaction.ends.len() {
            return;
        }
        meeting.begun = meeting.ends.iter().filter_map(|end| end.reached).max();
        if let Some(wire) = &self.wires[id.transaction] {
            self.network.start(id.transaction, wire);
        }
        if meeting.ready {
            self.notify(id.transaction);
        }
    }
    fn make_ready(&mut self, transaction: usize) {
        self.meetings[transaction].ready = true;
        if self.meetings[transaction].begun.is_some() {
            self.notify(transaction);
        }
    }
    /// Ends an end now and lets its stream's next one begin.
    fn end(&mut self, id: EndId) {
        let now = self.network.now();
        let place = self.script.transactions[id.transaction].ends[id.end];
        let ended = self.meetings[id.transaction].ends[id.end].ended.replace(now);
        assert!(ended.is_none(), "an end ended twice: {id:?}");
        self.signals[place.rank] = true;
        let cursor = &mut self.cursors[place.rank][place.stream];
        *cursor = (cursor.0 + 1, now);
        if let Some(next) = self.script.ranks[place.rank].exchanges[place.stream].get(cursor.0) {
            self.reach(*next);
        }
    }
    fn notify(&mut self, transaction: usize) {
        for end in &self.script.transactions[transaction].ends {
            self.signals[end.rank] = true;
        }
    }
}

/// What an end takes.
#[derive(Debug)]
pub(super) enum Data {
    /// The result, the same for all.
    Whole(Tensor),
    /// What each giver gave, in order.
    Parts(Vec<Tensor>),
}

/// Whether the last giver makes one result for all.
pub(super) const fn makes_whole(exchange: Exchange) -> bool {
    use ir::program::CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
    match exchange {
        Exchange::Collective(AllReduce | AllGather, _) => true,
        Exchange::Collective(ReduceScatter | AllToAll, _) | Exchange::Message(_) => false,
    }
}

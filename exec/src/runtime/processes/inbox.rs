//! What has come from other ranks in this iteration. One thread per peer reads; the rank's thread looks.
//!
//! Readers never write, so that a rank whose thread is busy still takes in all that is sent to it, and no two ranks can
//! wait for each other's buffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::frame::{self, Header, Kind};
use super::socket::Socket;
use crate::device::Link;
use crate::runtime::script::{EndId, Script};
use crate::runtime::shared::Beat;

/// The most numbers of one frame: more is no tensor of a rank, but a stream out of step.
const MOST_ELEMENTS: u64 = 1 << 32;

/// What has come of one transaction, by end.
#[derive(Default, Debug)]
pub(super) struct Slot {
    /// When each end was reached.
    pub(super) reached: Vec<Option<u64>>,
    /// What each end put in.
    pub(super) parts: Vec<Option<Vec<f32>>>,
    /// The sum of the slice that each end answers for.
    pub(super) sums: Vec<Option<Vec<f32>>>,
    /// When a message that this rank sent began and ended.
    pub(super) taken: Option<(u64, u64)>,
}

/// Everything under the lock.
#[derive(Default, Debug)]
pub(super) struct State {
    script: Option<Arc<Script>>,
    iteration: u64,
    /// By transaction; those of other ranks stay empty.
    pub(super) slots: Vec<Slot>,
    /// Something came since the rank last slept.
    pub(super) signal: bool,
    /// The rank must leave.
    pub(super) quit: bool,
    /// A peer that is gone, and why.
    pub(super) lost: Option<(usize, String)>,
    /// What the rank waits for, if it waits.
    pub(super) missing: Option<EndId>,
    /// Tensors to use again, by the power of two that they have room for: what experts exchange varies in length.
    pool: BTreeMap<usize, Vec<Vec<f32>>>,
}

impl State {
    /// Keeps a tensor's memory for later.
    pub(super) fn recycle(&mut self, tensor: Vec<f32>) {
        let room = tensor.capacity().checked_ilog2().map_or(1, |power| 1 << power);
        self.pool.entry(room).or_default().push(tensor);
    }
    /// A tensor of so many numbers, whatever they are.
    pub(super) fn tensor(&mut self, length: usize) -> Vec<f32> {
        let room = length.next_power_of_two();
        let mut tensor = self.pool.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| Vec::with_capacity(room));
        tensor.resize(length, 0.0);
        tensor
    }
    /// Checks that a frame from `peer` can be meant, and gives its transaction and end.
    fn place(&self, rank: usize, peer: usize, header: Header) -> Result<EndId, String> {
        let script = self.script.as_ref().ok_or("it came before a program")?;
        let id = EndId { transaction: header.transaction as usize, end: header.end as usize };
        let transaction = script.transactions.get(id.transaction).ok_or("it names no transaction")?;
        let end = transaction.ends.get(id.end).ok_or("it names no end")?;
        let about = if header.kind == Kind::Taken { rank } else { peer };
        if end.rank != about || !transaction.ends.iter().any(|end| end.rank == rank) {
            return Err("it is about another rank".to_owned());
        }
        if u64::from(header.iteration) != self.iteration & u64::from(u32::MAX) {
            return Err("it belongs to another iteration".to_owned());
        }
        if header.elements > MOST_ELEMENTS {
            return Err(format!("a tensor of {} numbers came", header.elements));
        }
        Ok(id)
    }
}

/// What has come, and a place for the rank to sleep.
#[derive(Debug)]
pub(super) struct Inbox {
    rank: usize,
    state: Mutex<State>,
    wake: Condvar,
    /// What the rank does now.
    pub(super) beat: Beat,
    /// What joins its device to others.
    links: Mutex<Vec<Weak<dyn Link>>>,
}

impl Inbox {
    /// Nothing has come.
    pub(super) fn new(rank: usize) -> Self {
        Self { rank, state: Mutex::default(), wake: Condvar::new(), beat: Beat::new(), links: Mutex::default() }
    }
    /// The lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Another iteration: nothing has come of it. No rank sends anything of it before all ranks have said that they are
    /// ready, and none says that before this.
    pub(super) fn begin(&self, script: &Arc<Script>, iteration: u64) {
        self.beat.wait(0);
        let mut state = self.lock();
        let own = |ends: &[crate::runtime::script::End]| ends.iter().any(|end| end.rank == self.rank);
        let slots = script.transactions.iter().map(|transaction| {
            let ends = if own(&transaction.ends) { transaction.ends.len() } else { 0 };
            Slot {
                reached: vec![None; ends],
                parts: (0..ends).map(|_| None).collect(),
                sums: (0..ends).map(|_| None).collect(),
                taken: None,
            }
        });
        state.slots = slots.collect();
        state.script = Some(Arc::clone(script));
        state.iteration = iteration;
        (state.signal, state.missing) = (false, None);
    }
    /// Tells the rank to leave.
    pub(super) fn quit(&self) {
        self.lock().quit = true;
        self.wake.notify_all();
        self.end_links("the rank was told to leave");
    }
    /// From now on these are ended when the rank must leave, or another is lost: its thread may wait for them.
    pub(super) fn watch(&self, links: Vec<Weak<dyn Link>>) {
        *self.links.lock().unwrap_or_else(PoisonError::into_inner) = links;
    }
    fn end_links(&self, why: &str) {
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.abort(why));
    }
    /// Sleeps until something comes or the time is over. May wake early.
    pub(super) fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        if !state.signal && !state.quit && state.lost.is_none() {
            state = match at_most {
                Some(time) => self.wake.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.signal = false;
        state
    }
    /// Sleeps for a time, or until the rank must leave. `false` if it must.
    pub(super) fn doze(&self, time: Duration) -> bool {
        let state = self.lock();
        let until = |state: &mut State| !state.quit;
        !self.wake.wait_timeout_while(state, time, until).unwrap_or_else(PoisonError::into_inner).0.quit
    }
    /// Takes in what a peer sends, until the stream ends.
    pub(super) fn read(&self, peer: usize, mut from: Socket) {
        loop {
            if let Err(error) = self.read_frame(peer, &mut from) {
                let mut state = self.lock();
                if !state.quit {
                    let why = match error.kind() {
                        std::io::ErrorKind::UnexpectedEof => "it ended".to_owned(),
                        _ => error.to_string(),
                    };
                    state.lost.get_or_insert((peer, why));
                }
                drop(state);
                self.wake.notify_all();
                self.end_links("another rank was lost");
                return;
            }
        }
    }

    fn read_frame(&self, peer: usize, from: &mut Socket) -> std::io::Result<()> {
        let header = Header::read(from)?;
        let mut state = self.lock();
        let id = state.place(self.rank, peer, header).map_err(std::io::Error::other)?;
        if header.elements > 0 {
            let mut values = state.tensor(usize::try_from(header.elements).map_err(std::io::Error::other)?);
            drop(state);
            frame::read_values(from, &mut values)?;
            state = self.lock();
            state.accept(header, id, Some(values));
        } else {
            state.accept(header, id, Some(Vec::new()));
        }
        state.signal = true;
        drop(state);
        self.wake.notify_all();
        Ok(())
    }
}

impl State {
    fn accept(&mut self, header: Header, id: EndId, values: Option<Vec<f32>>) {
        let slot = &mut self.slots[id.transaction];
        match header.kind {
            Kind::Reached => slot.reached[id.end] = header.at,
            Kind::Part => {
                slot.parts[id.end] = values;
                if header.at.is_some() {
                    slot.reached[id.end] = header.at;
                }
            }
            Kind::Sum => slot.sums[id.end] = values,
            Kind::Taken => slot.taken = header.at.zip(header.until),
        }
    }
}

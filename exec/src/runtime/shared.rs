//! What the threads of one backend share: one lock, and a place for each to sleep.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ir::{BackendError, Bytes, InstructionId, Lane};

use super::exchange::Exchanges;
use super::snapshot::Snapshot;

/// What a rank brings back from an iteration.
#[derive(Clone, Debug)]
pub(super) struct Report {
    /// Its times.
    pub(super) lane: Lane,
    /// Its share of the loss.
    pub(super) loss: Option<f64>,
    /// The norm of all gradients.
    pub(super) gradient_norm: Option<f64>,
    /// What a device measured, of which [`settle`](super::settled::settle) makes the lane.
    pub(super) measured: Option<Measured>,
}

/// What a rank's device measured of itself, in nanoseconds of the iteration.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Measured {
    /// Begin and end of each instruction.
    pub(super) spans: Vec<[u64; 2]>,
    /// Bytes at the beginning.
    pub(super) held: Bytes,
    /// Bytes from the end of an instruction on.
    pub(super) memory: Vec<(InstructionId, Bytes)>,
    /// By how much these times may differ from the host's.
    pub(super) within: u64,
}

/// What the ranks are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// To carry out an iteration.
    Iterate(u64),
    /// To put their state into the snapshot.
    Save,
    /// To write their state into a folder: they answer when they have a copy of it.
    Write(Arc<Path>),
}

/// Everything under the lock.
#[derive(Debug)]
pub(super) struct State {
    /// Messages and collectives.
    pub(super) exchanges: Exchanges,
    /// Requests so far; a rank that has done fewer begins the next.
    pub(super) asked: u64,
    /// The last of them.
    pub(super) request: Request,
    /// Ranks that have built their workers, are ready to begin the iteration, or have saved their state.
    pub(super) ready: usize,
    /// The last request that is an iteration and that all ranks were ready for.
    pub(super) begun: u64,
    /// Where ranks put their state.
    pub(super) snapshot: Snapshot,
    /// What each rank brought back.
    pub(super) reports: Vec<Option<Report>>,
    /// Whether ranks must leave at once.
    pub(super) quit: bool,
    /// What stopped the run, if anything did: the first failure.
    pub(super) failure: Option<BackendError>,
    sleeping: Vec<bool>,
}

/// What a rank does now, for the coordinator that watches for stalls. Read without the lock.
#[derive(Debug)]
pub(super) struct Beat {
    since: AtomicU64,
    instruction: AtomicU32,
}

const WAITING: u32 = u32::MAX;

impl Beat {
    pub(super) const fn new() -> Self {
        Self { since: AtomicU64::new(0), instruction: AtomicU32::new(WAITING) }
    }
    /// The rank began to wait for others, or will when an emulated instruction ends at `since`.
    pub(super) fn wait(&self, since: u64) {
        self.since.store(since, Ordering::Relaxed);
        self.instruction.store(WAITING, Ordering::Relaxed);
    }
    /// The rank began to work.
    pub(super) fn work(&self, instruction: InstructionId, since: u64) {
        self.since.store(since, Ordering::Relaxed);
        self.instruction.store(instruction.raw(), Ordering::Relaxed);
    }
    /// Since when, and at which instruction if not waiting.
    pub(super) fn read(&self) -> (u64, Option<InstructionId>) {
        let instruction = self.instruction.load(Ordering::Relaxed);
        (self.since.load(Ordering::Relaxed), (instruction != WAITING).then(|| InstructionId::new(instruction)))
    }
}

/// What the threads of one backend share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    wake: Vec<Condvar>,
    coordinator: Condvar,
    /// By rank.
    pub(super) beats: Vec<Beat>,
}

impl Shared {
    pub(super) fn new(exchanges: Exchanges, ranks: usize) -> Self {
        let state = State {
            exchanges,
            asked: 0,
            request: Request::Save,
            snapshot: Snapshot::default(),
            ready: 0,
            begun: 0,
            reports: vec![None; ranks],
            quit: false,
            failure: None,
            sleeping: vec![false; ranks],
        };
        Self {
            state: Mutex::new(state),
            wake: (0..ranks).map(|_| Condvar::new()).collect(),
            coordinator: Condvar::new(),
            beats: (0..ranks).map(|_| Beat::new()).collect(),
        }
    }
    /// The lock. A rank that panicked with it leaves a failure behind, which is what the others look for.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Gives the lock back and wakes the ranks that something happened to.
    pub(super) fn release(&self, state: MutexGuard<'_, State>) {
        let signalled: Vec<usize> = self.signalled(&state).collect();
        drop(state);
        for rank in signalled {
            self.wake[rank].notify_one();
        }
    }
    /// Sleeping ranks that something happened to.
    fn signalled<'s>(&self, state: &'s State) -> impl Iterator<Item = usize> + use<'s> {
        (0..self.wake.len()).filter(|rank| state.exchanges.signals[*rank] && state.sleeping[*rank])
    }
    /// Gives the lock back and wakes everyone.
    pub(super) fn release_all(&self, mut state: MutexGuard<'_, State>) {
        state.exchanges.signals.fill(true);
        drop(state);
        self.wake.iter().for_each(Condvar::notify_one);
        self.coordinator.notify_one();
    }
    /// Gives the lock back and wakes the coordinator.
    pub(super) fn tell_coordinator(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.coordinator.notify_one();
    }
    /// Sleeps until something happens to `rank` or the time is over, after waking the ranks that something happened to.
    /// May wake early.
    pub(super) fn sleep<'a>(
        &'a self,
        rank: usize,
        mut state: MutexGuard<'a, State>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        self.signalled(&state).for_each(|other| self.wake[other].notify_one());
        if !state.exchanges.signals[rank] {
            state.sleeping[rank] = true;
            state = match at_most {
                Some(time) => self.wake[rank].wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                None => self.wake[rank].wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.sleeping[rank] = false;
        }
        state.exchanges.signals[rank] = false;
        state
    }
    /// Sleeps until a rank has something to say or the time is over. May wake early.
    pub(super) fn coordinate<'a>(&'a self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.coordinator.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }
    /// Stops all ranks because of `failure`, unless something stopped them before.
    pub(super) fn fail(&self, failure: BackendError) {
        let mut state = self.lock();
        state.failure.get_or_insert(failure);
        state.quit = true;
        self.release_all(state);
    }
}

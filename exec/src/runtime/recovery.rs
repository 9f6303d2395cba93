//! A run goes on when a rank is lost: its processes are started again, with state that was kept before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ir::{BackendError, VerifiedProgram};

use super::processes::Processes;
use super::snapshot::Snapshot;

/// Starts the processes of all ranks.
type Start = Box<dyn FnMut(&Loss<'_>) -> Result<Started, BackendError>>;

/// A rank was lost, or could not be started again.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// What stopped the ranks.
    pub error: &'a BackendError,
    /// How often ranks were lost without an iteration that ended in between; 1 for the first time.
    pub in_a_row: usize,
}

/// Processes that go on.
#[derive(Debug)]
pub struct Started {
    /// One for each rank.
    pub processes: Processes,
    /// What they carry out from now on, of the same model and data; `None` for what was carried out before.
    pub program: Option<Arc<VerifiedProgram>>,
}

/// How a run goes on when a rank is lost.
///
/// It goes on from the newest checkpoint of the run ([`super::Checkpointing`]). Without checkpoints the coordinator keeps the state
/// of training in memory, where it outlives any rank, not the coordinator. The iterations since are repeated; they give the same
/// numbers again.
pub struct Recovery {
    start: Start,
    every: u64,
    most: usize,
    /// What stopped the ranks each time.
    causes: Vec<BackendError>,
    in_a_row: usize,
    repeated: u64,
    kept: Option<(u64, Arc<Snapshot>)>,
    lost_time: LostTime,
}

/// What lost ranks cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostTime {
    /// The iterations in which ranks were lost: from their begin until the loss was found. Finding it is part of it.
    pub broken_off: Duration,
    /// From then until all ranks had their state again.
    pub restarting: Duration,
    /// Iterations that were carried out again.
    pub repeating: Duration,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery").field("causes", &self.causes).field("lost", &self.lost_time).finish_non_exhaustive()
    }
}

impl Recovery {
    /// Starts processes again with `start`, at most `most` times. Where no checkpoints are written, keeps the state after every
    /// `every` iterations.
    ///
    /// # Panics
    /// If `every` is 0.
    #[must_use]
    pub fn new(
        every: u64,
        most: usize,
        start: impl FnMut(&Loss<'_>) -> Result<Started, BackendError> + 'static,
    ) -> Self {
        assert!(every > 0, "state is kept after some iterations");
        Self {
            start: Box::new(start),
            every,
            most,
            causes: Vec::new(),
            in_a_row: 0,
            repeated: 0,
            kept: None,
            lost_time: LostTime::default(),
        }
    }
    /// What stopped the ranks each time that they were started again.
    #[must_use]
    pub fn causes(&self) -> &[BackendError] {
        &self.causes
    }
    /// Iterations that were carried out again.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }
    /// What lost ranks cost.
    #[must_use]
    pub const fn lost_time(&self) -> LostTime {
        self.lost_time
    }
    /// Another program begins: what was kept is older than its state.
    pub(super) fn begin(&mut self) {
        self.kept = None;
    }
    /// Whether the state after an iteration is to be kept in memory.
    pub(super) const fn wants(&self, iteration: u64) -> bool {
        (iteration + 1).is_multiple_of(self.every) && self.most > 0
    }
    /// Keeps the state after an iteration.
    pub(super) fn keep(&mut self, iteration: u64, state: Snapshot) {
        self.kept = Some((iteration + 1, Arc::new(state)));
    }
    /// What is kept, and the first iteration that is not in it.
    pub(super) fn kept(&self) -> Option<(u64, Arc<Snapshot>)> {
        self.kept.clone()
    }
    /// An iteration ended that began at `begun`; `again` if it had ended before.
    pub(super) fn ended(&mut self, begun: Instant, again: bool) {
        self.in_a_row = 0;
        if again {
            self.repeated += 1;
            self.lost_time.repeating += begun.elapsed();
        }
    }
    /// Ranks were lost in an iteration that began at `begun`.
    pub(super) fn broke_off(&mut self, begun: Instant) {
        self.lost_time.broken_off += begun.elapsed();
    }
    /// All ranks have their state again, after they were lost at `since`.
    pub(super) fn restarted(&mut self, since: Instant) {
        self.lost_time.restarting += since.elapsed();
    }
    /// The ranks stopped.
    ///
    /// # Errors
    /// What stopped them, if starting again would not help, or was done as often as it may be.
    pub(super) fn lost(&mut self, error: BackendError) -> Result<(), BackendError> {
        let lost = match error {
            BackendError::RankFailed { .. } | BackendError::Stalled { .. } => self.causes.len() < self.most,
            BackendError::NotFinite { .. }
            | BackendError::Unsupported(_)
            | BackendError::Checkpoint { .. }
            | BackendError::Interrupted => false,
        };
        if !lost {
            return Err(error);
        }
        self.causes.push(error);
        self.in_a_row += 1;
        Ok(())
    }
    /// Starts processes again, for the loss told last.
    ///
    /// # Errors
    /// What became of the first that did not start.
    ///
    /// # Panics
    /// If none was told.
    pub(super) fn start(&mut self) -> Result<Started, BackendError> {
        let error = self.causes.last().expect("a rank was lost");
        (self.start)(&Loss { error, in_a_row: self.in_a_row })
    }
}

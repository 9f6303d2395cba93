//! A run goes on when a rank is lost: its processes are started again, with state that was kept before.

use ir::BackendError;

use super::processes::Processes;
use super::snapshot::Snapshot;

/// Starts the processes of all ranks.
type Start = Box<dyn FnMut() -> Result<Processes, BackendError>>;

/// How a run goes on when a rank is lost.
///
/// The coordinator keeps the state of training in memory and repeats the iterations since; they give the same numbers again.
/// It outlives any rank, not the coordinator.
pub struct Recovery {
    start: Start,
    every: u64,
    most: usize,
    /// What stopped the ranks each time.
    causes: Vec<BackendError>,
    repeated: u64,
    kept: Option<Snapshot>,
    /// The first iteration that is not in what is kept.
    next: Option<u64>,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery").field("causes", &self.causes).field("next", &self.next).finish_non_exhaustive()
    }
}

impl Recovery {
    /// Keeps the state after every `every` iterations, and starts processes again with `start`, at most `most` times.
    ///
    /// # Panics
    /// If `every` is 0.
    #[must_use]
    pub fn new(every: u64, most: usize, start: impl FnMut() -> Result<Processes, BackendError> + 'static) -> Self {
        assert!(every > 0, "state is kept after some iterations");
        Self { start: Box::new(start), every, most, causes: Vec::new(), repeated: 0, kept: None, next: None }
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
    /// Another program begins, with this state if any.
    pub(super) fn begin(&mut self, state: Option<Snapshot>) {
        (self.kept, self.next) = (state, None);
    }
    /// An iteration begins: the first one after [`Self::begin`] is where a lost run begins again.
    pub(super) fn enter(&mut self, iteration: u64) {
        self.next.get_or_insert(iteration);
    }
    /// Whether the state after an iteration is to be kept.
    pub(super) const fn wants(&self, iteration: u64) -> bool {
        (iteration + 1).is_multiple_of(self.every) && self.most > 0
    }
    /// Keeps the state after an iteration.
    pub(super) fn keep(&mut self, iteration: u64, state: Snapshot) {
        (self.kept, self.next) = (Some(state), Some(iteration + 1));
    }
    /// What is kept.
    pub(super) const fn kept(&self) -> Option<&Snapshot> {
        self.kept.as_ref()
    }
    /// The ranks stopped in `iteration`: gives the iteration to go on from.
    ///
    /// # Errors
    /// What stopped them, if starting again would not help, or was done as often as it may be.
    pub(super) fn lost(&mut self, iteration: u64, error: BackendError) -> Result<u64, BackendError> {
        let lost = match error {
            BackendError::RankFailed { .. } | BackendError::Stalled { .. } => self.causes.len() < self.most,
            BackendError::NotFinite { .. } | BackendError::Unsupported(_) | BackendError::Interrupted => false,
        };
        if !lost {
            return Err(error);
        }
        self.causes.push(error);
        let next = self.next.unwrap_or(iteration);
        self.repeated += iteration - next;
        Ok(next)
    }
    /// Starts the processes again.
    ///
    /// # Errors
    /// What became of the first that did not start.
    pub(super) fn start(&mut self) -> Result<Processes, BackendError> {
        (self.start)()
    }
}

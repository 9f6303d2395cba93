//! How a verb tells what it is doing, and is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// What a verb is doing.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// The step, such as `train`.
    pub step: &'static str,
    /// Parts of it done.
    pub done: u64,
    /// Parts in all; 0 where that is not known.
    pub total: u64,
    /// What is worth knowing of it now, such as the last loss; may be empty.
    pub note: String,
}

/// What a verb needs of whoever calls it.
pub struct Context<'a> {
    /// Set to `true` by anyone to end the verb with [`Error::Interrupted`]; nothing is then left half-written.
    pub interrupt: Arc<AtomicBool>,
    progress: Box<dyn Fn(&Progress) + 'a>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("interrupt", &self.interrupt).finish_non_exhaustive()
    }
}

impl Default for Context<'_> {
    /// Nobody listens and nobody stops.
    fn default() -> Self {
        Self::new(Arc::default(), |_| {})
    }
}

impl<'a> Context<'a> {
    /// With a flag that stops and a listener.
    pub fn new(interrupt: Arc<AtomicBool>, progress: impl Fn(&Progress) + 'a) -> Self {
        Self { interrupt, progress: Box::new(progress) }
    }
    /// Tells how far a step is; an error if the person asked to stop.
    pub(crate) fn step(&self, step: &'static str, done: u64, total: u64, note: impl Into<String>) -> Result<(), Error> {
        (self.progress)(&Progress { step, done, total, note: note.into() });
        if self.interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

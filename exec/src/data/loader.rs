//! Global batches, made ahead of their use by a thread of their own.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ir::{BackendError, Problem};

use super::{Batch, Dataset};

/// Global batches that are ready before they are asked for.
const AHEAD: usize = 2;

/// A thread that makes the global batches of a training in order, a few ahead of their use. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Loader {
    dataset: Arc<Dataset>,
    global_batch: u32,
    /// Global batches per second that come at most.
    most: Option<f64>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// The first sample of the batch that comes next.
    next: u64,
    batches: Receiver<Batch>,
    /// Held until the thread is to end.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Of batches of `global_batch` samples, of which at most `most` per second come.
    pub(crate) const fn new(dataset: Arc<Dataset>, global_batch: u32, most: Option<f64>) -> Self {
        Self { dataset, global_batch, most, running: None }
    }

    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The batch whose first sample stands at a place of the training, and how long it was waited for. Another place than the
    /// one after the last batch starts over there.
    ///
    /// # Errors
    /// [`BackendError::Interrupted`] if `given_up` says so, which is asked every few milliseconds; or if there is no thread.
    pub(crate) fn take(&mut self, first: u64, given_up: impl Fn() -> bool) -> Result<(Batch, Duration), BackendError> {
        let begun = Instant::now();
        if self.running.as_ref().is_none_or(|running| running.next != first) {
            self.running = None;
            self.running = Some(self.start(first)?);
        }
        let running = self.running.as_mut().expect("just started");
        loop {
            match running.batches.recv_timeout(Duration::from_millis(20)) {
                Ok(batch) => {
                    running.next = first + u64::from(self.global_batch);
                    return Ok((batch, begun.elapsed()));
                }
                Err(RecvTimeoutError::Timeout) if given_up() => return Err(BackendError::Interrupted),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the thread that makes batches panicked"),
            }
        }
    }

    fn start(&self, first: u64) -> Result<Running, BackendError> {
        let (send, batches) = mpsc::sync_channel(AHEAD);
        let (stop, stopped) = mpsc::channel::<()>();
        let (dataset, global_batch) = (Arc::clone(&self.dataset), self.global_batch);
        let each =
            self.most.map_or(Duration::ZERO, |most| Duration::try_from_secs_f64(1.0 / most).unwrap_or(Duration::MAX));
        let work = move || {
            for place in (first..).step_by(global_batch as usize) {
                let begun = Instant::now();
                let batch = dataset.batch(place, global_batch);
                let left = each.saturating_sub(begun.elapsed());
                // Nobody sends: it is silent until the loader is dropped.
                if !matches!(stopped.recv_timeout(left), Err(RecvTimeoutError::Timeout)) || send.send(batch).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(work);
        let refused = |error| vec![Problem::new("data", format!("no thread can be started that loads it: {error}"))];
        let thread = thread.map_err(|error| BackendError::Unsupported(refused(error)))?;
        Ok(Running { next: first, batches, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that waits to hand over its batch sees that nobody takes it.
        let (_, nothing) = mpsc::sync_channel(0);
        drop(std::mem::replace(&mut self.batches, nothing));
        if let Some(thread) = self.thread.take() {
            // Its panic was seen by whoever asked for a batch.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> Arc<Dataset> {
        Arc::new(Dataset::new(crate::data::generate(3, 4_000), 16, 1).unwrap())
    }

    fn take(loader: &mut Loader, first: u64) -> (Batch, Duration) {
        loader.take(first, || false).unwrap()
    }

    #[test]
    fn batches_come_in_order_and_again() {
        let data = dataset();
        let mut loader = Loader::new(Arc::clone(&data), 6, None);
        for first in [0, 6, 12, 6, 12, 3, 9, 1000, 1006] {
            assert_eq!(take(&mut loader, first).0, data.batch(first, 6), "from {first}");
        }
    }

    #[test]
    fn a_slow_source_is_waited_for_and_works_ahead() {
        let mut loader = Loader::new(dataset(), 4, Some(20.0));
        let waited = take(&mut loader, 0).1;
        assert!(waited >= Duration::from_millis(45), "{waited:?}");
        // Meanwhile the next ones are made.
        std::thread::sleep(Duration::from_millis(170));
        let waited = take(&mut loader, 4).1;
        assert!(waited < Duration::from_millis(30), "{waited:?}");
    }

    #[test]
    fn who_waits_can_give_up_and_the_thread_ends() {
        let mut loader = Loader::new(dataset(), 4, Some(1e-3));
        let begun = Instant::now();
        assert!(matches!(loader.take(0, || true), Err(BackendError::Interrupted)));
        drop(loader);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

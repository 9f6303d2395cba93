//! Pending events, in the order in which they happen: by time, then by insertion.
//!
//! Two backends give the same order to the last event, and an engine is generic over them:
//!
//! - [`RadixQueue`], the default: a monotone radix heap, nearly flat in the number of pending events.
//! - [`IndexedQueue`], over the `priority-queue` crate, which moves an entry instead of leaving a stale
//!   one behind: for comparison, and where most keys change.
//!
//! Both are monotone: time never runs backwards, so an event cannot be placed before the last one that
//! was popped. That is what simulation needs and what rollback would break; there is no rollback here.
//!
//! ```
//! use trainyard_sim::queue::{Key, Queue, RadixQueue};
//!
//! let mut queue = RadixQueue::new();
//! queue.push(5, "tick");
//! let flow = Key::new(0);
//! queue.schedule(flow, 9, "flow done");
//! queue.schedule(flow, 5, "flow done sooner");
//!
//! let mut instant = Vec::new();
//! assert_eq!(queue.drain_instant(&mut instant), Some(5));
//! assert_eq!(instant, ["tick", "flow done sooner"]);
//! assert_eq!(queue.pop(), None);
//! ```

mod indexed;
mod radix;
#[cfg(test)]
mod tests;

pub use indexed::IndexedQueue;
pub use radix::RadixQueue;

/// Names what can be cancelled or moved: at most one pending event per key.
///
/// Keys are dense: a queue keeps a table as long as the largest key it has seen. An owner that numbers
/// its things from zero and reuses the numbers (a flow's slot, a device's stream) uses those numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u32);

impl Key {
    /// The key of thing number `index`.
    ///
    /// # Panics
    /// `u32::MAX` is not a key.
    pub const fn new(index: u32) -> Self {
        assert!(index != u32::MAX, "u32::MAX is not a key: keys are dense");
        Self(index)
    }

    /// The number of the thing.
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// Pending events by time (nanoseconds), ties by insertion. See the [module](self).
///
/// An event that is moved counts as inserted when it was last moved.
pub trait Queue<E> {
    /// Adds an event that nothing will take back.
    ///
    /// # Panics
    /// If `time` is before [`now`](Self::now).
    fn push(&mut self, time: u64, event: E);

    /// Adds the event of `key`, in place of the one pending under that key, if any.
    ///
    /// # Panics
    /// If `time` is before [`now`](Self::now).
    fn schedule(&mut self, key: Key, time: u64, event: E);

    /// Takes back the event of `key`; says whether one was pending.
    fn cancel(&mut self, key: Key) -> bool;

    /// Takes out the first event and moves [`now`](Self::now) to its time.
    fn pop(&mut self) -> Option<(u64, E)>;

    /// Takes out every event of the first instant, in order, onto the end of `events`; returns that
    /// instant. Events pushed for the same instant afterwards form another round of it.
    fn drain_instant(&mut self, events: &mut Vec<E>) -> Option<u64> {
        let (instant, first) = self.pop()?;
        events.push(first);
        while self.next_time() == Some(instant) {
            events.extend(self.pop().map(|(_, event)| event));
        }
        Some(instant)
    }

    /// The time of the first event. Moves nothing: events before it may still be added.
    fn next_time(&self) -> Option<u64>;

    /// The time of the last event popped; zero before the first.
    fn now(&self) -> u64;

    /// How many events are pending, those cancelled or replaced not among them.
    fn len(&self) -> usize;

    /// Whether no event is pending.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The precondition of both backends.
fn assert_not_past(time: u64, now: u64) {
    assert!(time >= now, "event at {time} ns is before now ({now} ns): time does not run backwards");
}

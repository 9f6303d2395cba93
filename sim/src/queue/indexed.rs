//! The same queue over the `priority-queue` crate: a binary heap with an index by key.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use priority_queue::PriorityQueue;
use rustc_hash::FxHasher;

use super::{Key, Queue, assert_not_past};

/// A [`Queue`] that moves an entry when its key is rescheduled, and so never holds a stale one.
#[derive(Debug)]
pub struct IndexedQueue<E> {
    now: u64,
    /// How many insertions there have been; breaks ties.
    insertions: u64,
    heap: PriorityQueue<Item<E>, Reverse<(u64, u64)>, BuildHasherDefault<FxHasher>>,
}

/// An event under the name by which the heap finds it again.
#[derive(Debug)]
struct Item<E> {
    name: u64,
    event: E,
}

/// Keys take the names below this; events without a key are named after their insertion, from here up.
const FIRST_WITHOUT_KEY: u64 = 1 << 32;

impl<E> PartialEq for Item<E> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<E> Eq for Item<E> {}

impl<E> Hash for Item<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl<E> Borrow<u64> for Item<E> {
    fn borrow(&self) -> &u64 {
        &self.name
    }
}

impl<E> Default for IndexedQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> IndexedQueue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Self {
        Self { now: 0, insertions: 0, heap: PriorityQueue::with_default_hasher() }
    }

    /// The priority of an event inserted now.
    fn insertion(&mut self, time: u64) -> Reverse<(u64, u64)> {
        assert_not_past(time, self.now);
        self.insertions += 1;
        Reverse((time, self.insertions))
    }
}

impl<E> Queue<E> for IndexedQueue<E> {
    fn push(&mut self, time: u64, event: E) {
        let priority = self.insertion(time);
        self.heap.push(Item { name: FIRST_WITHOUT_KEY + self.insertions, event }, priority);
    }

    fn schedule(&mut self, key: Key, time: u64, event: E) {
        let priority = self.insertion(time);
        let name = u64::from(key.0);
        match self.heap.get_mut(&name) {
            Some((item, _)) => {
                item.event = event;
                self.heap.change_priority(&name, priority);
            }
            None => {
                self.heap.push(Item { name, event }, priority);
            }
        }
    }

    fn cancel(&mut self, key: Key) -> bool {
        self.heap.remove(&u64::from(key.0)).is_some()
    }

    fn pop(&mut self) -> Option<(u64, E)> {
        let (item, Reverse((time, _))) = self.heap.pop()?;
        self.now = time;
        Some((time, item.event))
    }

    fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|(_, Reverse((time, _)))| *time)
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn len(&self) -> usize {
        self.heap.len()
    }
}

//! A monotone radix heap with first-in first-out ties and cancellation by generation.
//!
//! **Order.** An event at `now` waits in `ready`. Any other waits in bucket `b`, the highest bit in
//! which its time differs from `now`. Every time in a bucket is below every time in the next, so the
//! first event is in the lowest bucket that holds any. To reach it, `now` becomes the least time in that
//! bucket and the bucket is dealt out again, front to back. Its times agree from bit `b` up, so each
//! lands in a lower bucket (an event moves at most 64 times in its life); and `now` changed only from
//! bit `b` down, so all other buckets remain right as they are.
//!
//! **Ties.** Where an event waits depends on its time and `now` alone, so equal times are always in the
//! same place; additions go to the end and dealing keeps the order. Equal times therefore leave in the
//! order of their insertion, and no sequence number is needed.
//!
//! **Cancellation.** Each key has a generation, odd while its event is pending. An entry carries the
//! generation it was scheduled under and is stale once the key has moved on. Stale entries are dropped
//! when met, and all at once when they outnumber the others, so a thing that is rescheduled over and over
//! holds bounded memory: right after `schedule` or `cancel` there are at most `2 * len + 64` entries.

use std::collections::VecDeque;

use super::{Key, Queue, assert_not_past};

/// The bits of a time, hence the number of buckets.
const BUCKETS: usize = u64::BITS as usize;
/// Stale entries that are not worth a sweep.
const SLACK: usize = 64;
/// The key of an entry that cannot be cancelled.
const NO_KEY: u32 = u32::MAX;

/// The default [`Queue`]: a monotone radix heap.
///
/// `push` and `pop` take amortised constant time, whatever is pending.
#[derive(Debug)]
pub struct RadixQueue<E> {
    now: u64,
    /// Entries at `now`.
    ready: VecDeque<Entry<E>>,
    /// Bucket `b`: entries whose time differs from `now` in bit `b` and in none above.
    buckets: [Vec<Entry<E>>; BUCKETS],
    /// Bit `b` is set if bucket `b` holds entries.
    occupied: u64,
    generations: Generations,
    /// Entries held, the stale ones included.
    entries: usize,
    /// Entries held that are not stale.
    live: usize,
}

#[derive(Debug)]
struct Entry<E> {
    time: u64,
    key: u32,
    generation: u32,
    event: E,
}

/// The generation of each key: odd while an event of it is pending.
#[derive(Debug, Default)]
struct Generations(Vec<u32>);

impl Generations {
    fn is_live<E>(&self, entry: &Entry<E>) -> bool {
        entry.key == NO_KEY || self.0[entry.key as usize] == entry.generation
    }

    fn is_pending(&self, key: Key) -> bool {
        self.0.get(key.0 as usize).is_some_and(|generation| generation % 2 == 1)
    }

    /// Moves to the next generation and returns it.
    fn advance(&mut self, key: u32) -> u32 {
        let generation = &mut self.0[key as usize];
        *generation = generation.wrapping_add(1);
        *generation
    }
}

impl<E> Default for RadixQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> RadixQueue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Self {
        Self {
            now: 0,
            ready: VecDeque::new(),
            buckets: [const { Vec::new() }; BUCKETS],
            occupied: 0,
            generations: Generations::default(),
            entries: 0,
            live: 0,
        }
    }

    /// How many entries are held, those cancelled or replaced among them.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn insert(&mut self, entry: Entry<E>) {
        assert_not_past(entry.time, self.now);
        self.entries += 1;
        self.live += 1;
        self.place(entry);
    }

    #[inline]
    fn place(&mut self, entry: Entry<E>) {
        match (entry.time ^ self.now).checked_ilog2() {
            None => self.ready.push_back(entry),
            Some(bit) => {
                self.buckets[bit as usize].push(entry);
                self.occupied |= 1 << bit;
            }
        }
    }

    /// With nothing ready: moves `now` to the first pending event and makes its instant ready.
    /// Returns false if nothing is pending.
    fn refill(&mut self) -> bool {
        while self.occupied != 0 {
            let lowest = self.occupied.trailing_zeros() as usize;
            self.occupied &= self.occupied - 1;
            // One entry alone, as a rule when few are pending, is the first event if it is live: nothing to deal out.
            if self.buckets[lowest].len() == 1 {
                let entry = self.buckets[lowest].pop().expect("one entry");
                if self.generations.is_live(&entry) {
                    self.now = entry.time;
                    self.ready.push_back(entry);
                    return true;
                }
                self.entries -= 1;
                continue;
            }
            let mut bucket = std::mem::take(&mut self.buckets[lowest]);

            let held = bucket.len();
            let mut earliest = u64::MAX;
            bucket.retain(|entry| {
                let live = self.generations.is_live(entry);
                if live {
                    earliest = earliest.min(entry.time);
                }
                live
            });
            self.entries -= held - bucket.len();

            let found = !bucket.is_empty();
            if found {
                self.now = earliest;
                for entry in bucket.drain(..) {
                    self.place(entry);
                }
            }
            debug_assert!(self.buckets[lowest].is_empty(), "an entry of bucket {lowest} was dealt back into it");
            self.buckets[lowest] = bucket; // keeps its allocation
            if found {
                return true;
            }
        }
        false
    }

    /// Takes out the first event that is ready.
    fn pop_ready(&mut self) -> Option<E> {
        while let Some(entry) = self.ready.pop_front() {
            self.entries -= 1;
            if self.generations.is_live(&entry) {
                self.live -= 1;
                if entry.key != NO_KEY {
                    self.retire(entry.key);
                }
                return Some(entry.event);
            }
        }
        None
    }

    /// Ends the generation of a pending key. Its entry, if still held, is no longer counted as live.
    fn retire(&mut self, key: u32) {
        if self.generations.advance(key) == 0 {
            // The numbers start over: no entry of the previous turn may be left to be mistaken for a live one.
            self.compact();
        }
    }

    fn compact_if_stale(&mut self) {
        if self.entries > 2 * self.live + SLACK {
            self.compact();
        }
    }

    /// Drops every stale entry.
    fn compact(&mut self) {
        let generations = &self.generations;
        self.ready.retain(|entry| generations.is_live(entry));
        for (bit, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.retain(|entry| generations.is_live(entry));
            if bucket.is_empty() {
                self.occupied &= !(1 << bit);
            }
        }
        self.entries = self.live;
        debug_assert_eq!(
            self.entries,
            self.ready.len() + self.buckets.iter().map(Vec::len).sum::<usize>(),
            "the count of live entries is off"
        );
    }

    #[cfg(test)]
    pub(super) fn age_key(&mut self, key: Key, turns: u32) {
        assert!(!self.generations.is_pending(key) && turns.is_multiple_of(2));
        self.generations.0[key.0 as usize] += turns;
    }
}

impl<E> Queue<E> for RadixQueue<E> {
    fn push(&mut self, time: u64, event: E) {
        self.insert(Entry { time, key: NO_KEY, generation: 0, event });
    }

    fn schedule(&mut self, key: Key, time: u64, event: E) {
        assert_not_past(time, self.now);
        let Key(index) = key;
        if self.generations.is_pending(key) {
            self.live -= 1;
            self.retire(index);
        } else if index as usize >= self.generations.0.len() {
            self.generations.0.resize(index as usize + 1, 0);
        }
        let generation = self.generations.advance(index);
        self.insert(Entry { time, key: index, generation, event });
        self.compact_if_stale();
    }

    fn cancel(&mut self, key: Key) -> bool {
        let pending = self.generations.is_pending(key);
        if pending {
            self.live -= 1;
            self.retire(key.0);
            self.compact_if_stale();
        }
        pending
    }

    fn pop(&mut self) -> Option<(u64, E)> {
        loop {
            if let Some(event) = self.pop_ready() {
                return Some((self.now, event));
            }
            if !self.refill() {
                return None;
            }
        }
    }

    fn drain_instant(&mut self, events: &mut Vec<E>) -> Option<u64> {
        let before = events.len();
        loop {
            while let Some(event) = self.pop_ready() {
                events.push(event);
            }
            if events.len() > before {
                return Some(self.now);
            }
            if !self.refill() {
                return None;
            }
        }
    }

    /// Looks through the lowest bucket: as long as the `pop` that follows, at worst.
    fn next_time(&self) -> Option<u64> {
        if self.ready.iter().any(|entry| self.generations.is_live(entry)) {
            return Some(self.now);
        }
        self.buckets.iter().find_map(|bucket| {
            bucket.iter().filter(|entry| self.generations.is_live(entry)).map(|entry| entry.time).min()
        })
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn len(&self) -> usize {
        self.live
    }
}

//! Both backends against the standard heap over (time, insertion), and against hostile use.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{IndexedQueue, Key, Queue, RadixQueue};
use crate::swarm::{Dice, for_each_seed};

/// What a queue must do, as plainly as it can be said. An event is its insertion's number.
#[derive(Default)]
struct Oracle {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    pending: Vec<Option<u64>>,
    without_key: usize,
    key_of: Vec<Option<usize>>,
}

impl Oracle {
    fn insert(&mut self, time: u64, key: Option<usize>) -> u64 {
        let event = self.key_of.len() as u64;
        self.key_of.push(key);
        match key {
            None => self.without_key += 1,
            Some(key) => {
                self.pending.resize(self.pending.len().max(key + 1), None);
                self.pending[key] = Some(event);
            }
        }
        self.heap.push(Reverse((time, event)));
        event
    }

    fn cancel(&mut self, key: usize) -> bool {
        self.pending.get_mut(key).and_then(Option::take).is_some()
    }

    fn pop(&mut self) -> Option<(u64, u64)> {
        while let Some(Reverse((time, event))) = self.heap.pop() {
            match self.key_of[usize::try_from(event).unwrap()] {
                None => self.without_key -= 1,
                Some(key) if self.pending[key] == Some(event) => self.pending[key] = None,
                Some(_) => continue,
            }
            return Some((time, event));
        }
        None
    }

    fn len(&self) -> usize {
        self.without_key + self.pending.iter().flatten().count()
    }
}

/// A time at or after `now`: often a tie, sometimes at the far ends of the range.
fn some_time(dice: &mut Dice, now: u64, reach: u64) -> u64 {
    match dice.below(16) {
        0 => now,
        1 => u64::MAX,
        2 => now.saturating_add(dice.next() >> dice.below(64)),
        _ => now.saturating_add(dice.below(reach)),
    }
}

fn check_against_oracle(dice: &mut Dice, mut queue: impl Queue<u64>) {
    let mut oracle = Oracle::default();
    let reach = 1 << dice.below(20);
    let keys = 1 + dice.index(40);
    let rounds = 2_000;
    for round in 0..rounds {
        let now = queue.now();
        let key = dice.index(keys);
        let name = Key::new(u32::try_from(key).unwrap());
        let filling = (round / 200) % 2 == 0;
        match dice.below(if filling { 8 } else { 14 }) {
            0..=2 => {
                let time = some_time(dice, now, reach);
                queue.push(time, oracle.insert(time, None));
            }
            3..=5 => {
                let time = some_time(dice, now, reach);
                queue.schedule(name, time, oracle.insert(time, Some(key)));
            }
            6 => assert_eq!(queue.cancel(name), oracle.cancel(key)),
            7 => {
                let mut instant = Vec::new();
                let time = queue.drain_instant(&mut instant);
                for event in instant {
                    assert_eq!(oracle.pop(), Some((time.unwrap(), event)));
                }
                assert!(time.is_none() || queue.next_time() != time, "an event was left in its instant");
            }
            _ => {
                let next = queue.next_time();
                let popped = queue.pop();
                assert_eq!(popped, oracle.pop());
                assert_eq!(next, popped.map(|(time, _)| time));
            }
        }
        assert_eq!(queue.len(), oracle.len());
    }
    while let Some(expected) = oracle.pop() {
        assert_eq!(queue.pop(), Some(expected));
        assert_eq!(queue.now(), expected.0);
    }
    assert_eq!(queue.pop(), None);
    assert!(queue.is_empty() && queue.next_time().is_none());
}

#[test]
fn radix_matches_the_standard_heap() {
    for_each_seed(400, |dice| check_against_oracle(dice, RadixQueue::new()));
}

#[test]
fn indexed_matches_the_standard_heap() {
    for_each_seed(200, |dice| check_against_oracle(dice, IndexedQueue::new()));
}

#[test]
fn reschedules_in_frozen_time_stay_bounded() {
    let mut queue = RadixQueue::new();
    let mut dice = Dice::new(1);
    let keys = 1_000;
    for key in 0..keys {
        queue.schedule(Key::new(key), 1 << 40, key);
    }
    let mut peak = 0;
    for _ in 0..3_000_000 {
        let key = dice.count(0, keys - 1);
        queue.schedule(Key::new(key), dice.next() >> dice.below(64), key);
        peak = peak.max(queue.entries());
    }
    assert_eq!((queue.now(), queue.len()), (0, 1_000));
    assert!(peak <= 2 * 1_000 + 64, "{peak} entries for 1000 live ones");
}

#[test]
fn cancelling_everything_leaves_little_behind() {
    let mut queue = RadixQueue::new();
    for key in 0..10_000 {
        queue.schedule(Key::new(key), u64::from(key), ());
    }
    for key in 0..10_000 {
        assert!(queue.cancel(Key::new(key)));
        assert!(!queue.cancel(Key::new(key)));
    }
    assert!(queue.is_empty() && queue.entries() <= 64);
    assert_eq!(queue.pop(), None);
    assert_eq!(queue.now(), 0, "what was cancelled does not move time");
}

#[test]
fn generations_may_start_over() {
    let mut queue = RadixQueue::new();
    let key = Key::new(0);
    queue.schedule(key, 100, "stale"); // generation 1
    queue.cancel(key); // 2
    queue.age_key(key, u32::MAX - 3); // u32::MAX - 1
    queue.schedule(key, 1, "last of its turn"); // u32::MAX
    assert_eq!(queue.pop(), Some((1, "last of its turn"))); // 0
    queue.schedule(key, 200, "first of the next"); // 1 again, as "stale"
    assert_eq!(queue.pop(), Some((200, "first of the next")));
    assert_eq!(queue.pop(), None);
}

fn check_extremes(mut queue: impl Queue<char>) {
    queue.push(u64::MAX, 'c');
    queue.push(u64::MAX - 1, 'b');
    queue.schedule(Key::new(0), u64::MAX, 'd');
    queue.push(0, 'a');
    assert_eq!(queue.pop(), Some((0, 'a')));
    assert_eq!(queue.pop(), Some((u64::MAX - 1, 'b')));
    assert_eq!(queue.pop(), Some((u64::MAX, 'c')));
    queue.push(u64::MAX, 'e');
    assert_eq!(queue.pop(), Some((u64::MAX, 'd')));
    assert_eq!(queue.pop(), Some((u64::MAX, 'e')));
    assert_eq!(queue.pop(), None);
    assert_eq!(queue.now(), u64::MAX);
}

#[test]
fn the_ends_of_time() {
    check_extremes(RadixQueue::new());
    check_extremes(IndexedQueue::new());
}

#[test]
fn looking_ahead_does_not_move_time() {
    let mut queue = RadixQueue::new();
    queue.push(10, 'b');
    assert_eq!(queue.next_time(), Some(10));
    queue.push(3, 'a');
    assert_eq!(queue.pop(), Some((3, 'a')));
}

#[test]
#[should_panic(expected = "event at 4 ns is before now (5 ns)")]
fn radix_refuses_the_past() {
    let mut queue = RadixQueue::new();
    queue.push(5, ());
    queue.pop();
    queue.push(4, ());
}

#[test]
#[should_panic(expected = "event at 4 ns is before now (5 ns)")]
fn indexed_refuses_the_past() {
    let mut queue = IndexedQueue::new();
    queue.push(5, ());
    queue.pop();
    queue.schedule(Key::new(0), 4, ());
}

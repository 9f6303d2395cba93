//! Parts of the engine under steady load: a queue that holds so many events, a fabric that holds so many flows.

use sim::fabric::flows::Flows;
use sim::fabric::{FlowId, FlowSpec, Hop, LinkId};
use sim::machine::End;
use sim::queue::{Key, Queue};
use trainyard_conformance::dice::Dice;

/// How many events are pending, and how far ahead they are set, in nanoseconds.
const AHEAD: u32 = 2_000_000;
/// One event in so many is a flow's, which is moved before it comes.
const MOVED: u32 = 8;

/// A queue used as the engine uses it, with as many events pending after each step as before.
#[derive(Debug)]
pub struct Hold<Q> {
    queue: Q,
    dice: Dice,
    ends: Vec<End>,
    /// Events taken out so far.
    pub taken: u64,
    next: u32,
    pending: u32,
}

impl<Q: Queue<End> + Default> Hold<Q> {
    /// `pending` events; of each `MOVED`, one has a key.
    #[must_use]
    pub fn new(pending: u32) -> Self {
        let mut hold = Self { queue: Q::default(), dice: Dice::new(7), ends: Vec::new(), taken: 0, next: 0, pending };
        for _ in 0..pending {
            hold.add(0);
        }
        hold
    }
    fn add(&mut self, now: u64) {
        let time = now + u64::from(self.dice.within(1, AHEAD));
        let number = self.next;
        self.next = (number + 1) % self.pending;
        if number.is_multiple_of(MOVED) {
            self.queue.schedule(Key::new(number), time, End::Flow(number));
        } else {
            self.queue.push(time, End::Node(number));
        }
    }
    /// Takes out every event of so many instants, puts as many back, and moves a flow's.
    ///
    /// # Panics
    /// If the queue ran dry: a bug in it.
    pub fn step(&mut self, instants: u32) {
        for _ in 0..instants {
            let now = self.queue.drain_instant(&mut self.ends).expect("a queue that holds its events");
            self.taken += self.ends.len() as u64;
            let mut ends = std::mem::take(&mut self.ends);
            for _ in ends.drain(..) {
                self.add(now);
            }
            self.ends = ends;
            let moved = self.dice.within(0, self.pending / MOVED - 1) * MOVED;
            let time = now + u64::from(self.dice.within(1, AHEAD));
            self.queue.schedule(Key::new(moved), time, End::Flow(moved));
        }
    }
}

/// A fat tree of NICs under leaf switches, with flows between random pairs that come and go.
#[derive(Debug)]
pub struct Traffic {
    flows: Flows,
    nics: u32,
    links: Vec<LinkId>,
    under_way: Vec<FlowId>,
    dice: Dice,
    now: u64,
}

/// NICs under one leaf.
const LEAF: u32 = 16;

impl Traffic {
    /// `nics` NICs of 25 GB/s in each direction under leaves oversubscribed by two, and as many flows.
    #[must_use]
    pub fn new(nics: u32) -> Self {
        let mut flows = Flows::new();
        let capacity = 25_000_000_000;
        let mut links: Vec<LinkId> = (0..2 * nics).map(|_| flows.add_link(capacity)).collect();
        links.extend((0..2 * nics.div_ceil(LEAF)).map(|_| flows.add_link(capacity * u64::from(LEAF) / 2)));
        let mut traffic = Self { flows, nics, links, under_way: Vec::new(), dice: Dice::new(3), now: 0 };
        for _ in 0..nics {
            traffic.start();
        }
        traffic.flows.update(0);
        traffic
    }
    fn start(&mut self) {
        let [from, to] = [(); 2].map(|()| self.dice.within(0, self.nics - 1));
        let leaves = 2 * self.nics;
        let hop = |index: u32| Hop { link: self.links[index as usize], uses: 1 };
        let hops = [hop(2 * from), hop(leaves + 2 * (from / LEAF)), hop(leaves + 2 * (to / LEAF) + 1), hop(2 * to + 1)];
        let flow = self.flows.start(self.now, 1_000_000_000, FlowSpec { cap: 25_000_000_000, count: 1, hops: &hops });
        self.under_way.push(flow);
    }
    /// Takes out a flow, starts another and shares anew, so many times; returns how many rates changed.
    pub fn step(&mut self, times: u32) -> usize {
        let mut changed = 0;
        for _ in 0..times {
            self.now += 10;
            let index = self.dice.index(self.under_way.len());
            let gone = self.under_way.swap_remove(index);
            self.flows.abandon(self.now, gone);
            self.start();
            changed += self.flows.update(self.now).len();
        }
        changed
    }
}

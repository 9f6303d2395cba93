//! Integer max-min fair rates, solved again only where a change can reach.
//!
//! **The rule.** All flows start at rate zero and rise together, one byte per second at a time. A flow
//! that has reached its cap asks for no more. At each step, every link that cannot carry one more byte
//! per second for *all* the unit flows that still ask for it over that link refuses *all* of them, at
//! once; a refused flow keeps the rate it has. The rates are what each flow has when none asks any more.
//!
//! Capacity is counted as `max(capacity, shares)`, where the shares of a link are `sum(count * uses)` over
//! its flows. So a step from zero to one is never refused and no rate is zero: a link that is crossed by
//! more unit flows than it has bytes per second (or has none at all) carries one byte per second for
//! each. The invariant is therefore `load <= max(capacity, shares)`, which is the capacity of any link
//! worth the name. A link that is down belongs in no path.
//!
//! The rates do not depend on the order of flows, equal flows may be folded into one, and a flow that
//! crosses no **contended** link, one that could not carry all its flows at their caps, has its cap
//! exactly: `filling` derives why. Rates therefore depend on each other only along contended links, and a
//! change is solved on the flows that are connected, over contended links, with a link that the change
//! touched and that is contended or was. If there is none, nothing is solved.
//!
//! Solving `f` flows with `h` hops over `l` contended links takes `O(f log f + (h + l) log l)` and, once the
//! buffers have grown, no allocation.

mod filling;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{FlowId, FlowSpec, LinkId};

/// A flow and its new rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// The flow.
    pub flow: FlowId,
    /// The rate of each of its unit flows, in bytes per second.
    pub rate: u64,
}

/// Links, the flows that cross them, and the rates of the flows. See the [module](self) for the rule.
///
/// Changes are gathered and take effect together at [`solve`](Self::solve).
#[derive(Debug, Default)]
pub struct Solver {
    links: Vec<Link>,
    flows: Vec<Flow>,
    /// Slots of `flows` to use again.
    free: Vec<u32>,
    /// Links touched since the last `solve`, each once.
    touched: Vec<u32>,
    /// Slots of the flows added since the last `solve`, and of those whose cap has changed.
    added: Vec<u32>,
    changed: Vec<RateChange>,
    /// The number of the current `solve`; what carries it has been visited.
    round: u64,
    /// What the current `solve` fills.
    part: Part,
    /// Flows of the part, by cap.
    by_cap: Vec<(u64, u32)>,
    /// Links of the part, by a lower bound on the level at which they refuse.
    by_level: BinaryHeap<Reverse<(u64, u32)>>,
    /// Links that refuse at the current level.
    refusing: Vec<u32>,
}

#[derive(Debug, Default)]
struct Link {
    capacity: u64,
    /// `sum(count * uses)` over its flows.
    shares: u64,
    /// `sum(cap * count * uses)` over its flows.
    demand: u128,
    members: Vec<Member>,
    touched: bool,
    contended: bool,
    visited: u64,
    /// While filling: capacity that no stopped flow uses.
    spare: u64,
    /// While filling: shares of the flows that still ask.
    asking: u64,
}

/// A flow on a link: its slot, and which of its hops that is.
#[derive(Clone, Copy, Debug)]
struct Member {
    flow: u32,
    hop: u32,
}

#[derive(Debug, Default)]
struct Flow {
    /// Odd while the slot is in use. May start over: it exposes mistakes, and nothing else rests on it.
    generation: u32,
    cap: u64,
    /// Zero until first solved.
    rate: u64,
    hops: Vec<Crossing>,
    visited: u64,
    /// The `solve` in which its rate was last fixed.
    stopped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Crossing {
    link: u32,
    /// Where the link lists it.
    position: u32,
    shares: u64,
}

/// Links and flows that are connected over contended links.
#[derive(Debug, Default)]
struct Part {
    links: Vec<u32>,
    flows: Vec<u32>,
}

impl Link {
    fn usable(&self) -> u64 {
        self.capacity.max(self.shares)
    }

    fn is_overdrawn(&self) -> bool {
        self.demand > u128::from(self.usable())
    }
}

/// An index that is kept in 32 bits.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("more than 2^32 links, flows or hops")
}

impl Solver {
    /// No links, no flows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a link of `capacity` bytes per second.
    pub fn add_link(&mut self, capacity: u64) -> LinkId {
        let link = narrow(self.links.len());
        self.links.push(Link { capacity, ..Link::default() });
        LinkId(link)
    }

    /// Changes the capacity of a link, in bytes per second.
    pub fn set_capacity(&mut self, link: LinkId, capacity: u64) {
        self.links[link.index()].capacity = capacity;
        self.touch(link.0);
    }

    /// The capacity of a link, in bytes per second.
    pub fn capacity(&self, link: LinkId) -> u64 {
        self.links[link.index()].capacity
    }

    /// Adds a flow; its rate is known after [`solve`](Self::solve).
    ///
    /// # Panics
    /// On a cap, count or use of zero, on a link of another solver, and when the shares of a link pass `u64::MAX`.
    pub fn add(&mut self, flow: FlowSpec<'_>) -> FlowId {
        flow.assert_sound();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            narrow(self.flows.len() - 1)
        });
        let state = &mut self.flows[slot as usize];
        state.generation = state.generation.wrapping_add(1);
        state.cap = flow.cap;
        state.rate = 0;
        for (index, &hop) in flow.hops.iter().enumerate() {
            let shares = flow.shares(hop);
            let link = &mut self.links[hop.link.index()];
            link.shares = link.shares.checked_add(shares).expect("the shares of a link pass 2^64");
            link.demand += u128::from(flow.cap) * u128::from(shares);
            state.hops.push(Crossing { link: hop.link.0, position: narrow(link.members.len()), shares });
            link.members.push(Member { flow: slot, hop: narrow(index) });
        }
        let id = FlowId { slot, generation: state.generation };
        for hop in flow.hops {
            self.touch(hop.link.0);
        }
        self.added.push(slot);
        id
    }

    /// Changes the rate that a flow has at most, in bytes per second.
    ///
    /// # Panics
    /// On a cap of zero, and if the flow has been removed.
    pub fn set_cap(&mut self, id: FlowId, cap: u64) {
        assert!(cap >= 1, "a flow needs a cap of at least 1 byte/s");
        let before = self.flow(id).cap;
        self.flows[id.slot as usize].cap = cap;
        for index in 0..self.flows[id.slot as usize].hops.len() {
            let Crossing { link, shares, .. } = self.flows[id.slot as usize].hops[index];
            let demand = &mut self.links[link as usize].demand;
            *demand = *demand - u128::from(before) * u128::from(shares) + u128::from(cap) * u128::from(shares);
            self.touch(link);
        }
        self.added.push(id.slot);
    }

    /// Removes a flow.
    ///
    /// # Panics
    /// If it has been removed before.
    pub fn remove(&mut self, id: FlowId) {
        let cap = self.flow(id).cap;
        let mut hops = std::mem::take(&mut self.flows[id.slot as usize].hops);
        for index in 0..hops.len() {
            let Crossing { link: number, position, shares } = hops[index];
            let link = &mut self.links[number as usize];
            link.shares -= shares;
            link.demand -= u128::from(cap) * u128::from(shares);
            link.members.swap_remove(position as usize);
            if let Some(moved) = link.members.get(position as usize) {
                let crossings =
                    if moved.flow == id.slot { &mut hops } else { &mut self.flows[moved.flow as usize].hops };
                crossings[moved.hop as usize].position = position;
            }
            self.touch(number);
        }
        hops.clear();
        let state = &mut self.flows[id.slot as usize];
        state.hops = hops; // keeps its allocation
        state.generation = state.generation.wrapping_add(1);
        self.free.push(id.slot);
    }

    /// The rate of each unit flow of a flow, in bytes per second; zero until first solved.
    ///
    /// # Panics
    /// If the flow has been removed.
    pub fn rate(&self, id: FlowId) -> u64 {
        self.flow(id).rate
    }

    /// The rate that the flow has at most.
    ///
    /// # Panics
    /// If the flow has been removed.
    pub fn cap(&self, id: FlowId) -> u64 {
        self.flow(id).cap
    }

    /// What a link carries, in bytes per second, as last solved.
    pub fn load(&self, link: LinkId) -> u128 {
        let members = self.links[link.index()].members.iter();
        members
            .map(|member| {
                let flow = &self.flows[member.flow as usize];
                u128::from(flow.rate) * u128::from(flow.hops[member.hop as usize].shares)
            })
            .sum()
    }

    /// Lets the changes since the last call take effect. Returns the flows whose rates are not what they
    /// were, those just added among them, each once and in an order that follows from the calls made.
    pub fn solve(&mut self) -> &[RateChange] {
        self.round += 1;
        self.changed.clear();
        self.find_part();
        self.fill_part();
        for slot in self.added.drain(..) {
            let flow = &mut self.flows[slot as usize];
            // Neither removed again nor reached over a contended link: nothing keeps it below its cap.
            if flow.generation % 2 == 1 && flow.visited != self.round && flow.rate != flow.cap {
                flow.rate = flow.cap;
                self.changed.push(RateChange { flow: FlowId { slot, generation: flow.generation }, rate: flow.rate });
            }
        }
        &self.changed
    }

    fn flow(&self, id: FlowId) -> &Flow {
        let flow = &self.flows[id.slot as usize];
        assert!(flow.generation == id.generation, "{id:?} has been removed");
        flow
    }

    fn touch(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        if !state.touched {
            state.touched = true;
            self.touched.push(link);
        }
    }

    /// Finds what the changes can reach: consequence 3 of the rule.
    fn find_part(&mut self) {
        let Self { links, flows, touched, part, round, .. } = self;
        part.links.clear();
        part.flows.clear();
        touched.retain(|&number| {
            let link = &mut links[number as usize];
            let was_contended = link.contended;
            link.touched = false;
            link.contended = link.is_overdrawn();
            link.contended || was_contended
        });
        for number in touched.drain(..) {
            if links[number as usize].contended {
                part.reach_link(number, links, *round);
            } else {
                part.reach_members(number, links, flows, *round);
            }
        }
        let mut next = 0;
        while let Some(&number) = part.links.get(next) {
            part.reach_members(number, links, flows, *round);
            next += 1;
        }
    }
}

impl Part {
    fn reach_link(&mut self, number: u32, links: &mut [Link], round: u64) {
        let link = &mut links[number as usize];
        if link.visited != round {
            link.visited = round;
            self.links.push(number);
        }
    }

    /// Reaches the flows on a link, and the contended links that they cross.
    fn reach_members(&mut self, number: u32, links: &mut [Link], flows: &mut [Flow], round: u64) {
        for index in 0..links[number as usize].members.len() {
            let slot = links[number as usize].members[index].flow;
            let flow = &mut flows[slot as usize];
            if flow.visited != round {
                flow.visited = round;
                self.flows.push(slot);
                for hop in &flow.hops {
                    if links[hop.link as usize].contended {
                        self.reach_link(hop.link, links, round);
                    }
                }
            }
        }
    }
}

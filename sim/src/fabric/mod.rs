//! Flows that share links, max-min fairly, in integers.
//!
//! This module knows only mathematics: links with a capacity, flows that cross them. What a link is made
//! of and what a flow carries is its users' concern.
//!
//! - [`solver`] gives each flow its rate, and after a change solves again only what the change can reach.
//! - [`naive`] gives the same rates from scratch, in the plainest way: the oracle of the tests.
//! - [`flows`] turns rates into completion times.
//!
//! Rates and capacities are whole bytes per second. Equal flows need not be told apart: a flow of count
//! `n` stands for `n` flows, and is given exactly the rate that each of them would get on its own.

pub mod flows;
pub mod naive;
pub mod solver;
#[cfg(test)]
mod tests;

/// A link; numbered from zero by the solver that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u32);

impl LinkId {
    /// Its number: links are numbered in the order in which they were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow; given out by the solver that owns it. The one of a removed flow is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    slot: u32,
    generation: u32,
}

impl FlowId {
    /// Its slot. Slots are dense and are used again once their flow is removed: good for tables beside
    /// the solver's, and as the key of the completion in an event queue.
    pub const fn slot(self) -> u32 {
        self.slot
    }
}

/// A link on the way of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: LinkId,
    /// How many times one unit flow crosses the link; at least one, and one as a rule. A link may also be
    /// listed repeatedly: the uses add up.
    pub uses: u32,
}

/// A flow: `count` equal unit flows, which all get the same rate.
#[derive(Clone, Copy, Debug)]
pub struct FlowSpec<'a> {
    /// The rate that a unit flow has at most, in bytes per second; at least one.
    pub cap: u64,
    /// How many unit flows this stands for; at least one.
    pub count: u32,
    /// The links that each unit flow crosses.
    pub hops: &'a [Hop],
}

impl FlowSpec<'_> {
    /// The shares of a link that the flow takes with one hop: the link carries them times the rate.
    const fn shares(&self, hop: Hop) -> u64 {
        self.count as u64 * hop.uses as u64
    }

    fn assert_sound(&self) {
        assert!(self.cap >= 1, "a flow needs a cap of at least 1 byte/s");
        assert!(self.count >= 1, "a flow stands for at least one unit flow");
        assert!(self.hops.iter().all(|hop| hop.uses >= 1), "a flow uses each link on its way at least once");
    }
}

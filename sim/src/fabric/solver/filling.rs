//! Progressive filling: the rates that the rule of [`solver`](super) gives to one part.
//!
//! Let a link have `spare` capacity left over by the flows that ask no more, and let
//! `asking` be the shares of those that do. It refuses the step from `m` to `m + 1` when
//! `spare < (m + 1) * asking`, that is at the level `m = spare / asking`, rounded down.
//!
//! 1. *A link's level never falls.* A flow with `s` shares that stops at `m <= spare / asking` leaves
//!    `(spare - m * s) / (asking - s) >= spare / asking`. So filling can jump from level to level, and a
//!    level computed earlier is a lower bound: a heap of such bounds need only look again at its top.
//! 2. *Order does not matter, nor does folding.* At each level first the flows at their caps stop, then
//!    all links that refuse are found, then all their flows stop. The rule mentions flows only through sums of
//!    shares; `n` flows of count one and one flow of count `n` add up to the same.
//! 3. *A link that could carry all its flows at their caps never refuses.* Its spare capacity is at least
//!    `sum(cap * shares)` over those that ask, so each step asked of it fits. Hence only **contended** links, those with
//!    `sum(cap * shares) > max(capacity, shares)`, matter; a flow that crosses none has its cap, exactly; and
//!    rates depend on each other only along contended links.
//! 4. *The rates are max-min fair.* A flow below its cap was refused by some link: there, no flow has a
//!    higher rate, and what is left does not suffice for one more byte per second for each of the unit
//!    flows that were refused with it.
//!
//! **Numbers.** `spare` starts at `max(capacity, shares)` and only falls, so filling is 64-bit arithmetic; only
//! the demand at caps needs 128 bits, and it fits because the shares of a link fit 64.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::{Flow, FlowId, Link, RateChange, Solver};

impl Solver {
    /// Fills the part level by level; see the top of the file.
    pub(super) fn fill_part(&mut self) {
        let Self { links, flows, part, by_cap, by_level, refusing, changed, round, .. } = self;
        let mut levels = std::mem::take(by_level).into_vec();
        levels.extend(part.links.iter().map(|&number| {
            let link = &mut links[number as usize];
            link.spare = link.usable();
            link.asking = link.shares;
            Reverse((link.spare / link.asking, number))
        }));
        *by_level = BinaryHeap::from(levels);
        by_cap.clear();
        by_cap.extend(part.flows.iter().map(|&slot| (flows[slot as usize].cap, slot)));
        by_cap.sort_unstable_by_key(|&(cap, _)| cap);

        for &(cap, slot) in by_cap.iter() {
            while flows[slot as usize].stopped != *round {
                match lowest_refusal_below(cap, by_level, links) {
                    None => stop(slot, cap, flows, links, *round, changed),
                    Some(level) => {
                        while lowest_refusal_below(level + 1, by_level, links).is_some() {
                            refusing.extend(by_level.pop().map(|Reverse((_, number))| number));
                        }
                        for number in refusing.drain(..) {
                            for index in 0..links[number as usize].members.len() {
                                let member = links[number as usize].members[index];
                                stop(member.flow, level, flows, links, *round, changed);
                            }
                        }
                    }
                }
            }
        }
        by_level.clear();
    }
}

/// The lowest level below `ceiling` at which a link refuses; that link is then on top of the heap.
///
/// The heap holds lower bounds. A bound at or above the ceiling settles the matter; a lower one is
/// brought up to date, where it stays a lower bound because levels never fall.
fn lowest_refusal_below(ceiling: u64, by_level: &mut BinaryHeap<Reverse<(u64, u32)>>, links: &[Link]) -> Option<u64> {
    while let Some(mut top) = by_level.peek_mut() {
        let Reverse((bound, number)) = *top;
        if bound >= ceiling {
            return None;
        }
        let link = &links[number as usize];
        match link.spare.checked_div(link.asking) {
            None => {
                PeekMut::pop(top);
            }
            Some(level) if level == bound => return Some(level),
            Some(level) => *top = Reverse((level, number)),
        }
    }
    None
}

/// Fixes the rate of a flow, unless it has been fixed in this round.
fn stop(slot: u32, rate: u64, flows: &mut [Flow], links: &mut [Link], round: u64, changed: &mut Vec<RateChange>) {
    let flow = &mut flows[slot as usize];
    if flow.stopped == round {
        return;
    }
    flow.stopped = round;
    for hop in &flow.hops {
        let link = &mut links[hop.link as usize];
        if link.contended {
            // Fits: the level of the link is at least `rate`, so `rate * asking <= spare`.
            link.spare -= rate * hop.shares;
            link.asking -= hop.shares;
        }
    }
    if flow.rate != rate {
        flow.rate = rate;
        changed.push(RateChange { flow: FlowId { slot, generation: flow.generation }, rate });
    }
}

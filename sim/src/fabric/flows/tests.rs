//! Closed forms, conservation of bytes, and lockstep with a plain simulation over the naive twin.

use super::{Completion, Flows, NEVER};
use crate::fabric::tests::{OwnedFlow, some_flow, some_scale};
use crate::fabric::{FlowId, FlowSpec, Hop, LinkId, naive};
use crate::swarm::{Dice, for_each_seed};

fn on(link: LinkId) -> [Hop; 1] {
    [Hop { link, uses: 1 }]
}

/// Runs flows `(start, alone, cap, count)` over one link; returns when each is done.
fn over_one_link(capacity: u64, flows: &[(u64, u64, u64, u32)]) -> Vec<u64> {
    let mut fabric = Flows::new();
    let link = fabric.add_link(capacity);
    let mut ids: Vec<Option<FlowId>> = vec![None; flows.len()];
    let mut done = vec![None; flows.len()];
    while done.contains(&None) {
        let starts = (0..flows.len()).filter(|&f| ids[f].is_none()).map(|f| flows[f].0);
        let running = (0..flows.len()).filter(|&f| done[f].is_none());
        let ends = running.filter_map(|f| ids[f]).map(|id| fabric.completion(id));
        let now = starts.chain(ends).min().unwrap();
        for (f, &(start, alone, cap, count)) in flows.iter().enumerate() {
            match ids[f] {
                None if start == now => {
                    ids[f] = Some(fabric.start(now, alone, FlowSpec { cap, count, hops: &on(link) }))
                }
                Some(id) if done[f].is_none() && fabric.completion(id) == now => {
                    fabric.finish(now, id);
                    done[f] = Some(now);
                }
                _ => {}
            }
        }
        fabric.update(now);
    }
    done.into_iter().flatten().collect()
}

#[test]
fn closed_forms() {
    // Alone: exactly as long as alone.
    assert_eq!(over_one_link(100, &[(3, 17, 100, 1)]), [20]);
    // Two equal flows at once: twice as long; folded too.
    assert_eq!(over_one_link(100, &[(0, 10, 100, 1), (0, 10, 100, 1)]), [20, 20]);
    assert_eq!(over_one_link(100, &[(0, 10, 100, 2)]), [20]);
    // Three that do not divide: 33 bytes/s each, 1000 / 33 rounded up.
    assert_eq!(over_one_link(100, &[(0, 10, 100, 3)]), [31]);
    // Staggered. A has the link until 4, half of it until it is done at 4 + 600/50 = 16; by then B has
    // 600 of its 1000 behind it, and the link to itself for the other 400.
    assert_eq!(over_one_link(100, &[(0, 10, 100, 1), (4, 10, 100, 1)]), [16, 20]);
    // The second starts when the first ends: neither sees the other.
    assert_eq!(over_one_link(100, &[(0, 10, 100, 1), (10, 10, 100, 1)]), [10, 20]);
    // Nothing to do is done at once.
    assert_eq!(over_one_link(100, &[(5, 0, 100, 1)]), [5]);
}

#[test]
fn a_flow_at_its_cap_is_never_moved() {
    let mut flows = Flows::new();
    let link = flows.add_link(100);
    let id = flows.start(0, 1_000_003, FlowSpec { cap: 7, count: 1, hops: &on(link) });
    assert_eq!(flows.update(0), [Completion { flow: id, at: 1_000_003 }]);
    for now in 1..50 {
        let other = flows.start(now * 10, 5, FlowSpec { cap: 90, count: 1, hops: &on(link) });
        assert_eq!(flows.update(now * 10), [Completion { flow: other, at: now * 10 + 5 }]);
        flows.finish(now * 10 + 5, other);
        assert_eq!(flows.update(now * 10 + 5), []);
    }
    flows.finish(1_000_003, id);
}

#[test]
fn longer_than_the_clock_is_never_until_the_link_is_back() {
    let mut flows = Flows::new();
    let link = flows.add_link(0);
    let cap = 1_000_000_000_000;
    let id = flows.start(0, 1_000_000_000, FlowSpec { cap, count: 1, hops: &on(link) });
    assert_eq!(flows.update(0), [Completion { flow: id, at: NEVER }]);
    flows.set_capacity(5, link, cap);
    assert_eq!(flows.update(5), [Completion { flow: id, at: 1_000_000_005 }]);
    // One nanosecond short of the end, less the five bytes that got through while it was down.
    assert_eq!(flows.abandon(1_000_000_004, id), u128::from(cap) - 5);
}

#[test]
#[should_panic(expected = "were not updated by 2 ns")]
fn a_forgotten_update_is_refused() {
    let mut flows = Flows::new();
    flows.start(1, 5, FlowSpec { cap: 1, count: 1, hops: &[] });
    flows.update(2);
}

#[test]
#[should_panic(expected = "is finished at 4 ns but done at 5 ns")]
fn finishing_early_is_refused() {
    let mut flows = Flows::new();
    let id = flows.start(0, 5, FlowSpec { cap: 1, count: 1, hops: &[] });
    flows.update(0);
    flows.finish(4, id);
}

/// A flow of the plain simulation: settled at every event, rates from scratch.
struct Plain {
    id: FlowId,
    flow: OwnedFlow,
    work: u128,
    delivered: u128,
    rate: u64,
}

impl Plain {
    fn done_after(&self, now: u64) -> u64 {
        let left = self.work.saturating_sub(self.delivered);
        now.saturating_add(u64::try_from(left.div_ceil(self.rate.into())).unwrap_or(NEVER))
    }
}

fn run_in_lockstep(dice: &mut Dice) {
    let scale = some_scale(dice).min(1 << 50);
    let links = 1 + dice.index(8);
    let capacities: Vec<u64> = (0..links).map(|_| dice.within(1, scale)).collect();
    let mut fabric = Flows::new();
    for &capacity in &capacities {
        fabric.add_link(capacity);
    }
    let mut live: Vec<Plain> = Vec::new();
    let mut to_start = 60;
    let mut now = 0;
    let mut announced: Vec<Completion> = Vec::new();
    while to_start > 0 || !live.is_empty() {
        for _ in 0..dice.below(4).min(to_start) {
            let alone = dice.below(1_000);
            let flow = some_flow(dice, links, scale);
            let id = fabric.start(now, alone, flow.spec());
            let work = u128::from(alone) * u128::from(flow.cap);
            live.push(Plain { id, flow, work, delivered: 0, rate: 0 });
            to_start -= 1;
        }
        let specs: Vec<FlowSpec<'_>> = live.iter().map(|plain| plain.flow.spec()).collect();
        let rates = naive::rates(&capacities, &specs);
        for change in fabric.update(now) {
            announced.retain(|known| known.flow != change.flow);
            announced.push(*change);
        }
        for (plain, rate) in live.iter_mut().zip(rates) {
            plain.rate = rate;
            let known = announced.iter().find(|known| known.flow == plain.id).unwrap();
            assert_eq!(known.at, plain.done_after(now), "at {now} ns");
        }
        let next_end = live.iter().map(|plain| plain.done_after(now)).min().unwrap_or(now);
        let next = if to_start > 0 { next_end.min(now + dice.below(300)) } else { next_end };
        for plain in &mut live {
            plain.delivered += u128::from(plain.rate) * u128::from(next - now);
        }
        now = next;
        live.retain(|plain| {
            let done = plain.delivered >= plain.work;
            if done {
                assert!(plain.delivered - plain.work < u128::from(plain.rate), "bytes from nowhere");
                fabric.finish(now, plain.id);
            }
            !done
        });
    }
}

#[test]
fn swarm_conserves_bytes_in_lockstep_with_the_twin() {
    for_each_seed(2_000, run_in_lockstep);
}

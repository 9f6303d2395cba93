//! The solver against its naive twin, against the rule itself, and against what the rule promises.

use super::naive;
use super::solver::Solver;
use super::{FlowId, FlowSpec, Hop, LinkId};
use crate::swarm::{Dice, for_each_seed};

/// A flow that owns its hops.
#[derive(Clone, Debug)]
pub(super) struct OwnedFlow {
    pub(super) cap: u64,
    pub(super) count: u32,
    pub(super) hops: Vec<Hop>,
}

impl OwnedFlow {
    pub(super) fn spec(&self) -> FlowSpec<'_> {
        FlowSpec { cap: self.cap, count: self.count, hops: &self.hops }
    }

    fn shares_on(&self, link: usize) -> u64 {
        self.hops.iter().filter(|hop| hop.link.index() == link).map(|hop| self.spec().shares(*hop)).sum()
    }
}

fn flow(cap: u64, count: u32, links: &[u32]) -> OwnedFlow {
    let hops = links.iter().map(|&link| Hop { link: LinkId(link), uses: 1 }).collect();
    OwnedFlow { cap, count, hops }
}

/// Rates and capacities up to this; small ones make ties and roundings, large ones make overflows.
pub(super) fn some_scale(dice: &mut Dice) -> u64 {
    [3, 10, 100, 10_000, 1_000_000_000_000, u64::MAX - 1][dice.index(6)]
}

pub(super) fn some_flow(dice: &mut Dice, links: usize, scale: u64) -> OwnedFlow {
    let hops = (0..dice.below(5)).map(|_| {
        let uses = if dice.one_in(5) { dice.count(1, 4) } else { 1 };
        Hop { link: LinkId(u32::try_from(dice.index(links)).unwrap()), uses }
    });
    let hops = hops.collect();
    let count = if dice.one_in(2) { 1 } else { dice.count(1, 9) };
    OwnedFlow { cap: dice.within(1, scale), count, hops }
}

fn some_case(dice: &mut Dice) -> (Vec<u64>, Vec<OwnedFlow>) {
    let scale = some_scale(dice);
    let links = 1 + dice.index(12);
    let capacities = (0..links).map(|_| dice.within(0, scale)).collect();
    let flows = (0..dice.below(24)).map(|_| some_flow(dice, links, scale)).collect();
    (capacities, flows)
}

fn naive_rates(capacities: &[u64], flows: &[OwnedFlow]) -> Vec<u64> {
    naive::rates(capacities, &flows.iter().map(OwnedFlow::spec).collect::<Vec<_>>())
}

fn solved_rates(capacities: &[u64], flows: &[OwnedFlow]) -> Vec<u64> {
    let mut solver = Solver::new();
    for &capacity in capacities {
        solver.add_link(capacity);
    }
    let ids: Vec<FlowId> = flows.iter().map(|flow| solver.add(flow.spec())).collect();
    solver.solve();
    ids.into_iter().map(|id| solver.rate(id)).collect()
}

/// The rule at the top of the solver, word for word: one byte per second at a time.
fn rates_by_the_rule(capacities: &[u64], flows: &[OwnedFlow]) -> Vec<u64> {
    let mut rates = vec![0; flows.len()];
    let mut refused = vec![false; flows.len()];
    loop {
        let asks: Vec<bool> = (0..flows.len()).map(|f| !refused[f] && rates[f] < flows[f].cap).collect();
        if !asks.contains(&true) {
            return rates;
        }
        for (link, &capacity) in capacities.iter().enumerate() {
            let shares: u64 = flows.iter().map(|flow| flow.shares_on(link)).sum();
            let wanted = |f: usize| flows[f].shares_on(link) * (rates[f] + u64::from(asks[f]));
            if (0..flows.len()).map(wanted).sum::<u64>() > capacity.max(shares) {
                for f in 0..flows.len() {
                    refused[f] |= asks[f] && flows[f].shares_on(link) > 0;
                }
            }
        }
        for f in 0..flows.len() {
            rates[f] += u64::from(asks[f] && !refused[f]);
        }
    }
}

fn load(link: usize, flows: &[OwnedFlow], rates: &[u64]) -> u128 {
    flows.iter().zip(rates).map(|(flow, &rate)| u128::from(flow.shares_on(link)) * u128::from(rate)).sum()
}

/// Consequence 4 of the rule, and the capacity of every link.
fn assert_max_min_fair(capacities: &[u64], flows: &[OwnedFlow], rates: &[u64]) {
    let usable = |link: usize| {
        let shares = flows.iter().map(|flow| u128::from(flow.shares_on(link))).sum();
        u128::from(capacities[link]).max(shares)
    };
    for link in 0..capacities.len() {
        assert!(load(link, flows, rates) <= usable(link), "link {link} carries more than it can");
    }
    for (flow, &rate) in flows.iter().zip(rates) {
        assert!(rate >= 1 && rate <= flow.cap);
        let held_back_by = |link: usize| {
            let on_link = || flows.iter().zip(rates).filter(|(other, _)| other.shares_on(link) > 0);
            let refused = on_link().filter(|(other, other_rate)| **other_rate == rate && other.cap > rate);
            let one_more: u128 = refused.map(|(other, _)| u128::from(other.shares_on(link))).sum();
            on_link().all(|(_, &other_rate)| other_rate <= rate) && usable(link) - load(link, flows, rates) < one_more
        };
        let held_back = flow.hops.iter().any(|hop| held_back_by(hop.link.index()));
        assert!(rate == flow.cap || held_back, "{flow:?} could go faster than {rate}");
    }
}

#[track_caller]
fn check(capacities: &[u64], flows: &[OwnedFlow], expected: &[u64]) {
    assert_eq!(solved_rates(capacities, flows), expected);
    assert_eq!(naive_rates(capacities, flows), expected);
}

#[test]
fn small_cases_by_hand() {
    check(&[], &[flow(7, 3, &[])], &[7]);
    check(&[100], &[flow(100, 1, &[0])], &[100]);
    check(&[100], &[flow(100, 1, &[0]), flow(100, 1, &[0])], &[50, 50]);
    // Capped flows leave the rest to the others.
    check(&[100], &[flow(10, 1, &[0]), flow(100, 1, &[0]), flow(100, 1, &[0])], &[10, 45, 45]);
    // The long flow is held back by the narrow link, and the short one takes what is left of the wide one.
    check(&[10, 100], &[flow(100, 1, &[0, 1]), flow(100, 1, &[1]), flow(100, 1, &[0])], &[5, 95, 5]);
    // Rounded down alike: equal flows have equal rates, and two bytes per second are left over.
    check(&[11], &[flow(100, 3, &[0])], &[3]);
    // One flow is at its cap when the link refuses; the others could share what it does not ask for.
    check(&[11], &[flow(3, 1, &[0]), flow(9, 2, &[0])], &[3, 4]);
    // Just enough for everybody's cap is not contention.
    check(&[11], &[flow(3, 1, &[0]), flow(4, 2, &[0])], &[3, 4]);
    // Two uses of a link cost twice; so does listing it twice.
    check(
        &[30],
        &[OwnedFlow { cap: 99, count: 1, hops: vec![Hop { link: LinkId(0), uses: 2 }] }, flow(99, 1, &[0])],
        &[10, 10],
    );
    check(&[30], &[flow(99, 1, &[0, 0]), flow(99, 1, &[0])], &[10, 10]);
}

#[test]
fn no_rate_is_zero() {
    check(&[0], &[flow(5, 1, &[0])], &[1]);
    check(&[3], &[flow(5, 7, &[0]), flow(5, 1, &[0])], &[1, 1]);
}

#[test]
fn the_ends_of_the_range() {
    let huge = u64::MAX;
    check(&[huge], &[flow(huge, 1, &[0])], &[huge]);
    check(&[huge], &[flow(huge, u32::MAX, &[0])], &[huge / u64::from(u32::MAX)]);
    let wide = OwnedFlow { cap: huge, count: u32::MAX, hops: vec![Hop { link: LinkId(0), uses: u32::MAX }] };
    check(&[huge], &[wide], &[1]);
}

#[test]
#[should_panic(expected = "the shares of a link pass 2^64")]
fn too_many_shares_are_refused() {
    let wide = OwnedFlow { cap: 1, count: u32::MAX, hops: vec![Hop { link: LinkId(0), uses: u32::MAX }] };
    solved_rates(&[1], &[wide.clone(), wide]);
}

#[test]
#[should_panic(expected = "has been removed")]
fn a_removed_flow_is_refused() {
    let mut solver = Solver::new();
    let id = solver.add(flow(1, 1, &[]).spec());
    solver.remove(id);
    solver.add(flow(1, 1, &[]).spec()); // takes the slot
    solver.rate(id);
}

#[test]
fn swarm_is_max_min_fair_and_agrees_with_the_twin() {
    for_each_seed(20_000, |dice| {
        let (capacities, flows) = some_case(dice);
        let rates = solved_rates(&capacities, &flows);
        assert_eq!(rates, naive_rates(&capacities, &flows));
        assert_max_min_fair(&capacities, &flows, &rates);
    });
}

#[test]
fn swarm_follows_the_rule_word_for_word() {
    for_each_seed(2_000, |dice| {
        let (capacities, mut flows) = some_case(dice);
        let small = |rate: u64| 1 + rate % 97;
        let capacities: Vec<u64> = capacities.into_iter().map(|capacity| small(capacity) * 3).collect();
        flows.iter_mut().for_each(|flow| flow.cap = small(flow.cap));
        assert_eq!(solved_rates(&capacities, &flows), rates_by_the_rule(&capacities, &flows));
    });
}

#[test]
fn swarm_folds_exactly_in_any_order() {
    for_each_seed(5_000, |dice| {
        let (capacities, flows) = some_case(dice);
        let folded = solved_rates(&capacities, &flows);
        // Every unit flow on its own, and some of them in partial folds.
        let mut units: Vec<(usize, OwnedFlow)> = Vec::new();
        for (index, flow) in flows.iter().enumerate() {
            let mut left = flow.count;
            while left > 0 {
                let count = if dice.one_in(3) { dice.count(1, left) } else { 1 };
                units.push((index, OwnedFlow { count, ..flow.clone() }));
                left -= count;
            }
        }
        dice.shuffle(&mut units);
        let unfolded: Vec<OwnedFlow> = units.iter().map(|(_, flow)| flow.clone()).collect();
        for ((index, _), rate) in units.iter().zip(solved_rates(&capacities, &unfolded)) {
            assert_eq!(rate, folded[*index]);
        }
    });
}

#[test]
fn a_flow_alone_has_its_cap() {
    for_each_seed(2_000, |dice| {
        let scale = some_scale(dice) / 256 + 1; // so that the cap times the shares fits
        let flow = some_flow(dice, 6, scale);
        let enough = |link| flow.cap * flow.shares_on(link) + dice.below(3);
        let capacities: Vec<u64> = (0..6).map(enough).collect();
        assert_eq!(solved_rates(&capacities, std::slice::from_ref(&flow)), [flow.cap]);
    });
}

#[test]
fn swarm_of_changes_is_solved_as_from_scratch() {
    for_each_seed(1_000, |dice| {
        let scale = some_scale(dice);
        let links = 1 + dice.index(30);
        let mut capacities: Vec<u64> = (0..links).map(|_| dice.within(0, scale)).collect();
        let mut solver = Solver::new();
        for &capacity in &capacities {
            solver.add_link(capacity);
        }
        let mut live: Vec<(FlowId, OwnedFlow, u64)> = Vec::new();
        for _ in 0..60 {
            for _ in 0..=dice.below(4) {
                match dice.below(11) {
                    0..=4 => {
                        let flow = some_flow(dice, links, scale);
                        live.push((solver.add(flow.spec()), flow, 0));
                    }
                    5..=7 if !live.is_empty() => {
                        let (id, ..) = live.swap_remove(dice.index(live.len()));
                        solver.remove(id);
                    }
                    8..=9 if !live.is_empty() => {
                        let at = dice.index(live.len());
                        let (id, flow, _) = &mut live[at];
                        flow.cap = dice.within(1, scale);
                        solver.set_cap(*id, flow.cap);
                    }
                    _ => {
                        let link = dice.index(links);
                        capacities[link] = dice.within(0, scale);
                        solver.set_capacity(LinkId(u32::try_from(link).unwrap()), capacities[link]);
                    }
                }
            }
            let mut changed: Vec<FlowId> = solver.solve().iter().map(|change| change.flow).collect();
            let flows: Vec<OwnedFlow> = live.iter().map(|(_, flow, _)| flow.clone()).collect();
            let expected = naive_rates(&capacities, &flows);
            for ((id, _, previous), &rate) in live.iter_mut().zip(&expected) {
                assert_eq!(solver.rate(*id), rate);
                let told = changed.iter().position(|changed| changed == id).map(|at| changed.swap_remove(at));
                assert_eq!(told.is_some(), *previous != rate, "a flow is told of if its rate changed, and once");
                *previous = rate;
            }
            assert!(changed.is_empty(), "told of flows that are no more: {changed:?}");
            for link in 0..links {
                let id = LinkId(u32::try_from(link).unwrap());
                assert_eq!(solver.load(id), load(link, &flows, &expected));
            }
        }
    });
}

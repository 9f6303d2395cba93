//! The rates of [`solver`](super::solver), from scratch and in the plainest way.
//!
//! Kept for tests and benchmarks: it shares nothing with the solver but the rule.

use super::FlowSpec;

/// The rate of each of `flows` over links of the given capacities (bytes per second, by link number).
///
/// Quadratic and allocating.
pub fn rates(capacities: &[u64], flows: &[FlowSpec<'_>]) -> Vec<u64> {
    let mut spare: Vec<u128> = capacities.iter().map(|&capacity| capacity.into()).collect();
    let mut asking = shares(capacities.len(), flows, |_| true);
    for (spare, asking) in spare.iter_mut().zip(&asking) {
        *spare = (*spare).max(*asking); // the floor of 1 byte/s
    }

    let mut rates: Vec<Option<u64>> = vec![None; flows.len()];
    while let Some(cap) = flows.iter().zip(&rates).filter(|(_, rate)| rate.is_none()).map(|(flow, _)| flow.cap).min() {
        let levels = spare.iter().zip(&asking).map(|(spare, asking)| spare.checked_div(*asking));
        let refusing: Vec<Option<u128>> = levels.collect();
        let (level, refused): (u64, Vec<usize>) = match refusing.iter().flatten().min() {
            Some(&level) if level < u128::from(cap) => {
                let crosses =
                    |flow: &FlowSpec<'_>| flow.hops.iter().any(|hop| refusing[hop.link.index()] == Some(level));
                let level = u64::try_from(level).expect("a level below a cap fits, as the cap does");
                (level, (0..flows.len()).filter(|&flow| crosses(&flows[flow])).collect())
            }
            _ => (cap, (0..flows.len()).filter(|&flow| flows[flow].cap == cap).collect()),
        };
        for flow in refused {
            if rates[flow].is_none() {
                rates[flow] = Some(level);
                for hop in flows[flow].hops {
                    spare[hop.link.index()] -= u128::from(level) * u128::from(flows[flow].shares(*hop));
                }
            }
        }
        asking = shares(capacities.len(), flows, |flow| rates[flow].is_none());
    }
    rates.into_iter().map(|rate| rate.expect("the loop ends when every flow has a rate")).collect()
}

/// How many shares of each link the flows that are `counted` take.
fn shares(links: usize, flows: &[FlowSpec<'_>], counted: impl Fn(usize) -> bool) -> Vec<u128> {
    let mut shares = vec![0; links];
    for flow in (0..flows.len()).filter(|&flow| counted(flow)) {
        for hop in flows[flow].hops {
            shares[hop.link.index()] += u128::from(flows[flow].shares(*hop));
        }
    }
    shares
}

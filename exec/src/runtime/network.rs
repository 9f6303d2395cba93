//! The emulated network: flows over links in virtual time.
//!
//! Nothing moves here. A flow has a size and crosses links; [`Network::advance`] says which flows have ended by a
//! given time, exactly and however late it is asked. Links are shared max-min fairly by progressive filling, as the
//! simulator's fabric does.

/// A flow's demand on one link: `weight` times its rate (a ring that crosses a link twice loads it twice).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Load {
    /// Position in the network's capacities.
    pub(super) link: usize,
    /// At least 1.
    pub(super) weight: f64,
}

/// What a transaction puts on the network.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Wire {
    /// Before the first byte moves, in nanoseconds; latency does not load links.
    pub(super) latency: u64,
    /// Bytes to move over each of its links.
    pub(super) bytes: u64,
    /// Its links.
    pub(super) loads: Vec<Load>,
}

#[derive(Debug)]
struct Flow {
    transaction: usize,
    /// When its latency is over.
    from: u64,
    /// Bytes that have not moved.
    left: f64,
    /// Bytes per nanosecond.
    rate: f64,
    loads: Vec<Load>,
}

impl Flow {
    fn ends_at(&self, now: u64) -> u64 {
        if self.left <= 0.0 {
            return now.max(self.from);
        }
        // Rounded up: a byte is there when all of it is.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates: later than any wait")]
        let nanoseconds = (self.left / self.rate).ceil() as u64;
        now.max(self.from).saturating_add(nanoseconds)
    }
}

/// Links and the flows that cross them now.
#[derive(Debug)]
pub(super) struct Network {
    /// Bytes per nanosecond of each link.
    capacities: Vec<f64>,
    flows: Vec<Flow>,
    now: u64,
}

impl Network {
    /// A network with no flows; capacities in bytes per second.
    pub(super) fn new(capacities: &[f64]) -> Self {
        Self { capacities: capacities.iter().map(|rate| rate * 1e-9).collect(), flows: Vec::new(), now: 0 }
    }
    /// Forgets all flows and starts again at 0.
    pub(super) fn reset(&mut self) {
        self.flows.clear();
        self.now = 0;
    }
    /// Starts a flow now, that is at the time that was last advanced to.
    pub(super) fn start(&mut self, transaction: usize, wire: &Wire) {
        self.flows.push(Flow {
            transaction,
            from: self.now + wire.latency,
            left: wire.bytes as f64,
            rate: 0.0,
            loads: wire.loads.clone(),
        });
        self.share();
    }
    /// When something next happens if no flow is added; `None` if nothing ever does.
    pub(super) fn next(&self) -> Option<u64> {
        self.flows.iter().map(|flow| if flow.from > self.now { flow.from } else { flow.ends_at(self.now) }).min()
    }
    /// Goes on to `to`, which is not after [`Self::next`], and pushes the transactions whose flows end there onto
    /// `ended`, in the order in which they started.
    pub(super) fn advance(&mut self, to: u64, ended: &mut Vec<usize>) {
        assert!(to >= self.now, "the network went from {} back to {to}", self.now);
        debug_assert!(self.next().is_none_or(|next| to <= next), "the network skipped an event");
        let mut changed = false;
        let now = self.now;
        self.flows.retain_mut(|flow| {
            if flow.from <= now {
                if flow.ends_at(now) <= to {
                    ended.push(flow.transaction);
                    changed = true;
                    return false;
                }
                flow.left -= flow.rate * (to - now) as f64;
            } else if flow.from <= to {
                changed = true;
                if flow.left <= 0.0 {
                    ended.push(flow.transaction);
                    return false;
                }
            }
            true
        });
        self.now = to;
        if changed {
            self.share();
        }
    }
    /// The time that was last advanced to.
    pub(super) const fn now(&self) -> u64 {
        self.now
    }
    /// Max-min fair rates of all flows past their latency: fill all equally until a link is full, fix the flows that
    /// cross it, go on with the rest.
    fn share(&mut self) {
        let mut free = self.capacities.clone();
        let mut open: Vec<usize> = (0..self.flows.len()).filter(|i| self.flows[*i].from <= self.now).collect();
        while !open.is_empty() {
            let mut demand = vec![0.0; free.len()];
            for load in open.iter().flat_map(|i| &self.flows[*i].loads) {
                demand[load.link] += load.weight;
            }
            let bottleneck = (0..free.len())
                .filter(|link| demand[*link] > 0.0)
                .min_by(|a, b| (free[*a] / demand[*a]).total_cmp(&(free[*b] / demand[*b])))
                .expect("a flow that crosses no link");
            let rate = free[bottleneck] / demand[bottleneck];
            let flows = &mut self.flows;
            open.retain(|i| {
                let flow = &mut flows[*i];
                let fixed = flow.loads.iter().any(|load| load.link == bottleneck);
                if fixed {
                    flow.rate = rate;
                    for load in &flow.loads {
                        free[load.link] = (free[load.link] - load.weight * rate).max(0.0);
                    }
                }
                !fixed
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(latency: u64, bytes: u64, loads: &[(usize, f64)]) -> Wire {
        Wire {
            latency,
            bytes,
            loads: loads.iter().map(|(link, weight)| Load { link: *link, weight: *weight }).collect(),
        }
    }

    /// Starts each wire at its time and returns when each ended.
    fn check(capacities: &[f64], wires: &[(u64, Wire)], expect: &[u64]) {
        let mut network = Network::new(capacities);
        let mut ends = vec![0; wires.len()];
        let mut todo: Vec<usize> = (0..wires.len()).collect();
        loop {
            let start = todo.iter().map(|i| wires[*i].0).min();
            let next = [start, network.next()].into_iter().flatten().min();
            let Some(to) = next else { break };
            let mut ended = Vec::new();
            network.advance(to, &mut ended);
            for transaction in ended {
                ends[transaction] = to;
            }
            for i in todo.extract_if(.., |i| wires[*i].0 == to).collect::<Vec<_>>() {
                network.start(i, &wires[i].1);
            }
        }
        assert_eq!(ends, expect);
    }

    #[test]
    fn flows_share_links_fairly() {
        // One byte per nanosecond everywhere, so that bytes are nanoseconds.
        let one = |latency, bytes| wire(latency, bytes, &[(0, 1.0)]);
        check(&[1e9], &[(0, one(100, 1000))], &[1100]);
        // Two flows on one link halve it; latency does not load it.
        check(&[1e9], &[(0, one(0, 1000)), (0, one(0, 1000))], &[2000, 2000]);
        check(&[1e9], &[(0, one(0, 1000)), (0, one(1000, 1000))], &[1000, 2000]);
        // The first has half done when the second comes, and the second half when the first goes.
        check(&[1e9], &[(0, one(0, 1000)), (500, one(0, 1000))], &[1500, 2000]);
        // Weight 2 loads twice.
        check(&[1e9], &[(0, wire(0, 1000, &[(0, 2.0)]))], &[2000]);
        // Nothing to move is latency only.
        check(&[1e9], &[(7, one(100, 0))], &[107]);
        // Max-min: flow 1 is held to 1/4 by link 1, so flow 0 gets 3/4 of link 0.
        let capacities = [1e9, 0.25e9];
        let both = wire(0, 1000, &[(0, 1.0), (1, 1.0)]);
        check(&capacities, &[(0, one(0, 3000)), (0, both)], &[4000, 4000]);
    }
}

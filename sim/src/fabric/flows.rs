//! When flows are done.
//!
//! The work of a flow is its cap times its duration alone, in bytes per second times nanoseconds: an exact
//! 128-bit integer. At rate `r` it gets `r` of it done each nanosecond. Work is settled when the rate changes, without
//! rounding, so only the completion is rounded, up to the next whole nanosecond: a flow whose rate is
//! always its cap is done exactly at `start + alone`, however often others came and went, and no other
//! is done sooner.
//!
//! ```
//! use trainyard_sim::fabric::{FlowSpec, Hop, flows::Flows};
//!
//! let mut flows = Flows::new();
//! let wire = flows.add_link(100);
//! let hops = [Hop { link: wire, uses: 1 }];
//! let flow = flows.start(0, 10, FlowSpec { cap: 100, count: 1, hops: &hops });
//! assert_eq!(flows.update(0)[0].at, 10);
//!
//! // A second one takes half the wire from nanosecond 4 on.
//! flows.start(4, 10, FlowSpec { cap: 100, count: 1, hops: &hops });
//! assert!(flows.update(4).iter().any(|change| change.flow == flow && change.at == 16));
//! ```

use super::solver::{RateChange, Solver};
use super::{FlowId, FlowSpec, LinkId};

/// The completion of a flow that would outlast the clock, unless its rate rises.
pub const NEVER: u64 = u64::MAX;

/// When a flow is done, if no rate changes before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow.
    pub flow: FlowId,
    /// Nanoseconds; [`NEVER`] if past the end of the clock.
    pub at: u64,
}

/// Flows under way over links, and when each will be done.
///
/// Within an instant, start and finish whatever starts and finishes, then [`update`](Self::update) once.
#[derive(Debug, Default)]
pub struct Flows {
    solver: Solver,
    /// By slot of the flow.
    progress: Vec<Progress>,
    now: u64,
    /// Whether the rates do not yet reflect all changes.
    outdated: bool,
    updates: Vec<Completion>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    /// What was left to do at `since`: bytes per second times nanoseconds, per unit flow.
    work: u128,
    since: u64,
    /// The rate from `since` on; zero before the first update.
    rate: u64,
    completion: u64,
}

impl Progress {
    fn left_at(&self, now: u64) -> u128 {
        // What completes within a nanosecond has less than a nanosecond's work left in it.
        self.work.saturating_sub(u128::from(self.rate) * u128::from(now - self.since))
    }
}

impl Flows {
    /// No links, no flows, time zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a link of `capacity` bytes per second.
    pub fn add_link(&mut self, capacity: u64) -> LinkId {
        self.solver.add_link(capacity)
    }

    /// Changes the capacity of a link, in bytes per second, from `now` on.
    ///
    /// # Panics
    /// If `now` is in the past, or past changes that [`update`](Self::update) has not seen.
    pub fn set_capacity(&mut self, now: u64, link: LinkId, capacity: u64) {
        self.change_at(now);
        self.solver.set_capacity(link, capacity);
    }

    /// Starts a flow that would take `alone` nanoseconds at its cap.
    ///
    /// # Panics
    /// As [`Solver::add`]; and if `now` is in the past, or past changes that [`update`](Self::update) has not seen.
    pub fn start(&mut self, now: u64, alone: u64, flow: FlowSpec<'_>) -> FlowId {
        self.change_at(now);
        let id = self.solver.add(flow);
        let work = u128::from(alone) * u128::from(flow.cap);
        let progress = Progress { work, since: now, rate: 0, completion: NEVER };
        let slot = id.slot() as usize;
        if slot == self.progress.len() {
            self.progress.push(progress);
        } else {
            self.progress[slot] = progress;
        }
        id
    }

    /// Changes the rate that a flow has at most, from `now` on: what is left of it is done at another pace.
    ///
    /// # Panics
    /// As [`Solver::set_cap`]; and if `now` is in the past, or past changes that [`update`](Self::update) has not seen.
    pub fn set_cap(&mut self, now: u64, id: FlowId, cap: u64) {
        self.change_at(now);
        self.solver.set_cap(id, cap);
    }

    /// Takes out a flow that is done.
    ///
    /// # Panics
    /// If it is not done exactly `now`, or has been taken out before; and if `now` is past changes that
    /// [`update`](Self::update) has not seen.
    pub fn finish(&mut self, now: u64, id: FlowId) {
        let completion = self.completion(id);
        assert!(completion == now, "{id:?} is finished at {now} ns but done at {completion} ns");
        self.change_at(now);
        self.solver.remove(id);
    }

    /// Takes out a flow before it is done; returns the work left, of its `alone * cap`.
    ///
    /// # Panics
    /// If it should have been done before `now`, or has been taken out before; and if `now` is in the past, or past
    /// changes that [`update`](Self::update) has not seen.
    pub fn abandon(&mut self, now: u64, id: FlowId) -> u128 {
        let completion = self.completion(id);
        assert!(now <= completion, "{id:?} is abandoned at {now} ns but was done at {completion} ns");
        self.change_at(now);
        self.solver.remove(id);
        self.progress[id.slot() as usize].left_at(now)
    }

    /// Shares the links anew. Returns the flows that will be done at another time than they would have
    /// been, those just started among them.
    ///
    /// # Panics
    /// If `now` is in the past, or past changes that were not updated when they were made; and if a flow
    /// whose rate changes should have been finished before `now`.
    pub fn update(&mut self, now: u64) -> &[Completion] {
        self.move_to(now);
        self.updates.clear();
        if std::mem::take(&mut self.outdated) {
            for &RateChange { flow, rate } in self.solver.solve() {
                let progress = &mut self.progress[flow.slot() as usize];
                let before = progress.completion;
                assert!(now <= before, "{flow:?} was done at {before} ns and is still there at {now} ns");
                progress.work = progress.left_at(now);
                progress.since = now;
                let is_new = progress.rate == 0;
                progress.rate = rate;
                let wait = u64::try_from(progress.work.div_ceil(rate.into())).unwrap_or(NEVER);
                progress.completion = now.saturating_add(wait);
                if is_new || progress.completion != before {
                    self.updates.push(Completion { flow, at: progress.completion });
                }
            }
        }
        &self.updates
    }

    /// When a flow will be done; [`NEVER`] before its first update.
    ///
    /// # Panics
    /// If the flow has been taken out.
    pub fn completion(&self, id: FlowId) -> u64 {
        self.solver.rate(id); // refuses a flow that is no more
        self.progress[id.slot() as usize].completion
    }

    /// Links, rates and loads, as of the last update.
    pub fn solver(&self) -> &Solver {
        &self.solver
    }

    fn change_at(&mut self, now: u64) {
        self.move_to(now);
        self.outdated = true;
    }

    fn move_to(&mut self, now: u64) {
        assert!(now >= self.now, "flows changed at {now} ns, before {} ns", self.now);
        assert!(now == self.now || !self.outdated, "flows changed at {} ns were not updated by {now} ns", self.now);
        self.now = now;
    }
}

#[cfg(test)]
mod tests;

//! Nanoseconds by what they are spent on.

use ir::prediction::AtRisk;
use ir::program::Stream;
use ir::{Activity, Axis, Breakdown, SimDuration};

use crate::passes::PassOp;

/// See the [module](self). Beside them what hangs on the host, which is part of the same time or would be more of it:
/// nothing of it is in the total.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Spent {
    times: [u64; Activity::ALL.len()],
    at_risk: AtRisk,
}

impl Spent {
    pub(super) fn add(&mut self, activity: Activity, nanoseconds: u64) {
        self.times[activity as usize] += nanoseconds;
    }
    pub(super) fn add_at_risk(&mut self, at_risk: AtRisk) {
        self.at_risk.slow_launches = more(self.at_risk.slow_launches, at_risk.slow_launches, 1);
        self.at_risk.expert_waits = more(self.at_risk.expert_waits, at_risk.expert_waits, 1);
    }
    pub(super) fn add_times(&mut self, other: &Self, times: u64) {
        for (sum, each) in self.times.iter_mut().zip(other.times) {
            *sum += each * times;
        }
        self.at_risk.slow_launches = more(self.at_risk.slow_launches, other.at_risk.slow_launches, times);
        self.at_risk.expert_waits = more(self.at_risk.expert_waits, other.at_risk.expert_waits, times);
    }
    pub(super) fn divide(&mut self, by: u64) {
        self.times.iter_mut().for_each(|time| *time /= by);
        for time in [&mut self.at_risk.slow_launches, &mut self.at_risk.expert_waits] {
            *time = SimDuration::from_nanoseconds(time.nanoseconds() / by);
        }
    }
    pub(super) fn total(&self) -> u64 {
        self.times.iter().sum()
    }
    pub(super) const fn at_risk(&self) -> AtRisk {
        self.at_risk
    }
    pub(super) fn breakdown(&self) -> Breakdown {
        let mut breakdown = Breakdown::default();
        for (activity, time) in Activity::ALL.into_iter().zip(self.times) {
            breakdown.add(activity, SimDuration::from_nanoseconds(time));
        }
        breakdown
    }
}

/// A time and another one several times: both may be of a host that no one has, so they stop at the longest there is.
fn more(sum: SimDuration, each: SimDuration, times: u64) -> SimDuration {
    SimDuration::from_nanoseconds(sum.nanoseconds().saturating_add(each.nanoseconds().saturating_mul(times)))
}

/// What the time of an op of a pass is spent on, where nothing hides it.
pub(super) const fn activity_of(op: &PassOp) -> Activity {
    match op {
        PassOp::Compute { pass: ir::program::Pass::Recompute, .. } => Activity::Recomputation,
        PassOp::Compute { .. } => Activity::Compute,
        PassOp::HostCopy { .. } => Activity::HostCopy,
        PassOp::Collective { axis, .. } => activity_along(*axis),
    }
}

/// What an exchange along an axis is.
pub(super) const fn activity_along(axis: Axis) -> Activity {
    match axis {
        Axis::Tensor => Activity::Tensor,
        Axis::Context => Activity::Context,
        Axis::Expert | Axis::ExpertTensor => Activity::Expert,
        Axis::Pipeline | Axis::Embedding => Activity::Pipeline,
        Axis::Data | Axis::Replica | Axis::Shard | Axis::ExpertReplica => Activity::Data,
        Axis::Model => Activity::Optimizer,
    }
}

/// What waiting for a stream is.
pub(super) const fn activity_on(stream: Stream) -> Activity {
    match stream {
        Stream::Compute => Activity::Compute,
        Stream::Tensor => Activity::Tensor,
        Stream::ForwardSend | Stream::ForwardReceive | Stream::BackwardSend | Stream::BackwardReceive => {
            Activity::Pipeline
        }
        Stream::Data | Stream::Shard => Activity::Data,
        Stream::Context => Activity::Context,
        Stream::Expert => Activity::Expert,
        Stream::Host => Activity::HostCopy,
    }
}

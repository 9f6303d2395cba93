//! Nanoseconds by what they are spent on.

use ir::program::Stream;
use ir::{Activity, Axis, Breakdown, SimDuration};

use crate::passes::PassOp;

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Spent([u64; Activity::ALL.len()]);

impl Spent {
    pub(super) fn add(&mut self, activity: Activity, nanoseconds: u64) {
        self.0[activity as usize] += nanoseconds;
    }
    pub(super) fn add_times(&mut self, other: &Self, times: u64) {
        for (sum, each) in self.0.iter_mut().zip(other.0) {
            *sum += each * times;
        }
    }
    pub(super) fn divide(&mut self, by: u64) {
        self.0.iter_mut().for_each(|time| *time /= by);
    }
    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    pub(super) fn breakdown(&self) -> Breakdown {
        let mut breakdown = Breakdown::default();
        for (activity, time) in Activity::ALL.into_iter().zip(self.0) {
            breakdown.add(activity, SimDuration::from_nanoseconds(time));
        }
        breakdown
    }
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

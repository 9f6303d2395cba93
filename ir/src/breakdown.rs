//! Where the time of an iteration goes.

use crate::SimDuration;

/// What time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Activity {
    /// Forward and backward passes.
    Compute,
    /// Forward passes run again.
    Recomputation,
    /// Waiting for the host to launch kernels.
    Launch,
    /// Waiting for other pipeline positions.
    Bubble,
    /// Exposed communication of the tensor group.
    Tensor,
    /// Exposed communication between ranks that share sequences.
    Context,
    /// Exposed communication of experts.
    Expert,
    /// Exposed messages between pipeline positions, and the reduction of a tied embedding between two of them.
    Pipeline,
    /// Exposed communication over replicas: gradients and parameters.
    Data,
    /// Exposed copies to and from host memory.
    HostCopy,
    /// Gradient norm and optimizer step, with what all ranks exchange for them.
    Optimizer,
    /// Waiting for input.
    Stall,
}

impl Activity {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::Compute,
        Self::Recomputation,
        Self::Launch,
        Self::Bubble,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Pipeline,
        Self::Data,
        Self::HostCopy,
        Self::Optimizer,
        Self::Stall,
    ];
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Recomputation => "recomputation",
            Self::Launch => "launch",
            Self::Bubble => "bubble",
            Self::Tensor => "tensor communication",
            Self::Context => "context communication",
            Self::Expert => "expert communication",
            Self::Pipeline => "pipeline communication",
            Self::Data => "data communication",
            Self::HostCopy => "host copies",
            Self::Optimizer => "optimizer",
            Self::Stall => "input stall",
        }
    }
}

/// An iteration's time by what it is spent on, along the pipeline position that decides when it ends. Adds up to the
/// iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Breakdown {
    times: [SimDuration; Activity::ALL.len()],
}

impl Breakdown {
    /// Time spent on an activity.
    #[must_use]
    pub const fn of(&self, activity: Activity) -> SimDuration {
        self.times[activity as usize]
    }
    /// Adds time spent on an activity.
    pub fn add(&mut self, activity: Activity, time: SimDuration) {
        self.times[activity as usize] += time;
    }
    /// All of it.
    #[must_use]
    pub fn total(&self) -> SimDuration {
        self.times.iter().copied().sum()
    }
    /// Each activity that takes time, longest first (of equals in their order).
    #[must_use]
    pub fn parts(&self) -> Vec<(Activity, SimDuration)> {
        let mut parts: Vec<_> = Activity::ALL.into_iter().map(|activity| (activity, self.of(activity))).collect();
        parts.retain(|(_, time)| *time > SimDuration::ZERO);
        parts.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{Activity, Breakdown};
    use crate::SimDuration;

    #[test]
    fn parts_add_up_longest_first() {
        let mut breakdown = Breakdown::default();
        for (activity, time) in [(Activity::Bubble, 3), (Activity::Compute, 5), (Activity::Bubble, 4)] {
            breakdown.add(activity, SimDuration::from_nanoseconds(time));
        }
        assert_eq!(breakdown.total(), SimDuration::from_nanoseconds(12));
        let parts = breakdown.parts();
        assert_eq!(
            parts.iter().map(|(activity, _)| *activity).collect::<Vec<_>>(),
            [Activity::Bubble, Activity::Compute]
        );
        assert!(Activity::ALL.iter().enumerate().all(|(place, activity)| *activity as usize == place));
    }
}

//! A length of time divided into activities.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::activity::Activity;

/// Nanoseconds of each [`Activity`]. Serialises as a map with keys such as `forward_ns`, every activity present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Split([u64; Activity::COUNT]);

impl Split {
    /// Nanoseconds of one activity.
    #[must_use]
    pub const fn get(&self, activity: Activity) -> u64 {
        self.0[activity.index()]
    }
    /// Adds nanoseconds to an activity.
    pub(crate) fn add(&mut self, activity: Activity, nanoseconds: u64) {
        self.0[activity.index()] += nanoseconds;
    }
    /// Each activity with its nanoseconds, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Activity, u64)> + '_ {
        Activity::ALL.into_iter().map(|activity| (activity, self.get(activity)))
    }
    /// The sum of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    /// The sum of exposed communication.
    #[must_use]
    pub fn communication(&self) -> u64 {
        self.iter().filter(|(activity, _)| activity.is_communication()).map(|(_, nanoseconds)| nanoseconds).sum()
    }
    /// The mean of splits that each sum to `total`, weighted, rounded by largest remainders (ties to the earlier
    /// activity) so that it sums to `total` too.
    ///
    /// # Panics
    /// If a split does not sum to `total`.
    #[must_use]
    pub fn mean<'a>(splits: impl IntoIterator<Item = (&'a Self, u32)>, total: u64) -> Self {
        let mut sums = [0u128; Activity::COUNT];
        let mut weight = 0u128;
        for (split, times) in splits {
            assert_eq!(split.total(), total, "a split that does not sum to its iteration");
            weight += u128::from(times);
            for (sum, part) in sums.iter_mut().zip(split.0) {
                *sum += u128::from(part) * u128::from(times);
            }
        }
        let mut mean = Self::default();
        if weight == 0 {
            return mean;
        }
        for (part, sum) in mean.0.iter_mut().zip(sums) {
            *part = u64::try_from(sum / weight).expect("a mean is no larger than its largest part");
        }
        let mut order: Vec<usize> = (0..Activity::COUNT).collect();
        order.sort_by_key(|index| (std::cmp::Reverse(sums[*index] % weight), *index));
        let missing = usize::try_from(total - mean.total()).expect("fewer than one nanosecond for each part");
        for index in order.into_iter().take(missing) {
            mean.0[index] += 1;
        }
        mean
    }
}

impl Serialize for Split {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Activity::COUNT))?;
        for (activity, nanoseconds) in self.iter() {
            map.serialize_entry(&key(activity), &nanoseconds)?;
        }
        map.end()
    }
}

/// The key of an activity in JSON and CSV.
pub(crate) const fn key(activity: Activity) -> &'static str {
    match activity {
        Activity::Forward => "forward_ns",
        Activity::Recompute => "recompute_ns",
        Activity::Backward => "backward_ns",
        Activity::BackwardInput => "backward_input_ns",
        Activity::BackwardWeight => "backward_weight_ns",
        Activity::TensorCommunication => "tensor_communication_ns",
        Activity::PipelineCommunication => "pipeline_communication_ns",
        Activity::DataCommunication => "data_communication_ns",
        Activity::ModelCommunication => "model_communication_ns",
        Activity::ContextCommunication => "context_communication_ns",
        Activity::ExpertCommunication => "expert_communication_ns",
        Activity::HostCopy => "host_copy_ns",
        Activity::Optimizer => "optimizer_ns",
        Activity::InputStall => "input_stall_ns",
        Activity::Bubble => "bubble_ns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_keeps_the_total() {
        let mut a = Split::default();
        let mut b = Split::default();
        a.add(Activity::Forward, 10);
        b.add(Activity::Forward, 7);
        b.add(Activity::Backward, 2);
        b.add(Activity::Bubble, 1);
        let mean = Split::mean([(&a, 1), (&b, 2)], 10);
        assert_eq!(mean.total(), 10);
        assert_eq!(mean.get(Activity::Forward), 8);
        assert_eq!(mean.get(Activity::Backward), 1);
        assert_eq!(mean.get(Activity::Bubble), 1);
        assert_eq!(Split::mean([(&b, 5)], 10), b);
    }
}

//! How ranks are numbered, and what one pipeline position has of a layout.
//!
//! Where all positions have one tensor degree, ranks are numbered as in Megatron-LM ([`Plan`]): position by position.
//!
//! Where they differ, every replica of the pipeline still has every position, so positions hold unlike numbers of ranks
//! (as
//! in Metis, Um et al. 2024, and FlashFlex, Yan et al. 2024). Ranks are then numbered replica by replica:
//! `rank = replica * R + F(position) + tensor_index`, with `F(position)` the sum of the degrees of the positions before
//! it
//! and `R` that of all. From any rank to its partners it is then equally far in every replica, so replicas fold as
//! ever.
//! Without a placement, devices are still taken position by position: those of the first for all replicas, then those
//! of
//! the second.
use std::borrow::Cow;

use super::Layout;
use crate::{DeviceId, Plan, Rank};

/// Where a rank stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankPlace {
    /// Pipeline position.
    pub position: u32,
    /// Data and context index together.
    pub replica: u32,
    /// Index in its tensor group.
    pub tensor_index: u32,
}

/// The rank at a place, where positions have these degrees.
fn rank_of(degrees: impl Iterator<Item = u32> + Clone, place: RankPlace) -> Rank {
    let before = degrees.clone().take(place.position as usize).sum::<u32>();
    Rank::new(place.replica * degrees.sum::<u32>() + before + place.tensor_index)
}

/// The place of a rank, where positions have these degrees.
fn place_of(degrees: impl Iterator<Item = u32> + Clone, rank: Rank) -> RankPlace {
    let all = degrees.clone().sum::<u32>().max(1);
    let (replica, mut tensor_index) = (rank.raw() / all, rank.raw() % all);
    let mut position = 0;
    for degree in degrees {
        if tensor_index < degree {
            break;
        }
        tensor_index -= degree;
        position += 1;
    }
    RankPlace { position, replica, tensor_index }
}

/// How many ranks of the positions beside a boundary talk to one of the other side: `(senders of a receiver, receivers
/// of a
/// sender)`, one of them 1, or `None` where neither degree divides the other.
#[must_use]
pub const fn ranks_across(from: u32, to: u32) -> Option<(u32, u32)> {
    if from == 0 || to == 0 {
        None
    } else if from.is_multiple_of(to) {
        Some((from / to, 1))
    } else if to.is_multiple_of(from) {
        Some((1, to / from))
    } else {
        None
    }
}

impl Layout {
    /// Whether positions differ in their tensor degree.
    #[must_use]
    pub const fn has_unlike_tensors(&self) -> bool {
        !self.tensors.is_empty()
    }
    /// The tensor degree of a position.
    #[must_use]
    pub fn tensor_at(&self, position: u32) -> u32 {
        self.tensors.get(position as usize).copied().unwrap_or(self.tensor)
    }
    /// The layout as one position has it: with its tensor degree for all, so that what is counted by it is the
    /// position's.
    /// Ranks of other positions cannot be numbered by it.
    #[must_use]
    pub fn at(&self, position: u32) -> Cow<'_, Self> {
        if !self.has_unlike_tensors() {
            return Cow::Borrowed(self);
        }
        let tensor = self.tensor_at(position);
        let sequence_parallel = self.sequence_parallel && tensor > 1;
        Cow::Owned(Self { tensor, sequence_parallel, tensors: Vec::new(), ..self.clone() })
    }
    /// Ranks in all.
    #[must_use]
    pub fn world(&self) -> u32 {
        if self.has_unlike_tensors() {
            self.replicas() * self.tensors.iter().sum::<u32>()
        } else {
            self.per_position() * self.pipeline
        }
    }
    /// Where a rank stands.
    #[must_use]
    pub fn place_of(&self, rank: Rank) -> RankPlace {
        if self.has_unlike_tensors() {
            return place_of(self.tensors.iter().copied(), rank);
        }
        let (wide, rank) = (self.per_position(), rank.raw());
        RankPlace { position: rank / wide, replica: rank % wide / self.tensor, tensor_index: rank % self.tensor }
    }
    /// The rank at a place.
    #[must_use]
    pub fn rank(&self, place: RankPlace) -> Rank {
        if self.has_unlike_tensors() {
            return rank_of(self.tensors.iter().copied(), place);
        }
        let RankPlace { position, replica, tensor_index } = place;
        Rank::new((position * self.replicas() + replica) * self.tensor + tensor_index)
    }
    /// From a rank of one position to the next like it: the next of the same index in the next replica.
    #[must_use]
    pub fn to_next_replica(&self, position: u32) -> u32 {
        if self.has_unlike_tensors() { self.tensors.iter().sum() } else { self.tensor_at(position) }
    }
}

impl Plan {
    /// The tensor degree of a position.
    #[must_use]
    pub fn tensor_at(&self, position: u32) -> u32 {
        self.stages.get(position as usize).and_then(|stage| stage.tensor).unwrap_or(self.tensor)
    }
    /// Of each position.
    pub fn tensors(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.stages.iter().map(|stage| stage.tensor.unwrap_or(self.tensor))
    }
    /// Whether positions differ in their tensor degree.
    #[must_use]
    pub fn has_unlike_tensors(&self) -> bool {
        let mut tensors = self.tensors();
        tensors.next().is_some_and(|first| tensors.any(|other| other != first))
    }
    /// The same plan with these tensor degrees, one for each position: [`Plan::tensor`] is then the most, and a stage
    /// says
    /// its own where that is less.
    ///
    /// # Panics
    /// If there are not as many degrees as positions.
    #[must_use]
    pub fn with_tensors(mut self, degrees: &[u32]) -> Self {
        assert_eq!(degrees.len(), self.stages.len(), "a tensor degree for each position");
        self.tensor = degrees.iter().copied().max().unwrap_or(self.tensor);
        for (stage, degree) in self.stages.iter_mut().zip(degrees) {
            stage.tensor = Some(*degree).filter(|degree| *degree != self.tensor);
        }
        self
    }
    /// Ranks in all.
    #[must_use]
    pub fn world(&self) -> u64 {
        let tensors = self.tensors().map(u64::from).sum::<u64>();
        u64::from(self.data) * u64::from(self.mesh.context) * tensors
    }
    /// The rank at a pipeline position, replica (data and context index together) and tensor index.
    #[must_use]
    pub fn rank(&self, position: u32, replica: u32, tensor_index: u32) -> Rank {
        if self.has_unlike_tensors() {
            return rank_of(self.tensors(), RankPlace { position, replica, tensor_index });
        }
        Rank::new((position * self.replicas() + replica) * self.tensor_at(0) + tensor_index)
    }
    /// The device of a rank. Without a placement, rank `r` is on device `r`, or where positions differ in their tensor
    /// degree, devices are numbered position by position.
    #[must_use]
    pub fn device(&self, rank: Rank) -> DeviceId {
        if !self.placement.is_empty() {
            return self.placement[rank.index()];
        }
        if !self.has_unlike_tensors() {
            return DeviceId::new(rank.raw());
        }
        let RankPlace { position, replica, tensor_index } = place_of(self.tensors(), rank);
        let before = self.tensors().take(position as usize).sum::<u32>();
        DeviceId::new(before * self.replicas() + replica * self.tensor_at(position) + tensor_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of degrees of positions in a layout and in a plan: every rank has one place, and every device one rank.
    fn check(degrees: &[u32], data: u32) {
        let mut program = crate::testing::program(1, 1, 1);
        let layout = &mut program.layout;
        (layout.data, layout.pipeline) = (data, u32::try_from(degrees.len()).unwrap());
        layout.tensor = *degrees.iter().max().unwrap();
        layout.tensors = if degrees.iter().all(|t| *t == layout.tensor) { Vec::new() } else { degrees.to_vec() };
        let mut devices = Vec::new();
        let mut ranks = Vec::new();
        for (position, degree) in (0u32..).zip(degrees) {
            for (replica, tensor_index) in (0..data).flat_map(|d| (0..*degree).map(move |t| (d, t))) {
                let place = RankPlace { position, replica, tensor_index };
                let rank = layout.rank(place);
                assert_eq!(layout.place_of(rank), place, "{degrees:?}");
                assert_eq!(layout.replica_of(rank), replica, "{degrees:?}");
                let next = layout.rank(RankPlace { replica: replica + 1, ..place });
                assert_eq!(next.raw() - rank.raw(), layout.to_next_replica(position), "{degrees:?}");
                ranks.push(rank.raw());
                devices.push(rank);
            }
            assert_eq!(layout.at(position).tensor, *degree);
        }
        ranks.sort_unstable();
        assert_eq!(ranks, (0..layout.world()).collect::<Vec<_>>(), "{degrees:?}");
        let text = format!(
            "data = {data}\ntensor = 1\nsequence_parallel = false\nmicrobatch_size = 1\nmicrobatches = 1\n\
             schedule = \"g-pipe\"\nzero = \"zero0\"\noverlap_gradients = false\ncollective = \"ring\"\n{}",
            "[[stages]]\nlayers = [1]\nrecompute = \"none\"\n".repeat(degrees.len())
        );
        let plan = toml::from_str::<Plan>(&text).unwrap().with_tensors(degrees);
        assert_eq!(plan.world(), u64::from(layout.world()));
        for (device, rank) in (0..).zip(devices) {
            assert_eq!(plan.device(rank), DeviceId::new(device), "{degrees:?}");
            let RankPlace { position, replica, tensor_index } = layout.place_of(rank);
            assert_eq!(plan.rank(position, replica, tensor_index), rank, "{degrees:?}");
        }
    }

    #[test]
    fn every_rank_has_one_place_and_one_device() {
        check(&[4], 3);
        check(&[2, 2, 2], 2);
        check(&[8, 2], 1);
        check(&[4, 2, 1], 3);
        check(&[1, 4, 2, 8], 2);
    }

    #[test]
    fn one_of_two_degrees_divides_the_other() {
        assert_eq!(ranks_across(4, 4), Some((1, 1)));
        assert_eq!(ranks_across(8, 2), Some((4, 1)));
        assert_eq!(ranks_across(1, 3), Some((1, 3)));
        assert_eq!(ranks_across(3, 2), None);
        assert_eq!(ranks_across(0, 2), None);
    }
}

//! Families of groups: along each axis, instances with equal role composition are one family.

use ir::program::{Group, RankSet};
use ir::{Axis, GroupId};
use rustc_hash::FxHashMap;

use crate::axes::AxisGroups;

/// The groups of a program, and where each rank's are.
pub(super) struct Groups {
    pub(super) families: Vec<Group>,
    /// By axis (see [`axis_index`]), the family of each rank; `NONE` where it has none. Empty for an axis without groups.
    of: [Vec<u32>; Axis::ALL.len()],
}

const NONE: u32 = u32::MAX;

/// The place of an axis in [`Axis::ALL`]; also the group id of an instruction list before its ranks are known.
pub(super) const fn axis_index(axis: Axis) -> u32 {
    axis as u32
}

impl Groups {
    /// Of a plan whose ranks have these classes.
    pub(super) fn new(groups: &[AxisGroups], classes: &[u32]) -> Self {
        let mut found = Self { families: Vec::new(), of: std::array::from_fn(|_| Vec::new()) };
        for AxisGroups { axis, family, firsts } in groups {
            found.of[axis_index(*axis) as usize].resize(classes.len(), NONE);
            found.add(*axis, classes, firsts.iter().map(|first| family.members(*first).collect()));
        }
        found
    }

    fn add(&mut self, axis: Axis, classes: &[u32], instances: impl Iterator<Item = Vec<u32>>) {
        let mut by_composition: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
        let mut found: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
        for members in instances {
            let composition = members.iter().map(|rank| classes[*rank as usize]).collect();
            let place = *by_composition.entry(composition).or_insert(found.len());
            let family = u32::try_from(self.families.len() + place).expect("more groups than ranks");
            for rank in &members {
                self.of[axis_index(axis) as usize][*rank as usize] = family;
            }
            match found.get_mut(place) {
                Some((first, shifts)) => shifts.push(members[0] - first[0]),
                None => found.push((members, vec![0])),
            }
        }
        self.families.extend(found.into_iter().map(|(members, shifts)| Group {
            axis,
            members: RankSet::from_ascending(members),
            shifts: RankSet::from_ascending(shifts),
        }));
    }

    /// The family in which a rank's group along an axis is.
    ///
    /// # Panics
    /// If the rank has no group along the axis.
    pub(super) fn family(&self, placeholder: GroupId, rank: u32) -> GroupId {
        let family = self.of[placeholder.index()].get(rank as usize).copied().unwrap_or(NONE);
        assert!(family != NONE, "rank {rank} has no {:?} group", Axis::ALL[placeholder.index()]);
        GroupId::new(family)
    }
}

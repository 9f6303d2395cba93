//! Families of groups: along each axis, instances with equal role composition are one family.

use ir::program::{Group, RankSet};
use ir::{Axis, GroupId, Plan};
use rustc_hash::FxHashMap;

use super::colour::Family;

/// The groups of a program, and where each rank's are.
pub(super) struct Groups {
    pub(super) families: Vec<Group>,
    /// By axis (see [`axis_index`]), the family of each rank; `NONE` where it has none.
    of: [Vec<u32>; 4],
}

const NONE: u32 = u32::MAX;

/// Axes of groups, in the order of their families.
const AXES: [Axis; 4] = [Axis::Tensor, Axis::Data, Axis::Embedding, Axis::Model];

/// The place of an axis in [`AXES`]; also the group id of an instruction list before its ranks are known.
pub(super) const fn axis_index(axis: Axis) -> u32 {
    match axis {
        Axis::Tensor => 0,
        Axis::Data => 1,
        Axis::Embedding => 2,
        Axis::Model => 3,
        Axis::Pipeline => panic!("no collective runs over the pipeline axis"),
    }
}

impl Groups {
    /// Of a plan whose ranks have these classes; `embedding` is the pair of positions that share a tied embedding.
    pub(super) fn new(plan: &Plan, classes: &[u32], embedding: Option<(u32, u32)>) -> Self {
        let mut groups = Self { families: Vec::new(), of: std::array::from_fn(|_| vec![NONE; classes.len()]) };
        for (axis, (family, firsts)) in AXES.into_iter().zip(Family::all(plan, embedding)) {
            groups.add(axis, classes, firsts.into_iter().map(|first| family.members(first).collect()));
        }
        groups
    }

    fn add(&mut self, axis: Axis, classes: &[u32], instances: impl Iterator<Item = Vec<u32>>) {
        let mut by_composition: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
        let mut found: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
        for members in instances.filter(|members| members.len() > 1) {
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
        let family = self.of[placeholder.index()][rank as usize];
        assert!(family != NONE, "rank {rank} has no {:?} group", AXES[placeholder.index()]);
        GroupId::new(family)
    }
}

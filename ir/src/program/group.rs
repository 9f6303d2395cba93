//! Ranks that carry out collectives together.

use super::RankSet;
use crate::{Axis, Rank};

/// A family of equal groups: instance `i` is `members`, each rank moved by `shifts[i]`. The first shift is 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The dimension along which the members differ.
    pub axis: Axis,
    /// The ranks of the first instance, in the order of their index in the group.
    pub members: RankSet,
    /// What moves the first instance onto each.
    pub shifts: RankSet,
}

impl Group {
    /// Ranks of one instance.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.len()
    }
    /// The ranks of the instance that holds `rank`, in order of group index; `None` if none does.
    #[must_use]
    pub fn instance_of(&self, rank: Rank) -> Option<RankSet> {
        self.shifts.iter().find_map(|shift| {
            let first = rank.raw().checked_sub(shift.raw())?;
            self.members.contains(Rank::new(first)).then(|| self.members.moved(i64::from(shift.raw())))
        })
    }
}

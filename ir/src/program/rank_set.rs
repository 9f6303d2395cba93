//! Ordered sets of ranks, kept as arithmetic runs: 16,384 ranks in a row are one run.

use crate::Rank;

/// `count` ranks from `first`, `stride` apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// The first.
    pub first: u32,
    /// How many; at least 1.
    pub count: u32,
    /// How far apart; at least 1 (1 where there is only one).
    pub stride: u32,
}

/// Ranks in ascending order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RankSet {
    runs: Vec<Run>,
}

impl RankSet {
    /// `count` ranks from `first`, `stride` apart; empty if `count` is 0.
    #[must_use]
    pub fn run(first: u32, count: u32, stride: u32) -> Self {
        if count == 0 {
            return Self::default();
        }
        Self { runs: vec![Run { first, count, stride: if count == 1 { 1 } else { stride.max(1) } }] }
    }
    /// From ranks in strictly ascending order, joined greedily into runs; equal sets built so are equal values.
    ///
    /// # Panics
    /// If they do not ascend.
    #[must_use]
    pub fn from_ascending(ranks: impl IntoIterator<Item = u32>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut previous: Option<u32> = None;
        for rank in ranks {
            assert!(previous.is_none_or(|p| p < rank), "ranks out of order: {rank} after {previous:?}");
            previous = Some(rank);
            match runs.last_mut() {
                Some(run) if run.count == 1 => {
                    run.stride = rank - run.first;
                    run.count = 2;
                }
                Some(run) if u64::from(run.first) + u64::from(run.count) * u64::from(run.stride) == u64::from(rank) => {
                    run.count += 1;
                }
                _ => runs.push(Run { first: rank, count: 1, stride: 1 }),
            }
        }
        Self { runs }
    }
    /// From runs; `None` unless every run has a rank, a stride and ranks below `u32::MAX`, and all ranks ascend.
    #[must_use]
    pub fn from_runs(runs: Vec<Run>) -> Option<Self> {
        let mut above = 0u64;
        let mut total = 0u64;
        for run in &runs {
            let last = u64::from(run.first) + u64::from(run.count.checked_sub(1)?) * u64::from(run.stride);
            let normal = run.stride >= 1 && (run.count > 1 || run.stride == 1);
            if !normal || u64::from(run.first) < above || last >= u64::from(u32::MAX) {
                return None;
            }
            above = last + 1;
            total += u64::from(run.count);
        }
        (total <= u64::from(u32::MAX)).then_some(Self { runs })
    }
    /// How many.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.runs.iter().map(|run| run.count).sum()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }
    /// The first rank.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn first(&self) -> Rank {
        Rank::new(self.runs.first().expect("an empty set of ranks has no first").first)
    }
    /// Ranks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        self.runs.iter().flat_map(|run| (0..run.count).map(move |i| Rank::new(run.first + i * run.stride)))
    }
    /// Whether it holds a rank.
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        self.runs.iter().any(|run| {
            rank.raw()
                .checked_sub(run.first)
                .is_some_and(|offset| offset.is_multiple_of(run.stride) && offset / run.stride < run.count)
        })
    }
    /// The index of a rank in ascending order.
    #[must_use]
    pub fn index_of(&self, rank: Rank) -> Option<u32> {
        let mut before = 0;
        for run in &self.runs {
            if let Some(offset) = rank.raw().checked_sub(run.first)
                && offset.is_multiple_of(run.stride)
                && offset / run.stride < run.count
            {
                return Some(before + offset / run.stride);
            }
            before += run.count;
        }
        None
    }
    /// Every rank moved by `shift`.
    ///
    /// # Panics
    /// If a rank would leave `u32`.
    #[must_use]
    pub fn moved(&self, shift: i64) -> Self {
        let moved = |first: u32| u32::try_from(i64::from(first) + shift).expect("a rank outside u32");
        Self { runs: self.runs.iter().map(|run| Run { first: moved(run.first), ..*run }).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ranks: &[u32], runs: usize) {
        let set = RankSet::from_ascending(ranks.iter().copied());
        assert_eq!(set.iter().map(Rank::raw).collect::<Vec<_>>(), ranks);
        assert_eq!(set.len() as usize, ranks.len());
        assert_eq!(set.runs().len(), runs);
        for rank in 0..40 {
            assert_eq!(set.contains(Rank::new(rank)), ranks.contains(&rank));
            let index = ranks.iter().position(|r| *r == rank).map(|i| u32::try_from(i).unwrap());
            assert_eq!(set.index_of(Rank::new(rank)), index);
        }
        assert_eq!(set.moved(3).moved(-3), set);
    }

    #[test]
    fn runs_hold_what_was_put_in() {
        check(&[], 0);
        check(&[7], 1);
        check(&[0, 1, 2, 3], 1);
        check(&[1, 4, 7, 10], 1);
        check(&[0, 1, 2, 8, 9, 10], 2);
        check(&[0, 1, 3, 7, 15, 31], 3);
    }
}

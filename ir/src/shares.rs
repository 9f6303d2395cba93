//! How a batch is shared out among replicas that do not take equally much of it.

use serde::{Deserialize, Serialize};

use crate::{Rank, program::Layout};

/// Microbatches that each replica takes of an iteration, in order; empty where all take equally many.
///
/// Microbatches are of one size, so a replica's share is their number. Every token of the global batch counts the same in
/// the loss: gradients of all microbatches of all replicas add up, each scaled by one over the tokens of the global batch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shares(Vec<u32>);

impl Shares {
    /// All replicas take equally many.
    pub const EQUAL: Self = Self(Vec::new());

    /// Of replicas in order: the most that one takes, and the shares, which are [`Self::EQUAL`] where nobody takes less.
    ///
    /// # Panics
    /// If there is no replica.
    #[must_use]
    pub fn of(counts: Vec<u32>) -> (u32, Self) {
        let most = *counts.iter().max().expect("a plan has replicas");
        let equal = counts.iter().all(|count| *count == most);
        (most, if equal { Self::EQUAL } else { Self(counts) })
    }
    /// Whether all replicas take equally many.
    #[must_use]
    pub const fn are_equal(&self) -> bool {
        self.0.is_empty()
    }
    /// Of each replica, where they differ.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.0
    }
    /// Microbatches of a replica, where the most is `most`.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    pub fn share(&self, replica: u32, most: u32) -> u32 {
        if self.are_equal() { most } else { self.0[replica as usize] }
    }
    /// Microbatches of the first `replicas` replicas together.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn sum(&self, replicas: u32, most: u32) -> u64 {
        if self.are_equal() {
            return u64::from(replicas) * u64::from(most);
        }
        self.0[..replicas as usize].iter().map(|count| u64::from(*count)).sum()
    }
    /// What is wrong with them for so many replicas, of which one takes `most`; `None` if nothing is.
    #[must_use]
    pub fn fault(&self, replicas: u32, most: u32) -> Option<String> {
        if self.are_equal() {
            return None;
        }
        if self.0.len() != replicas as usize {
            return Some(format!("{} shares for {replicas} replicas", self.0.len()));
        }
        if let Some(idle) = self.0.iter().position(|count| *count == 0) {
            return Some(format!("replica {idle} has no microbatch"));
        }
        let (found, shares) = Self::of(self.0.clone());
        if found != most || shares.are_equal() {
            return Some(format!("the most of {self} is {found}, not {most}, or nobody takes less"));
        }
        None
    }
}

/// `15 + 10`; of many replicas, runs of equal shares as `8 x 15 + 8 x 10`.
impl std::fmt::Display for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let many = self.0.len() > 4;
        for (index, run) in self.0.chunk_by(|a, b| many && a == b).enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            match run {
                [one] => write!(f, "{one}")?,
                _ => write!(f, "{} x {}", run.len(), run[0])?,
            }
        }
        Ok(())
    }
}

impl Layout {
    /// Which replica a rank is of.
    #[must_use]
    pub fn replica_of(&self, rank: Rank) -> u32 {
        self.place_of(rank).replica / self.mesh.context
    }
    /// Microbatches of a replica in an iteration.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    pub fn share(&self, replica: u32) -> u32 {
        self.shares.share(replica, self.microbatches)
    }
    /// Microbatches of all replicas that come before one: the number of its first in the global batch.
    ///
    /// # Panics
    /// If there are fewer replicas.
    #[must_use]
    pub fn microbatches_before(&self, replica: u32) -> u64 {
        self.shares.sum(replica, self.microbatches)
    }
    /// Sequences of an iteration.
    #[must_use]
    pub fn sequences(&self) -> u128 {
        u128::from(self.microbatch_size) * u128::from(self.microbatches_before(self.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_have_one_form() {
        let check = |counts: &[u32], most: u32, shown: &str| {
            let (found, shares) = Shares::of(counts.to_vec());
            assert_eq!((found, shares.to_string().as_str()), (most, shown), "{counts:?}");
            let replicas = u32::try_from(counts.len()).unwrap();
            assert_eq!(shares.fault(replicas, most), None, "{counts:?}");
            for (replica, count) in (0..replicas).zip(counts) {
                assert_eq!(shares.share(replica, most), *count, "{counts:?}");
            }
            assert_eq!(shares.sum(replicas, most), counts.iter().map(|count| u64::from(*count)).sum::<u64>());
        };
        check(&[7], 7, "");
        check(&[3, 3, 3], 3, "");
        check(&[15, 10], 15, "15 + 10");
        check(&[15, 15, 15, 10, 10, 1], 15, "3 x 15 + 2 x 10 + 1");
    }

    #[test]
    fn faults_are_named() {
        let check = |counts: &[u32], replicas: u32, most: u32, needle: &str| {
            let fault = Shares(counts.to_vec()).fault(replicas, most).unwrap();
            assert!(fault.contains(needle), "{fault}");
        };
        check(&[15, 10], 3, 15, "2 shares for 3 replicas");
        check(&[15, 0], 2, 15, "replica 1 has no microbatch");
        check(&[15, 10], 2, 10, "15, not 10");
        check(&[15, 15], 2, 15, "nobody takes less");
    }
}

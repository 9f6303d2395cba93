//! Where a run stands in its data: what a checkpoint keeps so that a restart goes on with the next sample.

use ir::Problem;
use serde::{Deserialize, Serialize};

use super::Dataset;

/// A place in the endless order of samples that a [`Dataset`](super::Dataset) gives: what is next to be trained on.
///
/// It counts samples, not iterations, microbatches or ranks, so that a run goes on at it under another plan, on other ranks or
/// with another global batch: the first sequence of its next global batch is this one, the second the one after, and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPosition {
    /// Digest of the data themselves: tokens, documents and how they are cut ([`Dataset::digest`](super::Dataset::digest)).
    pub data: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Epochs that were gone through.
    pub epoch: u64,
    /// Samples of this epoch that were taken; below the number of samples.
    pub next: u64,
}

impl DataPosition {
    /// Every reason why a run cannot go on here with data of this digest, samples and seed. Empty if it can.
    #[must_use]
    pub fn problems(&self, data: u64, samples: u64, seed: u64) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut refuse = |subject: &str, message: String, hint: &str| {
            problems.push(Problem::new(subject, message).hint(hint));
        };
        if self.data != data {
            let message = format!("the run went on with data {:016x}, and these are {data:016x}", self.data);
            refuse("data", message, "name the same text, tokenizer, packing and sequence length");
        } else if self.next >= samples {
            let message = format!("sample {} of an epoch of {samples}", self.next);
            refuse("data", message, "the position was not written by a run on these data");
        }
        if self.seed != seed {
            let message = format!("the run drew its order of samples from seed {}, not {seed}", self.seed);
            refuse("seed", message, "write the same seed");
        }
        problems
    }

    /// Every reason why a run cannot go on here with these data. Empty if it can.
    #[must_use]
    pub fn problems_with(&self, dataset: &Dataset) -> Vec<Problem> {
        let mut problems = self.problems(dataset.digest(), dataset.samples(), dataset.seed());
        if problems.is_empty() && self.taken(dataset.samples()).is_none() {
            problems.push(Problem::new("data", format!("epoch {} is out of reach", self.epoch)));
        }
        problems
    }

    /// Samples taken since the beginning, of which each epoch has `samples`. `None` beyond 2^64.
    #[must_use]
    pub fn taken(&self, samples: u64) -> Option<u64> {
        self.epoch.checked_mul(samples)?.checked_add(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::DataPosition;

    #[test]
    fn other_data_seeds_and_places_are_named() {
        let position = DataPosition { data: 7, seed: 1, epoch: 2, next: 4 };
        for (data, samples, seed, expect) in [
            (7, 5, 1, &[][..]),
            (8, 5, 1, &["went on with data 0000000000000007, and these are 0000000000000008"]),
            (7, 4, 1, &["sample 4 of an epoch of 4"]),
            (7, 5, 2, &["from seed 1, not 2"]),
            (8, 4, 2, &["and these are", "not 2"]),
        ] {
            let problems: Vec<String> =
                position.problems(data, samples, seed).iter().map(ToString::to_string).collect();
            assert_eq!(problems.len(), expect.len(), "{problems:?}");
            assert!(problems.iter().zip(expect).all(|(problem, part)| problem.contains(part)), "{problems:?}");
        }
        assert_eq!(position.taken(5), Some(14));
        assert_eq!(DataPosition { epoch: u64::MAX, ..position }.taken(5), None);
    }
}

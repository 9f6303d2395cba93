//! Samples of a text in an order that depends on the seed alone.

use std::sync::Arc;

use ir::Problem;

/// A text cut into samples of `sequence_length` tokens, each with the token that follows; tokens are bytes.
///
/// Samples start `sequence_length` apart; what is left at the end is not used. Every epoch goes through all of them once,
/// in an order drawn from the seed and the epoch. Which sample an iteration's `index`-th sequence is depends on nothing
/// else, so that every division of the work trains on the same batch.
#[derive(Clone, Debug)]
pub struct Dataset {
    text: Arc<[u8]>,
    sequence_length: usize,
    samples: u64,
    seed: u64,
}

impl Dataset {
    /// Cuts a text.
    ///
    /// # Errors
    /// If the text is too short for one sample, or samples have no tokens.
    pub fn new(text: impl Into<Arc<[u8]>>, sequence_length: u32, seed: u64) -> Result<Self, Problem> {
        let text = text.into();
        let length = usize::try_from(sequence_length).expect("usize has at least 32 bits");
        if length == 0 {
            return Err(Problem::new("training.sequence_length", "a sequence of no tokens"));
        }
        let samples = (text.len().saturating_sub(1) / length) as u64;
        if samples == 0 {
            let message = if text.is_empty() {
                "the text is empty".to_owned()
            } else {
                format!("the text has {} bytes, and one sample needs {}", text.len(), length + 1)
            };
            return Err(Problem::new("data.file", message).hint("give a longer text or shorten the sequence"));
        }
        Ok(Self { text, sequence_length: length, samples, seed })
    }
    /// Samples of one epoch.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }
    /// Tokens of a sample.
    #[must_use]
    pub const fn sequence_length(&self) -> usize {
        self.sequence_length
    }
    /// Appends the tokens of the `index`-th sequence of an iteration's global batch to `tokens`, and the token after
    /// each to `targets`.
    ///
    /// # Panics
    /// If `index` is not below `global_batch`.
    pub fn sample(&self, iteration: u64, global_batch: u32, index: u32, tokens: &mut Vec<u32>, targets: &mut Vec<u32>) {
        assert!(index < global_batch, "sequence {index} of a batch of {global_batch}");
        let drawn = iteration * u64::from(global_batch) + u64::from(index);
        let (epoch, place) = (drawn / self.samples, drawn % self.samples);
        let sample = permuted(place, self.samples, mix(self.seed ^ mix(epoch)));
        let start = usize::try_from(sample).expect("fewer samples than bytes") * self.sequence_length;
        let window = &self.text[start..=start + self.sequence_length];
        tokens.extend(window[..self.sequence_length].iter().map(|byte| u32::from(*byte)));
        targets.extend(window[1..].iter().map(|byte| u32::from(*byte)));
    }
}

/// The image of `place` under a permutation of `0..count` that `key` selects.
///
/// A Feistel network of four rounds over the next even power of two, walked until it comes back into range
/// (Black and Rogaway 2002): no table, so that any place costs the same.
fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let mut value = place;
    loop {
        let (mut left, mut right) = (value >> bits, value & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(right ^ mix(key.wrapping_add(round))) & mask));
        }
        value = left << bits | right;
        if value < count {
            return value;
        }
    }
}

/// A number that depends on every bit of `x` (the output function of SplitMix64, Steele et al. 2014).
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(data: &Dataset, iteration: u64, global_batch: u32) -> Vec<Vec<u32>> {
        let one = |index| {
            let (mut tokens, mut targets) = (Vec::new(), Vec::new());
            data.sample(iteration, global_batch, index, &mut tokens, &mut targets);
            assert_eq!(tokens[1..], targets[..tokens.len() - 1]);
            tokens
        };
        (0..global_batch).map(one).collect()
    }

    #[test]
    fn an_epoch_goes_through_all_samples_once() {
        // Sample i holds the byte i.
        for samples in [1u8, 2, 3, 17, 64, 100, 255] {
            let text: Vec<u8> = (0..samples).flat_map(|i| [i; 5]).chain([0]).collect();
            let data = Dataset::new(text, 5, 3).unwrap();
            assert_eq!(data.samples(), u64::from(samples));
            let epoch = |first: u64| -> Vec<u32> {
                let places = first..first + u64::from(samples);
                places.map(|place| batch(&data, place, 1)[0][0]).collect()
            };
            let orders = [epoch(0), epoch(u64::from(samples))];
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..u32::from(samples)).collect::<Vec<_>>());
            }
            assert!(samples < 17 || orders[0] != orders[1], "two epochs in the same order");
            assert!(
                samples < 17 || orders[0] != (0..u32::from(samples)).collect::<Vec<_>>(),
                "in the order of the text"
            );
        }
    }

    #[test]
    fn batches_depend_on_seed_and_place_alone() {
        let text = crate::data::generate(0, 20_000);
        let data = |seed| Dataset::new(text.clone(), 32, seed).unwrap();
        assert_eq!(batch(&data(1), 3, 8), batch(&data(1), 3, 8));
        assert_ne!(batch(&data(1), 3, 8), batch(&data(2), 3, 8));
        // The same sequences in smaller batches.
        assert_eq!(batch(&data(1), 1, 8)[..4], batch(&data(1), 2, 4)[..]);
    }

    #[test]
    fn what_is_too_short_is_a_problem() {
        let message = |text: &[u8], length| Dataset::new(text, length, 0).unwrap_err().message;
        assert_eq!(message(b"", 8), "the text is empty");
        assert_eq!(message(b"12345678", 8), "the text has 8 bytes, and one sample needs 9");
        assert_eq!(message(b"12345678", 0), "a sequence of no tokens");
        assert_eq!(Dataset::new(*b"123456789", 8, 0).unwrap().samples(), 1);
    }
}

//! Samples of a text in an order that depends on the seed alone.

use ir::Problem;
use ir::program::Digest;

use super::order::sample_at;
use super::packing::{Packed, Piece};
use super::text::{Packing, Text};
use super::{Batch, DataPosition};
use crate::kernels::loss::IGNORED;

/// A text as samples of `sequence_length` tokens, each token with the one that follows it as its target.
///
/// Concatenated documents are cut where a sample is full; what is left at the end is not used. [Packed](Packing::Documents)
/// ones stay whole; what stays free in a sample is token 0 without a target, a document of its own.
///
/// Every epoch goes through all samples once, in an order drawn from the seed and the epoch. Which sample stands at a place of
/// the whole training depends on nothing else, so that every division of the work, and a run that goes on from a
/// [`DataPosition`], trains on the same batches.
#[derive(Clone, Debug)]
pub struct Dataset {
    text: Text,
    /// Where documents are packed.
    packed: Option<Packed>,
    sequence_length: u32,
    samples: u64,
    seed: u64,
    digest: u64,
}

impl Dataset {
    /// Cuts a text.
    ///
    /// # Errors
    /// If the text is too short for one sample, or samples have no tokens.
    pub fn new(text: impl Into<Text>, sequence_length: u32, seed: u64) -> Result<Self, Problem> {
        let text = text.into();
        if sequence_length == 0 {
            return Err(Problem::new("training.sequence_length", "a sequence of no tokens"));
        }
        let packed = (text.packing() == Packing::Documents).then(|| Packed::new(&text, sequence_length));
        let samples = match &packed {
            Some(packed) => packed.sequences() as u64,
            None => text.tokens().saturating_sub(1) / u64::from(sequence_length),
        };
        if samples == 0 {
            return Err(too_short(&text, sequence_length));
        }
        let mut digest = Digest::new();
        digest.number(sequence_length.into());
        text.take_in(&mut digest);
        Ok(Self { text, packed, sequence_length, samples, seed, digest: digest.finish() })
    }
    /// Samples of one epoch.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }
    /// Tokens of a sample.
    #[must_use]
    pub const fn sequence_length(&self) -> u32 {
        self.sequence_length
    }
    /// The seed of the order.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }
    /// The text.
    #[must_use]
    pub const fn text(&self) -> &Text {
        &self.text
    }
    /// Tokens of one epoch that are trained on: those with a target.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        match &self.packed {
            None => self.samples * u64::from(self.sequence_length),
            Some(packed) => (0..packed.sequences()).map(|sequence| packed.tokens(sequence)).sum(),
        }
    }
    /// A digest of the text and of how it is cut, the same on any machine.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }
    /// Where the order of samples stands after `taken` of them.
    #[must_use]
    pub const fn position(&self, taken: u64) -> DataPosition {
        DataPosition { data: self.digest, seed: self.seed, epoch: taken / self.samples, next: taken % self.samples }
    }
    /// The samples at the places `first..first + count` of the whole training: a global batch.
    #[must_use]
    pub fn batch(&self, first: u64, count: u32) -> Batch {
        let mut batch = Batch::default();
        for place in first..first + u64::from(count) {
            let sample = sample_at(self.seed, place / self.samples, place % self.samples, self.samples);
            match &self.packed {
                None => self.window(sample, &mut batch),
                Some(packed) => self.sequence(packed, sample, &mut batch),
            }
        }
        batch
    }

    fn window(&self, sample: u64, batch: &mut Batch) {
        let (start, length) = (sample * u64::from(self.sequence_length), u64::from(self.sequence_length));
        self.text.append(start..start + length, &mut batch.tokens);
        self.text.append(start + 1..start + length + 1, &mut batch.targets);
        batch.counted += length;
    }

    fn sequence(&self, packed: &Packed, sample: u64, batch: &mut Batch) {
        let sequence = usize::try_from(sample).expect("fewer sequences than tokens");
        let mut position = 0;
        for Piece { first, length } in packed.of(sequence).iter().copied() {
            let end = first + u64::from(length);
            self.text.append(first..end, &mut batch.tokens);
            self.text.append(first + 1..end + 1, &mut batch.targets);
            batch.starts.extend((0..length).map(|_| position));
            batch.counted += u64::from(length);
            position += length;
        }
        let padding = self.sequence_length - position;
        batch.tokens.extend((0..padding).map(|_| 0));
        batch.targets.extend((0..padding).map(|_| IGNORED));
        batch.starts.extend((0..padding).map(|_| position));
    }
}

fn too_short(text: &Text, sequence_length: u32) -> Problem {
    let (tokens, documents) = (text.tokens(), text.documents());
    let unit = if text.vocabulary() == super::text::BYTES { "bytes" } else { "tokens" };
    let (message, hint) = match text.packing() {
        _ if tokens == 0 => ("the text is empty".to_owned(), "give a longer text"),
        Packing::Concatenate => {
            let needed = u64::from(sequence_length) + 1;
            (
                format!("the text has {tokens} {unit}, and one sample needs {needed}"),
                "give a longer text or shorten the sequence",
            )
        }
        Packing::Documents => (
            format!("none of the {documents} documents has two {unit}: nothing follows anything"),
            "give longer documents, or set packing = \"concatenate\"",
        ),
    };
    Problem::new("data", message).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::data::TextBuilder;

    /// The samples at places, each as its tokens.
    fn samples(data: &Dataset, first: u64, count: u32) -> Vec<Vec<u32>> {
        let length = data.sequence_length() as usize;
        data.batch(first, count).tokens.chunks(length).map(<[u32]>::to_vec).collect()
    }

    fn packed(documents: &[&[u32]], length: u32, seed: u64) -> Dataset {
        let mut builder = TextBuilder::new(256);
        documents.iter().for_each(|document| builder.push(document));
        Dataset::new(builder.finish(Packing::Documents), length, seed).unwrap()
    }

    #[test]
    fn an_epoch_goes_through_all_samples_once() {
        // Sample i holds the byte i.
        for samples_each in [1u8, 2, 3, 17, 64, 100, 255] {
            let text: Vec<u8> = (0..samples_each).flat_map(|i| [i; 5]).chain([0]).collect();
            let data = Dataset::new(text, 5, 3).unwrap();
            assert_eq!(data.samples(), u64::from(samples_each));
            let epoch = |first| samples(&data, first, samples_each.into()).iter().map(|s| s[0]).collect::<Vec<u32>>();
            let orders = [epoch(0), epoch(u64::from(samples_each))];
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..u32::from(samples_each)).collect::<Vec<_>>());
            }
            assert!(samples_each < 17 || orders[0] != orders[1], "two epochs in the same order");
            let in_order = (0..u32::from(samples_each)).collect::<Vec<_>>();
            assert!(samples_each < 17 || orders[0] != in_order, "in the order of the text");
        }
    }

    /// Whatever divides the batches, and wherever a run stops and goes on with batches of another size, each epoch gives each
    /// sample once.
    #[test]
    fn each_sample_once_over_ranks_and_restarts() {
        for seed in 0..20u64 {
            let count = 5 + seed * 7;
            let text: Vec<u8> = (0..count).flat_map(|i| u32::try_from(i).unwrap().to_le_bytes()).chain([0]).collect();
            let data = Dataset::new(text, 4, seed).unwrap();
            let (mut seen, mut position) = (BTreeMap::new(), data.position(0));
            // Each part of a run has its own global batch and its own number of replicas; each begins where the last ended.
            for (global_batch, replicas, iterations) in [(4u32, 2usize, 3), (6, 3, 2), (8, 1, 4), (5, 5, 30)] {
                for iteration in 0..iterations {
                    let first = position.taken(data.samples()).unwrap() + iteration * u64::from(global_batch);
                    let batch = data.batch(first, global_batch);
                    let each = global_batch as usize / replicas;
                    for replica in 0..replicas {
                        let own = batch.part(replica * each..(replica + 1) * each, 4);
                        assert_eq!(own.counted, u64::from(global_batch) * 4);
                        for (index, sample) in own.tokens.chunks(4).enumerate() {
                            let epoch = (first + (replica * each + index) as u64) / count;
                            *seen.entry((epoch, sample.to_vec())).or_insert(0) += 1;
                        }
                    }
                }
                let taken = position.taken(data.samples()).unwrap() + iterations * u64::from(global_batch);
                position = data.position(taken);
            }
            let taken = position.taken(count).unwrap();
            assert_eq!((seen.len() as u64, seen.values().all(|n| *n == 1)), (taken, true), "seed {seed}");
        }
    }

    #[test]
    fn batches_depend_on_seed_and_place_alone() {
        let text = crate::data::generate(0, 20_000);
        let data = |seed| Dataset::new(text.clone(), 32, seed).unwrap();
        assert_eq!(data(1).batch(24, 8), data(1).batch(24, 8));
        assert_ne!(data(1).batch(24, 8), data(2).batch(24, 8));
        // The same sequences in smaller batches.
        assert_eq!(samples(&data(1), 8, 8)[..4], samples(&data(1), 8, 4)[..]);
        let batch = data(1).batch(0, 2);
        assert!(batch.tokens[1..32] == batch.targets[..31] && batch.starts.is_empty());
    }

    #[test]
    fn packed_documents_keep_to_themselves() {
        let data = packed(&[&[1, 2, 3], &[4, 5, 6, 7, 8, 9], &[10, 11]], 4, 0);
        assert_eq!((data.samples(), data.tokens()), (2, 8));
        let mut rows: Vec<(Vec<u32>, Vec<u32>, Vec<u32>)> = (0..2)
            .map(|place| {
                let Batch { tokens, targets, starts, counted } = data.batch(place, 1);
                assert_eq!(counted, 4);
                (tokens, targets, starts)
            })
            .collect();
        rows.sort_unstable();
        let expect = [
            (vec![1, 2, 8, 10], vec![2, 3, 9, 11], vec![0, 0, 2, 3]),
            (vec![4, 5, 6, 7], vec![5, 6, 7, 8], vec![0; 4]),
        ];
        assert_eq!(rows, expect);
        let batch = packed(&[&[1, 2, 3]], 4, 0).batch(5, 1);
        let padded = Batch {
            tokens: vec![1, 2, 0, 0],
            targets: vec![2, 3, IGNORED, IGNORED],
            starts: vec![0, 0, 2, 2],
            counted: 2,
        };
        assert_eq!(batch, padded);
    }

    #[test]
    fn a_position_counts_samples() {
        let data = Dataset::new(b"0123456789abcdef".to_vec(), 4, 9).unwrap();
        assert_eq!(data.samples(), 3);
        let position = data.position(7);
        assert_eq!((position.seed, position.epoch, position.next), (9, 2, 1));
        assert_eq!(position.taken(data.samples()), Some(7));
        assert!(position.problems(data.digest(), 3, 9).is_empty());
        let other = Dataset::new(b"0123456789abcdeg".to_vec(), 4, 9).unwrap();
        assert!(other.digest() != data.digest() && other.position(7).data == other.digest());
    }

    #[test]
    fn what_is_too_short_is_a_problem() {
        let message = |text: &[u8], length| Dataset::new(text.to_vec(), length, 0).unwrap_err().message;
        assert_eq!(message(b"", 8), "the text is empty");
        assert_eq!(message(b"12345678", 8), "the text has 8 bytes, and one sample needs 9");
        assert_eq!(message(b"12345678", 0), "a sequence of no tokens");
        assert_eq!(Dataset::new(b"123456789".to_vec(), 8, 0).unwrap().samples(), 1);
        let mut builder = TextBuilder::new(300);
        [[1], [2]].iter().for_each(|document| builder.push(document));
        let alone = Dataset::new(builder.finish(Packing::Documents), 8, 0).unwrap_err();
        assert_eq!(alone.message, "none of the 2 documents has two tokens: nothing follows anything");
    }
}

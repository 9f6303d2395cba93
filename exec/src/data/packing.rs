//! How documents fill sequences.

use std::collections::BTreeMap;

use super::text::Text;

/// A run of a document's tokens in a sequence, each with the token after it as its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The place of its first token in the text.
    pub(super) first: u64,
    /// Its tokens; at least one, and one more follows in the document.
    pub(super) length: u32,
}

/// Which pieces of which documents each sequence holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packed {
    /// Those of all sequences, one after the other.
    pieces: Vec<Piece>,
    /// Where the pieces of each sequence end.
    ends: Vec<usize>,
}

impl Packed {
    /// Packs the documents of a text into sequences of `length` tokens: each piece, the longest first, into the sequence that
    /// it fills best, or into a new one (best fit decreasing). A document longer than a sequence is cut; one of a single token
    /// has no target and is left out. The order of equals is that of the text, so that equal texts are packed equally.
    ///
    /// Ding et al., "Fewer Truncations Improve Language Modeling" (2024).
    pub(super) fn new(text: &Text, length: u32) -> Self {
        let mut pieces = Vec::new();
        for document in text.ranges() {
            let mut first = document.start;
            while first + 1 < document.end {
                let left = document.end - 1 - first;
                let taken = u32::try_from(left).unwrap_or(u32::MAX).min(length);
                pieces.push(Piece { first, length: taken });
                first += u64::from(taken);
            }
        }
        pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.length), piece.first));
        let mut sequences: Vec<Vec<Piece>> = Vec::new();
        // By free tokens, sequences with so many.
        let mut free: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for piece in pieces {
            let best = free.range(piece.length..).next().map(|(left, _)| *left);
            let (sequence, left) = match best {
                Some(left) => {
                    let with = free.get_mut(&left).expect("just found");
                    let sequence = with.pop().expect("an empty list is taken out");
                    if with.is_empty() {
                        free.remove(&left);
                    }
                    (sequence, left)
                }
                None => {
                    sequences.push(Vec::new());
                    (sequences.len() - 1, length)
                }
            };
            sequences[sequence].push(piece);
            if left > piece.length {
                free.entry(left - piece.length).or_default().push(sequence);
            }
        }
        let mut packed = Self { pieces: Vec::new(), ends: Vec::new() };
        for sequence in &mut sequences {
            sequence.sort_by_key(|piece| piece.first);
            packed.pieces.append(sequence);
            packed.ends.push(packed.pieces.len());
        }
        packed
    }

    /// Sequences.
    pub(super) const fn sequences(&self) -> usize {
        self.ends.len()
    }

    /// The pieces of a sequence, in the order of the text.
    pub(super) fn of(&self, sequence: usize) -> &[Piece] {
        let first = sequence.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[first..self.ends[sequence]]
    }

    /// Tokens of a sequence that are no padding.
    pub(super) fn tokens(&self, sequence: usize) -> u64 {
        self.of(sequence).iter().map(|piece| u64::from(piece.length)).sum()
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::data::{Packing, TextBuilder};

    fn text(lengths: &[usize]) -> Text {
        let mut builder = TextBuilder::new(256);
        lengths.iter().for_each(|length| builder.push(&vec![1; *length]));
        builder.finish(Packing::Documents)
    }

    fn check(lengths: &[usize], length: u32, expect: &[&[(u64, u32)]]) {
        let packed = Packed::new(&text(lengths), length);
        let found: Vec<Vec<(u64, u32)>> =
            (0..packed.sequences()).map(|s| packed.of(s).iter().map(|p| (p.first, p.length)).collect()).collect();
        assert_eq!(found, expect, "{lengths:?} in {length}");
    }

    #[test]
    fn pieces_go_where_they_fit_best() {
        check(&[5], 4, &[&[(0, 4)]]);
        check(&[6], 4, &[&[(0, 4)], &[(4, 1)]]);
        check(&[1, 1], 4, &[]);
        check(&[2, 3, 4, 2], 4, &[&[(0, 1), (5, 3)], &[(2, 2), (9, 1)]]);
        check(&[9, 3], 4, &[&[(0, 4)], &[(4, 4)], &[(9, 2)]]);
    }

    #[test]
    fn every_token_with_a_target_is_in_one_sequence() {
        for seed in 0..60 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let length = random.random_range(1..40u32);
            let lengths: Vec<usize> =
                (0..random.random_range(0..60)).map(|_| random.random_range(1..90usize)).collect();
            let packed = Packed::new(&text(&lengths), length);
            let mut seen = vec![0; lengths.iter().sum()];
            for sequence in 0..packed.sequences() {
                let pieces = packed.of(sequence);
                assert!(pieces.windows(2).all(|pair| pair[0].first < pair[1].first), "seed {seed}");
                assert!((1..=u64::from(length)).contains(&packed.tokens(sequence)), "seed {seed}");
                for Piece { first, length } in pieces {
                    let first = usize::try_from(*first).unwrap();
                    seen[first..first + *length as usize].iter_mut().for_each(|count| *count += 1);
                }
            }
            let mut place = 0;
            for document in &lengths {
                let own = &seen[place..place + document];
                assert!(own[..document - 1].iter().all(|n| *n == 1) && own[document - 1] == 0, "seed {seed}: {own:?}");
                place += document;
            }
            // No two sequences could be one.
            let half = (0..packed.sequences()).filter(|s| 2 * packed.tokens(*s) <= u64::from(length)).count();
            assert!(half <= 1, "seed {seed}: {half} sequences are half empty");
        }
    }
}

//! Sequences that several ranks share.
//!
//! # Who holds what
//!
//! With keys and values that go round or are gathered, each sequence is cut into twice as many pieces as there are ranks, and
//! rank `i` of `n` holds the pieces `i` and `2 n - 1 - i`: an early and a late one, so that causal work is equal. With heads
//! exchanged for tokens, rank `i` holds the `i`-th of `n` equal parts.
//!
//! A rank's tokens stand piece by piece: `[pieces, sequences, length]`. So each piece is one block of every tensor, and its
//! queries and keys are those of one call of a kernel.

mod attention;
mod exchange;

use ir::{ContextMethod, Mesh};

use super::dimensions::size;
use super::values::{View, ViewMut};

/// How sequences are divided over a context group, and what of them one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) ranks: usize,
    pub(super) index: usize,
    pub(super) method: ContextMethod,
    pub(super) sequences: usize,
    /// Tokens of a piece of a sequence.
    pub(super) length: usize,
    /// The positions in their sequences at which this rank's pieces begin.
    pub(super) pieces: Vec<usize>,
}

impl Division {
    /// That of the rank `index` of a context group.
    ///
    /// # Panics
    /// If the sequences do not divide; what is legal does.
    pub(super) fn new(mesh: Mesh, index: u32, sequences: usize, sequence_length: usize) -> Self {
        let (ranks, index) = (size(mesh.context), size(index));
        let method = mesh.context_method;
        let parts = ranks * Self::pieces_each(method, ranks);
        assert!(sequence_length.is_multiple_of(parts), "{sequence_length} tokens in {parts} pieces");
        let mut division =
            Self { ranks, index, method, sequences, length: sequence_length / parts, pieces: Vec::new() };
        division.pieces = division.pieces_of(index);
        division
    }

    const fn pieces_each(method: ContextMethod, ranks: usize) -> usize {
        match method {
            ContextMethod::Ring | ContextMethod::AllGather if ranks > 1 => 2,
            ContextMethod::Ring | ContextMethod::AllGather | ContextMethod::AllToAll => 1,
        }
    }

    /// The positions at which the pieces of a rank begin.
    pub(super) fn pieces_of(&self, rank: usize) -> Vec<usize> {
        match Self::pieces_each(self.method, self.ranks) {
            1 => vec![rank * self.length],
            _ => vec![rank * self.length, (2 * self.ranks - 1 - rank) * self.length],
        }
    }

    /// Tokens of a microbatch on one rank.
    pub(super) fn tokens(&self) -> usize {
        self.pieces.len() * self.piece()
    }

    /// Tokens of one piece of all sequences.
    pub(super) const fn piece(&self) -> usize {
        self.sequences * self.length
    }

    /// The sequence and the position in it of one of this rank's tokens.
    pub(super) fn standing(&self, token: usize) -> (usize, usize) {
        let (piece, within) = (token / self.piece(), token % self.piece());
        (within / self.length, self.pieces[piece] + within % self.length)
    }

    /// This rank's tokens of `[sequences, sequence length]`, in its order.
    pub(super) fn select(&self, tokens: &[u32], out: &mut Vec<u32>) {
        let sequence_length = tokens.len() / self.sequences;
        out.clear();
        for first in &self.pieces {
            for sequence in tokens.chunks_exact(sequence_length) {
                out.extend_from_slice(&sequence[*first..][..self.length]);
            }
        }
    }

    /// Cuts a tensor of `[tokens, ...]` into this rank's pieces, each with the position at which it begins.
    pub(super) fn views_mut<'a>(&self, data: ViewMut<'a>) -> impl Iterator<Item = (usize, ViewMut<'a>)> {
        let length = data.len() / self.pieces.len();
        let mut rest = Some(data);
        self.pieces.clone().into_iter().map_while(move |first| {
            let (piece, after) = rest.take()?.split_at(length);
            rest = Some(after);
            Some((first, piece))
        })
    }

    /// The same, to read.
    pub(super) fn views<'a>(&self, data: View<'a>) -> impl Iterator<Item = (usize, View<'a>)> {
        let length = data.len() / self.pieces.len();
        let piece = move |(index, first)| (first, data.part(index * length..(index + 1) * length));
        self.pieces.clone().into_iter().enumerate().map(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_together_hold_each_token_once() {
        for (method, ranks, length) in [
            (ContextMethod::Ring, 1, 5),
            (ContextMethod::Ring, 3, 12),
            (ContextMethod::AllGather, 2, 8),
            (ContextMethod::AllToAll, 4, 8),
        ] {
            let mesh = Mesh { context: ranks, context_method: method, ..Mesh::default() };
            let tokens: Vec<u32> = (0..2 * length).collect();
            let mut seen = Vec::new();
            for index in 0..ranks {
                let division = Division::new(mesh, index, 2, size(length));
                let mut mine = Vec::new();
                division.select(&tokens, &mut mine);
                assert_eq!(mine.len(), division.tokens());
                for (place, token) in mine.iter().enumerate() {
                    let (sequence, position) = division.standing(place);
                    assert_eq!(sequence * size(length) + position, size(*token), "{method:?} of {ranks}");
                }
                seen.extend(mine);
            }
            seen.sort_unstable();
            assert_eq!(seen, tokens);
        }
        let ring = Division::new(Mesh { context: 4, ..Mesh::default() }, 1, 1, 16);
        assert_eq!(ring.pieces, [2, 12]);
    }
}

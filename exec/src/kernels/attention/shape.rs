//! Sizes of an attention, and its division into tiles.

use std::ops::Range;

use super::super::matmul::{Matrix, MatrixMut};
use super::super::narrow;

/// Query rows whose scores are held at once.
pub(super) const TILE: usize = 64;

/// Sizes of an attention, and where its queries and keys stand in their sequences.
///
/// Queries and keys of one pass may be different pieces of the sequences (context parallelism): a query sees the keys
/// at its own position and before, or the last of them that its window holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Independent sequences.
    pub sequences: usize,
    /// Queries per sequence.
    pub queries: usize,
    /// Position of the first query of each sequence.
    pub first_query: usize,
    /// Keys (and values) per sequence.
    pub keys: usize,
    /// Position of the first key of each sequence.
    pub first_key: usize,
    /// Query heads, a multiple of `key_heads`.
    pub query_heads: usize,
    /// Key and value heads; query head `h` reads head `h / (query_heads / key_heads)`.
    pub key_heads: usize,
    /// Positions that a query sees, its own included; the largest number for all before it.
    pub window: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Factor on the scores before the softmax.
    pub softmax_scale: f32,
}

/// An attention over sequences that may hold several documents: no query sees what stands before its document.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// Its sizes.
    pub shape: Attention,
    /// Of each query, `[sequences, queries]`, the position in the sequence at which its document begins; empty where each
    /// sequence is one document. It never decreases along a sequence.
    pub starts: &'a [u32],
}

/// Each sequence is one document.
impl From<Attention> for Packed<'_> {
    fn from(shape: Attention) -> Self {
        Self { shape, starts: &[] }
    }
}

impl<'a> Packed<'a> {
    pub(super) fn assert_sizes(self, queries: usize, keys: usize, values: usize, lse: usize) {
        self.shape.assert_sizes(queries, keys, values, lse);
        let tokens = self.shape.sequences * self.shape.queries;
        assert!(self.starts.is_empty() || self.starts.len() == tokens, "one start of a document per query");
    }

    /// Which keys the `query`-th query of a sequence sees.
    #[inline(always)]
    fn visible(self, sequence: usize, query: usize) -> Range<usize> {
        let seen = self.shape.visible(query);
        match self.starts.get(sequence * self.shape.queries + query) {
            None => seen,
            Some(start) => {
                let start = usize::try_from(*start).unwrap_or(usize::MAX).saturating_sub(self.shape.first_key);
                start.clamp(seen.start, seen.end)..seen.end
            }
        }
    }

    /// Every (sequence, head, tile of queries) with at least one query, in the order in which it is computed.
    pub(super) fn tiles(self) -> impl Iterator<Item = Tile<'a>> {
        let Attention { sequences, query_heads, queries, .. } = self.shape;
        let heads = (0..sequences).flat_map(move |sequence| (0..query_heads).map(move |head| (sequence, head)));
        heads.flat_map(move |(sequence, head)| {
            (0..queries).step_by(TILE).map(move |first| {
                let rows = TILE.min(queries - first);
                let (from, end) = (self.visible(sequence, first).start, self.visible(sequence, first + rows - 1).end);
                Tile { shape: self.shape, over: self, sequence, head, first, rows, from, width: end - from }
            })
        })
    }
}

impl Attention {
    /// Attention of whole sequences with the usual scale `1 / sqrt(head_dim)`.
    #[must_use]
    pub fn new(sequences: usize, length: usize, query_heads: usize, key_heads: usize, head_dim: usize) -> Self {
        Self {
            sequences,
            queries: length,
            first_query: 0,
            keys: length,
            first_key: 0,
            query_heads,
            key_heads,
            window: usize::MAX,
            head_dim,
            softmax_scale: narrow(1.0 / (head_dim as f64).sqrt()),
        }
    }

    /// Which keys the `query`-th query of a sequence sees.
    #[inline(always)]
    fn visible(self, query: usize) -> Range<usize> {
        let after = self.first_query + query + 1;
        let end = after.saturating_sub(self.first_key).min(self.keys);
        after.saturating_sub(self.window).saturating_sub(self.first_key).min(end)..end
    }

    fn assert_sizes(self, queries: usize, keys: usize, values: usize, lse: usize) {
        assert!(self.head_dim > 0 && self.key_heads > 0, "heads without elements");
        assert_eq!(self.query_heads % self.key_heads, 0, "query heads do not divide among key heads");
        let rows = self.sequences * self.queries * self.query_heads;
        assert_eq!(queries, rows * self.head_dim, "queries have not the size of their shape");
        assert_eq!(lse, rows, "one log-sum-exp per query and head");
        let size = self.sequences * self.keys * self.key_heads * self.head_dim;
        assert_eq!((keys, values), (size, size), "keys or values have not the size of their shape");
    }
}

/// Consecutive queries of one head of one sequence, with the keys that any of them sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile<'a> {
    shape: Attention,
    over: Packed<'a>,
    sequence: usize,
    head: usize,
    first: usize,
    pub(super) rows: usize,
    /// The first key that the first row sees; no later row sees an earlier one.
    from: usize,
    /// Keys from there to the last that the last row sees.
    pub(super) width: usize,
}

impl Tile<'_> {
    /// Index of `row` among the rows of `[sequences, queries, query_heads]`.
    #[inline(always)]
    pub(super) fn row(self, row: usize) -> usize {
        (self.sequence * self.shape.queries + self.first + row) * self.shape.query_heads + self.head
    }

    /// Which of the tile's keys a row sees.
    #[inline(always)]
    pub(super) fn visible(self, row: usize) -> Range<usize> {
        let seen = self.over.visible(self.sequence, self.first + row);
        // A row that sees nothing may lie before the tile's keys.
        let end = seen.end.saturating_sub(self.from);
        seen.start.saturating_sub(self.from).min(end)..end
    }

    /// The tile's rows of `[sequences, queries, query_heads, head_dim]`.
    pub(super) fn queries(self, data: &[f32]) -> Matrix<'_> {
        let dim = self.shape.head_dim;
        Matrix::strided(&data[self.row(0) * dim..], self.rows, dim, self.shape.query_heads * dim)
    }

    pub(super) fn queries_mut(self, data: &mut [f32]) -> MatrixMut<'_> {
        let dim = self.shape.head_dim;
        MatrixMut::strided(&mut data[self.row(0) * dim..], self.rows, dim, self.shape.query_heads * dim)
    }

    /// Start of the visible rows of `[sequences, keys, key_heads, head_dim]`.
    fn keys_start(self) -> usize {
        let key_head = self.head / (self.shape.query_heads / self.shape.key_heads);
        ((self.sequence * self.shape.keys + self.from) * self.shape.key_heads + key_head) * self.shape.head_dim
    }

    pub(super) fn keys(self, data: &[f32]) -> Matrix<'_> {
        let dim = self.shape.head_dim;
        Matrix::strided(&data[self.keys_start()..], self.width, dim, self.shape.key_heads * dim)
    }

    pub(super) fn keys_mut(self, data: &mut [f32]) -> MatrixMut<'_> {
        let dim = self.shape.head_dim;
        MatrixMut::strided(&mut data[self.keys_start()..], self.width, dim, self.shape.key_heads * dim)
    }
}

//! Rotary position embedding, the "rotate half" convention of Llama: dimension `i` of a head is paired with
//! `i + head_dim / 2` (not with its neighbour, as in the paper).
//!
//! Source: Su et al., "RoFormer" (2021); pairing as in Hugging Face `modeling_llama`.

use super::{narrow, rows_of, vectorized};

/// Cosines and sines of every angle `position * frequency`.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryTable {
    /// `[positions, pairs]`.
    cosines: Vec<f32>,
    sines: Vec<f32>,
    pairs: usize,
}

impl RotaryTable {
    /// Table for the positions `0..positions` and the frequencies `theta^(-2 i / head_dim)`, `i` in
    /// `0..head_dim / 2`.
    ///
    /// # Panics
    /// If `head_dim` is odd: its last dimension would have no partner.
    #[must_use]
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Self {
        assert_eq!(head_dim % 2, 0, "a head of odd size {head_dim} cannot be rotated in pairs");
        let frequency = |pair: usize| libm::pow(theta, -((2 * pair) as f64) / head_dim as f64);
        let frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
        Self::with_frequencies(positions, &frequencies)
    }

    /// Table for the positions `0..positions` and one frequency per pair, in radians per position (for models that
    /// rescale them).  Angles are computed in `f64`.
    #[must_use]
    pub fn with_frequencies(positions: usize, frequencies: &[f64]) -> Self {
        let angles = |function: fn(f64) -> f64| {
            let row = |position| frequencies.iter().map(move |frequency| narrow(function(position as f64 * frequency)));
            (0..positions).flat_map(row).collect()
        };
        Self { cosines: angles(libm::cos), sines: angles(libm::sin), pairs: frequencies.len() }
    }

    /// Pairs of a head.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// `[positions, pairs]`: the cosines and the sines, for a copy on a device.
    #[must_use]
    pub fn content(&self) -> (&[f32], &[f32]) {
        (&self.cosines, &self.sines)
    }
}

/// Rotates queries or keys in place: pair `(a, b)` becomes `(a cos - b sin, b cos + a sin)`.
///
/// `x`: `[tokens, heads, head_dim]` with the tokens of sequences of `sequence_length` one after the other; the first
/// token of each sequence stands at `first_position` (not zero where the sequence is cut over context ranks).
///
/// # Panics
/// If `x` is not made of whole tokens, or a position lies beyond the table.
pub fn rotate(table: &RotaryTable, x: &mut [f32], heads: usize, sequence_length: usize, first_position: usize) {
    apply::<false>(table, x, heads, sequence_length, first_position);
}

/// Undoes [`rotate`].  A rotation's transpose is its inverse, so this also turns the gradient with respect to the
/// rotated values into the gradient with respect to the values before.
///
/// # Panics
/// As [`rotate`].
pub fn rotate_back(table: &RotaryTable, x: &mut [f32], heads: usize, sequence_length: usize, first_position: usize) {
    apply::<true>(table, x, heads, sequence_length, first_position);
}

fn apply<const BACK: bool>(
    table: &RotaryTable,
    x: &mut [f32],
    heads: usize,
    sequence_length: usize,
    first_position: usize,
) {
    let angles = Angles { cosines: &table.cosines, sines: &table.sines, pairs: table.pairs };
    rotate_angles::<BACK>(angles, x, heads, sequence_length, first_position);
}

/// The content of a [`RotaryTable`], wherever it lies: `[positions, pairs]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Angles<'a> {
    pub(crate) cosines: &'a [f32],
    pub(crate) sines: &'a [f32],
    pub(crate) pairs: usize,
}

/// [`rotate`], or [`rotate_back`] if `BACK`.
pub(crate) fn rotate_angles<const BACK: bool>(
    angles: Angles<'_>,
    x: &mut [f32],
    heads: usize,
    sequence_length: usize,
    first_position: usize,
) {
    let Angles { cosines, sines, pairs } = angles;
    let tokens = rows_of(x.len(), heads * 2 * pairs);
    let last = first_position + sequence_length.min(tokens);
    assert!(last * pairs <= cosines.len(), "positions up to {last} lie beyond the table");
    vectorized!({
        for (token, heads) in x.chunks_exact_mut(heads * 2 * pairs).enumerate() {
            let start = (first_position + token % sequence_length) * pairs;
            let cosines = &cosines[start..][..pairs];
            let sines = &sines[start..][..pairs];
            for head in heads.chunks_exact_mut(2 * pairs) {
                let (low, high) = head.split_at_mut(pairs);
                for ((a, b), (&cosine, &sine)) in low.iter_mut().zip(high).zip(cosines.iter().zip(sines)) {
                    let sine = if BACK { -sine } else { sine };
                    (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
    use super::*;

    const THETA: f64 = 10_000.0;

    /// As complex numbers.
    fn twin(x: &[f64], heads: usize, head_dim: usize, length: usize, first: usize) -> Vec<f64> {
        let mut y = x.to_vec();
        for (head, values) in y.chunks_exact_mut(head_dim).enumerate() {
            let position = (first + head / heads % length) as f64;
            for pair in 0..head_dim / 2 {
                let angle = position * THETA.powf(-2.0 * pair as f64 / head_dim as f64);
                let (radius, phase) =
                    (values[pair].hypot(values[pair + head_dim / 2]), values[pair + head_dim / 2].atan2(values[pair]));
                values[pair] = radius * (phase + angle).cos();
                values[pair + head_dim / 2] = radius * (phase + angle).sin();
            }
        }
        y
    }

    #[test]
    fn rotation_equals_its_twin_and_back_is_its_gradient() {
        Cases::run(20, |cases| {
            let (heads, head_dim, length) = (cases.size(1, 3), 2 * cases.size(1, 6), cases.size(1, 4));
            let (sequences, first) = (cases.size(1, 2), cases.size(0, 900));
            let count = sequences * length * heads * head_dim;
            let (x, dy) = (cases.values(count, 1.0), cases.values(count, 1.0));
            let table = RotaryTable::new(first + length, head_dim, THETA);

            let mut y = x.clone();
            rotate(&table, &mut y, heads, length, first);
            assert_close("y", &y, &twin(&wide(&x), heads, head_dim, length, first), 3e-7);

            let mut dx = dy.clone();
            rotate_back(&table, &mut dx, heads, length, first);
            let want = numerical_gradient(&wide(&x), |x| inner(&dy, &twin(x, heads, head_dim, length, first)));
            assert_close("dx", &dx, &want, 3e-7);

            rotate_back(&table, &mut y, heads, length, first);
            assert_close("there and back", &y, &wide(&x), 3e-7);
        });
    }

    #[test]
    fn a_cut_sequence_rotates_as_the_whole() {
        Cases::run(5, |cases| {
            let table = RotaryTable::new(10, 6, THETA);
            let mut whole = cases.values(10 * 12, 1.0);
            let mut parts = whole.clone();
            rotate(&table, &mut whole, 2, 10, 0);
            let (early, late) = parts.split_at_mut(4 * 12);
            rotate(&table, early, 2, 4, 0);
            rotate(&table, late, 2, 6, 4);
            assert_eq!(whole, parts);
        });
    }

    #[test]
    #[should_panic(expected = "beyond the table")]
    fn positions_beyond_the_table_are_refused() {
        rotate(&RotaryTable::new(3, 2, THETA), &mut [0.0; 8], 1, 4, 0);
    }
}

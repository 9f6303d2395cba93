//! Sums, scalings and copies of whole buffers.
//!
//! A dense copy is `copy_from_slice`; [`copy_block`] is for the part of a matrix that a shard holds.

use super::vectorized;

/// `out[i] = a[i] + b[i]`, a residual connection.
///
/// # Panics
/// If the lengths differ.
pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), out.len(), "first summand and output differ in length");
    assert_eq!(b.len(), out.len(), "second summand and output differ in length");
    vectorized!({
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    });
}

/// `total[i] += part[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn accumulate(total: &mut [f32], part: &[f32]) {
    assert_eq!(total.len(), part.len(), "sum and summand differ in length");
    vectorized!({
        for (total, &part) in total.iter_mut().zip(part) {
            *total += part;
        }
    });
}

/// `total[i] += factor * part[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn accumulate_scaled(total: &mut [f32], factor: f32, part: &[f32]) {
    assert_eq!(total.len(), part.len(), "sum and summand differ in length");
    vectorized!({
        for (total, &part) in total.iter_mut().zip(part) {
            *total += factor * part;
        }
    });
}

/// `values[i] *= factor`: an average after a sum over replicas, or gradient clipping.
pub fn scale(values: &mut [f32], factor: f32) {
    vectorized!({
        for value in values {
            *value *= factor;
        }
    });
}

/// Copies a block of `columns` wide rows between matrices whose rows are `from_stride` and `to_stride` elements apart.
///
/// Both slices start at the block's first element; either may end with it.
///
/// # Panics
/// If a stride is smaller than `columns`, or the block reaches beyond a slice.
pub fn copy_block(rows: usize, columns: usize, from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize) {
    assert!(from_stride >= columns && to_stride >= columns, "rows of {columns} overlap");
    for row in 0..rows {
        to[row * to_stride..][..columns].copy_from_slice(&from[row * from_stride..][..columns]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Cases;
    use super::*;

    #[test]
    fn sums_and_scalings_are_exact() {
        Cases::run(20, |cases| {
            let length = cases.size(0, 70);
            let (a, b) = (cases.values(length, 3.0), cases.values(length, 3.0));
            let mut out = vec![f32::NAN; length];
            add(&a, &b, &mut out);
            assert_eq!(out, a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>());

            let mut total = a.clone();
            accumulate(&mut total, &b);
            assert_eq!(total, out);

            let mut total = a.clone();
            accumulate_scaled(&mut total, -0.3, &b);
            assert_eq!(total, a.iter().zip(&b).map(|(a, b)| a + -0.3 * b).collect::<Vec<_>>());

            let mut scaled = a.clone();
            scale(&mut scaled, 1.7);
            assert_eq!(scaled, a.iter().map(|a| a * 1.7).collect::<Vec<_>>());
        });
    }

    #[test]
    #[allow(clippy::float_cmp)] // copies are exact
    fn a_block_leaves_its_surroundings_alone() {
        // Columns 1..3 of a 2x4 matrix into columns 2..4 of a 2x5 matrix.
        let from = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let mut to = [-1.0; 10];
        copy_block(2, 2, &from[1..], 4, &mut to[2..], 5);
        assert_eq!(to, [-1.0, -1.0, 1.0, 2.0, -1.0, -1.0, -1.0, 5.0, 6.0, -1.0]);
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn lengths_must_agree() {
        accumulate(&mut [0.0; 3], &[0.0; 2]);
    }
}

//! Matrix products of strided views.

/// A matrix to read: a view of a slice with any spacing of rows and columns.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A matrix to write: rows of adjacent elements that do not overlap.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` adjacent elements, one row after the other.
    ///
    /// # Panics
    /// If `data` is not of that size.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "not a dense {rows} x {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` adjacent elements; a row starts `row_stride` elements after the one before.
    ///
    /// # Panics
    /// If the last row reaches beyond `data`.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert_fits(data.len(), rows, columns, row_stride);
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The transpose, as a view.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `columns` adjacent elements, one row after the other.
    ///
    /// # Panics
    /// If `data` is not of that size.
    #[must_use]
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "not a dense {rows} x {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` adjacent elements; a row starts `row_stride` elements after the one before.
    ///
    /// # Panics
    /// If rows overlap, or the last one reaches beyond `data`.
    #[must_use]
    pub fn strided(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(rows <= 1 || row_stride >= columns, "rows of {columns} overlap at stride {row_stride}");
        assert_fits(data.len(), rows, columns, row_stride);
        Self { data, rows, columns, row_stride }
    }
}

fn assert_fits(length: usize, rows: usize, columns: usize, row_stride: usize) {
    if rows > 0 && columns > 0 {
        let needed = (rows - 1).checked_mul(row_stride).and_then(|start| start.checked_add(columns));
        assert!(
            needed.is_some_and(|needed| needed <= length),
            "a {rows} x {columns} matrix of stride {row_stride} does not fit {length} elements"
        );
    }
}

/// `c = alpha a b + beta c` with `a` of `[m, k]`, `b` of `[k, n]` and `c` of `[m, n]`.
///
/// With `beta` zero, `c` is not read and may hold anything.
///
/// # Panics
/// If the shapes do not match.
#[allow(unsafe_code)]
pub fn multiply(alpha: f32, a: Matrix<'_>, b: Matrix<'_>, beta: f32, c: &mut MatrixMut<'_>) {
    assert_eq!(a.columns, b.rows, "inner sizes of the product differ");
    assert_eq!((a.rows, b.columns), (c.rows, c.columns), "product and output differ in shape");
    let signed = |stride: usize| isize::try_from(stride).expect("a stride within a slice");
    // SAFETY: the constructors of `Matrix` and `MatrixMut` established (and nothing changes their fields) that every
    // (row, column) of a view, at `row * row_stride + column * column_stride`, lies within its slice; the assertions
    // above say that `gemm` touches no other.  `c` is borrowed mutably, so it overlaps neither input, and its rows
    // do not overlap each other.
    unsafe {
        gemm::gemm(
            c.rows,
            c.columns,
            a.columns,
            c.data.as_mut_ptr(),
            1,
            signed(c.row_stride),
            beta != 0.0,
            a.data.as_ptr(),
            signed(a.column_stride),
            signed(a.row_stride),
            b.data.as_ptr(),
            signed(b.column_stride),
            signed(b.row_stride),
            beta, // the crate's alpha scales the output
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, product, transpose, wide};
    use super::*;

    /// Every combination of transposed operands, strides, scalings and an accumulated output, over sizes that are no
    /// multiple of any register tile.
    #[test]
    fn products_equal_the_naive_twin() {
        Cases::run(60, |cases| {
            let (m, n, k) = (cases.size(0, 40), cases.size(1, 40), cases.size(0, 70));
            let (pad_a, pad_b, pad_c) = (cases.size(0, 3), cases.size(0, 3), cases.size(0, 3));
            let (flip_a, flip_b) = (cases.size(0, 1) == 1, cases.size(0, 1) == 1);
            let (alpha, beta) = (cases.values(1, 2.0)[0], [0.0, 1.0, -0.5][cases.size(0, 2)]);
            // Strided, possibly transposed storage, and the same matrix dense in f64.
            let mut operand = |rows: usize, columns: usize, flip: bool, pad: usize| {
                let (r, c) = if flip { (columns, rows) } else { (rows, columns) };
                let data = cases.values(r * (c + pad), 1.0);
                let dense: Vec<f64> = (0..r).flat_map(|row| wide(&data[row * (c + pad)..][..c])).collect();
                (data, if flip { transpose(&dense, r, c) } else { dense })
            };
            let (a, dense_a) = operand(m, k, flip_a, pad_a);
            let (b, dense_b) = operand(k, n, flip_b, pad_b);
            let view = |data, rows, columns, flip, pad| match flip {
                false => Matrix::strided(data, rows, columns, columns + pad),
                true => Matrix::strided(data, columns, rows, rows + pad).transposed(),
            };
            let mut c = if beta == 0.0 { vec![f32::NAN; m * (n + pad_c)] } else { cases.values(m * (n + pad_c), 1.0) };
            let before = c.clone();
            let (view_a, view_b) = (view(&a, m, k, flip_a, pad_a), view(&b, k, n, flip_b, pad_b));
            multiply(alpha, view_a, view_b, beta, &mut MatrixMut::strided(&mut c, m, n, n + pad_c));

            let ab = product(&dense_a, &dense_b, m, k, n);
            for row in 0..m {
                let old = &before[row * (n + pad_c)..][..n + pad_c];
                let new = &c[row * (n + pad_c)..][..n + pad_c];
                let kept = |old: f32| {
                    if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(old) }
                };
                let want: Vec<f64> = (0..n).map(|j| f64::from(alpha) * ab[row * n + j] + kept(old[j])).collect();
                assert_close("c", &new[..n], &want, 2e-5);
                let bits = |row: &[f32]| row[n..].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(new), bits(old), "the gap between rows was written");
            }
        });
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_view_beyond_its_slice_is_refused() {
        let _ = Matrix::strided(&[0.0; 10], 3, 4, 4);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_output_rows_are_refused() {
        let _ = MatrixMut::strided(&mut [0.0; 10], 2, 4, 3);
    }
}

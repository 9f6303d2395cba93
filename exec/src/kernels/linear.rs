//! The linear layer as its three passes.

use super::matmul::{Matrix, MatrixMut, multiply};
use super::{Store, elementwise};

/// Sizes of a linear layer `y = x w^T + b`, weights as `[outputs, inputs]` (as PyTorch and safetensors checkpoints of
/// the Llama family hold them).
///
/// Sharding is the caller's: with outputs sharded, the input gradients of the ranks are summed; with inputs sharded,
/// the outputs are, and one rank adds the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// Rows of `x` and `y`.
    pub tokens: usize,
    /// Columns of `x` and `w`.
    pub inputs: usize,
    /// Columns of `y`, rows of `w`.
    pub outputs: usize,
}

/// `y = x w^T + bias`: `x` of `[tokens, inputs]`, `w` of `[outputs, inputs]`, `y` of `[tokens, outputs]`.
///
/// # Panics
/// If a slice has not the size that `shape` gives it.
pub fn linear_forward(shape: Linear, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    let Linear { tokens, inputs, outputs } = shape;
    let x = Matrix::new(x, tokens, inputs);
    let w = Matrix::new(w, outputs, inputs);
    assert_eq!(y.len(), tokens * outputs, "output has not the size of its shape");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), outputs, "bias has not the size of an output row");
        for row in y.chunks_exact_mut(outputs.max(1)) {
            row.copy_from_slice(bias);
        }
    }
    let beta = if bias.is_some() { 1.0 } else { 0.0 };
    multiply(1.0, x, w.transposed(), beta, &mut MatrixMut::new(y, tokens, outputs));
}

/// `dx = dy w`, or `dx += dy w`: the input gradient of [`linear_forward`].
///
/// # Panics
/// If a slice has not the size that `shape` gives it.
pub fn linear_backward_input(shape: Linear, dy: &[f32], w: &[f32], store: Store, dx: &mut [f32]) {
    let Linear { tokens, inputs, outputs } = shape;
    let beta = match store {
        Store::Overwrite => 0.0,
        Store::Accumulate => 1.0,
    };
    let (dy, w) = (Matrix::new(dy, tokens, outputs), Matrix::new(w, outputs, inputs));
    multiply(1.0, dy, w, beta, &mut MatrixMut::new(dx, tokens, inputs));
}

/// `dw += dy^T x`: the weight gradient of [`linear_forward`].
///
/// # Panics
/// If a slice has not the size that `shape` gives it.
pub fn linear_backward_weight(shape: Linear, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let Linear { tokens, inputs, outputs } = shape;
    let (x, dy) = (Matrix::new(x, tokens, inputs), Matrix::new(dy, tokens, outputs));
    multiply(1.0, dy.transposed(), x, 1.0, &mut MatrixMut::new(dw, outputs, inputs));
}

/// `db[j] +=` sum of `dy[i, j]` over the tokens `i`, in order: the bias gradient of [`linear_forward`].
///
/// # Panics
/// If `dy` is not made of rows of the size of `db`.
pub fn linear_backward_bias(dy: &[f32], db: &mut [f32]) {
    super::rows_of(dy.len(), db.len());
    for row in dy.chunks_exact(db.len()) {
        elementwise::accumulate(db, row);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, product, transpose, wide};
    use super::*;

    #[test]
    fn linear_passes_equal_the_twin_and_its_gradient() {
        Cases::run(20, |cases| {
            let shape = Linear { tokens: cases.size(1, 9), inputs: cases.size(1, 9), outputs: cases.size(1, 9) };
            let Linear { tokens, inputs, outputs } = shape;
            let (x, w) = (cases.values(tokens * inputs, 1.0), cases.values(outputs * inputs, 1.0));
            let (bias, dy) = (cases.values(outputs, 1.0), cases.values(tokens * outputs, 1.0));
            let twin = |x: &[f64], w: &[f64], bias: &[f64]| -> Vec<f64> {
                let xw = product(x, &transpose(w, outputs, inputs), tokens, inputs, outputs);
                xw.iter().enumerate().map(|(index, value)| value + bias[index % outputs]).collect()
            };
            let (wide_x, wide_w, wide_bias) = (wide(&x), wide(&w), wide(&bias));

            let mut y = vec![f32::NAN; tokens * outputs];
            linear_forward(shape, &x, &w, Some(&bias), &mut y);
            assert_close("y", &y, &twin(&wide_x, &wide_w, &wide_bias), 1e-6);
            linear_forward(shape, &x, &w, None, &mut y);
            assert_close("y without bias", &y, &twin(&wide_x, &wide_w, &vec![0.0; outputs]), 1e-6);

            let want = numerical_gradient(&wide_x, |x| inner(&dy, &twin(x, &wide_w, &wide_bias)));
            let mut dx = vec![f32::NAN; x.len()];
            linear_backward_input(shape, &dy, &w, Store::Overwrite, &mut dx);
            assert_close("dx", &dx, &want, 1e-6);
            linear_backward_input(shape, &dy, &w, Store::Accumulate, &mut dx);
            assert_close("dx twice", &dx, &want.iter().map(|value| 2.0 * value).collect::<Vec<_>>(), 1e-6);

            let mut dw = vec![1.0; w.len()];
            linear_backward_weight(shape, &x, &dy, &mut dw);
            let want = numerical_gradient(&wide_w, |w| inner(&dy, &twin(&wide_x, w, &wide_bias)));
            assert_close("dw", &dw, &want.iter().map(|value| 1.0 + value).collect::<Vec<_>>(), 1e-6);

            let mut db = vec![1.0; outputs];
            linear_backward_bias(&dy, &mut db);
            let want = numerical_gradient(&wide_bias, |bias| inner(&dy, &twin(&wide_x, &wide_w, bias)));
            assert_close("db", &db, &want.iter().map(|value| 1.0 + value).collect::<Vec<_>>(), 1e-6);
        });
    }

    #[test]
    fn two_runs_agree_to_the_bit() {
        Cases::run(3, |cases| {
            let shape = Linear { tokens: 65, inputs: 130, outputs: 67 };
            let (x, w) = (cases.values(65 * 130, 1.0), cases.values(67 * 130, 1.0));
            let run = || {
                let mut y = vec![0.0; 65 * 67];
                linear_forward(shape, &x, &w, None, &mut y);
                y
            };
            assert_eq!(run(), run());
        });
    }
}

//! RMSNorm and LayerNorm over rows of `features` elements.
//!
//! The forward pass saves one or two numbers per row; the input gradient and the weight gradient are computed from
//! them apart.

use super::{Store, narrow, rows_of, sum_over, vectorized};

/// RMSNorm: `y = x rstd w` with `rstd = 1 / sqrt(mean(x^2) + epsilon)` of each row.
///
/// `x`, `y`: `[rows, features]`; `weight`: `[features]`; `rstd`: `[rows]`, saved for the backward passes.
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
///
/// # Panics
/// If the sizes do not match.
pub fn rms_norm_forward(x: &[f32], weight: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
    let features = weight.len();
    assert_eq!(rows_of(x.len(), features), rstd.len(), "one rstd per row");
    assert_eq!(x.len(), y.len(), "input and output differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(y.chunks_exact_mut(features));
        for ((x, y), rstd) in rows.zip(rstd) {
            *rstd = inverse_root(sum_over([x], |[x]| x * x), features, epsilon);
            for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
                *y = x * *rstd * weight;
            }
        }
    });
}

/// Input gradient of [`rms_norm_forward`]: `dx = rstd (w dy - x^ mean(w dy x^))` with `x^ = x rstd`, row by row.
///
/// # Panics
/// If the sizes do not match.
pub fn rms_norm_backward_input(x: &[f32], weight: &[f32], rstd: &[f32], dy: &[f32], store: Store, dx: &mut [f32]) {
    let features = weight.len();
    assert_eq!(rows_of(x.len(), features), rstd.len(), "one rstd per row");
    assert_eq!((x.len(), x.len()), (dy.len(), dx.len()), "input and gradients differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(dy.chunks_exact(features)).zip(dx.chunks_exact_mut(features));
        for (((x, dy), dx), &rstd) in rows.zip(rstd) {
            let along = sum_over([x, weight, dy], |[x, weight, dy]| x * rstd * (weight * dy)) / length(features);
            for (((dx, &x), &weight), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
                store.put(dx, rstd * (weight * dy - x * rstd * along));
            }
        }
    });
}

/// Weight gradient of [`rms_norm_forward`]: `dw +=` sum of `dy x rstd` over the rows, in order.
///
/// # Panics
/// If the sizes do not match.
pub fn rms_norm_backward_weight(x: &[f32], rstd: &[f32], dy: &[f32], d_weight: &mut [f32]) {
    let features = d_weight.len();
    assert_eq!(rows_of(x.len(), features), rstd.len(), "one rstd per row");
    assert_eq!(x.len(), dy.len(), "input and output gradient differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(dy.chunks_exact(features));
        for ((x, dy), &rstd) in rows.zip(rstd) {
            for ((d_weight, &x), &dy) in d_weight.iter_mut().zip(x).zip(dy) {
                *d_weight += dy * (x * rstd);
            }
        }
    });
}

/// LayerNorm: `y = (x - mean) rstd w + b` with `rstd = 1 / sqrt(variance + epsilon)` of each row (the variance divides
/// by `features`).
///
/// `x`, `y`: `[rows, features]`; `weight`, `bias`: `[features]`; `mean`, `rstd`: `[rows]`, saved for the backward
/// passes.  The variance is summed around the mean, in a second sweep, so that a large common offset does not cancel.
/// Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
///
/// # Panics
/// If the sizes do not match.
pub fn layer_norm_forward(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    y: &mut [f32],
    mean: &mut [f32],
    rstd: &mut [f32],
) {
    let features = weight.len();
    let rows = rows_of(x.len(), features);
    assert_eq!((rows, rows), (mean.len(), rstd.len()), "one mean and rstd per row");
    assert_eq!((x.len(), features), (y.len(), bias.len()), "input and output, or weight and bias, differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(y.chunks_exact_mut(features));
        for ((x, y), (mean, rstd)) in rows.zip(mean.iter_mut().zip(rstd)) {
            let center = sum_over([x], |[x]| x) / length(features);
            let squares = sum_over([x], |[x]| (x - center) * (x - center));
            let scale = inverse_root(squares, features, epsilon);
            for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - center) * scale * weight + bias;
            }
            (*mean, *rstd) = (center, scale);
        }
    });
}

/// Input gradient of [`layer_norm_forward`]: `dx = rstd (w dy - mean(w dy) - x^ mean(w dy x^))` with
/// `x^ = (x - mean) rstd`, row by row.
///
/// # Panics
/// If the sizes do not match.
pub fn layer_norm_backward_input(
    x: &[f32],
    weight: &[f32],
    mean: &[f32],
    rstd: &[f32],
    dy: &[f32],
    store: Store,
    dx: &mut [f32],
) {
    let features = weight.len();
    let rows = rows_of(x.len(), features);
    assert_eq!((rows, rows), (mean.len(), rstd.len()), "one mean and rstd per row");
    assert_eq!((x.len(), x.len()), (dy.len(), dx.len()), "input and gradients differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(dy.chunks_exact(features)).zip(dx.chunks_exact_mut(features));
        for (((x, dy), dx), (&mean, &rstd)) in rows.zip(mean.iter().zip(rstd)) {
            let offset = sum_over([weight, dy], |[weight, dy]| weight * dy) / length(features);
            let along = sum_over([x, weight, dy], |[x, weight, dy]| (x - mean) * rstd * (weight * dy));
            let along = along / length(features);
            for (((dx, &x), &weight), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
                store.put(dx, rstd * (weight * dy - offset - (x - mean) * rstd * along));
            }
        }
    });
}

/// Weight and bias gradients of [`layer_norm_forward`]: `dw +=` sum of `dy (x - mean) rstd` and `db +=` sum of `dy`
/// over the rows, in order.
///
/// # Panics
/// If the sizes do not match.
pub fn layer_norm_backward_weight(
    x: &[f32],
    mean: &[f32],
    rstd: &[f32],
    dy: &[f32],
    d_weight: &mut [f32],
    d_bias: &mut [f32],
) {
    let features = d_weight.len();
    let rows = rows_of(x.len(), features);
    assert_eq!((rows, rows), (mean.len(), rstd.len()), "one mean and rstd per row");
    assert_eq!((x.len(), features), (dy.len(), d_bias.len()), "input and gradients differ in size");
    vectorized!({
        let rows = x.chunks_exact(features).zip(dy.chunks_exact(features));
        for ((x, dy), (&mean, &rstd)) in rows.zip(mean.iter().zip(rstd)) {
            let gradients = d_weight.iter_mut().zip(d_bias.iter_mut());
            for (((d_weight, d_bias), &x), &dy) in gradients.zip(x).zip(dy) {
                *d_weight += dy * ((x - mean) * rstd);
                *d_bias += dy;
            }
        }
    });
}

/// `1 / sqrt(squares / features + epsilon)`.
#[inline(always)]
fn inverse_root(squares: f32, features: usize, epsilon: f32) -> f32 {
    1.0 / (squares / length(features) + epsilon).sqrt()
}

/// A row's length as a divisor.
#[inline(always)]
fn length(features: usize) -> f32 {
    narrow(features as f64)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
    use super::*;

    const EPSILON: f32 = 1e-5;

    fn rms_twin(x: &[f64], weight: &[f64]) -> Vec<f64> {
        let row = |x: &[f64]| {
            let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let rstd = 1.0 / (mean_square + f64::from(EPSILON)).sqrt();
            x.iter().zip(weight).map(|(x, w)| x * rstd * w).collect::<Vec<_>>()
        };
        x.chunks_exact(weight.len()).flat_map(row).collect()
    }

    fn layer_twin(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
        let row = |x: &[f64]| {
            let count = x.len() as f64;
            let mean = x.iter().sum::<f64>() / count;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
            let rstd = 1.0 / (variance + f64::from(EPSILON)).sqrt();
            x.iter().zip(weight).zip(bias).map(|((x, w), b)| (x - mean) * rstd * w + b).collect::<Vec<_>>()
        };
        x.chunks_exact(weight.len()).flat_map(row).collect()
    }

    fn plus(values: &[f64], offset: f64) -> Vec<f64> {
        values.iter().map(|value| value + offset).collect()
    }

    fn twice(values: &[f64]) -> Vec<f64> {
        values.iter().map(|value| 2.0 * value).collect()
    }

    #[test]
    fn rms_norm_equals_its_formula_and_gradients() {
        Cases::run(30, |cases| {
            let (rows, features) = (cases.size(1, 5), cases.size(1, 37));
            let (x, dy) = (cases.values(rows * features, 2.0), cases.values(rows * features, 1.0));
            let weight = cases.values(features, 1.5);
            let (wide_x, wide_weight) = (wide(&x), wide(&weight));

            let (mut y, mut rstd) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
            rms_norm_forward(&x, &weight, EPSILON, &mut y, &mut rstd);
            assert_close("y", &y, &rms_twin(&wide_x, &wide_weight), 1e-6);

            let want = numerical_gradient(&wide_x, |x| inner(&dy, &rms_twin(x, &wide_weight)));
            let mut dx = vec![f32::NAN; x.len()];
            rms_norm_backward_input(&x, &weight, &rstd, &dy, Store::Overwrite, &mut dx);
            assert_close("dx", &dx, &want, 5e-6);
            rms_norm_backward_input(&x, &weight, &rstd, &dy, Store::Accumulate, &mut dx);
            assert_close("dx twice", &dx, &twice(&want), 5e-6);

            let mut d_weight = vec![1.0; features];
            rms_norm_backward_weight(&x, &rstd, &dy, &mut d_weight);
            let want = numerical_gradient(&wide_weight, |weight| inner(&dy, &rms_twin(&wide_x, weight)));
            assert_close("d_weight", &d_weight, &plus(&want, 1.0), 2e-6);
        });
    }

    #[test]
    fn layer_norm_equals_its_formula_and_gradients() {
        Cases::run(30, |cases| {
            // From three features on: the variance of one is zero, and that of two can be near it.
            let (rows, features) = (cases.size(1, 5), cases.size(3, 37));
            let (x, dy) = (cases.values(rows * features, 2.0), cases.values(rows * features, 1.0));
            let (weight, bias) = (cases.values(features, 1.5), cases.values(features, 1.0));
            let (wide_x, wide_weight, wide_bias) = (wide(&x), wide(&weight), wide(&bias));

            let (mut y, mut mean, mut rstd) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows], vec![f32::NAN; rows]);
            layer_norm_forward(&x, &weight, &bias, EPSILON, &mut y, &mut mean, &mut rstd);
            assert_close("y", &y, &layer_twin(&wide_x, &wide_weight, &wide_bias), 2e-6);

            let want = numerical_gradient(&wide_x, |x| inner(&dy, &layer_twin(x, &wide_weight, &wide_bias)));
            let mut dx = vec![f32::NAN; x.len()];
            layer_norm_backward_input(&x, &weight, &mean, &rstd, &dy, Store::Overwrite, &mut dx);
            assert_close("dx", &dx, &want, 1e-5);
            layer_norm_backward_input(&x, &weight, &mean, &rstd, &dy, Store::Accumulate, &mut dx);
            assert_close("dx twice", &dx, &twice(&want), 1e-5);

            let (mut d_weight, mut d_bias) = (vec![1.0; features], vec![1.0; features]);
            layer_norm_backward_weight(&x, &mean, &rstd, &dy, &mut d_weight, &mut d_bias);
            let want = numerical_gradient(&wide_weight, |weight| inner(&dy, &layer_twin(&wide_x, weight, &wide_bias)));
            assert_close("d_weight", &d_weight, &plus(&want, 1.0), 5e-6);
            let want = numerical_gradient(&wide_bias, |bias| inner(&dy, &layer_twin(&wide_x, &wide_weight, bias)));
            assert_close("d_bias", &d_bias, &plus(&want, 1.0), 1e-6);
        });
    }

    #[test]
    fn a_common_offset_does_not_cancel() {
        let (weight, bias) = (vec![1.0; 64], vec![0.0; 64]);
        let x: Vec<f32> = (0..64u16).map(|i| 4096.0 + f32::from(i) / 64.0).collect();
        let (mut y, mut mean, mut rstd) = (vec![0.0; 64], [0.0], [0.0]);
        layer_norm_forward(&x, &weight, &bias, EPSILON, &mut y, &mut mean, &mut rstd);
        assert_close("y", &y, &layer_twin(&wide(&x), &wide(&weight), &wide(&bias)), 1e-3);
    }

    #[test]
    #[allow(clippy::float_cmp)] // exact
    fn constant_rows_stay_finite() {
        let (mut y, mut mean, mut rstd) = ([f32::NAN; 4], [f32::NAN; 1], [f32::NAN; 1]);
        layer_norm_forward(&[7.0; 4], &[2.0; 4], &[0.5; 4], EPSILON, &mut y, &mut mean, &mut rstd);
        assert_eq!(y, [0.5; 4]);
        rms_norm_forward(&[0.0; 4], &[2.0; 4], EPSILON, &mut y, &mut rstd);
        assert_eq!(y, [0.0; 4]);
        let mut dx = [f32::NAN; 4];
        rms_norm_backward_input(&[0.0; 4], &[2.0; 4], &rstd, &[1.0; 4], Store::Overwrite, &mut dx);
        assert!(dx.iter().all(|dx| dx.is_finite()));
    }
}

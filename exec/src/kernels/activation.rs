//! Activation functions of the feed-forward part: SwiGLU, GeGLU and GELU.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::math::{normal_distribution, sigmoid};
use super::vectorized;

/// Which GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// `x P(X <= x)` for a standard normal `X`: the definition (PyTorch's default, Hugging Face `gelu`).
    Exact,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which GPT-2 was trained with (Hugging Face `gelu_new`).
    Tanh,
}

/// SwiGLU: `out = silu(gate) * up` element by element, where `silu(g) = g sigmoid(g)`.
///
/// Source: Shazeer, "GLU Variants Improve Transformer" (2020).
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_forward(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "gate and output differ in length");
    assert_eq!(up.len(), out.len(), "up and output differ in length");
    vectorized!({
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate * sigmoid(gate).0 * up;
        }
    });
}

/// Input gradients of [`swiglu_forward`]: `d_up = d_out silu(gate)` and `d_gate = d_out up silu'(gate)`, where
/// `silu'(g) = s (1 + g (1 - s))` with `s = sigmoid(g)`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_backward(gate: &[f32], up: &[f32], d_out: &[f32], d_gate: &mut [f32], d_up: &mut [f32]) {
    for length in [up.len(), d_out.len(), d_gate.len(), d_up.len()] {
        assert_eq!(length, gate.len(), "lengths differ");
    }
    vectorized!({
        let inputs = gate.iter().zip(up).zip(d_out);
        for (((&gate, &up), &d_out), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
            let (s, complement) = sigmoid(gate);
            *d_up = d_out * (gate * s);
            *d_gate = d_out * up * (s * (1.0 + gate * complement));
        }
    });
}

/// `y = gelu(x)` element by element.
///
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
///
/// # Panics
/// If the lengths differ.
pub fn gelu_forward(kind: Gelu, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "input and output differ in length");
    match kind {
        Gelu::Exact => vectorized!({
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x * normal_distribution(x).0;
            }
        }),
        Gelu::Tanh => vectorized!({
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x * tanh_gate(x).0;
            }
        }),
    }
}

/// Input gradient of [`gelu_forward`]: `dx = dy gelu'(x)`.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_backward(kind: Gelu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dx.len(), "input and its gradient differ in length");
    assert_eq!(dy.len(), dx.len(), "output gradient and input gradient differ in length");
    match kind {
        Gelu::Exact => vectorized!({
            for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                let (distribution, density) = normal_distribution(x);
                *dx = dy * (distribution + x * density);
            }
        }),
        Gelu::Tanh => vectorized!({
            for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                let (gate, slope) = tanh_gate(x);
                *dx = dy * (gate + x * slope);
            }
        }),
    }
}

/// GeGLU: `out = gelu(gate) * up` element by element.
///
/// Source: Shazeer, "GLU Variants Improve Transformer" (2020).
///
/// # Panics
/// If the lengths differ.
pub fn geglu_forward(kind: Gelu, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!((gate.len(), up.len()), (out.len(), out.len()), "gate, up and output differ in length");
    vectorized!({
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate * distribution(kind, gate).0 * up;
        }
    });
}

/// Input gradients of [`geglu_forward`]: `d_up = d_out gelu(gate)` and `d_gate = d_out up gelu'(gate)`.
///
/// # Panics
/// If the lengths differ.
pub fn geglu_backward(kind: Gelu, gate: &[f32], up: &[f32], d_out: &[f32], d_gate: &mut [f32], d_up: &mut [f32]) {
    for length in [up.len(), d_out.len(), d_gate.len(), d_up.len()] {
        assert_eq!(length, gate.len(), "lengths differ");
    }
    vectorized!({
        let inputs = gate.iter().zip(up).zip(d_out);
        for (((&gate, &up), &d_out), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
            let (share, slope) = distribution(kind, gate);
            *d_up = d_out * (gate * share);
            *d_gate = d_out * up * (share + gate * slope);
        }
    });
}

/// What GELU multiplies its argument with, and the derivative of that.
#[inline(always)]
fn distribution(kind: Gelu, x: f32) -> (f32, f32) {
    match kind {
        Gelu::Exact => normal_distribution(x),
        Gelu::Tanh => tanh_gate(x),
    }
}

/// `(1 + tanh(u)) / 2` for the `u(x)` of [`Gelu::Tanh`], and its derivative with respect to `x`.
///
/// Computed as `sigmoid(2 u)`, which it is.  The argument is held to where the gate is not yet constant, so that the
/// cube of a huge argument does not turn the derivative into `0 * inf`.
#[inline(always)]
fn tanh_gate(x: f32) -> (f32, f32) {
    const CUBIC: f32 = 0.044_715;
    const TWICE_SQRT_2_OVER_PI: f32 = 2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    let x = x.clamp(-20.0, 20.0);
    let square = x * x;
    let (gate, complement) = sigmoid(TWICE_SQRT_2_OVER_PI * x * (1.0 + CUBIC * square));
    (gate, gate * complement * TWICE_SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * square))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
    use super::*;

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    fn gelu(kind: Gelu, x: f64) -> f64 {
        match kind {
            Gelu::Exact => 0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2),
            Gelu::Tanh => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }

    #[test]
    fn swiglu_equals_its_formula_and_gradient() {
        Cases::run(20, |cases| {
            let count = cases.size(1, 40);
            let (gate, up, d_out) = (cases.values(count, 6.0), cases.values(count, 2.0), cases.values(count, 1.0));
            let mut out = vec![f32::NAN; count];
            swiglu_forward(&gate, &up, &mut out);
            let twin = |gate: &[f64], up: &[f64]| gate.iter().zip(up).map(|(&g, &u)| silu(g) * u).collect::<Vec<_>>();
            assert_close("out", &out, &twin(&wide(&gate), &wide(&up)), 3e-7);

            let (mut d_gate, mut d_up) = (vec![f32::NAN; count], vec![f32::NAN; count]);
            swiglu_backward(&gate, &up, &d_out, &mut d_gate, &mut d_up);
            let want = numerical_gradient(&wide(&gate), |gate| inner(&d_out, &twin(gate, &wide(&up))));
            assert_close("d_gate", &d_gate, &want, 5e-7);
            let want = numerical_gradient(&wide(&up), |up| inner(&d_out, &twin(&wide(&gate), up)));
            assert_close("d_up", &d_up, &want, 5e-7);
        });
    }

    #[test]
    fn gelu_equals_its_formula_and_gradient() {
        for kind in [Gelu::Exact, Gelu::Tanh] {
            Cases::run(20, |cases| {
                let count = cases.size(1, 40);
                let (x, dy) = (cases.values(count, 7.0), cases.values(count, 1.0));
                let twin = |x: &[f64]| x.iter().map(|&x| gelu(kind, x)).collect::<Vec<_>>();
                let mut y = vec![f32::NAN; count];
                gelu_forward(kind, &x, &mut y);
                assert_close("y", &y, &twin(&wide(&x)), 3e-7);

                let mut dx = vec![f32::NAN; count];
                gelu_backward(kind, &x, &dy, &mut dx);
                assert_close("dx", &dx, &numerical_gradient(&wide(&x), |x| inner(&dy, &twin(x))), 1e-6);
            });
        }
    }

    #[test]
    fn geglu_equals_its_formula_and_gradient() {
        for kind in [Gelu::Exact, Gelu::Tanh] {
            Cases::run(20, |cases| {
                let count = cases.size(1, 40);
                let (gate, up, d_out) = (cases.values(count, 6.0), cases.values(count, 2.0), cases.values(count, 1.0));
                let twin = |gate: &[f64], up: &[f64]| {
                    gate.iter().zip(up).map(|(&g, &u)| gelu(kind, g) * u).collect::<Vec<_>>()
                };
                let mut out = vec![f32::NAN; count];
                geglu_forward(kind, &gate, &up, &mut out);
                assert_close("out", &out, &twin(&wide(&gate), &wide(&up)), 4e-7);

                let (mut d_gate, mut d_up) = (vec![f32::NAN; count], vec![f32::NAN; count]);
                geglu_backward(kind, &gate, &up, &d_out, &mut d_gate, &mut d_up);
                let want = numerical_gradient(&wide(&gate), |gate| inner(&d_out, &twin(gate, &wide(&up))));
                assert_close("d_gate", &d_gate, &want, 1e-6);
                let want = numerical_gradient(&wide(&up), |up| inner(&d_out, &twin(&wide(&gate), up)));
                assert_close("d_up", &d_up, &want, 1e-6);
            });
        }
    }

    #[test]
    #[allow(clippy::float_cmp)] // exact where the function is constant
    fn huge_arguments_stay_finite() {
        let x = [-1e30, -300.0, -20.0, -0.0, 0.0, 20.0, 300.0, 1e30];
        let ones = [1.0; 8];
        let slope = [0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0];
        for kind in [Gelu::Exact, Gelu::Tanh] {
            let (mut y, mut dx) = ([f32::NAN; 8], [f32::NAN; 8]);
            gelu_forward(kind, &x, &mut y);
            assert_eq!(y, [-0.0, -0.0, -0.0, -0.0, 0.0, 20.0, 300.0, 1e30], "{kind:?}");
            gelu_backward(kind, &x, &ones, &mut dx);
            assert_eq!(dx, slope, "{kind:?}");
        }
        let (mut d_gate, mut d_up) = ([f32::NAN; 8], [f32::NAN; 8]);
        swiglu_backward(&x, &ones, &ones, &mut d_gate, &mut d_up);
        assert!(d_gate.iter().chain(&d_up).all(|value| value.is_finite()), "{d_gate:?} {d_up:?}");
    }
}

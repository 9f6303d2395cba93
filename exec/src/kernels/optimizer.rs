//! AdamW, and the norm by which gradients are clipped.

use super::{narrow, vectorized};

/// Hyperparameters of AdamW.  Computed with in `f64` and rounded once, as PyTorch does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Step size, after the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// What [`adamw_step`] multiplies with, the same for every element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    pub(crate) keep: f32,
    pub(crate) new1: f32,
    pub(crate) old2: f32,
    pub(crate) new2: f32,
    pub(crate) negative_step_size: f32,
    pub(crate) root_correction2: f32,
    pub(crate) epsilon: f32,
}

impl Factors {
    pub(crate) fn new(options: &AdamW, step: u64, decay: bool) -> Self {
        let correction1 = 1.0 - libm::pow(options.beta1, step as f64);
        let correction2 = 1.0 - libm::pow(options.beta2, step as f64);
        Self {
            keep: if decay { narrow(1.0 - options.learning_rate * options.weight_decay) } else { 1.0 },
            new1: narrow(1.0 - options.beta1),
            old2: narrow(options.beta2),
            new2: narrow(1.0 - options.beta2),
            negative_step_size: narrow(-options.learning_rate / correction1),
            root_correction2: narrow(correction2.sqrt()),
            epsilon: narrow(options.epsilon),
        }
    }
}

/// One AdamW step on a range of parameters:
///
/// ```text
/// w = w (1 - learning_rate weight_decay)                        if `decay`
/// m = m + (1 - beta1) (g - m)
/// v = beta2 v + (1 - beta2) g^2
/// w = w - learning_rate / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
/// ```
///
/// `step` counts from 1.  `decay` is the caller's choice per range (norm weights and biases are usually exempt).  The
/// update is element by element, so that any slicing of the parameters gives the same bits.
/// Source: Loshchilov and Hutter (2019), in the order of operations of `torch.optim.AdamW`.
///
/// # Panics
/// If the lengths differ or `step` is zero.
pub fn adamw_step(
    options: &AdamW,
    step: u64,
    decay: bool,
    weights: &mut [f32],
    gradients: &[f32],
    first_moments: &mut [f32],
    second_moments: &mut [f32],
) {
    assert!(step > 0, "steps count from 1");
    for length in [gradients.len(), first_moments.len(), second_moments.len()] {
        assert_eq!(length, weights.len(), "weights, gradients and moments differ in length");
    }
    let Factors { keep, new1, old2, new2, negative_step_size, root_correction2, epsilon } =
        Factors::new(options, step, decay);
    vectorized!({
        let moments = first_moments.iter_mut().zip(second_moments);
        for ((w, &g), (m, v)) in weights.iter_mut().zip(gradients).zip(moments) {
            *m += new1 * (g - *m);
            *v = *v * old2 + new2 * g * g;
            let denominator = v.sqrt() / root_correction2 + epsilon;
            *w = *w * keep + negative_step_size * *m / denominator;
        }
    });
}

/// Sum of squares in `f64`, in a fixed order that depends on the length alone.
///
/// The parts of a sharded or sliced tensor add up to the whole within the rounding of `f64`, not to the bit.
#[must_use]
pub fn squared_norm(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    vectorized!({
        let (chunks, tail) = values.as_chunks::<LANES>();
        let mut lanes = [0.0f64; LANES];
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(tail) {
            *lane += f64::from(value) * f64::from(value);
        }
        lanes.iter().sum()
    })
}

/// Factor that brings gradients of the given norm to at most `largest`: `min(1, largest / (norm + 1e-6))`, as
/// `torch.nn.utils.clip_grad_norm_`.  Apply it by [`scale`](super::elementwise::scale).
#[must_use]
pub fn clip_factor(squared_norm: f64, largest: f64) -> f32 {
    narrow((largest / (squared_norm.sqrt() + 1e-6)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, wide};
    use super::*;

    const OPTIONS: AdamW = AdamW { learning_rate: 3e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };

    /// The paper's algorithm 2, in `f64`, with explicit bias-corrected moments.
    fn twin(decay: bool, w: &mut [f64], gradients: &[Vec<f32>]) {
        let (mut m, mut v) = (vec![0.0; w.len()], vec![0.0; w.len()]);
        for (index, gradient) in gradients.iter().enumerate() {
            let step = i32::try_from(index + 1).unwrap();
            for (i, &g) in wide(gradient).iter().enumerate() {
                m[i] = OPTIONS.beta1 * m[i] + (1.0 - OPTIONS.beta1) * g;
                v[i] = OPTIONS.beta2 * v[i] + (1.0 - OPTIONS.beta2) * g * g;
                let m_hat = m[i] / (1.0 - OPTIONS.beta1.powi(step));
                let v_hat: f64 = v[i] / (1.0 - OPTIONS.beta2.powi(step));
                let decayed = if decay { OPTIONS.weight_decay * w[i] } else { 0.0 };
                w[i] -= OPTIONS.learning_rate * (m_hat / (v_hat.sqrt() + OPTIONS.epsilon) + decayed);
            }
        }
    }

    #[test]
    fn steps_equal_the_algorithm_of_the_paper() {
        for decay in [false, true] {
            Cases::run(10, |cases| {
                let count = cases.size(1, 40);
                let weights = cases.values(count, 1.0);
                let gradients: Vec<Vec<f32>> = (0..25).map(|_| cases.values(count, 0.3)).collect();
                let mut want = wide(&weights);
                twin(decay, &mut want, &gradients);

                let (mut w, mut m, mut v) = (weights.clone(), vec![0.0; count], vec![0.0; count]);
                let cut = cases.size(0, count);
                let (mut w_cut, mut m_cut, mut v_cut) = (weights, vec![0.0; count], vec![0.0; count]);
                for (gradient, step) in gradients.iter().zip(1..) {
                    adamw_step(&OPTIONS, step, decay, &mut w, gradient, &mut m, &mut v);
                    for part in [0..cut, cut..count] {
                        let (w, g) = (&mut w_cut[part.clone()], &gradient[part.clone()]);
                        adamw_step(&OPTIONS, step, decay, w, g, &mut m_cut[part.clone()], &mut v_cut[part]);
                    }
                }
                assert_close("weights", &w, &want, 1e-6);
                assert_eq!((w, m, v), (w_cut, m_cut, v_cut), "a cut changed the result");
            });
        }
    }

    /// The first step moves every weight by the learning rate against the sign of its gradient.
    #[test]
    fn first_step_is_the_sign_of_the_gradient() {
        let (mut w, mut m, mut v) = ([1.0, 1.0, 1.0], [0.0; 3], [0.0; 3]);
        adamw_step(&OPTIONS, 1, false, &mut w, &[1e-3, -20.0, 0.0], &mut m, &mut v);
        assert_close("w", &w, &[0.997, 1.003, 1.0], 1e-6);
    }

    #[test]
    fn norms_are_summed_in_double_precision() {
        Cases::run(10, |cases| {
            let count = cases.size(0, 3000);
            let values = cases.values(count, 1e3);
            let want: f64 = wide(&values).iter().map(|value| value * value).sum();
            assert!((squared_norm(&values) - want).abs() <= 1e-14 * want);
        });
        // In f32 the square would be infinite.
        assert!((squared_norm(&[1e30; 9]) / 9e60 - 1.0).abs() < 1e-6);
    }

    #[test]
    #[allow(clippy::float_cmp)] // exact
    fn clipping_only_shrinks() {
        assert_eq!(clip_factor(0.25, 1.0), 1.0);
        assert!((clip_factor(16.0, 1.0) - 0.25).abs() < 1e-6);
    }
}

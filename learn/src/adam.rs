//! Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), gradients clipped by their norm.

use serde::{Deserialize, Serialize};

/// The state of the optimizer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Adam {
    first: Vec<f64>,
    second: Vec<f64>,
    steps: u32,
}

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-8;
/// Of a step, relative to the learning rate.
const DECAY: f64 = 1e-2;
/// The most that the norm of a gradient may be.
const CLIP: f64 = 1.0;

impl Adam {
    /// Before the first step, for so many parameters.
    #[must_use]
    pub fn new(parameters: usize) -> Self {
        Self { first: vec![0.0; parameters], second: vec![0.0; parameters], steps: 0 }
    }
    /// For how many parameters it is.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.first.len()
    }
    /// One step against a gradient.
    ///
    /// # Panics
    /// If there are not as many parameters as before.
    pub fn step(&mut self, parameters: &mut [f64], gradient: &[f64], rate: f64) {
        assert!(parameters.len() == self.first.len() && gradient.len() == self.first.len(), "other parameters");
        self.steps += 1;
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let scale = if norm > CLIP { CLIP / norm } else { 1.0 };
        let correction = |beta: f64| 1.0 - libm::pow(beta, f64::from(self.steps));
        let (first_correction, second_correction) = (correction(BETA1), correction(BETA2));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradient).zip(moments) {
            let gradient = gradient * scale;
            *first = BETA1 * *first + (1.0 - BETA1) * gradient;
            *second = BETA2 * *second + (1.0 - BETA2) * gradient * gradient;
            let direction = (*first / first_correction) / ((*second / second_correction).sqrt() + EPSILON);
            *parameter -= rate * (direction + DECAY * *parameter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step of Adam has the size of the rate, whatever the gradient: m/sqrt(v) is its sign.
    #[test]
    fn the_first_step_is_the_rate_against_the_sign() {
        let mut adam = Adam::new(3);
        let mut parameters = [0.0; 3];
        adam.step(&mut parameters, &[1e-3, -0.5, 0.0], 0.01);
        for (parameter, expect) in parameters.iter().zip([-0.01, 0.01, 0.0]) {
            assert!((parameter - expect).abs() < 1e-6, "{parameters:?}");
        }
    }

    /// A quadratic bowl whose axes differ a thousandfold.
    #[test]
    fn it_finds_the_bottom_of_a_bowl() {
        let (stiff, bottom) = ([1.0, 1000.0], [0.3, -0.2]);
        let mut adam = Adam::new(2);
        let mut at = [1.0, 1.0];
        for step in 0..4000 {
            let gradient = [0, 1].map(|i: usize| stiff[i] * (at[i] - bottom[i]));
            adam.step(&mut at, &gradient, 0.01 / (1.0 + f64::from(step) / 200.0));
        }
        // Decay draws it a little towards 0 along the flat axis.
        assert!((at[0] - bottom[0]).abs() < 2e-2 && (at[1] - bottom[1]).abs() < 2e-3, "{at:?}");
    }
}

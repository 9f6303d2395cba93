//! Losses of a [`Network`] and their gradients, written by hand: two matrix products deep, a library would be larger than what
//! it saves. Finite differences hold them.

use sched::learned::{Network, Part, Rated, Seen};
use serde::{Deserialize, Serialize};

/// What one state of one search teaches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The numbers of the state.
    pub state: Vec<f32>,
    /// Those of each choice.
    pub choices: Vec<Vec<f32>>,
    /// Logarithms of the rules' weights, on which the network's logits stand.
    pub rules: Vec<f32>,
    /// What share of the search each choice should have; they add up to 1. Empty: nothing is known of choices.
    pub shares: Vec<f32>,
    /// The state's value.
    pub value: f32,
}

/// Losses, per sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Loss {
    /// Kullback-Leibler divergence of the shares from those taught, in nats.
    pub policy: f64,
    /// Half the squared error of the value; linear beyond [`HUBER`].
    pub value: f64,
}

impl Loss {
    /// What is made small.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.policy + VALUE_WEIGHT * self.value
    }
}

/// The weight of the value's loss beside the shares'.
pub const VALUE_WEIGHT: f64 = 0.5;
/// The error of a value from which its loss grows linearly, so that a few hopeless plans do not decide (Huber 1964).
pub const HUBER: f64 = 1.0;

/// The loss of a sample; adds its gradient, times `scale`, to `gradient`, in the order of the network's parameters.
///
/// # Panics
/// If the sample is of other widths than the network.
pub fn backward(network: &Network, sample: &Sample, scale: f64, gradient: &mut [f64]) -> Loss {
    let wide = |numbers: &[f32]| numbers.iter().map(|number| f64::from(*number)).collect::<Vec<f64>>();
    let state = wide(&sample.state);
    let seen = network.see(&state);
    let mut of_trunk = vec![0.0; seen.0.len()];
    let value = value(network, &seen, sample, scale, (&mut *gradient, &mut of_trunk));
    let policy = policy(network, &seen, sample, scale, (&mut *gradient, &mut of_trunk));
    through(&seen.0, &mut of_trunk);
    let widths = network.widths();
    add_outer(&mut gradient[widths.range(Part::Trunk)], &state, &of_trunk);
    add(&mut gradient[widths.range(Part::TrunkBias)], &of_trunk, 1.0);
    Loss { policy, value }
}

/// Gradients of the parameters and of the trunk's units.
type Gradients<'g> = (&'g mut [f64], &'g mut [f64]);

fn value(network: &Network, seen: &Seen, sample: &Sample, scale: f64, to: Gradients<'_>) -> f64 {
    let (gradient, of_trunk) = to;
    let widths = network.widths();
    let Rated { units, output } = network.value(seen);
    let error = output - f64::from(sample.value);
    let of_output = scale * VALUE_WEIGHT * error.clamp(-HUBER, HUBER);
    add(&mut gradient[widths.range(Part::ValueOut)], &units, of_output);
    gradient[widths.range(Part::ValueOutBias)][0] += of_output;
    let mut of_units: Vec<f64> = network.part(Part::ValueOut).iter().map(|weight| weight * of_output).collect();
    through(&units, &mut of_units);
    add(&mut gradient[widths.range(Part::ValueBias)], &of_units, 1.0);
    add_outer(&mut gradient[widths.range(Part::Value)], &seen.0, &of_units);
    add_back(of_trunk, network.part(Part::Value), &of_units);
    let size = error.abs();
    if size <= HUBER { 0.5 * size * size } else { HUBER * (size - 0.5 * HUBER) }
}

fn policy(network: &Network, seen: &Seen, sample: &Sample, scale: f64, to: Gradients<'_>) -> f64 {
    if sample.shares.is_empty() {
        return 0.0;
    }
    let (gradient, of_trunk) = to;
    let widths = network.widths();
    let shared = network.shared(seen);
    let wide = |choice: &Vec<f32>| choice.iter().map(|number| f64::from(*number)).collect::<Vec<f64>>();
    let choices: Vec<Vec<f64>> = sample.choices.iter().map(wide).collect();
    let rated: Vec<Rated> = choices.iter().map(|choice| network.rate(&shared, choice)).collect();
    let with_rule = |(rated, rule): (&Rated, &f32)| rated.output + f64::from(*rule);
    let mut shares: Vec<f64> = rated.iter().zip(&sample.rules).map(with_rule).collect();
    sched::learned::softmax(&mut shares);
    let mut loss = 0.0;
    let mut of_shared = vec![0.0; shared.len()];
    for ((rated, choice), (share, taught)) in rated.iter().zip(&choices).zip(shares.iter().zip(&sample.shares)) {
        let taught = f64::from(*taught);
        if taught > 0.0 {
            loss += taught * (libm::log(taught) - libm::log(share.max(1e-300)));
        }
        let of_logit = scale * (share - taught);
        add(&mut gradient[widths.range(Part::Logit)], &rated.units, of_logit);
        let mut of_units: Vec<f64> = network.part(Part::Logit).iter().map(|weight| weight * of_logit).collect();
        through(&rated.units, &mut of_units);
        add_outer(&mut gradient[widths.range(Part::RatingOfChoice)], choice, &of_units);
        add(&mut of_shared, &of_units, 1.0);
    }
    add(&mut gradient[widths.range(Part::RatingBias)], &of_shared, 1.0);
    add_outer(&mut gradient[widths.range(Part::RatingOfState)], &seen.0, &of_shared);
    add_back(of_trunk, network.part(Part::RatingOfState), &of_shared);
    loss
}

/// Nothing flows through a unit that is off.
fn through(units: &[f64], gradient: &mut [f64]) {
    for (unit, gradient) in units.iter().zip(gradient) {
        if *unit <= 0.0 {
            *gradient = 0.0;
        }
    }
}

fn add(to: &mut [f64], from: &[f64], times: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += times * from;
    }
}

/// The gradient of a matrix that is stored input by input.
fn add_outer(to: &mut [f64], inputs: &[f64], outputs: &[f64]) {
    for (row, input) in to.chunks_exact_mut(outputs.len()).zip(inputs) {
        add(row, outputs, *input);
    }
}

/// The gradient of a matrix's inputs.
fn add_back(to: &mut [f64], matrix: &[f64], outputs: &[f64]) {
    for (to, row) in to.iter_mut().zip(matrix.chunks_exact(outputs.len())) {
        *to += row.iter().zip(outputs).map(|(weight, gradient)| weight * gradient).sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use sched::learned::Widths;

    use super::*;

    fn drawn(seed: u64) -> (Network, Sample) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut width = || rng.random_range(2..8);
        let widths = Widths { state: width(), choice: width(), trunk: width(), rating: width(), value: width() };
        let parameters = (0..widths.parameters()).map(|_| rng.random_range(-1.0..1.0)).collect();
        let network = Network::new(widths, parameters);
        let mut vector = |n: usize| (0..n).map(|_| rng.random_range(-1.0..1.0f32)).collect::<Vec<f32>>();
        let choices: Vec<Vec<f32>> = (0..4).map(|_| vector(widths.choice)).collect();
        let state = vector(widths.state);
        let mut shares: Vec<f32> = vector(choices.len()).into_iter().map(f32::abs).collect();
        let sum: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
        let (value, rules) = (3.0 * vector(1)[0], vector(choices.len()));
        let shares = if seed.is_multiple_of(7) { Vec::new() } else { shares };
        (network, Sample { state, choices, rules, shares, value })
    }

    /// Each derivative against the difference of losses a little to both sides. A step of 1e-6 in 64 bits leaves some 1e-9 of
    /// rounding, and next to nothing of curvature; where a unit switches within the step, the difference means nothing.
    #[test]
    fn gradients_are_those_of_finite_differences() {
        let (mut checked, mut kinks) = (0, 0);
        for seed in 0..60 {
            let (network, sample) = drawn(seed);
            let mut gradient = vec![0.0; network.parameters().len()];
            backward(&network, &sample, 1.0, &mut gradient);
            let loss = |at: usize, step: f64| {
                let mut moved = network.clone();
                moved.parameters_mut()[at] += step;
                backward(&moved, &sample, 1.0, &mut vec![0.0; gradient.len()]).total()
            };
            for (at, exact) in gradient.iter().enumerate() {
                let step = 1e-6;
                let difference = (loss(at, step) - loss(at, -step)) / (2.0 * step);
                let (left, right) = ((loss(at, 0.0) - loss(at, -step)) / step, (loss(at, step) - loss(at, 0.0)) / step);
                if (left - right).abs() > 1e-4 {
                    kinks += 1;
                    continue;
                }
                checked += 1;
                assert!((difference - exact).abs() < 1e-7 * (1.0 + exact.abs()), "seed {seed}, parameter {at}");
            }
        }
        assert!(checked > 5_000 && kinks * 1000 < checked, "{checked} checked, {kinks} kinks");
    }

    #[test]
    fn a_scale_scales_and_gradients_add_up() {
        let (network, sample) = drawn(3);
        let zero = || vec![0.0; network.parameters().len()];
        let (mut once, mut twice) = (zero(), zero());
        let loss = backward(&network, &sample, 2.0, &mut once);
        assert_eq!(loss, backward(&network, &sample, 1.0, &mut twice));
        backward(&network, &sample, 1.0, &mut twice);
        assert!(once.iter().zip(&twice).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!(loss.policy > 0.0 && loss.value > 0.0);
    }
}

//! A small network that rates the choices of a search: forward pass only, scalar, every sum in index order, so that the same
//! weights give the same bits on any machine.
//!
//! With `s` what is known of a state and `a` of one of its choices:
//!
//! ```text
//! h       = relu(T s + t)                 trunk, once for a state
//! q(a)    = relu(S h + A a + b)           once for each choice
//! logit(a)= w . q(a)
//! prior   = softmax(logit)
//! value   = u . relu(V h + v) + c
//! ```
//!
//! A choice is rated by itself, so that a state may have any number of them (a network of sets, Zaheer et al. 2017, without
//! the sum). Matrices are stored input by input, which lets a product run over outputs side by side and leaves the order of
//! each output's sum as it is.

use std::ops::Range;

/// Widths of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Widths {
    /// Numbers that describe a state.
    pub state: usize,
    /// Numbers that describe a choice.
    pub choice: usize,
    /// Units of the trunk.
    pub trunk: usize,
    /// Units that rate a choice.
    pub rating: usize,
    /// Units that estimate a state's value.
    pub value: usize,
}

/// A matrix or vector of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// `T`: state x trunk.
    Trunk,
    /// `t`.
    TrunkBias,
    /// `S`: trunk x rating.
    RatingOfState,
    /// `A`: choice x rating.
    RatingOfChoice,
    /// `b`.
    RatingBias,
    /// `w`.
    Logit,
    /// `V`: trunk x value.
    Value,
    /// `v`.
    ValueBias,
    /// `u`.
    ValueOut,
    /// `c`.
    ValueOutBias,
}

impl Part {
    /// All of them, in the order of the parameters.
    pub const ALL: [Self; 10] = [
        Self::Trunk,
        Self::TrunkBias,
        Self::RatingOfState,
        Self::RatingOfChoice,
        Self::RatingBias,
        Self::Logit,
        Self::Value,
        Self::ValueBias,
        Self::ValueOut,
        Self::ValueOutBias,
    ];
}

impl Widths {
    /// Inputs and outputs of a part; a vector has one input.
    #[must_use]
    pub const fn of(&self, part: Part) -> (usize, usize) {
        match part {
            Part::Trunk => (self.state, self.trunk),
            Part::TrunkBias => (1, self.trunk),
            Part::RatingOfState => (self.trunk, self.rating),
            Part::RatingOfChoice => (self.choice, self.rating),
            Part::RatingBias | Part::Logit => (1, self.rating),
            Part::Value => (self.trunk, self.value),
            Part::ValueBias | Part::ValueOut => (1, self.value),
            Part::ValueOutBias => (1, 1),
        }
    }
    /// Where a part's parameters stand among all.
    #[must_use]
    pub fn range(&self, part: Part) -> Range<usize> {
        let size = |part: &Part| {
            let (inputs, outputs) = self.of(*part);
            inputs * outputs
        };
        let start = Part::ALL.iter().take_while(|before| **before != part).map(size).sum();
        start..start + size(&part)
    }
    /// Parameters in all.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.range(Part::ValueOutBias).end
    }
}

/// Widths with their parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Network {
    widths: Widths,
    parameters: Vec<f64>,
}

/// Units of the trunk for a state: not below 0.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen(pub Vec<f64>);

/// Units before an output, and the output.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rated {
    /// Not below 0.
    pub units: Vec<f64>,
    /// A logit, or a value.
    pub output: f64,
}

impl Network {
    /// Of parameters in the order of [`Part::ALL`].
    ///
    /// # Panics
    /// If there are not as many as the widths say.
    #[must_use]
    pub fn new(widths: Widths, parameters: Vec<f64>) -> Self {
        assert_eq!(parameters.len(), widths.parameters(), "parameters of {widths:?}");
        Self { widths, parameters }
    }
    /// Its widths.
    #[must_use]
    pub const fn widths(&self) -> Widths {
        self.widths
    }
    /// All parameters.
    #[must_use]
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }
    /// All parameters, to be changed.
    pub fn parameters_mut(&mut self) -> &mut [f64] {
        &mut self.parameters
    }
    /// A part's parameters.
    #[must_use]
    pub fn part(&self, part: Part) -> &[f64] {
        &self.parameters[self.widths.range(part)]
    }
    /// The trunk's units for a state.
    ///
    /// # Panics
    /// If the state has another width.
    #[must_use]
    pub fn see(&self, state: &[f64]) -> Seen {
        let mut units = self.part(Part::TrunkBias).to_vec();
        add_product(&mut units, state, self.part(Part::Trunk));
        rectify(&mut units);
        Seen(units)
    }
    /// What all choices of a state have in common: `S h + b`.
    #[must_use]
    pub fn shared(&self, seen: &Seen) -> Vec<f64> {
        let mut shared = self.part(Part::RatingBias).to_vec();
        add_product(&mut shared, &seen.0, self.part(Part::RatingOfState));
        shared
    }
    /// A choice's logit, beside what [all have in common](Self::shared).
    ///
    /// # Panics
    /// If the choice has another width.
    #[must_use]
    pub fn rate(&self, shared: &[f64], choice: &[f64]) -> Rated {
        let mut units = shared.to_vec();
        add_product(&mut units, choice, self.part(Part::RatingOfChoice));
        rectify(&mut units);
        let output = dot(&units, self.part(Part::Logit), 0.0);
        Rated { units, output }
    }
    /// A state's value.
    #[must_use]
    pub fn value(&self, seen: &Seen) -> Rated {
        let mut units = self.part(Part::ValueBias).to_vec();
        add_product(&mut units, &seen.0, self.part(Part::Value));
        rectify(&mut units);
        let output = dot(&units, self.part(Part::ValueOut), self.part(Part::ValueOutBias)[0]);
        Rated { units, output }
    }
}

/// `outputs += inputs * matrix`, the matrix stored input by input. Inputs of 0 cost nothing.
fn add_product(outputs: &mut [f64], inputs: &[f64], matrix: &[f64]) {
    assert_eq!(inputs.len() * outputs.len(), matrix.len(), "widths that do not fit");
    for (input, row) in inputs.iter().zip(matrix.chunks_exact(outputs.len())) {
        if input.to_bits() << 1 == 0 {
            continue;
        }
        for (output, weight) in outputs.iter_mut().zip(row) {
            *output += input * weight;
        }
    }
}

fn rectify(units: &mut [f64]) {
    units.iter_mut().for_each(|unit| *unit = unit.max(0.0));
}

fn dot(a: &[f64], b: &[f64], start: f64) -> f64 {
    a.iter().zip(b).fold(start, |sum, (a, b)| sum + a * b)
}

/// Logits to shares that add up to 1.
pub fn softmax(logits: &mut [f64]) {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for logit in logits.iter_mut() {
        *logit = libm::exp(*logit - most);
        sum += *logit;
    }
    logits.iter_mut().for_each(|share| *share /= sum);
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;
    use crate::testing::random;

    fn drawn(seed: u64, widths: Widths) -> Network {
        let mut rng = random(seed);
        let parameters = (0..widths.parameters()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Network::new(widths, parameters)
    }

    /// Shares of a state's choices, and its value.
    fn judge(network: &Network, state: &[f64], choices: &[Vec<f64>]) -> (Vec<f64>, f64) {
        let seen = network.see(state);
        let shared = network.shared(&seen);
        let mut shares: Vec<f64> = choices.iter().map(|choice| network.rate(&shared, choice).output).collect();
        softmax(&mut shares);
        (shares, network.value(&seen).output)
    }

    /// The formulae of the module written down element by element, from the matrices as the parts name them.
    fn naive(network: &Network, state: &[f64], choice: &[f64]) -> (f64, f64) {
        let widths = network.widths();
        let at = |part: Part, input: usize, output: usize| network.part(part)[input * widths.of(part).1 + output];
        let product = |part: Part, inputs: &[f64], output: usize| {
            inputs.iter().enumerate().map(|(i, x)| x * at(part, i, output)).sum::<f64>()
        };
        let relu = |x: f64| if x > 0.0 { x } else { 0.0 };
        let trunk: Vec<f64> =
            (0..widths.trunk).map(|j| relu(product(Part::Trunk, state, j) + at(Part::TrunkBias, 0, j))).collect();
        let rating = |j: usize| {
            let sum = product(Part::RatingOfState, &trunk, j) + product(Part::RatingOfChoice, choice, j);
            relu(sum + at(Part::RatingBias, 0, j)) * at(Part::Logit, 0, j)
        };
        let value =
            |j: usize| relu(product(Part::Value, &trunk, j) + at(Part::ValueBias, 0, j)) * at(Part::ValueOut, 0, j);
        let logit = (0..widths.rating).map(rating).sum();
        (logit, (0..widths.value).map(value).sum::<f64>() + at(Part::ValueOutBias, 0, 0))
    }

    #[test]
    fn a_pass_is_what_its_formulae_say() {
        for seed in 0..100 {
            let mut rng = random(seed);
            let mut width = || rng.random_range(1..9);
            let widths = Widths { state: width(), choice: width(), trunk: width(), rating: width(), value: width() };
            let network = drawn(seed, widths);
            let mut vector = |n| (0..n).map(|_| rng.random_range(-2.0..2.0)).collect::<Vec<f64>>();
            let (state, choices) = (vector(widths.state), [vector(widths.choice), vector(widths.choice)]);
            let (shares, value) = judge(&network, &state, &choices);
            let expect: Vec<(f64, f64)> = choices.iter().map(|choice| naive(&network, &state, choice)).collect();
            // Sums of some dozens of products of numbers below 2: their order changes the last digits.
            assert!((value - expect[0].1).abs() < 1e-11, "seed {seed}");
            let first = 1.0 / (1.0 + (expect[1].0 - expect[0].0).exp());
            assert!((shares[0] - first).abs() < 1e-11, "seed {seed}: {shares:?} {first}");
            assert!((shares[0] + shares[1] - 1.0).abs() < 1e-15, "seed {seed}");
        }
    }

    #[test]
    fn shares_stand_large_logits() {
        let mut logits = [1e6, -1e6, 1e6];
        softmax(&mut logits);
        assert_eq!(logits.map(f64::to_bits), [0.5f64, 0.0, 0.5].map(f64::to_bits));
        let mut one = [-700.0];
        softmax(&mut one);
        assert_eq!(one[0].to_bits(), 1.0f64.to_bits());
    }
}

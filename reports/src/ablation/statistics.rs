//! Ratios with what is known of their spread.
//!
//! Times are compared by their logarithms, so that ratios and their intervals are above zero and a geometric mean is a
//! mean. A policy's mean over seeds is as uncertain as Student's t says of that many draws; ratios and means over
//! scenarios are sums of independent means, whose degrees of freedom are those of Welch and Satterthwaite. What draws
//! nothing has no spread and adds none. Scenarios are those that were chosen, not draws: the interval is of the seeds
//! alone.

use serde::Serialize;

use super::{Ablation, Planned};

/// How far an interval reaches.
pub(super) const CONFIDENCE: f64 = 0.95;
/// What stands for all scenarios in tables.
pub(super) const ALL: &str = "geometric mean";

/// What is known of the spread of a ratio over seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Nothing in it is drawn: any seed gives this ratio.
    Exact,
    /// Something is drawn with one seed alone, which says nothing of the spread.
    Unknown,
    /// A 95 % confidence interval of the mean.
    Interval {
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
    },
}

impl Spread {
    /// In one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Unknown => "unknown",
            Self::Interval { .. } => "interval",
        }
    }
}

/// An iteration's time over the baseline's: under 1 is faster.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The geometric mean.
    pub value: f64,
    /// Its spread.
    pub spread: Spread,
}

impl Ratio {
    /// Ends of its interval, where there is one.
    #[must_use]
    pub const fn bounds(self) -> Option<(f64, f64)> {
        match self.spread {
            Spread::Interval { low, high } => Some((low, high)),
            Spread::Exact | Spread::Unknown => None,
        }
    }
    /// What the interval says: whether it is faster or slower than the baseline; `None` if it may be either.
    #[must_use]
    pub fn faster(self) -> Option<bool> {
        let (low, high) = match self.spread {
            Spread::Exact => (self.value, self.value),
            Spread::Unknown => return None,
            Spread::Interval { low, high } => (low, high),
        };
        if high < 1.0 {
            Some(true)
        } else if low > 1.0 {
            Some(false)
        } else {
            None
        }
    }
}

/// What a policy comes to in a scenario, or over all of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Score {
    /// The scenario; `None` over all of them.
    pub scenario: Option<String>,
    /// The policy.
    pub policy: String,
    /// Cells with a plan; over all scenarios, scenarios where policy and baseline found one with every seed.
    pub found: u64,
    /// Of so many cells, or scenarios.
    pub of: u64,
    /// The geometric mean of the judge's time of an iteration, in seconds, over seeds that found a plan.
    pub iteration_s: Option<f64>,
    /// The same of the evaluator's.
    pub predicted_s: Option<f64>,
    /// Legal plans timed, the mean over seeds that found a plan.
    pub evaluations: Option<f64>,
    /// Its time over the baseline's; `None` unless both found a plan with every seed.
    pub ratio: Option<Ratio>,
}

/// The mean of logarithms, and how uncertain it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mean {
    pub(super) value: f64,
    /// Variance of the mean and its degrees of freedom; `None` if one draw is all there is.
    variance: Option<(f64, f64)>,
}

impl Mean {
    /// Of times above zero; `None` of none.
    pub(super) fn of_logarithms(times: &[f64], draws: bool) -> Option<Self> {
        let count = times.len() as f64;
        let logs: Vec<f64> = times.iter().map(|time| libm::log(*time)).collect();
        if logs.is_empty() {
            return None;
        }
        let value = logs.iter().sum::<f64>() / count;
        let variance = match (draws, logs.len()) {
            (false, _) => Some((0.0, f64::INFINITY)),
            (true, 1) => None,
            (true, _) => {
                let squares: f64 = logs.iter().map(|log| (log - value) * (log - value)).sum();
                Some((squares / (count - 1.0) / count, count - 1.0))
            }
        };
        Some(Self { value, variance })
    }

    /// Over a number whose logarithm is given.
    pub(super) fn over(self, log: f64) -> Self {
        Self { value: self.value - log, ..self }
    }

    /// A sum of independent means, each with a weight.
    pub(super) fn sum(terms: &[(f64, Self)]) -> Self {
        let value = terms.iter().map(|(weight, mean)| weight * mean.value).sum();
        let parts: Option<Vec<(f64, f64)>> =
            terms.iter().map(|(weight, mean)| mean.variance.map(|(v, f)| (weight * weight * v, f))).collect();
        let variance = parts.map(|parts| {
            let variance: f64 = parts.iter().map(|(v, _)| v).sum();
            let over: f64 = parts.iter().map(|(v, freedom)| v * v / freedom).sum();
            (variance, if over > 0.0 { variance * variance / over } else { f64::INFINITY })
        });
        Self { value, variance }
    }

    /// As a ratio; `drawn` says whether anything in it is.
    pub(super) fn ratio(self, drawn: bool) -> Ratio {
        let spread = match (drawn, self.variance) {
            (false, _) => Spread::Exact,
            (true, None) => Spread::Unknown,
            (true, Some((variance, freedom))) => {
                let reach = if variance > 0.0 { student(freedom) * variance.sqrt() } else { 0.0 };
                Spread::Interval { low: libm::exp(self.value - reach), high: libm::exp(self.value + reach) }
            }
        };
        Ratio { value: libm::exp(self.value), spread }
    }
}

/// How many standard errors the interval of a mean reaches on each side, for degrees of freedom of at least 1.
pub(super) fn student(freedom: f64) -> f64 {
    let freedom = freedom.clamp(1.0, 1e6);
    // Both tails together: I_x(f/2, 1/2) with x = f / (f + t^2) (Abramowitz and Stegun, 26.7.1 and 26.5.27).
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if incomplete_beta(middle, freedom / 2.0, 0.5) < 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    let x: f64 = 0.5 * (low + high);
    (freedom * (1.0 - x) / x).sqrt()
}

/// The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) in Lentz's form.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        // The fraction of the other tail converges faster.
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let scale = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b);
    let front = libm::exp(scale + a * libm::log(x) + b * libm::log(1.0 - x)) / a;
    let away_from_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut fraction, mut numerator, mut denominator) = (1.0, 1.0, 0.0);
    for step in 1..=10_000u32 {
        let m = f64::from(step / 2);
        let term = if step % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        denominator = 1.0 / away_from_zero(1.0 + term * denominator);
        numerator = away_from_zero(1.0 + term / numerator);
        let factor: f64 = denominator * numerator;
        fraction *= factor;
        if (factor - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front / fraction
}

impl Ablation {
    /// The policies in each scenario, in order.
    #[must_use]
    pub fn scores(&self) -> Vec<Score> {
        let pairs = self.scenarios.iter().flat_map(|of| self.policies.iter().map(move |policy| (of, policy)));
        pairs
            .map(|(scenario, policy)| {
                let cells = self.cells_of(scenario, &policy.name);
                let found: Vec<&Planned> = cells.iter().filter_map(|cell| cell.planned()).collect();
                let mean = |of: fn(&Planned) -> u64| {
                    let seconds: Vec<f64> = found.iter().map(|planned| of(planned) as f64 * 1e-9).collect();
                    Mean::of_logarithms(&seconds, false).map(|mean| libm::exp(mean.value))
                };
                let evaluations: f64 = found.iter().map(|planned| planned.evaluations as f64).sum();
                Score {
                    scenario: Some(scenario.clone()),
                    policy: policy.name.clone(),
                    found: found.len() as u64,
                    of: cells.len() as u64,
                    iteration_s: mean(|planned| planned.iteration_ns),
                    predicted_s: mean(|planned| planned.predicted_ns),
                    evaluations: (!found.is_empty()).then(|| evaluations / found.len() as f64),
                    ratio: self.compared(&policy.name, std::slice::from_ref(scenario)),
                }
            })
            .collect()
    }

    /// The policies over all scenarios where they can be compared with the baseline.
    #[must_use]
    pub fn overall(&self) -> Vec<Score> {
        let over = |name: &str| -> Vec<String> {
            let both = |of: &&String| self.always(name, of).is_some() && self.always(&self.baseline, of).is_some();
            self.scenarios.iter().filter(both).cloned().collect()
        };
        let score = |name: &str| {
            let scenarios = over(name);
            Score {
                scenario: None,
                policy: name.to_owned(),
                found: scenarios.len() as u64,
                of: self.scenarios.len() as u64,
                iteration_s: None,
                predicted_s: None,
                evaluations: None,
                ratio: self.compared(name, &scenarios),
            }
        };
        self.policies.iter().map(|policy| score(&policy.name)).collect()
    }

    fn draws(&self, policy: &str) -> bool {
        self.policies.iter().any(|known| known.name == policy && known.draws)
    }

    /// The times of a policy in a scenario, if it found a plan with every seed.
    fn always(&self, policy: &str, scenario: &str) -> Option<Mean> {
        let times: Option<Vec<f64>> =
            self.cells_of(scenario, policy).iter().map(|cell| Some(cell.planned()?.iteration_ns as f64)).collect();
        Mean::of_logarithms(&times?, self.draws(policy))
    }

    /// A policy's times over the baseline's, the geometric mean over scenarios.
    fn compared(&self, policy: &str, scenarios: &[String]) -> Option<Ratio> {
        if scenarios.is_empty() {
            return None;
        }
        let weight = 1.0 / scenarios.len() as f64;
        let mut terms = Vec::with_capacity(2 * scenarios.len());
        for scenario in scenarios {
            terms.push((weight, self.always(policy, scenario)?));
            terms.push((-weight, self.always(&self.baseline, scenario)?));
        }
        if policy == self.baseline {
            return Some(Ratio { value: 1.0, spread: Spread::Exact });
        }
        Some(Mean::sum(&terms).ratio(self.draws(policy) || self.draws(&self.baseline)))
    }
}

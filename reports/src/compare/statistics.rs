//! Medians, quantiles, relative errors and rank correlation.

use serde::Serialize;

/// `(predicted - measured) / measured`, the measured time taken as at least one nanosecond.
#[must_use]
pub fn relative_error(predicted_ns: u64, measured_ns: u64) -> f64 {
    (predicted_ns as f64 - measured_ns as f64) / measured_ns.max(1) as f64
}

/// The median; of an even number, the mean of the middle two rounded down. 0 if there is none.
#[must_use]
pub fn median_u64(mut values: Vec<u64>) -> u64 {
    if values.len() <= 1 {
        return values.first().copied().unwrap_or(0);
    }
    let middle = values.len() / 2;
    let odd = values.len() % 2 == 1;
    let (below, upper, _) = values.select_nth_unstable(middle);
    if odd { *upper } else { below.iter().max().copied().unwrap_or(*upper).midpoint(*upper) }
}

/// A quantile by linear interpolation between the closest ranks (Hyndman and Fan 1996, type 7); `None` if there is no
/// value. `share` is between 0 and 1.
#[must_use]
pub fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    values.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * last as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the last index")]
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(values[below] + (place - below as f64) * (values[above] - values[below]))
}

/// How well predictions order what was measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct KendallTau {
    /// (concordant - discordant) / pairs counted; a pair that is predicted equal is neither.
    pub tau: f64,
    /// Pairs whose measured values differ by more than the minimum gap.
    pub pairs: u64,
}

/// Kendall's tau over (predicted, measured) values, only over pairs whose measured values are more than `minimum_gap`
/// apart, as a share of the smaller; `None` if there is no such pair.
#[must_use]
pub fn kendall_tau(values: &[(f64, f64)], minimum_gap: f64) -> Option<KendallTau> {
    let (mut sum, mut pairs) = (0i64, 0u64);
    for (index, (predicted, measured)) in values.iter().enumerate() {
        for (other_predicted, other_measured) in &values[index + 1..] {
            let (low, high) = (measured.min(*other_measured), measured.max(*other_measured));
            // Written so that a value that is not a number leaves the pair out.
            if high - low > minimum_gap * low {
                pairs += 1;
                let agree = (predicted - other_predicted) * (measured - other_measured);
                sum += i64::from(agree > 0.0) - i64::from(agree < 0.0);
            }
        }
    }
    (pairs > 0).then(|| KendallTau { tau: sum as f64 / pairs as f64, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median_u64(vec![]), 0);
        assert_eq!(median_u64(vec![9]), 9);
        assert_eq!(median_u64(vec![9, 1]), 5);
        assert_eq!(median_u64(vec![3, 9, 1]), 3);
        assert_eq!(median_u64(vec![4, 9, 1, 3]), 3);
        assert_eq!(median_u64(vec![u64::MAX, u64::MAX]), u64::MAX);
        let quantile = |values: &[f64], share| quantile(values.to_vec(), share);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[2.0, 1.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0], 0.9), Some(90.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), Some(3.0));
    }

    #[test]
    fn tau_counts_only_pairs_that_differ_enough() {
        let tau = |values: &[(f64, f64)], gap| kendall_tau(values, gap).map(|t| (t.tau, t.pairs));
        assert_eq!(tau(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)], 0.1), Some((1.0, 3)));
        assert_eq!(tau(&[(3.0, 1.0), (2.0, 2.0), (1.0, 3.0)], 0.1), Some((-1.0, 3)));
        // The second and third differ by 5 %: left out.
        assert_eq!(tau(&[(1.0, 1.0), (3.0, 2.0), (2.5, 2.1)], 0.1), Some((1.0, 2)));
        assert_eq!(tau(&[(1.0, 1.0), (1.0, 2.0)], 0.1), Some((0.0, 1)));
        assert_eq!(tau(&[(1.0, 1.0), (2.0, 1.05)], 0.1), None);
        assert_eq!(tau(&[(1.0, f64::NAN), (2.0, 1.0)], 0.1), None);
    }
}

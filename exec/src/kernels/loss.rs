//! Cross-entropy of a language model whose vocabulary may be sharded over ranks.
//!
//! Three pure steps with one all-gather between the first and the second: [`local_stats`] on each rank's columns,
//! [`combine`] of the statistics of all ranks, [`backward`] on each rank's columns.  With one rank the gathered
//! statistics are its own.
//! Source: Megatron-LM, `vocab_parallel_cross_entropy`.

use super::math::exp;
use super::{maximum, narrow, sum_over, vectorized};

/// Target of a token that has no loss (padding, a prompt): its loss and its gradient are zero.
pub const IGNORED: u32 = u32::MAX;

/// Numbers that [`local_stats`] leaves per token.
pub const STATS: usize = 3;

/// The columns of the logits that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyShard {
    /// Token of the first column.
    pub first: usize,
    /// Columns that stand for tokens.  The others are at the end, pad the vocabulary to a convenient size, and take no
    /// part.
    pub valid: usize,
    /// All columns.
    pub columns: usize,
}

impl VocabularyShard {
    fn column(self, target: u32) -> Option<usize> {
        let target = usize::try_from(target).expect("usize has at least 32 bits");
        target.checked_sub(self.first).filter(|&column| column < self.valid)
    }

    fn assert_sizes(self, logits: usize, targets: usize) {
        assert!(self.valid <= self.columns, "more valid columns than columns");
        assert_eq!(logits, targets * self.columns, "one row of logits per target");
    }
}

/// Statistics of this rank's logits, per token: the largest logit, the sum of `exp(logit - largest)`, and the logit of
/// the target, or minus infinity if another rank holds it.
///
/// `logits`: `[tokens, columns]`; `targets`: `[tokens]`; `stats`: `[STATS, tokens]`.
///
/// # Panics
/// If the sizes do not match.
pub fn local_stats(shard: VocabularyShard, logits: &[f32], targets: &[u32], stats: &mut [f32]) {
    let tokens = targets.len();
    shard.assert_sizes(logits.len(), tokens);
    assert_eq!(stats.len(), STATS * tokens, "{STATS} statistics per token");
    let (largest, rest) = stats.split_at_mut(tokens);
    let (sum, target_logit) = rest.split_at_mut(tokens);
    vectorized!({
        for (token, &target) in targets.iter().enumerate() {
            let row = &logits[token * shard.columns..][..shard.valid];
            let shift = maximum(row);
            largest[token] = shift;
            // Differences from minus infinity would be NaN.
            let empty = shift == f32::NEG_INFINITY && row.iter().all(|&logit| logit == f32::NEG_INFINITY);
            sum[token] = if empty { 0.0 } else { sum_over([row], |[logit]| exp(logit - shift)) };
            target_logit[token] = shard.column(target).map_or(f32::NEG_INFINITY, |column| row[column]);
        }
    });
}

/// Loss and log-sum-exp of every token over the whole vocabulary.
///
/// `stats`: `[ranks, STATS, tokens]`, the results of [`local_stats`] in rank order; `targets`, `losses`, `lse`:
/// `[tokens]`.  Every rank computes the same bits.  A target that no rank holds gives an infinite loss.
///
/// # Panics
/// If the sizes do not match.
pub fn combine(stats: &[f32], targets: &[u32], losses: &mut [f32], lse: &mut [f32]) {
    let tokens = targets.len();
    assert_eq!((tokens, tokens), (losses.len(), lse.len()), "one loss and log-sum-exp per token");
    if tokens == 0 {
        return;
    }
    super::rows_of(stats.len(), STATS * tokens);
    for (token, &target) in targets.iter().enumerate() {
        let of_ranks = |statistic: usize| stats.iter().skip(statistic * tokens + token).step_by(STATS * tokens);
        let largest = of_ranks(0).copied().fold(f32::NEG_INFINITY, f32::max);
        let rank_sum = |(&shift, &sum): (&f32, &f32)| match sum {
            0.0 => 0.0, // a rank without valid columns, whose largest logit is minus infinity
            sum => f64::from(sum) * libm::exp(f64::from(shift) - f64::from(largest)),
        };
        let sum: f64 = of_ranks(0).zip(of_ranks(1)).map(rank_sum).sum();
        let target_logit = of_ranks(2).copied().fold(f32::NEG_INFINITY, f32::max);
        let log_sum = libm::log(sum);
        lse[token] = narrow(f64::from(largest) + log_sum);
        losses[token] = match target {
            IGNORED => 0.0,
            _ => narrow(f64::from(largest) - f64::from(target_logit) + log_sum),
        };
    }
}

/// Turns this rank's logits into the gradient of `scale` times the sum of the losses, in place:
/// `scale (exp(logit - lse) - [target])`; zero in padding columns and for ignored tokens.
///
/// `scale` is one over the number of tokens with a loss, for a mean.  The error of a probability is about
/// `|lse| * 6e-8` of it, from the rounding of `lse`.
///
/// # Panics
/// If the sizes do not match.
pub fn backward(shard: VocabularyShard, logits: &mut [f32], targets: &[u32], lse: &[f32], scale: f32) {
    shard.assert_sizes(logits.len(), targets.len());
    assert_eq!(lse.len(), targets.len(), "one log-sum-exp per token");
    vectorized!({
        for (token, (&target, &lse)) in targets.iter().zip(lse).enumerate() {
            let row = &mut logits[token * shard.columns..][..shard.columns];
            if target == IGNORED {
                row.fill(0.0);
                continue;
            }
            let (valid, padding) = row.split_at_mut(shard.valid);
            padding.fill(0.0);
            for logit in valid.iter_mut() {
                *logit = scale * exp(*logit - lse);
            }
            if let Some(column) = shard.column(target) {
                valid[column] -= scale;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, numerical_gradient, wide};
    use super::*;

    /// Loss per token, by the formula.
    fn twin(logits: &[f64], targets: &[u32], vocabulary: usize) -> Vec<f64> {
        let loss = |(row, &target): (&[f64], &u32)| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = row.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
            if target == IGNORED { 0.0 } else { largest + log_sum - row[target as usize] }
        };
        logits.chunks_exact(vocabulary).zip(targets).map(loss).collect()
    }

    /// Losses, and gradients with the padding columns left out, computed by ranks that hold the columns between
    /// neighbouring cuts and `padding` more.
    fn sharded(logits: &[f32], targets: &[u32], cuts: &[usize], padding: usize, scale: f32) -> (Vec<f32>, Vec<f32>) {
        let (tokens, vocabulary) = (targets.len(), cuts[cuts.len() - 1]);
        let mut ranks: Vec<(VocabularyShard, Vec<f32>)> = Vec::new();
        for cut in cuts.windows(2) {
            let shard = VocabularyShard { first: cut[0], valid: cut[1] - cut[0], columns: cut[1] - cut[0] + padding };
            let mut own = Vec::new();
            for row in logits.chunks_exact(vocabulary) {
                own.extend(&row[cut[0]..cut[1]]);
                own.extend(std::iter::repeat_n(1e30, padding)); // would win, were it to take part
            }
            ranks.push((shard, own));
        }
        let mut stats = vec![f32::NAN; ranks.len() * STATS * tokens];
        for ((shard, logits), stats) in ranks.iter().zip(stats.chunks_exact_mut(STATS * tokens)) {
            local_stats(*shard, logits, targets, stats);
        }
        let (mut losses, mut lse) = (vec![f32::NAN; tokens], vec![f32::NAN; tokens]);
        combine(&stats, targets, &mut losses, &mut lse);
        let mut gradient = vec![f32::NAN; logits.len()];
        for (shard, logits) in &mut ranks {
            backward(*shard, logits, targets, &lse, scale);
            for (token, row) in logits.chunks_exact(shard.columns.max(1)).enumerate() {
                gradient[token * vocabulary + shard.first..][..shard.valid].copy_from_slice(&row[..shard.valid]);
                assert!(row[shard.valid..].iter().all(|padding| padding.to_bits() == 0));
            }
        }
        (losses, gradient)
    }

    #[test]
    fn any_sharding_equals_the_twin_and_its_gradient() {
        Cases::run(40, |cases| {
            let (tokens, vocabulary) = (cases.size(1, 4), cases.size(1, 40));
            let logits = cases.values(tokens * vocabulary, 8.0);
            let mut target = || match cases.size(0, vocabulary) {
                column if column == vocabulary => IGNORED,
                column => u32::try_from(column).unwrap(),
            };
            let targets: Vec<u32> = (0..tokens).map(|_| target()).collect();
            let want_losses = twin(&wide(&logits), &targets, vocabulary);
            let want = numerical_gradient(&wide(&logits), |logits| {
                0.3 * twin(logits, &targets, vocabulary).iter().sum::<f64>()
            });
            let mut cut = || cases.size(0, vocabulary);
            let mut inner = [cut(), cut(), cut()];
            inner.sort_unstable();
            let [a, b, c] = inner;
            for cuts in [vec![0, vocabulary], vec![0, a, vocabulary], vec![0, a, b, c, vocabulary]] {
                for padding in [0, 1, 5] {
                    let (losses, gradient) = sharded(&logits, &targets, &cuts, padding, 0.3);
                    assert_close("losses", &losses, &want_losses, 1e-6);
                    assert_close("gradient", &gradient, &want, 2e-6);
                }
            }
        });
    }

    #[test]
    fn extreme_logits_stay_finite() {
        let logits = [1e4, -1e4, 0.0, f32::NEG_INFINITY, 3e38, -3e38, 0.0, 1.0];
        let (losses, gradient) = sharded(&logits, &[1, 0], &[0, 1, 4], 2, 1.0);
        assert_eq!(losses, [2e4, 0.0]);
        assert_eq!(gradient, [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        // A difference of 1 on top of 1e6 must not drown.
        let (losses, _) = sharded(&[1e6, 1e6 + 1.0], &[0], &[0, 1, 2], 0, 1.0);
        assert_close("loss", &losses, &[1.0 + (1.0 + (-1.0f64).exp()).ln()], 1e-6);
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        let (losses, _) = sharded(&[0.0, f32::NAN, 1.0], &[0], &[0, 2, 3], 0, 1.0);
        assert!(losses[0].is_nan());
    }

    #[test]
    fn a_target_nobody_holds_shows() {
        let (losses, _) = sharded(&[0.0, 1.0], &[2], &[0, 2], 1, 1.0);
        assert!(losses[0].is_infinite());
    }
}

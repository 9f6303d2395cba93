//! Routing of tokens to experts: scores, the best few, their weights, and the gradient back to the logits.
//!
//! Sources: Shazeer et al., "Outrageously Large Neural Networks" (2017) for the softmax and its best; DeepSeek-AI,
//! "DeepSeek-V3 Technical Report" (2024), section 2.1.2, for sigmoid scores and the loss that balances a sequence.

use ir::{Router, Scoring};

use super::{exponentiate, math, maximum, rows_of, sum_over, vectorized};

/// Turns logits into scores in place: the softmax of each row, or the sigmoid of each element.
///
/// `scores`: `[tokens, experts]`.
///
/// # Panics
/// If `scores` is not made of rows of `experts`.
pub fn router_scores(scoring: Scoring, scores: &mut [f32], experts: usize) {
    rows_of(scores.len(), experts);
    vectorized!({
        for row in scores.chunks_exact_mut(experts) {
            match scoring {
                Scoring::Softmax => {
                    let largest = maximum(row);
                    let factor = 1.0 / exponentiate(row, largest);
                    row.iter_mut().for_each(|score| *score *= factor);
                }
                Scoring::Sigmoid => row.iter_mut().for_each(|score| *score = math::sigmoid(*score).0),
            }
        }
    });
}

/// The `active` experts of the highest scores of each token, highest first; of equal ones the first.
///
/// `scores`: `[tokens, experts]`; `chosen`: emptied, then `[tokens, active]`.
///
/// # Panics
/// If `scores` is not made of rows of `experts`, or there are fewer than `active`.
pub fn choose_experts(scores: &[f32], experts: usize, active: usize, chosen: &mut Vec<u32>) {
    assert!(active <= experts, "{active} of {experts} experts");
    rows_of(scores.len(), experts);
    chosen.clear();
    for row in scores.chunks_exact(experts) {
        let first = chosen.len();
        for _ in 0..active {
            let free = (0u32..).zip(row).filter(|(expert, _)| !chosen[first..].contains(expert));
            let best = free.fold(None, |best: Option<(u32, f32)>, (expert, &score)| match best {
                Some((_, highest)) if score <= highest || score.is_nan() => best,
                _ => Some((expert, score)),
            });
            chosen.push(best.expect("an expert that is free").0);
        }
    }
}

/// Weights of the chosen experts: their scores, divided by their sum if the router says so.
///
/// `scores`: `[tokens, experts]`; `chosen`, `weights`: `[tokens, active]`.
///
/// # Panics
/// If the sizes do not match, or an expert is not there.
pub fn expert_weights(router: Router, scores: &[f32], experts: usize, chosen: &[u32], weights: &mut [f32]) {
    let active = active_of(scores, experts, chosen);
    assert_eq!(chosen.len(), weights.len(), "a weight for each choice");
    let rows = scores.chunks_exact(experts).zip(chosen.chunks_exact(active)).zip(weights.chunks_exact_mut(active));
    for ((scores, chosen), weights) in rows {
        for (weight, &expert) in weights.iter_mut().zip(chosen) {
            *weight = scores[expert as usize];
        }
        if router.normalised {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    }
}

/// Gradient of the logits from that of the weights, and from that of the *normalised* scores (the softmax, or each sigmoid
/// over the sum of a token's).
///
/// `scores`, `d_logits`: `[tokens, experts]`; `chosen`, `weights`, `d_weights`: `[tokens, active]`; `d_normalised` gives the
/// row of `[experts]` of a token, or none.
///
/// # Panics
/// If the sizes do not match, or an expert is not there.
pub fn router_backward<'a>(
    router: Router,
    (scores, experts): (&[f32], usize),
    (chosen, weights): (&[u32], &[f32]),
    d_weights: &[f32],
    d_normalised: impl Fn(usize) -> Option<&'a [f32]>,
    d_logits: &mut [f32],
) {
    let active = active_of(scores, experts, chosen);
    assert_eq!((weights.len(), d_weights.len()), (chosen.len(), chosen.len()), "a weight for each choice");
    assert_eq!(scores.len(), d_logits.len(), "scores and gradient differ in size");
    d_logits.fill(0.0);
    for (token, (scores, d_logits)) in scores.chunks_exact(experts).zip(d_logits.chunks_exact_mut(experts)).enumerate()
    {
        let mine = token * active..(token + 1) * active;
        let (chosen, weights, d_weights) = (&chosen[mine.clone()], &weights[mine.clone()], &d_weights[mine]);
        let (mean, factor) = if router.normalised {
            let mean: f32 = weights.iter().zip(d_weights).map(|(weight, d)| weight * d).sum();
            let sum: f32 = chosen.iter().map(|&expert| scores[expert as usize]).sum();
            (mean, 1.0 / sum)
        } else {
            (0.0, 1.0)
        };
        // First the gradients of the scores.
        for (&expert, d) in chosen.iter().zip(d_weights) {
            d_logits[expert as usize] += (d - mean) * factor;
        }
        let balance = d_normalised(token);
        match router.scoring {
            Scoring::Softmax => {
                if let Some(row) = balance {
                    d_logits.iter_mut().zip(row).for_each(|(d, row)| *d += row);
                }
                let mean = sum_over([scores, d_logits], |[score, d]| score * d);
                d_logits.iter_mut().zip(scores).for_each(|(d, score)| *d = score * (*d - mean));
            }
            Scoring::Sigmoid => {
                if let Some(row) = balance {
                    let sum = sum_over([scores], |[score]| score);
                    let mean = sum_over([scores, row], |[score, row]| score * row) / sum;
                    d_logits.iter_mut().zip(row).for_each(|(d, row)| *d += (row - mean) / sum);
                }
                d_logits.iter_mut().zip(scores).for_each(|(d, score)| *d *= score * (1.0 - score));
            }
        }
    }
}

/// Choices of each token.
fn active_of(scores: &[f32], experts: usize, chosen: &[u32]) -> usize {
    let tokens = rows_of(scores.len(), experts);
    if tokens == 0 {
        return 1;
    }
    let active = chosen.len() / tokens;
    assert_eq!(active * tokens, chosen.len(), "{} choices of {tokens} tokens", chosen.len());
    active
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
    use super::*;

    const ROUTERS: [Router; 4] = [
        Router { scoring: Scoring::Softmax, normalised: true },
        Router { scoring: Scoring::Softmax, normalised: false },
        Router { scoring: Scoring::Sigmoid, normalised: true },
        Router { scoring: Scoring::Sigmoid, normalised: false },
    ];

    /// Scores of one token, its weights, and its normalised scores, in double precision.
    fn twin(router: Router, logits: &[f64], chosen: &[u32]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let scores: Vec<f64> = match router.scoring {
            Scoring::Softmax => {
                let sum: f64 = logits.iter().map(|x| x.exp()).sum();
                logits.iter().map(|x| x.exp() / sum).collect()
            }
            Scoring::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        };
        let of = |&expert: &u32| scores[expert as usize];
        let sum: f64 = if router.normalised { chosen.iter().map(of).sum() } else { 1.0 };
        let all: f64 = scores.iter().sum();
        (scores.clone(), chosen.iter().map(|e| of(e) / sum).collect(), scores.iter().map(|s| s / all).collect())
    }

    #[test]
    fn weights_and_gradients_equal_the_twin() {
        for router in ROUTERS {
            Cases::run(20, |cases| {
                let (tokens, experts) = (cases.size(1, 5), cases.size(2, 20));
                let active = cases.size(1, experts.min(4));
                let logits = cases.values(tokens * experts, 3.0);
                let mut scores = logits.clone();
                router_scores(router.scoring, &mut scores, experts);
                let mut chosen = vec![7; 3];
                choose_experts(&scores, experts, active, &mut chosen);
                let mut weights = vec![f32::NAN; tokens * active];
                expert_weights(router, &scores, experts, &chosen, &mut weights);
                let d_weights = cases.values(tokens * active, 1.0);
                let balance = cases.values(experts, 1.0);
                let mut d_logits = vec![f32::NAN; logits.len()];
                let row = |token: usize| token.is_multiple_of(2).then_some(&balance[..]);
                let mine = (&chosen[..], &weights[..]);
                router_backward(router, (&scores, experts), mine, &d_weights, row, &mut d_logits);
                for token in 0..tokens {
                    let (chosen, d_weights) =
                        (&chosen[token * active..][..active], &d_weights[token * active..][..active]);
                    let logits = wide(&logits[token * experts..][..experts]);
                    let (want, want_weights, _) = twin(router, &logits, chosen);
                    assert_close("scores", &scores[token * experts..][..experts], &want, 1e-6);
                    assert_close("weights", &weights[token * active..][..active], &want_weights, 1e-6);
                    let worst = chosen.iter().map(|e| want[*e as usize]).fold(f64::INFINITY, f64::min);
                    let better = |e: &u32| want[*e as usize] > worst + 1e-6 && !chosen.contains(e);
                    assert!(!(0..u32::try_from(experts).unwrap()).any(|e| better(&e)), "a better expert was left out");
                    let loss = |logits: &[f64]| {
                        let (_, weights, normalised) = twin(router, logits, chosen);
                        inner(d_weights, &weights) + row(token).map_or(0.0, |row| inner(row, &normalised))
                    };
                    let want = numerical_gradient(&logits, loss);
                    // They are differences of numbers as large as the gradients that come in.
                    let largest = d_weights.iter().chain(&balance).fold(0.0f32, |largest, d| largest.max(d.abs()));
                    for (got, want) in d_logits[token * experts..][..experts].iter().zip(want) {
                        let error = (f64::from(*got) - want).abs();
                        assert!(error <= 1e-6 * f64::from(largest), "{router:?}: {got}, want {want}, of {largest}");
                    }
                }
            });
        }
    }

    #[test]
    fn the_first_of_equal_experts_is_chosen() {
        let mut chosen = Vec::new();
        choose_experts(&[1.0, 2.0, 2.0, 1.0, f32::NAN, 0.0, 0.0, 0.0], 4, 3, &mut chosen);
        assert_eq!(chosen[..3], [1, 2, 0]);
        assert_eq!(chosen.len(), 6);
    }
}

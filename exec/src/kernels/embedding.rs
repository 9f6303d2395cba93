//! Token and position embeddings.

use super::{elementwise, rows_of};

/// Looks tokens up in the rows `first_row..` of an embedding table, of which `weight` holds a part (or all).
///
/// `out[i] = weight[tokens[i] - first_row]`, and zeros for tokens whose row another rank holds, so that the sum over
/// the ranks is the lookup in the whole table (Megatron's vocabulary-parallel embedding).
///
/// `tokens`: `[tokens]`; `weight`: `[rows, features]`; `out`: `[tokens, features]`.
///
/// # Panics
/// If the sizes do not match.
pub fn embedding_forward(tokens: &[u32], weight: &[f32], features: usize, first_row: usize, out: &mut [f32]) {
    let rows = rows_of(weight.len(), features);
    assert_eq!(out.len(), tokens.len() * features, "one output row per token");
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(features)) {
        match local_row(token, first_row, rows) {
            Some(row) => out.copy_from_slice(&weight[row * features..][..features]),
            None => out.fill(0.0),
        }
    }
}

/// Weight gradient of [`embedding_forward`]: `d_weight[tokens[i] - first_row] += d_out[i]`, in token order; tokens of
/// other ranks are passed over.
///
/// # Panics
/// If the sizes do not match.
pub fn embedding_backward(tokens: &[u32], d_out: &[f32], features: usize, first_row: usize, d_weight: &mut [f32]) {
    let rows = rows_of(d_weight.len(), features);
    assert_eq!(d_out.len(), tokens.len() * features, "one gradient row per token");
    for (&token, d_out) in tokens.iter().zip(d_out.chunks_exact(features)) {
        if let Some(row) = local_row(token, first_row, rows) {
            elementwise::accumulate(&mut d_weight[row * features..][..features], d_out);
        }
    }
}

fn local_row(token: u32, first_row: usize, rows: usize) -> Option<usize> {
    let token = usize::try_from(token).expect("usize has at least 32 bits");
    token.checked_sub(first_row).filter(|&row| row < rows)
}

/// Adds learned position embeddings in place: `x[i] += weight[first_position + i mod sequence_length]`.
///
/// `x`: `[tokens, features]`, sequences one after the other; `weight`: `[positions, features]`.
///
/// # Panics
/// If the sizes do not match, or a position lies beyond the table.
pub fn positions_forward(
    x: &mut [f32],
    weight: &[f32],
    features: usize,
    sequence_length: usize,
    first_position: usize,
) {
    rows_of(x.len(), features);
    for (token, x) in x.chunks_exact_mut(features).enumerate() {
        let position = first_position + token % sequence_length;
        elementwise::accumulate(x, &weight[position * features..][..features]);
    }
}

/// As [`positions_forward`], with the position of each token: `x[i] += weight[positions[i]]`.
///
/// # Panics
/// If the sizes do not match, or a position lies beyond the table.
pub fn positions_forward_at(x: &mut [f32], weight: &[f32], features: usize, positions: impl Iterator<Item = usize>) {
    rows_of(x.len(), features);
    for (position, x) in positions.zip(x.chunks_exact_mut(features)) {
        elementwise::accumulate(x, &weight[position * features..][..features]);
    }
}

/// Weight gradient of [`positions_forward_at`]: `d_weight[positions[i]] += dx[i]`, in order.
///
/// # Panics
/// If the sizes do not match, or a position lies beyond the table.
pub fn positions_backward_at(
    dx: &[f32],
    features: usize,
    positions: impl Iterator<Item = usize>,
    d_weight: &mut [f32],
) {
    rows_of(dx.len(), features);
    for (position, dx) in positions.zip(dx.chunks_exact(features)) {
        elementwise::accumulate(&mut d_weight[position * features..][..features], dx);
    }
}

/// Weight gradient of [`positions_forward`]: `d_weight[first_position + i mod sequence_length] += dx[i]`, in order.
///
/// # Panics
/// If the sizes do not match, or a position lies beyond the table.
pub fn positions_backward(
    dx: &[f32],
    features: usize,
    sequence_length: usize,
    first_position: usize,
    d_weight: &mut [f32],
) {
    rows_of(dx.len(), features);
    for (token, dx) in dx.chunks_exact(features).enumerate() {
        let position = first_position + token % sequence_length;
        elementwise::accumulate(&mut d_weight[position * features..][..features], dx);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
    use super::*;

    fn tokens(cases: &mut Cases, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| u32::try_from(cases.size(0, vocabulary - 1)).unwrap()).collect()
    }

    /// Cut points of the vocabulary into `parts` pieces, some possibly empty.
    fn cuts(cases: &mut Cases, vocabulary: usize, parts: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> = (1..parts).map(|_| cases.size(0, vocabulary)).collect();
        cuts.extend([0, vocabulary]);
        cuts.sort_unstable();
        cuts
    }

    #[test]
    fn the_shards_add_up_to_the_whole_to_the_bit() {
        Cases::run(30, |cases| {
            let (vocabulary, features, count) = (cases.size(1, 20), cases.size(1, 9), cases.size(1, 30));
            let tokens = tokens(cases, count, vocabulary);
            let weight = cases.values(vocabulary * features, 1.0);
            let d_out = cases.values(count * features, 1.0);
            let start = cases.values(weight.len(), 1.0);

            let mut whole = vec![f32::NAN; count * features];
            embedding_forward(&tokens, &weight, features, 0, &mut whole);
            let mut whole_gradient = start.clone();
            embedding_backward(&tokens, &d_out, features, 0, &mut whole_gradient);

            let (mut sum, mut gradient) = (vec![0.0; count * features], Vec::new());
            for part in cuts(cases, vocabulary, 3).windows(2) {
                let rows = part[0] * features..part[1] * features;
                let mut out = vec![f32::NAN; count * features];
                embedding_forward(&tokens, &weight[rows.clone()], features, part[0], &mut out);
                elementwise::accumulate(&mut sum, &out);
                let mut shard = start[rows].to_vec();
                embedding_backward(&tokens, &d_out, features, part[0], &mut shard);
                gradient.extend(shard);
            }
            assert_eq!(sum, whole);
            assert_eq!(gradient, whole_gradient);
        });
    }

    #[test]
    fn gradients_equal_finite_differences() {
        Cases::run(10, |cases| {
            let (features, length, sequences, first) = (3, cases.size(1, 4), cases.size(1, 3), cases.size(0, 2));
            let count = sequences * length;
            let tokens = tokens(cases, count, 5);
            let (table, positions) = (cases.values(5 * features, 1.0), cases.values((first + length) * features, 1.0));
            let d_out = cases.values(count * features, 1.0);
            let twin = |table: &[f64], positions: &[f64]| -> Vec<f64> {
                let row = |i: usize| {
                    let (token, position) = (tokens[i] as usize, first + i % length);
                    (0..features).map(move |j| (token * features + j, position * features + j))
                };
                (0..count).flat_map(row).map(|(token, position)| table[token] + positions[position]).collect()
            };
            let mut out = vec![f32::NAN; count * features];
            embedding_forward(&tokens, &table, features, 0, &mut out);
            positions_forward(&mut out, &positions, features, length, first);
            assert_close("out", &out, &twin(&wide(&table), &wide(&positions)), 1e-7);

            let mut d_table = vec![0.0; table.len()];
            embedding_backward(&tokens, &d_out, features, 0, &mut d_table);
            let want = numerical_gradient(&wide(&table), |table| inner(&d_out, &twin(table, &wide(&positions))));
            assert_close("d_table", &d_table, &want, 5e-7);
            let mut d_positions = vec![0.0; positions.len()];
            positions_backward(&d_out, features, length, first, &mut d_positions);
            let want =
                numerical_gradient(&wide(&positions), |positions| inner(&d_out, &twin(&wide(&table), positions)));
            assert_close("d_positions", &d_positions, &want, 5e-7);
        });
    }
}

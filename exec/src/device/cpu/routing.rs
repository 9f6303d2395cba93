//! Choosing experts and moving rows to and from them, in the plainest way.

use super::storage::{Storage, Table};
use crate::device::{Operation, Slice};
use crate::kernels::elementwise;

pub(super) fn run(table: &mut Table, operation: &Operation) {
    match *operation {
        Operation::Softmax { columns, values } => {
            table.with([], [values], |[], [values]| values.chunks_exact_mut(columns).for_each(softmax));
        }
        Operation::ChooseExperts { experts, normalised, tokens, scores, chosen, weights } => {
            let active = chosen.length.checked_div(tokens).unwrap_or(0);
            let mut all = Vec::with_capacity(chosen.length);
            table.with([scores], [weights], |[scores], [weights]| {
                let rows = scores.chunks_exact(experts).zip(weights.chunks_exact_mut(active.max(1)));
                rows.for_each(|(scores, weights)| all.extend(choose(scores, normalised, weights)));
            });
            store(table, chosen, &all);
        }
        Operation::OrderByExpert { chosen, order, places, counts } => {
            let experts = table.tokens(chosen);
            let mut sorted: Vec<u32> = (0..).take(experts.len()).collect();
            sorted.sort_by_key(|&choice| experts[choice as usize]);
            let mut of_choice = vec![0; sorted.len()];
            (0..).zip(&sorted).for_each(|(place, &choice)| of_choice[choice as usize] = place);
            let mut totals = vec![0; counts.length];
            experts.iter().for_each(|&expert| totals[expert as usize] += 1);
            store(table, order, &sorted);
            store(table, places, &of_choice);
            store(table, counts, &totals);
        }
        Operation::GatherRows { width, share, indices, factors, from, to } => {
            let indices = table.tokens(indices);
            let factors = factors.map(|factors| singles(table, factors));
            table.with([from], [to], |[from], [to]| {
                for (&index, to) in indices.iter().zip(to.chunks_exact_mut(width)) {
                    to.copy_from_slice(&from[index as usize / share * width..][..width]);
                    if let Some(factors) = &factors {
                        elementwise::scale(to, factors[index as usize]);
                    }
                }
            });
        }
        Operation::CombineRows { width, share, places, factors, rows, out } => {
            let places = table.tokens(places);
            let factors = factors.map_or_else(|| vec![1.0; places.len()], |factors| singles(table, factors));
            table.with([rows], [out], |[rows], [out]| {
                let choices = places.chunks_exact(share).zip(factors.chunks_exact(share));
                for ((places, factors), out) in choices.zip(out.chunks_exact_mut(width)) {
                    out.fill(0.0);
                    for (&place, &factor) in places.iter().zip(factors) {
                        elementwise::accumulate_scaled(out, factor, &rows[place as usize * width..][..width]);
                    }
                }
            });
        }
        Operation::RowProducts { width, share, places, a, rows, products } => {
            let places = table.tokens(places);
            table.with([a, rows], [products], |[a, rows], [products]| {
                for (choice, (&place, product)) in places.iter().zip(products).enumerate() {
                    let (a, row) = (&a[choice / share * width..][..width], &rows[place as usize * width..][..width]);
                    *product = a.iter().zip(row).map(|(a, row)| a * row).sum();
                }
            });
        }
        _ => unreachable!("{operation:?} moves no rows"),
    }
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = libm::expf(*value - largest));
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

/// The best experts of a token; their weights are left in `weights`.
fn choose(scores: &[f32], normalised: bool, weights: &mut [f32]) -> Vec<u32> {
    let mut experts: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
    experts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    experts.truncate(weights.len());
    let sum: f32 = experts.iter().map(|(_, score)| score).sum();
    for (weight, (_, score)) in weights.iter_mut().zip(&experts) {
        *weight = if normalised { score / sum } else { *score };
    }
    experts.into_iter().map(|(expert, _)| expert).collect()
}

fn singles(table: &mut Table, slice: Slice) -> Vec<f32> {
    let mut copy = Vec::new();
    table.with([slice], [], |[values], []| copy.extend_from_slice(values));
    copy
}

fn store(table: &mut Table, to: Slice, values: &[u32]) {
    match table.get_mut(to) {
        Storage::U32(data) => data[to.start..][..to.length].copy_from_slice(values),
        other => panic!("{to}: numbers wanted, not {:?}", other.element()),
    }
}

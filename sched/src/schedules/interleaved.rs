//! Interleaved 1F1B (Narayanan et al. 2021): each position holds `v` chunks, so that the bubble is `v` times smaller.
//!
//! Microbatches go in groups: a group passes a position's first chunk, then its second, and so on, before the next group
//! enters. Megatron-LM groups by `p` and so needs `m % p = 0`. Here, as in PyTorch, there are `rounds = max(1, m / p)`
//! groups of `m / rounds` microbatches, which is the same when `p` divides `m`, and also serves `m < p`.
//!
//! Position `s` warms up with `2 (p - 1 - s) + (v - 1) g` forward passes, `g` the size of a group
//! (Megatron-LM `schedules.py`, `get_pp_rank_microbatches`).

use ir::Problem;
use ir::grid::{Action, Cell, Grid};

use super::cell;

/// Microbatches of one group, or `None` if they do not divide into equal groups.
#[must_use]
pub const fn group_size(pipeline: u32, microbatches: u32) -> Option<u32> {
    let rounds = if microbatches / pipeline > 1 { microbatches / pipeline } else { 1 };
    if microbatches.is_multiple_of(rounds) { Some(microbatches / rounds) } else { None }
}

/// Forward passes of a position before its first backward pass, not more than it has (`chunks * microbatches`).
#[must_use]
pub fn warm_up(pipeline: u32, chunks: u32, microbatches: u32, group: u32, position: u32) -> u64 {
    let wanted = 2 * u64::from(pipeline - 1 - position) + u64::from(chunks - 1) * u64::from(group);
    wanted.min(u64::from(chunks) * u64::from(microbatches))
}

pub(super) fn refusals(pipeline: u32, microbatches: u32) -> Vec<Problem> {
    let mut problems = Vec::new();
    if pipeline < 2 {
        problems.push(
            Problem::new(
                "plan.stages",
                "interleaved 1F1B puts several chunks on each of at least 2 positions, here there is 1",
            )
            .hint("give the one stage a single chunk"),
        );
    }
    if group_size(pipeline, microbatches).is_none() {
        let rounds = microbatches / pipeline;
        let (below, above) = (microbatches / rounds * rounds, microbatches.div_ceil(rounds) * rounds);
        let legal = |m: &u32| group_size(pipeline, *m).is_some();
        let nearest = [below, above].iter().filter(|m| legal(m)).map(u32::to_string).collect::<Vec<_>>();
        problems.push(
            Problem::new(
                "plan.microbatches",
                format!(
                    "{microbatches} microbatches do not divide into groups for interleaved 1F1B over {pipeline} positions: \
                     PyTorch's rule wants microbatches % max(1, microbatches / pipeline) = 0 ({microbatches} % {rounds} = \
                     {}), Megatron-LM's microbatches % pipeline = 0 ({microbatches} % {pipeline} = {})",
                    microbatches % rounds,
                    microbatches % pipeline
                ),
            )
            .hint(format!("use {} microbatches, or one chunk per stage", nearest.join(" or "))),
        );
    }
    problems
}

pub(super) fn grid(pipeline: u32, chunks: u32, microbatches: u32) -> Grid {
    let group = group_size(pipeline, microbatches).expect("checked by refusals");
    Grid { rows: rows(pipeline, chunks, microbatches, group) }
}

/// The passes of each position in order, with groups of `group` microbatches, which divides `microbatches`.
#[must_use]
pub fn rows(pipeline: u32, chunks: u32, microbatches: u32, group: u32) -> Vec<Vec<Cell>> {
    let total = u64::from(chunks) * u64::from(microbatches);
    let narrow = |n: u64| u32::try_from(n).expect("a number of microbatches");
    let place = |k: u64| {
        let (group, chunks) = (u64::from(group), u64::from(chunks));
        (narrow(k / group % chunks), narrow(k / (group * chunks) * group + k % group))
    };
    let row = |position: u32| {
        let warm_up = warm_up(pipeline, chunks, microbatches, group, position);
        let forward = |k: u64| {
            let (slot, microbatch) = place(k);
            cell(slot * pipeline + position, Action::Forward, microbatch)
        };
        let backward = |k: u64| {
            let (slot, microbatch) = place(k);
            cell((chunks - 1 - slot) * pipeline + position, Action::Backward, microbatch)
        };
        let steady = (0..total).flat_map(|k| {
            let next = (k + warm_up < total).then(|| forward(k + warm_up));
            next.into_iter().chain([backward(k)])
        });
        (0..warm_up).map(forward).chain(steady).collect()
    };
    (0..pipeline).map(row).collect()
}

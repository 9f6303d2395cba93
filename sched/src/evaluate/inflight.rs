//! Which microbatches a position holds when it runs a pass: all that peak memory depends on beside sizes.

use ir::grid::{Action, Cell};
use ir::{Plan, Schedule};

use crate::layout::chunk_positions;
use crate::schedules::{self, group_size, interleaved_rows, zero_bubble_rows};

/// Microbatches held by a position while it runs a pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Context {
    /// The pass.
    pub(super) chunk: u32,
    pub(super) action: Action,
    /// Of each chunk of the position in ascending order: microbatches after their forward pass, and after their
    /// input-gradient pass; the microbatch of the pass itself as it was before.
    pub(super) held: Vec<[u32; 2]>,
}

/// Rounds of groups after which interleaved 1F1B only repeats itself: warm-up takes less than `v + 1` of them in passes
/// of one chunk, and one whole round follows.
const ROUNDS: u32 = 4;

/// As many of a plan's microbatches as show all that positions hold: with more, contexts are the same.
pub(super) fn shown(plan: &Plan) -> u32 {
    let (p, v, m) = (plan.pipeline(), plan.chunks_per_stage(), plan.microbatches);
    match &plan.schedule {
        Schedule::OneForwardOneBackward if v == 1 => m.min(p),
        Schedule::OneForwardOneBackward if m.is_multiple_of(p) => m.min(p * ROUNDS),
        Schedule::ZeroBubbleH1 => m.min(4 * p),
        _ => m,
    }
}

/// The contexts of each position that no other context of the same pass exceeds.
pub(super) fn contexts(plan: &Plan) -> Vec<Vec<Context>> {
    let (p, v, m) = (plan.pipeline(), plan.chunks_per_stage(), plan.microbatches);
    match &plan.schedule {
        Schedule::GPipe => (0..p).map(|s| breadth_first(s, p, v, m)).collect(),
        Schedule::OneForwardOneBackward if v == 1 => (0..p).map(|s| plain(s, m.min(p - s))).collect(),
        Schedule::OneForwardOneBackward => {
            let group = group_size(p, m).expect("a legal plan");
            let rows = interleaved_rows(p, v, group * (m / group).min(ROUNDS), group);
            let chunks = |s: u32| (0..v).map(move |slot| slot * p + s).collect();
            (0..p).zip(rows).map(|(s, row)| walk(row.into_iter(), chunks(s))).collect()
        }
        Schedule::ZeroBubbleH1 => {
            let rows = zero_bubble_rows(p, m.min(4 * p));
            (0..p).zip(rows).map(|(s, row)| walk(row.into_iter(), vec![s])).collect()
        }
        Schedule::ZeroBubbleH2
        | Schedule::ZeroBubble(_)
        | Schedule::Vee(_)
        | Schedule::DualPipeV
        | Schedule::Explicit(_) => {
            let grid = schedules::grid(&plan.schedule, p, v, m).expect("a legal plan");
            let positions = chunk_positions(plan);
            let held = |s: u32| (0u32..).zip(&positions).filter(|(_, at)| **at == s).map(|(chunk, _)| chunk).collect();
            (0..p).zip(grid.rows).map(|(s, row)| walk(row.into_iter(), held(s))).collect()
        }
    }
}

fn breadth_first(position: u32, p: u32, v: u32, m: u32) -> Vec<Context> {
    let context = |slot: u32, action, own: u32| Context {
        chunk: slot * p + position,
        action,
        held: (0..v)
            .map(|other| match other.cmp(&slot) {
                std::cmp::Ordering::Less => [m, 0],
                std::cmp::Ordering::Equal => [own, 0],
                std::cmp::Ordering::Greater => [0, 0],
            })
            .collect(),
    };
    (0..v).flat_map(|slot| [context(slot, Action::Forward, m - 1), context(slot, Action::Backward, m)]).collect()
}

fn plain(position: u32, most: u32) -> Vec<Context> {
    let context = |action, own| Context { chunk: position, action, held: vec![[own, 0]] };
    vec![context(Action::Forward, most - 1), context(Action::Backward, most)]
}

/// The contexts along a row, without those that another exceeds.
fn walk(row: impl Iterator<Item = Cell>, chunks: Vec<u32>) -> Vec<Context> {
    let mut held = vec![[0u32; 2]; chunks.len()];
    let mut found: Vec<Context> = Vec::new();
    for cell in row {
        let slot = chunks.binary_search(&cell.chunk.raw()).expect("a chunk of this position");
        let exceeds = |a: &[[u32; 2]], b: &[[u32; 2]]| a.iter().zip(b).all(|(a, b)| a[0] >= b[0] && a[1] >= b[1]);
        let same = |context: &Context| context.chunk == cell.chunk.raw() && context.action == cell.action;
        if !found.iter().any(|context| same(context) && exceeds(&context.held, &held)) {
            found.retain(|context| !(same(context) && exceeds(&held, &context.held)));
            found.push(Context { chunk: cell.chunk.raw(), action: cell.action, held: held.clone() });
        }
        let [forward, input] = &mut held[slot];
        match cell.action {
            Action::Forward => *forward += 1,
            Action::Backward => *forward -= 1,
            Action::BackwardInput => (*forward, *input) = (*forward - 1, *input + 1),
            Action::BackwardWeight => *input -= 1,
        }
    }
    found
}

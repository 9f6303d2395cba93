//! Plans next to one: a layer moved, or devices of two neighbours swapped.

use ir::Plan;

use super::kinds::wide;

/// A plan with one layer moved to a neighbour, or with the devices of two neighbours swapped.
pub(super) fn moves(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let pairs = || (1..plan.stages.len()).flat_map(|at| [(at - 1, at), (at, at - 1)]);
    for (from, to) in pairs() {
        if plan.stages[from].layers[0] > 1 {
            let mut moved = plan.clone();
            moved.stages[from].layers[0] -= 1;
            moved.stages[to].layers[0] += 1;
            for stage in [from, to] {
                let most = moved.stages[stage].layers[0];
                let layers = &mut moved.stages[stage].recompute_layers;
                *layers = layers.map(|layers| layers.min(most));
            }
            found.push(moved);
        }
    }
    if !plan.placement.is_empty() {
        let wide = wide(plan) as usize;
        for at in 1..plan.stages.len() {
            let mut swapped = plan.clone();
            let (before, after) = swapped.placement.split_at_mut(at * wide);
            before[(at - 1) * wide..].swap_with_slice(&mut after[..wide]);
            found.push(swapped.clone());
            swapped.stages.swap(at - 1, at);
            found.push(swapped);
        }
    }
    found
}

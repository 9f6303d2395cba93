//! Which rank is on which device: a search over orders of the devices, for a plan whose degrees stay.
//!
//! From the order that the plan has, two kinds of step are tried, each priced by an [`Evaluator`]. First orders of the
//! axes: ranks are counted with every axis fastest in turn, so that each kind of group gets to lie in the fastest
//! domains. Then exchanges, from the largest blocks of the cluster to the smallest (leaves, nodes, domains, devices):
//! what two blocks of equal shape carry changes places, idle devices included, and whatever is faster stays. The search
//! ends when no exchange gains or its budget of evaluations is used. It draws nothing: equal questions have equal
//! answers.

#[cfg(test)]
mod tests;

use ir::{Cluster, DeviceId, Infeasible, Plan, Prediction};

use crate::evaluate::Evaluator;

/// What a search for a placement found.
#[derive(Clone, PartialEq, Debug)]
pub struct Placed {
    /// The plan with every rank's device.
    pub plan: Plan,
    /// What is predicted of it.
    pub prediction: Prediction,
    /// What was predicted of the order that the search began with; `None` if the plan was not legal there.
    pub before: Option<Prediction>,
    /// Plans that were asked about.
    pub evaluations: u64,
    /// Steps that were faster, in order: in words, with the iteration that each led to.
    pub steps: Vec<(String, Prediction)>,
    /// Whether no exchange gains any more; else the budget ended the search.
    pub settled: bool,
}

/// How good a placement is, less is better: whether it is refused, how far it is over its memory, and its time.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Score {
    refused: bool,
    excess: f64,
    nanoseconds: u64,
}

struct Search<'a> {
    plan: &'a Plan,
    evaluator: &'a mut dyn Evaluator,
    refused: Refused<'a>,
    budget: u64,
    used: u64,
    /// Where the search is: the best order, or the first one while none is legal.
    placement: Vec<DeviceId>,
    best: Option<(Prediction, Score)>,
    steps: Vec<(String, Prediction)>,
}

/// What says of a placement, with what is predicted of it, that it cannot be.
pub type Refused<'a> = &'a dyn Fn(&Plan, &Prediction) -> bool;

/// Searches for a faster order of devices. `refused` says of a placement that it cannot be: any other is better.
///
/// # Errors
/// Why the plan is not legal as it is placed, if no order that was tried is.
pub fn place(
    plan: &Plan,
    cluster: &Cluster,
    evaluator: &mut dyn Evaluator,
    refused: Refused<'_>,
    budget: u64,
) -> Result<Placed, Infeasible> {
    let world = u32::try_from(plan.world().min(cluster.devices())).unwrap_or(u32::MAX);
    let placement =
        if plan.placement.is_empty() { (0..world).map(DeviceId::new).collect() } else { plan.placement.clone() };
    let start = Plan { placement: placement.clone(), ..plan.clone() };
    let first = evaluator.evaluate(&start);
    if let (Err(infeasible), true) = (&first, placement.len() as u64 != plan.world()) {
        // There is no device for each rank, in whatever order.
        return Err(infeasible.clone());
    }
    let best = first.as_ref().ok().map(|before| (before.clone(), score(before, refused(&start, before))));
    let mut search = Search { plan, evaluator, refused, budget, used: 1, placement, best, steps: Vec::new() };
    search.axes(cluster);
    let settled = search.exchanges(cluster);
    let Search { placement, best, used: evaluations, steps, .. } = search;
    match (best, first) {
        (Some((prediction, _)), before) => {
            let plan = Plan { placement, ..plan.clone() };
            Ok(Placed { plan, prediction, before: before.ok(), evaluations, steps, settled })
        }
        (None, Err(infeasible)) => Err(infeasible),
        (None, Ok(_)) => unreachable!("what began legal is the best there is"),
    }
}

fn score(prediction: &Prediction, refused: bool) -> Score {
    let excess = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64 - 1.0;
    let excess = prediction.memory.iter().map(excess).fold(0.0, f64::max);
    Score { refused, excess, nanoseconds: prediction.iteration.nanoseconds() }
}

impl Search<'_> {
    /// Tries a placement and keeps it if it is better.
    fn try_one(&mut self, placement: Vec<DeviceId>, words: impl FnOnce() -> String) -> bool {
        if placement == self.placement {
            return false;
        }
        self.used += 1;
        let plan = Plan { placement: placement.clone(), ..self.plan.clone() };
        let Ok(prediction) = self.evaluator.evaluate(&plan) else { return false };
        let score = score(&prediction, (self.refused)(&plan, &prediction));
        let better = self.best.as_ref().is_none_or(|(_, best)| score < *best);
        if better {
            self.steps.push((words(), prediction.clone()));
            self.placement = placement;
            self.best = Some((prediction, score));
        }
        better
    }

    /// Every order of the axes, on the devices of the order so far and on the first ones of the cluster.
    fn axes(&mut self, cluster: &Cluster) {
        let plan = self.plan;
        let sizes = [plan.tensor, plan.mesh.context, plan.data, plan.pipeline()];
        let names = ["tensor", "context", "data", "pipeline"];
        let axes: Vec<usize> = (0..4).filter(|axis| sizes[*axis] > 1).collect();
        let mut own = self.placement.clone();
        own.sort_unstable();
        let first: Vec<DeviceId> = (0..).map(DeviceId::new).take(own.len()).collect();
        let mut kinds = vec![own];
        if kinds[0] != first && plan.world() <= cluster.devices() {
            kinds.push(first);
        }
        for devices in &kinds {
            for order in orders(&axes) {
                if self.used >= self.budget {
                    return;
                }
                let fastest = order.iter().map(|axis| names[*axis]).collect::<Vec<_>>().join(", ");
                self.try_one(along(&order, sizes, devices), || format!("ranks in the order {fastest}"));
            }
        }
    }

    /// Exchanges until none gains; whether that was reached.
    fn exchanges(&mut self, cluster: &Cluster) -> bool {
        let levels = blocks(cluster);
        loop {
            let mut gained = false;
            for (name, blocks) in &levels {
                for (at, one) in blocks.iter().enumerate() {
                    for other in blocks[at + 1..].iter().filter(|other| other.len() == one.len()) {
                        if self.used >= self.budget {
                            return false;
                        }
                        let Some(placement) = exchanged(&self.placement, one, other) else { continue };
                        gained |= self.try_one(placement, || {
                            format!("{name} of device {} and of device {} exchanged", one.start, other.start)
                        });
                    }
                }
            }
            if !gained {
                return true;
            }
        }
    }
}

/// All orders of some axes, in a fixed order.
fn orders(axes: &[usize]) -> Vec<Vec<usize>> {
    if axes.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in axes.iter().enumerate() {
        let mut rest = axes.to_vec();
        rest.remove(at);
        all.extend(orders(&rest).into_iter().map(|mut order| {
            order.insert(0, *first);
            order
        }));
    }
    all
}

/// The device of every rank when devices are dealt out with the first axis of the order fastest. Axes are tensor,
/// context, data and pipeline, ranks in their own order (tensor fastest, then context, data, pipeline).
fn along(order: &[usize], sizes: [u32; 4], devices: &[DeviceId]) -> Vec<DeviceId> {
    let mut placement = devices.to_vec();
    for (number, device) in devices.iter().enumerate() {
        let mut rest = number;
        let mut at = [0usize; 4];
        for axis in order {
            let size = sizes[*axis] as usize;
            at[*axis] = rest % size;
            rest /= size;
        }
        let rank = (0..4).rev().fold(0, |rank, axis| rank * sizes[axis] as usize + at[axis]);
        placement[rank] = *device;
    }
    placement
}

/// Blocks of devices, from leaves to single devices; a level whose blocks are those of the one before is left out.
fn blocks(cluster: &Cluster) -> Vec<(&'static str, Vec<std::ops::Range<u32>>)> {
    let (mut leaves, mut nodes, mut domains): (Vec<std::ops::Range<u32>>, Vec<_>, Vec<_>) = Default::default();
    let (mut first, mut node) = (0u32, 0u32);
    let mut last_leaf = None;
    for group in &cluster.groups {
        let kind = cluster.node_kind(group.kind);
        let count = u32::try_from(kind.devices.len()).unwrap_or(u32::MAX);
        for _ in 0..group.count {
            let end = first + count;
            let leaf = cluster.leaf(ir::NodeId::new(node));
            match leaves.last_mut() {
                Some(open) if last_leaf == Some(leaf) => open.end = end,
                _ => leaves.push(first..end),
            }
            last_leaf = Some(leaf);
            nodes.push(first..end);
            let size = kind.domain_size.max(1);
            domains.extend((first..end).step_by(size as usize).map(|start| start..(start + size).min(end)));
            (first, node) = (end, node + 1);
        }
    }
    let devices: Vec<std::ops::Range<u32>> = (0..first).map(|device| device..device + 1).collect();
    let mut levels: Vec<(&'static str, Vec<std::ops::Range<u32>>)> = Vec::new();
    for (name, blocks) in [("leaves", leaves), ("nodes", nodes), ("domains", domains), ("ranks", devices)] {
        if levels.last().is_none_or(|(_, known)| *known != blocks) {
            levels.push((name, blocks));
        }
    }
    levels
}

/// What two blocks carry, exchanged; `None` if both are idle.
fn exchanged(
    placement: &[DeviceId],
    one: &std::ops::Range<u32>,
    other: &std::ops::Range<u32>,
) -> Option<Vec<DeviceId>> {
    let mut moved = false;
    let placement = placement.iter().map(|device| {
        let raw = device.raw();
        let to = if one.contains(&raw) {
            other.start + (raw - one.start)
        } else if other.contains(&raw) {
            one.start + (raw - other.start)
        } else {
            return *device;
        };
        moved = true;
        DeviceId::new(to)
    });
    let placement: Vec<DeviceId> = placement.collect();
    moved.then_some(placement)
}

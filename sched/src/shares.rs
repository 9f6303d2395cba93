//! Unequal shares of a batch: which replicas go through an iteration together, and what each does in it.
//!
//! Replicas that divide parameters or gradients among themselves pass by pass (ZeRO-2 and 3) meet in every pass. If they
//! take unequal shares, all go through the passes of the one that takes the most, in one order; of microbatches that a
//! replica does not have, it only takes part in what is gathered and reduced. Replicas that meet at the end of an iteration
//! alone go through their own passes.

#[cfg(test)]
mod tests;

use ir::grid::Grid;
use ir::program::Layout;
use ir::{Plan, Schedule, ZeroStage};

/// What one replica does in an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Turn {
    /// Microbatches that it has: the first ones.
    pub(crate) own: u32,
    /// Microbatches whose passes it goes through, its own and those of others.
    pub(crate) rounds: u32,
}

/// Replicas in a row that meet in every pass: 1 where each goes its own way.
pub(crate) fn company(layout: &Layout, experts: bool) -> u32 {
    let (context, shard) = (layout.mesh.context, layout.shard());
    match layout.zero {
        ZeroStage::Zero0 | ZeroStage::Zero1 => 1,
        // Copies of an expert are divided over all replicas.
        ZeroStage::Zero2 | ZeroStage::Zero3 if experts && layout.expert_shard() > 1 => layout.data,
        ZeroStage::Zero2 | ZeroStage::Zero3 if context.is_multiple_of(shard) => 1,
        ZeroStage::Zero2 | ZeroStage::Zero3 if shard.is_multiple_of(context) => (shard / context).min(layout.data),
        ZeroStage::Zero2 | ZeroStage::Zero3 => layout.data,
    }
}

/// The turn of each replica.
pub(crate) fn turns(layout: &Layout, experts: bool, schedule: &Schedule) -> Vec<Turn> {
    let company = company(layout, experts);
    let rounds = |replica: u32| match schedule {
        // It is written for the most that any replica takes, and its reductions go in one order for all.
        Schedule::Explicit(_) => layout.microbatches,
        _ => {
            let first = replica / company * company;
            (first..(first + company).min(layout.data)).map(|other| layout.share(other)).max().unwrap_or(0)
        }
    };
    (0..layout.data).map(|replica| Turn { own: layout.share(replica), rounds: rounds(replica) }).collect()
}

/// Numbers of microbatches for which a plan's schedule must exist, ascending.
pub(crate) fn counts(plan: &Plan, experts: bool) -> Vec<u32> {
    let turns = turns(&crate::layout::layout(plan), experts, &plan.schedule);
    let mut counts = turns.iter().map(|turn| turn.rounds).collect::<Vec<_>>();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Replicas that set the pace of some of the passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    /// How many microbatches each of them has at least; somebody has no more.
    pub(crate) microbatches: u32,
    /// Which replicas those are, in order.
    pub(crate) replicas: Vec<u32>,
}

/// Companies of replicas that wait for each other in every pass, each as its levels with ascending numbers of microbatches.
/// Those that go their own way with equally many are one.
pub(crate) fn companies(layout: &Layout, experts: bool) -> Vec<Vec<Level>> {
    let company = company(layout, experts);
    let mut found: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
    for first in (0..layout.data).step_by(company as usize) {
        let members = first..(first + company).min(layout.data);
        let mut counts = members.clone().map(|replica| layout.share(replica)).collect::<Vec<_>>();
        counts.sort_unstable();
        counts.dedup();
        match found.iter_mut().find(|(other, _)| *other == counts) {
            Some((_, replicas)) => replicas.extend(members),
            None => found.push((counts, members.collect())),
        }
    }
    let levels = |(counts, replicas): (Vec<u32>, Vec<u32>)| {
        let level = |microbatches: u32| {
            let has = |replica: &u32| layout.share(*replica) >= microbatches;
            Level { microbatches, replicas: replicas.iter().copied().filter(has).collect() }
        };
        counts.iter().map(|count| level(*count)).collect()
    };
    found.into_iter().map(levels).collect()
}

/// So many microbatches in shares that are to each other as the weights are, at least one each; what rounding leaves goes to
/// the largest remainders (Hamilton's method), of equal ones to the first. `None` if there are fewer microbatches than
/// replicas, or a weight is not positive.
pub(crate) fn apportion(microbatches: u32, weights: &[f64]) -> Option<Vec<u32>> {
    let sum = weights.iter().sum::<f64>();
    let sound = weights.iter().all(|weight| *weight > 0.0) && sum.is_finite();
    let spare = microbatches.checked_sub(u32::try_from(weights.len()).ok()?).filter(|_| sound)?;
    let exact = weights.iter().map(|weight| f64::from(microbatches) * weight / sum);
    // Whoever would have less than one has one; the rest is divided among the others.
    let wanted = exact.map(|exact| (exact - 1.0).max(0.0)).collect::<Vec<_>>();
    let total = wanted.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let parts = wanted.iter().map(|part| f64::from(spare) * part / total).collect::<Vec<_>>();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32, rounded down")]
    let mut counts = parts.iter().map(|part| 1 + *part as u32).collect::<Vec<_>>();
    let mut order = (0..counts.len()).collect::<Vec<_>>();
    let remainder = |at: usize| parts[at] - f64::from(counts[at] - 1);
    order.sort_by(|a, b| remainder(*b).total_cmp(&remainder(*a)));
    let left = microbatches.saturating_sub(counts.iter().sum()) as usize;
    for at in order.iter().cycle().take(left) {
        counts[*at] += 1;
    }
    Some(counts)
}

/// How fast like replicas get through microbatches, for who shares a batch out among unlike ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Which replicas.
    pub replicas: Vec<u32>,
    /// Nanoseconds for any number of microbatches.
    pub fixed: u64,
    /// Nanoseconds more for each microbatch; not zero.
    pub each: u64,
    /// How many microbatches one of them can take; 0 if not even one fits.
    pub most: u32,
}

impl Pace {
    /// How many units of microbatches are done by then.
    fn done_by(&self, time: u64, unit: u32) -> u32 {
        let done = time.saturating_sub(self.fixed) / self.each / u64::from(unit);
        u32::try_from(done).unwrap_or(u32::MAX).min(self.most / unit)
    }
}

/// The shares by which the slowest replica ends soonest, `max over i of fixed_i + each_i n_i`, as counts by replica that sum
/// to `microbatches`, each a multiple of `unit`, at least one unit and not more than fit. `None` if there are none.
///
/// The least time by which all replicas together are done is found by halving; what some could do beyond the batch by
/// then, those leave out that would end last.
#[must_use]
pub fn balanced(paces: &[Pace], microbatches: u32, unit: u32) -> Option<Vec<u32>> {
    let replicas = paces.iter().map(|pace| pace.replicas.len()).sum::<usize>();
    let unit = unit.max(1);
    if !microbatches.is_multiple_of(unit) || paces.iter().any(|pace| pace.most < unit || pace.each == 0) {
        return None;
    }
    let wanted = u64::from(microbatches / unit);
    let share = |pace: &Pace, time: u64| pace.done_by(time, unit).max(1);
    let done = |time: u64| paces.iter().map(|p| u64::from(share(p, time)) * p.replicas.len() as u64).sum::<u64>();
    let longest = paces.iter().map(|p| p.fixed.saturating_add(p.each.saturating_mul(u64::from(microbatches)))).max()?;
    if done(longest) < wanted || wanted < replicas as u64 {
        return None;
    }
    let (mut short, mut long) = (0, longest);
    while long - short > 1 {
        let middle = short + (long - short) / 2;
        if done(middle) < wanted { short = middle } else { long = middle }
    }
    let mut counts = vec![0; replicas];
    for pace in paces {
        for replica in &pace.replicas {
            *counts.get_mut(*replica as usize)? = share(pace, long);
        }
    }
    // Beyond the batch are at most those that end at that very time: one less for the last of them.
    let end = |pace: &Pace, units: u32| pace.fixed + pace.each * u64::from(units * unit);
    let mut order = paces.iter().filter(|pace| share(pace, long) > 1).collect::<Vec<_>>();
    order.sort_by_key(|pace| std::cmp::Reverse(end(pace, share(pace, long))));
    let last = order.iter().flat_map(|pace| pace.replicas.iter().rev());
    let spare = usize::try_from(done(long) - wanted).ok()?;
    for replica in last.take(spare) {
        counts[*replica as usize] -= 1;
    }
    let sum = counts.iter().map(|count| u64::from(*count)).sum::<u64>();
    (sum == wanted).then(|| counts.into_iter().map(|count| count * unit).collect())
}

/// A plan of equal shares as a replica of a plan with unequal ones has it: so many microbatches.
pub(crate) fn alone(plan: &Plan, microbatches: u32) -> Plan {
    let mut plan = Plan { microbatches, shares: ir::Shares::EQUAL, ..plan.clone() };
    if let Schedule::Explicit(grid) = &mut plan.schedule {
        keep(grid, microbatches);
    }
    plan
}

/// Leaves out the cells of all but the first microbatches.
fn keep(grid: &mut Grid, microbatches: u32) {
    for row in &mut grid.rows {
        row.retain(|cell| cell.microbatch.raw() < microbatches);
    }
}

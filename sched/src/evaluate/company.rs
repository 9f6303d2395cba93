//! Passes of all replicas of a plan, and of those that take unequal shares, who sets the pace.
//!
//! Replicas that meet at the end of an iteration alone go through their own passes, each with its own devices; what follows
//! waits for the last of them. Replicas that meet in every pass go through those of the one with the most microbatches: up
//! to the share of the one that has the fewest all of them set the pace, from there to the next share those that are left,
//! and so on. With `E(S, n)` the end of `n` microbatches of the replicas `S`, that is
//! `E(S_1, n_1) + sum over j of E(S_j, n_j) - E(S_j, n_(j-1))`, which is exact where the pace is steady.

use std::borrow::Cow;

use ir::program::{Chunk, Layout};
use ir::{Activity, Plan, Problem, Schedule};

use super::closed_form::{ClosedForm, Without};
use super::parts::LastPass;
use super::prepared::{ByBasis, ChunkCost};
use super::recurrence::Ends;
use super::spent::Spent;
use crate::lowering::Reductions;
use crate::passes::ACTIONS;
use crate::schedules;
use crate::shares::{Level, alone, companies};
use crate::vocabulary::Event;

/// How the passes of some replicas go.
pub(super) struct Passes<'p> {
    pub(super) ends: Ends,
    /// By position: how long its passes take.
    pub(super) work: Vec<u64>,
    pub(super) without: Without,
    pub(super) basis: ByBasis,
    /// Where the vocabulary is divided over positions.
    pub(super) events: Vec<Event>,
    /// Passes beside which gradients are reduced part by part.
    pub(super) last: Vec<LastPass>,
    /// By position: how much longer its last pass is than others like it.
    pub(super) longer: Vec<u64>,
    pub(super) ran: Vec<Ran<'p>>,
    /// How many replicas go so.
    pub(super) replicas: u32,
}

/// Passes that ran: those of a plan, less those of another one that ran before.
pub(super) struct Ran<'p> {
    pub(super) costs: Vec<ChunkCost>,
    pub(super) plan: Cow<'p, Plan>,
    pub(super) less: Option<Plan>,
}

impl Passes<'_> {
    /// Goes on: from the end of `from` to the end of `to`, passes of the same replicas.
    fn go_on(&mut self, from: &Self, to: Self) {
        let each = |sums: &mut [u64], from: &[u64], to: &[u64]| {
            for ((sum, from), to) in sums.iter_mut().zip(from).zip(to) {
                *sum += to.saturating_sub(*from);
            }
        };
        each(&mut self.ends.row, &from.ends.row, &to.ends.row);
        each(&mut self.ends.chunk, &from.ends.chunk, &to.ends.chunk);
        each(&mut self.work, &from.work, &to.work);
        each(&mut self.without.gathers, &from.without.gathers, &to.without.gathers);
        each(&mut self.without.messages, &from.without.messages, &to.without.messages);
        each(&mut self.basis, &from.basis, &to.basis);
        self.ends.last_message += to.ends.last_message.saturating_sub(from.ends.last_message);
        let before = from.ran.first().map(|ran| ran.plan.clone().into_owned());
        self.ran.extend(to.ran.into_iter().map(|ran| Ran { less: before.clone(), ..ran }));
    }

    /// What the time up to the end of a position's passes is spent on: its passes, and waiting. What waiting there would
    /// be without messages is the bubble, what messages and parameters gathered ahead add is theirs.
    pub(super) fn before(&self, chunks: &[Chunk], position: usize) -> Spent {
        let mut spent = Spent::default();
        let end = self.ends.row[position];
        // Relieved of waiting, ends are shorter than what passes would come to.
        let gathered = self.without.gathers[position].min(end);
        let sent = self.without.messages[position].min(gathered);
        spent.add(Activity::Data, end - gathered);
        spent.add(Activity::Pipeline, gathered - sent);
        spent.add(Activity::Bubble, sent.saturating_sub(self.work[position]));
        spent.add(Activity::Compute, self.longer[position]);
        for Ran { costs, plan, less } in &self.ran {
            let own = costs.iter().enumerate().filter(|(number, _)| chunks[*number].stage.index() == position);
            for (number, cost) in own {
                for action in ACTIONS {
                    let before = less.as_ref().map_or(0, |plan| ClosedForm::runs(plan, action, number));
                    let times = ClosedForm::runs(plan, action, number) - before;
                    spent.add_times(&cost.passes[action as usize].spent, u64::from(times));
                }
            }
        }
        spent
    }
}

/// The passes of all replicas.
pub(super) struct Everybody<'p> {
    of: Vec<Passes<'p>>,
    /// Where replicas go unlike ways: by position, whose passes end last, and when all have ended.
    last: Option<(Vec<usize>, Ends)>,
}

impl<'p> Everybody<'p> {
    fn new(of: Vec<Passes<'p>>) -> Self {
        if of.len() == 1 {
            return Self { of, last: None };
        }
        let mut ends = of[0].ends.clone();
        let mut last = vec![0; ends.row.len()];
        for (number, passes) in of.iter().enumerate().skip(1) {
            for (position, end) in passes.ends.row.iter().enumerate() {
                if *end > ends.row[position] {
                    (last[position], ends.row[position]) = (number, *end);
                    ends.first_start[position] = passes.ends.first_start[position];
                }
            }
            for (end, other) in ends.chunk.iter_mut().zip(&passes.ends.chunk) {
                *end = (*end).max(*other);
            }
            ends.last_message = ends.last_message.max(passes.ends.last_message);
        }
        Self { of, last: Some((last, ends)) }
    }

    /// When all have ended.
    pub(super) fn ends(&self) -> &Ends {
        self.last.as_ref().map_or(&self.of[0].ends, |(_, ends)| ends)
    }

    /// The passes of those who end last on a position.
    pub(super) fn last(&self, position: usize) -> &Passes<'p> {
        &self.of[self.last.as_ref().map_or(0, |(last, _)| last[position])]
    }

    /// Prices of chunks as far as they are the same for all: what they hold and step.
    pub(super) fn costs(&self) -> &[ChunkCost] {
        &self.of[0].ran[0].costs
    }

    pub(super) fn last_passes(&self) -> &[LastPass] {
        &self.of[0].last
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.of[0].events
    }

    /// Of each position its ranks, and how long its passes take, in the mean of its replicas.
    pub(super) fn work(&self, layout: &Layout) -> Vec<(u32, u64)> {
        let replicas = self.of.iter().map(|passes| u64::from(passes.replicas)).sum::<u64>().max(1);
        let mean = |position: usize| {
            let all = self.of.iter().map(|passes| u128::from(passes.replicas) * u128::from(passes.work[position]));
            u64::try_from(all.sum::<u128>() / u128::from(replicas)).expect("a mean of times")
        };
        let wide = |position: u32| layout.at(position).per_position();
        (0u32..).zip(0..self.of[0].work.len()).map(|(number, at)| (wide(number), mean(at))).collect()
    }

    /// `1 - work / longest span`: work is the mean of all ranks, a span lasts from a position's first pass to its last.
    pub(super) fn bubble_rate(&self, layout: &Layout) -> f64 {
        let spans = |ends: &Ends| ends.row.iter().zip(&ends.first_start).map(|(end, start)| end - start).max();
        let longest = self.of.iter().filter_map(|passes| spans(&passes.ends)).max().unwrap_or(0);
        let (mut work, mut ranks) = (0u128, 0u128);
        for passes in &self.of {
            for (position, of_position) in (0u32..).zip(&passes.work) {
                let here = u128::from(passes.replicas) * u128::from(layout.tensor_at(position));
                work += here * u128::from(*of_position);
                ranks += here;
            }
        }
        let mean = work as f64 / ranks.max(1) as f64;
        if longest == 0 { 0.0 } else { 1.0 - mean / longest as f64 }
    }
}

impl ClosedForm<'_> {
    /// The passes of all replicas of a plan, whose prices have a number.
    pub(super) fn everybody<'p>(
        &mut self,
        plan: &'p Plan,
        all: usize,
        reductions: &Reductions<'_>,
        chunks: &[Chunk],
    ) -> Result<Everybody<'p>, Problem> {
        if plan.shares.are_equal() {
            let all = self.passes(Cow::Borrowed(plan), all, reductions, chunks)?;
            return Ok(Everybody::new(vec![all]));
        }
        let experts = self.world().model.variants.experts.is_some();
        let companies = companies(&crate::layout::layout(plan), experts);
        let of = companies.into_iter().map(|levels| self.company(plan, levels, reductions, chunks));
        Ok(Everybody::new(of.collect::<Result<_, _>>()?))
    }

    /// The passes of replicas that wait for each other in every pass.
    fn company<'p>(
        &mut self,
        plan: &'p Plan,
        mut levels: Vec<Level>,
        reductions: &Reductions<'_>,
        chunks: &[Chunk],
    ) -> Result<Passes<'p>, Problem> {
        let replicas = u32::try_from(levels[0].replicas.len()).expect("fewer replicas than u32");
        // Where the schedule does not exist for a level's microbatches, its replicas set the pace up to the next level.
        for at in 0..levels.len() - 1 {
            if !is_runnable(plan, levels[at].microbatches) {
                levels[at + 1].replicas = levels[at].replicas.clone();
            }
        }
        levels.retain(|level| is_runnable(plan, level.microbatches));
        let mut found: Option<(Passes<'p>, u32)> = None;
        for level in levels {
            let number = self.prepare(plan, &level.replicas);
            let mut of = |n: u32| self.passes(Cow::Owned(alone(plan, n)), number, reductions, chunks);
            let to = of(level.microbatches)?;
            found = Some(match found {
                None => (to, level.microbatches),
                Some((mut passes, before)) => {
                    let from = of(before)?;
                    passes.go_on(&from, to);
                    (passes, level.microbatches)
                }
            });
        }
        let (passes, _) = found.expect("the schedule exists for the most microbatches");
        Ok(Passes { replicas, ..passes })
    }
}

/// Whether a plan's schedule exists for so many microbatches.
pub(super) fn is_runnable(plan: &Plan, microbatches: u32) -> bool {
    match &plan.schedule {
        Schedule::Explicit(_) => true,
        _ => schedules::refusals(&plan.schedule, plan.pipeline(), plan.chunks_per_stage(), microbatches).is_empty(),
    }
}

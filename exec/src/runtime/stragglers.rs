//! Ranks that work for longer than their like.

use std::collections::{BTreeMap, VecDeque};

use ir::program::Op;
use ir::{Lane, Program, Rank, RoleId, Timeline};

/// Iterations over which a rank must be slow: one that is late once is not.
const WINDOW: usize = 5;
/// So many ranks of a kind are held against their median; where there are fewer, a rank is held against what it was.
const ENOUGH: usize = 3;

/// Finds slow ranks: those whose work time is `factor` times that of their like in every one of the last five iterations.
///
/// The work time of a rank is that of its compute instructions, in which it waits for nobody but where attention goes round
/// ranks. Its like are the ranks of its role, which do the same work for other data. The median of three or more is what their work
/// takes; of one or two it is the median of the rank's own first five iterations. A rank is told once, until it is no longer slow.
#[derive(Clone, Debug)]
pub struct Stragglers {
    factor: f64,
    /// Of each rank, the last ratios to what its work takes.
    ratios: BTreeMap<Rank, VecDeque<f64>>,
    /// Of each rank, the first work times.
    first: BTreeMap<Rank, Vec<f64>>,
    told: BTreeMap<Rank, bool>,
    program: u64,
}

/// A slow rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slow {
    /// The rank.
    pub rank: Rank,
    /// The iteration in which that was clear, from 0.
    pub iteration: u64,
    /// Median ratio of its work time to that of its like, or to its own before.
    pub ratio: f64,
    /// Whether it is held against others, else against what it was.
    pub against_others: bool,
}

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, iteration, ratio, against_others } = self;
        let than = if *against_others { "the median of ranks with the same work" } else { "it took at first" };
        let rank = rank.raw();
        write!(
            f,
            "rank {rank} is slow: iteration {iteration} is the {WINDOW}th in which its work took {ratio:.2} times what {than}"
        )
    }
}

impl Stragglers {
    /// Ranks count as slow from this factor on, above 1.
    #[must_use]
    pub const fn new(factor: f64) -> Self {
        Self { factor, ratios: BTreeMap::new(), first: BTreeMap::new(), told: BTreeMap::new(), program: 0 }
    }

    /// Looks at an iteration of a program, with a lane for each rank, and gives the ranks that are slow since it.
    pub fn look(&mut self, program: &Program, timeline: &Timeline) -> Vec<Slow> {
        if self.program != timeline.program {
            *self = Self { program: timeline.program, ..Self::new(self.factor) };
        }
        let mut kinds: BTreeMap<RoleId, Vec<(Rank, f64)>> = BTreeMap::new();
        for lane in &timeline.lanes {
            kinds.entry(lane.role).or_default().push((lane.rank, work(program, lane)));
        }
        let mut slow = Vec::new();
        for ranks in kinds.values() {
            let others = (ranks.len() >= ENOUGH).then(|| median(ranks.iter().map(|(_, work)| *work).collect()));
            for (rank, work) in ranks {
                let usual = others.or_else(|| self.usual(*rank, *work));
                let Some(usual) = usual.filter(|usual| *usual > 0.0) else { continue };
                slow.extend(self.note(*rank, work / usual).map(|ratio| Slow {
                    rank: *rank,
                    iteration: timeline.iteration,
                    ratio,
                    against_others: others.is_some(),
                }));
            }
        }
        slow
    }

    /// What a rank took at first, once that is known.
    fn usual(&mut self, rank: Rank, work: f64) -> Option<f64> {
        let first = self.first.entry(rank).or_default();
        if first.len() == WINDOW {
            return Some(median(first.clone()));
        }
        first.push(work);
        None
    }

    /// Notes a ratio, and gives the median of the last ones if the rank is slow and was not before.
    fn note(&mut self, rank: Rank, ratio: f64) -> Option<f64> {
        let ratios = self.ratios.entry(rank).or_default();
        ratios.push_back(ratio);
        if ratios.len() > WINDOW {
            ratios.pop_front();
        }
        let slow = ratios.len() == WINDOW && ratios.iter().all(|ratio| *ratio >= self.factor);
        let before = self.told.insert(rank, slow).unwrap_or(false);
        (slow && !before).then(|| median(ratios.iter().copied().collect()))
    }
}

/// Nanoseconds of a rank's compute instructions.
fn work(program: &Program, lane: &Lane) -> f64 {
    let spans = program.roles[lane.role.index()].instructions().iter().zip(&lane.spans);
    let computes = spans.filter(|(instruction, _)| matches!(instruction.op, Op::Compute { .. }));
    computes.map(|(_, span)| (span.end.nanoseconds() - span.start.nanoseconds()) as f64).sum()
}

/// The middle of some numbers; of an even count the lower one of both.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[(numbers.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use ir::timeline::Span;
    use ir::{Clock, InstructionId, SimDuration, SimTime, ZeroStage};

    use super::*;
    use crate::runtime::tests::training::{model, workload};
    use crate::state::tests::programs::{Division, program};

    /// Looks at iterations of so many replicas, of which each takes the work times that `work` gives by iteration, and gives
    /// what is told.
    fn check(replicas: u32, iterations: u64, work: impl Fn(u64, u32) -> u64, expect: &[&str]) {
        let division = Division { data: replicas, zero: ZeroStage::Zero0, microbatches: 1, ..Division::ONE };
        let mut program = ir::Program::clone(&program(&model(), &workload(), &division));
        // The folded program has one role for all.
        program.roles.truncate(1);
        let mut stragglers = Stragglers::new(1.5);
        let mut told = Vec::new();
        for iteration in 0..iterations {
            let lane = |rank| {
                let span = |index| {
                    let end = SimTime::from_nanoseconds(work(iteration, rank));
                    Span { instruction: InstructionId::at(index), issued: SimTime::ZERO, start: SimTime::ZERO, end }
                };
                let spans = (0..program.roles[0].instructions().len()).map(span).collect();
                Lane { role: RoleId::new(0), rank: Rank::new(rank), multiplicity: 1, spans, memory: Vec::new() }
            };
            let lanes = (0..replicas).map(lane).collect();
            let timeline =
                Timeline { clock: Clock::Measured, program: 1, iteration, input_wait: SimDuration::ZERO, lanes };
            told.extend(stragglers.look(&program, &timeline).iter().map(ToString::to_string));
        }
        assert_eq!(told, expect);
    }

    #[test]
    fn a_rank_that_stays_slow_is_told_once() {
        let slow = |from: u64, until: u64, who: u32| {
            move |iteration: u64, rank: u32| if rank == who && (from..until).contains(&iteration) { 2000 } else { 1000 }
        };
        let others = "took 2.00 times what the median of ranks with the same work";
        check(4, 20, slow(3, 20, 2), &[&format!("rank 2 is slow: iteration 7 is the 5th in which its work {others}")]);
        check(
            2,
            20,
            slow(9, 20, 1),
            &["rank 1 is slow: iteration 13 is the 5th in which its work took 2.00 times what it took at first"],
        );
        // Once late, or slow in a way that all are, is not slow.
        check(4, 20, slow(3, 7, 2), &[]);
        check(4, 20, |iteration, rank| 1000 + 400 * ((iteration + u64::from(rank)) & 1), &[]);
        check(4, 20, |iteration, _| 1000 << (iteration / 4), &[]);
        check(
            8,
            30,
            |iteration, rank| if rank == 5 && iteration % 15 > 4 { 1600 } else { 1000 },
            &[
                "rank 5 is slow: iteration 9 is the 5th in which its work took 1.60 times what the median of ranks with the same work",
                "rank 5 is slow: iteration 24 is the 5th in which its work took 1.60 times what the median of ranks with the same work",
            ],
        );
    }
}

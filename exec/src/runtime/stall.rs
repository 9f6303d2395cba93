//! Which rank keeps the others from going on.

use ir::{BackendError, InstructionId, Program, Rank};

use super::describe::describe;
use super::script::{EndId, Script};

/// What all ranks were last seen to do.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    pub(super) program: &'a Program,
    pub(super) script: &'a Script,
    /// Nanoseconds since the iteration began.
    pub(super) now: u64,
    /// What counts as a stall, in nanoseconds.
    pub(super) limit: u64,
    /// Of each rank: since when, and at which instruction if it does not wait.
    pub(super) beats: Vec<(u64, Option<InstructionId>)>,
    /// Of each rank: whether it has ended the iteration.
    pub(super) reported: Vec<bool>,
}

impl Watch<'_> {
    /// The stall, if there is one: a rank that works on one instruction for longer than the limit while others wait, or, if
    /// all have waited for so long, the end that some transaction misses.
    pub(super) fn stalled(&self, iteration: u64, missing: impl FnOnce() -> Option<EndId>) -> Option<BackendError> {
        let stalled = |rank: usize, what: String| Some(BackendError::Stalled { rank: rank_at(rank), iteration, what });
        let ranks = self.beats.len();
        let others_wait = |rank: usize| ranks == 1 || (0..ranks).any(|other| other != rank && self.waits(other));
        for (rank, (since, instruction)) in self.beats.iter().enumerate() {
            let Some(instruction) = instruction.filter(|_| !self.reported[rank]) else { continue };
            if self.now.saturating_sub(*since) > self.limit && others_wait(rank) {
                let doing = self.describe(rank, instruction);
                let seconds = seconds(self.now.saturating_sub(*since));
                return stalled(rank, format!("{seconds:.1} s in {doing} while others waited"));
            }
        }
        let asleep = |rank: usize| self.reported[rank] || self.now.saturating_sub(self.beats[rank].0) > self.limit;
        if (0..ranks).all(|rank| self.waits(rank) && asleep(rank)) {
            let id = missing()?;
            let end = self.script.transactions[id.transaction].ends[id.end];
            let missing = self.describe(end.rank, end.instruction);
            let seconds = seconds(self.limit);
            return stalled(end.rank, format!("it never came to {missing}, for which others waited {seconds:.1} s"));
        }
        None
    }

    fn waits(&self, rank: usize) -> bool {
        self.beats[rank].1.is_none() || self.reported[rank]
    }

    fn describe(&self, rank: usize, id: InstructionId) -> String {
        describe(self.program, self.script.ranks[rank].role.index(), id)
    }
}

/// The rank at an index.
pub(super) fn rank_at(index: usize) -> Rank {
    Rank::new(u32::try_from(index).expect("ranks are u32"))
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

//! Runs of months: checkpoints, failures, what is done again, and what waits.
//!
//! On the same event queue as iterations, whose simulated time is given and holds for all of them. Between two failures
//! nothing happens that is not known beforehand ([`cost::Checkpointing::after`]), so a month costs its failures and not its
//! iterations. The account of elapsed time adds up to the nanosecond.
//!
//! Failures are an argument: [`FailureProcess`] draws them from a seed, a list of what was recorded does as well. Nodes fail
//! whether or not the run is up; a failure while the run is already down only takes a node more away.

mod draw;
#[cfg(test)]
mod tests;

pub use draw::{FailureProcess, RepairTime};

use cost::Checkpointing;
use ir::{RunAccount, RunPart, SimDuration, SimTime};

use crate::queue::{Key, Queue, RadixQueue};

/// One failure of a node in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// When.
    pub at: SimTime,
    /// Whether no process ends, so that only the watchdog notices.
    pub hangs: bool,
    /// For how long the node is in repair; `None` if it can go on at once.
    pub repair: Option<SimDuration>,
}

/// A run and how it deals with failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongRun {
    /// How it takes checkpoints.
    pub checkpointing: Checkpointing,
    /// Until a failure that ends a process is noticed.
    pub detection: SimDuration,
    /// Until one that hangs is.
    pub watchdog: SimDuration,
    /// From the notice, or from the repair that it waits for, to training.
    pub restart: SimDuration,
    /// Nodes that stand by.
    pub spares: u32,
    /// Elapsed time after which it ends; what was trained since the last checkpoint counts as useful then.
    pub duration: SimDuration,
}

/// What became of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongRunOutcome {
    /// Where its time went; adds up to the duration.
    pub account: RunAccount,
    /// Failures of nodes.
    pub failures: u64,
    /// Those that stopped it, while it was starting included.
    pub stops: u64,
    /// Those of them that only the watchdog noticed.
    pub hangs: u64,
    /// Checkpoints that became durable.
    pub checkpoints: u64,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Failure(Failure),
    /// A node is back.
    Repaired,
    /// The failure is noticed.
    Noticed,
    /// Training goes on.
    Restarted,
}

/// The one thing that a run that is down waits for, so that it can be taken back.
const DOWN: Key = Key::new(0);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Training,
    Unnoticed,
    WaitingForRepair,
    Starting,
}

struct Walk<'a> {
    run: &'a LongRun,
    queue: RadixQueue<Next>,
    state: State,
    since: u64,
    in_repair: u32,
    outcome: LongRunOutcome,
}

impl LongRun {
    /// Walks through the run with these failures, in the order of their times.
    ///
    /// # Panics
    /// If a failure is before the one that it follows.
    #[must_use]
    pub fn walk(&self, failures: impl IntoIterator<Item = Failure>) -> LongRunOutcome {
        let mut failures = failures.into_iter();
        let end = self.duration.nanoseconds();
        let mut walk = Walk {
            run: self,
            queue: RadixQueue::new(),
            state: State::Training,
            since: 0,
            in_repair: 0,
            outcome: LongRunOutcome::default(),
        };
        walk.await_failure(&mut failures);
        let mut instant = Vec::new();
        while walk.queue.next_time().is_some_and(|time| time < end) {
            let now = walk.queue.drain_instant(&mut instant).expect("an event was seen");
            // What ends in an instant ends before anything fails in it.
            instant.sort_by_key(|next| matches!(next, Next::Failure(_)));
            for next in instant.drain(..) {
                walk.take(now, next);
                if matches!(next, Next::Failure(_)) {
                    walk.await_failure(&mut failures);
                }
            }
        }
        walk.account(end, false);
        walk.outcome
    }
}

impl Walk<'_> {
    fn await_failure(&mut self, failures: &mut impl Iterator<Item = Failure>) {
        if let Some(failure) = failures.next() {
            self.queue.push(failure.at.nanoseconds(), Next::Failure(failure));
        }
    }

    fn take(&mut self, now: u64, next: Next) {
        match next {
            Next::Failure(failure) => self.fail(now, failure),
            Next::Repaired => {
                self.in_repair -= 1;
                if self.state == State::WaitingForRepair && self.in_repair <= self.run.spares {
                    self.enter(now, State::Starting);
                }
            }
            Next::Noticed if self.in_repair <= self.run.spares => self.enter(now, State::Starting),
            Next::Noticed => self.enter(now, State::WaitingForRepair),
            Next::Restarted => self.enter(now, State::Training),
        }
    }

    fn fail(&mut self, now: u64, failure: Failure) {
        self.outcome.failures += 1;
        if let Some(repair) = failure.repair {
            self.in_repair += 1;
            // Later than anything that is looked at is as good as never.
            self.queue.push(now.saturating_add(repair.nanoseconds()), Next::Repaired);
        }
        match self.state {
            State::Training | State::Starting => {
                self.outcome.stops += 1;
                self.outcome.hangs += u64::from(failure.hangs);
                self.account(now, true);
                self.state = State::Unnoticed;
                let delay = if failure.hangs { self.run.watchdog } else { self.run.detection };
                self.queue.schedule(DOWN, now.saturating_add(delay.nanoseconds()), Next::Noticed);
            }
            State::Unnoticed | State::WaitingForRepair => {}
        }
    }

    fn enter(&mut self, now: u64, state: State) {
        self.account(now, false);
        self.state = state;
        if state == State::Starting {
            let ready = now.saturating_add(self.run.restart.nanoseconds());
            self.queue.schedule(DOWN, ready, Next::Restarted);
        }
    }

    /// Books the time since the last change; `failed` if what is in no durable checkpoint is lost.
    fn account(&mut self, now: u64, failed: bool) {
        let elapsed = SimDuration::from_nanoseconds(now - self.since);
        self.since = now;
        let account = &mut self.outcome.account;
        match self.state {
            State::Training => {
                let progress = self.run.checkpointing.after(elapsed);
                let kept = self.run.checkpointing.training * progress.durable;
                let useful = if failed { kept } else { progress.trained };
                account.add(RunPart::Useful, useful);
                account.add(RunPart::LostWork, progress.trained - useful);
                account.add(RunPart::Checkpoint, elapsed - progress.trained);
                self.outcome.checkpoints += progress.durable;
            }
            State::Unnoticed => account.add(RunPart::Detection, elapsed),
            State::WaitingForRepair => account.add(RunPart::RepairWait, elapsed),
            State::Starting => account.add(RunPart::Restart, elapsed),
        }
    }
}

//! Where the time of a run of months goes.

use crate::SimDuration;

/// What elapsed time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RunPart {
    /// Training that stays.
    Useful,
    /// Training that stands still for a checkpoint.
    Checkpoint,
    /// Training that is done again, because what it gave was in no checkpoint.
    LostWork,
    /// A failure that nobody has noticed yet.
    Detection,
    /// From the notice to the first iteration: processes are started, the checkpoint is read.
    Restart,
    /// Too few nodes work, and no spare is left.
    RepairWait,
}

crate::named::named!(RunPart {
    Useful = "useful",
    Checkpoint = "checkpoint",
    LostWork = "lost work",
    Detection = "detection",
    Restart = "restart",
    RepairWait = "repair wait",
});

/// Elapsed time by what it was spent on. Adds up to all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunAccount {
    times: [SimDuration; RunPart::ALL.len()],
}

impl RunAccount {
    /// Time spent on a part.
    #[must_use]
    pub const fn of(&self, part: RunPart) -> SimDuration {
        self.times[part as usize]
    }
    /// Adds time spent on a part.
    pub fn add(&mut self, part: RunPart, time: SimDuration) {
        self.times[part as usize] += time;
    }
    /// All of it.
    #[must_use]
    pub fn total(&self) -> SimDuration {
        self.times.iter().copied().sum()
    }
    /// A part over all elapsed time; zero where no time passed.
    #[must_use]
    pub fn share(&self, part: RunPart) -> f64 {
        self.of(part).nanoseconds() as f64 / self.total().nanoseconds().max(1) as f64
    }
    /// Useful work over all elapsed time.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.share(RunPart::Useful)
    }
}

#[cfg(test)]
mod tests {
    use super::{RunAccount, RunPart};
    use crate::SimDuration;

    #[test]
    fn parts_add_up() {
        let mut account = RunAccount::default();
        assert!(account.goodput().abs() < 1e-12, "no time, no goodput");
        for (part, time) in [(RunPart::Useful, 6), (RunPart::Restart, 1), (RunPart::Useful, 3)] {
            account.add(part, SimDuration::from_nanoseconds(time));
        }
        assert_eq!(account.total(), SimDuration::from_nanoseconds(10));
        assert!((account.goodput() - 0.9).abs() < 1e-12 && (account.share(RunPart::Restart) - 0.1).abs() < 1e-12);
        assert!(RunPart::ALL.iter().enumerate().all(|(place, part)| *part as usize == place));
    }
}

//! Compute and exchanges of a device that slow each other while they are beside each other.
//!
//! Knows only work under way in slots: which roles it is of, whether it is compute or an exchange, and how far it is. A
//! slot of compute goes at its device's slowed rate while any exchange of its role is under way; an exchange goes at the
//! slowest rate that any of its roles with compute under way gives it. Rates change in the instants in which work starts
//! and ends, all changes of an instant at once; what was done before stays done.
//!
//! A flow that shares links is not settled here: its cap follows its rate, and the fabric settles the rest.

use cost::{Progress, Slowing};

/// Work under way; numbered from zero, numbers are used again.
pub(super) type Slot = u32;

#[derive(Clone, Debug)]
struct Work {
    /// Roles that it is of: of compute one, of an exchange those that take part.
    roles: Vec<u32>,
    is_compute: bool,
    progress: Progress,
    /// Whether its rate was never reported.
    is_new: bool,
}

/// A slot whose rate is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) slot: Slot,
    /// In millionths of what it is alone.
    pub(super) rate: u32,
    /// When it ends at that rate, if nothing but its rate stretches it.
    pub(super) end: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// By role.
    slowing: Vec<Slowing>,
    /// By role: slots of its work under way.
    of_role: Vec<Vec<Slot>>,
    work: Vec<Option<Work>>,
    free: Vec<Slot>,
    /// Roles of which something started or ended since the last update, each once.
    touched: Vec<u32>,
    changes: Vec<Change>,
}

impl Beside {
    /// Of roles on devices that slow so; `None` where nothing slows anything.
    pub(super) fn new(slowing: &[Slowing]) -> Option<Self> {
        let slows = slowing.iter().any(|slowing| !slowing.is_none());
        slows.then(|| Self { slowing: slowing.to_vec(), of_role: vec![Vec::new(); slowing.len()], ..Self::default() })
    }

    /// Starts work that takes `alone` nanoseconds at full rate.
    pub(super) fn start(&mut self, now: u64, roles: impl Iterator<Item = u32>, is_compute: bool, alone: u64) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.work.push(None);
            u32::try_from(self.work.len() - 1).expect("few things at once")
        });
        let mut roles: Vec<u32> = roles.collect();
        roles.sort_unstable();
        roles.dedup();
        for role in &roles {
            self.of_role[*role as usize].push(slot);
        }
        self.touch(&roles);
        self.work[slot as usize] = Some(Work { roles, is_compute, progress: Progress::new(now, alone), is_new: true });
        slot
    }

    /// Takes out work that has ended.
    pub(super) fn end(&mut self, slot: Slot) {
        let work = self.work[slot as usize].take().expect("work ends once");
        for role in &work.roles {
            self.of_role[*role as usize].retain(|other| *other != slot);
        }
        self.touch(&work.roles);
        self.free.push(slot);
    }

    fn touch(&mut self, roles: &[u32]) {
        for role in roles {
            if !self.touched.contains(role) {
                self.touched.push(*role);
            }
        }
    }

    fn is_under_way(&self, role: u32, compute: bool) -> bool {
        let of = |slot: &Slot| self.work[*slot as usize].as_ref().is_some_and(|work| work.is_compute == compute);
        self.of_role[role as usize].iter().any(of)
    }

    fn rate(&self, work: &Work) -> u32 {
        let of = |role: &u32| {
            let (slowing, beside) = (self.slowing[*role as usize], self.is_under_way(*role, !work.is_compute));
            if work.is_compute { slowing.compute(beside) } else { slowing.communication(beside) }
        };
        work.roles.iter().map(of).min().unwrap_or(Slowing::WHOLE)
    }

    /// Lets starts and ends of the instant take effect: slots whose rate is not what it was, new ones among them, each once.
    pub(super) fn update(&mut self, now: u64) -> &[Change] {
        self.changes.clear();
        for role in std::mem::take(&mut self.touched) {
            for at in 0..self.of_role[role as usize].len() {
                let slot = self.of_role[role as usize][at];
                let Some(work) = &self.work[slot as usize] else { continue };
                let rate = self.rate(work);
                let Some(work) = &mut self.work[slot as usize] else { continue };
                if work.is_new || work.progress.rate() != rate {
                    work.is_new = false;
                    work.progress.go_at(now, rate);
                    self.changes.push(Change { slot, rate, end: work.progress.end() });
                }
            }
        }
        &self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::{Beside, Slot, Slowing};
    use crate::swarm::{Dice, for_each_seed};

    /// Work of a random case: its roles, kind, length, and which of the roles' queues it stands in.
    #[derive(Clone, Debug)]
    struct Job {
        roles: Vec<u32>,
        is_compute: bool,
        alone: u64,
        /// It starts once this time has come and these jobs have ended.
        from: u64,
        after: Vec<usize>,
    }

    fn some_jobs(dice: &mut Dice, roles: u32) -> Vec<Job> {
        let mut computes: Vec<Option<usize>> = vec![None; roles as usize];
        (0..dice.index(12) + 1)
            .map(|number| {
                let is_compute = dice.one_in(2);
                let mut of: Vec<u32> = (0..roles).collect();
                dice.shuffle(&mut of);
                of.truncate(if is_compute { 1 } else { dice.index(of.len()) + 1 });
                let mut after: Vec<usize> = (0..number).filter(|_| dice.one_in(6)).collect();
                if is_compute {
                    // A device computes one thing at a time.
                    after.extend(computes[of[0] as usize].replace(number));
                }
                Job { roles: of, is_compute, alone: dice.within(1, 40), from: dice.below(30), after }
            })
            .collect()
    }

    /// Ends of jobs, from event to event.
    fn by_events(jobs: &[Job], slowing: &[Slowing]) -> Vec<u64> {
        let mut beside = Beside::new(slowing).expect("something slows something");
        let mut slots: Vec<Option<Slot>> = vec![None; jobs.len()];
        let mut ends: Vec<Option<u64>> = vec![None; jobs.len()];
        let mut due: Vec<(Slot, u64)> = Vec::new();
        let mut now = 0;
        while ends.contains(&None) {
            for (number, job) in jobs.iter().enumerate() {
                let free = job.from <= now && job.after.iter().all(|other| ends[*other].is_some());
                if slots[number].is_none() && free {
                    slots[number] = Some(beside.start(now, job.roles.iter().copied(), job.is_compute, job.alone));
                }
            }
            for change in beside.update(now) {
                due.retain(|(slot, _)| *slot != change.slot);
                due.push((change.slot, change.end));
            }
            let waiting = jobs.iter().enumerate().filter(|(number, job)| slots[*number].is_none() && job.from > now);
            let next = due.iter().map(|(_, end)| *end).chain(waiting.map(|(_, job)| job.from)).min();
            now = next.expect("a job is left");
            for number in 0..jobs.len() {
                let Some(slot) = slots[number].filter(|_| ends[number].is_none()) else { continue };
                if due.contains(&(slot, now)) {
                    ends[number] = Some(now);
                    due.retain(|(other, _)| *other != slot);
                    beside.end(slot);
                }
            }
        }
        ends.into_iter().flatten().collect()
    }

    /// The naive twin: a nanosecond at a time.
    fn by_steps(jobs: &[Job], slowing: &[Slowing]) -> Vec<u64> {
        let mut left: Vec<Option<u64>> = vec![None; jobs.len()];
        let mut ends: Vec<Option<u64>> = vec![None; jobs.len()];
        for now in 0..100_000 {
            for (number, job) in jobs.iter().enumerate() {
                if left[number] == Some(0) && ends[number].is_none() {
                    ends[number] = Some(now);
                }
                let free = job.from <= now && job.after.iter().all(|other| ends[*other].is_some());
                if left[number].is_none() && free {
                    left[number] = Some(job.alone * u64::from(Slowing::WHOLE));
                }
            }
            // Jobs are listed after those that they wait for, so that one sweep sees all that starts now.
            let busy = |role: u32, compute: bool| {
                let mut under_way = jobs.iter().zip(&left).filter(|(_, left)| left.is_some_and(|left| left > 0));
                under_way.any(|(job, _)| job.is_compute == compute && job.roles.contains(&role))
            };
            let rate = |job: &Job| {
                let rates = job.roles.iter().map(|role| {
                    let slowing = slowing[*role as usize];
                    let beside = busy(*role, !job.is_compute);
                    if job.is_compute { slowing.compute(beside) } else { slowing.communication(beside) }
                });
                u64::from(rates.min().unwrap())
            };
            let rates: Vec<u64> = jobs.iter().map(rate).collect();
            for (left, rate) in left.iter_mut().zip(rates) {
                *left = left.map(|left| left.saturating_sub(rate));
            }
            if ends.iter().all(Option::is_some) {
                break;
            }
        }
        ends.into_iter().map(|end| end.expect("every job ends")).collect()
    }

    #[test]
    fn work_goes_as_its_twin_that_steps_through_every_nanosecond() {
        for_each_seed(2000, |dice| {
            let roles = dice.count(1, 4);
            let factor = |dice: &mut Dice| 1.0 + dice.below(150) as f64 / 100.0;
            let slowing: Vec<Slowing> = (0..roles)
                .map(|role| Slowing::new(factor(dice) + f64::from(u8::from(role == 0)) / 100.0, factor(dice)))
                .collect();
            let jobs = some_jobs(dice, roles);
            let ends = by_events(&jobs, &slowing);
            assert_eq!(ends, by_steps(&jobs, &slowing), "{jobs:?} {slowing:?}");
            for (job, end) in jobs.iter().zip(&ends) {
                let start = job.after.iter().map(|other| ends[*other]).chain([job.from]).max().unwrap();
                let took = end - start;
                let slowest = slowing.iter().map(|s| s.compute(true).min(s.communication(true))).min().unwrap();
                let most = (u128::from(job.alone) * u128::from(Slowing::WHOLE)).div_ceil(u128::from(slowest));
                assert!(job.alone <= took && u128::from(took) <= most + 1, "{job:?}: {took} ns");
            }
        });
    }

    #[test]
    fn both_sides_slow_only_while_both_are_there() {
        let job = |is_compute, alone, from| Job { roles: vec![0], is_compute, alone, from, after: Vec::new() };
        let slowing = [Slowing::new(1.25, 2.0)];
        // Alone until 10; then 0.8 and 0.5, until the exchange ends at 30: compute has done 26 of 40.
        assert_eq!(by_events(&[job(true, 40, 0), job(false, 10, 10)], &slowing), [44, 30]);
        // One after the other: as long as alone.
        assert_eq!(by_events(&[job(true, 10, 0), job(false, 10, 10)], &slowing), [10, 20]);
        // Two exchanges at once slow compute no more than one does.
        assert_eq!(by_events(&[job(true, 8, 0), job(false, 9, 0), job(false, 9, 0)], &slowing), [10, 14, 14]);
        assert!(Beside::new(&[Slowing::NONE; 3]).is_none());
    }
}

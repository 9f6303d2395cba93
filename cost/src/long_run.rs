//! Runs of months: what checkpoints and failures leave of elapsed time, in closed form.
//!
//! Failures come as a Poisson process of rate `l` over elapsed time (every interval exponential with the mean `M = 1/l`). A
//! run trains for `t`, stands still for `b` while a checkpoint is taken, and trains on; an asynchronous checkpoint is durable
//! only `A` later. A failure is noticed after `D` (mean), and training resumes `R` after that from the last durable
//! checkpoint, unless it fails again meanwhile. The next checkpoint waits until the one before is durable, so one comes every
//! `P = max(t, A) + b`.
//!
//! By renewal at each resumption (Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps",
//! section 3, with the time to notice and durability beside):
//!
//! | part | share of elapsed time |
//! |---|---|
//! | up | `e^(-l R) / (1 + l D)` |
//! | useful | `l t e^(-l (t + b + A)) / (1 - e^(-l P))` of that |
//! | checkpoint | `(e^(-l t) (1 - e^(-l b)) + e^(-l (2t + b)) (1 - e^(-l (P - b - t)))) / (1 - e^(-l P))` of that |
//! | lost work | the rest of that |
//! | detection | `l D / (1 + l D)` |
//! | restart | `(1 - e^(-l R)) / (1 + l D)` |
//!
//! With `A = D = 0` the first two give Daly's `T = M e^(R/M) (e^((t + b)/M) - 1) T_s / t`.
//!
//! Nodes that fail are repaired, and the run needs all of its own: with `s` spares it waits while more than `s` are in
//! repair. That number is Poisson with the mean `l f r` (`f` the share of failures after which a node is repaired, `r` the
//! mean repair), whatever the distribution of repairs (Palm's theorem, the M/G/infinity queue); so the run can go on for the
//! share `P(N <= s)` of the time, in the long run. The table above holds for that share, which leaves out that a failure may
//! be noticed while a node is still missing.

use ir::{RunPart, SimDuration};

/// How a run takes checkpoints. Training between two is a whole number of iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpointing {
    /// Training from the end of one to the start of the next; more than nothing.
    pub training: SimDuration,
    /// For so long training stands still at each.
    pub blocked: SimDuration,
    /// For so long it is written beside training until it is durable; zero for one that is written while training stands.
    pub background: SimDuration,
}

/// What a run has after some time without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gained {
    /// Time spent training.
    pub trained: SimDuration,
    /// Checkpoints that are durable: each holds [`Checkpointing::training`] more than the one before.
    pub durable: u64,
}

impl Checkpointing {
    /// From one checkpoint to the next.
    #[must_use]
    pub fn period(&self) -> SimDuration {
        self.training.max(self.background) + self.blocked
    }

    /// What there is after so long, starting with training.
    #[must_use]
    pub fn after(&self, elapsed: SimDuration) -> Gained {
        let [elapsed, training, blocked, background, period] =
            [elapsed, self.training, self.blocked, self.background, self.period()].map(SimDuration::nanoseconds);
        assert!(training > 0, "checkpoints without training between them");
        // From the first checkpoint on, each period is a checkpoint, training, and what is left of writing.
        let trained = match elapsed.checked_sub(training) {
            None => elapsed,
            Some(since) => training * (1 + since / period) + (since % period).saturating_sub(blocked).min(training),
        };
        let durable = elapsed.checked_sub(training + blocked + background).map_or(0, |since| 1 + since / period);
        Gained { trained: SimDuration::from_nanoseconds(trained), durable }
    }
}

/// How a run fails and recovers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Failing {
    /// Failures of the nodes in use for each second; not negative.
    pub per_second: f64,
    /// From a failure until it is noticed, mean, seconds.
    pub detection_s: f64,
    /// From the notice to training, seconds.
    pub restart_s: f64,
    /// Share of failures after which a node is in repair, times the mean repair, seconds; zero where one is replaced at once.
    pub repair_s: f64,
    /// Nodes that stand by.
    pub spares: u32,
}

/// Shares of elapsed time that are expected in the long run; they sum up to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExpectedShares([f64; RunPart::ALL.len()]);

impl ExpectedShares {
    /// The share of a part.
    #[must_use]
    pub const fn of(&self, part: RunPart) -> f64 {
        self.0[part as usize]
    }
    /// Useful work over all elapsed time.
    #[must_use]
    pub const fn goodput(&self) -> f64 {
        self.of(RunPart::Useful)
    }
}

/// What is expected of elapsed time. The equations stand at the head of its module.
#[must_use]
pub fn expected_shares(checkpointing: &Checkpointing, failing: &Failing) -> ExpectedShares {
    let rate = failing.per_second;
    let (noticed, available) = (1.0 + rate * failing.detection_s, available(failing));
    let up = libm::exp(-rate * failing.restart_s) / noticed;
    let (useful, checkpoint) = of_uptime(checkpointing, rate);
    let mut shares = [0.0; RunPart::ALL.len()];
    let mut put = |part: RunPart, share: f64| shares[part as usize] = share;
    put(RunPart::Useful, useful * up * available);
    put(RunPart::Checkpoint, checkpoint * up * available);
    put(RunPart::LostWork, (1.0 - useful - checkpoint).max(0.0) * up * available);
    put(RunPart::Detection, rate * failing.detection_s / noticed * available);
    put(RunPart::Restart, -libm::expm1(-rate * failing.restart_s) / noticed * available);
    put(RunPart::RepairWait, 1.0 - available);
    ExpectedShares(shares)
}

/// Useful work and checkpoints over the time in which a run is up.
fn of_uptime(checkpointing: &Checkpointing, rate: f64) -> (f64, f64) {
    let [training, blocked, background, period] =
        [checkpointing.training, checkpointing.blocked, checkpointing.background, checkpointing.period()]
            .map(SimDuration::seconds);
    let waiting = (background - training).max(0.0);
    // What may happen before a period is over; in the limit of no failures each share is over the period.
    let fails = -libm::expm1(-rate * period);
    if fails < 1e-12 {
        return (training / period, (blocked + waiting) / period);
    }
    let useful = rate * training * libm::exp(-rate * (training + blocked + background)) / fails;
    let during = |begin: f64, length: f64| -libm::exp(-rate * begin) * libm::expm1(-rate * length) / fails;
    (useful, during(training, blocked) + during(2.0 * training + blocked, waiting))
}

/// Probability that no more nodes are in repair than stand by: Poisson with the mean `per_second x repair_s`.
fn available(failing: &Failing) -> f64 {
    let mean = failing.per_second * failing.repair_s;
    if mean <= 0.0 {
        return 1.0;
    }
    let (mut sum, mut log_factorial) = (0.0, 0.0);
    for count in 0..=failing.spares {
        let count = f64::from(count);
        log_factorial += libm::log(count.max(1.0));
        sum += libm::exp(count * libm::log(mean) - mean - log_factorial);
        // Beyond the mean each further count is less likely, and soon adds nothing.
        if count > mean && sum + libm::exp(count * libm::log(mean) - mean - log_factorial) <= sum {
            break;
        }
    }
    sum.min(1.0)
}

/// Young's interval of training between checkpoints, `sqrt(2 b M)` seconds, of the time that a checkpoint takes and the mean
/// time between failures, both in seconds (Young 1974, "A first order approximation to the optimum checkpoint interval").
#[must_use]
pub fn young_interval_s(checkpoint_s: f64, mtbf_s: f64) -> f64 {
    libm::sqrt(2.0 * checkpoint_s * mtbf_s)
}

/// Daly's interval of training between checkpoints, seconds (Daly 2006, equation 37): Young's with two terms more, less the
/// checkpoint; the mean time between failures where a checkpoint takes twice that or longer.
#[must_use]
pub fn daly_interval_s(checkpoint_s: f64, mtbf_s: f64) -> f64 {
    if checkpoint_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = checkpoint_s / (2.0 * mtbf_s);
    young_interval_s(checkpoint_s, mtbf_s) * (1.0 + libm::sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s
}

/// Training between checkpoints at which the expected goodput is highest, seconds: where `e^(x + l b) (1 - x) = 1` with
/// `x = l t`, found by bisection; at least as long as writing goes on beside it. `None` without failures: then the best is
/// to take no checkpoint.
#[must_use]
pub fn best_interval_s(blocked_s: f64, background_s: f64, per_second: f64) -> Option<f64> {
    if per_second <= 0.0 {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        // Decreasing in `middle`, zero at the best.
        if per_second * blocked_s + middle + libm::log1p(-middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((0.5 * (low + high) / per_second).max(background_s))
}

/// The whole number of iterations between checkpoints, at least 1, whose expected goodput is highest; `None` without
/// failures.
#[must_use]
pub fn best_iterations(
    iteration: SimDuration,
    blocked: SimDuration,
    background: SimDuration,
    failing: &Failing,
) -> Option<u64> {
    let best = best_interval_s(blocked.seconds(), background.seconds(), failing.per_second)?;
    // Few enough that times stay far inside 64 bits: thirty years.
    let most = 1_000_000_000_000_000_000 / iteration.nanoseconds().max(1);
    let goodput = |count: u64| {
        let training = SimDuration::from_nanoseconds(iteration.nanoseconds().max(1) * count);
        expected_shares(&Checkpointing { training, blocked, background }, failing).goodput()
    };
    let below = whole(best / iteration.seconds().max(1e-9)).min(most.max(2) - 1);
    Some(if goodput(below + 1) > goodput(below) { below + 1 } else { below })
}

/// The whole part of a number of iterations, at least 1.
fn whole(count: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held inside the range first")]
    let whole = count.clamp(1.0, 1e18) as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> SimDuration {
        SimDuration::from_seconds(seconds).expect("a time")
    }
    fn checkpointing(training: f64, blocked: f64, background: f64) -> Checkpointing {
        let [training, blocked, background] = [training, blocked, background].map(seconds);
        Checkpointing { training, blocked, background }
    }
    fn failing(mtbf_s: f64, detection_s: f64, restart_s: f64) -> Failing {
        Failing { per_second: 1.0 / mtbf_s, detection_s, restart_s, repair_s: 0.0, spares: 0 }
    }

    /// Daly's equation 13: `T = M e^(R/M) (e^((t + b)/M) - 1) T_s / t`.
    #[test]
    fn without_delays_it_is_dalys() {
        for (training, blocked, mtbf, restart) in
            [(900.0, 40.0, 10_800.0, 600.0), (3600.0, 200.0, 3600.0, 60.0), (30.0, 1.0, 86_400.0, 1800.0)]
        {
            let shares = expected_shares(&checkpointing(training, blocked, 0.0), &failing(mtbf, 0.0, restart));
            let dalys = mtbf * libm::exp(restart / mtbf) * libm::expm1((training + blocked) / mtbf) / training;
            assert!((shares.goodput() * dalys - 1.0).abs() < 1e-12, "{shares:?} against {dalys}");
        }
    }

    #[test]
    fn shares_sum_up_whatever_happens() {
        let times = [1e-6, 1.0, 40.0, 1800.0, 1e5, 3e7];
        for training in times {
            for (blocked, background) in [(0.0, 0.0), (40.0, 0.0), (3.0, 200.0), (0.0, 1e6)] {
                for mtbf in [1e-3, 10.0, 1e4, 1e12, f64::INFINITY] {
                    for (repair_s, spares) in [(0.0, 0), (86_400.0, 0), (86_400.0, 4), (1e7, 2000)] {
                        let failing = Failing { repair_s, spares, ..failing(mtbf, 30.0, 600.0) };
                        let shares = expected_shares(&checkpointing(training, blocked, background), &failing);
                        let sum: f64 = RunPart::ALL.map(|part| shares.of(part)).iter().sum();
                        assert!((sum - 1.0).abs() < 1e-9, "{training} {blocked} {background} {failing:?}: {shares:?}");
                        let inside = RunPart::ALL.iter().all(|part| (0.0..=1.0).contains(&shares.of(*part)));
                        assert!(inside, "{training} {blocked} {background} {failing:?}: {shares:?}");
                    }
                }
            }
        }
    }

    /// BLOOM-176B: 40 s every 3 h are 0.37 %; with storage five times slower 1.85 %. Intervals of Young: 15 and 35 minutes.
    #[test]
    fn the_figures_of_guides() {
        let never = Failing { per_second: 0.0, ..failing(1.0, 0.0, 0.0) };
        for (write, percent, minutes) in [(40.0, 0.37, 15.0), (200.0, 1.85, 35.0)] {
            let shares = expected_shares(&checkpointing(10_800.0 - write, write, 0.0), &never);
            let share = 100.0 * shares.of(RunPart::Checkpoint);
            assert!((share - percent).abs() < 0.005, "{share} %");
            assert!((young_interval_s(write, 10_800.0) / 60.0 - minutes).abs() < 0.6);
        }
    }

    /// Young's and Daly's intervals approach the best as checkpoints get short; none is better than the best.
    #[test]
    fn the_best_interval_is_the_best() {
        for mtbf in [600.0, 10_800.0, 1e6] {
            for ratio in [1e-6, 1e-4, 1e-2, 0.1, 1.0, 10.0] {
                let blocked = mtbf * ratio;
                let failing = failing(mtbf, 30.0, 600.0);
                let best = best_interval_s(blocked, 0.0, failing.per_second).expect("failures");
                let goodput =
                    |training: f64| expected_shares(&checkpointing(training, blocked, 0.0), &failing).goodput();
                for other in [0.5, 0.9, 0.99, 1.01, 1.1, 2.0] {
                    assert!(goodput(best) > goodput(best * other), "{mtbf} {ratio} {other}");
                }
                let (young, daly) = (young_interval_s(blocked, mtbf), daly_interval_s(blocked, mtbf));
                assert!(goodput(young) <= goodput(best) && goodput(daly) <= goodput(best));
                if ratio <= 1e-2 {
                    assert!((daly / best - 1.0).abs() < 1e-3, "{daly} {best}");
                    // Young's is the root of the first term: longer by about half of the ratio of the two times.
                    assert!((young / best - 1.0).abs() < 0.6 * young / mtbf, "{young} {best}");
                }
                let of_writing = best_interval_s(blocked, best * 2.0, failing.per_second).expect("failures");
                assert!((of_writing / best - 2.0).abs() < 1e-9, "no checkpoint before the last one is durable");
            }
        }
        assert_eq!(best_interval_s(40.0, 0.0, 0.0), None);
    }

    #[test]
    fn the_best_is_a_whole_number_of_iterations() {
        let failing = failing(10_800.0, 0.0, 600.0);
        for iteration in [1e-6, 0.7, 60.0, 800.0, 1e5, 4e9] {
            let count =
                best_iterations(seconds(iteration), seconds(40.0), SimDuration::ZERO, &failing).expect("failures");
            let goodput =
                |count: u64| expected_shares(&checkpointing(iteration * count as f64, 40.0, 0.0), &failing).goodput();
            assert!(count >= 1 && goodput(count) >= goodput(count + 1), "{iteration}: {count}");
            assert!(count == 1 || goodput(count) >= goodput(count - 1), "{iteration}: {count}");
        }
    }

    /// A stretch of time without failures, counted nanosecond by nanosecond.
    #[test]
    fn progress_is_what_counting_gives() {
        for training in 1..5 {
            for (blocked, background) in [(0, 0), (2, 0), (1, 3), (0, 9), (3, 1), (2, 7)] {
                let times = [training, blocked, background].map(SimDuration::from_nanoseconds);
                let rhythm = Checkpointing { training: times[0], blocked: times[1], background: times[2] };
                let (mut trained, mut durable, mut here, mut writing, mut standing) = (0, 0, 0, Vec::new(), 0);
                for now in 0..100 {
                    durable += writing.iter().filter(|end| **end == now).count() as u64;
                    writing.retain(|end| *end > now);
                    if here == training && writing.is_empty() && standing == 0 {
                        (here, standing) = (0, blocked);
                        writing.push(now + blocked + background);
                        durable += writing.iter().filter(|end| **end == now).count() as u64;
                        writing.retain(|end| *end > now);
                    }
                    let found = rhythm.after(SimDuration::from_nanoseconds(now));
                    assert_eq!((found.trained.nanoseconds(), found.durable), (trained, durable), "{rhythm:?} at {now}");
                    if standing > 0 {
                        standing -= 1;
                    } else if here < training {
                        here += 1;
                        trained += 1;
                    }
                }
            }
        }
    }

    /// The share of time with at most so many nodes in repair, from the tables of the Poisson distribution.
    #[test]
    fn spares_cover_what_a_poisson_table_says() {
        let check = |mean: f64, spares: u32, expect: f64| {
            let failing = Failing { repair_s: mean * 100.0, spares, ..failing(100.0, 0.0, 0.0) };
            assert!((available(&failing) - expect).abs() < 5e-5, "{mean} {spares}: {}", available(&failing));
        };
        check(1.0, 0, 0.3679);
        check(1.0, 3, 0.9810);
        check(5.0, 5, 0.6160);
        check(5.0, 10, 0.9863);
        check(2000.0, 2000, 0.5059);
        check(1e6, 0, 0.0);
    }
}

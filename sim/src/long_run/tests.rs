use cost::{Checkpointing, Failing, expected_shares};
use ir::{RunAccount, RunPart, SimDuration, SimTime};

use super::{Failure, FailureProcess, LongRun, LongRunOutcome, RepairTime};
use crate::swarm::{Dice, for_each_seed};

fn ns(nanoseconds: u64) -> SimDuration {
    SimDuration::from_nanoseconds(nanoseconds)
}
fn seconds(seconds: f64) -> SimDuration {
    SimDuration::from_seconds(seconds).expect("a time")
}

/// The same run nanosecond by nanosecond, by another way: what is in no checkpoint is kept apart until it is.
fn naive(run: &LongRun, failures: &[Failure]) -> LongRunOutcome {
    let Checkpointing { training, blocked, background } = run.checkpointing;
    let mut outcome = LongRunOutcome::default();
    let (mut useful, mut unsaved, mut lost, mut standing) = (0, 0, 0, 0);
    let (mut here, mut block_left) = (0, 0);
    // What is written: when it is durable.
    let mut writing: Option<u64> = None;
    let mut repairs: Vec<u64> = Vec::new();
    let (mut noticed, mut ready): (Option<u64>, Option<u64>) = (None, None);
    let mut waits = false;
    let (mut detection, mut restart, mut repair_wait) = (0, 0, 0);
    let save = |writing: &mut Option<u64>, unsaved: &mut u64, useful: &mut u64, count: &mut u64, now: u64| {
        if *writing == Some(now) {
            *writing = None;
            *unsaved -= training.nanoseconds();
            *useful += training.nanoseconds();
            *count += 1;
        }
    };
    for now in 0..run.duration.nanoseconds() {
        repairs.retain(|back| *back > now);
        let whole = repairs.len() <= run.spares as usize;
        if ready == Some(now) {
            ready = None;
        }
        if (noticed == Some(now) || waits) && whole {
            (noticed, waits, ready) = (None, false, Some(now + run.restart.nanoseconds()));
        } else if noticed == Some(now) {
            (noticed, waits) = (None, true);
        }
        let up = noticed.is_none() && !waits && ready.is_none();
        if up {
            save(&mut writing, &mut unsaved, &mut useful, &mut outcome.checkpoints, now);
            if here == training.nanoseconds() && writing.is_none() && block_left == 0 {
                (here, block_left) = (0, blocked.nanoseconds());
                writing = Some(now + (blocked + background).nanoseconds());
                save(&mut writing, &mut unsaved, &mut useful, &mut outcome.checkpoints, now);
            }
        }
        for failure in failures.iter().filter(|failure| failure.at.nanoseconds() == now) {
            outcome.failures += 1;
            repairs.extend(failure.repair.map(|time| now + time.nanoseconds()));
            if noticed.is_none() && !waits {
                outcome.stops += 1;
                outcome.hangs += u64::from(failure.hangs);
                lost += unsaved;
                (unsaved, here, block_left, writing, ready) = (0, 0, 0, None, None);
                let delay = if failure.hangs { run.watchdog } else { run.detection };
                noticed = Some(now + delay.nanoseconds());
            }
        }
        match () {
            () if noticed.is_some() => detection += 1,
            () if waits => repair_wait += 1,
            () if ready.is_some() => restart += 1,
            () if block_left > 0 => (block_left, standing) = (block_left - 1, standing + 1),
            () if here < training.nanoseconds() => (here, unsaved) = (here + 1, unsaved + 1),
            () => standing += 1,
        }
    }
    // What becomes durable in the very moment of the end.
    if noticed.is_none() && !waits && ready.is_none() {
        let end = run.duration.nanoseconds();
        save(&mut writing, &mut unsaved, &mut useful, &mut outcome.checkpoints, end);
        if here == training.nanoseconds() && block_left == 0 && (blocked + background) == SimDuration::ZERO {
            outcome.checkpoints += 1;
        }
    }
    let parts = [useful + unsaved, standing, lost, detection, restart, repair_wait];
    RunPart::ALL.into_iter().zip(parts).for_each(|(part, time)| outcome.account.add(part, ns(time)));
    outcome
}

fn random_run(dice: &mut Dice) -> (LongRun, Vec<Failure>) {
    let background = if dice.one_in(2) { 0 } else { dice.within(1, 20) };
    let checkpointing =
        Checkpointing { training: ns(dice.within(1, 12)), blocked: ns(dice.within(0, 4)), background: ns(background) };
    let run = LongRun {
        checkpointing,
        detection: ns(dice.within(1, 5)),
        watchdog: ns(dice.within(1, 30)),
        restart: ns(dice.within(1, 15)),
        spares: dice.count(0, 2),
        duration: ns(dice.within(1, 400)),
    };
    let mut failures = Vec::new();
    let mut now = dice.within(0, 60);
    while now < 450 {
        let repair = dice.one_in(2).then(|| ns(dice.within(1, 120)));
        failures.push(Failure { at: SimTime::from_nanoseconds(now), hangs: dice.one_in(3), repair });
        now += dice.within(0, 60);
    }
    (run, failures)
}

#[test]
fn a_run_is_what_counting_gives() {
    for_each_seed(5_000, |dice| {
        let (run, failures) = random_run(dice);
        let (found, counted) = (run.walk(failures.iter().copied()), naive(&run, &failures));
        assert_eq!(found, counted, "{run:?}\n{failures:?}");
        assert_eq!(found.account.total(), run.duration, "{run:?}");
    });
}

/// 256 devices that hang: each waits 1800 s for the watchdog, which is 128 device-hours.
#[test]
fn a_hang_costs_the_watchdog_the_restart_and_what_was_not_saved() {
    let hour = 3600.0;
    let checkpointing =
        Checkpointing { training: seconds(hour), blocked: SimDuration::ZERO, background: SimDuration::ZERO };
    let run = LongRun {
        checkpointing,
        detection: seconds(10.0),
        watchdog: seconds(1800.0),
        restart: seconds(300.0),
        spares: 0,
        duration: seconds(24.0 * hour),
    };
    let at = |hours: f64, hangs| Failure { at: SimTime::ZERO + seconds(hours * hour), hangs, repair: None };
    let of = |failures: &[Failure]| run.walk(failures.iter().copied()).account;
    let hang = of(&[at(5.25, true)]);
    assert_eq!(hang.of(RunPart::Detection), seconds(1800.0));
    assert_eq!((hang.of(RunPart::Restart), hang.of(RunPart::LostWork)), (seconds(300.0), seconds(0.25 * hour)));
    assert_eq!(hang.of(RunPart::Useful), seconds(24.0 * hour - 1800.0 - 300.0 - 900.0));
    assert!((256.0 * hang.of(RunPart::Detection).seconds() / hour - 128.0).abs() < 1e-9);
    let crash = of(&[at(5.25, false), at(7.0, false)]);
    assert_eq!(crash.of(RunPart::Detection), seconds(20.0));
    assert_eq!(of(&[]).of(RunPart::Useful), run.duration);
}

fn mean_shares(run: &LongRun, process: FailureProcess, runs: u64) -> ([f64; 6], [f64; 6]) {
    let (mut sums, mut squares) = ([0.0; 6], [0.0; 6]);
    for index in 0..runs {
        let account: RunAccount = run.walk(process.draw(7, index)).account;
        assert_eq!(account.total(), run.duration);
        for (place, part) in RunPart::ALL.into_iter().enumerate() {
            let share = account.share(part);
            sums[place] += share;
            squares[place] += share * share;
        }
    }
    let count = runs as f64;
    let mean = sums.map(|sum| sum / count);
    let error = std::array::from_fn(|place: usize| {
        ((squares[place] / count - mean[place] * mean[place]).max(0.0) / count).sqrt()
    });
    (mean, error)
}

/// The closed form is the mean of many runs: within four standard errors, and what the two ends of a run are off.
#[test]
fn the_closed_form_is_the_mean_of_many_runs() {
    let check = |rhythm: [f64; 3], mtbf: f64, detection: f64, restart: f64, hang_share: f64| {
        let [training, blocked, background] = rhythm.map(seconds);
        let run = LongRun {
            checkpointing: Checkpointing { training, blocked, background },
            detection: seconds(detection),
            watchdog: seconds(1800.0),
            restart: seconds(restart),
            spares: 0,
            duration: seconds(mtbf * 1000.0),
        };
        let process = FailureProcess { per_second: 1.0 / mtbf, hang_share, repair: None };
        let (mean, error) = mean_shares(&run, process, 60);
        let detection_s = hang_share * 1800.0 + (1.0 - hang_share) * detection;
        let failing = Failing { per_second: 1.0 / mtbf, detection_s, restart_s: restart, repair_s: 0.0, spares: 0 };
        let expected = expected_shares(&run.checkpointing, &failing);
        for (place, part) in RunPart::ALL.into_iter().enumerate() {
            let off = (mean[place] - expected.of(part)).abs();
            assert!(off < 4.0 * error[place] + 1e-3, "{rhythm:?} {mtbf} {part:?}: {mean:?} {expected:?} {error:?}");
        }
    };
    check([929.0, 40.0, 0.0], 10_800.0, 10.0, 600.0, 0.0);
    check([929.0, 40.0, 0.0], 10_800.0, 10.0, 600.0, 1.0);
    check([3600.0, 5.0, 200.0], 10_800.0, 30.0, 300.0, 0.3);
    check([100.0, 5.0, 300.0], 5_000.0, 30.0, 300.0, 0.3);
    check([5000.0, 900.0, 0.0], 3_000.0, 1.0, 3000.0, 0.1);
}

/// With too few spares a run waits as long as the queue without limits says, whatever the distribution of repairs.
#[test]
fn waits_for_repair_are_those_of_the_queue() {
    let day = 86_400.0;
    for (time, spares) in [
        (RepairTime::Fixed(seconds(day)), 1),
        (RepairTime::Fixed(seconds(day)), 4),
        (RepairTime::LogNormal { median: seconds(0.4 * day), mean: seconds(day) }, 2),
    ] {
        let (mtbf, share) = (0.4 * day, 0.8);
        let run = LongRun {
            checkpointing: Checkpointing {
                training: seconds(600.0),
                blocked: seconds(5.0),
                background: SimDuration::ZERO,
            },
            detection: seconds(10.0),
            watchdog: seconds(600.0),
            restart: seconds(300.0),
            spares,
            duration: seconds(2000.0 * day),
        };
        let process = FailureProcess { per_second: 1.0 / mtbf, hang_share: 0.0, repair: Some((share, time)) };
        let (mean, _) = mean_shares(&run, process, 20);
        let repair_s = share * time.mean().seconds();
        let failing = Failing { per_second: 1.0 / mtbf, detection_s: 10.0, restart_s: 300.0, repair_s, spares };
        let expected = expected_shares(&run.checkpointing, &failing);
        for (place, part) in RunPart::ALL.into_iter().enumerate() {
            let off = (mean[place] - expected.of(part)).abs();
            assert!(off < 0.012, "{time:?} {spares} {part:?}: {mean:?} {expected:?}");
        }
    }
}

/// Young's interval is where the simulated goodput is highest: no other is better by more than a tenth of a percent, and
/// half or twice of it is worse.
#[test]
fn the_simulated_optimum_is_youngs() {
    for (write, mtbf) in [(40.0, 10_800.0), (200.0, 10_800.0), (10.0, 86_400.0)] {
        let process = FailureProcess { per_second: 1.0 / mtbf, hang_share: 0.0, repair: None };
        let young = cost::young_interval_s(write, mtbf);
        let goodput = |factor: f64| {
            let run = LongRun {
                checkpointing: Checkpointing {
                    training: seconds(young * factor),
                    blocked: seconds(write),
                    background: SimDuration::ZERO,
                },
                detection: seconds(10.0),
                watchdog: seconds(600.0),
                restart: seconds(300.0),
                spares: 0,
                duration: seconds(mtbf * 500.0),
            };
            mean_shares(&run, process, 30).0[RunPart::Useful as usize]
        };
        let best = goodput(1.0);
        for factor in [0.7, 0.85, 0.95, 1.05, 1.15, 1.3] {
            assert!(goodput(factor) < best + 1e-3, "{write} {mtbf} {factor}");
        }
        assert!(goodput(0.5) < best && goodput(2.0) < best, "{write} {mtbf}");
    }
}

#[test]
fn failures_are_those_of_their_seed_and_rates() {
    let day = 86_400.0;
    let repair = RepairTime::LogNormal { median: seconds(0.85 * day), mean: seconds(5.54 * day) };
    let process = FailureProcess { per_second: 1.0 / 3600.0, hang_share: 0.25, repair: Some((0.5, repair)) };
    let draw = |seed, run| process.draw(seed, run).take(20_000).collect::<Vec<_>>();
    let failures = draw(1, 0);
    assert_eq!(failures, draw(1, 0));
    assert!(failures != draw(1, 1) && failures != draw(2, 0));
    let count = failures.len() as f64;
    let near = |found: f64, expect: f64, tolerance: f64| {
        assert!((found / expect - 1.0).abs() < tolerance, "{found} is not {expect}");
    };
    near(failures[19_999].at.seconds() / count, 3600.0, 0.03);
    near(failures.iter().filter(|failure| failure.hangs).count() as f64 / count, 0.25, 0.05);
    let mut repairs: Vec<f64> = failures.iter().filter_map(|f| f.repair).map(|time| time.seconds() / day).collect();
    near(repairs.len() as f64 / count, 0.5, 0.05);
    repairs.sort_by(f64::total_cmp);
    near(repairs[repairs.len() / 2], 0.85, 0.08);
    near(repairs.iter().sum::<f64>() / repairs.len() as f64, 5.54, 0.2);
    // Other shares leave the times of failures as they are.
    let other = FailureProcess { hang_share: 0.9, ..process }.draw(1, 0).take(100).map(|f| f.at).collect::<Vec<_>>();
    assert_eq!(other, failures[..100].iter().map(|f| f.at).collect::<Vec<_>>());
    // Without failures there are none.
    let never = FailureProcess { per_second: 0.0, hang_share: 0.0, repair: None };
    assert_eq!(never.draw(1, 0).next(), None);
}

//! A run of months of a plan: `[checkpoint]` and `[failures]` of a scenario, with the plan's state and iteration.

use std::collections::{BTreeMap, BTreeSet};

use cost::{Checkpointing, ExpectedShares, Failing};
use ir::{Bytes, BytesPerSecond, Plan, Problem, Rank, RunPart, SimDuration};
use reports::long_run::{CheckpointSummary, IntervalPoint, LongRunPart, LongRunSummary, StopCost};
use reports::show;
use reports::sizing::Interval;
use sim::long_run::{FailureProcess, LongRun, LongRunOutcome};

use crate::scenario::{CheckpointChoice, CheckpointInterval, CheckpointStorage, FailureChoice, Scenario};

/// Runs at each interval of the curve: enough for a median.
const RUNS_OF_A_POINT: u32 = 40;
/// Without failures nothing is drawn; the length of the run then changes no share.
const DURATION: SimDuration = SimDuration::from_nanoseconds(30 * 86_400_000_000_000);
/// Longer than any run.
const LONGEST: SimDuration = SimDuration::from_nanoseconds(20 * 365 * 86_400_000_000_000);

/// A scenario's long run with every number that depends on the plan.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    choice: CheckpointChoice,
    failures: Option<FailureChoice>,
    seed: u64,
    iteration: SimDuration,
    /// Nodes and devices of the plan.
    nodes: u64,
    devices: u64,
    bytes: Bytes,
    blocked: SimDuration,
    background: SimDuration,
    read: SimDuration,
    /// Iterations between checkpoints.
    iterations: u64,
    failing: Failing,
}

impl Setting {
    /// The setting of a plan with an iteration of so long; `None` if the scenario takes no checkpoints.
    ///
    /// # Errors
    /// If a checkpoint takes longer than the interval, or than anybody waits.
    pub(crate) fn of(scenario: &Scenario, plan: &Plan, iteration: SimDuration) -> Result<Option<Self>, Problem> {
        let Some(choice) = scenario.checkpoint else { return Ok(None) };
        let iteration = iteration.max(SimDuration::from_nanoseconds(1));
        let devices = plan.world();
        let nodes = nodes(scenario, plan);
        let bytes = choice.size.unwrap_or_else(|| cost::checkpoint_bytes(&scenario.model, &scenario.workload, plan));
        let (write, read) = storage_times(&choice, bytes, nodes)?;
        let (blocked, background) = if choice.asynchronous {
            (copy_time(scenario, &choice, bytes, devices)?, write)
        } else {
            (write, SimDuration::ZERO)
        };
        let failing = scenario.failures.map_or(
            Failing { per_second: 0.0, detection_s: 0.0, restart_s: 0.0, repair_s: 0.0, spares: 0 },
            |failures| failing(&failures, nodes, devices, read),
        );
        let mut setting = Self {
            choice,
            failures: scenario.failures,
            seed: scenario.workload.seed,
            iteration,
            nodes,
            devices,
            bytes,
            blocked,
            background,
            read,
            iterations: 1,
            failing,
        };
        setting.iterations = match choice.interval {
            CheckpointInterval::Best => setting.best().unwrap_or(1),
            CheckpointInterval::Every(interval) => setting.between(interval)?,
        };
        Ok(Some(setting))
    }

    /// Shares of elapsed time in the long run.
    pub(crate) fn expected(&self) -> ExpectedShares {
        cost::expected_shares(&self.checkpointing(self.iterations), &self.failing)
    }

    /// Nodes that stand by, over those in use.
    pub(crate) fn spare_share(&self) -> f64 {
        f64::from(self.failing.spares) / self.nodes as f64
    }

    /// From the start of one checkpoint to the start of the next.
    pub(crate) fn interval(&self) -> SimDuration {
        self.checkpointing(self.iterations).period()
    }

    /// Nodes that stand by.
    pub(crate) const fn spares(&self) -> u32 {
        self.failing.spares
    }

    fn checkpointing(&self, iterations: u64) -> Checkpointing {
        let training = SimDuration::from_nanoseconds(self.iteration.nanoseconds().saturating_mul(iterations));
        Checkpointing { training: training.min(LONGEST), blocked: self.blocked, background: self.background }
    }

    fn best(&self) -> Option<u64> {
        cost::best_iterations(self.iteration, self.blocked, self.background, &self.failing)
    }

    /// Iterations between checkpoints that begin once in an interval: the nearest whole number, at least one.
    fn between(&self, interval: SimDuration) -> Result<u64, Problem> {
        if interval <= self.blocked {
            let message = format!(
                "training stands still for {} at each checkpoint, which is no shorter",
                show::seconds(self.blocked.seconds())
            );
            let hint = match self.best() {
                Some(best) => {
                    let best = self.checkpointing(best).period();
                    format!("at least longer than that; the best is {}", show::seconds(best.seconds()))
                }
                None => "longer than that, faster storage, or asynchronous = true".to_owned(),
            };
            return Err(Problem::new("checkpoint.interval", message).hint(hint));
        }
        let (training, iteration) = ((interval - self.blocked).nanoseconds(), self.iteration.nanoseconds());
        Ok(((training + iteration / 2) / iteration).max(1))
    }

    fn run(&self, iterations: u64) -> LongRun {
        let failures = self.failures;
        let time = |of: fn(&FailureChoice) -> SimDuration| failures.as_ref().map_or(SimDuration::ZERO, of);
        LongRun {
            checkpointing: self.checkpointing(iterations),
            detection: time(|failures| failures.detection),
            watchdog: time(|failures| failures.watchdog),
            restart: time(|failures| failures.restart) + self.read,
            spares: self.failing.spares,
            duration: self.failures.map_or(DURATION, |failures| failures.duration),
        }
    }

    /// What becomes of runs, in their order.
    fn outcomes(&self, iterations: u64, runs: u32) -> Vec<LongRunOutcome> {
        let run = self.run(iterations);
        let process = FailureProcess {
            per_second: self.failing.per_second,
            hang_share: self.failures.map_or(0.0, |failures| failures.hang_share),
            repair: self.failures.and_then(|failures| Some((failures.repair_share, failures.repair?))),
        };
        (0..runs).map(|number| run.walk(process.draw(self.seed, u64::from(number)))).collect()
    }
}

/// Nodes that hold a device of the plan.
fn nodes(scenario: &Scenario, plan: &Plan) -> u64 {
    let cluster = &scenario.cluster;
    if plan.world() == cluster.devices() {
        return cluster.nodes();
    }
    let ranks = (0..u32::try_from(plan.world()).unwrap_or(u32::MAX)).map(Rank::new);
    let nodes: BTreeSet<u32> = ranks.map(|rank| cluster.place(plan.device(rank)).node.raw()).collect();
    nodes.len() as u64
}

fn failing(failures: &FailureChoice, nodes: u64, devices: u64, read: SimDuration) -> Failing {
    let share = failures.hang_share;
    Failing {
        per_second: failures.rate.per_second(nodes, devices),
        detection_s: share * failures.watchdog.seconds() + (1.0 - share) * failures.detection.seconds(),
        restart_s: (failures.restart + read).seconds(),
        repair_s: failures.repair.map_or(0.0, |repair| failures.repair_share * repair.mean().seconds()),
        spares: failures.spares,
    }
}

/// Time to write a checkpoint and to read it.
fn storage_times(choice: &CheckpointChoice, bytes: Bytes, nodes: u64) -> Result<(SimDuration, SimDuration), Problem> {
    match choice.storage {
        CheckpointStorage::Times { write, read } => Ok((write, read)),
        CheckpointStorage::Bandwidths { shared, node, read } => {
            let nodes = node.and_then(|node| node.scaled(nodes as f64));
            let slower = |a: Option<BytesPerSecond>, b: Option<BytesPerSecond>| match (a, b) {
                (Some(a), Some(b)) => Some(if a < b { a } else { b }),
                (a, b) => a.or(b),
            };
            let write = slower(shared, nodes);
            let of = |key: &str, rate: Option<BytesPerSecond>| {
                let rate = rate.ok_or_else(|| Problem::new(format!("checkpoint.{key}"), "is missing"))?;
                within(key, bytes, rate)
            };
            let key = if shared.is_some() { "bandwidth" } else { "node_bandwidth" };
            Ok((of(key, write)?, of("read_bandwidth", slower(read.or(shared), nodes))?))
        }
    }
}

fn within(key: &str, bytes: Bytes, rate: BytesPerSecond) -> Result<SimDuration, Problem> {
    cost::transfer_time(bytes, rate).filter(|time| *time <= LONGEST).ok_or_else(|| {
        let message = format!("{} at {rate} take longer than twenty years", show::with_prefix(bytes.get() as f64, "B"));
        Problem::new(format!("checkpoint.{key}"), message).hint("such as \"60GB/s\"")
    })
}

/// Time in which each device copies its part of a checkpoint to host memory.
fn copy_time(
    scenario: &Scenario,
    choice: &CheckpointChoice,
    bytes: Bytes,
    devices: u64,
) -> Result<SimDuration, Problem> {
    let of_link = |link: &ir::Link| link.bandwidth.scaled(link.efficiency.unwrap_or(1.0)).unwrap_or(link.bandwidth);
    let links = scenario.cluster.node_kinds.iter().map(|kind| of_link(&kind.host_link));
    let slowest = links.reduce(|a, b| if a < b { a } else { b });
    let rate = choice.copy_bandwidth.or(slowest).expect("a cluster has nodes");
    within("copy_bandwidth", Bytes::new(bytes.get().div_ceil(devices.max(1))), rate)
}

/// The summary of a scenario's long run with a plan; `None` if the scenario takes no checkpoints.
///
/// # Errors
/// As [`Setting::of`].
pub(crate) fn summary(
    scenario: &Scenario,
    plan: &Plan,
    iteration: SimDuration,
) -> Result<Option<LongRunSummary>, Problem> {
    let Some(setting) = Setting::of(scenario, plan, iteration)? else { return Ok(None) };
    let runs = setting.failures.map_or(1, |failures| failures.runs);
    let outcomes = setting.outcomes(setting.iterations, runs);
    let expected = setting.expected();
    let mean = |of: &dyn Fn(&LongRunOutcome) -> f64| outcomes.iter().map(of).sum::<f64>() / f64::from(runs);
    let duration = setting.run(setting.iterations).duration;
    Ok(Some(LongRunSummary {
        goodput: quantiles(&outcomes),
        expected_goodput: expected.goodput(),
        duration_ns: duration.nanoseconds(),
        duration_days: duration.nanoseconds() as f64 / 86_400e9,
        runs: u64::from(runs),
        nodes: setting.nodes,
        spares: u64::from(setting.failing.spares),
        devices: setting.devices,
        mtbf_hours: setting.failures.map(|_| 1.0 / setting.failing.per_second / 3600.0),
        failures: mean(&|outcome| outcome.failures as f64),
        stops: mean(&|outcome| outcome.stops as f64),
        checkpoint: checkpoint(&setting),
        parts: parts(&setting, &outcomes, expected),
        stop: stop(&setting, &outcomes),
        intervals: intervals(&setting, runs),
        notes: notes(&setting, expected),
        assumptions: assumptions(&setting),
    }))
}

/// Median of the goodput, and what nine of ten runs lie between.
fn quantiles(outcomes: &[LongRunOutcome]) -> Interval {
    let order = by_goodput(outcomes);
    let at = |percent: usize| outcomes[order[(order.len() - 1) * percent / 100]].account.goodput();
    Interval {
        low: at(5),
        expected: at(50),
        high: outcomes[order[(order.len() - 1).saturating_mul(95).div_ceil(100)]].account.goodput(),
    }
}

/// Runs by rising goodput.
fn by_goodput(outcomes: &[LongRunOutcome]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..outcomes.len()).collect();
    order.sort_by_key(|run| outcomes[*run].account.of(RunPart::Useful));
    order
}

fn checkpoint(setting: &Setting) -> CheckpointSummary {
    let here = setting.checkpointing(setting.iterations);
    let period = here.period().seconds();
    let best = setting.best().map(|iterations| setting.checkpointing(iterations));
    let rule = |of: fn(f64, f64) -> f64| {
        setting.failures.map(|_| of(setting.blocked.seconds(), 1.0 / setting.failing.per_second))
    };
    CheckpointSummary {
        interval_s: period,
        iterations: setting.iterations,
        bytes: setting.bytes.get(),
        blocked_s: setting.blocked.seconds(),
        background_s: setting.background.seconds(),
        read_s: setting.read.seconds(),
        overhead: 1.0 - here.training.seconds() / period,
        bytes_per_day: setting.bytes.get() as f64 * 86_400.0 / period,
        best_interval_s: best.map(|best| best.period().seconds()),
        best_goodput: best.map(|best| cost::expected_shares(&best, &setting.failing).goodput()),
        young_interval_s: rule(cost::young_interval_s),
        daly_interval_s: rule(cost::daly_interval_s),
    }
}

fn parts(setting: &Setting, outcomes: &[LongRunOutcome], expected: ExpectedShares) -> Vec<LongRunPart> {
    let median = outcomes[by_goodput(outcomes)[(outcomes.len() - 1) / 2]];
    let part = |part: RunPart| {
        let mean = outcomes.iter().map(|outcome| outcome.account.share(part)).sum::<f64>() / outcomes.len() as f64;
        LongRunPart {
            part: part.name(),
            median_run_ns: median.account.of(part).nanoseconds(),
            share: mean,
            expected_share: expected.of(part),
            device_hours: mean * median.account.total().seconds() / 3600.0 * setting.devices as f64,
        }
    };
    RunPart::ALL.map(part).to_vec()
}

fn stop(setting: &Setting, outcomes: &[LongRunOutcome]) -> Option<StopCost> {
    let failures = setting.failures?;
    let stops: u64 = outcomes.iter().map(|outcome| outcome.stops).sum();
    let hours = |seconds: f64| seconds / 3600.0 * setting.devices as f64;
    let mean = |part: RunPart| {
        let all: f64 = outcomes.iter().map(|outcome| outcome.account.of(part).seconds()).sum();
        (part.name(), hours(all / stops as f64))
    };
    let lost = [RunPart::LostWork, RunPart::Detection, RunPart::Restart, RunPart::RepairWait];
    (stops > 0).then(|| StopCost {
        hang_detection_device_hours: hours(failures.watchdog.seconds()),
        crash_detection_device_hours: hours(failures.detection.seconds()),
        mean_device_hours: BTreeMap::from(lost.map(mean)),
    })
}

/// Goodput at intervals around the best one and the scenario's own, under the same failures.
fn intervals(setting: &Setting, runs: u32) -> Vec<IntervalPoint> {
    let Some(best) = setting.best() else { return Vec::new() };
    let longest = setting.run(1).duration;
    let scaled = |halves: i32| {
        let count = best as f64 * libm::exp2(f64::from(halves) / 2.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number below 2^63")]
        let count = count.round().clamp(1.0, 9e18) as u64;
        count
    };
    let counts: BTreeSet<u64> = (-8..=8).map(scaled).chain([setting.iterations]).collect();
    let short = counts.into_iter().filter(|count| setting.checkpointing(*count).period() < longest);
    let point = |iterations: u64| {
        let checkpointing = setting.checkpointing(iterations);
        IntervalPoint {
            interval_s: checkpointing.period().seconds(),
            iterations,
            expected_goodput: cost::expected_shares(&checkpointing, &setting.failing).goodput(),
            goodput: quantiles(&setting.outcomes(iterations, runs.min(RUNS_OF_A_POINT))),
        }
    };
    short.map(point).collect()
}

/// A gain below this is not worth a word.
const WORTH_A_WORD: f64 = 0.005;

fn notes(setting: &Setting, expected: ExpectedShares) -> Vec<String> {
    let mut notes = Vec::new();
    let here = setting.checkpointing(setting.iterations);
    if here.background > here.training {
        notes.push(format!(
            "A checkpoint is written for {}, longer than the training between two: training waits for it.",
            show::seconds(here.background.seconds())
        ));
    }
    if let CheckpointInterval::Every(interval) = setting.choice.interval
        && here.training > interval
    {
        let iteration = show::seconds(setting.iteration.seconds());
        notes.push(format!("An iteration takes {iteration}, longer than the interval: a checkpoint follows each."));
    }
    if let Some(best) = setting.best() {
        let best = setting.checkpointing(best);
        let goodput = cost::expected_shares(&best, &setting.failing).goodput();
        if goodput - expected.goodput() > WORTH_A_WORD {
            notes.push(format!(
                "A checkpoint every {} would give a goodput of {} in place of {}.",
                show::seconds(best.period().seconds()),
                show::percent(goodput),
                show::percent(expected.goodput())
            ));
        }
    }
    if expected.goodput() < 0.5 {
        let worst = RunPart::ALL.into_iter().filter(|part| *part != RunPart::Useful);
        let worst = worst.max_by(|a, b| expected.of(*a).total_cmp(&expected.of(*b))).expect("there are parts");
        let share = show::percent(expected.of(worst));
        notes.push(format!("Less than half of the time is useful; {share} is {}.", worst.name()));
    }
    notes
}

fn assumptions(setting: &Setting) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let mut put = |name: &str, value: String| rows.push((name.to_owned(), value));
    let bytes = show::with_prefix(setting.bytes.get() as f64, "B");
    let whence =
        if setting.choice.size.is_some() { "as stated" } else { "weights and optimizer state of the plan, once" };
    put("checkpoint", format!("{bytes}, {whence}; every node writes an equal part"));
    if setting.choice.asynchronous {
        let copy = "copied to host memory while training stands still, whose room is not checked; writing slows training by nothing";
        put("asynchronous checkpoint", copy.to_owned());
    }
    if let Some(failures) = setting.failures {
        let hours = show::seconds(1.0 / setting.failing.per_second);
        put(
            "failures",
            format!("of {} nodes, one in {hours} on average, independent of each other and of the load", setting.nodes),
        );
        put(
            "restart",
            format!("{} and reading the checkpoint; it can fail too", show::seconds(failures.restart.seconds())),
        );
        let spares = match failures.repair {
            None => "a node that fails is replaced at once".to_owned(),
            Some(repair) => format!(
                "{} spare nodes, which do not fail; {} of failures take a node out for {} on average",
                failures.spares,
                show::percent(failures.repair_share),
                show::seconds(repair.mean().seconds())
            ),
        };
        put("repair", spares);
    }
    rows
}

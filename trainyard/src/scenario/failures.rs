//! `[checkpoint]` and `[failures]`: what a run of months saves, and what stops it.
//!
//! ```toml
//! [checkpoint]
//! interval = "best"               # or "3h"
//! bandwidth = "60GB/s"            # of all nodes together; or write_time = "40s"
//!
//! [failures]
//! like = "llama-3-405b"           # or node_mtbf = "264d", device_mtbf, mtbf, per_node_day
//! restart = "5min"
//! ```

use ir::{Bytes, BytesPerSecond, Cluster, Problem, SimDuration};
use sim::long_run::RepairTime;

use crate::catalog::counted_failures;
use crate::read::{Table, Value, suggest};

/// How often a checkpoint is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointInterval {
    /// As often as gives the highest expected goodput.
    Best,
    /// Once in so long, from the start of one to the start of the next.
    Every(SimDuration),
}

/// What is known of writing and reading a checkpoint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CheckpointStorage {
    /// How long it takes.
    Times {
        /// To write.
        write: SimDuration,
        /// To read.
        read: SimDuration,
    },
    /// How fast it is.
    Bandwidths {
        /// Written by all nodes together; no limit if left out.
        shared: Option<BytesPerSecond>,
        /// Written by each node; no limit if left out.
        node: Option<BytesPerSecond>,
        /// Read by all nodes together; as fast as written if left out.
        read: Option<BytesPerSecond>,
    },
}

/// How checkpoints are taken.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CheckpointChoice {
    /// How often.
    pub interval: CheckpointInterval,
    /// What storage makes of it.
    pub storage: CheckpointStorage,
    /// Bytes of one; weights and optimizer state of the plan if left out.
    pub size: Option<Bytes>,
    /// Whether it is written beside training, from a copy in host memory.
    pub asynchronous: bool,
    /// How fast each device copies its part to host memory; by the node's host link if left out.
    pub copy_bandwidth: Option<BytesPerSecond>,
}

/// How often nodes fail, as it is written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FailureRate {
    /// Failures of a node in a day.
    PerNodeDay(f64),
    /// Mean time between failures of a node.
    NodeMtbf(SimDuration),
    /// Mean time between failures of a device.
    DeviceMtbf(SimDuration),
    /// Mean time between failures of the scenario's cluster.
    Mtbf {
        /// The time.
        mtbf: SimDuration,
        /// Nodes of that cluster: another one fails in proportion.
        nodes: u64,
    },
}

impl FailureRate {
    /// Failures of so many nodes with so many devices, for each second.
    #[must_use]
    pub fn per_second(self, nodes: u64, devices: u64) -> f64 {
        match self {
            Self::PerNodeDay(rate) => nodes as f64 * rate / 86_400.0,
            Self::NodeMtbf(mtbf) => nodes as f64 / mtbf.seconds(),
            Self::DeviceMtbf(mtbf) => devices as f64 / mtbf.seconds(),
            Self::Mtbf { mtbf, nodes: of } => nodes as f64 / (of as f64 * mtbf.seconds()),
        }
    }
}

/// What goes wrong, and what is done about it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FailureChoice {
    /// How often.
    pub rate: FailureRate,
    /// Until a failure that ends a process is noticed.
    pub detection: SimDuration,
    /// Until one that hangs is.
    pub watchdog: SimDuration,
    /// Share of failures that hang.
    pub hang_share: f64,
    /// From the notice to training, reading the checkpoint not counted.
    pub restart: SimDuration,
    /// Nodes that stand by.
    pub spares: u32,
    /// How long a node is in repair; without it, one that fails is replaced at once.
    pub repair: Option<RepairTime>,
    /// Share of failures after which a node is in repair.
    pub repair_share: f64,
    /// Elapsed time of a simulated run.
    pub duration: SimDuration,
    /// Simulated runs.
    pub runs: u32,
}

/// Launchers look at their processes every few seconds; what follows is stopping all of them.
const DETECTION: SimDuration = SimDuration::from_nanoseconds(30_000_000_000);
/// The time after which PyTorch's watchdog gives up a NCCL collective, unless told otherwise.
const WATCHDOG: SimDuration = SimDuration::from_nanoseconds(600_000_000_000);
/// Thirty days.
const DURATION: SimDuration = SimDuration::from_nanoseconds(30 * 86_400_000_000_000);
/// A longer time is a slip of the pen: twenty years.
const LONGEST: SimDuration = SimDuration::from_nanoseconds(20 * 365 * 86_400_000_000_000);
const RUNS: u32 = 100;
const MOST_RUNS: u64 = 10_000;
/// Failures of all simulated runs together: seconds of work.
const MOST_FAILURES: f64 = 1e7;

/// A time that is more than nothing.
fn time(value: &Value<'_>, example: &str) -> Option<SimDuration> {
    let time = value.quantity::<SimDuration>()?;
    if time == SimDuration::ZERO {
        value.problem("no time at all", Some(format!("such as \"{example}\"")));
        return None;
    }
    short(value, time)
}

/// A time that may be nothing.
fn delay(value: &Value<'_>) -> Option<SimDuration> {
    value.quantity::<SimDuration>().and_then(|time| short(value, time))
}

fn short(value: &Value<'_>, time: SimDuration) -> Option<SimDuration> {
    if time > LONGEST {
        value.problem("is longer than twenty years", None);
        return None;
    }
    Some(time)
}

fn missing(table: &Table<'_>, key: &str, message: &str, hint: &str) {
    table.report(Problem::new(table.path_of(key), format!("is missing: {message}")).hint(hint));
}

/// Both sections; each may be absent. An outer `None` means that one is there and wrong.
pub(super) fn read(
    root: &Table<'_>,
    cluster: Option<&Cluster>,
) -> (Option<Option<CheckpointChoice>>, Option<Option<FailureChoice>>) {
    let (checkpoint, failures) = (root.table("checkpoint"), root.table("failures"));
    let of_failures = failures.as_ref().map(|table| read_failures(table, cluster));
    let of_checkpoint = checkpoint.as_ref().map(|table| read_checkpoint(table));
    if let (Some(table), Some(Some(choice))) = (&checkpoint, of_checkpoint) {
        agree(table, &choice, of_failures);
    }
    if let (None, Some(table)) = (&checkpoint, &failures) {
        let problem = Problem::new("checkpoint", "is missing: every failure would lose all that was ever trained");
        table.report(problem.hint("such as [checkpoint] with interval = \"best\" and bandwidth = \"60GB/s\""));
    }
    if let (true, Some(size)) = (checkpoint.is_some(), root.table("size"))
        && let Some(goodput) = size.get("goodput")
    {
        let hint = "leave it out, or leave out [checkpoint] and [failures]".to_owned();
        goodput.problem("goodput follows from [checkpoint] and [failures]", Some(hint));
    }
    (of_checkpoint.map_or(Some(None), |read| read.map(Some)), of_failures.map_or(Some(None), |read| read.map(Some)))
}

/// What the two sections say of each other.
fn agree(table: &Table<'_>, choice: &CheckpointChoice, failures: Option<Option<FailureChoice>>) {
    let at = |message: String, hint: &str| {
        table.report_at("interval", Problem::new(table.path_of("interval"), message).hint(hint));
    };
    match (choice.interval, failures) {
        (CheckpointInterval::Best, None) => {
            at(
                "without [failures] the best is no checkpoint at all".to_owned(),
                "such as interval = \"3h\", or [failures]",
            );
        }
        (CheckpointInterval::Every(interval), Some(Some(failures))) if interval >= failures.duration => {
            let message = format!("a run of {} would have no checkpoint", failures.duration);
            at(message, "a shorter interval, such as \"best\", or a longer failures.duration");
        }
        (CheckpointInterval::Best | CheckpointInterval::Every(_), _) => {}
    }
}

fn read_checkpoint(table: &Table<'_>) -> Option<CheckpointChoice> {
    let interval = table.require("interval", "\"best\"").and_then(|value| {
        // What has no digits is meant as a word.
        if value.as_text().is_some_and(|text| !text.contains(|letter: char| letter.is_ascii_digit())) {
            value.choice(&[("best", CheckpointInterval::Best)])
        } else {
            time(&value, "3h").map(CheckpointInterval::Every)
        }
    });
    let rate = |key| table.get(key).map_or(Some(None), |v: Value<'_>| v.quantity::<BytesPerSecond>().map(Some));
    let (shared, node, read) = (rate("bandwidth"), rate("node_bandwidth"), rate("read_bandwidth"));
    let write_time = table.get("write_time").map(|v| time(&v, "40s"));
    let read_time = table.get("read_time").map(|v| time(&v, "40s"));
    let size = table.get("size").map_or(Some(None), |v| match v.quantity::<Bytes>() {
        Some(Bytes::ZERO) => {
            v.problem("nothing at all", Some("such as \"2.3TB\"; left out, it is counted from the plan".to_owned()));
            None
        }
        other => other.map(Some),
    });
    let asynchronous = table.get("asynchronous").map_or(Some(false), |v| v.boolean());
    let copy_bandwidth = rate("copy_bandwidth");
    table.finish();
    let written = |keys: [&'static str; 3]| keys.into_iter().find(|key| table.has(key));
    let storage = match (write_time, written(["bandwidth", "node_bandwidth", "read_bandwidth"])) {
        (Some(write), None) => {
            let write = write?;
            let read = match read_time {
                Some(read) => read?,
                None => write,
            };
            CheckpointStorage::Times { write, read }
        }
        (Some(_), Some(key)) => {
            let problem = Problem::new(table.path_of(key), "a time and a bandwidth exclude each other");
            table.report_at(key, problem.hint("write_time and read_time, or bandwidths"));
            return None;
        }
        (None, _) => {
            let bandwidths = CheckpointStorage::Bandwidths { shared: shared?, node: node?, read: read? };
            if table.has("read_time") {
                missing(table, "write_time", "a time to read says nothing of writing", "such as write_time = \"40s\"");
                return None;
            }
            if !table.has("bandwidth") && !table.has("node_bandwidth") {
                let hint =
                    "such as bandwidth = \"60GB/s\" of all nodes together, node_bandwidth, or write_time = \"40s\"";
                missing(table, "bandwidth", "nothing says how fast checkpoints are written", hint);
                return None;
            }
            bandwidths
        }
    };
    let (asynchronous, copy_bandwidth) = (asynchronous?, copy_bandwidth?);
    if copy_bandwidth.is_some() && !asynchronous {
        let problem = Problem::new(table.path_of("copy_bandwidth"), "nothing is copied to host memory first");
        table.report_at("copy_bandwidth", problem.hint("asynchronous = true, or leave it out"));
        return None;
    }
    Some(CheckpointChoice { interval: interval?, storage, size: size?, asynchronous, copy_bandwidth })
}

/// A rate, and repairs that were counted with it.
type Rate = (FailureRate, Option<RepairTime>);

/// The rate, by the one key that says it.
fn rate(table: &Table<'_>, cluster: Option<&Cluster>) -> Option<Rate> {
    let plain = |rate: FailureRate| (rate, None);
    let mtbf = |key, of: fn(SimDuration) -> FailureRate| {
        (key, table.get(key).map(|value| time(&value, "264d").map(|mtbf| plain(of(mtbf)))))
    };
    let nodes = cluster.map_or(1, Cluster::nodes);
    let whole = table.get("mtbf").map(|value| time(&value, "3h").map(|mtbf| plain(FailureRate::Mtbf { mtbf, nodes })));
    let per_node_day = table.get("per_node_day").map(|value| value.number(1e-9..=1e6));
    let read: [(&'static str, Option<Option<Rate>>); 5] = [
        ("like", table.get("like").map(|value| counted(&value))),
        ("per_node_day", per_node_day.map(|rate| rate.map(|rate| plain(FailureRate::PerNodeDay(rate))))),
        mtbf("node_mtbf", FailureRate::NodeMtbf),
        mtbf("device_mtbf", FailureRate::DeviceMtbf),
        ("mtbf", whole),
    ];
    let mut written = read.into_iter().filter_map(|(key, rate)| Some((key, rate?)));
    let Some((first, rate)) = written.next() else {
        let hint = "such as node_mtbf = \"264d\" or like = \"llama-3-405b\"";
        missing(table, "node_mtbf", "nothing says how often nodes fail", hint);
        return None;
    };
    if let Some((second, _)) = written.next() {
        let message = format!("`{first}` says how often nodes fail already");
        table.report_at(second, Problem::new(table.path_of(second), message).hint("one of the two"));
        return None;
    }
    rate
}

/// Failures that the catalog knows, by name.
fn counted(value: &Value<'_>) -> Option<Rate> {
    let name = value.text()?;
    let all = counted_failures();
    let found = all.iter().find(|counted| counted.name == name);
    if found.is_none() {
        let hint = suggest(name, all.iter().map(|counted| counted.name.as_str()));
        value.problem(format!("no failures are known as `{name}`"), Some(hint));
    }
    found.map(|counted| (FailureRate::PerNodeDay(counted.per_node_day()), counted.repair))
}

/// `"20h"`, or `{ median = "20h", mean = "5d" }`.
fn repair(value: &Value<'_>) -> Option<RepairTime> {
    if !value.is_table() {
        return time(value, "20h").map(RepairTime::Fixed);
    }
    let table = value.table()?;
    let median = table.require("median", "\"20h\"").and_then(|v| time(&v, "20h"));
    let mean = table.require("mean", "\"5d\"").and_then(|v| time(&v, "5d"));
    table.finish();
    let (median, mean) = (median?, mean?);
    if mean < median {
        let message = format!("is less than the median of {median}: repairs have a tail of long ones");
        table.report_at(
            "mean",
            Problem::new(table.path_of("mean"), message).hint("repair = \"20h\" where all take as long"),
        );
        return None;
    }
    Some(RepairTime::LogNormal { median, mean })
}

fn read_failures(table: &Table<'_>, cluster: Option<&Cluster>) -> Option<FailureChoice> {
    let rate = rate(table, cluster);
    let detection = table.get("detection").map_or(Some(DETECTION), |v| delay(&v));
    let watchdog = table.get("watchdog").map_or(Some(WATCHDOG), |v| time(&v, "10min"));
    let hang_share = table.get("hang_share").map_or(Some(0.0), |v| v.number(0.0..=1.0));
    let restart = table.require("restart", "\"5min\"").and_then(|v| delay(&v));
    let spares = table.get("spares").map_or(Some(0), |v| v.integer(0..=1 << 20).and_then(|n| u32::try_from(n).ok()));
    let written = table.get("repair").map(|v| repair(&v));
    let repair_share = table.get("repair_share").map_or(Some(1.0), |v| v.number(0.0..=1.0));
    let duration = table.get("duration").map_or(Some(DURATION), |v| time(&v, "30d"));
    let runs = table.get("runs").map_or(Some(RUNS), |v| v.integer(1..=MOST_RUNS).and_then(|n| u32::try_from(n).ok()));
    table.finish();
    let (rate, counted) = rate?;
    let repair = match written {
        Some(written) => Some(written?),
        None => counted,
    };
    if table.has("watchdog") && !table.has("hang_share") {
        missing(table, "hang_share", "no failure would wait for the watchdog", "such as hang_share = 1.0");
        return None;
    }
    if repair.is_none()
        && let Some(key) = ["spares", "repair_share"].into_iter().find(|key| table.has(key))
    {
        let message = format!("`{key}` says nothing where a node that fails is replaced at once");
        missing(table, "repair", &message, "such as repair = \"20h\" or repair = { median = \"20h\", mean = \"5d\" }");
        return None;
    }
    let (duration, runs) = (duration?, runs?);
    if let Some(cluster) = cluster {
        let failures = rate.per_second(cluster.nodes(), cluster.devices()) * duration.seconds() * f64::from(runs);
        if failures > MOST_FAILURES {
            let message =
                format!("{failures:.0} failures in {runs} runs of {duration} are more than can be walked through");
            table.report(Problem::new(table.path_of("runs"), message).hint("fewer runs, or a shorter duration"));
            return None;
        }
    }
    Some(FailureChoice {
        rate,
        detection: detection?,
        watchdog: watchdog?,
        hang_share: hang_share?,
        restart: restart?,
        spares: spares?,
        repair,
        repair_share: repair_share?,
        duration,
        runs,
    })
}

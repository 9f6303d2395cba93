//! `[objective]` and `[constraints]`: what a policy makes small, and what its plan must keep to.
//!
//! ```toml
//! [objective]
//! minimise = "money"              # per token; "time" of an iteration, or "energy" per token
//! pareto = ["time", "money"]      # also the plans that no other beats in both
//!
//! [constraints]
//! memory_headroom = "4GiB"        # or a share, 0.05
//! tokens = "2T"                   # of the whole training, for what follows
//! budget_usd = 1e6
//! deadline = "30d"
//! avoid = { kinds = ["dgx-a100"], nodes = [3] }
//! ```

pub use cost::{Headroom, Paid, Terms};
use ir::{Bytes, Cluster, DeviceId, DeviceKind, Problem, SimDuration, Workload};
use sched::{Aim, Limits};
pub use sched::{Measure, Objective};

use super::size::{GOODPUT, tokens};
use super::{PlanChoice, Scenario};
use crate::read::{Table, Value, suggest};

/// What a policy makes small, and on what terms devices are used.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ObjectiveChoice {
    /// What is made small.
    pub minimise: Objective,
    /// What is paid, and what devices draw; its headroom is that of the constraints.
    pub terms: Terms,
    /// What the front weighs; empty: there is none.
    pub pareto: Vec<Measure>,
}

/// What a plan must keep to.
#[derive(Clone, PartialEq, Debug)]
pub struct ConstraintChoice {
    /// Memory of each device that stays free.
    pub memory_headroom: Headroom,
    /// Tokens of the whole training.
    pub tokens: Option<f64>,
    /// Useful work over all elapsed time.
    pub goodput: f64,
    /// Money for the whole training, US dollars.
    pub budget_usd: Option<f64>,
    /// Time for the whole training.
    pub deadline: Option<SimDuration>,
    /// Devices that no plan may use.
    pub avoid: AvoidChoice,
}

impl Default for ConstraintChoice {
    fn default() -> Self {
        Self {
            memory_headroom: Headroom::Bytes(Bytes::ZERO),
            tokens: None,
            goodput: GOODPUT,
            budget_usd: None,
            deadline: None,
            avoid: AvoidChoice::default(),
        }
    }
}

/// Devices that no plan may use, as they are named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AvoidChoice {
    /// Kinds of node or device.
    pub kinds: Vec<String>,
    /// Nodes by number.
    pub nodes: Vec<u32>,
    /// Devices by number.
    pub devices: Vec<u32>,
}

impl AvoidChoice {
    /// The devices, in order.
    #[must_use]
    pub fn of(&self, cluster: &Cluster) -> Vec<DeviceId> {
        if *self == Self::default() {
            return Vec::new();
        }
        let all = (0..u32::try_from(cluster.devices()).unwrap_or(u32::MAX)).map(DeviceId::new);
        let avoided = |device: &DeviceId| {
            let place = cluster.place(*device);
            let names = [&cluster.node_kind(place.node_kind).name, &cluster.device_kind(place.device_kind).name];
            self.devices.contains(&device.raw())
                || self.nodes.contains(&place.node.raw())
                || names.into_iter().any(|name| self.kinds.contains(name))
        };
        all.filter(avoided).collect()
    }
}

impl Scenario {
    /// What is asked of planners.
    #[must_use]
    pub fn aim(&self) -> Aim {
        let ConstraintChoice { tokens, goodput, budget_usd, deadline, .. } = self.constraints;
        let steps = tokens.map_or(0.0, |tokens| (tokens / self.workload.tokens_per_iteration() as f64).ceil());
        Aim {
            objective: self.objective.minimise,
            limits: Limits { iterations: steps / goodput, budget_usd, deadline },
            avoid: self.constraints.avoid.of(&self.cluster),
        }
    }

    /// On what terms devices are used.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms { headroom: self.constraints.memory_headroom, ..self.objective.terms }
    }
}

/// What a budget may be: more than all the money that there is.
const MOST_USD: f64 = 1e15;

/// Reads `[objective]`.
pub(super) fn read(root: &Table<'_>) -> Option<ObjectiveChoice> {
    let Some(table) = root.table("objective") else { return Some(ObjectiveChoice::default()) };
    let known = Terms::default();
    let minimise = table.get("minimise").map_or(Some(Objective::Time), |v| v.one_of(Objective::ALL, Objective::name));
    let paid = table.get("paid").map_or(Some(known.paid), |v| v.one_of(Paid::ALL, Paid::name));
    let share = |key, otherwise| table.get(key).map_or(Some(otherwise), |v| v.number(0.01..=1.0));
    let (busy_power, waiting_power) =
        (share("busy_power", known.busy_power), share("waiting_power", known.waiting_power));
    let site_factor = table.get("site_factor").map_or(Some(known.site_factor), |v| v.number(1.0..=10.0));
    let pareto = table.get("pareto").map_or(Some(Vec::new()), |v| measures(&v));
    table.finish();
    let (busy_power, waiting_power) = (busy_power?, waiting_power?);
    if waiting_power > busy_power {
        let message =
            format!("a device that waits would draw more than one that works: {waiting_power} over {busy_power}");
        table.report_at(
            "waiting_power",
            Problem::new(table.path_of("waiting_power"), message).hint("at most busy_power"),
        );
        return None;
    }
    let terms = Terms { paid: paid?, busy_power, waiting_power, site_factor: site_factor?, ..known };
    Some(ObjectiveChoice { minimise: minimise?, terms, pareto: pareto? })
}

fn measures(value: &Value<'_>) -> Option<Vec<Measure>> {
    let read: Vec<Option<Measure>> =
        value.list()?.iter().map(|item| item.one_of(Measure::ALL, Measure::name)).collect();
    let read: Vec<Measure> = read.into_iter().collect::<Option<_>>()?;
    let mut sorted = read.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < read.len() {
        value.problem("weighs the same twice", None);
        return None;
    }
    if let [one] = read[..] {
        let hint = format!("minimise = \"{}\"; a front weighs two or more", one.name());
        value.problem("one measure has a best plan, and no front", Some(hint));
        return None;
    }
    Some(read)
}

/// Reads `[constraints]`.
pub(super) fn read_constraints(root: &Table<'_>, cluster: Option<&Cluster>) -> Option<ConstraintChoice> {
    let known = ConstraintChoice::default();
    let Some(table) = root.table("constraints") else { return Some(known) };
    let headroom = table.get("memory_headroom").map_or(Some(known.memory_headroom), |v| headroom(&v, cluster));
    let tokens = table.get("tokens").map_or(Some(None), |v| tokens(&v).map(Some));
    let goodput = table.get("goodput").map_or(Some(known.goodput), |v| v.number(0.01..=1.0));
    let budget_usd = table.get("budget_usd").map_or(Some(None), |v| budget(&v).map(Some));
    let deadline = table.get("deadline").map_or(Some(None), |v| deadline(&v).map(Some));
    let avoid = table.get("avoid").map_or(Some(AvoidChoice::default()), |v| avoid(&v, cluster));
    table.finish();
    let (tokens, budget_usd, deadline) = (tokens?, budget_usd?, deadline?);
    for (key, written) in [("budget_usd", budget_usd.is_some()), ("deadline", deadline.is_some())] {
        if written && tokens.is_none() {
            let message = format!("is missing: {key} is for the whole training");
            table.report_at(key, Problem::new(table.path_of("tokens"), message).hint("such as tokens = \"2T\""));
            return None;
        }
    }
    let memory_headroom = headroom?;
    Some(ConstraintChoice { memory_headroom, tokens, goodput: goodput?, budget_usd, deadline, avoid: avoid? })
}

fn budget(value: &Value<'_>) -> Option<f64> {
    let found = value.number(0.0..=MOST_USD)?;
    if found <= 0.0 {
        value.problem("no money at all", Some("such as budget_usd = 1e6; leave it out for no limit".to_owned()));
        return None;
    }
    Some(found)
}

fn deadline(value: &Value<'_>) -> Option<SimDuration> {
    let found = value.quantity::<SimDuration>()?;
    if found == SimDuration::ZERO {
        value.problem("no time at all", Some("such as \"30d\"; leave it out for no limit".to_owned()));
        return None;
    }
    Some(found)
}

/// A share of a device's memory, or bytes that every device has.
fn headroom(value: &Value<'_>, cluster: Option<&Cluster>) -> Option<Headroom> {
    let found = if value.is_text() {
        Headroom::Bytes(value.quantity::<Bytes>()?)
    } else {
        Headroom::Share(value.number(0.0..=0.99)?)
    };
    let kinds = cluster.into_iter().flat_map(|cluster| &cluster.device_kinds);
    let smallest = kinds.min_by_key(|kind: &&DeviceKind| kind.memory)?;
    if found.of(smallest.memory) == Bytes::ZERO {
        let message = format!("leaves nothing of the {:.1} GiB of {}", smallest.memory.gib(), smallest.name);
        value.problem(message, Some("such as \"4GiB\", or a share: 0.05".to_owned()));
        return None;
    }
    Some(found)
}

/// Devices to avoid, all of them in the cluster, and not all of the cluster.
fn avoid(value: &Value<'_>, cluster: Option<&Cluster>) -> Option<AvoidChoice> {
    let table = value.table()?;
    let list = |key| table.get(key).map_or(Some(Vec::new()), |v| v.list());
    let (kinds, nodes, devices) = (list("kinds"), list("nodes"), list("devices"));
    table.finish();
    let cluster = cluster?;
    let numbers = |items: Vec<Value<'_>>, what: &str, count: u64| -> Option<Vec<u32>> {
        let one = |item: &Value<'_>| {
            let number = item.integer(0..=u64::from(u32::MAX))?;
            if number >= count {
                item.problem(format!("there is no {what} {number}"), Some(format!("0 to {}", count - 1)));
                return None;
            }
            u32::try_from(number).ok()
        };
        let read: Vec<Option<u32>> = items.iter().map(one).collect();
        read.into_iter().collect()
    };
    let known = || {
        let used = cluster.groups.iter().map(|group| &cluster.node_kind(group.kind).name);
        used.chain(cluster.device_kinds.iter().map(|kind| &kind.name)).map(String::as_str)
    };
    let kind = |item: &Value<'_>| {
        let name = item.text()?;
        if !known().any(|kind| kind == name) {
            let message = format!("the cluster has no node or device `{name}`");
            item.problem(message, Some(suggest(name, known())));
            return None;
        }
        Some(name.to_owned())
    };
    let kinds: Vec<Option<String>> = kinds?.iter().map(kind).collect();
    let nodes = numbers(nodes?, "node", cluster.nodes());
    let devices = numbers(devices?, "device", cluster.devices());
    let found = AvoidChoice { kinds: kinds.into_iter().collect::<Option<_>>()?, nodes: nodes?, devices: devices? };
    if found.of(cluster).len() as u64 == cluster.devices() {
        value.problem("leaves no device of the cluster", Some("avoid fewer, or add nodes".to_owned()));
        return None;
    }
    Some(found)
}

/// Figures that devices lack and that what is asked for needs.
fn lacking(objective: &ObjectiveChoice, constraints: &ConstraintChoice, cluster: &Cluster) -> Vec<Problem> {
    let avoided = constraints.avoid.of(cluster);
    let all = (0..u32::try_from(cluster.devices()).unwrap_or(u32::MAX)).map(DeviceId::new);
    let mut used: Vec<&DeviceKind> = Vec::new();
    for device in all.filter(|device| objective.terms.paid == Paid::Cluster || avoided.binary_search(device).is_err()) {
        let kind = cluster.device_kind(cluster.place(device).device_kind);
        if !used.contains(&kind) {
            used.push(kind);
        }
    }
    let weighs = |measure| objective.pareto.contains(&measure);
    let money = [
        ("objective.minimise", objective.minimise == Objective::Money),
        ("objective.pareto", weighs(Measure::Money)),
        ("constraints.budget_usd", constraints.budget_usd.is_some()),
    ];
    let energy = [
        ("objective.minimise", objective.minimise == Objective::Energy),
        ("objective.pareto", weighs(Measure::Energy)),
    ];
    let first = |asked: &[(&'static str, bool)]| asked.iter().find(|(_, asked)| *asked).map(|(key, _)| *key);
    let problem = |key: &str, name: &str, what: &str, example: &str| {
        let other = if key == "objective.pareto" { ", or weigh time and memory alone" } else { "" };
        let hint = format!("[devices.{name}] with like = \"{name}\" and {example}{other}");
        Problem::new(key, format!("{name} has no {what}")).hint(hint)
    };
    let mut problems = Vec::new();
    for kind in used {
        if let (Some(key), None) = (first(&money), kind.usd_per_hour) {
            problems.push(problem(key, &kind.name, "price", "usd_per_hour = 2.0"));
        }
        if let (Some(key), None) = (first(&energy), kind.tdp_watts) {
            problems.push(problem(key, &kind.name, "power limit", "tdp = \"700W\""));
        }
    }
    problems
}

/// What the sections say of the rest: figures that devices lack, and devices that a written plan uses.
pub(super) fn agree(
    root: &Table<'_>,
    (objective, constraints): (&ObjectiveChoice, &ConstraintChoice),
    plan: Option<&PlanChoice>,
    cluster: &Cluster,
    workload: Option<&Workload>,
) {
    lacking(objective, constraints, cluster).into_iter().for_each(|problem| root.reader.report_placed(problem));
    let avoided = constraints.avoid.of(cluster);
    let placement = match plan {
        Some(PlanChoice::Written(plan)) if !plan.placement.is_empty() => plan.placement.clone(),
        Some(PlanChoice::Written(plan)) => {
            (0..u32::try_from(plan.world()).unwrap_or(u32::MAX)).map(DeviceId::new).collect()
        }
        Some(PlanChoice::Policy(_, keys)) => keys.placement.clone().unwrap_or_default(),
        None => Vec::new(),
    };
    if let Some(device) = placement.iter().find(|device| avoided.binary_search(device).is_ok()) {
        let message = format!("names device {}, which the plan uses", device.raw());
        root.reader.report_placed(Problem::new("constraints.avoid", message).hint("a plan.placement without it"));
    }
    if let (Some(tokens), Some(workload)) = (constraints.tokens, workload)
        && tokens < workload.tokens_per_iteration() as f64
    {
        let message = format!("{tokens} are fewer than the {} of one iteration", workload.tokens_per_iteration());
        root.reader.report_placed(Problem::new("constraints.tokens", message).hint("tokens of the whole training"));
    }
}

impl Scenario {
    /// Whether planners can be asked what is asked; else what the scenario lacks.
    #[must_use]
    pub(crate) fn unanswerable(&self) -> Vec<Problem> {
        let mut problems = lacking(&self.objective, &self.constraints, &self.cluster);
        if matches!(self.plan, PlanChoice::Written(_)) && !self.objective.pareto.is_empty() {
            let problem = Problem::new("objective.pareto", "is what a search finds, and the plan is written");
            problems.push(problem.hint("leave it out, or name a policy"));
        }
        problems
    }
}

//! The smallest cluster of each kind of node that trains in time, and what a budget buys on the cluster that is there.
//!
//! More nodes are not always faster, so numbers of nodes are not bisected: they are tried from the smallest, but for those
//! that would need more than [`MARGIN`] times the best utilisation seen so far. Numbers that no plan could use whole, because
//! the batch does not divide over them, are left out.

use std::collections::{BTreeMap, BTreeSet};

use ir::counts::{CountedParameters, CountedScores, model_flops_per_token};
use ir::{Cluster, NodeGroup, Problem};
use reports::show;
use reports::sizing::Interval;

use super::{bill, trial};
use crate::long_run::Setting;
use crate::results::{SizeRow, SizeSection};
use crate::scenario::{Loaded, SizeChoice};
use crate::verbs::whatif;
use crate::{Context, Error, words};

/// By how much a number of nodes may be better used than any tried before.
const MARGIN: f64 = 1.15;
/// Numbers of nodes of one kind that are tried.
const MOST_TRIED: usize = 48;
/// Numbers of nodes that are tried beyond the smallest that suffices, until the upper end of the interval does too.
const MOST_BEYOND: usize = 2;

/// The smallest clusters.
pub(super) fn smallest(loaded: &Loaded, choice: &SizeChoice, context: &Context<'_>) -> Result<SizeSection, Error> {
    let mut rows = Vec::new();
    let mut smallest = Vec::new();
    let mut notes = Vec::new();
    for kind in &choice.kinds {
        let search = Search::new(loaded, choice, kind, context);
        let (of_kind, note) = search.run()?;
        if let Some(at) = of_kind.iter().position(|row| row.suffices) {
            smallest.push(rows.len() + at);
        }
        notes.extend(note);
        rows.extend(of_kind);
    }
    let chosen = cheapest(&rows, &smallest);
    Ok(SizeSection {
        question: question(loaded, choice),
        answer: answer(choice, &rows, &smallest, chosen, &notes),
        rows,
        smallest,
        chosen,
    })
}

/// Of the smallest of each kind the cheapest; where one has no price, that of the fewest devices.
fn cheapest(rows: &[SizeRow], smallest: &[usize]) -> Option<usize> {
    let priced = smallest.iter().all(|row| rows[*row].usd.is_some());
    let measure = |row: &SizeRow| match row.usd.filter(|_| priced) {
        Some(usd) => usd.expected,
        None => row.devices as f64,
    };
    smallest.iter().copied().min_by(|a, b| measure(&rows[*a]).total_cmp(&measure(&rows[*b])))
}

/// `2.000 T tokens`.
fn tokens_in_words(tokens: f64) -> String {
    format!("{} tokens", show::with_prefix(tokens, "").trim())
}

fn question(loaded: &Loaded, choice: &SizeChoice) -> String {
    let scenario = &loaded.scenario;
    let tokens = tokens_in_words(choice.tokens.unwrap_or(0.0));
    let days = choice.within.map_or(0.0, |within| within.seconds() / bill::DAY_S);
    let paid = choice.budget_usd.map_or_else(String::new, |budget| format!(" for at most {}", show::dollars(budget)));
    format!("{} on {tokens} in {} days{paid}: how many nodes?", scenario.model.name, show::number(days))
}

/// What is said where clusters are in time and none within the budget.
fn over_budget(choice: &SizeChoice, rows: &[SizeRow]) -> String {
    let Some(budget) = choice.budget_usd else { return String::new() };
    let in_time = |row: &&SizeRow| match (row.days, choice.within) {
        (Some(days), Some(within)) => days.expected * bill::DAY_S <= within.seconds(),
        (days, _) => days.is_some(),
    };
    let priced: Vec<&SizeRow> = rows.iter().filter(in_time).collect();
    let cheapest = priced.iter().filter_map(|row| Some((row.usd?.expected, *row))).min_by(|a, b| a.0.total_cmp(&b.0));
    match cheapest {
        Some((usd, row)) if usd > budget => format!(
            " Those that are in time cost more than {}: the cheapest, {} nodes of {}, {}.",
            show::dollars(budget),
            row.nodes,
            row.node,
            show::dollars(usd)
        ),
        Some(_) => String::new(),
        None if priced.is_empty() => String::new(),
        None => " Those that are in time have no price, so that nothing says they are within the budget.".to_owned(),
    }
}

fn answer(
    choice: &SizeChoice,
    rows: &[SizeRow],
    smallest: &[usize],
    chosen: Option<usize>,
    notes: &[String],
) -> String {
    let Some(chosen) = chosen else {
        let most = rows.iter().filter(|row| row.fits).max_by_key(|row| row.nodes);
        let tried = most.map_or_else(String::new, |row| {
            let days = row.days.map_or(f64::NAN, |days| days.expected);
            format!(" {} nodes of {} take {} days.", row.nodes, row.node, show::number(days))
        });
        let dear = over_budget(choice, rows);
        return format!("No cluster that was tried suffices.{tried}{dear} {}", notes.join(" ")).trim().to_owned();
    };
    let mut text = String::new();
    for index in smallest {
        let row = &rows[*index];
        let days = row.days.expect("a row that suffices takes a time");
        let mark = if *index == chosen && smallest.len() > 1 { " (chosen)" } else { "" };
        let sure = rows.iter().find(|other| other.node == row.node && other.surely);
        let sure = match sure {
            Some(other) if other.nodes == row.nodes => "; the upper end of the interval keeps to it too".to_owned(),
            Some(other) => format!("; {} devices do at the upper end of the interval", other.devices),
            None => String::new(),
        };
        text.push_str(&format!(
            "{} nodes of {}{mark}: {} devices, {} days ({} to {}){sure}. ",
            row.nodes,
            row.node,
            row.devices,
            show::number(days.expected),
            show::number(days.low),
            show::number(days.high),
        ));
    }
    text.push_str(&notes.join(" "));
    text.trim().to_owned()
}

/// The search over numbers of nodes of one kind.
struct Search<'a> {
    loaded: &'a Loaded,
    choice: &'a SizeChoice,
    kind: &'a Cluster,
    context: &'a Context<'a>,
    /// Numbers of nodes that a plan can use whole.
    counts: Vec<u32>,
    /// Nodes that are needed at full utilisation of their peak.
    at_peak: f64,
    rows: BTreeMap<u32, SizeRow>,
    best_utilisation: f64,
}

impl<'a> Search<'a> {
    fn new(loaded: &'a Loaded, choice: &'a SizeChoice, kind: &'a Cluster, context: &'a Context<'a>) -> Self {
        let at_peak = nodes_at_peak(loaded, choice, kind);
        let counts = useful(loaded, choice, kind).into_iter().filter(|count| f64::from(*count) >= at_peak).collect();
        Self { loaded, choice, kind, context, counts, at_peak, rows: BTreeMap::new(), best_utilisation: 0.0 }
    }

    /// Rows by number of nodes, and what is to be said of the search.
    fn run(mut self) -> Result<(Vec<SizeRow>, Option<String>), Error> {
        let name = self.kind.node_kinds[0].name.clone();
        if self.counts.is_empty() {
            let most = self.choice.most_nodes;
            let precision = self.loaded.scenario.workload.precision;
            if let Some(device) = self.kind.device_kinds.iter().find(|device| device.peak(precision).is_none()) {
                let words = format!("{} of {name} does not compute in {}.", device.name, precision.name());
                return Ok((Vec::new(), Some(words)));
            }
            let words = format!(
                "Of {name} no number of nodes up to {most} can do it at the devices' peak: {:.0} are needed.",
                self.at_peak.ceil()
            );
            return Ok((Vec::new(), Some(words)));
        }
        // A first guess at what half of the peak would need.
        let seed = self.counts.partition_point(|count| f64::from(*count) < 2.0 * self.at_peak);
        let mut next = Some(self.counts[seed.min(self.counts.len() - 1)]);
        let mut note = None;
        while let Some(count) = next {
            if self.rows.len() >= MOST_TRIED {
                note = Some(format!("The search over {name} ended after {MOST_TRIED} numbers of nodes."));
                break;
            }
            self.try_count(count)?;
            next = self.next();
        }
        for _ in 0..MOST_BEYOND {
            let Some(last) = self.rows.values().filter(|row| row.suffices).map(|row| row.nodes).max() else { break };
            if self.rows.values().any(|row| row.surely) {
                break;
            }
            let Some(beyond) = self.counts.iter().copied().find(|count| u64::from(*count) > last) else { break };
            self.try_count(beyond)?;
        }
        let note = note.or_else(|| self.gap(&name));
        Ok((self.rows.into_values().collect(), note))
    }

    /// What is to be said where the next smaller number of nodes that the batch divides over is far below.
    fn gap(&self, name: &str) -> Option<String> {
        const WIDE: f64 = 0.85;
        let chosen = self.rows.values().find(|row| row.suffices)?.nodes;
        let below = self.counts.iter().copied().filter(|count| u64::from(*count) < chosen).max();
        let below = f64::from(below.unwrap_or(0)).max(self.at_peak.ceil() - 1.0);
        (below < WIDE * chosen as f64).then(|| {
            let batch = self.loaded.scenario.workload.global_batch;
            format!(
                "Over the numbers of {name} between {below:.0} and {chosen} the batch of {batch} does not divide: one with \
                 more divisors may need fewer."
            )
        })
    }

    /// The smallest number of nodes that was not tried, is below the smallest that suffices, and could suffice.
    fn next(&self) -> Option<u32> {
        let chosen = self.rows.values().find(|row| row.suffices).map_or(u64::MAX, |row| row.nodes);
        // Without any plan that fits nothing is known of utilisation: larger and larger clusters are tried.
        if self.best_utilisation <= 0.0 {
            let last = self.rows.keys().next_back().copied().unwrap_or(0);
            return self
                .counts
                .iter()
                .copied()
                .find(|count| f64::from(*count) >= f64::from(last) * 1.3 && *count > last);
        }
        let needed = self.at_peak / (self.best_utilisation * MARGIN).min(1.0);
        let open = self.counts.iter().copied().filter(|count| !self.rows.contains_key(count));
        open.into_iter().find(|count| f64::from(*count) >= needed && u64::from(*count) < chosen)
    }

    fn try_count(&mut self, count: u32) -> Result<(), Error> {
        let name = self.kind.node_kinds[0].name.as_str();
        self.context.step("size", self.rows.len() as u64, 0, format!("{count} x {name}"))?;
        let cluster = of_nodes(self.kind, count);
        let tried = trial::on_cluster(self.loaded, cluster.clone(), self.context)?;
        let row = row(self.loaded, self.choice, &cluster, tried.as_ref());
        if let Some(utilisation) = row.model_flops_utilization {
            // Of all devices paid for.
            let used = row.used_devices as f64 / row.devices.max(1) as f64;
            self.best_utilisation = self.best_utilisation.max(utilisation * used);
        }
        self.rows.insert(count, row);
        Ok(())
    }
}

fn of_nodes(kind: &Cluster, count: u32) -> Cluster {
    let groups = kind.groups.iter().map(|group| NodeGroup { kind: group.kind, count }).collect();
    Cluster { groups, ..kind.clone() }
}

/// Nodes of a kind that are needed if they computed at their peak: fewer cannot do it. Infinite where they do not compute in
/// the scenario's number format.
fn nodes_at_peak(loaded: &Loaded, choice: &SizeChoice, kind: &Cluster) -> f64 {
    let scenario = &loaded.scenario;
    let sequence = u64::from(scenario.workload.sequence_length);
    // What is counted in either convention of utilisation, so that nothing is left out wrongly.
    let per_token =
        model_flops_per_token(&scenario.model, sequence, CountedParameters::Multiplied, CountedScores::CausalHalf);
    let flops = per_token.get() as f64 * choice.tokens.unwrap_or(0.0);
    let device = |id: &ir::DeviceKindId| {
        let kind = kind.device_kind(*id);
        kind.peak(scenario.workload.precision).map_or(0.0, |peak| peak.get() / kind.slowdown)
    };
    let peak: f64 = kind.node_kinds[0].devices.iter().map(device).sum();
    let within = choice.within.unwrap_or(ir::SimDuration::ZERO);
    // What follows from failures is not known before there is a plan: nothing is left out for it.
    let goodput = if scenario.checkpoint.is_some() { 1.0 } else { choice.goodput };
    bill::fewest_devices(flops, peak, within, goodput)
}

/// Numbers of nodes of which a plan can use every device: replicas that divide the batch, times tensor degrees inside a
/// domain, times pipeline degrees that divide the layers.
fn useful(loaded: &Loaded, choice: &SizeChoice, kind: &Cluster) -> BTreeSet<u32> {
    let scenario = &loaded.scenario;
    let (model, batch) = (&scenario.model, u64::from(scenario.workload.global_batch));
    let node = &kind.node_kinds[0];
    let of_node = node.devices.len() as u64;
    let divisors = |number: u64| {
        (1..=number.isqrt()).filter(move |d| number.is_multiple_of(*d)).flat_map(move |d| [d, number / d])
    };
    let replicas: BTreeSet<u64> = divisors(batch).collect();
    let mut parallel = BTreeSet::new();
    for tensor in (0..=10).map(|power| 1u64 << power).take_while(|tensor| *tensor <= u64::from(node.domain_size.max(1)))
    {
        for pipeline in divisors(u64::from(model.layers)) {
            parallel.insert(tensor * pipeline);
        }
    }
    let mut counts = BTreeSet::new();
    for data in &replicas {
        for model_parallel in &parallel {
            let devices = data * model_parallel;
            if devices.is_multiple_of(of_node)
                && let Ok(count) = u32::try_from(devices / of_node)
                && (1..=choice.most_nodes).contains(&count)
            {
                counts.insert(count);
            }
        }
    }
    counts
}

/// What training takes on a cluster.
fn row(loaded: &Loaded, choice: &SizeChoice, cluster: &Cluster, tried: Result<&trial::Trial, &String>) -> SizeRow {
    let mut row = blank(cluster);
    let trial = match tried {
        Ok(trial) => trial,
        Err(reason) => {
            row.notes.clone_from(reason);
            return row;
        }
    };
    planned(&mut row, trial);
    let goodput = match Goodput::of(loaded, choice, cluster, trial) {
        Ok(goodput) => goodput,
        Err(problem) => {
            row.notes = problem.to_string();
            return row;
        }
    };
    goodput.note(&mut row);
    let per_step = tokens_per_step(loaded);
    let iterations = bill::iterations(choice.tokens.unwrap_or(0.0), per_step);
    let days = bill::days(iterations, trial.step_s, goodput.share);
    row.iterations = Some(iterations);
    row.tokens = choice.tokens.map(|tokens| Interval { low: tokens, expected: tokens, high: tokens });
    row.days = Some(days);
    bills(&mut row, choice, cluster, days, goodput.paid);
    let in_time = |days: f64| choice.within.is_none_or(|within| days * bill::DAY_S <= within.seconds());
    let paid = |usd: Option<f64>| choice.budget_usd.is_none_or(|budget| usd.is_some_and(|usd| usd <= budget));
    let believable = row.model_flops_utilization.is_none_or(|share| share <= 1.0);
    row.suffices = believable && in_time(days.expected) && paid(row.usd.map(|usd| usd.expected));
    row.surely = row.suffices && in_time(days.high) && paid(row.usd.map(|usd| usd.high));
    row
}

/// Useful work over elapsed time on a cluster, and nodes paid for over those in use.
struct Goodput {
    share: f64,
    paid: f64,
    spares: u32,
    /// Whether it follows from checkpoints and failures.
    follows: bool,
}

impl Goodput {
    fn of(loaded: &Loaded, choice: &SizeChoice, cluster: &Cluster, trial: &trial::Trial) -> Result<Self, Problem> {
        let there = whatif::changed(loaded, |scenario| scenario.cluster = cluster.clone());
        let setting = Setting::of(&there.scenario, &trial.plan, trial.prediction.iteration)?;
        Ok(setting.map_or(Self { share: choice.goodput, paid: 1.0, spares: 0, follows: false }, |setting| {
            let (share, paid) = (setting.expected().goodput(), 1.0 + setting.spare_share());
            Self { share, paid, spares: setting.spares(), follows: true }
        }))
    }

    fn note(&self, row: &mut SizeRow) {
        row.goodput = self.follows.then_some(self.share);
        if self.spares > 0 {
            let spares = format!("{} spare nodes are paid for too", self.spares);
            row.notes = if row.notes.is_empty() { spares } else { format!("{}; {spares}", row.notes) };
        }
    }
}

fn tokens_per_step(loaded: &Loaded) -> f64 {
    let workload = &loaded.scenario.workload;
    f64::from(workload.global_batch) * f64::from(workload.sequence_length)
}

fn blank(cluster: &Cluster) -> SizeRow {
    let mut devices: Vec<&str> = cluster.device_kinds.iter().map(|kind| kind.name.as_str()).collect();
    devices.dedup();
    let nodes: Vec<&str> = cluster.groups.iter().map(|group| cluster.node_kind(group.kind).name.as_str()).collect();
    SizeRow {
        node: nodes.join(" + "),
        device: devices.join(" + "),
        nodes: cluster.nodes(),
        devices: cluster.devices(),
        used_devices: 0,
        plan: String::new(),
        fits: false,
        suffices: false,
        surely: false,
        step_s: None,
        iterations: None,
        tokens: None,
        days: None,
        device_hours: None,
        usd: None,
        megawatt_hours: None,
        model_flops_utilization: None,
        hardware_flops_utilization: None,
        goodput: None,
        memory_share: None,
        basis: Vec::new(),
        notes: String::new(),
    }
}

fn planned(row: &mut SizeRow, trial: &trial::Trial) {
    row.fits = true;
    row.plan = words::plan(&trial.plan);
    row.used_devices = trial.plan.world();
    row.step_s = Some(trial.step_s);
    row.model_flops_utilization = trial.model_flops_utilization;
    row.hardware_flops_utilization = trial.hardware_flops_utilization;
    row.memory_share = Some(whatif::fullest(&trial.prediction));
    row.basis.clone_from(&trial.basis);
    let mut notes = Vec::new();
    if row.used_devices < row.devices {
        notes.push(format!("the plan uses {} devices", row.used_devices));
    }
    let assumed = trial.basis.iter().filter(|(name, _)| name == "assumed");
    notes.extend(assumed.map(|(_, what)| what.clone()));
    row.notes = notes.join("; ");
}

/// Device-hours, money and energy of an elapsed time. `paid` is nodes paid for over those of the cluster: spares draw no
/// power.
fn bills(row: &mut SizeRow, choice: &SizeChoice, cluster: &Cluster, days: Interval, paid: f64) {
    row.device_hours = Some(days.times(24.0 * row.devices as f64 * paid));
    let mut absent = Vec::new();
    match bill::usd_per_hour(cluster) {
        Ok(rate) => row.usd = Some(days.times(24.0 * rate * paid)),
        Err(device) => absent.push(format!("{device} has no price")),
    }
    match bill::watts(cluster, choice) {
        Ok(watts) => row.megawatt_hours = Some(days.times(24.0 * watts * 1e-6)),
        Err(device) => absent.push(format!("{device} has no power limit")),
    }
    if !row.notes.is_empty() {
        absent.insert(0, std::mem::take(&mut row.notes));
    }
    row.notes = absent.join("; ");
}

/// What the budget buys on the scenario's cluster.
pub(super) fn tokens(loaded: &Loaded, choice: &SizeChoice, context: &Context<'_>) -> Result<SizeSection, Error> {
    let cluster = &loaded.scenario.cluster;
    let budget = choice.budget_usd.unwrap_or(0.0);
    context.step("size", 0, 0, "tokens for the budget")?;
    let rate = bill::usd_per_hour(cluster).map_err(|device| {
        let hint = format!("[devices.{device}] with like = \"{device}\" and usd_per_hour");
        loaded.error(vec![Problem::new("size.budget_usd", format!("{device} has no price")).hint(hint)])
    })?;
    let trial = trial::as_it_is(loaded, context)?;
    let goodput = Goodput::of(loaded, choice, cluster, &trial).map_err(|problem| loaded.error(vec![problem]))?;
    let hours = budget / (rate * goodput.paid);
    let per_step = tokens_per_step(loaded);
    let tokens = bill::tokens(hours * 3600.0, trial.step_s, per_step, goodput.share);
    let mut row = blank(cluster);
    planned(&mut row, &trial);
    goodput.note(&mut row);
    let days = Interval { low: hours / 24.0, expected: hours / 24.0, high: hours / 24.0 };
    row.tokens = Some(tokens);
    row.iterations = Some((tokens.expected / per_step).floor());
    row.days = Some(days);
    bills(&mut row, choice, cluster, days, goodput.paid);
    (row.suffices, row.surely) = (true, true);
    let answer = format!(
        "{} ({} to {}) in {} days on {} devices at {} an hour.",
        tokens_in_words(tokens.expected),
        tokens_in_words(tokens.low),
        tokens_in_words(tokens.high),
        show::number(days.expected),
        row.devices,
        show::dollars(rate * goodput.paid)
    );
    Ok(SizeSection {
        question: format!("{}: how many tokens for {}?", loaded.scenario.model.name, show::dollars(budget)),
        answer,
        rows: vec![row],
        smallest: vec![0],
        chosen: Some(0),
    })
}

//! Claims about plans, each a folder of `scenarios/claims` that says what it holds against which baselines.
//!
//! `scenario.toml` is planned by its policy. `claim.toml` says what is claimed, who the baselines are (`[plan]` tables that
//! take the place of the scenario's), and which figures must reach what; `twin.toml`, where there is one, is a small
//! scenario of the same kind that the executor trains for real, planned by the same policy and by baselines of its own.

use std::path::{Path, PathBuf};

use ir::{Clock, Precision, Rank, Timeline};
use reports::Activity;
use reports::metrics::Metrics;
use toml::{Table, Value};
use trainyard::results::SimulateReport;
use trainyard::{Context, Loaded, scenario};

use crate::workspace::root;

/// One claim.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// Its folder.
    pub folder: PathBuf,
    /// A headline.
    pub title: String,
    /// What is claimed.
    pub says: String,
    /// What the baselines are, and what they leave out.
    pub account: String,
    /// Other deciders of the same scenario.
    pub baselines: Vec<Baseline>,
    /// Other sizes of the same scenario.
    pub points: Vec<Point>,
    /// What must be reached.
    pub wanted: Vec<Wanted>,
    /// Baselines of the twin; empty if there is no twin.
    pub twin: Vec<Baseline>,
    /// Whether planning takes minutes.
    pub slow: bool,
}

/// A decider: what stands in the place of the scenario's `[plan]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Baseline {
    /// Who it is.
    pub name: String,
    /// Its keys; none where it differs in size alone.
    pub plan: Table,
    /// Another size, of a twin.
    pub point: Option<Point>,
}

/// A size.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// `cluster.nodes`.
    pub nodes: String,
    /// `training.global_batch`.
    pub global_batch: i64,
}

/// A figure and where it must lie.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// Which.
    pub figure: Figure,
    /// Of which baseline, or against which.
    pub baseline: Option<String>,
    /// At least this.
    pub least: Option<f64>,
    /// At most this.
    pub most: Option<f64>,
    /// Why it is missed, where that is known and published.
    pub missed: Option<String>,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Iterations of the scenario in the time of one of the baseline.
    Throughput,
    /// Time in compute kernels over all time, each device weighted by its peak: of a baseline if one is named.
    ComputeShare,
    /// Communication that compute waits for, over the iteration.
    ExposedShare,
    /// Time in which some communication runs, over the baseline's.
    Communication,
    /// Time without compute, exposed communication left out, over the iteration.
    IdleShare,
    /// Tokens per second and device at the last point, over those at the first.
    Efficiency,
}

impl Figure {
    const ALL: [(&'static str, Self); 6] = [
        ("throughput", Self::Throughput),
        ("compute share", Self::ComputeShare),
        ("exposed share", Self::ExposedShare),
        ("communication", Self::Communication),
        ("idle share", Self::IdleShare),
        ("efficiency", Self::Efficiency),
    ];
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, figure)| *figure == self).map_or("", |(name, _)| name)
    }
}

/// What an iteration comes to. Shares are of the iteration's time.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    /// Seconds of the iteration.
    pub seconds: f64,
    /// Tokens per second and device.
    pub rate: f64,
    /// See [`Figure::ComputeShare`].
    pub compute: f64,
    /// See [`Figure::ExposedShare`].
    pub exposed: f64,
    /// See [`Figure::IdleShare`].
    pub idle: f64,
    /// Seconds in which communication ran, mean over ranks.
    pub communication: f64,
    /// Each activity's share, mean over ranks.
    pub shares: Vec<(Activity, f64)>,
    /// The plan, in words.
    pub plan: String,
}

/// What a claim comes to.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The scenario's own plan.
    pub own: Shape,
    /// Each baseline's.
    pub baselines: Vec<(String, Shape)>,
    /// Each point's.
    pub points: Vec<(Point, Shape)>,
}

impl Found {
    fn baseline(&self, name: Option<&String>) -> Result<&Shape, String> {
        let name = name.ok_or("the figure needs a baseline")?;
        let found = self.baselines.iter().find(|(known, _)| known == name);
        found.map(|(_, shape)| shape).ok_or_else(|| format!("there is no baseline {name:?}"))
    }
    /// What a figure is.
    ///
    /// # Errors
    /// If it speaks of a baseline or of points that are not there.
    pub fn value(&self, wanted: &Wanted) -> Result<f64, String> {
        let of = || match &wanted.baseline {
            Some(_) => self.baseline(wanted.baseline.as_ref()),
            None => Ok(&self.own),
        };
        Ok(match wanted.figure {
            Figure::Throughput => self.baseline(wanted.baseline.as_ref())?.seconds / self.own.seconds,
            Figure::Communication => self.own.communication / self.baseline(wanted.baseline.as_ref())?.communication,
            Figure::ComputeShare => of()?.compute,
            Figure::ExposedShare => of()?.exposed,
            Figure::IdleShare => of()?.idle,
            Figure::Efficiency => {
                let (Some((_, first)), Some((_, last))) = (self.points.first(), self.points.last()) else {
                    return Err("there are no points".to_owned());
                };
                last.rate / first.rate
            }
        })
    }
    /// The activity whose share grew most from the first point to the last, and by how much.
    #[must_use]
    pub fn saturating(&self) -> Option<(Activity, f64)> {
        let (_, first) = self.points.first()?;
        let (_, last) = self.points.last()?;
        let share =
            |of: &Shape, activity| of.shares.iter().find(|(a, _)| *a == activity).map_or(0.0, |(_, share)| *share);
        let grown = Activity::ALL.map(|activity| (activity, share(last, activity) - share(first, activity)));
        grown.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Wanted {
    /// Whether a value lies where it must.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        self.least.is_none_or(|least| value >= least) && self.most.is_none_or(|most| value <= most)
    }
}

/// Every claim of the checkout, in order of their folders' names.
///
/// # Errors
/// What is wrong with a file.
pub fn claims() -> Result<Vec<Claim>, String> {
    let entries = std::fs::read_dir(root().join("scenarios/claims")).map_err(|e| e.to_string())?;
    let mut folders =
        entries.map(|entry| entry.map(|e| e.path()).map_err(|e| e.to_string())).collect::<Result<Vec<_>, _>>()?;
    folders.retain(|folder| folder.join("claim.toml").is_file());
    folders.sort();
    folders.iter().map(|folder| read(folder)).collect()
}

fn read(folder: &Path) -> Result<Claim, String> {
    let path = folder.join("claim.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
    let at = |what: String| format!("{}: {what}", path.display());
    let table: Table = text.parse().map_err(|e| at(format!("{e}")))?;
    let known = ["title", "says", "account", "baselines", "points", "wanted", "twin", "slow"];
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(at(format!("{key}: unknown; known are {}", known.join(", "))));
    }
    let word = |key: &str| {
        table.get(key).and_then(Value::as_str).map(|text| text.trim().to_owned()).ok_or_else(|| at(format!("no {key}")))
    };
    let rows = |key: &str| match table.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(rows)) => {
            rows.iter().map(|row| row.as_table().ok_or_else(|| at(format!("{key}: not a table")))).collect()
        }
        Some(_) => Err(at(format!("{key}: not a list of tables"))),
    };
    let baselines = |key: &str| {
        let of = |row: &Table| -> Result<Baseline, String> {
            let name = row.get("name").and_then(Value::as_str).ok_or_else(|| at(format!("{key}: no name")))?;
            let plan = row.get("plan").and_then(Value::as_table).cloned();
            let point = row.get("nodes").is_some().then(|| point(row)).transpose().map_err(at)?;
            if plan.is_none() && point.is_none() {
                return Err(at(format!("{key}: {name} has neither plan nor nodes")));
            }
            Ok(Baseline { name: name.to_owned(), plan: plan.unwrap_or_default(), point })
        };
        rows(key)?.into_iter().map(of).collect::<Result<Vec<_>, _>>()
    };
    let wanted = |row: &Table| wanted(row).map_err(|what| at(format!("wanted: {what}")));
    Ok(Claim {
        folder: folder.to_owned(),
        title: word("title")?,
        says: word("says")?,
        account: word("account")?,
        baselines: baselines("baselines")?,
        points: rows("points")?.into_iter().map(|row| point(row).map_err(at)).collect::<Result<Vec<_>, _>>()?,
        wanted: rows("wanted")?.into_iter().map(wanted).collect::<Result<Vec<_>, _>>()?,
        twin: baselines("twin")?,
        slow: table
            .get("slow")
            .map_or(Some(false), Value::as_bool)
            .ok_or_else(|| at("slow: neither true nor false".to_owned()))?,
    })
}

fn point(row: &Table) -> Result<Point, String> {
    let nodes = row.get("nodes").and_then(Value::as_str).ok_or("points: no nodes")?;
    let global_batch = row.get("global_batch").and_then(Value::as_integer).ok_or("points: no global_batch")?;
    Ok(Point { nodes: nodes.to_owned(), global_batch })
}

fn wanted(row: &Table) -> Result<Wanted, String> {
    let name = row.get("figure").and_then(Value::as_str).ok_or("no figure")?;
    let figure = Figure::ALL.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure);
    let number = |key: &str| match row.get(key) {
        None => Ok(None),
        Some(Value::Float(number)) => Ok(Some(*number)),
        Some(_) => Err(format!("{key}: not a number with a point")),
    };
    let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
    let wanted = Wanted {
        figure: figure.ok_or_else(|| format!("there is no figure {name:?}"))?,
        baseline: text("baseline"),
        least: number("least")?,
        most: number("most")?,
        missed: text("missed"),
    };
    if wanted.least.is_none() && wanted.most.is_none() {
        return Err(format!("{name}: neither least nor most"));
    }
    Ok(wanted)
}

/// A scenario's file with another `[plan]`, or at another size.
///
/// # Errors
/// What is wrong with the file or the result.
pub fn variant(path: &Path, plan: Option<&Table>, point: Option<&Point>) -> Result<Loaded, String> {
    let text = variant_text(path, plan, point)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    scenario::parse(&path.display().to_string(), &text, folder).map_err(|e| e.to_string())
}

fn variant_text(path: &Path, plan: Option<&Table>, point: Option<&Point>) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut table: Table = text.parse().map_err(|e| format!("{}: {e}", path.display()))?;
    let mut set = |section: &str, key: &str, value: Value| {
        let inner = table.get_mut(section).and_then(Value::as_table_mut);
        inner.map(|inner| inner.insert(key.to_owned(), value)).ok_or_else(|| format!("no [{section}]"))
    };
    if let Some(point) = point {
        set("cluster", "nodes", Value::String(point.nodes.clone()))?;
        set("training", "global_batch", Value::Integer(point.global_batch))?;
    }
    if let Some(plan) = plan {
        table.insert("plan".to_owned(), Value::Table(plan.clone()));
    }
    toml::to_string(&table).map_err(|e| e.to_string())
}

/// Plans and simulates the claim's scenario, its baselines and its points.
///
/// # Errors
/// The first that has no plan.
pub fn simulate(claim: &Claim) -> Result<Found, String> {
    let path = claim.folder.join("scenario.toml");
    let of = |plan: Option<&Table>, point: Option<&Point>| -> Result<Shape, String> {
        let loaded = variant(&path, plan, point)?;
        let report = trainyard::simulate(&loaded, &Context::default()).map_err(|e| e.to_string())?;
        Ok(shape(&loaded, &report))
    };
    let own = of(None, None)?;
    let baselines = claim.baselines.iter().map(|baseline| {
        of(Some(&baseline.plan), None)
            .map(|shape| (baseline.name.clone(), shape))
            .map_err(|e| format!("{}: {e}", baseline.name))
    });
    let baselines = baselines.collect::<Result<Vec<_>, _>>()?;
    let points = claim.points.iter().map(|point| {
        of(None, Some(point)).map(|shape| (point.clone(), shape)).map_err(|e| format!("{}: {e}", point.nodes))
    });
    Ok(Found { own, baselines, points: points.collect::<Result<Vec<_>, _>>()? })
}

/// What a simulated iteration comes to.
#[must_use]
pub fn shape(loaded: &Loaded, report: &SimulateReport) -> Shape {
    let metrics = Metrics::of(&report.program, &report.timeline, None, &[]);
    assert_eq!(metrics.clock, Clock::Simulated);
    let total = metrics.iteration_ns.max(1) as f64;
    // Ranks of one role do the same on devices of one kind.
    let (mut weighted, mut weights) = (0.0, 0.0);
    for lane in &report.timeline.lanes {
        let alone = Timeline { lanes: vec![lane.clone()], ..report.timeline.clone() };
        let busy =
            Metrics::of(&report.program, &alone, None, &[]).stages.iter().map(|stage| stage.busy_ns).sum::<u64>();
        let weight = peak(loaded, report, lane.rank) * f64::from(lane.multiplicity);
        weighted += weight * busy as f64;
        weights += weight * total;
    }
    let ranks = metrics.stages.iter().map(|stage| f64::from(stage.ranks)).sum::<f64>();
    let exposed =
        metrics.stages.iter().map(|stage| stage.exposed_communication_ns as f64 * f64::from(stage.ranks)).sum::<f64>();
    let exposed = exposed / ranks / total;
    let shares = metrics.time.iter().map(|(activity, ns)| (activity, ns as f64 / total)).collect::<Vec<_>>();
    let idle = shares.iter().filter(|(activity, _)| matches!(activity, Activity::Bubble | Activity::InputStall));
    Shape {
        seconds: total * 1e-9,
        rate: report.tokens_per_second_per_device,
        compute: weighted / weights,
        exposed,
        idle: idle.map(|(_, share)| share).sum(),
        communication: metrics.communication.iter().map(|kind| kind.running_ns as f64 * 1e-9).sum(),
        shares,
        plan: report.plan.words.clone(),
    }
}

/// Dense peak of a rank's device in the format of the training.
fn peak(loaded: &Loaded, report: &SimulateReport, rank: Rank) -> f64 {
    let cluster = &loaded.scenario.cluster;
    let kind = cluster.device_kind(cluster.place(report.decided.device(rank)).device_kind);
    let wanted = loaded.scenario.workload.precision;
    let rate = [wanted, Precision::Fp16, Precision::Fp32].into_iter().find_map(|precision| kind.peak(precision));
    rate.map_or(1.0, |rate| rate.get() / kind.slowdown)
}

/// The twin of a claim, priced by a calibration: its own plan first, then its baselines'; nothing if it has none.
///
/// # Errors
/// What is wrong with the files.
pub fn twin(claim: &Claim, calibration: &str) -> Result<Vec<(String, Loaded)>, String> {
    let path = claim.folder.join("twin.toml");
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let own = std::iter::once(("the policy".to_owned(), None, None));
    let others = claim.twin.iter().map(|baseline| {
        (baseline.name.clone(), Some(&baseline.plan).filter(|plan| !plan.is_empty()), baseline.point.as_ref())
    });
    let priced = |(name, plan, point): (String, Option<&Table>, Option<&Point>)| {
        let text = variant_text(&path, plan, point)?;
        let text = format!("{text}\n[cost]\ncalibration = '''\n{calibration}'''\n");
        let loaded = scenario::parse(&path.display().to_string(), &text, &claim.folder).map_err(|e| e.to_string())?;
        Ok((name, loaded))
    };
    own.chain(others).map(priced).collect()
}

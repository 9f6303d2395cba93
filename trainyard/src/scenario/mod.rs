//! Scenario files: what exists, what is trained, who decides.
//!
//! ```toml
//! name = "llama-70b-256-h100"
//! seed = 1
//!
//! [cluster]
//! nodes = "32 x dgx-h100"
//!
//! [model]
//! name = "llama-3.1-70b"
//!
//! [training]
//! sequence_length = 4096
//! global_batch = 512
//!
//! [plan]
//! policy = "megatron"
//! ```
//!
//! Reading finds every problem at once, each with its place. A [`Scenario`] has no defaults left in it;
//! [`Scenario::to_toml`] writes it out, and what it writes reads back to the same value.

mod cluster;
mod collectives;
mod cost;
mod data;
mod emulate;
mod failures;
pub(crate) mod model;
mod objective;
mod plan;
mod print;
pub(crate) mod profiles;
pub(crate) mod run;
mod schema;
mod size;
#[cfg(test)]
mod tests;
mod training;

use std::cell::RefCell;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ir::{Cluster, Model, Problem, Workload};

pub use self::cost::CostChoice;
pub use self::profiles::ProfileChoice;
pub use data::{DataChoice, Documents, ReportChoice, ReportFormat, TextFiles};
pub use failures::{CheckpointChoice, CheckpointInterval, CheckpointStorage, FailureChoice, FailureRate};
pub use objective::{AvoidChoice, ConstraintChoice, Headroom, Measure, Objective, ObjectiveChoice, Paid, Terms};
pub use plan::{Offload, PlanChoice, PlanKeys, PolicyName};
pub(crate) use print::{Draft, Training, differences};
pub use run::{CheckpointFolder, DeviceChoice, OnLoss, RunChoice};
pub use schema::schema;
pub use size::{SizeChoice, SizeQuestion};
pub use training::StackChoice;

use crate::catalog::Catalog;
use crate::error::{Error, InputError};
use crate::read::{Reader, Spans, Table, Value};
use crate::source::Sources;

/// The version of the scenario language that this program reads and writes.
pub const SCHEMA_VERSION: u64 = 1;
/// A larger file is not a scenario, a configuration or a schedule.
const LARGEST_FILE: u64 = 64 << 20;

/// A scenario with every name resolved and every default written.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is for, in a sentence.
    pub description: String,
    /// What exists, emulation applied.
    pub cluster: Cluster,
    /// What is trained.
    pub model: Model,
    /// How; its seed is the scenario's.
    pub workload: Workload,
    /// In what software.
    pub stack: StackChoice,
    /// The plan, or who decides it.
    pub plan: PlanChoice,
    /// What a policy makes small.
    pub objective: ObjectiveChoice,
    /// What its plan must keep to.
    pub constraints: ConstraintChoice,
    /// On what durations rest.
    pub cost: CostChoice,
    /// What a run trains on.
    pub data: DataChoice,
    /// How `run` and `launch` carry it out.
    pub run: RunChoice,
    /// What is written.
    pub report: ReportChoice,
    /// What is to be reached, for `size`.
    pub size: Option<SizeChoice>,
    /// How a run of months saves what it did.
    pub checkpoint: Option<CheckpointChoice>,
    /// What stops it; never without checkpoints.
    pub failures: Option<FailureChoice>,
}

/// A scenario with the texts that it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The scenario.
    pub scenario: Scenario,
    /// Every file that was read.
    pub sources: Sources,
    spans: Spans,
}

impl Loaded {
    /// Gives each problem the place of the key that it is about, where that key is written.
    #[must_use]
    pub fn place(&self, problems: Vec<Problem>) -> Vec<Problem> {
        problems.into_iter().map(|problem| crate::read::place(&self.spans, problem)).collect()
    }
    /// The same with another policy, which keeps to what the scenario's own must keep to; a plan that was written binds nothing.
    #[must_use]
    pub fn decided_by(mut self, policy: PolicyName) -> Self {
        let keys = match self.scenario.plan {
            PlanChoice::Policy(_, keys) => keys,
            PlanChoice::Written(_) => Box::default(),
        };
        self.scenario.plan = PlanChoice::Policy(policy, keys);
        self
    }
    /// The same with something else made small.
    #[must_use]
    pub const fn minimising(mut self, objective: Objective) -> Self {
        self.scenario.objective.minimise = objective;
        self
    }
    /// The same with a front of plans that no other beats in all of these.
    #[must_use]
    pub fn weighing(mut self, measures: Vec<Measure>) -> Self {
        self.scenario.objective.pareto = measures;
        self
    }
    /// An input error of these problems, with their places.
    #[must_use]
    pub fn error(&self, problems: Vec<Problem>) -> Error {
        Error::Input(InputError { problems: self.place(problems), sources: self.sources.clone() })
    }
}

/// The files around a scenario: where relative paths start, what was read, and what was wrong there.
#[derive(Debug)]
pub(crate) struct Sight<'a> {
    base: &'a Path,
    sources: RefCell<Sources>,
    problems: RefCell<Vec<Problem>>,
}

impl Sight<'_> {
    /// Reads a text file; what prevents it is noted at `value`. Gives its name for problems and its text.
    pub(crate) fn read(&self, path: &Path, value: &Value<'_>) -> Option<(String, String)> {
        let full = self.base.join(path);
        match read_text(&full) {
            Ok(text) => {
                let name = full.display().to_string();
                self.sources.borrow_mut().add(name.clone(), text.clone());
                Some((name, text))
            }
            Err(what) => {
                value.problem(format!("cannot read {}: {what}", full.display()), None);
                None
            }
        }
    }
    pub(crate) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }
}

/// A text file of at most [`LARGEST_FILE`] bytes.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let kind = file.metadata().map_err(|e| e.to_string())?;
    if kind.is_dir() {
        return Err("it is a folder".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(format!("it is larger than {} MiB", LARGEST_FILE >> 20));
    }
    String::from_utf8(bytes).map_err(|e| format!("it is not text (byte {} is not UTF-8)", e.utf8_error().valid_up_to()))
}

/// Reads a scenario file, or `scenario.toml` of a folder.
///
/// # Errors
/// Every problem of the file and of the files that it names.
pub fn load(path: &Path) -> Result<Loaded, Error> {
    let (file, base) = folder_of(path);
    let text = read_text(&file).map_err(|what| {
        let problem = Problem::new(file.display().to_string(), format!("cannot read the scenario: {what}"));
        Error::Input(InputError { problems: vec![problem], sources: Sources::default() })
    })?;
    let mut loaded = parse(&file.display().to_string(), &text, &base)?;
    if loaded.scenario.name.is_empty() {
        loaded.scenario.name = name_of(&file);
    }
    Ok(loaded)
}

/// A scenario's file, and the folder where its relative paths start.
pub(crate) fn folder_of(path: &Path) -> (PathBuf, PathBuf) {
    let file = if path.is_dir() { path.join("scenario.toml") } else { path.to_owned() };
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    (file, folder)
}

/// The name of a scenario that has none: its folder's if the file is called `scenario.toml`, else the file's.
pub(crate) fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = absolute.parent().and_then(Path::file_name);
    let name = if stem == "scenario" { folder.unwrap_or(stem) } else { stem };
    name.to_string_lossy().into_owned()
}

/// Reads a scenario from its text; `base` is where relative paths start.
///
/// # Errors
/// Every problem of the text and of the files that it names.
pub fn parse(file: &str, text: &str, base: &Path) -> Result<Loaded, Error> {
    let text = text.trim_start_matches('\u{feff}');
    let sight = Sight { base, sources: RefCell::default(), problems: RefCell::default() };
    sight.sources.borrow_mut().add(file, text);
    let (scenario, mut problems, spans) = Reader::new(file).read(text, |root| resolve(root, &sight));
    problems.extend(sight.problems.into_inner());
    let sources = sight.sources.into_inner();
    match scenario {
        Some(scenario) if problems.is_empty() => Ok(Loaded { scenario, sources, spans }),
        _ => {
            assert!(!problems.is_empty(), "a scenario that cannot be read and has no problem:\n{text}");
            Err(Error::Input(InputError { problems, sources }))
        }
    }
}

fn resolve(root: &Table<'_>, sight: &Sight<'_>) -> Option<Scenario> {
    if let Some(version) = root.get("schema_version")
        && let Some(found) = version.integer(0..=u64::MAX)
        && found != SCHEMA_VERSION
    {
        version.problem(format!("this program reads version {SCHEMA_VERSION} of the scenario language"), None);
    }
    let text = |key| root.get(key).map_or(Some(""), |v| v.text()).map(str::to_owned);
    let (name, description) = (text("name"), text("description"));
    // The largest seed is what TOML can write down.
    let seed = root.get("seed").map_or(Some(0), |v| v.integer(0..=u64::MAX >> 1));
    let mut catalog = Catalog::embedded();
    if let Some(files) = root.get("catalogs").and_then(|v| v.list()) {
        for value in &files {
            if let Some((name, text)) = value.text().and_then(|path| sight.read(Path::new(path), value)) {
                catalog.add_text(&name, &text, Some(sight)).into_iter().for_each(|problem| sight.report(problem));
            }
        }
    }
    catalog.add_tables(root, Some(sight));
    let cluster = emulate::apply(root, cluster::read(root, &catalog, sight));
    let model = model::read(root, &catalog, sight);
    let training = training::read(root, cluster.as_ref(), seed.unwrap_or(0));
    let (workload, stack) = training.unzip();
    if let (Some(model), Some(workload)) = (&model, &workload) {
        let problems = workload.problems().into_iter().chain(workload.problems_with(model));
        problems.for_each(|problem| root.reader.report_placed(problem));
    }
    let plan = plan::read(root, cluster.as_ref(), model.as_ref(), workload.as_ref(), sight);
    let objective = objective::read(root);
    let constraints = objective::read_constraints(root, cluster.as_ref());
    if let (Some(objective), Some(constraints), Some(cluster)) = (&objective, &constraints, &cluster) {
        objective::agree(root, (objective, constraints), plan.as_ref(), cluster, workload.as_ref());
    }
    let cost = self::cost::read(root, sight, cluster.as_ref(), stack.as_ref().is_none_or(|stack| stack.name.is_some()));
    let (cost, catalog_of_stacks) = cost.unzip();
    let data = data::read(root, sight);
    let run = run::read(root, sight);
    let report = data::read_report(root);
    let size = size::read(root, &catalog, cluster.as_ref());
    let (checkpoint, failures) = failures::read(root, cluster.as_ref());
    seed?;
    Some(Scenario {
        name: name?,
        description: description?,
        cluster: cluster?,
        model: model?,
        workload: workload?,
        stack: StackChoice { catalog: catalog_of_stacks?, ..stack? },
        plan: plan?,
        objective: objective?,
        constraints: constraints?,
        cost: cost?,
        data: data?,
        run: run?,
        report: report?,
        size: size?,
        checkpoint: checkpoint?,
        failures: failures?,
    })
}

//! Plans that others measured, predicted by a scenario's model, cluster and profiles: `validate --plans`.

use std::path::{Path, PathBuf};

use formats::sailor::{self, SailorPlan};
use ir::{Activity, Problem};
use serde::Serialize;

use crate::error::InputError;
use crate::job::Job;
use crate::progress::Context;
use crate::scenario::{self, Loaded, PlanChoice};
use crate::source::Sources;
use crate::{Error, results};

mod faults;
mod memory;
mod page;
pub(crate) mod place;

use faults::{Named, doubts};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct PlansRequest<'a> {
    /// The scenario: its cluster, model, training and profiles. Batch and plan are those of each file.
    pub scenario: &'a Path,
    /// A measured plan, or a folder of them and of folders.
    pub plans: &'a Path,
    /// Sizes of layers, for memory, as Sailor has them; the model in it is the only one or that of the plans' folder.
    pub layers: Option<&'a Path>,
}

/// One measured plan and what was predicted of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanRow {
    /// Its file, from the folder on.
    pub name: String,
    /// Stages, replicas, tensor degree, microbatch size, microbatches of a replica.
    pub degrees: [u32; 5],
    /// Measured seconds of an iteration.
    pub measured_s: f64,
    /// Predicted.
    pub predicted_s: Option<f64>,
    /// Predicted over measured, less one.
    pub error: Option<f64>,
    /// Measured seconds of the reduction of gradients.
    pub measured_reduction_s: Option<f64>,
    /// Predicted.
    pub predicted_reduction_s: Option<f64>,
    /// Measured bytes.
    pub measured_bytes: Option<u64>,
    /// Predicted by layers of others' sizes and a runtime of other groups.
    pub predicted_bytes: Option<u64>,
    /// Predicted over measured, less one.
    pub memory_error: Option<f64>,
    /// Why figures of it are doubted, and why it has no prediction.
    pub notes: Vec<String>,
    /// Whether its time counts.
    pub time_counts: bool,
    /// Whether its reduction counts.
    pub reduction_counts: bool,
    /// Whether its memory counts.
    pub memory_counts: bool,
}

/// Errors of several rows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Errors {
    /// Rows.
    pub rows: usize,
    /// Mean of absolute errors.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// The largest.
    pub worst: f64,
}

/// All of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlansReport {
    /// Each plan, in the order of its name.
    pub rows: Vec<PlanRow>,
    /// Of iterations.
    pub time: Option<Errors>,
    /// Of reductions.
    pub reduction: Option<Errors>,
    /// Of memory.
    pub memory: Option<Errors>,
    /// Points of profiles that others contradict, and what is missing of them.
    pub profiles: Vec<String>,
    /// The command, as it is written.
    pub command: String,
}

/// Files of plans are small; a folder with more is another folder.
const MOST_FILES: usize = 10_000;
/// Folders deeper than any of plans.
const DEEPEST: usize = 16;

/// Predicts each measured plan.
///
/// # Errors
/// Files that cannot be read, or that are no plans or no sizes of layers, all at once; a scenario that is wrong. A plan that
/// cannot be predicted is no error: its row says why.
pub fn validate_plans(request: &PlansRequest<'_>, context: &Context<'_>) -> Result<PlansReport, Error> {
    let loaded = scenario::load(request.scenario)?;
    let job = Job::new(&loaded, None)?;
    let mut sources = Sources::default();
    let mut problems = Vec::new();
    let named = read(request.plans, &loaded, &mut sources, &mut problems)?;
    let sizes = match request.layers {
        Some(file) => sizes(file, &loaded, &mut sources, &mut problems)?,
        None => memory::Sizes::new(),
    };
    if !problems.is_empty() {
        return Err(Error::Input(InputError { problems, sources }));
    }
    let doubted = doubts(&named);
    let tensors: Vec<Option<u64>> = named.iter().map(|row| memory::tensors(&row.plan, &sizes)).collect();
    let sound: Vec<(&Named, u64)> = named
        .iter()
        .zip(&tensors)
        .zip(&doubted)
        .filter(|(_, (doubt, _))| !doubt.duplicate && !doubt.memory)
        .filter_map(|((row, tensors), _)| Some((row, (*tensors)?)))
        .collect();
    let mut rows = Vec::new();
    for (place, (row, (doubt, why))) in named.iter().zip(doubted).enumerate() {
        context.step("predict", place as u64, named.len() as u64, row.name.clone())?;
        let bytes = tensors[place].and_then(|tensors| Some(tensors + memory::runtime(&row.plan, &sound)?));
        let mut found = predicted(&loaded, row, bytes, context);
        found.notes.splice(0..0, why);
        found.time_counts = !doubt.duplicate && !doubt.iteration;
        found.reduction_counts = !doubt.duplicate && !doubt.reduction;
        found.memory_counts = !doubt.duplicate && !doubt.memory;
        rows.push(found);
    }
    let mut profiles = job.cost.replaced_points();
    profiles.extend(gaps(&loaded));
    Ok(report(rows, profiles, request))
}

fn report(rows: Vec<PlanRow>, profiles: Vec<String>, request: &PlansRequest<'_>) -> PlansReport {
    let time = errors(rows.iter().filter(|row| row.time_counts).filter_map(|row| row.error));
    let of_reduction = |row: &PlanRow| {
        let measured = row.measured_reduction_s.filter(|measured| *measured > 0.0 && row.degrees[1] > 1)?;
        Some(row.predicted_reduction_s? / measured - 1.0)
    };
    let reduction = errors(rows.iter().filter(|row| row.reduction_counts).filter_map(of_reduction));
    let memory = errors(rows.iter().filter(|row| row.memory_counts).filter_map(|row| row.memory_error));
    let layers = request.layers.map(|file| format!(" --layers {}", file.display())).unwrap_or_default();
    let command = format!(
        "trainyard validate --plans {} --scenario {}{layers}",
        request.plans.display(),
        request.scenario.display()
    );
    PlansReport { rows, time, reduction, memory, profiles, command }
}

fn gaps(loaded: &Loaded) -> Vec<String> {
    let scenario::CostChoice::Calibration { profiles, .. } = &loaded.scenario.cost else { return Vec::new() };
    let of = |choice: &scenario::ProfileChoice| -> Vec<String> {
        choice.gaps.iter().map(|gap| format!("{}: {gap}", choice.profile.source)).collect()
    };
    profiles.iter().flat_map(of).collect()
}

/// The prediction of one plan.
fn predicted(loaded: &Loaded, row: &Named, bytes: Option<u64>, context: &Context<'_>) -> PlanRow {
    let measured = row.measured;
    let mut found = PlanRow {
        name: row.name.clone(),
        degrees: degrees(&row.plan),
        measured_s: measured.iteration,
        predicted_s: None,
        error: None,
        measured_reduction_s: measured.reduction,
        predicted_reduction_s: None,
        measured_bytes: measured.memory,
        predicted_bytes: bytes,
        memory_error: measured.memory.zip(bytes).map(|(measured, predicted)| predicted as f64 / measured as f64 - 1.0),
        notes: Vec::new(),
        time_counts: true,
        reduction_counts: true,
        memory_counts: true,
    };
    let mut job = loaded.clone();
    match of_ours(&row.plan, loaded) {
        Ok(plan) => {
            job.scenario.workload.global_batch = row.plan.batch.unwrap_or(job.scenario.workload.global_batch);
            job.scenario.plan = PlanChoice::Written(plan);
        }
        Err(problems) => {
            found.notes.extend(problems.iter().map(ToString::to_string));
            return found;
        }
    }
    match Job::new(&job, None).and_then(|job| job.decide(context)) {
        Ok(decision) => {
            let seconds = decision.prediction.iteration.seconds();
            found.predicted_s = Some(seconds);
            found.error = Some(seconds / measured.iteration - 1.0);
            found.predicted_reduction_s = Some(decision.prediction.breakdown.of(Activity::Data).seconds());
        }
        Err(error) => found.notes.push(error.to_string()),
    }
    found
}

/// The plan as ours, with the device of each rank.
pub(crate) fn of_ours(plan: &SailorPlan, loaded: &Loaded) -> Result<ir::Plan, Vec<Problem>> {
    let mut ours = plan.divide(&loaded.scenario.model, None)?;
    ours.placement = place::placement(plan, &loaded.scenario.cluster)?;
    Ok(ours)
}

fn degrees(plan: &SailorPlan) -> [u32; 5] {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let Some(pipeline) = plan.pipelines.first() else { return [0; 5] };
    let replicas = count(pipeline.replicas[0].len());
    let step = plan.microbatch.saturating_mul(replicas).max(1);
    let microbatches = plan.batch.map_or(0, |batch| batch / step);
    [count(pipeline.layers.len()), replicas, pipeline.replicas[0][0].tensor, plan.microbatch, microbatches]
}

fn errors(each: impl Iterator<Item = f64>) -> Option<Errors> {
    let mut sorted: Vec<f64> = each.map(f64::abs).collect();
    sorted.sort_by(f64::total_cmp);
    let (rows, worst) = (sorted.len(), *sorted.last()?);
    let middle = (sorted[(rows - 1) / 2] + sorted[rows / 2]) / 2.0;
    Some(Errors { rows, mean: sorted.iter().sum::<f64>() / rows as f64, median: middle, worst })
}

/// Every measured plan of a file or folder, in the order of names; plans without measurements are none.
fn read(path: &Path, loaded: &Loaded, sources: &mut Sources, problems: &mut Vec<Problem>) -> Result<Vec<Named>, Error> {
    let mut files = Vec::new();
    collect(path, 0, &mut files)?;
    files.sort();
    let mut named = Vec::new();
    for file in &files {
        let text = scenario::read_text(file).map_err(|what| Error::files(file, format!("cannot read it: {what}")))?;
        let shown = file.display().to_string();
        sources.add(shown.clone(), text.clone());
        match sailor::plan(&text, &shown) {
            Err(found) => problems.extend(found),
            Ok(plan) => {
                let Some(measured) = plan.measured else { continue };
                let name = file.strip_prefix(path).ok().filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(file);
                let name = name.with_extension("").display().to_string();
                let capacity = capacity(&plan, loaded);
                named.push(Named { name, plan, measured, capacity });
            }
        }
    }
    if named.is_empty() && problems.is_empty() {
        let problem = Problem::new(path.display().to_string(), "has no measured plan");
        return Err(Error::problem(problem.hint("files of plans with `real`, the seconds of an iteration")));
    }
    Ok(named)
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let failed = |error: std::io::Error| Error::files(path, format!("cannot read it: {error}"));
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let inner = entry.map_err(failed)?.path();
        if inner.is_dir() && depth < DEEPEST {
            collect(&inner, depth + 1, files)?;
        } else if inner.extension().is_some_and(|ending| ending == "json") && files.len() < MOST_FILES {
            files.push(inner);
        }
    }
    Ok(())
}

/// Bytes of the smallest device of a plan, as far as the cluster has them.
fn capacity(plan: &SailorPlan, loaded: &Loaded) -> Option<u64> {
    let of = |device: &str| {
        let mut kinds = loaded.scenario.cluster.device_kinds.iter();
        kinds.find(|kind| kind.name == device || sailor::device(&kind.name) == device).map(|kind| kind.memory.get())
    };
    plan.places().filter_map(|replica| of(&replica.nodes[0].device)).min()
}

/// Sizes of the layers of the scenario's model: of the only model of a file, or of the one with its number of layers and
/// parameters.
fn sizes(
    file: &Path,
    loaded: &Loaded,
    sources: &mut Sources,
    problems: &mut Vec<Problem>,
) -> Result<memory::Sizes, Error> {
    let text = scenario::read_text(file).map_err(|what| Error::files(file, format!("cannot read it: {what}")))?;
    let shown = file.display().to_string();
    sources.add(shown.clone(), text.clone());
    let models = match sailor::layers(&text, &shown) {
        Ok(models) => models,
        Err(found) => {
            problems.extend(found);
            return Ok(memory::Sizes::new());
        }
    };
    let model = &loaded.scenario.model;
    let layers = model.layers as usize;
    let parameters = model.parameters() as f64;
    // Paddings of vocabularies and heads that share weights differ from ours by a little.
    let is_it = |sizes: &&memory::Sizes| {
        sizes.iter().next().is_some_and(|(degree, of)| {
            let held: u64 = of.iter().map(|layer| layer.parameters).sum();
            let ratio = held as f64 * f64::from(*degree) / parameters;
            (of.len() == layers + 2 || of.len() == layers + 3) && (0.85..=1.2).contains(&ratio)
        })
    };
    let mut found = models.values().filter(is_it);
    if let (Some(one), None) = (found.next(), found.next()) {
        return Ok(one.clone());
    }
    let names: Vec<&str> = models.keys().map(String::as_str).collect();
    let message = format!("has no layers, or several, with the sizes of {} ({})", model.name, names.join(", "));
    problems.push(Problem::new(shown, message).hint("the file of the scenario's model"));
    Ok(memory::Sizes::new())
}

impl PlansReport {
    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        results::json(self)
    }
    /// As a page of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        page::markdown(self)
    }
}

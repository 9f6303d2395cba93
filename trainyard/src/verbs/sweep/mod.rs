//! `sweep`: many variations of one scenario, on all cores, into one long table.

mod evaluate;
mod points;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ir::Problem;
use rayon::prelude::*;
use reports::sweep::{
    ColumnKind, HeatMapChoice, Objective, ScalingChoice, SweepColumn, SweepPoint, SweepReport, SweepSchema,
};
use reports::unit::Unit;
use toml::Value;

pub use self::points::Vary;

use self::evaluate::{Base, cell, columns, kind, objective, paths};
use self::points::Points;
use self::store::Store;
use crate::results::{Header, SweepResult};
use crate::scenario::{folder_of, read_text};
use crate::{Context, Error};

/// Points that one core evaluates at a time: enough that they share what they have in common.
const TOGETHER: u64 = 128;
/// Points between two writes to the disk, for each core.
const BETWEEN_WRITES: u64 = 2 * TOGETHER;

/// Which points.
#[derive(Clone, PartialEq, Debug)]
pub enum SweepPoints {
    /// Every combination of the values of keys.
    Grid(Vec<Vary>),
    /// So many draws from the values of keys, with a seed.
    Random {
        /// The keys.
        vary: Vec<Vary>,
        /// How many.
        count: u64,
        /// The seed.
        seed: u64,
    },
    /// The rows of a CSV file, whose headings are keys.
    List(PathBuf),
}

/// What `sweep` is asked.
#[derive(Clone, Debug)]
pub struct SweepRequest<'a> {
    /// The scenario that is varied: a file, or a folder with a `scenario.toml`.
    pub scenario: &'a Path,
    /// Which points.
    pub points: SweepPoints,
    /// Whether each is simulated; else the closed form predicts it.
    pub simulate: bool,
    /// The folder for the table and its page. A sweep that was stopped goes on where it was.
    pub folder: &'a Path,
}

/// Evaluates every point of a sweep and writes it. Rows are in the order of the points whatever the cores did first.
///
/// # Errors
/// [`Error::Input`] if the keys are not those of a scenario or the folder holds another sweep; [`Error::Interrupted`] if
/// the person asked to stop: what was done so far is then in the folder. What is wrong with a point is its row's reason.
pub fn sweep(request: &SweepRequest<'_>, context: &Context<'_>) -> Result<SweepResult, Error> {
    let (file, folder) = folder_of(request.scenario);
    let text = read_text(&file).map_err(|what| Error::files(&file, format!("cannot read the scenario: {what}")))?;
    let base = base(request, &file, &folder, &text, context)?;
    let kinds: Vec<ColumnKind> = (0..base.paths.len()).map(|key| kind(&base.points.known(key))).collect();
    let keys = base.points.keys.iter().zip(&kinds).map(|(key, kind)| SweepColumn::new(key, *kind, Unit::Plain));
    let schema = SweepSchema::new(keys.collect(), columns(base.checkpoints)).map_err(Error::input)?;
    let mut report = report(&base, &kinds, &schema, request)?;
    let mut store = Store::open(request.folder, &definition(request, &text), schema, &mut report)?;
    let (total, begun) = (base.points.len(), report.points());
    let mut feasible = 0;
    while report.points() < total {
        context.step("sweep", report.points(), total, "")?;
        let batch = batch(&base, report.points(), &kinds)?;
        store.push(&batch)?;
        feasible += batch.iter().filter(|point| fits(point)).count() as u64;
        batch.iter().for_each(|point| report.push(point));
    }
    context.step("sweep", total, total, "")?;
    let files = store.finish(&report)?;
    Ok(SweepResult {
        header: Header::new("sweep", &name(&file, &base)),
        points: total,
        resumed_at: begun,
        evaluated: total - begun,
        fitting: feasible,
        evaluator: if request.simulate { "simulator" } else { "closed-form" },
        page: report.document(),
        files: files.iter().map(|file| file.display().to_string()).collect(),
    })
}

/// Whether a point has a time.
fn fits(point: &SweepPoint) -> bool {
    point.result(0).is_some_and(|seconds| seconds.number().is_some())
}

/// The next points: of as many cores as there are, in order.
fn batch(base: &Base<'_>, first: u64, kinds: &[ColumnKind]) -> Result<Vec<SweepPoint>, Error> {
    let cores = rayon::current_num_threads() as u64;
    let end = base.points.len().min(first + cores * BETWEEN_WRITES);
    let starts: Vec<u64> = (first..end).step_by(usize::try_from(TOGETHER).expect("small")).collect();
    let parts: Vec<Result<Vec<SweepPoint>, Error>> =
        starts.into_par_iter().map(|start| base.evaluate(start..end.min(start + TOGETHER), kinds)).collect();
    let parts: Vec<Vec<SweepPoint>> = parts.into_iter().collect::<Result<_, _>>()?;
    Ok(parts.into_iter().flatten().collect())
}

/// The scenario with the points, once it is sure that the keys exist.
fn base<'a>(
    request: &SweepRequest<'_>,
    file: &Path,
    folder: &'a Path,
    text: &str,
    context: &Context<'_>,
) -> Result<Base<'a>, Error> {
    let points = match &request.points {
        SweepPoints::Grid(vary) => Points::vary(vary, None),
        SweepPoints::Random { vary, count, seed } => Points::vary(vary, Some((*count, *seed))),
        SweepPoints::List(list) => {
            let rows = read_text(list).map_err(|what| Error::files(list, format!("cannot read the list: {what}")))?;
            Points::list(&list.display().to_string(), &rows)
        }
    };
    let points = points.map_err(Error::input)?;
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        // Read as a scenario, it says where.
        crate::scenario::load(file).err().unwrap_or_else(|| Error::files(file, error))
    })?;
    let paths = paths(&points);
    let interrupt = Arc::clone(&context.interrupt);
    let of_checkpoints = |path: &Vec<String>| path.first().is_some_and(|section| section == "checkpoint");
    let checkpoints = table.contains_key("checkpoint") || paths.iter().any(of_checkpoints);
    let base = Base { table, folder, points, paths, simulate: request.simulate, checkpoints, interrupt };
    let Err(Error::Input(first)) = base.scenario(&base.points.at(0)) else { return Ok(base) };
    let unknown = |problem: &Problem| problem.message == crate::read::UNKNOWN;
    let unknown: Vec<Problem> =
        first.problems.into_iter().filter(unknown).map(|p| Problem { span: None, ..p }).collect();
    if unknown.is_empty() { Ok(base) } else { Err(Error::input(unknown)) }
}

/// What says of a folder which sweep it holds.
fn definition(request: &SweepRequest<'_>, scenario: &str) -> String {
    let points = match &request.points {
        SweepPoints::Grid(vary) => format!("{vary:?}"),
        SweepPoints::Random { vary, count, seed } => format!("{count} draws with seed {seed} of {vary:?}"),
        SweepPoints::List(path) => format!("the rows of {}", path.display()),
    };
    let evaluator = if request.simulate { "simulator" } else { "closed form" };
    let table = toml::Table::from_iter([
        ("version".to_owned(), Value::String(env!("CARGO_PKG_VERSION").to_owned())),
        ("points".to_owned(), Value::String(points)),
        ("evaluator".to_owned(), Value::String(evaluator.to_owned())),
        ("scenario".to_owned(), Value::String(scenario.to_owned())),
    ]);
    toml::to_string(&table).expect("plain texts")
}

fn name(file: &Path, base: &Base<'_>) -> String {
    let written = base.table.get("name").and_then(Value::as_str);
    written.map_or_else(|| crate::scenario::name_of(file), str::to_owned)
}

/// The page: a heat map of each two keys that follow each other, and a curve over the first key of whole numbers.
fn report(
    base: &Base<'_>,
    kinds: &[ColumnKind],
    schema: &SweepSchema,
    request: &SweepRequest<'_>,
) -> Result<SweepReport, Error> {
    let varied: Vec<usize> = (0..kinds.len()).filter(|key| several(&base.points.known(*key))).collect();
    let keys = &base.points.keys;
    let heat_maps: Vec<HeatMapChoice> = varied
        .windows(2)
        .take(MOST_PICTURES)
        .map(|pair| HeatMapChoice { x: keys[pair[1]].clone(), y: keys[pair[0]].clone() })
        .collect();
    let positive = |key: &usize| {
        let cells: Vec<_> =
            base.points.known(*key).iter().map(|value| cell(Some(value), kinds[*key]).number()).collect();
        cells.iter().all(|number| number.is_some_and(|number| number > 0.0))
    };
    let scalings: Vec<ScalingChoice> = varied
        .iter()
        .filter(|key| positive(key))
        .take(MOST_PICTURES)
        .map(|key| ScalingChoice {
            x: keys[*key].clone(),
            result: objective(base.checkpoints).to_owned(),
            lowest: false,
            series: varied
                .iter()
                .find(|other| *other != key && few(&base.points.known(**other)))
                .map(|other| keys[*other].clone()),
        })
        .collect();
    let objective = Objective { result: objective(base.checkpoints).to_owned(), lowest: false };
    let mut report = SweepReport::new(schema.clone(), &objective, &heat_maps, &scalings).map_err(Error::input)?;
    report.title = format!("{}: {} points", name(&request.scenario.join(""), base), base.points.len());
    report.description = format!("Every point is the scenario with these keys set: {}.", keys.join(", "));
    let evaluator = if request.simulate { "the simulator" } else { "the closed form" };
    report.assumptions = vec![
        ("trainyard".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("predicted by".to_owned(), evaluator.to_owned()),
    ];
    Ok(report)
}

/// Pictures of a kind that a page has.
const MOST_PICTURES: usize = 3;
/// Curves that a picture shows side by side.
const MOST_SERIES: usize = 6;

fn several(values: &[Value]) -> bool {
    values.iter().any(|value| *value != values[0])
}

fn few(values: &[Value]) -> bool {
    let mut distinct: Vec<&Value> = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
        if distinct.len() > MOST_SERIES {
            return false;
        }
    }
    true
}

//! `ablate`: policies held against each other over scenarios and seeds, on all cores and in parts.

mod cells;
mod definition;
mod merge;
mod store;

use std::path::{Path, PathBuf};

use ir::Problem;
use reports::ablation::Contender;

pub use self::definition::{Seeds, Shard};
pub use self::merge::merge_ablations;

use self::cells::World;
use self::definition::{Definition, Given, Wanted};
use self::store::{Cells, Store, ablation};
use crate::error::InputError;
use crate::job::cost_model;
use crate::results::{AblateResult, AblationScores, Header};
use crate::scenario::{Loaded, PolicyName, load};
use crate::source::Sources;
use crate::{Context, Error};

/// What `ablate` is asked.
#[derive(Clone, Debug)]
pub struct AblateRequest<'a> {
    /// Scenario files, or folders with a `scenario.toml`. Their policies and written plans give way; what a policy must
    /// keep to stays.
    pub scenarios: &'a [PathBuf],
    /// The policies.
    pub policies: &'a [PolicyName],
    /// The policy that times are held against; the first of them without.
    pub baseline: Option<PolicyName>,
    /// Seeds of the policies that draw.
    pub seeds: &'a Seeds,
    /// Evaluations that each may use.
    pub budget: u64,
    /// The part of the cells to make; all of them without.
    pub shard: Option<Shard>,
    /// The folder for cells and pages. What was stopped there goes on.
    pub folder: &'a Path,
}

/// Makes every cell, or those of a shard, and writes them; of a whole ablation, tables, page and pictures too.
///
/// # Errors
/// [`Error::Input`] if a scenario cannot be read, a name stands twice, or the folder holds cells of another ablation;
/// [`Error::Interrupted`] if the person asked to stop: what was done so far is then in the folder. What is wrong with a
/// cell is its outcome.
pub fn ablate(request: &AblateRequest<'_>, context: &Context<'_>) -> Result<AblateResult, Error> {
    let loaded = scenarios(request.scenarios)?;
    let definition = definition(request, &loaded)?;
    let worlds: Vec<World> = loaded
        .into_iter()
        .map(|loaded| Ok(World { cost: cost_model(&loaded, None)?, loaded }))
        .collect::<Result<_, Error>>()?;
    let own = definition.own().map_err(Error::problem)?;
    let mut store = Store::open(request.folder, definition.clone(), &own)?;
    let resumed = store.cells.len();
    let open: Vec<(usize, Wanted)> = own.into_iter().filter(|(place, _)| !store.cells.contains_key(place)).collect();
    cells::make(&worlds, &definition, &open, &mut store, context)?;
    let (cells, files) = store.finish()?;
    let evaluated = (cells.len() - resumed) as u64;
    Ok(AblateResult { resumed: resumed as u64, evaluated, ..whole(&definition, &cells, &files) })
}

/// The result of cells that are all there, or all of a shard.
fn whole(definition: &Definition, cells: &Cells, files: &[PathBuf]) -> AblateResult {
    let ablation = ablation(definition, cells);
    let done = definition.shard.is_none();
    AblateResult {
        header: Header::new("ablate", ""),
        shard: definition.shard.clone(),
        cells: definition.all().len() as u64,
        here: cells.len() as u64,
        resumed: 0,
        evaluated: 0,
        without_plan: cells.values().filter(|cell| cell.planned().is_none()).count() as u64,
        scores: done.then(|| AblationScores::of(&ablation)),
        page: done.then(|| ablation.document()),
        files: files.iter().map(|file| file.display().to_string()).collect(),
    }
}

/// Reads the scenarios; every problem of every one is reported at once.
fn scenarios(paths: &[PathBuf]) -> Result<Vec<Loaded>, Error> {
    let (mut read, mut problems, mut sources) = (Vec::new(), Vec::new(), Sources::default());
    for path in paths {
        match load(path) {
            Ok(loaded) => read.push(loaded),
            Err(Error::Input(error)) => {
                problems.extend(error.problems);
                sources.extend(error.sources);
            }
            Err(other) => return Err(other),
        }
    }
    let names: Vec<&str> = read.iter().map(|loaded| loaded.scenario.name.as_str()).collect();
    problems.extend(twice("scenario", &names).map(|problem| problem.hint("give each a `name` of its own")));
    if problems.is_empty() { Ok(read) } else { Err(Error::Input(InputError { problems, sources })) }
}

/// Names that stand more than once.
fn twice<'a>(what: &'a str, names: &'a [&str]) -> impl Iterator<Item = Problem> + 'a {
    let again = names.iter().enumerate().filter(|(at, name)| {
        let before = |count: usize| names[..count].iter().filter(|other| other == name).count();
        before(*at) == 1
    });
    again.map(move |(_, name)| Problem::new(format!("{what} {name}"), "stands twice"))
}

fn definition(request: &AblateRequest<'_>, loaded: &[Loaded]) -> Result<Definition, Error> {
    let names: Vec<&str> = request.policies.iter().map(|policy| policy.name()).collect();
    let mut problems: Vec<Problem> = twice("policy", &names).collect();
    let baseline = request.baseline.or(request.policies.first().copied());
    let Some(baseline) = baseline else {
        return Err(Error::problem(Problem::new("policies", "there is none to hold against another")));
    };
    if !request.policies.contains(&baseline) {
        let problem = Problem::new("baseline", format!("{} is none of the policies", baseline.name()));
        problems.push(problem.hint(format!("one of {}", names.join(", "))));
    }
    if !problems.is_empty() {
        return Err(Error::input(problems));
    }
    Ok(Definition {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: definition::build()?,
        baseline: baseline.name().to_owned(),
        budget: request.budget,
        seeds: request.seeds.0.clone(),
        shard: request.shard.map(|shard| shard.to_string()),
        policies: request
            .policies
            .iter()
            .map(|policy| Contender { name: policy.name().to_owned(), draws: policy.draws() })
            .collect(),
        scenarios: loaded
            .iter()
            .map(|loaded| Given { name: loaded.scenario.name.clone(), input: definition::input(loaded) })
            .collect(),
    })
}

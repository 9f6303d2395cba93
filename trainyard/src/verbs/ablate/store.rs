//! The folder of an ablation: what it is, its cells as they come, and what is made of all of them.
//!
//! `ablation.toml` says what the ablation is. `cells.jsonl` grows by whole lines in whatever order cells end, so that
//! one that was stopped, by whatever, goes on with what is missing; at the end it is written anew, in order. A cell
//! counts only for the scenario text, budget and program that it was made with.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ir::{Problem, SourceSpan};
use reports::ablation::{Ablation, Cell};

use super::definition::{Definition, Line, Wanted};
use crate::error::InputError;
use crate::results::{AblationScores, json};
use crate::scenario::read_text;
use crate::source::Sources;
use crate::{Error, Output, output};

pub(super) const DEFINITION: &str = "ablation.toml";
pub(super) const CELLS: &str = "cells.jsonl";
/// Faults that are named at once.
const MOST_NAMED: usize = 20;

/// Cells by their places among all.
pub(super) type Cells = BTreeMap<usize, Cell>;

/// A folder with the log that grows.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    definition: Definition,
    log: File,
    pub(super) cells: Cells,
}

impl Store {
    /// Opens the folder of an ablation, with the cells that are there.
    ///
    /// # Errors
    /// What cannot be read or written; a cell that is none of this ablation's; another process that writes there.
    pub(super) fn open(folder: &Path, definition: Definition, own: &[(usize, Wanted)]) -> Result<Self, Error> {
        // Makes the folder and tries whether it can be written.
        drop(Output::open(folder)?);
        let path = folder.join(CELLS);
        let fail = |error: std::io::Error| Error::files(&path, error);
        let log = OpenOptions::new().create(true).append(true).read(true).open(&path).map_err(fail)?;
        match log.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::files(&path, "another process writes there; give each shard an --out of its own"));
            }
            // A file system without locks: nobody else is seen.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let (cells, whole) = read_cells(&path, &definition, own).map_err(|error| match error {
            Error::Input(InputError { problems, sources }) => {
                let hint = "give another --out, or remove the folder";
                let hinted = |problem: Problem| if problem.hint.is_none() { problem.hint(hint) } else { problem };
                Error::Input(InputError { problems: problems.into_iter().map(hinted).collect(), sources })
            }
            other => other,
        })?;
        log.set_len(whole).map_err(fail)?;
        output::write(&folder.join(DEFINITION), definition_text(&definition).as_bytes())?;
        Ok(Self { folder: folder.to_owned(), definition, log, cells })
    }

    /// Writes a cell so that it survives an end of the process.
    pub(super) fn push(&mut self, place: usize, wanted: &Wanted, cell: Cell) -> Result<(), Error> {
        let line = line(&self.definition, wanted.scenario, &cell);
        self.log.write_all(line.as_bytes()).map_err(|error| Error::files(&self.folder.join(CELLS), error))?;
        self.cells.insert(place, cell);
        Ok(())
    }

    /// Writes what is made of the cells: see [`finish`].
    pub(super) fn finish(self) -> Result<(Cells, Vec<PathBuf>), Error> {
        let files = finish(&self.folder, &self.definition, &self.cells)?;
        Ok((self.cells, files))
    }
}

fn line(definition: &Definition, scenario: usize, cell: &Cell) -> String {
    let line = Line::new(definition, scenario, cell.clone());
    serde_json::to_string(&line).expect("a plain value") + "\n"
}

fn definition_text(definition: &Definition) -> String {
    toml::to_string(definition).expect("plain texts and numbers")
}

/// What a folder says of its ablation.
pub(super) fn read_definition(folder: &Path) -> Result<Definition, Error> {
    let path = folder.join(DEFINITION);
    let name = path.display().to_string();
    let text = read_text(&path).map_err(|what| {
        let problem = Problem::new(name.clone(), format!("cannot be read: {what}"));
        Error::problem(problem.hint("a folder that `trainyard ablate` wrote is expected"))
    })?;
    let definition: Definition = toml::from_str(&text).map_err(|error| {
        let problem = Problem::new("", format!("is no ablation's: {}", error.message()));
        let range = error.span().unwrap_or(0..0);
        at(&name, &text, vec![problem.at(SourceSpan { file: name.clone(), range })])
    })?;
    definition.own().map_err(|problem| at(&name, &text, vec![problem]))?;
    Ok(definition)
}

/// Problems with the text that they are about.
fn at(name: &str, text: &str, problems: Vec<Problem>) -> Error {
    let mut sources = Sources::default();
    sources.add(name, text);
    Error::Input(InputError { problems, sources })
}

/// The cells of a log, and the bytes that are whole lines; an unfinished last line is left out.
pub(super) fn read_cells(path: &Path, definition: &Definition, own: &[(usize, Wanted)]) -> Result<(Cells, u64), Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::files(path, error))?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let name = path.display().to_string();
    let (mut cells, mut problems) = (Cells::new(), Vec::new());
    for (index, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let found = serde_json::from_slice::<Line>(line).map_err(|error| format!("is no cell: {error}"));
        let placed = found.and_then(|line| Ok((line.place(definition, own)?, line.cell)));
        match placed {
            Ok((place, cell)) => {
                let known = cells.insert(place, cell.clone());
                if known.is_some_and(|known| known != cell) {
                    let what = super::definition::words(&cell.scenario, &cell.policy, cell.seed);
                    problems.push(Problem::new(
                        format!("{name}:{}", index + 1),
                        format!("{what} came out otherwise before"),
                    ));
                }
            }
            Err(message) => problems.push(Problem::new(format!("{name}:{}", index + 1), message)),
        }
    }
    if problems.is_empty() { Ok((cells, whole as u64)) } else { Err(Error::input(few(problems, "faults"))) }
}

/// The first of many problems, and how many more there are.
pub(super) fn few(mut problems: Vec<Problem>, what: &str) -> Vec<Problem> {
    let more = problems.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        problems.truncate(MOST_NAMED);
        problems.push(Problem::new("", format!("and {more} more {what}")));
    }
    problems
}

/// All of an ablation as reports know it.
pub(super) fn ablation(definition: &Definition, cells: &Cells) -> Ablation {
    let seeds: Vec<String> = definition.seeds.iter().map(u64::to_string).collect();
    let drawn = definition.policies.iter().any(|policy| policy.draws);
    let assumptions = [
        ("trainyard", definition.version.clone()),
        ("baseline", definition.baseline.clone()),
        ("budget", format!("{} evaluations, the closed form's", definition.budget)),
        ("judged by", "the simulator".to_owned()),
        ("seeds", if drawn { seeds.join(", ") } else { "none: nothing is drawn".to_owned() }),
    ];
    Ablation {
        scenarios: definition.scenarios.iter().map(|given| given.name.clone()).collect(),
        policies: definition.policies.clone(),
        baseline: definition.baseline.clone(),
        seeds: definition.seeds.clone(),
        budget: definition.budget,
        cells: cells.values().cloned().collect(),
        assumptions: assumptions.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        command: String::new(),
    }
}

/// Writes the cells in order and, of a whole ablation, what is made of them. Equal cells give equal bytes, whoever made
/// them and in whatever order.
pub(super) fn finish(folder: &Path, definition: &Definition, cells: &Cells) -> Result<Vec<PathBuf>, Error> {
    let mut out = Output::open(folder)?;
    out.stage(DEFINITION, definition_text(definition).as_bytes())?;
    let all = definition.all();
    let lines: String = cells.iter().map(|(place, cell)| line(definition, all[*place].scenario, cell)).collect();
    out.stage(CELLS, lines.as_bytes())?;
    if definition.shard.is_none() {
        let ablation = ablation(definition, cells);
        out.stage("cells.csv", ablation.cells_csv().as_bytes())?;
        out.stage("ablation.csv", ablation.summary_csv().as_bytes())?;
        out.stage("ablation.json", json(&AblationScores::of(&ablation)).as_bytes())?;
        let document = ablation.document();
        out.stage("ablation.html", document.html().as_bytes())?;
        out.stage("ablation.md", document.markdown().as_bytes())?;
        for (name, picture) in document.pictures() {
            out.stage(&name, picture.as_bytes())?;
        }
    }
    out.commit()
}

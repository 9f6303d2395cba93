//! `validate`: predictions against measured runs.

use std::path::Path;

use cost::Stacks;
use reports::scoreboard::{ScoreKind, ScoreSet, Scoreboard};

use crate::catalog::Catalog;
use crate::progress::Context;
use crate::source::Sources;
use crate::validate::document::{Document, PublishedDocument};
use crate::validate::outcomes::{self, Outcomes};
use crate::validate::{Knowledge, Others, Tables, fitted_stacks, name, score, scoreboard, stacks_text};
use crate::{Error, InputError};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct ValidateRequest<'a> {
    /// Tables in the schema of [`formats::measured_runs`]; empty: the project's own.
    pub files: &'a [&'a Path],
    /// Nothing is known of this table: stacks that rest on it are fitted again to the project's other tables.
    pub leave_out: Option<&'a str>,
    /// Stacks are fitted to the project's tables and the given ones, instead of taken from the catalog.
    pub refit: bool,
    /// Which scores; fitted is always among them.
    pub scores: &'a [ScoreKind],
}

/// What came out.
#[derive(Debug)]
pub struct Validation {
    /// A set for each kind of score, fitted first.
    pub scores: Vec<ScoreSet>,
    /// Whether runs fit, each group of runs told by the other groups; `None` where no failures are on record.
    pub outcomes: Option<Outcomes>,
    /// The stacks that fitted scores were made with.
    pub stacks: Stacks,
    /// The tables, for what the page says beside scores.
    tables: Tables,
    /// Stacks without single tables, for fits of test beds.
    others: Others,
    /// The command, as it is written.
    command: String,
}

/// Predicts every row of tables and holds it against what was measured.
///
/// # Errors
/// Files that cannot be read, or that are no such table; a table to leave out that is neither given nor the project's; an
/// interrupt.
pub fn validate(request: &ValidateRequest<'_>, context: &Context<'_>) -> Result<Validation, Error> {
    context.step("read", 0, 0, "tables and catalog")?;
    let own = crate::validate::measured_tables();
    let tables = if request.files.is_empty() { tables(&own, &[])? } else { tables(&read(request.files)?, &own)? };
    let base = crate::catalog::stacks();
    let mut stacks = base.clone();
    let others = Others::default();
    if request.refit {
        context.step("fit", 0, 0, format!("stacks of {} tables", tables.tables.len()))?;
        stacks = fitted_stacks(&tables, base, &others);
    }
    let left_out = request.leave_out.map(name);
    if let Some(left) = left_out {
        let names = tables.names();
        if !names.iter().any(|name| name == left) {
            return Err(unknown_table(left, &names));
        }
        context.step("fit", 0, 0, format!("without {left}"))?;
        stacks = Knowledge { tables: &tables, stacks: &stacks, left_out, others: &others }.without(left);
    }
    let known = Knowledge { tables: &tables, stacks: &stacks, left_out, others: &others };
    let kinds = ScoreKind::ALL.into_iter().filter(|kind| *kind == ScoreKind::Fitted || request.scores.contains(kind));
    let scores = kinds.map(|kind| score(kind, &known, context)).collect::<Result<_, _>>()?;
    let command = command(request);
    let outcomes = outcomes::left_out(&tables, &stacks);
    Ok(Validation { scores, outcomes, stacks, tables, others, command })
}

impl Validation {
    /// Everything as JSON.
    #[must_use]
    pub fn document(&self) -> Document {
        Document { outcomes: self.outcomes.clone(), ..Document::new(&self.scores) }
    }
    /// The page: figures of every table, what is outside of the model, the rows furthest off.
    #[must_use]
    pub fn scoreboard(&self) -> Scoreboard {
        scoreboard::plain(&self.scores, &self.tables, &self.stacks, &self.command)
    }
    /// The page with every figure that the project promises, for its own tables; fits test beds on the way.
    ///
    /// # Errors
    /// An interrupt.
    pub fn judged(&self, context: &Context<'_>) -> Result<Scoreboard, Error> {
        let known = Knowledge { tables: &self.tables, stacks: &self.stacks, left_out: None, others: &self.others };
        scoreboard::judged(&self.scores, self.outcomes.as_ref(), &known, &self.command, context)
    }
    /// What a published page keeps: every figure without the rows, and targets.
    #[must_use]
    pub fn published_json(&self, page: &Scoreboard) -> String {
        crate::results::json(&PublishedDocument::new(&self.scores, self.outcomes.as_ref(), page))
    }
    /// How many rows have a predicted time.
    #[must_use]
    pub fn predicted(&self) -> u64 {
        self.scores.first().map_or(0, |set| set.tables.iter().map(|table| table.predicted).sum())
    }
    /// A catalog of stacks: the head of `text` with the rows that fitted scores were made with.
    #[must_use]
    pub fn stacks_text(&self, text: &str) -> String {
        stacks_text::with_rows(text, &self.stacks)
    }
    /// The project's catalog of stacks, as text.
    #[must_use]
    pub const fn catalog_text() -> &'static str {
        crate::catalog::STACKS.1
    }
    /// The rows as CSV, one line a measured run, with what each kind of score predicts.
    #[must_use]
    pub fn rows_csv(&self) -> Vec<u8> {
        scoreboard::rows_csv(&self.scores)
    }
}

/// Tables that are asked for, and those beside them.
pub(crate) fn tables(asked: &[(String, String)], known: &[(String, String)]) -> Result<Tables, Error> {
    Tables::read(asked, known, &Catalog::embedded()).map_err(|problems| {
        let mut sources = Sources::default();
        asked.iter().chain(known).for_each(|(file, text)| sources.add(file.clone(), text.clone()));
        Error::Input(InputError { problems, sources })
    })
}

/// Names and texts of files.
pub(crate) fn read(files: &[&Path]) -> Result<Vec<(String, String)>, Error> {
    let read = |path: &&Path| {
        if path.is_dir() {
            return Err(Error::files(path, "is a folder; name its tables, as in FOLDER/*.csv"));
        }
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::files(path, format!("cannot be read: {error}")))?;
        Ok((path.display().to_string(), text))
    };
    files.iter().map(read).collect()
}

fn unknown_table(name: &str, known: &[String]) -> Error {
    let hint = crate::read::suggest(name, known.iter().map(String::as_str));
    Error::problem(ir::Problem::new("--leave-out", format!("there is no table `{name}`")).hint(hint))
}

/// The command that makes the page again.
fn command(request: &ValidateRequest<'_>) -> String {
    let mut words = vec!["trainyard validate".to_owned()];
    words.extend(request.files.iter().map(|path| path.display().to_string()));
    words.extend(request.leave_out.map(|table| format!("--leave-out {table}")));
    words.extend(request.refit.then(|| "--refit".to_owned()));
    words.join(" ")
}

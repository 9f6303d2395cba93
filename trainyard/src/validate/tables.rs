//! Tables of measured runs, read, resolved and made into cases.

use std::sync::Arc;

use cost::Calibration;
use formats::measured_runs::{self, MeasuredTable};
use ir::Problem;
use reports::scoreboard::ScoreKind;

use super::case::Case;
use super::predict::Subject;
use super::recipe::{Recipes, UseFitted};
use crate::catalog::Catalog;

/// A row as the scoreboard lists it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) row_id: String,
    /// Why it is not predicted, if it is not.
    pub(crate) refused: Option<String>,
}

/// One table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Its name: the file's, without folder and ending.
    pub(crate) name: String,
    /// The file's name without its folder.
    pub(crate) file: String,
    /// Its rows, with numbers that were found on them, and without.
    rows: [Vec<Row>; 2],
}

/// Several tables with the rows that can be predicted.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) tables: Vec<Table>,
    /// How many of them, from the first, are asked for; the others only are what is known.
    pub(crate) asked: usize,
    /// Those of all tables, with numbers that were found on a table's own rows, and without.
    subjects: [Vec<Subject>; 2],
}

/// A file name and a text.
type Text = (String, String);

impl Tables {
    /// Reads the tables that are asked for, and those beside them that are known; of the latter, one with the name of a table
    /// asked for is left out.
    ///
    /// # Errors
    /// What makes whole files unreadable. Faults of rows stay with the rows.
    pub(crate) fn read(asked: &[Text], known: &[Text], catalog: &Catalog) -> Result<Self, Vec<Problem>> {
        let calibrations: Vec<Arc<Calibration>> = crate::calibrations().into_iter().map(Arc::new).collect();
        let mut all = Self { tables: Vec::new(), asked: asked.len(), subjects: [Vec::new(), Vec::new()] };
        let mut problems = Vec::new();
        let known = known.iter().filter(|(file, _)| !asked.iter().any(|(other, _)| name(other) == name(file)));
        for (file, text) in asked.iter().chain(known) {
            match measured_runs::read(text, file) {
                Ok(table) => all.add(&table, catalog, &calibrations),
                Err(faults) => problems.extend(faults),
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    fn add(&mut self, table: &MeasuredTable, catalog: &Catalog, calibrations: &[Arc<Calibration>]) {
        let index = self.tables.len();
        let recipes = Recipes::embedded();
        let mut listed = [Vec::new(), Vec::new()];
        for (which, fitted) in [UseFitted::Yes, UseFitted::No].into_iter().enumerate() {
            let resolved = recipes.resolve_table(&table.rows, catalog, fitted);
            for (row, resolved) in resolved.into_iter().enumerate() {
                let (row_id, subject) = match resolved {
                    Ok(run) => (run.row.row_id.clone(), subject(index, row, run, calibrations)),
                    Err(refusal) => (refusal.row_id.clone(), Err(refusal.to_string())),
                };
                let refused = match subject {
                    Ok(subject) => {
                        self.subjects[which].push(subject);
                        None
                    }
                    Err(reason) => Some(reason),
                };
                listed[which].push(Row { row_id, refused });
            }
        }
        // Two files of one name in different folders keep apart.
        let (mut of, mut file) = (name(&table.file).to_owned(), file_name(&table.file).to_owned());
        if self.tables.iter().any(|other| other.name == of) {
            (of, file) = (table.file.strip_suffix(".csv").unwrap_or(&table.file).to_owned(), table.file.clone());
        }
        self.tables.push(Table { name: of, file, rows: listed });
    }

    /// The rows that can be predicted, for a kind of score.
    pub(crate) fn subjects(&self, kind: ScoreKind) -> &[Subject] {
        &self.subjects[which(kind)]
    }
    /// Those of one table.
    pub(crate) fn of_table(&self, kind: ScoreKind, table: usize) -> Vec<&Subject> {
        self.subjects(kind).iter().filter(|subject| subject.table == table).collect()
    }
    /// Names of the tables.
    pub(crate) fn names(&self) -> Vec<String> {
        self.tables.iter().map(|table| table.name.clone()).collect()
    }
}

impl Table {
    /// Its rows, for a kind of score.
    pub(crate) fn rows(&self, kind: ScoreKind) -> &[Row] {
        &self.rows[which(kind)]
    }
}

/// Only what is fitted to a table may use numbers that were found on its rows.
const fn which(kind: ScoreKind) -> usize {
    match kind {
        ScoreKind::Fitted => 0,
        ScoreKind::Shape | ScoreKind::Cold => 1,
    }
}

fn subject(
    table: usize,
    row: usize,
    run: super::recipe::ResolvedRun,
    calibrations: &[Arc<Calibration>],
) -> Result<Subject, String> {
    let case = Case::of(&run).map_err(|faults| {
        let texts: Vec<String> = faults.iter().map(|fault| fault.message.clone()).collect();
        texts.join("; ")
    })?;
    let wanted = &run.hardware.device.calibration;
    let calibration = calibrations.iter().find(|calibration| calibration.name == *wanted);
    let calibration = calibration.ok_or_else(|| format!("there is no calibration `{wanted}`"))?;
    Ok(Subject { table, row, run, case, calibration: Arc::clone(calibration) })
}

fn file_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

/// A file's name without folder and ending.
pub(crate) fn name(file: &str) -> &str {
    let file = file_name(file);
    file.strip_suffix(".csv").unwrap_or(file)
}

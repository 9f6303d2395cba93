//! A sweep: a long table of points, written as it grows, and the page over it.
//!
//! A point's row is its number, its keys, its results, its status and a reason. Rows are written one at a time
//! ([`CsvSweep`], and `ParquetSweep` with the `parquet` feature), read back one at a time ([`CsvSweepReader`]), and shown by
//! a [`SweepReport`] that keeps what its pictures need and nothing more: memory does not grow with the number of points.
//!
//! A record never spans lines (line ends in text become spaces), so a CSV file cut anywhere is whole up to its last line
//! end: a sweep that was stopped reads what is there, cuts the file to [`CsvSweepReader::whole_bytes`], and goes on with
//! [`CsvSweep::append`].

mod csv_file;
mod page;
#[cfg(feature = "parquet")]
mod parquet_file;
mod pictures;

use ir::Problem;

pub use csv_file::{CsvSweep, CsvSweepReader};
pub use page::{HeatMapChoice, Objective, ScalingChoice, SweepReport};
#[cfg(feature = "parquet")]
pub use parquet_file::ParquetSweep;

use crate::unit::Unit;

/// What the cells of a column hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnKind {
    /// Real numbers.
    Number,
    /// Whole numbers.
    Integer,
    /// Words.
    Text,
    /// Yes or no.
    Flag,
}

/// A column of a sweep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SweepColumn {
    /// Its heading in files: a scenario key such as `plan.tensor`, or a result with its unit such as `step_s`.
    pub name: String,
    /// What its cells hold.
    pub kind: ColumnKind,
    /// The unit in which pages show it.
    pub unit: Unit,
}

impl SweepColumn {
    /// A column.
    pub fn new(name: impl Into<String>, kind: ColumnKind, unit: Unit) -> Self {
        Self { name: name.into(), kind, unit }
    }
}

/// One value of a point.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// None.
    Empty,
    /// A real number.
    Number(f64),
    /// A whole number.
    Integer(i64),
    /// Words.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

impl Cell {
    /// As a number, where it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(value) => Some(*value),
            Self::Integer(value) => Some(*value as f64),
            Self::Empty | Self::Text(_) | Self::Flag(_) => None,
        }
    }

    /// In words for people, with a unit.
    #[must_use]
    pub fn text(&self, unit: Unit) -> String {
        match self {
            Self::Empty => "\u{2013}".to_owned(),
            Self::Number(value) => unit.text(*value),
            Self::Integer(value) => unit.text(*value as f64),
            Self::Text(text) => text.clone(),
            Self::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        }
    }

    fn fits(&self, kind: ColumnKind) -> bool {
        match self {
            Self::Empty => true,
            Self::Number(_) => kind == ColumnKind::Number,
            Self::Integer(_) => matches!(kind, ColumnKind::Integer | ColumnKind::Number),
            Self::Text(_) => kind == ColumnKind::Text,
            Self::Flag(_) => kind == ColumnKind::Flag,
        }
    }
}

/// What became of a point.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It has results, one for each result column.
    Done(Vec<Cell>),
    /// It cannot be: the reason, in words that are the same for all points of that reason.
    Infeasible(String),
}

/// One point of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct SweepPoint {
    /// Its number in the sweep's order.
    pub index: u64,
    /// Values of the keys, one for each key column.
    pub keys: Vec<Cell>,
    /// What became of it.
    pub outcome: Outcome,
}

impl SweepPoint {
    /// Its result in a column, where it has results.
    #[must_use]
    pub fn result(&self, index: usize) -> Option<&Cell> {
        match &self.outcome {
            Outcome::Done(results) => results.get(index),
            Outcome::Infeasible(_) => None,
        }
    }
}

/// The columns of a sweep. Files have `point` before them, `status` (`ok` or `infeasible`) and `reason` after them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SweepSchema {
    keys: Vec<SweepColumn>,
    results: Vec<SweepColumn>,
}

/// Headings of columns that every sweep has.
const OWN: [&str; 3] = ["point", "status", "reason"];
const DONE: &str = "ok";
const INFEASIBLE: &str = "infeasible";

impl SweepSchema {
    /// Columns of keys and of results.
    ///
    /// # Errors
    /// If a heading is empty, stands twice, or is one that every sweep has.
    pub fn new(keys: Vec<SweepColumn>, results: Vec<SweepColumn>) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut seen: Vec<&str> = OWN.to_vec();
        for column in keys.iter().chain(&results) {
            if column.name.is_empty() || column.name.contains(['\n', '\r']) {
                problems.push(Problem::new("sweep", "a column has no name, or one that spans lines"));
            } else if seen.contains(&column.name.as_str()) {
                let taken = OWN.contains(&column.name.as_str());
                let message = if taken { "is a column that every sweep has" } else { "stands twice" };
                problems.push(Problem::new(format!("sweep column {}", column.name), message));
            }
            seen.push(&column.name);
        }
        if problems.is_empty() { Ok(Self { keys, results }) } else { Err(problems) }
    }

    /// The keys.
    #[must_use]
    pub fn keys(&self) -> &[SweepColumn] {
        &self.keys
    }
    /// The results.
    #[must_use]
    pub fn results(&self) -> &[SweepColumn] {
        &self.results
    }

    /// All headings of a file, in order.
    #[must_use]
    pub fn headings(&self) -> Vec<&str> {
        let names = self.keys.iter().chain(&self.results).map(|column| column.name.as_str());
        std::iter::once(OWN[0]).chain(names).chain([OWN[1], OWN[2]]).collect()
    }

    fn position(columns: &[SweepColumn], name: &str, what: &str) -> Result<usize, Problem> {
        columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            let problem = Problem::new("sweep", format!("there is no {what} {name}"));
            problem.hint(format!("{what}s of this sweep: {}", names.join(", ")))
        })
    }

    /// The cells of a point's row between its number and its status.
    ///
    /// # Panics
    /// If the point is not of this sweep: another number of cells, or cells of another kind.
    fn cells<'a>(&self, point: &'a SweepPoint) -> Vec<&'a Cell> {
        const EMPTY: &Cell = &Cell::Empty;
        let results: Vec<&Cell> = match &point.outcome {
            Outcome::Done(results) => results.iter().collect(),
            Outcome::Infeasible(_) => vec![EMPTY; self.results.len()],
        };
        let cells: Vec<&Cell> = point.keys.iter().chain(results).collect();
        let columns = self.keys.iter().chain(&self.results);
        assert_eq!(cells.len(), self.keys.len() + self.results.len(), "point {} is not of this sweep", point.index);
        for (cell, column) in cells.iter().zip(columns) {
            let fits = cell.fits(column.kind);
            assert!(fits, "point {}: {cell:?} in {}, which holds {:?}", point.index, column.name, column.kind);
        }
        cells
    }

    /// Status and reason of a point.
    fn status(point: &SweepPoint) -> (&'static str, &str) {
        match &point.outcome {
            Outcome::Done(_) => (DONE, ""),
            Outcome::Infeasible(reason) => (INFEASIBLE, reason),
        }
    }
}

/// Something that takes a sweep's points one at a time.
pub trait SweepWriter {
    /// Writes one point.
    ///
    /// # Errors
    /// What the underlying writer answers.
    ///
    /// # Panics
    /// If the point is not of the writer's schema, which only a bug can cause.
    fn push(&mut self, point: &SweepPoint) -> std::io::Result<()>;

    /// Writes what is still held back, and what ends the file.
    ///
    /// # Errors
    /// What the underlying writer answers.
    fn finish(self: Box<Self>) -> std::io::Result<()>;
}

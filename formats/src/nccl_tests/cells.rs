//! Headings and rows of the tables that nccl-tests prints, and of Markdown tables with the same columns.

use ir::program::CollectiveKind;
use ir::{Bytes, BytesPerSecond};

use super::{Faults, Line, bus_factor, nearest};

/// One size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Row {
    /// Bytes of the whole buffer.
    pub(super) bytes: f64,
    /// Of one collective.
    pub(super) microseconds: f64,
    /// Bytes over time, in units of 10^9 bytes per second.
    pub(super) algorithm: f64,
    /// What that is on the wire of each member, in the same unit.
    pub(super) bus: f64,
}

/// Half of the last digit that is printed of a rate.
const ROUNDING: f64 = 0.005;

impl Row {
    /// Whether the two rates are in the proportion of a collective of so many, as far as their digits go.
    pub(super) fn is_of(&self, kind: CollectiveKind, ranks: u32) -> bool {
        let factor = bus_factor(kind, ranks);
        (self.bus - factor * self.algorithm).abs() <= ROUNDING * (1.0 + factor) + 1e-9 * self.bus
    }

    /// The rates are what size and time give.
    pub(super) fn rates_follow(&self, kind: CollectiveKind, ranks: u32, line: &Line<'_>, faults: &mut Faults<'_>) {
        let given = self.bytes / self.microseconds * 1e-3;
        // Times have four digits, so that half of the last is at most 0.05 %.
        if (self.algorithm - given).abs() > ROUNDING + 1e-3 * given {
            faults.at(line, format!("algbw is {}, and size over time is {given:.2}", self.algorithm), None);
        } else if !self.is_of(kind, ranks) {
            let bus = bus_factor(kind, ranks) * self.algorithm;
            faults.at(line, format!("busbw is {}, and {bus:.2} would follow from algbw", self.bus), None);
        }
    }
}

/// Where the columns of a table stand.
#[derive(Debug)]
pub(super) struct Columns {
    size: usize,
    /// Of tables that carry no time, it follows from size and rate.
    time: Option<usize>,
    algorithm: usize,
    bus: usize,
    wrong: Option<usize>,
    count: usize,
    /// Whether cells carry their units, else the line below the heading does.
    units_in_cells: bool,
    units_seen: bool,
}

/// The words of a line, or the cells of a row of Markdown.
fn words(text: &str) -> Vec<&str> {
    match text.strip_prefix('|') {
        Some(cells) => cells.trim_end_matches('|').split('|').map(str::trim).collect(),
        None => text.split_whitespace().collect(),
    }
}

/// Whether a line below the heading is no comment, rule, prompt or message of the library.
pub(super) fn may_be_a_row(text: &str) -> bool {
    let ruled = text.starts_with('|') && text.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    !(text.is_empty() || ruled || text.starts_with(['#', '$', '[']) || text.contains("NCCL") || text.contains("RCCL"))
}

impl Columns {
    /// The columns of a heading; `None` if the line is none.
    pub(super) fn of(text: &str) -> Option<Self> {
        let markdown = text.starts_with('|');
        let words = words(text.strip_prefix('#').unwrap_or(text).trim());
        let at = |wanted: &str| words.iter().position(|word| *word == wanted);
        let size = at("size").or_else(|| at("payload"))?;
        let (algorithm, bus) = (at("algbw")?, at("busbw")?);
        let time = at("time");
        let wrong = at("#wrong");
        (time.is_some() || markdown).then_some(Self {
            size,
            time,
            algorithm,
            bus,
            wrong,
            count: words.len(),
            units_in_cells: markdown,
            units_seen: markdown,
        })
    }

    /// Whether the line is that of units; other units than expected are faults.
    pub(super) fn units(&mut self, text: &str, line: &Line<'_>, faults: &mut Faults<'_>) -> bool {
        let text = text.strip_prefix('#').unwrap_or(text).trim();
        if self.units_in_cells || !text.starts_with('(') {
            return false;
        }
        self.units_seen = true;
        let known = ["(B)", "(elements)", "(us)", "(GB/s)"];
        for word in text.split_whitespace().filter(|word| !known.contains(word)) {
            faults.at(line, format!("unknown unit {word}"), nearest(word, &known).or_else(|| Some(known.join(", "))));
        }
        true
    }

    /// What is missing if there was no line of units.
    pub(super) fn without_units(&self) -> Option<&'static str> {
        (!self.units_seen).then_some("the table does not say its units")
    }

    /// The row of a line; what is wrong with it is noted.
    pub(super) fn row(&self, text: &str, line: &Line<'_>, faults: &mut Faults<'_>) -> Option<Row> {
        let cells = words(text);
        if cells.len() != self.count {
            faults.at(line, format!("has {} of {} cells", cells.len(), self.count), None);
            return None;
        }
        if let Some(wrong) = self.wrong.map(|at| cells[at]).filter(|wrong| !matches!(*wrong, "0" | "N/A")) {
            let hint = "a run with wrong results says nothing of a sound one";
            faults.at(line, format!("{wrong} wrong values"), Some(hint.to_owned()));
            return None;
        }
        let before = faults.count();
        let mut number = |at: usize, what: &str, read: &dyn Fn(&str) -> Option<f64>| {
            let found = read(cells[at]).filter(|number| number.is_finite() && *number >= 0.0);
            if found.is_none() {
                faults.at(line, format!("`{}` is no {what}", cells[at]), None);
            }
            found.unwrap_or_default()
        };
        let bytes = number(self.size, "size", if self.units_in_cells { &size_with_unit } else { &plain });
        let rate: &dyn Fn(&str) -> Option<f64> = if self.units_in_cells { &rate_with_unit } else { &plain };
        let (algorithm, bus) = (number(self.algorithm, "rate", rate), number(self.bus, "rate", rate));
        let microseconds = match self.time {
            Some(at) => number(at, "time", &plain),
            None => bytes / algorithm * 1e-3,
        };
        if faults.count() == before && bytes > 0.0 && !(microseconds.is_finite() && microseconds > 0.0) {
            faults.at(line, "takes no time", None);
        }
        (faults.count() == before).then_some(Row { bytes, microseconds, algorithm, bus })
    }
}

/// `1_048_576` is 1048576.
fn plain(cell: &str) -> Option<f64> {
    cell.replace('_', "").parse().ok()
}

fn size_with_unit(cell: &str) -> Option<f64> {
    cell.parse::<Bytes>().ok().map(|bytes| bytes.get() as f64)
}

/// `1.44GBps` and `1.44GB/s`, in units of 10^9 bytes per second.
fn rate_with_unit(cell: &str) -> Option<f64> {
    let cell = cell.strip_suffix("Bps").map_or_else(|| cell.to_owned(), |number| format!("{number}B/s"));
    cell.parse::<BytesPerSecond>().ok().map(|rate| rate.get() * 1e-9)
}

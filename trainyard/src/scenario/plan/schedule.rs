//! `schedule`: a name, or an order of passes written out.

use std::ops::Range;
use std::path::Path;

use ir::grid::Grid;
use ir::{Problem, Schedule, SourceSpan, ZeroBubble};

use super::super::Sight;
use crate::read::{Table, Value};

/// Schedules by name. The interleaved one is 1F1B over several chunks per stage.
fn names() -> [(&'static str, Schedule); 6] {
    let [gpipe, one, zero_bubble, one_p, two_p] = Schedule::NAMED;
    [one, gpipe, (INTERLEAVED, Schedule::OneForwardOneBackward), zero_bubble, one_p, two_p]
}

/// The name of 1F1B over several chunks per stage.
pub(super) const INTERLEAVED: &str = "interleaved";

/// Reads a schedule.
pub(super) fn schedule(value: &Value<'_>, sight: &Sight<'_>) -> Option<Schedule> {
    if !value.is_table() {
        return value.choice(&names());
    }
    let table = value.table()?;
    let (file, cells) = (table.get("grid"), table.get("cells"));
    if let Some(name) = table.get("zero_bubble") {
        let searched = searched(&table, &name);
        table.finish();
        return searched;
    }
    table.finish();
    let (name, text, place) = match (file, cells) {
        (Some(file), None) => {
            let (name, text) = sight.read(Path::new(file.text()?), &file)?;
            (name, text, file)
        }
        (None, Some(cells)) => (String::new(), cells.text()?.to_owned(), cells),
        _ => {
            value.problem(
                "must be one of { grid = \"FILE\" }, { cells = \"0F0,0B0\" } and { zero_bubble = \"2p\", times = [..] }",
                None,
            );
            return None;
        }
    };
    match Grid::parse(&text) {
        Ok(grid) => Some(Schedule::Explicit(grid)),
        Err(problems) => {
            let mut places = wrong_cells(&text).into_iter();
            for problem in problems {
                let range = places.next();
                match range.filter(|_| !name.is_empty()) {
                    Some(range) => sight.report(problem.at(SourceSpan { file: name.clone(), range })),
                    None => {
                        place.report(Problem { subject: format!("{}: {}", place.path(), problem.subject), ..problem })
                    }
                }
            }
            None
        }
    }
}

/// Limits of memory by name.
const LIMITS: [(&str, u32); 2] = [("1p", 1), ("2p", 2)];

/// A zero-bubble schedule with the profile that its order is searched by.
fn searched(table: &Table<'_>, limit: &Value<'_>) -> Option<Schedule> {
    let plain = ZeroBubble::unprofiled(limit.choice(&LIMITS)?);
    let count = |key: &'static str, otherwise: u32, least: u64| {
        let read = |value: Value<'_>| value.integer(least..=u64::from(u32::MAX)).and_then(|n| u32::try_from(n).ok());
        table.get(key).map_or(Some(otherwise), read)
    };
    let forward = count("forward", plain.forward, 1);
    let (input, weight) =
        (count("backward_input", plain.backward_input, 1), count("backward_weight", plain.backward_weight, 1));
    let (message, kept) = (count("message", plain.message, 0), count("kept", plain.kept, 0));
    Some(Schedule::ZeroBubble(ZeroBubble {
        memory: plain.memory,
        forward: forward?,
        backward_input: input?,
        backward_weight: weight?,
        message: message?,
        kept: kept?,
    }))
}

/// Where the cells stand that are no pass, in the order in which the parser of grids reports them.
pub(in crate::scenario) fn wrong_cells(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut at = 0;
    for piece in text.split_inclusive([',', '\n']) {
        let cell = piece.trim_end_matches([',', '\n']).trim();
        let start = at + (piece.len() - piece.trim_start().len());
        if !cell.is_empty() && Grid::parse(cell).is_err() {
            places.push(start..start + cell.len());
        }
        at += piece.len();
    }
    places
}

/// A schedule in the resolved form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::scenario) enum Written {
    Name(&'static str),
    /// A limit of memory, and the profile.
    Searched(&'static str, ZeroBubble),
    Cells(String),
}

/// How a schedule is written in the resolved form; an explicit one in cells.
pub(in crate::scenario) fn written(schedule: &Schedule, chunks: u32) -> Written {
    match schedule {
        Schedule::OneForwardOneBackward if chunks > 1 => Written::Name(INTERLEAVED),
        Schedule::OneForwardOneBackward | Schedule::GPipe | Schedule::ZeroBubbleH1 => Written::Name(schedule.name()),
        Schedule::ZeroBubble(searched) if *searched == ZeroBubble::unprofiled(searched.memory) => {
            Written::Name(schedule.name())
        }
        Schedule::ZeroBubble(searched) => {
            let limit = LIMITS.iter().find(|(_, memory)| *memory == searched.memory).map_or("2p", |(name, _)| name);
            Written::Searched(limit, *searched)
        }
        Schedule::Explicit(grid) => Written::Cells(grid.to_string()),
    }
}

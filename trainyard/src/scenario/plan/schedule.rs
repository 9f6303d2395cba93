//! `schedule`: a name, or an order of passes written out.

use std::ops::Range;
use std::path::Path;

use ir::grid::Grid;
use ir::{Problem, Schedule, SourceSpan};

use super::super::Sight;
use crate::read::Value;

/// Schedules by name. The interleaved one is 1F1B over several chunks per stage.
fn names() -> [(&'static str, Schedule); 4] {
    let [gpipe, one, zero_bubble] = Schedule::NAMED;
    [one, gpipe, (INTERLEAVED, Schedule::OneForwardOneBackward), zero_bubble]
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
    table.finish();
    let (name, text, place) = match (file, cells) {
        (Some(file), None) => {
            let (name, text) = sight.read(Path::new(file.text()?), &file)?;
            (name, text, file)
        }
        (None, Some(cells)) => (String::new(), cells.text()?.to_owned(), cells),
        _ => {
            value.problem("must be either { grid = \"FILE\" } or { cells = \"0F0,0B0\" }", None);
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

/// The words of a schedule, for the resolved form; an explicit one is written out in cells.
pub(in crate::scenario) fn schedule_word(schedule: &Schedule, chunks: u32) -> Result<&'static str, String> {
    match schedule {
        Schedule::OneForwardOneBackward if chunks > 1 => Ok(INTERLEAVED),
        Schedule::OneForwardOneBackward | Schedule::GPipe | Schedule::ZeroBubbleH1 => Ok(schedule.name()),
        Schedule::Explicit(grid) => Err(grid.to_string()),
    }
}

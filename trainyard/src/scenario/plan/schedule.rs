//! `schedule`: a name, or an order of passes written out.

use std::ops::Range;
use std::path::Path;

use ir::grid::Grid;
use ir::{Problem, Schedule, SourceSpan, Vee, VeeMemory, ZeroBubble};

use super::super::Sight;
use crate::read::{Table, Value};

/// Schedules by name. The interleaved one is 1F1B over several chunks per stage.
fn names() -> Vec<(&'static str, Schedule)> {
    let mut names = Schedule::NAMED.to_vec();
    names.swap(0, 1);
    names.insert(2, (INTERLEAVED, Schedule::OneForwardOneBackward));
    names
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
    let searched = [("zero_bubble", zero_bubble as Searched), ("vee", vee)];
    if let Some((limit, read)) = searched.iter().find_map(|(key, read)| Some((table.get(key)?, read))) {
        let schedule = read(&table, &limit);
        table.finish();
        return schedule;
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
                "must be one of { grid = \"FILE\" }, { cells = \"0F0,0B0\" }, { zero_bubble = \"2p\", forward = .. } and \
                 { vee = \"half\", forward = .. }",
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
const VEE_LIMITS: [(&str, VeeMemory); 3] =
    [("full", VeeMemory::Full), ("half", VeeMemory::Half), ("third", VeeMemory::Third)];

/// Reads a schedule whose order is searched, with the profile that it is searched by, from its limit of memory.
type Searched = fn(&Table<'_>, &Value<'_>) -> Option<Schedule>;

/// A figure of a profile.
fn figure(table: &Table<'_>, key: &'static str, otherwise: u32, least: u64) -> Option<u32> {
    let read = |value: Value<'_>| value.integer(least..=u64::from(u32::MAX)).and_then(|n| u32::try_from(n).ok());
    table.get(key).map_or(Some(otherwise), read)
}

fn vee(table: &Table<'_>, limit: &Value<'_>) -> Option<Schedule> {
    let plain = Vee::unprofiled(limit.choice(&VEE_LIMITS)?);
    let forward = figure(table, "forward", plain.forward, 1);
    let input = figure(table, "backward_input", plain.backward_input, 1);
    let weight = figure(table, "backward_weight", plain.backward_weight, 1);
    let message = figure(table, "message", plain.message, 0);
    Some(Schedule::Vee(Vee {
        memory: plain.memory,
        forward: forward?,
        backward_input: input?,
        backward_weight: weight?,
        message: message?,
    }))
}

fn zero_bubble(table: &Table<'_>, limit: &Value<'_>) -> Option<Schedule> {
    let plain = ZeroBubble::unprofiled(limit.choice(&LIMITS)?);
    let count = |key: &'static str, otherwise: u32, least: u64| figure(table, key, otherwise, least);
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
    /// The key and the word of a limit of memory, and the profile.
    Searched(&'static str, &'static str, Vec<(&'static str, u32)>),
    Cells(String),
}

/// How a schedule is written in the resolved form; an explicit one in cells.
pub(in crate::scenario) fn written(schedule: &Schedule, chunks: u32) -> Written {
    match schedule {
        Schedule::OneForwardOneBackward if chunks > 1 => Written::Name(INTERLEAVED),
        Schedule::ZeroBubble(searched) if *searched == ZeroBubble::unprofiled(searched.memory) => {
            Written::Name(schedule.name())
        }
        Schedule::ZeroBubble(searched) => {
            let limit = LIMITS.iter().find(|(_, memory)| *memory == searched.memory).map_or("2p", |(name, _)| name);
            let ZeroBubble { forward, backward_input, backward_weight, message, kept, .. } = *searched;
            let mut profile = profile(forward, backward_input, backward_weight, message);
            profile.push(("kept", kept));
            Written::Searched("zero_bubble", limit, profile)
        }
        Schedule::Vee(searched) if *searched != Vee::unprofiled(searched.memory) => {
            let limit =
                VEE_LIMITS.iter().find(|(_, memory)| *memory == searched.memory).map_or("full", |(name, _)| name);
            let Vee { forward, backward_input, backward_weight, message, .. } = *searched;
            Written::Searched("vee", limit, profile(forward, backward_input, backward_weight, message))
        }
        Schedule::Explicit(grid) => Written::Cells(grid.to_string()),
        named => Written::Name(named.name()),
    }
}

fn profile(forward: u32, backward_input: u32, backward_weight: u32, message: u32) -> Vec<(&'static str, u32)> {
    vec![
        ("forward", forward),
        ("backward_input", backward_input),
        ("backward_weight", backward_weight),
        ("message", message),
    ]
}

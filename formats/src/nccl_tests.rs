//! What nccl-tests (or rccl-tests) prints of one collective, and tables with the same columns: times against sizes.
//!
//! Sizes are bytes of the whole buffer, as nccl-tests counts them: what every member holds before an all-reduce, after an
//! all-gather, before a reduce-scatter, and what each sends in an all-to-all. Of the two halves the out-of-place one is
//! read. Lines may carry the rank that a launcher puts before them.
//!
//! ```
//! use trainyard_formats::nccl_tests;
//! let text = "$ all_reduce_perf -b 1M -e 4M -g 8\n\
//!             #   size   time  algbw  busbw\n\
//!             #    (B)   (us) (GB/s) (GB/s)\n\
//!             1048576   101.9  10.29  18.01\n\
//!             4194304   101.5  41.32  72.32\n";
//! let curve = nccl_tests::read(text, "out.txt", &nccl_tests::Said::default()).expect("a whole table");
//! assert_eq!(curve.ranks, 8); // bus bandwidth is 2 (n - 1) / n of the algorithm's
//! assert_eq!(curve.points[0], [1048576.0, 101.9]);
//! ```

use std::collections::BTreeSet;

use ir::Problem;
use ir::program::CollectiveKind;

use crate::text::{Faults, Line, lines, nearest};

mod cells;
mod hosts;
#[cfg(test)]
mod tests;

use cells::{Columns, Row};
pub use hosts::{Seat, seats};

/// The most members that are looked for where a table does not say how many took part.
const MOST_RANKS: u32 = 1 << 16;

/// Times of a collective against its size.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Which.
    pub kind: CollectiveKind,
    /// Members.
    pub ranks: u32,
    /// Hosts that hold them, where the text lists its ranks.
    pub nodes: Option<u32>,
    /// `[bytes of the whole buffer, microseconds]`, sizes increasing.
    pub points: Vec<[f64; 2]>,
}

/// What a person knows beside the text; what the text says too must be the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// Which collective.
    pub kind: Option<CollectiveKind>,
    /// Members.
    pub ranks: Option<u32>,
}

/// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).
fn bus_factor(kind: CollectiveKind, ranks: u32) -> f64 {
    let once = f64::from(ranks - 1) / f64::from(ranks);
    match kind {
        CollectiveKind::AllReduce => 2.0 * once,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => once,
    }
}

/// Programs of nccl-tests, and the script of the same name with one table.
const PROGRAMS: [(&str, Option<CollectiveKind>); 11] = [
    ("all_reduce_perf", Some(CollectiveKind::AllReduce)),
    ("all_reduce_bench", Some(CollectiveKind::AllReduce)),
    ("all_gather_perf", Some(CollectiveKind::AllGather)),
    ("reduce_scatter_perf", Some(CollectiveKind::ReduceScatter)),
    ("alltoall_perf", Some(CollectiveKind::AllToAll)),
    ("broadcast_perf", None),
    ("reduce_perf", None),
    ("gather_perf", None),
    ("scatter_perf", None),
    ("sendrecv_perf", None),
    ("hypercube_perf", None),
];

/// Reads what a program of nccl-tests printed. `file_name` is the file as the person named it.
///
/// # Errors
/// Every fault with its line: no table or two, rows cut short, sizes out of order, times that are none, rates that do not
/// follow from them, wrong results, members that contradict each other or are not said.
pub fn read(text: &str, file_name: &str, said: &Said) -> Result<Curve, Vec<Problem>> {
    let mut faults = Faults::new(file_name);
    let all: Vec<Line<'_>> = lines(text).collect();
    let found = rows(&all, &mut faults);
    if faults.is_empty() && found.len() < 2 {
        let hint =
            "give all that a program of nccl-tests prints, its heading with size, time, algbw and busbw included";
        faults.whole(
            "collectives",
            format!("has {} rows of a table, and a curve needs two", found.len()),
            hint,
            text.len(),
        );
    }
    if faults.is_empty() && found.iter().all(|(_, row)| row.bus == 0.0) {
        let hint = "a run on one rank moves nothing";
        faults.whole("collectives", "has a bus bandwidth of 0 throughout", hint, text.len());
    }
    let kind = kind(&all, said, text.len(), &mut faults);
    let (listed, nodes) = listed(&all);
    let mut ranks = None;
    if let (true, Some(kind)) = (faults.is_empty(), kind) {
        ranks = members(kind, said.ranks, listed, &found, text.len(), &mut faults);
        if let Some(ranks) = ranks {
            found.iter().for_each(|(line, row)| row.rates_follow(kind, ranks, line, &mut faults));
        }
    }
    let points = found.iter().map(|(_, row)| [row.bytes, row.microseconds]).collect();
    faults.finish(|| Curve { kind: kind.expect("known"), ranks: ranks.expect("known"), nodes, points })
}

/// A line without the rank that mpirun or srun puts before it.
fn unprefixed(text: &str) -> &str {
    let text = text.trim();
    if let Some((before, after)) = text.split_once(">:")
        && before.starts_with('[')
    {
        return after.trim();
    }
    match text.split_once(':') {
        Some((before, after)) if !before.is_empty() && before.bytes().all(|b| b.is_ascii_digit()) => after.trim(),
        _ => text,
    }
}

/// The rows of the one table.
fn rows<'t>(all: &[Line<'t>], faults: &mut Faults<'_>) -> Vec<(Line<'t>, Row)> {
    let mut columns: Option<Columns> = None;
    let mut rows: Vec<(Line<'_>, Row)> = Vec::new();
    for line in all {
        let text = unprefixed(line.text);
        if let Some(heading) = Columns::of(text) {
            if columns.is_some() {
                faults.at(line, "a second table begins", Some("give each collective a file of its own".to_owned()));
                break;
            }
            columns = Some(heading);
            continue;
        }
        let Some(columns) = &mut columns else { continue };
        if columns.units(text, line, faults) || !cells::may_be_a_row(text) {
            continue;
        }
        let Some(row) = columns.row(text, line, faults) else { continue };
        // The least count of some collectives is nothing.
        if row.bytes == 0.0 {
            continue;
        }
        if let Some((_, before)) = rows.last().filter(|(_, before)| before.bytes >= row.bytes) {
            faults.at(line, format!("{} bytes do not follow {}", row.bytes, before.bytes), None);
        }
        rows.push((line.clone(), row));
    }
    if let Some(missing) = columns.and_then(|columns| columns.without_units()) {
        faults.at(&all[0], missing, Some("leave nccl-tests' second heading, (B) (us) (GB/s), where it is".to_owned()));
    }
    rows
}

/// Which collective: what the text calls its program, else what was said.
fn kind(all: &[Line<'_>], said: &Said, length: usize, faults: &mut Faults<'_>) -> Option<CollectiveKind> {
    let mut found: Option<CollectiveKind> = said.kind;
    for line in all {
        let words = line.text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for (name, kind) in words.filter_map(|word| PROGRAMS.into_iter().find(|(name, _)| *name == word)) {
            match (kind, found) {
                (None, _) => {
                    let names: Vec<&str> = CollectiveKind::ALL.into_iter().map(CollectiveKind::name).collect();
                    faults.at(
                        line,
                        format!("{name} measures what no plan uses"),
                        Some(format!("one of {}", names.join(", "))),
                    );
                }
                (Some(kind), Some(other)) if kind != other => {
                    let message = format!("{name} is {}, and {} was said before", kind.name(), other.name());
                    faults.at(line, message, None);
                }
                (Some(kind), _) => found = Some(kind),
            }
        }
    }
    if found.is_none() && faults.is_empty() {
        let hint = "say it beside the file: kind = \"all-reduce\"";
        faults.whole("collectives", "does not say which collective it is of", hint, length);
    }
    found
}

/// How many ranks are listed under "Using devices", and on how many hosts.
fn listed(all: &[Line<'_>]) -> (Option<u32>, Option<u32>) {
    let found: Vec<(u32, Seat)> = all.iter().filter_map(hosts::listed).collect();
    let ranks: BTreeSet<u32> = found.iter().map(|(rank, _)| *rank).collect();
    let hosts: BTreeSet<&str> = found.iter().map(|(_, seat)| seat.host.as_str()).collect();
    let count = |count: usize| u32::try_from(count).ok().filter(|count| *count > 0);
    (count(ranks.len()), count(hosts.len()))
}

/// How many took part: those listed, else as many as give this bus bandwidth, else what was said; all of it the same.
fn members(
    kind: CollectiveKind,
    said: Option<u32>,
    listed: Option<u32>,
    rows: &[(Line<'_>, Row)],
    length: usize,
    faults: &mut Faults<'_>,
) -> Option<u32> {
    let (line, best) = rows.iter().max_by(|a, b| a.1.bus.total_cmp(&b.1.bus))?;
    let fits = |ranks: u32| best.is_of(kind, ranks);
    let told = listed.or(said);
    if let (Some(listed), Some(said)) = (listed, said)
        && listed != said
    {
        let message = format!("lists {listed} ranks, and {said} were said");
        faults.whole("collectives", message, "leave the number to the file", length);
        return None;
    }
    let inferred: Vec<u32> = (2..=MOST_RANKS).filter(|ranks| fits(*ranks)).take(2).collect();
    match (told, &inferred[..]) {
        (Some(told), _) if told >= 2 && fits(told) => Some(told),
        (None, [only]) => Some(*only),
        (None, [_, _, ..]) => {
            let hint = "say it beside the file: ranks = 64";
            faults.whole("collectives", "does not say how many ranks took part", hint, length);
            None
        }
        (told, _) => {
            let ratio = best.bus / best.algorithm;
            let hint = inferred.first().map(|ranks| format!("{ratio:.4} is that of {ranks}"));
            let who = told.map_or_else(|| "any number of ranks".to_owned(), |told| format!("{told} ranks"));
            faults.at(line, format!("busbw is {ratio:.4} of algbw, which no {} of {who} has", kind.name()), hint);
            None
        }
    }
}

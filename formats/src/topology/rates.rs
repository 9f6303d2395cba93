//! A table of measured rates between all devices of a cluster, as people write it down, and the levels of domains in
//! it.
//!
//! ```text
//! GB/s, n1:0, n1:1, n2:0, n2:1
//! n1:0,    -,  230, 24.1, 23.9
//! n1:1,  231,    -, 24.0, 24.2
//! n2:0, 24.1, 23.8,    -,  229
//! n2:1, 24.0, 24.1,  230,    -
//! ```
//!
//! Columns stand between commas, tabs or spaces; the first cell is the unit. Names are the person's own. What
//! `p2pBandwidthLatencyTest` and `nvbandwidth` print is read too.

use ir::{BytesPerSecond, Problem};

use super::Domains;
use super::bandwidth::{self, LEVELS_APART};
use crate::text::{Faults, Line, lines};

/// The most devices of one table.
const MOST: usize = 4096;

/// Measured rates between devices.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    /// The devices' names, in order.
    pub names: Vec<String>,
    /// Bytes per second of the slower direction of each pair; the diagonal says nothing.
    pub bytes_per_second: Vec<Vec<f64>>,
}

/// Devices that connections of one speed or faster ones join.
#[derive(Clone, PartialEq, Debug)]
pub struct Level {
    /// The domains, single devices among them.
    pub domains: Domains,
    /// Bytes per second of the slowest connection that joins them.
    pub bytes_per_second: f64,
}

impl Rates {
    /// Domains from the fastest connections to the slowest. Rates are sorted, and where one is at least half as high
    /// again as the one below it, two kinds of connection meet; each kind joins what the faster ones left apart. The
    /// last level is the whole.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let count = self.names.len();
        let pairs = (0..count).flat_map(|a| (0..a).map(move |b| (a, b)));
        let mut rates: Vec<f64> = pairs.map(|(a, b)| self.bytes_per_second[a][b]).collect();
        rates.sort_by(|a, b| b.total_cmp(a));
        let gaps = rates.windows(2).filter(|two| two[0] >= LEVELS_APART * two[1]).map(|two| two[0]);
        let mut levels: Vec<Level> = Vec::new();
        for least in gaps.chain(rates.last().copied()) {
            let domains = Domains::components(count, |a, b| self.bytes_per_second[a][b] >= least);
            if levels.last().is_none_or(|last| last.domains != domains) {
                levels.push(Level { domains, bytes_per_second: least });
            }
        }
        levels
    }

    /// The devices, those of one domain one after the other at every level.
    #[must_use]
    pub fn order(&self) -> Vec<usize> {
        let levels = self.levels();
        let place =
            |level: &Level, device: usize| level.domains.groups.iter().position(|group| group.contains(&device));
        let mut order: Vec<(Vec<Option<usize>>, usize)> = (0..self.names.len())
            .map(|device| (levels.iter().rev().map(|level| place(level, device)).collect(), device))
            .collect();
        order.sort();
        order.into_iter().map(|(_, device)| device).collect()
    }

    /// Pairs of one domain whose own connection is slower than those that join it by as much as two kinds differ: a
    /// link that is down, or one that nothing but others carries. Rates are in bytes per second.
    #[must_use]
    pub fn slow_pairs(&self) -> Vec<(usize, usize, f64)> {
        let levels = self.levels();
        let Some(level) = levels.first() else { return Vec::new() };
        let pairs =
            level.domains.groups.iter().flat_map(|group| {
                group.iter().enumerate().flat_map(|(at, a)| group[at + 1..].iter().map(|b| (*a, *b)))
            });
        let rate = |(a, b): &(usize, usize)| self.bytes_per_second[*a][*b];
        pairs.filter(|pair| rate(pair) < level.bytes_per_second).map(|(a, b)| (a, b, rate(&(a, b)))).collect()
    }
}

/// Reads a table of rates, or what `p2pBandwidthLatencyTest` or `nvbandwidth` printed. `file_name` is the file as the
/// person named it.
///
/// # Errors
/// Every fault with its line: a unit that is none, a table that is not square, cells that are no positive numbers, a
/// device that another does not reach, and pairs whose two directions differ as two kinds of connection do.
pub fn read(text: &str, file_name: &str) -> Result<Rates, Vec<Problem>> {
    if text.contains("Matrix") || text.contains("bandwidth (GB/s)") {
        let matrix = bandwidth::read(text, file_name)?;
        let count = matrix.bytes_per_second.len();
        let both = |a: usize, b: usize| if a == b { f64::INFINITY } else { matrix.pair(a, b) };
        let row = |a| (0..count).map(|b| both(a, b)).collect();
        let names = (0..count).map(|device| device.to_string()).collect();
        return Ok(Rates { names, bytes_per_second: (0..count).map(row).collect() });
    }
    let mut faults = Faults::new(file_name);
    let mut rest = lines(text).filter(|line| !line.text.trim().is_empty() && !line.text.trim_start().starts_with('#'));
    let Some(heading) = rest.next() else {
        faults.whole("rates", "is empty", "a table whose first cell is a unit, such as GB/s", text.len());
        return faults.finish(|| unreachable!("a fault was noted"));
    };
    let (unit, names) = names(&heading, &mut faults);
    let rows: Vec<Line<'_>> = rest.collect();
    if faults.is_empty() && rows.len() != names.len() {
        let message = format!("is not square: {} columns and {} rows", names.len(), rows.len());
        faults.whole("rates", message, "a row and a column for each device", text.len());
    }
    let cells = if faults.is_empty() { cells(&names, &rows, unit, &mut faults) } else { Vec::new() };
    if faults.is_empty() {
        symmetric(&names, &cells, &rows, &mut faults);
    }
    let count = names.len();
    let both = |a: usize, b: usize| match (cells[a][b], cells[b][a]) {
        (Some(there), Some(back)) if a != b => there.min(back),
        _ => f64::INFINITY,
    };
    let rates = || (0..count).map(|a| (0..count).map(|b| both(a, b)).collect()).collect();
    faults.finish(|| Rates { bytes_per_second: rates(), names: names.clone() })
}

fn words(line: &str) -> Vec<&str> {
    let separated = if line.contains(',') { line.split(',').map(str::trim).collect() } else { Vec::new() };
    if separated.is_empty() { line.split_whitespace().collect() } else { separated }
}

/// The unit in bytes per second, and the devices.
fn names(heading: &Line<'_>, faults: &mut Faults<'_>) -> (f64, Vec<String>) {
    let words = words(heading.text);
    let (unit, names) = words.split_first().map_or(("", &[][..]), |(unit, names)| (*unit, names));
    let scale = format!("1{unit}").parse::<BytesPerSecond>().map(BytesPerSecond::get);
    if scale.is_err() {
        let hint = "the first cell is the unit of all others, such as GB/s or Gbps";
        faults.at(heading, format!("`{unit}` is no unit of bandwidth"), Some(hint.to_owned()));
    }
    if !(2..=MOST).contains(&names.len()) {
        faults.at(heading, format!("names {} devices, and 2 to {MOST} can be", names.len()), None);
    }
    for (at, name) in names.iter().enumerate().filter(|(at, name)| names[..*at].contains(name)) {
        faults.at(heading, format!("names device `{name}` twice, again in column {}", at + 1), None);
    }
    (scale.unwrap_or(1.0), names.iter().map(|name| (*name).to_owned()).collect())
}

/// Rates of all rows; `None` on the diagonal and where something is wrong.
fn cells(names: &[String], rows: &[Line<'_>], unit: f64, faults: &mut Faults<'_>) -> Vec<Vec<Option<f64>>> {
    let mut all = Vec::with_capacity(names.len());
    for (number, line) in rows.iter().enumerate() {
        let words = words(line.text);
        let (name, found) = words.split_first().map_or(("", &[][..]), |(name, found)| (*name, found));
        if name != names[number] {
            let hint = format!("rows are in the order of the columns: {} is the next", names[number]);
            faults.at(line, format!("`{name}` is out of order"), Some(hint));
        }
        if found.len() != names.len() {
            let message = format!("is not square: {name} has {} of {} cells", found.len(), names.len());
            faults.at(line, message, None);
            all.push(vec![None; names.len()]);
            continue;
        }
        let rate = |cell: &str| cell.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
        let others = || found.iter().enumerate().filter(|(column, _)| *column != number);
        let absent = |cell: &str| ["-", "", "0", "x", "n/a", "nan"].contains(&cell.to_lowercase().as_str());
        if others().all(|(_, cell)| absent(cell)) {
            let hint = "leave it out of the table and of the cluster, or measure again";
            faults.at(line, format!("{name} reaches no other device"), Some(hint.to_owned()));
        } else {
            for (column, cell) in others().filter(|(_, cell)| rate(cell).is_none()) {
                let to = &names[column];
                let message = if absent(cell) {
                    format!("{name} does not reach {to}")
                } else {
                    format!("`{cell}` from {name} to {to} is no positive number")
                };
                faults.at(line, message, None);
            }
        }
        let row = found.iter().enumerate().map(|(column, cell)| rate(cell).filter(|_| column != number));
        all.push(row.map(|rate| rate.map(|rate| rate * unit)).collect());
    }
    all
}

/// Two directions of a connection are of one kind.
fn symmetric(names: &[String], cells: &[Vec<Option<f64>>], rows: &[Line<'_>], faults: &mut Faults<'_>) {
    for (a, line) in rows.iter().enumerate() {
        for b in 0..a {
            if let (Some(there), Some(back)) = (cells[a][b], cells[b][a])
                && there.max(back) >= LEVELS_APART * there.min(back)
            {
                let message = format!(
                    "is not symmetric: {} to {} is {} GB/s and back it is {}",
                    names[a],
                    names[b],
                    shown(there),
                    shown(back)
                );
                faults.at(line, message, Some("measure both directions alone, one after the other".to_owned()));
            }
        }
    }
}

/// Gigabytes per second in at most four digits behind the point.
fn shown(rate: f64) -> String {
    let text = format!("{:.4}", rate * 1e-9);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

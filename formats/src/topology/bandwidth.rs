//! Measured bandwidths between the devices of a node: what CUDA's `p2pBandwidthLatencyTest` and NVIDIA's `nvbandwidth`
//! print.
//!
//! Of the several matrices that these print, the one read is of one direction, between devices, with direct access:
//! what one device sends another while nothing else does.

use ir::Problem;

use super::Domains;
use crate::text::{Faults, Line, lines};

/// Two levels of bandwidth are two kinds of connection if the faster is at least this times the slower; what one kind
/// of connection gives differs by less between pairs of a node.
pub(super) const LEVELS_APART: f64 = 1.5;
/// The most devices of one matrix.
const MOST: usize = 1024;

/// Measured rates between devices.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Bytes per second from the row's device to the column's; `None` on the diagonal.
    pub bytes_per_second: Vec<Vec<Option<f64>>>,
    /// Seconds of the smallest message, where that was measured.
    pub latency_seconds: Option<Vec<Vec<Option<f64>>>>,
}

/// What a kind of node says of its links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// Bytes per second of the slowest pair.
    pub bytes_per_second: f64,
    /// Seconds of the slowest pair's smallest message, where that was measured.
    pub latency_seconds: Option<f64>,
}

impl Matrix {
    /// Devices that connections of the faster kinds join: pairs are sorted by rate and divided where neighbours differ
    /// most, if they differ by half or more. Where none do, the node is one domain.
    #[must_use]
    pub fn domains(&self) -> Domains {
        let least = self.least_inside();
        Domains::components(self.count(), |a, b| self.pair(a, b) >= least)
    }

    /// The slowest connected pair inside a domain; `None` where every domain is one device.
    #[must_use]
    pub fn inside(&self, domains: &Domains) -> Option<Level> {
        let least = self.least_inside();
        self.slowest(|a, b| self.pair(a, b) >= least && same_group(domains, a, b))
    }

    /// The slowest pair whose devices are in different domains; `None` where there is one domain.
    #[must_use]
    pub fn across(&self, domains: &Domains) -> Option<Level> {
        self.slowest(|a, b| !same_group(domains, a, b))
    }

    fn count(&self) -> usize {
        self.bytes_per_second.len()
    }

    /// The slower direction of a pair.
    pub(super) fn pair(&self, a: usize, b: usize) -> f64 {
        let one = |from: usize, to: usize| self.bytes_per_second[from][to].unwrap_or(f64::INFINITY);
        one(a, b).min(one(b, a))
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count()).flat_map(|a| (0..a).map(move |b| (b, a)))
    }

    /// The lowest rate above the widest gap.
    fn least_inside(&self) -> f64 {
        let mut rates: Vec<f64> = self.pairs().map(|(a, b)| self.pair(a, b)).collect();
        rates.sort_by(f64::total_cmp);
        let gaps = rates.windows(2).map(|two| (two[1] / two[0], two[1]));
        let widest = gaps.filter(|(ratio, _)| *ratio >= LEVELS_APART).max_by(|a, b| a.0.total_cmp(&b.0));
        widest.map_or(0.0, |(_, rate)| rate)
    }

    fn slowest(&self, of: impl Fn(usize, usize) -> bool) -> Option<Level> {
        let pairs: Vec<(usize, usize)> = self.pairs().filter(|(a, b)| of(*a, *b)).collect();
        let rate = pairs.iter().map(|(a, b)| self.pair(*a, *b)).min_by(f64::total_cmp)?;
        let latency = self.latency_seconds.as_ref().and_then(|latency| {
            let both = pairs.iter().flat_map(|(a, b)| [latency[*a][*b], latency[*b][*a]]);
            both.flatten().max_by(f64::total_cmp)
        });
        Some(Level { bytes_per_second: rate, latency_seconds: latency })
    }
}

fn same_group(domains: &Domains, a: usize, b: usize) -> bool {
    domains.groups.iter().any(|group| group.contains(&a) && group.contains(&b))
}

/// What the heading of a matrix says that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Title {
    /// Bandwidth of one direction with direct access.
    Bandwidth,
    /// Latency with direct access, as seen from devices.
    Latency,
    /// Another one.
    Other,
}

impl Title {
    fn of(text: &str) -> Option<Self> {
        let has = |part: &str| text.contains(part);
        if has("Matrix") && has("(GB/s)") && has("P2P=") {
            return Some(if has("Unidirectional P2P=Enabled") { Self::Bandwidth } else { Self::Other });
        }
        if has("Matrix") && has("(us)") && has("Latency") {
            return Some(if has("P2P=Enabled") { Self::Latency } else { Self::Other });
        }
        if has("bandwidth (GB/s)") && has("(row)") && has("(column)") {
            let one_way = has("GPU(row) -> GPU(column)") || has("GPU(row) <- GPU(column)");
            return Some(if one_way { Self::Bandwidth } else { Self::Other });
        }
        None
    }
}

/// Reads what `p2pBandwidthLatencyTest` or `nvbandwidth` printed. `file_name` is the file as the person named it.
///
/// # Errors
/// Every fault with its line: no such matrix, rows or cells missing, rates that are no positive numbers.
pub fn read(text: &str, file_name: &str) -> Result<Matrix, Vec<Problem>> {
    let mut faults = Faults::new(file_name);
    let all: Vec<Line<'_>> = lines(text).filter(|line| !line.text.trim().is_empty()).collect();
    let (mut rates, mut latency) = (None, None);
    for (at, line) in all.iter().enumerate() {
        let (scale, place) = match Title::of(line.text) {
            Some(Title::Bandwidth) => (1e9, &mut rates),
            Some(Title::Latency) => (1e-6, &mut latency),
            Some(Title::Other) | None => continue,
        };
        // The first counts: nvbandwidth measures the same pairs again in other ways.
        if place.is_none() {
            *place = Some(square(line, &all[at + 1..], scale, &mut faults));
        }
    }
    if rates.is_none() {
        let hint = "give all that p2pBandwidthLatencyTest or nvbandwidth prints: the matrix of one direction between GPUs, with P2P enabled, is read";
        faults.whole("bandwidth", "has no such matrix", hint, text.len());
    }
    if let (true, Some(rates)) = (faults.is_empty(), &rates) {
        symmetric(rates, text.len(), &mut faults);
    }
    if let (true, Some(rates), Some(latency)) = (faults.is_empty(), &rates, &latency)
        && rates.len() != latency.len()
    {
        let message = format!("has rates of {} devices and latencies of {}", rates.len(), latency.len());
        faults.whole("bandwidth", message, "give what one run printed", text.len());
    }
    faults.finish(|| Matrix { bytes_per_second: rates.unwrap_or_default(), latency_seconds: latency })
}

/// Two directions of a connection are of one kind.
fn symmetric(rates: &[Vec<Option<f64>>], length: usize, faults: &mut Faults<'_>) {
    for (a, row) in rates.iter().enumerate() {
        for (b, there) in row.iter().enumerate().take(a) {
            if let (Some(there), Some(back)) = (*there, rates[b][a])
                && there.max(back) >= LEVELS_APART * there.min(back)
            {
                let (there, back) = (there * 1e-9, back * 1e-9);
                let message =
                    format!("is not symmetric: {there:.2} GB/s from device {a} to device {b}, and {back:.2} back");
                faults.whole("bandwidth", message, "measure again while nothing else runs", length);
            }
        }
    }
}

/// The rows below a title: a heading of device numbers, then as many rows.
fn square(title: &Line<'_>, rest: &[Line<'_>], scale: f64, faults: &mut Faults<'_>) -> Vec<Vec<Option<f64>>> {
    let Some((heading, rest)) = rest.split_first() else {
        faults.at(title, "no matrix follows", None);
        return Vec::new();
    };
    let words = heading.text.split_whitespace().skip_while(|word| word.parse::<usize>().is_err());
    let columns: Vec<Option<usize>> = words.map(|word| word.parse().ok()).collect();
    let count = columns.len();
    if !(2..=MOST).contains(&count) || columns.iter().enumerate().any(|(at, column)| *column != Some(at)) {
        faults.at(heading, "is no heading of devices", Some("0, 1 and on, one after the other".to_owned()));
        return Vec::new();
    }
    let mut matrix = Vec::with_capacity(count);
    for number in 0..count {
        let Some(line) = rest.get(number) else {
            faults.at(title, format!("is truncated: {count} devices in the heading and {number} rows"), None);
            return matrix;
        };
        let mut words = line.text.split_whitespace();
        if words.next().and_then(|word| word.parse().ok()) != Some(number) {
            faults.at(line, format!("the row of device {number} is missing"), None);
            return matrix;
        }
        let cells: Vec<&str> = words.collect();
        if cells.len() != count {
            faults.at(line, format!("has {} of {count} cells", cells.len()), None);
            return matrix;
        }
        let row = cells.iter().enumerate().map(|(column, cell)| {
            let own = column == number;
            let rate = cell.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
            if rate.is_none() && !own {
                faults.at(line, format!("`{cell}` to device {column} is no positive number"), None);
            }
            rate.filter(|_| !own).map(|rate| rate * scale)
        });
        matrix.push(row.collect());
    }
    matrix
}

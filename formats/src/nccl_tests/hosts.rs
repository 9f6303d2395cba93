//! Where a run of nccl-tests had its ranks: what it lists under "Using devices".

use ir::Problem;

use super::unprefixed;
use crate::text::{Faults, Line, lines};

/// A rank's host and its device there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The host's name.
    pub host: String,
    /// Its device, as the host numbers them.
    pub device: u32,
}

/// A rank and its seat, if a line lists one.
pub(super) fn listed(line: &Line<'_>) -> Option<(u32, Seat)> {
    let words: Vec<&str> = unprefixed(line.text).trim_start_matches('#').split_whitespace().collect();
    let after = |wanted: &str| words.iter().position(|word| *word == wanted).and_then(|at| words.get(at + 1));
    let rank = words.get(1).filter(|_| words.first() == Some(&"Rank"))?;
    let (host, device) = (after("on")?, after("device")?);
    Some((rank.parse().ok()?, Seat { host: (*host).to_owned(), device: device.parse().ok()? }))
}

/// The seats of all ranks, by rank. `file_name` is the file as the person named it.
///
/// # Errors
/// If no rank is listed, one is missing or listed twice, or two have one device.
pub fn seats(text: &str, file_name: &str) -> Result<Vec<Seat>, Vec<Problem>> {
    let mut faults = Faults::new(file_name);
    let all: Vec<Line<'_>> = lines(text).collect();
    let mut found: Vec<(u32, Seat, &Line<'_>)> = Vec::new();
    for line in &all {
        let Some((rank, seat)) = listed(line) else { continue };
        if found.iter().any(|(known, ..)| *known == rank) {
            faults.at(line, format!("lists rank {rank} again"), None);
        } else if let Some((other, ..)) = found.iter().find(|(_, known, _)| *known == seat) {
            faults.at(
                line,
                format!("gives rank {rank} device {} of {}, which rank {other} has", seat.device, seat.host),
                None,
            );
        } else {
            found.push((rank, seat, line));
        }
    }
    found.sort_by_key(|(rank, ..)| *rank);
    if found.is_empty() {
        let hint = "give all that a program of nccl-tests prints: it lists each rank with its host and device";
        faults.whole("ranks", "lists none", hint, text.len());
    }
    if let Some((at, (.., line))) = found.iter().enumerate().find(|(at, (rank, ..))| *rank as usize != *at) {
        faults.at(line, format!("is truncated: rank {at} is not listed"), None);
    }
    faults.finish(|| found.into_iter().map(|(_, seat, _)| seat).collect())
}

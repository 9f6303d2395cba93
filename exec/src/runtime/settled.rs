//! Spans from what devices measured of themselves.
//!
//! A device's clock says when an instruction began and ended on it. When it was issued follows from the program: when its
//! waits and its predecessor on the stream had ended. An exchange starts when all its ends were issued, which no device knows
//! alone. Clocks that differ by less than their bounds may put an end before what it follows; then it is as late as that.

use ir::program::Program;
use ir::timeline::Span;
use ir::{InstructionId, SimTime};

use super::script::{EndId, STREAMS, Script};
use super::shared::{Measured, Report};

/// What is known of an instruction.
#[derive(Clone, Copy, Default)]
struct Known {
    issued: Option<u64>,
    span: Option<(u64, u64)>,
}

/// Spans and memory of ranks that measured, by rank; what others report stays as it is.
///
/// # Panics
/// If an exchange misses an end, which verification excludes.
pub(super) fn settle(program: &Program, script: &Script, reports: &mut [Report]) {
    if reports.iter().any(|report| report.measured.is_none()) {
        return;
    }
    let measured: Vec<Measured> = reports.iter_mut().filter_map(|report| report.measured.clone()).collect();
    let mut known: Vec<Vec<Known>> = measured.iter().map(|m| vec![Known::default(); m.spans.len()]).collect();
    let mut heads = vec![[0usize; STREAMS]; reports.len()];
    let mut left: usize = known.iter().map(Vec::len).sum();
    while left > 0 {
        let before = left;
        for rank in 0..reports.len() {
            for stream in 0..STREAMS {
                left -= advance((program, script, &measured), &mut known, &mut heads, (rank, stream));
            }
        }
        assert!(left < before, "{left} instructions wait for each other");
    }
    for ((report, measured), known) in reports.iter_mut().zip(measured).zip(known) {
        let time = SimTime::from_nanoseconds;
        let span = |(index, known): (usize, &Known)| {
            let (start, end) = known.span.expect("settled");
            let issued = time(known.issued.expect("settled"));
            Span { instruction: InstructionId::at(index), issued, start: time(start), end: time(end) }
        };
        report.lane.spans = known.iter().enumerate().map(span).collect();
        let mut latest = SimTime::ZERO;
        report.lane.memory = vec![(SimTime::ZERO, measured.held)];
        for (instruction, held) in measured.memory {
            latest = latest.max(report.lane.spans[instruction.index()].end);
            if report.lane.memory.last().is_some_and(|(_, bytes)| *bytes != held) {
                report.lane.memory.push((latest, held));
            }
        }
    }
}

/// Settles what can be settled at the head of a stream, and says how many instructions that was.
fn advance(
    (program, script, measured): (&Program, &Script, &[Measured]),
    known: &mut [Vec<Known>],
    heads: &mut [[usize; STREAMS]],
    (rank, stream): (usize, usize),
) -> usize {
    let own = &script.ranks[rank];
    let role = &program.roles[own.role.index()];
    let mut count = 0;
    while let Some(&instruction) = own.streams[stream].get(heads[rank][stream]) {
        let index = instruction.index();
        let end = |id: InstructionId| known[rank][id.index()].span.map(|(_, end)| end);
        let previous = heads[rank][stream].checked_sub(1).map(|at| own.streams[stream][at]);
        let before = role.waits(role.instruction(instruction)).iter().copied().chain(previous);
        let Some(issued) = before.map(end).try_fold(0, |latest, end| Some(latest.max(end?))) else { break };
        known[rank][index].issued = Some(issued);
        let begun = match own.end_of[index] {
            None => Some(issued),
            Some(id) => all_issued(script, known, id),
        };
        let Some(begun) = begun else { break };
        let [start, end] = measured[rank].spans[index];
        let start = start.max(begun);
        known[rank][index].span = Some((start, end.max(start)));
        heads[rank][stream] += 1;
        count += 1;
    }
    count
}

/// When the last end of a transaction was issued, if all were.
fn all_issued(script: &Script, known: &[Vec<Known>], id: EndId) -> Option<u64> {
    let ends = script.transactions[id.transaction].ends.iter();
    ends.map(|end| known[end.rank][end.instruction.index()].issued)
        .try_fold(0, |latest, issued| Some(latest.max(issued?)))
}

//! What was measured: which of a row's figures to trust.
//!
//! A printed step time is the measurement; tokens or sequences per second are the same number in other words and must
//! agree with it to 2 %, within the digits in which each is printed (published tables round or cut sequences per second to whole
//! numbers). If they do not, the figure that another one supports is used: a third rate, or the printed rate of
//! floating-point operations, whose formulas differ by at most a half among tables. Otherwise the row contradicts itself.

use super::cells::{Cells, Printed};
use super::consistency;
use super::refusal::Reason;
use super::run::{
    MeasuredFigures, MeasuredMemory, MeasuredStep, ModelShape, PeerFigures, RunSource, StageProfile, StepBasis,
};
use super::words;

/// How far two figures of one time may lie apart, beyond rounding.
const AGREEMENT: f64 = 0.02;
/// By how much rates of floating-point operations may differ by their formula alone: recomputation counted or not (4/3),
/// attention whole or half.
const FORMULAS: std::ops::RangeInclusive<f64> = 0.67..=1.5;

/// A time with the range that the printed digits leave.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Time {
    basis: StepBasis,
    seconds: f64,
    least: f64,
    most: f64,
}

impl Time {
    fn agrees(&self, other: &Self) -> bool {
        let slack = 1.0 + AGREEMENT;
        self.most * slack >= other.least && other.most * slack >= self.least
    }
}

/// Reads the figures of a row whose batch is known. `None` with a fault if there is none, or if they contradict.
pub(super) fn measured(
    cells: &Cells<'_>,
    source: &RunSource,
    model: Option<&ModelShape>,
    devices: u32,
    global_batch: u64,
    sequence_length: u32,
) -> Option<MeasuredFigures> {
    let (samples, devices) = (global_batch as f64, f64::from(devices));
    let tokens = samples * f64::from(sequence_length);
    let times = times(cells, samples, tokens / devices);
    let step = match times[..] {
        [] => None,
        [first, ..] if times.iter().all(|time| first.agrees(time)) => Some(first),
        _ => {
            let witness = model.and_then(|model| witness(cells, model, tokens / devices));
            Some(supported(cells, &times, witness)?)
        }
    };
    let step = step.map(|time| MeasuredStep { seconds: time.seconds, basis: time.basis });
    let words_of_memory = cells.text("memory_kind");
    let lower = words_of_memory.to_lowercase();
    let out_of_memory = lower.contains("oom") || lower.contains("out of memory");
    let memory = cells.number("memory_gb").map(|printed| {
        let (kind, unit) = words::memory_kind(words_of_memory);
        MeasuredMemory { value: printed.value, unit, kind }
    });
    if step.is_none() && memory.is_none() && !out_of_memory {
        let only_rate = cells.is_given("tflops_per_gpu") || cells.is_given("mfu_pct");
        let message = if only_rate {
            "only a rate of floating-point operations, whose formula decides what the time was"
        } else {
            "neither a step time nor a memory figure"
        };
        cells.fault(Reason::NoMeasurement, "iteration_time_s", message);
        return None;
    }
    Some(MeasuredFigures {
        step,
        memory: memory.filter(|_| !out_of_memory),
        out_of_memory,
        bubble_rate: cells.number_or_zero("bubble_rate"),
        profile: profile(cells.text("notes")),
        peer: peer(cells, source),
    })
}

/// Every time that the row gives, the best first. The column that the table computed from a rate of floating-point
/// operations counts only if nothing else is there.
fn times(cells: &Cells<'_>, samples: f64, tokens_per_device: f64) -> Vec<Time> {
    let time = |basis: StepBasis, printed: Printed| {
        let (low, high) = (printed.value - printed.digit, printed.value + printed.digit);
        let (seconds, least, most) = match basis {
            StepBasis::Printed | StepBasis::FlopRate => (printed.value, low, high),
            StepBasis::Tokens => (tokens_per_device / printed.value, tokens_per_device / high, tokens_per_device / low),
            StepBasis::Samples => (samples / printed.value, samples / high, samples / low),
        };
        // A rate of one digit may have been nearly nothing.
        Time { basis, seconds, least: least.max(0.0), most: if most > 0.0 { most } else { f64::INFINITY } }
    };
    let measured = [StepBasis::Printed, StepBasis::Tokens, StepBasis::Samples];
    let mut times: Vec<Time> =
        measured.into_iter().filter_map(|basis| Some(time(basis, cells.rounded(basis.column())?))).collect();
    // What is printed as zero says how long it took at least, beside another figure.
    if times.iter().all(|time| !(time.seconds > 0.0 && time.seconds.is_finite())) {
        for time in times.drain(..) {
            cells.fault(Reason::OutOfRange, time.basis.column(), "is zero, and there is no other figure");
        }
    }
    times.sort_by_key(|time| !(time.seconds > 0.0 && time.seconds.is_finite()));
    if times.is_empty() {
        let derived = StepBasis::FlopRate;
        times.extend(cells.number(derived.column()).map(|printed| time(derived, printed)));
    }
    times
}

/// The time that the printed rate of floating-point operations implies, to within its formula.
fn witness(cells: &Cells<'_>, model: &ModelShape, tokens_per_device: f64) -> Option<f64> {
    let rate = cells.number("tflops_per_gpu").map(|printed| printed.value).or_else(|| {
        let (share, peak) = (cells.number("mfu_pct")?, cells.number("peak_tflops_dense")?);
        Some(share.value / 100.0 * peak.value)
    })?;
    Some(consistency::training_flops_per_token(model) * tokens_per_device / (rate * 1e12))
}

/// Of times that disagree, the one that another figure supports.
fn supported(cells: &Cells<'_>, times: &[Time], witness: Option<f64>) -> Option<Time> {
    let pair = times.iter().find(|time| times.iter().filter(|other| time.agrees(other)).count() > 1);
    let by_witness = witness.and_then(|expected| {
        let mut near = times.iter().filter(|time| FORMULAS.contains(&(time.seconds / expected)));
        near.next().filter(|_| near.next().is_none())
    });
    let listed: Vec<String> =
        times.iter().map(|time| format!("{} gives {:.4} s", time.basis.column(), time.seconds)).collect();
    let Some(time) = pair.or(by_witness) else {
        let message = format!("{}; they differ by more than {:.0} %", listed.join(", "), AGREEMENT * 100.0);
        cells.fault(Reason::Contradiction, "iteration_time_s", message);
        return None;
    };
    let support = if pair.is_some() { "two of three figures" } else { "the printed rate of operations" };
    cells.note(format!("{}; {} is used, as {support} support it", listed.join(", "), time.basis.column()));
    Some(*time)
}

/// `T_F=18.522 T_B=18.086 T_W=9.337 T_comm=0.601`, all in milliseconds.
fn profile(notes: &str) -> Option<StageProfile> {
    let value = |key: &str| {
        let rest = &notes[notes.find(key)? + key.len()..];
        let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        number.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
    };
    Some(StageProfile {
        forward_ms: value("T_F=")?,
        backward_input_ms: value("T_B=")?,
        backward_weight_ms: value("T_W=")?,
        message_ms: value("T_comm=")?,
    })
}

/// `simulator predicted 828.76 ms` in the notes, or `AMP predicted cost 3.37` among the flags.
fn peer(cells: &Cells<'_>, source: &RunSource) -> Option<PeerFigures> {
    for text in [cells.text("notes"), cells.text("other_flags")] {
        let Some((before, after)) = text.split_once(" predicted ") else { continue };
        let named = before.rsplit([' ', ';', ',']).next().unwrap_or_default();
        let tool = if named == "simulator" { source.title.split_whitespace().next().unwrap_or(named) } else { named };
        let mut words = after.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let positive = |text: &str| text.trim_end_matches([';', ',']).parse::<f64>().ok().filter(|v| *v > 0.0);
        let peer = match (first, second) {
            ("cost", cost) => PeerFigures { tool: tool.to_owned(), step_s: None, cost: positive(cost) },
            (number, unit) => {
                let scale = if unit.starts_with("ms") { 1e-3 } else { 1.0 };
                PeerFigures { tool: tool.to_owned(), step_s: positive(number).map(|v| v * scale), cost: None }
            }
        };
        if peer.step_s.is_some() || peer.cost.is_some() {
            return Some(peer);
        }
    }
    None
}

//! What a report is made from, and the report.

use ir::{Bytes, Clock, Problem, Program, Timeline};
use serde::Serialize;

use crate::compare::{Comparison, compare};
use crate::long_run::LongRunSummary;
use crate::metrics::{Metrics, ModelRate, bounds};

/// Version of the JSON that [`Report::json`] writes. Raised when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that a report needs; whoever ran the program fills it.
#[derive(Clone, Debug)]
pub struct ReportInput<'a> {
    /// What the report is of, such as the scenario's name.
    pub title: String,
    /// One sentence under the title, such as the scenario's description; may be empty.
    pub description: String,
    /// The command that makes the report again; may be empty.
    pub command: String,
    /// What ran.
    pub program: &'a Program,
    /// What happened, on one clock or two. Timelines of one clock are repetitions of one iteration: metrics and pictures
    /// are of the one of median length, a comparison takes each instruction's median. At least one.
    pub timelines: Vec<&'a Timeline>,
    /// Operations per token and peak of all devices, for arithmetic rates and MFU.
    pub rate: Option<ModelRate>,
    /// Memory of a device of each stage, by stage; empty if not known.
    pub capacity: Vec<Bytes>,
    /// Mean loss by iteration, from 0; one curve for each run that is shown. May be empty.
    pub losses: Vec<LossCurve>,
    /// On what the numbers rest: name and value (seed, calibration, shares of measured, interpolated and analytic
    /// durations, version, machine), in order.
    pub provenance: Vec<(String, String)>,
    /// What a reader must know before trusting a number (oversubscribed, does not fit, not converged), shown first.
    pub warnings: Vec<String>,
    /// The scenario with all defaults resolved, as text; may be empty.
    pub resolved_scenario: String,
    /// What checkpoints and failures leave of a run of months, where the scenario has them.
    pub long_run: Option<LongRunSummary>,
}

/// Losses of one run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LossCurve {
    /// Whose.
    pub name: String,
    /// Mean loss of each iteration's tokens, from iteration 0.
    pub loss_nats_per_token: Vec<f64>,
}

/// The timelines of one clock.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) clock: Clock,
    /// The one of median length.
    pub(crate) median: &'a Timeline,
    /// All of them.
    pub(crate) repetitions: Vec<&'a Timeline>,
}

/// The numbers of a report, from which every page and file is written.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    pub(crate) input: ReportInput<'a>,
    pub(crate) machines: Vec<Machine<'a>>,
    /// One for each clock, simulated first.
    pub metrics: Vec<Metrics>,
    /// Simulated against measured, where there are both and they join.
    pub comparison: Option<Comparison>,
    /// The input's warnings, and what this crate found.
    pub warnings: Vec<String>,
}

impl<'a> Report<'a> {
    /// Computes all numbers.
    ///
    /// # Errors
    /// If there is no timeline, or one has not a span for each instruction of the program.
    pub fn new(input: ReportInput<'a>) -> Result<Self, Vec<Problem>> {
        let problems = problems(&input);
        if !problems.is_empty() {
            return Err(problems);
        }
        let machines: Vec<Machine<'a>> =
            [Clock::Simulated, Clock::Measured].into_iter().filter_map(|clock| machine(&input, clock)).collect();
        let metrics: Vec<Metrics> =
            machines.iter().map(|m| Metrics::of(input.program, m.median, input.rate, &input.capacity)).collect();
        let mut warnings = input.warnings.clone();
        let mut comparison = None;
        if let [predicted, measured] = machines.as_slice() {
            match compare(input.program, predicted.median, &measured.repetitions) {
                Ok(found) => comparison = Some(found),
                Err(reasons) => warnings.extend(reasons.iter().map(|reason| format!("Not compared: {reason}."))),
            }
        }
        warnings.extend(memory_warning(&metrics));
        Ok(Self { input, machines, metrics, comparison, warnings })
    }

    /// Metrics and comparison as JSON, units in key names.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            schema_version: u32,
            title: &'a str,
            warnings: &'a [String],
            metrics: &'a [Metrics],
            comparison: &'a Option<Comparison>,
            losses: &'a [LossCurve],
            #[serde(skip_serializing_if = "Option::is_none")]
            long_run: Option<&'a LongRunSummary>,
            provenance: serde_json::Map<String, serde_json::Value>,
        }
        let document = Document {
            schema_version: SCHEMA_VERSION,
            title: &self.input.title,
            warnings: &self.warnings,
            metrics: &self.metrics,
            comparison: &self.comparison,
            losses: &self.input.losses,
            long_run: self.input.long_run.as_ref(),
            provenance: self
                .input
                .provenance
                .iter()
                .map(|(name, value)| (name.clone(), value.as_str().into()))
                .collect(),
        };
        serde_json::to_string_pretty(&document).expect("plain data has a JSON form")
    }
}

fn problems(input: &ReportInput<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if input.timelines.is_empty() {
        problems.push(Problem::new("report", "there is no timeline to report on"));
    }
    input.timelines.iter().for_each(|timeline| problems.extend(timeline_problems(input.program, timeline)));
    problems
}

/// Why a timeline cannot be one of a program: lanes without a span for each instruction, spans that end before they start.
pub(crate) fn timeline_problems(program: &Program, timeline: &Timeline) -> Vec<Problem> {
    let mut problems = Vec::new();
    for lane in &timeline.lanes {
        let subject = format!("{} iteration {}, rank {}", timeline.clock.word(), timeline.iteration, lane.rank.raw());
        let expected = program.roles.get(lane.role.index()).map_or(0, |role| role.instructions().len());
        if lane.spans.len() != expected {
            let message = format!("has {} spans, its role {expected} instructions", lane.spans.len());
            problems.push(Problem::new(subject.clone(), message).hint("the timeline is of another program"));
        }
        if let Some(span) = lane.spans.iter().find(|span| span.end < span.start) {
            let message = format!("instruction {} ends before it starts", span.instruction.raw());
            problems.push(Problem::new(subject, message));
        }
    }
    problems
}

fn machine<'a>(input: &ReportInput<'a>, clock: Clock) -> Option<Machine<'a>> {
    let repetitions: Vec<&'a Timeline> = input.timelines.iter().copied().filter(|t| t.clock == clock).collect();
    let mut by_length = repetitions.clone();
    by_length.sort_by_key(|timeline| {
        let (begin, end) = bounds(timeline);
        end - begin
    });
    let median = *by_length.get(by_length.len().saturating_sub(1) / 2)?;
    Some(Machine { clock, median, repetitions })
}

fn memory_warning(metrics: &[Metrics]) -> Option<String> {
    let stages = || metrics.iter().flat_map(|m| &m.stages);
    let over = stages().filter_map(|stage| {
        let over = stage.memory.peak_bytes.checked_sub(stage.memory.capacity_bytes?)?;
        (over > 0).then_some((over, stage))
    });
    let (over, stage) = over.max_by_key(|(over, _)| *over)?;
    let largest = stage.memory.parts.first().map_or("", |part| part.kind);
    Some(format!(
        "Stage {} does not fit: {} more than its device has, most of its memory in {largest}; the peak is reached when {}.",
        stage.stage.raw(),
        crate::show::bytes(Bytes::new(over)),
        stage.memory.moment
    ))
}

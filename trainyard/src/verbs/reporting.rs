//! Report files of a result.

use ir::{Plan, Rank, Timeline, VerifiedProgram};
use reports::{LossCurve, Process, Report, ReportInput};

use crate::facts;
use crate::results::{CompareReport, RunReport, SimulateReport};
use crate::scenario::{CostChoice, Loaded, ProfileChoice, ReportFormat, Scenario};
use crate::{Error, Output};

/// What a report is of.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A simulation.
    Simulated(&'a SimulateReport),
    /// A run.
    Measured(&'a RunReport),
    /// Both.
    Compared(&'a CompareReport),
}

impl<'a> Subject<'a> {
    const fn verb(self) -> &'static str {
        match self {
            Self::Simulated(_) => "simulate",
            Self::Measured(_) => "run",
            Self::Compared(_) => "compare",
        }
    }
    fn simulated(self) -> Option<&'a SimulateReport> {
        match self {
            Self::Simulated(report) => Some(report),
            Self::Measured(_) => None,
            Self::Compared(report) => Some(&report.simulated),
        }
    }
    fn measured(self) -> Option<&'a RunReport> {
        match self {
            Self::Simulated(_) => None,
            Self::Measured(report) => Some(report),
            Self::Compared(report) => Some(&report.measured),
        }
    }
    fn program(self) -> (&'a Plan, &'a VerifiedProgram) {
        match self {
            Self::Simulated(report) => (&report.decided, &report.program),
            Self::Measured(report) => (&report.decided, &report.program),
            Self::Compared(report) => (&report.simulated.decided, &report.simulated.program),
        }
    }
    fn timelines(self) -> Vec<&'a Timeline> {
        let simulated = self.simulated().map(|report| &report.timeline);
        simulated.into_iter().chain(self.measured().into_iter().flat_map(|report| &report.timelines)).collect()
    }
}

/// Stages the report files that the scenario asks for, and `report.json` with every number of them.
///
/// # Errors
/// [`Error::Files`] if one cannot be written.
pub fn stage_reports(output: &mut Output, loaded: &Loaded, subject: &Subject<'_>) -> Result<(), Error> {
    let scenario = &loaded.scenario;
    let report = Report::new(input(scenario, *subject)).map_err(|problems| loaded.error(problems))?;
    let process = |rank: Rank| process(scenario, subject.program().0, rank);
    let bytes = |write: &dyn Fn(&mut Vec<u8>) -> std::io::Result<()>| -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        write(&mut bytes).map_err(|e| Error::files("report".as_ref(), e))?;
        Ok(bytes)
    };
    output.stage("report.json", report.json().as_bytes())?;
    for format in &scenario.report.formats {
        match format {
            ReportFormat::Html => output.stage("report.html", report.html().as_bytes())?,
            ReportFormat::Perfetto => output.stage("trace.json", &bytes(&|out| report.perfetto(&process, out))?)?,
            ReportFormat::Markdown => {
                output.stage("report.md", report.markdown().as_bytes())?;
                output.stage("timeline.png", &report.timeline_png())?;
            }
            ReportFormat::Csv => {
                output.stage("spans.csv", &bytes(&|out| report.spans_csv(out))?)?;
                output.stage("metrics.csv", &bytes(&|out| report.metrics_csv(out))?)?;
            }
        }
    }
    Ok(())
}

fn input<'a>(scenario: &'a Scenario, subject: Subject<'a>) -> ReportInput<'a> {
    let (plan, program) = subject.program();
    let losses = subject
        .measured()
        .filter(|run| !run.loss.is_empty())
        .map(|run| LossCurve { name: "measured".to_owned(), loss_nats_per_token: run.loss.clone() });
    let mut warnings = Vec::new();
    if let Some(run) = subject.measured().filter(|run| run.oversubscribed) {
        warnings.push(format!(
            "Oversubscribed: the plan needs more than this machine's {} cores, so measured times say nothing about accuracy.",
            run.cores
        ));
    }
    ReportInput {
        title: scenario.name.clone(),
        description: scenario.description.clone(),
        command: format!("trainyard {} resolved.toml --out .", subject.verb()),
        program,
        timelines: subject.timelines(),
        rate: Some(facts::rate(scenario, plan)),
        capacity: facts::capacity(scenario, plan),
        losses: losses.into_iter().collect(),
        provenance: provenance(scenario, subject),
        warnings,
        resolved_scenario: scenario.to_toml(),
        long_run: subject.simulated().and_then(|report| report.long_run.clone()),
    }
}

/// Where passes of each profiled device come from.
fn profiles(scenario: &Scenario) -> Vec<(String, String)> {
    let CostChoice::Calibration { profiles, .. } = &scenario.cost else { return Vec::new() };
    let of = |choice: &ProfileChoice| {
        let how = if choice.profile.interpolate { "measured, interpolated between microbatches" } else { "measured" };
        let gaps: String = choice.gaps.iter().map(|gap| format!("; {gap}")).collect();
        (format!("passes on {}", choice.profile.device), format!("{how}: {}{gaps}", choice.profile.source))
    };
    profiles.iter().map(of).collect()
}

fn provenance(scenario: &Scenario, subject: Subject<'_>) -> Vec<(String, String)> {
    let mut list = vec![
        ("trainyard".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("seed".to_owned(), scenario.workload.seed.to_string()),
        ("plan".to_owned(), crate::words::plan(subject.program().0)),
    ];
    let cost = match (&scenario.cost, subject) {
        (_, Subject::Compared(report)) => report.calibration.clone(),
        (CostChoice::PassTable(_), _) => "a table of pass durations".to_owned(),
        (CostChoice::Calibration { file: Some((name, _)), .. }, _) => name.clone(),
        (CostChoice::Calibration { file: None, .. }, _) => {
            let names: Vec<&str> = scenario.cluster.device_kinds.iter().map(|kind| kind.calibration.as_str()).collect();
            format!("catalog: {}", names.join(", "))
        }
    };
    list.push(("calibration".to_owned(), cost));
    list.extend(profiles(scenario));
    if let Some(report) = subject.simulated() {
        let basis = &report.prediction.basis;
        let share = |share: f64| format!("{:.1} %", share * 100.0);
        list.push(("durations measured".to_owned(), share(basis.measured)));
        list.push(("durations interpolated".to_owned(), share(basis.interpolated)));
        list.push(("durations from formulas".to_owned(), share(basis.analytic)));
        list.push(("durations assumed".to_owned(), share(basis.assumed)));
        list.extend(report.long_run.iter().flat_map(|run| run.assumptions.iter().cloned()));
        list.push(("program".to_owned(), report.program_digest.clone()));
        list.push(("simulated timeline".to_owned(), report.timeline_digest.clone()));
    }
    if let Some(report) = subject.measured() {
        list.push(("cores".to_owned(), report.cores.to_string()));
        list.push((
            "iterations measured".to_owned(),
            format!("{} after {} to warm up", report.timelines.len(), report.warm_up_iterations),
        ));
    }
    list
}

/// The node that holds a rank.
fn process(scenario: &Scenario, plan: &Plan, rank: Rank) -> Process {
    let place = scenario.cluster.place(plan.device(rank));
    let kind = &scenario.cluster.node_kind(place.node_kind).name;
    Process { id: place.node.raw(), name: format!("node {} ({kind})", place.node.raw()) }
}

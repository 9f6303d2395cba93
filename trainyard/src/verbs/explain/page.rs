//! The page of an explanation: waterfall, what would fit, what it depends on.

use ir::{Prediction, Problem, SimDuration};
use reports::Document;
use reports::document::{Block, Section};
use reports::unit::Unit;
use reports::waterfall::{Part, Waterfall};

use crate::results::{ExplainReport, Remedy, Sensitivity};
use crate::verbs::pages::{or_dash, percent, signed_percent, table};

/// The page of a report whose numbers are there.
pub(super) fn document(report: &ExplainReport, prediction: &Prediction) -> Result<Document, Vec<Problem>> {
    let duration = |seconds: f64| SimDuration::from_seconds(seconds).unwrap_or(SimDuration::ZERO);
    let parts = report.parts.iter().map(|part| Part {
        cause: part.cause,
        time: part.time,
        step_without: part.step_without_s.map(duration),
        advice: part.advice.clone(),
    });
    let waterfall = Waterfall {
        title: format!("{}: {}", report.header.scenario, report.plan.words),
        description: report.verdict(),
        step: prediction.iteration,
        interval: Some((duration(report.step_s.low), duration(report.step_s.high))),
        parts: parts.collect(),
        warnings: report.misfits.iter().map(ToString::to_string).chain(report.warnings.iter().cloned()).collect(),
        assumptions: report.basis.clone(),
        command: "trainyard explain resolved.toml --out .".to_owned(),
    };
    waterfall.check()?;
    let mut document = waterfall.document();
    if let Some(section) = document.sections.first_mut() {
        section.blocks.push(Block::Table(how(report)));
    }
    if !report.changes.is_empty() {
        document.sections.push(changes(report));
    }
    let mut section = Section::new("What the step depends on", "The same plan with one thing halved or doubled.");
    section.blocks.push(Block::Table(sensitivity(&report.sensitivity)));
    document.sections.push(section);
    document.sections.extend(report.elapsed_shares.as_deref().map(elapsed));
    Ok(document)
}

/// What becomes of elapsed time over months; steps are the useful part of it.
fn elapsed(shares: &[(&'static str, f64)]) -> Section {
    let note = "By the closed form, in the long run; `simulate` draws failures and shows how far runs differ.";
    let mut section = Section::new("Beyond the step: checkpoints and failures", note);
    let shown = shares.iter().filter(|(_, share)| *share > 0.0);
    let rows = shown.map(|(part, share)| vec![(*part).to_owned(), percent(*share)]).collect();
    section.blocks.push(Block::Table(table("Elapsed time", &["part", ">of elapsed time"], rows, "")));
    section
}

/// What each part was priced as.
fn how(report: &ExplainReport) -> reports::tables::Table {
    let mut rows = Vec::new();
    for part in report.parts.iter().filter(|part| part.step_without_s.is_some()) {
        rows.push(vec![
            part.cause.name().to_owned(),
            or_dash(part.step_without_s, |s| Unit::Seconds.text(s)),
            part.priced_as.clone(),
        ]);
    }
    table("What it was priced as", &["without", ">step", "priced as"], rows, "")
}

fn changes(report: &ExplainReport) -> Section {
    let note = "Changes of one key, in the order of what they cost; the fastest that fits is named above.";
    let mut section = Section::new("What would fit", note);
    let row = |(index, remedy): (usize, &Remedy)| {
        let verdict = match (report.smallest_change == Some(index), remedy.fits) {
            (true, _) => "fastest that fits",
            (false, true) => "fits",
            (false, false) => "does not fit",
        };
        vec![
            remedy.change.clone(),
            or_dash(remedy.step_s, |s| Unit::Seconds.text(s)),
            or_dash(remedy.slower, signed_percent),
            or_dash(remedy.memory_share, percent),
            verdict.to_owned(),
            remedy.reason.clone(),
        ]
    };
    let rows = report.changes.iter().enumerate().map(row).collect();
    let columns = ["change", ">step", ">against now", ">of the memory", "", "why not"];
    section.blocks.push(Block::Table(table("What would fit", &columns, rows, "")));
    section
}

fn sensitivity(all: &[Sensitivity]) -> reports::tables::Table {
    let row = |one: &Sensitivity| {
        vec![
            one.what.clone(),
            or_dash(one.step_s, |s| Unit::Seconds.text(s)),
            or_dash(one.step_change, signed_percent),
            or_dash(one.tokens_per_second_change, signed_percent),
            if one.fits { "yes" } else { "no" }.to_owned(),
            one.note.clone(),
        ]
    };
    let columns = ["change", ">step", ">step against now", ">tokens per second", "fits", "notes"];
    table("What the step depends on", &columns, all.iter().map(row).collect(), "")
}

//! The verbs of measured rows: `validate`, `calibrate`, `check --scoreboard`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use owo_colors::OwoColorize as _;
use trainyard::results::{CalibrateRowsReport, CheckScoreboardReport, RestErrors, json};
use trainyard::{
    CalibrateRowsRequest, Context, Error, Output, PlansRequest, ScoreKind, ScoreSet, Scoreboard, ValidateRequest,
    Validation, output,
};

use crate::answer::{Answer, stage};
use crate::arguments::{ScoreChoice, Verb};
use crate::exit;
use crate::tables::{self, line, numbers_right, percent, table, title};

/// Reasons of refusals that are shown.
const MOST_REASONS: usize = 8;

pub(crate) fn answer(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    match verb {
        Verb::Calibrate { out, rows: None, .. } => {
            let out = out.as_deref().unwrap_or(Path::new("runs/cpu.toml"));
            output::probe(out)?;
            let report = trainyard::calibrate(context)?;
            output::write(out, report.calibration_toml.as_bytes())?;
            Ok(Answer::good(json(&report), tables::calibrate(&report, out)))
        }
        Verb::Calibrate { out, rows: Some(rows), take, seed, .. } => {
            let out = out.as_deref().unwrap_or(Path::new("runs/stacks.toml"));
            output::probe(out)?;
            let report = trainyard::calibrate_rows(&CalibrateRowsRequest { rows, take: *take, seed: *seed }, context)?;
            output::write(out, report.stacks_toml.as_bytes())?;
            Ok(Answer::good(json(&report), bed(&report, out)))
        }
        Verb::Check { scoreboard: Some(file), .. } => {
            let report = trainyard::check_scoreboard(file, context)?;
            let code = if report.passed { exit::OK } else { exit::WORSE };
            Ok(Answer { json: json(&report), summary: checked(&report), code })
        }
        Verb::Validate { plans: Some(plans), scenario: Some(scenario), layers, out, .. } => {
            let request = PlansRequest { scenario, plans, layers: layers.as_deref() };
            measured_plans(&request, out.as_deref(), context)
        }
        Verb::Validate { .. } => validate(verb, context),
        _ => unreachable!("{} is not about measured rows", verb.name()),
    }
}

/// Plans in Sailor's format.
fn measured_plans(request: &PlansRequest<'_>, out: Option<&Path>, context: &Context<'_>) -> Result<Answer, Error> {
    let mut out = out.map(Output::open).transpose()?;
    let mut report = trainyard::validate_plans(request, context)?;
    if let Some(out) = &out {
        report.command.push_str(&format!(" --out {}", out.folder().display()));
    }
    stage(&mut out, "sailor.md", report.markdown().as_bytes())?;
    if let Some(out) = out {
        out.commit()?;
    }
    let code = if report.rows.iter().any(|row| row.predicted_s.is_some()) { exit::OK } else { exit::INPUT };
    Ok(Answer { json: report.json(), summary: report.markdown(), code })
}

fn validate(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    let Verb::Validate { files, leave_out, refit, write_stacks, score, out, .. } = verb else {
        unreachable!("{} predicts no measured rows", verb.name())
    };
    let mut out = out.as_deref().map(Output::open).transpose()?;
    let kept = write_stacks.as_deref().map(head_of).transpose()?;
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let scores = kinds(*score);
    let request = ValidateRequest { files: &files, leave_out: leave_out.as_deref(), refit: *refit, scores: &scores };
    let report = trainyard::validate(&request, context)?;
    let judged = files.is_empty() && leave_out.is_none() && *score == ScoreChoice::All && out.is_some();
    let mut page = if judged { report.judged(context)? } else { report.scoreboard() };
    if let Some(out) = &out {
        page.command.push_str(&format!(" --out {}", out.folder().display()));
    }
    if out.is_some() {
        stage_page(&mut out, &report, &page)?;
    }
    if let (Some(path), Some(kept)) = (write_stacks, kept) {
        output::write(path, report.stacks_text(&kept).as_bytes())?;
    }
    if let Some(out) = out {
        out.commit()?;
    }
    let code = if report.predicted() > 0 { exit::OK } else { exit::INPUT };
    Ok(Answer { json: json(&report.document()), summary: scored(&report.scores, &page), code })
}

fn kinds(choice: ScoreChoice) -> Vec<ScoreKind> {
    match choice {
        ScoreChoice::Fitted => vec![ScoreKind::Fitted],
        ScoreChoice::Shape => vec![ScoreKind::Shape],
        ScoreChoice::Cold => vec![ScoreKind::Cold],
        ScoreChoice::All => ScoreKind::ALL.to_vec(),
    }
}

/// The text of a catalog that is there, else the project's own; and that the file can be written.
fn head_of(path: &Path) -> Result<String, Error> {
    let text = if path.is_file() {
        std::fs::read_to_string(path).map_err(|error| Error::Files {
            path: path.display().to_string(),
            message: format!("cannot be read: {error}"),
        })?
    } else {
        Validation::catalog_text().to_owned()
    };
    output::probe(path)?;
    Ok(text)
}

fn stage_page(out: &mut Option<Output>, report: &Validation, page: &Scoreboard) -> Result<(), Error> {
    let document = page.document();
    stage(out, "scoreboard.md", document.markdown().as_bytes())?;
    stage(out, "scoreboard.html", document.html().as_bytes())?;
    stage(out, "scoreboard.csv", &report.rows_csv())?;
    stage(out, "scoreboard.json", report.published_json(page).as_bytes())?;
    for (name, svg) in document.pictures() {
        stage(out, &name, svg.as_bytes())?;
    }
    Ok(())
}

/// The summary of `validate`.
fn scored(scores: &[ScoreSet], page: &Scoreboard) -> String {
    let mut out = String::new();
    title(&mut out, "Predicted against measured");
    for set in scores {
        let _ = writeln!(out, "\n{} {}", set.score.name().bold(), set.score.meaning().dimmed());
        let _ = writeln!(out, "{}", figures(set));
    }
    let Some(first) = scores.first() else { return out };
    let refused: u64 = first.tables.iter().map(|table| table.refused).sum();
    if refused > 0 {
        let _ = writeln!(out, "\n{}", format!("{refused} rows are refused").bold());
        let mut reasons: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        for refusal in first.tables.iter().flat_map(|table| &table.refusals) {
            *reasons.entry(&refusal.reason).or_default() += refusal.rows;
        }
        let mut reasons: Vec<(&str, u64)> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        for (reason, rows) in reasons.iter().take(MOST_REASONS) {
            let _ = writeln!(out, "{rows:>6}  {reason}");
        }
        if reasons.len() > MOST_REASONS {
            let _ = writeln!(out, "        and {} more reasons; --json has every row", reasons.len() - MOST_REASONS);
        }
    }
    if !page.targets.is_empty() {
        let met = page.targets.iter().filter(|target| target.met()).count();
        line(&mut out, "\ntargets met", format!("{met} of {}", page.targets.len()));
    }
    out
}

fn figures(set: &ScoreSet) -> comfy_table::Table {
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    let mut rows = table(&[
        "table",
        "rows",
        "refused",
        "median",
        "mean",
        "p90",
        "max",
        "bias",
        "tau",
        "in 90 %",
        "one constant",
        "memory",
        "fits",
    ]);
    for of in &set.tables {
        rows.add_row(vec![
            of.file.clone(),
            of.rows.to_string(),
            of.refused.to_string(),
            share(of.median_ape),
            share(of.mean_ape),
            share(of.p90_ape),
            share(of.max_ape),
            of.bias.map_or_else(|| "-".to_owned(), |bias| format!("{:+.1} %", bias * 100.0)),
            of.kendall_tau.map_or_else(|| "-".to_owned(), |tau| format!("{tau:.2}")),
            share(of.interval_coverage),
            share(of.baseline_mean_ape),
            share(of.memory_mean_ape),
            share(of.oom_accuracy),
        ]);
    }
    numbers_right(&mut rows, 1);
    rows
}

/// The summary of `check --scoreboard`.
fn checked(report: &CheckScoreboardReport) -> String {
    let mut out = String::new();
    if report.passed {
        line(&mut out, "scoreboard", format!("no figure of {} is worse than published", report.changes.len()));
    }
    for worse in report.worse() {
        let _ = writeln!(out, "{} {worse}", "worse".red().bold());
    }
    out
}

/// The summary of `calibrate --rows`.
fn bed(report: &CalibrateRowsReport, path: &Path) -> String {
    let mut out = String::new();
    let rows = report.taken.len();
    title(&mut out, &format!("Fitted to {rows} rows of {}", report.table));
    let mut fitted =
        table(&["stack", "rows", "spread", "kernels", "launch", "iteration", "network", "exchange of stages"]);
    for stack in &report.stacks {
        fitted.add_row(vec![
            stack.key.clone(),
            stack.rows.to_string(),
            percent(stack.spread),
            format!("x {:.3}", stack.compute_factor),
            stack.launch_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1} us")),
            format!("{:.1} ms", stack.iteration_us / 1000.0),
            format!("x {:.2}", stack.network_efficiency),
            format!("{:.0} us", stack.message_sync_us),
        ]);
    }
    numbers_right(&mut fitted, 1);
    let _ = writeln!(out, "{fitted}");
    let mut errors = |name: &str, rest: &Option<RestErrors>| {
        if let Some(rest) = rest {
            let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
            let (median, mean, p90) = (share(rest.median_ape), share(rest.mean_ape), share(rest.p90_ape));
            let words = format!("{median} median, {mean} mean, {p90} at the 90th percentile of {} rows", rest.rows);
            line(&mut out, name, words);
        }
    };
    errors("error on other rows", &report.rest);
    errors("before", &report.rest_before);
    line(&mut out, "wrote", path.display());
    if let Some(stack) = report.stacks.first() {
        let release =
            stack.release.as_ref().map_or_else(String::new, |release| format!(" and release = \"{release}\""));
        let next = format!("[training] stack = \"{}\"{release}, [cost] stacks = \"{}\"", stack.class, path.display());
        line(&mut out, "next, in a scenario", next);
    }
    out
}

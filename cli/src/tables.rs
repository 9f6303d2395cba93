//! Summaries of results, as tables and lines.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use owo_colors::OwoColorize as _;
use trainyard::Document;
use trainyard::results::{
    CalibrateReport, CompareReport, DoctorReport, FindingState, InitReport, LongRunSummary, MemorySummary, PlanReport,
    PredictionSummary, QuickstartReport, RunReport, SimulateReport, SweepResult,
};

/// A line under the header and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));
/// Rows of a table that are shown before it is cut.
const MOST_ROWS: usize = 16;

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic).set_header(header.to_vec());
    table
}

/// Aligns every column after the first `texts` to the right.
pub(crate) fn numbers_right(table: &mut Table, texts: usize) {
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Milliseconds in the unit that reads well.
pub(crate) fn time(milliseconds: f64) -> String {
    match milliseconds {
        t if t >= 60_000.0 => format!("{:.2} min", t / 60_000.0),
        t if t >= 1000.0 => format!("{:.3} s", t / 1000.0),
        t if t >= 1.0 => format!("{t:.2} ms"),
        t => format!("{:.1} us", t * 1000.0),
    }
}

pub(crate) fn line(out: &mut String, key: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{} {value}", format!("{key:<22}").dimmed());
}

pub(crate) fn title(out: &mut String, text: &str) {
    let _ = writeln!(out, "{}", text.bold());
}

fn prediction(out: &mut String, prediction: &PredictionSummary) {
    let interval = prediction.interval_ms.map_or_else(String::new, |[least, most]| {
        format!(" (nine of ten runs between {} and {})", time(least), time(most))
    });
    line(out, "iteration", time(prediction.iteration_ms) + &interval);
    if let Some(bubble) = prediction.bubble_rate {
        line(out, "bubble", percent(bubble));
    }
    let basis = &prediction.basis;
    let shares = format!(
        "{} measured, {} interpolated, {} from formulas, {} assumed",
        percent(basis.measured),
        percent(basis.interpolated),
        percent(basis.analytic),
        percent(basis.assumed)
    );
    line(out, "durations rest on", shares);
}

fn memory(stages: &[MemorySummary]) -> String {
    let mut table = table(&["stage", "largest parts", "peak at", "peak", "of", "free"]);
    for stage in stages.iter().take(MOST_ROWS) {
        let mut parts: Vec<(&&str, &f64)> = stage.parts_gib.iter().filter(|(_, gib)| **gib > 0.0).collect();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        let parts: Vec<String> = parts.iter().take(3).map(|(name, gib)| format!("{name} {}", size(**gib))).collect();
        table.add_row(vec![
            stage.stage.to_string(),
            parts.join(", "),
            stage.moment.clone(),
            size(stage.peak_gib),
            size(stage.capacity_gib),
            percent(1.0 - stage.peak_gib / stage.capacity_gib),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    if stages.len() > MOST_ROWS {
        let _ = writeln!(text, "and {} more stages", stages.len() - MOST_ROWS);
    }
    text
}

fn size(gib: f64) -> String {
    if gib >= 0.1 { format!("{gib:.2} GiB") } else { format!("{:.2} MiB", gib * 1024.0) }
}

fn times(out: &mut String, time_ms: &std::collections::BTreeMap<&'static str, f64>) {
    let total: f64 = time_ms.values().sum();
    let mut parts: Vec<(&&str, &f64)> = time_ms.iter().filter(|(_, ms)| **ms > 0.0).collect();
    parts.sort_by(|a, b| b.1.total_cmp(a.1));
    let mut table = table(&["where the time goes", "time", "share"]);
    for (name, ms) in parts {
        table.add_row(vec![(*name).to_owned(), time(*ms), percent(ms / total)]);
    }
    numbers_right(&mut table, 1);
    let _ = writeln!(out, "{table}");
}

/// A page: its figures and tables, without its pictures.
pub(crate) fn document(page: &Document) -> String {
    let mut out = String::new();
    title(&mut out, &page.title);
    if !page.description.is_empty() {
        let _ = writeln!(out, "{}", page.description);
    }
    for warning in &page.warnings {
        let _ = writeln!(out, "{} {warning}", "note".yellow());
    }
    for figure in &page.figures {
        let values: Vec<String> =
            figure.values.iter().map(|(value, whose)| format!("{value} {whose}").trim().to_owned()).collect();
        let note = if figure.note.is_empty() { String::new() } else { format!(" ({})", figure.note) };
        line(&mut out, &figure.name, values.join(", ") + &note);
    }
    for rows in page.tables() {
        let header: Vec<&str> = rows.columns.iter().map(|column| column.name.as_str()).collect();
        let mut table = table(&header);
        for row in rows.rows.iter().take(MOST_ROWS) {
            table.add_row(row.clone());
        }
        for (column, _) in table.column_iter_mut().zip(&rows.columns).filter(|(_, shown)| shown.numeric) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = writeln!(out, "\n{}\n{table}", rows.title.bold());
        if rows.rows.len() > MOST_ROWS {
            let _ = writeln!(out, "and {} more rows", rows.rows.len() - MOST_ROWS);
        }
        if !rows.note.is_empty() {
            let _ = writeln!(out, "{}", rows.note);
        }
    }
    out
}

/// On what a page's numbers rest.
pub(crate) fn assumptions(page: &Document) -> String {
    let mut out = String::new();
    if !page.assumptions.is_empty() {
        let _ = writeln!(out, "\n{}", "What was assumed".bold());
    }
    for (name, value) in &page.assumptions {
        line(&mut out, name, value);
    }
    out
}

/// The summary of `sweep`.
pub(crate) fn sweep(report: &SweepResult) -> String {
    let mut out = document(&report.page);
    if report.resumed_at > 0 {
        line(&mut out, "went on after", format!("{} of {} points", report.resumed_at, report.points));
    }
    for file in &report.files {
        line(&mut out, "wrote", file);
    }
    out
}

/// The summary of `plan`.
pub(crate) fn plan(report: &PlanReport) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{}: {}", report.header.scenario, report.plan.words));
    line(&mut out, "decided by", format!("{}, for the least {}", report.policy, report.objective));
    prediction(&mut out, &report.prediction);
    if let Some(usd) = report.usd_per_million_tokens {
        line(&mut out, "money", format!("${usd:.4} per million tokens"));
    }
    if let Some(joules) = report.joules_per_token {
        line(&mut out, "energy", format!("{joules:.4} J per token"));
    }
    report.expense_notes.iter().for_each(|note| line(&mut out, "", note));
    report.stack_notes.iter().for_each(|note| line(&mut out, "stack", note));
    for reason in &report.reasons {
        line(&mut out, "because", reason);
    }
    for refusal in report.runtimes.values().flatten() {
        line(&mut out, "refused by", refusal);
    }
    let _ = writeln!(out, "{}", memory(&report.prediction.memory));
    if !report.alternatives.is_empty() {
        let mut table = table(&["looked at", "why not", "iteration"]);
        for other in report.alternatives.iter().take(MOST_ROWS) {
            let iteration = other.prediction.as_ref().map_or_else(|| "-".to_owned(), |p| time(p.iteration_ms));
            table.add_row(vec![other.plan.words.clone(), other.reasons.join("; "), iteration]);
        }
        numbers_right(&mut table, 2);
        let _ = writeln!(out, "{table}");
        if report.alternatives.len() > MOST_ROWS {
            let _ = writeln!(out, "and {} more; --json has them all", report.alternatives.len() - MOST_ROWS);
        }
    }
    if let Some(front) = &report.pareto {
        out.push('\n');
        out.push_str(&document(&front.page.document()));
    }
    out
}

/// The summary of `simulate`.
pub(crate) fn simulate(report: &SimulateReport) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{}: {}", report.header.scenario, report.plan.words));
    prediction(&mut out, &report.prediction);
    report.stack_notes.iter().for_each(|note| line(&mut out, "stack", note));
    throughput(&mut out, report);
    line(&mut out, "program", format!("{} instructions in {} roles", report.instructions, report.roles));
    times(&mut out, &report.time_ms);
    out.push_str(&memory(&report.prediction.memory));
    report.long_run.iter().for_each(|run| long_run(&mut out, run));
    out
}

/// What checkpoints and failures leave of a run of months.
fn long_run(out: &mut String, run: &LongRunSummary) {
    let over = format!("{} of {} simulated runs of {:.0} days", run.goodput_words(), run.runs, run.duration_days);
    line(out, "goodput", over);
    let closed = format!("{} in the long run", percent(run.expected_goodput));
    line(out, "by the closed form", closed);
    run.notes.iter().for_each(|note| line(out, "note", note));
    for of in run.tables() {
        let columns: Vec<&str> = of.columns.iter().map(|column| column.name.as_str()).collect();
        let mut table = table(&columns);
        for row in &of.rows {
            table.add_row(row.clone());
        }
        numbers_right(&mut table, 1);
        let _ = writeln!(out, "{table}");
        if !of.note.is_empty() {
            let _ = writeln!(out, "{}", of.note);
        }
    }
}

fn throughput(out: &mut String, report: &SimulateReport) {
    let rate =
        format!("{:.0} tokens/s, {:.1} per device", report.tokens_per_second, report.tokens_per_second_per_device);
    line(out, "throughput", rate);
    if let Some(utilization) = report.model_flops_utilization {
        let again = report.hardware_flops_utilization.filter(|again| *again > utilization);
        let again =
            again.map_or_else(String::new, |again| format!("; {} with what is recomputed (HFU)", percent(again)));
        line(
            out,
            "FLOPs of peak",
            format!("{} (MFU: 6 per weight, 12 per score of attention){again}", percent(utilization)),
        );
    }
    if let Some(usd) = report.usd_per_hour {
        line(out, "price", format!("{usd:.2} USD/h for {} devices", report.devices));
    }
}

/// The summary of `run`.
pub(crate) fn run(report: &RunReport) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{}: {}", report.header.scenario, report.plan.words));
    measured(&mut out, report);
    out
}

fn measured(out: &mut String, report: &RunReport) {
    let spread = format!("{} +/- {}", time(report.iteration_ms), percent(report.iteration_dispersion));
    let counted = report.iterations - report.warm_up_iterations;
    line(out, "iteration", format!("{spread} (median of {counted}, after {} to warm up)", report.warm_up_iterations));
    line(out, "throughput", format!("{:.0} tokens/s", report.tokens_per_second));
    line(out, "ranks", &report.ranks);
    if let Some(devices) = &report.devices {
        line(out, "devices", devices);
    }
    for refused in &report.refused_checkpoints {
        line(out, "not used", refused.yellow());
    }
    if let Some(from) = &report.resumed_from {
        line(out, "went on from", format!("{from}, at iteration {}", report.first_iteration));
    }
    if let Some(kept) = &report.checkpoints {
        let words = format!(
            "{} of {:.1} MB in {}; training stood still for {}",
            kept.written,
            kept.bytes as f64 * 1e-6,
            kept.folder,
            time(kept.blocked_ms)
        );
        line(out, "checkpoints", words);
        for failure in &kept.failures {
            line(out, "not kept", failure.yellow());
        }
    }
    for slow in &report.slow_ranks {
        line(out, "slow", slow.yellow());
    }
    line(out, "text", &report.text);
    for cause in &report.lost {
        line(out, "started again", cause.yellow());
    }
    if !report.lost.is_empty() {
        let repeated = report.repeated_iterations;
        line(out, "goodput", format!("{} ({repeated} iterations again)", percent(report.goodput)));
    }
    if let (Some(first), Some(last)) = (report.loss.first(), report.loss.last()) {
        line(out, "loss", format!("{first:.4} -> {last:.4} over {} iterations", report.iterations));
    }
    if report.oversubscribed {
        let note = match report.devices {
            Some(_) => "ranks share devices: times say nothing about accuracy".to_owned(),
            None => format!("more work than the {} cores carry: times say nothing about accuracy", report.cores),
        };
        line(out, "oversubscribed", note.yellow());
    }
}

/// The summary of `compare`.
pub(crate) fn compare(report: &CompareReport) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{}: {}", report.header.scenario, report.simulated.plan.words));
    comparison(&mut out, report);
    out
}

fn comparison(out: &mut String, report: &CompareReport) {
    line(out, "simulated", time(report.simulated.prediction.iteration_ms));
    measured(out, &report.measured);
    let error = format!("{:+.1} %", report.iteration_error * 100.0);
    line(out, "simulated - measured", error.bold());
    line(out, "calibration", &report.calibration);
    let mut table = table(&["instructions", "count", "simulated", "measured", "ratio", "median error", "90 %"]);
    for class in &report.comparison.classes {
        table.add_row(vec![
            class.class.map_or_else(|| "all".to_owned(), |class| class.to_string()),
            class.count.to_string(),
            time(class.predicted_median_ns as f64 * 1e-6),
            time(class.measured_median_ns as f64 * 1e-6),
            format!("{:.2}", class.ratio),
            percent(class.median_relative_error),
            percent(class.p90_relative_error),
        ]);
    }
    numbers_right(&mut table, 1);
    let _ = writeln!(out, "{table}");
    stage_errors(out, report);
}

/// Busy time, exposed communication and peak memory of each stage, simulated over measured.
fn stage_errors(out: &mut String, report: &CompareReport) {
    let mut table = table(&["stage", "busy", "error", "exposed", "error", "peak memory", "error"]);
    let signed = |error: f64| format!("{:+.1} %", error * 100.0);
    let over = |predicted: String, measured: String| format!("{predicted} / {measured}");
    let gib = |bytes: u64| size(bytes as f64 / f64::from(1u32 << 30));
    for stage in report.comparison.stages.iter().take(MOST_ROWS) {
        let (busy, exposed, memory) = (stage.busy, stage.exposed_communication, stage.memory);
        let milliseconds = |nanoseconds: u64| time(nanoseconds as f64 * 1e-6);
        table.add_row(vec![
            stage.stage.raw().to_string(),
            over(milliseconds(busy.predicted_ns), milliseconds(busy.measured_ns)),
            signed(busy.relative_error),
            over(milliseconds(exposed.predicted_ns), milliseconds(exposed.measured_ns)),
            signed(exposed.relative_error),
            over(gib(memory.predicted_bytes), gib(memory.measured_bytes)),
            signed(memory.relative_error),
        ]);
    }
    numbers_right(&mut table, 1);
    let _ = writeln!(out, "{table}");
}

/// The summary of `quickstart`.
pub(crate) fn quickstart(report: &QuickstartReport) -> String {
    let mut out = String::new();
    title(&mut out, "Trainyard planned, simulated and trained a model on this machine");
    line(&mut out, "plan", &report.compare.simulated.plan.words);
    for reason in report.plan.reasons.iter().take(3) {
        line(&mut out, "because", reason);
    }
    comparison(&mut out, &report.compare);
    line(&mut out, "took", format!("{:.1} s", report.elapsed_s));
    for file in &report.files {
        line(&mut out, "wrote", file);
    }
    out
}

/// The summary of `init`.
pub(crate) fn init(report: &InitReport) -> String {
    let mut out = String::new();
    line(&mut out, "wrote", report.path.bold());
    line(&mut out, "model", format!("{} parameters", report.parameters));
    line(&mut out, "cluster", format!("{} devices", report.devices));
    line(&mut out, "next", format!("trainyard plan {}", report.path));
    out
}

/// The summary of `calibrate`.
pub(crate) fn calibrate(report: &CalibrateReport, path: &Path) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{} measurements in {:.1} s", report.measurements, report.elapsed_s));
    let mut table = table(&["operation", "points", "median error", "worst", "noise"]);
    for class in &report.cross_validation {
        let error = |error: Option<f64>| error.map_or_else(|| "-".to_owned(), percent);
        table.add_row(vec![
            class.class.clone(),
            class.points.to_string(),
            error(class.median_error),
            error(class.worst_error),
            percent(class.dispersion),
        ]);
    }
    numbers_right(&mut table, 1);
    let _ = writeln!(out, "{table}");
    let _ = writeln!(out, "Each point is predicted from the others; noise is the spread of its repetitions.");
    line(&mut out, "wrote", path.display());
    line(&mut out, "next", format!("[cost] file = \"{}\" in a scenario", path.display()));
    out
}

/// The summary of `doctor`.
pub(crate) fn doctor(report: &DoctorReport) -> String {
    let mut out = String::new();
    for finding in &report.findings {
        let state = match finding.state {
            FindingState::Good => "good".green().to_string(),
            FindingState::Warning => "note".yellow().to_string(),
            FindingState::Bad => "bad ".red().to_string(),
        };
        let _ = writeln!(out, "{state} {:<12} {}", finding.subject, finding.message);
    }
    out
}

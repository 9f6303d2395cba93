//! The page of measured plans.

use std::fmt::Write as _;

use super::{Errors, PlanRow, PlansReport};

const HEAD: &str = "# Measured plans

Plans that others measured, in Sailor's format, predicted from measured layers (profiles) and the links of the catalog.
Nothing is fitted to a plan's time. Memory is that of layers of known sizes; what the runtime takes of it is the median of
runs with other numbers of stages or another microbatch. Rules that see no prediction name duplicates and figures that
cannot be; such figures count in no mean, and are in the table.

";

/// The whole page.
pub(super) fn markdown(report: &PlansReport) -> String {
    let mut out = String::from(HEAD);
    let _ = writeln!(out, "    {}\n", report.command);
    out.push_str("| error | plans | mean | median | worst |\n|---|--:|--:|--:|--:|\n");
    for (name, errors) in
        [("iteration", report.time), ("reduction of gradients", report.reduction), ("memory", report.memory)]
    {
        out.push_str(&summary(name, errors));
    }
    out.push_str(
        "\n| plan | stages | replicas | tensor | microbatch | microbatches | measured s | predicted s | error % | \
         reduction ms | predicted ms | memory GB | predicted GB | error % |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    report.rows.iter().for_each(|row| out.push_str(&line(row)));
    let notes: Vec<String> = report
        .rows
        .iter()
        .flat_map(|row| row.notes.iter().map(move |note| format!("* {}: {}\n", row.name, note.replace('\n', " "))))
        .collect();
    if !notes.is_empty() {
        out.push_str("\nFigures that are doubted, and plans without a prediction:\n\n");
        out.extend(notes);
    }
    if !report.profiles.is_empty() {
        out.push_str("\nOf the profiles:\n\n");
        out.extend(report.profiles.iter().map(|note| format!("* {note}\n")));
    }
    out
}

fn summary(name: &str, errors: Option<Errors>) -> String {
    match errors {
        None => format!("| {name} | 0 | | | |\n"),
        Some(Errors { rows, mean, median, worst }) => {
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            format!("| {name} | {rows} | {} | {} | {} |\n", percent(mean), percent(median), percent(worst))
        }
    }
}

fn line(row: &PlanRow) -> String {
    let [stages, replicas, tensor, size, microbatches] = row.degrees;
    let shown = |value: Option<f64>, scale: f64, digits: usize| {
        value.map_or_else(String::new, |value| format!("{:.digits$}", value * scale))
    };
    // What does not count is in brackets.
    let counted = |text: String, counts: bool| if counts || text.is_empty() { text } else { format!("({text})") };
    let bytes = |value: Option<u64>| value.map(|value| value as f64);
    format!(
        "| {} | {stages} | {replicas} | {tensor} | {size} | {microbatches} | {:.4} | {} | {} | {} | {} | {} | {} | {} |\n",
        row.name,
        row.measured_s,
        shown(row.predicted_s, 1.0, 4),
        counted(shown(row.error, 100.0, 1), row.time_counts),
        counted(shown(row.measured_reduction_s, 1e3, 1), row.reduction_counts),
        shown(row.predicted_reduction_s, 1e3, 1),
        shown(bytes(row.measured_bytes), 1e-9, 2),
        shown(bytes(row.predicted_bytes), 1e-9, 2),
        counted(shown(row.memory_error, 100.0, 1), row.memory_counts),
    )
}

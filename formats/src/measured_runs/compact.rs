//! A table with only what is used of it.

use csv::StringRecord;
use ir::Problem;

use super::columns::{COLUMNS, Header, REQUIRED};
use super::run::{MeasuredRun, StepBasis, Task};
use super::{MeasuredTable, read};

/// Columns that never say anything about what a run costs.
const UNUSED: [&str; 13] = [
    "place",
    "measured_by",
    "date",
    "hw_from",
    "arch_from",
    "iteration_time_std_s",
    "tflops_formula",
    "hfu_pct",
    "derived_tokens_per_s_per_gpu",
    "model_tflops_recomputed_per_gpu",
    "sanity",
    "completeness",
    "hetero_layout",
];

/// The rows of a table that can be read, with only the columns that are used and the source of each row, as CSV that
/// [`read`] reads to the same runs. Cells are carried over as they are written; optional columns without a cell, or
/// whose absence says the same, are left out.
///
/// # Errors
/// Those of [`read`].
pub fn compact(text: &str, file_name: &str) -> Result<String, Vec<Problem>> {
    let table: MeasuredTable = read(text, file_name)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    // `read` has read the same text.
    let unreadable = |error: csv::Error| vec![Problem::new("table", format!("not CSV: {error}"))];
    let header = Header::new(&reader.headers().map_err(unreadable)?.clone())?;
    let mut kept: Vec<Vec<String>> = Vec::new();
    for (record, row) in reader.records().zip(&table.rows) {
        let record = record.map_err(unreadable)?;
        if let Ok(run) = row {
            kept.push(COLUMNS.iter().map(|column| cell(&header, &record, run, column)).collect());
        }
    }
    let runs: Vec<&MeasuredRun> = table.rows.iter().flatten().collect();
    let is_used = |column: &usize| {
        let name = COLUMNS[*column];
        let says = kept.iter().any(|cells| !cells[*column].is_empty());
        REQUIRED.contains(&name) || (says && !goes_without_saying(name, &runs))
    };
    let used: Vec<usize> = (0..COLUMNS.len()).filter(is_used).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |cells: Vec<&str>| writer.write_record(cells).expect("memory takes every record");
    write(used.iter().map(|column| COLUMNS[*column]).collect());
    for cells in &kept {
        write(used.iter().map(|column| cells[*column].as_str()).collect());
    }
    let bytes = writer.into_inner().expect("memory takes every record");
    Ok(String::from_utf8(bytes).expect("the cells were text"))
}

/// Whether a table without the column reads to the same runs.
fn goes_without_saying(column: &str, runs: &[&MeasuredRun]) -> bool {
    let all = |holds: &dyn Fn(&MeasuredRun) -> bool| runs.iter().all(|run| holds(run));
    match column {
        "task" => all(&|run| run.task == Task::Pretraining),
        "cp" => all(&|run| run.layout.context == 1 && !run.resolved.iter().any(|note| note.starts_with("cp = "))),
        "ep" => all(&|run| run.layout.expert == 1 && run.model.experts.is_none()),
        "head_dim" => all(&|run| run.model.hidden == run.model.heads * run.model.head_dim),
        _ => false,
    }
}

/// The cell of a column, or nothing where it is not used.
fn cell(header: &Header, record: &StringRecord, run: &MeasuredRun, column: &'static str) -> String {
    // What the printed rates of operations decided stays beside the figures that it decided between.
    let disputed = run.resolved.iter().any(|note| note.contains("is used, as"));
    let derived = run.measured.step.is_some_and(|step| step.basis == StepBasis::FlopRate);
    if column == "source_ref" {
        return run.source.reference.clone();
    }
    let used = match column {
        "tflops_per_gpu" | "mfu_pct" => disputed,
        "derived_iteration_time_s" => derived,
        "notes" => run.measured.profile.is_some() || run.measured.peer.as_ref().is_some_and(|p| p.step_s.is_some()),
        _ => !UNUSED.contains(&column),
    };
    if used { header.cell(record, column).to_owned() } else { String::new() }
}

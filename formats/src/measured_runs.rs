//! Tables of measured training runs: one row a run, one column a fact, units in the names of the columns.
//!
//! The schema is that of [`COLUMNS`]: where it ran, on what, which model, how it was divided, in which software, and how
//! long a step took or how much memory it needed. Only [`REQUIRED`] columns must be there; a column that is no part of
//! the schema is refused with the nearest name, because a column read almost right is a wrong figure.
//!
//! A row is read, or refused by name with every reason ([`Refusal`]): a hole that arithmetic cannot fill, a cell that is
//! no number or carries a unit, two figures that contradict each other, a step faster than the device's peak, or a run
//! outside of what is modelled. Where exactly one number is missing and the others give it, it is computed and noted in
//! [`MeasuredRun::resolved`]. Nothing is guessed here: what a row leaves open stays `None`.
//!
//! ```
//! use trainyard_formats::measured_runs;
//! let text = "row_id,gpu,gpus_per_node,nodes,gpus_total,model,layers,hidden,ffn,heads,seq_len,precision,\
//!     global_batch,micro_batch,tp,pp,dp,iteration_time_s\n\
//!     a-1,A100-SXM-80GB,8,1,8,GPT-1B,24,2048,8192,16,2048,BF16,32,2,2,1,4,1.5\n\
//!     a-2,A100-SXM-80GB,8,1,8,GPT-1B,24,2048,8192,16,2048,BF16,32,2,2,2,4,1.5\n";
//! let table = measured_runs::read(text, "a.csv").expect("a table");
//! let run = table.rows[0].as_ref().expect("a sound row");
//! assert_eq!(run.batch.microbatches, Some(4));
//! assert_eq!(run.measured.step.as_ref().expect("a time").seconds, 1.5);
//! let refusal = table.rows[1].as_ref().expect_err("2 * 2 * 4 are not 8");
//! assert!(refusal.to_string().contains("tp * pp * cp * dp"));
//! ```

mod cells;
mod columns;
mod compact;
mod consistency;
mod figures;
mod reference;
mod refusal;
mod row;
mod run;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;

use ir::{Problem, SourceSpan};

pub use columns::{COLUMNS, REQUIRED};
pub use compact::compact;
pub use consistency::{implausible_speed, training_flops_per_token};
pub use refusal::{Fault, Reason, Refusal};
pub use run::{
    Activation, AttentionForm, AttentionKernel, Batch, Dispatcher, ExpertShape, Flags, Fp8Scaling, Graphs, Hardware,
    Layout, MeasuredFigures, MeasuredMemory, MeasuredRun, MeasuredStep, MemoryKind, MemoryUnit, ModelShape,
    NumberFormat, Offload, PeerFigures, Recomputation, RunSource, ScheduleName, Software, SplitRule, StageProfile,
    StepBasis, Task, VocabularyPlacement,
};

/// A table as it was read.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredTable {
    /// The file, as the person named it.
    pub file: String,
    /// Every row in the order of the file, read or refused.
    pub rows: Vec<Result<MeasuredRun, Refusal>>,
}

/// Reads a table from the text of a CSV file with a heading. `file_name` is the file as the person named it.
///
/// # Errors
/// What makes the whole file unreadable: no heading, a column that the schema does not have (with the nearest name), the
/// same column twice, a required column missing, quoting that does not end. Faults of single rows are in the rows.
pub fn read(text: &str, file_name: &str) -> Result<MeasuredTable, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let whole = |problem: Problem| problem.at(SourceSpan { file: file_name.to_owned(), range: 0..text.len() });
    let heading = match reader.headers() {
        Ok(heading) => heading.clone(),
        Err(error) => return Err(vec![whole(Problem::new("heading", format!("not CSV: {error}")))]),
    };
    let header = columns::Header::new(&heading).map_err(|problems| {
        let end = text.lines().next().map_or(0, str::len);
        let place = SourceSpan { file: file_name.to_owned(), range: 0..end };
        problems.into_iter().map(|problem| problem.at(place.clone())).collect::<Vec<_>>()
    })?;
    let (mut rows, mut seen) = (Vec::new(), BTreeSet::new());
    for record in reader.records() {
        match record {
            Ok(record) => {
                let mut row = row::read(&header, &record);
                if let Ok(run) = &row
                    && !seen.insert(run.row_id.clone())
                {
                    row = Err(refusal::repeated(run));
                }
                rows.push(row);
            }
            Err(error) => return Err(vec![whole(Problem::new("table", format!("not CSV: {error}")))]),
        }
    }
    Ok(MeasuredTable { file: file_name.to_owned(), rows })
}

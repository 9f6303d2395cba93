//! Scores of tables: what is predicted with them, with one factor of theirs, and without them.

use std::collections::BTreeMap;

use cost::{Stack, StackConstants, StackKey, Stacks};
use rayon::prelude::*;
use reports::scoreboard::{ScoreKind, ScoreRow, ScoreSet};

use super::cold::Others;
use super::predict::{Predicted, Subject};
use super::tables::{Row, Table, Tables};
use crate::Error;
use crate::progress::Context;

/// What is known when tables are predicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knowledge<'a> {
    /// The tables asked for, and those of the project.
    pub(crate) tables: &'a Tables,
    /// Stacks, fitted to what they say they are.
    pub(crate) stacks: &'a Stacks,
    /// A table of which nothing is known, whatever the kind of score; `stacks` are without it already.
    pub(crate) left_out: Option<&'a str>,
    /// Stacks without single tables, as far as they were asked for.
    pub(crate) others: &'a Others,
}

impl Knowledge<'_> {
    /// Stacks as known before a table was.
    pub(crate) fn without(&self, table: &str) -> Stacks {
        self.others.without(self.tables, self.stacks, table)
    }

    /// What the rows of a table are resolved with.
    fn resolved_as(&self, kind: ScoreKind, table: &Table) -> ScoreKind {
        if self.left_out == Some(table.name.as_str()) { ScoreKind::Cold } else { kind }
    }
}

/// Rounds of the one factor of a shape score; each brings the median residual nearer to zero.
const FACTOR_ROUNDS: u32 = 5;

/// One kind of score for the tables asked for.
pub(crate) fn score(kind: ScoreKind, known: &Knowledge<'_>, context: &Context<'_>) -> Result<ScoreSet, Error> {
    let mut rows = Vec::new();
    let tables = known.tables;
    for (index, table) in tables.tables.iter().take(tables.asked).enumerate() {
        context.step(kind.name(), index as u64, tables.asked as u64, table.name.clone())?;
        let resolved = known.resolved_as(kind, table);
        let subjects = tables.of_table(resolved, index);
        let stacks = match kind {
            ScoreKind::Fitted => known.stacks.clone(),
            ScoreKind::Shape | ScoreKind::Cold => known.without(&table.name),
        };
        let of_rows: Vec<Stack> = match kind {
            ScoreKind::Fitted => {
                subjects.iter().map(|subject| stacks.resolve_in(&subject.run.stack, &table.name)).collect()
            }
            ScoreKind::Cold => subjects.iter().map(|subject| stacks.resolve(&subject.run.stack)).collect(),
            ScoreKind::Shape => with_one_factor(&subjects, &stacks),
        };
        let predicted: Vec<Result<Predicted, String>> =
            subjects.par_iter().zip(&of_rows).map(|(subject, stack)| subject.predict(stack)).collect();
        let baseline = baseline(kind, &subjects, tables);
        let mut scored = score_rows(table, table.rows(resolved), &subjects, &predicted, &baseline);
        for (subject, stack) in subjects.iter().zip(&of_rows) {
            scored[subject.row].assumed = subject.run.assumed.iter().chain(&stack.notes).cloned().collect();
        }
        rows.extend(scored);
    }
    context.step(kind.name(), tables.asked as u64, tables.asked as u64, "")?;
    Ok(ScoreSet::of(kind, rows))
}

/// The stacks of rows with one factor per key from the rows themselves: that which makes their median residual zero.
fn with_one_factor(subjects: &[&Subject], known: &Stacks) -> Vec<Stack> {
    let mut groups: BTreeMap<&StackKey, Vec<usize>> = BTreeMap::new();
    for (place, subject) in subjects.iter().enumerate() {
        groups.entry(&subject.run.stack).or_default().push(place);
    }
    let mut stacks = vec![Stack::default(); subjects.len()];
    for (key, places) in groups {
        // The factor comes from the rows themselves, links and host do not.
        let mut stack = known.resolve(key);
        let rows: Vec<&Subject> =
            places.iter().map(|place| subjects[*place]).filter(|s| s.seconds().is_some()).collect();
        if rows.len() > 1 {
            stack.constants = one_factor(&rows, stack.constants);
        }
        for place in places {
            stacks[place] = stack.clone();
        }
    }
    stacks
}

fn one_factor(rows: &[&Subject], mut constants: StackConstants) -> StackConstants {
    for _ in 0..FACTOR_ROUNDS {
        let stack = Stack { constants, ..Stack::default() };
        let residuals: Vec<f64> = rows
            .par_iter()
            .filter_map(|row| Some(libm::log(row.predict(&stack).ok()?.seconds / row.seconds()?)))
            .collect();
        let Some(median) = median(residuals) else { return constants };
        if median.abs() < 1e-4 {
            break;
        }
        constants.compute_factor *= libm::exp(-median);
    }
    constants
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Seconds of each row by one constant: the median of measured over ideal time, of the rows' own key (fitted and shape),
/// or of all rows of other tables (cold).
fn baseline(kind: ScoreKind, subjects: &[&Subject], tables: &Tables) -> Vec<Option<f64>> {
    let ratio = |subject: &Subject| Some(subject.seconds()? / subject.at_peak()?);
    let mut constants: BTreeMap<Option<&StackKey>, Vec<f64>> = BTreeMap::new();
    match kind {
        ScoreKind::Fitted | ScoreKind::Shape => {
            for subject in subjects {
                constants.entry(Some(&subject.run.stack)).or_default().extend(ratio(subject));
            }
        }
        ScoreKind::Cold => {
            let own = subjects.first().map(|subject| subject.table);
            let others = tables.subjects(kind).iter().filter(|subject| Some(subject.table) != own);
            constants.insert(None, others.filter_map(ratio).collect());
        }
    }
    let constants: BTreeMap<_, Option<f64>> =
        constants.into_iter().map(|(key, ratios)| (key, median(ratios))).collect();
    let of = |subject: &&Subject| {
        let key = match kind {
            ScoreKind::Fitted | ScoreKind::Shape => Some(&subject.run.stack),
            ScoreKind::Cold => None,
        };
        Some(constants.get(&key).copied().flatten()? * subject.at_peak()?)
    };
    subjects.iter().map(of).collect()
}

/// The rows of a table, each with what was predicted for it.
pub(crate) fn score_rows(
    table: &Table,
    listed: &[Row],
    subjects: &[&Subject],
    predicted: &[Result<Predicted, String>],
    baseline: &[Option<f64>],
) -> Vec<ScoreRow> {
    let mut rows: Vec<ScoreRow> = listed.iter().map(|row| refused(table, row)).collect();
    for ((subject, predicted), baseline) in subjects.iter().zip(predicted).zip(baseline) {
        let row = &mut rows[subject.row];
        *row = measured(table, subject);
        match predicted {
            Ok(told) => {
                row.predicted_s = Some(told.seconds);
                (row.low_s, row.high_s) = (Some(told.low), Some(told.high));
                row.baseline_s = baseline.filter(|_| row.measured_s.is_some());
                row.predicted_gb = Some(told.bytes / subject.run.memory.unit.bytes());
                row.fits = Some(told.fits);
            }
            Err(reason) => row.refused = Some(reason.clone()),
        }
    }
    rows
}

/// What was measured.
fn measured(table: &Table, subject: &Subject) -> ScoreRow {
    let run = &subject.run;
    let figures = &run.row.measured;
    ScoreRow {
        row_id: run.row.row_id.clone(),
        file: table.file.clone(),
        device: Some(run.hardware.device.name.clone()),
        group: Some(sweep(subject)),
        measured_s: subject.seconds(),
        measured_gb: figures.memory.map(|memory| memory.value),
        memory_kind: figures.memory.map(|_| format!("{:?}", run.memory.kind).to_lowercase()),
        measured_fits: figures.out_of_memory.then_some(false).or(figures.step.map(|_| true)),
        ..ScoreRow::default()
    }
}

/// A row that has no prediction: why.
fn refused(table: &Table, row: &Row) -> ScoreRow {
    ScoreRow {
        row_id: row.row_id.clone(),
        file: table.file.clone(),
        refused: row.refused.clone(),
        ..ScoreRow::default()
    }
}

/// Rows of equal model, devices, sequence and batch are one sweep.
fn sweep(subject: &Subject) -> String {
    let row = &subject.run.row;
    format!(
        "{} on {} {}, {} tokens, batch {}",
        row.model.name, row.hardware.devices, row.hardware.device, row.sequence_length, row.batch.global
    )
}

//! From rows to the figures of a table.

use std::collections::BTreeMap;

use super::{FEWEST_ROWS, POOLED, Refusal, SMALLEST_GAP, ScoreKind, ScoreRow, ScoreSet, ScoreTable};
use crate::compare::statistics::{kendall_tau, quantile};

/// Predicted over measured, less one; `None` unless both are finite and measured is above zero.
pub(super) fn signed_error(predicted: Option<f64>, measured: Option<f64>) -> Option<f64> {
    let (predicted, measured) = (predicted?, measured?);
    (predicted.is_finite() && measured.is_finite() && measured > 0.0).then(|| predicted / measured - 1.0)
}

impl ScoreRow {
    /// The signed error of the predicted time: above zero if it is slow.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        signed_error(self.predicted_s, self.measured_s)
    }

    /// Whether the measured time lies in the interval, where there is one.
    #[must_use]
    pub fn covered(&self) -> Option<bool> {
        let (measured, low, high) = (self.measured_s?, self.low_s?, self.high_s?);
        (measured > 0.0 && low <= high).then_some(measured >= low && measured <= high)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn share(answers: &[bool]) -> Option<f64> {
    (!answers.is_empty()).then(|| answers.iter().filter(|answer| **answer).count() as f64 / answers.len() as f64)
}

impl ScoreTable {
    /// The figures of a table over its rows.
    #[must_use]
    pub fn of(file: &str, rows: &[&ScoreRow]) -> Self {
        let signed: Vec<f64> = rows.iter().filter_map(|row| row.error()).collect();
        let errors: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        // The baseline is held against the rows that we predict, so that the two means are over the same runs.
        let baseline: Vec<f64> = rows
            .iter()
            .filter(|row| row.error().is_some())
            .filter_map(|row| signed_error(row.baseline_s, row.measured_s).map(f64::abs))
            .collect();
        let memory: Vec<f64> =
            rows.iter().filter_map(|row| signed_error(row.predicted_gb, row.measured_gb).map(f64::abs)).collect();
        let covered: Vec<bool> =
            rows.iter().filter(|row| row.error().is_some()).filter_map(|row| row.covered()).collect();
        let told: Vec<bool> = rows.iter().filter_map(|row| Some(row.fits? == row.measured_fits?)).collect();
        let sweeps = Sweeps::of(rows);
        Self {
            file: file.to_owned(),
            rows: rows.len() as u64,
            predicted: errors.len() as u64,
            refused: rows.iter().filter(|row| row.refused.is_some()).count() as u64,
            refusals: refusals(rows),
            median_ape: quantile(errors.clone(), 0.5),
            mean_ape: mean(&errors),
            p90_ape: quantile(errors.clone(), 0.9),
            max_ape: errors.iter().copied().reduce(f64::max),
            bias: quantile(signed, 0.5),
            kendall_tau: mean(&sweeps.taus),
            sweeps: sweeps.taus.len() as u64,
            regret: mean(&sweeps.regrets),
            interval_coverage: share(&covered),
            baseline_mean_ape: mean(&baseline),
            memory_rows: memory.len() as u64,
            memory_median_ape: quantile(memory.clone(), 0.5),
            memory_mean_ape: mean(&memory),
            oom_rows: told.len() as u64,
            oom_accuracy: share(&told),
            pooled: Vec::new(),
        }
    }
}

fn refusals(rows: &[&ScoreRow]) -> Vec<Refusal> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for reason in rows.iter().filter_map(|row| row.refused.as_deref()) {
        *counts.entry(reason).or_default() += 1;
    }
    let mut refusals: Vec<Refusal> =
        counts.into_iter().map(|(reason, rows)| Refusal { reason: reason.to_owned(), rows }).collect();
    refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.rows));
    refusals
}

/// Tau and regret of each sweep of enough rows.
#[derive(Default)]
struct Sweeps {
    taus: Vec<f64>,
    regrets: Vec<f64>,
}

impl Sweeps {
    fn of(rows: &[&ScoreRow]) -> Self {
        let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.error().is_some()) {
            if let (Some(group), Some(predicted), Some(measured)) = (&row.group, row.predicted_s, row.measured_s) {
                groups.entry(group).or_default().push((predicted, measured));
            }
        }
        let mut sweeps = Self::default();
        for values in groups.values().filter(|values| values.len() >= FEWEST_ROWS) {
            if let Some(tau) = kendall_tau(values, SMALLEST_GAP) {
                sweeps.taus.push(tau.tau);
                sweeps.regrets.extend(regret(values));
            }
        }
        sweeps
    }
}

/// How much slower the row predicted best is than the best measured one; of equal predictions the first counts.
fn regret(values: &[(f64, f64)]) -> Option<f64> {
    let chosen = values.iter().copied().reduce(|best, value| if value.0 < best.0 { value } else { best })?;
    let best = values.iter().map(|(_, measured)| *measured).reduce(f64::min)?;
    Some(chosen.1 / best - 1.0)
}

impl ScoreSet {
    /// Computes each row's error and each table's figures. Tables of fewer than [`FEWEST_ROWS`] predicted rows are pooled
    /// into one; a table none of whose rows has a predicted time but which tells of memory or fit stays itself.
    #[must_use]
    pub fn of(score: ScoreKind, mut rows: Vec<ScoreRow>) -> Self {
        for row in &mut rows {
            row.ape = row.error().map(f64::abs);
        }
        let mut files: Vec<&str> = Vec::new();
        for row in &rows {
            if !files.contains(&row.file.as_str()) {
                files.push(&row.file);
            }
        }
        let (mut tables, mut pooled, mut pool) = (Vec::new(), Vec::new(), Vec::new());
        for file in files {
            let of_file: Vec<&ScoreRow> = rows.iter().filter(|row| row.file == file).collect();
            let table = ScoreTable::of(file, &of_file);
            let judged = table.predicted.max(table.oom_rows).max(table.memory_rows);
            if judged >= FEWEST_ROWS as u64 || table.predicted == 0 {
                tables.push(table);
            } else {
                pooled.push(file.to_owned());
                pool.extend(of_file);
            }
        }
        if !pool.is_empty() {
            let mut table = ScoreTable::of(POOLED, &pool);
            table.pooled = pooled;
            tables.push(table);
        }
        Self { score, tables, rows }
    }

    /// The rows of a table, the pooled one included.
    #[must_use]
    pub fn rows_of(&self, table: &ScoreTable) -> Vec<&ScoreRow> {
        let belongs = |row: &&ScoreRow| {
            if table.pooled.is_empty() { row.file == table.file } else { table.pooled.contains(&row.file) }
        };
        self.rows.iter().filter(belongs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: usize, group: &str, measured: f64, predicted: f64) -> ScoreRow {
        ScoreRow {
            row_id: format!("row-{id}"),
            file: "a.csv".to_owned(),
            group: Some(group.to_owned()),
            measured_s: Some(measured),
            predicted_s: Some(predicted),
            low_s: Some(predicted * 0.9),
            high_s: Some(predicted * 1.1),
            baseline_s: Some(2.0 * measured),
            ..ScoreRow::default()
        }
    }

    #[test]
    fn figures_by_hand() {
        // Errors of 0, 1, ... 10 %, all slow.
        let rows: Vec<ScoreRow> = (0..=10u32)
            .map(|i| {
                row(i as usize, "sweep", 10.0 + f64::from(i), (10.0 + f64::from(i)) * (1.0 + f64::from(i) / 100.0))
            })
            .collect();
        let set = ScoreSet::of(ScoreKind::Cold, rows);
        let table = &set.tables[0];
        let close = |found: Option<f64>, expected: f64| assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?}");
        close(table.median_ape, 0.05);
        close(table.mean_ape, 0.05);
        close(table.p90_ape, 0.09);
        close(table.max_ape, 0.10);
        close(table.bias, 0.05);
        close(table.kendall_tau, 1.0);
        close(table.regret, 0.0);
        close(table.interval_coverage, 1.0);
        close(table.baseline_mean_ape, 1.0);
        close(set.rows[10].ape, 0.10);
        assert_eq!((table.rows, table.predicted, table.sweeps, table.oom_rows), (11, 11, 1, 0));
    }

    #[test]
    fn regret_is_of_the_row_predicted_best() {
        let mut rows: Vec<ScoreRow> = (0..10u32).map(|i| row(i as usize, "s", 10.0 + f64::from(i), 20.0)).collect();
        rows[3].predicted_s = Some(1.0);
        let table = &ScoreSet::of(ScoreKind::Fitted, rows).tables[0];
        assert!((table.regret.unwrap() - 0.3).abs() < 1e-12);
    }

    #[test]
    fn small_tables_are_pooled_and_refusals_counted() {
        let mut rows: Vec<ScoreRow> = (0..12).map(|i| row(i, "s", 1.0, 1.0)).collect();
        for (index, file) in [(0, "b.csv"), (1, "c.csv"), (2, "b.csv")] {
            rows[index].file = file.to_owned();
        }
        rows[0].predicted_s = None;
        rows[0].refused = Some("LoRA".to_owned());
        let set = ScoreSet::of(ScoreKind::Shape, rows);
        let names: Vec<&str> = set.tables.iter().map(|table| table.file.as_str()).collect();
        assert_eq!(names, [POOLED], "nine rows of a.csv are too few as well");
        assert_eq!(set.tables[0].pooled, ["b.csv", "c.csv", "a.csv"]);
        assert_eq!(set.tables[0].refusals, [Refusal { reason: "LoRA".to_owned(), rows: 1 }]);
        assert_eq!(set.rows_of(&set.tables[0]).len(), 12);
        assert_eq!(set.tables[0].predicted, 11);
    }

    #[test]
    fn values_that_are_no_times_are_left_out() {
        let mut rows: Vec<ScoreRow> = (0..12).map(|i| row(i, "s", 1.0, 1.0)).collect();
        rows[0].measured_s = Some(0.0);
        rows[1].predicted_s = Some(f64::NAN);
        rows[2].measured_fits = Some(false);
        rows[2].fits = Some(true);
        let table = &ScoreSet::of(ScoreKind::Fitted, rows).tables[0];
        assert_eq!(table.predicted, 10);
        assert_eq!((table.oom_rows, table.oom_accuracy), (1, Some(0.0)));
        assert!(table.mean_ape.unwrap() < 1e-12);
    }
}

//! A new score held against the published one.

use serde::{Deserialize, Serialize};

use super::document::{Document, TableEntry};

/// How much worse a table's error may be: a share of it, and points beside.
pub const RELATIVE_TOLERANCE: f64 = 0.03;
/// A tenth of a point.
pub const ABSOLUTE_TOLERANCE: f64 = 0.001;

/// What a published page keeps of the scores that the catalog stands for.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Published {
    /// Fitted tables.
    tables: Vec<TableEntry>,
}

/// One figure of a table, then and now.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// The table's file.
    pub file: String,
    /// Which figure.
    pub figure: &'static str,
    /// As published; `None` if it was not there.
    pub published: Option<f64>,
    /// As it is now; `None` if it is not there.
    pub now: Option<f64>,
    /// Whether it is worse by more than the tolerance.
    pub worse: bool,
}

impl Published {
    /// Reads a page's JSON.
    ///
    /// # Errors
    /// What is no such JSON, in words.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("is no scoreboard: {error}"))
    }

    /// Every figure of every table that was published, and of tables that are new.
    #[must_use]
    pub fn changes(&self, now: &Document) -> Vec<Change> {
        let mut changes = Vec::new();
        for table in &self.tables {
            match now.tables.iter().find(|other| other.file == table.file) {
                Some(other) => changes.extend(compared(table, other)),
                None => changes.push(whole(table, Some(table.rows), None)),
            }
        }
        let new = now.tables.iter().filter(|table| !self.tables.iter().any(|old| old.file == table.file));
        changes.extend(new.map(|table| whole(table, None, Some(table.rows))));
        changes
    }
}

/// A table that is on one side only.
fn whole(table: &TableEntry, published: Option<u64>, now: Option<u64>) -> Change {
    let count = |rows: Option<u64>| rows.map(|rows| rows as f64);
    Change { file: table.file.clone(), figure: "rows", published: count(published), now: count(now), worse: true }
}

fn compared(old: &TableEntry, new: &TableEntry) -> Vec<Change> {
    let change = |figure, published: Option<f64>, now: Option<f64>, worse: &dyn Fn(f64, f64) -> bool| {
        let worse = match (published, now) {
            (Some(published), Some(now)) => worse(published, now),
            (Some(_), None) => true,
            (None, _) => false,
        };
        Change { file: old.file.clone(), figure, published, now, worse }
    };
    let error = |old: f64, new: f64| new > old * (1.0 + RELATIVE_TOLERANCE) + ABSOLUTE_TOLERANCE;
    vec![
        change("median error", old.median_ape, new.median_ape, &error),
        change("mean error", old.mean_ape, new.mean_ape, &error),
        change("mean error of peak memory", old.memory_mean_ape, new.memory_mean_ape, &error),
        change("rows predicted", Some(old.predicted as f64), Some(new.predicted as f64), &|old, new| new < old),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use reports::scoreboard::{ScoreKind, ScoreRow, ScoreSet};

    fn document(error: f64, rows: usize) -> Document {
        let row = |index: usize| ScoreRow {
            row_id: index.to_string(),
            file: "a.csv".to_owned(),
            measured_s: Some(1.0),
            predicted_s: Some(1.0 + error),
            ..ScoreRow::default()
        };
        Document::new(&[ScoreSet::of(ScoreKind::Fitted, (0..rows).map(row).collect())])
    }

    fn worse(published: &Document, now: &Document) -> Vec<&'static str> {
        let published = Published::from_json(&crate::results::json(published)).expect("a scoreboard");
        published.changes(now).into_iter().filter(|change| change.worse).map(|change| change.figure).collect()
    }

    #[test]
    fn errors_may_grow_by_the_tolerance_and_no_more() {
        let before = document(0.05, 20);
        assert_eq!(worse(&before, &document(0.05, 20)), Vec::<&str>::new());
        assert_eq!(worse(&before, &document(0.052_4, 20)), Vec::<&str>::new());
        assert_eq!(worse(&before, &document(0.053, 20)), ["median error", "mean error"]);
        assert_eq!(worse(&before, &document(0.01, 20)), Vec::<&str>::new());
        assert_eq!(worse(&before, &document(0.05, 19)), ["rows predicted"]);
    }

    #[test]
    fn a_table_that_is_gone_or_new_is_told() {
        assert_eq!(worse(&document(0.05, 20), &Document::new(&[])), ["rows"]);
        assert_eq!(worse(&Document::new(&[]), &document(0.05, 20)), ["rows"]);
        assert!(Published::from_json("{}").expect_err("no tables").contains("tables"));
    }
}

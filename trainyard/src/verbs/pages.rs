//! Tables of pages.

use reports::tables::{Column, Table};

/// A table; a heading that begins with `>` is of numbers.
pub(crate) fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>, note: &str) -> Table {
    let column = |name: &&str| Column { name: name.trim_start_matches('>').to_owned(), numeric: name.starts_with('>') };
    let columns: Vec<Column> = columns.iter().map(column).collect();
    assert!(rows.iter().all(|row| row.len() == columns.len()), "a row of {title} that does not fit its columns");
    Table { title: title.to_owned(), columns, rows, note: note.to_owned() }
}

/// A value in words, or a dash.
pub(crate) fn or_dash<T>(value: Option<T>, words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "\u{2013}".to_owned(), words)
}

/// A share: `7.3 %`.
pub(crate) fn percent(share: f64) -> String {
    reports::unit::Unit::Share.text(share)
}

/// A change: `+7.3 %`.
pub(crate) fn signed_percent(change: f64) -> String {
    let sign = if change < 0.0 { "\u{2212}" } else { "+" };
    format!("{sign}{:.1} %", change.abs() * 100.0)
}

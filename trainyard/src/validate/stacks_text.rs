//! The text of a catalog of stacks: its head as it was written by hand, its rows as they were fitted.

use std::fmt::Write as _;

use cost::{ColdGroup, StackConstants, StackRow, Stacks};
use toml::Value;

/// Significant digits of fitted numbers: more than any fit knows, few enough to read.
const DIGITS: usize = 4;

/// With the numbers of fitted rows as they are written, and rows in the order of their keys.
pub(crate) fn rounded(stacks: &Stacks) -> Stacks {
    let mut stack: Vec<StackRow> = stacks.stack.iter().map(row_rounded).collect();
    stack.sort_by_key(StackRow::key);
    let mut cold: Vec<ColdGroup> = stacks.cold.iter().map(group_rounded).collect();
    cold.sort_by(|a, b| (&a.table, &a.generation).cmp(&(&b.table, &b.generation)));
    Stacks { cold, stack, ..stacks.clone() }
}

fn group_rounded(group: &ColdGroup) -> ColdGroup {
    let ColdGroup { table, generation, rows, bias, within, explained } = group.clone();
    ColdGroup { table, generation, rows, bias: digits(bias), within: digits(within), explained: digits(explained) }
}

fn row_rounded(row: &StackRow) -> StackRow {
    let c = row.constants;
    let constants = StackConstants {
        compute_factor: digits(c.compute_factor),
        attention_factor: digits(c.attention_factor),
        launch_us: c.launch_us.map(digits),
        hidden_in_launches: digits(c.hidden_in_launches),
        message_sync_us: digits(c.message_sync_us),
        expert_sync_us: digits(c.expert_sync_us),
        iteration_us: digits(c.iteration_us),
        optimizer_ns_per_parameter: digits(c.optimizer_ns_per_parameter),
        network_efficiency: digits(c.network_efficiency),
        stragglers_per_doubling: digits(c.stragglers_per_doubling),
    };
    StackRow { constants, spread: digits(row.spread), ..row.clone() }
}

fn digits(value: f64) -> f64 {
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

/// The head of `text` (all before its first row: comments, spread, widening, classes) with these rows, rounded and in the
/// order of their keys. The same rows give the same bytes.
pub(crate) fn with_rows(text: &str, stacks: &Stacks) -> String {
    let mut out = head(text).trim_end().to_owned();
    out.push('\n');
    let rounded = rounded(stacks);
    for text in rounded.cold.iter().map(group_text).chain(rounded.stack.iter().map(row_text)) {
        out.push('\n');
        out.push_str(&text);
    }
    out
}

/// What stands before the first `[[cold]]` or `[[stack]]`.
fn head(text: &str) -> &str {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        if ["[[cold]]", "[[stack]]"].iter().any(|begins| line.trim_start().starts_with(begins)) {
            return &text[..end];
        }
        end += line.len();
    }
    text
}

fn group_text(group: &ColdGroup) -> String {
    let text = toml::to_string(group).expect("a group is texts and numbers");
    format!("[[cold]]\n{text}")
}

fn row_text(row: &StackRow) -> String {
    let mut out = "[[stack]]\n".to_owned();
    let mut line = |key: &str, value: Value| {
        let _ = writeln!(out, "{key} = {value}");
    };
    line("class", row.class.clone().into());
    line("generation", row.generation.clone().into());
    line("precision", row.precision.name().into());
    line("experts", row.experts.into());
    line("graphs", row.graphs.name().into());
    if let Some(release) = &row.release {
        line("release", release.clone().into());
    }
    line("constants", Value::Table(unlike_default(&row.constants)));
    line("spread", row.spread.into());
    line("rows", i64::from(row.rows).into());
    line("tables", row.tables.clone().into());
    line("source", row.source.clone().into());
    out
}

/// The constants that are not what they would be anyway.
fn unlike_default(constants: &StackConstants) -> toml::Table {
    let table = |constants: &StackConstants| toml::Table::try_from(constants).expect("constants are numbers");
    let default = table(&StackConstants::default());
    table(constants).into_iter().filter(|(key, value)| default.get(key) != Some(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# By hand.\n\n[spread]\nundeclared_device = 0.06\nassumed = 0.06\n\n[widening]\nrelease = 0.05\n\
        graphs = 0.05\nexperts = 0.1\nprecision = 0.04\ngeneration = 0.15\nclass = 0.1\nunknown = 0.35\n\n# Why.\n[[class]]\n\
        class = \"megatron\"\nconstants = { hidden_in_launches = 0.7 }\nsource = \"found\"\n";

    fn row(class: &str, factor: f64) -> StackRow {
        StackRow {
            class: class.to_owned(),
            generation: "a100".to_owned(),
            precision: cost::PrecisionClass::Half,
            experts: false,
            graphs: cost::GraphUse::None,
            release: Some("24.07 \"beta\"".to_owned()),
            constants: StackConstants {
                compute_factor: factor,
                launch_us: Some(8.123_456),
                ..StackConstants::default()
            },
            spread: 0.041_239,
            rows: 12,
            tables: vec!["b".to_owned(), "a".to_owned()],
            source: "fitted".to_owned(),
        }
    }

    #[test]
    fn the_head_stays_and_rows_are_replaced_sorted_and_rounded() {
        let group = ColdGroup {
            table: "a".to_owned(),
            generation: "a100".to_owned(),
            rows: 7,
            bias: -0.123_456,
            within: 0.05,
            explained: 0.012_345_6,
        };
        let fitted = Stacks {
            stack: vec![row("z", 1.234_567), row("b", 0.987_654_3)],
            cold: vec![ColdGroup { table: "b".to_owned(), ..group.clone() }, group],
            ..Stacks::default()
        };
        let once = with_rows(HEAD, &fitted);
        assert!(once.starts_with(HEAD), "{once}");
        let read = Stacks::from_toml(&once, "s.toml").expect("a catalog");
        assert_eq!(read.class[0].class, "megatron");
        let classes: Vec<&str> = read.stack.iter().map(|row| row.class.as_str()).collect();
        assert_eq!(classes, ["b", "z"]);
        let tables: Vec<&str> = read.cold.iter().map(|group| group.table.as_str()).collect();
        assert_eq!(tables, ["a", "b"]);
        assert!((read.cold[0].bias + 0.1235).abs() < 1e-12);
        assert!((read.stack[1].constants.compute_factor - 1.235).abs() < 1e-12);
        assert!((read.stack[1].spread - 0.041_24).abs() < 1e-12);
        assert_eq!(read.stack, rounded(&fitted).stack, "what is written is what is scored");
        // Again, over itself and in another order: the same bytes.
        let reversed = Stacks {
            stack: fitted.stack.iter().rev().cloned().collect(),
            cold: fitted.cold.iter().rev().cloned().collect(),
            ..Stacks::default()
        };
        assert_eq!(with_rows(&once, &reversed), once);
    }

    #[test]
    fn a_catalog_without_rows_is_its_head() {
        assert_eq!(with_rows(HEAD, &Stacks::default()), HEAD);
    }

    #[test]
    fn the_projects_own_catalog_is_what_would_be_written() {
        let text = crate::catalog::STACKS.1;
        let stacks = Stacks::from_toml(text, "stacks.toml").expect("a catalog");
        assert_eq!(rounded(&stacks), stacks, "rows are rounded and sorted: trainyard validate --refit --write-stacks");
        assert!(
            with_rows(text, &stacks).trim_end() == text.trim_end(),
            "rows are written as trainyard validate --refit --write-stacks does"
        );
    }
}

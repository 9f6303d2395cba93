//! Tables predicted from the others: the stacks that are then known, and how far predictions are off.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cost::{ColdGroup, NINETY_PERCENT, Stack, Stacks};
use rayon::prelude::*;
use reports::scoreboard::ScoreKind;

use super::predict::Subject;
use super::stacks;
use super::tables::Tables;

/// Stacks without one table or another, each fitted once: a fit takes seconds, and several scores ask for it.
#[derive(Debug, Default)]
pub(crate) struct Others(Mutex<BTreeMap<String, Stacks>>);

impl Others {
    /// Stacks as known before a table was: where some of `all` rest on it, they are fitted again to the other tables; what
    /// the table showed when it was predicted from others does not count either.
    pub(crate) fn without(&self, tables: &Tables, all: &Stacks, table: &str) -> Stacks {
        let cold = all.cold.iter().filter(|group| group.table != table).cloned().collect();
        let rests = |row: &cost::StackRow| row.tables.iter().any(|of| of == table);
        if !all.stack.iter().any(rests) {
            return Stacks { cold, ..all.clone() };
        }
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(table).cloned();
        let fitted = known.unwrap_or_else(|| {
            let fitted = stacks::without(tables.subjects(ScoreKind::Cold), &tables.names(), table, all);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(table.to_owned(), fitted.clone());
            fitted
        });
        Stacks { cold, ..fitted }
    }
}

/// What every table shows when it is predicted from the others, by device generation.
pub(super) fn groups(tables: &Tables, fitted: &Stacks, others: &Others) -> Vec<ColdGroup> {
    let mut groups = Vec::new();
    for (index, table) in tables.tables.iter().enumerate() {
        let subjects: Vec<&Subject> =
            tables.of_table(ScoreKind::Cold, index).into_iter().filter(|subject| subject.seconds().is_some()).collect();
        if subjects.is_empty() {
            continue;
        }
        let stacks = others.without(tables, fitted, &table.name);
        let residuals: Vec<Option<Residual>> = subjects.par_iter().map(|subject| residual(subject, &stacks)).collect();
        let mut by_generation: BTreeMap<&str, Vec<Residual>> = BTreeMap::new();
        for (subject, residual) in subjects.iter().zip(residuals) {
            by_generation.entry(subject.run.stack.generation.as_str()).or_default().extend(residual);
        }
        groups.extend(by_generation.into_iter().filter_map(|(generation, of)| group(&table.name, generation, &of)));
    }
    groups
}

/// Of one row: the logarithm of prediction over measurement, and the variance that all but its stack give it on that side.
struct Residual {
    logarithm: f64,
    explained: f64,
}

fn residual(subject: &Subject, stacks: &Stacks) -> Option<Residual> {
    let stack = Stack { spread: 0.0, ..stacks.resolve(&subject.run.stack) };
    let predicted = subject.predict(&stack).ok()?;
    let logarithm = libm::log(predicted.seconds / subject.seconds()?);
    // Measured times above the prediction are explained by what lengthens it.
    let end = if logarithm < 0.0 { predicted.high } else { predicted.low };
    let spread = libm::log(end / predicted.seconds) / NINETY_PERCENT;
    Some(Residual { logarithm, explained: spread * spread })
}

fn group(table: &str, generation: &str, of: &[Residual]) -> Option<ColdGroup> {
    let mut logarithms: Vec<f64> = of.iter().map(|residual| residual.logarithm).collect();
    logarithms.sort_by(f64::total_cmp);
    let last = logarithms.len().checked_sub(1)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let at = |share: f64| logarithms[libm::round(share * last as f64) as usize];
    let explained = of.iter().map(|residual| residual.explained).sum::<f64>() / of.len() as f64;
    Some(ColdGroup {
        table: table.to_owned(),
        generation: generation.to_owned(),
        rows: u32::try_from(of.len()).unwrap_or(u32::MAX),
        bias: f64::midpoint(logarithms[last / 2], logarithms[last.div_ceil(2)]),
        within: (at(0.84) - at(0.16)) / 2.0,
        explained: explained.sqrt(),
    })
}

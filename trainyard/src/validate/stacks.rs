//! The catalog of stacks, fitted to measured rows.
//!
//! Each key by itself, with what its class is declared to do as the prior. A key needs two rows of its own.

use std::collections::{BTreeMap, BTreeSet};

use cost::{Stack, StackConstants, StackKey, StackRow, Stacks};
use rayon::prelude::*;

use super::fit::{Fitted, fit};
use super::predict::Subject;

/// Fewest rows of a key.
const FEWEST: usize = 2;
/// Most rows of one fit: of larger groups every n-th is taken, in the order of the tables.
const MOST: usize = 160;

/// The constants of the subjects' stacks. `names` are the tables' names. What a fit does not decide (spread terms,
/// widening, what classes are declared to do) stays as it is in `base`.
pub(crate) fn fitted(subjects: &[Subject], names: &[String], base: &Stacks) -> Stacks {
    let groups: Vec<(StackKey, Vec<&Subject>)> = groups(subjects.iter()).into_iter().collect();
    let stack = groups.into_par_iter().filter_map(|(key, rows)| row(&key, &rows, names, base)).collect();
    Stacks { stack, ..base.clone() }
}

/// As [`fitted`] to all tables but one, given the fit to all: only keys that the table has rows of are fitted again. The
/// prior is declared and not fitted, so no other key knows of the table.
pub(crate) fn without(subjects: &[Subject], names: &[String], table: &str, all: &Stacks) -> Stacks {
    let touched: BTreeSet<&StackKey> =
        subjects.iter().filter(|s| names[s.table] == table && s.seconds().is_some()).map(|s| &s.run.stack).collect();
    let others = subjects.iter().filter(|s| names[s.table] != table && touched.contains(&s.run.stack));
    let groups: Vec<(StackKey, Vec<&Subject>)> = groups(others).into_iter().collect();
    let mut stack: Vec<StackRow> = all.stack.iter().filter(|row| !touched.contains(&row.key())).cloned().collect();
    let again: Vec<StackRow> = groups.into_par_iter().filter_map(|(key, rows)| row(&key, &rows, names, all)).collect();
    stack.extend(again);
    Stacks { stack, ..all.clone() }
}

fn groups<'a>(subjects: impl Iterator<Item = &'a Subject>) -> BTreeMap<StackKey, Vec<&'a Subject>> {
    let mut groups: BTreeMap<StackKey, Vec<&Subject>> = BTreeMap::new();
    for subject in subjects.filter(|subject| subject.seconds().is_some()) {
        groups.entry(subject.run.stack.clone()).or_default().push(subject);
    }
    groups
}

fn thinned<'a>(rows: &[&'a Subject]) -> Vec<&'a Subject> {
    rows.iter().step_by(rows.len().div_ceil(MOST).max(1)).copied().collect()
}

/// Constants fitted on these rows.
pub(crate) fn on(rows: &[&Subject], prior: &StackConstants) -> Fitted {
    let measured: Vec<f64> = rows.iter().map(|subject| subject.seconds().expect("rows of a fit were timed")).collect();
    fit(prior, &measured, &mut |constants| {
        let stack = Stack { constants: *constants, ..Stack::default() };
        rows.par_iter().map(|subject| subject.predict(&stack).ok().map(|predicted| predicted.seconds)).collect()
    })
}

/// The row of a key; `None` if too few measurements have it.
fn row(key: &StackKey, rows: &[&Subject], names: &[String], base: &Stacks) -> Option<StackRow> {
    if rows.len() < FEWEST {
        return None;
    }
    let Fitted { constants, spread } = on(&thinned(rows), &base.base(key));
    let mut tables: Vec<String> = rows.iter().map(|subject| names[subject.table].clone()).collect();
    tables.sort_unstable();
    tables.dedup();
    let StackKey { class, generation, precision, experts, graphs, release } = key.clone();
    Some(StackRow {
        class,
        generation,
        precision,
        experts,
        graphs,
        release,
        constants,
        spread: spread.max(LEAST_SPREAD),
        rows: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        tables,
        source: "fitted to its rows: Huber loss on logarithms, the class's declared constants as the prior".to_owned(),
    })
}

/// What repeated measurements of one stack differ by; no fit knows better.
const LEAST_SPREAD: f64 = 0.03;

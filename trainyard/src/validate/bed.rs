//! A test bed's constants from a few of its own measured rows.

use std::collections::{BTreeMap, BTreeSet};

use cost::{Stack, StackConstants, StackKey, StackRow, Stacks};
use rayon::prelude::*;
use reports::scoreboard::{ScoreKind, ScoreTable};

use super::board::score_rows;
use super::predict::Subject;
use super::tables::Tables;
use super::{stacks, stacks_text};

/// What was fitted to some rows of a table, and how well it predicts the others.
#[derive(Clone, Debug)]
pub(crate) struct Bed {
    /// The fitted rows of the catalog of stacks, one for each key.
    pub(crate) stacks: Vec<StackRow>,
    /// Rows that were fitted to, by name.
    pub(crate) taken: Vec<String>,
    /// Figures of the rows that were not; `None` if every row was taken.
    pub(crate) rest: Option<ScoreTable>,
    /// Figures of the same rows before anything was fitted.
    pub(crate) before: Option<ScoreTable>,
}

/// Fits a test bed's constants to `take` rows of a table, chosen by the seed, or to all of them. What the catalog knows
/// without the table (`Knowledge::without`) is the prior: a key is its neighbours' median moved as far as its rows ask
/// for. `None` if no row of the table was timed and can be predicted.
pub(crate) fn fit(tables: &Tables, prior: &Stacks, table: usize, take: Option<usize>, seed: u64) -> Option<Bed> {
    let of = &tables.tables[table];
    let subjects = tables.of_table(ScoreKind::Cold, table);
    let timed: Vec<&Subject> = subjects.iter().copied().filter(|subject| subject.seconds().is_some()).collect();
    let chosen = chosen(&timed, take.unwrap_or(timed.len()), seed);
    let mut groups: BTreeMap<&StackKey, Vec<&Subject>> = BTreeMap::new();
    for place in &chosen {
        groups.entry(&timed[*place].run.stack).or_default().push(timed[*place]);
    }
    let fitted: Vec<StackRow> = groups.iter().map(|(key, rows)| row(key, rows, &of.name, prior)).collect();
    if fitted.is_empty() {
        return None;
    }
    let rest: Vec<&Subject> =
        timed.iter().enumerate().filter(|(place, _)| !chosen.contains(place)).map(|(_, s)| *s).collect();
    let after = with(prior, &fitted);
    let figures = |stacks: &Stacks| {
        let predicted: Vec<_> = rest.par_iter().map(|s| s.predict(&stacks.resolve(&s.run.stack))).collect();
        let rows = score_rows(of, of.rows(ScoreKind::Cold), &rest, &predicted, &vec![None; rest.len()]);
        let rows: Vec<_> = rows.iter().filter(|row| row.error().is_some()).collect();
        (!rows.is_empty()).then(|| ScoreTable::of(&of.file, &rows))
    };
    let (rest, before) = (figures(&after), figures(prior));
    let taken = chosen.iter().map(|place| timed[*place].run.row.row_id.clone()).collect();
    Some(Bed { stacks: fitted, taken, rest, before })
}

/// How many rows of a table were timed and can be predicted.
pub(crate) fn timed(tables: &Tables, table: usize) -> usize {
    tables.of_table(ScoreKind::Cold, table).iter().filter(|subject| subject.seconds().is_some()).count()
}

/// A catalog in which these rows stand in place of those of their keys.
pub(crate) fn with(base: &Stacks, rows: &[StackRow]) -> Stacks {
    let keys: BTreeSet<StackKey> = rows.iter().map(StackRow::key).collect();
    let mut stack: Vec<StackRow> = base.stack.iter().filter(|row| !keys.contains(&row.key())).cloned().collect();
    stack.extend(rows.iter().cloned());
    stacks_text::rounded(&Stacks { stack, ..base.clone() })
}

fn row(key: &StackKey, rows: &[&Subject], table: &str, base: &Stacks) -> StackRow {
    // From what the neighbours have, and from what the class is declared to do: one may lie in a valley of its own.
    let priors = [base.resolve(key).constants, base.base(key)];
    let fits = priors.map(|prior| stacks::on(rows, &prior));
    let [near, declared] = fits.map(|fitted| (distance(rows, fitted.constants), fitted));
    let fitted = if declared.0 < CLEARLY * near.0 { declared.1 } else { near.1 };
    let StackKey { class, generation, precision, experts, graphs, release } = key.clone();
    StackRow {
        class,
        generation,
        precision,
        experts,
        graphs,
        release,
        constants: fitted.constants,
        // A few rows hide how far others lie off: as far as they themselves are scattered, and that over their count.
        spread: (fitted.spread * (1.0 + 1.0 / rows.len() as f64)).max(LEAST_SPREAD),
        rows: u32::try_from(rows.len()).unwrap_or(u32::MAX),
        tables: vec![table.to_owned()],
        source: "fitted to rows of a test bed: what other tables say is the prior".to_owned(),
    }
}

/// The declared prior is taken where it leaves less than this share of the distance.
const CLEARLY: f64 = 0.7;

/// How far rows lie off: the mean absolute logarithm of prediction over measurement.
fn distance(rows: &[&Subject], constants: StackConstants) -> f64 {
    let stack = Stack { constants, ..Stack::default() };
    let of = |row: &&Subject| Some(libm::log(row.predict(&stack).ok()?.seconds / row.seconds()?).abs());
    let distances: Vec<f64> = rows.iter().filter_map(of).collect();
    distances.iter().sum::<f64>() / distances.len().max(1) as f64
}

/// Spread of a fit to few rows, at the least.
const LEAST_SPREAD: f64 = 0.04;

/// Places of so many rows: those whose names come first in an order that the seed gives.
fn chosen(rows: &[&Subject], take: usize, seed: u64) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|place| (mixed(&rows[*place].run.row.row_id, seed), *place));
    order.into_iter().take(take).collect()
}

/// A hash of a name and a seed: FNV-1a, then the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mixed(name: &str, seed: u64) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold);
    let mut z = hash ^ seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

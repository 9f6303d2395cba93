//! A test bed's constants from a few of its own measured rows.

use std::collections::{BTreeMap, BTreeSet};

use cost::{StackKey, StackRow, Stacks};
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
    let k: usize = std::env::var("BK").map_or(1, |v| v.parse().unwrap());
    let measured: Vec<f64> = rows.iter().cycle().take(rows.len() * k).map(|s| s.seconds().unwrap()).collect();
    let fitted = super::fit::fit(&base.resolve(key).constants, &measured, &mut |constants| {
        let stack = cost::Stack { constants: *constants, ..cost::Stack::default() };
        let once: Vec<Option<f64>> = rows.par_iter().map(|s| s.predict(&stack).ok().map(|p| p.seconds)).collect();
        once.iter().copied().cycle().take(once.len() * k).collect()
    });
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

/// Spread of a fit to few rows, at the least.
const LEAST_SPREAD: f64 = 0.04;

/// Places of so many rows. Rows are put in order of what they are (devices, model, sequence, division, microbatch), cut into
/// as many runs of like rows as are wanted, and the seed takes one of each run: ten rows of one corner of a table would say
/// nothing of the others.
fn chosen(rows: &[&Subject], take: usize, seed: u64) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|place| (likeness(rows[*place]), *place));
    let take = take.min(order.len());
    if std::env::var("BR").is_ok() { order.sort_by_key(|p| mixed(&rows[*p].run.row.row_id, seed)); return order.into_iter().take(take).collect(); }
    let run = |index: usize| &order[index * order.len() / take..(index + 1) * order.len() / take];
    let first = |places: &[usize]| places.iter().copied().min_by_key(|p| mixed(&rows[*p].run.row.row_id, seed));
    (0..take).filter_map(|index| first(run(index))).collect()
}

fn likeness(subject: &Subject) -> (u64, u64, u32, u32, u32, u32) {
    let super::case::Case { model, workload, plan, .. } = &subject.case;
    let weights = u64::from(model.layers) * u64::from(model.hidden) * u64::from(model.hidden);
    let (pipeline, tensor) = (plan.pipeline(), plan.tensor);
    (plan.world(), weights, workload.sequence_length, pipeline, tensor, subject.run.microbatch)
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

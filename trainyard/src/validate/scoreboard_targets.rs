//! What is promised, and what was found: each figure by the scores that it is about.

use std::collections::BTreeMap;

use reports::scoreboard::{Bound, FEWEST_ROWS, ScoreKind, ScoreRow, ScoreSet, ScoreTable, Target};
use reports::unit::Unit;

use super::bed;
use super::board::Knowledge;
use super::outcomes::Outcomes;
use crate::Error;
use crate::progress::Context;

/// Bounds on a table's errors of step time, fitted: name, median, 90th percentile. What a first, smaller model reached.
const FITTED: [(&str, f64, f64); 17] = [
    ("vtrain_a100", 0.07, 0.18),
    ("aleph_alpha_llama_layout_sweep", 0.05, 0.18),
    ("mosaicml_llm_foundry", 0.03, 0.10),
    ("nvidia_dgxc_benchmarking", 0.03, 0.10),
    ("bigscience_bloom176b_prequel", 0.045, 0.14),
    ("vocab_parallel_schedules", 0.035, 0.08),
    ("megatron_lm_sc21", 0.025, 0.06),
    ("megatron_lm_2020_v100_a100", 0.025, 0.06),
    ("korthikanti_seqpar_selective", 0.025, 0.06),
    ("simumax_b200_real", 0.04, 0.11),
    ("oneflow_dlperf_v100", 0.04, 0.11),
    ("internevo_7b", 0.015, 0.08),
    ("mlperf_training_llm", 0.015, 0.08),
    ("amp_hetero_t4_v100", 0.08, 0.17),
    ("nvidia_nemo_2407_longseq", 0.05, 0.15),
    ("megatron_core_h100_scaling", 0.05, 0.15),
    ("nvidia_megatron_bridge", 0.04, 0.20),
];
/// The profiled schedules, whose passes are known.
const PROFILED: (&str, f64, f64) = ("zero_bubble_schedules", 0.007, 0.02);

/// Bounds on the median error of a table's shape: 0.8 of what a first model reached.
const SHAPE: [(&str, f64); 5] = [
    ("aleph_alpha_llama_layout_sweep", 0.8 * 0.091),
    ("amp_hetero_t4_v100", 0.8 * 0.12),
    ("nvidia_megatron_bridge", 0.8 * 0.125),
    ("mosaicml_llm_foundry", 0.8 * 0.054),
    ("pytorch_torchtitan", 0.8 * 0.066),
];

/// Bounds on the median error of peak memory.
const MEMORY: [(&str, f64); 5] = [
    ("vocab_parallel_schedules", 0.015),
    ("simumax_b200_real", 0.02),
    ("zero_bubble_schedules", 0.04),
    ("bigscience_bloom176b_prequel", 0.03),
    ("pytorch_torchtitan", 0.02),
];
/// Share of outcomes that are to be told right, with each group left out.
const FITS: f64 = 0.94;

/// Beds of which ten rows are known: bound on the median error of the others.
const BEDS: [(&str, f64); 2] = [("vtrain_a100", 0.07), ("aleph_alpha_llama_layout_sweep", 0.045)];
/// Rows that are taken of a bed, and how often.
const BED_ROWS: usize = 10;
const BED_SEEDS: u64 = 21;

/// The table whose rows contradict each other: 18B on 16 devices at 0.4, 39B on 32 of the same at 1.6 of what is predicted.
const CONTRADICTORY: &str = "bigscience_v100_gpt2";
/// Fewest rows of a table on one kind of device of which a median is taken.
const FEWEST_OF_DEVICE: usize = 4;

/// Figures that other commands measure: figure, of, bound, unit.
const ELSEWHERE: [(&str, &str, Bound, Unit); 4] = [
    ("time of a closed-form estimate", "any model", Bound::AtMost(50e-6), Unit::Seconds),
    (
        "time of the exhaustive policy",
        "every legal uniform plan of 175B on 1,024 A100, 2 cores",
        Bound::AtMost(2.0),
        Unit::Seconds,
    ),
    ("time of a closed-form sweep", "10,000 points, 2 cores", Bound::AtMost(60.0), Unit::Seconds),
    ("optimum kept under pruning", "1,000 random spaces", Bound::AtLeast(1.0), Unit::Share),
];

/// Every target, with what the scores of the project's own tables say.
pub(super) fn targets(
    scores: &[ScoreSet],
    outcomes: Option<&Outcomes>,
    known: &Knowledge<'_>,
    context: &Context<'_>,
) -> Result<Vec<Target>, Error> {
    let board = Board::new(scores);
    let mut targets = board.fitted();
    targets.extend(board.shape());
    for (index, (table, most)) in BEDS.into_iter().enumerate() {
        context.step("ten rows", index as u64, BEDS.len() as u64, table)?;
        let found = ten_rows(known, table);
        targets.push(target("median error after ten rows", table, None, Bound::AtMost(most), found));
    }
    targets.extend(board.cold());
    targets.extend(board.sweeps());
    targets.extend(board.memory());
    targets.extend(fits(outcomes));
    targets.extend(ELSEWHERE.map(|(figure, of, bound, unit)| Target { unit, ..target(figure, of, None, bound, None) }));
    Ok(targets)
}

/// The median over seeds of the median error on the rows that were not taken.
fn ten_rows(known: &Knowledge<'_>, table: &str) -> Option<f64> {
    let index = known.tables.tables.iter().position(|of| of.name == table)?;
    let prior = known.without(table);
    let of_seed = |seed| bed::fit(known.tables, &prior, index, Some(BED_ROWS), seed)?.rest?.median_ape;
    median((0..BED_SEEDS).filter_map(of_seed).collect())
}

fn target(figure: &str, of: &str, score: Option<ScoreKind>, bound: Bound, found: Option<f64>) -> Target {
    Target {
        figure: figure.to_owned(),
        of: of.to_owned(),
        score,
        bound,
        found,
        unit: Unit::Share,
        cause: String::new(),
        tried: String::new(),
    }
}

/// Whether runs of a model, sequence length and devices fit, with nothing known of such runs.
fn fits(outcomes: Option<&Outcomes>) -> [Target; 2] {
    let of = |of, found| target("told right whether it fits", of, Some(ScoreKind::Cold), Bound::AtLeast(FITS), found);
    [
        of("runs, each group left out", outcomes.map(|outcomes| outcomes.accuracy)),
        of("the group told worst", outcomes.and_then(|outcomes| outcomes.least)),
    ]
}

/// Every table by itself, small ones too.
struct Board {
    tables: BTreeMap<(ScoreKind, String), ScoreTable>,
    rows: BTreeMap<ScoreKind, Vec<ScoreRow>>,
}

impl Board {
    fn new(scores: &[ScoreSet]) -> Self {
        let mut board = Self { tables: BTreeMap::new(), rows: BTreeMap::new() };
        for set in scores {
            let mut files: BTreeMap<&str, Vec<&ScoreRow>> = BTreeMap::new();
            for row in &set.rows {
                files.entry(&row.file).or_default().push(row);
            }
            for (file, rows) in files {
                board.tables.insert((set.score, super::tables::name(file).to_owned()), ScoreTable::of(file, &rows));
            }
            board.rows.insert(set.score, set.rows.clone());
        }
        board
    }

    fn table(&self, kind: ScoreKind, name: &str) -> Option<&ScoreTable> {
        self.tables.get(&(kind, name.to_owned()))
    }

    /// Tables of a kind of score, by name.
    fn all(&self, kind: ScoreKind) -> impl Iterator<Item = (&str, &ScoreTable)> {
        self.tables.iter().filter(move |((of, _), _)| *of == kind).map(|((_, name), table)| (name.as_str(), table))
    }

    fn fitted(&self) -> Vec<Target> {
        let kind = ScoreKind::Fitted;
        let mut targets = Vec::new();
        for (name, most, p90) in FITTED.into_iter().chain([PROFILED]) {
            let table = self.table(kind, name);
            let found = table.and_then(|table| table.median_ape);
            targets.push(target("median error", name, Some(kind), Bound::AtMost(most), found));
            let found = table.and_then(|table| table.p90_ape);
            targets.push(target("90th percentile of errors", name, Some(kind), Bound::AtMost(p90), found));
        }
        let large = |(name, table): &(&str, &ScoreTable)| {
            *name != CONTRADICTORY && table.predicted >= FEWEST_ROWS as u64 && table.baseline_mean_ape.is_some()
        };
        for (name, table) in self.all(kind).filter(large) {
            let bound = Bound::AtMost(table.baseline_mean_ape.unwrap_or(0.0));
            targets.push(target(
                "mean error against the one-constant baseline's",
                name,
                Some(kind),
                bound,
                table.mean_ape,
            ));
        }
        targets
    }

    fn shape(&self) -> Vec<Target> {
        let kind = ScoreKind::Shape;
        let of = |(name, most): (&str, f64)| {
            let found = self.table(kind, name).and_then(|table| table.median_ape);
            target("median error", name, Some(kind), Bound::AtMost(most), found)
        };
        let mut targets: Vec<Target> = SHAPE.into_iter().map(of).collect();
        let medians: Vec<f64> = self.all(kind).filter_map(|(_, table)| table.median_ape).collect();
        let mean = (!medians.is_empty()).then(|| medians.iter().sum::<f64>() / medians.len() as f64);
        targets.push(target("mean of the tables' median errors", "all tables", Some(kind), Bound::AtMost(0.06), mean));
        targets
    }

    /// The median over tables of the median error of their rows on devices of one kind.
    fn cold(&self) -> Vec<Target> {
        let kind = ScoreKind::Cold;
        let mut errors: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
        let rows = self.rows.get(&kind).map_or(&[][..], Vec::as_slice);
        for row in rows {
            if let (Some(device), Some(ape)) = (&row.device, row.ape) {
                errors.entry((devices(device), &row.file)).or_default().push(ape);
            }
        }
        let of = |wanted: &str| {
            let medians = errors.iter().filter(|((device, _), of)| *device == wanted && of.len() >= FEWEST_OF_DEVICE);
            median(medians.filter_map(|(_, errors)| median(errors.clone())).collect())
        };
        let mut targets: Vec<Target> = [(A100, 0.08), (H100, 0.10), (OTHERS, 0.18)]
            .map(|(name, most)| {
                target("median over tables of their median errors", name, Some(kind), Bound::AtMost(most), of(name))
            })
            .to_vec();
        let covered: Vec<bool> = rows.iter().filter(|row| row.ape.is_some()).filter_map(ScoreRow::covered).collect();
        let share = (!covered.is_empty())
            .then(|| covered.iter().filter(|covered| **covered).count() as f64 / covered.len() as f64);
        let bound = Bound::Between(0.80, 0.97);
        targets.push(target("rows in their 90 % interval", "all tables", Some(kind), bound, share));
        targets
    }

    fn sweeps(&self) -> Vec<Target> {
        let kind = ScoreKind::Fitted;
        let mut targets = Vec::new();
        for (name, table) in self.all(kind).filter(|(_, table)| table.sweeps > 0) {
            let least = Bound::AtLeast(0.85);
            targets.push(target("Kendall's tau of sweeps", name, Some(kind), least, table.kendall_tau));
            let most = Bound::AtMost(if name == "bigscience_bloom176b_prequel" { 0.08 } else { 0.03 });
            targets.push(target("best predicted over best measured, less one", name, Some(kind), most, table.regret));
        }
        for target in targets.iter_mut().filter(|target| matches!(target.bound, Bound::AtLeast(_))) {
            target.unit = Unit::Plain;
        }
        targets
    }

    fn memory(&self) -> Vec<Target> {
        let kind = ScoreKind::Cold;
        let of = |(name, most): (&str, f64)| {
            let found = self.table(kind, name).and_then(|table| table.memory_median_ape);
            target("median error of peak memory", name, Some(kind), Bound::AtMost(most), found)
        };
        MEMORY.into_iter().map(of).collect()
    }
}

const A100: &str = "A100";
const H100: &str = "H100";
const OTHERS: &str = "other devices";

fn devices(device: &str) -> &'static str {
    let device = device.to_ascii_lowercase();
    if device.starts_with("a100") {
        A100
    } else if device.starts_with("h100") {
        H100
    } else {
        OTHERS
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::scoreboard_notes::Notes;

    #[test]
    fn targets_read_the_rows_of_their_tables() {
        let row = |file: &str, device: &str, predicted: f64| ScoreRow {
            row_id: format!("{file}-{predicted}"),
            file: file.to_owned(),
            device: Some(device.to_owned()),
            measured_s: Some(1.0),
            predicted_s: Some(predicted),
            low_s: Some(0.0),
            high_s: Some(1.05),
            ..ScoreRow::default()
        };
        let rows: Vec<ScoreRow> = [1.01, 1.02, 1.03, 1.04, 1.10]
            .iter()
            .flat_map(|error| {
                [row("korthikanti_seqpar_selective.csv", "a100-80gb", *error), row("b.csv", "h200", *error)]
            })
            .collect();
        let sets = [ScoreSet::of(ScoreKind::Fitted, rows.clone()), ScoreSet::of(ScoreKind::Cold, rows)];
        let board = Board::new(&sets);
        let fitted = board.fitted();
        let of = |figure: &str| {
            fitted.iter().find(|t| t.figure == figure && t.of.starts_with("korthikanti")).expect("a target").clone()
        };
        assert!((of("median error").found.unwrap() - 0.03).abs() < 1e-9 && !of("median error").met());
        let cold = board.cold();
        assert!((cold[0].found.unwrap() - 0.03).abs() < 1e-9 && cold[0].met());
        assert_eq!((cold[1].found, cold[1].met()), (None, false), "what is not measured is missed");
        assert!(cold[2].found.is_some());
        assert_eq!(cold[3].found, Some(1.0));
        assert!(!cold[3].met(), "intervals that hold every row are too wide");
    }

    /// A note about a figure that is none would never be shown.
    #[test]
    fn notes_are_about_targets() {
        let own = crate::validate::measured_tables();
        let names: Vec<&str> = own.iter().map(|(file, _)| file.as_str()).collect();
        let rows = |kind| {
            let of = |file: &str, index: u32| ScoreRow {
                file: file.to_owned(),
                row_id: index.to_string(),
                group: Some("g".to_owned()),
                measured_s: Some(1.0 + f64::from(index)),
                predicted_s: Some(1.0 + f64::from(index)),
                baseline_s: Some(1.0),
                ..ScoreRow::default()
            };
            ScoreSet::of(kind, names.iter().flat_map(|file| (0..10).map(move |index| of(file, index))).collect())
        };
        let board = Board::new(&ScoreKind::ALL.map(rows));
        let mut all =
            [board.fitted(), board.shape(), board.cold(), board.sweeps(), board.memory(), fits(None).to_vec()].concat();
        all.extend(
            BEDS.map(|(table, most)| target("median error after ten rows", table, None, Bound::AtMost(most), None)),
        );
        all.extend(ELSEWHERE.map(|(figure, of, bound, _)| target(figure, of, None, bound, None)));
        assert_eq!(Notes::embedded().about_nothing(&all), Vec::<String>::new());
        for (name, ..) in FITTED {
            assert!(names.iter().any(|file| super::super::tables::name(file) == name), "{name} is no table");
        }
    }
}

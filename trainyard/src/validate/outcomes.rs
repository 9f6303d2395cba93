//! Whether a run fits, told of runs of which nothing is known.
//!
//! Two constants decide: the share of what comes and goes that an allocator cannot use again, and what a device loses to
//! context and communicators ([`cost::memory::Figures`]). Runs of one model, sequence length and devices are a group. Of
//! software of which failures are on record, each group is left out in turn, both constants are those under which the outcomes
//! of the other groups are likeliest, and the group is told with them. The likelihood of a failure is logistic in what a run
//! needs over what its device has: a count of outcomes told right would be a step function, and its best values a matter
//! of single runs.

use std::collections::BTreeMap;

use cost::memory::{self, Figures};
use ir::Bytes;
use rayon::prelude::*;
use reports::scoreboard::{FEWEST_ROWS, ScoreKind};
use serde::Serialize;

use super::predict::Subject;
use super::tables::Tables;

/// Thousandths of what passes that may be out of use: 0 to 30 %.
const UNUSED: (u64, u64) = (16, 20);
/// What context and communicators may take: 0 to 4 GiB, in MiB.
const CONTEXT: (u64, u64) = (17, 256);

/// Over which share of a device's memory a failure becomes likely.
const SOFTNESS: f64 = 0.05;

/// Outcomes of runs, each told by others.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcomes {
    /// Runs of which the outcome is known.
    pub rows: u64,
    /// Those that were told right, as a share.
    pub accuracy: f64,
    /// The share of the group with the smallest one, of those with at least ten runs.
    pub least: Option<f64>,
    /// The groups.
    pub groups: Vec<OutcomeGroup>,
}

/// A group that was left out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OutcomeGroup {
    /// Model, sequence length and devices.
    pub group: String,
    /// Its runs.
    pub rows: u64,
    /// How many of them ran out of memory.
    pub failed: u64,
    /// Those that were told right, as a share.
    pub accuracy: f64,
    /// The share of what comes and goes that is out of use, as the other groups say.
    pub unused_share: f64,
    /// What a device loses in GiB, as the other groups say.
    pub context_gib: f64,
}

/// A run whose outcome is known.
struct Outcome {
    group: usize,
    failed: bool,
    figures: Figures,
    /// Whether its allocator's segments expand.
    expands: bool,
    /// What stays, what passes, and the device's memory, by stage.
    stages: Vec<(Bytes, Bytes, Bytes)>,
}

impl Outcome {
    /// Whether it is told right, and minus the logarithm of its likelihood.
    fn told(&self, constants: Constants) -> (bool, f64) {
        let figures = constants.within(self.figures, self.expands);
        let excess = |(resident, passing, memory): &(Bytes, Bytes, Bytes)| {
            figures.needed(*resident, *passing).get() as f64 / memory.get().max(1) as f64 - 1.0
        };
        let over = self.stages.iter().map(excess).fold(f64::NEG_INFINITY, f64::max);
        let right = if self.failed { over } else { -over };
        ((over > 0.0) == self.failed, libm::log1p(libm::exp(-right / SOFTNESS)))
    }
}

/// Thousandths out of use, and what a device loses in MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Constants {
    unused: u64,
    context_mib: u64,
}

impl Constants {
    /// All that are tried.
    fn all() -> impl Iterator<Item = Self> {
        (0..UNUSED.0).flat_map(|unused| {
            (0..CONTEXT.0).map(move |context| Self { unused: unused * UNUSED.1, context_mib: context * CONTEXT.1 })
        })
    }
    /// Where segments expand, nothing is out of use whatever the constant.
    fn within(self, figures: Figures, expands: bool) -> Figures {
        let unused_thousandths = if expands { 0 } else { self.unused };
        Figures { unused_thousandths, context: Bytes::new(self.context_mib << 20), ..figures }
    }
}

/// Outcomes of the tables asked for, each group told by the others; `None` without failures, or with one group only.
#[must_use]
pub(crate) fn left_out(tables: &Tables, stacks: &cost::Stacks) -> Option<Outcomes> {
    let asked = || tables.subjects(ScoreKind::Cold).iter().filter(|subject| subject.table < tables.asked);
    let software = |subject: &Subject| subject.run.row.software.framework.clone();
    let failing: std::collections::BTreeSet<String> =
        asked().filter(|subject| subject.run.row.measured.out_of_memory).map(software).collect();
    let known = |subject: &&Subject| {
        let measured = &subject.run.row.measured;
        (measured.out_of_memory || measured.step.is_some()) && failing.contains(&software(subject))
    };
    let subjects: Vec<&Subject> = asked().filter(known).collect();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for subject in &subjects {
        let next = names.len();
        names.entry(group(subject)).or_insert(next);
    }
    let outcomes: Vec<Outcome> =
        subjects.par_iter().filter_map(|subject| outcome(subject, names[&group(subject)], stacks)).collect();
    (names.len() > 1).then(|| told(&outcomes, &names))
}

/// Model, sequence length and devices.
fn group(subject: &Subject) -> String {
    let row = &subject.run.row;
    format!("{}, {} tokens, {} {}", row.model.name, row.sequence_length, row.hardware.devices, row.hardware.device)
}

fn outcome(subject: &Subject, group: usize, stacks: &cost::Stacks) -> Option<Outcome> {
    let prediction = subject.prediction(&stacks.resolve(&subject.run.stack)).ok()?;
    let figures = Figures::of(&subject.case.cluster.device_kinds[0], &subject.case.workload.recipe);
    let of = |stage: &ir::StageMemory| {
        let (resident, passing) = memory::divided(stage);
        (resident, passing, stage.capacity)
    };
    let stages = prediction.memory.iter().map(of).collect();
    let expands = subject.case.workload.recipe.expandable_segments;
    Some(Outcome { group, failed: subject.run.row.measured.out_of_memory, figures, expands, stages })
}

fn told(outcomes: &[Outcome], names: &BTreeMap<String, usize>) -> Outcomes {
    let all: Vec<Constants> = Constants::all().collect();
    let tried: Vec<(Constants, Vec<(bool, f64)>)> = all
        .into_par_iter()
        .map(|constants| (constants, outcomes.iter().map(|outcome| outcome.told(constants)).collect()))
        .collect();
    let of_group = |(name, &number): (&String, &usize)| {
        let loss = |told: &[(bool, f64)]| -> f64 {
            let all = outcomes.iter().zip(told);
            all.filter(|(outcome, _)| outcome.group != number).map(|(_, (_, loss))| loss).sum()
        };
        let likeliest = tried.iter().min_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));
        let (constants, told) = likeliest.expect("something was tried");
        let own: Vec<(&Outcome, bool)> = outcomes
            .iter()
            .zip(told)
            .filter(|(outcome, _)| outcome.group == number)
            .map(|(outcome, (right, _))| (outcome, *right))
            .collect();
        OutcomeGroup {
            group: name.clone(),
            rows: own.len() as u64,
            failed: own.iter().filter(|(outcome, _)| outcome.failed).count() as u64,
            accuracy: own.iter().filter(|(_, right)| *right).count() as f64 / own.len().max(1) as f64,
            unused_share: constants.unused as f64 / 1000.0,
            context_gib: constants.context_mib as f64 / 1024.0,
        }
    };
    let groups: Vec<OutcomeGroup> = names.iter().map(of_group).collect();
    let rows: u64 = groups.iter().map(|group| group.rows).sum();
    let large = groups.iter().filter(|group| group.rows >= FEWEST_ROWS as u64);
    let right: f64 = groups.iter().map(|group| group.accuracy * group.rows as f64).sum();
    Outcomes {
        rows,
        accuracy: right / rows.max(1) as f64,
        least: large.map(|group| group.accuracy).reduce(f64::min),
        groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Figures = Figures {
        workspace: Figures::WORKSPACE,
        unused_thousandths: 0,
        context: Bytes::ZERO,
        driver_thousandths: 0,
        driver: Bytes::ZERO,
    };

    fn outcome(group: usize, failed: bool, resident: f64, passing: f64) -> Outcome {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some tens of GiB")]
        let gib = |value: f64| Bytes::new((value * (1u64 << 30) as f64) as u64);
        Outcome {
            group,
            failed,
            figures: FIGURES,
            expands: false,
            stages: vec![(gib(resident), gib(passing), gib(80.0))],
        }
    }

    fn names(count: usize) -> BTreeMap<String, usize> {
        (0..count).map(|number| (number.to_string(), number)).collect()
    }

    /// A constant without its rows would be one that nobody can check.
    #[test]
    fn the_catalog_lists_what_the_program_uses() {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            value: toml::Value,
            rows: u32,
            tables: Vec<String>,
            source: String,
        }
        let text = include_str!("../../../catalog/calibration/memory.toml");
        let entries: BTreeMap<String, Entry> = toml::from_str(text).expect("a table of constants");
        let own = super::super::measured_tables();
        for (name, entry) in &entries {
            assert!(entry.rows > 0 && !entry.source.is_empty(), "{name}");
            let known = |table: &String| own.iter().any(|(file, _)| super::super::name(file) == table);
            assert!(!entry.tables.is_empty() && entry.tables.iter().all(known), "{name}: {:?}", entry.tables);
        }
        let bytes = |name: &str| -> Bytes { entries[name].value.as_str().expect("text").parse().expect("a size") };
        let number = |name: &str| entries[name].value.as_float().expect("a number");
        assert_eq!(entries.len(), 6);
        assert_eq!(bytes("workspace"), Figures::WORKSPACE);
        let same = |name: &str, value: f64| assert!((number(name) / value - 1.0).abs() < 1e-9, "{name}");
        same("unused_share", Figures::UNUSED_THOUSANDTHS as f64 / 1000.0);
        assert_eq!(bytes("context"), Figures::CONTEXT);
        same("hidden_share", 1.0 / Figures::HIDDEN_PART as f64);
        assert_eq!(bytes("driver"), Figures::DRIVER);
        same("driver_share", Figures::DRIVER_THOUSANDTHS as f64 / 1000.0);
    }

    /// Runs that fail by a rule of two constants are told by that rule, found on other groups.
    #[test]
    fn a_rule_is_found_again_on_other_groups() {
        let rule = Constants { unused: 100, context_mib: 2048 };
        let mut outcomes = Vec::new();
        for group in 0..3usize {
            for step in 0..120u32 {
                let resident = f64::from(step % 12) * 6.0;
                let passing = f64::from(step / 12) * 9.0 + 0.37 * (group as f64 + 1.0);
                let mut run = outcome(group, false, resident, passing);
                run.failed = !run.told(rule).0;
                outcomes.push(run);
            }
        }
        let found = told(&outcomes, &names(3));
        assert_eq!((found.rows, found.groups.len()), (360, 3));
        assert!(found.accuracy > 0.98 && found.least > Some(0.97), "{found:?}");
        assert!(found.groups.iter().all(|group| group.failed > 20), "{found:?}");
    }

    /// A group that fails by another rule than all others is not told right: nothing of it was known.
    #[test]
    fn a_group_tells_nothing_about_itself() {
        let mut outcomes: Vec<Outcome> = Vec::new();
        for group in 0..2usize {
            for step in 0..40u32 {
                // Both groups have the same runs; the first fails at 40 GiB, the second at 70.
                let size = 20.0 + 1.5 * f64::from(step);
                outcomes.push(outcome(group, size > if group == 0 { 40.0 } else { 70.0 }, size, 0.0));
            }
        }
        let found = told(&outcomes, &names(2));
        assert!(found.least < Some(0.6) && found.accuracy < 0.9, "{found:?}");
    }
}

//! How far predictions are off for stacks of which nothing is known: what the interval of a fallback rests on.
//!
//! Each table of measured runs is predicted from the other tables. What remains on the rows of one table and device
//! generation is a group: its bias (every row of a table shares the table's machine, software and habits) and the scatter
//! within it. A new job is a new group, so the variance of its logarithm is the mean over groups of
//! `bias^2 + within^2 - explained^2`, where `explained` is what the other terms of [`crate::Spread`] already said of the
//! same rows: a one-way random-effects model fitted by moments (Searle, Casella and McCulloch 1992, chapter 4). A table
//! that is left out takes its group with it, so no interval is made from the rows that it is judged by.

use serde::{Deserialize, Serialize};

/// What a table's rows on one device generation showed when they were predicted from other tables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColdGroup {
    /// The table.
    pub table: String,
    /// Device generation.
    pub generation: String,
    /// Rows that were predicted.
    pub rows: u32,
    /// Median of the logarithm of prediction over measurement.
    pub bias: f64,
    /// Half the distance between the 16th and the 84th percentile of that logarithm.
    pub within: f64,
    /// Root mean square of the spread that the other terms give these rows: device, assumed, exchanges, host, experts.
    pub explained: f64,
}

impl ColdGroup {
    /// Variance that no other term explains.
    fn unexplained(&self) -> f64 {
        (self.bias * self.bias + self.within * self.within - self.explained * self.explained).max(0.0)
    }
    fn weight(&self) -> f64 {
        (f64::from(self.rows) / FULL_WEIGHT_ROWS).min(1.0)
    }
}

/// Rows of a group from which on it counts in full.
const FULL_WEIGHT_ROWS: f64 = 6.0;
/// Tables of a device generation from which on it is well known: the spread among them is known too.
const WELL_KNOWN_TABLES: usize = 3;

/// The standard deviation of the logarithm of a time on a generation, from the groups of generations that are as well
/// known as it is without the group itself; from all groups where there are too few of those. `None` without groups.
pub(super) fn spread(groups: &[ColdGroup], generation: &str) -> Option<f64> {
    let known = is_well_known(groups, generation, None);
    let alike = |group: &&ColdGroup| is_well_known(groups, &group.generation, Some(group.table.as_str())) == known;
    let mut pool: Vec<&ColdGroup> = groups.iter().filter(alike).collect();
    if pool.len() < WELL_KNOWN_TABLES {
        pool = groups.iter().collect();
    }
    let weight: f64 = pool.iter().map(|group| group.weight()).sum();
    let sum: f64 = pool.iter().map(|group| group.weight() * group.unexplained()).sum();
    // A mean over few groups is itself uncertain.
    (weight > 0.0).then(|| (sum / weight * (1.0 + 1.0 / weight)).sqrt())
}

/// Whether enough tables, one left aside, have rows on a generation.
fn is_well_known(groups: &[ColdGroup], generation: &str, aside: Option<&str>) -> bool {
    let tables = groups.iter().filter(|group| group.generation == generation && Some(group.table.as_str()) != aside);
    tables.count() >= WELL_KNOWN_TABLES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(table: &str, generation: &str, bias: f64, within: f64, explained: f64) -> ColdGroup {
        ColdGroup { table: table.to_owned(), generation: generation.to_owned(), rows: 9, bias, within, explained }
    }

    #[test]
    fn well_known_generations_are_judged_by_their_own_kind() {
        let mut groups: Vec<ColdGroup> =
            ["a", "b", "c", "d"].map(|table| group(table, "a100", 0.08, 0.06, 0.0)).to_vec();
        groups.extend(["e", "f", "g"].map(|table| group(table, table, 0.3, 0.0, 0.0)));
        let near = spread(&groups, "a100").unwrap();
        assert!((near - 0.1 * 1.25f64.sqrt()).abs() < 1e-12, "{near}");
        let far = spread(&groups, "t4").unwrap();
        assert!((far - 0.3 * (4.0f64 / 3.0).sqrt()).abs() < 1e-12, "{far}");
        // With one of its four tables away, a generation is still known, by three; with two it is not.
        assert!(spread(&groups[1..], "a100").unwrap() < 0.3, "three tables");
        assert_eq!(spread(&[], "a100"), None);
    }

    #[test]
    fn what_other_terms_explain_is_not_counted_twice_and_a_single_row_hardly_counts() {
        let bare = [group("a", "x", 0.3, 0.4, 0.0), group("b", "x", 0.3, 0.4, 0.0)];
        let explained = [group("a", "x", 0.3, 0.4, 0.4), group("b", "x", 0.3, 0.4, 0.6)];
        assert!((spread(&bare, "x").unwrap() - 0.5 * 1.5f64.sqrt()).abs() < 1e-12);
        assert!((spread(&explained, "x").unwrap() - (0.045f64 * 1.5).sqrt()).abs() < 1e-12);
        let odd = ColdGroup { rows: 1, ..group("c", "x", 3.0, 0.0, 0.0) };
        let with_one = [bare[0].clone(), bare[1].clone(), odd.clone()];
        let with_nine = [bare[0].clone(), bare[1].clone(), ColdGroup { rows: 9, ..odd }];
        assert!(spread(&with_one, "x").unwrap() < 0.6 * spread(&with_nine, "x").unwrap());
    }
}

//! Failures of large clusters as they were published: `catalog/failures/`.

use ir::SimDuration;
use sim::long_run::RepairTime;

use crate::read::{Reader, Table};

const PUBLISHED: (&str, &str) =
    ("catalog/failures/published.toml", include_str!("../../../catalog/failures/published.toml"));

/// Failures that somebody counted.
#[derive(Clone, PartialEq, Debug)]
pub struct CountedFailures {
    /// Its name.
    pub name: String,
    /// Failures.
    pub events: u32,
    /// Of so many nodes.
    pub nodes: u32,
    /// In so many days.
    pub days: f64,
    /// How long nodes were in repair, where that was counted.
    pub repair: Option<RepairTime>,
    /// Who counted them.
    pub source: String,
}

impl CountedFailures {
    /// Failures of a node in a day.
    #[must_use]
    pub fn per_node_day(&self) -> f64 {
        f64::from(self.events) / (f64::from(self.nodes) * self.days)
    }
}

/// All of them.
///
/// # Panics
/// If the embedded file is wrong, which a test excludes.
#[must_use]
pub fn counted_failures() -> &'static [CountedFailures] {
    static READ: std::sync::OnceLock<Vec<CountedFailures>> = std::sync::OnceLock::new();
    READ.get_or_init(|| {
        let (file, text) = PUBLISHED;
        let (read, problems, _) = Reader::new(file).read(text, |root| {
            let entries = root.table("failures")?.entries();
            entries.into_iter().map(|(name, value)| entry(name, &value.table()?)).collect::<Option<Vec<_>>>()
        });
        assert!(problems.is_empty(), "{file} is wrong: {problems:?}");
        read.expect("a file without problems was read")
    })
}

fn entry(name: String, table: &Table<'_>) -> Option<CountedFailures> {
    let events = table.require("events", "419").and_then(|v| v.count());
    let nodes = table.require("nodes", "2048").and_then(|v| v.count());
    let days = table.require("days", "54.0").and_then(|v| v.number(0.01..=1e5));
    let time = |key| table.get(key).and_then(|v| v.quantity::<SimDuration>());
    let repair = time("repair_median").zip(time("repair_mean"));
    let source = table.require("source", "\"a paper\"").and_then(|v| v.text());
    table.finish();
    Some(CountedFailures {
        name,
        events: events?,
        nodes: nodes?,
        days: days?,
        repair: repair.map(|(median, mean)| RepairTime::LogNormal { median, mean }),
        source: source?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3.1 h between stops of 16,384 devices; 3.79 and 4.18 failures in 1000 node-days.
    #[test]
    fn published_rates_are_those_of_their_counts() {
        let rate = |name: &str| {
            let found = counted_failures().iter().find(|counted| counted.name == name).expect("in the file");
            found.per_node_day()
        };
        assert!((rate("llama-3-405b") * 1000.0 - 3.79).abs() < 0.005);
        assert!((24.0 / (2048.0 * rate("llama-3-405b")) - 3.09).abs() < 0.005);
        assert!((rate("infinitehbd") * 1000.0 - 4.18).abs() < 0.005);
        assert!(counted_failures().iter().all(|counted| !counted.source.is_empty()));
    }
}

//! `[size]`: what is to be reached, for questions whose answer is a cluster, a number of tokens, a model or a network.
//!
//! ```toml
//! [size]
//! tokens = "2T"                   # or a number
//! within = "30d"                  # or by = "2027-03-01" with from = "2027-01-30"
//! nodes = ["dgx-h100", "dgx-a100"]
//! ```
//!
//! The scenario says the rest: what is trained, who decides the plan, what joins nodes, and the cluster of questions about a
//! cluster that is there.

use ir::{Cluster, Model, SimDuration};

use super::cluster;
use crate::catalog::Catalog;
use crate::read::{Table, Value, suggest};

/// A question, by what its answer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeQuestion {
    /// The smallest cluster of each kind of node that trains `tokens` in time.
    Cluster,
    /// How many tokens the budget pays for on the scenario's cluster.
    Tokens,
    /// The largest model that fits on the scenario's cluster.
    Model,
    /// The bandwidth between nodes at which exchanges stop mattering.
    Network,
}

impl SizeQuestion {
    /// All of them, in the order of answers.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Tokens, Self::Model, Self::Network];
    /// Its name in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Tokens => "tokens",
            Self::Model => "model",
            Self::Network => "network",
        }
    }
}

/// What is asked of `size`.
#[derive(Clone, PartialEq, Debug)]
pub struct SizeChoice {
    /// Questions, in the order of answers.
    pub ask: Vec<SizeQuestion>,
    /// Tokens to be trained on.
    pub tokens: Option<f64>,
    /// Time for it.
    pub within: Option<SimDuration>,
    /// Money for it, US dollars.
    pub budget_usd: Option<f64>,
    /// Kinds of node that are looked at: clusters of one node each, joined as the scenario's.
    pub kinds: Vec<Cluster>,
    /// The most nodes of a cluster that is looked at.
    pub most_nodes: u32,
    /// Useful work over all elapsed time where the scenario has no checkpoints: what failures, restarts and checkpoints
    /// leave.
    pub goodput: f64,
    /// Power that devices draw, as a share of their limit.
    pub power_share: f64,
    /// Power of the whole site over that of its devices.
    pub site_factor: f64,
    /// Models that are looked at; empty: the scenario's own, scaled.
    pub models: Vec<Model>,
}

/// Useful work over elapsed time where nothing is said: large published runs report 90 to 98 %.
pub(super) const GOODPUT: f64 = 0.95;
/// More nodes than any cluster that was built.
const MOST_NODES: u32 = 16_384;

/// Reads `[size]`. An outer `None` means that it is there and wrong.
pub(super) fn read(root: &Table<'_>, catalog: &Catalog, cluster: Option<&Cluster>) -> Option<Option<SizeChoice>> {
    let Some(table) = root.table("size") else { return Some(None) };
    let tokens = table.get("tokens").map_or(Some(None), |v| tokens(&v).map(Some));
    let within = within(&table);
    let budget_usd = table.get("budget_usd").map_or(Some(None), |v| v.number(0.01..=1e15).map(Some));
    let kinds = kinds(&table, catalog, cluster);
    let most_nodes = table.get("most_nodes").map_or(Some(MOST_NODES), |v| v.count());
    let share = |key, range, otherwise| table.get(key).map_or(Some(otherwise), |v| v.number(range));
    let goodput = share("goodput", 0.01..=1.0, GOODPUT);
    let power_share = share("power_share", 0.01..=1.0, 1.0);
    let site_factor = share("site_factor", 1.0..=10.0, 1.0);
    let models = table.get("models").map_or(Some(Vec::new()), |v| models(&v, catalog));
    let ask = table.get("ask").map(|v| questions(&v));
    table.finish();
    let (tokens, within, budget_usd) = (tokens?, within?, budget_usd?);
    let ask = match ask {
        Some(ask) => ask?,
        None => implied(tokens.is_some() && within.is_some(), budget_usd.is_some(), table.has("models")),
    };
    let missing = missing(&ask, tokens.is_some(), within.is_some(), budget_usd.is_some());
    for (question, key, example) in &missing {
        let message = format!("is missing: the question `{}` needs it", question.name());
        table.report(ir::Problem::new(table.path_of(key), message).hint(format!("such as `{key} = {example}`")));
    }
    if ask.is_empty() {
        let hint = "tokens = \"2T\" and within = \"30d\"; budget_usd; models; or ask = [\"network\"]";
        table.report(ir::Problem::new(table.path(), "asks nothing").hint(hint));
    }
    if !missing.is_empty() || ask.is_empty() {
        return None;
    }
    Some(Some(SizeChoice {
        ask,
        tokens,
        within,
        budget_usd,
        kinds: kinds?,
        most_nodes: most_nodes?,
        goodput: goodput?,
        power_share: power_share?,
        site_factor: site_factor?,
        models: models?,
    }))
}

/// The questions that the keys amount to.
fn implied(cluster: bool, budget: bool, models: bool) -> Vec<SizeQuestion> {
    let asked =
        [(SizeQuestion::Cluster, cluster), (SizeQuestion::Tokens, budget && !cluster), (SizeQuestion::Model, models)];
    asked.into_iter().filter(|(_, there)| *there).map(|(question, _)| question).collect()
}

/// Keys that questions need and that are not there: question, key, example.
fn missing(
    ask: &[SizeQuestion],
    tokens: bool,
    within: bool,
    budget: bool,
) -> Vec<(SizeQuestion, &'static str, &'static str)> {
    let needs = [
        (SizeQuestion::Cluster, "tokens", "\"2T\"", tokens),
        (SizeQuestion::Cluster, "within", "\"30d\"", within),
        (SizeQuestion::Tokens, "budget_usd", "1000000.0", budget),
    ];
    let absent = needs.into_iter().filter(|(question, _, _, there)| ask.contains(question) && !there);
    absent.map(|(question, key, example, _)| (question, key, example)).collect()
}

/// A number, or a text such as `"2T"`: thousands, millions, billions, trillions.
pub(super) fn tokens(value: &Value<'_>) -> Option<f64> {
    const MOST: f64 = 1e18;
    if !value.is_text() {
        return value.number(1.0..=MOST);
    }
    let text = value.text()?;
    let scales = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('T', 1e12)];
    let scale = scales.into_iter().find(|(letter, _)| text.ends_with(*letter));
    let number = scale.and_then(|(letter, scale)| Some(text.strip_suffix(letter)?.trim().parse::<f64>().ok()? * scale));
    let found = number.filter(|number| (1.0..=MOST).contains(number));
    if found.is_none() {
        let hint = "such as \"2T\", \"300B\" or 2e12".to_owned();
        value.problem(format!("`{text}` is not a number of tokens"), Some(hint));
    }
    found
}

/// `within`, or the time from `from` to `by`. An outer `None` means that it is wrong.
fn within(table: &Table<'_>) -> Option<Option<SimDuration>> {
    let within = table.get("within");
    let (from, by) = (table.get("from"), table.get("by"));
    let duration = within.as_ref().map(|v| v.quantity::<SimDuration>());
    let (from_day, by_day) = (from.as_ref().map(day), by.as_ref().map(day));
    match (within, duration, from_day, by_day) {
        (None, _, None, None) => Some(None),
        (Some(value), Some(duration), None, None) => {
            let duration = duration?;
            if duration == SimDuration::ZERO {
                value.problem("no time at all", Some("such as \"30d\"".to_owned()));
                return None;
            }
            Some(Some(duration))
        }
        (None, _, Some(from_day), Some(by_day)) => {
            let (from_day, by_day) = (from_day?, by_day?);
            let days = by_day - from_day;
            if days <= 0 {
                by?.problem("is not after `from`", None);
                return None;
            }
            Some(SimDuration::from_seconds(days as f64 * 86_400.0))
        }
        (Some(value), ..) => {
            value.problem("a time and a date exclude each other", Some("within, or from and by".to_owned()));
            None
        }
        (None, _, from_day, _) => {
            let absent = if from_day.is_none() { "from" } else { "by" };
            let message = "is missing: a date says nothing without the other";
            table.report(ir::Problem::new(table.path_of(absent), message).hint("such as \"2027-01-31\""));
            None
        }
    }
}

/// The number of a day of the Gregorian calendar, written `2027-01-31`; day 0 is 1 March of the year 0.
fn day(value: &Value<'_>) -> Option<i64> {
    let text = value.text()?;
    let parts: Vec<Option<i64>> = text.split('-').map(|part| part.parse().ok()).collect();
    let found = match parts[..] {
        [Some(year), Some(month), Some(day)] if text.len() == 10 => number_of_day(year, month, day),
        _ => None,
    };
    if found.is_none() {
        value.problem(format!("`{text}` is no date"), Some("such as \"2027-01-31\"".to_owned()));
    }
    found
}

fn number_of_day(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) || !(1..=9999).contains(&year) {
        return None;
    }
    // Years begin in March, so that a leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1)
}

/// The kinds of node that are named, else those of the scenario's cluster.
fn kinds(table: &Table<'_>, catalog: &Catalog, cluster: Option<&Cluster>) -> Option<Vec<Cluster>> {
    let Some(value) = table.get("nodes") else {
        let cluster = cluster?;
        return Some(cluster.groups.iter().map(|group| alone(cluster, group.kind)).collect());
    };
    let mut kinds: Vec<Cluster> = Vec::new();
    for item in value.list()? {
        let name = item.text()?;
        let fabric = cluster.map_or_else(ir::Fabric::one_switch, |cluster| cluster.fabric.clone());
        let one = cluster::assemble(&item, catalog, fabric)?;
        if one.nodes() != 1 {
            let hint = format!("\"{}\"", one.node_kinds.first().map_or("dgx-h100", |kind| kind.name.as_str()));
            item.problem(format!("`{name}` says how many, which is the question"), Some(hint));
            return None;
        }
        if kinds.iter().any(|known| known.node_kinds[0].name == one.node_kinds[0].name) {
            item.problem(format!("`{name}` is there twice"), None);
            return None;
        }
        kinds.push(one);
    }
    if kinds.is_empty() {
        value.problem("names no kind of node", Some("such as [\"dgx-h100\"]".to_owned()));
        return None;
    }
    Some(kinds)
}

/// One node of a kind, and no other kinds beside it.
fn alone(cluster: &Cluster, kind: ir::NodeKindId) -> Cluster {
    let mut node = cluster.node_kind(kind).clone();
    let mut devices: Vec<ir::DeviceKindId> = Vec::new();
    for device in &mut node.devices {
        let known = devices.iter().position(|known| known == device).unwrap_or_else(|| {
            devices.push(*device);
            devices.len() - 1
        });
        *device = ir::DeviceKindId::at(known);
    }
    Cluster {
        device_kinds: devices.into_iter().map(|device| cluster.device_kind(device).clone()).collect(),
        node_kinds: vec![node],
        groups: vec![ir::NodeGroup { kind: ir::NodeKindId::at(0), count: 1 }],
        fabric: cluster.fabric.clone(),
    }
}

fn models(value: &Value<'_>, catalog: &Catalog) -> Option<Vec<Model>> {
    let find = |item: &Value<'_>| {
        let name = item.text()?;
        let found = catalog.model(name).cloned();
        if found.is_none() && !catalog.is_wrong(name) {
            let hint = suggest(name, catalog.models.iter().map(|model| model.name.as_str()));
            item.problem(format!("there is no model `{name}` in the catalog"), Some(hint));
        }
        found
    };
    let read: Vec<Option<Model>> = value.list()?.iter().map(find).collect();
    read.into_iter().collect()
}

fn questions(value: &Value<'_>) -> Option<Vec<SizeQuestion>> {
    let read: Vec<Option<SizeQuestion>> =
        value.list()?.iter().map(|item| item.one_of(SizeQuestion::ALL, SizeQuestion::name)).collect();
    let mut read: Vec<SizeQuestion> = read.into_iter().collect::<Option<_>>()?;
    read.sort_unstable();
    read.dedup();
    Some(read)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::parse;

    fn text(size: &str) -> String {
        format!(
            "name = \"s\"\ncluster = \"4 x dgx-h100\"\nmodel = \"llama-3.1-8b\"\n\
             training = {{ sequence_length = 4096, global_batch = 512 }}\n[size]\n{size}\n"
        )
    }

    fn read(size: &str) -> SizeChoice {
        let loaded = parse("s.toml", &text(size), Path::new("")).unwrap_or_else(|e| panic!("{e}"));
        loaded.scenario.size.expect("it is written")
    }

    #[test]
    fn what_is_asked_follows_from_the_keys() {
        let check = |size: &str, ask: &[SizeQuestion]| assert_eq!(read(size).ask, ask, "{size}");
        check("tokens = \"2T\"\nwithin = \"30d\"", &[SizeQuestion::Cluster]);
        check("budget_usd = 1e6", &[SizeQuestion::Tokens]);
        check("models = [\"llama-3.1-8b\"]", &[SizeQuestion::Model]);
        check("ask = [\"network\", \"model\", \"network\"]", &[SizeQuestion::Model, SizeQuestion::Network]);
        let choice = read("tokens = 2e12\nfrom = \"2027-01-30\"\nby = \"2027-03-01\"");
        assert_eq!(choice.within, SimDuration::from_seconds(30.0 * 86_400.0));
        assert_eq!((choice.tokens, choice.goodput, choice.kinds.len()), (Some(2e12), 0.95, 1));
        assert_eq!(read("tokens = \"1.5B\"\nwithin = \"2h\"").tokens, Some(1.5e9));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = |a: (i64, i64, i64), b: (i64, i64, i64)| {
            number_of_day(b.0, b.1, b.2).unwrap() - number_of_day(a.0, a.1, a.2).unwrap()
        };
        assert_eq!(days((2024, 2, 28), (2024, 3, 1)), 2);
        assert_eq!(days((2023, 2, 28), (2023, 3, 1)), 1);
        assert_eq!(days((1900, 2, 28), (1900, 3, 1)), 1);
        assert_eq!(days((2000, 1, 1), (2001, 1, 1)), 366);
        assert_eq!(days((1970, 1, 1), (2026, 7, 1)), 20_635);
        assert_eq!([number_of_day(2023, 2, 29), number_of_day(2023, 13, 1), number_of_day(2023, 4, 31)], [None; 3]);
    }

    #[test]
    fn wrong_sizes_are_named_with_what_would_be_right() {
        let check = |size: &str, needles: &[&str]| {
            let error = parse("s.toml", &text(size), Path::new("")).expect_err(size).to_string();
            for needle in needles {
                assert!(error.contains(needle), "{size}: no {needle:?} in\n{error}");
            }
        };
        check("", &["asks nothing", "tokens = \"2T\""]);
        check("tokens = \"2 trillion\"\nwithin = \"30d\"", &["s.toml:6:10", "not a number of tokens", "\"2T\""]);
        check("tokens = -1\nwithin = \"30d\"", &["must be between 1"]);
        check("tokens = \"2T\"\nask = [\"cluster\"]", &["size.within", "needs it"]);
        check("ask = [\"tokens\"]", &["size.budget_usd"]);
        check("tokens = \"2T\"\nwithin = 30", &["needs a unit"]);
        check("tokens = \"2T\"\nwithin = \"0s\"", &["no time at all"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\nby = \"2027-01-01\"", &["exclude each other"]);
        check("tokens = \"2T\"\nby = \"2027-01-01\"", &["size.from"]);
        check("tokens = \"2T\"\nfrom = \"2027-01-01\"\nby = \"2026-12-31\"", &["is not after"]);
        check("tokens = \"2T\"\nfrom = \"2027-02-30\"\nby = \"2027-12-31\"", &["`2027-02-30` is no date"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\nnodes = [\"dgx-h10\"]", &["there is no node `dgx-h10`", "dgx-h100"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\nnodes = [\"2 x dgx-h100\"]", &["which is the question"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\nnodes = []", &["names no kind of node"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\ngoodput = 1.5", &["must be between 0.01 and 1"]);
        check("models = [\"lama-3.1-8b\"]", &["there is no model", "llama-3.1-8b"]);
        check("ask = [\"models\"]", &["did you mean `model`?"]);
        check("tokens = \"2T\"\nwithin = \"3d\"\nbudget = 3", &["unknown key", "budget_usd"]);
    }

    #[test]
    fn a_resolved_scenario_asks_the_same() {
        for size in [
            "tokens = \"2T\"\nwithin = \"30d\"\nnodes = [\"dgx-a100\", \"dgx-h200\"]\ngoodput = 0.9\nmost_nodes = 64",
            "budget_usd = 1e6\nsite_factor = 1.3\npower_share = 0.8",
            "models = [\"qwen3-8b\", \"mixtral-8x7b\"]\nask = [\"model\", \"network\"]",
        ] {
            let loaded = parse("s.toml", &text(size), Path::new("")).unwrap_or_else(|e| panic!("{e}"));
            let written = loaded.scenario.to_toml();
            let again = parse("r.toml", &written, Path::new("")).unwrap_or_else(|e| panic!("{e}\n{written}"));
            assert_eq!(again.scenario, loaded.scenario, "{written}");
        }
    }
}

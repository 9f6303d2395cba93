//! What an ablation is: its scenarios, policies, seeds and budget, and which of its cells are made where.

use std::path::Path;

use ir::Problem;
use ir::program::Digest;
use reports::ablation::{Cell, Contender};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::scenario::Loaded;

/// A part of an ablation's cells: every `count`th from the `index`th on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Which part, from 1 to `count`.
    pub index: u64,
    /// Of how many.
    pub count: u64,
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl std::str::FromStr for Shard {
    type Err = Problem;
    fn from_str(text: &str) -> Result<Self, Problem> {
        let problem = |message: String| {
            Problem::new("shard", message).hint("as in 2/3; in a Slurm job array, sbatch --array=1-3")
        };
        let number = |text: &str| text.parse::<u64>().ok();
        let read = text.split_once('/').and_then(|(index, count)| Some((number(index)?, number(count)?)));
        let Some((index, count)) = read else { return Err(problem(format!("`{text}` is no part of a whole"))) };
        if (1..=count).contains(&index) {
            Ok(Self { index, count })
        } else {
            Err(problem(format!("`{text}`: parts are numbered from 1 to {}", count.max(1))))
        }
    }
}

/// More seeds than anyone waits for.
const MOST_SEEDS: u64 = 100_000;
/// The largest that TOML can write down.
const LARGEST_SEED: u64 = u64::MAX >> 1;

/// Seeds as they are written: `0..9` (both ends count), `1,5,8`, or both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(pub Vec<u64>);

impl std::str::FromStr for Seeds {
    type Err = Problem;
    fn from_str(text: &str) -> Result<Self, Problem> {
        let problem = |message: String| Problem::new("seeds", message).hint("as in 0..9 (both ends count), or 1,5,8");
        let number = |text: &str| {
            let read = text.trim().parse::<u64>().ok().filter(|seed| *seed <= LARGEST_SEED);
            read.ok_or_else(|| problem(format!("`{}` is no seed", text.trim())))
        };
        let mut seeds = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once("..") {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last < first {
                return Err(problem(format!("`{}` goes down", part.trim())));
            }
            if last - first >= MOST_SEEDS || seeds.len() as u64 + (last - first) >= MOST_SEEDS {
                return Err(problem(format!("more than {MOST_SEEDS} seeds")));
            }
            seeds.extend(first..=last);
        }
        let mut known = seeds.clone();
        known.sort_unstable();
        match known.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(problem(format!("{} stands twice", pair[0]))),
            None => Ok(Self(seeds)),
        }
    }
}

/// What a folder says of the ablation that it holds. Cells of equal definitions, shards aside, can be put together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    pub(super) version: String,
    /// A digest of the program: another one may decide otherwise.
    pub(super) build: String,
    pub(super) baseline: String,
    pub(super) budget: u64,
    pub(super) seeds: Vec<u64>,
    /// The part that is here; all of it without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<String>,
    pub(super) policies: Vec<Contender>,
    pub(super) scenarios: Vec<Given>,
}

/// A scenario that takes part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    pub(super) name: String,
    /// A digest of every text that it was read from.
    pub(super) input: String,
}

/// A cell that is asked for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Wanted {
    /// Places in the definition's lists.
    pub(super) scenario: usize,
    pub(super) policy: usize,
    pub(super) seed: Option<u64>,
}

impl Definition {
    /// Every cell, in order: by scenario, then policy, then seed.
    pub(super) fn all(&self) -> Vec<Wanted> {
        let mut all = Vec::new();
        for scenario in 0..self.scenarios.len() {
            for (policy, contender) in self.policies.iter().enumerate() {
                let seeds: Vec<Option<u64>> =
                    if contender.draws { self.seeds.iter().copied().map(Some).collect() } else { vec![None] };
                all.extend(seeds.into_iter().map(|seed| Wanted { scenario, policy, seed }));
            }
        }
        all
    }

    /// The cells of its shard, by their places among all.
    pub(super) fn own(&self) -> Result<Vec<(usize, Wanted)>, Problem> {
        let shard: Option<Shard> = self.shard.as_deref().map(str::parse).transpose()?;
        let is_own = |place: usize| shard.is_none_or(|shard| place as u64 % shard.count == shard.index - 1);
        Ok(self.all().into_iter().enumerate().filter(|(place, _)| is_own(*place)).collect())
    }

    /// A cell in words: `random in llama, seed 3`.
    pub(super) fn words(&self, wanted: &Wanted) -> String {
        words(&self.scenarios[wanted.scenario].name, &self.policies[wanted.policy].name, wanted.seed)
    }

    /// What differs from another definition, shards aside, in words; empty if nothing does.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |same: bool, words: String| {
            if !same {
                found.push(words);
            }
        };
        compare(self.version == other.version, format!("version {} and {}", self.version, other.version));
        compare(self.build == other.build, format!("program {} and {}", self.build, other.build));
        compare(self.baseline == other.baseline, format!("baseline {} and {}", self.baseline, other.baseline));
        compare(self.budget == other.budget, format!("budget {} and {}", self.budget, other.budget));
        compare(self.seeds == other.seeds, format!("seeds {:?} and {:?}", self.seeds, other.seeds));
        let policies = |of: &Self| of.policies.iter().map(|p| p.name.clone()).collect::<Vec<_>>().join(", ");
        compare(self.policies == other.policies, format!("policies {} and {}", policies(self), policies(other)));
        let names = |of: &Self| of.scenarios.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let (here, there) = (names(self), names(other));
        compare(here == there, format!("scenarios {} and {}", here.join(", "), there.join(", ")));
        if here == there {
            for (one, two) in self.scenarios.iter().zip(&other.scenarios) {
                compare(one.input == two.input, format!("the text of scenario {}", one.name));
            }
        }
        found
    }
}

/// A cell in words.
pub(super) fn words(scenario: &str, policy: &str, seed: Option<u64>) -> String {
    let seed = seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    format!("{policy} in {scenario}{seed}")
}

/// A line of the log: a cell, with what it depends on beyond its names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) input: String,
    pub(super) build: String,
    pub(super) budget: u64,
    #[serde(flatten)]
    pub(super) cell: Cell,
}

impl Line {
    pub(super) fn new(definition: &Definition, scenario: usize, cell: Cell) -> Self {
        let input = definition.scenarios[scenario].input.clone();
        Self { input, build: definition.build.clone(), budget: definition.budget, cell }
    }

    /// The place of its cell among those that are wanted, or why it is none of them.
    pub(super) fn place(&self, definition: &Definition, own: &[(usize, Wanted)]) -> Result<usize, String> {
        let Cell { scenario, policy, seed, .. } = &self.cell;
        let given = definition.scenarios.iter().position(|given| given.name == *scenario);
        let contender = definition.policies.iter().position(|known| known.name == *policy);
        let what = words(scenario, policy, *seed);
        let found = given.zip(contender).and_then(|(scenario, policy)| {
            let wanted = Wanted { scenario, policy, seed: *seed };
            own.iter().find(|(_, own)| *own == wanted).map(|(place, _)| (*place, scenario))
        });
        let Some((place, scenario)) = found else { return Err(format!("{what} is not asked for here")) };
        if self.budget != definition.budget {
            Err(format!("{what} had a budget of {}, not {}", self.budget, definition.budget))
        } else if self.build != definition.build {
            Err(format!("{what} was made by another build of the program ({}, not {})", self.build, definition.build))
        } else if self.input != definition.scenarios[scenario].input {
            Err(format!("{what} was made of another text of the scenario"))
        } else {
            Ok(place)
        }
    }
}

/// A digest of what a scenario was read from.
pub(super) fn input(loaded: &Loaded) -> String {
    let mut digest = Digest::new();
    loaded.sources.texts().for_each(|text| digest.text(text));
    format!("{:016x}", digest.finish())
}

/// A digest of this program: its policies, prices and catalog are part of what cells depend on.
pub(super) fn build() -> Result<String, Error> {
    // The link still leads to the program where its file was replaced meanwhile.
    let link = Path::new("/proc/self/exe");
    let bytes = std::fs::read(link).or_else(|_| std::env::current_exe().and_then(std::fs::read));
    let bytes = bytes.map_err(|error| Error::files(link, format!("cannot read the program: {error}")))?;
    let mut digest = Digest::new();
    for word in bytes.chunks(8) {
        let mut eight = [0; 8];
        eight[..word.len()].copy_from_slice(word);
        digest.number(u64::from_le_bytes(eight));
    }
    digest.number(bytes.len() as u64);
    Ok(format!("{:016x}", digest.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_shards_are_read() {
        let seeds = |text: &str| text.parse::<Seeds>().map(|seeds| seeds.0).map_err(|problem| problem.message);
        assert_eq!(seeds("0..3"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(seeds("7, 1..2,5"), Ok(vec![7, 1, 2, 5]));
        for (text, expect) in [
            ("", "`` is no seed"),
            ("3..1", "goes down"),
            ("1,1..2", "1 stands twice"),
            ("-1", "`-1` is no seed"),
            ("0..9999999999", "more than"),
            ("9223372036854775808", "is no seed"),
            ("0..18446744073709551615", "is no seed"),
        ] {
            let found = seeds(text).expect_err(text);
            assert!(found.contains(expect), "{text}: {found}");
        }
        let shard = |text: &str| text.parse::<Shard>().map_err(|problem| problem.message);
        assert_eq!(shard("2/3"), Ok(Shard { index: 2, count: 3 }));
        for text in ["0/3", "4/3", "1/0", "1", "a/b", "1/3/5", "-1/3", ""] {
            assert!(shard(text).is_err(), "{text}");
        }
    }

    /// Shards of any number have every cell once, and none has more than one more than another.
    #[test]
    fn shards_are_disjoint_and_whole() {
        let contender = |name: &str, draws| Contender { name: name.to_owned(), draws };
        let given = |name: &str| Given { name: name.to_owned(), input: String::new() };
        let whole = Definition {
            version: String::new(),
            build: String::new(),
            baseline: "a".to_owned(),
            budget: 1,
            seeds: (0..7).collect(),
            shard: None,
            policies: vec![contender("a", false), contender("b", true)],
            scenarios: vec![given("s"), given("t"), given("u")],
        };
        let all = whole.own().expect("all of it");
        assert_eq!(all.len(), 3 * (1 + 7));
        for count in [1, 2, 3, 5, 24, 40] {
            let part = |index| Definition { shard: Some(Shard { index, count }.to_string()), ..whole.clone() };
            let parts: Vec<Vec<(usize, Wanted)>> =
                (1..=count).map(|index| part(index).own().expect("a part")).collect();
            let mut joined: Vec<(usize, Wanted)> = parts.iter().flatten().cloned().collect();
            joined.sort();
            assert_eq!(joined, all, "{count}");
            let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
            assert!(sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0) <= 1, "{sizes:?}");
        }
    }
}

//! What a reader asked of a file: the keys of each table, and what each value could have been.
//!
//! The schema of the scenario language is made of this, so that it says what the reader does and cannot drift from it.

use std::collections::{BTreeMap, BTreeSet};

/// What a value was asked to be.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Wanted {
    /// A text.
    Text,
    /// True or false.
    Boolean,
    /// A whole number between two.
    Integer(u64, u64),
    /// A number between two.
    Number(f64, f64),
    /// A text with a unit, such as this.
    Quantity(&'static str),
    /// One of these words.
    Words(Vec<&'static str>),
    /// A list.
    List,
    /// A table.
    Table,
}

/// The keys that were asked of one table.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Asked {
    /// All of them, in the order of asking.
    pub(crate) keys: Vec<&'static str>,
    /// Those that must be there.
    pub(crate) required: BTreeSet<&'static str>,
}

/// Everything asked of a file, by path.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Trace {
    /// Each table that was read to its end, in the order of that.
    pub(crate) tables: Vec<(String, Asked)>,
    /// Tables whose keys are names of the user's own.
    pub(crate) open: BTreeSet<String>,
    /// What each value was asked to be.
    pub(crate) values: BTreeMap<String, Vec<Wanted>>,
}

impl Trace {
    /// Notes what a value was asked to be.
    pub(crate) fn value(&mut self, path: &str, wanted: Wanted) {
        let all = self.values.entry(path.to_owned()).or_default();
        if !all.contains(&wanted) {
            all.push(wanted);
        }
    }
}

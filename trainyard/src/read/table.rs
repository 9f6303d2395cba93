//! A table whose keys are asked for one by one.

use std::cell::RefCell;
use std::ops::Range;

use ir::Problem;
use toml::de::DeTable;

use super::{Asked, Reader, Value, suggest};

/// How the message of a missing key starts.
pub(crate) const MISSING: &str = "is missing";

/// The message of a key that nobody asks for.
pub(crate) const UNKNOWN: &str = "unknown key";

/// A table of a file. Every key must be asked for before [`Table::finish`].
#[derive(Debug)]
pub(crate) struct Table<'d> {
    pub(crate) reader: &'d Reader,
    path: String,
    span: Range<usize>,
    entries: &'d DeTable<'d>,
    asked: RefCell<Asked>,
}

impl<'d> Table<'d> {
    pub(super) fn root(reader: &'d Reader, entries: &'d DeTable<'d>) -> Self {
        Self::new(reader, String::new(), 0..0, entries)
    }
    pub(super) fn new(reader: &'d Reader, path: String, span: Range<usize>, entries: &'d DeTable<'d>) -> Self {
        Self { reader, path, span, entries, asked: RefCell::default() }
    }
    /// `plan.tensor` for key `tensor` of table `plan`.
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
    /// The table's own path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
    /// A value that may be absent.
    pub(crate) fn get(&self, key: &'static str) -> Option<Value<'d>> {
        self.asked.borrow_mut().keys.push(key);
        let (_, value) = self.entries.iter().find(|(name, _)| name.get_ref() == key)?;
        let path = self.path_of(key);
        self.reader.remember(&path, value.span());
        Some(Value { reader: self.reader, path, value })
    }
    /// A value that must be there.
    pub(crate) fn require(&self, key: &'static str, example: &str) -> Option<Value<'d>> {
        let value = self.get(key);
        self.asked.borrow_mut().required.insert(key);
        if value.is_none() {
            self.report(Problem::new(self.path_of(key), MISSING).hint(format!("such as `{key} = {example}`")));
        }
        value
    }
    /// A table that may be absent.
    pub(crate) fn table(&self, key: &'static str) -> Option<Table<'d>> {
        self.get(key)?.table()
    }
    /// Every entry of a table whose keys are names of the user's own.
    pub(crate) fn entries(&self) -> Vec<(String, Value<'d>)> {
        let entry = |(name, value): (&'d toml::Spanned<toml::de::DeString<'d>>, _)| {
            let name = name.get_ref().to_string();
            (name.clone(), Value { reader: self.reader, path: self.path_of(&name), value })
        };
        self.reader.note(|trace| {
            trace.open.insert(self.path.clone());
        });
        self.entries.iter().map(entry).collect()
    }
    /// Whether a key is written, without asking for it.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, _)| name.get_ref() == key)
    }
    /// Notes a problem of the table as a whole.
    pub(crate) fn report(&self, problem: Problem) {
        self.reader.report(problem.at(self.reader.span(self.span.clone())));
    }
    /// Notes a problem at the value of `key` if it is written, else of the table as a whole.
    pub(crate) fn report_at(&self, key: &str, problem: Problem) {
        match self.entries.iter().find(|(name, _)| name.get_ref() == key) {
            Some((_, value)) => self.reader.report(problem.at(self.reader.span(value.span()))),
            None => self.report(problem),
        }
    }
    /// Notes every key that nobody asked for.
    pub(crate) fn finish(&self) {
        self.reader.note(|trace| trace.tables.push((self.path.clone(), self.asked.borrow().clone())));
        let mut known = self.asked.borrow().keys.clone();
        known.sort_unstable();
        known.dedup();
        let unknown = self.entries.iter().filter(|(name, _)| !known.contains(&name.get_ref().as_ref()));
        for (name, _) in unknown {
            let missing = known.iter().copied().filter(|key| !self.has(key));
            let hint = suggest(name.get_ref(), missing);
            let problem = Problem::new(self.path_of(name.get_ref()), UNKNOWN).hint(hint);
            self.reader.report(problem.at(self.reader.span(name.span())));
        }
    }
}

//! Keys and values of a configuration file, each with its place: which were read, which were assumed, and what is left.
//!
//! Strict: a key is read, or known to change neither what is trained nor how long it takes, or a fault with the nearest
//! key that is known.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ir::{Problem, SourceSpan};

use crate::text::nearest;
use crate::training::{Assumption, Reading, Report};

/// A value at the end of a path.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    /// `null`.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table without keys, or one inside a list.
    Table,
}

impl Value {
    /// In at most a few words.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => number.to_string(),
            Self::Number(number) => format!("{number:?}"),
            Self::Text(text) => text.chars().take(60).flat_map(char::escape_debug).collect(),
            Self::List(items) if items.len() > 8 => format!("a list of {}", items.len()),
            Self::List(items) => format!("[{}]", items.iter().map(Self::shown).collect::<Vec<_>>().join(", ")),
            Self::Table => "a table".to_owned(),
        }
    }
    /// Whether it says that something is not there.
    fn is_off(&self) -> bool {
        match self {
            Self::Null | Self::Table => true,
            Self::Bool(value) => !value,
            Self::Number(number) => *number == 0.0,
            Self::Text(text) => matches!(text.as_str(), "" | "none" | "None" | "disabled"),
            Self::List(items) => items.is_empty(),
        }
    }
}

/// One key with its value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Setting {
    /// Its path, with dots.
    pub(crate) path: String,
    pub(crate) value: Value,
    /// Bytes of the key.
    pub(crate) range: Range<usize>,
}

/// What a format knows of keys that nobody reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Keys that change nothing that is trained or priced; those that end in `.*` are whole tables.
    pub(crate) neutral: &'static [&'static str],
    /// Keys that may only be off: path, why, what helps.
    pub(crate) refused: &'static [(&'static str, &'static str, &'static str)],
}

/// Places of keys by path.
pub(crate) type Places = BTreeMap<String, SourceSpan>;

/// The keys of one file, and what became of them.
#[derive(Debug)]
pub(crate) struct Settings<'t> {
    file: &'t str,
    text: &'t str,
    /// Whose defaults are taken.
    software: &'static str,
    given: Vec<Setting>,
    read: BTreeSet<&'static str>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) report: Report,
}

/// The text by which some software says that it decides a value itself.
const AUTO: &str = "auto";
/// A file with more faults than this is another kind of file.
const MOST: usize = 100;

impl<'t> Settings<'t> {
    pub(crate) fn new(file: &'t str, text: &'t str, software: &'static str, given: Vec<Setting>) -> Self {
        let mut settings = Self {
            file,
            text,
            software,
            given,
            read: BTreeSet::new(),
            problems: Vec::new(),
            report: Report::default(),
        };
        let mut first = BTreeMap::new();
        let mut twice = Vec::new();
        for (index, setting) in settings.given.iter().enumerate() {
            if first.insert(setting.path.clone(), index).is_some() {
                twice.push(index);
            }
        }
        for index in twice {
            let Setting { path, range, .. } = settings.given[index].clone();
            settings.fault_in(&path, "stands in the file twice", "remove one of them", range);
        }
        settings
    }

    fn fault_in(&mut self, subject: &str, message: impl Into<String>, hint: impl Into<String>, range: Range<usize>) {
        if self.problems.len() >= MOST {
            return;
        }
        let subject: String = subject.chars().take(80).flat_map(char::escape_debug).collect();
        let problem = Problem::new(subject, message).hint(hint);
        self.problems.push(problem.at(SourceSpan { file: self.file.to_owned(), range }));
    }

    /// A fault of a key, at its place if it is there, else of the file.
    pub(crate) fn fault(&mut self, path: &str, message: impl Into<String>, hint: impl Into<String>) {
        let range = self.given.iter().find(|setting| setting.path == path).map(|setting| setting.range.clone());
        self.fault_in(path, message, hint, range.unwrap_or(0..self.text.len()));
    }

    /// Whether one of these spellings is written, with whatever value.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        self.given.iter().any(|setting| names.contains(&setting.path.as_str()))
    }

    /// Whether a table is there, with or without keys.
    pub(crate) fn has_table(&self, table: &str) -> bool {
        self.given.iter().any(|setting| {
            let rest = setting.path.strip_prefix(table);
            rest.is_some_and(|rest| rest.starts_with('.') || rest.is_empty())
        })
    }

    /// The value of a key under any of its spellings, the present one first, and the spelling. Null and "auto" count as
    /// not written.
    pub(crate) fn take(&mut self, names: &[&'static str]) -> Option<(&'static str, Value)> {
        self.read.extend(names);
        let mut found: Option<(&'static str, Value)> = None;
        for name in names {
            let Some(setting) = self.given.iter().find(|setting| setting.path == *name).cloned() else { continue };
            let automatic = matches!(&setting.value, Value::Text(text) if text == AUTO);
            if automatic || setting.value == Value::Null {
                continue;
            }
            match &found {
                Some((other, value)) if *value != setting.value => {
                    let (here, there) = (setting.value.shown(), value.shown());
                    self.fault(name, format!("is {here}, and {other} is {there}"), "write one of the two");
                }
                Some(_) => {}
                None => found = Some((name, setting.value)),
            }
        }
        found
    }

    /// Notes a default that was taken.
    pub(crate) fn assume(&mut self, name: &str, value: impl ToString) {
        let source = format!("{}'s default", self.software);
        self.report.assumed.push(Assumption { name: name.to_owned(), value: value.to_string(), source });
    }

    /// A number, if it is written; the fault is kept if it is none.
    pub(crate) fn number(&mut self, names: &[&'static str]) -> Option<f64> {
        let (name, value) = self.take(names)?;
        let number = match &value {
            Value::Number(number) => Some(*number),
            Value::Text(text) => text.trim().parse::<f64>().ok(),
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Table => None,
        };
        let number = number.filter(|number| number.is_finite());
        if number.is_none() {
            self.fault(name, format!("is {}, not a number", value.shown()), "write a number");
        }
        number
    }

    /// A number, or a default that is noted.
    pub(crate) fn number_or(&mut self, names: &[&'static str], otherwise: f64) -> f64 {
        let before = self.problems.len();
        self.number(names).unwrap_or_else(|| {
            if self.problems.len() == before {
                self.assume(names[0], format!("{otherwise:?}"));
            }
            otherwise
        })
    }

    /// A whole number of at least `least`, if it is written.
    pub(crate) fn whole(&mut self, names: &[&'static str], least: u32) -> Option<u32> {
        let number = self.number(names)?;
        let fits = number.fract() == 0.0 && number >= f64::from(least) && number <= f64::from(u32::MAX);
        if !fits {
            let name = self.written(names);
            self.fault(name, format!("is {number}"), format!("a whole number from {least} on"));
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        let whole = number as u32;
        Some(whole)
    }

    /// The same, or a default that is noted.
    pub(crate) fn whole_or(&mut self, names: &[&'static str], least: u32, otherwise: u32) -> u32 {
        let before = self.problems.len();
        self.whole(names, least).unwrap_or_else(|| {
            if self.problems.len() == before {
                self.assume(names[0], otherwise);
            }
            otherwise
        })
    }

    /// A whole number from one on in which -1 leaves the value to the software; `Some(None)` is -1.
    pub(crate) fn open(&mut self, names: &[&'static str]) -> Option<Option<u32>> {
        let left = match self.take(names) {
            Some((_, Value::Number(number))) => (number + 1.0).abs() < f64::EPSILON,
            _ => false,
        };
        if left { Some(None) } else { self.whole(names, 1).map(Some) }
    }

    /// True or false, if it is written.
    pub(crate) fn flag(&mut self, names: &[&'static str]) -> Option<bool> {
        let (name, value) = self.take(names)?;
        if let Value::Bool(value) = value {
            return Some(value);
        }
        self.fault(name, format!("is {}, not true or false", value.shown()), "true or false");
        None
    }

    /// The same, or a default that is noted.
    pub(crate) fn flag_or(&mut self, names: &[&'static str], otherwise: bool) -> bool {
        let before = self.problems.len();
        self.flag(names).unwrap_or_else(|| {
            if self.problems.len() == before {
                self.assume(names[0], otherwise);
            }
            otherwise
        })
    }

    /// A text, if it is written. Numbers count as their digits.
    pub(crate) fn text(&mut self, names: &[&'static str]) -> Option<String> {
        let (name, value) = self.take(names)?;
        match value {
            Value::Text(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Table => {
                self.fault(name, format!("is {}, not a text", value.shown()), "a text in quotes");
                None
            }
        }
    }

    /// The same, or a default that is noted.
    pub(crate) fn text_or(&mut self, names: &[&'static str], otherwise: &str) -> String {
        let before = self.problems.len();
        self.text(names).unwrap_or_else(|| {
            if self.problems.len() == before {
                self.assume(names[0], otherwise);
            }
            otherwise.to_owned()
        })
    }

    /// One of some words with what they mean, or the default, a word that is noted.
    pub(crate) fn choice<T: Clone>(&mut self, names: &[&'static str], choices: &[(&str, T)], otherwise: usize) -> T {
        let (word, value) = choices[otherwise].clone();
        let written = self.text_or(names, word);
        if let Some((_, value)) = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(&written)) {
            return value.clone();
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let hint = nearest(&written, &words).unwrap_or_else(|| format!("one of {}", words.join(", ")));
        let name = self.written(names);
        self.fault(name, format!("`{written}` is not known here"), hint);
        value
    }

    /// The spelling under which a key is written, or its present one.
    pub(crate) fn written(&self, names: &[&'static str]) -> &'static str {
        names.iter().find(|name| self.has(&[name])).copied().unwrap_or(names[0])
    }

    /// Judges every key that nobody read: it changes nothing, is refused, or is not known.
    pub(crate) fn finish(&mut self, names: &Names) {
        let is_neutral = |path: &str| {
            names.neutral.iter().any(|neutral| match neutral.strip_suffix(".*") {
                Some(table) => path == table || path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')),
                None => *neutral == path,
            })
        };
        let whole = |name: &&'static str| !name.ends_with(".*");
        let known: Vec<&str> = self
            .read
            .iter()
            .copied()
            .chain(names.neutral.iter().copied().filter(whole))
            .chain(names.refused.iter().map(|(path, ..)| *path))
            .collect();
        let ends: Vec<usize> =
            self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        for Setting { path, value, range } in self.given.clone() {
            let line = ends.partition_point(|end| *end < range.start) + 1;
            let reading = Reading { key: path.clone(), value: value.shown(), line };
            let is_table = value == Value::Table && known.iter().any(|name| name.starts_with(&format!("{path}.")));
            if self.read.contains(path.as_str()) {
                self.report.read.push(reading);
            } else if let Some((_, why, hint)) = names.refused.iter().find(|(refused, ..)| *refused == path) {
                if value.is_off() {
                    self.report.ignored.push(reading);
                } else {
                    self.fault_in(&path, *why, *hint, range);
                }
            } else if is_neutral(&path) || is_table {
                self.report.ignored.push(reading);
            } else if self.problems.len() < MOST {
                let hint = nearest_key(&path, &known)
                    .unwrap_or_else(|| "leave it out if it changes neither the model nor its division".to_owned());
                self.fault_in(&path, "is not a key that is known here", hint, range);
            }
        }
    }

    /// Places of all keys.
    pub(crate) fn places(&self) -> Places {
        let place = |setting: &Setting| {
            (setting.path.clone(), SourceSpan { file: self.file.to_owned(), range: setting.range.clone() })
        };
        let file = (String::new(), SourceSpan { file: self.file.to_owned(), range: 0..0 });
        self.given.iter().map(place).chain([file]).collect()
    }
}

/// The known key that one may be meant to be: of the same table by its last part first.
fn nearest_key(path: &str, known: &[&str]) -> Option<String> {
    let (table, last) = path.rsplit_once('.').unwrap_or(("", path));
    let beside: Vec<&str> = known
        .iter()
        .filter_map(|name| {
            let (other, last) = name.rsplit_once('.').unwrap_or(("", name));
            (other == table).then_some(last)
        })
        .collect();
    if let Some(hint) = nearest(last, &beside) {
        return Some(hint);
    }
    // The right key in a wrong table.
    let elsewhere = known.iter().find(|name| name.rsplit('.').next() == Some(last));
    elsewhere.map(|name| format!("did you mean `{name}`?")).or_else(|| nearest(path, known))
}

/// Gives problems the places of the keys that they are about, under whichever spelling, or else that of the file.
pub(crate) fn place(places: &Places, problems: Vec<Problem>) -> Vec<Problem> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let placed = |problem: Problem| {
        let subject = &problem.subject;
        let spelt = || places.iter().find(|(path, _)| last(path) == last(subject)).map(|(_, span)| span);
        let span = places.get(subject).or_else(spelt).or_else(|| places.get("")).cloned();
        match span.filter(|_| problem.span.is_none()) {
            Some(span) => problem.at(span),
            None => problem,
        }
    };
    problems.into_iter().map(placed).collect()
}

//! The keys of a file, each taken at most once: what nobody took is judged at the end.

use std::fmt::Formatter;

use ir::{Problem, SourceSpan};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::keys;
use super::sniff::kind;

/// One key of the top level.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Value,
    taken: bool,
}

impl Entry {
    /// The key for messages.
    pub(super) fn shown(&self) -> String {
        self.key.chars().take(40).flat_map(char::escape_default).collect()
    }
}

/// Keeps repeated keys, which a map would silently drop.
struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;
            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry()? {
                    entries.push(Entry { key, value, taken: false });
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// The keys of a JSON object, or what is wrong and at which byte.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, (Problem, usize)> {
    use serde_json::error::Category;
    serde_json::from_str::<Entries>(text).map(|entries| entries.0).map_err(|error| {
        let lines_before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let mut at = (lines_before + error.column().saturating_sub(1)).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let place = format!("line {}, column {}", error.line(), error.column());
        let problem = match error.classify() {
            Category::Eof => {
                Problem::new("model file", format!("is truncated: the JSON ends in the middle, at {place}"))
                    .hint("download it again")
            }
            Category::Data => {
                Problem::new("model file", "is JSON, but no object with keys").hint("give the config.json of the model")
            }
            Category::Syntax | Category::Io => {
                let shown = error.to_string();
                let what = shown.split(" at line").next().unwrap_or_default().to_owned();
                Problem::new("model file", format!("is not JSON: {what} at {place}"))
            }
        };
        (problem, at)
    })
}

/// A file's keys with the problems found so far.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    text: &'a str,
    file: &'a str,
    entries: Vec<Entry>,
    problems: Vec<Problem>,
    /// Whether keys on no list are faults.
    family_known: bool,
}

impl<'a> Tree<'a> {
    pub(super) fn new(text: &'a str, file: &'a str, entries: Vec<Entry>) -> Self {
        let mut tree = Self { text, file, entries, problems: Vec::new(), family_known: true };
        for (index, entry) in tree.entries.clone().iter().enumerate() {
            if tree.entries[..index].iter().any(|other| other.key == entry.key) {
                tree.fault(&entry.key, "stands in the file twice", "remove one of them");
            }
        }
        tree
    }

    /// The bytes of `"key": value`'s key in the text, if they can be found.
    fn span(&self, key: &str) -> Option<SourceSpan> {
        let quoted = format!("\"{key}\"");
        let start = self
            .text
            .match_indices(&quoted)
            .map(|(start, _)| start)
            .find(|start| self.text[start + quoted.len()..].trim_start().starts_with(':'))?;
        Some(SourceSpan { file: self.file.to_owned(), range: start..start + quoted.len() })
    }
    pub(super) fn fault(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        let subject: String = key.chars().take(60).flat_map(char::escape_default).collect();
        let mut problem = Problem::new(subject, message);
        let hint = hint.into();
        if !hint.is_empty() {
            problem = problem.hint(hint);
        }
        if let Some(span) = self.span(key) {
            problem = problem.at(span);
        }
        self.problems.push(problem);
    }
    /// From now on only keys that are refused in any family are faults.
    pub(super) const fn unknown_family(&mut self) {
        self.family_known = false;
    }
    /// Whether a fault of this key was told.
    pub(super) fn is_faulty(&self, key: &str) -> bool {
        self.problems.iter().any(|problem| problem.subject == key)
    }
    /// Marks keys that change neither sizes nor work in this family.
    pub(super) fn ignore(&mut self, keys: &[&str]) {
        for entry in self.entries.iter_mut().filter(|entry| keys.contains(&entry.key.as_str())) {
            entry.taken = true;
        }
    }
    /// Whether the file has a value for a key that may have been taken already.
    pub(super) fn was(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key && !entry.value.is_null())
    }
    /// A list of numbers; empty if it is absent or faulty (which is then told).
    pub(super) fn numbers(&mut self, key: &str) -> Vec<u32> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let numbers = value.as_array().and_then(|list| {
            list.iter().map(|one| one.as_u64().and_then(|one| u32::try_from(one).ok())).collect::<Option<Vec<u32>>>()
        });
        numbers.unwrap_or_else(|| {
            self.fault(key, format!("is {}, not a list of whole numbers", excerpt(&value)), "");
            Vec::new()
        })
    }
    /// A whole number that may be zero, or `None` if it is absent or faulty (which is then told).
    pub(super) fn optional_count(&mut self, key: &str) -> Option<u32> {
        let value = self.take(key)?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        if count.is_none() {
            self.fault(key, format!("is {}, not a whole number of 32 bits", excerpt(&value)), "");
        }
        count
    }
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }
    /// The value of a key, which is thereby known; null counts as absent.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        let entry = self.entries.iter_mut().find(|entry| entry.key == key)?;
        entry.taken = true;
        Some(entry.value.clone()).filter(|value| !value.is_null())
    }
    /// A positive whole number, or `None` if it is absent or faulty (which is then told).
    pub(super) fn optional_size(&mut self, key: &str) -> Option<u32> {
        let value = self.take(key)?;
        let size = value.as_u64().and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0);
        if size.is_none() {
            let shown = excerpt(&value);
            self.fault(key, format!("is {shown}, not a positive whole number of 32 bits"), "");
        }
        size
    }
    /// A positive whole number; 1 if it is absent or faulty (which is then told).
    pub(super) fn size(&mut self, key: &str) -> u32 {
        let before = self.problems.len();
        self.optional_size(key).unwrap_or_else(|| {
            if self.problems.len() == before {
                self.fault(key, "is missing", "the model's size depends on it, so it has no default");
            }
            1
        })
    }
    pub(super) fn number(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.take(key) else { return default };
        value.as_f64().unwrap_or_else(|| {
            let message = format!("is {}, not a number", excerpt(&value));
            self.fault(key, message, "");
            default
        })
    }
    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        let Some(value) = self.take(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            let message = format!("is {}, not true or false", excerpt(&value));
            self.fault(key, message, "");
            default
        })
    }
    pub(super) fn word(&mut self, key: &str) -> Option<String> {
        let value = self.take(key)?;
        let word = value.as_str().map(str::to_owned);
        if word.is_none() {
            let message = format!("is {}, not a text", excerpt(&value));
            self.fault(key, message, "");
        }
        word
    }
    /// Judges the keys that nobody took, and gives all problems.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        for entry in std::mem::take(&mut self.entries) {
            if entry.taken {
                continue;
            }
            match keys::judge(&entry.key, &entry.value) {
                keys::Verdict::Harmless => {}
                keys::Verdict::Foreign | keys::Verdict::Unknown if !self.family_known => {}
                keys::Verdict::Refused(reason) => {
                    self.fault(&entry.key, reason, "models with it are not supported yet");
                }
                keys::Verdict::Foreign => {
                    self.fault(&entry.key, "does not belong to this family of models", "check \"model_type\"");
                }
                keys::Verdict::Unknown => {
                    let hint = match keys::nearest(&entry.key) {
                        Some(known) => format!("did you mean \"{known}\"?"),
                        None => "remove it if it changes nothing that is computed".to_owned(),
                    };
                    self.fault(&entry.key, "is not known, so it could change what is computed", hint);
                }
            }
        }
        self.problems
    }
}

/// A value in at most a few words.
pub(super) fn excerpt(value: &Value) -> String {
    match value {
        Value::Null | Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let text = value.to_string();
            if text.chars().count() > 40 { kind(value).to_owned() } else { text }
        }
    }
}

//! A value that is converted to what the scenario needs, or notes why it cannot be.

use std::ops::RangeInclusive;

use ir::{Bytes, BytesPerSecond, FlopsPerSecond, Problem, SimDuration};
use toml::Spanned;
use toml::de::DeValue;

use super::{Reader, Table, Wanted};

/// A quantity as scenario files write it: a text with a unit.
pub(crate) trait Quantity: std::str::FromStr<Err = ir::quantity::QuantityError> {
    /// What it is, and one way to write it.
    const EXAMPLE: &'static str;
}
impl Quantity for Bytes {
    const EXAMPLE: &'static str = "80GiB";
}
impl Quantity for SimDuration {
    const EXAMPLE: &'static str = "5us";
}
impl Quantity for BytesPerSecond {
    const EXAMPLE: &'static str = "400Gbps";
}
impl Quantity for FlopsPerSecond {
    const EXAMPLE: &'static str = "312TFLOP/s";
}

/// A value with its path and place.
#[derive(Clone, Debug)]
pub(crate) struct Value<'d> {
    pub(super) reader: &'d Reader,
    pub(super) path: String,
    pub(super) value: &'d Spanned<DeValue<'d>>,
}

impl<'d> Value<'d> {
    /// Its path in the file, such as `plan.tensor`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
    /// A problem of this value, at its place.
    pub(crate) fn problem(&self, message: impl Into<String>, hint: Option<String>) {
        let mut problem = Problem::new(&self.path, message);
        problem.hint = hint;
        self.reader.report(problem.at(self.reader.span(self.value.span())));
    }
    /// A problem of something else, at this value's place.
    pub(crate) fn report(&self, problem: Problem) {
        self.reader.report(problem.at(self.reader.span(self.value.span())));
    }
    fn wrong<T>(&self, expected: &str, hint: Option<String>) -> Option<T> {
        self.problem(format!("must be {expected}, not {}", kind(self.value.get_ref())), hint);
        None
    }
    fn note(&self, wanted: impl FnOnce() -> Wanted) {
        self.reader.note(|trace| trace.value(&self.path, wanted()));
    }
    /// A text.
    pub(crate) fn text(&self) -> Option<&'d str> {
        self.note(|| Wanted::Text);
        let text = self.value.get_ref().as_str();
        if text.is_none() {
            return self.wrong("a text in quotes", None);
        }
        text
    }
    /// The text, without a complaint if it is none.
    pub(crate) fn as_text(&self) -> Option<&'d str> {
        self.note(|| Wanted::Text);
        self.value.get_ref().as_str()
    }
    /// True or false.
    pub(crate) fn boolean(&self) -> Option<bool> {
        self.note(|| Wanted::Boolean);
        let value = self.value.get_ref().as_bool();
        if value.is_none() {
            return self.wrong("true or false", None);
        }
        value
    }
    /// A whole number in a range.
    pub(crate) fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        self.note(|| Wanted::Integer(*range.start(), *range.end()));
        let DeValue::Integer(written) = self.value.get_ref() else {
            return self.wrong("a whole number", None);
        };
        let (least, most) = (range.start(), range.end());
        let number = i128::from_str_radix(written.as_str(), written.radix()).ok();
        let Some(found) = number.and_then(|n| u64::try_from(n).ok()).filter(|n| range.contains(n)) else {
            let shown = number.map_or_else(|| "a number with more than 38 digits".to_owned(), |n| n.to_string());
            self.problem(format!("must be between {least} and {most}, not {shown}"), None);
            return None;
        };
        Some(found)
    }
    /// A whole number from `least` to the largest `u32`.
    pub(crate) fn count_from(&self, least: u32) -> Option<u32> {
        self.integer(u64::from(least)..=u64::from(u32::MAX)).and_then(|n| u32::try_from(n).ok())
    }
    /// A whole number of at least 1.
    pub(crate) fn count(&self) -> Option<u32> {
        self.count_from(1)
    }
    /// A finite number with no unit, inside a range.
    pub(crate) fn number(&self, range: RangeInclusive<f64>) -> Option<f64> {
        self.note(|| Wanted::Number(*range.start(), *range.end()));
        let written = match self.value.get_ref() {
            DeValue::Integer(n) => i128::from_str_radix(n.as_str(), n.radix()).ok().map(|n| n as f64),
            DeValue::Float(n) => n.as_str().parse::<f64>().ok(),
            DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                return self.wrong("a number", None);
            }
        };
        let Some(number) = written.filter(|n| range.contains(n)) else {
            let shown = written.map_or_else(|| "something else".to_owned(), |n| n.to_string());
            self.problem(format!("must be between {} and {}, not {shown}", range.start(), range.end()), None);
            return None;
        };
        Some(number)
    }
    /// A quantity with its unit.
    pub(crate) fn quantity<Q: Quantity>(&self) -> Option<Q> {
        self.note(|| Wanted::Quantity(Q::EXAMPLE));
        match self.value.get_ref() {
            DeValue::String(text) => match text.parse::<Q>() {
                Ok(quantity) => Some(quantity),
                Err(error) => {
                    self.problem(error.message, Some(error.hint));
                    None
                }
            },
            DeValue::Integer(_) | DeValue::Float(_) => {
                self.problem("needs a unit, in quotes", Some(format!("such as \"{}\"", Q::EXAMPLE)));
                None
            }
            DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                self.wrong("a text with a unit", Some(format!("such as \"{}\"", Q::EXAMPLE)))
            }
        }
    }
    /// One of the values of an enum, by name.
    pub(crate) fn one_of<T: Copy, const N: usize>(&self, all: [T; N], name: impl Fn(T) -> &'static str) -> Option<T> {
        self.choice(&all.map(|one| (name(one), one)))
    }
    /// One of a few words.
    pub(crate) fn choice<T: Clone>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let names = || choices.iter().map(|(name, _)| *name);
        self.note(|| Wanted::Words(names().collect()));
        let Some(word) = self.value.get_ref().as_str() else {
            let list = names().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
            return self.wrong(&format!("one of {list}"), None);
        };
        let found = choices.iter().find(|(name, _)| *name == word).map(|(_, value)| value.clone());
        if found.is_none() {
            let all = names().collect::<Vec<_>>().join(", ");
            let hint = super::nearest(word, names()).map(|near| format!("did you mean `{near}`?"));
            self.problem(format!("`{word}` is none of: {all}"), hint);
        }
        found
    }
    /// A list.
    pub(crate) fn list(&self) -> Option<Vec<Value<'d>>> {
        self.note(|| Wanted::List);
        let Some(array) = self.value.get_ref().as_array() else { return self.wrong("a list", None) };
        let item = |(index, value): (usize, &'d Spanned<DeValue<'d>>)| Value {
            reader: self.reader,
            path: format!("{}[{index}]", self.path),
            value,
        };
        Some(array.iter().enumerate().map(item).collect())
    }
    /// Whether it is this word.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.value.get_ref().as_str() == Some(word)
    }
    /// Whether it is a text.
    pub(crate) fn is_text(&self) -> bool {
        self.value.get_ref().is_str()
    }
    /// Whether it is a list.
    pub(crate) fn is_list(&self) -> bool {
        self.value.get_ref().is_array()
    }
    /// Whether it is a table.
    pub(crate) fn is_table(&self) -> bool {
        self.value.get_ref().is_table()
    }
    /// A table.
    pub(crate) fn table(&self) -> Option<Table<'d>> {
        self.note(|| Wanted::Table);
        let Some(entries) = self.value.get_ref().as_table() else { return self.wrong("a table", None) };
        Some(Table::new(self.reader, self.path.clone(), self.value.span(), entries))
    }
}

const fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

//! Values of a tree with their paths, and the faults found in them.

use std::ops::Range;

use ir::{Problem, SourceSpan};

use crate::json::{Node, Tree, tree};
use crate::settings::Value;
use crate::text::nearest;

/// A file with more faults than this is another kind of file.
const MOST: usize = 100;

/// A file, and the faults found in it.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    file: &'a str,
    pub(super) problems: Vec<Problem>,
}

/// A value and the way to it.
#[derive(Clone, Debug)]
pub(super) struct At<'n> {
    pub(super) path: String,
    pub(super) node: &'n Node,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(file: &'a str) -> Self {
        Self { file, problems: Vec::new() }
    }

    /// The tree of a text.
    pub(super) fn tree(&mut self, text: &str) -> Option<Node> {
        match tree(text) {
            Ok(node) => Some(node),
            Err(fault) => {
                self.at(self.file, fault.message, "a JSON file, whole", fault.range);
                None
            }
        }
    }

    pub(super) fn at(&mut self, path: &str, message: impl Into<String>, hint: impl Into<String>, range: Range<usize>) {
        if self.problems.len() >= MOST {
            return;
        }
        let subject: String = path.chars().take(120).flat_map(char::escape_debug).collect();
        let problem = Problem::new(subject, message).hint(hint);
        self.problems.push(problem.at(SourceSpan { file: self.file.to_owned(), range }));
    }

    pub(super) fn fault(&mut self, at: &At<'_>, message: impl Into<String>, hint: impl Into<String>) {
        self.at(&at.path, message, hint, at.node.range.clone());
    }

    /// The keys of an object, each once.
    pub(super) fn object<'n>(&mut self, at: &At<'n>, what: &str) -> Vec<(String, At<'n>)> {
        let Tree::Object(keys) = &at.node.value else {
            self.fault(at, format!("is {}, and {what} should stand here", shown(at.node)), "an object in braces");
            return Vec::new();
        };
        let mut found: Vec<(String, At<'n>)> = Vec::new();
        for (key, range, node) in keys {
            let path = if at.path.is_empty() { key.clone() } else { format!("{}.{key}", at.path) };
            if found.iter().any(|(other, _)| other == key) {
                self.at(&path, "stands in the file twice", "remove one of them", range.clone());
            } else {
                found.push((key.clone(), At { path, node }));
            }
        }
        found
    }

    /// The values of a list.
    pub(super) fn list<'n>(&mut self, at: &At<'n>, what: &str) -> Vec<At<'n>> {
        let Tree::List(items) = &at.node.value else {
            self.fault(at, format!("is {}, and {what} should stand here", shown(at.node)), "a list in brackets");
            return Vec::new();
        };
        items.iter().enumerate().map(|(i, node)| At { path: format!("{}[{i}]", at.path), node }).collect()
    }

    /// A number from `least` to `most`.
    pub(super) fn number(&mut self, at: &At<'_>, least: f64, most: f64, what: &str) -> Option<f64> {
        match &at.node.value {
            Tree::Leaf(Value::Number(number)) if (least..=most).contains(number) => Some(*number),
            Tree::Leaf(_) | Tree::List(_) | Tree::Object(_) => {
                self.fault(at, format!("is {}, and {what} should stand here", shown(at.node)), bounds(least, most));
                None
            }
        }
    }

    /// A whole number from `least` to 2^52.
    pub(super) fn whole(&mut self, at: &At<'_>, least: f64, what: &str) -> Option<u64> {
        let number = self.number(at, least, 4_503_599_627_370_496.0, what)?;
        if number.fract() != 0.0 {
            self.fault(at, format!("is {number}, and {what} should stand here"), "a whole number");
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and from 0 to 2^52")]
        Some(number as u64)
    }

    /// A count from `least`.
    pub(super) fn count(&mut self, at: &At<'_>, least: f64, what: &str) -> Option<u32> {
        let whole = self.whole(at, least, what)?;
        let count = u32::try_from(whole).ok();
        if count.is_none() {
            self.fault(at, format!("{whole} is more than {what} can be"), "at most 4294967295");
        }
        count
    }

    /// A text.
    pub(super) fn text(&mut self, at: &At<'_>, what: &str) -> Option<String> {
        match &at.node.value {
            Tree::Leaf(Value::Text(text)) if !text.is_empty() => Some(text.clone()),
            Tree::Leaf(_) | Tree::List(_) | Tree::Object(_) => {
                self.fault(at, format!("is {}, and {what} should stand here", shown(at.node)), "a text in quotes");
                None
            }
        }
    }

    /// A count that is a key, as JSON has no other keys than texts.
    pub(super) fn key(&mut self, key: &str, at: &At<'_>, least: u32, what: &str) -> Option<u32> {
        // Another way of writing a number would let one stand there twice.
        let count = key.parse::<u32>().ok().filter(|count| *count >= least && count.to_string() == key);
        if count.is_none() {
            self.fault(at, format!("the key `{key}` is no {what}"), format!("a whole number from {least}"));
        }
        count
    }

    /// A key that is on no list.
    pub(super) fn unknown(&mut self, key: &str, at: &At<'_>, known: &[&str]) {
        let hint = nearest(key, known).unwrap_or_else(|| format!("one of {}", known.join(", ")));
        self.fault(at, "is no key of such a file", hint);
    }
}

fn bounds(least: f64, most: f64) -> String {
    format!("a number from {least:?} to {most:?}")
}

/// In a few words.
fn shown(node: &Node) -> String {
    match &node.value {
        Tree::Leaf(value) => format!("`{}`", value.shown()),
        Tree::List(items) => format!("a list of {}", items.len()),
        Tree::Object(keys) => format!("an object of {} keys", keys.len()),
    }
}

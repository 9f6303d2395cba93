//! Options by name, from a script or from the block of arguments that Megatron prints, and which of them were read.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use ir::{Problem, SourceSpan};

use super::names;
use super::shell::{self, Word};
use crate::settings::Places;
use crate::text::{lines, nearest};
use crate::training::{Assumption, Reading, Report};

/// What stands after an option.
#[derive(Clone, Debug)]
struct Given {
    values: Vec<Word>,
    line: usize,
}

/// The options of one file.
#[derive(Debug)]
pub(super) struct Options<'t> {
    file: &'t str,
    text: &'t str,
    given: BTreeMap<String, Given>,
    read: BTreeSet<&'static str>,
    /// Options that are known to change nothing here, under names that others begin with.
    passed: BTreeSet<&'static str>,
    /// Whether the file holds every argument with its value, as a log does.
    pub(super) is_complete: bool,
    pub(super) problems: Vec<Problem>,
    pub(super) report: Report,
}

/// A file with more faults than this is another kind of file.
const MOST: usize = 100;

/// Heads of the block of arguments in a log.
const BLOCK: (&str, &str) = (" arguments ---", " end of arguments ---");

/// Whether a block of arguments is in a text.
pub(crate) fn is_log(text: &str) -> bool {
    text.contains(BLOCK.0)
}

impl<'t> Options<'t> {
    /// Takes a log apart if there is a block of arguments in it, else a script.
    pub(super) fn of(text: &'t str, file: &'t str) -> Self {
        let mut options = Self {
            file,
            text,
            given: BTreeMap::new(),
            read: BTreeSet::new(),
            passed: BTreeSet::new(),
            is_complete: false,
            problems: Vec::new(),
            report: Report::default(),
        };
        if is_log(text) {
            options.is_complete = true;
            options.take_block();
        } else {
            options.take_script();
        }
        options
    }

    fn take_block(&mut self) {
        let mut inside = false;
        let mut closed = false;
        for line in lines(self.text) {
            if line.text.contains(BLOCK.1) {
                closed = true;
                break;
            }
            if line.text.contains(BLOCK.0) {
                inside = true;
                continue;
            }
            let Some((name, value)) = block_entry(line.text).filter(|_| inside) else { continue };
            let word = Word { text: value.to_owned(), line: line.number, unknown: None };
            let values = if value == "None" { Vec::new() } else { vec![word] };
            // Every rank may print it: one block counts.
            self.given.entry(name.replace('_', "-")).or_insert(Given { values, line: line.number });
        }
        if !closed {
            let message = "the block of arguments ends before its last line";
            self.fault_at("file", message, "bring the log up to `end of arguments`", lines(self.text).count());
        }
    }

    fn take_script(&mut self) {
        let Some(words) = shell::command(self.text) else {
            let message = "no command of it runs a Python program";
            let hint = "bring the script that starts training, or the log with its block of arguments";
            return self.fault_at("file", message, hint, 1);
        };
        let program = words.iter().position(|word| shell::is_program(&word.text)).unwrap_or(0);
        // What a launcher is told counts as well: how many processes there are.
        let mut open: Option<(String, Given)> = None;
        for (index, word) in words.iter().enumerate() {
            if index == program {
                self.close(open.take());
                continue;
            }
            match word.text.strip_prefix("--") {
                Some(name) if !name.is_empty() => {
                    self.close(open.take());
                    let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
                    let values = value.map(|value| Word { text: value.to_owned(), ..word.clone() });
                    let given = Given { values: values.into_iter().collect(), line: word.line };
                    open = Some((name.replace('_', "-"), given));
                }
                _ => match &mut open {
                    Some((_, given)) => given.values.push(word.clone()),
                    None if word.unknown.is_some() && index > program => {
                        let why = word.unknown.clone().unwrap_or_default();
                        self.report.notes.push(format!("line {}: `{}` was left out: {why}", word.line, word.text));
                    }
                    None => {}
                },
            }
        }
        self.close(open);
    }

    fn close(&mut self, option: Option<(String, Given)>) {
        let Some((name, given)) = option else { return };
        let texts = |given: &Given| given.values.iter().map(|word| word.text.clone()).collect::<Vec<_>>().join(" ");
        if let Some(before) = self.given.get(&name).filter(|before| texts(before) != texts(&given)) {
            let message = format!("`{}` here, and `{}` in line {}", texts(&given), texts(before), before.line);
            self.fault_at(&format!("--{name}"), message, "write it once", given.line);
        }
        self.given.insert(name, given);
    }

    /// A fault at a line.
    pub(super) fn fault_at(&mut self, subject: &str, message: impl Into<String>, hint: impl Into<String>, line: usize) {
        if self.problems.len() >= MOST {
            return;
        }
        let problem = Problem::new(subject, message).hint(hint);
        let range = lines(self.text).nth(line.saturating_sub(1)).map_or(0..self.text.len(), |line| line.range);
        self.problems.push(problem.at(SourceSpan { file: self.file.to_owned(), range }));
    }

    /// A fault of an option, at its line if it is there.
    pub(super) fn fault(&mut self, name: &str, message: impl Into<String>, hint: impl Into<String>) {
        let line = self.given.get(name).map_or(1, |given| given.line);
        self.fault_at(&format!("--{name}"), message, hint, line);
    }

    /// Whether an option is there with a value, or as a switch.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.get(name).is_some_and(|given| !self.is_complete || !given.values.is_empty())
    }

    /// The words after an option; `None` if it is not there.
    fn words(&mut self, name: &'static str) -> Option<Vec<Word>> {
        self.read.insert(name);
        if !self.has(name) {
            return None;
        }
        let given = self.given.get(name)?.clone();
        if let Some(word) = given.values.iter().find(|word| word.unknown.is_some()) {
            let why = word.unknown.clone().unwrap_or_default();
            let message = format!("`{}` is not known: {why}", word.text);
            self.fault(name, message, "write its value, or bring the log with its block of arguments");
            return None;
        }
        Some(given.values)
    }

    /// All that stands after an option, with spaces between.
    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        let words = self.words(name)?;
        if words.is_empty() {
            self.fault(name, "nothing stands after it", "write its value");
            return None;
        }
        Some(words.into_iter().map(|word| word.text).collect::<Vec<_>>().join(" "))
    }

    /// A number; the fault is kept if it is none.
    pub(super) fn number<T: FromStr>(&mut self, name: &'static str) -> Option<T> {
        let text = self.text(name)?;
        let number = text.trim().parse().ok();
        if number.is_none() {
            self.fault(name, format!("`{text}` is not a number that is possible here"), "write a positive number");
        }
        number
    }

    /// Notes a default that was taken.
    pub(super) fn assume(&mut self, name: &str, value: impl ToString) {
        if self.report.assumed.iter().any(|one| one.name == name) {
            return;
        }
        let source = "Megatron-LM's default".to_owned();
        self.report.assumed.push(Assumption { name: name.to_owned(), value: value.to_string(), source });
    }

    /// A number, or a default that is noted.
    pub(super) fn number_or<T: FromStr + std::fmt::Debug>(&mut self, name: &'static str, otherwise: T) -> T {
        match self.number(name) {
            Some(number) => number,
            None => {
                if !self.has(name) {
                    self.assume(name, format!("{otherwise:?}"));
                }
                otherwise
            }
        }
    }

    /// What stands after an option, or a default that is noted.
    pub(super) fn text_or(&mut self, name: &'static str, otherwise: &str) -> String {
        let written = self.has(name);
        self.text(name).unwrap_or_else(|| {
            if !written {
                self.assume(name, otherwise);
            }
            otherwise.to_owned()
        })
    }

    /// A whole number from one on, or a stand-in.
    pub(super) fn count(&mut self, name: &'static str, otherwise: u32) -> u32 {
        match self.number::<u32>(name) {
            Some(0) => {
                self.fault(name, "is zero", "write a positive number");
                otherwise
            }
            Some(number) => number,
            None => {
                if !self.has(name) {
                    self.assume(name, otherwise);
                }
                otherwise
            }
        }
    }

    /// Passes over options that change neither what is trained nor what it costs.
    pub(super) fn pass(&mut self, names: &[&'static str]) {
        self.passed.extend(names);
    }

    /// The same, and a fault if it is not there.
    pub(super) fn needed(&mut self, name: &'static str) -> u32 {
        if !self.has(name) {
            self.read.insert(name);
            self.fault(name, "is missing", "bring a file that has it");
            return 1;
        }
        self.count(name, 1)
    }

    /// A switch: there, or `True` in a log; with its `--no-` form.
    pub(super) fn switch(&mut self, name: &'static str, otherwise: bool) -> bool {
        self.read.insert(name);
        let is = |given: Option<&Given>| {
            given.map(|given| given.values.first().is_none_or(|word| !word.text.eq_ignore_ascii_case("false")))
        };
        let said = if self.is_complete {
            let given = self.given.get(name).filter(|given| !given.values.is_empty());
            given.map(|given| given.values[0].text.eq_ignore_ascii_case("true"))
        } else {
            let denied = is(self.given.get(&format!("no-{name}")));
            is(self.given.get(name)).or(denied.map(|denied| !denied))
        };
        said.unwrap_or_else(|| {
            self.assume(name, otherwise);
            otherwise
        })
    }

    /// A switch whose option, in a script, says the contrary of its name in a log.
    pub(super) fn unless(&mut self, denial: &'static str, name: &'static str) -> bool {
        self.read.insert(denial);
        if self.is_complete { self.switch(name, true) } else { !self.switch(denial, false) }
    }

    /// Places of all options.
    pub(super) fn places(&self) -> Places {
        let ranges: Vec<_> = lines(self.text).map(|line| line.range).collect();
        let place = |(name, given): (&String, &Given)| {
            let range = ranges.get(given.line.saturating_sub(1)).cloned().unwrap_or(0..self.text.len());
            (format!("--{name}"), SourceSpan { file: self.file.to_owned(), range })
        };
        let file = (String::new(), SourceSpan { file: self.file.to_owned(), range: 0..0 });
        self.given.iter().map(place).chain([file]).collect()
    }

    fn reading(&self, name: &str) -> Reading {
        let given = self.given.get(name);
        let words = given.map_or(&[] as &[Word], |given| &given.values);
        let value = words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
        let value = value.chars().take(60).flat_map(char::escape_debug).collect();
        Reading { key: name.to_owned(), value, line: given.map_or(1, |given| given.line) }
    }

    /// Tells apart what was read and what changes nothing.
    fn tell(&mut self) {
        let mut names: Vec<(usize, String)> =
            self.given.iter().map(|(name, given)| (given.line, name.clone())).collect();
        names.sort_by_key(|(line, _)| *line);
        for (_, name) in names {
            if self.is_read(&name) && (self.has(&name) || !self.is_complete) {
                let reading = self.reading(&name);
                self.report.read.push(reading);
            } else if !self.is_complete {
                let reading = self.reading(&name);
                self.report.ignored.push(reading);
            }
        }
    }

    /// Every option that nobody read: known to change nothing, refused, or unknown.
    pub(super) fn finish(&mut self) {
        let rest = self.given.keys().filter(|name| !self.is_read(name)).cloned().collect::<Vec<_>>();
        let known =
            self.read.iter().copied().chain(self.passed.iter().copied()).chain(names::unread()).collect::<Vec<_>>();
        let mut unseen = Vec::new();
        for name in rest {
            if let Some((_, why, hint)) = names::REFUSED.iter().find(|(refused, ..)| *refused == name) {
                if !self.is_off(&name) {
                    self.fault(&name, *why, *hint);
                }
            } else if self.is_passed(&name) || names::changes_nothing(&name) || self.is_off(&name) {
                // It says what would be so without it.
            } else if let Some(on) = names::depends_on(&name).filter(|on| !self.has(on) || self.is_off(on)) {
                if !self.is_complete {
                    self.fault(
                        &name,
                        format!("says nothing without --{on}"),
                        format!("write --{on} too, or leave it out"),
                    );
                }
            } else if self.is_complete && !names::looks_like_model(&name) {
                unseen.push(name);
            } else if self.problems.len() < MOST {
                let hint = nearest(&name, &known)
                    .unwrap_or_else(|| "leave it out if it changes neither the model nor its division".to_owned());
                self.fault(&name, "is not an option that is known here", hint);
            }
        }
        if !unseen.is_empty() {
            self.report.notes.push(format!("arguments that were not looked at: {}", unseen.join(", ")));
        }
        self.tell();
    }

    fn is_passed(&self, name: &str) -> bool {
        self.passed.contains(name) || name.strip_prefix("no-").is_some_and(|name| self.passed.contains(name))
    }

    fn is_read(&self, name: &str) -> bool {
        self.read.contains(name) || name.strip_prefix("no-").is_some_and(|name| self.read.contains(name))
    }

    /// In a log: an argument that is not set.
    fn is_off(&self, name: &str) -> bool {
        let off = |value: &Word| matches!(value.text.as_str(), "False" | "None" | "[]" | "0" | "0.0" | "");
        self.is_complete && self.given.get(name).is_none_or(|given| given.values.iter().all(off))
    }
}

/// A line of the block: a name, dots, a value; a prefix that names the rank is left out.
fn block_entry(line: &str) -> Option<(&str, &str)> {
    let (before, value) = match line.split_once(" ..") {
        Some((before, after)) => (before, after.trim_start_matches('.')),
        // A name that leaves no room for dots.
        None => line.trim_end().rsplit_once(' ')?,
    };
    let name = before.rsplit(' ').next()?.trim();
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    is_name.then(|| (name, value.trim()))
}

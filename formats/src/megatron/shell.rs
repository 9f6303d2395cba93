//! The part of the shell in which training is launched: assignments, arrays, expansions and a command.
//!
//! Nothing is carried out. What only running the script would tell (its arguments, the environment, what commands print,
//! which branch of an `if` is taken) stays unknown with its reason, and is a fault only where an option needs it.

mod arithmetic;
mod lexer;

use std::collections::BTreeMap;

use lexer::{Piece, RawWord, Statement};

/// A word of the command line, expanded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Word {
    /// Its characters; those of unknown parts as they are written.
    pub(super) text: String,
    /// The line on which it stands, from 1.
    pub(super) line: usize,
    /// Why it is not known, if it is not.
    pub(super) unknown: Option<String>,
}

/// What a variable holds: words, of which a plain variable has one.
type Value = Vec<Word>;

/// Most words that expansion may come to: more is a script that doubles itself.
const MOST_WORDS: usize = 100_000;
/// Words that open and close what a shell may or may not carry out.
const OPENING: [&str; 6] = ["if", "for", "while", "until", "case", "function"];
const CLOSING: [&str; 3] = ["fi", "done", "esac"];
/// Words before an assignment that change nothing here.
const DECLARING: [&str; 6] = ["export", "declare", "local", "readonly", "typeset", "-a"];

/// The words of the command that starts training: of those with a Python program among their words the one with most
/// options.
pub(super) fn command(text: &str) -> Option<Vec<Word>> {
    let mut shell = Shell::default();
    let options = |words: &[Word]| words.iter().filter(|word| word.text.starts_with("--")).count();
    let mut found: Option<Vec<Word>> = None;
    for statement in lexer::statements(text) {
        let words = shell.carry_out(&statement);
        let starts = words.iter().any(|word| is_program(&word.text));
        if starts && found.as_ref().is_none_or(|found| options(found) <= options(&words)) {
            found = Some(words);
        }
    }
    found
}

/// A Python program, or a module of one, by its name.
pub(super) fn is_program(word: &str) -> bool {
    std::path::Path::new(word).extension().is_some_and(|extension| extension == "py")
}

#[derive(Default)]
struct Shell {
    variables: BTreeMap<String, Value>,
    /// How many branches and loops are open.
    depth: usize,
}

impl Shell {
    /// Notes assignments; returns the words of the command, expanded.
    fn carry_out(&mut self, statement: &Statement) -> Vec<Word> {
        let mut words = Vec::new();
        let mut in_command = false;
        for raw in &statement.words {
            if let Some((name, appends, value)) = raw.assignment().filter(|_| !in_command) {
                self.assign(name, appends, value, raw.line);
                continue;
            }
            let expanded = self.expand(raw);
            match expanded.as_slice() {
                [one] if !in_command && DECLARING.contains(&one.text.as_str()) => continue,
                [one] if OPENING.contains(&one.text.as_str()) => self.depth += 1,
                [one] if CLOSING.contains(&one.text.as_str()) => self.depth = self.depth.saturating_sub(1),
                _ => in_command = !expanded.is_empty(),
            }
            words.extend(expanded);
            words.truncate(MOST_WORDS);
        }
        split_scripts(words)
    }

    fn assign(&mut self, name: &str, appends: bool, value: Assigned<'_>, line: usize) {
        let mut words = match value {
            Assigned::Array(items) => items.iter().flat_map(|item| self.expand(item)).collect::<Value>(),
            Assigned::One(word) => vec![self.expand_whole(word)],
        };
        if appends {
            let before = self.variables.get(name).cloned().unwrap_or_default();
            words = match (value, before.as_slice()) {
                (Assigned::One(_), [one]) => {
                    let unknown = one.unknown.clone().or_else(|| words[0].unknown.clone());
                    vec![Word { text: format!("{}{}", one.text, words[0].text), line, unknown }]
                }
                _ => before.into_iter().chain(words).collect(),
            };
        }
        if self.depth > 0 {
            let why = format!("`{name}` is set under a condition or in a loop");
            words.iter_mut().for_each(|word| word.unknown = Some(why.clone()));
        }
        words.truncate(MOST_WORDS);
        self.variables.insert(name.to_owned(), words);
    }

    /// What an unquoted or partly quoted word comes to: unquoted expansions are split where spaces are.
    fn expand(&self, raw: &RawWord) -> Vec<Word> {
        let mut done = Vec::new();
        let mut open: Option<Word> = None;
        let start = |text: String| Word { text, line: raw.line, unknown: None };
        for piece in &raw.pieces {
            let (words, splits) = match piece {
                Piece::Text(text) => (vec![start(text.clone())], false),
                Piece::Expansion { source, quoted } => {
                    let (value, is_list) = self.value(source, raw.line);
                    (value, is_list || !*quoted)
                }
            };
            let parts: Vec<Word> =
                if splits { words.into_iter().flat_map(split).collect() } else { join(words, raw.line) };
            let count = parts.len();
            for (index, part) in parts.into_iter().enumerate() {
                match &mut open {
                    Some(word) if index == 0 => {
                        if word.text.is_empty() {
                            word.line = part.line;
                        }
                        word.text.push_str(&part.text);
                        word.unknown = word.unknown.take().or(part.unknown);
                    }
                    _ => {
                        done.extend(open.take());
                        open = Some(part);
                    }
                }
                if index + 1 < count {
                    done.extend(open.take());
                }
            }
        }
        done.extend(open);
        if raw.pieces.is_empty() {
            done.push(start(String::new()));
        }
        done
    }

    /// The same without splitting, as in an assignment.
    fn expand_whole(&self, raw: &RawWord) -> Word {
        let mut whole = Word { text: String::new(), line: raw.line, unknown: None };
        for piece in &raw.pieces {
            match piece {
                Piece::Text(text) => whole.text.push_str(text),
                Piece::Expansion { source, .. } => {
                    let joined = join(self.value(source, raw.line).0, raw.line);
                    for word in joined {
                        whole.text.push_str(&word.text);
                        whole.unknown = whole.unknown.take().or(word.unknown);
                    }
                }
            }
        }
        whole
    }

    /// What an expansion, written without its dollar sign, comes to, and whether it is a list of words.
    fn value(&self, source: &str, line: usize) -> (Value, bool) {
        let known = |text: String| vec![Word { text, line, unknown: None }];
        let unknown = |why: String| vec![Word { text: format!("${source}"), line, unknown: Some(why) }];
        if let Some(sum) = source.strip_prefix("((").and_then(|sum| sum.strip_suffix("))")) {
            return match arithmetic::evaluate(sum, &|name| self.number(name)) {
                Ok(number) => (known(number.to_string()), false),
                Err(why) => (unknown(why), false),
            };
        }
        if source.starts_with('(') || source.starts_with('`') {
            return (unknown("it is what a command prints".to_owned()), false);
        }
        let inner = source.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(source);
        let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(inner.len());
        let (name, rest) = inner.split_at(end);
        let is_argument = name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit());
        let value = self.variables.get(name).filter(|value| !value.is_empty());
        let default = [":-", ":=", "-", "="].into_iter().find_map(|mark| rest.strip_prefix(mark));
        match (value, rest, default) {
            (Some(value), "[@]" | "[*]", _) => (value.clone(), true),
            (None, "[@]" | "[*]", _) if self.variables.contains_key(name) => (Vec::new(), true),
            (Some(value), "", _) | (Some(value), _, Some(_)) => (value[..1].to_vec(), false),
            (None, _, Some(default)) => {
                let raw = lexer::word(default, line);
                (vec![self.expand_whole(&raw)], false)
            }
            (None, "" | "[@]" | "[*]", None) if is_argument => {
                (unknown("it is an argument of the script".to_owned()), false)
            }
            (None, "" | "[@]" | "[*]", None) => (unknown(format!("`{name}` is set outside of the script")), false),
            (_, _, _) => (unknown("this expansion is not carried out".to_owned()), false),
        }
    }

    fn number(&self, name: &str) -> Result<i64, String> {
        let value = self.variables.get(name).and_then(|value| value.first());
        let word = value.ok_or_else(|| format!("`{name}` is set outside of the script"))?;
        match &word.unknown {
            Some(why) => Err(why.clone()),
            None => word.text.trim().parse().map_err(|_| format!("`{name}` is `{}`, not a number", word.text)),
        }
    }
}

/// What is assigned.
#[derive(Clone, Copy)]
enum Assigned<'w> {
    Array(&'w [RawWord]),
    One(&'w RawWord),
}

/// A word at its spaces.
fn split(word: Word) -> Vec<Word> {
    let Word { text, line, unknown } = word;
    text.split_whitespace().map(|part| Word { text: part.to_owned(), line, unknown: unknown.clone() }).collect()
}

/// Words as one, with spaces between them; none of none.
fn join(words: Vec<Word>, line: usize) -> Vec<Word> {
    if words.len() <= 1 {
        return words;
    }
    let unknown = words.iter().find_map(|word| word.unknown.clone());
    let text = words.into_iter().map(|word| word.text).collect::<Vec<_>>().join(" ");
    vec![Word { text, line, unknown }]
}

/// Takes apart words that are whole command lines, as after `bash -c`.
fn split_scripts(words: Vec<Word>) -> Vec<Word> {
    let is_line =
        |word: &Word| word.text.split_whitespace().count() > 1 && word.text.split_whitespace().any(is_program);
    words.into_iter().flat_map(|word| if is_line(&word) { split(word) } else { vec![word] }).collect()
}

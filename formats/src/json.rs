//! JSON with the place of every key, as configuration files have it: also with comments, commas before a closing bracket
//! and the words of Python, which DeepSpeed's readers and GPT-NeoX's files allow. Files of settings are flat lists of paths;
//! files of tables are trees.

use std::iter::Peekable;
use std::ops::Range;
use std::str::CharIndices;

use crate::settings::{Setting, Value};

/// What is wrong, and at which bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) message: String,
    pub(crate) range: Range<usize>,
}

/// Deeper than any configuration.
const DEEPEST: usize = 32;
/// More keys than any configuration has.
const MOST_KEYS: usize = 10_000;
/// More values than any table has.
const MOST_NODES: usize = 2_000_000;

/// The keys of an object, those of objects inside it under paths with dots.
///
/// # Errors
/// The first fault: after it, places of brackets would be guesses.
pub(crate) fn settings(text: &str) -> Result<Vec<Setting>, Fault> {
    let mut parser = Parser::new(text);
    if parser.peek() != Some('{') {
        return Err(parser.fault("an object in braces should begin here"));
    }
    let Tree::Object(keys) = parser.node(0)?.value else { return Ok(Vec::new()) };
    parser.end("something stands behind the last brace")?;
    let mut found = Vec::new();
    flatten("", keys, &mut found);
    match found.get(MOST_KEYS) {
        Some(Setting { range, .. }) => {
            Err(Fault { message: "more keys than any configuration has".to_owned(), range: range.clone() })
        }
        None => Ok(found),
    }
}

/// Keys under a path, those of objects that have keys in the place of the objects.
fn flatten(path: &str, keys: Vec<(String, Range<usize>, Node)>, found: &mut Vec<Setting>) {
    for (key, range, node) in keys {
        let path = if path.is_empty() { key } else { format!("{path}.{key}") };
        match node.value {
            Tree::Object(keys) if !keys.is_empty() => flatten(&path, keys, found),
            value => found.push(Setting { path, value: flat(value), range }),
        }
    }
}

/// A value without the keys of objects in it, which have no path.
fn flat(value: Tree) -> Value {
    match value {
        Tree::Object(_) => Value::Table,
        Tree::List(items) => Value::List(items.into_iter().map(|item| flat(item.value)).collect()),
        Tree::Leaf(value) => value,
    }
}

/// A value of a tree, and the bytes that it stands at.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub(crate) value: Tree,
    pub(crate) range: Range<usize>,
}

/// See [`Node`].
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Tree {
    /// Keys, each with its place, in the order of the file; a key may stand there twice.
    Object(Vec<(String, Range<usize>, Node)>),
    /// Values in order.
    List(Vec<Node>),
    /// Anything else.
    Leaf(Value),
}

/// The value that a whole text is.
///
/// # Errors
/// The first fault: after it, places of brackets would be guesses.
pub(crate) fn tree(text: &str) -> Result<Node, Fault> {
    let mut parser = Parser::new(text);
    let node = parser.node(0)?;
    parser.end("something stands behind the last bracket")?;
    Ok(node)
}

struct Parser<'t> {
    text: &'t str,
    rest: Peekable<CharIndices<'t>>,
    /// Values so far.
    nodes: usize,
}

impl<'t> Parser<'t> {
    /// Before the first value.
    fn new(text: &'t str) -> Self {
        let mut parser = Parser { text, rest: text.char_indices().peekable(), nodes: 0 };
        if text.starts_with('\u{feff}') {
            parser.rest.next();
        }
        parser.blank();
        parser
    }
    /// Refuses what stands behind the last value.
    fn end(&mut self, message: &str) -> Result<(), Fault> {
        self.blank();
        if self.peek().is_some() { Err(self.fault(message)) } else { Ok(()) }
    }
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|(_, c)| *c)
    }
    fn at(&mut self) -> usize {
        self.rest.peek().map_or(self.text.len(), |(at, _)| *at)
    }
    fn fault(&mut self, message: &str) -> Fault {
        let start = self.at();
        let end = start + self.peek().map_or(0, char::len_utf8);
        let message = match self.peek() {
            None => format!("the file ends here, and {message}"),
            Some(_) => message.to_owned(),
        };
        Fault { message, range: start..end }
    }
    /// Spaces and comments.
    fn blank(&mut self) {
        loop {
            let at = self.at();
            match self.peek() {
                Some(c) if c.is_whitespace() => drop(self.rest.next()),
                Some('#') => self.line(),
                Some('/') if self.text[at..].starts_with("//") => self.line(),
                _ => return,
            }
        }
    }
    fn line(&mut self) {
        while self.rest.next_if(|(_, c)| *c != '\n').is_some() {}
    }
    fn node(&mut self, depth: usize) -> Result<Node, Fault> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST_NODES {
            return Err(self.fault("values are nested too deeply, or more than any table has"));
        }
        let start = self.at();
        let value = match self.peek() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"' | '\'') => Tree::Leaf(Value::Text(self.string()?)),
            _ => Tree::Leaf(self.word()?),
        };
        Ok(Node { value, range: start..self.at() })
    }
    fn list(&mut self, depth: usize) -> Result<Tree, Fault> {
        self.rest.next();
        let mut items = Vec::new();
        loop {
            self.blank();
            if self.rest.next_if(|(_, c)| *c == ']').is_some() {
                return Ok(Tree::List(items));
            }
            items.push(self.node(depth + 1)?);
            self.blank();
            match self.peek() {
                Some(',') => drop(self.rest.next()),
                Some(']') => {}
                _ => return Err(self.fault("a comma or a closing bracket should stand here")),
            }
        }
    }
    fn object(&mut self, depth: usize) -> Result<Tree, Fault> {
        self.rest.next();
        let mut keys = Vec::new();
        loop {
            self.blank();
            match self.peek() {
                Some('}') => {
                    self.rest.next();
                    return Ok(Tree::Object(keys));
                }
                Some('"' | '\'') => {}
                _ => return Err(self.fault("a key in quotes or a closing brace should stand here")),
            }
            let start = self.at();
            let key = self.string()?;
            let range = start..self.at();
            self.blank();
            if self.rest.next_if(|(_, c)| *c == ':').is_none() {
                return Err(self.fault("a colon should stand here"));
            }
            self.blank();
            keys.push((key, range, self.node(depth + 1)?));
            self.blank();
            match self.peek() {
                Some(',') => drop(self.rest.next()),
                Some('}') => {}
                _ => return Err(self.fault("a comma or a closing brace should stand here")),
            }
        }
    }
    fn word(&mut self) -> Result<Value, Fault> {
        let start = self.at();
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        while self.rest.next_if(|(_, c)| part(*c)).is_some() {}
        let range = start..self.at();
        let word = &self.text[range.clone()];
        match word {
            "true" | "True" => return Ok(Value::Bool(true)),
            "false" | "False" => return Ok(Value::Bool(false)),
            "null" | "None" => return Ok(Value::Null),
            "" => return Err(self.fault("a value should stand here")),
            _ => {}
        }
        let number = word.parse::<f64>().ok().filter(|number| number.is_finite());
        let digits = word.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
        number.filter(|_| digits).map(Value::Number).ok_or_else(|| Fault {
            message: format!(
                "`{}` is neither a number nor true, false or null",
                word.chars().take(40).collect::<String>()
            ),
            range,
        })
    }
    fn string(&mut self) -> Result<String, Fault> {
        let start = self.at();
        let Some((_, quote)) = self.rest.next() else { return Err(self.fault("a text should stand here")) };
        let mut string = String::new();
        while let Some((at, c)) = self.rest.next() {
            match c {
                _ if c == quote => return Ok(string),
                '\\' => {
                    let escaped = self.escaped();
                    string.push(escaped.ok_or_else(|| Fault {
                        message: "this escape is not known".to_owned(),
                        range: at..self.at(),
                    })?);
                }
                '\n' => break,
                _ => string.push(c),
            }
        }
        Err(Fault { message: "the quotes around this text are not closed".to_owned(), range: start..start + 1 })
    }
    fn escaped(&mut self) -> Option<char> {
        let (_, c) = self.rest.next()?;
        match c {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'u' => {
                let mut code = 0;
                for _ in 0..4 {
                    code = code * 16 + self.rest.next()?.1.to_digit(16)?;
                }
                // Half of a pair is no key and no word of any configuration.
                Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
            }
            '"' | '\'' | '\\' | '/' => Some(c),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Tree, settings, tree};

    fn check(text: &str, expect: Result<&[(&str, &str)], &str>) {
        match (settings(text), expect) {
            (Ok(found), Ok(expect)) => {
                let found: Vec<_> = found.iter().map(|one| (one.path.as_str(), one.value.shown())).collect();
                let expect: Vec<_> = expect.iter().map(|(path, value)| (*path, (*value).to_owned())).collect();
                assert_eq!(found, expect, "{text}");
            }
            (Err(fault), Err(part)) => assert!(fault.message.contains(part), "{text}: {fault:?}"),
            (found, expect) => panic!("{text}: {found:?} where {expect:?} was expected"),
        }
    }

    #[test]
    fn objects_are_read() {
        check("{}", Ok(&[]));
        check(
            "{\"a\": 1, \"b\": {\"c\": [1e14, true], \"d\": {}}}",
            Ok(&[("a", "1"), ("b.c", "[100000000000000, true]"), ("b.d", "a table")]),
        );
        check("# one\n{ \"a\": True, // two\n 'b': None,\n}\n", Ok(&[("a", "true"), ("b", "null")]));
        check("{\"a\\u0041\\n\": \"x\\\"\"}", Ok(&[("aA\n", "x\\\"")]));
        check("{\"a\": [{\"b\": 1}]}", Ok(&[("a", "[a table]")]));
    }

    #[test]
    fn trees_keep_lists_and_places() {
        let text = "[{\"a\": [1, [\"b\", true]]}, {}]";
        let node = tree(text).expect("sound");
        let Tree::List(items) = &node.value else { panic!("{node:?}") };
        let Tree::Object(keys) = &items[0].value else { panic!("{node:?}") };
        let (key, place, inner) = &keys[0];
        assert_eq!(
            (key.as_str(), &text[place.clone()], &text[inner.range.clone()]),
            ("a", "\"a\"", "[1, [\"b\", true]]")
        );
        assert_eq!(items[1].value, Tree::Object(Vec::new()));
        let deep = "[".repeat(100_000);
        for (text, part) in [
            ("", "file ends"),
            ("[1", "file ends"),
            ("{\"a\": NaN}", "neither a number"),
            ("1 2", "behind"),
            (deep.as_str(), "too deeply"),
        ] {
            let fault = tree(text).expect_err("no tree");
            assert!(fault.message.contains(part), "{fault:?}");
        }
    }

    #[test]
    fn faults_are_named() {
        check("", Err("the file ends here"));
        check("[]", Err("an object in braces"));
        check("{\"a\" 1}", Err("a colon"));
        check("{\"a\": 1 \"b\": 2}", Err("a comma or a closing brace"));
        check("{\"a\": 1", Err("the file ends here"));
        check("{\"a\": \"x\n\"}", Err("not closed"));
        check("{\"a\": NaN}", Err("neither a number"));
        check("{\"a\": 1e999}", Err("neither a number"));
        check("{\"a\": infinity}", Err("neither a number"));
        check("{\"a\": }", Err("a value"));
        check("{\"a\": 1} x", Err("behind the last brace"));
        check(&"{\"a\":".repeat(100_000), Err("too deeply"));
        check(&format!("{{\"a\":{}", "[".repeat(100_000)), Err("too deeply"));
    }
}

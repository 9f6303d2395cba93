//! A script as statements of words, whose quotes are taken off and whose expansions are marked.

use super::Assigned;

/// One command with what stands before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    pub(super) words: Vec<RawWord>,
}

/// A word as it is written.
#[derive(Clone, Debug, Default)]
pub(super) struct RawWord {
    pub(super) pieces: Vec<Piece>,
    /// Words in parentheses after `NAME=`.
    array: Option<(String, bool, Vec<RawWord>)>,
    /// `NAME=` or `NAME+=` before the pieces.
    name: Option<(String, bool, Box<RawWord>)>,
    pub(super) line: usize,
}

/// A part of a word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    Text(String),
    /// What stands after the dollar sign, with its braces or parentheses.
    Expansion {
        source: String,
        quoted: bool,
    },
}

impl RawWord {
    /// The variable, whether it is added to, and the value, if this is an assignment.
    pub(super) fn assignment(&self) -> Option<(&str, bool, Assigned<'_>)> {
        if let Some((name, appends, items)) = &self.array {
            return Some((name, *appends, Assigned::Array(items)));
        }
        self.name.as_ref().map(|(name, appends, value)| (name.as_str(), *appends, Assigned::One(value)))
    }
}

/// All statements of a text.
pub(super) fn statements(text: &str) -> Vec<Statement> {
    Lexer::new(text, 1).statements(None)
}

/// One word that may hold anything, such as a default.
pub(super) fn word(text: &str, line: usize) -> RawWord {
    let mut lexer = Lexer::new(text, line);
    let mut word = RawWord { line, ..RawWord::default() };
    while let Some(c) = lexer.peek() {
        lexer.piece(c, &mut word);
    }
    word
}

struct Lexer {
    characters: Vec<char>,
    at: usize,
    line: usize,
}

impl Lexer {
    fn new(text: &str, line: usize) -> Self {
        Self { characters: text.chars().filter(|c| *c != '\r').collect(), at: 0, line }
    }
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }
    fn after(&self, offset: usize) -> Option<char> {
        self.characters.get(self.at + offset).copied()
    }
    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Statements up to the end, or up to a closing character, which is taken.
    fn statements(&mut self, closing: Option<char>) -> Vec<Statement> {
        let (mut all, mut open) = (Vec::new(), Statement::default());
        let mut documents: Vec<String> = Vec::new();
        while let Some(c) = self.peek() {
            if Some(c) == closing {
                self.next();
                break;
            }
            match c {
                '\n' | ';' | '&' | '|' => {
                    self.next();
                    all.push(std::mem::take(&mut open));
                    if c == '\n' {
                        documents.drain(..).for_each(|end| self.skip_document(&end));
                    }
                }
                c if c.is_whitespace() => drop(self.next()),
                '\\' if self.after(1) == Some('\n') => {
                    self.next();
                    self.next();
                }
                '#' => self.skip_comment(),
                '<' if self.after(1) == Some('<') && self.after(2) != Some('<') => documents.extend(self.document()),
                // Redirections, subshells and groups change no word that matters here.
                '<' | '>' | '(' | ')' => drop(self.next()),
                _ => open.words.push(self.word(closing)),
            }
        }
        all.push(open);
        all.retain(|statement| !statement.words.is_empty());
        all
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.next();
        }
    }

    /// The word that ends the text that follows (`<<END`).
    fn document(&mut self) -> Option<String> {
        self.at += 2;
        while self.peek().is_some_and(|c| matches!(c, '-' | ' ')) {
            self.next();
        }
        let mut end = String::new();
        while let Some(c) = self.peek().filter(|c| !c.is_whitespace() && !matches!(c, ';' | '|' | '&' | '>')) {
            self.next();
            end.extend(Some(c).filter(|c| !matches!(c, '\'' | '"' | '\\')));
        }
        (!end.is_empty()).then_some(end)
    }

    fn skip_document(&mut self, end: &str) {
        while self.peek().is_some() {
            let mut line = String::new();
            while let Some(c) = self.next().filter(|c| *c != '\n') {
                line.push(c);
            }
            if line.trim() == end {
                return;
            }
        }
    }

    /// A word that begins here.
    fn word(&mut self, closing: Option<char>) -> RawWord {
        let mut word = RawWord { line: self.line, ..RawWord::default() };
        if let Some((name, appends)) = self.name() {
            if self.peek() == Some('(') {
                self.next();
                let items = self.statements(Some(')')).into_iter().flat_map(|statement| statement.words);
                word.array = Some((name, appends, items.collect()));
                return word;
            }
            let value = self.plain(closing);
            word.name = Some((name, appends, Box::new(value)));
            return word;
        }
        self.plain(closing)
    }

    /// `NAME=` or `NAME+=`, taken if it is there.
    fn name(&mut self) -> Option<(String, bool)> {
        let rest = &self.characters[self.at..];
        let length = rest.iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
        let begins = rest.first().is_some_and(|c| !c.is_ascii_digit());
        let appends = rest.get(length) == Some(&'+') && rest.get(length + 1) == Some(&'=');
        if length == 0 || !begins || !(appends || rest.get(length) == Some(&'=')) {
            return None;
        }
        let name = rest[..length].iter().collect();
        self.at += length + if appends { 2 } else { 1 };
        Some((name, appends))
    }

    fn plain(&mut self, closing: Option<char>) -> RawWord {
        let mut word = RawWord { line: self.line, ..RawWord::default() };
        while let Some(c) = self.peek() {
            let ends = c.is_whitespace() || matches!(c, ';' | '&' | '|' | '<' | '>' | ')') || Some(c) == closing;
            if ends {
                break;
            }
            self.piece(c, &mut word);
        }
        word
    }

    /// Takes one character, quotation or expansion into a word.
    fn piece(&mut self, c: char, word: &mut RawWord) {
        match c {
            '\'' => {
                self.next();
                let mut text = String::new();
                while let Some(c) = self.next().filter(|c| *c != '\'') {
                    text.push(c);
                }
                push(word, text);
            }
            '"' => {
                self.next();
                push(word, String::new());
                while let Some(c) = self.peek() {
                    match c {
                        '"' => {
                            self.next();
                            break;
                        }
                        '\\' => self.escape(word, true),
                        '$' | '`' => self.expansion(word, true),
                        _ => {
                            self.next();
                            push(word, c.to_string());
                        }
                    }
                }
            }
            '\\' => self.escape(word, false),
            '$' | '`' => self.expansion(word, false),
            _ => {
                self.next();
                push(word, c.to_string());
            }
        }
    }

    fn escape(&mut self, word: &mut RawWord, quoted: bool) {
        self.next();
        match self.next() {
            // A line goes on.
            Some('\n') => {}
            Some(c) if !quoted || matches!(c, '$' | '`' | '"' | '\\') => push(word, c.to_string()),
            Some(c) => push(word, format!("\\{c}")),
            None => {}
        }
    }

    fn expansion(&mut self, word: &mut RawWord, quoted: bool) {
        let opening = self.next();
        if opening == Some('`') {
            while self.next().is_some_and(|c| c != '`') {}
            word.pieces.push(Piece::Expansion { source: "`".to_owned(), quoted });
            return;
        }
        let source = match self.peek() {
            Some('{') => self.enclosed('{', '}'),
            Some('(') => self.enclosed('(', ')'),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    self.next();
                    name.push(c);
                }
                name
            }
            Some(c) if c.is_ascii_digit() || matches!(c, '@' | '*' | '#' | '?' | '$' | '!') => {
                self.next();
                c.to_string()
            }
            _ => return push(word, "$".to_owned()),
        };
        word.pieces.push(Piece::Expansion { source, quoted });
    }

    /// What stands in braces or parentheses that may hold others, with them.
    fn enclosed(&mut self, open: char, close: char) -> String {
        let (mut depth, mut text) = (0usize, String::new());
        while let Some(c) = self.next() {
            text.push(c);
            depth += usize::from(c == open);
            depth -= usize::from(c == close);
            if depth == 0 {
                break;
            }
        }
        text
    }
}

/// Adds characters to a word.
fn push(word: &mut RawWord, text: String) {
    match word.pieces.last_mut() {
        Some(Piece::Text(last)) => last.push_str(&text),
        _ => word.pieces.push(Piece::Text(text)),
    }
}

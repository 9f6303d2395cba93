//! Texts that problems point into, and how a problem is shown with its lines.

use std::fmt::Write as _;

use ir::Problem;

/// Files that were read, by the name under which problems refer to them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    files: Vec<(String, String)>,
}

/// A place in a text, counted from 1 as editors do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Sources {
    /// Adds a file; a second text under the same name is ignored.
    pub fn add(&mut self, file: impl Into<String>, text: impl Into<String>) {
        let file = file.into();
        if self.text(&file).is_none() {
            self.files.push((file, text.into()));
        }
    }
    /// Takes over all files of `other`.
    pub fn extend(&mut self, other: Self) {
        for (file, text) in other.files {
            self.add(file, text);
        }
    }
    /// The texts, in the order in which they were read.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(_, text)| text.as_str())
    }
    /// The text of a file.
    #[must_use]
    pub fn text(&self, file: &str) -> Option<&str> {
        self.files.iter().find(|(name, _)| name == file).map(|(_, text)| text.as_str())
    }
    /// Where a problem starts; `None` if it has no place or its file is not here.
    #[must_use]
    pub fn location(&self, problem: &Problem) -> Option<Location> {
        let span = problem.span.as_ref()?;
        Some(locate(self.text(&span.file)?, span.range.start))
    }
    /// A problem as lines of plain text:
    ///
    /// ```text
    /// scenario.toml:7:10: plan.tensor: 3 does not divide the 96 heads
    ///   7 | tensor = 3
    ///     |          ^
    ///   hint: tensor = 2 or 4 would
    /// ```
    #[must_use]
    pub fn render(&self, problem: &Problem) -> String {
        let mut out = String::new();
        let located = problem.span.as_ref().and_then(|span| self.text(&span.file).map(|text| (span, text)));
        if let Some((span, text)) = located {
            let at = locate(text, span.range.start);
            let _ = write!(out, "{}:{}:{}: ", span.file, at.line, at.column);
        } else if let Some(span) = &problem.span {
            let _ = write!(out, "{}: ", span.file);
        }
        if !problem.subject.is_empty() {
            let _ = write!(out, "{}: ", problem.subject);
        }
        out.push_str(&problem.message);
        if let Some((span, text)) = located {
            out.push_str(&excerpt(text, span.range.clone()));
        }
        if let Some(hint) = &problem.hint {
            for (index, line) in hint.lines().enumerate() {
                let _ = write!(out, "\n  {}{line}", if index == 0 { "hint: " } else { "      " });
            }
        }
        out
    }
}

/// Line and column of a byte; a byte past the end is the end, a byte inside a character is that character.
fn locate(text: &str, byte: usize) -> Location {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    Location { line, column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1 }
}

/// The line on which `range` starts, underlined; long lines are cut around the place.
fn excerpt(text: &str, range: std::ops::Range<usize>) -> String {
    const WIDTH: usize = 100;
    let at = locate(text, range.start);
    let line: Vec<char> = text.lines().nth(at.line - 1).unwrap_or("").chars().collect();
    let column = (at.column - 1).min(line.len());
    let end = range.end.min(text.len()).max(range.start.min(text.len()));
    let marked = String::from_utf8_lossy(&text.as_bytes()[range.start.min(text.len())..end])
        .lines()
        .next()
        .map_or(1, |first| first.chars().count())
        .clamp(1, (line.len() - column).max(1));
    let from = if line.len() > WIDTH { column.saturating_sub(WIDTH / 2) } else { 0 };
    let until = (from + WIDTH).min(line.len());
    // A tab or control character is one column wide here, as it is in the count of columns.
    let shown: String = line[from..until].iter().map(|c| if c.is_control() { ' ' } else { *c }).collect();
    let gutter = at.line.to_string();
    let (blank, marks) = (" ".repeat(gutter.len()), "^".repeat(marked.min((until - column).max(1))));
    format!("\n  {gutter} | {shown}\n  {blank} | {}{marks}", " ".repeat(column - from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::SourceSpan;

    fn check(text: &str, range: std::ops::Range<usize>, expect: &str) {
        let mut sources = Sources::default();
        sources.add("s.toml", text);
        let problem = Problem::new("key", "is wrong").at(SourceSpan { file: "s.toml".into(), range });
        assert_eq!(sources.render(&problem), expect, "{text:?}");
    }

    #[test]
    fn places_are_shown() {
        check("a = 1\nb = 22\n", 10..12, "s.toml:2:5: key: is wrong\n  2 | b = 22\n    |     ^^");
        check("é = 1\n", 5..6, "s.toml:1:5: key: is wrong\n  1 | é = 1\n    |     ^");
        check("", 0..0, "s.toml:1:1: key: is wrong\n  1 | \n    | ^");
        check("a", 7..9, "s.toml:1:2: key: is wrong\n  1 | a\n    |  ^");
        check("a = \"\"\"x\ny\"\"\"", 4..13, "s.toml:1:5: key: is wrong\n  1 | a = \"\"\"x\n    |     ^^^^");
    }

    #[test]
    fn long_lines_are_cut() {
        let text = format!("{}!{}", "x".repeat(500), "y".repeat(500));
        let mut sources = Sources::default();
        sources.add("s", text);
        let shown = sources.render(&Problem::new("", "m").at(SourceSpan { file: "s".into(), range: 500..501 }));
        assert!(shown.lines().all(|line| line.len() < 120), "{shown}");
        assert!(shown.contains('!'));
    }
}

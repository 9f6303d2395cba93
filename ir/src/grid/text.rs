//! The text form of grids (the CSV of PyTorch's pipelining schedules) and the picture for messages.

use std::fmt::{Display, Formatter, Write};
use std::ops::Range;

use super::{Action, Cell, Grid};
use crate::{ChunkId, MicrobatchId, Problem};

impl Action {
    /// Its letter in the text form.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
        }
    }
    const fn of(letter: u8) -> Option<Self> {
        match letter {
            b'F' => Some(Self::Forward),
            b'B' => Some(Self::Backward),
            b'I' => Some(Self::BackwardInput),
            b'W' => Some(Self::BackwardWeight),
            _ => None,
        }
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}{}{}", self.chunk.raw(), self.action.letter(), self.microbatch.raw()))
    }
}

impl Display for Grid {
    /// One line per position, each ended by a line feed; parses back to the same grid.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for row in &self.rows {
            for (index, cell) in row.iter().enumerate() {
                write!(f, "{}{cell}", if index == 0 { "" } else { "," })?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

impl Cell {
    fn parse(text: &str) -> Result<Self, String> {
        let at = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        let (chunk, rest) = text.split_at(at);
        let action = rest.bytes().next().and_then(Action::of);
        let microbatch = rest.get(1..).unwrap_or_default();
        let numeric = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let (Some(action), true, true) = (action, numeric(chunk), numeric(microbatch)) else {
            return Err("is not a pass".to_owned());
        };
        let number =
            |s: &str, what: &str| s.parse::<u32>().map_err(|_| format!("has a {what} number over {}", u32::MAX));
        Ok(Self {
            chunk: ChunkId::new(number(chunk, "chunk")?),
            action,
            microbatch: MicrobatchId::new(number(microbatch, "microbatch")?),
        })
    }
}

/// What to do about a cell that is no pass.
fn advice(text: &str) -> &'static str {
    let upper = text.to_ascii_uppercase();
    if ["SEND", "RECV", "SHARD", "REDUCE"].iter().any(|word| upper.contains(word)) {
        "write passes only: messages and collectives follow from them"
    } else if Cell::parse(&upper).is_ok() {
        "write the action as a capital letter"
    } else {
        "write <chunk><action><microbatch> with action F, B, I or W, as in 0F3, and nothing for an idle slot"
    }
}

impl Grid {
    /// Reads the text form: line `i` is pipeline position `i`; empty cells are idle slots; lines at the end that
    /// hold no pass are ignored.
    ///
    /// # Errors
    /// Every cell that is not a pass, by line and cell (both from 1); or that there is no pass at all.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut rows = Vec::new();
        for (line, content) in text.trim_start_matches('\u{feff}').trim_end().lines().enumerate() {
            let mut row = Vec::new();
            for (index, cell) in content.split(',').map(str::trim).enumerate() {
                if cell.is_empty() {
                    continue;
                }
                match Cell::parse(cell) {
                    Ok(cell) => row.push(cell),
                    Err(what) => {
                        let shown: String = cell.chars().take(24).flat_map(char::escape_default).collect();
                        let subject = format!("schedule line {}, cell {}", line + 1, index + 1);
                        problems.push(Problem::new(subject, format!("\"{shown}\" {what}")).hint(advice(cell)));
                    }
                }
            }
            rows.push(row);
        }
        while rows.last().is_some_and(Vec::is_empty) {
            rows.pop();
        }
        if problems.is_empty() && rows.is_empty() {
            problems.push(
                Problem::new("schedule", "there is no pass in it")
                    .hint("write one line per pipeline position, as in 0F0,0B0"),
            );
        }
        if problems.is_empty() { Ok(Self { rows }) } else { Err(problems) }
    }

    /// The grid in aligned columns for a message, with one cell marked, as in `>0B3<`.
    ///
    /// A guilty cell is (row, index in the row); an index one past the row's end marks the place of a missing pass.
    /// At most 24 rows and 15 columns around the guilty cell are shown.
    #[must_use]
    pub fn picture(&self, guilty: Option<(usize, usize)>) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0).max(guilty.map_or(0, |(_, cell)| cell + 1));
        let (row, column) = guilty.unwrap_or((0, 0));
        let shown_rows = window(row, self.rows.len(), 24);
        let shown_columns = window(column, columns, 15);
        let label = format!("position {}", shown_rows.end.saturating_sub(1)).len();
        let mut lines = Vec::new();
        let texts: Vec<Vec<String>> = self.rows[shown_rows.clone()]
            .iter()
            .map(|row| shown_columns.clone().map(|c| row.get(c).map(Cell::to_string).unwrap_or_default()).collect())
            .collect();
        let width = texts.iter().flatten().map(String::len).max().unwrap_or(0).max(1);
        if shown_rows.start > 0 {
            lines.push(format!("({} positions before)", shown_rows.start));
        }
        for (position, cells) in shown_rows.clone().zip(texts) {
            let mut line = format!("{:<label$} |", format!("position {position}"));
            line.push_str(if shown_columns.start > 0 { " …" } else { "" });
            for (index, text) in shown_columns.clone().zip(cells) {
                if guilty == Some((position, index)) {
                    let text = if text.is_empty() { "?" } else { &text };
                    let _ = write!(line, "{:<1$}", format!(">{text}<"), width + 2);
                } else {
                    let _ = write!(line, " {text:<width$} ");
                }
            }
            let more = self.rows[position].len() > shown_columns.end;
            lines.push(format!("{}{}", line.trim_end(), if more { " …" } else { "" }));
        }
        if shown_rows.end < self.rows.len() {
            lines.push(format!("({} positions after)", self.rows.len() - shown_rows.end));
        }
        lines.join("\n")
    }
}

/// At most `size` of `0..length` around `centre`.
fn window(centre: usize, length: usize, size: usize) -> Range<usize> {
    let start = centre.saturating_sub(size / 2).min(length.saturating_sub(size));
    start..length.min(start + size)
}

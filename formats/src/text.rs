//! Lines of a text with their places, and the faults found in them.

use std::ops::Range;

use ir::{Problem, SourceSpan};

/// A line without its end, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Line<'t> {
    /// Counted from 1.
    pub(crate) number: usize,
    /// Its bytes in the text.
    pub(crate) range: Range<usize>,
    /// Its characters.
    pub(crate) text: &'t str,
}

/// The lines of a text. A byte order mark and carriage returns are no part of them.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut start = 0;
    text.split_inclusive('\n').enumerate().map(move |(index, whole)| {
        let mark = if index == 0 && whole.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let shown = whole[mark..].trim_end_matches(['\n', '\r']);
        let from = start + mark;
        start += whole.len();
        Line { number: index + 1, range: from..from + shown.len(), text: shown }
    })
}

/// Every fault of one file, in the order found.
#[derive(Debug)]
pub(crate) struct Faults<'a> {
    file: &'a str,
    problems: Vec<Problem>,
}

/// A file with more faults than this is another kind of file.
const MOST: usize = 100;

impl<'a> Faults<'a> {
    pub(crate) const fn new(file: &'a str) -> Self {
        Self { file, problems: Vec::new() }
    }
    /// A fault at these bytes, whose subject names the line.
    pub(crate) fn at(&mut self, line: &Line<'_>, message: impl Into<String>, hint: Option<String>) {
        if self.problems.len() >= MOST {
            return;
        }
        let problem = Problem::new(format!("line {}", line.number), message);
        let problem = if let Some(hint) = hint { problem.hint(hint) } else { problem };
        self.problems.push(problem.at(SourceSpan { file: self.file.to_owned(), range: line.range.clone() }));
    }
    /// A fault of the file as a whole.
    pub(crate) fn whole(&mut self, subject: &str, message: impl Into<String>, hint: impl Into<String>, length: usize) {
        let problem = Problem::new(subject, message).hint(hint);
        self.problems.push(problem.at(SourceSpan { file: self.file.to_owned(), range: 0..length }));
    }
    /// How many were found.
    pub(crate) const fn count(&self) -> usize {
        self.problems.len()
    }
    /// Whether nothing was found.
    pub(crate) const fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }
    /// The value where nothing was found, else everything that was.
    pub(crate) fn finish<T>(self, value: impl FnOnce() -> T) -> Result<T, Vec<Problem>> {
        if self.problems.is_empty() { Ok(value()) } else { Err(self.problems) }
    }
}

/// The nearest of `words`, if one is near enough to be meant.
pub(crate) fn nearest(word: &str, words: &[&str]) -> Option<String> {
    let lower = word.to_lowercase();
    let likeness = |candidate: &str| strsim::jaro_winkler(&lower, &candidate.to_lowercase());
    let best = words.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= 0.8).then(|| format!("did you mean `{best}`?"))
}

/// Draws for tests that change bytes of good files (SplitMix64).
#[cfg(test)]
pub(crate) mod testing {
    /// Applies `rounds` seeded mutations of single bytes, cuts and copies to each text and hands out what is still UTF-8.
    pub(crate) fn mutate(seed: u64, rounds: usize, texts: &[&str], mut try_one: impl FnMut(&str)) -> usize {
        let mut state = seed;
        let mut draw = |below: usize| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            usize::try_from((z ^ (z >> 31)) % below.max(1) as u64).expect("below")
        };
        let mut tried = 0;
        for round in 0..rounds {
            let mut bytes = texts[round % texts.len()].as_bytes().to_vec();
            for _ in 0..=draw(4) {
                let at = draw(bytes.len());
                match draw(5) {
                    0 if at < bytes.len() => bytes[at] = u8::try_from(draw(256)).expect("a byte"),
                    1 if at < bytes.len() => bytes[at] = b"0123456789 \t\n,[]-=#.GXN"[draw(23)],
                    2 => bytes.truncate(at),
                    3 => drop(bytes.drain(at..(at + draw(40)).min(bytes.len()))),
                    _ => {
                        let piece = bytes[at..(at + draw(40)).min(bytes.len())].to_vec();
                        let to = draw(bytes.len() + 1);
                        drop(bytes.splice(to..to, piece));
                    }
                }
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                tried += 1;
                try_one(text);
            }
        }
        tried
    }
}

//! `[data]` and `[report]`: what a run trains on and what is written about it.

use std::path::Path;

use exec::data::Packing;
use ir::Problem;

use super::Sight;
use crate::read::{Table, Value};

/// A tokenizer without a file.
pub(super) const BYTES: &str = "bytes";
/// Nothing stands after a document.
pub(super) const NONE: &str = "none";

/// What a run trains on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataChoice {
    /// A text that the project generates from the seed; tokens are bytes.
    Generated,
    /// Text of files.
    Files(TextFiles),
}

/// Text files, and how they become sequences of tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextFiles {
    /// The whole path of a file, or of a folder.
    pub path: String,
    /// Of a folder: the endings of the files that are taken, without their dots.
    pub extensions: Option<Vec<String>>,
    /// The whole path of a `tokenizer.json`; without it tokens are bytes.
    pub tokenizer: Option<String>,
    /// What a document is.
    pub documents: Documents,
    /// What stands after each document, if anything does: an added token of the tokenizer; where tokens are bytes, token 256.
    pub end: Option<String>,
    /// How documents fill sequences.
    pub packing: Packing,
}

/// What a document is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Documents {
    /// A file.
    Files,
    /// What stands between blank lines of a file.
    Paragraphs,
    /// What stands between `<|endoftext|>` in a file.
    EndOfText,
    /// The text of each line of a file, each a JSON object with the key `text`.
    JsonLines,
}

impl Documents {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Files, Self::Paragraphs, Self::EndOfText, Self::JsonLines];
    /// Its name in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Paragraphs => "paragraphs",
            Self::EndOfText => "end-of-text",
            Self::JsonLines => "json-lines",
        }
    }
}

/// Files of a folder that are taken if nothing else is written.
const EXTENSIONS: [&str; 3] = ["txt", "md", "jsonl"];

/// What is written beside the terminal's summary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportChoice {
    /// Formats, in the order of writing.
    pub formats: Vec<ReportFormat>,
}

/// A form of report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReportFormat {
    /// One self-contained page.
    Html,
    /// A trace for Perfetto and Chrome.
    Perfetto,
    /// Markdown.
    Markdown,
    /// Tables.
    Csv,
}

pub(super) const FORMATS: [(&str, ReportFormat); 4] = [
    ("html", ReportFormat::Html),
    ("perfetto", ReportFormat::Perfetto),
    ("markdown", ReportFormat::Markdown),
    ("csv", ReportFormat::Csv),
];

/// Keys that say how files are read.
const HOW: [&str; 5] = ["extensions", "tokenizer", "documents", "end", "packing"];

/// Reads `[data]`.
pub(super) fn read(root: &Table<'_>, sight: &Sight<'_>) -> Option<DataChoice> {
    let Some(table) = root.table("data") else { return Some(DataChoice::Generated) };
    let source = table.get("source").map_or(Some(()), |v| v.choice(&[("generated", ())]));
    let [file, folder, extensions] = ["file", "folder", "extensions"].map(|key| table.get(key));
    let tokenizer = table.get("tokenizer").map_or(Some(None), |v| {
        if v.is_word(BYTES) { v.text().map(|_| None) } else { whole_path(&v, sight, false).map(Some) }
    });
    let documents =
        table.get("documents").map_or(Some(Documents::Files), |v| v.one_of(Documents::ALL, Documents::name));
    let end = table.get("end").map_or(Some(None), |v| v.text().map(|end| (end != NONE).then(|| end.to_owned())));
    let packing = table.get("packing").map_or(Some(Packing::Concatenate), |v| v.one_of(Packing::ALL, Packing::name));
    table.finish();
    source?;
    let (path, extensions) = match (&file, &folder) {
        (None, None) => {
            let lonely: Vec<&str> = HOW.into_iter().filter(|key| table.has(key)).collect();
            for key in &lonely {
                let problem = Problem::new(table.path_of(key), "says how files are read, and there are none");
                table.report(problem.hint("write file = \"text.txt\" or folder = \"texts\""));
            }
            return lonely.is_empty().then_some(DataChoice::Generated);
        }
        (Some(value), Some(_)) => return exclude(value),
        (Some(value), None) | (None, Some(value)) if table.has("source") => return exclude(value),
        (Some(file), None) => {
            if let Some(extensions) = &extensions {
                extensions.problem("a file is taken whatever it ends in", Some("leave it out".to_owned()));
                return None;
            }
            (whole_path(file, sight, false), Some(None))
        }
        (None, Some(folder)) => {
            let all = || Some(EXTENSIONS.map(str::to_owned).to_vec());
            (whole_path(folder, sight, true), extensions.as_ref().map_or_else(all, endings).map(Some))
        }
    };
    Some(DataChoice::Files(TextFiles {
        path: path?,
        extensions: extensions?,
        tokenizer: tokenizer?,
        documents: documents?,
        end: end?,
        packing: packing?,
    }))
}

fn exclude<T>(value: &Value<'_>) -> Option<T> {
    value.problem("`file`, `folder` and `source = \"generated\"` exclude each other", None);
    None
}

/// The whole path of a file, or of a folder, that is there.
fn whole_path(value: &Value<'_>, sight: &Sight<'_>, folder: bool) -> Option<String> {
    let joined = sight.base.join(Path::new(value.text()?));
    let path = std::path::absolute(&joined).unwrap_or(joined);
    match std::fs::metadata(&path) {
        Err(error) => value.problem(format!("cannot read {}: {error}", path.display()), None),
        Ok(found) if found.is_dir() && !folder => {
            let hint = (value.path() == "data.file").then(|| "name it as `folder`".to_owned());
            value.problem(format!("{} is a folder", path.display()), hint);
        }
        Ok(found) if !found.is_dir() && folder => {
            value.problem(format!("{} is a file", path.display()), Some("name it as `file`".to_owned()));
        }
        Ok(_) => return Some(path.display().to_string()),
    }
    None
}

/// Endings of files, without dots.
fn endings(value: &Value<'_>) -> Option<Vec<String>> {
    let items = value.list()?;
    if items.is_empty() {
        value.problem("no file has none of no endings", Some("write [\"txt\"], or leave it out".to_owned()));
        return None;
    }
    let ending = |item: &Value<'_>| Some(item.text()?.trim_start_matches('.').to_owned());
    items.iter().map(ending).collect()
}

/// Reads `[report]`; without one, every format is written.
pub(super) fn read_report(root: &Table<'_>) -> Option<ReportChoice> {
    let all = || ReportChoice { formats: FORMATS.iter().map(|(_, format)| *format).collect() };
    let Some(table) = root.table("report") else { return Some(all()) };
    let formats = table.get("formats").map(|v| {
        let read: Vec<Option<ReportFormat>> = v.list()?.iter().map(|item| item.choice(&FORMATS)).collect();
        read.into_iter().collect::<Option<Vec<_>>>()
    });
    table.finish();
    match formats {
        None => Some(all()),
        Some(formats) => {
            let mut formats = formats?;
            formats.sort_unstable();
            formats.dedup();
            Some(ReportChoice { formats })
        }
    }
}

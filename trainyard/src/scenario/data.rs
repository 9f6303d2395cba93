//! `[data]` and `[report]`: what a run trains on and what is written about it.

use std::path::Path;

use super::Sight;
use crate::read::Table;

/// What a run trains on; tokens are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataChoice {
    /// A text that the project generates from the seed.
    Generated,
    /// The bytes of a file.
    File {
        /// Its whole path.
        path: String,
    },
}

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

/// Reads `[data]`.
pub(super) fn read(root: &Table<'_>, sight: &Sight<'_>) -> Option<DataChoice> {
    let Some(table) = root.table("data") else { return Some(DataChoice::Generated) };
    let source = table.get("source").map_or(Some(()), |v| v.choice(&[("generated", ())]));
    let file = table.get("file");
    table.finish();
    source?;
    match file {
        None => Some(DataChoice::Generated),
        Some(value) => {
            if table.has("source") {
                value.problem("a file and `source = \"generated\"` exclude each other", None);
                return None;
            }
            let joined = sight.base.join(Path::new(value.text()?));
            let path = std::path::absolute(&joined).unwrap_or(joined);
            if let Err(error) = std::fs::metadata(&path) {
                value.problem(format!("cannot read {}: {error}", path.display()), None);
                return None;
            }
            Some(DataChoice::File { path: path.display().to_string() })
        }
    }
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

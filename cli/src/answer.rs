//! What a verb leaves: words and JSON to print, and files in a folder.

use std::path::Path;

use trainyard::{Document, Error, Loaded, Output, Subject, output, scenario};

use crate::arguments::OfScenario;
use crate::{exit, tables};

/// What a verb leaves to print: its JSON and its summary.
pub(crate) struct Answer {
    pub(crate) json: String,
    pub(crate) summary: String,
    pub(crate) code: u8,
}

impl Answer {
    pub(crate) const fn good(json: String, summary: String) -> Self {
        Self { json, summary, code: exit::OK }
    }
    /// Nothing: another process has the answer.
    pub(crate) const fn none() -> Self {
        Self { json: String::new(), summary: String::new(), code: exit::OK }
    }
    /// A page, with all that its numbers rest on; whether what it is about can be done at all.
    pub(crate) fn of_page(page: &Document, json: String, possible: bool) -> Self {
        let summary = tables::document(page) + &tables::assumptions(page);
        Self { json, summary, code: if possible { exit::OK } else { exit::INFEASIBLE } }
    }
}

/// Reads the scenario and makes sure that results can be written, before any work.
pub(crate) fn open(of: &OfScenario) -> Result<(Loaded, Option<Output>), Error> {
    let out = of.out.as_deref().map(Output::open).transpose()?;
    if let Some(path) = of.common.json.as_deref().filter(|path| *path != Path::new("-")) {
        output::probe(path)?;
    }
    Ok((scenario::load(&of.scenario)?, out))
}

pub(crate) fn stage(out: &mut Option<Output>, name: &str, content: &[u8]) -> Result<(), Error> {
    out.as_mut().map_or(Ok(()), |out| out.stage(name, content))
}

/// As [`close`], with a page.
pub(crate) fn close_with_page(
    mut out: Option<Output>,
    loaded: &Loaded,
    name: &str,
    page: &Document,
    json: &str,
) -> Result<(), Error> {
    stage(&mut out, "report.html", page.html().as_bytes())?;
    close(out, loaded, &format!("{name}.json"), json)
}

/// As [`close`], with the reports that the scenario asks for.
pub(crate) fn close_with_reports(
    mut out: Option<Output>,
    loaded: &Loaded,
    subject: &Subject<'_>,
    json: &str,
) -> Result<(), Error> {
    if let Some(out) = &mut out {
        trainyard::stage_reports(out, loaded, subject)?;
    }
    let name = match subject {
        Subject::Simulated(_) => "simulate.json",
        Subject::Measured(_) => "run.json",
        Subject::Compared(_) => "compare.json",
    };
    close(out, loaded, name, json)
}

/// Writes the result and the resolved scenario beside it, and lets all files appear.
pub(crate) fn close(mut out: Option<Output>, loaded: &Loaded, name: &str, json: &str) -> Result<(), Error> {
    stage(&mut out, name, json.as_bytes())?;
    stage(&mut out, "resolved.toml", loaded.scenario.to_toml().as_bytes())?;
    if let Some(out) = out {
        out.commit()?;
    }
    Ok(())
}

//! `check --scoreboard`: the project's own tables, predicted now, against what was published.

use std::path::Path;

use crate::progress::Context;
use crate::results::{CheckScoreboardReport, Header};
use crate::validate::published::Published;
use crate::verbs::validate::{ValidateRequest, validate};
use crate::{Error, InputError};

/// Predicts every row of the project's own tables as the catalog stands and holds each table's errors against a published
/// `scoreboard.json`. An error is worse if it grew by more than 3 % of itself and a tenth of a point.
///
/// # Errors
/// A file that cannot be read or is no scoreboard; an interrupt.
pub fn check_scoreboard(file: &Path, context: &Context<'_>) -> Result<CheckScoreboardReport, Error> {
    let text = std::fs::read_to_string(file).map_err(|error| Error::files(file, format!("cannot be read: {error}")))?;
    let published = Published::from_json(&text).map_err(|what| {
        let name = file.display().to_string();
        let problem = ir::Problem::new(name, what).hint("trainyard validate --out DIR writes one");
        Error::Input(InputError { problems: vec![problem], sources: crate::source::Sources::default() })
    })?;
    let request = ValidateRequest { files: &[], leave_out: None, refit: false, scores: &[] };
    let changes = published.changes(&validate(&request, context)?.document());
    let passed = changes.iter().all(|change| !change.worse);
    Ok(CheckScoreboardReport { header: Header::new("check", ""), passed, changes })
}

//! `calibrate --rows`: a test bed's few constants from its own measured rows.

use std::path::Path;

use crate::progress::Context;
use crate::results::{CalibrateRowsReport, FittedStack, Header, RestErrors};
use crate::validate::{Knowledge, Others, bed, stacks_text};
use crate::verbs::validate::{read, tables};
use crate::{Error, catalog};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct CalibrateRowsRequest<'a> {
    /// A table in the schema of [`formats::measured_runs`].
    pub rows: &'a Path,
    /// How many of its rows are fitted to; `None`: all.
    pub take: Option<u32>,
    /// Which ones: the same seed takes the same rows.
    pub seed: u64,
}

/// Fits the constants of a table's software on its devices to some of its rows, and predicts the others. What the catalog
/// knows without the table is the prior.
///
/// # Errors
/// A file that cannot be read or is no such table; a table of which no row was timed and can be predicted, with the first
/// reasons; fewer rows than are to be taken; an interrupt.
pub fn calibrate_rows(request: &CalibrateRowsRequest<'_>, context: &Context<'_>) -> Result<CalibrateRowsReport, Error> {
    context.step("read", 0, 0, request.rows.display().to_string())?;
    let tables = tables(&read(&[request.rows])?, &crate::validate::measured_tables())?;
    let others = Others::default();
    let known = Knowledge { tables: &tables, stacks: catalog::stacks(), left_out: None, others: &others };
    context.step("fit", 0, 0, "constants of the rows' stacks")?;
    let prior = known.without(&tables.tables[0].name);
    let take = request.take.map(|take| take as usize);
    let timed = bed::timed(&tables, 0);
    if take.is_some_and(|take| take > timed) {
        let problem = ir::Problem::new("--take", format!("{timed} rows were timed and can be predicted"));
        return Err(Error::problem(problem.hint(format!("--take {timed}, or none for all of them"))));
    }
    let Some(bed) = bed::fit(&tables, &prior, 0, take, request.seed) else {
        return Err(Error::input(nothing_to_fit(&tables, request.rows)));
    };
    let stacks = cost::Stacks { stack: bed.stacks.clone(), ..catalog::stacks().clone() };
    let stacks = stacks_text::rounded(&stacks);
    let head = "# A test bed's software, fitted to its own rows by `trainyard calibrate --rows`. A scenario takes it as\n\
                # [cost] stacks = \"FILE\" with the class as [training] stack.\n";
    let fitted = stacks.stack.iter().map(|row| FittedStack {
        class: row.class.clone(),
        release: row.release.clone(),
        key: words(row),
        rows: row.rows,
        spread: row.spread,
        compute_factor: row.constants.compute_factor,
        launch_us: row.constants.launch_us,
        iteration_us: row.constants.iteration_us,
        network_efficiency: row.constants.network_efficiency,
        message_sync_us: row.constants.message_sync_us,
    });
    let errors = |table: &reports::scoreboard::ScoreTable| RestErrors {
        rows: table.predicted,
        median_ape: table.median_ape,
        mean_ape: table.mean_ape,
        p90_ape: table.p90_ape,
        interval_coverage: table.interval_coverage,
    };
    Ok(CalibrateRowsReport {
        header: Header::new("calibrate", ""),
        table: request.rows.display().to_string(),
        seed: request.seed,
        stacks: fitted.collect(),
        taken: bed.taken,
        rest: bed.rest.as_ref().map(errors),
        rest_before: bed.before.as_ref().map(errors),
        stacks_toml: stacks_text::with_rows(head, &stacks),
    })
}

fn words(row: &cost::StackRow) -> String {
    let models = if row.experts { "routed models" } else { "dense models" };
    let graphs = match row.graphs {
        cost::GraphUse::None => String::new(),
        graphs => format!(", CUDA graphs {}", graphs.name()),
    };
    let release = row.release.as_ref().map_or_else(String::new, |release| format!(", release {release}"));
    format!("{} on {}, {}, {models}{graphs}{release}", row.class, row.generation, row.precision.name())
}

/// Why nothing can be fitted: the first refusals by name.
fn nothing_to_fit(tables: &crate::validate::Tables, file: &Path) -> Vec<ir::Problem> {
    const MOST: usize = 5;
    let rows = tables.tables[0].rows(reports::scoreboard::ScoreKind::Cold);
    let refused = rows.iter().filter_map(|row| Some((row.row_id.as_str(), row.refused.as_deref()?)));
    let mut problems: Vec<ir::Problem> =
        refused.take(MOST).map(|(row, reason)| ir::Problem::new(row.to_owned(), reason.to_owned())).collect();
    let all = format!("none of its {} rows was timed and can be predicted", rows.len());
    problems.insert(0, ir::Problem::new(file.display().to_string(), all));
    problems
}

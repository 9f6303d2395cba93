//! `compare`: one program in the simulator and on real ranks.

use cost::Calibration;

use crate::job::Job;
use crate::results::{CompareReport, Header};
use crate::scenario::{CostChoice, Loaded};
use crate::verbs::keeping::Keeping;
use crate::verbs::{run, simulate};
use crate::{Context, Error};

/// Simulates and trains a scenario's plan and joins the two timelines instruction by instruction.
///
/// # Errors
/// As [`crate::simulate`] and [`crate::run`].
pub fn compare(loaded: &Loaded, context: &Context<'_>) -> Result<CompareReport, Error> {
    let job = Job::new(loaded, None)?;
    report(&job, context, None)
}

pub(crate) fn report(
    job: &Job<'_>,
    context: &Context<'_>,
    measured: Option<&Calibration>,
) -> Result<CompareReport, Error> {
    let decision = job.decide(context)?;
    let simulated = simulate::report(job, &decision, context)?;
    let ranks = (run::Ranks::Threads, Keeping::default());
    let measured_run = run::report(job, &decision, &simulated.program, ranks, context)?;
    let timelines: Vec<&ir::Timeline> = measured_run.timelines.iter().collect();
    let comparison = reports::compare::compare(&simulated.program, &simulated.timeline, &timelines)
        .map_err(|problems| job.loaded.error(problems))?;
    let calibration = match (&job.loaded.scenario.cost, measured) {
        (CostChoice::PassTable(_), _) => "a table of pass durations".to_owned(),
        (CostChoice::Calibration { .. }, Some(calibration)) => {
            format!("`{}`, measured on this machine just before", calibration.name)
        }
        (CostChoice::Calibration { file: Some((name, _)), .. }, None) => name.clone(),
        (CostChoice::Calibration { file: None, .. }, None) => {
            "the catalog's, in which nothing of this machine was measured: `trainyard calibrate` measures it".to_owned()
        }
    };
    Ok(CompareReport {
        header: Header::new("compare", &job.loaded.scenario.name),
        iteration_error: simulated.prediction.iteration_ms / measured_run.iteration_ms - 1.0,
        simulated,
        measured: measured_run,
        comparison,
        calibration,
    })
}

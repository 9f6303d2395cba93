//! `quickstart`: everything once, on this machine, in under a minute.

use std::path::Path;
use std::time::Instant;

use cost::Calibration;

use crate::job::Job;
use crate::results::{Header, QuickstartReport, json};
use crate::scenario::CostChoice;
use crate::verbs::{Subject, calibrate, compare, plan, stage_reports};
use crate::{Context, Error, Output, scenario};

/// The scenario, a part of the program.
const SCENARIO: &str = include_str!("../../../scenarios/quickstart/scenario.toml");

/// Measures this machine, plans, simulates and trains the quickstart scenario, compares, and writes reports to `folder`.
///
/// # Errors
/// [`Error::Files`] before any work if the folder cannot be written; else as [`crate::compare`].
pub fn quickstart(folder: &Path, context: &Context<'_>) -> Result<QuickstartReport, Error> {
    let begun = Instant::now();
    let mut output = Output::open(folder)?;
    let mut loaded = scenario::parse("scenarios/quickstart/scenario.toml", SCENARIO, Path::new(""))?;
    let calibration = calibrate(context)?;
    let measured = Calibration::from_toml(&calibration.calibration_toml, "calibration.toml")
        .map_err(|problems| loaded.error(problems))?;
    // The resolved form that is written names what was measured, so that its command gives these results again.
    loaded.scenario.cost = CostChoice::Calibration {
        file: Some(("calibration.toml".to_owned(), calibration.calibration_toml.clone())),
        collectives: Vec::new(),
        interference: None,
        profiles: Vec::new(),
    };
    let job = Job::new(&loaded, Some(&measured))?;
    let planned = plan::report(&job, context)?;
    let compared = compare::report(&job, context, Some(&measured))?;
    context.step("report", 0, 0, "")?;
    output.stage("scenario.toml", SCENARIO.as_bytes())?;
    output.stage("resolved.toml", loaded.scenario.to_toml().as_bytes())?;
    output.stage("calibration.toml", calibration.calibration_toml.as_bytes())?;
    output.stage("planned.toml", planned.planned_scenario.as_bytes())?;
    output.stage("plan.json", json(&planned).as_bytes())?;
    output.stage("compare.json", json(&compared).as_bytes())?;
    stage_reports(&mut output, &loaded, &Subject::Compared(&compared))?;
    let files = output.commit()?;
    Ok(QuickstartReport {
        header: Header::new("quickstart", &loaded.scenario.name),
        elapsed_s: begun.elapsed().as_secs_f64(),
        plan: planned,
        calibration,
        compare: compared,
        files: files.iter().map(|file| file.display().to_string()).collect(),
    })
}

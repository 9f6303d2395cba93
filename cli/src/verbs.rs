//! Each verb: calls the library, writes what was asked for, shows a summary.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trainyard::results::{error_json, json};
use trainyard::{Context, Error, InitRequest, Loaded, Output, Subject, output, scenario};

use crate::arguments::{Arguments, OfScenario, Verb};
use crate::meter::Meter;
use crate::{exit, show, tables};

/// What a verb leaves to print: its JSON and its summary.
struct Answer {
    json: String,
    summary: String,
    code: u8,
}

impl Answer {
    const fn good(json: String, summary: String) -> Self {
        Self { json, summary, code: exit::OK }
    }
}

/// Carries out the verb and returns its exit code.
pub(crate) fn run(arguments: &Arguments, interrupt: &Arc<AtomicBool>) -> u8 {
    let common = arguments.verb.common();
    let meter = Meter::new(common.quiet);
    let answer = {
        let context = Context::new(Arc::clone(interrupt), |progress| meter.show(progress));
        answer(&arguments.verb, &context)
    };
    meter.finish();
    let answer = answer.and_then(|answer| match &common.json {
        Some(path) if path != Path::new("-") => output::write(path, answer.json.as_bytes()).map(|()| answer),
        _ => Ok(answer),
    });
    match answer {
        Ok(answer) => {
            if common.json.as_deref() == Some(Path::new("-")) {
                show::out(answer.json.trim_end());
            } else if !common.quiet {
                show::out(answer.summary.trim_end());
            }
            answer.code
        }
        Err(error) => {
            show::error(&error);
            if let Some(path) = &common.json {
                let text = error_json(arguments.verb.name(), &error);
                if path == Path::new("-") {
                    show::out(text.trim_end());
                } else if let Err(second) = output::write(path, text.as_bytes()) {
                    show::error(&second);
                }
            }
            exit::code(&error)
        }
    }
}

fn answer(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    match verb {
        Verb::Quickstart { out, .. } => {
            let report = trainyard::quickstart(out, context)?;
            Ok(Answer::good(json(&report), tables::quickstart(&report)))
        }
        Verb::Init { model, cluster, sequence_length, global_batch, out, force, .. } => {
            let request = InitRequest {
                model,
                cluster,
                sequence_length: *sequence_length,
                global_batch: *global_batch,
                folder: out,
                force: *force,
            };
            let report = trainyard::init(&request)?;
            Ok(Answer::good(json(&report), tables::init(&report)))
        }
        Verb::Plan(of) => {
            let (loaded, mut out) = open(of)?;
            let report = trainyard::plan(&loaded, context)?;
            stage(&mut out, "planned.toml", report.planned_scenario.as_bytes())?;
            close(out, &loaded, "plan.json", &json(&report))?;
            Ok(Answer::good(json(&report), tables::plan(&report)))
        }
        Verb::Simulate(of) => {
            let (loaded, out) = open(of)?;
            let report = trainyard::simulate(&loaded, context)?;
            close_with_reports(out, &loaded, &Subject::Simulated(&report), &json(&report))?;
            Ok(Answer::good(json(&report), tables::simulate(&report)))
        }
        Verb::Run(of) => {
            let (loaded, out) = open(of)?;
            let report = trainyard::run(&loaded, context)?;
            close_with_reports(out, &loaded, &Subject::Measured(&report), &json(&report))?;
            Ok(Answer::good(json(&report), tables::run(&report)))
        }
        Verb::Compare(of) => {
            let (loaded, out) = open(of)?;
            let report = trainyard::compare(&loaded, context)?;
            close_with_reports(out, &loaded, &Subject::Compared(&report), &json(&report))?;
            Ok(Answer::good(json(&report), tables::compare(&report)))
        }
        Verb::Calibrate { out, .. } => {
            output::probe(out)?;
            let report = trainyard::calibrate(context)?;
            output::write(out, report.calibration_toml.as_bytes())?;
            Ok(Answer::good(json(&report), tables::calibrate(&report, out)))
        }
        Verb::Check { baseline, tolerance, markdown, update, .. } => {
            if let Some(path) = markdown {
                output::probe(path)?;
            }
            let report = trainyard::check(baseline, *tolerance, *update, context)?;
            let table = report.markdown();
            if let Some(path) = markdown {
                output::write(path, table.as_bytes())?;
            }
            let code = if report.passed { exit::OK } else { exit::WORSE };
            Ok(Answer { json: json(&report), summary: table, code })
        }
        Verb::Doctor { .. } => {
            let report = trainyard::doctor();
            Ok(Answer::good(json(&report), tables::doctor(&report)))
        }
    }
}

/// Reads the scenario and makes sure that results can be written, before any work.
fn open(of: &OfScenario) -> Result<(Loaded, Option<Output>), Error> {
    let out = of.out.as_deref().map(Output::open).transpose()?;
    if let Some(path) = of.common.json.as_deref().filter(|path| *path != Path::new("-")) {
        output::probe(path)?;
    }
    Ok((scenario::load(&of.scenario)?, out))
}

fn stage(out: &mut Option<Output>, name: &str, content: &[u8]) -> Result<(), Error> {
    out.as_mut().map_or(Ok(()), |out| out.stage(name, content))
}

/// As [`close`], with the reports that the scenario asks for.
fn close_with_reports(
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
fn close(mut out: Option<Output>, loaded: &Loaded, name: &str, json: &str) -> Result<(), Error> {
    stage(&mut out, name, json.as_bytes())?;
    stage(&mut out, "resolved.toml", loaded.scenario.to_toml().as_bytes())?;
    if let Some(out) = out {
        out.commit()?;
    }
    Ok(())
}

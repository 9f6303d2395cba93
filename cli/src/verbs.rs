//! Each verb: calls the library, writes what was asked for, shows a summary.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trainyard::results::{error_json, json};
use trainyard::{
    Context, Error, InitRequest, LaunchRequest, Output, Subject, SweepPoints, SweepRequest, Vary, output, scenario,
};

use crate::answer::{Answer, close, close_with_page, close_with_reports, open, stage};
use crate::arguments::{Arguments, OfScenario, Verb};
use crate::meter::Meter;
use crate::{ablation, exchanged, exit, launched, measured, placed, show, tables, trained};

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
        _ if answer.json.is_empty() => Ok(answer),
        Some(path) if path != Path::new("-") => output::write(path, answer.json.as_bytes()).map(|()| answer),
        _ => Ok(answer),
    });
    match answer {
        Ok(answer) if answer.json.is_empty() => answer.code,
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
        Verb::Import { .. } | Verb::Export { .. } => exchanged::answer(verb, context),
        Verb::Plan { of, .. } | Verb::Simulate(of) | Verb::Explain(of) | Verb::Size(of) | Verb::Compare(of) => {
            of_scenario(verb, of, context)
        }
        Verb::Place { of, matrix, topology, budget } => {
            placed::answer(of, (matrix.as_deref(), topology.as_deref(), *budget), context)
        }
        Verb::Run { of, device, ranks_per_gpu, resume } => {
            launched::run(of, (*device, *ranks_per_gpu), resume.as_deref(), context)
        }
        Verb::Launch { of, nproc, silence, restarts, resume, keep_every } => {
            let request = LaunchRequest {
                processes: *nproc,
                silence: *silence,
                restarts: *restarts,
                keep_every: *keep_every,
                resume: resume.clone(),
                worker: launched::worker,
            };
            launched::launch(of, &request, context)
        }
        Verb::Calibrate { .. } | Verb::Validate { .. } => measured::answer(verb, context),
        Verb::Check { .. } | Verb::Diff { .. } => compared(verb, context),
        Verb::Sweep { .. } => sweep(verb, context),
        Verb::TrainPolicy { .. } => trained::answer(verb, context),
        Verb::Ablate(asked) => ablation::answer(asked, context),
        Verb::Schema { .. } => {
            let text = json(&scenario::schema());
            Ok(Answer::good(text.clone(), text))
        }
        Verb::Worker { .. } => trainyard::serve_launched().map(|()| Answer::none()),
        Verb::Doctor { .. } => {
            let report = trainyard::doctor();
            Ok(Answer::good(json(&report), tables::doctor(&report)))
        }
    }
}

/// The verbs of one scenario.
fn of_scenario(verb: &Verb, of: &OfScenario, context: &Context<'_>) -> Result<Answer, Error> {
    let (loaded, mut out) = open(of)?;
    match verb {
        Verb::Plan { policy, objective, pareto, .. } => {
            let loaded = policy.map_or_else(|| loaded.clone(), |policy| loaded.clone().decided_by(policy));
            let loaded = objective.map_or_else(|| loaded.clone(), |objective| loaded.clone().minimising(objective));
            let loaded = pareto.as_ref().map_or_else(|| loaded.clone(), |of| loaded.clone().weighing(of.0.clone()));
            let report = trainyard::plan(&loaded, context)?;
            stage(&mut out, "planned.toml", report.planned_scenario.as_bytes())?;
            if let Some(front) = &report.pareto {
                out.as_mut().map_or(Ok(()), |out| trainyard::stage_front(out, front))?;
            }
            close(out, &loaded, "plan.json", &json(&report))?;
            Ok(Answer::good(json(&report), tables::plan(&report)))
        }
        Verb::Simulate(_) => {
            let report = trainyard::simulate(&loaded, context)?;
            close_with_reports(out, &loaded, &Subject::Simulated(&report), &json(&report))?;
            Ok(Answer::good(json(&report), tables::simulate(&report)))
        }
        Verb::Explain(_) => {
            let report = trainyard::explain(&loaded, context)?;
            close_with_page(out, &loaded, "explain", &report.document, &json(&report))?;
            Ok(Answer::of_page(&report.document, json(&report), report.fits))
        }
        Verb::Size(_) => {
            let report = trainyard::size(&loaded, context)?;
            close_with_page(out, &loaded, "size", &report.document, &json(&report))?;
            let possible = report.cluster.as_ref().is_none_or(|section| section.chosen.is_some());
            Ok(Answer::of_page(&report.document, json(&report), possible))
        }
        Verb::Compare(_) => {
            let report = trainyard::compare(&loaded, context)?;
            close_with_reports(out, &loaded, &Subject::Compared(&report), &json(&report))?;
            Ok(Answer::good(json(&report), tables::compare(&report)))
        }
        _ => unreachable!("{} has no scenario of its own", verb.name()),
    }
}

/// The verbs that hold results against each other.
fn compared(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    match verb {
        Verb::Check { baseline, tolerance, junit, markdown, update, .. } => {
            let Some(baseline) = baseline else { return measured::answer(verb, context) };
            for path in [junit, markdown].into_iter().flatten() {
                output::probe(path)?;
            }
            let report = trainyard::check(baseline, *tolerance, *update, context)?;
            let table = report.markdown();
            if let Some(path) = junit {
                output::write(path, report.junit(baseline).as_bytes())?;
            }
            if let Some(path) = markdown {
                output::write(path, table.as_bytes())?;
            }
            let code = if report.passed { exit::OK } else { exit::WORSE };
            Ok(Answer { json: json(&report), summary: table, code })
        }
        Verb::Diff { before, after, out, .. } => {
            let mut out = out.as_deref().map(Output::open).transpose()?;
            let report = trainyard::diff(before, after, context)?;
            let page = report.diff.document();
            stage(&mut out, "diff.json", json(&report).as_bytes())?;
            stage(&mut out, "diff.html", page.html().as_bytes())?;
            if let Some(out) = out {
                out.commit()?;
            }
            Ok(Answer::good(json(&report), tables::document(&page)))
        }
        _ => unreachable!("{} compares nothing", verb.name()),
    }
}

fn sweep(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    let Verb::Sweep { scenario, vary, random, seed, list, simulate, out, .. } = verb else {
        unreachable!("{} is not a sweep", verb.name())
    };
    let read: Vec<Result<Vary, _>> = vary.iter().map(|text| text.parse::<Vary>()).collect();
    let (read, wrong): (Vec<_>, Vec<_>) = read.into_iter().partition(Result::is_ok);
    let problems: Vec<_> = wrong.into_iter().filter_map(Result::err).collect();
    if !problems.is_empty() {
        return Err(Error::input(problems));
    }
    let vary: Vec<Vary> = read.into_iter().filter_map(Result::ok).collect();
    let points = match (list, random) {
        (Some(list), _) => SweepPoints::List(list.clone()),
        (None, Some(count)) => SweepPoints::Random { vary, count: *count, seed: *seed },
        (None, None) => SweepPoints::Grid(vary),
    };
    let report = trainyard::sweep(&SweepRequest { scenario, points, simulate: *simulate, folder: out }, context)?;
    Ok(Answer::good(json(&report), tables::sweep(&report)))
}

//! The verbs of other software's files: `import` and `export`.

use std::fmt::Write as _;
use std::path::Path;

use owo_colors::OwoColorize as _;
use trainyard::results::{ExportReport, ImportReport, json};
use trainyard::{Context, Error, ExportTarget, ImportRequest, ImportSource, Tool, output, scenario};

use crate::answer::Answer;
use crate::arguments::{FromChoice, ToChoice, Verb};
use crate::show;
use crate::tables::{line, table};

pub(crate) fn answer(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    match verb {
        Verb::Import { file, from, cluster, model, sequence_length, global_batch, out, force, .. } => {
            let request = ImportRequest {
                file,
                from: from.map(source),
                model: model.as_deref(),
                cluster,
                sequence_length: *sequence_length,
                global_batch: *global_batch,
                out,
                force: *force,
            };
            let report = trainyard::import(&request)?;
            Ok(Answer::good(json(&report), imported(&report)))
        }
        Verb::Export { scenario, to, out, common } => {
            if let Some(out) = out {
                output::probe(out)?;
            }
            let report = trainyard::export(&scenario::load(scenario)?, target(*to), context)?;
            let Some(out) = out else {
                let as_json = common.json.as_deref() == Some(Path::new("-"));
                if common.quiet && !as_json {
                    // No summary, but what was asked for.
                    show::out(report.text.trim_end());
                } else {
                    report.notes.iter().for_each(|note| show::note(note));
                }
                return Ok(Answer::good(json(&report), report.text));
            };
            output::write(out, report.text.as_bytes())?;
            Ok(Answer::good(json(&report), exported(&report, out)))
        }
        _ => unreachable!("{} is not about other software's files", verb.name()),
    }
}

const fn source(choice: FromChoice) -> ImportSource {
    match choice {
        FromChoice::Megatron => ImportSource::Tool(Tool::Megatron),
        FromChoice::Torchtitan => ImportSource::Tool(Tool::Torchtitan),
        FromChoice::Deepspeed => ImportSource::Tool(Tool::DeepSpeed),
        FromChoice::Sailor => ImportSource::Sailor,
    }
}

const fn target(choice: ToChoice) -> ExportTarget {
    match choice {
        ToChoice::Megatron => ExportTarget::Tool(Tool::Megatron),
        ToChoice::Torchtitan => ExportTarget::Tool(Tool::Torchtitan),
        ToChoice::Deepspeed => ExportTarget::Tool(Tool::DeepSpeed),
        ToChoice::RankMap => ExportTarget::RankMap,
        ToChoice::Sailor => ExportTarget::Sailor,
    }
}

fn imported(report: &ImportReport) -> String {
    let mut out = String::new();
    line(&mut out, "wrote", report.path.bold());
    line(&mut out, "from", format!("{} ({})", report.file, report.tool));
    line(&mut out, "model", format!("{} parameters", report.parameters));
    line(&mut out, "cluster", format!("{}: {} devices", report.nodes.join(" + "), report.devices));
    line(&mut out, "plan", &report.plan.words);
    line(&mut out, "read", format!("{} keys", report.read.len()));
    // Switches that are off by default are many and say little each.
    let (off, valued): (Vec<_>, Vec<_>) = report.assumed.iter().partition(|one| one.value == "false");
    if !valued.is_empty() {
        let mut rows = table(&["assumed", "value", "on the word of"]);
        for one in valued {
            rows.add_row(vec![one.name.clone(), one.value.clone(), one.source.clone()]);
        }
        let _ = writeln!(out, "{rows}");
    }
    let names = |names: Vec<&str>| names.join(", ");
    if !off.is_empty() {
        line(&mut out, "assumed to be off", names(off.iter().map(|one| one.name.as_str()).collect()));
    }
    if !report.ignored.is_empty() {
        line(&mut out, "no meaning here", names(report.ignored.iter().map(|one| one.key.as_str()).collect()));
    }
    for note in &report.notes {
        line(&mut out, "note", note);
    }
    line(&mut out, "next", format!("trainyard plan {}", report.path));
    out
}

fn exported(report: &ExportReport, path: &Path) -> String {
    let mut out = String::new();
    line(&mut out, "wrote", path.display().bold());
    line(&mut out, "for", report.target);
    line(&mut out, "plan", &report.plan.words);
    for note in &report.notes {
        line(&mut out, "note", note);
    }
    out
}

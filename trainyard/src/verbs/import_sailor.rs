//! `import` of a plan in Sailor's format.
//!
//! Such a file says how a training is divided and on which kinds of device, and nothing of what is trained: the model, the
//! nodes and the length of sequences are the user's. Sailor trains in FP32 with a fork of Megatron-DeepSpeed, whose stages
//! compute nothing while they exchange messages.

use std::path::Path;

use formats::sailor;
use formats::training::{Assumption, ModelSource, Tool};
use ir::{Problem, Workload};

use super::import::{Fault, ImportRequest, checked, cluster, model, stack};
use crate::Error;
use crate::error::InputError;
use crate::plans::place::placement;
use crate::results::{Header, ImportReport, PlanSummary};
use crate::scenario::{self, Draft};
use crate::source::Sources;

/// Whether a text looks like a plan of Sailor's.
pub(super) fn is_one(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"pipeline_list\"")
}

/// The scenario of a plan, not written yet.
pub(super) fn imported(request: &ImportRequest<'_>, text: &str, sources: &Sources) -> Result<ImportReport, Error> {
    let file = request.file.display().to_string();
    let wrong = |problems: Vec<Problem>| {
        let problems = problems.into_iter().map(|problem| match problem.span {
            Some(_) => problem,
            // What no plan of ours says is about the file as a whole.
            None => problem.at(ir::SourceSpan { file: file.clone(), range: 0..text.len() }),
        });
        Error::Input(InputError { problems: problems.collect(), sources: sources.clone() })
    };
    let read = sailor::plan(text, &file).map_err(wrong)?;
    let missing = unsaid(request);
    if !missing.is_empty() {
        return Err(Error::input(missing));
    }
    let (model, is_known) = model(&ModelSource::Given, request)?;
    let mut assumed = Vec::new();
    let (nodes, cluster) = cluster(request, None, &mut assumed).map_err(|fault| match fault {
        Fault::Own(error) => error,
        Fault::Unsaid(problem) => Error::problem(problem),
    })?;
    let mut plan = read.divide(&model, request.global_batch).map_err(wrong)?;
    plan.placement = placement(&read, &cluster).map_err(wrong)?;
    let batch = plan.data * plan.microbatch_size * plan.microbatches;
    let workload = workload(request.sequence_length.unwrap_or(1), batch)?;
    for (name, value) in [("precision", "fp32"), ("attention", "plain"), ("blocking_messages", "true")] {
        let source = "Sailor's fork of Megatron-DeepSpeed".to_owned();
        assumed.push(Assumption { name: name.to_owned(), value: value.to_owned(), source });
    }
    let name = scenario::name_of(request.out);
    let description = format!("As {} says it (Sailor)", request.file.file_name().unwrap_or_default().display());
    let training = scenario::Training { model: &model, workload: &workload, plan: &plan };
    let class = stack(Tool::DeepSpeed, &cluster);
    let draft = Draft {
        name: &name,
        description: &description,
        nodes: &nodes,
        is_known,
        stack: (class.as_str(), None),
        training,
    };
    let written = checked(&draft, request.out, &cluster)?;
    let mut notes = Vec::new();
    if let Some(measured) = read.measured {
        notes.push(format!("an iteration took {} s where the plan was run", measured.iteration));
    }
    notes.push("no times are in the file: [cost] profiles names measured layers".to_owned());
    Ok(ImportReport {
        header: Header::new("import", &name),
        file: file.clone(),
        tool: "Sailor",
        path: request.out.display().to_string(),
        parameters: model.parameters(),
        nodes,
        devices: cluster.devices(),
        plan: PlanSummary::of(&plan),
        read: Vec::new(),
        assumed,
        ignored: Vec::new(),
        notes,
        scenario: written,
    })
}

/// What the file does not say and nobody else did.
fn unsaid(request: &ImportRequest<'_>) -> Vec<Problem> {
    let said = [
        (request.model.is_some(), "--model", "what is trained", "--model opt-350m, or a config.json"),
        (!request.cluster.is_empty(), "--cluster", "which nodes there are", "--cluster \"8 x a2-highgpu-4g\""),
        (request.sequence_length.is_some(), "--sequence-length", "how long sequences are", "--sequence-length 2048"),
    ];
    let missing = said.into_iter().filter(|(is_said, ..)| !is_said);
    missing
        .map(|(_, key, what, hint)| Problem::new(key, format!("a plan of Sailor's does not say {what}")).hint(hint))
        .collect()
}

/// How Sailor trains, by the defaults of scenarios for what it does not say.
fn workload(length: u32, batch: u32) -> Result<Workload, Error> {
    let text = format!(
        "cluster = \"1 x cpu-1\"\nmodel = {{ name = \"tiny-llama\" }}\n[training]\nsequence_length = {length}\n\
         global_batch = {batch}\nprecision = \"fp32\"\nattention = \"plain\"\nblocking_messages = true\n"
    );
    Ok(scenario::parse("arguments", &text, Path::new(""))?.scenario.workload)
}

//! `import`: a scenario of what another tool's file says.

use std::path::Path;

use formats::training::{self, Asked, Assumption, Divided, ModelGiven, ModelSource, Tool};
use ir::{Cluster, Infeasible, Model, Plan, Problem, Workload};

use super::import_sailor;
use crate::catalog::{Catalog, calibrations};
use crate::error::InputError;
use crate::results::{Header, ImportReport, PlanSummary};
use crate::scenario::{self, Draft, PlanChoice};
use crate::source::Sources;
use crate::validate::Recipes;
use crate::{Error, output};

/// What `import` is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ImportRequest<'a> {
    /// The file.
    pub file: &'a Path,
    /// Whose file it is; `None`: whose content it has.
    pub from: Option<ImportSource>,
    /// A model of the catalog, or the path of a Hugging Face `config.json`, where the file does not say what is trained.
    pub model: Option<&'a str>,
    /// Nodes by name and count, such as `32 x dgx-h100`; empty: as many as the file speaks of, of a common kind.
    pub cluster: &'a [String],
    /// Tokens of one sequence, where the file does not say it.
    pub sequence_length: Option<u32>,
    /// Sequences of one iteration, where the file does not say it.
    pub global_batch: Option<u32>,
    /// The scenario to write.
    pub out: &'a Path,
    /// Whether to replace one that is there.
    pub force: bool,
}

/// Whose file is imported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportSource {
    /// That of software that trains.
    Tool(Tool),
    /// A plan in Sailor's format.
    Sailor,
}

/// The node where nothing else is said.
const NODE: &str = "dgx-h100";

/// Reads the file, and writes a scenario that means the same: the strict reader of scenarios has read it back, and its plan
/// is legal on the cluster.
///
/// # Errors
/// [`Error::Input`] with every problem of the file, each with its place; [`Error::Infeasible`] for a plan that cannot be
/// carried out; [`Error::Files`] for files that cannot be read or written.
pub fn import(request: &ImportRequest<'_>) -> Result<ImportReport, Error> {
    if request.out.exists() && !request.force {
        let problem = Problem::new(request.out.display().to_string(), "is there already").hint("--force replaces it");
        return Err(Error::problem(problem));
    }
    output::probe(request.out)?;
    let imported = imported(request)?;
    output::write(request.out, imported.scenario.as_bytes())?;
    Ok(imported)
}

/// The same without writing.
fn imported(request: &ImportRequest<'_>) -> Result<ImportReport, Error> {
    let file = request.file.display().to_string();
    let text = scenario::read_text(request.file)
        .map_err(|what| Error::files(request.file, format!("cannot read it: {what}")))?;
    let mut sources = Sources::default();
    sources.add(file.clone(), text.clone());
    let wrong = |problems| Error::Input(InputError { problems, sources: sources.clone() });
    let given = if request.model.is_some() { ModelGiven::Yes } else { ModelGiven::No };
    let tool = match request.from {
        Some(ImportSource::Sailor) => return import_sailor::imported(request, &text, &sources),
        None if import_sailor::is_one(&text) => return import_sailor::imported(request, &text, &sources),
        Some(ImportSource::Tool(tool)) => Some(tool),
        None => None,
    };
    let training = training::read(&text, &file, tool, given).map_err(wrong)?;
    let (model, is_known) = model(&training.model, request)?;
    let mut report = training.report.clone();
    let (nodes, cluster) = cluster(request, training.devices, &mut report.assumed).map_err(|fault| match fault {
        Fault::Own(error) => error,
        Fault::Unsaid(problem) => wrong(vec![problem]),
    })?;
    let devices = used(training.devices, &cluster, &mut report.notes);
    let asked = Asked { devices, sequence_length: request.sequence_length, global_batch: request.global_batch };
    let Divided { workload, plan, assumed } = training.divide(&model, asked).map_err(wrong)?;
    report.assumed.extend(assumed);
    let refused = sched::refused_by(runtime(training.tool), &plan, &model, &workload);
    report.notes.extend(refused.iter().map(ToString::to_string));
    let stack = stack(training.tool, &cluster);
    let description =
        format!("As {} says it ({})", request.file.file_name().unwrap_or_default().display(), training.tool.name());
    let name = scenario::name_of(request.out);
    let of = scenario::Training { model: &model, workload: &workload, plan: &plan };
    // The catalog of stacks knows torchtitan apart from others of its class.
    let release = (training.tool == Tool::Torchtitan).then_some("torchtitan");
    let stack = (stack.as_str(), release);
    let draft = Draft { name: &name, description: &description, nodes: &nodes, is_known, stack, training: of };
    let written = checked(&draft, request.out, &cluster).map_err(|error| placed(error, &training, &sources))?;
    Ok(ImportReport {
        header: Header::new("import", &name),
        file,
        tool: training.tool.name(),
        path: request.out.display().to_string(),
        parameters: model.parameters(),
        nodes,
        devices: cluster.devices(),
        plan: PlanSummary::of(&plan),
        read: report.read,
        assumed: report.assumed,
        ignored: report.ignored,
        notes: report.notes,
        scenario: written,
    })
}

/// The model that is trained, and whether the catalog has it under its name.
pub(super) fn model(source: &ModelSource, request: &ImportRequest<'_>) -> Result<(Model, bool), Error> {
    let catalog = Catalog::embedded();
    match (source, request.model) {
        (ModelSource::File(_), Some(name)) => {
            let problem = Problem::new("--model", format!("names {name}, and the file describes its model itself"));
            Err(Error::problem(problem.hint("leave it out")))
        }
        (ModelSource::File(model), None) => Ok(((**model).clone(), false)),
        (ModelSource::Catalog(name), _) => {
            let found = catalog.model(name).cloned();
            let missing = || Problem::new("model", format!("the catalog has no {name}"));
            found.map(|model| (model, true)).ok_or_else(|| Error::problem(missing()))
        }
        (ModelSource::Given, given) => {
            let given = given.unwrap_or_default();
            let is_file = Path::new(given).extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
            let key = if is_file { "config" } else { "name" };
            let model = probe("cluster = \"1 x cpu-1\"", &format!("{key} = {}", quoted(given)))?.model;
            Ok((model, !is_file))
        }
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A scenario of this cluster and model, for what only the reader of scenarios knows of them.
fn probe(cluster: &str, model: &str) -> Result<scenario::Scenario, Error> {
    let text = format!("{cluster}\nmodel = {{ {model} }}\n[training]\nsequence_length = 1\nglobal_batch = 1\n");
    Ok(scenario::parse("arguments", &text, Path::new(""))?.scenario)
}

/// Why there is no cluster.
pub(super) enum Fault {
    /// What was named is wrong.
    Own(Error),
    /// Nothing says how large it is.
    Unsaid(Problem),
}

/// The nodes, by name and count, and the cluster of them.
pub(super) fn cluster(
    request: &ImportRequest<'_>,
    devices: Option<u64>,
    assumed: &mut Vec<Assumption>,
) -> Result<(Vec<String>, Cluster), Fault> {
    let nodes = match (request.cluster, devices) {
        ([], Some(devices)) => {
            let each = Catalog::embedded().node(NODE).map_or(1, |node| node.devices.len() as u64);
            let nodes = vec![format!("{} x {NODE}", devices.div_ceil(each).max(1))];
            let source = "the file does not say of what kind they are; --cluster says it".to_owned();
            assumed.push(Assumption { name: "cluster".to_owned(), value: nodes[0].clone(), source });
            nodes
        }
        ([], None) => {
            let problem = Problem::new("cluster", "nothing in the file says on how many devices it trains");
            return Err(Fault::Unsaid(problem.hint(format!("--cluster \"4 x {NODE}\""))));
        }
        (nodes, _) => nodes.to_vec(),
    };
    let written: Vec<String> = nodes.iter().map(|group| quoted(group)).collect();
    let text = format!("cluster = {{ nodes = [{}] }}", written.join(", "));
    let found = probe(&text, "name = \"tiny-llama\"").map_err(Fault::Own)?;
    Ok((nodes, found.cluster))
}

/// Devices that train: those that the file speaks of if they fill all nodes but a part of the last, else all.
fn used(said: Option<u64>, cluster: &Cluster, notes: &mut Vec<String>) -> u64 {
    let all = cluster.devices();
    let last = cluster.groups.last().map_or(1, |group| cluster.node_kind(group.kind).devices.len() as u64);
    match said {
        None => all,
        Some(said) if said <= all && said + last > all => said,
        Some(said) => {
            notes.push(format!("the file speaks of {said} devices, and the cluster has {all}: the plan is for those"));
            all
        }
    }
}

/// The same software, to those who know what it refuses.
pub(super) const fn runtime(tool: Tool) -> sched::Runtime {
    match tool {
        Tool::Megatron => sched::Runtime::Megatron,
        Tool::Torchtitan => sched::Runtime::Torchtitan,
        Tool::DeepSpeed => sched::Runtime::DeepSpeed,
    }
}

/// The class of the software on the first kind of device.
pub(super) fn stack(tool: Tool, cluster: &Cluster) -> String {
    let class = match tool {
        Tool::Megatron => "megatron",
        Tool::Torchtitan => "pytorch-fsdp",
        Tool::DeepSpeed => "deepspeed",
    };
    let calibration = cluster.device_kinds.first().map_or("", |device| device.calibration.as_str());
    let all = calibrations();
    let known = all.iter().find(|of| of.name == calibration);
    Recipes::embedded().class_on(class, known.map_or(calibration, |of| of.generation())).to_owned()
}

/// The draft's text, which reads back to what it was made of and can be carried out.
pub(super) fn checked(draft: &Draft<'_>, out: &Path, cluster: &Cluster) -> Result<String, Error> {
    let text = draft.written();
    let base = out.parent().unwrap_or(Path::new(""));
    let loaded = scenario::parse(&out.display().to_string(), &text, base)?;
    let scenario::Training { model, workload, plan } = draft.training;
    let PlanChoice::Written(read) = &loaded.scenario.plan else {
        return Err(Error::problem(Problem::new("plan", "is written, and a policy was read")));
    };
    let back = scenario::Training { model: &loaded.scenario.model, workload: &loaded.scenario.workload, plan: read };
    let differ = scenario::differences(draft.training, back).into_iter().map(|(key, wanted, read)| {
        let message = format!("is {wanted} in the file, and {read} as a scenario has it");
        Problem::new(key, message).hint("the nearest that a scenario can say")
    });
    let differ: Vec<Problem> = differ.collect();
    if !differ.is_empty() {
        return Err(Error::input(differ));
    }
    legal(plan, model, workload, cluster).map(|()| text)
}

/// An error of a scenario that is not written, with the places of the file that it was to be made of.
fn placed(error: Error, training: &training::Training, sources: &Sources) -> Error {
    match error {
        Error::Input(InputError { problems, .. }) => {
            Error::Input(InputError { problems: training.place(problems), sources: sources.clone() })
        }
        Error::Infeasible { infeasible, .. } => {
            let infeasible = Infeasible { reasons: training.place(infeasible.reasons), ..*infeasible };
            Error::Infeasible { infeasible: Box::new(infeasible), sources: sources.clone() }
        }
        other => other,
    }
}

/// Nothing, or every reason why the plan cannot be carried out on the cluster.
fn legal(plan: &Plan, model: &Model, workload: &Workload, cluster: &Cluster) -> Result<(), Error> {
    let reasons = sched::legal(plan, model, workload, cluster);
    if reasons.is_empty() {
        return Ok(());
    }
    let nearest = sched::nearest(plan, model, workload, cluster);
    Err(Error::Infeasible { infeasible: Box::new(Infeasible { reasons, nearest }), sources: Sources::default() })
}

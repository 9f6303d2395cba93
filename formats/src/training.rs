//! A training as a file of the software that carries it out describes it, whichever software that is.
//!
//! ```
//! use trainyard_formats::training::{self, Asked, ModelGiven, Tool};
//! let text = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
//!     "zero_optimization": {"stage": 2}}"#;
//! let training = training::read(text, "ds_config.json", None, ModelGiven::Yes).expect("a sound file");
//! assert_eq!(training.tool, Tool::DeepSpeed);
//! let model = trainyard_formats::hugging_face::read(r#"{"model_type": "llama", "hidden_size": 64,
//!     "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}"#, "tiny").unwrap();
//! let asked = Asked { devices: 8, sequence_length: Some(128), global_batch: None };
//! let divided = training.divide(&model, asked).expect("a division");
//! assert_eq!((divided.plan.data, divided.plan.microbatches), (8, 2));
//! ```

use ir::{Model, Plan, Problem, SourceSpan, Workload};
use serde::Serialize;

use crate::{deepspeed, megatron, torchtitan};

/// The software whose files are read and written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tool {
    /// Megatron-LM: scripts and the block of arguments in its logs.
    Megatron,
    /// torchtitan: TOML.
    Torchtitan,
    /// DeepSpeed: JSON, also that of GPT-NeoX.
    DeepSpeed,
}

impl Tool {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Megatron, Self::Torchtitan, Self::DeepSpeed];
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "Megatron-LM",
            Self::Torchtitan => "torchtitan",
            Self::DeepSpeed => "DeepSpeed",
        }
    }
    /// Its name on a command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Torchtitan => "torchtitan",
            Self::DeepSpeed => "deepspeed",
        }
    }
}

/// A key that the file has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reading {
    /// The key or option, without dashes.
    pub key: String,
    /// What stands there, shortened.
    pub value: String,
    /// The line, from 1.
    pub line: usize,
}

/// A value that the file does not say.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Assumption {
    /// The key or option that would say it.
    pub name: String,
    /// The value taken.
    pub value: String,
    /// On whose word.
    pub source: String,
}

/// What became of a file's keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Keys that were read, in the order of the file.
    pub read: Vec<Reading>,
    /// Values that were assumed.
    pub assumed: Vec<Assumption>,
    /// Keys that change neither what is trained nor its time or memory.
    pub ignored: Vec<Reading>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

/// Where a training's model is described.
#[derive(Clone, PartialEq, Debug)]
pub enum ModelSource {
    /// In the file itself.
    File(Box<Model>),
    /// In the software, under a name: that of the catalog.
    Catalog(&'static str),
    /// Nowhere: those who read the file know it.
    Given,
}

/// Whether those who read a file know the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelGiven {
    /// They do: the file need not say it.
    Yes,
    /// They do not.
    No,
}

/// What a file leaves to those who read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Devices to train on.
    pub devices: u64,
    /// Tokens of a sequence, where the file does not say it.
    pub sequence_length: Option<u32>,
    /// Sequences of an iteration, where the file does not say it.
    pub global_batch: Option<u32>,
}

/// A training on so many devices.
#[derive(Clone, PartialEq, Debug)]
pub struct Divided {
    /// How the model is trained.
    pub workload: Workload,
    /// How it is divided.
    pub plan: Plan,
    /// What was assumed beyond the file's own report.
    pub assumed: Vec<Assumption>,
}

/// What a file says of a training.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Whose file it is.
    pub tool: Tool,
    /// What is trained.
    pub model: ModelSource,
    /// Devices, if the file says how many.
    pub devices: Option<u64>,
    /// What became of its keys.
    pub report: Report,
    said: Said,
}

#[derive(Clone, PartialEq, Debug)]
enum Said {
    Megatron(Box<megatron::Run>),
    Torchtitan(Box<torchtitan::Run>),
    DeepSpeed(Box<deepspeed::Run>),
}

/// Where what a scenario calls by the first name stands in files: keys of each software, and the options of Megatron-LM.
const KEYS: [(&[&str], &[&str]); 12] = [
    (
        &["model.heads", "model.kv_heads", "model.ffn", "model.experts", "plan.tensor", "plan.sequence_parallel"],
        &["--tensor-model-parallel-size", "tensor_parallel_degree", "autotp_size", "tp_size", "model_parallel_size"],
    ),
    (
        &["plan.stages", "plan.pipeline", "plan.chunks_per_stage", "plan.layers_per_stage"],
        &["--pipeline-model-parallel-size", "pipeline_parallel_degree", "pipeline.stages", "pipe_parallel_size"],
    ),
    (
        &["plan.schedule"],
        &[
            "pipeline_parallel_schedule",
            "--num-layers-per-virtual-pipeline-stage",
            "--num-virtual-stages-per-pipeline-rank",
            "--pipeline-model-parallel-size",
            "pipeline.stages",
        ],
    ),
    (&["plan.data", "plan"], &["data_parallel_shard_degree", "--tensor-model-parallel-size", "train_batch_size"]),
    (&["plan.mesh.context", "plan.context"], &["--context-parallel-size", "context_parallel_degree"]),
    (
        &["plan.mesh", "plan.expert", "plan.expert_tensor"],
        &["--expert-model-parallel-size", "expert_parallel_degree", "--num-experts"],
    ),
    (
        &["training.global_batch", "plan.microbatches"],
        &["--global-batch-size", "global_batch_size", "train_batch_size", "local_batch_size", "batch_size"],
    ),
    (
        &["plan.microbatch_size"],
        &["--micro-batch-size", "local_batch_size", "batch_size", "train_micro_batch_size_per_gpu"],
    ),
    (&["training.sequence_length"], &["--seq-length", "seq_len", "seq_length"]),
    (
        &["training.precision"],
        &["--fp8-format", "--bf16", "--fp16", "converters", "mixed_precision_param", "bf16.enabled", "fp16.enabled"],
    ),
    (
        &["plan.zero", "plan.shard", "plan.prefetch", "plan.sharing", "plan.offload"],
        &["--use-distributed-optimizer", "--use-megatron-fsdp", "enable_cpu_offload", "zero_optimization.stage"],
    ),
    (&["seed"], &["--seed", "seed"]),
];

impl Training {
    /// Gives problems of a scenario, such as `plan.tensor`, the places of the keys that they come from.
    #[must_use]
    pub fn place(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let places = match &self.said {
            Said::Megatron(run) => run.places(),
            Said::Torchtitan(run) => run.places(),
            Said::DeepSpeed(run) => run.places(),
        };
        let keys_of = |subject: &str| {
            let about = |name: &str| {
                let rest = subject.strip_prefix(name);
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            };
            // The longest name that is said.
            let named = KEYS.iter().flat_map(|(names, keys)| names.iter().map(move |name| (*name, *keys)));
            let best = named.filter(|(name, _)| about(name)).max_by_key(|(name, _)| name.len());
            best.map_or(&[] as &[&str], |(_, keys)| keys)
        };
        let is_it = |path: &str, key: &str| path == key || path.ends_with(&format!(".{key}"));
        let placed = |problem: Problem| {
            let keys = keys_of(&problem.subject);
            let found = keys.iter().find_map(|key| places.iter().find(|(path, _)| is_it(path, key)));
            let span = found.map(|(_, span)| span).or_else(|| places.get("")).cloned();
            Problem { span, ..problem }
        };
        problems.into_iter().map(placed).collect()
    }

    /// The workload and the plan of a model on so many devices.
    ///
    /// # Errors
    /// Every reason why the degrees do not divide the devices, the batch or the layers, with the nearest that do; what the
    /// file repeats of the model and the model denies.
    pub fn divide(&self, model: &Model, asked: Asked) -> Result<Divided, Vec<Problem>> {
        match &self.said {
            Said::Megatron(run) => run.plan(asked.devices).map(|plan| Divided {
                workload: run.workload.clone(),
                plan,
                assumed: Vec::new(),
            }),
            Said::Torchtitan(run) => run.divide(model, asked),
            Said::DeepSpeed(run) => run.divide(model, asked),
        }
    }
}

/// Reads a file of `tool`, or of the software that its content is of. `file_name` is the file as the person named it.
///
/// # Errors
/// Every problem found, each with its place: a file of no such software, keys that are unknown, refused or contradict each
/// other.
pub fn read(text: &str, file_name: &str, tool: Option<Tool>, given: ModelGiven) -> Result<Training, Vec<Problem>> {
    let tool = match tool {
        Some(tool) => tool,
        None => sniff(text).map_err(|problem| {
            vec![
                problem
                    .at(SourceSpan { file: file_name.to_owned(), range: 0..text.lines().next().map_or(0, str::len) }),
            ]
        })?,
    };
    Ok(match tool {
        Tool::Megatron => {
            // It says its model itself, whoever knows another.
            let mut run = megatron::read(text, file_name)?;
            let (report, devices) = (std::mem::take(&mut run.report), run.devices);
            let model = ModelSource::File(Box::new(run.model.clone()));
            Training { tool, model, devices, report, said: Said::Megatron(Box::new(run)) }
        }
        Tool::Torchtitan => {
            let (run, report) = torchtitan::read(text, file_name, given)?;
            let model = run.catalog_model().map_or(ModelSource::Given, ModelSource::Catalog);
            Training { tool, model, devices: run.devices(), report, said: Said::Torchtitan(Box::new(run)) }
        }
        Tool::DeepSpeed => {
            let (run, report) = deepspeed::read(text, file_name, given)?;
            Training {
                tool,
                model: ModelSource::Given,
                devices: run.devices(),
                report,
                said: Said::DeepSpeed(Box::new(run)),
            }
        }
    })
}

/// Marks of files that people bring and that say no training: words, what the file is, what to do with it.
const OTHERS: [(&[&str], &str, &str); 12] = [
    (&["\"model_type\""], "the configuration of a model", "trainyard init --model FILE makes a scenario of it"),
    (&["\"architectures\""], "the configuration of a model", "trainyard init --model FILE makes a scenario of it"),
    (&["GPU0", "GPU1"], "what `nvidia-smi topo -m` printed", "name it in a scenario: [nodes.NAME] topology = FILE"),
    (&["busbw"], "what nccl-tests printed", "name it in a scenario: [cost] collectives = [{ file = FILE }]"),
    (&["SwitchName="], "Slurm's topology", "name it in a scenario: [cluster] fabric = { topology = FILE }"),
    (&["BlockName="], "Slurm's topology", "name it in a scenario: [cluster] fabric = { topology = FILE }"),
    (&["[cluster]", "[plan]"], "a scenario already", "trainyard plan FILE"),
    (&["trainer:", "exp_manager:"], "a configuration of NeMo", "bring the block of arguments that its log prints"),
    (
        &["\"tensor_par\"", "\"pipeline_par\""],
        "a configuration of calculon",
        "bring the script or configuration that trains",
    ),
    (&["\"traceEvents\""], "a trace", "bring the script or configuration that trains"),
    (&["version https://git-lfs"], "a Git LFS pointer", "run `git lfs pull` where it was cloned"),
    (&["<!DOCTYPE", "<html"], "a web page", "download the raw file, not the page that shows it"),
];

/// Whose file a text is, by what only such files have.
fn sniff(text: &str) -> Result<Tool, Problem> {
    let has = |word: &str| text.contains(word);
    let starts = |word: &str| text.lines().any(|line| line.trim_start().starts_with(word));
    if megatron::is_log(text) {
        return Ok(Tool::Megatron);
    }
    if let Some((_, what, hint)) = OTHERS.iter().find(|(marks, ..)| marks.iter().all(|mark| has(mark))) {
        return Err(Problem::new("file", format!("is {what}, not what starts a training")).hint(*hint));
    }
    let first = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let first = first.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("//"));
    let is_object = first.clone().next().is_some_and(|line| line.starts_with('{'));
    let tables = ["[training]", "[parallelism]", "[activation_checkpoint]", "[float8]", "[job]", "[lr_scheduler]"];
    let keys = ["zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16", "bfloat16"];
    if megatron::is_script(text) {
        Ok(Tool::Megatron)
    } else if is_object && keys.iter().any(|key| has(key)) {
        Ok(Tool::DeepSpeed)
    } else if tables.iter().any(|table| starts(table)) {
        Ok(Tool::Torchtitan)
    } else {
        let tools = Tool::ALL.map(Tool::word).join(", ");
        let message = if text.trim().is_empty() { "is empty" } else { "is of no software that is known here" };
        let hint = format!(
            "a Megatron-LM script or log, a torchtitan TOML or a DeepSpeed JSON; --from says which of {tools} it is"
        );
        Err(Problem::new("file", message).hint(hint))
    }
}

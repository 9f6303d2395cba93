//! Megatron-LM's arguments, in and out: the script that starts training, or the block of arguments in its log; and a plan
//! as the options that carry it out.
//!
//! Strict: an option is read, or known to change neither what is trained nor how long it takes, or refused by name. In a
//! log, which holds hundreds of arguments at their defaults, one that is unknown is noted, unless it looks like one that
//! shapes the model or its division. What is left out has Megatron's default; [`Run::report`] says which defaults decide.
//!
//! ```
//! use trainyard_formats as formats;
//! let script = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
//!     --seq-length 128 --max-position-embeddings 128 --vocab-size 256 --micro-batch-size 1 --global-batch-size 16 \
//!     --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16";
//! let run = formats::megatron::read(script, "train.sh").expect("a sound script");
//! let plan = run.plan(run.devices.expect("one node")).expect("a division");
//! assert_eq!((plan.data, plan.microbatches), (2, 8));
//! ```

mod division;
mod flags;
mod layout;
mod model;
mod names;
mod options;
mod script;
mod shell;
#[cfg(test)]
mod tests;
mod workload;

use ir::{Model, Plan, Problem, Workload};

use division::Division;
use options::Options;

use crate::training::Report;

pub use flags::flags;
pub(crate) use options::is_log;
pub use script::script;

/// What Megatron's arguments say.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// Devices that the launcher or the log speaks of, if it does.
    pub devices: Option<u64>,
    /// What was read, assumed and left alone.
    pub report: Report,
    division: Division,
}

impl Run {
    /// The plan on so many devices.
    ///
    /// # Errors
    /// Every reason why the degrees do not divide them, the batch or the layers.
    pub fn plan(&self, devices: u64) -> Result<Plan, Vec<Problem>> {
        self.division.plan(&self.workload, devices)
    }
    /// Where options stand.
    pub(crate) const fn places(&self) -> &crate::settings::Places {
        self.division.places()
    }
}

/// Reads a script or a log. `file_name` is the file as the person named it.
///
/// # Errors
/// Every problem found, each with its line: a file that is neither, options that are unknown, refused, given twice with
/// unlike values, without a value, or with one that only running the script would tell; sizes that do not fit together.
pub fn read(text: &str, file_name: &str) -> Result<Run, Vec<Problem>> {
    let mut options = Options::of(text, file_name);
    if !options.problems.is_empty() {
        return Err(options.problems);
    }
    let model = model::read(&mut options, name(file_name));
    let workload = workload::read(&mut options);
    let division = division::read(&mut options, &model);
    let devices = devices(&mut options);
    options.finish();
    if options.problems.is_empty() {
        let sizes = model.problems().into_iter().chain(workload.problems()).chain(workload.problems_with(&model));
        for Problem { subject, message, hint, .. } in sizes.collect::<Vec<_>>() {
            options.fault_at(&subject, message, hint.unwrap_or_default(), 1);
        }
    }
    if options.problems.is_empty() {
        Ok(Run { model, workload, devices, report: options.report, division })
    } else {
        Err(options.problems)
    }
}

/// Whether a text is a script that starts a Python program.
pub(crate) fn is_script(text: &str) -> bool {
    shell::command(text).is_some()
}

/// Devices: the world of a log, or the processes that a launcher starts.
fn devices(options: &mut Options<'_>) -> Option<u64> {
    if options.has("world-size") {
        return options.number("world-size");
    }
    let nodes = if options.has("nnodes") { options.number::<u64>("nnodes")? } else { 1 };
    let processes = options.has("nproc-per-node").then(|| options.number::<u64>("nproc-per-node")).flatten()?;
    nodes.checked_mul(processes)
}

/// The file without its folder and ending.
fn name(file_name: &str) -> String {
    let stem = std::path::Path::new(file_name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "model".to_owned())
}

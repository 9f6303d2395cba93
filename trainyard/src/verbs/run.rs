//! `run`: real training on this machine's cores.

use std::sync::Arc;
use std::time::Instant;

use exec::data::{Dataset, Text, generate};
use exec::runtime::{CpuBackend, CpuOptions};
use exec::{Processes, Recovery};
use ir::{Backend as _, IterationOutcome, Timeline, VerifiedProgram, Workload};
use sched::StaticController;

use crate::job::{Decision, Job};
use crate::results::{Header, PlanSummary, RunReport};
use crate::scenario::{DataChoice, Loaded};
use crate::verbs::doctor::available_cores;
use crate::{Context, Error, policy, texts};

/// Iterations whose times are not used, while caches and allocators settle.
const WARM_UP: u32 = 3;
/// Timelines kept for comparisons; a long run's last ones say the same as all.
const KEPT: usize = 32;
/// Bytes of generated text: some thousand sequences of a small model, so that no sentence is seen often.
const GENERATED_BYTES: usize = 1 << 20;

/// Trains a scenario's plan for its iterations.
///
/// # Errors
/// [`Error::Input`] with every reason why this machine's cores cannot, [`Error::Infeasible`] if the plan does not fit into
/// the devices' memory, [`Error::Run`] with what stopped it.
pub fn run(loaded: &Loaded, context: &Context<'_>) -> Result<RunReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(&job, &decision.prediction, context) {
        return Err(error);
    }
    let program = job.program(&decision.plan)?;
    report(&job, &decision, &program, Ranks::Threads, context)
}

/// Where the ranks of a run are.
#[derive(Debug)]
pub(crate) enum Ranks {
    /// In this process.
    Threads,
    /// In processes that a launcher started.
    Gathered(Processes),
    /// In processes that this one started, and starts again when one is lost.
    Started(Processes, Recovery),
}

pub(crate) fn report(
    job: &Job<'_>,
    decision: &Decision,
    program: &Arc<VerifiedProgram>,
    ranks: Ranks,
    context: &Context<'_>,
) -> Result<RunReport, Error> {
    let scenario = &job.loaded.scenario;
    let options = CpuOptions { interrupt: Arc::clone(&context.interrupt), ..CpuOptions::default() };
    let (cluster, text) = (scenario.cluster.clone(), text(job.loaded)?);
    let (tokens, trained_on) = trained(&text, &scenario.workload);
    let words = ranks.words(job, program);
    let mut backend = match ranks {
        Ranks::Threads => CpuBackend::new(cluster, text, options),
        Ranks::Gathered(processes) => CpuBackend::over(cluster, text, options, processes),
        Ranks::Started(processes, recovery) => {
            CpuBackend::over(cluster, text, options, processes).with_recovery(recovery)
        }
    };
    let refused = backend.unsupported(program);
    if !refused.is_empty() {
        return Err(job.loaded.error(refused));
    }
    let iterations = scenario.workload.iterations;
    // A short run keeps at least half of its iterations.
    let warm_up_iterations = WARM_UP.min(iterations / 2);
    let (mut loss, mut gradient_norm, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut timelines: Vec<Timeline> = Vec::new();
    let (begun, mut useful_ms) = (Instant::now(), 0.0);
    let mut observe = |iteration: u64, outcome: &IterationOutcome| {
        loss.extend(outcome.loss);
        gradient_norm.extend(outcome.gradient_norm);
        let (begin, end) = reports::metrics::bounds(&outcome.timeline);
        useful_ms += (end - begin) as f64 * 1e-6;
        if iteration >= u64::from(warm_up_iterations) {
            times.push((end - begin) as f64 * 1e-6);
            if timelines.len() == KEPT {
                timelines.remove(0);
            }
            timelines.push(outcome.timeline.clone());
        }
        let note = outcome.loss.map_or_else(String::new, |loss| format!("loss {loss:.4}"));
        context.step("train", iteration + 1, u64::from(iterations), note).is_ok()
    };
    context.step("train", 0, u64::from(iterations), "")?;
    sched::drive(&mut backend, Arc::clone(program), u64::from(iterations), &mut StaticController, &mut observe)?;
    let (iteration_ms, iteration_dispersion) = median_and_dispersion(&times);
    Ok(RunReport {
        header: Header::new("run", &scenario.name),
        plan: PlanSummary::of(&decision.plan),
        ranks: words,
        text: trained_on,
        lost: backend
            .recovery()
            .map_or_else(Vec::new, |recovery| recovery.causes().iter().map(ToString::to_string).collect()),
        repeated_iterations: backend.recovery().map_or(0, Recovery::repeated),
        goodput: useful_ms / (begun.elapsed().as_secs_f64() * 1e3),
        iterations,
        warm_up_iterations,
        iteration_ms,
        iteration_dispersion,
        loss,
        gradient_norm,
        tokens_per_second: tokens / (iteration_ms * 1e-3),
        oversubscribed: backend.oversubscribed(),
        cores: available_cores(),
        program_digest: format!("{:016x}", program.digest()),
        timelines,
        decided: decision.plan.clone(),
        program: Arc::clone(program),
    })
}

impl Ranks {
    /// Where they are, in words.
    fn words(&self, job: &Job<'_>, program: &VerifiedProgram) -> String {
        let processes = match self {
            Self::Threads => return format!("{} threads of one process", program.world()),
            Self::Gathered(processes) | Self::Started(processes, _) => processes,
        };
        let emulated = exec::emulates_links(program, &job.loaded.scenario.cluster);
        let links = if emulated { "; links between nodes are not emulated, but those of this machine" } else { "" };
        format!("{}{links}", processes.how())
    }
}

/// What is trained on.
fn text(loaded: &Loaded) -> Result<Text, Error> {
    match &loaded.scenario.data {
        DataChoice::Generated => Ok(generate(loaded.scenario.workload.seed, GENERATED_BYTES).into()),
        DataChoice::Files(files) => texts::read(files).map_err(|problems| loaded.error(problems)),
    }
}

/// Tokens of an iteration that are trained on, in the mean over an epoch (not the padding of packed documents), and the text
/// in words.
fn trained(text: &Text, workload: &Workload) -> (f64, String) {
    let whole = workload.tokens_per_iteration() as f64;
    let Ok(data) = Dataset::new(text.clone(), workload.sequence_length, workload.seed) else {
        // A text that gives no sample is refused in a moment.
        return (whole, String::new());
    };
    let share = data.tokens() as f64 / (data.samples() as f64 * f64::from(data.sequence_length()));
    let documents = match text.documents() {
        1 => "one document".to_owned(),
        many => format!("{many} documents"),
    };
    let words = format!(
        "{documents} of {} tokens; {} sequences in an epoch, {:.1} % of them padding",
        text.tokens(),
        data.samples(),
        100.0 * (1.0 - share)
    );
    (whole * share, words)
}

/// Median, and half the distance between the quartiles over it.
fn median_and_dispersion(times: &[f64]) -> (f64, f64) {
    let at = |share| reports::compare::statistics::quantile(times.to_vec(), share).unwrap_or(0.0);
    let median = at(0.5);
    (median, if median > 0.0 { (at(0.75) - at(0.25)) / 2.0 / median } else { 0.0 })
}

//! `run`: real training on this machine's cores or GPUs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exec::data::{Dataset, Text, generate};
use exec::device::Devices;
use exec::runtime::{CpuBackend, CpuOptions, Slow, Stragglers};
use exec::{Processes, Recovery};
use ir::{Backend as _, BackendError, IterationOutcome, Timeline, VerifiedProgram, Workload};
use sched::StaticController;

use crate::job::{Decision, Job};
use crate::results::{Header, PlanSummary, RunReport};
use crate::scenario::{DataChoice, DeviceChoice, Loaded};
use crate::verbs::doctor::available_cores;
use crate::verbs::keeping::{self, Keeping};
use crate::verbs::pace::Pace;
use crate::{Context, Error, policy, texts};

/// Iterations whose times are not used, while caches and allocators settle.
const WARM_UP: u32 = 3;
/// Timelines kept for comparisons; a long run's last ones say the same as all.
const KEPT: usize = 32;
/// Bytes of generated text: some thousand sequences of a small model, so that no sentence is seen often.
const GENERATED_BYTES: usize = 1 << 20;

/// Trains a scenario's plan for its iterations, from where the newest of its checkpoints ends, if it has any. A run that keeps
/// checkpoints ends an interrupt with the iteration under way, and keeps the state after that.
///
/// # Errors
/// [`Error::Input`] with every reason why this machine's cores or GPUs cannot, or why no checkpoint can be used,
/// [`Error::Infeasible`] if the plan does not fit into the devices' memory, [`Error::Run`] with what stopped it.
pub fn run(loaded: &Loaded, context: &Context<'_>) -> Result<RunReport, Error> {
    run_from(loaded, None, context)
}

/// As [`run`]; `resume` is a checkpoint, or a folder of them, to go on from in place of the scenario's own.
///
/// # Errors
/// As [`run`].
pub fn run_from(loaded: &Loaded, resume: Option<&Path>, context: &Context<'_>) -> Result<RunReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(&job, &decision.prediction, context) {
        return Err(error);
    }
    let program = job.program(&decision.plan)?;
    let keeping = Keeping::of(loaded, resume)?;
    report(&job, &decision, &program, (Ranks::Threads, keeping), context)
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
    (ranks, keeping): (Ranks, Keeping),
    context: &Context<'_>,
) -> Result<RunReport, Error> {
    let scenario = &job.loaded.scenario;
    // A run that keeps its state ends with an iteration; the person who cannot wait asks twice.
    let interrupt = if keeping.keeps() { Arc::default() } else { Arc::clone(&context.interrupt) };
    let devices = devices(job.loaded)?;
    let computing = devices.as_ref().map(|devices| devices.words(program.world()));
    let options = CpuOptions { interrupt, devices, ..CpuOptions::default() };
    let (cluster, text) = (scenario.cluster.clone(), text(job.loaded)?);
    let (tokens, trained_on) = trained(&text, &scenario.workload);
    let words = ranks.words(job, program);
    let backend = match ranks {
        Ranks::Threads => CpuBackend::new(cluster, text, options),
        Ranks::Gathered(processes) => CpuBackend::over(cluster, text, options, processes),
        Ranks::Started(processes, recovery) => {
            CpuBackend::over(cluster, text, options, processes).with_recovery(recovery)
        }
    };
    let first = keeping.first();
    let (mut backend, resumed) = keeping.apply(backend);
    let refused = backend.unsupported(program);
    if !refused.is_empty() {
        return Err(job.loaded.error(refused));
    }
    let last = u64::from(scenario.workload.iterations);
    let mut seen = Seen::new((first, last), scenario.run.slow_rank, program, Pace::new(job, &decision.plan));
    context.step("train", first, last, "")?;
    let mut observe = |iteration: u64, outcome: &IterationOutcome| seen.take(iteration, outcome, context).is_ok();
    let driven = sched::drive_on(&mut backend, Arc::clone(program), first..last, &mut StaticController, &mut observe);
    match driven {
        Ok(_) => keep_last(&mut backend, last)?,
        // Only what ended with an iteration is a state to keep.
        Err(BackendError::Interrupted) if backend.checkpoints().is_some() && seen.next > first => {
            backend.checkpoint(seen.next)?;
            backend.finish_checkpoints()?;
            return Err(Error::Interrupted);
        }
        Err(error) => return Err(error.into()),
    }
    let time_ms = time_ms(&backend, &seen);
    let (iteration_ms, iteration_dispersion) = median_and_dispersion(&seen.times);
    let carried_out = backend.program().map_or_else(|| Arc::clone(program), Arc::clone);
    seen.timelines.retain(|timeline| timeline.program == carried_out.digest());
    Ok(RunReport {
        header: Header::new("run", &scenario.name),
        plan: PlanSummary::of(&decision.plan),
        ranks: words,
        devices: computing,
        text: trained_on,
        lost: backend
            .recovery()
            .map_or_else(Vec::new, |recovery| recovery.causes().iter().map(ToString::to_string).collect()),
        repeated_iterations: backend.recovery().map_or(0, Recovery::repeated),
        goodput: seen.useful_ms / time_ms.values().sum::<f64>(),
        time_ms,
        resumed_from: resumed.from,
        refused_checkpoints: resumed.refused,
        first_iteration: first,
        checkpoints: keeping::summary(&backend),
        slow_ranks: seen.slow,
        iterations: u32::try_from(last - first).unwrap_or(u32::MAX),
        warm_up_iterations: seen.warm_up,
        iteration_ms,
        iteration_dispersion,
        loss: seen.loss,
        gradient_norm: seen.gradient_norm,
        tokens_per_second: tokens / (iteration_ms * 1e-3),
        oversubscribed: backend.oversubscribed(),
        cores: available_cores(),
        program_digest: format!("{:016x}", carried_out.digest()),
        timelines: seen.timelines,
        decided: decision.plan.clone(),
        program: carried_out,
    })
}

/// Keeps the state after the last iteration. Ranks that are lost meanwhile first repeat what is not kept.
fn keep_last(backend: &mut CpuBackend, last: u64) -> Result<(), BackendError> {
    loop {
        match backend.checkpoint(last).and_then(|()| backend.finish_checkpoints()) {
            Err(BackendError::RankFailed { .. } | BackendError::Stalled { .. }) => drop(backend.iterate(last - 1)?),
            other => return other,
        }
    }
}

/// What was seen of a run.
struct Seen {
    begun: Instant,
    pace: Pace,
    /// The first iteration that has not ended.
    next: u64,
    first: u64,
    last: u64,
    warm_up: u32,
    loss: Vec<f64>,
    gradient_norm: Vec<f64>,
    times: Vec<f64>,
    timelines: Vec<Timeline>,
    useful_ms: f64,
    /// With the program that is watched.
    stragglers: Option<(Stragglers, Arc<VerifiedProgram>)>,
    slow: Vec<String>,
}

impl Seen {
    fn new((first, last): (u64, u64), slow_rank: Option<f64>, program: &Arc<VerifiedProgram>, pace: Pace) -> Self {
        // A short run keeps at least half of its iterations.
        let half = u32::try_from((last - first) / 2).unwrap_or(u32::MAX);
        Self {
            begun: Instant::now(),
            pace,
            next: first,
            first,
            last,
            warm_up: WARM_UP.min(half),
            loss: Vec::new(),
            gradient_norm: Vec::new(),
            times: Vec::new(),
            timelines: Vec::new(),
            useful_ms: 0.0,
            stragglers: slow_rank.map(|factor| (Stragglers::new(factor), Arc::clone(program))),
            slow: Vec::new(),
        }
    }

    fn take(&mut self, iteration: u64, outcome: &IterationOutcome, context: &Context<'_>) -> Result<(), Error> {
        self.next = iteration + 1;
        self.loss.extend(outcome.loss);
        self.gradient_norm.extend(outcome.gradient_norm);
        let (begin, end) = reports::metrics::bounds(&outcome.timeline);
        self.useful_ms += (end - begin) as f64 * 1e-6;
        let mut note = self.pace.note(outcome.loss, self.last - self.next);
        if iteration >= self.first + u64::from(self.warm_up) {
            self.times.push((end - begin) as f64 * 1e-6);
            if self.timelines.len() == KEPT {
                self.timelines.remove(0);
            }
            self.timelines.push(outcome.timeline.clone());
            let slow = match &mut self.stragglers {
                // Fewer ranks than at the beginning carry out another program, which has no like to be held against.
                Some((all, program)) if program.digest() == outcome.timeline.program => {
                    let device = |slow: &Slow| program.device(slow.rank).raw();
                    let all = all.look(program, &outcome.timeline);
                    all.iter().map(|slow| format!("{slow} (device {})", device(slow))).collect()
                }
                Some(_) | None => Vec::new(),
            };
            for sentence in slow {
                note = format!("{note}; {sentence}");
                self.slow.push(sentence);
            }
        }
        context.step("train", iteration + 1, self.last, note)
    }
}

/// Where the time since training began went, in milliseconds.
fn time_ms(backend: &CpuBackend, seen: &Seen) -> BTreeMap<&'static str, f64> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let lost = backend.recovery().map(Recovery::lost_time).unwrap_or_default();
    let blocked = backend.checkpoints().map_or(Duration::ZERO, |checkpoints| checkpoints.account().blocked);
    let mut parts = BTreeMap::from([
        ("iterations", seen.useful_ms),
        ("repeating", ms(lost.repeating)),
        ("broken_off", ms(lost.broken_off)),
        ("restarting", ms(lost.restarting)),
        ("checkpoints", ms(blocked)),
    ]);
    let other = ms(seen.begun.elapsed()) - parts.values().sum::<f64>();
    parts.insert("other", other.max(0.0));
    parts
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

/// The devices that a scenario asks for; none for this machine's cores.
fn devices(loaded: &Loaded) -> Result<Option<Arc<dyn Devices>>, Error> {
    match loaded.scenario.run.device {
        DeviceChoice::Cpu => Ok(None),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda { ranks_per_gpu } => {
            Ok(Some(Arc::new(exec::cuda::Gpus { ranks_per_gpu, cache: kernel_cache() })))
        }
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda { .. } => {
            let problem = ir::Problem::new("run.device", "this program was built without the feature `cuda`");
            Err(loaded.error(vec![problem.hint("build it with its default features")]))
        }
    }
}

/// Where programs of this person keep what can be made again.
#[cfg(feature = "cuda")]
fn kernel_cache() -> Option<std::path::PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("trainyard").join("kernels"))
}

/// What is trained on.
pub(crate) fn text(loaded: &Loaded) -> Result<Text, Error> {
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

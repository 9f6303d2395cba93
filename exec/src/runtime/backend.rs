//! The CPU as a machine that carries out programs.

use std::sync::Arc;

use ir::{
    Backend, BackendError, Clock, Cluster, IterationOutcome, MicrobatchId, Model, Problem, Program, Rank, Timeline,
    VerifiedProgram,
};

use super::crew::{Batch, Crew, Plan};
use super::emulation::{oversubscribed, slowdowns, wires};
use super::options::CpuOptions;
use super::refusals;
use super::script::Script;
use super::shared::Report;
use super::snapshot::Snapshot;
use crate::data::Dataset;
use crate::state::{RankState, Weights};

/// Trains for real: every rank is a thread of this process, in FP32.
///
/// Its times are measured. Devices with a slowdown and links between domains are emulated as the cluster says; see
/// the [module](super). `load` of another program between iterations keeps weights and optimizer state if the model is
/// the same, whatever the division; after an error, or for another model, training starts afresh.
#[derive(Debug)]
pub struct CpuBackend {
    cluster: Cluster,
    corpus: Arc<[u8]>,
    options: CpuOptions,
    loaded: Option<Loaded>,
    losses: Vec<f64>,
}

#[derive(Debug)]
struct Loaded {
    program: Arc<VerifiedProgram>,
    digest: u64,
    crew: Crew,
    oversubscribed: bool,
}

impl CpuBackend {
    /// A machine that stands for `cluster` and trains on the bytes of `corpus`.
    #[must_use]
    pub fn new(cluster: Cluster, corpus: impl Into<Arc<[u8]>>, options: CpuOptions) -> Self {
        Self { cluster, corpus: corpus.into(), options, loaded: None, losses: Vec::new() }
    }
    /// Mean loss of each iteration that ended, in order, since the backend was made.
    #[must_use]
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }
    /// Whether the loaded program needs more cores than this machine has (see [`oversubscribed`]); `false` before
    /// `load`.
    #[must_use]
    pub fn oversubscribed(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.oversubscribed)
    }
    /// Weights and optimizer state as they are now; `None` before `load`.
    ///
    /// # Errors
    /// What stopped the run before.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, BackendError> {
        self.loaded.as_ref().map(|loaded| loaded.crew.save()).transpose()
    }

    pub(super) fn problems(&self, program: &Program) -> Vec<Problem> {
        let mut problems = refusals::of(program);
        problems.extend(device_problems(program, &self.cluster));
        let workload = &program.workload;
        problems.extend(Dataset::new(Arc::clone(&self.corpus), workload.sequence_length, workload.seed).err());
        problems.extend(self.options.initial.iter().flat_map(|weights| weights.problems(&program.model)));
        problems
    }

    /// The state to go on from: that of the loaded program, if it is of the same model and nothing went wrong.
    fn carried_over(&mut self, model: &Model) -> Option<Snapshot> {
        let loaded = self.loaded.take()?;
        (loaded.program.model == *model).then(|| loaded.crew.save().ok()).flatten()
    }
}

impl Backend for CpuBackend {
    fn clock(&self) -> Clock {
        Clock::Measured
    }

    fn unsupported(&self, program: &VerifiedProgram) -> Vec<Problem> {
        self.problems(program)
    }

    fn load(&mut self, program: Arc<VerifiedProgram>) -> Result<(), BackendError> {
        let problems = self.unsupported(&program);
        if !problems.is_empty() {
            return Err(BackendError::Unsupported(problems));
        }
        let workload = &program.workload;
        let dataset = Dataset::new(Arc::clone(&self.corpus), workload.sequence_length, workload.seed)
            .map_err(|problem| BackendError::Unsupported(vec![problem]))?;
        let carried = self.carried_over(&program.model).map(Arc::new);
        let (initial, routing) = (self.options.initial.clone(), self.options.routing.clone());
        let build = {
            let program = Arc::clone(&program);
            move |rank| {
                let mut state = build(&program, rank, carried.as_deref(), initial.as_deref());
                state.set_routing(routing.clone());
                state
            }
        };
        let flat = Arc::new(Program::clone(&program));
        let feed = {
            let program = Arc::clone(&flat);
            move |rank, iteration, microbatch| batch(&program, &dataset, rank, iteration, microbatch)
        };
        let script = Arc::new(Script::new(&program));
        let (wires, capacities) = wires(&program, &self.cluster, &script);
        let plan = Plan { program: flat, script, wires, capacities, slowdowns: slowdowns(&program, &self.cluster) };
        let crew = Crew::start(plan, self.options.clone(), build, feed)?;
        let cores =
            std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
        let oversubscribed = oversubscribed(&program, &self.cluster, cores);
        self.loaded = Some(Loaded { digest: program.digest(), program, crew, oversubscribed });
        Ok(())
    }

    /// # Panics
    /// If nothing is loaded.
    fn iterate(&mut self, iteration: u64) -> Result<IterationOutcome, BackendError> {
        let loaded = self.loaded.as_ref().expect("`load` comes before `iterate`");
        let reports = loaded.crew.iterate(iteration)?;
        let loss = mean_loss(&loaded.program, &reports);
        let gradient_norm = reports.iter().find_map(|report| report.gradient_norm);
        let timeline = Timeline {
            clock: Clock::Measured,
            program: loaded.digest,
            iteration,
            lanes: reports.into_iter().map(|report| report.lane).collect(),
        };
        self.losses.extend(loss);
        Ok(IterationOutcome { timeline, loss, gradient_norm })
    }
}

/// A rank's state, going on from `carried` if there is any.
fn build(
    program: &Arc<VerifiedProgram>,
    rank: Rank,
    carried: Option<&Snapshot>,
    initial: Option<&Weights>,
) -> RankState {
    let mut state = RankState::new(program, rank, carried.map(|snapshot| &snapshot.weights).or(initial));
    if let Some(Snapshot { moments: [first, second], .. }) = carried {
        state.load_moments(first, second);
    }
    state
}

/// Index of a rank's replica and in its tensor group.
fn place(program: &Program, rank: Rank) -> (u32, u32) {
    let layout = &program.layout;
    (rank.raw() / (layout.mesh.context * layout.tensor) % layout.data, rank.raw() % layout.tensor)
}

/// The sequences of a microbatch: replica `r` takes the `r`-th of equal contiguous parts of the global batch, and
/// its microbatches the parts of that in order.
fn batch(program: &Program, dataset: &Dataset, rank: Rank, iteration: u64, microbatch: MicrobatchId) -> Batch {
    let layout = &program.layout;
    let (replica, _) = place(program, rank);
    let first = (replica * layout.microbatches + microbatch.raw()) * layout.microbatch_size;
    let mut batch = Batch::default();
    for index in first..first + layout.microbatch_size {
        dataset.sample(iteration, program.workload.global_batch, index, &mut batch.0, &mut batch.1);
    }
    batch
}

/// The sum of the shares of all ranks that look at other tokens, in order.
fn mean_loss(program: &Program, reports: &[Report]) -> Option<f64> {
    let ranks = reports
        .iter()
        .enumerate()
        .filter(|(rank, _)| place(program, Rank::new(u32::try_from(*rank).unwrap_or(u32::MAX))).1 == 0);
    let shares: Vec<f64> = ranks.filter_map(|(_, report)| report.loss).collect();
    (!shares.is_empty()).then(|| shares.iter().sum())
}

fn device_problems(program: &Program, cluster: &Cluster) -> Vec<Problem> {
    let devices = cluster.devices();
    let (outside, inside): (Vec<u32>, Vec<u32>) =
        (0..program.world()).partition(|rank| u64::from(program.device(Rank::new(*rank)).raw()) >= devices);
    let mut problems = Vec::new();
    if let Some(first) = outside.first() {
        let message =
            format!("{} ranks, the first of them {first}, are on none of the {devices} devices", outside.len());
        problems.push(Problem::new("cluster", message));
    }
    // A CPU worker is one core.
    let kinds = inside.iter().map(|rank| cluster.place(program.device(Rank::new(*rank))).device_kind);
    let kinds: std::collections::BTreeSet<_> = kinds.collect();
    for kind in kinds.into_iter().map(|kind| cluster.device_kind(kind)) {
        if kind.multiprocessors != 1 {
            let message = format!("{} is not a CPU core, and this backend has nothing else", kind.name);
            problems.push(Problem::new("cluster", message).hint("simulate it, or run on nodes of CPU cores"));
        }
        if !(kind.slowdown.is_finite() && kind.slowdown >= 1.0) {
            let message = format!(
                "{} has a slowdown of {}; a device can be emulated slower, not faster",
                kind.name, kind.slowdown
            );
            problems.push(Problem::new("emulate", message).hint("use a finite factor of at least 1"));
        }
    }
    problems
}

//! This machine as one that carries out programs, on its processor or its devices.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ir::{
    Backend, BackendError, Clock, Cluster, IterationOutcome, MicrobatchId, Model, Problem, Program, Rank, SimDuration,
    Timeline, VerifiedProgram,
};

use super::checkpointing::{Checkpointing, Origin, build};
use super::clock::nanoseconds;
use super::crew::{Crew, Plan};
use super::emulation::{oversubscribed, slowdowns, wires};
use super::options::CpuOptions;
use super::processes::{Job, Processes, Tensors};
use super::recovery::{Recovery, Started};
use super::refusals;
use super::script::Script;
use super::shared::Report;
use super::snapshot::Snapshot;
use crate::data::{BYTES, Batch, DataPosition, Dataset, Loader, Packing, Text};
use crate::device::Devices;
use crate::state::Routing;

/// Trains for real, in FP32 or BF16: every rank is a thread of this process ([`Self::new`]) or a process ([`Self::over`]).
/// Ranks compute on the processor, or on [`CpuOptions::devices`] if there are any.
///
/// Its times are measured. Devices with a slowdown and links between domains are emulated as the cluster says; see
/// the [module](super). `load` of another program between iterations keeps weights and optimizer state if the model is
/// the same, whatever the division; after an error, or for another model, training starts afresh.
#[derive(Debug)]
pub struct CpuBackend {
    cluster: Cluster,
    text: Text,
    options: CpuOptions,
    pub(super) processes: Option<Processes>,
    recovery: Option<Recovery>,
    pub(super) checkpointing: Option<Checkpointing>,
    /// What the next program that is loaded begins with, or the loaded one began with.
    pub(super) origin: Origin,
    /// The first iteration after it, once it is known.
    first: Option<u64>,
    pub(super) loaded: Option<Loaded>,
    /// Where the order of samples begins.
    order: Order,
    losses: Vec<f64>,
    /// By how much the last iteration's times of different ranks may be off.
    within: SimDuration,
}

/// Where the order of samples begins: at its beginning, or where an earlier run stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    iteration: u64,
    /// Samples that were taken before that iteration, once an iteration has been asked for.
    taken: u64,
    position: Option<DataPosition>,
}

/// The global batch of the iteration that is carried out.
type Current = Arc<Mutex<Batch>>;

#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) program: Arc<VerifiedProgram>,
    flat: Arc<Program>,
    loader: Loader,
    current: Current,
    digest: u64,
    /// The threads, unless the ranks are processes.
    pub(super) crew: Option<Crew>,
    oversubscribed: bool,
}

impl CpuBackend {
    /// A machine that stands for `cluster` and trains on `text`.
    #[must_use]
    pub fn new(cluster: Cluster, text: impl Into<Text>, options: CpuOptions) -> Self {
        Self {
            cluster,
            text: text.into(),
            options,
            processes: None,
            recovery: None,
            checkpointing: None,
            origin: Origin::Fresh,
            first: None,
            loaded: None,
            order: Order::default(),
            losses: Vec::new(),
            within: SimDuration::ZERO,
        }
    }
    /// The same with ranks that are processes: each program must have as many ranks as there are. Devices with a slowdown
    /// are emulated, links are not.
    #[must_use]
    pub fn over(cluster: Cluster, text: impl Into<Text>, options: CpuOptions, processes: Processes) -> Self {
        Self { processes: Some(processes), ..Self::new(cluster, text, options) }
    }
    /// Goes on with the order of samples where another run stopped: `iteration`, the first that this one is asked for, takes
    /// the samples from `position` on. Programs that do not fit the position are refused.
    #[must_use]
    pub fn from_position(self, iteration: u64, position: DataPosition) -> Self {
        Self { order: Order { iteration, taken: 0, position: Some(position) }, ..self }
    }
    /// Where the order of samples stands before an iteration of the loaded program; `None` before `load`.
    #[must_use]
    pub fn data_position(&self, iteration: u64) -> Option<DataPosition> {
        let loaded = self.loaded.as_ref()?;
        Some(loaded.loader.dataset().position(self.taken(&loaded.program, iteration)))
    }
    /// With processes that are started again when a rank is lost.
    #[must_use]
    pub fn with_recovery(self, recovery: Recovery) -> Self {
        Self { recovery: Some(recovery), ..self }
    }
    /// How often ranks were lost, and why, if they are started again.
    #[must_use]
    pub const fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }
    /// The program that is carried out, which may be another than was loaded once ranks were lost; `None` before `load`.
    #[must_use]
    pub fn program(&self) -> Option<&Arc<VerifiedProgram>> {
        self.loaded.as_ref().map(|loaded| &loaded.program)
    }
    /// Mean loss of each iteration that ended, in order, since the backend was made.
    #[must_use]
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }
    /// By how much the times of different ranks in the last iteration may be off: nothing where one clock measured all, else how
    /// far the clocks of devices were known. It is the slack of [`Timeline::faults`].
    #[must_use]
    pub const fn clocks_within(&self) -> SimDuration {
        self.within
    }
    /// Whether the loaded program needs more cores than this machine has (see [`oversubscribed`]), or several of its ranks
    /// share a device; `false` before `load`.
    #[must_use]
    pub fn oversubscribed(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.oversubscribed)
    }
    /// Weights and optimizer state as they are now; `None` before `load`.
    ///
    /// # Errors
    /// What stopped the run before.
    pub fn snapshot(&mut self) -> Result<Option<Snapshot>, BackendError> {
        let Some(loaded) = &self.loaded else { return Ok(None) };
        match (&loaded.crew, &mut self.processes) {
            (Some(crew), _) => crew.save(),
            (None, Some(processes)) => processes.save(),
            (None, None) => unreachable!("a loaded program has ranks"),
        }
        .map(Some)
    }

    pub(super) fn problems(&self, program: &Program) -> Vec<Problem> {
        let mut problems = refusals::of(program);
        problems.extend(vocabulary_problem(&self.text, &program.model));
        problems.extend(packing_problem(&self.text, program));
        problems.extend(device_problems(program, &self.cluster, self.options.devices.as_deref()));
        if let Some(devices) = &self.options.devices {
            problems.extend(refusals::on_devices(program, &**devices));
            problems.extend(devices.problems(self.processes.as_ref().map_or(program.world(), Processes::on_a_host)));
        }
        match &self.processes {
            Some(processes) => {
                problems.extend(process_problem(program, processes));
                problems.extend(routing_problem(&self.options.routing));
            }
            // They were lost, and could not be started again.
            None if self.recovery.is_some() => problems.push(ended()),
            None => {}
        }
        let workload = &program.workload;
        match Dataset::new(self.text.clone(), workload.sequence_length, workload.seed) {
            Ok(dataset) => {
                let position = self.order.position.iter();
                problems.extend(position.flat_map(|position| position.problems_with(&dataset)));
            }
            Err(problem) => problems.push(problem),
        }
        problems.extend(self.options.initial.iter().flat_map(|weights| weights.problems(&program.model)));
        problems
    }

    /// The state to go on from: that of the loaded program, if it is of the same model and nothing went wrong; before anything
    /// was loaded, what this backend was told to begin with.
    fn carried_over(&mut self, model: &Model) -> Result<Origin, BackendError> {
        // What is being written is of the ranks that are there.
        match (self.finish_checkpoints(), &mut self.checkpointing) {
            (Err(error @ BackendError::Checkpoint { .. }), _) => return Err(error),
            (Err(_), Some(checkpointing)) => checkpointing.abandon(),
            (Err(_), None) | (Ok(()), _) => {}
        }
        let Some(loaded) = &self.loaded else { return Ok(std::mem::take(&mut self.origin)) };
        let same = loaded.program.model == *model;
        let snapshot = if same { self.snapshot().ok().flatten() } else { None };
        self.loaded = None;
        Ok(snapshot.map_or(Origin::Fresh, |snapshot| Origin::Kept(Arc::new(snapshot))))
    }

    /// Tells all processes what they work on, and what they begin with.
    fn tell(
        &mut self,
        program: &Arc<VerifiedProgram>,
        flat: &Arc<Program>,
        origin: &Origin,
    ) -> Result<(), BackendError> {
        let ticket = match &self.options.devices {
            Some(devices) => devices.links(program.world()).map_err(|error| BackendError::RankFailed {
                rank: Rank::new(0),
                iteration: 0,
                cause: error.to_string(),
            })?,
            None => None,
        };
        let job = job(program, &self.options, origin, ticket.map(|links| links.ticket()));
        let slowdowns = slowdowns(program, &self.cluster);
        let script = Arc::new(Script::new(program));
        let processes = self.processes.as_mut().expect("ranks that are processes");
        processes.load(flat, &script, |rank| job(slowdowns[rank.index()]))
    }

    /// Whether ranks wait for each other's turn on a core, or on a device that they share.
    fn too_many(&self, program: &Program) -> bool {
        match &self.options.devices {
            Some(devices) => devices.shared(program.world()),
            None => oversubscribed(program, &self.cluster, cores()),
        }
    }

    /// Samples that were taken before an iteration.
    fn taken(&self, program: &Program, iteration: u64) -> u64 {
        let since = iteration.saturating_sub(self.order.iteration);
        self.order.taken + since * u64::from(program.workload.global_batch)
    }

    /// Carries out an iteration, and keeps the state after it if it is wanted. Gives how long it waited for its tokens.
    fn attempt(&mut self, iteration: u64) -> Result<(Vec<Report>, Duration), BackendError> {
        self.look_after_checkpoints(false)?;
        let first = self.taken(&self.loaded.as_ref().expect("`load` comes before `iterate`").program, iteration);
        let loaded = self.loaded.as_mut().expect("`load` comes before `iterate`");
        let (batch, waited) = loaded.loader.take(first, || self.options.interrupt.load(Ordering::Relaxed))?;
        *loaded.current.lock().unwrap_or_else(PoisonError::into_inner) = batch;
        let reports = match (&loaded.crew, &mut self.processes) {
            (Some(crew), _) => crew.iterate(iteration),
            (None, Some(processes)) => {
                let batch = loaded.current.lock().unwrap_or_else(PoisonError::into_inner);
                let feed = |rank, microbatch| part(&loaded.flat, &batch, rank, microbatch);
                processes.iterate(iteration, self.options.stall_timeout, feed)
            }
            (None, None) => unreachable!("a loaded program has ranks"),
        }?;
        if let Some(checkpointing) = &self.checkpointing {
            if checkpointing.due(iteration + 1) {
                self.checkpoint(iteration + 1)?;
            }
        } else if self.recovery.as_ref().is_some_and(|recovery| recovery.wants(iteration)) {
            let state = self.snapshot()?.expect("a program is loaded");
            self.recovery.as_mut().expect("it wants the state").keep(iteration, state);
        }
        Ok((reports, waited))
    }

    /// Starts the ranks again after they stopped in `iteration`, and gives the iteration to go on from.
    fn recover(&mut self, iteration: u64, mut error: BackendError) -> Result<u64, BackendError> {
        let Some(mut recovery) = self.recovery.take() else { return Err(error) };
        let since = Instant::now();
        let result = loop {
            if let Err(error) = recovery.lost(error) {
                break Err(error);
            }
            // The old ones end before new ones start, and write nothing more.
            self.processes = None;
            if let Some(checkpointing) = &mut self.checkpointing {
                checkpointing.abandon();
            }
            match recovery.start().and_then(|started| self.go_on(started, &recovery, iteration)) {
                Ok(next) => break Ok(next),
                Err(again) => error = again,
            }
        };
        recovery.restarted(since);
        self.recovery = Some(recovery);
        result
    }

    /// Gives new processes the newest state, and says which iteration follows it.
    fn go_on(&mut self, started: Started, recovery: &Recovery, iteration: u64) -> Result<u64, BackendError> {
        let Started { processes, program } = started;
        self.processes = Some(processes);
        if let Some(program) = program {
            let problems = self.problems(&program);
            if !problems.is_empty() {
                return Err(BackendError::Unsupported(problems));
            }
            let oversubscribed = self.too_many(&program);
            let loaded = self.loaded.as_mut().expect("a program was loaded");
            loaded.flat = Arc::new(Program::clone(&program));
            loaded.digest = program.digest();
            loaded.oversubscribed = oversubscribed;
            loaded.program = program;
        }
        let loaded = self.loaded.as_ref().expect("a program was loaded");
        let (program, flat) = (Arc::clone(&loaded.program), Arc::clone(&loaded.flat));
        let dataset = Arc::clone(loaded.loader.dataset());
        let written = self.checkpointing.as_mut().and_then(|all| all.newest(&program.model, &dataset));
        let (origin, next) = match (written, recovery.kept()) {
            (Some(found), _) => {
                let next = found.manifest.iterations;
                (Origin::Found(Arc::new(found)), next)
            }
            (None, Some((next, kept))) => (Origin::Kept(kept), next),
            (None, None) => (self.origin.clone(), self.first.unwrap_or(iteration)),
        };
        self.tell(&program, &flat, &origin)?;
        Ok(next)
    }

    /// Starts the threads of the ranks.
    fn start(
        &self,
        plan: Plan,
        verified: &Arc<VerifiedProgram>,
        current: &Current,
        origin: Origin,
    ) -> Result<Crew, BackendError> {
        let CpuOptions { initial, routing, devices, .. } = self.options.clone();
        let build = {
            let verified = Arc::clone(verified);
            move |rank: Rank| {
                let device = devices.as_ref().map(|devices| devices.open(rank.raw())).transpose();
                let device = device.map_err(|error| error.to_string())?;
                let mut state = build(&verified, rank, &origin, initial.as_deref(), device)?;
                state.set_routing(routing.clone());
                Ok(state)
            }
        };
        let (program, current) = (Arc::clone(&plan.program), Arc::clone(current));
        let feed = move |rank, _, microbatch| {
            part(&program, &current.lock().unwrap_or_else(PoisonError::into_inner), rank, microbatch)
        };
        Crew::start(plan, self.options.clone(), build, feed)
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
        let dataset = Dataset::new(self.text.clone(), workload.sequence_length, workload.seed)
            .map_err(|problem| BackendError::Unsupported(vec![problem]))?;
        if let Some(position) = self.order.position {
            self.order.taken = position.taken(dataset.samples()).expect("a position that was found to fit");
        }
        let most = program.layout.input_time(workload).map(|time| 1.0 / time.seconds());
        let loader = Loader::new(Arc::new(dataset), workload.global_batch, most);
        let current = Current::default();
        let origin = self.carried_over(&program.model)?;
        let flat = Arc::new(Program::clone(&program));
        self.first = match &origin {
            Origin::Found(found) => Some(found.manifest.iterations),
            Origin::Fresh | Origin::Kept(_) => None,
        };
        let crew = if self.processes.is_some() {
            self.origin = origin;
            None
        } else {
            let script = Arc::new(Script::new(&program));
            let slowdowns = slowdowns(&program, &self.cluster);
            let (wires, capacities) = wires(&program, &self.cluster, &script);
            let plan = Plan { program: Arc::clone(&flat), script, wires, capacities, slowdowns };
            Some(self.start(plan, &program, &current, origin)?)
        };
        let over_processes = crew.is_none();
        let oversubscribed = self.too_many(&program);
        let (digest, loaded) = (program.digest(), (Arc::clone(&program), Arc::clone(&flat)));
        self.loaded = Some(Loaded { digest, program, flat, loader, current, crew, oversubscribed });
        if over_processes {
            if let Some(recovery) = &mut self.recovery {
                recovery.begin();
            }
            let origin = self.origin.clone();
            if let Err(error) = self.tell(&loaded.0, &loaded.1, &origin) {
                let recovered = self.recover(self.first.unwrap_or(0), error);
                if recovered.is_err() {
                    self.loaded = None;
                }
                recovered?;
            }
        }
        Ok(())
    }

    /// # Panics
    /// If nothing is loaded.
    fn iterate(&mut self, iteration: u64) -> Result<IterationOutcome, BackendError> {
        self.first.get_or_insert(iteration);
        let mut at = iteration;
        let (reports, waited) = loop {
            let begun = Instant::now();
            let attempted = self.attempt(at);
            if let Some(recovery) = &mut self.recovery {
                match &attempted {
                    Ok(_) => recovery.ended(begun, at < iteration),
                    Err(_) => recovery.broke_off(begun),
                }
            }
            match attempted {
                Ok(reports) if at == iteration => break reports,
                Ok(_) => at += 1,
                Err(error) => at = self.recover(at, error)?,
            }
        };
        let loaded = self.loaded.as_ref().expect("`load` comes before `iterate`");
        let loss = mean_loss(&loaded.program, &reports);
        let within = reports.iter().filter_map(|report| report.measured.as_ref().map(|measured| measured.within)).max();
        self.within = SimDuration::from_nanoseconds(2 * within.unwrap_or(0));
        let gradient_norm = reports.iter().find_map(|report| report.gradient_norm);
        let timeline = Timeline {
            clock: Clock::Measured,
            program: loaded.digest,
            iteration,
            input_wait: SimDuration::ZERO,
            lanes: reports.into_iter().map(|report| report.lane).collect(),
        };
        let timeline = timeline.after_input(SimDuration::from_nanoseconds(nanoseconds(waited)));
        self.losses.extend(loss);
        Ok(IterationOutcome { timeline, loss, gradient_norm })
    }
}

/// What a rank's process is told to work on, by its slowdown.
fn job(
    program: &VerifiedProgram,
    options: &CpuOptions,
    origin: &Origin,
    ticket: Option<Vec<u8>>,
) -> impl Fn(f64) -> Job + use<> {
    let text = ir::program::text::print(program);
    let (faults, devices) = (options.faults.clone(), options.devices.as_ref().map(|devices| devices.elsewhere()));
    let (mut weights, mut moments, mut checkpoint) = (options.initial.clone(), None, None);
    match origin {
        Origin::Fresh => {}
        Origin::Kept(snapshot) => {
            weights = Some(Arc::new(snapshot.weights.clone()));
            moments = Some(snapshot.moments.clone());
        }
        Origin::Found(found) => {
            let files = found.manifest.shards.iter().map(|shard| shard.name.clone()).collect();
            checkpoint = Some((found.path.to_string_lossy().into_owned(), files));
        }
    }
    move |slowdown| Job {
        program: text.clone(),
        slowdown,
        faults: faults.clone(),
        devices: devices.clone(),
        ticket: ticket.clone(),
        weights: weights.as_deref().map(Tensors::from),
        moments: moments.as_ref().map(|moments| [&moments[0], &moments[1]].map(Tensors::from)),
        checkpoint: checkpoint.clone(),
    }
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

fn ended() -> Problem {
    Problem::new("launch", "the processes of the ranks have ended").hint("start them again")
}

/// Choices of experts are kept in the memory that threads share.
fn routing_problem(routing: &Routing) -> Option<Problem> {
    match routing {
        Routing::Free => None,
        Routing::Record(_) | Routing::Replay(_) => {
            let message = "choices of experts are recorded and repeated in one process, not by ranks of their own";
            Some(Problem::new("launch", message).hint("let the ranks be threads"))
        }
    }
}

/// Why processes cannot carry out a program, if they cannot.
fn process_problem(program: &Program, processes: &Processes) -> Option<Problem> {
    let (ranks, world) = (program.world(), processes.world());
    if processes.failed() {
        return Some(ended());
    }
    let hint = format!("start {ranks} processes, or divide the model over {world} ranks");
    (ranks != world)
        .then(|| Problem::new("launch", format!("the plan has {ranks} ranks, and {world} processes were started")))
        .map(|problem| problem.hint(hint))
}

/// Index of a rank's replica and in its tensor group.
fn place(program: &Program, rank: Rank) -> (u32, u32) {
    let layout = &program.layout;
    (layout.replica_of(rank), layout.place_of(rank).tensor_index)
}

/// The sequences of a microbatch: replicas take contiguous parts of the global batch in order, each as much as its share,
/// and their microbatches the parts of that in order.
pub(super) fn part(program: &Program, batch: &Batch, rank: Rank, microbatch: MicrobatchId) -> Batch {
    let layout = &program.layout;
    let (replica, _) = place(program, rank);
    let before = u32::try_from(layout.microbatches_before(replica)).expect("a batch of fewer sequences than u32");
    let first = ((before + microbatch.raw()) * layout.microbatch_size) as usize;
    let sequences = first..first + layout.microbatch_size as usize;
    batch.part(sequences, program.workload.sequence_length as usize)
}

/// Why the tokens of a text are not those of a model, if they are not.
fn vocabulary_problem(text: &Text, model: &Model) -> Option<Problem> {
    let (known, rows) = (text.vocabulary(), model.vocabulary);
    let message = match known {
        BYTES => format!("tokens are bytes, and a vocabulary of {rows} cannot hold all 256"),
        _ => format!("the tokenizer knows {known} tokens, and a vocabulary of {rows} cannot hold all of them"),
    };
    let hint = format!("set vocabulary = {known}");
    (rows < known).then(|| Problem::new("model.vocabulary", message).hint(hint))
}

/// What is not done with packed documents.
fn packing_problem(text: &Text, program: &Program) -> Option<Problem> {
    let packed = text.packing() == Packing::Documents;
    let balances = program.model.variants.experts.is_some() && program.workload.recipe.balance_loss > 0.0;
    let message = "the loss that balances experts would count the padding of packed documents";
    let hint = "set packing = \"concatenate\", or leave balance_loss out";
    (packed && balances).then(|| Problem::new("training.balance_loss", message).hint(hint))
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

/// The devices that the plan names: those that compute are what they are, whatever the cluster calls them.
fn device_problems(program: &Program, cluster: &Cluster, computing: Option<&dyn Devices>) -> Vec<Problem> {
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
        if computing.is_some() {
            if kind.slowdown > 1.0 {
                let message = format!("{} has a slowdown of {}; only CPU cores are emulated", kind.name, kind.slowdown);
                problems.push(Problem::new("emulate", message).hint("leave it out, or let the CPU compute"));
            }
        } else if kind.multiprocessors != 1 {
            let message = format!("{} is not a CPU core, and nothing else computes", kind.name);
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

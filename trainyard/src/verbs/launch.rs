//! `launch`, and `run` under a launcher: ranks that are processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use exec::processes::{self, Ended, Processes, Watchfulness};
use exec::{Loss, Recovery, Started};
use ir::{BackendError, Plan, Problem, Rank, VerifiedProgram};

use crate::job::Job;
use crate::launch::Launch;
use crate::results::RunReport;
use crate::scenario::{Loaded, OnLoss, Scenario};
use crate::verbs::keeping::Keeping;
use crate::verbs::run::{self, Ranks};
use crate::{Context, Error, policy};

/// Ranks that were lost so often without an iteration in between are not started in the same number again.
const GIVE_UP: usize = 3;

/// What `launch` is asked for.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// How many processes.
    pub processes: u32,
    /// How long a process may say nothing before it counts as stopped.
    pub silence: Duration,
    /// How many times lost processes are started again.
    pub restarts: u32,
    /// After how many iterations each time the state to go on from is kept in memory, where no checkpoints are written.
    pub keep_every: u64,
    /// A checkpoint, or a folder of them, to go on from in place of the scenario's own.
    pub resume: Option<PathBuf>,
    /// What starts one of them: it must call [`serve_launched`].
    pub worker: fn() -> Command,
}

/// Trains a scenario's plan with a process of this host for each rank.
///
/// # Errors
/// As [`crate::run`]; [`Error::Input`] if the plan has another number of ranks, [`Error::Run`] with what became of the first
/// process that ended, stopped or stalled once they were started again as often as asked. No process is left behind.
pub fn launch(loaded: &Loaded, request: &LaunchRequest, context: &Context<'_>) -> Result<RunReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(&job, &decision.prediction, context) {
        return Err(error);
    }
    let program = job.program(&decision.plan)?;
    if program.world() != request.processes {
        let message =
            format!("the plan has {} ranks, and {} processes are asked for", program.world(), request.processes);
        let hint = format!("launch with --nproc {}, or change the plan", program.world());
        return Err(loaded.error(vec![Problem::new("plan", message).hint(hint)]));
    }
    let keeping = Keeping::of(loaded, request.resume.as_deref())?;
    context.step("start", 0, u64::from(request.processes), "")?;
    // As with threads: a run that keeps its state ends with an iteration.
    let interrupt = if keeping.keeps() { Arc::default() } else { Arc::clone(&context.interrupt) };
    let watchfulness = Watchfulness { silence: request.silence, interrupt, ..Watchfulness::default() };
    let (count, worker) = (request.processes, request.worker);
    let spawn = move |count| Processes::spawn(count, watchfulness.clone(), |_| worker());
    let processes = spawn(count)?;
    let mut again = Again { plan: decision.plan.clone(), scenario: loaded.scenario.clone(), count };
    let start = move |loss: &Loss<'_>| {
        let program = again.decide(loss);
        spawn(again.count).map(|processes| Started { processes, program })
    };
    let recovery = Recovery::new(request.keep_every, request.restarts as usize, start);
    run::report(&job, &decision, &program, (Ranks::Started(processes, recovery), keeping), context)
}

/// On which ranks a run goes on when one is lost.
struct Again {
    plan: Plan,
    scenario: Scenario,
    count: u32,
}

impl Again {
    /// The program to go on with, if it is another than before.
    fn decide(&mut self, loss: &Loss<'_>) -> Option<Arc<VerifiedProgram>> {
        let fewer = match self.scenario.run.on_loss {
            OnLoss::FewerRanks => true,
            OnLoss::FewerIfNeeded => loss.in_a_row >= GIVE_UP,
            OnLoss::SameRanks => false,
        };
        let (plan, program) = if fewer { self.fewer()? } else { return None };
        self.count = program.world();
        self.plan = plan;
        Some(program)
    }

    /// The largest number of replicas below what it is that is legal and that the batch divides over, each with as many
    /// more microbatches; everything else of the plan stays.
    fn fewer(&self) -> Option<(Plan, Arc<VerifiedProgram>)> {
        let Scenario { model, workload, cluster, .. } = &self.scenario;
        let plan = |data: u32| {
            let sequences = data.checked_mul(self.plan.microbatch_size)?;
            let mut plan = Plan { data, placement: Vec::new(), ..self.plan.clone() };
            plan.microbatches = workload.global_batch / sequences;
            plan.sharing.shard = plan.sharing.shard.filter(|shard| plan.replicas().is_multiple_of(*shard));
            let program = sched::lower(&plan, model, workload, cluster).ok()?;
            Some((plan, Arc::new(VerifiedProgram::new(program).ok()?)))
        };
        (1..self.plan.data).rev().find_map(plan)
    }
}

/// The processes of a launcher's run, met. Dropping it ends them.
#[derive(Debug)]
pub struct Gathered(Processes);

/// Waits, in the process of rank 0, for those of all other ranks.
///
/// # Errors
/// [`Error::Input`] with every reason why they are no run: who did not come, whose launcher counts other ranks, which two
/// claim one device.
pub fn gather(launch: &Launch, context: &Context<'_>) -> Result<Gathered, Error> {
    context.step("gather", 0, u64::from(launch.world), launch.launcher.name())?;
    let watchfulness = Watchfulness { interrupt: Arc::clone(&context.interrupt), ..Watchfulness::default() };
    match Processes::gather(&launch.place(), watchfulness) {
        Ok(processes) => Ok(Gathered(processes)),
        Err(BackendError::Unsupported(problems)) => Err(Error::input(problems)),
        Err(error) => Err(error.into()),
    }
}

/// As [`crate::run`], with the processes of a launcher as ranks.
///
/// # Errors
/// As [`crate::run`]; [`Error::Input`] if the plan has another number of ranks than the launcher started.
pub fn run_gathered(
    loaded: &Loaded,
    gathered: Gathered,
    resume: Option<&Path>,
    context: &Context<'_>,
) -> Result<RunReport, Error> {
    let job = Job::new(loaded, None)?;
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(&job, &decision.prediction, context) {
        return Err(error);
    }
    let program = job.program(&decision.plan)?;
    let keeping = Keeping::of(loaded, resume)?;
    run::report(&job, &decision, &program, (Ranks::Gathered(gathered.0), keeping), context)
}

/// Carries out the rank of this process, which a launcher started and which is not rank 0, until rank 0 ends the run.
///
/// # Errors
/// [`Error::Run`] if rank 0 or another rank cannot be reached, or rank 0 is gone.
pub fn take_part(launch: &Launch) -> Result<(), Error> {
    ended(Rank::new(launch.rank), processes::take_part(&launch.place(), &Watchfulness::default()))
}

/// Carries out the rank of this process, which [`launch`] started, until that ends it.
///
/// # Errors
/// [`Error::Run`] if this process was not started so, or what started it is gone.
pub fn serve_launched() -> Result<(), Error> {
    ended(Rank::new(0), processes::serve_standard_input())
}

fn ended(rank: Rank, result: std::io::Result<Ended>) -> Result<(), Error> {
    let cause = match result {
        Ok(Ended::Told) => return Ok(()),
        Ok(Ended::Alone) => "the process that coordinates the run is gone".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::Run(BackendError::RankFailed { rank, iteration: 0, cause }))
}

//! What becomes of a cell: a policy decides with a seed and a budget, by the closed form, and the simulator judges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use cost::CostModel;
use rayon::prelude::*;
use reports::ablation::{Cell, Outcome, Planned};

use super::definition::{Definition, Wanted};
use super::store::Store;
use crate::error::in_a_line;
use crate::job::Job;
use crate::scenario::{Loaded, PlanChoice, PolicyName};
use crate::{Context, Error, words};

/// A scenario with its cost model.
#[derive(Debug)]
pub(super) struct World {
    pub(super) loaded: Loaded,
    pub(super) cost: CostModel,
}

/// How often progress is told and a wish to stop is heard while cells are made.
const HEARD: Duration = Duration::from_millis(100);

/// A cell that was made, with its place; or why none was.
type Made = (usize, Wanted, Result<Cell, Error>);

/// Makes cells on all cores; each is in the store as soon as it is there.
///
/// # Errors
/// [`Error::Interrupted`] if the person asked to stop, or what prevents writing: what was done so far is then in the
/// folder.
pub(super) fn make(
    worlds: &[World],
    definition: &Definition,
    open: &[(usize, Wanted)],
    store: &mut Store,
    context: &Context<'_>,
) -> Result<(), Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let (send, receive): (Sender<Made>, Receiver<Made>) = channel();
    std::thread::scope(|scope| {
        let stopped = Arc::clone(&stop);
        scope.spawn(move || {
            // Cells that were not made need no answer: whoever stopped knows.
            let _: Result<(), ()> = open.par_iter().with_max_len(1).try_for_each_with(send, |send, (place, wanted)| {
                if stopped.load(Ordering::Relaxed) {
                    return Err(());
                }
                let made = cell(worlds, definition, wanted, &stopped);
                let ended = made.is_err();
                let heard = send.send((*place, wanted.clone(), made));
                if ended || heard.is_err() { Err(()) } else { Ok(()) }
            });
        });
        let result = keep(&receive, store, definition, context);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Takes cells in as they are made, until there are no more.
fn keep(made: &Receiver<Made>, store: &mut Store, definition: &Definition, context: &Context<'_>) -> Result<(), Error> {
    let total = definition.own().map_or(0, |own| own.len() as u64);
    let mut note = String::new();
    loop {
        context.step("ablate", store.cells.len() as u64, total, note.as_str())?;
        match made.recv_timeout(HEARD) {
            Ok((place, wanted, cell)) => {
                note = definition.words(&wanted);
                store.push(place, &wanted, cell?)?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// One cell.
///
/// # Errors
/// [`Error::Interrupted`] only; what is wrong with a cell is its outcome.
fn cell(worlds: &[World], definition: &Definition, wanted: &Wanted, stop: &Arc<AtomicBool>) -> Result<Cell, Error> {
    let world = &worlds[wanted.scenario];
    let policy = &definition.policies[wanted.policy];
    let name = PolicyName::from_name(&policy.name).expect("a policy's own name");
    let mut loaded = world.loaded.clone().decided_by(name);
    if let Some(seed) = wanted.seed {
        loaded.scenario.workload.seed = seed;
    }
    if let PlanChoice::Policy(_, keys) = &mut loaded.scenario.plan {
        keys.budget = Some(definition.budget);
    }
    let job = Job { loaded: &loaded, cost: world.cost.clone() };
    let outcome = match judged(&job, stop) {
        Ok(planned) => Outcome::Planned(planned),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(other) => Outcome::Nothing(other.in_a_line()),
    };
    let scenario = definition.scenarios[wanted.scenario].name.clone();
    Ok(Cell { scenario, policy: policy.name.clone(), seed: wanted.seed, outcome })
}

/// The plan of a job's policy, carried out by the simulator.
fn judged(job: &Job<'_>, stop: &Arc<AtomicBool>) -> Result<Planned, Error> {
    let decision = job.decide(&Context::new(Arc::clone(stop), |_| {}))?;
    let program = job.program(&decision.plan)?;
    let timeline = job.simulate(&program)?;
    let judged = sched::summarise(&program, &timeline, &job.cost);
    let misfit = sched::memory_problems(&judged);
    if !misfit.is_empty() {
        return Err(Error::problem(ir::Problem::new("plan", format!("does not fit: {}", in_a_line(&misfit)))));
    }
    let share = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64;
    Ok(Planned {
        iteration_ns: judged.iteration.nanoseconds(),
        predicted_ns: decision.prediction.iteration.nanoseconds(),
        memory_share: judged.memory.iter().map(share).fold(0.0, f64::max),
        evaluations: decision.search.evaluations,
        curve: decision.search.best,
        plan: words::plan(&decision.plan),
    })
}

//! The threads of a program's ranks, kept from one iteration to the next.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ir::{BackendError, MicrobatchId, Program, Rank};

use super::ahead::Ahead;
use super::clock::wait_exactly;
use super::exchange::Exchanges;
use super::lines::{Groups, Lines};
use super::network::Wire;
use super::options::{CpuOptions, Fault};
use super::rank::{Context, Run};
use super::script::Script;
use super::settled::settle;
use super::shared::{Beat, Report, Request, Shared, State};
use super::snapshot::Snapshot;
use super::stall::Watch;
use super::threads::Threads;
use super::worker::Worker;
use crate::checkpoint::{Saver, Written};
use crate::data::Batch;
use crate::device::{DeviceError, Devices, Link, Links};

/// How often the coordinator looks at the interrupt flag and for stalls.
const TICK: Duration = Duration::from_millis(20);

/// What every thread needs.
pub(super) struct Plan {
    pub(super) program: Arc<Program>,
    pub(super) script: Arc<Script>,
    pub(super) wires: Vec<Option<Wire>>,
    /// Bytes per second of each emulated link.
    pub(super) capacities: Vec<f64>,
    /// By rank.
    pub(super) slowdowns: Vec<f64>,
}

/// What the threads of a crew hold together.
struct Home {
    program: Arc<Program>,
    script: Arc<Script>,
    slowdowns: Vec<f64>,
    faults: Vec<Fault>,
    shared: Shared,
    /// For ranks that work ahead of their devices.
    ahead: Option<Joining>,
    /// Where ranks say what became of what they wrote.
    written: Sender<(usize, Written)>,
}

/// What ranks that work ahead of their devices join, and how they are ended.
struct Joining {
    groups: Arc<Groups>,
    links: Option<Arc<dyn Links>>,
    /// Ends of all ranks that have joined.
    joined: Mutex<Vec<Weak<dyn Link>>>,
}

impl Joining {
    /// None where ranks exchange through host memory.
    fn of(script: &Script, devices: Option<&dyn Devices>) -> Result<Option<Self>, DeviceError> {
        let ranks = u32::try_from(script.ranks.len()).expect("ranks are u32");
        let Some(devices) = devices.filter(|devices| !devices.shared(ranks)) else { return Ok(None) };
        let links = devices.links(ranks)?;
        let joins = links.is_some() || ranks == 1;
        Ok(joins.then(|| Self { groups: Arc::new(Groups::of(script)), links, joined: Mutex::default() }))
    }

    fn join(&self, rank: Rank, worker: &mut impl Worker) -> Result<Option<Lines>, DeviceError> {
        let Some(device) = worker.device() else { return Ok(None) };
        worker.work_ahead();
        let lines = Lines::join(device, rank.index(), &self.groups, self.links.as_deref())?;
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.extend(lines.links().map(Arc::downgrade));
        Ok(Some(lines))
    }

    /// Work on devices that waits for a rank that has stopped does not end by itself.
    fn abort(&self) {
        let why = "another rank has stopped";
        if let Some(links) = &self.links {
            links.abort(why);
        }
        let joined = std::mem::take(&mut *self.joined.lock().unwrap_or_else(PoisonError::into_inner));
        joined.iter().filter_map(Weak::upgrade).for_each(|link| link.abort(why));
    }
}

/// Threads, one per rank. Dropping it ends and joins them all.
pub(super) struct Crew {
    home: Arc<Home>,
    threads: Vec<JoinHandle<()>>,
    options: CpuOptions,
    written: Receiver<(usize, Written)>,
}

impl Crew {
    /// Starts a thread per rank, each of which builds its worker with `build` and gets its data from `feed`.
    ///
    /// # Errors
    /// [`BackendError::RankFailed`] if a thread cannot start or a worker cannot be built.
    pub(super) fn start<W: Worker>(
        plan: Plan,
        options: CpuOptions,
        build: impl Fn(Rank) -> Result<W, String> + Send + Sync + 'static,
        feed: impl Fn(Rank, u64, MicrobatchId) -> Batch + Send + Sync + 'static,
    ) -> Result<Self, BackendError> {
        let Plan { program, script, mut wires, capacities, slowdowns } = plan;
        let ranks = script.ranks.len();
        let cause = |error: DeviceError| BackendError::RankFailed {
            rank: Rank::new(0),
            iteration: 0,
            cause: error.to_string(),
        };
        let ahead = Joining::of(&script, options.devices.as_deref()).map_err(cause)?;
        if ahead.is_some() {
            // What devices exchange among themselves, no emulated link delays.
            wires.fill_with(|| None);
        }
        let shared = Shared::new(Exchanges::new(Arc::clone(&script), wires, &capacities), ranks);
        let (say, written) = mpsc::channel();
        let faults = options.faults.clone();
        let home = Arc::new(Home { program, script, slowdowns, faults, shared, ahead, written: say });
        let source = Arc::new((build, feed));
        let mut crew = Self { home, threads: Vec::new(), options, written };
        for number in 0..crew.home.program.world() {
            let rank = Rank::new(number);
            let (home, source) = (Arc::clone(&crew.home), Arc::clone(&source));
            let body = move || home.live(rank, &source.0, &source.1);
            let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body);
            crew.threads.push(thread.map_err(|error| BackendError::RankFailed {
                rank,
                iteration: 0,
                cause: format!("no thread for it: {error}"),
            })?);
        }
        let shared = &crew.home.shared;
        let mut state = shared.lock();
        while state.ready < ranks {
            if let Some(failure) = state.failure.clone() {
                return Err(failure);
            }
            state = shared.coordinate(state, TICK);
        }
        drop(state);
        Ok(crew)
    }

    /// The state of training.
    ///
    /// # Errors
    /// What stopped the crew before.
    pub(super) fn save(&self) -> Result<Snapshot, BackendError> {
        self.ask(Request::Save);
        Ok(std::mem::take(&mut self.all_done()?.snapshot))
    }

    /// Lets all ranks write their state into a folder. Comes back when they have copied it.
    ///
    /// # Errors
    /// What stopped the crew before.
    pub(super) fn write(&self, folder: PathBuf) -> Result<(), BackendError> {
        self.ask(Request::Write(folder.into()));
        self.all_done().map(drop)
    }

    /// What ranks have written since this was last asked, with their numbers. Waits, if asked to, until there is something.
    ///
    /// # Errors
    /// What stopped the crew before.
    pub(super) fn written(&self, wait: bool) -> Result<Vec<(usize, Written)>, BackendError> {
        loop {
            let all: Vec<_> = self.written.try_iter().collect();
            if !all.is_empty() || !wait {
                return Ok(all);
            }
            match self.written.recv_timeout(TICK) {
                Ok(one) => return Ok(vec![one]),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this crew's home has a sender"),
            }
            if let Some(failure) = self.home.shared.lock().failure.clone() {
                return Err(failure);
            }
        }
    }

    /// Waits until all ranks have done what they were asked for.
    fn all_done(&self) -> Result<MutexGuard<'_, State>, BackendError> {
        let shared = &self.home.shared;
        let mut state = shared.lock();
        loop {
            if let Some(failure) = state.failure.clone() {
                return Err(failure);
            }
            if state.ready == self.threads.len() {
                return Ok(state);
            }
            state = shared.coordinate(state, TICK);
        }
    }

    fn ask(&self, request: Request) {
        let mut state = self.home.shared.lock();
        state.asked += 1;
        state.request = request;
        state.ready = 0;
        state.reports.fill(None);
        self.home.shared.release_all(state);
    }

    /// Carries out one iteration and gives the reports of all ranks, by rank.
    ///
    /// # Errors
    /// What stopped it; the crew is of no use afterwards.
    pub(super) fn iterate(&self, iteration: u64) -> Result<Vec<Report>, BackendError> {
        let shared = &self.home.shared;
        self.ask(Request::Iterate(iteration));
        loop {
            let mut state = shared.lock();
            if let Some(failure) = state.failure.clone() {
                return Err(failure);
            }
            if state.reports.iter().all(Option::is_some) {
                let mut reports: Vec<Report> = state.reports.iter_mut().filter_map(Option::take).collect();
                drop(state);
                settle(&self.home.program, &self.home.script, &mut reports);
                return Ok(reports);
            }
            let failure = if self.options.interrupt.load(Ordering::Relaxed) {
                Some(BackendError::Interrupted)
            } else {
                self.home.stalled(&state, iteration, self.options.stall_timeout)
            };
            match failure {
                Some(failure) => {
                    drop(state);
                    self.home.fail(failure);
                }
                None => drop(shared.coordinate(state, TICK)),
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let mut state = self.home.shared.lock();
        state.quit = true;
        self.home.shared.release_all(state);
        for thread in self.threads.drain(..) {
            // Its panic, if any, was caught and reported.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Home {
    /// The life of a rank's thread.
    fn live<W: Worker>(
        &self,
        rank: Rank,
        build: &impl Fn(Rank) -> Result<W, String>,
        feed: &impl Fn(Rank, u64, MicrobatchId) -> Batch,
    ) {
        wait_exactly();
        let mut iteration = 0;
        let life = AssertUnwindSafe(|| self.work(rank, build, feed, &mut iteration));
        if let Err(panic) = catch_unwind(life) {
            self.fail(BackendError::RankFailed { rank, iteration, cause: cause(panic.as_ref()) });
        }
    }

    fn work<W: Worker>(
        &self,
        rank: Rank,
        build: &impl Fn(Rank) -> Result<W, String>,
        feed: &impl Fn(Rank, u64, MicrobatchId) -> Batch,
        iteration: &mut u64,
    ) {
        let mut worker = match build(rank) {
            Ok(worker) => worker,
            Err(cause) => return self.fail(BackendError::RankFailed { rank, iteration: 0, cause }),
        };
        let lines = self.ahead.as_ref().map(|ahead| ahead.join(rank, &mut worker)).transpose();
        // Declared after the worker, so that exchanges have ended when its device goes.
        let mut lines = match lines {
            Ok(lines) => lines.flatten(),
            Err(error) => {
                return self.fail(BackendError::RankFailed { rank, iteration: 0, cause: error.to_string() });
            }
        };
        let (mut scratch, mut saver) = (Vec::new(), None);
        self.done();
        for count in 1.. {
            match self.next_request(rank, count) {
                None => return,
                Some(Request::Save) => {
                    let mut state = self.shared.lock();
                    worker.save(&mut |kept, part| state.snapshot.put(kept, part));
                    drop(state);
                    self.done();
                }
                Some(Request::Write(folder)) => {
                    self.write(rank, &worker, &mut saver, &folder);
                    self.done();
                }
                Some(Request::Iterate(number)) => {
                    *iteration = number;
                    let run = (&mut worker, lines.as_mut(), &mut scratch);
                    let Some(report) = self.iterate(rank, run, feed, number, count) else {
                        // Work on the device that waits for others would keep it from going.
                        lines.iter().for_each(Lines::abort);
                        return;
                    };
                    let mut state = self.shared.lock();
                    state.reports[rank.index()] = Some(report);
                    self.shared.tell_coordinator(state);
                }
            }
        }
    }

    /// Stops all ranks, and what their devices wait for.
    fn fail(&self, failure: BackendError) {
        self.shared.fail(failure);
        if let Some(ahead) = &self.ahead {
            ahead.abort();
        }
    }

    /// A rank has done what it was asked for.
    fn done(&self) {
        let mut state = self.shared.lock();
        state.ready += 1;
        self.shared.tell_coordinator(state);
    }

    /// Copies what a rank writes into a folder, and lets its saver write that.
    fn write(&self, rank: Rank, worker: &impl Worker, saver: &mut Option<Saver>, folder: &Path) {
        let say = self.written.clone();
        let done = move |written| {
            // A crew that is gone wants to know nothing.
            let _ = say.send((rank.index(), written));
        };
        Saver::save_with(saver, rank, folder, |put| worker.written(put), done);
    }

    /// One iteration of a rank; `None` if the rank must leave.
    fn iterate<W: Worker>(
        &self,
        rank: Rank,
        (worker, lines, scratch): (&mut W, Option<&mut Lines>, &mut Vec<f32>),
        feed: &impl Fn(Rank, u64, MicrobatchId) -> Batch,
        iteration: u64,
        count: u64,
    ) -> Option<Report> {
        prepare(worker, (&self.program, rank), iteration, |microbatch| feed(rank, iteration, microbatch));
        let context = Context {
            rank,
            program: &self.program,
            script: &self.script,
            slowdown: self.slowdowns[rank.index()],
            faults: &self.faults,
        };
        let (number, script, shared) = (rank.index(), &self.script, &self.shared);
        let meet = move || self.all_ready(rank, count).then(move || Threads::new(number, script, shared, scratch));
        let outcome = match lines {
            Some(lines) => {
                let run = Ahead::new(context, worker, lines, iteration);
                run.run(meet()?)
            }
            None => {
                let run = Run::new(context, worker, iteration);
                run.run(meet()?)
            }
        };
        match outcome {
            Ok(report) => Some(report),
            Err(stop) => {
                if let Some(failure) = stop.failure(rank, iteration) {
                    self.fail(failure);
                }
                None
            }
        }
    }

    /// Waits until the request that makes `count` is there; `None` if the rank must leave.
    fn next_request(&self, rank: Rank, count: u64) -> Option<Request> {
        let mut state = self.shared.lock();
        while !state.quit && state.asked < count {
            state = self.shared.sleep(rank.index(), state, None);
        }
        (!state.quit).then(|| state.request.clone())
    }

    /// Waits until all ranks are ready to begin; the last one starts the clock. `false` if the rank must leave.
    fn all_ready(&self, rank: Rank, count: u64) -> bool {
        self.shared.beats[rank.index()].wait(0);
        let mut state = self.shared.lock();
        state.ready += 1;
        if state.ready == self.script.ranks.len() {
            state.begun = count;
            state.exchanges.begin();
            self.shared.release_all(state);
            return true;
        }
        while !state.quit && state.begun < count {
            state = self.shared.sleep(rank.index(), state, None);
        }
        !state.quit
    }

    /// The rank that keeps the others from going on, if one has for longer than `timeout`.
    fn stalled(&self, state: &State, iteration: u64, timeout: Duration) -> Option<BackendError> {
        if state.begun < state.asked {
            return None;
        }
        let watch = Watch {
            program: &self.program,
            script: &self.script,
            now: state.exchanges.epoch().elapsed(),
            limit: super::clock::nanoseconds(timeout),
            beats: self.shared.beats.iter().map(Beat::read).collect(),
            reported: state.reports.iter().map(Option::is_some).collect(),
        };
        let missing = || state.exchanges.next_event().is_none().then(|| state.exchanges.missing_end()).flatten();
        watch.stalled(iteration, missing)
    }
}

/// What a rank does before the clock of an iteration starts.
pub(super) fn prepare<W: Worker>(
    worker: &mut W,
    (program, rank): (&Program, Rank),
    iteration: u64,
    mut feed: impl FnMut(MicrobatchId) -> Batch,
) {
    worker.begin_iteration(iteration);
    let share = program.layout.share(program.layout.replica_of(rank));
    for microbatch in (0..share).map(MicrobatchId::new) {
        worker.feed(microbatch, &feed(microbatch));
    }
}

/// What a panic said, or why a rank's device failed it.
pub(super) fn cause(panic: &(dyn Any + Send)) -> String {
    if let Some(error) = panic.downcast_ref::<DeviceError>() {
        return error.to_string();
    }
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("its thread panicked: {}", text.unwrap_or("with a value that is no text"))
}

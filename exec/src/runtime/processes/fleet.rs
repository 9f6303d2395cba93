//! The coordinator's side: the processes of all ranks, what they are told, and who of them went wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ir::{BackendError, InstructionId, MicrobatchId, Program, Rank};

use super::children::Children;
use super::socket::Socket;
use super::wire::{self, Answer, Command, Job, Peers};
use crate::checkpoint::Written;
use crate::data::Batch;
use crate::runtime::clock::{Epoch, monotonic, nanoseconds};
use crate::runtime::script::{EndId, Script};
use crate::runtime::settled::settle;
use crate::runtime::shared::Report;
use crate::runtime::snapshot::Snapshot;
use crate::runtime::stall::{Watch, rank_at};

/// How often the coordinator looks at the interrupt flag, for silence and for stalls.
const TICK: Duration = Duration::from_millis(20);
/// How long the loss of a connection waits for the cause of it.
const CAUSE: Duration = Duration::from_secs(1);
/// Looks at a clock of another machine; the quickest counts.
const LOOKS: usize = 16;

/// Something from a worker.
enum Event {
    Answer(Answer),
    /// Its connection has ended.
    Gone,
}

/// One rank as the coordinator knows it.
#[derive(Debug)]
struct Member {
    control: Socket,
    /// How far its clock is ahead of this one's, in nanoseconds.
    ahead: i64,
    heard: Instant,
    /// When it last said what it does, in nanoseconds of the iteration, and what.
    beat: Option<(u64, Beat)>,
    missing: Option<EndId>,
}

/// Since when, and at which instruction if it does not wait.
type Beat = (u64, Option<InstructionId>);

/// What the processes carry out.
#[derive(Clone, Debug)]
struct Work {
    program: Arc<Program>,
    script: Arc<Script>,
}

/// When a rank counts as lost, and who may end it all.
#[derive(Clone, Debug)]
pub struct Watchfulness {
    /// A process that nothing is heard of for longer than this is taken to have stopped. Every process says something
    /// ten times in this time, at least every half second, whatever its rank does.
    pub silence: Duration,
    /// How long the processes have to find each other.
    pub gathering: Duration,
    /// Set to `true` by anyone to end what is under way.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for Watchfulness {
    fn default() -> Self {
        Self { silence: Duration::from_secs(10), gathering: Duration::from_secs(60), interrupt: Arc::default() }
    }
}

impl Watchfulness {
    fn heartbeat(&self) -> Duration {
        (self.silence / 10).min(Duration::from_millis(500))
    }
}

/// The processes of all ranks, one each. Dropping it ends them, and reaps those that it started.
///
/// A rank whose process ends is found at once; one whose process says nothing for [`Watchfulness::silence`], after that; one
/// that works on one instruction for longer than [`crate::CpuOptions::stall_timeout`] while others wait, after that.
#[derive(Debug)]
pub struct Processes {
    members: Vec<Member>,
    events: Receiver<(usize, Event)>,
    children: Children,
    how: String,
    /// Ranks of the host that has the most.
    pub(super) most_on_a_host: u32,
    watchfulness: Watchfulness,
    work: Option<Work>,
    iteration: u64,
    epoch: Option<Epoch>,
    reported: Vec<bool>,
    /// What became of what ranks wrote, and nobody asked for yet.
    written: Vec<(usize, Written)>,
    /// What ended it: it can do nothing more.
    failure: Option<BackendError>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answer(_) => "Answer",
            Self::Gone => "Gone",
        })
    }
}

impl Processes {
    /// Starts a process of this host for each rank with `command`, which must call [`super::serve_standard_input`], and
    /// joins each two of them by an unnamed Unix socket.
    ///
    /// # Errors
    /// [`BackendError::RankFailed`] with what became of the first that could not be started or ended at once.
    pub fn spawn(
        world: u32,
        watchfulness: Watchfulness,
        mut command: impl FnMut(Rank) -> std::process::Command,
    ) -> Result<Self, BackendError> {
        let (mut controls, mut children) = (Vec::new(), Children::default());
        for rank in (0..world).map(Rank::new) {
            let started = Socket::pair().and_then(|(mine, theirs)| {
                children.start(command(rank), theirs)?;
                controls.push(mine);
                Ok(())
            });
            started.map_err(|error| failed(rank, 0, format!("its process cannot start: {error}")))?;
        }
        let how = format!("{world} processes of one host, over Unix sockets");
        let mut processes = Self::new(controls, children, how, watchfulness)?;
        processes.hand_out();
        processes.joined()?;
        Ok(processes)
    }

    /// Takes connections to all ranks' workers, by rank. They have still to be welcomed.
    pub(super) fn new(
        controls: Vec<Socket>,
        children: Children,
        how: String,
        watchfulness: Watchfulness,
    ) -> Result<Self, BackendError> {
        let (sender, events) = mpsc::channel();
        let mut members = Vec::new();
        for (rank, control) in controls.into_iter().enumerate() {
            let listen = |from: Socket| {
                let sender = sender.clone();
                std::thread::Builder::new()
                    .name(format!("what rank {rank} says"))
                    .spawn(move || listen(rank, from, &sender))
                    .map(drop)
            };
            let ready =
                control.again().and_then(listen).and_then(|()| control.set_patience(Some(watchfulness.silence)));
            ready.map_err(|error| failed(rank_at(rank), 0, format!("its connection is of no use: {error}")))?;
            members.push(Member { control, ahead: 0, heard: Instant::now(), beat: None, missing: None });
        }
        let reported = vec![false; members.len()];
        Ok(Self {
            most_on_a_host: u32::try_from(members.len()).unwrap_or(u32::MAX),
            members,
            events,
            children,
            how,
            watchfulness,
            work: None,
            iteration: 0,
            epoch: None,
            reported,
            written: Vec::new(),
            failure: None,
        })
    }

    /// Welcomes all workers and hands each a stream to each other one.
    pub(in crate::runtime) fn hand_out(&mut self) {
        self.hand_out_of(Socket::pair);
    }

    /// The same of streams that `pair` makes both ends of.
    pub(super) fn hand_out_of(&mut self, pair: impl Fn() -> std::io::Result<(Socket, Socket)>) {
        self.welcome(|| Peers::Handed);
        for one in 0..self.members.len() {
            for other in one + 1..self.members.len() {
                // A worker that is gone is found by what is heard of it.
                let _ = pair().and_then(|(first, second)| {
                    self.members[one].control.hand_over(&first)?;
                    self.members[other].control.hand_over(&second)
                });
            }
        }
    }

    /// Tells each worker its rank and how to reach the others.
    pub(super) fn welcome(&mut self, peers: impl Fn() -> Peers) {
        let world = u32::try_from(self.members.len()).expect("ranks are u32");
        let heartbeat_ms = nanoseconds(self.watchfulness.heartbeat()) / 1_000_000;
        self.tell(|rank| Command::Welcome { rank: rank.raw(), world, peers: peers(), heartbeat_ms });
    }

    /// Waits until every worker has reached all others.
    pub(super) fn joined(&mut self) -> Result<(), BackendError> {
        self.until_all(Duration::MAX, |_, answer| matches!(answer, Answer::Joined))
    }

    /// Learns how far the clocks of workers on other machines are ahead, to within half of the quickest of several
    /// round trips.
    pub(super) fn compare_clocks(&mut self, elsewhere: impl Fn(usize) -> bool) -> Result<(), BackendError> {
        for rank in (0..self.members.len()).filter(|rank| elsewhere(*rank)) {
            let mut quickest = u64::MAX;
            for _ in 0..LOOKS {
                let before = monotonic();
                self.tell_one(rank, &Command::TellTime);
                let mut theirs = None;
                let mut left = self.members.len();
                self.until(Duration::MAX, |who, answer| {
                    if let (true, Answer::Time(time)) = (who == rank, answer) {
                        theirs = Some(time);
                        left = 0;
                    }
                    left == 0
                })?;
                let (after, theirs) = (monotonic(), theirs.expect("the answer that was waited for"));
                if after - before < quickest {
                    quickest = after - before;
                    let middle = before + quickest / 2;
                    self.members[rank].ahead = theirs.cast_signed().wrapping_sub(middle.cast_signed());
                }
            }
        }
        Ok(())
    }

    /// How the ranks are joined, in words.
    #[must_use]
    pub fn how(&self) -> &str {
        &self.how
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> u32 {
        u32::try_from(self.members.len()).expect("ranks are u32")
    }

    /// How many ranks the host has that has the most.
    pub(in crate::runtime) const fn on_a_host(&self) -> u32 {
        self.most_on_a_host
    }

    /// Process ids of the ranks, by rank; empty if others started them.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        self.children.ids()
    }

    /// Whether something went wrong: it can do nothing more.
    pub(in crate::runtime) const fn failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Builds the state of all ranks.
    pub(in crate::runtime) fn load(
        &mut self,
        program: &Arc<Program>,
        script: &Arc<Script>,
        job: impl Fn(Rank) -> Job,
    ) -> Result<(), BackendError> {
        assert_eq!(program.world() as usize, self.members.len(), "a program for another number of ranks");
        self.work = Some(Work { program: Arc::clone(program), script: Arc::clone(script) });
        self.tell(|rank| Command::Load(Box::new(job(rank))));
        self.until_all(Duration::MAX, |_, answer| matches!(answer, Answer::Loaded))
    }

    /// Carries out one iteration and gives the reports of all ranks, by rank.
    pub(in crate::runtime) fn iterate(
        &mut self,
        iteration: u64,
        stall_timeout: Duration,
        feed: impl Fn(Rank, MicrobatchId) -> Batch,
    ) -> Result<Vec<Report>, BackendError> {
        let Work { program, script } = self.work.clone().expect("`load` comes before `iterate`");
        self.iteration = iteration;
        let share = |rank| program.layout.share(program.layout.replica_of(rank));
        let of = |rank| (0..share(rank)).map(|microbatch| feed(rank, MicrobatchId::new(microbatch))).collect();
        self.tell(|rank| Command::Prepare { iteration, batches: of(rank) });
        self.until_all(Duration::MAX, |_, answer| matches!(answer, Answer::Ready))?;
        let now = Epoch::now();
        for member in &mut self.members {
            (member.beat, member.missing) = (None, None);
        }
        self.reported.fill(false);
        self.epoch = Some(now);
        for rank in 0..self.members.len() {
            let epoch = now.reading().wrapping_add_signed(self.members[rank].ahead);
            self.tell_one(rank, &Command::Begin { epoch });
        }
        let mut reports: Vec<Option<Report>> = vec![None; self.members.len()];
        let result = self.until_all(stall_timeout, |rank, answer| match answer {
            Answer::Report(times) => {
                reports[rank] = times.report(&program, &script, rank_at(rank));
                assert!(reports[rank].is_some(), "rank {rank} reports on another program");
                true
            }
            _ => false,
        });
        self.epoch = None;
        result?;
        let mut reports: Vec<Report> = reports.into_iter().flatten().collect();
        settle(&program, &script, &mut reports);
        Ok(reports)
    }

    /// The state of training.
    pub(in crate::runtime) fn save(&mut self) -> Result<Snapshot, BackendError> {
        let mut snapshot = Snapshot::default();
        self.tell(|_| Command::Save);
        self.until_all(Duration::MAX, |_, answer| match answer {
            Answer::Part(part) => {
                part.put_into(&mut snapshot);
                false
            }
            answer => matches!(answer, Answer::Saved),
        })?;
        Ok(snapshot)
    }

    /// Lets all ranks write their state into a folder. Comes back when they have copied it.
    pub(in crate::runtime) fn write(&mut self, folder: &Path) -> Result<(), BackendError> {
        let folder = folder.to_str().expect("a folder whose name is text, as it was given");
        self.tell(|_| Command::Write { folder: folder.to_owned() });
        self.until_all(Duration::MAX, |_, answer| matches!(answer, Answer::Copied))
    }

    /// What ranks have written since this was last asked, with their numbers. Waits, if asked to, until there is something.
    pub(in crate::runtime) fn written(&mut self, wait: bool) -> Result<Vec<(usize, Written)>, BackendError> {
        if wait && self.written.is_empty() {
            self.until(Duration::MAX, |_, answer| matches!(answer, Answer::Written(_)))?;
        }
        Ok(std::mem::take(&mut self.written))
    }

    fn tell(&mut self, command: impl Fn(Rank) -> Command) {
        for rank in 0..self.members.len() {
            self.tell_one(rank, &command(rank_at(rank)));
        }
    }

    /// A worker that cannot be told is gone or has stopped, which is found by what is heard of it.
    fn tell_one(&mut self, rank: usize, command: &Command) {
        let _ = wire::send(&mut self.members[rank].control, command);
    }

    /// Takes what is said until every rank has said what `last` is true of.
    fn until_all(
        &mut self,
        stall_timeout: Duration,
        mut last: impl FnMut(usize, Answer) -> bool,
    ) -> Result<(), BackendError> {
        let mut left = self.members.len();
        let mut done = vec![false; left];
        if left == 0 {
            return Ok(());
        }
        self.until(stall_timeout, |rank, answer| {
            if last(rank, answer) {
                assert!(!std::mem::replace(&mut done[rank], true), "rank {rank} answers twice");
                left -= 1;
            }
            left == 0
        })
    }

    /// Takes what is said until `done`, or something goes wrong.
    fn until(
        &mut self,
        stall_timeout: Duration,
        mut done: impl FnMut(usize, Answer) -> bool,
    ) -> Result<(), BackendError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = self.listen(stall_timeout, &mut done);
        self.failure = result.as_ref().err().cloned();
        result
    }

    fn listen(
        &mut self,
        stall_timeout: Duration,
        done: &mut dyn FnMut(usize, Answer) -> bool,
    ) -> Result<(), BackendError> {
        let mut suspicion: Option<(Instant, BackendError)> = None;
        let mut looked = Instant::now();
        // What was not said before this was asked is no silence.
        self.members.iter_mut().for_each(|member| member.heard = looked);
        loop {
            match self.events.recv_timeout(TICK) {
                Ok((rank, Event::Gone)) => return Err(self.gone(rank)),
                Ok((rank, Event::Answer(answer))) => {
                    self.members[rank].heard = Instant::now();
                    match answer {
                        Answer::Beat { since, instruction, missing } => {
                            let at = self.epoch.map(Epoch::elapsed);
                            self.members[rank].beat = at.map(|at| (at, (since, instruction)));
                            self.members[rank].missing = missing.map(|(transaction, end)| EndId { transaction, end });
                        }
                        Answer::Failed(failure) => return Err(failure.error(rank_at(rank), self.iteration)),
                        Answer::Lost { rank: lost, why } => {
                            let cause = format!("rank {rank} lost its connection to it: {why}");
                            suspicion.get_or_insert((Instant::now(), failed(lost, self.iteration, cause)));
                        }
                        answer => {
                            self.reported[rank] |= matches!(answer, Answer::Report(_));
                            if let Answer::Written(written) = &answer {
                                self.written.push((rank, written.clone()));
                            }
                            if done(rank, answer) {
                                return Ok(());
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("who is gone says so before"),
            }
            if looked.elapsed() >= TICK {
                if looked.elapsed() > self.watchfulness.silence / 4 {
                    // This process itself was stopped for a while: the others had no chance to be heard.
                    self.members.iter_mut().for_each(|member| member.heard = Instant::now());
                }
                looked = Instant::now();
                self.look(stall_timeout, suspicion.as_ref())?;
            }
        }
    }

    /// What went wrong without a word.
    fn look(&self, stall_timeout: Duration, suspicion: Option<&(Instant, BackendError)>) -> Result<(), BackendError> {
        if self.watchfulness.interrupt.load(Ordering::Relaxed) {
            return Err(BackendError::Interrupted);
        }
        if let Some((since, error)) = suspicion
            && since.elapsed() > CAUSE
        {
            return Err(error.clone());
        }
        if let Some(rank) = (0..self.members.len()).find(|rank| self.silent(*rank)) {
            let seconds = self.watchfulness.silence.as_secs_f64();
            let what = format!("nothing was heard of its process for {seconds:.1} s: it was stopped or cut off");
            return Err(BackendError::Stalled { rank: rank_at(rank), iteration: self.iteration, what });
        }
        let Some(Work { program, script }) = &self.work else { return Ok(()) };
        // All as they were when the one said what it does that said so longest ago.
        let beats: Option<Vec<(u64, Beat)>> = self.members.iter().map(|member| member.beat).collect();
        let Some(beats) = beats.filter(|_| self.epoch.is_some()) else { return Ok(()) };
        let watch = Watch {
            program,
            script,
            now: beats.iter().map(|(at, _)| *at).min().unwrap_or(0),
            limit: nanoseconds(stall_timeout.min(Duration::from_secs(u64::from(u32::MAX)))),
            beats: beats.into_iter().map(|(_, beat)| beat).collect(),
            reported: self.reported.clone(),
        };
        let missing = || self.members.iter().find_map(|member| member.missing);
        watch.stalled(self.iteration, missing).map_or(Ok(()), Err)
    }

    fn silent(&self, rank: usize) -> bool {
        self.members[rank].heard.elapsed() > self.watchfulness.silence
    }

    /// What became of a rank whose connection has ended.
    fn gone(&mut self, rank: usize) -> BackendError {
        let cause = self.children.cause(rank).unwrap_or_else(|| "its process closed its connection".to_owned());
        failed(rank_at(rank), self.iteration, cause)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Whoever does not listen is ended by force, or sees the connection end.
            let _ = member.control.set_patience(Some(TICK));
            let _ = wire::send(&mut member.control, &Command::Quit);
        }
    }
}

/// Passes on what a worker says, until its connection ends.
fn listen(rank: usize, mut from: Socket, to: &mpsc::Sender<(usize, Event)>) {
    loop {
        let event = wire::receive(&mut from, u64::MAX).map_or(Event::Gone, Event::Answer);
        let gone = matches!(event, Event::Gone);
        if to.send((rank, event)).is_err() || gone {
            return;
        }
    }
}

/// A rank that ended early.
pub(super) const fn failed(rank: Rank, iteration: u64, cause: String) -> BackendError {
    BackendError::RankFailed { rank, iteration, cause }
}

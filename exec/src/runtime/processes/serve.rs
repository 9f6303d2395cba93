//! A worker: the process (or, of the coordinator's own rank, the threads) that carries out one rank.
//!
//! One thread is the rank; one listens to the coordinator, so that the rank can be told to leave at any time; one says
//! every so often what the rank does; one per peer takes in what it sends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ir::{Program, Rank};

use super::inbox::Inbox;
use super::join::{self, Door};
use super::mesh::{Lines, Mesh};
use super::socket::Socket;
use super::watching::Watching;
use super::wire::{self, Answer, Command, Failure, Job, Saved, Times};
use crate::checkpoint::Saver;
use crate::data::Batch;
use crate::runtime::ahead::Ahead;
use crate::runtime::clock::{Epoch, monotonic, wait_exactly};
use crate::runtime::crew::{cause, prepare};
use crate::runtime::lines::{Groups, Lines as Joined};
use crate::runtime::meeting::Stop;
use crate::runtime::rank::{Context, Run};
use crate::runtime::script::Script;
use crate::runtime::snapshot::Kept;
use crate::runtime::worker::{NotFinite, Worker};
use crate::state::Part;

/// How a worker's part ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The coordinator said so.
    Told,
    /// The coordinator is gone.
    Alone,
}

/// Makes the state of a rank under a program.
pub(in crate::runtime) trait Build<W>:
    Fn(Rank, &Arc<Program>, Job) -> Result<W, String> + Send + 'static
{
}
impl<W, F: Fn(Rank, &Arc<Program>, Job) -> Result<W, String> + Send + 'static> Build<W> for F {}

/// The way to the coordinator.
type Out = Arc<Mutex<Socket>>;

/// Carries out a rank until told to end. `build` makes its state; `door` is where others of other hosts connect.
///
/// # Errors
/// If the coordinator or another rank could not be reached in the first place.
pub(in crate::runtime) fn serve<W: Worker>(
    mut control: Socket,
    door: Option<&Door>,
    build: impl Build<W>,
) -> io::Result<Ended> {
    let (rank, world, peers, heartbeat_ms) = match wire::receive(&mut control, u64::MAX) {
        Ok(Command::Welcome { rank, world, peers, heartbeat_ms }) => (rank, world, peers, heartbeat_ms),
        Ok(Command::Quit) => return Ok(Ended::Told),
        Ok(_) => return Err(io::Error::other("the coordinator did not begin with a welcome")),
        Err(_) => return Ok(Ended::Alone),
    };
    let rank = Rank::new(rank);
    let peers = join::peers(&control, rank.index(), world as usize, &peers, door)?;
    let inbox = Arc::new(Inbox::new(rank.index()));
    for (peer, socket) in peers.iter().enumerate() {
        let Some(socket) = socket else { continue };
        let (inbox, socket) = (Arc::clone(&inbox), socket.again()?);
        thread(format!("from rank {peer}"), move || inbox.read(peer, socket))?;
    }
    let closers = peers.iter().flatten().map(Socket::again).collect::<io::Result<Vec<_>>>()?;
    let out: Out = Arc::new(Mutex::new(control.again()?));
    answer(&out, &Answer::Joined);
    {
        let (inbox, out) = (Arc::clone(&inbox), Arc::clone(&out));
        let heartbeat = Duration::from_millis(heartbeat_ms);
        thread(format!("heartbeat of rank {rank}"), move || beat(&inbox, &out, heartbeat))?;
    }
    let (commands, received) = mpsc::channel();
    {
        let (inbox, out) = (Arc::clone(&inbox), Arc::clone(&out));
        let work = move || Work { rank, inbox, out, peers, scratch: Vec::new(), saver: None }.live(&received, &build);
        thread(format!("rank {rank}"), work)?;
    }
    let ended = loop {
        match wire::receive(&mut control, u64::MAX) {
            Ok(Command::Quit) => break Ended::Told,
            Ok(Command::TellTime) => answer(&out, &Answer::Time(monotonic())),
            Ok(command) => {
                // A rank that is gone has said why.
                let _ = commands.send(command);
            }
            Err(_) => break Ended::Alone,
        }
    };
    inbox.quit();
    closers.iter().for_each(Socket::close);
    Ok(ended)
}

fn thread(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name).spawn(body).map(drop)
}

/// Says something to the coordinator. If it is gone, the thread that listens to it ends everything.
fn answer(out: &Out, answer: &Answer) {
    let _ = wire::send(&mut out.lock().unwrap_or_else(PoisonError::into_inner), answer);
}

/// Says every so often what the rank does.
fn beat(inbox: &Inbox, out: &Out, every: Duration) {
    while inbox.doze(every) {
        let (since, instruction) = inbox.beat.read();
        let missing = inbox.lock().missing.map(|id| (id.transaction, id.end));
        answer(out, &Answer::Beat { since, instruction, missing });
    }
}

/// What a rank's thread holds.
struct Work {
    rank: Rank,
    inbox: Arc<Inbox>,
    out: Out,
    /// By rank.
    peers: Vec<Option<Socket>>,
    scratch: Vec<f32>,
    saver: Option<Saver>,
}

/// The state of a rank under a program.
struct Loaded<W> {
    /// What joins its device to others; goes before the worker, whose device it keeps busy.
    joined: Option<Joined>,
    worker: W,
    program: Arc<Program>,
    script: Arc<Script>,
    slowdown: f64,
    faults: Vec<crate::runtime::options::Fault>,
    iteration: u64,
}

impl Work {
    /// Does what it is told until nothing more comes. A rank that failed does nothing more but waits.
    fn live<W: Worker>(&mut self, commands: &Receiver<Command>, build: &impl Build<W>) {
        wait_exactly();
        let mut loaded = None;
        while let Ok(command) = commands.recv() {
            let result = catch_unwind(AssertUnwindSafe(|| self.obey(command, &mut loaded, build)));
            let failure = match result {
                Ok(Ok(())) => continue,
                Ok(Err(Stop::Told)) => return,
                Ok(Err(Stop::NotFinite(NotFinite(what)))) => Answer::Failed(Failure::NotFinite(what)),
                Ok(Err(Stop::Lost { rank, why })) => Answer::Lost { rank, why },
                Err(panic) => Answer::Failed(Failure::Other(cause(panic.as_ref()))),
            };
            answer(&self.out, &failure);
            loaded = None;
        }
    }

    fn obey<W: Worker>(
        &mut self,
        command: Command,
        loaded: &mut Option<Loaded<W>>,
        build: &impl Build<W>,
    ) -> Result<(), Stop> {
        match (command, loaded.as_mut()) {
            (Command::Load(job), _) => match self.load(*job, build) {
                Ok(new) => {
                    *loaded = Some(new);
                    answer(&self.out, &Answer::Loaded);
                }
                Err(why) => answer(&self.out, &Answer::Failed(Failure::Other(why))),
            },
            (Command::Prepare { iteration, batches }, Some(loaded)) => {
                loaded.iteration = iteration;
                let mut batches: Vec<Option<Batch>> = batches.into_iter().map(Some).collect();
                let next = |microbatch: ir::MicrobatchId| {
                    batches[microbatch.index()].take().expect("each microbatch is fed once")
                };
                prepare(&mut loaded.worker, (&loaded.program, self.rank), iteration, next);
                self.inbox.begin(&loaded.script, iteration);
                answer(&self.out, &Answer::Ready);
            }
            (Command::Begin { epoch }, Some(loaded)) => {
                let times = self.iterate(loaded, Epoch::at(epoch))?;
                answer(&self.out, &Answer::Report(Box::new(times)));
            }
            (Command::Save, Some(loaded)) => {
                loaded.worker.save(&mut |kept, part| answer(&self.out, &Answer::Part(Saved::new(kept, part))));
                answer(&self.out, &Answer::Saved);
            }
            (Command::Write { folder }, Some(loaded)) => {
                let out = Arc::clone(&self.out);
                let done = move |written| answer(&out, &Answer::Written(written));
                let show = |put: &mut dyn FnMut(Kept, &Part<'_>)| loaded.worker.written(put);
                Saver::save_with(&mut self.saver, self.rank, Path::new(&folder), show, done);
                answer(&self.out, &Answer::Copied);
            }
            // It has failed, and said so.
            (Command::Prepare { .. } | Command::Begin { .. } | Command::Save | Command::Write { .. }, None) => {}
            (Command::Welcome { .. } | Command::TellTime | Command::Quit, _) => {
                unreachable!("the thread that listens to the coordinator sees to it")
            }
        }
        Ok(())
    }

    fn load<W: Worker>(&self, job: Job, build: &impl Build<W>) -> Result<Loaded<W>, String> {
        let say = |problems: Vec<ir::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let program = Arc::new(ir::program::text::parse(&job.program).map_err(say)?);
        let (slowdown, faults) = (job.slowdown, job.faults.clone());
        let script = Arc::new(Script::new(&program));
        let links = match (&job.ticket, &job.devices) {
            (Some(ticket), Some(devices)) => Some(devices.links(ticket, program.world()).map_err(|e| e.to_string())?),
            _ => None,
        };
        let mut worker = build(self.rank, &program, job)?;
        let joined = match (links, worker.device()) {
            (Some(links), Some(device)) => {
                worker.work_ahead();
                let groups = Arc::new(Groups::of(&script));
                let joined = Joined::join(device, self.rank.index(), &groups, Some(&*links));
                let joined = joined.map_err(|error| error.to_string())?;
                self.inbox.watch(joined.links().map(Arc::downgrade).collect());
                Some(joined)
            }
            _ => None,
        };
        Ok(Loaded { joined, worker, program, script, slowdown, faults, iteration: 0 })
    }

    fn iterate<W: Worker>(&mut self, loaded: &mut Loaded<W>, epoch: Epoch) -> Result<Times, Stop> {
        let Loaded { joined, worker, program, script, slowdown, faults, iteration } = loaded;
        let context = Context { rank: self.rank, program, script, slowdown: *slowdown, faults };
        let lines = Lines { inbox: &self.inbox, peers: &mut self.peers, scratch: &mut self.scratch };
        let report = match joined {
            Some(joined) => {
                let watching = Watching::new(*iteration, script, lines, epoch);
                let outcome = Ahead::new(context, worker, joined, *iteration).run(watching);
                // Work on the device that waits for others would keep it from going.
                outcome.inspect_err(|_| joined.abort())?
            }
            None => {
                let mesh = Mesh::new(self.rank.index(), *iteration, script, lines, epoch);
                Run::new(context, worker, *iteration).run(mesh)?
            }
        };
        Ok(Times::from(&report))
    }
}

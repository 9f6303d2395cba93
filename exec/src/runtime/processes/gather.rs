//! Ranks of several hosts, whoever started them: all connect to the coordinator, which is in the process of rank 0.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ir::{BackendError, Problem};

use super::children::Children;
use super::fleet::Processes;
use super::join::{self, Door};
use super::serve::{Build, Ended};
use super::socket::Socket;
use super::wire::{self, Answer, Command, FROM_STRANGERS, Hello, Peers};
use super::{Watchfulness, train_at};
use crate::runtime::worker::Worker;

/// How long someone who connects has to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// One process of a run that a launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its rank.
    pub rank: u32,
    /// How many ranks the launcher started.
    pub world: u32,
    /// What identifies the run: processes of another run are not let in.
    pub run: String,
    /// The node, as the launcher calls it.
    pub node: String,
    /// The device of the node that it claims, from 0.
    pub device: u32,
    /// What identifies its machine since it was started: processes with the same one share a clock.
    pub host: String,
    /// `host:port` where rank 0 is found.
    pub coordinator: String,
}

impl Place {
    fn hello(&self, door: &Door) -> std::io::Result<Hello> {
        Ok(Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: self.run.clone(),
            rank: self.rank,
            world: self.world,
            node: self.node.clone(),
            device: self.device,
            host: self.host.clone(),
            port: door.port()?,
        })
    }
}

/// Carries out the rank of this process until the coordinator, which is in the process of rank 0, ends it.
///
/// # Errors
/// If the coordinator or another rank could not be reached in time.
pub fn take_part(place: &Place, watchfulness: &Watchfulness) -> std::io::Result<Ended> {
    take_part_as(place, watchfulness, train_at(place.device))
}

pub(super) fn take_part_as<W: Worker>(
    place: &Place,
    watchfulness: &Watchfulness,
    build: impl Build<W>,
) -> std::io::Result<Ended> {
    let patience = watchfulness.gathering;
    let door = Door::open("0.0.0.0:0", &place.run, patience)?;
    let mut control = join::connect(&place.coordinator, patience)?;
    wire::send(&mut control, &Answer::Hello(place.hello(&door)?))?;
    super::serve::serve(control, Some(&door), build)
}

impl Processes {
    /// Waits for the processes of all ranks, this one included: a thread of it is rank 0.
    ///
    /// # Errors
    /// Every reason why they are not a run: who did not come, whose launcher counts another number of ranks, which two
    /// claim one device.
    pub fn gather(place: &Place, watchfulness: Watchfulness) -> Result<Self, BackendError> {
        Self::gather_as(place, watchfulness, train_at(place.device))
    }

    pub(super) fn gather_as<W: Worker>(
        place: &Place,
        watchfulness: Watchfulness,
        build: impl Build<W>,
    ) -> Result<Self, BackendError> {
        let problem = |what: String| BackendError::Unsupported(vec![Problem::new("launch", what)]);
        let (_, port) = place.coordinator.rsplit_once(':').unwrap_or(("", &place.coordinator));
        let door = Door::open(&format!("0.0.0.0:{port}"), &place.run, watchfulness.gathering)
            .map_err(|error| problem(format!("cannot listen at port {port}: {error}")))?;
        let own = Place { coordinator: format!("127.0.0.1:{port}"), ..place.clone() };
        let patience = watchfulness.clone();
        let thread = std::thread::Builder::new().name("rank 0 of the launched".to_owned());
        let started = thread.spawn(move || take_part_as(&own, &patience, build));
        let started = started.map_err(|error| problem(format!("no thread for rank 0: {error}")))?;
        let met = Gathering::new(place.world).wait(&door, &watchfulness);
        if watchfulness.interrupt.load(Ordering::Relaxed) {
            return Err(BackendError::Interrupted);
        }
        let (controls, hellos) = met.map_err(BackendError::Unsupported)?;
        drop(started);
        let hosts: std::collections::BTreeSet<&str> = hellos.iter().map(|hello| hello.host.as_str()).collect();
        let (world, hosts) = (place.world, hosts.len());
        let how = format!("{world} processes of {hosts} host{}, over TCP", if hosts == 1 { "" } else { "s" });
        let addresses = addresses(place, &controls, &hellos);
        let most = hellos.iter().map(|hello| hellos.iter().filter(|other| other.host == hello.host).count()).max();
        let mut processes = Self::new(controls, Children::default(), how, watchfulness)?;
        processes.most_on_a_host = most.and_then(|most| u32::try_from(most).ok()).unwrap_or(world);
        processes.welcome(|| Peers::At(addresses.clone()));
        processes.joined()?;
        processes.compare_clocks(|rank| hellos[rank].host != place.host)?;
        Ok(processes)
    }
}

/// Where each worker listens. One that came from this machine is found where the coordinator is.
fn addresses(place: &Place, controls: &[Socket], hellos: &[Hello]) -> Vec<String> {
    let here = place.coordinator.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
    let address = |(control, hello): (&Socket, &Hello)| {
        let from = match control {
            Socket::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Socket::Unix(_) => None,
        };
        match from.filter(|from| !from.is_loopback()) {
            Some(from) => std::net::SocketAddr::new(from, hello.port).to_string(),
            None => format!("{here}:{}", hello.port),
        }
    };
    controls.iter().zip(hellos).map(address).collect()
}

/// Who has come so far.
struct Gathering {
    world: u32,
    /// By rank.
    met: Vec<Option<(Socket, Hello)>>,
    problems: Vec<Problem>,
}

impl Gathering {
    fn new(world: u32) -> Self {
        Self { world, met: (0..world).map(|_| None).collect(), problems: Vec::new() }
    }

    /// Waits for all ranks, and gives their connections and who they are.
    fn wait(mut self, door: &Door, watchfulness: &Watchfulness) -> Result<(Vec<Socket>, Vec<Hello>), Vec<Problem>> {
        let deadline = Instant::now() + watchfulness.gathering;
        let go_on = || !watchfulness.interrupt.load(Ordering::Relaxed);
        while self.problems.is_empty() && self.met.iter().any(Option::is_none) {
            match door.wait(deadline, go_on) {
                Ok(Some(stream)) => {
                    // Whoever says something else is not of this run.
                    if let Some((socket, hello)) = introduced(stream).filter(|(_, hello)| hello.run == door.run) {
                        self.admit(socket, hello);
                    }
                }
                Ok(None) => self.missing(watchfulness.gathering),
                Err(error) => self.problems.push(Problem::new("launch", format!("nobody can connect: {error}"))),
            }
        }
        self.shared_devices();
        if self.problems.is_empty() {
            return Ok(self.met.into_iter().flatten().unzip());
        }
        self.met.into_iter().flatten().for_each(|(socket, _)| dismiss(socket));
        Err(self.problems)
    }

    fn admit(&mut self, socket: Socket, hello: Hello) {
        match self.refusal(&hello) {
            None => {
                let rank = hello.rank as usize;
                self.met[rank] = Some((socket, hello));
            }
            Some(problem) => {
                dismiss(socket);
                self.problems.push(problem);
            }
        }
    }

    /// Why someone cannot be a rank, if so.
    fn refusal(&self, hello: &Hello) -> Option<Problem> {
        let (rank, world) = (hello.rank, self.world);
        if hello.version != env!("CARGO_PKG_VERSION") {
            let ours = env!("CARGO_PKG_VERSION");
            let what = format!("rank {rank} on {} runs version {}, rank 0 {ours}", hello.node, hello.version);
            Some(Problem::new("launch", what).hint("install one version on all nodes"))
        } else if hello.world != world {
            let what = format!("rank {rank} on {} counts {} ranks, rank 0 {world}", hello.node, hello.world);
            Some(Problem::new("launch", what).hint("start all of them by one launcher"))
        } else if self.met.get(rank as usize).is_some_and(Option::is_none) {
            None
        } else {
            let what = format!("two processes say that they are rank {rank} of {world}, one of them on {}", hello.node);
            Some(Problem::new("launch", what).hint("start all of them by one launcher"))
        }
    }

    fn missing(&mut self, waited: Duration) {
        let missing: Vec<String> =
            (0..self.world).filter(|rank| self.met[*rank as usize].is_none()).map(|rank| rank.to_string()).collect();
        let what = format!("no word from ranks {} within {:.0} s", missing.join(", "), waited.as_secs_f64());
        let hint = "see whether they started, and whether their nodes reach the coordinator's port";
        self.problems.push(Problem::new("launch", what).hint(hint));
    }

    fn shared_devices(&mut self) {
        let mut claims: std::collections::BTreeMap<(&str, &str, u32), u32> = std::collections::BTreeMap::new();
        for hello in self.met.iter().flatten().map(|(_, hello)| hello) {
            if let Some(first) = claims.insert((&hello.host, &hello.node, hello.device), hello.rank) {
                let (second, node, device) = (hello.rank, &hello.node, hello.device);
                let what = format!("ranks {first} and {second} both claim device {device} of {node}");
                let hint = "start one process per device, each with its own local rank";
                self.problems.push(Problem::new("launch", what).hint(hint));
            }
        }
    }
}

/// Tells a worker that there is nothing for it to do: rank 0 says why.
fn dismiss(mut socket: Socket) {
    // It may be gone.
    let _ = wire::send(&mut socket, &Command::Quit);
}

/// Who connected, if it says so in time.
fn introduced(stream: TcpStream) -> Option<(Socket, Hello)> {
    stream.set_read_timeout(Some(INTRODUCTION)).ok()?;
    let mut socket = Socket::tcp(stream).ok()?;
    let Answer::Hello(hello) = wire::receive(&mut socket, FROM_STRANGERS).ok()? else { return None };
    let Socket::Tcp(stream) = &socket else { return None };
    stream.set_read_timeout(None).ok()?;
    Some((socket, hello))
}

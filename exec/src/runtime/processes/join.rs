//! How workers reach each other, and the coordinator its workers on other hosts.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::socket::Socket;
use super::wire::Peers;

/// How often a door is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Where other processes connect.
#[derive(Debug)]
pub(in crate::runtime) struct Door {
    listener: TcpListener,
    /// How long to wait for someone.
    patience: Duration,
    /// What the processes of this run say to each other; others are not let in.
    pub(super) run: String,
}

impl Door {
    /// Opens a door at an address, `:0` for any port.
    pub(super) fn open(address: &str, run: &str, patience: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, patience, run: run.to_owned() })
    }
    /// Its port.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }
    /// Waits for someone, at most until `deadline`, while `go_on` says so; `None` if nobody came.
    pub(super) fn wait(&self, deadline: Instant, go_on: impl Fn() -> bool) -> io::Result<Option<TcpStream>> {
        while Instant::now() < deadline && go_on() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Connects to an address, again and again while nobody listens there, for as long as patience lasts.
pub(super) fn connect(address: &str, patience: Duration) -> io::Result<Socket> {
    let deadline = Instant::now() + patience;
    loop {
        let tried = address.to_socket_addrs().and_then(|mut all| {
            let first = all.next().ok_or_else(|| io::Error::other("the name has no address"))?;
            TcpStream::connect_timeout(&first, patience)
        });
        match tried {
            Ok(stream) => return Socket::tcp(stream),
            Err(error) if Instant::now() >= deadline => {
                return Err(io::Error::new(error.kind(), format!("cannot reach {address}: {error}")));
            }
            Err(_) => std::thread::sleep(LOOK * 10),
        }
    }
}

/// Streams to all other ranks, by rank.
pub(super) fn peers(
    control: &Socket,
    rank: usize,
    world: usize,
    peers: &Peers,
    door: Option<&Door>,
) -> io::Result<Vec<Option<Socket>>> {
    let mut sockets: Vec<Option<Socket>> = (0..world).map(|_| None).collect();
    match peers {
        Peers::Handed => {
            for peer in (0..world).filter(|peer| *peer != rank) {
                sockets[peer] = Some(control.take_over()?);
            }
        }
        Peers::At(addresses) => {
            let door = door.ok_or_else(|| io::Error::other("others cannot reach this worker"))?;
            if addresses.len() != world {
                return Err(io::Error::other(format!("{} addresses for {world} ranks", addresses.len())));
            }
            for (peer, address) in addresses.iter().enumerate().take(rank) {
                let mut socket = connect(address, door.patience)?;
                socket.write_all(&greeting(&door.run, rank))?;
                sockets[peer] = Some(socket);
            }
            let deadline = Instant::now() + door.patience;
            while sockets[rank + 1..].iter().any(Option::is_none) {
                let stream = door.wait(deadline, || true)?;
                let stream = stream.ok_or_else(|| io::Error::other("a rank never connected to this one"))?;
                if let Some((peer, socket)) = greeted(stream, &door.run)
                    && (rank + 1..world).contains(&peer)
                {
                    sockets[peer] = Some(socket);
                }
            }
        }
    }
    Ok(sockets)
}

/// The first bytes between two workers: the run and who speaks.
fn greeting(run: &str, rank: usize) -> [u8; 16] {
    let mut digest = ir::program::Digest::new();
    digest.text(run);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&digest.finish().to_le_bytes());
    bytes[8..].copy_from_slice(&(rank as u64).to_le_bytes());
    bytes
}

/// Who connected, if it belongs to the run.
fn greeted(stream: TcpStream, run: &str) -> Option<(usize, Socket)> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut bytes = [0; 16];
    (&stream).read_exact(&mut bytes).ok()?;
    stream.set_read_timeout(None).ok()?;
    let rank = usize::try_from(u64::from_le_bytes(bytes[8..].try_into().ok()?)).ok()?;
    (greeting(run, rank) == bytes).then_some((rank, Socket::tcp(stream).ok()?))
}

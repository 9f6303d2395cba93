//! Fleets whose workers are threads of the test, over the streams that processes use; who is no part of a run.

use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::children::Children;
use super::gather::take_part_as;
use super::serve::{Build, serve};
use super::socket::Socket;
use super::{Place, Processes, Watchfulness, take_part, train};
use crate::runtime::worker::Worker;

/// Workers over Unix sockets.
pub(in crate::runtime) fn over_unix<W: Worker + 'static>(
    world: u32,
    watchfulness: Watchfulness,
    build: impl Build<W> + Clone,
) -> Processes {
    over(world, watchfulness, build, Socket::pair)
}

/// Workers over Unix sockets that carry what workers tell each other, whatever it is, this much later.
pub(in crate::runtime) fn over_slow_unix<W: Worker + 'static>(
    world: u32,
    delay: Duration,
    build: impl Build<W> + Clone,
) -> Processes {
    over(world, Watchfulness::default(), build, || {
        let ((one, near), (far, other)) = (Socket::pair()?, Socket::pair()?);
        carry_late(near.again()?, far.again()?, delay);
        carry_late(far, near, delay);
        Ok((one, other))
    })
}

/// Passes on what comes from one socket to another, until either ends.
fn carry_late(mut from: Socket, mut to: Socket, delay: Duration) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let mut pass = || -> io::Result<bool> {
            let count = from.read(&mut bytes)?;
            std::thread::sleep(delay);
            to.write_all(&bytes[..count]).map(|()| count > 0)
        };
        while pass().unwrap_or(false) {}
        from.close();
        to.close();
    });
}

fn over<W: Worker + 'static>(
    world: u32,
    watchfulness: Watchfulness,
    build: impl Build<W> + Clone,
    pair: impl Fn() -> io::Result<(Socket, Socket)>,
) -> Processes {
    let mut controls = Vec::new();
    for _ in 0..world {
        let (mine, theirs) = Socket::pair().unwrap();
        controls.push(mine);
        let build = build.clone();
        std::thread::spawn(move || serve(theirs, None, build));
    }
    let mut processes = Processes::new(controls, Children::default(), "threads".to_owned(), watchfulness).unwrap();
    processes.hand_out_of(pair);
    processes.joined().unwrap();
    processes
}

/// Ranks of a run that nothing has started yet, each on a device of its own.
fn places(world: u32) -> Vec<Place> {
    static RUNS: AtomicU16 = AtomicU16::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = |rank| Place {
        rank,
        world,
        run: format!("test {number}"),
        node: "here".to_owned(),
        device: rank,
        host: "this machine".to_owned(),
        coordinator: format!("127.0.0.1:{port}"),
    };
    (0..world).map(place).collect()
}

/// Workers over TCP.
pub(in crate::runtime) fn over_tcp<W: Worker + 'static>(
    world: u32,
    watchfulness: Watchfulness,
    build: impl Build<W> + Clone,
) -> Processes {
    let places = places(world);
    for place in &places[1..] {
        let (place, watchfulness, build) = (place.clone(), watchfulness.clone(), build.clone());
        std::thread::spawn(move || take_part_as(&place, &watchfulness, build));
    }
    Processes::gather_as(&places[0], watchfulness, build).unwrap()
}

/// Gathers these places and gives what is wrong with them.
fn check(places: &[Place], expect: &[&str]) {
    let watchfulness = Watchfulness { gathering: Duration::from_millis(700), ..Watchfulness::default() };
    for place in &places[1..] {
        let (place, watchfulness) = (place.clone(), watchfulness.clone());
        std::thread::spawn(move || take_part(&place, &watchfulness));
    }
    let error = Processes::gather_as(&places[0], watchfulness, train).unwrap_err().to_string();
    assert!(expect.iter().all(|part| error.contains(part)), "{error}\nlacks one of {expect:?}");
}

#[test]
fn processes_that_are_no_run_are_refused() {
    let all = places(3);
    check(&all[..2], &["no word from ranks 2 within 1 s"]);

    let mut all = places(2);
    all[1].device = 0;
    check(&all, &["ranks 0 and 1 both claim device 0 of here", "its own local rank"]);

    // The same device of another node is another device.
    all[1].node = "there".to_owned();
    let fine = all.clone();
    std::thread::spawn(move || take_part(&fine[1], &Watchfulness::default()));
    let processes = Processes::gather(&all[0], Watchfulness::default()).unwrap();
    assert_eq!(processes.how(), "2 processes of 1 host, over TCP");
    drop(processes);

    let mut all = places(2);
    all[1].world = 4;
    check(&all, &["rank 1 on here counts 4 ranks, rank 0 2"]);

    let mut all = places(2);
    all[1].rank = 0;
    check(&all, &["two processes say that they are rank 0 of 2"]);

    // Someone of another run is not let in, and harms nothing.
    let mut all = places(2);
    all[1].run = "another".to_owned();
    check(&all, &["no word from ranks 1"]);
}

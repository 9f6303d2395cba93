//! Processes of this host that the coordinator started, and how they ended.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::socket::Socket;

/// How long a process has to end by itself when told to.
const GRACE: Duration = Duration::from_secs(2);
/// How often it is looked after.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes kept of what a process last said.
const LAST_WORDS: usize = 2000;

/// One process and what it last said on its standard error.
#[derive(Debug)]
struct Started {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
}

/// All processes that were started, by rank; none if others started them. Dropping it ends and reaps them all.
#[derive(Default, Debug)]
pub(super) struct Children(Vec<Started>);

impl Children {
    /// Starts one more: its standard input is the way to the coordinator. It is in a process group of its own, so that a
    /// signal from the terminal reaches the coordinator alone, which tells all ranks in order.
    pub(super) fn start(&mut self, mut command: Command, control: Socket) -> std::io::Result<()> {
        let Socket::Unix(control) = control else { unreachable!("a process of this host gets a stream of this host") };
        command.stdin(Stdio::from(OwnedFd::from(control))).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut stderr = child.stderr.take().expect("standard error is piped");
        let keep = Arc::clone(&said);
        self.0.push(Started { child, said });
        std::thread::Builder::new().name("last words".to_owned()).spawn(move || {
            let mut buffer = [0; 512];
            while let Ok(count @ 1..) = stderr.read(&mut buffer) {
                let mut said = keep.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(&buffer[..count]);
                let over = said.len().saturating_sub(LAST_WORDS);
                said.drain(..over);
            }
        })?;
        Ok(())
    }
    /// Process ids, by rank.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.0.iter().map(|started| started.child.id()).collect()
    }
    /// How the process of a rank ended, if it does within a second; `None` if it does not, or others started it.
    pub(super) fn cause(&mut self, rank: usize) -> Option<String> {
        let started = self.0.get_mut(rank)?;
        let status = wait(&mut started.child, Duration::from_secs(1))?;
        // What it said may still be on its way.
        std::thread::sleep(LOOK);
        let said = started.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let said = said.trim();
        let last = if said.is_empty() { String::new() } else { format!("; it last said: {said}") };
        Some(format!("its process {}{last}", words(status)))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let deadline = Instant::now() + GRACE;
        for started in &mut self.0 {
            if wait(&mut started.child, deadline.saturating_duration_since(Instant::now())).is_none() {
                // It may end at this very moment.
                let _ = started.child.kill();
                let _ = started.child.wait();
            }
        }
    }
}

/// How a process ended, if it does in time.
fn wait(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + at_most;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9: by someone, or by the system for want of memory)".to_owned(),
        (Some(signal), _) => format!("was ended by signal {signal}{}", name(signal)),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

const fn name(signal: i32) -> &'static str {
    match signal {
        1 => " (hang-up)",
        2 => " (interrupt)",
        4 => " (illegal instruction)",
        6 => " (abort)",
        7 => " (bus error)",
        11 => " (segmentation fault)",
        15 => " (termination)",
        _ => "",
    }
}

//! What the coordinator and a worker tell each other: a length, then a value in postcard's encoding.

use std::io::{self, Read, Write};
use std::ops::Range;

use ir::{BackendError, Bytes, InstructionId, Lane, Program, Rank, SimTime, Span};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::socket::Socket;
use crate::checkpoint::Written;
use crate::data::Batch;
use crate::device::Elsewhere;
use crate::runtime::options::Fault;
use crate::runtime::script::Script;
use crate::runtime::shared::{Measured, Report};
use crate::runtime::snapshot::{Kept, Snapshot};
use crate::state::{Part, Weights};

/// Bytes of the longest value that is read from someone who has not said who it is.
pub(super) const FROM_STRANGERS: u64 = 64 << 10;

/// What a worker is told.
#[derive(Serialize, Deserialize)]
pub(super) enum Command {
    /// Which rank it is, and how to reach the others.
    Welcome { rank: u32, world: u32, peers: Peers, heartbeat_ms: u64 },
    /// To say what its clock shows.
    TellTime,
    /// To build the state of its rank.
    Load(Box<Job>),
    /// To get ready for an iteration, with its microbatches.
    Prepare { iteration: u64, batches: Vec<Batch> },
    /// To carry it out; its times count from this moment of the worker's clock.
    Begin { epoch: u64 },
    /// To send its state.
    Save,
    /// To write its state into a folder.
    Write { folder: String },
    /// To end.
    Quit,
}

/// How a worker reaches the others.
#[derive(Serialize, Deserialize)]
pub(super) enum Peers {
    /// A stream to each of them, in order of ranks, follows on this one.
    Handed,
    /// Where each of them listens, by rank; those above connect to those below.
    At(Vec<String>),
}

/// What a rank works on.
#[derive(Serialize, Deserialize)]
pub(in crate::runtime) struct Job {
    /// The program's text form.
    pub(in crate::runtime) program: String,
    pub(in crate::runtime) slowdown: f64,
    pub(in crate::runtime) faults: Vec<Fault>,
    /// What it computes on, if not on the processor.
    pub(in crate::runtime) devices: Option<Elsewhere>,
    /// With what its device is joined to the others, if it is.
    pub(in crate::runtime) ticket: Option<Vec<u8>>,
    /// Weights to begin with, in place of those drawn from the seed.
    pub(in crate::runtime) weights: Option<Tensors>,
    /// Both moments of each.
    pub(in crate::runtime) moments: Option<[Tensors; 2]>,
    /// Folder and files of the checkpoint to go on from, in place of both.
    pub(in crate::runtime) checkpoint: Option<(String, Vec<String>)>,
}

/// Named tensors: name, shape and elements of each.
#[derive(Serialize, Deserialize)]
pub(in crate::runtime) struct Tensors(Vec<(String, Vec<usize>, Vec<f32>)>);

impl From<&Weights> for Tensors {
    fn from(weights: &Weights) -> Self {
        Self(
            weights.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape.clone(), tensor.data.clone())).collect(),
        )
    }
}

impl Tensors {
    pub(super) fn weights(self) -> Weights {
        let mut weights = Weights::default();
        for (name, shape, data) in self.0 {
            weights.insert(name, shape, data);
        }
        weights
    }
}

/// What a worker tells.
#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    /// Who it is; the first word between hosts.
    Hello(Hello),
    /// It has reached all others.
    Joined,
    /// What its clock shows.
    Time(u64),
    /// Its rank's state is there.
    Loaded,
    /// It is ready to begin.
    Ready,
    /// What it brings back from an iteration.
    Report(Box<Times>),
    /// A part of its state.
    Part(Saved),
    /// All of it was sent.
    Saved,
    /// What it writes is copied.
    Copied,
    /// What became of what it wrote.
    Written(Written),
    /// Its rank cannot go on.
    Failed(Failure),
    /// It cannot reach another rank.
    Lost { rank: Rank, why: String },
    /// What its rank does now: since when, at which instruction, and which transaction and end it waits for.
    Beat { since: u64, instruction: Option<InstructionId>, missing: Option<(usize, usize)> },
}

/// Who a worker is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) run: String,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// The node, as its launcher calls it.
    pub(super) node: String,
    /// The device of the node that it claims.
    pub(super) device: u32,
    /// What identifies its machine: workers with the same share a clock.
    pub(super) host: String,
    /// Where it listens for the others.
    pub(super) port: u16,
}

/// Why a rank cannot go on.
#[derive(Serialize, Deserialize)]
pub(super) enum Failure {
    NotFinite(String),
    Other(String),
}

impl Failure {
    pub(super) fn error(self, rank: Rank, iteration: u64) -> BackendError {
        match self {
            Self::NotFinite(what) => BackendError::NotFinite { rank, iteration, what },
            Self::Other(cause) => BackendError::RankFailed { rank, iteration, cause },
        }
    }
}

/// A part of a rank's state.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    kept: Kept,
    name: String,
    shape: Vec<usize>,
    slice: Vec<Range<usize>>,
    first: usize,
    data: Vec<f32>,
}

impl Saved {
    pub(super) fn new(kept: Kept, part: &Part<'_>) -> Self {
        Self {
            kept,
            name: part.name.to_owned(),
            shape: part.shape.to_vec(),
            slice: part.slice.to_vec(),
            first: part.first,
            data: part.data.to_vec(),
        }
    }
    pub(super) fn put_into(&self, snapshot: &mut Snapshot) {
        let part = Part {
            name: &self.name,
            shape: &self.shape,
            slice: &self.slice,
            first: self.first,
            data: (&self.data).into(),
        };
        snapshot.put(self.kept, &part);
    }
}

/// A [`Report`], without what the coordinator knows.
#[derive(Serialize, Deserialize)]
pub(super) struct Times {
    /// Issued, start and end of each instruction, in nanoseconds.
    spans: Vec<[u64; 3]>,
    memory: Vec<(u64, u64)>,
    loss: Option<f64>,
    gradient_norm: Option<f64>,
    measured: Option<Measured>,
}

impl From<&Report> for Times {
    fn from(report: &Report) -> Self {
        let times = |span: &Span| [span.issued, span.start, span.end].map(SimTime::nanoseconds);
        Self {
            spans: report.lane.spans.iter().map(times).collect(),
            memory: report.lane.memory.iter().map(|(time, bytes)| (time.nanoseconds(), bytes.get())).collect(),
            loss: report.loss,
            gradient_norm: report.gradient_norm,
            measured: report.measured.clone(),
        }
    }
}

impl Times {
    /// The report of a rank; `None` if it is not one of the program's instructions.
    pub(super) fn report(self, program: &Program, script: &Script, rank: Rank) -> Option<Report> {
        let role = script.ranks[rank.index()].role;
        let spans = self.measured.as_ref().map_or(self.spans.len(), |measured| measured.spans.len());
        if spans != program.roles[role.index()].instructions().len() {
            return None;
        }
        let span = |(index, times): (usize, [u64; 3])| {
            let [issued, start, end] = times.map(SimTime::from_nanoseconds);
            Span { instruction: InstructionId::at(index), issued, start, end }
        };
        let memory = self.memory.into_iter().map(|(time, bytes)| (SimTime::from_nanoseconds(time), Bytes::new(bytes)));
        let spans = self.spans.into_iter().enumerate().map(span).collect();
        let lane = Lane { role, rank, multiplicity: 1, spans, memory: memory.collect() };
        Some(Report { lane, loss: self.loss, gradient_norm: self.gradient_norm, measured: self.measured })
    }
}

/// Sends a value.
pub(super) fn send(to: &mut Socket, value: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 8];
    bytes = postcard::to_extend(value, bytes).map_err(io::Error::other)?;
    let length = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)
}

/// Receives a value of at most `most` bytes.
pub(super) fn receive<T: DeserializeOwned>(from: &mut Socket, most: u64) -> io::Result<T> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(io::Error::other(format!("{length} bytes came where at most {most} may")));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

//! The runtime with workers that only move numbers: what `measure` times.

use std::sync::Arc;

use ir::program::{CollectiveKind, HostCopy, Message, Op, Pass, Payload, UnitRange};
use ir::{Bytes, ChunkId, InstructionId, MicrobatchId, Program, Rank};

use super::crew::{Crew, Plan};
use super::options::CpuOptions;
use super::script::Script;
use super::shared::Report;
use super::snapshot::Kept;
use super::worker::{NotFinite, Worker};
use crate::data::Batch;
use crate::parcels;
use crate::state::{Got, Offered, Part, Progress};

/// A worker that holds one buffer and copies into and out of it, as training state does.
#[derive(Debug)]
struct Mover {
    whole: Vec<f32>,
    /// The same as equal parts for all members.
    bundle: Vec<f32>,
    members: usize,
}

impl Worker for Mover {
    fn begin_iteration(&mut self, _: u64) {}
    fn feed(&mut self, _: MicrobatchId, _: &Batch) {}
    fn compute(&mut self, _: Pass, _: ChunkId, _: UnitRange, _: MicrobatchId) -> Result<Progress, NotFinite> {
        Ok(Progress::Ended)
    }
    fn contribution(&mut self, kind: CollectiveKind, _: Payload) -> Offered<'_> {
        Offered::Host(match kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => &self.whole,
            CollectiveKind::AllGather => &self.whole[..self.whole.len() / self.members],
            CollectiveKind::AllToAll => &self.bundle,
        })
    }
    fn deliver(&mut self, kind: CollectiveKind, _: Payload, values: Got<'_>) {
        let values = values.host();
        let values = if kind == CollectiveKind::AllToAll { &values[self.members..] } else { values };
        self.whole[..values.len()].copy_from_slice(values);
    }
    fn outgoing(&mut self, _: Message, _: Rank) -> Offered<'_> {
        Offered::Host(&self.whole)
    }
    fn incoming(&mut self, _: Message, _: Rank, values: Got<'_>) {
        self.whole.copy_from_slice(values.host());
    }
    fn host_copy(&mut self, _: HostCopy, _: bool) {}
    fn gradient_norm(&mut self) -> Result<(), NotFinite> {
        Ok(())
    }
    fn optimizer(&mut self) -> Result<(), NotFinite> {
        Ok(())
    }
    fn loss(&self) -> Option<f64> {
        None
    }
    fn total_gradient_norm(&self) -> f64 {
        0.0
    }
    fn bytes_held(&self) -> Bytes {
        Bytes::new(4 * self.whole.len() as u64)
    }
    fn save(&self, _: &mut dyn FnMut(Kept, &Part<'_>)) {}
    fn poison(&mut self) {}
}

/// Runs a program whose tensors have `elements` elements and gives, by rank, how many nanoseconds each instruction took
/// that `measured` picks, over all iterations but the first.
///
/// # Panics
/// If a thread cannot start.
pub(crate) fn durations(
    program: Program,
    elements: usize,
    iterations: u64,
    measured: impl Fn(usize, InstructionId) -> bool,
) -> Vec<Vec<u64>> {
    let mut times = vec![Vec::new(); program.world() as usize];
    for report in run(program, elements, iterations) {
        let rank = report.lane.rank.index();
        let spans = report.lane.spans.iter().filter(|span| measured(rank, span.instruction));
        times[rank].extend(spans.map(|span| (span.end - span.start).nanoseconds()));
    }
    times
}

/// Runs a program of one rank and gives the nanoseconds between the starts of its compute instructions, likewise.
///
/// # Panics
/// If a thread cannot start.
pub(crate) fn distances(program: Program, iterations: u64) -> Vec<u64> {
    assert!(program.roles.iter().all(|role| role.instructions().iter().all(|i| matches!(i.op, Op::Compute { .. }))));
    let reports = run(program, 1, iterations);
    let of_pairs = |report: &Report| -> Vec<u64> {
        report.lane.spans.windows(2).map(|pair| (pair[1].start - pair[0].start).nanoseconds()).collect()
    };
    reports.iter().flat_map(of_pairs).collect()
}

fn run(program: Program, elements: usize, iterations: u64) -> Vec<Report> {
    let program = Arc::new(program);
    let script = Arc::new(Script::new(&program));
    let members = script.ranks.len();
    let plan = Plan {
        wires: vec![None; script.transactions.len()],
        capacities: Vec::new(),
        slowdowns: vec![1.0; members],
        script,
        program,
    };
    let build = move |_| {
        let (whole, mut bundle) = (vec![1e-30; elements], Vec::new());
        parcels::begin(&mut bundle, std::iter::repeat_n(elements / members, members));
        bundle.extend_from_slice(&whole[..elements / members * members]);
        Ok(Mover { whole, bundle, members })
    };
    let crew = Crew::start(plan, CpuOptions::default(), build, |_, _, _| Batch::default());
    let crew = crew.unwrap_or_else(|error| panic!("{error}"));
    let iterate = |iteration| crew.iterate(iteration).unwrap_or_else(|error| panic!("{error}"));
    iterate(0);
    (1..iterations).flat_map(iterate).collect()
}

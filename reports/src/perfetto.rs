//! A trace that Perfetto and chrome://tracing open: the Trace Event Format's JSON object form.
//!
//! A process for each node of each clock, a thread for each stream of each rank, a complete event for each span, an arrow
//! from each send to its receive, and a counter for each rank's memory. Times are microseconds with nanoseconds behind
//! the point.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use ir::program::{Direction, Message, Stream};
use ir::{Lane, Op, Program, Rank, RoleId, Timeline};
use serde::Serialize;
use serde_json::json;

use crate::activity::{Activity, InstructionClass};
use crate::metrics::bounds;
use crate::report::Report;
use crate::words;

/// What ranks are gathered under: a node, or a rank itself where nodes are not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number, the same for all ranks under it.
    pub id: u32,
    /// Its name, such as `node 0 (dgx-a100)`.
    pub name: String,
}

/// Processes of one clock are numbered from a multiple of this.
const PROCESSES_PER_CLOCK: u64 = 1 << 24;

/// One event. Absent fields are left out.
#[derive(Serialize)]
struct TraceEvent<'a> {
    ph: &'static str,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<serde_json::Value>,
}

const NOTHING: TraceEvent<'static> =
    TraceEvent { ph: "", pid: 0, tid: None, ts: None, dur: None, name: "", cat: None, id: None, bp: None, args: None };

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// Writes events, comma-separated.
struct Events<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn push(&mut self, event: &TraceEvent<'_>) -> std::io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }
}

/// Writes timelines of a program as one trace; `process` says what each rank is gathered under.
///
/// # Errors
/// What the writer answers.
pub fn write_trace(
    program: &Program,
    timelines: &[&Timeline],
    process: &dyn Fn(Rank) -> Process,
    mut out: impl Write,
) -> std::io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut events = Events { out: &mut out, first: true };
    let mut flows = 0;
    for (index, timeline) in timelines.iter().enumerate() {
        let trace = Trace { program, timeline, first_process: index as u64 * PROCESSES_PER_CLOCK, process };
        trace.names(&mut events)?;
        for lane in &timeline.lanes {
            trace.spans(lane, &mut events)?;
            trace.memory(lane, &mut events)?;
        }
        trace.flows(&mut flows, &mut events)?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

/// One timeline on its way into a trace.
struct Trace<'a> {
    program: &'a Program,
    timeline: &'a Timeline,
    first_process: u64,
    process: &'a dyn Fn(Rank) -> Process,
}

const fn thread(rank: Rank, stream: Stream) -> u64 {
    rank.raw() as u64 * Stream::ALL.len() as u64 + stream as u64 + 1
}

impl Trace<'_> {
    fn process_id(&self, rank: Rank) -> u64 {
        self.first_process + u64::from((self.process)(rank).id) + 1
    }

    fn names<W: Write>(&self, events: &mut Events<W>) -> std::io::Result<()> {
        let mut named = BTreeSet::new();
        for lane in &self.timeline.lanes {
            let process = (self.process)(lane.rank);
            let pid = self.process_id(lane.rank);
            if named.insert(pid) {
                let name = format!("{} \u{b7} {}", self.timeline.clock.word(), process.name);
                events.push(&TraceEvent {
                    ph: "M",
                    pid,
                    name: "process_name",
                    args: Some(json!({ "name": name })),
                    ..NOTHING
                })?;
                let args = Some(json!({ "sort_index": pid }));
                events.push(&TraceEvent { ph: "M", pid, name: "process_sort_index", args, ..NOTHING })?;
            }
            let role = &self.program.roles[lane.role.index()];
            for stream in Stream::ALL {
                if !role.instructions().iter().any(|instruction| instruction.stream == stream) {
                    continue;
                }
                let ranks = if lane.multiplicity == 1 {
                    format!("rank {}", lane.rank.raw())
                } else {
                    format!("rank {} (and {} like it)", lane.rank.raw(), lane.multiplicity - 1)
                };
                let name = format!("{ranks}, stage {} \u{b7} {}", role.stage.raw(), stream.name());
                let tid = Some(thread(lane.rank, stream));
                let args = Some(json!({ "name": name }));
                events.push(&TraceEvent { ph: "M", pid, tid, name: "thread_name", args, ..NOTHING })?;
                let args = Some(json!({ "sort_index": tid }));
                events.push(&TraceEvent { ph: "M", pid, tid, name: "thread_sort_index", args, ..NOTHING })?;
            }
        }
        Ok(())
    }

    fn spans<W: Write>(&self, lane: &Lane, events: &mut Events<W>) -> std::io::Result<()> {
        let pid = self.process_id(lane.rank);
        let wait = self.timeline.input_wait.nanoseconds();
        if wait > 0 {
            events.push(&TraceEvent {
                ph: "X",
                pid,
                tid: Some(thread(lane.rank, Stream::Compute)),
                ts: Some(microseconds(bounds(self.timeline).0)),
                dur: Some(microseconds(wait)),
                name: Activity::InputStall.name(),
                cat: Some(Activity::InputStall.name()),
                args: Some(json!({ "what": "waiting for the tokens of the iteration" })),
                ..NOTHING
            })?;
        }
        for (instruction, span) in self.program.roles[lane.role.index()].instructions().iter().zip(&lane.spans) {
            let args = json!({
                "instruction": span.instruction.raw(),
                "what": words::op(self.program, &instruction.op),
                "waited_for_partners_ns": span.start.saturating_since(span.issued).nanoseconds(),
            });
            events.push(&TraceEvent {
                ph: "X",
                pid,
                tid: Some(thread(lane.rank, instruction.stream)),
                ts: Some(microseconds(span.start.nanoseconds())),
                dur: Some(microseconds((span.end - span.start).nanoseconds())),
                name: &label(self.program, &instruction.op),
                cat: Some(Activity::of(self.program, &instruction.op).name()),
                args: Some(args),
                ..NOTHING
            })?;
        }
        Ok(())
    }

    fn memory<W: Write>(&self, lane: &Lane, events: &mut Events<W>) -> std::io::Result<()> {
        let name = format!("memory of rank {}", lane.rank.raw());
        for (time, bytes) in &lane.memory {
            events.push(&TraceEvent {
                ph: "C",
                pid: self.process_id(lane.rank),
                ts: Some(microseconds(time.nanoseconds())),
                name: &name,
                args: Some(json!({ "bytes": bytes.get() })),
                ..NOTHING
            })?;
        }
        Ok(())
    }

    /// An arrow for each message whose both ends are on this timeline.
    fn flows<W: Write>(&self, flows: &mut u64, events: &mut Events<W>) -> std::io::Result<()> {
        let lanes = &self.timeline.lanes;
        let mut of_rank = BTreeMap::new();
        let mut of_role = BTreeMap::new();
        let mut receives: BTreeMap<(usize, RoleId, Message), usize> = BTreeMap::new();
        for (index, lane) in lanes.iter().enumerate() {
            of_rank.insert(lane.rank, index);
            of_role.entry(lane.role).or_insert(index);
            for (id, instruction) in self.program.roles[lane.role.index()].instructions().iter().enumerate() {
                if let Op::Receive { peer, message, .. } = instruction.op {
                    receives.insert((index, peer.role, message), id);
                }
            }
        }
        for lane in lanes {
            for (id, instruction) in self.program.roles[lane.role.index()].instructions().iter().enumerate() {
                let Op::Send { peer, message, .. } = instruction.op else { continue };
                let partner = u32::try_from(i64::from(lane.rank.raw()) + peer.shift).ok();
                let partner =
                    partner.and_then(|rank| of_rank.get(&Rank::new(rank))).or_else(|| of_role.get(&peer.role));
                let Some((partner, receive)) = partner
                    .and_then(|index| receives.get(&(*index, lane.role, message)).map(|id| (&lanes[*index], *id)))
                else {
                    continue;
                };
                *flows += 1;
                let name = message_name(message.direction);
                let (from, to) = (lane.spans[id], partner.spans[receive]);
                let (pid, tid) = (self.process_id(lane.rank), Some(thread(lane.rank, instruction.stream)));
                let (start, cat) = (from.start.nanoseconds(), Some("message"));
                let ts = Some(microseconds(start));
                events.push(&TraceEvent { ph: "s", pid, tid, ts, name, cat, id: Some(*flows), ..NOTHING })?;
                let stream = self.program.roles[partner.role.index()].instructions()[receive].stream;
                let (pid, tid) = (self.process_id(partner.rank), Some(thread(partner.rank, stream)));
                // Inside the receive's event, so that viewers bind the arrow to it.
                let inside = to.end.nanoseconds().saturating_sub(1).max(to.start.nanoseconds()).max(start);
                let (ts, bp) = (Some(microseconds(inside)), Some("e"));
                events.push(&TraceEvent { ph: "f", pid, tid, ts, name, cat, id: Some(*flows), bp, ..NOTHING })?;
            }
        }
        Ok(())
    }
}

const fn message_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "activation",
        Direction::Backward => "gradient",
    }
}

/// A short name: `forward 3`, `all-reduce over tensor`.
fn label(program: &Program, op: &Op) -> String {
    match op {
        Op::Compute { pass, microbatch, .. } => format!("{} {}", pass.name(), microbatch.raw()),
        Op::Send { message, .. } => format!("send {} {}", message_name(message.direction), message.microbatch.raw()),
        Op::Receive { message, .. } => {
            format!("receive {} {}", message_name(message.direction), message.microbatch.raw())
        }
        Op::Collective { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => {
            InstructionClass::of(program, op).to_string()
        }
    }
}

impl Report<'_> {
    /// Writes the median timeline of each clock as one trace; `process` says what each rank is gathered under, such as
    /// its node.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn perfetto(&self, process: &dyn Fn(Rank) -> Process, out: impl Write) -> std::io::Result<()> {
        let timelines: Vec<&Timeline> = self.machines.iter().map(|machine| machine.median).collect();
        write_trace(self.input.program, &timelines, process, out)
    }
}

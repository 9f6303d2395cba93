//! One rank: an event loop that interprets its role's instruction list.
//!
//! The rank's thread carries out compute instructions, and copies into and out of messages and collectives between
//! them. Time on emulated links passes while it computes. An emulated slower device is busy for a multiple of the CPU
//! time that an instruction used: while that time passes, the thread copies but does not compute.

use std::collections::VecDeque;

use ir::program::{Op, Payload, Stream};
use ir::timeline::Span;
use ir::{Bytes, InstructionId, Lane, Program, Rank, Role, SimTime};

use super::clock::{Epoch, thread_cpu};
use super::meeting::{Meeting, Moments, Stop};
use super::options::{Fault, FaultKind};
use super::script::{self, EndId, Exchange, RankScript, STREAMS, Script, Transaction};
use super::shared::Report;
use super::worker::{NotFinite, Worker};
use crate::state::{Got, Progress};

/// The stream of copies to and from host memory.
const HOST: usize = script::stream_index(Stream::Host);

/// What does not change while a rank lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) rank: Rank,
    pub(super) program: &'a Program,
    pub(super) script: &'a Script,
    /// How many times the CPU time of a compute instruction it lasts; 1 on a device that is not emulated.
    pub(super) slowdown: f64,
    pub(super) faults: &'a [Fault],
}

impl<'a> Context<'a> {
    pub(super) fn own(&self) -> &'a RankScript {
        &self.script.ranks[self.rank.index()]
    }
    pub(super) fn role(&self) -> &'a Role {
        &self.program.roles[self.own().role.index()]
    }
    pub(super) fn transaction(&self, id: EndId) -> &'a Transaction {
        &self.script.transactions[id.transaction]
    }
}

/// A compute instruction whose CPU work is done and whose emulated time is not over.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    instruction: InstructionId,
    issued: u64,
    start: u64,
    until: u64,
    /// Whether the instruction ends then, else it is paused.
    ends: bool,
}

/// A compute instruction that waits for an exchange beside it before it goes on.
#[derive(Clone, Copy, Debug)]
struct Pause {
    instruction: InstructionId,
    issued: u64,
    start: u64,
}

/// An end that has arrived and not been seen to end.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: EndId,
    taken: bool,
}

/// One iteration of one rank.
pub(super) struct Run<'a, W> {
    context: Context<'a>,
    worker: &'a mut W,
    iteration: u64,
    epoch: Epoch,
    first_compute: bool,
    /// By instruction, once it has ended.
    spans: Vec<Option<Span>>,
    left: usize,
    /// Per stream, the first instruction that was not begun.
    next: [usize; STREAMS],
    open: [VecDeque<Open>; STREAMS],
    stretch: Option<Stretch>,
    pause: Option<Pause>,
    /// When this thread last ended a compute instruction's work or a copy out of a transaction.
    free: u64,
    memory: Vec<(SimTime, Bytes)>,
}

impl<'a, W: Worker> Run<'a, W> {
    /// Before the clock starts.
    pub(super) fn new(context: Context<'a>, worker: &'a mut W, iteration: u64) -> Self {
        let instructions = context.role().instructions().len();
        let memory = vec![(SimTime::ZERO, worker.bytes_held())];
        worker.highest_bytes();
        Self {
            context,
            worker,
            iteration,
            epoch: Epoch::now(),
            first_compute: true,
            spans: vec![None; instructions],
            left: instructions,
            next: [0; STREAMS],
            open: Default::default(),
            stretch: None,
            pause: None,
            free: 0,
            memory,
        }
    }

    /// Carries out the list. Its clock is that of the meeting, which must have begun.
    pub(super) fn run(mut self, mut meeting: impl Meeting) -> Result<Report, Stop> {
        self.epoch = meeting.epoch();
        while self.left > 0 {
            if self.exchange(&mut meeting)? {
                continue;
            }
            match self.next_compute() {
                Some((stream, id, issued)) => {
                    self.next[stream] += 1;
                    let start = self.epoch.elapsed();
                    meeting.beat().work(id, start);
                    let first = std::mem::replace(&mut self.first_compute, false);
                    inject(self.context, self.iteration, (first, id), self.worker, || meeting.wait(false, None))?;
                    self.compute(Pause { instruction: id, issued, start })?;
                }
                None if self.may_continue() => {
                    let pause = self.pause.take().expect("a pause to continue from");
                    meeting.beat().work(pause.instruction, self.epoch.elapsed());
                    self.compute(pause)?;
                }
                None if self.left > 0 => self.wait(&mut meeting)?,
                None => {}
            }
        }
        let own = self.context.own();
        let whole = |(index, span): (usize, Option<Span>)| span.unwrap_or_else(|| panic!("i{index} never ran"));
        let spans = self.spans.into_iter().enumerate().map(whole).collect();
        let lane = Lane { role: own.role, rank: self.context.rank, multiplicity: 1, spans, memory: self.memory };
        let has_norm = self.context.role().instructions().iter().any(|i| matches!(i.op, Op::GradientNorm));
        let gradient_norm = has_norm.then(|| self.worker.total_gradient_norm());
        Ok(Report {
            lane,
            loss: finite("loss", self.worker.loss())?,
            gradient_norm: finite("gradient norm", gradient_norm)?,
            measured: None,
        })
    }

    /// Goes through all streams once: arrives, gives, takes, sees what has ended. `false` if there was nothing to do,
    /// and only then may the rank compute or sleep: an instruction that was seen to end, even if nothing but time passed
    /// for it, may be all that the next one waits for.
    fn exchange(&mut self, meeting: &mut impl Meeting) -> Result<bool, Stop> {
        let left = self.left;
        let gives = self.arrive(meeting)?;
        let mut moved = !gives.is_empty();
        for id in gives {
            self.give(meeting, id)?;
        }
        while let Some(id) = self.next_taking(meeting)? {
            self.take(meeting, id)?;
            moved = true;
        }
        // A device that is free again may let an exchange beside a paused instruction begin.
        moved |= self.end_stretch();
        Ok(moved || self.left < left)
    }

    fn ended(&self, id: InstructionId) -> Option<u64> {
        self.spans[id.index()].map(|span| span.end.nanoseconds())
    }

    /// When an instruction's waits had all ended, if they have.
    fn waits_ended(&self, id: InstructionId) -> Option<u64> {
        let role = self.context.role();
        role.waits(role.instruction(id)).iter().try_fold(0, |latest, wait| Some(latest.max(self.ended(*wait)?)))
    }

    /// Arrives at every transaction whose turn has come; gives those that this rank has to put data into.
    fn arrive(&mut self, meeting: &mut impl Meeting) -> Result<Vec<EndId>, Stop> {
        let mut arrivals = Vec::new();
        for stream in 0..STREAMS {
            while let Some(id) = self.next_arrival(stream) {
                self.next[stream] += 1;
                self.open[stream].push_back(Open { id, taken: false });
                arrivals.push(id);
            }
        }
        if !arrivals.is_empty() {
            meeting.arrive(&arrivals)?;
        }
        arrivals.retain(|id| self.context.transaction(*id).gives(id.end));
        Ok(arrivals)
    }

    /// The next end on a stream if its data are final and its waits have ended. It need not wait for the end of a
    /// predecessor that touches other data: the exchange begins the two in order.
    fn next_arrival(&self, stream: usize) -> Option<EndId> {
        let own = self.context.own();
        let position = self.next[stream];
        let instruction = *own.streams[stream].get(position)?;
        let id = own.end_of[instruction.index()]?;
        self.waits_ended(instruction)?;
        let previous = position.checked_sub(1).map(|previous| own.streams[stream][previous]);
        let computes = |id: InstructionId| own.end_of[id.index()].is_none();
        if previous.is_some_and(|previous| computes(previous) && self.ended(previous).is_none()) {
            return None;
        }
        let exchange = self.context.transaction(id).exchange;
        let free = |open: &Open| independent(self.context.transaction(open.id).exchange, exchange);
        let offered = match exchange {
            // What a paused instruction computed is there when its emulated device has had the time.
            Exchange::Collective(_, payload) if self.stretch.is_some() && self.is_beside(payload) => false,
            Exchange::Collective(kind, payload) => self.worker.offers(kind, payload),
            Exchange::Message(_) => true,
        };
        (offered && self.open[stream].iter().all(free)).then_some(id)
    }

    /// Puts this rank's part into a transaction.
    fn give(&mut self, meeting: &mut impl Meeting, id: EndId) -> Result<(), Stop> {
        let transaction = self.context.transaction(id);
        meeting.beat().work(transaction.ends[id.end].instruction, self.epoch.elapsed());
        let values = match transaction.exchange {
            Exchange::Message(message) => self.worker.outgoing(message, transaction.rank_of(1)).host(),
            Exchange::Collective(kind, payload) => self.worker.contribution(kind, payload).host(),
        };
        meeting.give(id, values)
    }

    /// Sees which transactions have ended, and finds one whose data this rank can take.
    fn next_taking(&mut self, meeting: &mut impl Meeting) -> Result<Option<EndId>, Stop> {
        if self.open.iter().all(VecDeque::is_empty) {
            return Ok(None);
        }
        meeting.look(|moments| self.see(moments))
    }

    fn see(&mut self, moments: &dyn Fn(EndId) -> Moments) -> Option<EndId> {
        let mut found = None;
        for stream in 0..STREAMS {
            while let Some(open) = self.open[stream].front().copied() {
                let transaction = self.context.transaction(open.id);
                let moments = moments(open.id);
                let must_take = transaction.takes(open.id.end) && !open.taken;
                if must_take && moments.ready && found.is_none() {
                    found = Some(open.id);
                }
                let (false, Some(issued), Some(start), Some(end)) =
                    (must_take, moments.reached, moments.started, moments.ended)
                else {
                    break;
                };
                self.open[stream].pop_front();
                self.finish(transaction.ends[open.id.end].instruction, issued, start.max(issued), end);
            }
        }
        found
    }

    /// Takes this rank's data out of a transaction.
    fn take(&mut self, meeting: &mut impl Meeting, id: EndId) -> Result<(), Stop> {
        let transaction = self.context.transaction(id);
        let instruction = transaction.ends[id.end].instruction;
        meeting.beat().work(instruction, self.epoch.elapsed());
        let worker = &mut *self.worker;
        let now = meeting.take(id, self.free, |values| match transaction.exchange {
            Exchange::Message(message) => worker.incoming(message, transaction.rank_of(0), Got::Host(values)),
            Exchange::Collective(kind, payload) => worker.deliver(kind, payload, Got::Host(values)),
        })?;
        let stream = self.context.role().instruction(instruction).stream;
        let open = &mut self.open[super::script::stream_index(stream)];
        open.front_mut().expect("an end that takes heads its stream").taken = true;
        self.free = now;
        self.sample(now);
        Ok(())
    }

    /// Ends the emulated instruction (or the piece of one) whose time is over, if it is.
    fn end_stretch(&mut self) -> bool {
        let now = self.epoch.elapsed();
        let Some(stretch) = self.stretch.take_if(|stretch| now >= stretch.until) else { return false };
        if stretch.ends {
            self.finish(stretch.instruction, stretch.issued, stretch.start, now);
        }
        true
    }

    /// A compute instruction that may begin: its stream, itself, and since when.
    fn next_compute(&self) -> Option<(usize, InstructionId, u64)> {
        let own = self.context.own();
        // A copy to host memory is no work of the emulated device.
        let streams = if self.stretch.is_some() { HOST..HOST + 1 } else { 0..STREAMS };
        streams.into_iter().find_map(|stream| {
            let position = self.next[stream];
            let id = *own.streams[stream].get(position)?;
            if own.end_of[id.index()].is_some() {
                return None;
            }
            let free = match position.checked_sub(1) {
                Some(previous) => self.ended(own.streams[stream][previous])?,
                None => 0,
            };
            Some((stream, id, self.waits_ended(id)?.max(free)))
        })
    }

    /// Whether an exchange is one that the paused instruction waits for.
    fn is_beside(&self, payload: Payload) -> bool {
        let Some(Pause { instruction, .. }) = self.pause else { return false };
        match (self.context.role().instruction(instruction).op, payload) {
            (
                Op::Compute { chunk, units, microbatch, pass: _ },
                Payload::Activation { chunk: of, unit, microbatch: m, .. },
            ) => (chunk, microbatch) == (of, m) && (units.start..units.end).contains(&unit),
            _ => false,
        }
    }

    /// Whether the instruction that paused has what it waits for, and its device is free.
    fn may_continue(&self) -> bool {
        let Some(Pause { instruction, .. }) = self.pause.filter(|_| self.stretch.is_none()) else { return false };
        // Data may be copied out of an exchange before they would have arrived over an emulated link.
        let under_way = self.open.iter().flatten().any(|open| match self.context.transaction(open.id).exchange {
            Exchange::Collective(_, payload) => self.is_beside(payload),
            Exchange::Message(_) => false,
        });
        match self.context.role().instruction(instruction).op {
            Op::Compute { chunk, units, microbatch, pass: _ } => {
                self.worker.continues(chunk, units, microbatch, under_way)
            }
            op => unreachable!("{op:?} never pauses"),
        }
    }

    /// Begins an instruction that has just started, or goes on with one that paused.
    fn compute(&mut self, begun: Pause) -> Result<(), Stop> {
        let Pause { instruction: id, issued, start } = begun;
        let before = thread_cpu();
        let from = self.epoch.elapsed();
        let op = self.context.role().instruction(id).op;
        let progress = match op {
            Op::Compute { pass, chunk, units, microbatch } => self.worker.compute(pass, chunk, units, microbatch),
            Op::GradientNorm => self.worker.gradient_norm().map(|()| Progress::Ended),
            Op::Optimizer => self.worker.optimizer().map(|()| Progress::Ended),
            Op::Collective { .. } | Op::Send { .. } | Op::Receive { .. } => unreachable!("{id} is a transaction"),
            Op::HostCopy { what, out, .. } => {
                self.worker.host_copy(what, out);
                Ok(Progress::Ended)
            }
        }
        .map_err(Stop::NotFinite)?;
        let used = thread_cpu() - before;
        self.free = self.epoch.elapsed();
        self.sample(self.free);
        let pauses = progress == Progress::Paused;
        if pauses {
            self.pause = Some(begun);
        }
        if self.context.slowdown > 1.0 && !matches!(op, Op::HostCopy { .. }) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; saturates")]
            let until = from.saturating_add((used as f64 * self.context.slowdown) as u64);
            self.stretch = Some(Stretch { instruction: id, issued, start, until, ends: !pauses });
            self.end_stretch();
        } else if !pauses {
            self.finish(id, issued, start, self.free);
        }
        Ok(())
    }

    fn finish(&mut self, instruction: InstructionId, issued: u64, start: u64, end: u64) {
        let time = SimTime::from_nanoseconds;
        let span = Span { instruction, issued: time(issued), start: time(start), end: time(end) };
        let before = self.spans[instruction.index()].replace(span);
        assert!(before.is_none(), "{instruction} of rank {} ended twice", self.context.rank);
        self.left -= 1;
    }

    /// The most that was held since the last sample, and what is held now.
    fn sample(&mut self, now: u64) {
        for held in [self.worker.highest_bytes(), self.worker.bytes_held()] {
            if self.memory.last().is_none_or(|(_, bytes)| *bytes != held) {
                self.memory.push((SimTime::from_nanoseconds(now), held));
            }
        }
    }

    /// Sleeps until another rank, an emulated link or an emulated device has something for this one.
    fn wait(&self, meeting: &mut impl Meeting) -> Result<(), Stop> {
        let open = self.open.iter().any(|open| !open.is_empty());
        let stretch = self.stretch.map(|stretch| stretch.until);
        let now = self.epoch.elapsed();
        meeting.beat().wait(stretch.unwrap_or(now).max(now));
        meeting.wait(open, stretch)
    }
}

/// Does what shall go wrong at a compute instruction, which may be the rank's `first`.
pub(super) fn inject(
    context: Context<'_>,
    iteration: u64,
    (first, id): (bool, InstructionId),
    worker: &mut impl Worker,
    mut wait: impl FnMut() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let due = |fault: &&Fault| {
        (fault.rank, fault.iteration) == (context.rank, iteration)
            && fault.instruction.map_or(first, |instruction| instruction == id)
    };
    let Some(fault) = context.faults.iter().find(due) else { return Ok(()) };
    match fault.kind {
        FaultKind::Poison => worker.poison(),
        FaultKind::Panic => std::panic::resume_unwind(Box::new(format!("injected at {id}"))),
        FaultKind::Stall => loop {
            wait()?;
        },
    }
    Ok(())
}

/// The value, unless it is not a finite number.
pub(super) fn finite(what: &str, value: Option<f64>) -> Result<Option<f64>, Stop> {
    match value {
        Some(value) if !value.is_finite() => Err(Stop::NotFinite(NotFinite(format!("the {what} is {value}")))),
        value => Ok(value),
    }
}

/// Whether the data of a transaction are final before its predecessor on the stream has ended.
pub(super) fn independent(previous: Exchange, next: Exchange) -> bool {
    let parameters = |exchange| match exchange {
        Exchange::Collective(_, Payload::Gradients { chunk } | Payload::Parameters { chunk }) => Some((chunk, false)),
        Exchange::Collective(_, Payload::ExpertGradients { chunk } | Payload::ExpertParameters { chunk }) => {
            Some((chunk, true))
        }
        Exchange::Collective(
            _,
            Payload::Activation { .. }
            | Payload::UnitParameters { .. }
            | Payload::UnitGradients { .. }
            | Payload::ReplicatedGradients
            | Payload::TiedGradients
            | Payload::GradientNorm,
        )
        | Exchange::Message(_) => None,
    };
    // Parameters of units are read from this rank's part, which only the optimizer changes; gradients of units are whole
    // when their pass has ended.
    let of_units = |exchange| {
        matches!(exchange, Exchange::Collective(_, Payload::UnitParameters { .. } | Payload::UnitGradients { .. }))
    };
    match next {
        Exchange::Message(_) => true,
        Exchange::Collective(..) if of_units(next) => of_units(previous),
        Exchange::Collective(..) => {
            parameters(next).is_some_and(|next| parameters(previous).is_some_and(|previous| previous != next))
        }
    }
}

//! One rank whose device works beside its thread: the thread puts instructions on the device's streams ahead of it.
//!
//! The thread does not wait for an instruction to end before it puts what follows on the device: streams carry out what they
//! are given in order, and wait for events where the program has one wait for another ([`super::lines`]). It waits where it
//! needs a number (the norm of gradients, lengths of parts), where an exchange needs what another brings (so that passes are
//! not kept waiting for the first), and where the device is [`AHEAD`] passes behind: exchanges, which are put on as soon as
//! what they need is, then find nothing before them on the compute stream that came much later in the program.
//!
//! # Times
//!
//! Begin and end of every instruction are events of the device. Before and after the iteration, the host's clock is read
//! before and after an event on an idle stream: the event lies between the two readings, and the device's clock is mapped to
//! the host's by both events. Spans are therefore right to half the wider of the two intervals, which the report says, with
//! half a microsecond of the driver's and what FP32 milliseconds lose.

use std::collections::VecDeque;

use ir::program::{Op, Payload, Stream};
use ir::{Bytes, InstructionId};

use super::clock::Epoch;
use super::lines::{Lines, Open};
use super::meeting::Stop;
use super::rank::{Context, finite, independent, inject};
use super::script::{self, EndId, Exchange, STREAMS};
use super::shared::{Beat, Measured, Report};
use super::worker::Worker;
use crate::device::{self, DeviceError, Event};
use crate::state::Progress;

/// Compute instructions that the thread puts on a device ahead of the one under way: one waits while another runs.
const AHEAD: usize = 2;
/// Receives of a stream that have not ended: as many may hold a buffer without anything to show for it.
const OPEN: usize = 2;
/// How long the thread sleeps before it looks at the device again.
const NAP: u64 = 30_000;
/// How long a rank whose exchange failed waits to be told of another rank's failure, which is then the cause.
const GRACE: u64 = 1_000_000_000;

/// What ranks tell each other while their devices exchange: who has come to what, and that they must stop.
pub(super) trait Control {
    /// The moment that times count from.
    fn epoch(&self) -> Epoch;
    /// What the rank does now, for whoever watches for stalls.
    fn beat(&self) -> &Beat;
    /// An end is put on its stream.
    ///
    /// # Errors
    /// [`Stop`] if the rank must leave, here as below.
    fn arrive(&mut self, id: EndId) -> Result<(), Stop>;
    /// An end has ended.
    ///
    /// # Errors
    /// As of [`arrive`](Self::arrive).
    fn passed(&mut self, id: EndId) -> Result<(), Stop>;
    /// Sleeps until a moment of the iteration. May wake early.
    ///
    /// # Errors
    /// As of [`arrive`](Self::arrive).
    fn wait(&mut self, until: u64) -> Result<(), Stop>;
    /// All ends of the rank have ended: waits for what other ranks still tell it of this iteration.
    ///
    /// # Errors
    /// As of [`arrive`](Self::arrive).
    fn finish(&mut self) -> Result<(), Stop>;
}

/// Events at the begin and end of an instruction.
#[derive(Clone, Copy, Debug)]
struct Marks {
    began: Event,
    ended: Event,
}

/// A moment on both clocks: the event, when the host says that it was, and by how much that may be wrong.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    event: Event,
    at: u64,
    within: u64,
}

/// One iteration of one rank.
pub(super) struct Ahead<'a, W> {
    context: Context<'a>,
    worker: &'a mut W,
    lines: &'a mut Lines,
    iteration: u64,
    epoch: Epoch,
    first_compute: bool,
    /// By instruction, once all of it is on the device.
    marks: Vec<Option<Marks>>,
    /// Per stream, the first instruction that was not begun.
    next: [usize; STREAMS],
    /// Exchanges whose data were not taken, or that are not known to have ended.
    open: [VecDeque<Open>; STREAMS],
    /// Instructions whose results are there for what follows on the compute stream.
    done: Vec<bool>,
    /// A compute instruction that waits for an exchange beside it, and its first event.
    pause: Option<(InstructionId, Event)>,
    /// Compute instructions on the device that have not ended, and since when.
    running: VecDeque<(InstructionId, Event, u64)>,
    memory: Vec<(InstructionId, Bytes)>,
    /// When anything last happened.
    moved: u64,
}

impl<'a, W: Worker> Ahead<'a, W> {
    /// Before the clock starts.
    pub(super) fn new(context: Context<'a>, worker: &'a mut W, lines: &'a mut Lines, iteration: u64) -> Self {
        let count = context.role().instructions().len();
        worker.highest_bytes();
        Self {
            context,
            worker,
            lines,
            iteration,
            epoch: Epoch::now(),
            first_compute: true,
            marks: vec![None; count],
            next: [0; STREAMS],
            open: Default::default(),
            done: vec![false; count],
            pause: None,
            running: VecDeque::new(),
            memory: Vec::new(),
            moved: 0,
        }
    }

    /// Carries out the list. Its clock is that of the meeting, which must have begun.
    pub(super) fn run(mut self, mut meeting: impl Control) -> Result<Report, Stop> {
        self.epoch = meeting.epoch();
        let held = self.worker.bytes_held();
        let begin = self.carry(&mut meeting, |run| run.anchor())?;
        while !self.is_over() {
            let mut moved = self.poll(&mut meeting)?;
            moved |= self.put_exchanges(&mut meeting)?;
            moved |= self.put_compute(&mut meeting)?;
            if moved {
                self.moved = self.epoch.elapsed();
            } else {
                self.rest(&mut meeting)?;
            }
        }
        self.worker.settle().map_err(Stop::NotFinite)?;
        let end = self.carry(&mut meeting, |run| run.anchor())?;
        let measured = self.carry(&mut meeting, |run| run.measure(held, begin, end))?;
        meeting.beat().wait(self.epoch.elapsed());
        meeting.finish()?;
        let has_norm = self.context.role().instructions().iter().any(|i| matches!(i.op, Op::GradientNorm));
        let gradient_norm = has_norm.then(|| self.worker.total_gradient_norm());
        Ok(Report {
            lane: ir::Lane {
                role: self.context.own().role,
                rank: self.context.rank,
                multiplicity: 1,
                spans: Vec::new(),
                memory: Vec::new(),
            },
            loss: finite("loss", self.worker.loss())?,
            gradient_norm: finite("gradient norm", gradient_norm)?,
            measured: Some(measured),
        })
    }

    /// What a device call gave. Where it failed because another rank did, that rank is the cause; else the thread unwinds
    /// with the error, as it does for all that its device cannot do.
    fn carry<T>(
        &mut self,
        meeting: &mut impl Control,
        call: impl FnOnce(&mut Self) -> Result<T, DeviceError>,
    ) -> Result<T, Stop> {
        let error = match call(self) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let until = self.epoch.elapsed() + GRACE;
        meeting.beat().wait(self.epoch.elapsed());
        while self.lines.links().next().is_some() && self.epoch.elapsed() < until {
            meeting.wait(until)?;
        }
        std::panic::resume_unwind(Box::new(error))
    }

    fn is_over(&self) -> bool {
        self.marks.iter().all(Option::is_some) && self.running.is_empty() && self.open.iter().all(VecDeque::is_empty)
    }

    /// Sees what has ended on the device.
    fn poll(&mut self, meeting: &mut impl Control) -> Result<bool, Stop> {
        let mut moved = false;
        while let Some((_, event, _)) = self.running.front().copied() {
            if !self.carry(meeting, |run| run.lines.device().passed(event))? {
                break;
            }
            self.running.pop_front();
            moved = true;
        }
        for stream in 0..STREAMS {
            for at in 0..self.open[stream].len() {
                let was = self.open[stream][at].passed;
                moved |= self.carry(meeting, |run| run.lines.poll(&mut run.open[stream][at]))?;
                let open = &self.open[stream][at];
                if open.passed && !was {
                    meeting.passed(open.id)?;
                }
                if let (Some(ended), false) = (open.ended, was) {
                    let instruction = self.instruction(open.id);
                    self.marks[instruction.index()] = Some(Marks { began: open.began, ended });
                }
            }
            moved |= self.retire(stream, meeting)?;
        }
        Ok(moved)
    }

    /// Forgets exchanges that have ended and whose data were taken, in the order of their stream; takes those that nobody is
    /// left to wait for, and those that would keep others off the stream.
    fn retire(&mut self, stream: usize, meeting: &mut impl Control) -> Result<bool, Stop> {
        let mut moved = false;
        let last = self.next.iter().zip(&self.context.own().streams).all(|(next, stream)| *next == stream.len());
        while let Some(open) = self.open[stream].front() {
            let instruction = self.instruction(open.id);
            if !open.passed {
                break;
            }
            if !self.done[instruction.index()] {
                if !last && self.open[stream].len() < OPEN {
                    break;
                }
                self.take(stream, 0, meeting)?;
            }
            self.open[stream].pop_front();
            moved = true;
        }
        Ok(moved)
    }

    fn instruction(&self, id: EndId) -> InstructionId {
        self.context.transaction(id).ends[id.end].instruction
    }

    /// Takes what an exchange brings, and before it what those before it on its stream bring.
    fn take(&mut self, stream: usize, up_to: usize, meeting: &mut impl Control) -> Result<(), Stop> {
        for at in 0..=up_to {
            let id = self.open[stream][at].id;
            let instruction = self.instruction(id);
            if std::mem::replace(&mut self.done[instruction.index()], true) {
                continue;
            }
            let transaction = self.context.transaction(id);
            self.carry(meeting, |run| {
                let worker = &mut *run.worker;
                run.lines.take(&mut run.open[stream][at], |values| match transaction.exchange {
                    Exchange::Message(message) => worker.incoming(message, transaction.rank_of(0), values),
                    Exchange::Collective(kind, payload) => worker.deliver(kind, payload, values),
                })
            })?;
            self.sample(instruction);
        }
        Ok(())
    }

    /// Sees to it that what an instruction waits for is there when a stream comes to it: what exchanges bring is taken. With
    /// `ended`, they must have ended before, as far as is known. `false` if something is not on the device yet, or the host
    /// must see it first.
    fn ready(&mut self, id: InstructionId, ended: bool, meeting: &mut impl Control) -> Result<bool, Stop> {
        let role = self.context.role();
        let mut wanted = Vec::new();
        for wait in role.waits(role.instruction(id)) {
            if self.done[wait.index()] {
                continue;
            }
            let found = self.open.iter().enumerate().find_map(|(stream, open)| {
                let at = open.iter().position(|open| self.instruction(open.id) == *wait)?;
                Some((stream, at))
            });
            let Some((stream, at)) = found else { return Ok(false) };
            wanted.push((stream, at));
        }
        let free = |&(stream, at): &(usize, usize)| {
            self.open[stream]
                .range(..=at)
                .all(|open| open.passed || !(ended || open.in_host_memory) && open.ended.is_some())
        };
        if !wanted.iter().all(free) {
            return Ok(false);
        }
        for (stream, at) in wanted {
            self.take(stream, at, meeting)?;
        }
        Ok(true)
    }

    /// Puts every exchange on its stream whose turn has come.
    fn put_exchanges(&mut self, meeting: &mut impl Control) -> Result<bool, Stop> {
        let mut moved = false;
        for stream in 0..STREAMS {
            while let Some(id) = self.next_exchange(stream, meeting)? {
                self.next[stream] += 1;
                meeting.arrive(id)?;
                self.put(stream, id, meeting)?;
                moved = true;
            }
        }
        Ok(moved)
    }

    fn next_exchange(&mut self, stream: usize, meeting: &mut impl Control) -> Result<Option<EndId>, Stop> {
        let own = self.context.own();
        let position = self.next[stream];
        let Some(&instruction) = own.streams[stream].get(position) else { return Ok(None) };
        let Some(id) = own.end_of[instruction.index()] else { return Ok(None) };
        let transaction = self.context.transaction(id);
        let previous = position.checked_sub(1).map(|previous| own.streams[stream][previous]);
        let computes = |id: InstructionId| own.end_of[id.index()].is_none();
        if previous.is_some_and(|previous| computes(previous) && self.marks[previous.index()].is_none()) {
            return Ok(None);
        }
        let under_way = self.open[stream].iter().filter(|open| !open.passed).count();
        if !transaction.gives(id.end) && (under_way >= OPEN || !self.lines.can_receive(id)) {
            return Ok(None);
        }
        if let Exchange::Collective(kind, payload) = transaction.exchange
            && !self.worker.offers(kind, payload)
        {
            return Ok(None);
        }
        let exchange = |open: &Open| self.context.transaction(open.id).exchange;
        let touched = self.open[stream].iter().rposition(|open| !independent(exchange(open), transaction.exchange));
        if let Some(at) = touched {
            if !self.open[stream].range(..=at).all(|open| open.passed) {
                return Ok(None);
            }
            self.take(stream, at, meeting)?;
        }
        Ok(self.ready(instruction, true, meeting)?.then_some(id))
    }

    fn put(&mut self, stream: usize, id: EndId, meeting: &mut impl Control) -> Result<(), Stop> {
        let transaction = self.context.transaction(id);
        let instruction = self.instruction(id);
        meeting.beat().work(instruction, self.epoch.elapsed());
        let on = device::Stream::of(Stream::ALL[stream]);
        let open = self.carry(meeting, |run| {
            let worker = &mut *run.worker;
            match transaction.exchange {
                Exchange::Message(message) if transaction.gives(id.end) => {
                    run.lines.give(id, transaction, on, worker.outgoing(message, transaction.rank_of(1)))
                }
                Exchange::Message(message) => match worker.awaits(message, transaction.rank_of(0)) {
                    Some((length, element)) => run.lines.receive(id, on, length, Some(element)),
                    None => run.lines.receive(id, on, transaction.elements(), None),
                },
                Exchange::Collective(kind, payload) => {
                    run.lines.give(id, transaction, on, worker.contribution(kind, payload))
                }
            }
        })?;
        if let Some(ended) = open.ended {
            self.marks[instruction.index()] = Some(Marks { began: open.began, ended });
        }
        // Who sends has nothing to take.
        self.done[instruction.index()] = !transaction.takes(id.end);
        self.open[stream].push_back(open);
        Ok(())
    }

    /// Puts a compute instruction, or what follows its pause, on the device, if there is one and the device is not too far
    /// behind.
    fn put_compute(&mut self, meeting: &mut impl Control) -> Result<bool, Stop> {
        if self.running.len() >= AHEAD {
            return Ok(false);
        }
        if let Some((instruction, began)) = self.pause {
            if !self.may_continue(instruction, meeting)? {
                return Ok(false);
            }
            self.pause = None;
            self.compute(instruction, began, meeting)?;
            return Ok(true);
        }
        for stream in 0..STREAMS {
            let own = self.context.own();
            let Some(&instruction) = own.streams[stream].get(self.next[stream]) else { continue };
            let ended = self.holds_back();
            if own.end_of[instruction.index()].is_some() || !self.ready(instruction, ended, meeting)? {
                continue;
            }
            self.next[stream] += 1;
            let start = self.epoch.elapsed();
            meeting.beat().work(instruction, start);
            let first = std::mem::replace(&mut self.first_compute, false);
            inject(self.context, self.iteration, (first, instruction), self.worker, || meeting.wait(u64::MAX))?;
            let began = self.carry(meeting, |run| run.lines.device().record(device::Stream::COMPUTE))?;
            self.compute(instruction, began, meeting)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether an exchange that gives is kept off its stream only by another that has not ended. What it gives is copied on the
    /// compute stream, so nothing may be put there before that waits for another rank: that rank may wait for this exchange.
    fn holds_back(&self) -> bool {
        let (own, role) = (self.context.own(), self.context.role());
        own.streams.iter().zip(self.next).any(|(stream, next)| {
            let Some(&instruction) = stream.get(next) else { return false };
            let Some(id) = own.end_of[instruction.index()] else { return false };
            let put = |wait: &InstructionId| {
                let counts = |open: &Open| self.instruction(open.id) == *wait;
                self.marks[wait.index()].is_some() || self.open.iter().flatten().any(counts)
            };
            self.context.transaction(id).gives(id.end) && role.waits(role.instruction(instruction)).iter().all(put)
        })
    }

    /// Whether the instruction that paused has what it waits for; takes it.
    fn may_continue(&mut self, instruction: InstructionId, meeting: &mut impl Control) -> Result<bool, Stop> {
        let Op::Compute { chunk, units, microbatch, pass: _ } = self.context.role().instruction(instruction).op else {
            unreachable!("{instruction} never pauses")
        };
        if self.worker.continues(chunk, units, microbatch, false) {
            return Ok(true);
        }
        let beside = |open: &Open| match self.context.transaction(open.id).exchange {
            Exchange::Collective(_, Payload::Activation { chunk: of, unit, microbatch: m, .. }) => {
                (chunk, microbatch) == (of, m) && (units.start..units.end).contains(&unit)
            }
            Exchange::Collective(..) | Exchange::Message(_) => false,
        };
        let holds = self.holds_back();
        let found = self.open.iter().enumerate().find_map(|(stream, open)| {
            let at = open.iter().position(|open| beside(open) && !self.done[self.instruction(open.id).index()])?;
            let free = |open: &Open| !holds && !open.in_host_memory && open.ended.is_some();
            let there = open.range(..=at).all(|open| open.passed || free(open));
            there.then_some((stream, at))
        });
        let Some((stream, at)) = found else { return Ok(false) };
        self.take(stream, at, meeting)?;
        Ok(self.worker.continues(chunk, units, microbatch, false))
    }

    fn compute(&mut self, id: InstructionId, began: Event, meeting: &mut impl Control) -> Result<(), Stop> {
        let since = self.epoch.elapsed();
        let progress = match self.context.role().instruction(id).op {
            Op::Compute { pass, chunk, units, microbatch } => self.worker.compute(pass, chunk, units, microbatch),
            Op::GradientNorm => self.worker.gradient_norm().map(|()| Progress::Ended),
            Op::Optimizer => self.worker.optimizer().map(|()| Progress::Ended),
            Op::HostCopy { what, out, .. } => {
                self.worker.host_copy(what, out);
                Ok(Progress::Ended)
            }
            Op::Collective { .. } | Op::Send { .. } | Op::Receive { .. } => unreachable!("{id} is a transaction"),
        }
        .map_err(Stop::NotFinite)?;
        self.sample(id);
        if progress == Progress::Paused {
            self.pause = Some((id, began));
            return Ok(());
        }
        let ended = self.carry(meeting, |run| run.lines.device().record(device::Stream::COMPUTE))?;
        self.marks[id.index()] = Some(Marks { began, ended });
        self.done[id.index()] = true;
        self.running.push_back((id, ended, since));
        Ok(())
    }

    /// The most that was held since the last sample, and what is held now.
    fn sample(&mut self, at: InstructionId) {
        for held in [self.worker.highest_bytes(), self.worker.bytes_held()] {
            if self.memory.last().is_none_or(|(_, bytes)| *bytes != held) {
                self.memory.push((at, held));
            }
        }
    }

    /// Sleeps a little: the device, or another rank, has to do something first.
    fn rest(&self, meeting: &mut impl Control) -> Result<(), Stop> {
        let exchanges = self.open.iter().flatten().any(|open| !open.passed);
        match self.running.front() {
            // A pass may itself wait for an exchange on the device.
            Some((instruction, _, since)) if !exchanges => meeting.beat().work(*instruction, *since),
            _ => meeting.beat().wait(self.moved),
        }
        meeting.wait(self.epoch.elapsed() + NAP)
    }

    /// A moment on both clocks. The device is idle.
    fn anchor(&mut self) -> Result<Anchor, DeviceError> {
        let device = self.lines.device();
        device.synchronize(device::Stream::COMPUTE)?;
        let before = self.epoch.elapsed();
        let event = device.record(device::Stream::COMPUTE)?;
        device.synchronize(device::Stream::COMPUTE)?;
        let within = (self.epoch.elapsed() - before).div_ceil(2);
        Ok(Anchor { event, at: before + within, within })
    }

    /// All times on the host's clock.
    fn measure(&mut self, held: Bytes, begin: Anchor, end: Anchor) -> Result<Measured, DeviceError> {
        let device = self.lines.device();
        let ticks = device.between(begin.event, end.event)?.max(1);
        let length = end.at.saturating_sub(begin.at);
        let at = |event: Event| -> Result<u64, DeviceError> {
            let since = i128::from(device.between(begin.event, event)?) * i128::from(length) / i128::from(ticks);
            Ok(u64::try_from(i128::from(begin.at) + since).unwrap_or(0))
        };
        let mut spans = Vec::new();
        for (index, marks) in self.marks.iter().enumerate() {
            let Marks { began, ended } = marks.unwrap_or_else(|| panic!("i{index} never ran"));
            spans.push([at(began)?, at(ended)?]);
            [began, ended].into_iter().try_for_each(|event| device.forget(event))?;
        }
        [begin, end].into_iter().try_for_each(|anchor| device.forget(anchor.event))?;
        // The driver's resolution, and the last place of FP32 milliseconds.
        let rounding = 500 + length / (1 << 23);
        let memory = std::mem::take(&mut self.memory);
        Ok(Measured { spans, held, memory, within: begin.within.max(end.within) + rounding })
    }
}

/// A stream of a device for a rank's.
impl device::Stream {
    pub(super) const fn of(stream: Stream) -> Self {
        Self(script::stream_index(stream))
    }
}

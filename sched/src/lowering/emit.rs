//! The instruction list of one pipeline position, from its row of the grid.

use ir::grid::{Action, Cell};
use ir::program::{Access, BufferKind, Direction, HostCopy, Message, Payload, Peer, RankPlace, RankSet, Role, Stream};
use ir::{BufferId, Bytes, ChunkId, GroupId, InstructionId, MicrobatchId, Op, RoleId, StageId};

use super::divided::Exchanged;
use super::groups::axis_index;
use super::template::Step;
use super::{Course, Lowering, end};
use crate::across::Across;
use crate::passes::{Copied, Moves, PassOp};

/// What is known of a position's list while it grows.
///
/// Until the ranks are known, a peer's role is its pipeline position and a group is the index of its axis.
pub(super) struct Emitter<'a> {
    pub(super) lowering: &'a Lowering<'a>,
    pub(super) course: &'a Course,
    pub(super) position: u32,
    /// The index in tensor groups of the ranks that carry it out, where that matters to it.
    lane: u32,
    pub(super) role: Role,
    pub(super) state: end::StateBuffers,
    /// The last link of the chain of passes: its instructions, with their streams.
    pub(super) last: Vec<(InstructionId, Stream)>,
    /// What runs beside the next compute.
    beside: Vec<(InstructionId, Stream)>,
    /// Chunks in the order of their last weight-gradient passes.
    pub(super) weighted: Vec<ChunkId>,
    /// Whether the pass that is emitted is the last that adds to its chunk's gradients.
    pub(super) last_weights: bool,
    /// What the first pass of each chunk waits for: gathers of its parameters.
    pub(super) arriving: Vec<Vec<InstructionId>>,
    /// Buffers that microbatches hold: by chunk, microbatch and slot.
    held: Vec<Vec<BufferId>>,
    /// Received and not yet read, by direction and by chunk and microbatch of the reader.
    received: [Vec<Option<Received>>; 2],
    /// How many of this position's receives were issued, by direction.
    issued: [usize; 2],
    /// What passes have for exchanges over all positions, and what came of these.
    pub(super) exchanged: Exchanged,
    waits: Vec<InstructionId>,
    pub(super) accesses: Vec<(BufferId, Access)>,
}

/// What a pass reads from another position: the last instruction that brings a part of it, and the parts' buffers.
#[derive(Clone, Copy, Debug)]
struct Received {
    last: InstructionId,
    first: BufferId,
    parts: u32,
}

impl Received {
    fn buffers(self) -> impl Iterator<Item = BufferId> {
        (self.first.raw()..self.first.raw() + self.parts).map(BufferId::new)
    }
}

/// A buffer that is not there.
const NO_BUFFER: BufferId = BufferId::new(u32::MAX);

impl<'a> Emitter<'a> {
    pub(super) fn new(lowering: &'a Lowering<'a>, [position, course, lane]: [u32; 3]) -> Self {
        let course = &lowering.courses[course as usize];
        let mut role = Role::new(StageId::new(position), RankSet::default());
        let state = end::StateBuffers::new(lowering, position, &mut role);
        let microbatches = course.turn.own as usize;
        let held = lowering
            .chunks
            .iter()
            .zip(&lowering.templates)
            .map(|(chunk, templates)| {
                let here = chunk.stage.raw() == position;
                vec![NO_BUFFER; if here { microbatches * templates.slots as usize } else { 0 }]
            })
            .collect();
        let none = vec![None; lowering.chunks.len() * microbatches];
        Self {
            lowering,
            course,
            position,
            lane,
            role,
            state,
            last: Vec::new(),
            beside: Vec::new(),
            weighted: Vec::new(),
            last_weights: false,
            arriving: vec![Vec::new(); lowering.chunks.len()],
            held,
            received: [none.clone(), none],
            issued: [0, 0],
            exchanged: Exchanged::default(),
            waits: Vec::new(),
            accesses: Vec::new(),
        }
    }

    /// The whole list: the row's passes, then the end of the iteration.
    pub(super) fn emit(mut self) -> Role {
        let (lowering, course) = (self.lowering, self.course);
        let row = &course.grid.rows[self.position as usize];
        let mut left = lowering.last_weight_cells(row);
        self.parameters_ahead();
        if !course.events.is_empty() {
            self.events();
            self.end_of_iteration();
            return self.role;
        }
        for (place, cell) in row.iter().enumerate() {
            self.last_weights = left.last() == Some(&place);
            if cell.microbatch.raw() < course.turn.own {
                self.pass(*cell);
            } else {
                self.others_pass(*cell);
            }
            if self.last_weights {
                left.pop();
                self.weighted.push(cell.chunk);
                self.early_reduction(cell.chunk);
            }
        }
        self.end_of_iteration();
        self.role
    }

    pub(super) fn pass(&mut self, cell: Cell) {
        let lowering = self.lowering;
        let in_parts = lowering.last[cell.chunk.index()].templates.as_ref().filter(|_| self.last_weights);
        let steps = in_parts.unwrap_or(&lowering.templates[cell.chunk.index()]).steps(cell.action);
        let input = self.input(cell).map(|received| (received, Lowering::receiving(cell)));
        let exchanged = self
            .exchanged_input(cell)
            .map(|(exchange, buffer)| (Received { last: exchange, first: buffer, parts: 1 }, Stream::Tensor));
        let input = input.or(exchanged);
        let output = lowering.output(cell, self.lane);
        let to_all = self.exchanged_output(cell);
        let held = lowering.held_bytes(self.position);
        let sent =
            (output.is_some() || to_all.is_some()).then(|| self.role.buffer(BufferKind::Communication, held, false));
        let mut unread = input.map(|(received, _)| received);
        self.last.splice(0..0, input.map(|(received, stream)| (received.last, stream)));
        for gather in std::mem::take(&mut self.arriving[cell.chunk.index()]) {
            self.last.push((gather, Stream::Data));
        }
        for (place, step) in steps.iter().enumerate() {
            self.accesses.clear();
            let is_compute = matches!(step.op, PassOp::Compute { .. });
            if is_compute && let Some(received) = unread.take() {
                self.accesses.extend(received.buffers().map(|buffer| (buffer, Access::Free)));
            }
            if place + 1 == steps.len() {
                self.accesses.extend(sent.map(|buffer| (buffer, Access::Allocate)));
            }
            self.step(cell, step);
        }
        if let (Some(output), Some(buffer)) = (output, sent) {
            let made = self.chain();
            let Output { there, message, stream, .. } = output;
            for receiver in output.receivers.clone() {
                let peer = lowering.peer(self.position, there, (self.lane, receiver));
                let op = Op::Send { peer, message, bytes: output.bytes };
                let access = if receiver + 1 == output.receivers.end { Access::Free } else { Access::Use };
                self.role.push(op, stream, &made, &[(buffer, access)]);
            }
        } else if let (Some(exchange), Some(buffer)) = (to_all, sent) {
            self.feed(exchange, cell.microbatch, buffer);
        }
    }

    /// A pass of a microbatch that this replica does not have, and replicas have with which it divides parameters or
    /// gradients: its part in what they gather and reduce. That waits for nobody here; what comes next here waits for it.
    fn others_pass(&mut self, cell: Cell) {
        let mut copied = None;
        for step in self.lowering.templates[cell.chunk.index()].steps(cell.action) {
            let (kind, bytes) = match step.op {
                PassOp::HostCopy { what: Copied::Parameters, .. } => {
                    let op = instruction(cell, step.op);
                    copied = Some(self.role.push(op, step.op.stream(), &[], &[]));
                    continue;
                }
                PassOp::Collective { moves: Moves::Parameters { .. }, bytes, .. } => (BufferKind::Communication, bytes),
                PassOp::Collective { moves: Moves::Gradients { .. }, bytes, .. } => (BufferKind::Gradients, bytes),
                PassOp::Compute { .. }
                | PassOp::Collective { moves: Moves::Activation { .. }, .. }
                | PassOp::HostCopy { what: Copied::Kept, .. } => continue,
            };
            let buffer = self.role.buffer(kind, bytes, false);
            let accesses = [(buffer, Access::Allocate), (buffer, Access::Free)];
            let (stream, waits) = (step.op.stream(), copied.take());
            let id = self.role.push(instruction(cell, step.op), stream, waits.as_slice(), &accesses);
            self.last.retain(|(_, on)| *on != stream);
            self.last.push((id, stream));
        }
    }

    /// The instructions that the next link of the chain waits for.
    pub(super) fn chain(&self) -> Vec<InstructionId> {
        self.last.iter().map(|(last, _)| *last).collect()
    }

    pub(super) fn step(&mut self, cell: Cell, step: &Step) {
        let slots = self.lowering.templates[cell.chunk.index()].slots as usize;
        let base = cell.microbatch.index() * slots;
        for held in &step.allocates {
            let buffer = self.role.buffer(held.kind, held.bytes, false);
            self.held[cell.chunk.index()][base + held.slot as usize] = buffer;
            self.accesses.push((buffer, Access::Allocate));
        }
        for slot in &step.frees {
            let buffer = self.held[cell.chunk.index()][base + *slot as usize];
            self.accesses.push((buffer, Access::Free));
        }
        if step.workspace > Bytes::ZERO {
            let buffer = self.role.buffer(BufferKind::Workspace, step.workspace, false);
            self.accesses.extend([(buffer, Access::Allocate), (buffer, Access::Free)]);
        }
        let stream = step.op.stream();
        self.waits.clear();
        self.waits.extend(self.last.iter().filter(|(_, on)| *on != stream).map(|(last, _)| *last));
        let id = self.role.push(instruction(cell, step.op), stream, &self.waits, &self.accesses);
        self.reduction_by_part(cell, step.op, id);
        if step.op.is_beside() {
            self.beside.push((id, stream));
        } else {
            self.last.clear();
            self.last.push((id, stream));
            self.last.append(&mut self.beside);
        }
    }

    /// What a pass reads from another position: issues receives up to its own.
    fn input(&mut self, cell: Cell) -> Option<Received> {
        let lowering = self.lowering;
        let (direction, from) = match cell.action {
            Action::Forward => (Direction::Forward, cell.chunk.index().checked_sub(1)?),
            Action::Backward | Action::BackwardInput => (Direction::Backward, cell.chunk.index() + 1),
            Action::BackwardWeight => return None,
        };
        let producer = lowering.layers.get(from)?;
        if producer.stage.raw() == self.position {
            return None;
        }
        let stream = Lowering::receiving(cell);
        let side = direction as usize;
        let microbatches = self.course.turn.own as usize;
        let at = |chunk: ChunkId, microbatch: MicrobatchId| chunk.index() * microbatches + microbatch.index();
        let wanted = at(cell.chunk, cell.microbatch);
        while self.received[side][wanted].is_none() {
            let (chunk, microbatch) = self.course.receives[self.position as usize][side][self.issued[side]];
            self.issued[side] += 1;
            let (there, message) = lowering.incoming(chunk, microbatch, direction);
            let across = Across::new(lowering.layout, there, self.position);
            let bytes = across.bytes(lowering.layout, lowering.model, lowering.workload, (there, self.position));
            let mut received: Option<Received> = None;
            for sender in across.senders(self.lane) {
                let buffer = self.role.buffer(BufferKind::Communication, bytes, false);
                let peer = lowering.peer(self.position, there, (self.lane, sender));
                let op = Op::Receive { peer, message, bytes };
                let last = self.role.push(op, stream, &[], &[(buffer, Access::Allocate)]);
                let (first, parts) = received.map_or((buffer, 0), |before| (before.first, before.parts));
                received = Some(Received { last, first, parts: parts + 1 });
            }
            self.received[side][at(chunk, microbatch)] = received;
        }
        self.received[side][wanted]
    }
}

/// The messages in which a pass's output leaves.
struct Output {
    /// The position to which they go, and its ranks that get one, by index in their tensor groups.
    there: u32,
    receivers: std::ops::Range<u32>,
    message: Message,
    stream: Stream,
    /// Of each.
    bytes: Bytes,
}

/// An op of a pass as an instruction of one microbatch; its group is the index of its axis.
fn instruction(cell: Cell, op: PassOp) -> Op {
    let (chunk, microbatch) = (cell.chunk, cell.microbatch);
    match op {
        PassOp::Compute { pass, units } => Op::Compute { pass, chunk, units, microbatch },
        PassOp::Collective { kind, axis, moves, bytes, .. } => {
            let payload = match moves {
                Moves::Activation { tensor, unit, pass } => {
                    Payload::Activation { tensor, chunk, unit, microbatch, pass }
                }
                Moves::Parameters { units, experts, pass } => {
                    Payload::UnitParameters { chunk, unit: units.start, experts, microbatch, pass }
                }
                Moves::Gradients { units, experts } => {
                    Payload::UnitGradients { chunk, unit: units.start, experts, microbatch }
                }
            };
            Op::Collective { kind, group: GroupId::new(axis_index(axis)), payload, bytes }
        }
        PassOp::HostCopy { what, out, bytes, .. } => {
            let what = match what {
                Copied::Kept => HostCopy::Activations { chunk, microbatch },
                Copied::Parameters => HostCopy::Parameters { chunk, microbatch },
            };
            Op::HostCopy { what, out, bytes }
        }
    }
}

impl Lowering<'_> {
    /// The stream on which a pass's input arrives.
    const fn receiving(cell: Cell) -> Stream {
        match cell.action {
            Action::Forward => Stream::ForwardReceive,
            Action::Backward | Action::BackwardInput | Action::BackwardWeight => Stream::BackwardReceive,
        }
    }

    /// Places in a row of the last weight-gradient pass of each of its chunks, last first.
    fn last_weight_cells(&self, row: &[Cell]) -> Vec<usize> {
        let mut seen = vec![false; self.chunks.len()];
        let mut places = Vec::new();
        for (place, cell) in row.iter().enumerate().rev() {
            let weights = matches!(cell.action, Action::Backward | Action::BackwardWeight);
            if weights && !std::mem::replace(&mut seen[cell.chunk.index()], true) {
                places.push(place);
            }
        }
        places
    }

    /// The messages that a pass's output leaves a lane in, if it leaves the position.
    fn output(&self, cell: Cell, lane: u32) -> Option<Output> {
        let here = self.chunks[cell.chunk.index()].stage.raw();
        let (to, edge, direction, stream) = match cell.action {
            Action::Forward => (cell.chunk.index() + 1, cell.chunk, Direction::Forward, Stream::ForwardSend),
            Action::Backward | Action::BackwardInput => {
                let to = cell.chunk.index().checked_sub(1)?;
                (to, ChunkId::at(to), Direction::Backward, Stream::BackwardSend)
            }
            Action::BackwardWeight => return None,
        };
        let there = self.layers.get(to)?.stage.raw();
        if there == here {
            return None;
        }
        let message = Message { edge, direction, microbatch: cell.microbatch };
        let across = Across::new(self.layout, here, there);
        let bytes = across.bytes(self.layout, self.model, self.workload, (here, there));
        let receivers = across.receivers(lane);
        (!receivers.is_empty()).then_some(Output { there, receivers, message, stream, bytes })
    }

    /// The messages that bring the input of a chunk's pass, and from which position.
    fn incoming(&self, chunk: ChunkId, microbatch: MicrobatchId, direction: Direction) -> (u32, Message) {
        let (from, edge) = match direction {
            Direction::Forward => (chunk.index() - 1, ChunkId::at(chunk.index() - 1)),
            Direction::Backward => (chunk.index() + 1, chunk),
        };
        (self.chunks[from].stage.raw(), Message { edge, direction, microbatch })
    }

    /// A rank of another position from one of this: indices in their tensor groups are given.
    fn peer(&self, here: u32, there: u32, (own, other): (u32, u32)) -> Peer {
        let rank = |position: u32, tensor_index: u32| {
            i64::from(self.layout.rank(RankPlace { position, replica: 0, tensor_index }).raw())
        };
        Peer { role: RoleId::new(there), shift: rank(there, other) - rank(here, own) }
    }
}

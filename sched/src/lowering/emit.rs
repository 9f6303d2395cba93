//! The instruction list of one pipeline position, from its row of the grid.

use ir::grid::{Action, Cell};
use ir::program::{Access, BufferKind, Direction, Message, Payload, Peer, RankSet, Role, Stream};
use ir::{Axis, BufferId, Bytes, ChunkId, GroupId, InstructionId, MicrobatchId, Op, RoleId, StageId};

use super::groups::axis_index;
use super::template::Step;
use super::{Lowering, end};
use crate::passes::PassOp;

/// What is known of a position's list while it grows.
///
/// Until the ranks are known, a peer's role is its pipeline position and a group is the index of its axis.
pub(super) struct Emitter<'a> {
    pub(super) lowering: &'a Lowering<'a>,
    pub(super) position: u32,
    pub(super) role: Role,
    pub(super) state: end::StateBuffers,
    /// The last link of the chain of passes: its instruction and stream.
    pub(super) last: Option<(InstructionId, Stream)>,
    /// The last weight-gradient pass of each chunk, with its last instruction.
    pub(super) weighted: Vec<(ChunkId, InstructionId)>,
    /// Buffers that microbatches hold: by chunk, microbatch and slot.
    held: Vec<Vec<BufferId>>,
    /// Received and not yet read, by direction: instruction and buffer by chunk and microbatch of the reader.
    received: [Vec<Option<(InstructionId, BufferId)>>; 2],
    /// How many of this position's receives were issued, by direction.
    issued: [usize; 2],
    waits: Vec<InstructionId>,
    accesses: Vec<(BufferId, Access)>,
}

/// A buffer that is not there.
const NO_BUFFER: BufferId = BufferId::new(u32::MAX);

impl<'a> Emitter<'a> {
    pub(super) fn new(lowering: &'a Lowering<'a>, position: u32) -> Self {
        let mut role = Role::new(StageId::new(position), RankSet::default());
        let state = end::StateBuffers::new(lowering, position, &mut role);
        let microbatches = lowering.layout.microbatches as usize;
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
            position,
            role,
            state,
            last: None,
            weighted: Vec::new(),
            held,
            received: [none.clone(), none],
            issued: [0, 0],
            waits: Vec::new(),
            accesses: Vec::new(),
        }
    }

    /// The whole list: the row's passes, then the end of the iteration.
    pub(super) fn emit(mut self) -> Role {
        let lowering = self.lowering;
        let row = &lowering.grid.rows[self.position as usize];
        let mut left = lowering.last_weight_cells(row);
        for (place, cell) in row.iter().enumerate() {
            self.pass(*cell);
            if left.last() == Some(&place) {
                left.pop();
                let (last, _) = self.last.expect("a pass has at least one op");
                self.weighted.push((cell.chunk, last));
                self.early_reduction(cell.chunk, last);
            }
        }
        self.end_of_iteration();
        self.role
    }

    fn pass(&mut self, cell: Cell) {
        let lowering = self.lowering;
        let steps = lowering.templates[cell.chunk.index()].steps(cell.action);
        let input = self.input(cell);
        let output = lowering.output(cell);
        let sent = output.map(|_| self.role.buffer(BufferKind::Communication, lowering.message_bytes, false));
        let mut unread = input.map(|(_, buffer)| buffer);
        for (place, step) in steps.iter().enumerate() {
            self.accesses.clear();
            self.waits.clear();
            if place == 0 {
                self.waits.extend(input.map(|(receive, _)| receive));
            }
            let is_compute = matches!(step.op, PassOp::Compute { .. });
            if is_compute && let Some(buffer) = unread.take() {
                self.accesses.push((buffer, Access::Free));
            }
            if place + 1 == steps.len() {
                self.accesses.extend(sent.map(|buffer| (buffer, Access::Allocate)));
            }
            self.step(cell, step);
        }
        if let (Some((peer, message, stream)), Some(buffer), Some((last, _))) = (output, sent, self.last) {
            let op = Op::Send { peer, message, bytes: lowering.message_bytes };
            self.role.push(op, stream, &[last], &[(buffer, Access::Free)]);
        }
    }

    fn step(&mut self, cell: Cell, step: &Step) {
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
        let (chunk, microbatch) = (cell.chunk, cell.microbatch);
        let (op, stream) = match step.op {
            PassOp::Compute { pass, units } => (Op::Compute { pass, chunk, units, microbatch }, Stream::Compute),
            PassOp::Collective { kind, tensor, unit, pass } => {
                let payload = Payload::Activation { tensor, chunk, unit, microbatch, pass };
                let group = GroupId::new(axis_index(Axis::Tensor));
                (Op::Collective { kind, group, payload, bytes: step.bytes }, Stream::Tensor)
            }
        };
        self.waits.extend(self.last.filter(|(_, on)| *on != stream).map(|(last, _)| last));
        let id = self.role.push(op, stream, &self.waits, &self.accesses);
        self.last = Some((id, stream));
    }

    /// What a pass reads from another position: issues receives up to its own.
    fn input(&mut self, cell: Cell) -> Option<(InstructionId, BufferId)> {
        let lowering = self.lowering;
        let (direction, from) = match cell.action {
            Action::Forward => (Direction::Forward, cell.chunk.index().checked_sub(1)?),
            Action::Backward | Action::BackwardInput => (Direction::Backward, cell.chunk.index() + 1),
            Action::BackwardWeight => return None,
        };
        let producer = lowering.chunks.get(from)?;
        if producer.stage.raw() == self.position {
            return None;
        }
        let stream = match direction {
            Direction::Forward => Stream::ForwardReceive,
            Direction::Backward => Stream::BackwardReceive,
        };
        let side = direction as usize;
        let microbatches = lowering.layout.microbatches as usize;
        let at = |chunk: ChunkId, microbatch: MicrobatchId| chunk.index() * microbatches + microbatch.index();
        let wanted = at(cell.chunk, cell.microbatch);
        while self.received[side][wanted].is_none() {
            let (chunk, microbatch) = lowering.receives[self.position as usize][side][self.issued[side]];
            self.issued[side] += 1;
            let buffer = self.role.buffer(BufferKind::Communication, lowering.message_bytes, false);
            let (peer, message) = lowering.incoming(chunk, microbatch, direction);
            let op = Op::Receive { peer, message, bytes: lowering.message_bytes };
            let id = self.role.push(op, stream, &[], &[(buffer, Access::Allocate)]);
            self.received[side][at(chunk, microbatch)] = Some((id, buffer));
        }
        self.received[side][wanted]
    }
}

impl Lowering<'_> {
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

    /// The message that a pass's output leaves in, if it leaves the position.
    fn output(&self, cell: Cell) -> Option<(Peer, Message, Stream)> {
        let here = self.chunks[cell.chunk.index()].stage.raw();
        let (to, edge, direction, stream) = match cell.action {
            Action::Forward => (cell.chunk.index() + 1, cell.chunk, Direction::Forward, Stream::ForwardSend),
            Action::Backward | Action::BackwardInput => {
                let to = cell.chunk.index().checked_sub(1)?;
                (to, ChunkId::at(to), Direction::Backward, Stream::BackwardSend)
            }
            Action::BackwardWeight => return None,
        };
        let there = self.chunks.get(to)?.stage.raw();
        let message = Message { edge, direction, microbatch: cell.microbatch };
        (there != here).then(|| (self.peer(here, there), message, stream))
    }

    /// The message that brings the input of a chunk's pass.
    fn incoming(&self, chunk: ChunkId, microbatch: MicrobatchId, direction: Direction) -> (Peer, Message) {
        let here = self.chunks[chunk.index()].stage.raw();
        let (from, edge) = match direction {
            Direction::Forward => (chunk.index() - 1, ChunkId::at(chunk.index() - 1)),
            Direction::Backward => (chunk.index() + 1, chunk),
        };
        (self.peer(here, self.chunks[from].stage.raw()), Message { edge, direction, microbatch })
    }

    fn peer(&self, here: u32, there: u32) -> Peer {
        let wide = i64::from(self.layout.data) * i64::from(self.layout.tensor);
        Peer { role: RoleId::new(there), shift: (i64::from(there) - i64::from(here)) * wide }
    }
}

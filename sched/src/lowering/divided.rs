//! The instruction list of a position whose pipeline divides the vocabulary: passes of layers as ever, passes of its slice,
//! and the exchanges between all positions, in the order of [`crate::vocabulary`].

use ir::counts::activation_bytes;
use ir::grid::{Action, Cell};
use ir::program::{Access, BufferKind, Payload, Stream};
use ir::{Axis, BufferId, ChunkId, GroupId, InstructionId, MicrobatchId, Op, VocabularyDivision};
use rustc_hash::FxHashMap;

use super::emit::Emitter;
use super::groups::axis_index;
use crate::passes::PassOp;
use crate::vocabulary::{Event, Exchange, Work, awaited, collective, fed};

/// By exchange and microbatch: the pass of this position that feeds it and the buffer, until the exchange; then the
/// exchange itself and the buffer that it leaves.
#[derive(Debug, Default)]
pub(super) struct Exchanged {
    fed: FxHashMap<(Exchange, u32), (InstructionId, BufferId)>,
    done: FxHashMap<(Exchange, u32), (InstructionId, BufferId)>,
}

impl Emitter<'_> {
    /// All passes and exchanges of this position.
    pub(super) fn events(&mut self) {
        let lowering = self.lowering;
        let slice = ChunkId::at(lowering.layers.len() + self.position as usize);
        let last = self.course.turn.own - 1;
        let layers = ChunkId::new(self.position);
        for event in &self.course.events {
            match *event {
                Event::Pass { position, .. } if position != self.position => {}
                Event::Pass { work: work @ (Work::Forward | Work::Backward), microbatch, .. } => {
                    let action = if work == Work::Forward { Action::Forward } else { Action::Backward };
                    self.pass(Cell { chunk: layers, action, microbatch: MicrobatchId::new(microbatch) });
                    if work == Work::Backward && microbatch == last {
                        self.weighted.push(layers);
                        self.early_reduction(layers);
                    }
                }
                Event::Pass { work, microbatch, .. } => {
                    self.slice_pass(slice, work, MicrobatchId::new(microbatch));
                    if work == Work::EmbeddingGradient && microbatch == last {
                        self.weighted.push(slice);
                    }
                }
                Event::Exchange { exchange, microbatch } => self.exchange(exchange, microbatch),
            }
        }
    }

    fn division(&self) -> VocabularyDivision {
        self.lowering.layout.sharing.vocabulary
    }

    fn ends(&self) -> (bool, bool) {
        (self.position == 0, self.position + 1 == self.lowering.layout.pipeline)
    }

    /// What a pass of layers reads that an exchange between all positions left.
    pub(super) fn exchanged_input(&self, cell: Cell) -> Option<(InstructionId, BufferId)> {
        let exchange = awaited(self.division(), work_of(cell)?, self.ends()).filter(|_| self.is_divided())?;
        let found = self.exchanged.done.get(&(exchange, cell.microbatch.raw())).copied();
        Some(found.unwrap_or_else(|| panic!("{cell} comes before {exchange:?}")))
    }

    /// The exchange for which a pass of layers makes its output.
    pub(super) fn exchanged_output(&self, cell: Cell) -> Option<Exchange> {
        fed(self.division(), work_of(cell)?, self.ends()).filter(|_| self.is_divided())
    }

    const fn is_divided(&self) -> bool {
        !self.lowering.layout.sharing.vocabulary.is_ends()
    }

    /// The last instruction has something for an exchange.
    pub(super) fn feed(&mut self, exchange: Exchange, microbatch: MicrobatchId, buffer: BufferId) {
        let (made, _) = *self.last.first().expect("a pass has instructions");
        self.exchanged.fed.insert((exchange, microbatch.raw()), (made, buffer));
    }

    fn slice_pass(&mut self, slice: ChunkId, work: Work, microbatch: MicrobatchId) {
        let lowering = self.lowering;
        let steps = lowering.templates[slice.index()].slice_steps(work);
        // Only the chunk and the microbatch of a cell are looked at.
        let cell = Cell { chunk: slice, action: Action::Forward, microbatch };
        let mut unread = None;
        if let Some(exchange) = awaited(self.division(), work, self.ends()) {
            let key = (exchange, microbatch.raw());
            // The hidden states' gradient is the last chunk's to read.
            let reads = exchange != Exchange::HiddenGradient && exchange != Exchange::Statistics;
            let found = self.exchanged.done.get(&key).copied();
            let (id, buffer) = found.unwrap_or_else(|| panic!("{work:?} of {microbatch} comes before {exchange:?}"));
            self.last.insert(0, (id, Stream::Tensor));
            unread = reads.then_some(buffer);
        }
        let fed = fed(self.division(), work, self.ends()).map(|exchange| {
            let (_, _, bytes) = collective(lowering.shape(self.position), exchange);
            let bytes =
                if exchange == Exchange::Statistics { bytes } else { activation_bytes(lowering.shape(self.position)) };
            (exchange, self.role.buffer(BufferKind::Communication, bytes, false))
        });
        for (place, step) in steps.iter().enumerate() {
            self.accesses.clear();
            if matches!(step.op, PassOp::Compute { .. })
                && let Some(buffer) = unread.take()
            {
                self.accesses.push((buffer, Access::Free));
            }
            if place + 1 == steps.len() {
                self.accesses.extend(fed.map(|(_, buffer)| (buffer, Access::Allocate)));
            }
            self.step(cell, step);
        }
        if let Some((exchange, buffer)) = fed {
            self.feed(exchange, microbatch, buffer);
        }
    }

    /// An exchange between all positions. What it gives is where what was put in is, or in a buffer of its own; who reads
    /// nothing keeps nothing.
    fn exchange(&mut self, exchange: Exchange, microbatch: u32) {
        let lowering = self.lowering;
        let (kind, (tensor, unit, pass), bytes) = collective(lowering.shape(self.position), exchange);
        let payload = Payload::Activation {
            tensor,
            chunk: ChunkId::at(lowering.layers.len()),
            unit,
            microbatch: MicrobatchId::new(microbatch),
            pass,
        };
        let (first, last) = self.ends();
        let kept = match exchange {
            Exchange::Embedded => first,
            Exchange::Hidden | Exchange::EmbeddedGradient => true,
            Exchange::Statistics => false,
            Exchange::HiddenGradient => last,
        };
        let fed = self.exchanged.fed.remove(&(exchange, microbatch));
        let (waits, buffer, access) = match fed {
            Some((made, buffer)) => (vec![made], buffer, if kept { Access::Use } else { Access::Free }),
            None => {
                let buffer =
                    self.role.buffer(BufferKind::Communication, activation_bytes(lowering.shape(self.position)), false);
                (Vec::new(), buffer, Access::Allocate)
            }
        };
        let op = Op::Collective { kind, group: GroupId::new(axis_index(Axis::Pipeline)), payload, bytes };
        let id = self.role.push(op, Stream::Tensor, &waits, &[(buffer, access)]);
        self.exchanged.done.insert((exchange, microbatch), (id, buffer));
        if self.division() == VocabularyDivision::Interlaced && exchange == Exchange::HiddenGradient {
            self.last.push((id, Stream::Tensor));
        }
    }
}

/// What a cell of a grid is where every position has one chunk.
const fn work_of(cell: Cell) -> Option<Work> {
    match cell.action {
        Action::Forward => Some(Work::Forward),
        Action::Backward => Some(Work::Backward),
        Action::BackwardInput | Action::BackwardWeight => None,
    }
}

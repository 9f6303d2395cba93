//! What the runtime asks of the state of one rank.

use std::sync::Arc;

use ir::program::{CollectiveKind, HostCopy, Message, Pass, Payload, UnitRange};
use ir::{Bytes, ChunkId, MicrobatchId, Rank};

use super::snapshot::Kept;
use crate::data::Batch;
use crate::device::{Device, Element};
use crate::state::{self, Got, Offered, Part, Progress, RankState};

/// Something that was not a finite number, in words that name the layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NotFinite(pub(crate) String);

/// The training state of one rank, as the runtime drives it.
///
/// The runtime decides *when*, a worker *what*: it holds weights, activations and gradients, and knows nothing of
/// threads, peers or clocks. A worker lives and dies on the thread of its rank, so it need not be `Send`.
pub(crate) trait Worker {
    /// Called once before each iteration, from 0, before any [`Self::feed`].
    fn begin_iteration(&mut self, iteration: u64);
    /// The sequences of one microbatch.
    fn feed(&mut self, microbatch: MicrobatchId, batch: &Batch);
    /// One pass over consecutive units of a chunk. Asked again, once it [`continues`](Self::continues), where it pauses.
    fn compute(
        &mut self,
        pass: Pass,
        chunk: ChunkId,
        units: UnitRange,
        microbatch: MicrobatchId,
    ) -> Result<Progress, NotFinite>;
    /// Whether a paused pass has something to go on with; `under_way` says that an exchange beside it has begun and not
    /// ended, so that what it brings does not count yet.
    fn continues(&self, _chunk: ChunkId, _units: UnitRange, _microbatch: MicrobatchId, _under_way: bool) -> bool {
        true
    }
    /// Whether what this rank puts into a collective is there; it may not be while an instruction beside it computes it.
    fn offers(&self, _kind: CollectiveKind, _payload: Payload) -> bool {
        true
    }
    /// What this rank puts into a collective: the whole buffer for reductions, its own part for a gather.
    fn contribution(&mut self, kind: CollectiveKind, payload: Payload) -> Offered<'_>;
    /// What this rank gets out of a collective: the sum, its part of the sum, or all parts in group order.
    fn deliver(&mut self, kind: CollectiveKind, payload: Payload, values: Got<'_>);
    /// The tensor of a message that this rank sends to another.
    fn outgoing(&mut self, message: Message, to: Rank) -> Offered<'_>;
    /// The tensor of a message that this rank receives from another.
    fn incoming(&mut self, message: Message, from: Rank, values: Got<'_>);
    /// Elements of a message that this rank receives on its device; none if it receives in host memory.
    fn awaits(&self, _message: Message, _from: Rank) -> Option<(usize, Element)> {
        None
    }
    /// A copy to host memory (`out`) or back.
    fn host_copy(&mut self, what: HostCopy, out: bool);
    /// The sum of squares of the gradients that this rank answers for.
    fn gradient_norm(&mut self) -> Result<(), NotFinite>;
    /// Clipping and the optimizer step; clears gradients.
    fn optimizer(&mut self) -> Result<(), NotFinite>;
    /// This rank's share of the mean loss of the iteration, if it computed one: the shares of the ranks with tensor
    /// index 0 add up to the mean over all tokens.
    fn loss(&self) -> Option<f64>;
    /// The L2 norm of all gradients before clipping, once its collective has ended.
    fn total_gradient_norm(&self) -> f64;
    /// Bytes that this rank holds now.
    fn bytes_held(&self) -> Bytes;
    /// The most bytes that this rank held since this was last asked, inside instructions too.
    fn highest_bytes(&mut self) -> Bytes {
        self.bytes_held()
    }
    /// Shows every part of the training state that this rank answers for.
    fn save(&self, put: &mut dyn FnMut(Kept, &Part<'_>));
    /// Shows what this rank writes into a checkpoint: of all ranks together, every element of the state once.
    fn written(&self, put: &mut dyn FnMut(Kept, &Part<'_>)) {
        self.save(put);
    }
    /// The device that it computes on, if that is not the host.
    fn device(&self) -> Option<Arc<dyn Device>> {
        None
    }
    /// From now on calls put work on the device and do not wait for it, and exchanges may take from the device and bring there.
    fn work_ahead(&mut self) {}
    /// Waits for a device that it works ahead of: what was not finite is found now at the latest, and the loss is known after.
    fn settle(&mut self) -> Result<(), NotFinite> {
        Ok(())
    }
    /// Makes one weight NaN (fault injection).
    fn poison(&mut self);
}

impl Worker for RankState {
    fn begin_iteration(&mut self, iteration: u64) {
        self.begin_iteration(iteration);
    }
    fn feed(&mut self, microbatch: MicrobatchId, batch: &Batch) {
        self.feed(microbatch, batch);
    }
    fn compute(
        &mut self,
        pass: Pass,
        chunk: ChunkId,
        units: UnitRange,
        microbatch: MicrobatchId,
    ) -> Result<Progress, NotFinite> {
        self.compute(pass, chunk, units, microbatch).map_err(NotFinite::from)
    }
    fn continues(&self, chunk: ChunkId, units: UnitRange, microbatch: MicrobatchId, under_way: bool) -> bool {
        self.continues(chunk, units, microbatch, under_way)
    }
    fn offers(&self, kind: CollectiveKind, payload: Payload) -> bool {
        self.offers(kind, payload)
    }
    fn contribution(&mut self, kind: CollectiveKind, payload: Payload) -> Offered<'_> {
        self.offer(kind, payload)
    }
    fn deliver(&mut self, kind: CollectiveKind, payload: Payload, values: Got<'_>) {
        self.accept(kind, payload, values);
    }
    fn outgoing(&mut self, message: Message, to: Rank) -> Offered<'_> {
        self.send(message, to)
    }
    fn incoming(&mut self, message: Message, from: Rank, values: Got<'_>) {
        self.receive(message, from, values);
    }
    fn awaits(&self, _: Message, from: Rank) -> Option<(usize, Element)> {
        self.boundary(from)
    }
    fn host_copy(&mut self, what: HostCopy, out: bool) {
        self.host_copy(what, out);
    }
    fn gradient_norm(&mut self) -> Result<(), NotFinite> {
        self.gradient_norm().map_err(NotFinite::from)
    }
    fn optimizer(&mut self) -> Result<(), NotFinite> {
        self.optimizer().map_err(NotFinite::from)
    }
    fn loss(&self) -> Option<f64> {
        self.loss()
    }
    fn total_gradient_norm(&self) -> f64 {
        self.global_gradient_norm()
    }
    fn bytes_held(&self) -> Bytes {
        self.bytes_held().into_values().sum()
    }
    fn highest_bytes(&mut self) -> Bytes {
        self.take_highest_bytes()
    }
    fn save(&self, put: &mut dyn FnMut(Kept, &Part<'_>)) {
        self.weights().for_each(|part| put(Kept::Weight, &part));
        for (kept, parts) in [Kept::FirstMoment, Kept::SecondMoment].into_iter().zip(self.moments()) {
            parts.iter().for_each(|part| put(kept, part));
        }
    }
    fn written(&self, put: &mut dyn FnMut(Kept, &Part<'_>)) {
        for parts in self.written() {
            Kept::ALL.into_iter().zip(&parts).for_each(|(kept, part)| put(kept, part));
        }
    }
    fn device(&self) -> Option<Arc<dyn Device>> {
        self.device()
    }
    fn work_ahead(&mut self) {
        self.work_ahead();
    }
    fn settle(&mut self) -> Result<(), NotFinite> {
        self.settle().map_err(NotFinite::from)
    }
    fn poison(&mut self) {
        self.poison();
    }
}

impl From<state::NotFinite> for NotFinite {
    /// Without rank and iteration, which the error that carries it names.
    fn from(found: state::NotFinite) -> Self {
        let layer = found.layer.map_or_else(String::new, |layer| format!(" in layer {layer}"));
        let pass = found.pass.map_or_else(String::new, |(microbatch, pass)| {
            format!(", {} of microbatch {}", pass.name(), microbatch.raw())
        });
        Self(format!("{}{layer}{pass}", found.tensor))
    }
}

//! Compute instructions: a pass over consecutive units.

use ir::program::{BufferKind, Pass, Unit, UnitRange};
use ir::{ChunkId, MicrobatchId};

use super::routing::Routes;
use super::slot::Sum;
use super::work::{Sample, Suspect, Work, take_residual};
use super::{Held, NotFinite, Progress, RankState, layer_of, size};

impl RankState {
    /// Carries out one pass over consecutive units of a chunk for one microbatch: upwards in forward passes and
    /// recomputation, downwards in backward passes. Call it again, once it [`continues`](Self::continues), where it pauses.
    ///
    /// # Errors
    /// When a forward pass leaves a value that is not finite; backward passes are checked by
    /// [`optimizer`](Self::optimizer) through the gradient's norm. The state is then of no use until the next
    /// [`begin_iteration`](Self::begin_iteration).
    ///
    /// # Panics
    /// If something that the pass reads has not arrived, which a verified program rules out.
    pub fn compute(
        &mut self,
        pass: Pass,
        chunk: ChunkId,
        units: UnitRange,
        microbatch: MicrobatchId,
    ) -> Result<Progress, NotFinite> {
        if let Some(found) = self.suspect.take() {
            return Err(found);
        }
        let local = self.local(chunk);
        let index = self.slot_index(local, microbatch);
        self.begin_pass(pass, chunk, units, microbatch);
        let upwards = matches!(pass, Pass::Forward | Pass::Recompute);
        for step in 0..units.end - units.start {
            let position = if upwards { units.start + step } else { units.end - 1 - step };
            let unit = self.program.chunk(chunk).unit(position);
            let holder = if unit == Unit::Head { self.head_matrix.expect("the head's matrix is here") } else { local };
            match self.with_work((pass, local, microbatch), holder, |work| work.run(unit)) {
                Ok(Progress::Ended) => {}
                Ok(Progress::Paused) => {
                    assert_eq!(units.end - units.start, 1, "{}: {unit:?} pauses among other units", self.rank);
                    return Ok(Progress::Paused);
                }
                Err(suspect) => return Err(self.explain(suspect, unit, holder, (microbatch, pass))),
            }
        }
        if units.start == 0 {
            self.end_of_chunk(pass, chunk, microbatch, index);
        }
        Ok(Progress::Ended)
    }

    /// Lets `run` work on a microbatch of the chunk `local`, with the common weights of the chunk `holder`.
    pub(super) fn with_work<T>(
        &mut self,
        (pass, local, microbatch): (Pass, usize, MicrobatchId),
        holder: usize,
        run: impl FnOnce(&mut Work<'_>) -> T,
    ) -> T {
        let index = self.slot_index(local, microbatch);
        let mut slot =
            self.slots[index].take().unwrap_or_else(|| panic!("{}: no pass of {microbatch} began", self.rank));
        let layout = &self.program.layout;
        let chunk = self.program.chunk(self.chunks[local].0);
        let (empty, mut unused) = (Sample::default(), 0.0);
        let mut work = Work {
            dims: &self.dims,
            parameters: &mut self.chunks[holder].1,
            experts: self.experts[local].as_mut(),
            slot: &mut slot,
            pool: &mut self.pool,
            attention: &mut self.attention,
            packed: &mut self.packed,
            routes: Routes {
                routing: &self.routing,
                iteration: self.iteration,
                first_sequence: (self.dims.data_index * self.dims.microbatches + microbatch.index())
                    * size(layout.microbatch_size),
            },
            sample: self.samples.get(microbatch.index()).unwrap_or(&empty),
            loss: self.losses.get_mut(microbatch.index()).unwrap_or(&mut unused),
            recompute: chunk.recompute,
            first_layer: chunk.first_layer,
            pass,
        };
        let outcome = run(&mut work);
        self.slots[index] = Some(slot);
        outcome
    }

    /// Makes the slot. Where the chunk before is on this rank too and no message joins them, its output is taken.
    fn begin_pass(&mut self, pass: Pass, chunk: ChunkId, units: UnitRange, microbatch: MicrobatchId) {
        let fresh = self.slot(chunk, microbatch).branch.is_none();
        if let Some(before) = chunk.raw().checked_sub(1).map(ChunkId::new)
            && pass == Pass::Forward
            && units.start == 0
            && fresh
            && self.holds(before)
        {
            let data = self.chunk_output(before, microbatch);
            self.slot(chunk, microbatch).branch = Some(Sum { data, whole: true });
        }
    }

    /// The residual stream at the end of a chunk, whose last branch is whole by now.
    pub(super) fn chunk_output(&mut self, chunk: ChunkId, microbatch: MicrobatchId) -> Held {
        let discards = super::dimensions::discards(self.program.chunk(chunk).recompute);
        let index = self.slot_index(self.local(chunk), microbatch);
        let rank = self.rank;
        let slot = self.slots[index].as_mut().unwrap_or_else(|| panic!("{rank}: {chunk} has not run {microbatch}"));
        take_residual(slot, &mut self.pool, discards)
    }

    /// After the units at the beginning of a chunk: the gradient goes to the chunk before, and after the last pass
    /// the slot ends.
    fn end_of_chunk(&mut self, pass: Pass, chunk: ChunkId, microbatch: MicrobatchId, index: usize) {
        let input_gradient = matches!(pass, Pass::Backward | Pass::BackwardInput);
        if let Some(before) = chunk.raw().checked_sub(1).map(ChunkId::new).filter(|_| input_gradient) {
            let slot = self.slots[index].as_mut().expect("just computed");
            let mut gradient = slot.residual_gradient.take().expect("the residual gradient of the chunk's input");
            if self.holds(before) {
                self.slot(before, microbatch).residual_gradient = Some(gradient);
            } else {
                self.pool.relabel(&mut gradient, BufferKind::Communication);
                self.departing_gradients.insert((before, microbatch), gradient);
            }
        }
        if matches!(pass, Pass::Backward | Pass::BackwardWeight) {
            self.retire(index);
        }
    }

    pub(super) fn explain(&self, suspect: Suspect, unit: Unit, holder: usize, pass: (MicrobatchId, Pass)) -> NotFinite {
        let parameters = &self.chunks[holder].1;
        let concerned = match unit {
            // A shared table stands under the embedding.
            Unit::Head if parameters.places.head.is_none() => Unit::Embedding,
            unit => unit,
        };
        let experts = self.experts[holder].iter();
        let weight = std::iter::once(parameters)
            .chain(experts)
            .find_map(|parameters| parameters.first_not_finite(&parameters.weights, Some(concerned)));
        NotFinite {
            rank: self.rank,
            iteration: self.iteration,
            layer: layer_of(unit),
            pass: Some(pass),
            tensor: weight.map_or_else(|| suspect.0.to_owned(), |shard| shard.parameter.name.clone()),
        }
    }
}

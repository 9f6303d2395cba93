//! Compute instructions: a pass over consecutive units.

use ir::program::{Chunk, Pass, Unit, UnitRange};
use ir::{ChunkId, ContextMethod, MicrobatchId, Recompute};

use super::dimensions::narrow;
use super::routing::Routes;
use super::slot::Sum;
use super::work::{Sample, Suspect, Work, take_residual};
use super::{Held, NotFinite, Progress, RankState, layer_of, size};

/// What a device was asked to check, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked {
    /// How many checks there had been after it.
    up_to: usize,
    unit: Unit,
    local: usize,
    pass: (MicrobatchId, Pass),
}

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
        self.begin_pass(pass, chunk, units, microbatch);
        let upwards = matches!(pass, Pass::Forward | Pass::Recompute);
        for step in 0..units.end - units.start {
            let position = if upwards { units.start + step } else { units.end - 1 - step };
            let unit = self.program.chunk(chunk).unit(position);
            let outcome = self.with_work((pass, local, microbatch), position, |work| work.run(unit));
            self.remember(unit, local, (microbatch, pass));
            match outcome {
                Ok(Progress::Ended) => {}
                Ok(Progress::Paused) => {
                    assert_eq!(units.end - units.start, 1, "{}: {unit:?} pauses among other units", self.rank);
                    return Ok(Progress::Paused);
                }
                Err(suspect) => {
                    let (suspect, unit) = self.found_now().map_or((suspect, unit), |(of, at)| (of, at.unit));
                    return Err(self.explain(suspect, unit, local, (microbatch, pass)));
                }
            }
        }
        if let Some((suspect, at)) = self.found() {
            return Err(self.explain(suspect, at.unit, local, (microbatch, pass)));
        }
        if !self.projects_later(pass, chunk, units) {
            self.leave(local, pass, units);
        }
        if units.start == 0 {
            let index = self.slot_index(local, microbatch);
            self.end_of_chunk(pass, chunk, microbatch, index);
        }
        Ok(Progress::Ended)
    }

    /// Remembers what the device was asked to check up to now, and where.
    pub(super) fn remember(&mut self, unit: Unit, local: usize, pass: (MicrobatchId, Pass)) {
        if let Some(on) = &self.on {
            self.checked.push(Checked { up_to: on.checked(), unit, local, pass });
        }
    }

    /// Waits for the device, unless the rank works ahead of it, and says which check was the first to fail, and where.
    pub(super) fn found(&mut self) -> Option<(Suspect, Checked)> {
        if self.joined.on_device { None } else { self.found_now() }
    }

    /// The same, ahead or not.
    fn found_now(&mut self) -> Option<(Suspect, Checked)> {
        let checked = std::mem::take(&mut self.checked);
        let (label, of) = self.on.as_ref()?.found()?;
        let at = checked.into_iter().find(|checked| label < checked.up_to).expect("a check of one of the units");
        Some((Suspect(of), at))
    }

    /// Waits for the device of a rank that works ahead of it: losses are known after, and that nothing was found that is not
    /// finite.
    ///
    /// # Errors
    /// The first thing that was.
    pub(crate) fn settle(&mut self) -> Result<(), NotFinite> {
        for (loss, late) in self.losses.iter_mut().zip(&mut self.late_losses) {
            if let Some(losses) = late.take() {
                *loss = losses.view().read().iter().map(|&loss| f64::from(loss)).sum();
                self.pool.give(losses);
            }
        }
        match self.found_now() {
            Some((suspect, at)) => Err(self.explain(suspect, at.unit, at.local, at.pass)),
            None => Ok(()),
        }
    }

    /// Whether a forward pass ends with an attention whose projection waits for heads to come back.
    fn projects_later(&self, pass: Pass, chunk: ChunkId, units: UnitRange) -> bool {
        let context = &self.dims.context;
        let exchanges = context.ranks > 1 && context.method == ContextMethod::AllToAll;
        let attention = || matches!(self.program.chunk(chunk).unit(units.end - 1), Unit::Attention(_));
        pass == Pass::Forward && exchanges && attention()
    }

    /// Gives up gathered parameters whose last unit a pass has been through.
    pub(super) fn leave(&mut self, local: usize, pass: Pass, units: UnitRange) {
        self.chunks[local].1.leave(pass, units, &mut self.pool);
        if let Some(experts) = &mut self.experts[local] {
            experts.leave(pass, units, &mut self.pool);
        }
    }

    /// Lets `run` work on a microbatch of the chunk `local`, at the unit of that position.
    pub(super) fn with_work<T>(
        &mut self,
        (pass, local, microbatch): (Pass, usize, MicrobatchId),
        position: u32,
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
            parameters: &mut self.chunks[local].1,
            experts: self.experts[local].as_mut(),
            slot: &mut slot,
            pool: &mut self.pool,
            attention: &mut self.attention,
            packed: &mut self.packed,
            routes: Routes {
                routing: &self.routing,
                iteration: self.iteration,
                first_sequence: (self.dims.microbatches_before + microbatch.index()) * size(layout.microbatch_size),
            },
            starts: &self.starts[microbatch.index()],
            loss_scale: narrow(1.0 / self.counted as f64),
            sample: self.samples.get(microbatch.index()).unwrap_or(&empty),
            loss: self.losses.get_mut(microbatch.index()).unwrap_or(&mut unused),
            late_loss: self.late_losses.get_mut(microbatch.index()).filter(|_| self.joined.on_device),
            recompute: layer_of(chunk.unit(position)).map_or(Recompute::None, |layer| chunk.recompute_of(layer)),
            discarding: discarding(chunk),
            position,
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
        let discarding = discarding(self.program.chunk(chunk));
        let index = self.slot_index(self.local(chunk), microbatch);
        let rank = self.rank;
        let slot = self.slots[index].as_mut().unwrap_or_else(|| panic!("{rank}: {chunk} has not run {microbatch}"));
        take_residual(slot, &mut self.pool, &self.dims, discarding)
    }

    /// After the units at the beginning of a chunk: the gradient goes to the chunk before, and after the last pass
    /// the slot ends.
    fn end_of_chunk(&mut self, pass: Pass, chunk: ChunkId, microbatch: MicrobatchId, index: usize) {
        let input_gradient = matches!(pass, Pass::Backward | Pass::BackwardInput);
        if let Some(before) = chunk.raw().checked_sub(1).map(ChunkId::new).filter(|_| input_gradient) {
            let slot = self.slots[index].as_mut().expect("just computed");
            let gradient = slot.residual_gradient.take().expect("the residual gradient of the chunk's input");
            self.hand_back(before, microbatch, gradient);
        }
        if matches!(pass, Pass::Backward | Pass::BackwardWeight) {
            self.retire(index);
        }
    }

    pub(super) fn explain(&self, suspect: Suspect, unit: Unit, local: usize, pass: (MicrobatchId, Pass)) -> NotFinite {
        let parameters = &self.chunks[local].1;
        let concerned = match unit {
            // A shared table stands under the embedding.
            Unit::Head if self.program.model.tied_head && self.program.chunk(self.chunks[local].0).embedding => {
                Unit::Embedding
            }
            unit => unit,
        };
        let experts = self.experts[local].iter();
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

/// How many of a chunk's layers keep no input of their second half.
fn discarding(chunk: &Chunk) -> usize {
    match chunk.recompute {
        Recompute::Full | Recompute::Operations => size(chunk.recomputed_layers),
        Recompute::None | Recompute::Selective => 0,
    }
}

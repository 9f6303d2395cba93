//! What AdamW keeps of the parameters that a rank steps: both moments, and the FP32 weights where the model's are of half
//! precision or the optimizer works in host memory.
//!
//! With an optimizer in host memory all of it lies there, with a copy of the gradients: gradients are copied there, weights
//! are stepped there and copied back, each by an instruction of its own.

use ir::program::BufferKind;

use super::buffers::{Held, Pool};
use super::formats::Formats;

/// In order of the parameters that the rank steps, segment after segment.
#[derive(Debug)]
pub(super) struct OptimizerState {
    moments: [Held; 2],
    master: Option<Held>,
    gradients: Option<Held>,
}

impl OptimizerState {
    /// Of `length` parameters whose values are `parts`.
    pub(super) fn new<'a>(
        length: usize,
        formats: Formats,
        on_host: bool,
        parts: impl Iterator<Item = &'a [f32]>,
        pool: &mut Pool,
    ) -> Self {
        let mut state = |element: u64| pool.zeros(element, BufferKind::OptimizerState, length);
        let moments = [state(4), state(4)];
        let gradients = on_host.then(|| state(formats.gradient));
        let master = (on_host || formats.master).then(|| {
            let mut master = state(4);
            let mut rest = &mut master[..];
            for part in parts {
                let (here, after) = rest.split_at_mut(part.len());
                here.copy_from_slice(part);
                rest = after;
            }
            master
        });
        Self { moments, master, gradients }
    }
    /// FP32 weights, if they are here.
    pub(super) fn master(&self) -> Option<&[f32]> {
        self.master.as_deref()
    }
    /// First and second moments.
    pub(super) fn moments(&self) -> [&[f32]; 2] {
        let [first, second] = &self.moments;
        [first, second]
    }
    /// The same, to write.
    pub(super) fn moments_mut(&mut self) -> [&mut [f32]; 2] {
        let [first, second] = &mut self.moments;
        [first, second]
    }
    /// Gradients that were copied to host memory; none if the optimizer is not there.
    pub(super) fn host_gradients(&mut self) -> Option<&mut [f32]> {
        self.gradients.as_deref_mut()
    }
    /// Everything, to step.
    pub(super) fn views(&mut self) -> Views<'_> {
        let Self { moments: [first, second], master, gradients } = self;
        Views { master: master.as_deref_mut(), gradients: gradients.as_deref_mut(), moments: [first, second] }
    }
}

/// What a step reads and writes of the optimizer's state.
pub(super) struct Views<'a> {
    /// FP32 weights, if they are here.
    pub(super) master: Option<&'a mut [f32]>,
    /// Gradients, if they are in host memory.
    pub(super) gradients: Option<&'a mut [f32]>,
    /// First and second moments.
    pub(super) moments: [&'a mut [f32]; 2],
}

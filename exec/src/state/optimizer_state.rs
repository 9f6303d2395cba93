//! What AdamW keeps of the parameters that a rank steps: both moments, and the FP32 weights where the model's are of half
//! precision or the optimizer works in host memory.
//!
//! With an optimizer in host memory all of it lies there, with a copy of the gradients: gradients are copied there, weights
//! are stepped there and copied back, each by an instruction of its own.

use ir::program::BufferKind;

use super::buffers::{Held, Pool};
use super::formats::Formats;
use super::values::{View, ViewMut};

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
        let parts = (on_host || formats.master).then(|| parts.flatten().copied().collect());
        let master = parts.map(|parts| pool.adopt(4, BufferKind::OptimizerState, parts));
        Self { moments, master, gradients }
    }
    /// FP32 weights, if they are here.
    pub(super) fn master(&self) -> Option<View<'_>> {
        self.master.as_ref().map(Held::view)
    }
    /// First and second moments.
    pub(super) fn moments(&self) -> [View<'_>; 2] {
        self.moments.each_ref().map(Held::view)
    }
    /// The same, to write.
    pub(super) fn moments_mut(&mut self) -> [ViewMut<'_>; 2] {
        self.moments.each_mut().map(Held::view_mut)
    }
    /// Gradients that were copied to host memory; none if the optimizer is not there.
    pub(super) fn host_gradients(&mut self) -> Option<ViewMut<'_>> {
        self.gradients.as_mut().map(Held::view_mut)
    }
    /// Everything, to step.
    pub(super) fn views(&mut self) -> Views<'_> {
        let Self { moments, master, gradients } = self;
        let [master, gradients] = [master, gradients].map(|held| held.as_mut().map(Held::view_mut));
        Views { master, gradients, moments: moments.each_mut().map(Held::view_mut) }
    }
}

/// What a step reads and writes of the optimizer's state.
pub(super) struct Views<'a> {
    /// FP32 weights, if they are here.
    pub(super) master: Option<ViewMut<'a>>,
    /// Gradients, if they are in host memory.
    pub(super) gradients: Option<ViewMut<'a>>,
    /// First and second moments.
    pub(super) moments: [ViewMut<'a>; 2],
}

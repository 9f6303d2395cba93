//! The ops of each pass of each chunk with their bytes: computed once, emitted for every microbatch.

use cost::memory;
use ir::Bytes;
use ir::counts::Shape;
use ir::grid::Action;
use ir::program::{BufferKind, Chunk, Pass, Unit, UnitRange};

use crate::passes::{PassOp, collective_bytes, pass_ops};

/// A buffer that outlives its instruction, by its number among those of one microbatch in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) slot: u32,
    pub(super) kind: BufferKind,
    pub(super) bytes: Bytes,
}

/// One op of a pass with what it does to memory.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) op: PassOp,
    /// Of a collective.
    pub(super) bytes: Bytes,
    /// Needed only while it runs.
    pub(super) workspace: Bytes,
    pub(super) allocates: Vec<Held>,
    pub(super) frees: Vec<u32>,
}

/// The passes of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Templates {
    /// By action.
    steps: [Vec<Step>; 4],
    /// Buffers that one microbatch may hold in this chunk.
    pub(super) slots: u32,
}

impl Templates {
    pub(crate) fn new(shape: Shape<'_>, chunk: &Chunk) -> Self {
        let mut forward = steps(shape, chunk, Action::Forward);
        let mut slots = 0;
        let mut kept: Vec<(Held, UnitRange)> = Vec::new();
        let mut logits = None;
        for step in &mut forward {
            let PassOp::Compute { units, .. } = step.op else { continue };
            hold(step, &mut slots, BufferKind::Activations, memory::kept(shape, chunk, units), |held| {
                kept.push((held, units));
            });
            if covers(units, head_position(chunk)) {
                hold(step, &mut slots, BufferKind::Logits, memory::logits(shape, chunk), |held| logits = Some(held));
            }
        }
        let (mut whole, mut input) =
            (steps(shape, chunk, Action::Backward), steps(shape, chunk, Action::BackwardInput));
        let mut weight = steps(shape, chunk, Action::BackwardWeight);
        let (mut after_whole, mut after_input) = (slots, slots);
        for (steps, slots, split) in [(&mut whole, &mut after_whole, false), (&mut input, &mut after_input, true)] {
            let mut living = kept.clone();
            for step in steps.iter_mut() {
                let PassOp::Compute { pass, units } = step.op else { continue };
                let (kind, bytes) = match pass {
                    Pass::Recompute => (BufferKind::Activations, memory::recomputed(shape, chunk, units)),
                    Pass::BackwardInput => (BufferKind::Activations, memory::left_for_weights(shape, chunk, units)),
                    Pass::Forward | Pass::Backward | Pass::BackwardWeight => continue,
                };
                hold(step, slots, kind, bytes, |held| living.push((held, units)));
            }
            if let Some(held) = logits {
                free(steps, held.slot, head_position(chunk).expect("logits without a head"));
            }
            for (held, units) in living {
                if split {
                    weight[0].frees.push(held.slot);
                } else {
                    free(steps, held.slot, units.start);
                }
            }
        }
        Self { steps: [forward, whole, input, weight], slots: after_whole.max(after_input) }
    }

    /// The ops of a pass.
    pub(crate) fn ops(&self, action: Action) -> impl Iterator<Item = PassOp> + Clone + '_ {
        self.steps(action).iter().map(|step| step.op)
    }

    /// Memory of a pass by kind of buffer, relative to what was held before: at its peak, and after it.
    pub(crate) fn memory<const N: usize>(&self, action: Action, kinds: &[BufferKind; N]) -> ([i64; N], [i64; N]) {
        let size = |bytes: Bytes| i64::try_from(bytes.get()).expect("a buffer of less than 2^63 bytes");
        let place = |kind: BufferKind| kinds.iter().position(|k| *k == kind).expect("a kind of a pass's buffers");
        let (mut now, mut peak) = ([0i64; N], [0i64; N]);
        for step in self.steps(action) {
            for held in &step.allocates {
                now[place(held.kind)] += size(held.bytes);
            }
            let workspace = &mut now[place(BufferKind::Workspace)];
            *workspace += size(step.workspace);
            if now.iter().sum::<i64>() > peak.iter().sum::<i64>() {
                peak = now;
            }
            now[place(BufferKind::Workspace)] -= size(step.workspace);
            for slot in &step.frees {
                let held = self.held(*slot, action);
                now[place(held.kind)] -= size(held.bytes);
            }
        }
        (peak, now)
    }

    /// What a slot holds when a pass frees it.
    fn held(&self, slot: u32, action: Action) -> Held {
        let before: &[Action] = match action {
            Action::Forward => &[Action::Forward],
            Action::Backward => &[Action::Forward, Action::Backward],
            Action::BackwardInput | Action::BackwardWeight => &[Action::Forward, Action::BackwardInput],
        };
        let allocated = before.iter().flat_map(|action| self.steps(*action)).flat_map(|step| &step.allocates);
        *allocated.into_iter().find(|held| held.slot == slot).expect("freed without being allocated")
    }

    pub(super) fn steps(&self, action: Action) -> &[Step] {
        let [forward, whole, input, weight] = &self.steps;
        match action {
            Action::Forward => forward,
            Action::Backward => whole,
            Action::BackwardInput => input,
            Action::BackwardWeight => weight,
        }
    }
}

fn steps(shape: Shape<'_>, chunk: &Chunk, action: Action) -> Vec<Step> {
    let step = |op| {
        let (bytes, workspace) = match op {
            PassOp::Compute { pass, units } => (Bytes::ZERO, memory::workspace(shape, chunk, pass, units)),
            PassOp::Collective { tensor, .. } => (collective_bytes(shape, tensor), Bytes::ZERO),
        };
        Step { op, bytes, workspace, allocates: Vec::new(), frees: Vec::new() }
    };
    pass_ops(chunk, shape.layout, action).into_iter().map(step).collect()
}

fn head_position(chunk: &Chunk) -> Option<u32> {
    chunk.head.then(|| chunk.units() - 2).inspect(|position| debug_assert_eq!(chunk.unit(*position), Unit::Head))
}

fn covers(units: UnitRange, position: Option<u32>) -> bool {
    position.is_some_and(|position| (units.start..units.end).contains(&position))
}

fn hold(step: &mut Step, slots: &mut u32, kind: BufferKind, bytes: Bytes, mut found: impl FnMut(Held)) {
    if bytes == Bytes::ZERO {
        return;
    }
    let held = Held { slot: *slots, kind, bytes };
    *slots += 1;
    step.allocates.push(held);
    found(held);
}

/// The backward step that covers a position is the last that needs what was kept from there on up.
fn free(steps: &mut [Step], slot: u32, position: u32) {
    let last = steps.iter_mut().rev().find(|step| match step.op {
        PassOp::Compute { pass: Pass::Backward | Pass::BackwardInput, units } => covers(units, Some(position)),
        PassOp::Compute { .. } | PassOp::Collective { .. } => false,
    });
    last.expect("a unit without a backward pass").frees.push(slot);
}

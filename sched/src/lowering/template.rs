//! The ops of each pass of each chunk with what they do to memory: computed once, emitted for every microbatch.

use cost::memory;
use ir::Bytes;
use ir::counts::Shape;
use ir::grid::Action;
use ir::program::{BufferKind, Chunk, Pass, Unit, UnitRange};
use ir::{Backward, Schedule, VocabularyDivision};

use super::held::{Amounts, cover};
use crate::passes::{Bucket, Copied, Moves, PassOp, pass_in_buckets};
use crate::vocabulary::{self, Work};

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
    /// Needed only while it runs.
    pub(super) workspace: Bytes,
    pub(super) allocates: Vec<Held>,
    pub(super) frees: Vec<u32>,
}

/// Which backward passes a schedule runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Runs {
    whole: bool,
    split: bool,
}

impl Runs {
    /// Whether it runs this pass.
    pub(crate) const fn has(self, action: Action) -> bool {
        match action {
            Action::Forward => true,
            Action::Backward => self.whole,
            Action::BackwardInput | Action::BackwardWeight => self.split,
        }
    }
}

/// The passes that a schedule runs.
pub(crate) const fn runs(schedule: &Schedule) -> Runs {
    match schedule.backward() {
        Backward::Whole => Runs { whole: true, split: false },
        Backward::Split => Runs { whole: false, split: true },
        Backward::Mixed => Runs { whole: true, split: true },
    }
}

/// The passes of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Templates {
    /// By action.
    steps: [Vec<Step>; 4],
    /// Buffers that one microbatch may hold in this chunk.
    pub(super) slots: u32,
}

/// A buffer that a pass leaves for another.
#[derive(Clone, Copy, Debug)]
struct Living {
    slot: u32,
    /// What it is of.
    units: UnitRange,
    /// Of a split backward pass, the half that reads it last.
    until: Pass,
}

/// Buffers of one order of passes: forward and backward, or forward, input and weight gradients.
#[derive(Clone, Debug, Default)]
struct Slots {
    taken: u32,
    living: Vec<Living>,
    logits: Option<u32>,
}

impl Templates {
    /// With instructions of passes that add to gradients cut by buckets, if there are any.
    pub(crate) fn new(
        shape: Shape<'_>,
        chunk: &Chunk,
        overlap_gradients: bool,
        runs: Runs,
        buckets: &[Bucket],
    ) -> Self {
        let mut amounts = Amounts::new(shape, chunk);
        let mut steps = |action| {
            if !runs.has(action) {
                return Vec::new();
            }
            let step = |op| {
                let workspace = match op {
                    PassOp::Compute { pass, units } => amounts.workspace(pass, units),
                    PassOp::Collective { .. } | PassOp::HostCopy { .. } => Bytes::ZERO,
                };
                Step { op, workspace, allocates: Vec::new(), frees: Vec::new() }
            };
            let ops = pass_in_buckets(shape, chunk, overlap_gradients, action, buckets);
            ops.into_iter().map(step).collect::<Vec<_>>()
        };
        let (mut forward, mut whole) = (steps(Action::Forward), steps(Action::Backward));
        let (mut input, mut weight) = (steps(Action::BackwardInput), steps(Action::BackwardWeight));
        let mut up = Slots::default();
        up.forward(&mut forward, &mut amounts, chunk, memory::logits(shape, chunk), runs.split);
        let mut down = up.clone();
        if runs.whole {
            down.backward(&mut whole, None, &mut amounts, chunk);
        }
        let mut split = up;
        if runs.split {
            split.backward(&mut input, Some(&mut weight), &mut amounts, chunk);
        }
        Self { steps: [forward, whole, input, weight], slots: down.taken.max(split.taken) }
    }

    /// The passes of a slice of a divided vocabulary, in the order of [`Work::OF_SLICE`] in place of actions.
    pub(crate) fn of_slice(shape: Shape<'_>, chunk: &Chunk, division: VocabularyDivision) -> Self {
        let mut amounts = Amounts::new(shape, chunk);
        let mut slots = Slots::default();
        let mut steps = Work::OF_SLICE.map(|work| {
            let step = |op: PassOp| {
                let workspace = match op {
                    PassOp::Compute { pass, units } => amounts.workspace(pass, units),
                    PassOp::Collective { .. } | PassOp::HostCopy { .. } => Bytes::ZERO,
                };
                Step { op, workspace, allocates: Vec::new(), frees: Vec::new() }
            };
            vocabulary::slice_ops(division, work).into_iter().map(step).collect::<Vec<_>>()
        });
        let [embedding, scores, gradients, embedding_gradient] = &mut steps;
        let end = |steps: &mut Vec<Step>, slot: Option<u32>| {
            steps.last_mut().expect("a pass has steps").frees.extend(slot);
        };
        let ids = UnitRange { start: 0, end: vocabulary::HEAD.start };
        let ids = slots.hold(&mut embedding[0], BufferKind::Activations, amounts.kept(ids));
        end(embedding_gradient, ids);
        let kept = slots.hold(&mut scores[0], BufferKind::Activations, amounts.kept(vocabulary::HEAD));
        let logits = slots.hold(&mut scores[0], BufferKind::Logits, memory::logits(shape, chunk));
        let split = scores
            .get_mut(1)
            .and_then(|input| slots.hold(input, BufferKind::Activations, amounts.left_for_weights(vocabulary::HEAD)));
        for slot in [kept, logits, split] {
            end(gradients, slot);
        }
        Self { steps, slots: slots.taken }
    }

    /// The steps of a pass of a slice.
    pub(super) fn slice_steps(&self, work: Work) -> &[Step] {
        let at = Work::OF_SLICE.iter().position(|other| *other == work).expect("a pass of a slice");
        &self.steps[at]
    }

    /// Memory of all passes by kind of buffer, relative to what was held before: at the peak, and after it. What runs beside
    /// a compute counts as if it lasted as long.
    pub(crate) fn memory<const N: usize>(&self, kinds: &[BufferKind; N]) -> [([i64; N], [i64; N]); 4] {
        let place = |kind: BufferKind| kinds.iter().position(|k| *k == kind).expect("a kind of a pass's buffers");
        let mut known = vec![(0, 0i64); self.slots as usize];
        let [forward, whole, input, weight] = &self.steps;
        let mut walk = |steps: &[Step]| {
            let (mut now, mut peak, mut most) = ([0i64; N], [0i64; N], 0);
            let mut beside: Vec<u32> = Vec::new();
            for step in steps {
                for held in &step.allocates {
                    known[held.slot as usize] = (place(held.kind), size(held.bytes));
                    now[place(held.kind)] += size(held.bytes);
                }
                now[place(BufferKind::Workspace)] += size(step.workspace);
                if now.iter().sum::<i64>() > most {
                    (peak, most) = (now, now.iter().sum::<i64>());
                }
                now[place(BufferKind::Workspace)] -= size(step.workspace);
                beside.extend_from_slice(&step.frees);
                if !step.op.is_beside() {
                    for slot in beside.drain(..) {
                        let (kind, bytes) = known[slot as usize];
                        now[kind] -= bytes;
                    }
                }
            }
            (peak, now)
        };
        [walk(forward), walk(whole), walk(input), walk(weight)]
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

fn size(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).expect("a buffer of less than 2^63 bytes")
}

impl Slots {
    fn hold(&mut self, step: &mut Step, kind: BufferKind, bytes: Bytes) -> Option<u32> {
        if bytes == Bytes::ZERO {
            return None;
        }
        let slot = self.taken;
        self.taken += 1;
        step.allocates.push(Held { slot, kind, bytes });
        Some(slot)
    }

    /// A buffer in two, where the halves of a split backward pass read parts of it last; in one, where `early` is zero.
    fn hold_until(&mut self, step: &mut Step, units: UnitRange, bytes: Bytes, early: Bytes) {
        for (bytes, until) in [(bytes - early, Pass::BackwardWeight), (early, Pass::BackwardInput)] {
            let slot = self.hold(step, BufferKind::Activations, bytes);
            self.living.extend(slot.map(|slot| Living { slot, units, until }));
        }
    }

    fn forward(&mut self, steps: &mut [Step], amounts: &mut Amounts<'_>, chunk: &Chunk, logits: Bytes, split: bool) {
        let head = head_position(chunk);
        for step in steps.iter_mut() {
            match step.op {
                PassOp::Compute { units, .. } => {
                    let early = if split { amounts.kept_until_inputs(units) } else { Bytes::ZERO };
                    self.hold_until(step, units, amounts.kept(units), early);
                    if head.is_some_and(|head| covers(units, head)) {
                        self.logits = self.hold(step, BufferKind::Logits, logits);
                    }
                }
                PassOp::HostCopy { what: Copied::Kept, units: gone, .. } => {
                    let leaves = |held: &Living| covers(gone, held.units.start);
                    step.frees.extend(self.living.iter().filter(|held| leaves(held)).map(|held| held.slot));
                    self.living.retain(|held| !leaves(held));
                }
                PassOp::Collective { .. } | PassOp::HostCopy { what: Copied::Parameters, .. } => {}
            }
        }
        self.gathered(steps, chunk, &[Pass::Forward]);
    }

    fn backward(
        &mut self,
        steps: &mut [Step],
        weight: Option<&mut Vec<Step>>,
        amounts: &mut Amounts<'_>,
        chunk: &Chunk,
    ) {
        for step in steps.iter_mut() {
            let (bytes, early, units) = match step.op {
                PassOp::Compute { pass: Pass::Recompute, units } => {
                    let split = weight.is_some();
                    let early = if split { amounts.recomputed_until_inputs(units) } else { Bytes::ZERO };
                    (amounts.recomputed(units), early, units)
                }
                PassOp::Compute { pass: Pass::BackwardInput, units } => {
                    (amounts.left_for_weights(units), Bytes::ZERO, units)
                }
                PassOp::HostCopy { what: Copied::Kept, units, bytes, .. } => (bytes, Bytes::ZERO, units),
                PassOp::Compute { .. }
                | PassOp::Collective { .. }
                | PassOp::HostCopy { what: Copied::Parameters, .. } => continue,
            };
            self.hold_until(step, units, bytes, early);
        }
        self.gathered(steps, chunk, &[Pass::Backward, Pass::BackwardInput]);
        let last = cover(steps, chunk, &[Pass::Backward, Pass::BackwardInput]);
        if let Some(slot) = self.logits {
            let head = head_position(chunk).expect("logits without a head");
            steps[last[head as usize]].frees.push(slot);
        }
        let living = std::mem::take(&mut self.living);
        match weight {
            None => {
                for held in living {
                    steps[last[held.units.start as usize]].frees.push(held.slot);
                }
                self.scattered(steps, chunk, Pass::Backward);
            }
            Some(weight) => {
                let after = cover(weight, chunk, &[Pass::BackwardWeight]);
                for held in living {
                    let unit = held.units.start as usize;
                    if held.until == Pass::BackwardInput {
                        steps[last[unit]].frees.push(held.slot);
                    } else {
                        weight[after[unit]].frees.push(held.slot);
                    }
                }
                self.scattered(weight, chunk, Pass::BackwardWeight);
            }
        }
    }

    /// Gathered parameters are there from their collective to the last instruction of their units.
    fn gathered(&mut self, steps: &mut [Step], chunk: &Chunk, passes: &[Pass]) {
        let mut last: Option<Vec<usize>> = None;
        for place in 0..steps.len() {
            let PassOp::Collective { moves: Moves::Parameters { units, .. }, bytes, .. } = steps[place].op else {
                continue;
            };
            let last = last.get_or_insert_with(|| cover(steps, chunk, passes));
            let end = (units.start..units.end).map(|unit| last[unit as usize]).max().expect("a part has units");
            if let Some(slot) = self.hold(&mut steps[place], BufferKind::Communication, bytes) {
                steps[end].frees.push(slot);
            }
        }
    }

    /// Whole gradients of a part are there from the first instruction that adds to them to their scattering.
    fn scattered(&mut self, steps: &mut [Step], chunk: &Chunk, pass: Pass) {
        let mut last: Option<Vec<usize>> = None;
        for place in 0..steps.len() {
            let PassOp::Collective { moves: Moves::Gradients { units, .. }, bytes, .. } = steps[place].op else {
                continue;
            };
            let last = last.get_or_insert_with(|| cover(steps, chunk, &[pass]));
            let first = (units.start..units.end).map(|unit| last[unit as usize]).min().expect("a part has units");
            if let Some(slot) = self.hold(&mut steps[first], BufferKind::Gradients, bytes) {
                steps[place].frees.push(slot);
            }
        }
    }
}

fn head_position(chunk: &Chunk) -> Option<u32> {
    chunk.head.then(|| chunk.units() - 2).inspect(|position| debug_assert_eq!(chunk.unit(*position), Unit::Head))
}

fn covers(units: UnitRange, position: u32) -> bool {
    (units.start..units.end).contains(&position)
}

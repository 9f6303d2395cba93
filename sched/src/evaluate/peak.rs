//! Peak memory of each position: its training state, what its passes take and leave, and what messages need.

use cost::memory;
use ir::counts::Shape;
use ir::grid::Action;
use ir::program::{BufferKind, Chunk};
use ir::{Bytes, DeviceKind, StageId, StageMemory};

use super::inflight::Context;
use super::prepared::{PARTS, Parts, Prepared, World};

/// What the passes of a chunk take and leave, and how many parameters a rank holds and steps of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// By action: over what was held before, at the peak; and held after it, less what was before.
    pub(super) passes: PassSizes,
    pub(super) parameters: u64,
    pub(super) stepped: u64,
}

/// Of each pass, by action: at its peak, and after it.
pub(super) type PassSizes = [(Parts, Parts); 4];

/// Sizes of one plan.
pub(super) struct View<'a> {
    pub(super) world: World<'a>,
    pub(super) prepared: &'a Prepared,
    pub(super) chunks: &'a [Chunk],
    pub(super) sizes: &'a [Sizes],
}

impl View<'_> {
    /// The chunks of a position, by number.
    fn own(&self, position: u32) -> impl Iterator<Item = u32> + Clone + '_ {
        (0u32..).zip(self.chunks).filter(move |(_, chunk)| chunk.stage.raw() == position).map(|(number, _)| number)
    }

    pub(super) fn stage(&self, position: u32, contexts: &[Context]) -> StageMemory {
        let own = self.own(position).collect::<Vec<_>>();
        let (peak, reached) = self.peak(&own, contexts);
        let in_flight = reached.held.iter().map(|[forward, input]| forward + input).sum::<u32>()
            + u32::from(reached.action == Action::Forward);
        self.report(position, peak, moment(reached.action, reached.chunk, in_flight))
    }

    /// How far the worst position is over its memory, as a share of it; `None` if all fit.
    pub(super) fn excess(&self, contexts: &[Vec<Context>]) -> Option<f64> {
        let mut worst: Option<f64> = None;
        for (position, contexts) in (0u32..).zip(contexts) {
            let own = self.own(position).collect::<Vec<_>>();
            let peak = self.needed(position, &own, contexts);
            let capacity = self.usable(position).get();
            if peak > capacity {
                let excess = peak as f64 / capacity.max(1) as f64 - 1.0;
                worst = Some(worst.map_or(excess, |worst| worst.max(excess)));
            }
        }
        worst
    }

    /// Whether what a position needs is within its memory.
    pub(super) fn fits(&self, position: u32, contexts: &[Context]) -> bool {
        let own = self.own(position).collect::<Vec<_>>();
        self.needed(position, &own, contexts) <= self.usable(position).get()
    }

    /// What a position's device must have, in bytes: the peak of [`Self::stage`] without its words.
    fn needed(&self, position: u32, own: &[u32], contexts: &[Context]) -> u64 {
        let (mut all, mut passing) = (0, 0);
        let mut add = |kind: BufferKind, bytes: u64| {
            all += bytes;
            passing += if memory::passes(kind) { bytes } else { 0 };
        };
        for (kind, bytes) in self.staying(position, own) {
            add(kind, bytes.get());
        }
        for (kind, bytes) in PARTS.iter().zip(self.peak(own, contexts).0) {
            add(*kind, u64::try_from(bytes).expect("a peak is not negative"));
        }
        all + self.figures(position).unused(Bytes::new(passing)).get()
    }

    /// What passes take of a position's memory at its peak, and when that is.
    fn peak<'c>(&self, own: &[u32], contexts: &'c [Context]) -> (Parts, &'c Context) {
        let held = own.iter().map(|number| self.held_by(*number)).collect::<Vec<_>>();
        let total = |parts: &Parts| parts.iter().sum::<i64>();
        let sums = held.iter().map(|[forward, input]| [total(forward), total(input)]).collect::<Vec<_>>();
        let peak_of = |context: &Context| self.sizes[context.chunk as usize].passes[context.action as usize].0;
        let size = |context: &&Context| {
            let before = sums
                .iter()
                .zip(&context.held)
                .map(|([forward, input], count)| i64::from(count[0]) * forward + i64::from(count[1]) * input);
            total(&peak_of(context)) + before.sum::<i64>()
        };
        // The first of equals, as time goes.
        let reached = contexts.iter().rev().max_by_key(size).expect("a position runs passes");
        let mut peak = peak_of(reached);
        for ([forward, input], count) in held.iter().zip(&reached.held) {
            for (part, sum) in peak.iter_mut().enumerate() {
                *sum += i64::from(count[0]) * forward[part] + i64::from(count[1]) * input[part];
            }
        }
        (peak, reached)
    }

    /// What one microbatch holds in a chunk after its forward pass, and after its input-gradient pass.
    fn held_by(&self, chunk: u32) -> [Parts; 2] {
        let passes = &self.sizes[chunk as usize].passes;
        let forward = passes[Action::Forward as usize].1;
        let input = passes[Action::BackwardInput as usize].1;
        [forward, std::array::from_fn(|part| forward[part] + input[part])]
    }

    /// What may be taken of the memory of that device.
    fn usable(&self, position: u32) -> Bytes {
        self.world.cost.usable(self.kind(position))
    }

    /// The kind of the device of a position with the least memory.
    fn kind(&self, position: u32) -> &DeviceKind {
        let cluster = self.world.cost.cluster();
        cluster.device_kind(cluster.place(self.prepared.smallest(position)).device_kind)
    }

    fn figures(&self, position: u32) -> memory::Figures {
        memory::Figures::of(self.kind(position), &self.world.workload.recipe)
    }

    /// What stays through an iteration: training state, boundary activations, and what the driver keeps.
    fn staying(&self, position: u32, own: &[u32]) -> [(BufferKind, Bytes); 5] {
        let layout = self.prepared.layout_at(position);
        let shape = Shape { model: self.world.model, workload: self.world.workload, layout };
        let elsewhere = |chunk: u32| self.chunks.get(chunk as usize).is_some_and(|c| c.stage.raw() != position);
        let (mut before, mut after) = (false, false);
        let (mut parameters, mut stepped) = (0, 0);
        for chunk in own {
            // Slices of the vocabulary have no neighbours.
            let slice = self.chunks[*chunk as usize].layers == 0 && !self.prepared.layout.sharing.vocabulary.is_ends();
            before |= !slice && *chunk > 0 && elsewhere(*chunk - 1);
            after |= !slice && elsewhere(*chunk + 1);
            parameters += self.sizes[*chunk as usize].parameters;
            stepped += self.sizes[*chunk as usize].stepped;
        }
        // From and to each neighbour: two received, one sent.
        let boundaries = 3 * (u64::from(before) + u64::from(after));
        let (weights, gradients, optimizer) = memory::state(shape, parameters, stepped);
        [
            (BufferKind::Weights, weights),
            (BufferKind::Gradients, gradients),
            (BufferKind::OptimizerState, optimizer),
            (BufferKind::Communication, self.prepared.held_bytes(self.world, position) * boundaries),
            (BufferKind::Reserve, self.figures(position).reserve()),
        ]
    }

    pub(super) fn report(&self, position: u32, peak: Parts, moment: String) -> StageMemory {
        let own = self.own(position).collect::<Vec<_>>();
        let mut parts = self.staying(position, &own).map(|(kind, bytes)| (kind.name(), bytes)).to_vec();
        for (part, bytes) in PARTS.iter().zip(peak) {
            let bytes = Bytes::new(u64::try_from(bytes).expect("a peak is not negative"));
            match parts.iter_mut().find(|(name, _)| *name == part.name()) {
                Some((_, sum)) => *sum += bytes,
                None => parts.push((part.name(), bytes)),
            }
        }
        parts.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut stage = StageMemory {
            stage: StageId::new(position),
            device: self.prepared.smallest(position),
            capacity: self.usable(position),
            peak: parts.iter().map(|(_, bytes)| *bytes).sum(),
            parts,
            moment,
        };
        memory::add_unused(self.kind(position), &self.world.workload.recipe, &mut stage);
        stage
    }
}

/// The moment of a peak, in words.
fn moment(action: Action, chunk: u32, in_flight: u32) -> String {
    let pass = match action {
        Action::Forward => "forward",
        Action::Backward => "backward",
        Action::BackwardInput => "backward-input",
        Action::BackwardWeight => "backward-weight",
    };
    let plural = if in_flight == 1 { "" } else { "es" };
    let mut text = String::with_capacity(64);
    for piece in [pass, " pass of chunk "] {
        text.push_str(piece);
    }
    use std::fmt::Write;
    write!(text, "{chunk} with {in_flight} microbatch{plural} in flight").expect("a string takes all");
    text
}

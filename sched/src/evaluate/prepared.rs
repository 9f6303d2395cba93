//! Prices and sizes of everything that plans of equal degrees share, found once and looked up afterwards.

use std::sync::Arc;

use cost::{Basis, CostModel, GroupPlace, Priced};
use ir::counts::{HeldParameters, Shape, held_parameters, message_bytes};
use ir::grid::Action;
use ir::program::{BufferKind, Chunk, CollectiveKind, Layout, RankPlace};
use ir::{
    Activity, Axis, Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, Mesh, Model, Plan, Shares, Sharing,
    SimDuration, Workload, ZeroStage,
};
use rustc_hash::FxHashMap;

use super::parts::InParts;
use super::peak::{PassSizes, Sizes};
use super::places::{Lane, Places};
use super::relief::Relief;
use super::shared::{ChunkKey, Shared, SizesKey};
use super::spent::{Spent, activity_along};
use crate::across::Across;
use crate::lowering::{Runs, runs};

/// What prices and sizes depend on, beside the split of layers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    degrees: [u32; 4],
    /// Where positions differ.
    tensors: Vec<u32>,
    sequence_parallel: bool,
    zero: ZeroStage,
    collective: CollectiveAlgorithm,
    mesh: Mesh,
    sharing: Sharing,
    /// Whether scattered gradients run beside passes.
    overlap: bool,
    runs: Runs,
    placement: Vec<DeviceId>,
    /// Where shares are unequal: what each replica takes, the most, and which replicas are meant; none if all are.
    shares: Shares,
    most: u32,
    replicas: Vec<u32>,
}

impl Key {
    /// Of some replicas of a plan, of none named of all.
    pub(super) fn of(plan: &Plan, replicas: &[u32]) -> Self {
        let scattered = match plan.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => false,
            ZeroStage::Zero2 | ZeroStage::Zero3 => true,
        };
        Self {
            degrees: [plan.data, plan.tensors().max().unwrap_or(plan.tensor), plan.pipeline(), plan.microbatch_size],
            tensors: if plan.has_unlike_tensors() { plan.tensors().collect() } else { Vec::new() },
            sequence_parallel: plan.sequence_parallel,
            zero: plan.zero,
            collective: plan.collective,
            mesh: plan.mesh,
            // It changes when a gather runs, not what any pass is.
            sharing: Sharing { overlap_parameters: false, ..plan.sharing },
            overlap: plan.overlap_gradients && scattered,
            runs: runs(&plan.schedule),
            placement: plan.placement.clone(),
            most: if plan.shares.are_equal() { 0 } else { plan.microbatches },
            shares: plan.shares.clone(),
            replicas: replicas.to_vec(),
        }
    }
}

/// Nanoseconds by basis.
pub(super) type ByBasis = [u64; 4];

/// Memory by part, in the order of [`PARTS`]; a pass may give back more than it takes.
pub(super) type Parts = [i64; 5];

/// Parts of memory that passes take and give back.
pub(super) const PARTS: [BufferKind; 5] = [
    BufferKind::Activations,
    BufferKind::Workspace,
    BufferKind::Logits,
    BufferKind::Communication,
    BufferKind::Gradients,
];

/// One pass of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PassCost {
    /// Its length.
    pub(super) time: u64,
    /// What that is spent on.
    pub(super) spent: Spent,
    /// Durations of all its ops, hidden ones too.
    pub(super) basis: ByBasis,
}

/// All passes of a chunk, by action.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCost {
    pub(super) passes: [PassCost; 4],
    /// Before any division over replicas.
    pub(super) held: HeldParameters,
    pub(super) sizes: Sizes,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) layout: Layout,
    /// As each position has it, where they differ; else the one for all.
    layouts: Vec<Layout>,
    places: Arc<Places>,
    /// Which replicas are meant; none if all are.
    replicas: Vec<u32>,
    /// By position.
    divisions: Vec<usize>,
    /// By position: its ranks as far as passes can tell them apart, by number, and the device with the least memory.
    positions: Vec<(u32, DeviceId)>,
    /// By division too, as is the next.
    chunks: FxHashMap<(usize, ChunkKey), ChunkCost>,
    sizes: FxHashMap<(usize, SizesKey), Sizes>,
    /// By what tells a position apart, and how far the other is from it.
    messages: FxHashMap<(u32, i64), Priced>,
    over_embedding: FxHashMap<(u32, u32, u64), Priced>,
    /// By what tells a position apart, and parameters.
    steps: FxHashMap<(u32, u64), Steps>,
}

/// What a position's optimizer step consists of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pub(super) norm: Priced,
    pub(super) optimizer: Priced,
    /// Copies to host memory and back, where it is stepped there.
    pub(super) copies: Option<(Priced, Option<Priced>)>,
}

/// The world of a question that stays as plans change.
#[derive(Clone, Copy, Debug)]
pub(super) struct World<'a> {
    pub(super) model: &'a Model,
    pub(super) workload: &'a Workload,
    pub(super) cost: &'a CostModel,
    /// What counts as nothing.
    pub(super) relief: Relief,
}

impl Prepared {
    /// Of some replicas of a plan, of none named of all.
    pub(super) fn new(shared: &mut Shared, world: World<'_>, plan: &Plan, replicas: &[u32]) -> Self {
        let layout = crate::layout::layout(plan);
        let places = shared.places(world, plan, &layout, replicas);
        let smallest = |position: u32| {
            let (replica, index) = places.smallest(position);
            plan.device(plan.rank(position, replica, index))
        };
        let position = |position: u32| (shared.set(world, plan.zero, places.lanes(position)), smallest(position));
        let positions = (0..layout.pipeline).map(position).collect();
        let of = if layout.has_unlike_tensors() { layout.pipeline } else { 1 };
        let divisions = (0..of).map(|position| shared.division(world, plan, position)).collect::<Vec<_>>();
        Self {
            divisions: divisions.into_iter().cycle().take(layout.pipeline as usize).collect(),
            layouts: (0..of).map(|position| layout.at(position).into_owned()).collect(),
            positions,
            places,
            replicas: replicas.to_vec(),
            layout,
            chunks: FxHashMap::default(),
            sizes: FxHashMap::default(),
            messages: FxHashMap::default(),
            over_embedding: FxHashMap::default(),
            steps: FxHashMap::default(),
        }
    }

    /// The layout as a position has it.
    pub(super) fn layout_at(&self, position: u32) -> &Layout {
        self.layouts.get(position as usize).unwrap_or(&self.layouts[0])
    }

    /// Bytes of an activation as a rank of a position has it between its passes.
    pub(super) fn held_bytes(&self, world: World<'_>, position: u32) -> Bytes {
        let layout = self.layout_at(position);
        message_bytes(Shape { model: world.model, workload: world.workload, layout })
    }

    /// The device of a position with the least memory.
    pub(super) fn smallest(&self, position: u32) -> DeviceId {
        self.positions[position as usize].1
    }

    /// Kinds of all devices.
    pub(super) fn kinds(&self) -> Vec<DeviceKindId> {
        self.places.kinds()
    }

    pub(super) fn chunk(&mut self, shared: &mut Shared, world: World<'_>, chunk: &Chunk) -> ChunkCost {
        let first = if world.model.variants.pattern.is_empty() { 0 } else { chunk.first_layer };
        let (recompute, layers) = (chunk.recompute, chunk.recomputed_layers);
        let (set, _) = self.positions[chunk.stage.index()];
        let division = self.divisions[chunk.stage.index()];
        let given = if shared.of(division).prices.are_given() { chunk.stage.raw() } else { 0 };
        let key = (division, (set, given, first, chunk.layers, chunk.embedding, chunk.head, recompute, layers));
        if let Some(cost) = self.chunks.get(&key) {
            return *cost;
        }
        let layout = self.layout_at(chunk.stage.raw());
        let shape = Shape { model: world.model, workload: world.workload, layout };
        let cost = ChunkCost {
            passes: shared.passes(world, division, set, chunk),
            held: held_parameters(shape, chunk, chunk.all_units()),
            sizes: self.sizes(shared, world, chunk),
        };
        self.chunks.insert(key, cost);
        cost
    }

    /// A chunk's last pass, in buckets of `least` parameters or in the parts that it scatters, and the length of its like.
    pub(super) fn in_parts(
        &self,
        shared: &mut Shared,
        world: World<'_>,
        (chunk, action, least): (&Chunk, Action, Option<u64>),
    ) -> (Arc<InParts>, u64) {
        let (set, _) = self.positions[chunk.stage.index()];
        let division = self.divisions[chunk.stage.index()];
        let like = shared.passes(world, division, set, chunk)[action as usize].time;
        (shared.in_parts(world, division, set, (chunk, action, least)), like)
    }

    /// What a chunk's passes and parameters take.
    pub(super) fn sizes(&mut self, shared: &mut Shared, world: World<'_>, chunk: &Chunk) -> Sizes {
        let first = if world.model.variants.pattern.is_empty() { 0 } else { chunk.first_layer };
        let (recompute, layers) = (chunk.recompute, chunk.recomputed_layers);
        let division = self.divisions[chunk.stage.index()];
        let layout = self.layouts.get(chunk.stage.index()).unwrap_or(&self.layouts[0]);
        let shape = Shape { model: world.model, workload: world.workload, layout };
        let key = (division, (first, chunk.layers, chunk.embedding, chunk.head, recompute, layers));
        *self.sizes.entry(key).or_insert_with(|| Sizes {
            passes: shared.sizes(world, division, chunk, None),
            parameters: cost::memory::parameters(shape, chunk),
            stepped: cost::memory::stepped_parameters(shape, chunk),
        })
    }

    /// What a chunk's passes take where those that add to gradients do so in buckets of `least` parameters.
    pub(super) fn sizes_in_buckets(
        &self,
        shared: &mut Shared,
        world: World<'_>,
        chunk: &Chunk,
        least: u64,
    ) -> PassSizes {
        shared.sizes(world, self.divisions[chunk.stage.index()], chunk, Some(least))
    }

    /// What crosses from one position to another: the slowest of all lanes. Messages of one lane follow each other.
    pub(super) fn message(&mut self, world: World<'_>, plan: &Plan, from: u32, to: u32) -> Priced {
        let (layout, period) = (&self.layout, self.places.period());
        let start = layout.rank(RankPlace { position: from, replica: 0, tensor_index: 0 });
        let key = (period.residue(start.raw()), i64::from(to) - i64::from(from));
        let across = Across::new(layout, from, to);
        *self.messages.entry(key).or_insert_with(|| {
            let bytes = across.bytes(layout, world.model, world.workload, (from, to));
            let cluster = world.cost.cluster();
            let end = |position: u32, replica: u32, index: u32| plan.device(plan.rank(position, replica, index));
            let price = |ends: (DeviceId, DeviceId)| world.cost.message(bytes, ends.0, ends.1);
            // Lanes whose ends and way between them are of one kind have one price.
            let mut seen = Vec::new();
            let replicas = &self.replicas;
            let (tensor, wide) = (layout.tensor_at(from), layout.replicas() * layout.tensor_at(from));
            let shown = if replicas.is_empty() { period.shown(wide) } else { wide };
            let of_data = |lane: u32| lane / tensor / layout.mesh.context;
            let meant =
                (0..shown).filter(|lane| replicas.is_empty() || replicas.binary_search(&of_data(*lane)).is_ok());
            if across.is_unlike() {
                let chains = meant.map(|lane| (lane / tensor, lane % tensor)).filter_map(|(replica, index)| {
                    let ends = |sender, receiver| (end(from, replica, sender), end(to, replica, receiver));
                    // The chain of the side that has several partners: of a receiver once, with its first sender.
                    let receivers = across.receivers(index);
                    let senders = across.senders(receivers.clone().next()?);
                    let first = senders.start == index;
                    let of_sender = receivers.clone().map(|receiver| price(ends(index, receiver)));
                    let of_receiver = senders.map(|sender| price(ends(sender, receivers.start)));
                    if receivers.len() > 1 { in_a_row(of_sender) } else { in_a_row(of_receiver).filter(|_| first) }
                });
                return world.relief.price(Activity::Pipeline, slowest(chains));
            }
            let lanes =
                meant.map(|lane| (end(from, lane / tensor, lane % tensor), end(to, lane / tensor, lane % tensor)));
            let unlike = lanes.filter(|(from, to)| {
                let kinds = [*from, *to].map(|device| {
                    let place = cluster.place(device);
                    (place.node_kind, place.device_kind)
                });
                let way = (cluster.path(*from, *to), kinds);
                let new = !seen.contains(&way);
                if new {
                    seen.push(way);
                }
                new
            });
            world.relief.price(Activity::Pipeline, slowest(unlike.map(price)))
        })
    }

    /// A collective of a position along an axis: the slowest of its groups.
    pub(super) fn along(
        &mut self,
        shared: &mut Shared,
        world: World<'_>,
        axis: Axis,
        position: u32,
        kind: CollectiveKind,
        bytes: Bytes,
    ) -> Priced {
        let (exchanges, algorithm) = (shared.exchanges(), self.layout.collective);
        let places = self.places.along(axis, position).iter();
        let exchange = slowest(places.map(|place| exchanges.find(world, algorithm, (axis, kind), bytes, *place)));
        world.relief.price(activity_along(axis), exchange)
    }

    /// An all-reduce between two positions.
    pub(super) fn over_embedding(&mut self, world: World<'_>, plan: &Plan, (a, b): (u32, u32), bytes: Bytes) -> Priced {
        let (tensor, algorithm) = (self.layout.tensor_at(a), self.layout.collective);
        let shown = self.places.period().shown(self.layout.replicas() * tensor);
        *self.over_embedding.entry((a, b, bytes.get())).or_insert_with(|| {
            let end = |position: u32, lane: u32| plan.device(plan.rank(position, lane / tensor, lane % tensor));
            let reduction = slowest((0..shown).map(|lane| {
                let place = GroupPlace::of(world.cost.cluster(), &[end(a.min(b), lane), end(a.max(b), lane)]);
                world.cost.collective(CollectiveKind::AllReduce, bytes, place, algorithm)
            }));
            world.relief.price(Activity::Pipeline, reduction)
        })
    }

    /// Gradient norm and optimizer of a position that steps `stepped` parameters on each rank.
    pub(super) fn steps<'c>(
        &mut self,
        world: World<'_>,
        position: u32,
        stepped: u64,
        held: impl Iterator<Item = &'c Chunk>,
    ) -> Steps {
        let lanes = self.places.lanes(position);
        let layout = self.layouts.get(position as usize).unwrap_or(&self.layouts[0]);
        let shape = Shape { model: world.model, workload: world.workload, layout };
        *self.steps.entry((self.places.like(position), stepped)).or_insert_with(|| {
            let (cost, precision) = (world.cost, world.workload.precision);
            let on_host = self.layout.sharing.offload_optimizer;
            let optimizer = |lane: &Lane| match on_host {
                true => cost.host_optimizer(stepped, precision, lane.kind),
                false => cost.optimizer(stepped, precision, self.layout.tensor, lane.kind),
            };
            let copied = |bytes: Bytes| slowest(lanes.iter().map(|lane| cost.host_copy(bytes, lane.device)));
            let copy = |bytes: Bytes| world.relief.price(Activity::HostCopy, copied(bytes));
            let step = |priced: Priced| world.relief.price(Activity::Optimizer, priced);
            Steps {
                norm: step(slowest(lanes.iter().map(|lane| cost.gradient_norm(stepped, lane.kind)))),
                optimizer: step(slowest(lanes.iter().map(optimizer))),
                copies: crate::state::host_copies(shape, held)
                    .map(|(out, back)| (copy(out), Some(back).filter(|back| *back > Bytes::ZERO).map(copy))),
            }
        })
    }
}

pub(super) const fn index(basis: Basis) -> usize {
    match basis {
        Basis::Measured => 0,
        Basis::Interpolated => 1,
        Basis::Analytic => 2,
        Basis::Assumed => 3,
    }
}

/// Messages that follow each other: all of them together, on what the longest rests; `None` if there are none.
fn in_a_row(prices: impl Iterator<Item = Priced>) -> Option<Priced> {
    let add = |sum: Priced, next: Priced| {
        let longest = if next.duration > sum.duration { next } else { sum };
        let together = sum.duration.nanoseconds().saturating_add(next.duration.nanoseconds());
        Priced { duration: SimDuration::from_nanoseconds(together), basis: longest.basis }
    };
    prices.reduce(add)
}

fn slowest(prices: impl Iterator<Item = Priced>) -> Priced {
    prices.max_by_key(|priced| priced.duration).expect("a group has at least one instance")
}

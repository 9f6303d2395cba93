//! Prices and sizes of everything that plans of equal degrees share, found once and looked up afterwards.

use cost::{Basis, CostModel, GroupPlace, Priced, Prices};
use ir::counts::{Shape, message_bytes};
use ir::grid::Action;
use ir::program::{BufferKind, Chunk, CollectiveKind, Layout};
use ir::{Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, Model, Plan, Rank, Recompute, Workload, ZeroStage};
use rustc_hash::FxHashMap;

use crate::lowering::Templates;
use crate::passes::{PassOp, collective_bytes};

/// What prices and sizes depend on, beside the split of layers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    degrees: [u32; 4],
    sequence_parallel: bool,
    zero: ZeroStage,
    collective: CollectiveAlgorithm,
    placement: Vec<DeviceId>,
}

impl Key {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            degrees: [plan.data, plan.tensor, plan.pipeline(), plan.microbatch_size],
            sequence_parallel: plan.sequence_parallel,
            zero: plan.zero,
            collective: plan.collective,
            placement: plan.placement.clone(),
        }
    }
}

/// Nanoseconds by basis.
pub(super) type ByBasis = [u64; 3];

/// Memory by part, in the order of [`PARTS`]; a pass may give back more than it takes.
pub(super) type Parts = [i64; 3];

/// Parts of memory that passes take and give back.
pub(super) const PARTS: [BufferKind; 3] = [BufferKind::Activations, BufferKind::Workspace, BufferKind::Logits];

/// One pass of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PassCost {
    /// Its length: the sum of its ops.
    pub(super) time: u64,
    pub(super) basis: ByBasis,
    /// Over what was held before it, at its peak.
    pub(super) peak: Parts,
    /// Held after it, less what was before.
    pub(super) left: Parts,
}

/// All passes of a chunk, by action.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCost {
    pub(super) passes: [PassCost; 4],
    pub(super) parameters: u64,
    pub(super) stepped: u64,
}

/// Distinct places of one position's groups and devices.
#[derive(Clone, Debug, Default)]
struct PositionPlaces {
    /// Kinds of device with the place of their tensor group.
    lanes: Vec<(DeviceKindId, GroupPlace)>,
    data: Vec<GroupPlace>,
    /// The device with the least memory.
    smallest: Option<DeviceId>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) layout: Layout,
    pub(super) message: Bytes,
    prices: Prices,
    places: Vec<PositionPlaces>,
    model_place: Vec<GroupPlace>,
    chunks: FxHashMap<(u32, u32, bool, bool, Recompute), ChunkCost>,
    messages: FxHashMap<(u32, u32), Priced>,
    over_replicas: FxHashMap<(u32, CollectiveKind, u64), Priced>,
    over_tensor: FxHashMap<(u32, u64), Priced>,
    over_model: Option<Priced>,
    over_embedding: FxHashMap<(u32, u32, u64), Priced>,
    steps: FxHashMap<(u32, u64), (Priced, Priced)>,
}

/// The world of a question that stays as plans change.
#[derive(Clone, Copy, Debug)]
pub(super) struct World<'a> {
    pub(super) model: &'a Model,
    pub(super) workload: &'a Workload,
    pub(super) cost: &'a CostModel,
}

impl Prepared {
    pub(super) fn new(world: World<'_>, plan: &Plan) -> Self {
        let layout = crate::layout::layout(plan);
        let shape = Shape { model: world.model, workload: world.workload, layout: &layout };
        let cluster = world.cost.cluster();
        let device = |position, replica, index| plan.device(plan.rank(position, replica, index));
        let mut places = Vec::new();
        for position in 0..plan.pipeline() {
            let mut here = PositionPlaces::default();
            for replica in 0..plan.data {
                let members = (0..plan.tensor).map(|t| device(position, replica, t)).collect::<Vec<_>>();
                let kind = cluster.place(members[0]).device_kind;
                let place = GroupPlace::of(cluster, &members);
                let seen = |lane: &(DeviceKindId, GroupPlace)| lane.0 == kind && alike(world, lane.1, place);
                if !here.lanes.iter().any(seen) {
                    here.lanes.push((kind, place));
                }
                here.smallest = members
                    .into_iter()
                    .chain(here.smallest)
                    .min_by_key(|device| (cluster.device_kind(cluster.place(*device).device_kind).memory, *device));
            }
            for index in 0..plan.tensor {
                let members = (0..plan.data).map(|replica| device(position, replica, index)).collect::<Vec<_>>();
                let place = GroupPlace::of(cluster, &members);
                if !here.data.iter().any(|seen| alike(world, *seen, place)) {
                    here.data.push(place);
                }
            }
            places.push(here);
        }
        let mut model_place = Vec::new();
        for replica in 0..plan.data {
            let members = (0..plan.pipeline())
                .flat_map(|position| (0..plan.tensor).map(move |index| device(position, replica, index)))
                .collect::<Vec<_>>();
            let place = GroupPlace::of(cluster, &members);
            if !model_place.iter().any(|seen| alike(world, *seen, place)) {
                model_place.push(place);
            }
        }
        Self {
            message: message_bytes(shape),
            prices: world.cost.prepare(shape),
            layout,
            places,
            model_place,
            chunks: FxHashMap::default(),
            messages: FxHashMap::default(),
            over_replicas: FxHashMap::default(),
            over_tensor: FxHashMap::default(),
            over_model: None,
            over_embedding: FxHashMap::default(),
            steps: FxHashMap::default(),
        }
    }

    /// The device of a position with the least memory.
    pub(super) fn smallest(&self, position: u32) -> DeviceId {
        self.places[position as usize].smallest.expect("a position has devices")
    }

    pub(super) fn chunk(&mut self, world: World<'_>, chunk: &Chunk) -> ChunkCost {
        let key = (chunk.stage.raw(), chunk.layers, chunk.embedding, chunk.head, chunk.recompute);
        if let Some(cost) = self.chunks.get(&key) {
            return *cost;
        }
        let cost = self.price_chunk(world, chunk);
        self.chunks.insert(key, cost);
        cost
    }

    fn price_chunk(&self, world: World<'_>, chunk: &Chunk) -> ChunkCost {
        let shape = Shape { model: world.model, workload: world.workload, layout: &self.layout };
        let templates = Templates::new(shape, chunk);
        let mut passes = [PassCost::default(); 4];
        for action in [Action::Forward, Action::Backward, Action::BackwardInput, Action::BackwardWeight] {
            let (peak, left) = templates.memory(action, &PARTS);
            let ops = templates.ops(action);
            let lanes = self.places[chunk.stage.index()].lanes.iter();
            // The slowest lane sets the pace.
            let (time, basis) = lanes
                .map(|(kind, place)| self.price_ops(world, shape, chunk, ops.clone(), *kind, *place))
                .max()
                .expect("a position has devices");
            passes[action as usize] = PassCost { time, basis, peak, left };
        }
        let parameters = cost::memory::parameters(shape, chunk);
        ChunkCost { passes, parameters, stepped: cost::memory::stepped_parameters(shape, chunk) }
    }

    fn price_ops(
        &self,
        world: World<'_>,
        shape: Shape<'_>,
        chunk: &Chunk,
        ops: impl Iterator<Item = PassOp>,
        kind: DeviceKindId,
        place: GroupPlace,
    ) -> (u64, ByBasis) {
        let mut basis = [0; 3];
        for op in ops {
            let priced = match op {
                PassOp::Compute { pass, units } => self.prices.compute(chunk, pass, units, kind),
                PassOp::Collective { kind, tensor, .. } => {
                    world.cost.collective(kind, collective_bytes(shape, tensor), place, self.layout.collective)
                }
            };
            basis[index(priced.basis)] += priced.duration.nanoseconds();
        }
        (basis.iter().sum(), basis)
    }

    /// The message from one position to another: the slowest of all lanes.
    pub(super) fn message(&mut self, world: World<'_>, plan: &Plan, from: u32, to: u32) -> Priced {
        let bytes = self.message;
        *self.messages.entry((from, to)).or_insert_with(|| {
            let wide = plan.data * plan.tensor;
            let end = |position: u32, lane: u32| plan.device(Rank::new(position * wide + lane));
            slowest((0..wide).map(|lane| world.cost.message(bytes, end(from, lane), end(to, lane))))
        })
    }

    /// A collective of a position's chunk over replicas.
    pub(super) fn over_replicas(
        &mut self,
        world: World<'_>,
        position: u32,
        kind: CollectiveKind,
        bytes: Bytes,
    ) -> Priced {
        let (places, algorithm) = (&self.places[position as usize].data, self.layout.collective);
        *self.over_replicas.entry((position, kind, bytes.get())).or_insert_with(|| {
            slowest(places.iter().map(|place| world.cost.collective(kind, bytes, *place, algorithm)))
        })
    }

    /// An all-reduce of a position over its tensor group.
    pub(super) fn over_tensor(&mut self, world: World<'_>, position: u32, bytes: Bytes) -> Priced {
        let (lanes, algorithm) = (&self.places[position as usize].lanes, self.layout.collective);
        let kind = CollectiveKind::AllReduce;
        *self.over_tensor.entry((position, bytes.get())).or_insert_with(|| {
            slowest(lanes.iter().map(|(_, place)| world.cost.collective(kind, bytes, *place, algorithm)))
        })
    }

    /// An all-reduce over all ranks of a replica.
    pub(super) fn over_model(&mut self, world: World<'_>, bytes: Bytes) -> Priced {
        let (places, algorithm) = (&self.model_place, self.layout.collective);
        *self.over_model.get_or_insert_with(|| {
            let kind = CollectiveKind::AllReduce;
            slowest(places.iter().map(|place| world.cost.collective(kind, bytes, *place, algorithm)))
        })
    }

    /// An all-reduce between two positions.
    pub(super) fn over_embedding(&mut self, world: World<'_>, plan: &Plan, (a, b): (u32, u32), bytes: Bytes) -> Priced {
        let algorithm = self.layout.collective;
        *self.over_embedding.entry((a, b, bytes.get())).or_insert_with(|| {
            let wide = plan.data * plan.tensor;
            let end = |position: u32, lane: u32| plan.device(Rank::new(position * wide + lane));
            slowest((0..wide).map(|lane| {
                let place = GroupPlace::of(world.cost.cluster(), &[end(a.min(b), lane), end(a.max(b), lane)]);
                world.cost.collective(CollectiveKind::AllReduce, bytes, place, algorithm)
            }))
        })
    }

    /// Gradient norm and optimizer of a position that steps `stepped` parameters on each rank.
    pub(super) fn steps(&mut self, world: World<'_>, position: u32, stepped: u64) -> (Priced, Priced) {
        let lanes = &self.places[position as usize].lanes;
        *self.steps.entry((position, stepped)).or_insert_with(|| {
            let precision = world.workload.precision;
            (
                slowest(lanes.iter().map(|(kind, _)| world.cost.gradient_norm(stepped, *kind))),
                slowest(lanes.iter().map(|(kind, _)| world.cost.optimizer(stepped, precision, *kind))),
            )
        })
    }
}

pub(super) const fn index(basis: Basis) -> usize {
    match basis {
        Basis::Measured => 0,
        Basis::Interpolated => 1,
        Basis::Analytic => 2,
    }
}

fn slowest(prices: impl Iterator<Item = Priced>) -> Priced {
    prices.max_by_key(|priced| priced.duration).expect("a group has at least one instance")
}

/// Whether two groups have the same prices: places that differ at most in which of like devices comes first.
fn alike(world: World<'_>, a: GroupPlace, b: GroupPlace) -> bool {
    let cluster = world.cost.cluster();
    let home = |place: GroupPlace| {
        let home = cluster.place(place.first);
        (home.node_kind, home.device_kind)
    };
    GroupPlace { first: b.first, ..a } == b && home(a) == home(b)
}

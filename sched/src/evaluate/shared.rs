//! Prices that plans of many degrees share.
//!
//! What a pass takes depends on how its layers are divided inside a position (tensor, context, experts, microbatch) and on
//! where the groups of its ranks lie; how many positions and replicas there are changes neither. A search goes over
//! thousands of degrees and a few hundred such [`Division`]s.

use std::sync::Arc;

use cost::{GroupPlace, Priced, Prices};
use ir::counts::Shape;
use ir::grid::Action;
use ir::program::{Chunk, CollectiveKind, Layout};
use ir::{
    Axis, Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, Mesh, NodeKindId, Plan, Precision, Recompute, Sharing,
    VocabularyDivision, ZeroStage,
};
use rustc_hash::FxHashMap;

use super::parts::InParts;
use super::peak::PassSizes;
use super::places::{Lane, Places};
use super::prepared::{PARTS, PassCost, World};
use super::pricing::Pricing;
use crate::lowering::{Runs, Templates, runs};
use crate::passes::{buckets, op_ends, pass_in_buckets, pass_ops};
use crate::vocabulary::{Work, slice_ops};

/// What prices of passes depend on, beside the chunk and the places of groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct DivisionKey {
    /// Data, tensor, pipeline, microbatch size, microbatches: 1 (of a pipeline, 2) for all where it does not matter.
    sizes: [u32; 5],
    sequence_parallel: bool,
    zero: ZeroStage,
    collective: CollectiveAlgorithm,
    mesh: Mesh,
    sharing: Sharing,
    overlap: bool,
    runs: Runs,
}

/// What places of groups depend on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PlacesKey {
    degrees: [u32; 3],
    /// Where positions differ.
    tensors: Vec<u32>,
    mesh: Mesh,
    zero: ZeroStage,
    shard: Option<u32>,
    /// Whether all positions are a group.
    pipeline: bool,
    placement: Vec<DeviceId>,
    replicas: Vec<u32>,
}

/// What tells chunks of one division apart: places of ranks, given stage (where durations are given by stage), first layer
/// (where layers differ), layers, ends, recomputation and how many layers it concerns.
pub(super) type ChunkKey = (u32, u32, u32, u32, bool, bool, Recompute, u32);

/// One way to divide the layers of a position, with the prices of its passes.
#[derive(Debug)]
pub(super) struct Division {
    layout: Layout,
    overlap: bool,
    runs: Runs,
    pub(super) prices: Prices,
    chunks: FxHashMap<ChunkKey, [PassCost; 4]>,
    in_parts: FxHashMap<(ChunkKey, Action, Option<u64>), Arc<InParts>>,
    sizes: FxHashMap<(SizesKey, Option<u64>), PassSizes>,
    floors: FxHashMap<FloorKey, [u64; 4]>,
}

/// What tells the sizes of chunks of one division apart: first layer (where layers differ), layers, ends, recomputation and
/// how many layers it concerns.
pub(super) type SizesKey = (u32, u32, bool, bool, Recompute, u32);

/// What tells the floors of chunks of one division apart: kind of device, first layer (where layers differ), layers, ends,
/// recomputation and how many layers it concerns.
pub(super) type FloorKey = (DeviceKindId, u32, u32, bool, bool, Recompute, u32);

/// Prices of a division, and what was found by them: by chunk, what each pass cannot go under.
pub(super) struct PassFloors<'a> {
    pub(super) prices: &'a Prices,
    pub(super) known: &'a mut FxHashMap<FloorKey, [u64; 4]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Shared {
    exchanges: Exchanges,
    places: FxHashMap<PlacesKey, Arc<Places>>,
    numbers: FxHashMap<DivisionKey, usize>,
    divisions: Vec<Division>,
    /// Sets of ranks that passes of a position can tell apart, by number.
    sets: FxHashMap<Vec<Lane>, u32>,
    lanes: Vec<Vec<Lane>>,
    /// A device for all of its kind in nodes of its kind.
    stands_for: FxHashMap<(NodeKindId, DeviceKindId), DeviceId>,
}

/// Prices of collectives.
#[derive(Debug, Default)]
pub(super) struct Exchanges(FxHashMap<(Axis, CollectiveKind, u64, GroupPlace, CollectiveAlgorithm), Priced>);

impl Exchanges {
    pub(super) fn find(
        &mut self,
        world: World<'_>,
        algorithm: CollectiveAlgorithm,
        (axis, kind): (Axis, CollectiveKind),
        bytes: Bytes,
        place: GroupPlace,
    ) -> Priced {
        let job = (world.model, world.workload);
        let price = || world.cost.collective_along(job, axis, kind, bytes, place, algorithm);
        *self.0.entry((axis, kind, bytes.get(), place, algorithm)).or_insert_with(price)
    }
}

/// Divisions and places that are kept; with more, everything starts anew.
const KEPT: usize = 4096;
/// The same of chunks of one division and of exchanges.
const KEPT_PRICES: usize = 1 << 16;

/// Whether a plan's passes gather or scatter parts of parameters.
const fn is_scattered(zero: ZeroStage) -> bool {
    match zero {
        ZeroStage::Zero0 | ZeroStage::Zero1 => false,
        ZeroStage::Zero2 | ZeroStage::Zero3 => true,
    }
}

impl Shared {
    /// Whether it has grown so far that it should start anew, with everything that refers to it.
    pub(super) fn is_full(&self) -> bool {
        self.divisions.len().max(self.places.len()).max(self.lanes.len()) >= KEPT
            || self.exchanges.0.len() >= KEPT_PRICES
    }

    pub(super) const fn exchanges(&mut self) -> &mut Exchanges {
        &mut self.exchanges
    }

    /// Where the groups of a plan lie that some replicas are in; of none named, all.
    pub(super) fn places(&mut self, world: World<'_>, plan: &Plan, layout: &Layout, replicas: &[u32]) -> Arc<Places> {
        let key = PlacesKey {
            degrees: [plan.data, layout.tensor, plan.pipeline()],
            tensors: layout.tensors.clone(),
            mesh: plan.mesh,
            zero: plan.zero,
            shard: plan.sharing.shard,
            pipeline: !plan.sharing.vocabulary.is_ends(),
            placement: plan.placement.clone(),
            replicas: replicas.to_vec(),
        };
        let places = || Arc::new(Places::new(world, plan, layout, replicas));
        Arc::clone(self.places.entry(key).or_insert_with(places))
    }

    /// The number of the division of a position of a plan.
    pub(super) fn division(&mut self, world: World<'_>, plan: &Plan, position: u32) -> usize {
        let (scattered, experts) = (is_scattered(plan.zero), world.model.variants.experts.is_some());
        let casts = world.workload.precision == Precision::Fp8;
        let mut layout = crate::layout::layout(plan).at(position).into_owned();
        // Seen by the price of an instruction only as "more than one".
        if layout.sharing.vocabulary.is_ends() {
            layout.pipeline = layout.pipeline.min(2);
        }
        layout.microbatches = if casts { layout.microbatches } else { 1 };
        layout.data = if scattered || experts { layout.data } else { 1 };
        layout.zero = if scattered || experts { layout.zero } else { ZeroStage::Zero0 };
        layout.sharing.shard = layout.sharing.shard.filter(|_| scattered || experts);
        layout.sharing.overlap_parameters = false;
        layout.sharing.offload_optimizer = false;
        layout.sharing.bucket = None;
        let key = DivisionKey {
            sizes: [layout.data, layout.tensor, layout.pipeline, layout.microbatch_size, layout.microbatches],
            sequence_parallel: layout.sequence_parallel,
            zero: layout.zero,
            collective: layout.collective,
            mesh: layout.mesh,
            sharing: layout.sharing,
            overlap: plan.overlap_gradients && scattered,
            runs: runs(&plan.schedule),
        };
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let prices = world.cost.prepare(Shape { model: world.model, workload: world.workload, layout: &layout });
        let (overlap, runs) = (key.overlap, key.runs);
        self.divisions.push(Division {
            layout,
            overlap,
            runs,
            prices,
            chunks: FxHashMap::default(),
            in_parts: FxHashMap::default(),
            sizes: FxHashMap::default(),
            floors: FxHashMap::default(),
        });
        self.numbers.insert(key, self.divisions.len() - 1);
        self.divisions.len() - 1
    }

    pub(super) fn of(&self, division: usize) -> &Division {
        &self.divisions[division]
    }

    /// Prices of a division, and what was found by them.
    pub(super) fn floors(&mut self, division: usize) -> PassFloors<'_> {
        let Division { prices, floors, .. } = &mut self.divisions[division];
        if floors.len() >= KEPT_PRICES {
            floors.clear();
        }
        PassFloors { prices, known: floors }
    }

    /// The number of the set of a position's ranks, as far as passes can tell them apart.
    pub(super) fn set(&mut self, world: World<'_>, zero: ZeroStage, lanes: &[Lane]) -> u32 {
        let cluster = world.cost.cluster();
        let mut stands_for = |device: DeviceId| {
            let place = cluster.place(device);
            *self.stands_for.entry((place.node_kind, place.device_kind)).or_insert(device)
        };
        let mut set: Vec<Lane> = Vec::with_capacity(1);
        for lane in lanes {
            let mut seen = Lane { device: stands_for(lane.device), ..*lane };
            for (axis, place) in Axis::ALL.into_iter().zip(&mut seen.places) {
                *place = place.filter(|_| is_of_passes(axis, zero));
                if let Some(place) = place {
                    *place = place.with_devices(&mut stands_for);
                }
            }
            if !set.contains(&seen) {
                set.push(seen);
            }
        }
        if let Some(number) = self.sets.get(&set) {
            return *number;
        }
        let number = u32::try_from(self.lanes.len()).expect("fewer sets than are kept");
        self.lanes.push(set.clone());
        self.sets.insert(set, number);
        number
    }

    /// What the passes of a chunk take and leave in memory, those that add to gradients in buckets of `least` parameters if
    /// that is said.
    pub(super) fn sizes(&mut self, world: World<'_>, division: usize, chunk: &Chunk, least: Option<u64>) -> PassSizes {
        let Division { layout, overlap, runs, sizes, .. } = &mut self.divisions[division];
        let first = if world.model.variants.pattern.is_empty() { 0 } else { chunk.first_layer };
        let key = (first, chunk.layers, chunk.embedding, chunk.head, chunk.recompute, chunk.recomputed_layers);
        if sizes.len() >= KEPT_PRICES {
            sizes.clear();
        }
        *sizes.entry((key, least)).or_insert_with(|| {
            let shape = Shape { model: world.model, workload: world.workload, layout };
            let buckets = least.map(|least| buckets(shape, chunk, least)).unwrap_or_default();
            match slice_of(layout, chunk) {
                Some(division) => Templates::of_slice(shape, chunk, division).memory(&PARTS),
                None => Templates::new(shape, chunk, *overlap, *runs, &buckets).memory(&PARTS),
            }
        })
    }

    /// The pass that leaves a chunk's gradients to be reduced part by part, on the slowest of a set of ranks; in buckets of
    /// `least` parameters, or (`None`) in the parts that it scatters.
    pub(super) fn in_parts(
        &mut self,
        world: World<'_>,
        division: usize,
        set: u32,
        (chunk, action, least): (&Chunk, Action, Option<u64>),
    ) -> Arc<InParts> {
        let Division { layout, overlap, prices, in_parts, .. } = &mut self.divisions[division];
        let key = (chunk_key(world, prices, set, chunk), action, least);
        if let Some(found) = in_parts.get(&key) {
            return Arc::clone(found);
        }
        let shape = Shape { model: world.model, workload: world.workload, layout };
        let buckets = least.map(|least| buckets(shape, chunk, least)).unwrap_or_default();
        let ops = pass_in_buckets(shape, chunk, *overlap, action, &buckets);
        let pricing = Pricing { world, prices, chunk, algorithm: layout.collective };
        let slowing = |lane: &Lane| world.cost.slowing(lane.kind);
        let (lane, times) = self.lanes[set as usize]
            .iter()
            .map(|lane| (lane, pricing.times(&mut self.exchanges, &ops, lane)))
            .max_by_key(|(lane, times)| op_ends(&ops, slowing(lane), |place, _| times[place]).1)
            .expect("a position has devices");
        if in_parts.len() >= KEPT_PRICES {
            in_parts.clear();
        }
        let found = Arc::new(InParts::new(&ops, times, slowing(lane), &buckets));
        Arc::clone(in_parts.entry(key).or_insert(found))
    }

    /// The passes of a chunk on a set of ranks.
    pub(super) fn passes(&mut self, world: World<'_>, division: usize, set: u32, chunk: &Chunk) -> [PassCost; 4] {
        let Division { layout, overlap, runs, prices, chunks, .. } = &mut self.divisions[division];
        let key = chunk_key(world, prices, set, chunk);
        if let Some(passes) = chunks.get(&key) {
            return *passes;
        }
        let shape = Shape { model: world.model, workload: world.workload, layout };
        let mut passes = [PassCost::default(); 4];
        let slice = slice_of(layout, chunk);
        for (place, action) in crate::passes::ACTIONS.into_iter().enumerate() {
            let ops = match slice {
                Some(division) => slice_ops(division, Work::OF_SLICE[place]),
                None if runs.has(action) => pass_ops(shape, chunk, *overlap, action),
                None => continue,
            };
            let pricing = Pricing { world, prices, chunk, algorithm: layout.collective };
            // The slowest lane sets the pace.
            let (time, spent, basis) = self.lanes[set as usize]
                .iter()
                .map(|lane| pricing.pass(&mut self.exchanges, &ops, lane))
                .max()
                .expect("a position has devices");
            passes[place] = PassCost { time, spent, basis };
        }
        if chunks.len() >= KEPT_PRICES {
            chunks.clear();
        }
        chunks.insert(key, passes);
        passes
    }
}

fn chunk_key(world: World<'_>, prices: &Prices, set: u32, chunk: &Chunk) -> ChunkKey {
    let first = if world.model.variants.pattern.is_empty() { 0 } else { chunk.first_layer };
    let given = if prices.are_given() { chunk.stage.raw() } else { 0 };
    let (recompute, layers) = (chunk.recompute, chunk.recomputed_layers);
    (set, given, first, chunk.layers, chunk.embedding, chunk.head, recompute, layers)
}

/// How the vocabulary is divided of which a chunk is a slice; `None` if it is none.
fn slice_of(layout: &Layout, chunk: &Chunk) -> Option<VocabularyDivision> {
    let division = layout.sharing.vocabulary;
    (!division.is_ends() && chunk.embedding && chunk.head).then_some(division)
}

/// Whether a pass may exchange along an axis.
const fn is_of_passes(axis: Axis, zero: ZeroStage) -> bool {
    match axis {
        Axis::Tensor | Axis::Context | Axis::Expert | Axis::ExpertTensor => true,
        Axis::Shard | Axis::Replica | Axis::ExpertReplica => is_scattered(zero),
        Axis::Data | Axis::Pipeline | Axis::Embedding | Axis::Model => false,
    }
}

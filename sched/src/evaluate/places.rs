//! Where the groups of each pipeline position lie: all that prices of its exchanges depend on.
//!
//! Ranks repeat themselves. On nodes of one kind, without a placement, a group that begins some whole nodes (whole leaf
//! switches, where there are any) after another lies as that one does. So of each axis only the first members within one
//! such [period](Period) are looked at, and of positions only those that begin differently within it.

use cost::GroupPlace;
use ir::program::Layout;
use ir::{Axis, Cluster, DeviceId, DeviceKindId, Plan, Rank};

use super::prepared::World;
use crate::axes::{self, AxisGroups, Family};

/// Places of groups along each axis, by the index of the axis.
pub(super) type ByAxis = [Option<GroupPlace>; Axis::ALL.len()];

/// A rank of a position, as far as prices can tell it from others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Lane {
    pub(super) kind: DeviceKindId,
    /// A device of such a rank.
    pub(super) device: DeviceId,
    pub(super) places: ByAxis,
}

/// Distinct places of one position's groups and devices.
#[derive(Clone, Debug, Default)]
struct Position {
    lanes: Vec<Lane>,
    /// What tells positions apart: those of one number have lanes of the same prices.
    like: u32,
    /// By axis: distinct places of its groups.
    of_axis: [Vec<GroupPlace>; Axis::ALL.len()],
    /// The first rank whose device has the least memory: its replica and its index in its tensor group.
    smallest: (u32, u32),
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Places {
    distinct: Vec<Position>,
    /// Of each position, which of those it is.
    positions: Vec<u32>,
    model: Vec<GroupPlace>,
    /// Distinct places of groups along all positions, where there are any.
    pipeline: Vec<GroupPlace>,
    /// After how many ranks they repeat themselves.
    period: Period,
}

/// After how many devices they repeat themselves: nodes of one kind, whole leaf switches; `None` where they do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Period(Option<u32>);

impl Period {
    fn of(cluster: &Cluster, plan: &Plan) -> Self {
        let mut groups = cluster.groups.iter().filter(|group| group.count > 0);
        let (Some(group), None, true) = (groups.next(), groups.next(), plan.placement.is_empty()) else {
            return Self(None);
        };
        let node = u32::try_from(cluster.node_kind(group.kind).devices.len()).ok();
        Self(node.and_then(|node| node.checked_mul(cluster.fabric.leaf_nodes.max(1))).filter(|period| *period > 0))
    }
    /// What tells a rank's place from others'.
    pub(super) fn residue(self, rank: u32) -> u32 {
        self.0.map_or(rank, |period| rank % period)
    }
    /// So many of `ranks` ranks in a row show all there is to see of each.
    pub(super) fn shown(self, ranks: u32) -> u32 {
        self.0.map_or(ranks, |period| ranks.min(period))
    }
    /// The same for ranks of a position of `wide` and the groups that they are in.
    fn shown_with(self, wide: u32, axes: &[(Axis, Family)]) -> u32 {
        let Some(period) = self.0 else { return wide };
        let mut least = u64::from(period);
        for (_, family) in axes.iter().filter(|(axis, _)| !crosses_positions(*axis)) {
            let span = family.span();
            // A group that fills the position is known by its first member, which lies before one stride.
            let own = if span == wide { u64::from(family.stride()) } else { u64::from(span) };
            least = least / gcd(least, own) * own;
            if least >= u64::from(wide) {
                return wide;
            }
        }
        u32::try_from(least).map_or(wide, |least| least.min(wide))
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// No group.
const NONE: u32 = u32::MAX;

/// What tells a rank apart: numbers of the places of its groups, by axis, and of its device's kind.
type LaneKey = [u32; Axis::ALL.len() + 1];

/// Places as they are found, each once.
struct Finder<'a> {
    world: World<'a>,
    plan: &'a Plan,
    period: Period,
    /// Ranks of a position.
    wide: u32,
    /// Replicas whose ranks are meant; none if all are. Ranks of one replica of a position.
    replicas: &'a [u32],
    one: u32,
    tensor: u32,
    axes: Vec<(Axis, Family)>,
    /// By axis: places of all positions, each once.
    known: [Vec<GroupPlace>; Axis::ALL.len()],
    /// By number of axis: classes of groups by the residue of their first member.
    classes: Vec<Vec<u32>>,
    members: Vec<DeviceId>,
}

impl Places {
    /// Of some replicas, in order; of none named, of all.
    pub(super) fn new(world: World<'_>, plan: &Plan, layout: &Layout, replicas: &[u32]) -> Self {
        if layout.has_unlike_tensors() {
            return Self::of_unlike(world, plan, layout, replicas);
        }
        let wide = layout.per_position();
        let period = Period::of(world.cost.cluster(), plan);
        let axes = axes::families(layout, world.model.variants.experts.is_some(), None);
        let ranks = period.shown(wide * layout.pipeline) as usize;
        let mut finder = Finder {
            world,
            plan,
            period,
            wide,
            replicas,
            one: wide / layout.data,
            tensor: layout.tensor,
            classes: vec![vec![NONE; ranks]; axes.len()],
            axes,
            known: std::array::from_fn(|_| Vec::new()),
            members: Vec::new(),
        };
        let shown = if replicas.is_empty() { period.shown_with(wide, &finder.axes) } else { wide };
        let (mut distinct, mut sets) = (Vec::<Position>::new(), Vec::<Vec<LaneKey>>::new());
        let mut residues = Vec::new();
        let mut positions = Vec::with_capacity(layout.pipeline as usize);
        for number in 0..layout.pipeline {
            let residue = period.residue(number * wide);
            let at = residues.iter().position(|known| *known == residue).unwrap_or_else(|| {
                residues.push(residue);
                let (mut position, keys) = finder.position(number * wide, shown);
                let like = sets.iter().position(|set| *set == keys).unwrap_or_else(|| {
                    sets.push(keys);
                    sets.len() - 1
                });
                position.like = count(like);
                distinct.push(position);
                distinct.len() - 1
            });
            positions.push(count(at));
        }
        finder.over_model(layout);
        let model = std::mem::take(&mut finder.known[Axis::Model as usize]);
        let pipeline = std::mem::take(&mut finder.known[Axis::Pipeline as usize]);
        Self { distinct, positions, model, pipeline, period }
    }

    /// Where positions differ in their tensor degree: every rank is looked at.
    fn of_unlike(world: World<'_>, plan: &Plan, layout: &Layout, replicas: &[u32]) -> Self {
        let cluster = world.cost.cluster();
        let mut known: [Vec<GroupPlace>; Axis::ALL.len()] = std::array::from_fn(|_| Vec::new());
        let mut classes = vec![[NONE; Axis::ALL.len()]; layout.world() as usize];
        for AxisGroups { axis, family, firsts } in axes::groups(layout, false, None) {
            for first in firsts {
                let devices = family.members(first).map(|rank| plan.device(Rank::new(rank))).collect::<Vec<_>>();
                let place = GroupPlace::with_siblings(cluster, &devices);
                let class = distinct(world, &mut known[axis as usize], place);
                family.members(first).for_each(|rank| classes[rank as usize][axis as usize] = class);
            }
        }
        let memory = |kind: DeviceKindId| cluster.device_kind(kind).memory;
        let mut positions = Vec::with_capacity(layout.pipeline as usize);
        for (number, tensor) in (0u32..).zip(&layout.tensors) {
            let mut position = Position { like: number, ..Position::default() };
            let (mut keys, mut least) = (Vec::<LaneKey>::new(), None);
            let ranks = (0..layout.data).flat_map(|replica| (0..*tensor).map(move |index| (replica, index)));
            for (replica, index) in ranks {
                let rank = plan.rank(number, replica, index);
                let classes = classes[rank.index()];
                for axis in Axis::ALL.into_iter().filter(|axis| !crosses_positions(*axis)) {
                    if let Some(place) = known[axis as usize].get(classes[axis as usize] as usize) {
                        distinct(world, &mut position.of_axis[axis as usize], *place);
                    }
                }
                if !replicas.is_empty() && replicas.binary_search(&replica).is_err() {
                    continue;
                }
                let device = plan.device(rank);
                let kind = cluster.place(device).device_kind;
                let mut key = [kind.raw(); Axis::ALL.len() + 1];
                key[..Axis::ALL.len()].copy_from_slice(&classes);
                if !keys.contains(&key) {
                    keys.push(key);
                    let place = |axis: usize| {
                        let inside = !crosses_positions(Axis::ALL[axis]);
                        known[axis].get(classes[axis] as usize).copied().filter(|_| inside)
                    };
                    position.lanes.push(Lane { kind, device, places: std::array::from_fn(place) });
                }
                if least.is_none_or(|least| memory(kind) < memory(least)) {
                    (least, position.smallest) = (Some(kind), (replica, index));
                }
            }
            positions.push(position);
        }
        let model = std::mem::take(&mut known[Axis::Model as usize]);
        let numbers = (0..layout.pipeline).collect();
        Self { distinct: positions, positions: numbers, model, pipeline: Vec::new(), period: Period(None) }
    }

    pub(super) const fn period(&self) -> Period {
        self.period
    }

    fn at(&self, position: u32) -> &Position {
        &self.distinct[self.positions[position as usize] as usize]
    }

    /// A number that positions share whose ranks have the same prices.
    pub(super) fn like(&self, position: u32) -> u32 {
        self.at(position).like
    }

    /// Ranks of a position that prices can tell apart.
    pub(super) fn lanes(&self, position: u32) -> &[Lane] {
        &self.at(position).lanes
    }

    /// Kinds of all devices.
    pub(super) fn kinds(&self) -> Vec<DeviceKindId> {
        let mut kinds = Vec::new();
        for lane in self.distinct.iter().flat_map(|position| &position.lanes) {
            if !kinds.contains(&lane.kind) {
                kinds.push(lane.kind);
            }
        }
        kinds
    }

    /// Distinct places of a position's groups along an axis; of those that cross positions, of all together.
    pub(super) fn along(&self, axis: Axis, position: u32) -> &[GroupPlace] {
        match axis {
            Axis::Model => &self.model,
            Axis::Pipeline => &self.pipeline,
            _ => &self.at(position).of_axis[axis as usize],
        }
    }

    /// The first rank of a position whose device has the least memory: its replica and its index in its tensor group.
    pub(super) fn smallest(&self, position: u32) -> (u32, u32) {
        self.at(position).smallest
    }
}

impl Finder<'_> {
    /// The place of the group of an axis that begins with a rank, by its number among those known.
    fn class(&mut self, axis: usize, first: u32) -> u32 {
        let residue = self.period.residue(first) as usize;
        if self.classes[axis][residue] == NONE {
            let (plan, (name, family)) = (self.plan, self.axes[axis]);
            self.members.clear();
            self.members.extend(family.members(first).map(|rank| plan.device(Rank::new(rank))));
            let place = GroupPlace::with_siblings(self.world.cost.cluster(), &self.members);
            self.classes[axis][residue] = distinct(self.world, &mut self.known[name as usize], place);
        }
        self.classes[axis][residue]
    }

    /// The position whose first rank is `start`: what of its first `shown` ranks can be told apart, in order.
    fn position(&mut self, start: u32, shown: u32) -> (Position, Vec<LaneKey>) {
        let cluster = self.world.cost.cluster();
        let memory = |kind: DeviceKindId| cluster.device_kind(kind).memory;
        let mut position = Position::default();
        let mut keys: Vec<LaneKey> = Vec::new();
        let mut least = None;
        for offset in 0..shown {
            let device = self.plan.device(Rank::new(start + offset));
            let kind = cluster.place(device).device_kind;
            let mut key = [NONE; Axis::ALL.len() + 1];
            for number in 0..self.axes.len() {
                let (axis, family) = self.axes[number];
                if crosses_positions(axis) {
                    continue;
                }
                let first = family.first(offset);
                let class = self.class(number, start + first);
                key[axis as usize] = class;
                if first == offset {
                    let place = self.known[axis as usize][class as usize];
                    distinct(self.world, &mut position.of_axis[axis as usize], place);
                }
            }
            if !self.replicas.is_empty() && self.replicas.binary_search(&(offset / self.one)).is_err() {
                continue;
            }
            key[Axis::ALL.len()] = kind.raw();
            if !keys.contains(&key) {
                let place = |axis: usize| self.known[axis].get(key[axis] as usize).copied();
                position.lanes.push(Lane { kind, device, places: std::array::from_fn(place) });
                keys.push(key);
            }
            if least.is_none_or(|least| memory(kind) < memory(least)) {
                (least, position.smallest) = (Some(kind), (offset / self.tensor, offset % self.tensor));
            }
        }
        keys.sort_unstable();
        (position, keys)
    }

    /// The groups of whole models.
    fn over_model(&mut self, layout: &Layout) {
        if let Some(number) = self.axes.iter().position(|(axis, _)| *axis == Axis::Pipeline) {
            for lane in 0..self.period.shown(self.wide) {
                self.class(number, lane);
            }
        }
        let Some(number) = self.axes.iter().position(|(axis, _)| *axis == Axis::Model) else { return };
        let one = layout.tensor * layout.mesh.context;
        for replica in 0..layout.data {
            self.class(number, replica * one);
        }
        debug_assert_eq!(one * layout.data, self.wide, "replicas fill a position");
    }
}

/// Whether groups along an axis have members on several positions.
const fn crosses_positions(axis: Axis) -> bool {
    matches!(axis, Axis::Model | Axis::Pipeline)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than ranks")
}

/// The number of a place among those known; a new one if none has the same prices.
fn distinct(world: World<'_>, known: &mut Vec<GroupPlace>, place: GroupPlace) -> u32 {
    let found = known.iter().position(|other| alike(world, *other, place)).unwrap_or_else(|| {
        known.push(place);
        known.len() - 1
    });
    count(found)
}

/// Whether two groups have the same prices: places that differ at most in which of like devices comes first.
fn alike(world: World<'_>, a: GroupPlace, b: GroupPlace) -> bool {
    let cluster = world.cost.cluster();
    let home = |device: DeviceId| {
        let home = cluster.place(device);
        (home.node_kind, home.device_kind)
    };
    a.is_like(b, home)
}

//! Who exchanges with whom: the groups of each axis as arithmetic families of ranks, and how training state is divided.

use ir::program::Layout;
use ir::{Axis, ZeroStage};

/// Ranks of one group instance, as an arithmetic family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Family {
    /// Ranks of one instance: `first + i * stride + j * jump` for `i < count`, `j < jumps`, in order of `j`, then `i`.
    count: u32,
    stride: u32,
    jumps: u32,
    jump: u32,
}

impl Family {
    const fn line(count: u32, stride: u32) -> Self {
        Self { count, stride, jumps: 1, jump: 0 }
    }
    /// Members of the instance whose first member is `first`.
    pub(crate) fn members(self, first: u32) -> impl Iterator<Item = u32> {
        (0..self.jumps).flat_map(move |j| (0..self.count).map(move |i| first + i * self.stride + j * self.jump))
    }
    /// The first member of the instance that a rank of a line is in; ranks are counted from the beginning of its block.
    pub(crate) const fn first(self, rank: u32) -> u32 {
        rank - rank / self.stride % self.count * self.stride
    }
    /// Ranks from one member of a line to the next.
    pub(crate) const fn stride(self) -> u32 {
        self.stride
    }
    /// Ranks after which the instances of a line repeat themselves.
    pub(crate) const fn span(self) -> u32 {
        self.count * self.stride
    }
    /// Ranks of one instance.
    pub(crate) const fn size(self) -> u32 {
        self.count * self.jumps
    }
    /// First members of the instances of a line that divides blocks of `wide` ranks, over `blocks` blocks.
    fn firsts(self, wide: u32, blocks: u32) -> Vec<u32> {
        let span = self.count * self.stride;
        let inside = |block: u32| {
            let runs = (0..wide / span).flat_map(move |run| (0..self.stride).map(move |at| run * span + at));
            runs.map(move |at| block * wide + at)
        };
        (0..blocks).flat_map(inside).collect()
    }
}

/// The groups along one axis: their shape, and the first member of each.
#[derive(Clone, Debug)]
pub(crate) struct AxisGroups {
    pub(crate) axis: Axis,
    pub(crate) family: Family,
    pub(crate) firsts: Vec<u32>,
}

/// The axes along which a program has groups of more than one rank, and how those lie; `embedding` is the pair of positions
/// that share a tied embedding, `experts` whether the model has any.
pub(crate) fn families(layout: &Layout, experts: bool, embedding: Option<(u32, u32)>) -> Vec<(Axis, Family)> {
    let (tensor, context, pipeline) = (layout.tensor, layout.mesh.context, layout.pipeline);
    let wide = layout.per_position();
    let state = Sharding::of(layout);
    let mut found = Vec::with_capacity(Axis::ALL.len());
    let mut line = |axis, count: u32, stride: u32, wanted: bool| {
        if wanted && count > 1 {
            found.push((axis, Family::line(count, stride)));
        }
    };
    line(Axis::Tensor, tensor, 1, true);
    let (copies, apart) =
        if state.axis == Axis::Replica { (layout.replicas(), 1) } else { (state.copies, state.ranks) };
    line(Axis::Replica, copies, apart * tensor, true);
    line(Axis::Context, context, tensor, true);
    line(Axis::Shard, state.ranks, tensor, state.axis == Axis::Shard);
    line(Axis::Data, layout.data, context * tensor, state.norm_axis(layout, experts) == Some(Axis::Data));
    let mesh = layout.mesh;
    line(Axis::ExpertTensor, mesh.expert_tensor, 1, experts);
    line(Axis::Expert, mesh.expert, mesh.expert_tensor, experts);
    line(Axis::ExpertReplica, layout.expert_replicas(), mesh.expert * mesh.expert_tensor, experts);
    if let Some((a, b)) = embedding.filter(|(a, b)| a != b) {
        found.push((Axis::Embedding, Family { count: 1, stride: 1, jumps: 2, jump: a.abs_diff(b) * wide }));
    }
    if !layout.sharing.vocabulary.is_ends() && pipeline > 1 {
        found.push((Axis::Pipeline, Family { count: 1, stride: 1, jumps: pipeline, jump: wide }));
    }
    let model = Family { count: context * tensor, stride: 1, jumps: pipeline, jump: wide };
    if model.size() > 1 {
        found.push((Axis::Model, model));
    }
    found
}

/// The groups of a layout whose positions differ in their tensor degree, where ranks are numbered replica by replica:
/// those of
/// one axis position by position. Nothing is divided over context ranks or experts.
fn unlike_groups(layout: &Layout, embedding: Option<(u32, u32)>) -> Vec<AxisGroups> {
    let one = layout.tensors.iter().sum::<u32>();
    let state = Sharding::of(layout);
    let mut found = Vec::new();
    let mut add = |axis, family: Family, firsts: Vec<u32>| {
        if family.size() > 1 {
            found.push(AxisGroups { axis, family, firsts });
        }
    };
    let first = |position: u32| layout.tensors[..position as usize].iter().sum::<u32>();
    let replicas = || 0..layout.data;
    for position in 0..layout.pipeline {
        let (start, tensor) = (first(position), layout.tensor_at(position));
        add(Axis::Tensor, Family::line(tensor, 1), replicas().map(|replica| replica * one + start).collect());
        // Groups over replicas that are `apart` from each other.
        let mut over = |axis, count: u32, apart: u32| {
            let heads = replicas().filter(|replica| (replica / apart).is_multiple_of(count));
            let firsts = heads.flat_map(|replica| (0..tensor).map(move |index| replica * one + start + index));
            add(axis, Family::line(count, apart * one), firsts.collect());
        };
        let (copies, apart) = if state.axis == Axis::Replica { (layout.data, 1) } else { (state.copies, state.ranks) };
        over(Axis::Replica, copies, apart);
        if state.axis == Axis::Shard {
            over(Axis::Shard, state.ranks, 1);
        }
        if state.norm_axis(layout, false) == Some(Axis::Data) {
            over(Axis::Data, layout.data, 1);
        }
    }
    if let Some((a, b)) = embedding.filter(|(a, b)| a != b) {
        let (a, b) = (a.min(b), a.max(b));
        let family = Family { count: 1, stride: 1, jumps: 2, jump: first(b) - first(a) };
        let lanes = |replica: u32| (0..layout.tensor_at(a)).map(move |index| replica * one + first(a) + index);
        add(Axis::Embedding, family, replicas().flat_map(lanes).collect());
    }
    add(Axis::Model, Family::line(one, 1), replicas().map(|replica| replica * one).collect());
    found
}

/// The groups of a layout, each of them by its first member.
pub(crate) fn groups(layout: &Layout, experts: bool, embedding: Option<(u32, u32)>) -> Vec<AxisGroups> {
    if layout.has_unlike_tensors() {
        return unlike_groups(layout, embedding);
    }
    let wide = layout.per_position();
    let one = layout.mesh.context * layout.tensor;
    let of = |(axis, family): (Axis, Family)| {
        let firsts = match axis {
            Axis::Embedding => {
                let (a, b) = embedding.expect("a family over a tied embedding");
                (0..wide).map(|lane| a.min(b) * wide + lane).collect()
            }
            Axis::Model => (0..layout.data).map(|replica| replica * one).collect(),
            Axis::Pipeline => (0..wide).collect(),
            _ => family.firsts(wide, layout.pipeline),
        };
        AxisGroups { axis, family, firsts }
    };
    families(layout, experts, embedding).into_iter().map(of).collect()
}

/// How what is not experts' is divided over the replicas (data x context ranks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sharding {
    /// Ranks over which it is divided.
    pub(crate) ranks: u32,
    /// Groups of such ranks, which hold copies of each other's.
    pub(crate) copies: u32,
    /// The axis of those ranks: all replicas where ZeRO-1 divides over all, else [`Axis::Shard`].
    pub(crate) axis: Axis,
}

impl Sharding {
    pub(crate) fn of(layout: &Layout) -> Self {
        let ranks = layout.shard();
        let copies = layout.replicas() / ranks;
        let over_all = match layout.zero {
            ZeroStage::Zero0 => true,
            ZeroStage::Zero1 => copies == 1,
            ZeroStage::Zero2 | ZeroStage::Zero3 => false,
        };
        Self { ranks, copies, axis: if over_all { Axis::Replica } else { Axis::Shard } }
    }
    /// The axis over which squared norms of shards add up, after the ranks of one replica have added theirs; `None` where
    /// every replica knows all, or there is one. With experts that are divided over more ranks than a replica has, no
    /// replica does.
    pub(crate) fn norm_axis(self, layout: &Layout, experts: bool) -> Option<Axis> {
        let divided = layout.zero != ZeroStage::Zero0 && self.ranks > 1;
        let apart = experts && layout.experts_span_replicas();
        if !(divided || apart) || layout.data < 2 {
            None
        } else if divided && layout.mesh.context == 1 && self.copies == 1 {
            Some(self.axis)
        } else {
            Some(Axis::Data)
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::{ContextMethod, Mesh, Schedule};

    use super::*;
    use crate::testing::{plan, small_model, workload};

    /// Every rank is once in a group of each axis, and groups lie as [`ir::Plan`] numbers ranks.
    #[test]
    fn ranks_lie_as_the_plan_numbers_them() {
        let (model, work) = (small_model(4), workload(32, 8));
        let mut plan = plan(&model, &work, [4, 2, 2, 1], Schedule::OneForwardOneBackward);
        plan.mesh = Mesh { context: 2, context_method: ContextMethod::Ring, expert: 4, expert_tensor: 2 };
        plan.zero = ZeroStage::Zero3;
        plan.sharing.shard = Some(4);
        let layout = crate::layout::layout(&plan);
        let found = groups(&layout, true, Some((0, 1)));
        let members = |axis: Axis| {
            let groups = found.iter().find(|groups| groups.axis == axis).unwrap();
            groups.firsts.iter().map(|first| groups.family.members(*first).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        for groups in &found {
            let mut all = members(groups.axis).concat();
            all.sort_unstable();
            assert_eq!(all, (0..32).collect::<Vec<_>>(), "{:?}", groups.axis);
        }
        assert_eq!(members(Axis::Tensor)[1], [2, 3]);
        assert_eq!(members(Axis::Context)[1], [1, 3]);
        assert_eq!(members(Axis::Data)[1], [1, 5, 9, 13]);
        assert_eq!(members(Axis::Shard)[0], [0, 2, 4, 6]);
        assert_eq!(members(Axis::Replica)[0], [0, 8]);
        assert_eq!(members(Axis::ExpertTensor)[1], [2, 3]);
        assert_eq!(members(Axis::Expert)[1], [1, 3, 5, 7]);
        assert_eq!(members(Axis::ExpertReplica)[2], [2, 10]);
        assert_eq!(members(Axis::Embedding)[3], [3, 19]);
        assert_eq!(members(Axis::Model)[1], [4, 5, 6, 7, 20, 21, 22, 23]);
    }

    /// The same where positions differ: every rank is once in a group of each axis along which it has partners.
    #[test]
    fn ranks_of_unlike_positions_lie_as_the_plan_numbers_them() {
        let (model, work) = (small_model(4), workload(32, 8));
        for (zero, shard) in [(ZeroStage::Zero0, None), (ZeroStage::Zero1, None), (ZeroStage::Zero3, Some(2))] {
            let plan = plan(&model, &work, [4, 1, 3, 1], Schedule::OneForwardOneBackward);
            let mut plan = ir::Plan { zero, ..plan.with_tensors(&[2, 1, 4]) };
            plan.sharing.shard = shard;
            let layout = crate::layout::layout(&plan);
            let found = groups(&layout, false, None);
            let members = |axis: Axis| {
                let of_axis = found.iter().filter(|groups| groups.axis == axis);
                let each = of_axis.flat_map(|groups| groups.firsts.iter().map(|first| groups.family.members(*first)));
                each.map(Iterator::collect::<Vec<_>>).collect::<Vec<_>>()
            };
            let place = |rank: &u32| layout.place_of(ir::Rank::new(*rank));
            for axis in [Axis::Model, Axis::Tensor, Axis::Replica, Axis::Shard, Axis::Data] {
                let mut all = members(axis).concat();
                all.sort_unstable();
                let tensor = |rank: &u32| axis != Axis::Tensor || layout.tensor_at(place(rank).position) > 1;
                if !all.is_empty() {
                    assert_eq!(all, (0..28).filter(tensor).collect::<Vec<_>>(), "{axis:?}");
                }
            }
            assert!(!members(Axis::Replica).is_empty());
            assert_eq!(members(Axis::Shard).is_empty(), zero != ZeroStage::Zero3);
            for group in members(Axis::Replica).iter().chain(&members(Axis::Shard)) {
                let (first, rest) = (place(&group[0]), &group[1..]);
                let like = |rank: &u32| (place(rank).position, place(rank).tensor_index);
                assert!(rest.iter().all(|rank| like(rank) == (first.position, first.tensor_index)), "{group:?}");
            }
            assert_eq!(members(Axis::Model)[1], (7..14).collect::<Vec<_>>());
            assert_eq!(members(Axis::Tensor)[4], [3, 4, 5, 6]);
            assert_eq!(members(Axis::Tensor)[5], [10, 11, 12, 13]);
        }
    }
}

//! The price of a pass: of each of its ops, and of all of them together where some run beside others.

use cost::{Priced, Prices};
use ir::prediction::AtRisk;
use ir::program::{Chunk, Pass, UnitRange};
use ir::{Activity, Axis, CollectiveAlgorithm};

use super::places::Lane;
use super::prepared::{ByBasis, World, index};
use super::shared::Exchanges;
use super::spent::{Spent, activity_of, activity_on};
use crate::passes::{Moves, PassOp, segments};

/// What the price of a pass depends on, beside its ops and the rank.
pub(super) struct Pricing<'a> {
    pub(super) world: World<'a>,
    pub(super) prices: &'a Prices,
    pub(super) chunk: &'a Chunk,
    pub(super) algorithm: CollectiveAlgorithm,
}

impl Pricing<'_> {
    /// Length of a pass on a rank, what it is spent on, and on what the durations of its ops rest.
    pub(super) fn pass(&self, exchanges: &mut Exchanges, ops: &[PassOp], lane: &Lane) -> (u64, Spent, ByBasis) {
        let mut basis = [0; 4];
        // Of each op: what its time is, and of a compute how much of it is waiting for launches.
        let mut own = Vec::with_capacity(ops.len());
        // The compute that the op follows directly.
        let mut last = None;
        let price = |_: usize, op: PassOp| {
            let priced = self.world.relief.price(activity_of(&op), self.op(exchanges, op, lane));
            let time = self.time(op, priced, &mut last, lane);
            basis[index(priced.basis)] += time;
            own.push((activity_of(&op), self.launch(op, lane).min(time)));
            time
        };
        let found: Vec<_> = segments(ops.iter().copied(), self.world.cost.slowing(lane.kind), price).collect();
        let (mut total, mut spent) = (0, Spent::default());
        ops.iter().for_each(|op| spent.add_at_risk(self.at_risk(*op, lane)));
        for segment in found {
            total += segment.time;
            let (activity, launch) = own[segment.op];
            spent.add(activity, segment.own - launch);
            spent.add(Activity::Launch, launch);
            if let Some((stream, _)) = segment.longest {
                spent.add(activity_on(stream), segment.time - segment.own);
            }
        }
        (total, spent, basis)
    }

    /// How long each op of a pass takes on a rank, alone.
    pub(super) fn times(&self, exchanges: &mut Exchanges, ops: &[PassOp], lane: &Lane) -> Vec<u64> {
        let mut last = None;
        let time = |op: &PassOp| {
            let priced = self.world.relief.price(activity_of(op), self.op(exchanges, *op, lane));
            self.time(*op, priced, &mut last, lane)
        };
        ops.iter().map(time).collect()
    }

    /// How long an op takes alone: less what launches hide of it. `last` is the compute that it may follow directly.
    fn time(&self, op: PassOp, priced: Priced, last: &mut Option<PassOp>, lane: &Lane) -> u64 {
        let mut time = priced.duration.nanoseconds();
        if let Some((pass, units)) = followed(&op, *last) {
            let hidden = self.prices.hidden(self.chunk, pass, units, lane.kind);
            time = cost::exposed(priced, hidden).duration.nanoseconds();
        }
        if !op.is_beside() {
            *last = Some(op);
        }
        time
    }

    /// How much of an op the device waits for the host's launches.
    fn launch(&self, op: PassOp, lane: &Lane) -> u64 {
        match op {
            PassOp::Compute { pass, units } => self.prices.launch(self.chunk, pass, units, lane.kind).nanoseconds(),
            PassOp::Collective { .. } | PassOp::HostCopy { .. } => 0,
        }
    }

    /// What of an op hangs on the host.
    fn at_risk(&self, op: PassOp, lane: &Lane) -> AtRisk {
        match op {
            PassOp::Compute { pass, units } => self.prices.at_risk(self.chunk, pass, units, lane.kind),
            PassOp::Collective { .. } | PassOp::HostCopy { .. } => AtRisk::default(),
        }
    }

    fn op(&self, exchanges: &mut Exchanges, op: PassOp, lane: &Lane) -> Priced {
        match op {
            PassOp::Compute { pass, units } => self.prices.compute(self.chunk, pass, units, lane.kind),
            PassOp::HostCopy { bytes, .. } => self.world.cost.host_copy(bytes, lane.device),
            PassOp::Collective { kind, axis, bytes, .. } => {
                let place = lane.places[axis as usize].expect("a rank has a group along the axes of its passes");
                exchanges.find(self.world, self.algorithm, (axis, kind), bytes, place)
            }
        }
    }
}

/// The compute that a collective of the tensor group directly follows in its pass: [`ir::Role::followed`] of its instruction.
fn followed(op: &PassOp, last: Option<PassOp>) -> Option<(Pass, UnitRange)> {
    match (op, last) {
        (
            PassOp::Collective { axis: Axis::Tensor, moves: Moves::Activation { pass, .. }, .. },
            Some(PassOp::Compute { pass: of, units }),
        ) => (*pass == of).then_some((of, units)),
        _ => None,
    }
}

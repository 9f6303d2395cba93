//! How fast replicas get through microbatches, and the shares by which unlike ones end together.

use ir::{Plan, Schedule};
use rustc_hash::FxHashMap;

use super::closed_form::ClosedForm;
use super::company::is_runnable;
use super::{Evaluator, memory_problems};
use crate::layout::{chunks, layout};
use crate::legality;
use crate::lowering::Reductions;
use crate::shares::{Pace, alone, balanced, company};

/// The most microbatches of all replicas together that are shared out.
const MOST: u64 = 1 << 20;

impl ClosedForm<'_> {
    /// How fast the replicas of a plan get through microbatches: `fixed + each n` for `n` of them, from the ends of two
    /// numbers between which the pace is steady, and how many fit into memory. Replicas on like devices that lie alike are
    /// one. `None` for a plan that is not legal, but for its batch.
    #[must_use]
    pub fn paces(&mut self, plan: &Plan) -> Option<Vec<Pace>> {
        let world = self.world();
        let problems = legality::legal(plan, world.model, world.workload, world.cost.cluster());
        // An order that is written out is of its own number of microbatches.
        let written = matches!(plan.schedule, Schedule::Explicit(_));
        if written || problems.iter().any(|problem| problem.subject != "training.global_batch") {
            return None;
        }
        let total = u64::from(world.workload.global_batch / plan.microbatch_size).min(MOST);
        let most = u32::try_from(total).expect("limited above").max(1);
        let chunks = chunks(plan);
        let layout = layout(plan);
        let reductions = Reductions::new(world.model, world.workload, &layout, plan, &chunks);
        // Past the ramp of the pipeline, and a number that every schedule exists for.
        let steady = plan.pipeline() * plan.chunks_per_stage().max(2);
        let mut paces = Vec::new();
        for replicas in self.like_replicas(plan) {
            let number = self.prepare(plan, &replicas);
            let mut end = |n: u32| {
                let passes = self.passes(std::borrow::Cow::Owned(alone(plan, n)), number, &reductions, &chunks).ok()?;
                passes.ends.row.iter().max().copied()
            };
            let (near, far) = (end(steady)?, end(2 * steady)?);
            let each = ((far - near) / u64::from(steady)).max(1);
            let fixed = near.saturating_sub(each * u64::from(steady));
            // Memory grows with the microbatches in flight, of which more never need less.
            let (mut fits, mut over) = (0, most + 1);
            while over - fits > 1 {
                let middle = fits + (over - fits) / 2;
                // Only GPipe has more in flight the more there are, once a pipeline is full.
                let grows = plan.schedule == Schedule::GPipe;
                let held = alone(plan, if grows { middle } else { middle.min(2 * steady) });
                let runs = !is_runnable(plan, held.microbatches) || self.excess_of(&held, number, &chunks).is_none();
                if runs {
                    fits = middle;
                } else {
                    over = middle;
                }
            }
            paces.push(Pace { replicas, fixed, each, most: fits });
        }
        Some(paces)
    }

    /// Replicas whose devices are of the same kinds in the same order and lie alike, each kind once.
    fn like_replicas(&self, plan: &Plan) -> Vec<Vec<u32>> {
        let cluster = self.world().cost.cluster();
        let context = plan.mesh.context;
        let mut known: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
        let mut found: Vec<Vec<u32>> = Vec::new();
        for replica in 0..plan.data {
            let ranks = (0..plan.pipeline()).flat_map(|position| {
                let of = (replica * context..(replica + 1) * context)
                    .flat_map(move |each| (0..plan.tensor_at(position)).map(move |index| (each, index)));
                of.map(move |(each, index)| plan.device(plan.rank(position, each, index)))
            });
            let mut before = None;
            let signature = ranks.flat_map(|device| {
                let place = cluster.place(device);
                let path = before.replace(device).map_or(u32::MAX, |before| cluster.path(before, device) as u32);
                [place.node_kind.raw(), place.device_kind.raw(), path]
            });
            let next = found.len();
            let at = *known.entry(signature.collect()).or_insert(next);
            if at == next {
                found.push(Vec::new());
            }
            found[at].push(replica);
        }
        found
    }

    /// See [`Evaluator::share_out`].
    pub(super) fn shared_out(&mut self, plan: &Plan) -> Option<Plan> {
        let world = self.world();
        let batch = world.workload.global_batch;
        if !batch.is_multiple_of(plan.microbatch_size.max(1)) || u64::from(batch / plan.microbatch_size) > MOST {
            return None;
        }
        let microbatches = batch / plan.microbatch_size;
        let divides = microbatches.is_multiple_of(plan.data.max(1));
        if plan.data < 2 || plan.data > microbatches || divides && self.like_replicas_are_one(plan) {
            return None;
        }
        let equal = divides.then(|| plan.clone().with_shares(vec![microbatches / plan.data]));
        let equal = equal.and_then(|equal| self.evaluate(&equal).ok());
        let fitting = |found: &ir::Prediction| memory_problems(found).is_empty();
        let mut best = equal.filter(fitting).map(|found| (found.iteration, None));
        let paces = self.paces(plan)?;
        let unit = if plan.chunks_per_stage() > 1 { plan.pipeline() } else { 1 };
        let mut tries = balanced(&paces, microbatches, unit).into_iter().collect::<Vec<_>>();
        if company(&layout(plan), world.model.variants.experts.is_some()) > 1 {
            // Who has no more to do waits for the others, so that to leave out the slow ones may be faster.
            tries.extend(leaving_out(&paces, microbatches, unit));
        }
        for counts in tries {
            let shared = plan.clone().with_shares(counts);
            let Some(found) = self.evaluate(&shared).ok().filter(fitting) else { continue };
            if best.as_ref().is_none_or(|(least, _)| found.iteration < *least) {
                best = Some((found.iteration, Some(shared)));
            }
        }
        best.and_then(|(_, plan)| plan)
    }

    fn like_replicas_are_one(&self, plan: &Plan) -> bool {
        let devices = self.world().cost.cluster().devices();
        if plan.placement.is_empty() && plan.world() > devices
            || plan.placement.iter().any(|d| u64::from(d.raw()) >= devices)
        {
            return true;
        }
        self.like_replicas(plan).len() == 1
    }
}

/// Shares that leave the slowest replicas as little as there can be.
fn leaving_out(paces: &[Pace], microbatches: u32, unit: u32) -> Option<Vec<u32>> {
    let slowest = paces.iter().map(|pace| pace.each).max()?;
    let paces = paces.iter().cloned().map(|pace| match pace.each == slowest {
        true => Pace { most: pace.most.min(unit), ..pace },
        false => pace,
    });
    balanced(&paces.collect::<Vec<_>>(), microbatches, unit)
}

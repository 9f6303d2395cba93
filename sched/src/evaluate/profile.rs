//! Profiles by which orders are searched.

use ir::grid::Action;
use ir::{Plan, Schedule, Vee, ZeroBubble};

use super::closed_form::ClosedForm;
use super::prepared::Prepared;
use crate::layout::chunks;
use crate::legality;

impl ClosedForm<'_> {
    /// The plan with the profile by which its order is searched: mean times of passes over positions and of
    /// messages between them, in microseconds, and how much of a microbatch's activations waits for weight passes (Qi et
    /// al. 2024 measure the same before they search). A plan with another schedule or a profile of its own stays as it is.
    #[must_use]
    pub fn profiled(&mut self, plan: &Plan) -> Plan {
        let world = self.world();
        let own = match plan.schedule {
            Schedule::ZeroBubble(searched) => searched != ZeroBubble::unprofiled(searched.memory),
            Schedule::Vee(searched) => searched != Vee::unprofiled(searched.memory),
            _ => true,
        };
        if own || !legality::legal(plan, world.model, world.workload, world.cost.cluster()).is_empty() {
            return plan.clone();
        }
        let shared = self.shared();
        let mut prepared = Prepared::new(shared, world, plan, &[]);
        let chunks = chunks(plan);
        let costs = chunks.iter().map(|chunk| prepared.chunk(shared, world, chunk)).collect::<Vec<_>>();
        let count = costs.len() as u64;
        let micro = |sum: u64, of: u64| u32::try_from(sum / (1000 * of.max(1))).unwrap_or(u32::MAX);
        let mean =
            |action: Action| micro(costs.iter().map(|cost| cost.passes[action as usize].time).sum(), count).max(1);
        let left = |action: Action| -> i64 { costs.iter().flat_map(|cost| cost.sizes.passes[action as usize].1).sum() };
        let (all, waits) = (left(Action::Forward), left(Action::Forward) + left(Action::BackwardInput));
        let kept = if all > 0 { (waits.max(0) * 1000).div_euclid(all).min(1000) } else { 1000 };
        let times = [Action::Forward, Action::BackwardInput, Action::BackwardWeight].map(mean);
        let edges = 0..plan.pipeline().saturating_sub(1);
        let sent: u64 = edges.map(|edge| prepared.message(world, plan, edge, edge + 1).duration.nanoseconds()).sum();
        let message = micro(sent, u64::from(plan.pipeline()) - 1);
        let [forward, backward_input, backward_weight] = times;
        let schedule = match plan.schedule {
            Schedule::ZeroBubble(ZeroBubble { memory, .. }) => {
                let kept = u32::try_from(kept).expect("at most 1000");
                Schedule::ZeroBubble(ZeroBubble { memory, forward, backward_input, backward_weight, message, kept })
            }
            Schedule::Vee(Vee { memory, .. }) => {
                Schedule::Vee(Vee { memory, forward, backward_input, backward_weight, message })
            }
            ref other => other.clone(),
        };
        Plan { schedule, ..plan.clone() }
    }
}

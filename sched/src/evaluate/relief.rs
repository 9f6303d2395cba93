//! What an evaluation leaves out, so that it can be said what each part of an iteration would give back.

use cost::Priced;
use ir::program::Chunk;
use ir::{Activity, SimDuration};

use super::prepared::ChunkCost;
use super::recurrence::Ends;
use super::spent::Spent;

/// What costs nothing in an evaluation; everything else is priced as ever and moves into its place, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Relief {
    /// Nothing does.
    #[default]
    Nothing,
    /// What is put down to an activity: its operations take a nanosecond each (a price is never zero). Without the bubble
    /// pipeline positions never wait for each other, as over endlessly many microbatches. The launch of kernels is the cost
    /// model's: it goes with the stack's `launch_us`.
    Without(Activity),
    /// Each pass takes the mean of all chunks' instead of its own: stages are in balance.
    Balanced,
}

impl Relief {
    /// Whether an activity costs nothing.
    pub(super) fn frees(self, activity: Activity) -> bool {
        self == Self::Without(activity)
    }
    /// A price of an operation that is put down to an activity.
    pub(super) fn price(self, activity: Activity, priced: Priced) -> Priced {
        if self.frees(activity) { Priced { duration: SimDuration::from_nanoseconds(1), ..priced } } else { priced }
    }
    /// Chunks as they count: in balance if that is asked.
    pub(super) fn balance(self, costs: &mut [ChunkCost]) {
        if self != Self::Balanced || costs.is_empty() {
            return;
        }
        for action in 0..costs[0].passes.len() {
            let mut mean = Spent::default();
            for cost in costs.iter() {
                mean.add_times(&cost.passes[action].spent, 1);
            }
            mean.divide(costs.len() as u64);
            for cost in costs.iter_mut() {
                cost.passes[action].spent = mean;
                cost.passes[action].time = mean.total();
            }
        }
    }
    /// Ends as they count: each position's passes one after the other if nobody waits.
    pub(super) fn ends(self, ends: &mut Ends, work: &[u64], chunks: &[Chunk]) {
        if !self.frees(Activity::Bubble) {
            return;
        }
        ends.first_start.fill(0);
        ends.row.copy_from_slice(work);
        for (end, chunk) in ends.chunk.iter_mut().zip(chunks) {
            *end = (*end).min(work[chunk.stage.index()]);
        }
        ends.last_message = 0;
    }
}

#[cfg(test)]
mod tests {
    use ir::{Activity, Schedule};

    use super::Relief;
    use crate::evaluate::{ClosedForm, Evaluator as _};
    use crate::testing::{analytic, dgx, gpt3, plan, workload};

    #[test]
    fn an_iteration_is_never_longer_for_what_costs_nothing() {
        let (model, cost, work) = (gpt3(), analytic(dgx(16)), workload(2048, 64));
        let mut shrunk = 0;
        for degrees in [[2, 8, 8, 1], [2, 8, 8, 2], [16, 8, 1, 1], [1, 8, 16, 1]] {
            let plan = plan(&model, &work, degrees, Schedule::OneForwardOneBackward);
            let of = |relief| {
                let prediction = ClosedForm::new(&model, &work, &cost).relieved(relief).evaluate(&plan);
                prediction.unwrap_or_else(|no| panic!("{degrees:?} {relief:?}: {:?}", no.reasons))
            };
            let whole = of(Relief::Nothing);
            assert_eq!(whole, ClosedForm::new(&model, &work, &cost).evaluate(&plan).unwrap());
            for activity in Activity::ALL {
                let relieved = of(Relief::Without(activity));
                assert_eq!(relieved.breakdown.total(), relieved.iteration, "{degrees:?} {activity:?}");
                assert!(relieved.iteration <= whole.iteration, "{degrees:?} {activity:?}");
                let part = whole.breakdown.of(activity).seconds() / whole.iteration.seconds();
                if part > 0.01 {
                    assert!(relieved.iteration < whole.iteration, "{degrees:?} {activity:?}: {part}");
                    shrunk += 1;
                }
            }
            let balanced = of(Relief::Balanced);
            assert_eq!(balanced.breakdown.total(), balanced.iteration, "{degrees:?}");
            if plan.pipeline() == 1 {
                assert_eq!(balanced.iteration, whole.iteration);
            } else {
                assert!(balanced.iteration < whole.iteration, "embedding and head are not spread: {degrees:?}");
            }
        }
        assert!(shrunk >= 10, "{shrunk}");
    }
}

//! Cases whose stages have unlike tensor degrees, over what a plan may say beside them.

use ir::Schedule;

use crate::clusters;
use crate::dice::Dice;
use crate::swarm::Case;

impl Case {
    /// A [`trained`](Self::trained) case with another tensor degree on some stage, at most `ranks` ranks in one domain,
    /// that
    /// the executor carries out.
    #[must_use]
    pub fn unlike(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x0dd5_7a6e);
        loop {
            let Some(mut case) = Self::trained(dice.next(), ranks).with_unlike_tensors(&mut dice, ranks) else {
                continue;
            };
            case.cluster = clusters::cpu(u32::try_from(case.plan.world()).expect("few ranks"));
            if case.is_legal() && case.is_carried_out() {
                return case;
            }
        }
    }

    /// A [`spread`](Self::spread) case with another tensor degree on some stage, at most `ranks` ranks.
    #[must_use]
    pub fn unlike_spread(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x5b4e_0dd5);
        loop {
            let Some(mut case) = Self::spread(dice.next(), ranks).with_unlike_tensors(&mut dice, ranks) else {
                continue;
            };
            case.cluster = clusters::random(&mut dice, u32::try_from(case.plan.world()).expect("few ranks"));
            if case.is_legal() {
                return case.shared_out(seed);
            }
        }
    }

    /// The same with degrees drawn for its stages, and matrices and tokens that divide by the most; `None` if that
    /// cannot be.
    fn with_unlike_tensors(mut self, dice: &mut Dice, ranks: u32) -> Option<Self> {
        let pipeline = self.plan.pipeline();
        if pipeline < 2 || self.plan.tensor > 2 {
            return None;
        }
        let degrees = (0..pipeline).map(|_| dice.pick(&[1, 1, 2, 2, 4])).collect::<Vec<_>>();
        self.plan = self.plan.with_tensors(&degrees);
        if !self.plan.has_unlike_tensors() || self.plan.world() > u64::from(ranks) {
            return None;
        }
        let most = self.plan.tensor;
        self.plan.placement.clear();
        self.plan.sequence_parallel = dice.chance(50);
        self.plan.schedule = match self.plan.schedule {
            Schedule::Vee(_) | Schedule::DualPipeV => Schedule::OneForwardOneBackward,
            schedule => schedule,
        };
        self.model.kv_heads = most * dice.pick(&[1, 2]);
        self.model.heads = self.model.kv_heads * dice.pick(&[1, 2]);
        self.model.ffn = most * dice.within(2, 5);
        if self.plan.sequence_parallel {
            self.workload.sequence_length = self.workload.sequence_length.next_multiple_of(most);
        }
        Some(self)
    }

    /// Whether the executor refuses nothing of it: of variants of a model that were drawn for one tensor rank it may.
    fn is_carried_out(&self) -> bool {
        let text = exec::data::generate(5, 4_000);
        let backend = exec::runtime::CpuBackend::new(self.cluster.clone(), text, exec::runtime::CpuOptions::default());
        ir::Backend::unsupported(&backend, &self.program(sched::Folding::Folded)).is_empty()
    }
}

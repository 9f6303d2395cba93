//! Predictions of cases by the ordinary path: cost model, closed form, prediction.

use std::sync::Arc;

use cost::{Calibration, CostModel, Stack, memory};
use formats::measured_runs::{Dispatcher, MemoryKind};
use ir::{Prediction, Recompute, StageMemory};
use sched::{ClosedForm, Evaluator as _};

use super::case::Case;
use super::recipe::ResolvedRun;

/// Of the time by which experts hold up a pass, what is left where each takes a fixed number of tokens: the host needs no
/// counts and does not wait for them, and only the bookkeeping is left. More of it (0.65) makes the 25.09 rows of
/// nvidia_megatron_bridge with many small microbatches 40 % too slow, and those with large ones as much too fast.
const FIXED_CAPACITY_SYNC: f64 = 0.2;
/// The same where HybridEP dispatches, whose kernels sort tokens on the device: 1.9 of 3.1 ms on H100, the same in three
/// releases of nvidia_megatron_bridge.
const HYBRID_DISPATCH_SYNC: f64 = 0.6;

/// A row that can be predicted.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The table, by its place in the list.
    pub(crate) table: usize,
    /// The row, by its place in the table.
    pub(crate) row: usize,
    /// The run with nothing left open.
    pub(crate) run: ResolvedRun,
    /// What is simulated.
    pub(crate) case: Case,
    /// The calibration of its device.
    pub(crate) calibration: Arc<Calibration>,
}

/// What was predicted for a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Predicted {
    /// Seconds of an iteration, and their 90 % interval.
    pub(crate) seconds: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Peak memory in bytes, of the kind that the row counts.
    pub(crate) bytes: f64,
    /// Whether it fits into the device.
    pub(crate) fits: bool,
}

impl Subject {
    /// The measured seconds.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.run.row.measured.step.map(|step| step.seconds)
    }
    /// The prediction under a stack.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn predict(&self, stack: &Stack) -> Result<Predicted, String> {
        Ok(self.told(&self.prediction(stack)?))
    }

    /// The whole prediction under a stack.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn prediction(&self, stack: &Stack) -> Result<Prediction, String> {
        let Case { model, workload, plan, .. } = &self.case;
        let cost = self.cost(stack)?;
        let mut closed = ClosedForm::new(model, workload, &cost);
        let plan = closed.profiled(plan);
        closed.evaluate(&plan).map_err(|infeasible| first(&infeasible.reasons))
    }

    /// The prices of its cluster under a stack.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(crate) fn cost(&self, stack: &Stack) -> Result<CostModel, String> {
        let cost = CostModel::new(self.case.cluster.clone(), vec![Calibration::clone(&self.calibration)]);
        Ok(cost.map_err(|problems| first(&problems))?.with_stack(self.with_attention(stack)))
    }

    /// FlashAttention of the first version, and kernels of its time, take 1/0.62 of the second's time (Dao 2023).
    fn with_attention(&self, stack: &Stack) -> Stack {
        let mut stack = stack.clone();
        // Experts of a fixed capacity need no counts, and so no wait for them, but in their bookkeeping.
        let flags = &self.run.row.software.flags;
        if flags.dropless == Some(false) {
            stack.constants.expert_sync_us *= FIXED_CAPACITY_SYNC;
        } else if flags.dispatcher == Some(Dispatcher::HybridEp) {
            stack.constants.expert_sync_us *= HYBRID_DISPATCH_SYNC;
        }
        if self.run.switches.flash_version == 1 {
            stack.constants.attention_factor /= 0.62;
        }
        stack
    }

    fn told(&self, prediction: &Prediction) -> Predicted {
        let seconds = prediction.iteration.seconds();
        let (low, high) = prediction.interval.map_or((seconds, seconds), |(low, high)| (low.seconds(), high.seconds()));
        let device = &self.case.cluster.device_kinds[0];
        let kind = match self.run.memory.kind {
            MemoryKind::Allocated => memory::MemoryKind::Allocated,
            MemoryKind::Reserved => memory::MemoryKind::Reserved,
            MemoryKind::Driver => memory::MemoryKind::Driver,
        };
        let figures = memory::Figures::of(device, &self.case.workload.recipe);
        let shown = |stage: &StageMemory| {
            let (resident, passing) = memory::divided(stage);
            figures.shown(kind, resident, passing).get() as f64
        };
        Predicted {
            seconds,
            low,
            high,
            bytes: prediction.memory.iter().map(shown).fold(0.0, f64::max),
            fits: prediction.memory.iter().all(|stage| stage.peak <= stage.capacity),
        }
    }

    /// Seconds at the device's peak with the bubble of 1F1B: what one constant is multiplied with in the baseline
    /// `constant FLOPs / (devices peak) (1 + (p-1)/(v m))`, where the hardware's FLOPs count recomputation and every score.
    pub(crate) fn at_peak(&self) -> Option<f64> {
        let Case { cluster, model, workload, plan } = &self.case;
        let device = &cluster.device_kinds[0];
        let peak = device.peak(workload.precision)?.get();
        let full = plan.stages.iter().all(|stage| stage.recompute == Recompute::Full);
        let recomputed = if full { model.layers } else { 0 };
        let sequence = u64::from(workload.sequence_length);
        let scores = ir::counts::CountedScores::Whole;
        let flops = ir::counts::hardware_flops_per_token(model, sequence, recomputed, scores).get() as f64;
        let tokens = workload.tokens_per_iteration() as f64;
        let (p, v, m) = (plan.pipeline(), plan.chunks_per_stage().max(1), plan.microbatches.max(1));
        let bubble = f64::from(p - 1) / (f64::from(v) * f64::from(m));
        Some(flops * tokens / (peak * plan.world() as f64) * (1.0 + bubble))
    }
}

fn first(problems: &[ir::Problem]) -> String {
    problems.first().map_or_else(|| "no reason".to_owned(), ToString::to_string)
}

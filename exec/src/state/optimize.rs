//! The end of an iteration: norm, clipping, AdamW.

use crate::kernels::elementwise::scale;
use crate::kernels::optimizer::{AdamW, adamw_step, clip_factor, squared_norm};

use super::parameters::{Parameters, Stepped};
use super::{NotFinite, RankState, layer_of};

impl RankState {
    /// Sums the squares of the gradients that this rank answers for, so that the sum over the ranks of a replica (and
    /// under ZeRO-1 over replicas) counts each parameter once: what all tensor ranks hold on tensor index 0 only, a
    /// tied head where the embedding is, experts on the first of the ranks that hold them, and under ZeRO-1 this rank's part
    /// only. The result is held for the
    /// [`Payload::GradientNorm`](ir::program::Payload::GradientNorm) collective.
    ///
    /// # Errors
    /// If it is not finite.
    pub fn gradient_norm(&mut self) -> Result<(), NotFinite> {
        let sum = |parameters: &Parameters| {
            let counted = parameters.stepped().filter(|run| run.counted);
            counted.map(|run| squared_norm(&parameters.gradients[run.range])).sum::<f64>()
        };
        self.squared_norm = self.all_parameters().map(sum).sum();
        if self.squared_norm.is_finite() { Ok(()) } else { Err(self.explain_gradient()) }
    }

    /// Clips the gradients by their global norm, steps the parameters that this rank answers for (all, or under ZeRO-1
    /// its part, after which the parameters are to be gathered) and clears all gradients.
    ///
    /// # Errors
    /// If the norm is not finite; nothing is then stepped.
    pub fn optimizer(&mut self) -> Result<(), NotFinite> {
        if !self.squared_norm.is_finite() {
            return Err(self.explain_gradient());
        }
        let workload = &self.program.workload.optimizer;
        let step = self.iteration + 1;
        let warmup = u64::from(workload.warmup_iterations).max(1);
        let options = AdamW {
            learning_rate: workload.learning_rate * (step.min(warmup) as f64 / warmup as f64),
            beta1: workload.beta1,
            beta2: workload.beta2,
            epsilon: workload.epsilon,
            weight_decay: workload.weight_decay,
        };
        let factor = workload.clip_norm.map_or(1.0, |largest| clip_factor(self.squared_norm, largest));
        for parameters in self.all_parameters_mut() {
            let runs: Vec<Stepped> = parameters.stepped().collect();
            let (weights, gradients, [first, second]) = parameters.step_views();
            for Stepped { range, moments, decayed, .. } in runs {
                let gradients = &mut gradients[range.clone()];
                if factor < 1.0 {
                    scale(gradients, factor);
                }
                let (first, second) = (&mut first[moments.clone()], &mut second[moments]);
                adamw_step(&options, step, decayed, &mut weights[range], gradients, first, second);
            }
            gradients.fill(0.0);
        }
        Ok(())
    }

    /// The L2 norm of all gradients before clipping, once its collective ended.
    #[must_use]
    pub fn global_gradient_norm(&self) -> f64 {
        self.squared_norm.sqrt()
    }

    fn explain_gradient(&self) -> NotFinite {
        let guilty = self.all_parameters().find_map(|parameters| {
            parameters.first_not_finite(&parameters.gradients, None).map(|shard| (shard.unit, &shard.parameter.name))
        });
        NotFinite {
            rank: self.rank,
            iteration: self.iteration,
            layer: guilty.and_then(|(unit, _)| layer_of(unit)),
            pass: None,
            tensor: guilty.map_or_else(|| "gradient norm".to_owned(), |(_, name)| format!("gradient of {name}")),
        }
    }
}

//! The end of an iteration: norm, clipping, AdamW.

use crate::kernels::elementwise::{accumulate, scale};
use crate::kernels::optimizer::{AdamW, adamw_step, clip_factor, squared_norm};

use super::formats::Formats;
use super::optimizer_state::Views;
use super::parameters::{Parameters, Stepped};
use super::{NotFinite, RankState, layer_of};

impl RankState {
    /// Sums the squares of the gradients that this rank answers for, so that the sum over the ranks of a replica (and
    /// where state is divided over replicas) counts each parameter once: what all tensor ranks hold on tensor index 0
    /// only, a tied head where the embedding is, experts on the first of the ranks that hold them, and where state is
    /// divided this rank's part only, by one of its copies. The result is held for the
    /// [`Payload::GradientNorm`](ir::program::Payload::GradientNorm) collective.
    ///
    /// # Errors
    /// If it is not finite.
    pub fn gradient_norm(&mut self) -> Result<(), NotFinite> {
        self.join_tied();
        let sum = |parameters: &Parameters| {
            let counted = parameters.stepped().filter(|run| run.counted);
            counted.map(|run| squared_norm(&parameters.own_gradients(run.segment)[run.range])).sum::<f64>()
        };
        self.squared_norm = self.all_parameters().map(sum).sum();
        if self.squared_norm.is_finite() { Ok(()) } else { Err(self.explain_gradient()) }
    }

    /// Clips the gradients by their global norm, steps the parameters that this rank answers for (all, or its part,
    /// after which the parameters are to be gathered) and clears all gradients.
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
            let formats = parameters.formats;
            parameters.step(formats, |decayed, weights, gradients, [first, second]| {
                if factor < 1.0 {
                    scale(gradients, factor);
                }
                adamw_step(&options, step, decayed, weights, gradients, first, second);
            });
        }
        Ok(())
    }

    /// The L2 norm of all gradients before clipping, once its collective ended.
    #[must_use]
    pub fn global_gradient_norm(&self) -> f64 {
        self.squared_norm.sqrt()
    }

    /// A tied table and its copy in another chunk of this rank get the sum of both gradients.
    fn join_tied(&mut self) {
        let of = |embedding: bool| {
            let here = |(_, (id, parameters)): &(usize, &(_, Parameters))| {
                let chunk = self.program.chunk(*id);
                let places = &parameters.places;
                (if embedding { chunk.embedding && !chunk.head } else { chunk.head && !chunk.embedding })
                    && if embedding { places.embedding.is_some() } else { places.head.is_some() }
            };
            self.chunks.iter().enumerate().find(here).map(|(local, _)| local)
        };
        let (Some(embedding), Some(head), true) = (of(true), of(false), self.program.model.tied_head) else { return };
        let [(_, table), (_, copy)] =
            self.chunks.get_disjoint_mut([embedding, head]).expect("two chunks that this rank holds");
        let places = table.places.embedding.zip(copy.places.head).expect("a tied table and its copy");
        let (Some(here), Some(there)) = (table.visible(places.0), copy.visible(places.1)) else { return };
        let (sum, other) = (table.seen_mut(here), copy.seen_mut(there));
        accumulate(sum, other);
        other.copy_from_slice(sum);
    }

    fn explain_gradient(&self) -> NotFinite {
        let guilty = self.all_parameters().find_map(|parameters| {
            parameters.first_not_finite_gradient().map(|shard| (shard.unit, &shard.parameter.name))
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

impl Parameters {
    /// Hands `step` whether decay applies, weights, gradients and moments of each run that this rank steps, in order; then
    /// rounds the weights for the passes and clears all gradients. An optimizer in host memory leaves the weights there.
    fn step(&mut self, formats: Formats, mut step: impl FnMut(bool, &mut [f32], &mut [f32], [&mut [f32]; 2])) {
        let runs: Vec<Stepped> = self.stepped().collect();
        for Stepped { segment, range, decayed, .. } in runs {
            let own = self.own_range(segment).start;
            let stepped = own + range.start..own + range.end;
            let whole = self.segments[segment].part_of(self.sharing.index).start;
            let whole = whole + range.start..whole + range.end;
            let Views { master, gradients: host, moments: [first, second] } = self.optimizer.views();
            let gradients = match (host, &mut self.own_gradients) {
                (Some(host), _) => &mut host[stepped.clone()],
                (None, Some(own)) => &mut own[stepped.clone()],
                (None, None) => &mut self.gradients.piece_mut(segment)[whole.clone()],
            };
            let weights = match (master, &mut self.own_weights) {
                (Some(master), _) => &mut master[stepped.clone()],
                (None, Some(own)) => &mut own[stepped.clone()],
                (None, None) => &mut self.weights.piece_mut(segment)[whole],
            };
            step(decayed, weights, gradients, [&mut first[stepped.clone()], &mut second[stepped]]);
        }
        if self.optimizer.host_gradients().is_none() {
            self.take_master(formats);
        }
        self.gradients.pieces_mut().for_each(|piece| piece.fill(0.0));
        if let Some(own) = &mut self.own_gradients {
            own.fill(0.0);
        }
    }

    /// Copies FP32 weights, if there are any, to those that passes read.
    pub(super) fn take_master(&mut self, formats: Formats) {
        let Some(master) = self.optimizer.master() else { return };
        for (number, segment) in self.segments.iter().enumerate() {
            let index = segment.own..segment.own + segment.part;
            let (to, rounds) = match &mut self.own_weights {
                Some(own) => (&mut own[index.clone()], formats.own_weight == 2),
                None => (&mut self.weights.piece_mut(number)[segment.part_of(self.sharing.index)], true),
            };
            to.copy_from_slice(&master[index]);
            if rounds {
                formats.round(to);
            }
        }
    }
}

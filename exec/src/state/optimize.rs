//! The end of an iteration: norm, clipping, AdamW.

use crate::kernels::optimizer::{AdamW, clip_factor};

use super::arithmetic::{accumulate, adamw_step, scale, squared_norm};
use super::formats::Formats;
use super::optimizer_state::Views;
use super::parameters::{Parameters, Stepped};
use super::values::ViewMut;
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
        self.settle_ahead()?;
        self.join_tied();
        let sum = |parameters: &Parameters| {
            let counted = parameters.stepped().filter(|run| run.counted);
            squared_norm(counted.map(|run| parameters.own_gradients(run.segment).part(run.range)))
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
        self.settle_ahead()?;
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
            parameters.step(formats, |decayed, weights, mut gradients, moments| {
                if factor < 1.0 {
                    scale(gradients.again(), factor);
                }
                adamw_step(&options, (step, decayed), weights, gradients.view(), moments);
            });
        }
        if !self.joined.on_device {
            self.finish();
        }
        Ok(())
    }

    /// The L2 norm of all gradients before clipping, once its collective ended.
    #[must_use]
    pub fn global_gradient_norm(&self) -> f64 {
        self.squared_norm.sqrt()
    }

    /// Nothing is stepped before what passes left is known to be finite.
    fn settle_ahead(&mut self) -> Result<(), NotFinite> {
        if self.joined.on_device { self.settle() } else { Ok(()) }
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
        let (mut sum, mut other) = (sum, other);
        accumulate(sum.again(), other.again().view());
        other.copy_from(sum.view());
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
    fn step(&mut self, formats: Formats, mut step: impl FnMut(bool, ViewMut<'_>, ViewMut<'_>, [ViewMut<'_>; 2])) {
        let runs: Vec<Stepped> = self.stepped().collect();
        for Stepped { segment, range, decayed, .. } in runs {
            let own = self.own_range(segment).start;
            let stepped = own + range.start..own + range.end;
            let whole = self.segments[segment].part_of(self.sharing.index).start;
            let whole = whole + range.start..whole + range.end;
            let Views { master, gradients: host, moments: [first, second] } = self.optimizer.views();
            let gradients = match (host, &mut self.own_gradients) {
                (Some(host), _) => host.part(stepped.clone()),
                (None, Some(own)) => own.view_mut().part(stepped.clone()),
                (None, None) => self.gradients.piece_mut(segment).part(whole.clone()),
            };
            let weights = match (master, &mut self.own_weights) {
                (Some(master), _) => master.part(stepped.clone()),
                (None, Some(own)) => own.view_mut().part(stepped.clone()),
                (None, None) => self.weights.piece_mut(segment).part(whole),
            };
            step(decayed, weights, gradients, [first, second].map(|moments| moments.part(stepped.clone())));
        }
        if self.optimizer.host_gradients().is_none() {
            self.take_master(formats);
        }
        self.gradients.pieces_mut().for_each(ViewMut::clear);
        if let Some(own) = &mut self.own_gradients {
            own.view_mut().clear();
        }
    }

    /// Copies FP32 weights, if there are any, to those that passes read.
    pub(super) fn take_master(&mut self, formats: Formats) {
        let Some(master) = self.optimizer.master() else { return };
        for (number, segment) in self.segments.iter().enumerate() {
            let index = segment.own..segment.own + segment.part;
            let (mut to, rounds) = match &mut self.own_weights {
                Some(own) => (own.view_mut().part(index.clone()), formats.own_weight == 2),
                None => (self.weights.piece_mut(number).part(segment.part_of(self.sharing.index)), true),
            };
            to.again().copy_from(master.part(index));
            if rounds {
                formats.round(to);
            }
        }
    }
}

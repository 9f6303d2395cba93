//! The rules of thumb of an expert who tunes a Megatron-LM run by hand: the baseline that other planners must beat.
//!
//! 1. *Tensor parallelism first, within the node's fastest domain; pipeline parallelism beyond it.* Narayanan et al.
//!    2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", takeaway 1.
//! 2. *Model parallelism only as large as memory needs, data parallelism for the rest.* The same, takeaway 2; NVIDIA's
//!    Megatron-Core parallelism guide ("maximise data parallelism").
//! 3. *The microbatch size is tried out: 1, 2, 4, 8.* Narayanan et al. 2021, takeaway 3.
//! 4. *Interleave the schedule where there is a pipeline and layers and microbatches divide.* The same, section 2.2.
//! 5. *Sequence parallelism wherever there is tensor parallelism.* Korthikanti et al. 2022, "Reducing Activation
//!    Recomputation in Large Transformer Models", section 4.2.2.
//! 6. *No recomputation if it fits, else selective, else full.* The same, section 5.
//! 7. *Optimizer state sharded over replicas (ZeRO-1), gradient reduction overlapped.* Rajbhandari et al. 2020; the
//!    distributed optimizer of Megatron-LM.
//! 8. *Pipeline stages of equal layers.* Megatron-LM asks that the layers divide by the stages; where no such degree
//!    fits, stages differ by one layer, the lighter ones at the ends, which also hold the embedding and the head.
//!
//! An expert tries the smallest model parallelism that fits and the next few: so does this planner.

use ir::{
    Candidate, Cluster, CollectiveAlgorithm, Infeasible, Plan, Prediction, Problem, Recompute, Schedule, ZeroStage,
};

use super::{Planner, Progress, Question, faster_shares, fits, misfit, percent, words, worst_excess};
use crate::evaluate::Evaluator;
use crate::legality::balanced_stages;
use crate::schedules;

/// See the module's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Megatron {
    /// Runners-up that are reported beside the chosen plan.
    pub runners_up: usize,
    /// Sizes of model parallelism that are tried after the smallest that fits.
    pub larger: usize,
}

impl Default for Megatron {
    fn default() -> Self {
        Self { runners_up: 6, larger: 3 }
    }
}

/// Rule 3.
const MICROBATCH_SIZES: [u32; 4] = [1, 2, 4, 8];
/// Rule 4: chunks per position that are tried.
const CHUNKS: [u32; 5] = [1, 2, 3, 4, 6];
/// Rule 6.
const RECOMPUTE: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

impl Planner for Megatron {
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        let mut search = Search { ask, evaluator, budget, progress, used: 0, tried: Vec::new(), refused: Vec::new() };
        // Rule 8: uneven stages only where no even ones fit.
        for even in [true, false] {
            let mut fitting = 0;
            for (tensor, pipeline) in model_parallel(ask, even) {
                let fitted = search.layout(tensor, pipeline);
                fitting += usize::from(fitted || fitting > 0);
                if fitting > self.larger || search.used >= search.budget {
                    break;
                }
            }
            if search.tried.iter().any(|(_, prediction)| fits(prediction)) {
                break;
            }
        }
        search.finish(self.runners_up)
    }
}

/// Rules 1 and 2: pairs of tensor and pipeline degree by growing product; the tensor degree grows to the domain first.
fn model_parallel(ask: &Question<'_>, even: bool) -> Vec<(u32, u32)> {
    let (model, devices) = (ask.model, ask.cluster.devices());
    let domain = smallest_domain(ask.cluster);
    let divides = |t: &u32| [model.heads, model.kv_heads, model.ffn].iter().all(|size| size.is_multiple_of(*t));
    let tensors = (1..=domain).filter(|t| t.is_power_of_two() && divides(t)).collect::<Vec<_>>();
    let widest = tensors.last().copied().unwrap_or(1);
    let mut pairs = tensors.into_iter().map(|tensor| (tensor, 1)).collect::<Vec<_>>();
    let pipelines = (2..=model.layers).filter(|p| model.layers.is_multiple_of(*p) == even);
    pairs.extend(pipelines.map(|pipeline| (widest, pipeline)));
    pairs.retain(|(tensor, pipeline)| u64::from(*tensor) * u64::from(*pipeline) <= devices);
    pairs
}

/// Devices of the smallest domain of the cluster's nodes.
fn smallest_domain(cluster: &Cluster) -> u32 {
    let used = cluster.groups.iter().filter(|group| group.count > 0).map(|group| cluster.node_kind(group.kind));
    let size = |node: &ir::NodeKind| {
        let devices = u32::try_from(node.devices.len()).unwrap_or(u32::MAX);
        if node.domain_size == 0 { devices } else { node.domain_size.min(devices) }
    };
    used.map(size).min().unwrap_or(1).max(1)
}

struct Search<'a, 'b> {
    ask: &'a Question<'b>,
    evaluator: &'a mut dyn Evaluator,
    budget: u64,
    progress: Progress<'a>,
    used: u64,
    tried: Vec<(Plan, Prediction)>,
    /// Reasons why plans were not legal, each once.
    refused: Vec<Problem>,
}

impl Search<'_, '_> {
    /// Tries one pair of model-parallel degrees with all that is tuned inside it; whether something fitted.
    fn layout(&mut self, tensor: u32, pipeline: u32) -> bool {
        let batch = self.ask.workload.global_batch;
        let lanes = self.ask.cluster.devices() / (u64::from(tensor) * u64::from(pipeline));
        let most = u32::try_from(lanes).unwrap_or(u32::MAX).min(batch);
        // Rule 2: as many replicas as the batch divides by.
        let Some(data) = (1..=most).rev().find(|data| batch.is_multiple_of(*data)) else { return false };
        let mut fitted = false;
        for size in MICROBATCH_SIZES.into_iter().filter(|size| (batch / data).is_multiple_of(*size)) {
            for chunks in CHUNKS {
                let even = self.ask.model.layers.is_multiple_of(pipeline * chunks);
                if chunks > 1 && (pipeline == 1 || !even) {
                    continue;
                }
                let plan = self.write(data, tensor, pipeline, chunks, size);
                let order = schedules::refusals(&plan.schedule, pipeline, chunks, plan.microbatches);
                if chunks == 1 || order.is_empty() {
                    fitted |= self.recompute(plan);
                }
            }
        }
        fitted
    }

    fn write(&self, data: u32, tensor: u32, pipeline: u32, chunks: u32, size: u32) -> Plan {
        Plan {
            data,
            tensor,
            sequence_parallel: tensor > 1 && self.ask.workload.sequence_length.is_multiple_of(tensor),
            stages: balanced_stages(self.ask.model.layers, pipeline, chunks, Recompute::None),
            microbatch_size: size,
            microbatches: self.ask.workload.global_batch / data / size,
            shares: ir::Shares::EQUAL,
            schedule: Schedule::OneForwardOneBackward,
            zero: if data > 1 { ZeroStage::Zero1 } else { ZeroStage::Zero0 },
            overlap_gradients: data > 1,
            collective: CollectiveAlgorithm::Automatic,
            mesh: ir::Mesh::default(),
            sharing: ir::Sharing::default(),
            placement: Vec::new(),
        }
    }

    /// Rule 6: the least recomputation that fits; whether any does.
    fn recompute(&mut self, mut plan: Plan) -> bool {
        for recompute in RECOMPUTE {
            if self.used >= self.budget {
                return false;
            }
            plan.stages.iter_mut().for_each(|stage| stage.recompute = recompute);
            self.used += 1;
            match self.evaluator.evaluate(&plan) {
                Ok(prediction) => {
                    let fit = fits(&prediction);
                    self.tried.push((plan.clone(), prediction));
                    let best = self.tried.iter().filter(|(_, p)| fits(p)).min_by_key(|(_, p)| p.iteration);
                    (self.progress)(self.used, best.map(|(plan, prediction)| (plan, prediction)));
                    if fit {
                        return true;
                    }
                }
                Err(no) => {
                    (self.progress)(self.used, None);
                    for reason in no.reasons {
                        if !self.refused.contains(&reason) {
                            self.refused.push(reason);
                        }
                    }
                    return false;
                }
            }
        }
        false
    }

    fn finish(mut self, runners_up: usize) -> Result<Vec<Candidate>, Infeasible> {
        let tried = std::mem::take(&mut self.tried);
        let (mut fitting, mut over): (Vec<_>, Vec<_>) = tried.into_iter().partition(|(_, p)| fits(p));
        fitting.sort_by_key(|(_, prediction)| prediction.iteration);
        over.sort_by(|(_, a), (_, b)| worst_excess(a).total_cmp(&worst_excess(b)));
        let Some((best, winner)) = fitting.first().cloned() else {
            return Err(nothing_fits(self.ask, over, self.refused, self.used, self.budget));
        };
        let mut chosen = chosen(&best, &winner, &over, self.used);
        // Megatron-LM gives all replicas as much: what more there would be is said, not chosen.
        let faster = faster_shares(&best, &winner, self.evaluator);
        chosen.reasons.extend(faster.iter().flat_map(|other| other.reasons.clone()));
        let losers = fitting.into_iter().skip(1).map(|(plan, prediction)| {
            let why = why_slower(&plan, &prediction, &best, &winner);
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        let losers = losers.take(runners_up).collect::<Vec<_>>();
        let misfits = over.into_iter().take(runners_up.div_ceil(2)).map(|(plan, prediction)| {
            let reasons = misfit(&prediction).into_iter().collect();
            Candidate { plan, evaluation: Ok(prediction), reasons }
        });
        Ok(std::iter::once(chosen).chain(faster).chain(losers).chain(misfits).collect())
    }
}

/// Which rules made the chosen plan what it is.
fn chosen(plan: &Plan, prediction: &Prediction, over: &[(Plan, Prediction)], used: u64) -> Candidate {
    let mut reasons = vec![format!(
        "fastest of {used} tried that fits: {:.3} s, bubble {}",
        prediction.iteration.seconds(),
        percent(prediction.bubble_rate.unwrap_or(0.0))
    )];
    let smaller = |other: &Plan| other.tensor * other.pipeline() < plan.tensor * plan.pipeline();
    let same = |other: &Plan| other.tensor == plan.tensor && other.stages.len() == plan.stages.len();
    if plan.tensor * plan.pipeline() > 1 && over.iter().any(|(other, _)| smaller(other)) {
        reasons.push(format!(
            "tensor {} inside the node, then pipeline {}: smaller model parallelism does not fit or loses",
            plan.tensor,
            plan.pipeline()
        ));
    }
    if plan.data > 1 {
        reasons.push(format!("data {} for the rest, optimizer state sharded over it", plan.data));
    }
    let recompute = plan.stages.first().map_or(Recompute::None, |stage| stage.recompute);
    if recompute != Recompute::None && over.iter().any(|(other, _)| same(other)) {
        let how = if recompute == Recompute::Full { "full" } else { "selective" };
        reasons.push(format!("{how} recomputation: with less it does not fit"));
    }
    if plan.chunks_per_stage() > 1 {
        reasons.push(format!("{} chunks per stage shorten the bubble", plan.chunks_per_stage()));
    }
    Candidate { plan: plan.clone(), evaluation: Ok(prediction.clone()), reasons }
}

/// "12 % slower: bubble 21 % against 8 %", and what differs.
pub(super) fn why_slower(plan: &Plan, prediction: &Prediction, best: &Plan, winner: &Prediction) -> String {
    let slower = prediction.iteration.seconds() / winner.iteration.seconds().max(1e-12) - 1.0;
    let mut causes = Vec::new();
    let (here, there) = (prediction.bubble_rate.unwrap_or(0.0), winner.bubble_rate.unwrap_or(0.0));
    if here > there + 0.005 {
        causes.push(format!("bubble {} against {}", percent(here), percent(there)));
    }
    let recompute = |plan: &Plan| plan.stages.iter().map(|stage| stage.recompute as u8).max().unwrap_or(0);
    if recompute(plan) > recompute(best) {
        causes.push("more recomputation".to_owned());
    }
    if plan.tensor > best.tensor {
        causes.push(format!("tensor collectives of {} ranks", plan.tensor));
    }
    if plan.world() < best.world() {
        causes.push(format!("{} of {} devices used", plan.world(), best.world()));
    }
    if plan.microbatch_size < best.microbatch_size {
        causes.push("smaller matrix products".to_owned());
    }
    if plan.chunks_per_stage() > best.chunks_per_stage() {
        causes.push("more messages between stages".to_owned());
    }
    if causes.is_empty() {
        causes.push(format!("{} does not pay here", words(plan)));
    }
    format!("{:.1} % slower: {}", slower * 100.0, causes.join(", "))
}

/// What stood in the way.
fn nothing_fits(
    ask: &Question<'_>,
    over: Vec<(Plan, Prediction)>,
    refused: Vec<Problem>,
    used: u64,
    budget: u64,
) -> Infeasible {
    let mut reasons = refused;
    if let Some((plan, prediction)) = over.first() {
        let text = misfit(prediction).expect("it is over its memory");
        reasons.insert(
            0,
            Problem::new(
                "plan",
                format!("of {used} plans tried none fits into memory; the closest, {}, {text}", words(plan)),
            )
            .hint("more devices, devices with more memory, or shorter sequences"),
        );
    }
    if used >= budget {
        reasons.push(
            Problem::new("plan.budget", format!("the budget of {budget} evaluations ran out")).hint("a larger budget"),
        );
    }
    if reasons.is_empty() {
        reasons.push(Problem::new(
            "plan",
            format!(
                "no degrees divide {} layers, {} heads and a batch of {} over {} devices",
                ask.model.layers,
                ask.model.heads,
                ask.workload.global_batch,
                ask.cluster.devices()
            ),
        ));
    }
    let nearest = if over.is_empty() {
        let whole = Plan {
            data: 1,
            tensor: 1,
            sequence_parallel: false,
            stages: balanced_stages(ask.model.layers, 1, 1, Recompute::None),
            microbatch_size: 1,
            microbatches: ask.workload.global_batch.max(1),
            shares: ir::Shares::EQUAL,
            schedule: Schedule::OneForwardOneBackward,
            zero: ZeroStage::Zero0,
            overlap_gradients: false,
            collective: CollectiveAlgorithm::Automatic,
            mesh: ir::Mesh::default(),
            sharing: ir::Sharing::default(),
            placement: Vec::new(),
        };
        crate::nearest(&whole, ask.model, ask.workload, ask.cluster)
    } else {
        Vec::new()
    };
    Infeasible { reasons, nearest }
}

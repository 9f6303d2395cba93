//! The rules of thumb of an expert who tunes a Megatron-LM run by hand: the baseline that other planners must beat.
//!
//! 1. *Model parallelism only as large as memory needs, data parallelism for the rest.* Narayanan et al. 2021, "Efficient
//!    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", takeaway 2; NVIDIA's Megatron-Core parallelism
//!    guide ("maximise data parallelism"). Of the ways to divide a replica over so many ranks all are tried.
//! 2. *Experts are divided before anything else is, inside a domain where that fits, else over nodes; an expert is whole.*
//!    Megatron-Core's guide to mixtures of experts (expert parallelism rather than tensor parallelism for the experts' layers,
//!    expert and tensor groups within NVLink).
//! 3. *Tensor parallelism within the node's fastest domain; pipeline parallelism beyond it.* Narayanan et al. 2021,
//!    takeaway 1. Of two that fit the smaller tensor degree is faster more often than not: Hagemann et al. 2023, "Efficient
//!    Parallelization Layouts for Large-Scale Distributed Model Training", section 4.
//! 4. *Context parallelism for sequences of 8 thousand tokens or more*, with some thousands on each rank. Megatron-Core's
//!    guide.
//! 5. *The microbatch size is tried out: 1, 2, 4, 8, 16.* Narayanan et al. 2021, takeaway 3.
//! 6. *Interleave the schedule where there is a pipeline and layers and microbatches divide.* The same, section 2.2.
//! 7. *Sequence parallelism wherever there is tensor parallelism; no recomputation if it fits, else selective; full only where
//!    more model parallelism loses to it.* Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
//!    Models", sections 4.2.2 and 5.
//! 8. *Pipeline stages of nearly equal layers*: the fullest holds a tenth more than the mean at most, lighter ones stand at the
//!    ends, which also hold the embedding and the head. All devices work, or three quarters of them. What breaks this is
//!    tried where nothing else fits.
//! 9. *Optimizer state sharded over replicas (ZeRO-1), gradient reduction overlapped.* Rajbhandari et al. 2020; the
//!    distributed optimizer of Megatron-LM.
//!
//!    Parameters are sharded too, without a pipeline, where nothing else fits (Zhao et al. 2023, "PyTorch FSDP"; Megatron-FSDP).
//! 10. *Of plans that are as fast, as far as predictions tell (4 %), the one with the smallest replicas, then with the smallest
//!     microbatches*: with the least model parallelism and microbatches of 1 runs were fastest that recompute nothing (Hagemann
//!     et al. 2023, section 4). *Where everything is recomputed, with the largest*: they cost little memory, and 4 were faster
//!     than 2 (BigScience's chronicles of BLOOM-176B).
//!
//! The rules make iterations short. What they look at is judged by what is asked for: with another objective than time the
//! cheapest of those plans, or the one of least energy, is taken, and those that break a limit are left out. They leave no
//! device idle that a batch divides over; who would, asks a search.
//!
//! An expert tries the smallest replicas that fit and some larger ones, and so does this planner. It asks first whether a shape
//! fits at all, with the smallest microbatch and full recomputation, and leaves out what cannot win by its floor.

mod shapes;

use ir::{Candidate, CollectiveAlgorithm, Infeasible, Plan, Prediction, Problem, Recompute, Schedule, ZeroStage};

use super::{
    Planner, Progress, Question, faster_shares, misfit, no_room, percent, smallest_domain, why_worse, words,
    worst_excess,
};
use crate::aim::{Aim, Misses, Objective, Pool, fits};
use crate::evaluate::Evaluator;
use crate::legality::balanced_stages;
use crate::schedules;
use shapes::{Place, Shape, experts, mesh, shapes};

/// See the module's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Megatron {
    /// Runners-up that are reported beside the chosen plan.
    pub runners_up: usize,
    /// How many times as large as the smallest that fits without full recomputation replicas are tried.
    pub larger: u64,
    /// What is not for the rules to choose.
    pub held: Held,
}

/// Degrees and sizes that are held fast; `None` leaves one to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Replicas.
    pub data: Option<u32>,
    /// Tensor degree.
    pub tensor: Option<u32>,
    /// Context degree.
    pub context: Option<u32>,
    /// Pipeline degree.
    pub pipeline: Option<u32>,
    /// Expert degree.
    pub expert: Option<u32>,
    /// Sequences of a microbatch.
    pub microbatch_size: Option<u32>,
    /// Chunks per position.
    pub chunks: Option<u32>,
    /// Sharding of training state.
    pub zero: Option<ZeroStage>,
}

impl Default for Megatron {
    fn default() -> Self {
        Self { runners_up: 6, larger: 4, held: Held::default() }
    }
}

/// Rule 5.
const MICROBATCH_SIZES: [u32; 5] = [1, 2, 4, 8, 16];
/// Rule 6: chunks per position that are tried.
const CHUNKS: [u32; 5] = [1, 2, 3, 4, 6];
/// Rule 7.
const RECOMPUTE: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];
/// Rule 10: how much slower a plan may be that counts as fast as another: what predictions of layouts err by in the median.
const AS_FAST: f64 = 1.04;
/// How many times that over the smallest replica that fits at all: to do without full recomputation is worth a lot.
const TIGHT: u64 = 4;

impl Planner for Megatron {
    fn plan(
        &self,
        ask: &Question<'_>,
        evaluator: &mut dyn Evaluator,
        budget: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Candidate>, Infeasible> {
        let mut search = Search::new(self, ask, evaluator, budget, progress);
        for sizes in shapes(ask, &self.held) {
            search.inside_and_beyond(&sizes);
            if !search.best.is_empty() {
                break;
            }
        }
        search.all_sharded();
        search.finish()
    }
}

/// How a shape fits into memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    No,
    /// With everything recomputed.
    Tight,
    Well,
}

enum Step {
    Fits,
    Over,
    Illegal,
    /// Not among the fastest, by its floor.
    Slow,
    /// The budget has run out.
    Spent,
}

struct Search<'a, 'b> {
    planner: &'a Megatron,
    ask: &'a Question<'b>,
    evaluator: &'a mut dyn Evaluator,
    budget: u64,
    progress: Progress<'a>,
    used: u64,
    /// Whether parameters are sharded.
    deep: bool,
    /// What plans are laid on.
    pool: Pool,
    /// The best that are allowed, best first.
    best: Vec<(Plan, Prediction)>,
    /// Plans that fit and break a limit.
    misses: Misses,
    /// Plans over their memory, and by how much.
    over: Vec<(Plan, f64)>,
    /// Reasons why plans were not legal, each once.
    refused: Vec<Problem>,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(
        planner: &'a Megatron,
        ask: &'a Question<'b>,
        evaluator: &'a mut dyn Evaluator,
        budget: u64,
        progress: Progress<'a>,
    ) -> Self {
        let (best, over, refused) = (Vec::new(), Vec::new(), Vec::new());
        let (pool, misses) = (ask.pools().swap_remove(0), Misses::default());
        Self { planner, ask, evaluator, budget, progress, used: 0, deep: false, pool, best, misses, over, refused }
    }

    /// Rules 1 and 2: the smallest replicas that fit and those some times as large, with experts inside domains or beyond.
    fn smallest(&mut self, sizes: &[Vec<Shape>], place: Place) {
        // The first that fit, and the first that fit well.
        let (mut fitting, mut well) = (None, None);
        let times = |first: Option<u64>, times: u64| first.map_or(u64::MAX, |first| first.saturating_mul(times));
        for shapes in sizes {
            let Some(size) = shapes.first().map(|shape| shape.product()) else { continue };
            let most = times(well, self.planner.larger).min(times(fitting, TIGHT * self.planner.larger));
            if size > most || self.used >= self.budget {
                break;
            }
            let fit = shapes.iter().map(|shape| self.layout(*shape, place)).max().unwrap_or(Fit::No);
            if fit > Fit::No {
                fitting.get_or_insert(size);
            }
            if fit == Fit::Well {
                well.get_or_insert(size);
            }
        }
    }

    /// Rule 9: where nothing fits, parameters are sharded too, without a pipeline.
    fn all_sharded(&mut self) {
        if !self.best.is_empty() || self.planner.held.zero.is_some_and(|zero| zero != ZeroStage::Zero3) {
            return;
        }
        self.deep = true;
        for mut sizes in shapes(self.ask, &self.planner.held) {
            sizes
                .iter_mut()
                .for_each(|shapes| shapes.retain(|shape| shape.pipeline == 1 && shape.data * shape.context > 1));
            self.inside_and_beyond(&sizes);
        }
    }

    /// Rule 2: experts inside domains, and over nodes.
    fn inside_and_beyond(&mut self, sizes: &[Vec<Shape>]) {
        self.smallest(sizes, Place::Inside);
        if self.ask.model.variants.experts.is_some() && self.planner.held.expert.is_none() {
            self.smallest(sizes, Place::Beyond);
        }
    }

    /// Rule 2: a shape with the expert degrees that are worth a look.
    fn layout(&mut self, shape: Shape, place: Place) -> Fit {
        let mut fit = Fit::No;
        for expert in experts(self.ask, &self.planner.held, shape, place) {
            fit = fit.max(self.tune(shape, expert));
            // Beyond a domain the narrowest that fits well is enough.
            if place == Place::Beyond && fit == Fit::Well {
                break;
            }
        }
        fit
    }

    /// Rules 5 to 7 for one set of degrees.
    fn tune(&mut self, shape: Shape, expert: u32) -> Fit {
        let held = self.planner.held;
        let share = self.ask.workload.global_batch / shape.data.max(1);
        let sizes = held.microbatch_size.map_or_else(|| MICROBATCH_SIZES.to_vec(), |size| vec![size]);
        // Of a size that is held fast the evaluator says why it does not divide.
        let open = held.microbatch_size.is_none();
        let sizes = sizes.into_iter().filter(|size| !open || share.is_multiple_of(*size)).collect::<Vec<_>>();
        let Some(smallest) = sizes.first() else { return Fit::No };
        let mut least = self.write(shape, expert, held.chunks.unwrap_or(1), *smallest);
        recompute(&mut least, Recompute::Full);
        if !self.may_fit(&least) {
            return Fit::No;
        }
        let mut fit = Fit::No;
        for size in sizes {
            let chunks = held.chunks.map_or_else(|| self.chunks(shape, share / size), |chunks| vec![chunks]);
            let mut of_size = None;
            for chunks in chunks {
                let Some(found) = self.recompute(self.write(shape, expert, chunks, size)) else { continue };
                of_size = of_size.max(Some(found));
                if found == Fit::No {
                    // More chunks keep more.
                    break;
                }
            }
            fit = fit.max(of_size.unwrap_or(Fit::No));
            if of_size == Some(Fit::No) {
                // Larger microbatches too.
                break;
            }
        }
        fit
    }

    /// Rule 6.
    fn chunks(&self, shape: Shape, microbatches: u32) -> Vec<u32> {
        let (pipeline, layers) = (shape.pipeline, self.ask.model.layers);
        let order = |chunks| schedules::refusals(&Schedule::OneForwardOneBackward, pipeline, chunks, microbatches);
        let divides = |chunks: &u32| pipeline > 1 && layers.is_multiple_of(pipeline * chunks);
        let interleaved =
            CHUNKS.into_iter().filter(|chunks| *chunks > 1 && divides(chunks) && order(*chunks).is_empty());
        std::iter::once(1).chain(interleaved).collect()
    }

    fn write(&self, shape: Shape, expert: u32, chunks: u32, size: u32) -> Plan {
        let Shape { data, tensor, context, pipeline } = shape;
        let length = self.ask.workload.sequence_length;
        let replicas = data * context;
        Plan {
            data,
            tensor,
            sequence_parallel: tensor > 1 && length.is_multiple_of(tensor * context),
            stages: balanced_stages(self.ask.model.layers, pipeline, chunks, Recompute::None),
            microbatch_size: size,
            microbatches: self.ask.workload.global_batch / data / size,
            shares: ir::Shares::EQUAL,
            schedule: Schedule::OneForwardOneBackward,
            zero: match self.deep {
                true => ZeroStage::Zero3,
                false if replicas > 1 => ZeroStage::Zero1,
                false => ZeroStage::Zero0,
            },
            overlap_gradients: replicas > 1 && !self.deep,
            collective: CollectiveAlgorithm::Automatic,
            mesh: mesh(self.ask, shape, expert),
            sharing: ir::Sharing { prefetch: self.deep, ..ir::Sharing::default() },
            placement: self.pool.placement(shape.product() * u64::from(data)),
        }
    }

    /// Rule 7: the least recomputation that fits; `None` for what is not legal, or not looked at.
    fn recompute(&mut self, mut plan: Plan) -> Option<Fit> {
        for kept in RECOMPUTE {
            recompute(&mut plan, kept);
            match self.step(&plan) {
                Step::Fits if kept == Recompute::Full => return Some(Fit::Tight),
                // Whether what cannot win fits does not matter.
                Step::Fits | Step::Slow => return Some(Fit::Well),
                Step::Over => {}
                Step::Illegal | Step::Spent => return None,
            }
        }
        Some(Fit::No)
    }

    /// Counts a plan that is looked at.
    fn look(&mut self) {
        self.used += 1;
        (self.progress)(self.used, self.best.first().map(|(plan, prediction)| (plan, prediction)));
    }

    fn may_fit(&mut self, least: &Plan) -> bool {
        if self.used >= self.budget {
            return false;
        }
        let Some(excess) = self.evaluator.excess(least) else { return true };
        self.look();
        self.over.push((least.clone(), excess));
        false
    }

    fn step(&mut self, plan: &Plan) -> Step {
        if self.used >= self.budget {
            return Step::Spent;
        }
        let aim = self.ask.aim;
        if let (Some((_, best)), Some((_, worst))) = (self.best.first(), self.best.get(self.planner.runners_up)) {
            let limit = aim.score(worst).get().max(AS_FAST * aim.score(best).get());
            if aim.floor(plan, self.evaluator).is_some_and(|floor| floor.get() >= limit) {
                return Step::Slow;
            }
        }
        if let Some(excess) = self.evaluator.excess(plan) {
            self.look();
            self.over.push((plan.clone(), excess));
            return Step::Over;
        }
        let found = self.evaluator.evaluate(plan);
        let step = match found {
            Ok(prediction) if aim.allows(&prediction) => {
                let score = aim.score(&prediction);
                let at = self.best.partition_point(|(_, kept)| aim.score(kept) <= score);
                self.best.insert(at, (plan.clone(), prediction));
                Step::Fits
            }
            // With more recomputation it would break the limit by more.
            Ok(prediction) if fits(&prediction) => {
                self.misses.note(aim, plan, &prediction);
                Step::Fits
            }
            Ok(prediction) => {
                self.over.push((plan.clone(), worst_excess(&prediction)));
                Step::Over
            }
            Err(no) => {
                for reason in no.reasons {
                    if !self.refused.contains(&reason) {
                        self.refused.push(reason);
                    }
                }
                Step::Illegal
            }
        };
        self.look();
        step
    }

    fn finish(mut self) -> Result<Vec<Candidate>, Infeasible> {
        let mut over = std::mem::take(&mut self.over);
        over.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let runners_up = self.planner.runners_up;
        let nearest = over.iter().take(runners_up.div_ceil(2)).filter_map(|(plan, _)| {
            let prediction = self.evaluator.evaluate(plan).ok()?;
            Some((plan.clone(), prediction))
        });
        let nearest = nearest.collect::<Vec<_>>();
        let Some((_, fastest)) = self.best.first().cloned() else {
            let missed = self.misses.problems(self.ask.aim, "plan of those that the rules look at");
            return Err(nothing_fits(self.ask, (nearest, missed), self.refused, self.used, self.budget));
        };
        let (best, winner) = self.best.remove(simplest(self.ask.aim, &self.best));
        let mut chosen = chosen(self.ask, (&best, &winner), &fastest, &over, self.used);
        // Megatron-LM gives all replicas as much: what more there would be is said, not chosen.
        let faster = faster_shares(self.ask, &best, &winner, self.evaluator);
        chosen.reasons.extend(faster.iter().flat_map(|other| other.reasons.clone()));
        let losers = self.best.into_iter().take(runners_up).map(|(plan, prediction)| {
            let (score, than) = (self.ask.aim.score(&prediction), self.ask.aim.score(&winner));
            let why = if score < than {
                let faster = 1.0 - score.over(than);
                let better = self.ask.aim.better();
                format!(
                    "{:.1} % {better}, less than predictions err, with more ranks a replica or larger microbatches",
                    faster * 100.0
                )
            } else {
                why_worse(self.ask, (&plan, &prediction), (&best, &winner))
            };
            Candidate { plan, evaluation: Ok(prediction), reasons: vec![why] }
        });
        let misfits = nearest.into_iter().map(|(plan, prediction)| {
            let reasons = misfit(&prediction).into_iter().collect();
            Candidate { plan, evaluation: Ok(prediction), reasons }
        });
        Ok(std::iter::once(chosen).chain(faster).chain(losers).chain(misfits).collect())
    }
}

fn recompute(plan: &mut Plan, recompute: Recompute) {
    plan.stages.iter_mut().for_each(|stage| stage.recompute = recompute);
}

/// Ranks of a replica.
fn of_replica(plan: &Plan) -> u32 {
    plan.tensor * plan.mesh.context * plan.pipeline()
}

/// Rule 10: of plans, best first, the simplest of those that are as good as the first.
fn simplest(aim: &Aim, best: &[(Plan, Prediction)]) -> usize {
    let recompute = |plan: &Plan| plan.stages.iter().map(|stage| stage.recompute).max();
    let Some((first, fastest)) = best.first() else { return 0 };
    let as_fast = |prediction: &Prediction| aim.score(prediction).get() <= AS_FAST * aim.score(fastest).get();
    let near = best.iter().enumerate().take_while(|(_, (_, prediction))| as_fast(prediction));
    let no_more = near.filter(|(_, (plan, _))| recompute(plan) <= recompute(first));
    let size = |plan: &Plan| match recompute(plan) {
        Some(Recompute::Full) => u32::MAX - plan.microbatch_size,
        _ => plan.microbatch_size,
    };
    no_more.min_by_key(|(at, (plan, _))| (of_replica(plan), size(plan), *at)).map_or(0, |(at, _)| at)
}

/// Which rules made the chosen plan what it is.
fn chosen(
    ask: &Question<'_>,
    (plan, prediction): (&Plan, &Prediction),
    fastest: &Prediction,
    over: &[(Plan, f64)],
    used: u64,
) -> Candidate {
    let aim = ask.aim;
    let behind = aim.score(prediction).over(aim.score(fastest)) - 1.0;
    let place = if behind > 0.0 {
        format!("simpler, and {:.1} % behind, less than predictions err, the ", behind * 100.0)
    } else {
        String::new()
    };
    let mut reasons = vec![format!(
        "{place}{} of {used} tried that fits: {}, bubble {}",
        aim.best(),
        ask.figure(prediction),
        percent(prediction.bubble_rate.unwrap_or(0.0))
    )];
    if aim.objective != Objective::Time {
        let words = "the rules make iterations short on all devices, and their plans were judged by";
        reasons.push(format!("{words} {}: a search may leave devices idle", aim.objective.name()));
    }
    if plan.mesh.expert > 1 {
        let domain = smallest_domain(ask);
        let place = if plan.mesh.expert <= domain {
            format!("inside a domain of {domain}")
        } else {
            format!("over nodes: with fewer it does not fit or recomputes more (a domain has {domain})")
        };
        reasons.push(format!("experts divided over {} ranks before anything else is, {place}", plan.mesh.expert));
    }
    if plan.mesh.context > 1 {
        let tokens = ask.workload.sequence_length;
        reasons.push(format!("context {}: a sequence has {tokens} tokens", plan.mesh.context));
    }
    if of_replica(plan) > 1 && over.iter().any(|(other, _)| of_replica(other) < of_replica(plan)) {
        reasons.push(format!(
            "tensor {} inside the node, then pipeline {}: smaller model parallelism does not fit or loses",
            plan.tensor,
            plan.pipeline()
        ));
    }
    if plan.zero == ZeroStage::Zero3 {
        reasons.push(format!("data {}, and parameters sharded over it: whole ones fit nowhere", plan.data));
    } else if plan.data > 1 {
        reasons.push(format!("data {} for the rest, optimizer state sharded over it", plan.data));
    }
    let same = |other: &Plan| other.tensor == plan.tensor && other.stages.len() == plan.stages.len();
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
    (over, missed): (Vec<(Plan, Prediction)>, Vec<Problem>),
    refused: Vec<Problem>,
    used: u64,
    budget: u64,
) -> Infeasible {
    let mut reasons = refused;
    let limited = !missed.is_empty();
    if limited {
        let searched = "the rules make iterations short on all devices";
        let more = |problem: Problem| match &problem.hint {
            Some(hint) => problem.clone().hint(format!("{hint}; {searched}: policy = \"exhaustive\" tries all")),
            None => problem,
        };
        reasons.splice(0..0, missed.into_iter().map(more));
    } else if let Some((plan, prediction)) = over.first() {
        let text = misfit(prediction).expect("it is over its memory");
        let message = format!("of {used} plans tried none fits into memory; the closest, {}, {text}", words(plan));
        let hint = "more devices, devices with more memory, or shorter sequences";
        reasons.insert(0, no_room(ask, message, prediction, hint));
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
                ask.devices()
            ),
        ));
    }
    let nearest = if over.is_empty() && !limited {
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

//! The values of each key that a search goes over, and their combinations.

use ir::{CollectiveAlgorithm, ContextMethod, Mesh, Plan, Recompute, Schedule, Sharing, ZeroStage};

use super::super::{Question, context_method, contexts};
use crate::aim::Pool;
use crate::legality::balanced_stages;

/// Values of a uniform plan's keys; an empty list stands for every value that divides. Of a list of one value nothing is left
/// out because it seems of no use: somebody asked for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Space {
    /// Data degrees; empty: beside the other degrees, as many replicas as there are devices for and the batch divides by, or
    /// where fewer devices may do, any number of them.
    pub data: Vec<u32>,
    /// Tensor degrees; empty: all that divide heads, up to 64.
    pub tensor: Vec<u32>,
    /// Sequence parallelism; empty: with it and without, where it can be.
    pub sequence_parallel: Vec<bool>,
    /// Pipeline degrees; empty: all up to the model's layers.
    pub pipeline: Vec<u32>,
    /// Context degrees; empty: powers of two that leave each rank some thousands of tokens of a long sequence.
    pub context: Vec<u32>,
    /// Expert degrees; empty: all that divide the model's experts. A dense model has 1.
    pub expert: Vec<u32>,
    /// Microbatch sizes; empty: all that divide a replica's batch, up to 16.
    pub microbatch_size: Vec<u32>,
    /// Chunks per position.
    pub chunks: Vec<u32>,
    /// Orders of passes.
    pub schedules: Vec<Schedule>,
    /// Recomputation, from least to most.
    pub recompute: Vec<Recompute>,
    /// Sharding of training state.
    pub zero: Vec<ZeroStage>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            data: Vec::new(),
            tensor: Vec::new(),
            sequence_parallel: Vec::new(),
            pipeline: Vec::new(),
            context: Vec::new(),
            expert: Vec::new(),
            microbatch_size: Vec::new(),
            chunks: vec![1, 2, 3, 4, 6, 8],
            schedules: vec![Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1, Schedule::GPipe],
            recompute: super::LADDER.to_vec(),
            zero: vec![ZeroStage::Zero1, ZeroStage::Zero3, ZeroStage::Zero0],
        }
    }
}

/// The widest tensor group and the largest microbatch that an open list goes to: beyond them every known machine loses.
const WIDEST_TENSOR: u32 = 64;
const LARGEST_MICROBATCH: u32 = 16;

/// Plans of a space without recomputation, in a fixed order: small model parallelism first.
pub(in crate::policies) struct Spaces {
    plans: std::vec::IntoIter<Degrees>,
    space: Space,
    batch: u32,
    layers: u32,
    sequence: u32,
    context_method: ContextMethod,
    pools: Vec<Pool>,
    queue: Vec<Plan>,
}

/// Degrees of one plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Degrees {
    /// What it is laid on.
    pool: usize,
    data: u32,
    tensor: u32,
    context: u32,
    pipeline: u32,
    expert: u32,
}

/// Values of the other keys beside one set of degrees.
#[derive(Debug)]
struct Choices {
    sizes: Vec<u32>,
    sequences: Vec<bool>,
    zeros: Vec<ZeroStage>,
    orders: Vec<(Schedule, u32)>,
}

impl Choices {
    const fn count(&self) -> usize {
        self.sizes.len() * self.sequences.len() * self.zeros.len() * self.orders.len()
    }
}

fn divisors(number: u32, most: u32) -> impl Iterator<Item = u32> {
    (1..=number.min(most)).filter(move |d| number.is_multiple_of(*d))
}

/// All sets of degrees on so many devices.
fn degrees(space: &Space, ask: &Question<'_>, (pool, devices): (usize, u64)) -> Vec<Degrees> {
    let (model, batch) = (ask.model, ask.workload.global_batch);
    let devices = u32::try_from(devices).unwrap_or(u32::MAX);
    let or = |list: &[u32], open: Vec<u32>| if list.is_empty() { open } else { list.to_vec() };
    let tensors = or(&space.tensor, divisors(model.heads, WIDEST_TENSOR).collect());
    let contexts = or(&space.context, contexts(ask.workload.sequence_length));
    let pipelines = or(&space.pipeline, (1..=model.layers.min(devices)).collect());
    let experts = match &model.variants.experts {
        Some(experts) => or(&space.expert, divisors(experts.count, devices).collect()),
        None => vec![1],
    };
    // Replicas: the most that there are devices for, or any number.
    let replicas = |lanes: u32| -> Vec<u32> {
        let dividing = (1..=lanes).rev().filter(|data| batch.is_multiple_of(*data));
        if ask.aim.may_leave_idle() { dividing.collect() } else { dividing.take(1).collect() }
    };
    let mut plans = Vec::new();
    for tensor in &tensors {
        for context in &contexts {
            for pipeline in &pipelines {
                let taken = u64::from(*tensor) * u64::from(*context) * u64::from(*pipeline);
                let lanes = u32::try_from(u64::from(devices) / taken.max(1)).unwrap_or(u32::MAX).min(batch);
                let datas = or(&space.data, replicas(lanes));
                for (data, expert) in datas.iter().flat_map(|data| experts.iter().map(move |expert| (data, expert))) {
                    let per_position = u64::from(*data) * u64::from(*context) * u64::from(*tensor);
                    if per_position.is_multiple_of(u64::from(*expert)) {
                        let [data, tensor, context] = [*data, *tensor, *context];
                        plans.push(Degrees { pool, data, tensor, context, pipeline: *pipeline, expert: *expert });
                    }
                }
            }
        }
    }
    plans
}

impl Spaces {
    pub(in crate::policies) fn new(space: &Space, ask: &Question<'_>) -> Self {
        Self::on(space, ask, ask.pools())
    }

    /// On some devices.
    fn on(space: &Space, ask: &Question<'_>, pools: Vec<Pool>) -> Self {
        let all = pools.iter().enumerate().flat_map(|(pool, of)| degrees(space, ask, (pool, of.count())));
        let mut plans = all.collect::<Vec<_>>();
        plans
            .sort_by_key(|d| (u64::from(d.tensor) * u64::from(d.context) * u64::from(d.pipeline), d.tensor, d.context));
        Self {
            plans: plans.into_iter(),
            space: space.clone(),
            batch: ask.workload.global_batch,
            layers: ask.model.layers,
            sequence: ask.workload.sequence_length,
            context_method: context_method(ask.model),
            pools,
            queue: Vec::new(),
        }
    }

    /// What there is to choose beside one set of degrees.
    fn choices(&self, degrees: Degrees) -> Choices {
        let Degrees { data, tensor, context, pipeline, .. } = degrees;
        let share = self.batch / data.max(1);
        let open = || divisors(share, LARGEST_MICROBATCH).collect();
        let sizes: Vec<u32> =
            if self.space.microbatch_size.is_empty() { open() } else { self.space.microbatch_size.clone() };
        let both = tensor > 1 && self.sequence.is_multiple_of(tensor * context);
        let sequences = if both { vec![true, false] } else { vec![false] };
        Choices {
            sizes: sizes.into_iter().filter(|size| share.is_multiple_of(*size)).collect(),
            sequences: if self.space.sequence_parallel.is_empty() {
                sequences
            } else {
                self.space.sequence_parallel.clone()
            },
            zeros: self.space.zero.iter().copied().filter(|zero| self.sensible(*zero, degrees)).collect(),
            orders: self.orders(pipeline),
        }
    }

    /// The plan of a number below [`Choices::count`].
    fn plan(&self, degrees: Degrees, choices: &Choices, number: usize) -> Plan {
        let Degrees { pool, data, tensor, context, pipeline, expert } = degrees;
        let (number, order) = (number / choices.orders.len(), number % choices.orders.len());
        let (number, zero) = (number / choices.zeros.len(), number % choices.zeros.len());
        let (number, sequence) = (number / choices.sequences.len(), number % choices.sequences.len());
        let (size, zero, (schedule, chunks)) = (choices.sizes[number], choices.zeros[zero], &choices.orders[order]);
        let context_method = if context > 1 { self.context_method } else { ContextMethod::default() };
        Plan {
            data,
            tensor,
            sequence_parallel: choices.sequences[sequence],
            stages: balanced_stages(self.layers, pipeline, *chunks, Recompute::None),
            microbatch_size: size,
            microbatches: self.batch / data.max(1) / size,
            shares: ir::Shares::EQUAL,
            schedule: schedule.clone(),
            zero,
            overlap_gradients: data * context > 1 && zero != ZeroStage::Zero3,
            collective: CollectiveAlgorithm::Automatic,
            mesh: Mesh { context, context_method, expert, ..Mesh::default() },
            sharing: Sharing { prefetch: zero == ZeroStage::Zero3, ..Sharing::default() },
            placement: self.pools[pool]
                .placement([data, tensor, context, pipeline].into_iter().map(u64::from).product()),
        }
    }

    /// All plans of one set of degrees, last first.
    fn of_degrees(&self, degrees: Degrees) -> Vec<Plan> {
        let choices = self.choices(degrees);
        (0..choices.count()).rev().map(|number| self.plan(degrees, &choices, number)).collect()
    }

    /// Sharding needs replicas; sharded parameters would be gathered again for every microbatch of a pipeline.
    fn sensible(&self, zero: ZeroStage, degrees: Degrees) -> bool {
        match zero {
            _ if self.space.zero.len() == 1 => true,
            ZeroStage::Zero0 => true,
            ZeroStage::Zero1 | ZeroStage::Zero2 => degrees.data * degrees.context > 1,
            ZeroStage::Zero3 => degrees.data * degrees.context > 1 && degrees.pipeline == 1,
        }
    }

    fn orders(&self, pipeline: u32) -> Vec<(Schedule, u32)> {
        let asked = match self.space.chunks[..] {
            [chunks] => Some(chunks),
            _ => None,
        };
        if pipeline == 1 && asked.is_none_or(|chunks| chunks == 1) {
            return vec![(Schedule::OneForwardOneBackward, 1)];
        }
        let mut orders = Vec::new();
        for schedule in &self.space.schedules {
            match schedule {
                Schedule::OneForwardOneBackward => {
                    let chunks = self.space.chunks.iter().copied();
                    let whole = |v: &u32| *v == 1 || asked.is_some() || self.layers.is_multiple_of(pipeline * v);
                    orders.extend(chunks.filter(whole).map(|chunks| (schedule.clone(), chunks)));
                }
                _ => orders.push((schedule.clone(), asked.unwrap_or(schedule.usual_chunks()))),
            }
        }
        orders
    }
}

impl Iterator for Spaces {
    type Item = Plan;
    fn next(&mut self) -> Option<Plan> {
        loop {
            if let Some(plan) = self.queue.pop() {
                return Some(plan);
            }
            let degrees = self.plans.next()?;
            self.queue = self.of_degrees(degrees);
        }
    }
}

/// The plans of a space by number, each with every recomputation.
pub(in crate::policies) struct Numbered {
    spaces: Spaces,
    degrees: Vec<Degrees>,
    /// The number of the first plan after each set of degrees.
    ends: Vec<u64>,
}

impl Numbered {
    pub(in crate::policies) fn new(space: &Space, ask: &Question<'_>) -> Self {
        Self::of(Spaces::new(space, ask))
    }

    /// Those on some devices.
    pub(in crate::policies) fn on(space: &Space, ask: &Question<'_>, pool: Pool) -> Self {
        Self::of(Spaces::on(space, ask, vec![pool]))
    }

    fn of(mut spaces: Spaces) -> Self {
        let degrees = std::mem::take(&mut spaces.plans).collect::<Vec<_>>();
        let mut end = 0;
        let count = |degrees: &Degrees| (spaces.choices(*degrees).count() * spaces.space.recompute.len()) as u64;
        let ends = degrees.iter().map(|degrees| {
            end += count(degrees);
            end
        });
        let ends = ends.collect();
        Self { spaces, degrees, ends }
    }

    /// How many there are, legal or not.
    pub(in crate::policies) fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Numbers of the plans with the least recomputation, each with its ranks, sharding, schedule and chunks.
    pub(in crate::policies) fn each(&self, mut see: impl FnMut(u64, u64, ZeroStage, (&Schedule, u32))) {
        let steps = self.spaces.space.recompute.len() as u64;
        let mut number = 0;
        for degrees in &self.degrees {
            let Degrees { data, tensor, context, pipeline, .. } = *degrees;
            let ranks = [data, tensor, context, pipeline].into_iter().map(u64::from).product();
            let choices = self.spaces.choices(*degrees);
            for within in 0..choices.count() {
                let (schedule, chunks) = &choices.orders[within % choices.orders.len()];
                let zero = choices.zeros[within / choices.orders.len() % choices.zeros.len()];
                see(number, ranks, zero, (schedule, *chunks));
                number += steps;
            }
        }
    }

    /// The plan of a number below [`Self::count`].
    pub(in crate::policies) fn plan(&self, number: u64) -> Plan {
        let at = self.ends.partition_point(|end| *end <= number);
        let first = if at == 0 { 0 } else { self.ends[at - 1] };
        let within = usize::try_from(number - first).expect("fewer plans of one set of degrees than usize");
        let steps = &self.spaces.space.recompute;
        let degrees = self.degrees[at];
        let mut plan = self.spaces.plan(degrees, &self.spaces.choices(degrees), within / steps.len());
        plan.stages.iter_mut().for_each(|stage| stage.recompute = steps[within % steps.len()]);
        plan
    }
}

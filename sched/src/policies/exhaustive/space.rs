//! The values of each key that a search goes over, and their combinations.

use ir::{CollectiveAlgorithm, ContextMethod, Mesh, Plan, Recompute, Schedule, Sharing, ZeroStage};

use super::super::{Question, context_method, contexts};
use crate::aim::Pool;
use crate::legality::balanced_stages;

/// Values of a uniform plan's keys; an empty list stands for every value that divides. Of a list of one value nothing is left
/// out because it seems of no use: somebody asked for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Space {
    /// Data degrees; empty: beside the other degrees, as many replicas as there are devices for and the batch divides by, in
    /// microbatches of some size; where fewer devices may do, any number of them.
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

/// The values that a space leaves for each key on a question.
pub(in crate::policies) struct Values {
    space: Space,
    pub(in crate::policies) tensors: Vec<u32>,
    pub(in crate::policies) contexts: Vec<u32>,
    pub(in crate::policies) pipelines: Vec<u32>,
    pub(in crate::policies) experts: Vec<u32>,
    batch: u32,
    layers: u32,
    sequence: u32,
    context_method: ContextMethod,
    /// Whether fewer devices than there are may do.
    fewer: bool,
    /// What plans are laid on.
    pools: Vec<Pool>,
}

/// Plans of a space without recomputation, in a fixed order: small model parallelism first.
pub(in crate::policies) struct Spaces {
    plans: std::vec::IntoIter<Degrees>,
    values: Values,
    queue: Vec<Plan>,
}

/// Degrees of one plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Degrees {
    /// What the plan is laid on: the number of a pool.
    pub(in crate::policies) pool: usize,
    pub(in crate::policies) data: u32,
    pub(in crate::policies) tensor: u32,
    pub(in crate::policies) context: u32,
    pub(in crate::policies) pipeline: u32,
    pub(in crate::policies) expert: u32,
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

impl Values {
    pub(in crate::policies) fn new(space: &Space, ask: &Question<'_>) -> Self {
        Self::on(space, ask, ask.pools())
    }

    /// On some devices, the most of them first.
    fn on(space: &Space, ask: &Question<'_>, pools: Vec<Pool>) -> Self {
        let model = ask.model;
        let devices = pools.iter().map(Pool::count).max().unwrap_or(0);
        let devices = u32::try_from(devices).unwrap_or(u32::MAX);
        let or = |list: &[u32], open: Vec<u32>| if list.is_empty() { open } else { list.to_vec() };
        let experts = match &model.variants.experts {
            Some(experts) => or(&space.expert, divisors(experts.count, devices).collect()),
            None => vec![1],
        };
        Self {
            tensors: or(&space.tensor, divisors(model.heads, WIDEST_TENSOR).collect()),
            contexts: or(&space.context, contexts(ask.workload.sequence_length)),
            pipelines: or(&space.pipeline, (1..=model.layers.min(devices)).collect()),
            experts,
            batch: ask.workload.global_batch,
            layers: model.layers,
            sequence: ask.workload.sequence_length,
            context_method: context_method(model),
            space: space.clone(),
            fewer: ask.aim.may_leave_idle(),
            pools,
        }
    }

    /// What plans are laid on: all devices that may be used first.
    pub(in crate::policies) fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Data degrees beside others: the most that a pool has devices for, or any number.
    pub(in crate::policies) fn datas(&self, pool: usize, [tensor, context, pipeline]: [u32; 3]) -> Vec<u32> {
        if !self.space.data.is_empty() {
            return self.space.data.clone();
        }
        let taken = u64::from(tensor) * u64::from(context) * u64::from(pipeline);
        let lanes = u32::try_from(self.pools[pool].count() / taken.max(1)).unwrap_or(u32::MAX).min(self.batch);
        // Of those whose part of the batch is made of microbatches of some size.
        let divides = |data: &u32| self.batch.is_multiple_of(*data) && !self.sizes(*data).is_empty();
        let dividing = (1..=lanes).rev().filter(divides);
        if self.fewer { dividing.collect() } else { dividing.take(1).collect() }
    }

    /// Expert degrees over the ranks of one position.
    pub(in crate::policies) fn experts(&self, data: u32, tensor: u32, context: u32) -> impl Iterator<Item = u32> {
        let per_position = u64::from(data) * u64::from(context) * u64::from(tensor);
        self.experts.iter().copied().filter(move |expert| per_position.is_multiple_of(u64::from(*expert)))
    }

    /// Microbatch sizes of so many replicas.
    pub(in crate::policies) fn sizes(&self, data: u32) -> Vec<u32> {
        let share = self.batch / data.max(1);
        let open = || divisors(share, LARGEST_MICROBATCH).collect();
        let sizes: Vec<u32> =
            if self.space.microbatch_size.is_empty() { open() } else { self.space.microbatch_size.clone() };
        sizes.into_iter().filter(|size| share.is_multiple_of(*size)).collect()
    }

    /// With sequence parallelism and without.
    pub(in crate::policies) fn sequences(&self, tensor: u32, context: u32) -> Vec<bool> {
        if !self.space.sequence_parallel.is_empty() {
            return self.space.sequence_parallel.clone();
        }
        let both = tensor > 1 && self.sequence.is_multiple_of(tensor * context);
        if both { vec![true, false] } else { vec![false] }
    }

    pub(in crate::policies) fn zeros(&self, degrees: Degrees) -> Vec<ZeroStage> {
        self.space.zero.iter().copied().filter(|zero| self.sensible(*zero, degrees)).collect()
    }

    /// What there is to choose beside one set of degrees.
    fn choices(&self, degrees: Degrees) -> Choices {
        Choices {
            sizes: self.sizes(degrees.data),
            sequences: self.sequences(degrees.tensor, degrees.context),
            zeros: self.zeros(degrees),
            orders: self.orders(degrees.pipeline),
        }
    }

    /// The plan of one value of each key, with balanced stages and no recomputation.
    pub(in crate::policies) fn plan(
        &self,
        degrees: Degrees,
        (size, sequence_parallel, zero): (u32, bool, ZeroStage),
        (schedule, chunks): &(Schedule, u32),
    ) -> Plan {
        let Degrees { pool, data, tensor, context, pipeline, expert } = degrees;
        let context_method = if context > 1 { self.context_method } else { ContextMethod::default() };
        Plan {
            data,
            tensor,
            sequence_parallel,
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

    /// The plan of a number below [`Choices::count`].
    fn numbered(&self, degrees: Degrees, choices: &Choices, number: usize) -> Plan {
        let (number, order) = (number / choices.orders.len(), number % choices.orders.len());
        let (number, zero) = (number / choices.zeros.len(), number % choices.zeros.len());
        let (number, sequence) = (number / choices.sequences.len(), number % choices.sequences.len());
        let keys = (choices.sizes[number], choices.sequences[sequence], choices.zeros[zero]);
        self.plan(degrees, keys, &choices.orders[order])
    }

    /// All plans of one set of degrees, last first.
    fn of_degrees(&self, degrees: Degrees) -> Vec<Plan> {
        let choices = self.choices(degrees);
        (0..choices.count()).rev().map(|number| self.numbered(degrees, &choices, number)).collect()
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

    /// Schedules with their chunks a position.
    pub(in crate::policies) fn orders(&self, pipeline: u32) -> Vec<(Schedule, u32)> {
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

impl Spaces {
    pub(in crate::policies) fn new(space: &Space, ask: &Question<'_>) -> Self {
        Self::of(Values::new(space, ask))
    }

    fn of(values: Values) -> Self {
        let mut plans = Vec::new();
        for pool in 0..values.pools.len() {
            for tensor in values.tensors.iter().copied() {
                for context in values.contexts.iter().copied() {
                    for pipeline in values.pipelines.iter().copied() {
                        for data in values.datas(pool, [tensor, context, pipeline]) {
                            let of = |expert| Degrees { pool, data, tensor, context, pipeline, expert };
                            plans.extend(values.experts(data, tensor, context).map(of));
                        }
                    }
                }
            }
        }
        plans
            .sort_by_key(|d| (u64::from(d.tensor) * u64::from(d.context) * u64::from(d.pipeline), d.tensor, d.context));
        Self { plans: plans.into_iter(), values, queue: Vec::new() }
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
            self.queue = self.values.of_degrees(degrees);
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
        Self::of(Spaces::of(Values::on(space, ask, vec![pool])))
    }

    fn of(mut spaces: Spaces) -> Self {
        let degrees = std::mem::take(&mut spaces.plans).collect::<Vec<_>>();
        let (mut end, steps) = (0, spaces.values.space.recompute.len());
        let count = |degrees: &Degrees| (spaces.values.choices(*degrees).count() * steps) as u64;
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
        let steps = self.spaces.values.space.recompute.len() as u64;
        let mut number = 0;
        for degrees in &self.degrees {
            let Degrees { data, tensor, context, pipeline, .. } = *degrees;
            let ranks = [data, tensor, context, pipeline].into_iter().map(u64::from).product();
            let choices = self.spaces.values.choices(*degrees);
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
        let steps = &self.spaces.values.space.recompute;
        let degrees = self.degrees[at];
        let mut plan = self.spaces.values.numbered(degrees, &self.spaces.values.choices(degrees), within / steps.len());
        plan.stages.iter_mut().for_each(|stage| stage.recompute = steps[within % steps.len()]);
        plan
    }
}

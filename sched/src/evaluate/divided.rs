//! Plans whose pipeline divides the vocabulary: their passes and exchanges run in the order of [`crate::vocabulary`].

use ir::counts::{Shape, activation_bytes};
use ir::program::{BufferKind, Chunk};
use ir::{Activity, Axis, Bytes, Plan, StageMemory};

use super::closed_form::Without;
use super::peak::View;
use super::prepared::{ByBasis, ChunkCost, PARTS, Parts, Prepared, World, index};
use super::recurrence::Ends;
use super::shared::Shared;
use crate::vocabulary::{Event, Exchange, Times, Work, collective, layers_of, order, run};

/// The order of a plan's passes and exchanges.
pub(super) fn events(world: World<'_>, prepared: &Prepared, plan: &Plan, chunks: &[Chunk]) -> Vec<Event> {
    let shape = Shape { model: world.model, workload: world.workload, layout: &prepared.layout };
    let division = plan.sharing.vocabulary;
    order(shape, division, layers_of(chunks, division, plan.pipeline()), plan.microbatches)
}

/// The place of a kind of work among the passes of a chunk.
const fn place(work: Work) -> usize {
    match work {
        Work::Embedding | Work::Forward => 0,
        Work::Scores | Work::Backward => 1,
        Work::Gradients => 2,
        Work::EmbeddingGradient => 3,
    }
}

/// How long everything takes, with the bases of messages and exchanges.
pub(super) fn times(
    world: World<'_>,
    plan: &Plan,
    (shared, prepared): (&mut Shared, &mut Prepared),
    costs: &[ChunkCost],
) -> (Times, ByBasis) {
    let p = prepared.layout.pipeline;
    let (mut basis, count) = ([0; 4], u64::from(plan.microbatches));
    let mut priced = |priced: cost::Priced| {
        basis[index(priced.basis)] += priced.duration.nanoseconds() * count;
        priced.duration.nanoseconds()
    };
    let (layers, slices) = costs.split_at(p as usize);
    let passes = layers.iter().zip(slices).map(|(layers, slice)| {
        let of = |cost: &ChunkCost, work: Work| cost.passes[place(work)].time;
        let mut times = [0; Work::COUNT];
        for work in Work::OF_SLICE {
            times[work as usize] = of(slice, work);
        }
        for work in [Work::Forward, Work::Backward] {
            times[work as usize] = of(layers, work);
        }
        times
    });
    let passes = passes.collect();
    let mut forward_message = Vec::with_capacity(p as usize);
    let mut backward_message = Vec::with_capacity(p as usize);
    for edge in 0..p - 1 {
        forward_message.push(priced(prepared.message(world, plan, edge, edge + 1)));
        backward_message.push(priced(prepared.message(world, plan, edge + 1, edge)));
    }
    let layout = prepared.layout.clone();
    let shape = Shape { model: world.model, workload: world.workload, layout: &layout };
    let exchanges = Exchange::ALL.map(|exchange| {
        if exchange == Exchange::Statistics && plan.sharing.vocabulary == ir::VocabularyDivision::OneBarrier {
            return 0;
        }
        let (kind, _, bytes) = collective(shape, exchange);
        priced(prepared.along(shared, world, Axis::Pipeline, 0, kind, bytes))
    });
    (Times { passes, exchanges, forward_message, backward_message }, basis)
}

/// Ends of passes, the time that they take on each position, and ends as they would be if nothing were sent or exchanged.
pub(super) fn pace(world: World<'_>, plan: &Plan, events: &[Event], times: &Times) -> (Ends, Vec<u64>, Without) {
    let (division, m) = (plan.sharing.vocabulary, plan.microbatches);
    let ran = run(events, division, m, times);
    let work = times.passes.iter().map(|passes| passes.iter().sum::<u64>() * u64::from(m)).collect();
    let mut free = times.clone();
    free.exchanges = [0; Exchange::ALL.len()];
    free.forward_message.fill(0);
    free.backward_message.fill(0);
    let waits = !world.relief.frees(Activity::Bubble);
    let messages = if waits { run(events, division, m, &free).row } else { ran.row.clone() };
    let without = Without { gathers: ran.row.clone(), messages };
    let ends = Ends {
        first_start: ran.first_start,
        row: ran.row,
        chunk: ran.layers.into_iter().chain(ran.slice).collect(),
        last_message: ran.last_message,
    };
    (ends, work, without)
}

/// Peak memory of each position: a walk over its passes. Of what is exchanged it counts an embedding ahead, and one buffer
/// of each other kind, where the program's count depends on times.
pub(super) fn memory(view: &View<'_>, plan: &Plan, events: &[Event]) -> Vec<StageMemory> {
    let p = plan.pipeline();
    let shape = Shape { model: view.world.model, workload: view.world.workload, layout: &view.prepared.layout };
    let exchanged = Bytes::new(activation_bytes(shape).get() * 4);
    let mut now = vec![[0i64; PARTS.len()]; p as usize];
    let mut in_flight = vec![0u32; p as usize];
    let mut peaks: Vec<(i64, Parts, String)> = vec![(i64::MIN, [0; PARTS.len()], String::new()); p as usize];
    for event in events {
        let Event::Pass { position, work, .. } = *event else { continue };
        let at = position as usize;
        let layers = matches!(work, Work::Forward | Work::Backward);
        let chunk = if layers { at } else { p as usize + at };
        let (peak, after) = view.sizes[chunk].passes[place(work)];
        let parts: Parts = std::array::from_fn(|part| now[at][part] + peak[part]);
        let total = parts.iter().sum::<i64>();
        in_flight[at] += u32::from(work == Work::Forward);
        if total > peaks[at].0 {
            peaks[at] = (total, parts, moment(work, in_flight[at]));
        }
        in_flight[at] -= u32::from(work == Work::Backward);
        now[at] = std::array::from_fn(|part| now[at][part] + after[part]);
    }
    let communication = PARTS.iter().position(|part| *part == BufferKind::Communication).expect("a part");
    let stage = |(position, (_, mut parts, moment)): (u32, (i64, Parts, String))| {
        parts[communication] += i64::try_from(exchanged.get()).expect("a buffer of less than 2^63 bytes");
        view.report(position, parts, moment)
    };
    (0..p).zip(peaks).map(stage).collect()
}

fn moment(work: Work, in_flight: u32) -> String {
    let pass = match work {
        Work::Embedding => "embedding",
        Work::Scores => "logits",
        Work::Gradients => "gradients of the head",
        Work::EmbeddingGradient => "gradients of the embedding",
        Work::Forward => "forward pass",
        Work::Backward => "backward pass",
    };
    format!("{pass} with {in_flight} microbatch{} in flight", if in_flight == 1 { "" } else { "es" })
}

//! One program and one timeline to numbers.
//!
//! # Where the time goes
//!
//! Each rank's iteration is divided into [`Activity`]s without gap or overlap, in whole nanoseconds, so that the parts
//! sum to the iteration exactly. While the compute stream works, the time belongs to what it works on. While it waits and
//! communication of this rank runs (all partners there), the time is that communication's, exposed; of several kinds at
//! once the first of tensor, pipeline, model, data takes it. What is left is bubble. Before all that the ranks may have waited
//! for their tokens: an input stall. Communication that runs beside compute
//! is hidden and costs nothing here; a collective that waits for its partners does not run yet.
//!
//! A stage's parts are the mean over its ranks, rounded by largest remainders so that they still sum exactly.

mod lane;
mod memory;
mod split;

pub use memory::{MemoryChange, MemoryPeak, memory_changes, memory_peak};
pub(crate) use memory::{apply, resident};
pub use split::Split;
pub(crate) use split::key;

use ir::{Bytes, Clock, Flops, FlopsPerSecond, Program, StageId, Timeline};
use serde::Serialize;

use crate::activity::Activity;
use lane::LaneTimes;

/// What turns tokens per second into arithmetic per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelRate {
    /// Operations of the model per token of training, recomputation not counted (PaLM, Chowdhery et al. 2022, appendix B).
    pub flops_per_token: Flops,
    /// Dense peak of all devices of the job together, in the training precision.
    pub peak: Option<FlopsPerSecond>,
}

/// The numbers of one iteration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Metrics {
    /// What the times are.
    pub clock: Clock,
    /// Which iteration, from 0.
    pub iteration: u64,
    /// First start to last end.
    pub iteration_ns: u64,
    /// `1 - work / longest stage span`, where work is the mean over ranks of the time in passes (with the tensor
    /// collectives that they wait for) and a stage's span goes from the start of its first pass to the end of its last;
    /// the optimizer and what surrounds it are outside. `None` if there is no pass.
    pub bubble_rate: Option<f64>,
    /// Tokens of the global batch over the iteration.
    pub tokens_per_second: f64,
    /// Tokens per second times operations per token, if those were given.
    pub model_flops_per_second: Option<f64>,
    /// The same over the peak of all devices (MFU), if that was given.
    pub model_flops_utilization: Option<f64>,
    /// Mean over all ranks; sums to the iteration.
    pub time: Split,
    /// Each kind of communication: how long it ran and how much of that nothing hid. Mean over all ranks.
    pub communication: Vec<CommunicationMetrics>,
    /// Per pipeline position, in order.
    pub stages: Vec<StageMetrics>,
}

/// One kind of communication.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CommunicationMetrics {
    /// Which.
    pub activity: Activity,
    /// Time during which at least one such span ran, mean over ranks, rounded down.
    pub running_ns: u64,
    /// Of it, what compute waited for.
    pub exposed_ns: u64,
}

/// One pipeline position.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageMetrics {
    /// Which.
    pub stage: StageId,
    /// Its ranks.
    pub ranks: u32,
    /// Mean over its ranks; sums to the iteration.
    pub time: Split,
    /// Time in compute instructions, optimizer included.
    pub busy_ns: u64,
    /// Time in which compute waited for communication that ran.
    pub exposed_communication_ns: u64,
    /// Time in which it waited for another rank.
    pub bubble_ns: u64,
    /// From the first start of a pass to the last end of one, over its ranks.
    pub span_ns: u64,
    /// The rank that needs most memory.
    pub memory: MemoryPeak,
}

impl Metrics {
    /// Computes them. `capacity` is the memory of each stage's device, by stage; stages past its end have none known.
    ///
    /// # Panics
    /// If the timeline is not one of the program: a lane without a span for each instruction.
    #[must_use]
    pub fn of(program: &Program, timeline: &Timeline, rate: Option<ModelRate>, capacity: &[Bytes]) -> Self {
        let (begin, end) = bounds(timeline);
        let wait = timeline.input_wait.nanoseconds().min(end - begin);
        let lanes: Vec<LaneTimes> =
            timeline.lanes.iter().map(|lane| LaneTimes::of(program, lane, (begin, end), wait)).collect();
        let iteration_ns = end - begin;
        let stages = stages(program, timeline, &lanes, iteration_ns, capacity);
        let longest = stages.iter().map(|stage| stage.span_ns).max().unwrap_or(0);
        let tokens_per_second = if iteration_ns == 0 {
            0.0
        } else {
            program.workload.tokens_per_iteration() as f64 / (iteration_ns as f64 * 1e-9)
        };
        let flops_per_second = rate.map(|rate| tokens_per_second * rate.flops_per_token.get() as f64);
        let utilization = flops_per_second.zip(rate.and_then(|rate| rate.peak)).map(|(flops, peak)| flops / peak.get());
        Self {
            clock: timeline.clock,
            iteration: timeline.iteration,
            iteration_ns,
            bubble_rate: (longest > 0).then(|| 1.0 - mean_work(timeline, &lanes) / longest as f64),
            tokens_per_second,
            model_flops_per_second: flops_per_second,
            model_flops_utilization: utilization,
            time: Split::mean(weighted(timeline, &lanes, |_| true), iteration_ns),
            communication: communication(timeline, &lanes),
            stages,
        }
    }
}

/// First start (before it, the wait for input) and last end of a timeline, in nanoseconds; both 0 if nothing ran.
#[must_use]
pub fn bounds(timeline: &Timeline) -> (u64, u64) {
    let spans = || timeline.lanes.iter().flat_map(|lane| &lane.spans);
    let begin = spans().map(|span| span.start.nanoseconds()).min().unwrap_or(0);
    let begin = begin.saturating_sub(timeline.input_wait.nanoseconds());
    let end = spans().map(|span| span.end.nanoseconds()).max().unwrap_or(0);
    (begin, end)
}

fn weighted<'a>(
    timeline: &'a Timeline,
    lanes: &'a [LaneTimes],
    which: impl Fn(usize) -> bool + 'a,
) -> impl Iterator<Item = (&'a Split, u32)> {
    let of = move |(index, lane): (usize, &'a LaneTimes)| {
        which(index).then_some((&lane.time, timeline.lanes[index].multiplicity))
    };
    lanes.iter().enumerate().filter_map(of)
}

fn mean_work(timeline: &Timeline, lanes: &[LaneTimes]) -> f64 {
    let (mut work, mut ranks) = (0u128, 0u128);
    for (lane, times) in timeline.lanes.iter().zip(lanes) {
        work += u128::from(times.work) * u128::from(lane.multiplicity);
        ranks += u128::from(lane.multiplicity);
    }
    work as f64 / ranks as f64
}

fn communication(timeline: &Timeline, lanes: &[LaneTimes]) -> Vec<CommunicationMetrics> {
    let ranks: u128 = timeline.lanes.iter().map(|lane| u128::from(lane.multiplicity)).sum();
    let mean = |value: &dyn Fn(&LaneTimes) -> u64| {
        let sum: u128 = timeline
            .lanes
            .iter()
            .zip(lanes)
            .map(|(lane, times)| u128::from(value(times)) * u128::from(lane.multiplicity))
            .sum();
        u64::try_from(sum / ranks.max(1)).expect("a mean is no larger than its largest part")
    };
    let metrics = |activity: Activity| CommunicationMetrics {
        activity,
        running_ns: mean(&|times| times.running[activity.index()]),
        exposed_ns: mean(&|times| times.time.get(activity)),
    };
    Activity::ALL
        .into_iter()
        .filter(|activity| activity.is_communication())
        .map(metrics)
        .filter(|metrics| metrics.running_ns > 0)
        .collect()
}

fn stages(
    program: &Program,
    timeline: &Timeline,
    lanes: &[LaneTimes],
    iteration_ns: u64,
    capacity: &[Bytes],
) -> Vec<StageMetrics> {
    let stage_of = |index: usize| program.roles[timeline.lanes[index].role.index()].stage;
    let mut ids: Vec<StageId> = (0..lanes.len()).map(stage_of).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); ids.len()];
    for index in 0..lanes.len() {
        members[ids.binary_search(&stage_of(index)).expect("every lane's stage is in the list")].push(index);
    }
    let metrics = |(stage, members): (StageId, Vec<usize>)| {
        let time =
            Split::mean(members.iter().map(|i| (&lanes[*i].time, timeline.lanes[*i].multiplicity)), iteration_ns);
        let first = members.iter().filter_map(|i| lanes[*i].passes.map(|(first, _)| first)).min();
        let last = members.iter().filter_map(|i| lanes[*i].passes.map(|(_, last)| last)).max();
        let mut memory: Option<MemoryPeak> = None;
        for index in &members {
            let peak = memory_peak(program, &timeline.lanes[*index], capacity.get(stage.index()).copied());
            if memory.as_ref().is_none_or(|most| peak.peak_bytes > most.peak_bytes) {
                memory = Some(peak);
            }
        }
        let bubble_ns = time.get(Activity::Bubble);
        let exposed_communication_ns = time.communication();
        StageMetrics {
            stage,
            ranks: members.iter().map(|i| timeline.lanes[*i].multiplicity).sum(),
            busy_ns: iteration_ns - bubble_ns - exposed_communication_ns - time.get(Activity::InputStall),
            exposed_communication_ns,
            bubble_ns,
            span_ns: first.zip(last).map_or(0, |(first, last)| last - first),
            memory: memory.expect("a stage has at least one lane"),
            time,
        }
    };
    ids.into_iter().zip(members).map(metrics).collect()
}

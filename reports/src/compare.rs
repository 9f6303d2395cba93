//! Two timelines of one program, joined instruction by instruction.
//!
//! The join is on (rank, instruction id). A folded lane stands for every rank of its role, so a simulated timeline of
//! roles joins a measured one of ranks. Durations are start to end: what a collective or message waits for its partners
//! is left out, because that is another instruction's error. Of several measured iterations each instruction keeps its
//! median. Relative errors are `(predicted - measured) / measured`, the measured one taken as at least a nanosecond.

pub mod statistics;

use ir::program::Stream;
use ir::{Clock, InstructionId, Lane, Problem, Program, Rank, RoleId, StageId, Timeline};
use serde::Serialize;

use crate::activity::InstructionClass;
use crate::metrics::{Metrics, bounds};
use crate::report::timeline_problems;
use crate::words;
use statistics::{median_u64, quantile};

/// How many of the worst instructions are kept.
const WORST: usize = 10;

/// How far a prediction is from what was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The clock of the prediction.
    pub predicted_clock: Clock,
    /// The clock of what it is held against.
    pub measured_clock: Clock,
    /// Measured iterations whose medians were taken.
    pub measured_iterations: u32,
    /// The whole iteration, first start to last end.
    pub iteration: Pair,
    /// Of it the wait for input before anything began; left out where there is none.
    #[serde(skip_serializing_if = "Pair::is_nothing")]
    pub input_stall: Pair,
    /// All instructions together.
    pub all: ClassError,
    /// Each class of instruction, in order.
    pub classes: Vec<ClassError>,
    /// Time in which compute waited for communication that ran, mean over the ranks.
    pub exposed_communication: Pair,
    /// Each pipeline position.
    pub stages: Vec<StageError>,
    /// The instructions that are furthest off in time, the furthest first.
    pub worst: Vec<InstructionError>,
}

/// A predicted and a measured time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Pair {
    /// Predicted.
    pub predicted_ns: u64,
    /// Measured; the median where there are several.
    pub measured_ns: u64,
    /// `(predicted - measured) / measured`.
    pub relative_error: f64,
}

impl Pair {
    /// Whether both times are zero.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.predicted_ns == 0 && self.measured_ns == 0
    }
    /// Of two times.
    #[must_use]
    pub fn new(predicted_ns: u64, measured_ns: u64) -> Self {
        Self { predicted_ns, measured_ns, relative_error: statistics::relative_error(predicted_ns, measured_ns) }
    }
}

/// The error of a class of instructions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClassError {
    /// Which; `None` for all together.
    pub class: Option<InstructionClass>,
    /// Instructions joined, over all measured ranks.
    pub count: u64,
    /// Median predicted duration.
    pub predicted_median_ns: u64,
    /// Median measured duration.
    pub measured_median_ns: u64,
    /// Predicted time of all of them over measured time of all of them.
    pub ratio: f64,
    /// Median of the absolute relative errors.
    pub median_relative_error: f64,
    /// 90th percentile of the absolute relative errors.
    pub p90_relative_error: f64,
    /// Median of the signed relative errors: positive where the prediction is slow.
    pub bias: f64,
    /// Measured time of all of them.
    pub measured_total_ns: u64,
}

/// The error of a pipeline position.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageError {
    /// Which.
    pub stage: StageId,
    /// Time in compute instructions, mean over the measured ranks.
    pub busy: Pair,
    /// From the first start to the last end of a compute instruction, over the measured ranks.
    pub span: Pair,
    /// Time in which compute waited for communication that ran, mean over the ranks.
    pub exposed_communication: Pair,
    /// The most that one of its ranks held.
    pub memory: MemoryError,
}

/// A predicted and a measured peak of memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MemoryError {
    /// Predicted.
    pub predicted_bytes: u64,
    /// As the backend counted; the largest where there are several iterations.
    pub measured_bytes: u64,
    /// `(predicted - measured) / measured`.
    pub relative_error: f64,
}

impl MemoryError {
    fn new(predicted_bytes: u64, measured_bytes: u64) -> Self {
        let relative_error = statistics::relative_error(predicted_bytes, measured_bytes);
        Self { predicted_bytes, measured_bytes, relative_error }
    }
}

/// The error of one instruction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct InstructionError {
    /// The measured rank.
    pub rank: Rank,
    /// The instruction of its role.
    pub instruction: InstructionId,
    /// In words.
    pub what: String,
    /// Its class.
    pub class: InstructionClass,
    /// Its times.
    pub duration: Pair,
}

/// One joined instruction.
#[derive(Clone, Copy, Debug)]
struct Joined {
    rank: Rank,
    role: RoleId,
    instruction: InstructionId,
    class: usize,
    predicted: u64,
    measured: u64,
}

impl Joined {
    fn relative(&self) -> f64 {
        statistics::relative_error(self.predicted, self.measured)
    }
}

/// Holds a prediction against measured iterations of the same program.
///
/// # Errors
/// Every reason why they cannot be joined: nothing measured, timelines of another program, ranks that were not
/// predicted, iterations that followed different ranks.
pub fn compare(program: &Program, predicted: &Timeline, measured: &[&Timeline]) -> Result<Comparison, Vec<Problem>> {
    let partners = join_lanes(program, predicted, measured)?;
    let first = measured[0];
    let mut classes: Vec<InstructionClass> = program
        .roles
        .iter()
        .flat_map(|role| role.instructions().iter().map(|i| InstructionClass::of(program, &i.op)))
        .collect();
    classes.sort_unstable();
    classes.dedup();
    let mut joined = Vec::new();
    for (index, partner) in partners.iter().enumerate() {
        join_spans(program, &predicted.lanes[*partner], measured, index, &classes, &mut joined);
    }
    let mut by_class: Vec<Vec<&Joined>> = vec![Vec::new(); classes.len()];
    for entry in &joined {
        by_class[entry.class].push(entry);
    }
    let errors = classes.iter().zip(&by_class).filter(|(_, entries)| !entries.is_empty());
    let length = |timeline: &Timeline| {
        let (begin, end) = bounds(timeline);
        end - begin
    };
    let metrics = |timeline: &Timeline| Metrics::of(program, timeline, None, &[]);
    let (expected, found) = (metrics(predicted), measured.iter().map(|t| metrics(t)).collect::<Vec<_>>());
    let exposed = |metrics: &Metrics| metrics.time.communication();
    Ok(Comparison {
        predicted_clock: predicted.clock,
        measured_clock: first.clock,
        measured_iterations: u32::try_from(measured.len()).expect("fewer iterations than 2^32"),
        iteration: Pair::new(length(predicted), median_u64(measured.iter().map(|t| length(t)).collect())),
        input_stall: Pair::new(
            predicted.input_wait.nanoseconds(),
            median_u64(measured.iter().map(|t| t.input_wait.nanoseconds()).collect()),
        ),
        all: class_error(None, &joined.iter().collect::<Vec<_>>()),
        classes: errors.map(|(class, entries)| class_error(Some(*class), entries)).collect(),
        exposed_communication: Pair::new(exposed(&expected), median_u64(found.iter().map(exposed).collect())),
        stages: stage_errors(program, predicted, measured, &partners, (&expected, &found)),
        worst: worst(program, &joined, &classes),
    })
}

/// For each lane of the first measured timeline, the predicted lane that stands for it.
fn join_lanes(program: &Program, predicted: &Timeline, measured: &[&Timeline]) -> Result<Vec<usize>, Vec<Problem>> {
    let mut problems = Vec::new();
    let Some(first) = measured.first() else {
        return Err(vec![Problem::new("comparison", "there is no measured iteration to hold the prediction against")]);
    };
    for timeline in measured.iter().filter(|timeline| timeline.program != predicted.program) {
        problems.push(
            Problem::new(
                "comparison",
                format!(
                    "the {} iteration {} is of program {:016x}, the prediction of program {:016x}",
                    timeline.clock.word(),
                    timeline.iteration,
                    timeline.program,
                    predicted.program
                ),
            )
            .hint("compare timelines of one and the same plan"),
        );
    }
    let ranks = |timeline: &Timeline| timeline.lanes.iter().map(|lane| (lane.rank, lane.role)).collect::<Vec<_>>();
    let followed = ranks(first);
    for timeline in measured.iter().filter(|timeline| ranks(timeline) != followed) {
        problems.push(Problem::new(
            "comparison",
            format!("iteration {} followed other ranks than iteration {}", timeline.iteration, first.iteration),
        ));
    }
    for timeline in measured.iter().chain([&predicted]) {
        problems.extend(timeline_problems(program, timeline));
    }
    let mut partners = Vec::with_capacity(first.lanes.len());
    for lane in &first.lanes {
        match partner(predicted, lane) {
            Some(index) => partners.push(index),
            None => problems.push(Problem::new(format!("rank {}", lane.rank.raw()), "was measured but not predicted")),
        }
    }
    if problems.is_empty() { Ok(partners) } else { Err(problems) }
}

/// The lane of the same rank, or else a folded lane of the same role.
fn partner(predicted: &Timeline, lane: &Lane) -> Option<usize> {
    let same_role = |candidate: &Lane| candidate.role == lane.role;
    predicted
        .lanes
        .iter()
        .position(|candidate| candidate.rank == lane.rank && same_role(candidate))
        .or_else(|| predicted.lanes.iter().position(|candidate| same_role(candidate) && candidate.multiplicity > 1))
}

fn join_spans(
    program: &Program,
    predicted: &Lane,
    measured: &[&Timeline],
    lane: usize,
    classes: &[InstructionClass],
    joined: &mut Vec<Joined>,
) {
    let (rank, role) = (measured[0].lanes[lane].rank, measured[0].lanes[lane].role);
    for (index, instruction) in program.roles[role.index()].instructions().iter().enumerate() {
        let class = InstructionClass::of(program, &instruction.op);
        let duration = |lane: &Lane| (lane.spans[index].end - lane.spans[index].start).nanoseconds();
        joined.push(Joined {
            rank,
            role,
            instruction: InstructionId::at(index),
            class: classes.binary_search(&class).expect("every instruction's class is in the list"),
            predicted: duration(predicted),
            measured: median_u64(measured.iter().map(|timeline| duration(&timeline.lanes[lane])).collect()),
        });
    }
}

fn class_error(class: Option<InstructionClass>, entries: &[&Joined]) -> ClassError {
    let absolute: Vec<f64> = entries.iter().map(|entry| entry.relative().abs()).collect();
    let signed: Vec<f64> = entries.iter().map(|entry| entry.relative()).collect();
    let total = |time: fn(&Joined) -> u64| entries.iter().map(|entry| u128::from(time(entry))).sum::<u128>();
    let (predicted, measured) = (total(|e| e.predicted), total(|e| e.measured));
    ClassError {
        class,
        count: entries.len() as u64,
        predicted_median_ns: median_u64(entries.iter().map(|entry| entry.predicted).collect()),
        measured_median_ns: median_u64(entries.iter().map(|entry| entry.measured).collect()),
        ratio: predicted as f64 / measured.max(1) as f64,
        median_relative_error: quantile(absolute.clone(), 0.5).unwrap_or(0.0),
        p90_relative_error: quantile(absolute, 0.9).unwrap_or(0.0),
        bias: quantile(signed, 0.5).unwrap_or(0.0),
        measured_total_ns: u64::try_from(measured).unwrap_or(u64::MAX),
    }
}

/// Time in compute instructions, first start and last end of one, of a lane.
fn compute_of(program: &Program, lane: &Lane) -> (u64, u64, u64) {
    let mut result = (0, u64::MAX, 0);
    let instructions = program.roles[lane.role.index()].instructions();
    for (span, _) in lane.spans.iter().zip(instructions).filter(|(_, i)| i.stream == Stream::Compute) {
        result.0 += (span.end - span.start).nanoseconds();
        result.1 = result.1.min(span.start.nanoseconds());
        result.2 = result.2.max(span.end.nanoseconds());
    }
    result
}

fn stage_errors(
    program: &Program,
    predicted: &Timeline,
    measured: &[&Timeline],
    partners: &[usize],
    (expected, found): (&Metrics, &[Metrics]),
) -> Vec<StageError> {
    let stage_of = |lane: &Lane| program.roles[lane.role.index()].stage;
    let mut stages: Vec<StageId> = measured[0].lanes.iter().map(stage_of).collect();
    stages.sort_unstable();
    stages.dedup();
    let busy_and_span = |lanes: Vec<&Lane>| {
        let times: Vec<(u64, u64, u64)> = lanes.into_iter().map(|lane| compute_of(program, lane)).collect();
        let busy = times.iter().map(|t| t.0).sum::<u64>() / (times.len() as u64).max(1);
        let first = times.iter().map(|t| t.1).min().unwrap_or(0);
        let last = times.iter().map(|t| t.2).max().unwrap_or(0);
        (busy, last.saturating_sub(first))
    };
    let error = |stage: StageId| {
        let lanes: Vec<usize> =
            (0..partners.len()).filter(|index| stage_of(&measured[0].lanes[*index]) == stage).collect();
        let (busy, span) = busy_and_span(lanes.iter().map(|index| &predicted.lanes[partners[*index]]).collect());
        let (busies, spans): (Vec<u64>, Vec<u64>) = measured
            .iter()
            .map(|timeline| busy_and_span(lanes.iter().map(|index| &timeline.lanes[*index]).collect()))
            .unzip();
        let of = |metrics: &Metrics| {
            // Both have a lane of each stage: lanes were joined.
            let own = metrics.stages.iter().find(|own| own.stage == stage).expect("a stage with a lane");
            (own.exposed_communication_ns, own.memory.counted_peak_bytes.unwrap_or(own.memory.peak_bytes))
        };
        let (exposed, bytes) = of(expected);
        let (exposures, peaks): (Vec<u64>, Vec<u64>) = found.iter().map(of).unzip();
        StageError {
            stage,
            busy: Pair::new(busy, median_u64(busies)),
            span: Pair::new(span, median_u64(spans)),
            exposed_communication: Pair::new(exposed, median_u64(exposures)),
            memory: MemoryError::new(bytes, peaks.into_iter().max().unwrap_or(0)),
        }
    };
    stages.into_iter().map(error).collect()
}

fn worst(program: &Program, joined: &[Joined], classes: &[InstructionClass]) -> Vec<InstructionError> {
    let mut order: Vec<&Joined> = joined.iter().filter(|entry| entry.predicted != entry.measured).collect();
    let key =
        |entry: &&Joined| (std::cmp::Reverse(entry.predicted.abs_diff(entry.measured)), entry.rank, entry.instruction);
    if order.len() > WORST {
        order.select_nth_unstable_by_key(WORST, key);
        order.truncate(WORST);
    }
    order.sort_by_key(key);
    let words = |entry: &Joined| InstructionError {
        rank: entry.rank,
        instruction: entry.instruction,
        what: words::instruction(program, entry.role, entry.instruction),
        class: classes[entry.class],
        duration: Pair::new(entry.predicted, entry.measured),
    };
    order.into_iter().map(words).collect()
}

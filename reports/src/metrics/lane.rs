//! One rank's iteration, divided.

use ir::program::Stream;
use ir::{Lane, Op, Program};

use super::split::Split;
use crate::activity::Activity;

/// The times of one lane, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct LaneTimes {
    /// The whole iteration, divided.
    pub(super) time: Split,
    /// Passes, and the tensor collectives that passes waited for.
    pub(super) work: u64,
    /// First start and last end of a pass.
    pub(super) passes: Option<(u64, u64)>,
    /// How long at least one span of each kind of communication ran.
    pub(super) running: [u64; Activity::COUNT],
}

/// Kinds of communication; of several that run at once the first takes the wait.
const PRECEDENCE: [Activity; 7] = [
    Activity::TensorCommunication,
    Activity::ContextCommunication,
    Activity::ExpertCommunication,
    Activity::PipelineCommunication,
    Activity::ModelCommunication,
    Activity::DataCommunication,
    Activity::HostCopy,
];

/// A stretch of time in which communication ran, and the kind that takes the wait. Stretches are in order and apart.
type Stretch = (u64, u64, Activity);

impl LaneTimes {
    /// `wait` is what of the iteration went by before its tokens were there.
    pub(super) fn of(program: &Program, lane: &Lane, (begin, end): (u64, u64), wait: u64) -> Self {
        let instructions = program.roles[lane.role.index()].instructions();
        assert_eq!(
            lane.spans.len(),
            instructions.len(),
            "the lane of rank {} has {} spans for the {} instructions of {}",
            lane.rank,
            lane.spans.len(),
            instructions.len(),
            lane.role
        );
        let (stretches, running) = communication(program, lane);
        let mut waits = Waits { stretches: &stretches, next: 0 };
        let mut times = Self { time: Split::default(), work: 0, passes: None, running };
        times.time.add(Activity::InputStall, wait);
        let mut cursor = begin + wait;
        for (instruction, span) in instructions.iter().zip(&lane.spans) {
            if instruction.stream != Stream::Compute {
                continue;
            }
            let (start, stop) = (span.start.nanoseconds().max(cursor), span.end.nanoseconds().max(cursor));
            let is_pass = matches!(instruction.op, Op::Compute { .. });
            let tensor = waits.divide(cursor, start, &mut times.time);
            times.time.add(Activity::of(program, &instruction.op), stop - start);
            if is_pass {
                // What the first pass waited for lies before the stage's span.
                times.work += stop - start + if times.passes.is_some() { tensor } else { 0 };
                times.passes = Some((times.passes.map_or(start, |(first, _)| first), stop));
            }
            cursor = stop;
        }
        waits.divide(cursor, end, &mut times.time);
        times
    }
}

/// Goes once through the stretches of a lane, wait by wait.
struct Waits<'a> {
    stretches: &'a [Stretch],
    next: usize,
}

impl Waits<'_> {
    /// Puts the wait `from..to` down to the communication that ran in it, the rest to bubble; returns the tensor part.
    /// Waits come in order.
    fn divide(&mut self, from: u64, to: u64, time: &mut Split) -> u64 {
        let (mut cursor, mut tensor) = (from, 0);
        while let Some((start, stop, activity)) = self.stretches.get(self.next).copied() {
            let (start, clipped) = (start.max(cursor), stop.min(to));
            if start < clipped {
                time.add(Activity::Bubble, start - cursor);
                time.add(activity, clipped - start);
                tensor += if activity == Activity::TensorCommunication { clipped - start } else { 0 };
                cursor = clipped;
            }
            if stop > to {
                break;
            }
            self.next += 1;
        }
        time.add(Activity::Bubble, to - cursor);
        tensor
    }
}

/// When communication ran on a lane, and how long each kind did.
fn communication(program: &Program, lane: &Lane) -> (Vec<Stretch>, [u64; Activity::COUNT]) {
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (instruction, span) in program.roles[lane.role.index()].instructions().iter().zip(&lane.spans) {
        let activity = Activity::of(program, &instruction.op);
        let Some(kind) = PRECEDENCE.iter().position(|a| *a == activity) else { continue };
        if span.start < span.end {
            edges.push((span.start.nanoseconds(), true, kind));
            edges.push((span.end.nanoseconds(), false, kind));
        }
    }
    edges.sort_unstable();
    let (mut stretches, mut running) = (Vec::new(), [0; Activity::COUNT]);
    let mut open = [0u32; PRECEDENCE.len()];
    let mut cursor = 0;
    for (time, opens, kind) in edges {
        if time > cursor {
            for kind in (0..PRECEDENCE.len()).filter(|kind| open[*kind] > 0) {
                running[PRECEDENCE[kind].index()] += time - cursor;
            }
            if let Some(first) = open.iter().position(|n| *n > 0) {
                stretches.push((cursor, time, PRECEDENCE[first]));
            }
            cursor = time;
        }
        open[kind] = if opens { open[kind] + 1 } else { open[kind] - 1 };
    }
    (stretches, running)
}

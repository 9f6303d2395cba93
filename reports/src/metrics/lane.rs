//! One rank's iteration, divided.

use ir::program::Stream;
use ir::{InstructionId, Lane, Op, Program, Role};

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

/// Kinds of communication, the first that runs takes the wait.
const PRECEDENCE: [Activity; 4] = [
    Activity::TensorCommunication,
    Activity::PipelineCommunication,
    Activity::ModelCommunication,
    Activity::DataCommunication,
];

/// An interval of one kind of communication.
type Interval = (u64, u64, Activity);

impl LaneTimes {
    pub(super) fn of(program: &Program, lane: &Lane, begin: u64, end: u64) -> Self {
        let role = &program.roles[lane.role.index()];
        assert_eq!(
            lane.spans.len(),
            role.instructions().len(),
            "the lane of rank {} has {} spans for the {} instructions of {}",
            lane.rank,
            lane.spans.len(),
            role.instructions().len(),
            lane.role
        );
        let mut walk = Walk::new(program, role, lane);
        let mut times = Self { time: Split::default(), work: 0, passes: None, running: walk.running() };
        let mut cursor = begin;
        for (index, instruction) in role.instructions().iter().enumerate() {
            if instruction.stream != Stream::Compute {
                continue;
            }
            let span = lane.spans[index];
            let (start, stop) = (span.start.nanoseconds().max(cursor), span.end.nanoseconds().max(cursor));
            let is_pass = matches!(instruction.op, Op::Compute { .. });
            let gap = walk.waited_for(InstructionId::at(index), cursor, start);
            times.add_gap(&gap, cursor, start, is_pass);
            let activity = walk.activities[index];
            times.time.add(activity, stop - start);
            if is_pass {
                times.work += stop - start;
                times.passes = Some((times.passes.map_or(start, |(first, _)| first), stop));
            }
            cursor = stop;
        }
        let tail = walk.still_running(cursor, end);
        times.add_gap(&tail, cursor, end, false);
        times
    }

    /// Divides a wait among the communication that ran in it and bubble.
    fn add_gap(&mut self, running: &[Interval], from: u64, to: u64, before_a_pass: bool) {
        let mut edges: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * running.len());
        for (start, stop, activity) in running {
            let kind = PRECEDENCE.iter().position(|a| a == activity).expect("an interval is of communication");
            edges.push((*start, true, kind));
            edges.push((*stop, false, kind));
        }
        edges.sort_unstable();
        let mut open = [0u32; PRECEDENCE.len()];
        let mut cursor = from;
        for (time, opens, kind) in edges.into_iter().map(Some).chain([None]).map(|edge| edge.unwrap_or((to, true, 0))) {
            let activity = open.iter().position(|n| *n > 0).map_or(Activity::Bubble, |kind| PRECEDENCE[kind]);
            self.time.add(activity, time - cursor);
            if before_a_pass && activity == Activity::TensorCommunication && self.passes.is_some() {
                self.work += time - cursor;
            }
            cursor = time;
            // Closings of an instant come before its openings, so a closing could find nothing open only for an empty
            // interval, and those are never collected.
            open[kind] = if opens { open[kind] + 1 } else { open[kind] - 1 };
        }
    }
}

/// A lane with what is needed to go back along its waits.
struct Walk<'a> {
    role: &'a Role,
    lane: &'a Lane,
    activities: Vec<Activity>,
    /// The instruction before each on its stream.
    before: Vec<Option<InstructionId>>,
    /// The last question that visited each instruction.
    visited: Vec<u32>,
    questions: u32,
}

impl<'a> Walk<'a> {
    fn new(program: &Program, role: &'a Role, lane: &'a Lane) -> Self {
        let mut last: [Option<InstructionId>; Stream::ALL.len()] = [None; Stream::ALL.len()];
        let mut before = Vec::with_capacity(lane.spans.len());
        for (index, instruction) in role.instructions().iter().enumerate() {
            before.push(last[instruction.stream as usize].replace(InstructionId::at(index)));
        }
        let activities = role.instructions().iter().map(|i| Activity::of(program, &i.op)).collect();
        Self { role, lane, activities, before, visited: vec![0; lane.spans.len()], questions: 0 }
    }

    fn clipped(&self, index: usize, from: u64, to: u64) -> Option<Interval> {
        let span = self.lane.spans[index];
        let (start, stop) = (span.start.nanoseconds().max(from), span.end.nanoseconds().min(to));
        (self.activities[index].is_communication() && start < stop).then_some((start, stop, self.activities[index]))
    }

    /// Communication that ran in `from..to` and that `target` waited for, directly or through others.
    fn waited_for(&mut self, target: InstructionId, from: u64, to: u64) -> Vec<Interval> {
        let mut found = Vec::new();
        if from >= to {
            return found;
        }
        self.questions += 1;
        let mut pending: Vec<InstructionId> = self.role.waits(self.role.instruction(target)).to_vec();
        while let Some(id) = pending.pop() {
            let index = id.index();
            // What ended before the wait began cannot explain it, nor can what that waited for.
            if self.visited[index] == self.questions || self.lane.spans[index].end.nanoseconds() <= from {
                continue;
            }
            self.visited[index] = self.questions;
            found.extend(self.clipped(index, from, to));
            pending.extend(self.before[index]);
            pending.extend_from_slice(self.role.waits(self.role.instruction(id)));
        }
        found
    }

    /// All communication that ran in `from..to`.
    fn still_running(&self, from: u64, to: u64) -> Vec<Interval> {
        (0..self.lane.spans.len()).filter_map(|index| self.clipped(index, from, to)).collect()
    }

    /// How long at least one span of each kind ran.
    fn running(&self) -> [u64; Activity::COUNT] {
        let mut intervals: Vec<(Activity, u64, u64)> = (0..self.lane.spans.len())
            .filter_map(|index| self.clipped(index, 0, u64::MAX))
            .map(|(start, stop, activity)| (activity, start, stop))
            .collect();
        intervals.sort_unstable();
        let mut running = [0; Activity::COUNT];
        let mut covered = (None, 0);
        for (activity, start, stop) in intervals {
            if covered.0 != Some(activity) {
                covered = (Some(activity), 0);
            }
            running[activity.index()] += stop.saturating_sub(start.max(covered.1));
            covered.1 = covered.1.max(stop);
        }
        running
    }
}

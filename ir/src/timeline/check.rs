//! What must be true of every timeline, whoever made it.

use crate::program::{Message, Role, Stream};
use crate::{Clock, GroupId, InstructionId, Op, Problem, Program, Rank, RoleId, SimDuration, SimTime, Span, Timeline};

impl Timeline {
    /// Every way in which this timeline contradicts the program it says it ran; empty for a sound one.
    ///
    /// Checked: each instruction has one span, `issued <= start <= end`; streams carry out their instructions one
    /// after another; nothing is issued before the iteration's tokens are there, or before its waits ended; both ends of a message, and all members of a
    /// collective that the lanes show, start after the last of them was issued. In simulation they also start and end
    /// as one; measured, each copies its part in its own time.
    /// `slack` allows for clocks that differ between ranks; it applies only across ranks.
    #[must_use]
    pub fn faults(&self, program: &Program, slack: SimDuration) -> Vec<Problem> {
        let mut faults = Vec::new();
        for lane in &self.lanes {
            let role = &program.roles[lane.role.index()];
            let subject = format!("{} rank {}", lane.role, lane.rank.raw());
            if lane.spans.len() != role.instructions().len() {
                let message = format!("{} spans for {} instructions", lane.spans.len(), role.instructions().len());
                faults.push(Problem::new(subject, message));
                continue;
            }
            let begins = SimTime::ZERO + self.input_wait;
            if let Some(early) = lane.spans.iter().find(|span| span.issued < begins) {
                let message = format!("{} was issued before the tokens of the iteration were there", early.instruction);
                faults.push(Problem::new(subject.clone(), message));
            }
            lane_faults(&subject, role, &lane.spans, &mut faults);
        }
        if faults.is_empty() {
            self.message_faults(program, slack, &mut faults);
            self.collective_faults(program, slack, &mut faults);
        }
        faults
    }

    fn message_faults(&self, program: &Program, slack: SimDuration, faults: &mut Vec<Problem>) {
        let mut receives: Vec<((Rank, RoleId, Message), Span)> = Vec::new();
        for lane in &self.lanes {
            let role = &program.roles[lane.role.index()];
            for (instruction, span) in role.instructions().iter().zip(&lane.spans) {
                if let Op::Receive { peer, message, .. } = instruction.op {
                    receives.push(((lane.rank, peer.role, message), *span));
                }
            }
        }
        receives.sort_unstable_by_key(|(key, _)| *key);
        for lane in &self.lanes {
            let role = &program.roles[lane.role.index()];
            for (instruction, span) in role.instructions().iter().zip(&lane.spans) {
                let Op::Send { peer, message, .. } = instruction.op else { continue };
                let Some(receiver) = self.shown(program, lane.rank, lane.multiplicity, peer.role, peer.shift) else {
                    continue;
                };
                let key = (receiver, lane.role, message);
                let Ok(index) = receives.binary_search_by_key(&key, |(key, _)| *key) else {
                    faults.push(Problem::new(lane.role.to_string(), format!("{message:?} was never received")));
                    continue;
                };
                let words = format!("{message:?} from {} to rank {}", lane.role, receiver.raw());
                self.meeting_faults(&words, &[*span, receives[index].1], slack, faults);
            }
        }
    }

    /// The rank of the lane that shows the peer of a rank: the peer itself, or its folded role's representative.
    fn shown(&self, program: &Program, rank: Rank, multiplicity: u32, role: RoleId, shift: i64) -> Option<Rank> {
        let exact = u32::try_from(i64::from(rank.raw()) + shift).ok().map(Rank::new)?;
        let lanes = || self.lanes.iter().filter(|lane| lane.role == role);
        match lanes().find(|lane| lane.rank == exact) {
            Some(lane) => Some(lane.rank),
            None if multiplicity == program.roles[role.index()].ranks.len() || multiplicity > 1 => {
                lanes().next().map(|lane| lane.rank)
            }
            None => None,
        }
    }

    fn collective_faults(&self, program: &Program, slack: SimDuration, faults: &mut Vec<Problem>) {
        // (group, first rank of the instance, how many collectives of the group came before) and the span.
        let mut meetings: Vec<((GroupId, Rank, u32), Span)> = Vec::new();
        for lane in &self.lanes {
            let role = &program.roles[lane.role.index()];
            let mut seen = vec![0u32; program.groups.len()];
            let mut instances: Vec<Option<Rank>> = vec![None; program.groups.len()];
            for (instruction, span) in role.instructions().iter().zip(&lane.spans) {
                let Op::Collective { group, .. } = instruction.op else { continue };
                let instance = *instances[group.index()].get_or_insert_with(|| {
                    program.groups[group.index()].instance_of(lane.rank).map_or(lane.rank, |members| members.first())
                });
                meetings.push(((group, instance, seen[group.index()]), *span));
                seen[group.index()] += 1;
            }
        }
        meetings.sort_by_key(|(key, _)| *key);
        for same in meetings.chunk_by(|a, b| a.0 == b.0) {
            let spans: Vec<Span> = same.iter().map(|(_, span)| *span).collect();
            let (group, _, count) = same[0].0;
            self.meeting_faults(&format!("collective {count} of {group}"), &spans, slack, faults);
        }
    }

    fn meeting_faults(&self, words: &str, spans: &[Span], slack: SimDuration, faults: &mut Vec<Problem>) {
        let last_issued = spans.iter().map(|span| span.issued).max().unwrap_or(SimTime::ZERO);
        for span in spans {
            if span.start + slack < last_issued {
                faults.push(Problem::new(words, format!("{} started before all were there", span.instruction)));
            }
            if self.clock == Clock::Simulated && (span.start, span.end) != (spans[0].start, spans[0].end) {
                faults.push(Problem::new(words, format!("{} did not start and end with the others", span.instruction)));
            }
        }
    }
}

fn lane_faults(subject: &str, role: &Role, spans: &[Span], faults: &mut Vec<Problem>) {
    let mut last: [Option<Span>; Stream::ALL.len()] = [None; Stream::ALL.len()];
    for (index, (instruction, span)) in role.instructions().iter().zip(spans).enumerate() {
        let mut fault = |message: String| {
            faults.push(Problem::new(format!("{subject} {} ({:?})", span.instruction, instruction.op), message));
        };
        if span.instruction != InstructionId::at(index) {
            fault(format!("stands at position {index} of the lane"));
        }
        if span.issued > span.start || span.start > span.end || span.end == SimTime::NEVER {
            let [issued, start, end] = [span.issued, span.start, span.end].map(SimTime::nanoseconds);
            fault(format!("issued at {issued} ns, started at {start} ns, ended at {end} ns"));
        }
        if let Some(before) = last[instruction.stream as usize].replace(*span)
            && before.end > span.issued
        {
            fault(format!("issued before {} of the same stream ended", before.instruction));
        }
        for wait in role.waits(instruction) {
            if spans[wait.index()].end > span.issued {
                fault(format!("issued before {wait}, for which it waits, ended"));
            }
        }
    }
}

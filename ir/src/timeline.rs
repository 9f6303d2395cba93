//! What happened when: the one form in which simulated and measured runs are compared.

mod check;

use crate::{Bytes, Clock, InstructionId, Rank, RoleId, SimDuration, SimTime};

/// An instruction's time on a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which instruction of the rank's role.
    pub instruction: InstructionId,
    /// When its stream and its waits let it begin.
    pub issued: SimTime,
    /// When it began to work: for a collective or transfer, when every partner was there.
    pub start: SimTime,
    /// When it ended.
    pub end: SimTime,
}

/// What one rank did, and all ranks of its role with it if the run was folded.
#[derive(Clone, PartialEq, Debug)]
pub struct Lane {
    /// The role in the folded program.
    pub role: RoleId,
    /// The rank that was followed.
    pub rank: Rank,
    /// How many ranks did exactly this (1 unless folded).
    pub multiplicity: u32,
    /// Spans in order of instruction id; every instruction has one.
    pub spans: Vec<Span>,
    /// Memory in use after each change, in time order; starts with what is resident.
    pub memory: Vec<(SimTime, Bytes)>,
}

/// One iteration on one clock.
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    /// Which clock.
    pub clock: Clock,
    /// Digest of the program that ran.
    pub program: u64,
    /// The iteration, from 0.
    pub iteration: u64,
    /// How long all ranks waited for the tokens of the iteration before anything began: its first part, from
    /// [`SimTime::ZERO`] or whenever the first span would have started.
    pub input_wait: SimDuration,
    /// One per role (folded) or per rank.
    pub lanes: Vec<Lane>,
}

impl Timeline {
    /// When the last span ended.
    #[must_use]
    pub fn end(&self) -> SimTime {
        self.lanes.iter().flat_map(|l| l.spans.iter().map(|s| s.end)).max().unwrap_or(SimTime::ZERO)
    }
    /// The same iteration after a wait for its tokens: all that happened in it is that much later.
    #[must_use]
    pub fn after_input(mut self, wait: SimDuration) -> Self {
        self.input_wait += wait;
        for lane in &mut self.lanes {
            for span in &mut lane.spans {
                [&mut span.issued, &mut span.start, &mut span.end].into_iter().for_each(|time| *time += wait);
            }
            // What is resident is there before.
            lane.memory.iter_mut().skip(1).for_each(|(time, _)| *time += wait);
        }
        self
    }
    /// A digest of every span and every lane's identity, the same on any machine: equal timelines have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = crate::program::Digest::new();
        digest.number(self.program);
        if self.input_wait > SimDuration::ZERO {
            digest.number(self.input_wait.nanoseconds());
        }
        for lane in &self.lanes {
            digest.number(u64::from(lane.rank.raw()));
            digest.number(u64::from(lane.multiplicity));
            for span in &lane.spans {
                digest.number(u64::from(span.instruction.raw()));
                digest.number(span.issued.nanoseconds());
                digest.number(span.start.nanoseconds());
                digest.number(span.end.nanoseconds());
            }
            for (time, bytes) in &lane.memory {
                digest.number(time.nanoseconds());
                digest.number(bytes.get());
            }
        }
        digest.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_input_comes_first() {
        let at = SimTime::from_nanoseconds;
        let span = |[issued, start, end]: [u64; 3]| Span {
            instruction: InstructionId::at(0),
            issued: at(issued),
            start: at(start),
            end: at(end),
        };
        let memory = vec![(at(0), Bytes::new(5)), (at(0), Bytes::new(7)), (at(3), Bytes::new(5))];
        let lane = Lane {
            role: RoleId::at(0),
            rank: Rank::new(0),
            multiplicity: 1,
            spans: vec![span([0, 1, 4])],
            memory: memory.clone(),
        };
        let input_wait = SimDuration::ZERO;
        let timeline = Timeline { clock: Clock::Simulated, program: 1, iteration: 0, input_wait, lanes: vec![lane] };
        assert_eq!(timeline.clone().after_input(SimDuration::ZERO), timeline);
        let late = timeline.clone().after_input(SimDuration::from_nanoseconds(10));
        assert_eq!((late.input_wait.nanoseconds(), late.end().nanoseconds()), (10, 14));
        assert_eq!(late.lanes[0].spans, [span([10, 11, 14])]);
        assert_eq!(late.lanes[0].memory, [memory[0], (at(10), Bytes::new(7)), (at(13), Bytes::new(5))]);
        assert_ne!(late.digest(), timeline.digest());
    }
}

//! What happened when: the one form in which simulated and measured runs are compared.

mod check;

use crate::{Bytes, Clock, InstructionId, Rank, RoleId, SimTime};

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
    /// One per role (folded) or per rank.
    pub lanes: Vec<Lane>,
}

impl Timeline {
    /// When the last span ended.
    #[must_use]
    pub fn end(&self) -> SimTime {
        self.lanes.iter().flat_map(|l| l.spans.iter().map(|s| s.end)).max().unwrap_or(SimTime::ZERO)
    }
    /// A digest of every span and every lane's identity, the same on any machine: equal timelines have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = crate::program::Digest::new();
        digest.number(self.program);
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

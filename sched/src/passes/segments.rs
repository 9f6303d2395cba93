//! The chain of a pass in links: a chain op by itself, or a compute with what runs beside it.

use cost::{Progress, Slowing};
use ir::program::Stream;

use super::PassOp;

/// One link of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// From its first beginning to its last end.
    pub time: u64,
    /// Of that, the compute (as long as it takes beside what runs beside it), or the chain op.
    pub own: u64,
    /// Which op that is, by place in the list.
    pub op: usize,
    /// The stream that the segment waits for after its compute, and the last op on it; `None` where compute is the longest.
    pub longest: Option<(Stream, usize)>,
}

/// The links of the chain of `ops`, each of which takes `time` of its place alone, on a device where compute and exchanges
/// slow each other.
pub fn segments<'a>(
    ops: impl IntoIterator<Item = PassOp> + 'a,
    slowing: Slowing,
    mut time: impl FnMut(usize, PassOp) -> u64 + 'a,
) -> impl Iterator<Item = Segment> + 'a {
    let mut beside: Vec<Beside> = Vec::new();
    ops.into_iter().enumerate().filter_map(move |(place, op)| {
        let own = time(place, op);
        if op.is_beside() {
            beside.push(Beside { stream: op.stream(), time: own, place });
            return None;
        }
        let alone = Segment { time: own, own, op: place, longest: None };
        if beside.is_empty() {
            return Some(alone);
        }
        let segment = if slowing.is_none() { longest(alone, &beside) } else { together(alone, &beside, slowing) };
        beside.clear();
        Some(segment)
    })
}

/// What runs beside a compute: those of one stream one after the other.
#[derive(Clone, Copy, Debug)]
struct Beside {
    stream: Stream,
    time: u64,
    /// Which op it is.
    place: usize,
}

/// The longest of the compute and, of each stream, the sum of what is on it.
fn longest(mut segment: Segment, beside: &[Beside]) -> Segment {
    for stream in Stream::ALL {
        let on = || beside.iter().filter(move |one| one.stream == stream);
        let sum = on().map(|one| one.time).sum::<u64>();
        if let Some(last) = on().next_back().filter(|_| sum > segment.time) {
            (segment.time, segment.longest) = (sum, Some((stream, last.place)));
        }
    }
    segment
}

/// One op at a time of a stream, and which comes next.
#[derive(Clone, Copy, Debug)]
struct Lane {
    stream: Stream,
    under_way: Progress,
    place: usize,
}

/// The same where compute and exchanges slow each other: from one end to the next, as a simulation goes.
fn together(alone: Segment, beside: &[Beside], slowing: Slowing) -> Segment {
    let mut compute = Some(Progress::new(0, alone.own));
    let mut left = beside.to_vec();
    let mut lanes: Vec<Lane> = Vec::with_capacity(4);
    let mut segment = alone;
    let mut now = 0;
    loop {
        for stream in Stream::ALL {
            if lanes.iter().any(|lane| lane.stream == stream) {
                continue;
            }
            if let Some(next) = left.iter().position(|one| one.stream == stream) {
                let next = left.remove(next);
                lanes.push(Lane { stream, under_way: Progress::new(now, next.time), place: next.place });
            }
        }
        let exchanges = |lane: &Lane| lane.stream != Stream::Host;
        let beside_exchange = lanes.iter().any(exchanges);
        for lane in lanes.iter_mut().filter(|lane| exchanges(lane)) {
            lane.under_way.go_at(now, slowing.communication(compute.is_some()));
        }
        if let Some(compute) = &mut compute {
            compute.go_at(now, slowing.compute(beside_exchange));
        }
        let ends = compute.iter().map(Progress::end).chain(lanes.iter().map(|lane| lane.under_way.end()));
        let Some(next) = ends.min() else { return segment };
        now = next;
        if compute.is_some_and(|compute| compute.end() == now) {
            compute = None;
            segment.own = now;
            (segment.time, segment.longest) = (now, None);
        }
        // Of those that end last, the first in the order of streams.
        lanes.sort_by_key(|lane| lane.stream as usize);
        lanes.retain(|lane| {
            let ends = lane.under_way.end() == now;
            if ends && now > segment.time {
                (segment.time, segment.longest) = (now, Some((lane.stream, lane.place)));
            }
            !ends
        });
    }
}

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
        let segment = segment(alone, &beside, slowing, &mut |_, _| {});
        beside.clear();
        Some(segment)
    })
}

/// When each op of a chain ends, counted from its beginning, and when all have ended.
pub fn op_ends(ops: &[PassOp], slowing: Slowing, mut time: impl FnMut(usize, PassOp) -> u64) -> (Vec<u64>, u64) {
    let mut ends = vec![0; ops.len()];
    let (mut beside, mut now) = (Vec::new(), 0);
    for (place, op) in ops.iter().enumerate() {
        let own = time(place, *op);
        if op.is_beside() {
            beside.push(Beside { stream: op.stream(), time: own, place });
            continue;
        }
        let alone = Segment { time: own, own, op: place, longest: None };
        let segment = segment(alone, &beside, slowing, &mut |place, end| ends[place] = now + end);
        ends[place] = now + segment.own;
        now += segment.time;
        beside.clear();
    }
    (ends, now)
}

/// A chain op with what runs beside it; `ended` is told of each of those when it ends.
fn segment(alone: Segment, beside: &[Beside], slowing: Slowing, ended: &mut impl FnMut(usize, u64)) -> Segment {
    match (beside.is_empty(), slowing.is_none()) {
        (true, _) => alone,
        (false, true) => longest(alone, beside, ended),
        (false, false) => together(alone, beside, slowing, ended),
    }
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
fn longest(mut segment: Segment, beside: &[Beside], ended: &mut impl FnMut(usize, u64)) -> Segment {
    for stream in Stream::ALL {
        let (mut sum, mut last) = (0, None);
        for one in beside.iter().filter(|one| one.stream == stream) {
            sum += one.time;
            last = Some((stream, one.place));
            ended(one.place, sum);
        }
        if sum > segment.time {
            (segment.time, segment.longest) = (sum, last);
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
fn together(alone: Segment, beside: &[Beside], slowing: Slowing, ended: &mut impl FnMut(usize, u64)) -> Segment {
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
            if ends {
                ended(lane.place, now);
            }
            if ends && now > segment.time {
                (segment.time, segment.longest) = (now, Some((lane.stream, lane.place)));
            }
            !ends
        });
    }
}
